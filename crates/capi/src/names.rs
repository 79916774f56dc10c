//! Names: directories, links, renaming.

use crate::abi::{give, path, syncline_volume};
use crate::error::{Failure, Result, call};
use crate::volume::on_volume;
use libc::c_int;
use std::ffi::c_char;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use syncline::{RenameFlags, Volume};

/// Does something with a path of a volume; an error's sentence names the path.
pub(crate) fn at_path<T>(
    volume: *mut syncline_volume,
    path: &Path,
    act: impl FnOnce(&Volume) -> io::Result<T>,
) -> Result<T> {
    on_volume(volume, |volume| act(volume).map_err(|error| Failure::from(error).of_path(path)))
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_mkdir(
    volume: *mut syncline_volume,
    name: *const c_char,
    mode: u32,
) -> c_int {
    call("syncline_mkdir", || {
        if mode & !0o7777 != 0 {
            return Err(Failure::invalid("the mode has bits beyond 07777"));
        }
        // SAFETY: the caller's promise.
        let name = unsafe { path(name, "the path")? };
        at_path(volume, name, |volume| volume.create_dir_with_mode(name, mode))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_rmdir(volume: *mut syncline_volume, name: *const c_char) -> c_int {
    call("syncline_rmdir", || {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name, "the path")? };
        at_path(volume, name, |volume| volume.remove_dir(name))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_unlink(volume: *mut syncline_volume, name: *const c_char) -> c_int {
    call("syncline_unlink", || {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name, "the path")? };
        at_path(volume, name, |volume| volume.remove_file(name))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_rename(
    volume: *mut syncline_volume,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    call("syncline_rename", || {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (path(from, "the old path")?, path(to, "the new path")?) };
        let has = |flag: u32| flags & flag != 0;
        if has(!(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT)) {
            return Err(Failure::invalid(
                "the flags are RENAME_NOREPLACE, RENAME_EXCHANGE and RENAME_WHITEOUT",
            ));
        }
        let flags = RenameFlags {
            no_replace: has(libc::RENAME_NOREPLACE),
            exchange: has(libc::RENAME_EXCHANGE),
            whiteout: has(libc::RENAME_WHITEOUT),
        };
        at_path(volume, from, |volume| volume.rename_with(from, to, flags))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_link(
    volume: *mut syncline_volume,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    call("syncline_link", || {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (path(from, "the path")?, path(to, "the new path")?) };
        at_path(volume, to, |volume| volume.hard_link(from, to))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_symlink(
    volume: *mut syncline_volume,
    target: *const c_char,
    name: *const c_char,
) -> c_int {
    call("syncline_symlink", || {
        // SAFETY: the caller's promise.
        let (target, name) = unsafe { (path(target, "the target")?, path(name, "the path")?) };
        at_path(volume, name, |volume| volume.symlink(target, name))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_readlink(
    volume: *mut syncline_volume,
    name: *const c_char,
    target: *mut c_char,
    size: usize,
) -> isize {
    call("syncline_readlink", || {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name, "the path")? };
        let found = at_path(volume, name, |volume| volume.read_link(name))?;
        // SAFETY: the caller's promise.
        unsafe { give(found.as_os_str().as_bytes(), true, target.cast(), size) }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_realpath(
    volume: *mut syncline_volume,
    name: *const c_char,
    absolute: *mut c_char,
    size: usize,
) -> isize {
    call("syncline_realpath", || {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name, "the path")? };
        let found = at_path(volume, name, |volume| volume.canonicalize(name))?;
        // SAFETY: the caller's promise.
        unsafe { give(found.as_os_str().as_bytes(), true, absolute.cast(), size) }
    })
}
