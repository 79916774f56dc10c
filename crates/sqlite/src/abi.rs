//! What SQLite's C interface looks like, as far as a VFS needs it: <https://sqlite.org/c3ref/vfs.html>,
//! <https://sqlite.org/c3ref/io_methods.html> and `sqlite3ext.h`.
//!
//! Declared here and not taken from a binding crate, because an extension must not link SQLite: it gets everything
//! through the table of routines that SQLite hands to its entry point. The layouts are part of SQLite's stable
//! interface; structures only ever grow at their ends.

use std::ffi::{c_char, c_int, c_void};

pub(crate) const OK: c_int = 0;
pub(crate) const ERROR: c_int = 1;
pub(crate) const BUSY: c_int = 5;
pub(crate) const READONLY: c_int = 8;
pub(crate) const IOERR: c_int = 10;
pub(crate) const NOTFOUND: c_int = 12;
pub(crate) const FULL: c_int = 13;
pub(crate) const CANTOPEN: c_int = 14;
pub(crate) const NOTICE: c_int = 27;

pub(crate) const OK_LOAD_PERMANENTLY: c_int = 1 << 8;
pub(crate) const IOERR_READ: c_int = IOERR | 1 << 8;
pub(crate) const IOERR_SHORT_READ: c_int = IOERR | 2 << 8;
pub(crate) const IOERR_WRITE: c_int = IOERR | 3 << 8;
pub(crate) const IOERR_FSYNC: c_int = IOERR | 4 << 8;
pub(crate) const IOERR_TRUNCATE: c_int = IOERR | 6 << 8;
pub(crate) const IOERR_FSTAT: c_int = IOERR | 7 << 8;
pub(crate) const IOERR_DELETE: c_int = IOERR | 10 << 8;
pub(crate) const IOERR_ACCESS: c_int = IOERR | 13 << 8;
pub(crate) const IOERR_CLOSE: c_int = IOERR | 16 << 8;
pub(crate) const IOERR_SHMMAP: c_int = IOERR | 21 << 8;
pub(crate) const IOERR_DELETE_NOENT: c_int = IOERR | 23 << 8;
pub(crate) const IOERR_BEGIN_ATOMIC: c_int = IOERR | 29 << 8;
pub(crate) const IOERR_COMMIT_ATOMIC: c_int = IOERR | 30 << 8;
pub(crate) const CANTOPEN_FULLPATH: c_int = CANTOPEN | 3 << 8;
pub(crate) const CANTOPEN_SYMLINK: c_int = CANTOPEN | 6 << 8;

pub(crate) const OPEN_READONLY: c_int = 0x1;
pub(crate) const OPEN_READWRITE: c_int = 0x2;
pub(crate) const OPEN_CREATE: c_int = 0x4;
pub(crate) const OPEN_EXCLUSIVE: c_int = 0x10;
pub(crate) const OPEN_MAIN_DB: c_int = 0x100;
pub(crate) const OPEN_MAIN_JOURNAL: c_int = 0x800;
pub(crate) const OPEN_SUPER_JOURNAL: c_int = 0x4000;
pub(crate) const OPEN_WAL: c_int = 0x80000;

pub(crate) const ACCESS_EXISTS: c_int = 0;

pub(crate) const LOCK_NONE: c_int = 0;
pub(crate) const LOCK_SHARED: c_int = 1;
pub(crate) const LOCK_RESERVED: c_int = 2;
pub(crate) const LOCK_PENDING: c_int = 3;
pub(crate) const LOCK_EXCLUSIVE: c_int = 4;

pub(crate) const SHM_UNLOCK: c_int = 1;
pub(crate) const SHM_LOCK: c_int = 2;
pub(crate) const SHM_SHARED: c_int = 4;
pub(crate) const SHM_EXCLUSIVE: c_int = 8;

pub(crate) const FCNTL_LOCKSTATE: c_int = 1;
pub(crate) const FCNTL_PERSIST_WAL: c_int = 10;
pub(crate) const FCNTL_VFSNAME: c_int = 12;
pub(crate) const FCNTL_POWERSAFE_OVERWRITE: c_int = 13;
pub(crate) const FCNTL_BUSYHANDLER: c_int = 15;
pub(crate) const FCNTL_MMAP_SIZE: c_int = 18;
pub(crate) const FCNTL_HAS_MOVED: c_int = 20;
pub(crate) const FCNTL_SYNC: c_int = 21;
pub(crate) const FCNTL_COMMIT_PHASETWO: c_int = 22;
pub(crate) const FCNTL_BEGIN_ATOMIC_WRITE: c_int = 31;
pub(crate) const FCNTL_COMMIT_ATOMIC_WRITE: c_int = 32;
pub(crate) const FCNTL_ROLLBACK_ATOMIC_WRITE: c_int = 33;
/// Our own: a snapshot of the volume. SQLite's are below 100.
pub(crate) const FCNTL_SNAPSHOT: c_int = 0x5359_4e43;

pub(crate) const UTF8: c_int = 1;
/// Views and triggers do not call the function.
pub(crate) const DIRECT_ONLY: c_int = 0x8_0000;

/// Overwriting part of a file damages nothing beside it, also when the power fails.
pub(crate) const IOCAP_POWERSAFE_OVERWRITE: c_int = 0x1000;
/// Writes between BEGIN_ATOMIC_WRITE and COMMIT_ATOMIC_WRITE are atomic.
pub(crate) const IOCAP_BATCH_ATOMIC: c_int = 0x4000;

/// `sqlite3_file`: what SQLite knows of an open file. A VFS puts its own behind it.
#[repr(C)]
pub(crate) struct File {
    pub(crate) methods: *const IoMethods,
}

/// `sqlite3_io_methods`, version 2: with shared memory, without memory mapping.
#[repr(C)]
pub(crate) struct IoMethods {
    pub(crate) version: c_int,
    pub(crate) close: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int,
    pub(crate) write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int,
    pub(crate) truncate: unsafe extern "C" fn(*mut File, i64) -> c_int,
    pub(crate) sync: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) file_size: unsafe extern "C" fn(*mut File, *mut i64) -> c_int,
    pub(crate) lock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) unlock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> c_int,
    pub(crate) file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int,
    pub(crate) sector_size: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) device_characteristics: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) shm_map: unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> c_int,
    pub(crate) shm_lock: unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> c_int,
    pub(crate) shm_barrier: unsafe extern "C" fn(*mut File),
    pub(crate) shm_unmap: unsafe extern "C" fn(*mut File, c_int) -> c_int,
}

/// A function of SQLite's interface whose type does not matter here.
pub(crate) type AnyFunction = unsafe extern "C" fn();

/// `sqlite3_vfs`, version 2.
#[repr(C)]
pub(crate) struct Vfs {
    pub(crate) version: c_int,
    pub(crate) file_bytes: c_int,
    pub(crate) path_bytes_max: c_int,
    pub(crate) next: *mut Vfs,
    pub(crate) name: *const c_char,
    pub(crate) app_data: *mut c_void,
    pub(crate) open: unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int,
    pub(crate) delete: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int,
    pub(crate) access: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int,
    pub(crate) full_pathname: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int,
    pub(crate) dl_open: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void>,
    pub(crate) dl_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char)>,
    pub(crate) dl_sym:
        Option<unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> Option<AnyFunction>>,
    pub(crate) dl_close: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void)>,
    pub(crate) randomness: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub(crate) sleep: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    pub(crate) current_time: unsafe extern "C" fn(*mut Vfs, *mut f64) -> c_int,
    pub(crate) get_last_error: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub(crate) current_time_int64: unsafe extern "C" fn(*mut Vfs, *mut i64) -> c_int,
}

/// `sqlite3_api_routines`: pointers to SQLite's functions, in the order of `sqlite3ext.h`.
#[repr(C)]
pub struct Routines {
    pub(crate) entries: [*const c_void; ROUTINES],
}

/// As many entries as are used: up to `auto_extension`, which SQLite has since 3.8.7.
const ROUTINES: usize = 193;
pub(crate) const ROUTINE_MPRINTF: usize = 69;
pub(crate) const ROUTINE_RESULT_ERROR: usize = 80;
pub(crate) const ROUTINE_RESULT_VALUE: usize = 89;
pub(crate) const ROUTINE_VALUE_TEXT: usize = 109;
pub(crate) const ROUTINE_FILE_CONTROL: usize = 127;
pub(crate) const ROUTINE_VFS_FIND: usize = 141;
pub(crate) const ROUTINE_VFS_REGISTER: usize = 142;
pub(crate) const ROUTINE_CONTEXT_DB_HANDLE: usize = 149;
pub(crate) const ROUTINE_CREATE_FUNCTION_V2: usize = 162;
pub(crate) const ROUTINE_LOG: usize = 167;
pub(crate) const ROUTINE_URI_PARAMETER: usize = 189;
pub(crate) const ROUTINE_AUTO_EXTENSION: usize = 192;

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_sqlites_headers() {
        assert_eq!(offset_of!(ffi::sqlite3_vfs, xOpen), offset_of!(Vfs, open));
        assert_eq!(offset_of!(ffi::sqlite3_vfs, xDlSym), offset_of!(Vfs, dl_sym));
        assert_eq!(offset_of!(ffi::sqlite3_vfs, xCurrentTimeInt64), offset_of!(Vfs, current_time_int64));
        assert_eq!(offset_of!(ffi::sqlite3_io_methods, xClose), offset_of!(IoMethods, close));
        assert_eq!(offset_of!(ffi::sqlite3_io_methods, xFileControl), offset_of!(IoMethods, file_control));
        assert_eq!(offset_of!(ffi::sqlite3_io_methods, xShmUnmap), offset_of!(IoMethods, shm_unmap));
    }

    #[test]
    fn numbers_are_those_of_sqlites_headers() {
        for (ours, theirs) in [
            (UTF8, ffi::SQLITE_UTF8),
            (DIRECT_ONLY, ffi::SQLITE_DIRECTONLY),
            (BUSY, ffi::SQLITE_BUSY),
            (READONLY, ffi::SQLITE_READONLY),
            (NOTFOUND, ffi::SQLITE_NOTFOUND),
            (FULL, ffi::SQLITE_FULL),
            (CANTOPEN, ffi::SQLITE_CANTOPEN),
            (NOTICE, ffi::SQLITE_NOTICE),
            (OK_LOAD_PERMANENTLY, ffi::SQLITE_OK_LOAD_PERMANENTLY),
            (IOERR_READ, ffi::SQLITE_IOERR_READ),
            (IOERR_SHORT_READ, ffi::SQLITE_IOERR_SHORT_READ),
            (IOERR_WRITE, ffi::SQLITE_IOERR_WRITE),
            (IOERR_FSYNC, ffi::SQLITE_IOERR_FSYNC),
            (IOERR_TRUNCATE, ffi::SQLITE_IOERR_TRUNCATE),
            (IOERR_FSTAT, ffi::SQLITE_IOERR_FSTAT),
            (IOERR_DELETE, ffi::SQLITE_IOERR_DELETE),
            (IOERR_ACCESS, ffi::SQLITE_IOERR_ACCESS),
            (IOERR_CLOSE, ffi::SQLITE_IOERR_CLOSE),
            (IOERR_SHMMAP, ffi::SQLITE_IOERR_SHMMAP),
            (IOERR_DELETE_NOENT, ffi::SQLITE_IOERR_DELETE_NOENT),
            (IOERR_BEGIN_ATOMIC, ffi::SQLITE_IOERR_BEGIN_ATOMIC),
            (IOERR_COMMIT_ATOMIC, ffi::SQLITE_IOERR_COMMIT_ATOMIC),
            (CANTOPEN_FULLPATH, ffi::SQLITE_CANTOPEN_FULLPATH),
            (CANTOPEN_SYMLINK, ffi::SQLITE_CANTOPEN_SYMLINK),
            (OPEN_MAIN_DB, ffi::SQLITE_OPEN_MAIN_DB),
            (OPEN_MAIN_JOURNAL, ffi::SQLITE_OPEN_MAIN_JOURNAL),
            (OPEN_SUPER_JOURNAL, ffi::SQLITE_OPEN_SUPER_JOURNAL),
            (OPEN_WAL, ffi::SQLITE_OPEN_WAL),
            (OPEN_EXCLUSIVE, ffi::SQLITE_OPEN_EXCLUSIVE),
            (LOCK_EXCLUSIVE, ffi::SQLITE_LOCK_EXCLUSIVE),
            (SHM_UNLOCK, ffi::SQLITE_SHM_UNLOCK),
            (SHM_LOCK, ffi::SQLITE_SHM_LOCK),
            (SHM_SHARED, ffi::SQLITE_SHM_SHARED),
            (SHM_EXCLUSIVE, ffi::SQLITE_SHM_EXCLUSIVE),
            (FCNTL_LOCKSTATE, ffi::SQLITE_FCNTL_LOCKSTATE),
            (FCNTL_PERSIST_WAL, ffi::SQLITE_FCNTL_PERSIST_WAL),
            (FCNTL_VFSNAME, ffi::SQLITE_FCNTL_VFSNAME),
            (FCNTL_POWERSAFE_OVERWRITE, ffi::SQLITE_FCNTL_POWERSAFE_OVERWRITE),
            (FCNTL_BUSYHANDLER, ffi::SQLITE_FCNTL_BUSYHANDLER),
            (FCNTL_MMAP_SIZE, ffi::SQLITE_FCNTL_MMAP_SIZE),
            (FCNTL_HAS_MOVED, ffi::SQLITE_FCNTL_HAS_MOVED),
            (FCNTL_SYNC, ffi::SQLITE_FCNTL_SYNC),
            (FCNTL_COMMIT_PHASETWO, ffi::SQLITE_FCNTL_COMMIT_PHASETWO),
            (FCNTL_BEGIN_ATOMIC_WRITE, ffi::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE),
            (FCNTL_COMMIT_ATOMIC_WRITE, ffi::SQLITE_FCNTL_COMMIT_ATOMIC_WRITE),
            (FCNTL_ROLLBACK_ATOMIC_WRITE, ffi::SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE),
            (IOCAP_POWERSAFE_OVERWRITE, ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE),
            (IOCAP_BATCH_ATOMIC, ffi::SQLITE_IOCAP_BATCH_ATOMIC),
        ] {
            assert_eq!(ours, theirs);
        }
    }
}
