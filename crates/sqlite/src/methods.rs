//! The functions of `sqlite3_io_methods`: from C's arguments to a [`Handle`], and from errors to SQLite's codes.
//!
//! Here is the border to C. A panic does not cross it: the volume is stopped (`OpenVolume::note_panic`), since the
//! engine may have been left half-way. Nor does a forked child: a file is its process' own, and any other one is
//! refused before anything is looked at that may be locked.
//!
//! SQLite calls the functions of one file from one thread at a time, with the file that `xOpen` has filled in.

use crate::abi::{self, File, IoMethods};
use crate::error::{Result, VfsError};
use crate::function::Request;
use crate::handle::{self, Handle};
use crate::volumes;
use crate::waiting::BusyHandler;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::AssertUnwindSafe;
use syncline_device::Process;

/// The unit of torn writes that SQLite reckons with.
const SECTOR_BYTES: c_int = 4096;

/// What SQLite allocates for an open file.
#[repr(C)]
pub(crate) struct OpenFile {
    base: File,
    handle: *mut Handle,
    opened_in: Process,
}

static METHODS: IoMethods = IoMethods {
    version: 2,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock,
    unlock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
    shm_map,
    shm_lock,
    shm_barrier,
    shm_unmap,
};

/// Fills in a file that `xOpen` was given.
///
/// # Safety
/// `file` has room for an [`OpenFile`].
pub(crate) unsafe fn install(file: *mut File, handle: Handle) {
    let handle = Box::into_raw(Box::new(handle));
    // SAFETY: the caller's promise.
    unsafe {
        let base = File { methods: &METHODS };
        file.cast::<OpenFile>().write(OpenFile { base, handle, opened_in: Process::current() });
    }
}

/// Runs one call. An error is told and becomes a code; a panic must not unwind into C, and is left to `after_panic`.
pub(crate) fn guarded(
    otherwise: c_int,
    call: impl FnOnce() -> Result<c_int>,
    after_panic: impl FnOnce(),
) -> c_int {
    match std::panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            crate::tell(&error);
            error.code(otherwise)
        }
        Err(_) => {
            after_panic();
            otherwise
        }
    }
}

/// Runs one call on an open file.
///
/// # Safety
/// `file` was filled in by [`install`] and is not closed, and no other call on it runs.
unsafe fn with(file: *mut File, otherwise: c_int, call: impl FnOnce(&mut Handle) -> Result<c_int>) -> c_int {
    // SAFETY: the caller's promise.
    let open = unsafe { &*file.cast::<OpenFile>() };
    if let Err(forked) = open.opened_in.check() {
        crate::tell(&forked.into());
        return otherwise;
    }
    // SAFETY: the caller's promise; the handle is a box's that only `close` takes back.
    let handle = unsafe { &mut *open.handle };
    let checked = |handle: &mut Handle| handle.check_usable().and_then(|()| call(handle));
    match std::panic::catch_unwind(AssertUnwindSafe(|| checked(handle))) {
        Ok(result) => guarded(otherwise, || result, || {}),
        Err(_) => {
            // SAFETY: as above; the call is over.
            stop_volume_of(unsafe { &*open.handle });
            otherwise
        }
    }
}

/// The same, where there is nothing to do for a forked child, and nothing to say: SQLite gives up what it has
/// inherited.
///
/// # Safety
/// As for [`with`].
unsafe fn with_own(
    file: *mut File,
    otherwise: c_int,
    call: impl FnOnce(&mut Handle) -> Result<c_int>,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { is_own(file) } {
        // SAFETY: the caller's promise.
        true => unsafe { with(file, otherwise, call) },
        false => abi::OK,
    }
}

/// Whether this process has opened the file.
///
/// # Safety
/// As for [`with`].
unsafe fn is_own(file: *mut File) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*file.cast::<OpenFile>()).opened_in }.is_current()
}

/// A call on a file has panicked.
fn stop_volume_of(handle: &Handle) {
    // What it has left may panic again.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| {
        if let Some(volume) = handle.volume() {
            volume.note_panic();
        }
    }));
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: an open file, by SQLite's contract.
    let own = unsafe { is_own(file) };
    // SAFETY: SQLite closes a file once, with nothing else running on it; without methods it is not called again.
    let handle = unsafe {
        let open = &mut *file.cast::<OpenFile>();
        open.base.methods = std::ptr::null();
        Box::from_raw(open.handle)
    };
    if !own {
        // The parent's; its memory is left where it is.
        std::mem::forget(handle);
        return abi::OK;
    }
    // A use of its own, so that whatever panics on the way the volume is stopped before it is closed.
    let close = || {
        let volume = handle.volume().cloned();
        let closed = std::panic::catch_unwind(AssertUnwindSafe(|| drop(handle)));
        if let (Err(_), Some(volume)) = (&closed, &volume) {
            volume.note_panic();
        }
        drop(volume);
        Ok(if closed.is_ok() { abi::OK } else { abi::IOERR_CLOSE })
    };
    guarded(abi::IOERR_CLOSE, close, || {})
}

unsafe extern "C" fn read(file: *mut File, into: *mut c_void, bytes: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite gives a buffer of that many bytes; it need not be initialized, so that zeros go in first.
    let into = unsafe {
        std::ptr::write_bytes(into.cast::<u8>(), 0, bytes as usize);
        std::slice::from_raw_parts_mut(into.cast::<u8>(), bytes as usize)
    };
    let all = into.len();
    let call = |handle: &mut Handle| match handle.read(offset as u64, into)? {
        count if count == all => Ok(abi::OK),
        // The rest is zeros, as SQLite demands.
        _ => Ok(abi::IOERR_SHORT_READ),
    };
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with(file, abi::IOERR_READ, call) }
}

unsafe extern "C" fn write(file: *mut File, data: *const c_void, bytes: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite gives that many bytes.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes as usize) };
    let call = |handle: &mut Handle| handle.write(offset as u64, data).map(|()| abi::OK);
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with(file, abi::IOERR_WRITE, call) }
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    let call = |handle: &mut Handle| handle.truncate(size as u64).map(|()| abi::OK);
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with(file, abi::IOERR_TRUNCATE, call) }
}

unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> c_int {
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with(file, abi::IOERR_FSYNC, |handle| handle.sync().map(|()| abi::OK)) }
}

unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    let call = |handle: &mut Handle| {
        let found = handle.size()? as i64;
        // SAFETY: SQLite gives a place for the answer.
        unsafe { size.write(found) };
        Ok(abi::OK)
    };
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with(file, abi::IOERR_FSTAT, call) }
}

unsafe extern "C" fn lock(file: *mut File, level: c_int) -> c_int {
    let call = |handle: &mut Handle| {
        let locked = handle.ready()?
            && handle.connection().is_none_or(|connection| connection.lock(handle::level_of(level)));
        Ok(if locked { abi::OK } else { abi::BUSY })
    };
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with(file, abi::IOERR, call) }
}

unsafe extern "C" fn unlock(file: *mut File, level: c_int) -> c_int {
    let call = |handle: &mut Handle| {
        if let Some(connection) = handle.connection() {
            connection.unlock(handle::level_of(level));
        }
        Ok(abi::OK)
    };
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with_own(file, abi::IOERR, call) }
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, result: *mut c_int) -> c_int {
    let call = |handle: &mut Handle| {
        let reserved = handle.connection().is_some_and(|connection| connection.is_reserved());
        // SAFETY: SQLite gives a place for the answer.
        unsafe { result.write(c_int::from(reserved)) };
        Ok(abi::OK)
    };
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with(file, abi::IOERR, call) }
}

unsafe extern "C" fn file_control(file: *mut File, operation: c_int, argument: *mut c_void) -> c_int {
    let otherwise = match operation {
        abi::FCNTL_COMMIT_ATOMIC_WRITE => abi::IOERR_COMMIT_ATOMIC,
        _ => abi::IOERR_FSYNC,
    };
    // SAFETY: an open file, by SQLite's contract; the argument is what SQLite documents for the operation.
    unsafe { with(file, otherwise, |handle| control(handle, operation, argument)) }
}

/// # Safety
/// `argument` is what SQLite documents for the operation.
unsafe fn control(handle: &mut Handle, operation: c_int, argument: *mut c_void) -> Result<c_int> {
    if operation == abi::FCNTL_VFSNAME {
        // SAFETY: the argument is a `char **`; SQLite frees what is put there.
        unsafe { argument.cast::<*mut c_char>().write(crate::api::get().text(crate::vfs::NAME)) };
        return Ok(abi::OK);
    }
    if let Handle::Waiting(waiting) = handle {
        if operation == abi::FCNTL_BUSYHANDLER {
            // SAFETY: the caller's promise; it is used while SQLite waits for a lock on this file.
            waiting.busy = Some(unsafe { BusyHandler::new(argument) });
        }
        return Ok(abi::NOTFOUND);
    }
    let Some(connection) = handle.connection() else { return Ok(abi::NOTFOUND) };
    match operation {
        abi::FCNTL_SYNC => {
            // SAFETY: null, or the name of the super-journal.
            let name = (!argument.is_null()).then(|| unsafe { CStr::from_ptr(argument.cast()) });
            let found = name.and_then(|name| volumes::find(name.to_bytes()));
            connection.name_super_journal(found.map(|(_, path)| path));
        }
        abi::FCNTL_COMMIT_PHASETWO => connection.commit_phase_two()?,
        abi::FCNTL_BEGIN_ATOMIC_WRITE => {
            return Ok(if connection.begin_batch() { abi::OK } else { abi::IOERR_BEGIN_ATOMIC });
        }
        abi::FCNTL_COMMIT_ATOMIC_WRITE => connection.commit_batch()?,
        abi::FCNTL_ROLLBACK_ATOMIC_WRITE => connection.discard(),
        abi::FCNTL_SNAPSHOT => {
            // SAFETY: the function that asks passes its request, and waits.
            let request = unsafe { &mut *argument.cast::<Request<'_>>() };
            request.refused = connection.volume().snapshot(request.name).err().map(|error| error.to_string());
        }
        _ => {
            let Some(answer) = number_control(connection, operation) else { return Ok(abi::NOTFOUND) };
            // SAFETY: these operations take a pointer to an integer, of 64 bits for the size of the mapping.
            unsafe { answer(connection, argument) };
        }
    }
    Ok(abi::OK)
}

type Answer = unsafe fn(&mut crate::database::Connection, *mut c_void);

/// Operations that read or write one number.
fn number_control(_: &crate::database::Connection, operation: c_int) -> Option<Answer> {
    Some(match operation {
        abi::FCNTL_LOCKSTATE => |connection, argument| {
            // SAFETY: a pointer to an int, see `control`.
            unsafe { argument.cast::<c_int>().write(handle::level_number(connection.level())) }
        },
        abi::FCNTL_HAS_MOVED => |connection, argument| {
            // SAFETY: a pointer to an int, see `control`.
            unsafe { argument.cast::<c_int>().write(c_int::from(connection.has_moved())) }
        },
        abi::FCNTL_PERSIST_WAL => |connection, argument| {
            // SAFETY: a pointer to an int, see `control`; a negative one asks.
            let wanted = unsafe { &mut *argument.cast::<c_int>() };
            match *wanted {
                asked if asked < 0 => *wanted = c_int::from(connection.persist_wal),
                set => connection.persist_wal = set != 0,
            }
        },
        abi::FCNTL_POWERSAFE_OVERWRITE => |_, argument| {
            // SAFETY: a pointer to an int, see `control`. It is so, whatever is wished for.
            unsafe { argument.cast::<c_int>().write(1) }
        },
        abi::FCNTL_MMAP_SIZE => |_, argument| {
            // SAFETY: a pointer to a 64-bit integer, see `control`. Nothing is ever mapped.
            unsafe { argument.cast::<i64>().write(0) }
        },
        _ => return None,
    })
}

unsafe extern "C" fn sector_size(_file: *mut File) -> c_int {
    SECTOR_BYTES
}

unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    let call = |handle: &mut Handle| {
        let batches = handle.connection().is_some_and(|connection| connection.is_writable());
        Ok(abi::IOCAP_POWERSAFE_OVERWRITE | if batches { abi::IOCAP_BATCH_ATOMIC } else { 0 })
    };
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with(file, 0, call) }
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    address: *mut *mut c_void,
) -> c_int {
    let call = |handle: &mut Handle| {
        let Some(connection) = handle.connection() else { return Ok(abi::IOERR_SHMMAP) };
        let found = connection.shm_region(region as usize, bytes as usize, extend != 0);
        // SAFETY: SQLite gives a place for the address; null says that there is no such region yet.
        unsafe { address.write(found.unwrap_or(std::ptr::null_mut())) };
        Ok(abi::OK)
    };
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with(file, abi::IOERR_SHMMAP, call) }
}

unsafe extern "C" fn shm_lock(file: *mut File, first: c_int, count: c_int, flags: c_int) -> c_int {
    let call = |handle: &mut Handle| {
        let Some(connection) = handle.connection() else { return Ok(abi::IOERR) };
        let (first, count) = (first as usize, count as usize);
        if flags & abi::SHM_UNLOCK != 0 {
            connection.shm_unlock(first, count);
            return Ok(abi::OK);
        }
        let exclusive = flags & (abi::SHM_EXCLUSIVE | abi::SHM_LOCK) == abi::SHM_EXCLUSIVE | abi::SHM_LOCK;
        debug_assert!(exclusive || flags & abi::SHM_SHARED != 0, "a lock is shared or exclusive");
        Ok(if connection.shm_lock(first, count, exclusive) { abi::OK } else { abi::BUSY })
    };
    // SAFETY: an open file, by SQLite's contract.
    unsafe {
        if flags & abi::SHM_UNLOCK != 0 {
            with_own(file, abi::IOERR, call)
        } else {
            with(file, abi::IOERR, call)
        }
    }
}

unsafe extern "C" fn shm_barrier(_file: *mut File) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut File, _delete: c_int) -> c_int {
    let call = |handle: &mut Handle| {
        if let Some(connection) = handle.connection() {
            connection.shm_unmap();
        }
        Ok(abi::OK)
    };
    // SAFETY: an open file, by SQLite's contract.
    unsafe { with_own(file, abi::IOERR, call) }
}

/// Bytes that SQLite has to allocate for an open file.
pub(crate) const OPEN_FILE_BYTES: c_int = size_of::<OpenFile>() as c_int;

/// A database that could not be opened at all.
pub(crate) fn refuse(error: &VfsError) -> c_int {
    crate::tell(error);
    error.code(abi::CANTOPEN)
}
