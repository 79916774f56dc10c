//! A SQLite VFS on a Syncline volume that is opened in this process.
//!
//! Stock SQLite loads it (`.load ./libsyncline_sqlite`) and opens databases as `file:/db?vfs=syncline&volume=IMAGE`.
//! In SQLite's default journal mode a commit is one record and one flush: the writes of a transaction are a
//! transaction of the volume ([`database`]), and SQLite's rollback journals exist in memory only ([`journal`]).
//! `docs/sqlite.md` tells how to use it and what is guaranteed.
//!
//! A process that was forked from one with open databases has no part in them: each call on what it has inherited is
//! refused at the border, before anything is locked (`methods`), and what it opens it opens anew (`volumes`).
//!
//! Layers, from SQLite down: `abi` and `api` (C declarations, and SQLite's functions), `vfs`, `methods` and `function`
//! (C entry points: all that is unsafe), `handle` and `waiting` (what each call means), `database` with `locks`, `shm`,
//! `staged` and `together`, `journal`, `scratch`, `absent`, and `volumes` (which volumes are open, and what files are
//! called).
//!
//! Statically linked programs call `sqlite3_auto_extension` with [`syncline_sqlite_auto`], or [`register`] with the
//! table of routines that SQLite gives to extensions.

mod abi;
#[deny(unsafe_code)]
mod absent;
mod api;
#[deny(unsafe_code)]
mod database;
#[deny(unsafe_code)]
mod error;
mod function;
#[deny(unsafe_code)]
mod handle;
#[deny(unsafe_code)]
mod journal;
#[deny(unsafe_code)]
mod locks;
mod methods;
mod part;
#[deny(unsafe_code)]
mod scratch;
#[deny(unsafe_code)]
mod shm;
#[deny(unsafe_code)]
mod staged;
#[deny(unsafe_code)]
mod together;
mod vfs;
#[deny(unsafe_code)]
mod volumes;
mod waiting;

pub use abi::Routines;

use api::Sqlite;
use error::VfsError;
use std::ffi::{OsString, c_char, c_int, c_void};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline::Volume;
use syncline_device::{PerProcess, Process};
use volumes::VolumeRef;

/// Set in the environment, to anything: errors go to SQLite's log only, and not to standard error as well.
const QUIET: &str = "SYNCLINE_SQLITE_QUIET";

/// In the environment: the VFS is SQLite's default one, for programs that cannot name one. The path of an image makes
/// it the volume of databases that name none.
const DEFAULT: &str = "SYNCLINE_VFS_DEFAULT";

/// Whether this process was told that what it has inherited is not its own.
static TOLD_OF_FORK: PerProcess<AtomicBool> = PerProcess::new(|| AtomicBool::new(false));

/// The process that registered the VFS.
static LOADED_IN: OnceLock<Process> = OnceLock::new();

/// The process that registered the VFS; in a forked child it is another one.
fn loaded_in() -> Process {
    *LOADED_IN.get_or_init(Process::current)
}

/// Tells an error, because SQLite's own message says no more than its code. SQLite's log is where programs listen;
/// most do not, so that a person reads it on standard error.
fn tell(error: &VfsError) {
    if matches!(error, VfsError::Batch(_)) {
        // Nothing has failed for the program.
        return;
    }
    if matches!(error, VfsError::Forked(_)) && TOLD_OF_FORK.get().swap(true, Ordering::Relaxed) {
        // SQLite goes on to close and undo, and each of its calls is refused alike.
        return;
    }
    let sentence = format!("syncline: {error}");
    api::get().log(abi::NOTICE, &sentence);
    if std::env::var_os(QUIET).is_none() {
        // `eprintln!` would end the program whose standard error is closed or full.
        let _ = writeln!(std::io::stderr(), "{sentence}");
    }
}

/// Registers the VFS with SQLite, under the name "syncline".
///
/// # Safety
/// `routines` is the table that SQLite gives to the entry point of an extension.
pub unsafe fn register(routines: *const Routines, default: bool) -> c_int {
    if routines.is_null() {
        return abi::ERROR;
    }
    // SAFETY: the caller's promise.
    let api = unsafe { api::take(routines) };
    loaded_in();
    vfs::register(api, default)
}

/// What [`DEFAULT`] asks for: whether the VFS is the default one, and the image of databases that name none.
fn default_asked_for(value: Option<OsString>) -> (bool, Option<PathBuf>) {
    match value {
        None => (false, None),
        Some(value) if value.is_empty() || value == "0" => (false, None),
        Some(value) if value == "1" => (true, None),
        Some(image) => (true, Some(image.into())),
    }
}

/// [`register`], as the environment says.
///
/// # Safety
/// As of [`register`].
unsafe fn register_as_asked(routines: *const Routines, default: bool) -> c_int {
    let (asked, image) = default_asked_for(std::env::var_os(DEFAULT));
    volumes::set_default_image(image);
    // SAFETY: the caller's promise.
    unsafe { register(routines, default || asked) }
}

/// Registers what a connection has loaded: the VFS, and the function with this connection and all later ones.
///
/// # Safety
/// Called by SQLite.
unsafe fn load(database: *mut Sqlite, routines: *const Routines, default: bool) -> c_int {
    // SAFETY: SQLite's table.
    let code = unsafe { register_as_asked(routines, default) };
    if code != abi::OK {
        return code;
    }
    function::offer_to_all();
    // SAFETY: SQLite's connection.
    match unsafe { function::offer(database) } {
        abi::OK => abi::OK_LOAD_PERMANENTLY,
        code => code,
    }
}

/// The entry point that SQLite finds in `libsyncline_sqlite.so`. The library stays loaded, because the VFS does.
///
/// # Safety
/// Called by SQLite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_synclinesqlite_init(
    database: *mut c_void,
    _message: *mut *mut c_char,
    routines: *const Routines,
) -> c_int {
    // SAFETY: SQLite's table.
    unsafe { load(database.cast(), routines, false) }
}

/// Another entry point, for programs that can name one but have no URIs: the VFS is SQLite's default one from here on.
///
/// # Safety
/// Called by SQLite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_synclinedefault_init(
    database: *mut c_void,
    _message: *mut *mut c_char,
    routines: *const Routines,
) -> c_int {
    // SAFETY: SQLite's table.
    unsafe { load(database.cast(), routines, true) }
}

/// The entry point for `sqlite3_auto_extension`, in programs that link this library statically.
///
/// # Safety
/// Called by SQLite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_sqlite_auto(
    database: *mut c_void,
    _message: *mut *mut c_char,
    routines: *const Routines,
) -> c_int {
    // SAFETY: SQLite's table.
    match unsafe { register_as_asked(routines, false) } {
        // SAFETY: SQLite's connection.
        abi::OK => unsafe { function::offer(database.cast()) },
        code => code,
    }
}

/// A volume that the program opened itself, on whatever device, and lends to SQLite. It is closed properly when this
/// and all connections to it are gone.
pub struct Lent {
    volume: VolumeRef,
}

impl Lent {
    /// Lends a volume under a name, which is used like an image's path: `file:/db?vfs=syncline&volume=NAME`.
    ///
    /// Errors: the volume back, if a volume of this name is open.
    pub fn new(name: impl AsRef<Path>, volume: Volume) -> Result<Lent, Volume> {
        Ok(Lent { volume: volumes::add(name.as_ref(), volume)? })
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        self.volume.volume()
    }

    /// Takes the volume back, as it is: it is not closed. From then on SQLite does not know it.
    ///
    /// Errors: itself, while connections to the volume are open, and in a forked child.
    pub fn take_back(self) -> Result<Volume, Lent> {
        volumes::take_back(self.volume).map_err(|volume| Lent { volume })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_makes_the_vfs_the_default_and_may_name_its_volume() {
        let asked = |value: &str| default_asked_for(Some(value.into()));
        assert_eq!(default_asked_for(None), (false, None));
        assert_eq!([asked(""), asked("0")], [(false, None), (false, None)]);
        assert_eq!(asked("1"), (true, None));
        assert_eq!(asked("/srv/data.img"), (true, Some(PathBuf::from("/srv/data.img"))));
    }
}
