//! The functions of `sqlite3_vfs`: opening, deleting and looking for files by name, and what a VFS has to know of the
//! machine.

use crate::abi::{self, AnyFunction, File, Vfs};
use crate::api::Api;
use crate::error::{Result, VfsError};
use crate::handle::{self, Handle, Temporary};
use crate::methods::{self, OPEN_FILE_BYTES, guarded};
use crate::part::Part;
use crate::volumes;
use crate::waiting::Patience;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Read;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The name under which the VFS is registered.
pub(crate) const NAME: &CStr = c"syncline";
/// Longest full name: of an image and of a path in it, with what SQLite appends.
const PATH_BYTES_MAX: c_int = 8192;
/// Milliseconds from the Julian epoch (noon of 24 November 4714 BC) to 1970.
const JULIAN_1970_MS: i64 = 210_866_760_000_000;
const DAY_MS: f64 = 86_400_000.0;

/// SQLite's own VFS, which loads extensions for us.
struct Below(*mut Vfs);

// SAFETY: a registered VFS lives as long as SQLite, and SQLite calls it from any thread.
unsafe impl Send for Below {}
// SAFETY: as above.
unsafe impl Sync for Below {}

static BELOW: OnceLock<Below> = OnceLock::new();

/// Registers the VFS; does nothing if it is registered already.
pub(crate) fn register(api: &Api, default: bool) -> c_int {
    let existing = api.find_vfs(NAME);
    if !existing.is_null() {
        if !default {
            return abi::OK;
        }
        // SAFETY: it was registered below, and is never freed.
        return unsafe { api.register_vfs(existing, true) };
    }
    let below = BELOW.get_or_init(|| Below(api.default_vfs()));
    // SAFETY: SQLite's default VFS, or none.
    let loads = (!below.0.is_null()).then(|| unsafe { &*below.0 });
    let vfs = Box::new(Vfs {
        version: 2,
        file_bytes: OPEN_FILE_BYTES,
        path_bytes_max: PATH_BYTES_MAX,
        next: std::ptr::null_mut(),
        name: NAME.as_ptr(),
        app_data: std::ptr::null_mut(),
        open,
        delete,
        access,
        full_pathname,
        dl_open: loads.and_then(|vfs| vfs.dl_open).map(|_| dl_open as _),
        dl_error: loads.and_then(|vfs| vfs.dl_error).map(|_| dl_error as _),
        dl_sym: loads.and_then(|vfs| vfs.dl_sym).map(|_| dl_sym as _),
        dl_close: loads.and_then(|vfs| vfs.dl_close).map(|_| dl_close as _),
        randomness,
        sleep,
        current_time,
        get_last_error,
        current_time_int64,
    });
    // SAFETY: leaked, so that it stays.
    unsafe { api.register_vfs(Box::into_raw(vfs), default) }
}

/// # Safety
/// `name` is null or a string that ends in a NUL and lives for the call.
unsafe fn bytes<'a>(name: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes())
}

unsafe extern "C" fn open(
    _vfs: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives a file with room for ours. Without methods it is not closed if opening fails.
    unsafe { (*file).methods = std::ptr::null() };
    // SAFETY: SQLite asks for a file to be opened under its name, or without one.
    let patience = (flags & abi::OPEN_MAIN_DB != 0 && !name.is_null()).then(|| unsafe { patience_of(name) });
    // SAFETY: a name of SQLite's.
    let name = unsafe { bytes(name) };
    let call = || open_handle(name, flags, patience.unwrap_or(Ok(Patience::default()))?);
    let result = std::panic::catch_unwind(AssertUnwindSafe(call));
    match result {
        Ok(Ok(handle)) => {
            if !out_flags.is_null() {
                let access = abi::OPEN_READONLY | abi::OPEN_READWRITE;
                let got = if handle.is_read_only() { flags & !access | abi::OPEN_READONLY } else { flags };
                // SAFETY: SQLite gives a place for the flags.
                unsafe { out_flags.write(got) };
            }
            // SAFETY: SQLite allocated as much as the VFS asks for.
            unsafe { methods::install(file, handle) };
            abi::OK
        }
        Ok(Err(error)) => methods::refuse(&error),
        Err(_) => {
            stop_volume_of(name.unwrap_or_default());
            abi::CANTOPEN
        }
    }
}

/// How long a database waits that is about to be opened.
///
/// # Safety
/// `name` is the name of a database as SQLite passes it to `xOpen`.
unsafe fn patience_of(name: *const c_char) -> Result<Patience> {
    // SAFETY: the caller's promise.
    let parameter = |key: &CStr| unsafe { crate::api::get().uri_parameter(name, key) };
    let is_set = |key: &CStr| {
        let off: [&[u8]; 5] = [b"", b"0", b"no", b"off", b"false"];
        parameter(key).is_some_and(|value| !off.contains(&value.to_ascii_lowercase().as_slice()))
    };
    let timeout = match parameter(c"timeout") {
        Some(written) => {
            let number = std::str::from_utf8(&written).ok().and_then(|text| text.parse().ok());
            let number =
                number.ok_or_else(|| VfsError::Timeout(String::from_utf8_lossy(&written).into_owned()));
            Duration::from_millis(number?)
        }
        None => Duration::ZERO,
    };
    Ok(Patience { timeout, until_locked: !is_set(c"nolock") && !is_set(c"immutable") })
}

/// A call on this name has panicked.
fn stop_volume_of(name: &[u8]) {
    // What it has left may panic again.
    let _ = std::panic::catch_unwind(|| {
        if let Some((volume, _)) = volumes::find(name) {
            volume.note_panic();
        }
    });
}

/// Runs one call on a name, as [`guarded`].
fn guarded_by_name(name: &[u8], otherwise: c_int, call: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(otherwise, call, || stop_volume_of(name))
}

fn open_handle(name: Option<&[u8]>, flags: c_int, patience: Patience) -> Result<Handle> {
    let companions = abi::OPEN_MAIN_JOURNAL | abi::OPEN_SUPER_JOURNAL | abi::OPEN_WAL;
    match name {
        Some(name) if flags & abi::OPEN_MAIN_DB != 0 => handle::open_database(name, flags, patience),
        Some(name) if flags & companions != 0 => handle::open_companion(name, flags),
        _ => Ok(Handle::Temporary(Temporary::new())),
    }
}

unsafe extern "C" fn delete(_vfs: *mut Vfs, name: *const c_char, _sync_directory: c_int) -> c_int {
    // SAFETY: a name of SQLite's.
    let name = unsafe { bytes(name) }.unwrap_or_default();
    guarded_by_name(name, abi::IOERR_DELETE, || {
        let was_there = handle::delete(name)?;
        Ok(if was_there { abi::OK } else { abi::IOERR_DELETE_NOENT })
    })
}

unsafe extern "C" fn access(_vfs: *mut Vfs, name: *const c_char, flags: c_int, result: *mut c_int) -> c_int {
    // SAFETY: a name of SQLite's.
    let name = unsafe { bytes(name) }.unwrap_or_default();
    guarded_by_name(name, abi::IOERR_ACCESS, || {
        let there = handle::exists(name, flags != abi::ACCESS_EXISTS)?;
        // SAFETY: SQLite gives a place for the answer.
        unsafe { result.write(c_int::from(there)) };
        Ok(abi::OK)
    })
}

unsafe extern "C" fn full_pathname(
    _vfs: *mut Vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: a name of SQLite's.
    let plain = unsafe { bytes(name) }.unwrap_or_default();
    guarded_by_name(plain, abi::CANTOPEN_FULLPATH, || {
        // SAFETY: SQLite asks for the full name of databases that it is about to open, with their parameters.
        let parameter = |key: &CStr| unsafe { crate::api::get().uri_parameter(name, key) };
        let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
        let part = match (parameter(c"snapshot").map(text), parameter(c"head").map(text)) {
            (Some(snapshot), Some(head)) => return Err(VfsError::TwoParts { snapshot, head }),
            (Some(snapshot), None) => Some(Part::Snapshot(snapshot)),
            (None, head) => head.map(Part::Head),
        };
        let full = handle::full_name(plain, parameter(c"volume").as_deref(), part)?;
        if full.len() >= room as usize {
            return Err(VfsError::Name(String::from_utf8_lossy(&full).into_owned()));
        }
        // SAFETY: there is room for the name and its NUL.
        unsafe {
            std::ptr::copy_nonoverlapping(full.as_ptr(), out.cast(), full.len());
            out.add(full.len()).write(0);
        }
        Ok(abi::OK)
    })
}

/// SQLite's own VFS; it is there if the functions that ask for it were registered.
fn below() -> *mut Vfs {
    BELOW.get().expect("the VFS was registered over it").0
}

unsafe extern "C" fn dl_open(_vfs: *mut Vfs, name: *const c_char) -> *mut c_void {
    let below = below();
    // SAFETY: SQLite's own VFS with SQLite's arguments.
    unsafe { (*below).dl_open.map_or(std::ptr::null_mut(), |call| call(below, name)) }
}

unsafe extern "C" fn dl_error(_vfs: *mut Vfs, room: c_int, out: *mut c_char) {
    let below = below();
    // SAFETY: SQLite's own VFS with SQLite's arguments.
    unsafe { (*below).dl_error.map_or((), |call| call(below, room, out)) }
}

unsafe extern "C" fn dl_sym(
    _vfs: *mut Vfs,
    library: *mut c_void,
    name: *const c_char,
) -> Option<AnyFunction> {
    let below = below();
    // SAFETY: SQLite's own VFS with SQLite's arguments.
    unsafe { (*below).dl_sym.and_then(|call| call(below, library, name)) }
}

unsafe extern "C" fn dl_close(_vfs: *mut Vfs, library: *mut c_void) {
    let below = below();
    // SAFETY: SQLite's own VFS with SQLite's arguments.
    unsafe { (*below).dl_close.map_or((), |call| call(below, library)) }
}

unsafe extern "C" fn randomness(_vfs: *mut Vfs, bytes: c_int, out: *mut c_char) -> c_int {
    // SAFETY: SQLite gives room for that many bytes; they need not be initialized, so that zeros go in first.
    let out = unsafe {
        std::ptr::write_bytes(out.cast::<u8>(), 0, bytes as usize);
        std::slice::from_raw_parts_mut(out.cast::<u8>(), bytes as usize)
    };
    let read = std::fs::File::open("/dev/urandom").and_then(|mut random| random.read_exact(out));
    if read.is_ok() { bytes } else { 0 }
}

unsafe extern "C" fn sleep(_vfs: *mut Vfs, microseconds: c_int) -> c_int {
    std::thread::sleep(Duration::from_micros(microseconds.max(0) as u64));
    microseconds
}

/// Milliseconds since the Julian epoch.
fn julian_ms() -> i64 {
    let since = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_millis() as i64,
        Err(before) => -(before.duration().as_millis() as i64),
    };
    JULIAN_1970_MS + since
}

unsafe extern "C" fn current_time(_vfs: *mut Vfs, out: *mut f64) -> c_int {
    // SAFETY: SQLite gives a place for the time.
    unsafe { out.write(julian_ms() as f64 / DAY_MS) };
    abi::OK
}

unsafe extern "C" fn current_time_int64(_vfs: *mut Vfs, out: *mut i64) -> c_int {
    // SAFETY: SQLite gives a place for the time.
    unsafe { out.write(julian_ms()) };
    abi::OK
}

/// Errors are told when they happen; there is no number to keep.
unsafe extern "C" fn get_last_error(_vfs: *mut Vfs, _room: c_int, _out: *mut c_char) -> c_int {
    0
}
