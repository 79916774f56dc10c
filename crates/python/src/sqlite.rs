//! SQLite's extension inside of this library.
//!
//! SQLite loads this very library as an extension and finds [`sqlite3_native_init`], the name that it derives from
//! `_native.abi3.so`. So the wheel holds one engine, and a volume that Python has open can be lent to SQLite.

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::path::Path;
use syncline_sqlite::{Lent, Routines};

/// A volume's part in SQLite.
#[derive(Default)]
pub(crate) struct Lending {
    lent: Option<Lent>,
}

impl Lending {
    /// Lends the volume, unless it is lent already. Errors: a sentence, if the name is taken.
    pub(crate) fn begin(&mut self, name: &Path, volume: &syncline::Volume) -> Result<(), String> {
        if self.lent.is_none() {
            let lent = Lent::new(name, volume.clone());
            self.lent =
                Some(lent.map_err(|_| format!("SQLite has another volume open as {}", name.display()))?);
        }
        Ok(())
    }

    /// Takes the volume back. Errors: `EBUSY` while connections are open.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        let Some(lent) = self.lent.take() else { return Ok(()) };
        match lent.take_back() {
            Ok(_) => Ok(()),
            Err(lent) => {
                self.lent = Some(lent);
                Err(io::Error::from_raw_os_error(libc::EBUSY))
            }
        }
    }
}

/// The entry point that SQLite looks for in a library of this name.
///
/// # Safety
/// Called by SQLite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_native_init(
    database: *mut c_void,
    message: *mut *mut c_char,
    routines: *const Routines,
) -> c_int {
    // SAFETY: what SQLite passes is passed on.
    unsafe { syncline_sqlite::sqlite3_synclinesqlite_init(database, message, routines) }
}
