//! What differs between snapshots of a volume.

use crate::abi::{syncline_change, syncline_change_callback, syncline_volume};
use crate::error::{Failure, Result, call};
use crate::snapshot::name;
use crate::volume::on_volume;
use libc::{c_int, c_void};
use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use syncline::{Change, ChangeKind};

/// `SYNCLINE_DIFF_CONTENT`.
const BY_CONTENT: u32 = 1;

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_diff(
    volume: *mut syncline_volume,
    older: *const c_char,
    newer: *const c_char,
    flags: u32,
    each: syncline_change_callback,
    context: *mut c_void,
) -> c_int {
    call("syncline_snapshot_diff", || {
        let Some(each) = each else { return Err(Failure::fault("the callback")) };
        if flags & !BY_CONTENT != 0 {
            return Err(Failure::invalid("the flags have one that is not known here"));
        }
        // SAFETY: the caller's promise.
        let older = unsafe { name(older)? };
        let newer = match newer.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { name(newer)? }),
        };
        let changes = on_volume(volume, |volume| Ok(volume.diff(older, newer, flags & BY_CONTENT != 0)?))?;
        for change in &changes {
            let told = Told::new(change)?;
            // SAFETY: the caller's promise: the function takes a change. What it points to lives until behind the call.
            let said = unsafe { each(context, &told.change()) };
            if said != 0 {
                return Ok(said);
            }
        }
        Ok(0)
    })
}

/// A change with its paths as C has them.
struct Told {
    kind: u32,
    flags: u32,
    path: CString,
    from: Option<CString>,
}

impl Told {
    fn new(change: &Change) -> Result<Told> {
        let (kind, flags, from) = match &change.kind {
            ChangeKind::Removed => (1, 0, None),
            ChangeKind::Added => (2, 0, None),
            ChangeKind::Renamed { from } => (3, 0, Some(text(from)?)),
            ChangeKind::Modified { content, attributes } => {
                (4, u32::from(*content) | u32::from(*attributes) << 1, None)
            }
            _ => return Err(Failure::invalid("a change of a kind that is not known here")),
        };
        Ok(Told { kind, flags, path: text(&change.path)?, from })
    }

    fn change(&self) -> syncline_change {
        let from = self.from.as_ref().map_or(ptr::null(), |from| from.as_ptr());
        syncline_change { kind: self.kind, flags: self.flags, path: self.path.as_ptr(), from }
    }
}

/// Names have no NUL.
fn text(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Failure::invalid("a path has a NUL in it"))
}
