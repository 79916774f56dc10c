//! Iterating over a directory.

use crate::abi::{Out, out_handle, path, syncline_dir, syncline_dirent, syncline_volume};
use crate::error::{Failure, call};
use crate::handles::{self, Object, WholeVolume};
use libc::c_int;
use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt;
use syncline::{DirectoryEntry, ReadDir};

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_dir_open(
    volume: *mut syncline_volume,
    name: *const c_char,
    directory: *mut *mut syncline_dir,
) -> c_int {
    call("syncline_dir_open", || {
        // SAFETY: the caller's promise.
        let (out, name) =
            unsafe { (out_handle(directory, "where the directory goes")?, path(name, "the path")?) };
        let handle = handles::with(volume.cast_const(), |opened, _: &WholeVolume| {
            let listing = opened.volume().read_dir(name);
            let listing = listing.map_err(|error| Failure::from(error).of_path(name))?;
            handles::insert::<ReadDir, _>(opened, Object::Directory(listing))
        })?;
        // SAFETY: as above.
        unsafe { out.put(handle) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_dir_next(
    directory: *mut syncline_dir,
    entry: *mut syncline_dirent,
) -> c_int {
    call("syncline_dir_next", || {
        let out = Out::new(entry, "where the entry goes")?;
        let next = handles::with_mut(directory.cast_const(), |_, listing: &mut ReadDir| {
            Ok(listing.next().transpose()?)
        })?;
        let Some(next) = next else { return Ok(0) };
        // SAFETY: the caller's promise.
        unsafe { out.put(told(&next)) };
        Ok(1)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_dir_close(directory: *mut syncline_dir) -> c_int {
    call("syncline_dir_close", || {
        handles::end(directory.cast_const(), |_, listing: ReadDir| {
            drop(listing);
            Ok(())
        })?;
        Ok(0)
    })
}

fn told(entry: &DirectoryEntry) -> syncline_dirent {
    let r#type = match () {
        () if entry.is_file() => libc::DT_REG,
        () if entry.is_dir() => libc::DT_DIR,
        () if entry.is_symlink() => libc::DT_LNK,
        () => libc::DT_UNKNOWN,
    };
    let bytes = entry.file_name().as_bytes();
    let mut told = syncline_dirent {
        ino: entry.inode().0,
        r#type: r#type.into(),
        name_bytes: bytes.len() as u32,
        name: [0; 256],
    };
    // No name is longer than 255 bytes; the last place stays NUL.
    for (to, from) in told.name[..255].iter_mut().zip(bytes) {
        *to = *from as c_char;
    }
    told
}
