//! The few functions of SQLite that the VFS calls, from the table that its entry point was given.

use crate::abi::{
    ROUTINE_LOG, ROUTINE_MPRINTF, ROUTINE_URI_PARAMETER, ROUTINE_VFS_FIND, ROUTINE_VFS_REGISTER, Routines,
    Vfs,
};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

type MprintfFn = unsafe extern "C" fn(*const c_char, ...) -> *mut c_char;
type VfsFindFn = unsafe extern "C" fn(*const c_char) -> *mut Vfs;
type VfsRegisterFn = unsafe extern "C" fn(*mut Vfs, c_int) -> c_int;
type LogFn = unsafe extern "C" fn(c_int, *const c_char, ...);
type UriParameterFn = unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char;

/// SQLite's functions.
pub(crate) struct Api {
    mprintf: MprintfFn,
    vfs_find: VfsFindFn,
    vfs_register: VfsRegisterFn,
    log: LogFn,
    uri_parameter: UriParameterFn,
}

static API: OnceLock<Api> = OnceLock::new();

/// Takes the functions from SQLite's table; the first one given counts.
///
/// # Safety
/// `routines` points to the table that SQLite gave to an extension's entry point.
pub(crate) unsafe fn take(routines: *const Routines) -> &'static Api {
    API.get_or_init(|| {
        // SAFETY: the caller's promise; the table of every SQLite since 3.7.16 is at least this long.
        let entries = unsafe { &(*routines).entries };
        // SAFETY: each entry is the function of this name in sqlite3ext.h, with the type that SQLite documents for it.
        unsafe {
            Api {
                mprintf: std::mem::transmute::<*const c_void, MprintfFn>(entries[ROUTINE_MPRINTF]),
                vfs_find: std::mem::transmute::<*const c_void, VfsFindFn>(entries[ROUTINE_VFS_FIND]),
                vfs_register: std::mem::transmute::<*const c_void, VfsRegisterFn>(
                    entries[ROUTINE_VFS_REGISTER],
                ),
                log: std::mem::transmute::<*const c_void, LogFn>(entries[ROUTINE_LOG]),
                uri_parameter: std::mem::transmute::<*const c_void, UriParameterFn>(
                    entries[ROUTINE_URI_PARAMETER],
                ),
            }
        }
    })
}

/// SQLite's functions, once an entry point has run; nothing is called before that.
pub(crate) fn get() -> &'static Api {
    API.get().expect("the VFS is registered by its entry point, which takes the functions first")
}

impl Api {
    /// A copy of a text in SQLite's memory, for SQLite to free; null without memory.
    pub(crate) fn text(&self, text: &CStr) -> *mut c_char {
        // SAFETY: the format takes one string, and gets one.
        unsafe { (self.mprintf)(c"%s".as_ptr(), text.as_ptr()) }
    }

    /// The VFS that SQLite uses when none is named; null if there is none.
    pub(crate) fn default_vfs(&self) -> *mut Vfs {
        // SAFETY: a null name is allowed and means the default.
        unsafe { (self.vfs_find)(std::ptr::null()) }
    }

    /// The VFS of a name; null if there is none.
    pub(crate) fn find_vfs(&self, name: &CStr) -> *mut Vfs {
        // SAFETY: a name that ends in a NUL.
        unsafe { (self.vfs_find)(name.as_ptr()) }
    }

    /// Registers a VFS.
    ///
    /// # Safety
    /// `vfs` stays valid for the rest of the process.
    pub(crate) unsafe fn register_vfs(&self, vfs: *mut Vfs, default: bool) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.vfs_register)(vfs, c_int::from(default)) }
    }

    /// Tells SQLite's error log.
    pub(crate) fn log(&self, code: c_int, sentence: &str) {
        let text = CString::new(sentence.replace('\0', "?")).expect("no NUL is left in it");
        // SAFETY: the format takes one string, and gets one.
        unsafe { (self.log)(code, c"%s".as_ptr(), text.as_ptr()) }
    }

    /// A parameter of a database's URI.
    ///
    /// # Safety
    /// `name` is a file name as SQLite passes it to a VFS when it opens a database, its journal or its WAL.
    pub(crate) unsafe fn uri_parameter(&self, name: *const c_char, key: &CStr) -> Option<Vec<u8>> {
        // SAFETY: the caller's promise.
        let value = unsafe { (self.uri_parameter)(name, key.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: SQLite returns a string that lives as long as the name.
        Some(unsafe { CStr::from_ptr(value) }.to_bytes().to_vec())
    }
}
