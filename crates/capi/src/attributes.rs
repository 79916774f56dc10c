//! Attributes and extended attributes by path.

use crate::abi::{Out, data, give, path, syncline_stat, syncline_volume, text};
use crate::error::{Failure, Result, call};
use crate::names::at_path;
use libc::{c_int, timespec};
use std::ffi::{OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use syncline::{Metadata, SetAttr, SetTime, SetXattr, Timestamp};

/// Longest name of an extended attribute; the engine knows the same.
const XATTR_NAME_BYTES_MAX: usize = 255;
const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

pub(crate) fn stat_of(metadata: &Metadata) -> syncline_stat {
    let attr = metadata.attr();
    let time = |time: Timestamp| timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    syncline_stat {
        ino: attr.inode.0,
        size: attr.size,
        blocks: attr.blocks,
        rdev: libc::makedev((attr.rdev >> 32) as u32, attr.rdev as u32),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        accessed: time(attr.accessed),
        modified: time(attr.modified),
        changed: time(attr.changed),
        created: time(attr.created),
        flags: attr.flags,
        reserved: [0; 7],
    }
}

/// Errors: EINVAL for bits that are no permissions; the type bits may be there, as from `stat`.
pub(crate) fn permissions(mode: u32) -> Result<u32> {
    match mode & !(libc::S_IFMT | 0o7777) {
        0 => Ok(mode & 0o7777),
        _ => Err(Failure::invalid("the mode has bits beyond 07777")),
    }
}

/// `(uint32_t)-1` leaves one alone. The set-id bits go with the owner.
pub(crate) fn owner(uid: u32, gid: u32) -> SetAttr {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    let (uid, gid) = (given(uid), given(gid));
    SetAttr { uid, gid, strip_set_id: uid.is_some() || gid.is_some(), ..SetAttr::default() }
}

/// Of last read and last change; NULL is now.
///
/// # Safety
/// `times` is NULL, or two of them are there.
pub(crate) unsafe fn times_of(times: *const timespec) -> Result<SetAttr> {
    let now = Some(SetTime::Now);
    if times.is_null() {
        return Ok(SetAttr { accessed: now, modified: now, ..SetAttr::default() });
    }
    // SAFETY: the caller's promise.
    let [accessed, modified] = unsafe { times.cast::<[timespec; 2]>().read_unaligned() };
    let of = |time: timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(now),
        libc::UTIME_OMIT => Ok(None),
        nanoseconds @ 0..NANOSECONDS_PER_SECOND => {
            let nanoseconds = nanoseconds as u32;
            Ok(Some(SetTime::At(Timestamp { seconds: time.tv_sec, nanoseconds })))
        }
        _ => Err(Failure::invalid("a time has more nanoseconds than a second")),
    };
    Ok(SetAttr { accessed: of(accessed)?, modified: of(modified)?, ..SetAttr::default() })
}

/// # Safety
/// As the header says of `syncline_stat` and `syncline_lstat`.
unsafe fn stat(
    volume: *mut syncline_volume,
    name: *const c_char,
    stat: *mut syncline_stat,
    follow: bool,
) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let (out, name) = unsafe { (Out::new(stat, "where the attributes go")?, path(name, "the path")?) };
    let metadata = at_path(volume, name, |volume| match follow {
        true => volume.metadata(name),
        false => volume.symlink_metadata(name),
    })?;
    // SAFETY: the caller's promise.
    unsafe { out.put(stat_of(&metadata)) };
    Ok(0)
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_stat(
    volume: *mut syncline_volume,
    name: *const c_char,
    attributes: *mut syncline_stat,
) -> c_int {
    // SAFETY: the caller's promise.
    call("syncline_stat", || unsafe { stat(volume, name, attributes, true) })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_lstat(
    volume: *mut syncline_volume,
    name: *const c_char,
    attributes: *mut syncline_stat,
) -> c_int {
    // SAFETY: the caller's promise.
    call("syncline_lstat", || unsafe { stat(volume, name, attributes, false) })
}

/// # Safety
/// `name` is a string, or NULL.
unsafe fn set(
    volume: *mut syncline_volume,
    name: *const c_char,
    follow: bool,
    set: &SetAttr,
) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let name = unsafe { path(name, "the path")? };
    at_path(volume, name, |volume| match follow {
        true => volume.set_attributes(name, set),
        false => volume.set_symlink_attributes(name, set),
    })?;
    Ok(0)
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_truncate(
    volume: *mut syncline_volume,
    name: *const c_char,
    size: i64,
) -> c_int {
    call("syncline_truncate", || {
        let size = Some(crate::abi::offset(size, "the size")?);
        // SAFETY: the caller's promise.
        unsafe { set(volume, name, true, &SetAttr { size, strip_set_id: true, ..SetAttr::default() }) }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_chmod(
    volume: *mut syncline_volume,
    name: *const c_char,
    mode: u32,
) -> c_int {
    call("syncline_chmod", || {
        let mode = Some(permissions(mode)?);
        // SAFETY: the caller's promise.
        unsafe { set(volume, name, true, &SetAttr { mode, ..SetAttr::default() }) }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_chown(
    volume: *mut syncline_volume,
    name: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    call("syncline_chown", || unsafe { set(volume, name, true, &owner(uid, gid)) })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_lchown(
    volume: *mut syncline_volume,
    name: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    call("syncline_lchown", || unsafe { set(volume, name, false, &owner(uid, gid)) })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_utimens(
    volume: *mut syncline_volume,
    name: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    call("syncline_utimens", || {
        if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 {
            return Err(Failure::invalid("the flags are 0 or AT_SYMLINK_NOFOLLOW"));
        }
        // SAFETY: the caller's promise.
        unsafe { set(volume, name, flags == 0, &times_of(times)?) }
    })
}

/// Name of an extended attribute.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn attribute<'a>(name: *const c_char) -> Result<&'a OsStr> {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name, XATTR_NAME_BYTES_MAX, "the attribute's name") };
    // As setxattr(2) has it.
    match name {
        Err(failure) if failure.code() == -libc::ENAMETOOLONG => {
            Err(Failure::new(libc::ERANGE, "the attribute's name is longer than 255 bytes"))
        }
        name => Ok(OsStr::from_bytes(name?)),
    }
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_getxattr(
    volume: *mut syncline_volume,
    name: *const c_char,
    key: *const c_char,
    value: *mut c_void,
    size: usize,
) -> isize {
    call("syncline_getxattr", || {
        // SAFETY: the caller's promise.
        let (name, key) = unsafe { (path(name, "the path")?, attribute(key)?) };
        let found = at_path(volume, name, |volume| volume.xattr(name, key))?;
        let found =
            found.ok_or_else(|| Failure::new(libc::ENODATA, "no such extended attribute").of_path(name))?;
        // SAFETY: the caller's promise.
        unsafe { give(&found, false, value, size) }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_setxattr(
    volume: *mut syncline_volume,
    name: *const c_char,
    key: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    call("syncline_setxattr", || {
        let how = match flags {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Failure::invalid("the flags are 0, XATTR_CREATE or XATTR_REPLACE")),
        };
        // SAFETY: the caller's promise.
        let (name, key, value) = unsafe { (path(name, "the path")?, attribute(key)?, data(value, size)?) };
        at_path(volume, name, |volume| volume.set_xattr_with(name, key, value, how))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_removexattr(
    volume: *mut syncline_volume,
    name: *const c_char,
    key: *const c_char,
) -> c_int {
    call("syncline_removexattr", || {
        // SAFETY: the caller's promise.
        let (name, key) = unsafe { (path(name, "the path")?, attribute(key)?) };
        at_path(volume, name, |volume| volume.remove_xattr(name, key))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_listxattr(
    volume: *mut syncline_volume,
    name: *const c_char,
    names: *mut c_char,
    size: usize,
) -> isize {
    call("syncline_listxattr", || {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name, "the path")? };
        let found = at_path(volume, name, |volume| volume.list_xattrs(name))?;
        let list: Vec<u8> = found.iter().flat_map(|key| key.as_bytes().iter().copied().chain([0])).collect();
        // SAFETY: the caller's promise.
        unsafe { give(&list, false, names.cast(), size) }
    })
}
