//! The types of the header, and how a caller's arguments are read. `tests/suite/header.rs` compares the types with
//! the header.
#![allow(non_camel_case_types, reason = "the names of the header")]

use crate::error::{Failure, Result};
use libc::{c_int, timespec};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

macro_rules! opaque {
    ($($name:ident)*) => {
        $(
            /// A handle; see the header. It is never followed.
            #[repr(C)]
            pub struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}

opaque!(syncline_volume syncline_file syncline_dir syncline_transaction syncline_sync_ticket);

/// See the header.
pub type syncline_callback = Option<unsafe extern "C" fn(*mut c_void, c_int)>;

/// `SYNCLINE_DATA`.
pub const SYNCLINE_DATA: u32 = 1;
/// `SYNCLINE_OPEN_READ_ONLY`.
pub const SYNCLINE_OPEN_READ_ONLY: u32 = 1;
/// `SYNCLINE_OPEN_OWNER`.
pub const SYNCLINE_OPEN_OWNER: u32 = 2;

/// See the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct syncline_open_options {
    /// Of this structure, as the caller knows it.
    pub size: usize,
    /// `SYNCLINE_OPEN_*`.
    pub flags: u32,
    /// 0 relative, 1 never, 2 always.
    pub access_times: u32,
    /// 0: refused at once.
    pub wait_for_lock_ms: u64,
    /// 0: the default.
    pub commit_interval_ms: u64,
    /// 0: the default.
    pub memory_bytes_max: u64,
    /// With `SYNCLINE_OPEN_OWNER`.
    pub uid: u32,
    /// With `SYNCLINE_OPEN_OWNER`.
    pub gid: u32,
    /// With `SYNCLINE_OPEN_OWNER`.
    pub umask: u32,
    /// 0.
    pub reserved: u32,
    /// NULL: the one that is shown when nobody names one.
    pub head: *const c_char,
}

/// See the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct syncline_create_options {
    /// Of this structure, as the caller knows it.
    pub size: usize,
    /// 0: the whole file or device.
    pub volume_bytes: u64,
    /// 0: the default.
    pub journal_bytes: u64,
    /// NULL: none.
    pub label: *const c_char,
    /// 16 bytes; NULL: random.
    pub uuid: *const u8,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// 0: 0755.
    pub root_mode: u32,
    /// 0: the default.
    pub format: u32,
}

/// See the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct syncline_stat {
    /// Inode number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Of 512 bytes.
    pub blocks: u64,
    /// As `makedev` makes it.
    pub rdev: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last read.
    pub accessed: timespec,
    /// Last change of the content.
    pub modified: timespec,
    /// Last change of anything.
    pub changed: timespec,
    /// Creation.
    pub created: timespec,
    /// `FS_*_FL`.
    pub flags: u32,
    /// 0.
    pub reserved: [u32; 7],
}

/// See the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct syncline_statvfs {
    /// In all.
    pub blocks: u64,
    /// Not in use.
    pub blocks_free: u64,
    /// For a new file.
    pub blocks_available: u64,
    /// Tells volumes apart.
    pub id: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Longest name.
    pub name_bytes_max: u32,
    /// 0.
    pub reserved: [u64; 3],
}

/// See the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct syncline_dirent {
    /// Inode number.
    pub ino: u64,
    /// `DT_*`.
    pub r#type: u32,
    /// Without the NUL.
    pub name_bytes: u32,
    /// With a NUL.
    pub name: [c_char; 256],
}

/// See the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct syncline_snapshot_info {
    /// Ascending.
    pub number: u32,
    /// `SYNCLINE_SNAPSHOT_HELD`, `SYNCLINE_SNAPSHOT_SCHEDULED`.
    pub flags: u32,
    /// When it was made.
    pub made: timespec,
    /// Of this snapshot alone.
    pub uuid: [u8; 16],
    /// With a NUL.
    pub name: [c_char; 256],
}

/// See the header.
pub type syncline_change_callback =
    Option<unsafe extern "C" fn(*mut c_void, *const syncline_change) -> c_int>;

/// See the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct syncline_change {
    /// `SYNCLINE_CHANGE_ADDED` and its kin.
    pub kind: u32,
    /// `SYNCLINE_CHANGED_CONTENT`, `SYNCLINE_CHANGED_ATTRIBUTES`.
    pub flags: u32,
    /// From the root.
    pub path: *const c_char,
    /// NULL unless it was renamed.
    pub from: *const c_char,
}

/// See the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct syncline_head_info {
    /// Ascending.
    pub number: u32,
    /// `SYNCLINE_HEAD_DEFAULT`.
    pub flags: u32,
    /// When it was made.
    pub made: timespec,
    /// Of this head alone.
    pub uuid: [u8; 16],
    /// With a NUL.
    pub name: [c_char; 256],
    /// With a NUL.
    pub parent: [c_char; 256],
}

/// Longest path, as on Linux; the facade knows the same.
const PATH_BYTES_MAX: usize = 4096;
/// Longest value of an extended attribute, with room for the facade to refuse one.
const STRUCT_BYTES_MAX: usize = 4096;

/// A structure that can grow: it begins with its size, and zeros mean what they meant before it grew.
///
/// # Safety
/// Integers and pointers only, the first one the size; all zeros are a value of it.
pub(crate) unsafe trait Sized8: Copy {}

// SAFETY: as the structures above show.
unsafe impl Sized8 for syncline_open_options {}
// SAFETY: as above.
unsafe impl Sized8 for syncline_create_options {}

/// Reads a structure that the caller may know in another length. NULL: `None`.
///
/// # Safety
/// `pointer` is NULL, or leads to as many bytes as its first word says.
pub(crate) unsafe fn read_sized<T: Sized8>(pointer: *const T, what: &str) -> Result<Option<T>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise; unaligned ones are read as well.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if size < size_of::<usize>() || size > STRUCT_BYTES_MAX {
        return Err(Failure::invalid(format!("{what}: its size field says {size} bytes; set it to sizeof")));
    }
    // SAFETY: the caller's promise.
    let given = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size) };
    let known = size.min(size_of::<T>());
    if given[known..].iter().any(|byte| *byte != 0) {
        return Err(Failure::new(
            libc::E2BIG,
            format!("{what}: a field is set that this version does not know"),
        ));
    }
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: as much of `given` as fits, and the rest are zeros, which are a value.
    unsafe {
        std::ptr::copy_nonoverlapping(given.as_ptr(), value.as_mut_ptr().cast::<u8>(), known);
        Ok(Some(value.assume_init()))
    }
}

/// A string of the caller's. Errors: EFAULT, ENAMETOOLONG.
///
/// # Safety
/// `pointer` is NULL or leads to a string that ends in NUL, and stays as it is during the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, bytes_max: usize, what: &str) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(Failure::fault(what));
    }
    // SAFETY: the caller's promise; no further than to the NUL.
    let length = unsafe { libc::strnlen(pointer, bytes_max + 1) };
    if length > bytes_max {
        let sentence = format!("{what} is longer than {bytes_max} bytes");
        return Err(Failure::new(libc::ENAMETOOLONG, sentence));
    }
    // SAFETY: so many bytes are there, and a NUL.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// A path of the caller's.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(pointer: *const c_char, what: &str) -> Result<&'a Path> {
    // SAFETY: the caller's promise.
    Ok(Path::new(OsStr::from_bytes(unsafe { text(pointer, PATH_BYTES_MAX, what)? })))
}

fn check_length(pointer: *const c_void, length: usize) -> Result<()> {
    if length > isize::MAX as usize {
        return Err(Failure::invalid("the length is negative, or more than an object can have"));
    }
    if pointer.is_null() && length > 0 {
        return Err(Failure::fault("the buffer"));
    }
    Ok(())
}

/// What the caller gives to be written.
///
/// # Safety
/// `length` bytes are there and stay as they are during the call.
pub(crate) unsafe fn data<'a>(pointer: *const c_void, length: usize) -> Result<&'a [u8]> {
    check_length(pointer, length)?;
    match length {
        0 => Ok(&[]),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), length) }),
    }
}

/// Where the caller wants to have what is read.
///
/// # Safety
/// `length` bytes are there, and nobody else uses them during the call.
pub(crate) unsafe fn buffer<'a>(pointer: *mut c_void, length: usize) -> Result<&'a mut [u8]> {
    check_length(pointer, length)?;
    match length {
        0 => Ok(&mut []),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), length) }),
    }
}

/// Several handles of the caller's.
///
/// # Safety
/// `count` of them are there.
pub(crate) unsafe fn many<'a, T>(pointer: *const *mut T, count: usize) -> Result<&'a [*mut T]> {
    if count > isize::MAX as usize / size_of::<*mut T>() {
        return Err(Failure::invalid("the count is negative, or more than there can be"));
    }
    match (count, pointer.is_null() || !pointer.is_aligned()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Failure::fault("the list")),
        // SAFETY: the caller's promise.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

/// Where a result goes. Errors: EFAULT.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn new(pointer: *mut T, what: &str) -> Result<Out<T>> {
        match pointer.is_null() {
            true => Err(Failure::fault(what)),
            false => Ok(Out(pointer)),
        }
    }

    /// Puts it there.
    ///
    /// # Safety
    /// The pointer leads to memory for a `T`, which nobody else uses during the call.
    pub(crate) unsafe fn put(self, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// Where a handle goes; NULL is there until it does.
///
/// # Safety
/// The pointer is NULL or leads to memory for a pointer, which nobody else uses during the call.
pub(crate) unsafe fn out_handle<T>(pointer: *mut *mut T, what: &str) -> Result<Out<*mut T>> {
    let out = Out::new(pointer, what)?;
    // SAFETY: the caller's promise.
    unsafe { pointer.write_unaligned(std::ptr::null_mut()) };
    Ok(out)
}

/// Gives the caller bytes of a length that was not known before: with a size of 0 only tells how many there are.
/// With `terminate` a NUL goes behind them, which is not counted. Errors: ERANGE.
///
/// # Safety
/// As for [`buffer`].
pub(crate) unsafe fn give(bytes: &[u8], terminate: bool, into: *mut c_void, size: usize) -> Result<isize> {
    // SAFETY: the caller's promise.
    let into = unsafe { buffer(into, size)? };
    let needed = bytes.len() + usize::from(terminate);
    if !into.is_empty() {
        if into.len() < needed {
            return Err(Failure::new(
                libc::ERANGE,
                format!("the buffer is too small: {needed} bytes are needed"),
            ));
        }
        into[..bytes.len()].copy_from_slice(bytes);
        if terminate {
            into[bytes.len()] = 0;
        }
    }
    Ok(bytes.len() as isize)
}

/// An offset or a size.
pub(crate) fn offset(value: i64, what: &str) -> Result<u64> {
    u64::try_from(value).map_err(|_| Failure::invalid(format!("{what} is negative")))
}
