//! Open files.

use crate::abi::{
    Out, SYNCLINE_DATA, buffer, data, offset, out_handle, path, syncline_file, syncline_stat, syncline_volume,
};
use crate::attributes::{owner, stat_of, times_of};
use crate::error::{Failure, Result, call};
use crate::handles::{self, Object, WholeVolume};
use libc::{c_int, timespec};
use std::ffi::{c_char, c_void};
use std::ops::Range;
use syncline::{FallocateMode, File, OpenOptions, SyncScope};

/// Flags of `open(2)` that mean nothing here.
const IGNORED: c_int = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_LARGEFILE;

fn options_of(flags: c_int, mode: u32) -> Result<OpenOptions> {
    let has = |flag: c_int| flags & flag == flag;
    let known = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_APPEND;
    if flags & !(known | libc::O_SYNC | libc::O_DSYNC | libc::O_NOFOLLOW | IGNORED) != 0 {
        return Err(Failure::invalid("the flags have one that is not known here"));
    }
    if mode & !0o7777 != 0 {
        return Err(Failure::invalid("the mode has bits beyond 07777"));
    }
    let access = flags & libc::O_ACCMODE;
    if access == libc::O_ACCMODE || has(libc::O_EXCL) && !has(libc::O_CREAT) {
        return Err(Failure::invalid("the flags contradict each other"));
    }
    let mut options = OpenOptions::new();
    options
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .append(access != libc::O_RDONLY && has(libc::O_APPEND))
        .truncate(has(libc::O_TRUNC))
        .create(has(libc::O_CREAT))
        .create_new(has(libc::O_CREAT | libc::O_EXCL))
        .follow_symlink(!has(libc::O_NOFOLLOW))
        .sync(has(libc::O_SYNC))
        .data_sync(has(libc::O_DSYNC) && !has(libc::O_SYNC))
        .mode(mode);
    Ok(options)
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_open(
    volume: *mut syncline_volume,
    name: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut syncline_file,
) -> c_int {
    call("syncline_open", || {
        // SAFETY: the caller's promise.
        let (out, name) = unsafe { (out_handle(file, "where the file goes")?, path(name, "the path")?) };
        let options = options_of(flags, mode)?;
        let handle = handles::with(volume.cast_const(), |opened, _: &WholeVolume| {
            let file = options.open(opened.volume(), name);
            let file = file.map_err(|error| Failure::from(error).of_path(name))?;
            handles::insert::<File, _>(opened, Object::File(file))
        })?;
        // SAFETY: as above.
        unsafe { out.put(handle) };
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_file_close(file: *mut syncline_file) -> c_int {
    call("syncline_file_close", || {
        handles::end(file.cast_const(), |_, file: File| Ok(file.close()?))?;
        Ok(0)
    })
}

fn on_file<T>(file: *mut syncline_file, act: impl FnOnce(&File) -> Result<T>) -> Result<T> {
    handles::with(file.cast_const(), |_, file: &File| act(file))
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_pread(
    file: *mut syncline_file,
    into: *mut c_void,
    length: usize,
    at: i64,
) -> isize {
    call("syncline_file_pread", || {
        // SAFETY: the caller's promise.
        let into = unsafe { buffer(into, length)? };
        let at = offset(at, "the offset")?;
        on_file(file, |file| Ok(file.read_at(into, at)? as isize))
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_pwrite(
    file: *mut syncline_file,
    from: *const c_void,
    length: usize,
    at: i64,
) -> isize {
    call("syncline_file_pwrite", || {
        // SAFETY: the caller's promise.
        let from = unsafe { data(from, length)? };
        let at = offset(at, "the offset")?;
        on_file(file, |file| Ok(file.write_at(from, at)? as isize))
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_append(
    file: *mut syncline_file,
    from: *const c_void,
    length: usize,
    at: *mut i64,
) -> isize {
    call("syncline_file_append", || {
        // SAFETY: the caller's promise.
        let from = unsafe { data(from, length)? };
        let (begin, count) = on_file(file, |file| Ok(file.append(from)?))?;
        if !at.is_null() {
            // SAFETY: the caller's promise.
            unsafe { at.write_unaligned(begin as i64) };
        }
        Ok(count as isize)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_file_truncate(file: *mut syncline_file, size: i64) -> c_int {
    call("syncline_file_truncate", || {
        let size = offset(size, "the size")?;
        on_file(file, |file| Ok(file.set_len(size)?))?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_file_fallocate(
    file: *mut syncline_file,
    mode: c_int,
    at: i64,
    length: i64,
) -> c_int {
    const PUNCH: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    call("syncline_file_fallocate", || {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match mode {
            0 | libc::FALLOC_FL_KEEP_SIZE => FallocateMode::Allocate { keep_size },
            PUNCH => FallocateMode::PunchHole,
            libc::FALLOC_FL_COLLAPSE_RANGE => FallocateMode::CollapseRange,
            libc::FALLOC_FL_INSERT_RANGE => FallocateMode::InsertRange,
            _ if mode & !libc::FALLOC_FL_KEEP_SIZE == libc::FALLOC_FL_ZERO_RANGE => {
                FallocateMode::ZeroRange { keep_size }
            }
            _ => return Err(Failure::new(libc::EOPNOTSUPP, "no such mode of fallocate")),
        };
        let (at, length) = (offset(at, "the offset")?, offset(length, "the length")?);
        if length == 0 {
            return Err(Failure::invalid("the length is 0"));
        }
        on_file(file, |file| Ok(file.fallocate(how, at, length)?))?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_file_seek(file: *mut syncline_file, at: i64, whence: c_int) -> i64 {
    call("syncline_file_seek", || {
        let at = offset(at, "the offset")?;
        let found = on_file(file, |file| match whence {
            libc::SEEK_DATA => Ok(file.seek_data(at)?),
            libc::SEEK_HOLE => Ok(file.seek_hole(at)?),
            _ => Err(Failure::invalid("whence is SEEK_DATA or SEEK_HOLE")),
        })?;
        let found = found.and_then(|found| i64::try_from(found).ok());
        found.ok_or_else(|| Failure::new(libc::ENXIO, "there is none at or behind the offset"))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_file_sync(file: *mut syncline_file) -> c_int {
    call("syncline_file_sync", || {
        on_file(file, |file| Ok(file.sync_all()?))?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_file_datasync(file: *mut syncline_file) -> c_int {
    call("syncline_file_datasync", || {
        on_file(file, |file| Ok(file.sync_data()?))?;
        Ok(0)
    })
}

/// A range of a file's bytes, and what of it is to be durable.
pub(crate) fn range_of(at: i64, length: i64, flags: u32) -> Result<(Range<u64>, SyncScope)> {
    let (at, length) = (offset(at, "the offset")?, offset(length, "the length")?);
    let end = if length == 0 { u64::MAX } else { at + length };
    match flags {
        0 => Ok((at..end, SyncScope::All)),
        SYNCLINE_DATA => Ok((at..end, SyncScope::Data)),
        _ => Err(Failure::invalid("the flags are 0 or SYNCLINE_DATA")),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_file_sync_range(
    file: *mut syncline_file,
    at: i64,
    length: i64,
    flags: u32,
) -> c_int {
    call("syncline_file_sync_range", || {
        let (range, scope) = range_of(at, length, flags)?;
        on_file(file, |file| Ok(file.sync_range(range, scope)?))?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_file_write_back(file: *mut syncline_file, at: i64, length: i64) -> i64 {
    call("syncline_file_write_back", || {
        let (range, _) = range_of(at, length, 0)?;
        let started = on_file(file, |file| Ok(file.write_back(range)?))?;
        Ok(started.bytes as i64)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_stat(file: *mut syncline_file, stat: *mut syncline_stat) -> c_int {
    call("syncline_file_stat", || {
        let out = Out::new(stat, "where the attributes go")?;
        let metadata = on_file(file, |file| Ok(file.metadata()?))?;
        // SAFETY: the caller's promise.
        unsafe { out.put(stat_of(&metadata)) };
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_file_chmod(file: *mut syncline_file, mode: u32) -> c_int {
    call("syncline_file_chmod", || {
        on_file(file, |file| Ok(file.set_permissions(crate::attributes::permissions(mode)?)?))?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_file_chown(file: *mut syncline_file, uid: u32, gid: u32) -> c_int {
    call("syncline_file_chown", || {
        on_file(file, |file| Ok(file.set_attributes(&owner(uid, gid))?))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_utimens(file: *mut syncline_file, times: *const timespec) -> c_int {
    call("syncline_file_utimens", || {
        // SAFETY: the caller's promise.
        let set = unsafe { times_of(times)? };
        on_file(file, |file| Ok(file.set_attributes(&set)?))?;
        Ok(0)
    })
}
