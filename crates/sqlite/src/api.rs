//! The few functions of SQLite that the VFS calls, from the table that its entry point was given.

use crate::abi::{
    DIRECT_ONLY, ROUTINE_AUTO_EXTENSION, ROUTINE_CONTEXT_DB_HANDLE, ROUTINE_CREATE_FUNCTION_V2,
    ROUTINE_FILE_CONTROL, ROUTINE_LOG, ROUTINE_MPRINTF, ROUTINE_RESULT_ERROR, ROUTINE_RESULT_VALUE,
    ROUTINE_URI_PARAMETER, ROUTINE_VALUE_TEXT, ROUTINE_VFS_FIND, ROUTINE_VFS_REGISTER, Routines, UTF8, Vfs,
};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

type MprintfFn = unsafe extern "C" fn(*const c_char, ...) -> *mut c_char;
type VfsFindFn = unsafe extern "C" fn(*const c_char) -> *mut Vfs;
type VfsRegisterFn = unsafe extern "C" fn(*mut Vfs, c_int) -> c_int;
type LogFn = unsafe extern "C" fn(c_int, *const c_char, ...);
type UriParameterFn = unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char;

/// `sqlite3`, `sqlite3_context` and `sqlite3_value`: only SQLite looks into them.
#[repr(C)]
pub(crate) struct Sqlite {
    _private: [u8; 0],
}
#[repr(C)]
pub(crate) struct Context {
    _private: [u8; 0],
}
#[repr(C)]
pub(crate) struct Value {
    _private: [u8; 0],
}

/// A function of SQL.
pub(crate) type Function = unsafe extern "C" fn(*mut Context, c_int, *mut *mut Value);
type AggregateEnd = unsafe extern "C" fn(*mut Context);
type Destructor = unsafe extern "C" fn(*mut c_void);
/// What SQLite calls with each new connection.
pub(crate) type EntryPoint = unsafe extern "C" fn(*mut Sqlite, *mut *mut c_char, *const Routines) -> c_int;

type CreateFunctionFn = unsafe extern "C" fn(
    *mut Sqlite,
    *const c_char,
    c_int,
    c_int,
    *mut c_void,
    Option<Function>,
    Option<Function>,
    Option<AggregateEnd>,
    Option<Destructor>,
) -> c_int;
type ContextFn = unsafe extern "C" fn(*mut Context) -> *mut Sqlite;
type ValueTextFn = unsafe extern "C" fn(*mut Value) -> *const c_char;
type ResultErrorFn = unsafe extern "C" fn(*mut Context, *const c_char, c_int);
type ResultValueFn = unsafe extern "C" fn(*mut Context, *mut Value);
type FileControlFn = unsafe extern "C" fn(*mut Sqlite, *const c_char, c_int, *mut c_void) -> c_int;
type AutoExtensionFn = unsafe extern "C" fn(EntryPoint) -> c_int;

/// SQLite's functions.
pub(crate) struct Api {
    create_function: CreateFunctionFn,
    context: ContextFn,
    value_text: ValueTextFn,
    result_error: ResultErrorFn,
    result_value: ResultValueFn,
    file_control: FileControlFn,
    auto_extension: AutoExtensionFn,
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
        // SAFETY: the caller's promise; the table of every SQLite since 3.8.7 is at least this long.
        let entries = unsafe { &(*routines).entries };
        // SAFETY: each entry is the function of this name in sqlite3ext.h, with the type that SQLite documents for it.
        unsafe {
            Api {
                create_function: std::mem::transmute::<*const c_void, CreateFunctionFn>(
                    entries[ROUTINE_CREATE_FUNCTION_V2],
                ),
                context: std::mem::transmute::<*const c_void, ContextFn>(entries[ROUTINE_CONTEXT_DB_HANDLE]),
                value_text: std::mem::transmute::<*const c_void, ValueTextFn>(entries[ROUTINE_VALUE_TEXT]),
                result_error: std::mem::transmute::<*const c_void, ResultErrorFn>(
                    entries[ROUTINE_RESULT_ERROR],
                ),
                result_value: std::mem::transmute::<*const c_void, ResultValueFn>(
                    entries[ROUTINE_RESULT_VALUE],
                ),
                file_control: std::mem::transmute::<*const c_void, FileControlFn>(
                    entries[ROUTINE_FILE_CONTROL],
                ),
                auto_extension: std::mem::transmute::<*const c_void, AutoExtensionFn>(
                    entries[ROUTINE_AUTO_EXTENSION],
                ),
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

    /// Has SQLite call an entry point with each connection that it opens from here on.
    pub(crate) fn auto_extension(&self, entry: EntryPoint) -> c_int {
        // SAFETY: the library stays loaded, and the entry point with it.
        unsafe { (self.auto_extension)(entry) }
    }

    /// Gives a connection a function that only its own statements call.
    ///
    /// # Safety
    /// `database` is an open connection.
    pub(crate) unsafe fn create_function(
        &self,
        database: *mut Sqlite,
        name: &CStr,
        arguments: c_int,
        function: Function,
    ) -> c_int {
        let (flags, nothing) = (UTF8 | DIRECT_ONLY, std::ptr::null_mut());
        // SAFETY: the caller's promise; the name ends in a NUL.
        unsafe {
            (self.create_function)(
                database,
                name.as_ptr(),
                arguments,
                flags,
                nothing,
                Some(function),
                None,
                None,
                None,
            )
        }
    }

    /// A value as text; `None` of NULL, and without memory.
    ///
    /// # Safety
    /// `value` is an argument of a running function, and nothing else is asked of it while the text is used.
    pub(crate) unsafe fn text_of<'a>(&self, value: *mut Value) -> Option<&'a CStr> {
        // SAFETY: the caller's promise.
        let text = unsafe { (self.value_text)(value) };
        // SAFETY: SQLite's text ends in a NUL.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
    }

    /// Has a running function fail.
    ///
    /// # Safety
    /// `context` is its context.
    pub(crate) unsafe fn fail(&self, context: *mut Context, sentence: &str) {
        let length = c_int::try_from(sentence.len()).unwrap_or(c_int::MAX);
        // SAFETY: the caller's promise; SQLite copies so many bytes.
        unsafe { (self.result_error)(context, sentence.as_ptr().cast(), length) }
    }

    /// Has a running function return a value.
    ///
    /// # Safety
    /// `context` is its context, `value` one of its arguments.
    pub(crate) unsafe fn answer(&self, context: *mut Context, value: *mut Value) {
        // SAFETY: the caller's promise.
        unsafe { (self.result_value)(context, value) }
    }

    /// Asks the file of a schema of the connection that runs a function.
    ///
    /// # Safety
    /// `context` is its context; `argument` is what the operation takes.
    pub(crate) unsafe fn file_control(
        &self,
        context: *mut Context,
        schema: &CStr,
        operation: c_int,
        argument: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's promise; the schema's name ends in a NUL.
        unsafe { (self.file_control)((self.context)(context), schema.as_ptr(), operation, argument) }
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
