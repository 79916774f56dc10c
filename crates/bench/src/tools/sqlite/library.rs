//! SQLite in this process: the library as the distribution ships it, opened when it is needed, with the VFS registered.
//!
//! Only so does SQLite reach a volume that this process has opened itself: as the engine does without a mechanism,
//! which is nothing that another program could ask the VFS for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::ptr;
use std::sync::OnceLock;

const NAME: &CStr = c"libsqlite3.so.0";
const OK: c_int = 0;
/// Read, write, create; names are URIs.
const OPEN_FLAGS: c_int = 0x2 | 0x4 | 0x40;

type Database = c_void;
type RowFn = unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type AutoExtensionFn = unsafe extern "C" fn(*const c_void) -> c_int;
type OpenFn = unsafe extern "C" fn(*const c_char, *mut *mut Database, c_int, *const c_char) -> c_int;
type CloseFn = unsafe extern "C" fn(*mut Database) -> c_int;
type ExecFn =
    unsafe extern "C" fn(*mut Database, *const c_char, Option<RowFn>, *mut c_void, *mut *mut c_char) -> c_int;
type MessageFn = unsafe extern "C" fn(*mut Database) -> *const c_char;

/// The functions that are used.
pub(super) struct Library {
    open: OpenFn,
    close: CloseFn,
    exec: ExecFn,
    message: MessageFn,
}

static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();

/// Loads it, once; `None` where it is not installed.
pub(super) fn load() -> Option<&'static Library> {
    LIBRARY.get_or_init(open_library).as_ref()
}

fn open_library() -> Option<Library> {
    // SAFETY: the library's name is a C string; SQLite's own initialisers have no preconditions.
    let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return None;
    }
    let symbol = |name: &CStr| {
        // SAFETY: the handle is open, and is never closed.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    let auto_extension = symbol(c"sqlite3_auto_extension")?;
    // SAFETY: each symbol is the function of that name, with the type that SQLite documents for it.
    let library = unsafe {
        Library {
            open: std::mem::transmute::<*mut c_void, OpenFn>(symbol(c"sqlite3_open_v2")?),
            close: std::mem::transmute::<*mut c_void, CloseFn>(symbol(c"sqlite3_close_v2")?),
            exec: std::mem::transmute::<*mut c_void, ExecFn>(symbol(c"sqlite3_exec")?),
            message: std::mem::transmute::<*mut c_void, MessageFn>(symbol(c"sqlite3_errmsg")?),
        }
    };
    let entry = syncline_sqlite::syncline_sqlite_auto as *const c_void;
    // SAFETY: as above; the entry point is one that `sqlite3_auto_extension` documents.
    let registered =
        unsafe { std::mem::transmute::<*mut c_void, AutoExtensionFn>(auto_extension)(entry) == OK };
    registered.then_some(library)
}

/// An open database, used by the thread that opened it.
pub(super) struct Connection {
    library: &'static Library,
    database: *mut Database,
}

impl Library {
    /// Opens a database of a volume that is lent to SQLite under `volume`; makes it if it is missing.
    pub(super) fn open(&'static self, volume: &str, database: &str) -> io::Result<Connection> {
        // The entry point runs when a connection is opened, and only then SQLite knows the VFS.
        drop(self.open_uri(":memory:")?);
        self.open_uri(&format!("file:/{database}?vfs=syncline&volume={volume}"))
    }

    fn open_uri(&'static self, uri: &str) -> io::Result<Connection> {
        let mut database = ptr::null_mut();
        // SAFETY: a C string, and a place for the connection, which has to be closed even if opening has failed.
        let code = unsafe { (self.open)(c_string(uri)?.as_ptr(), &mut database, OPEN_FLAGS, ptr::null()) };
        let connection = Connection { library: self, database };
        match code {
            OK => Ok(connection),
            _ => Err(connection.failure(uri)),
        }
    }
}

impl Connection {
    /// Carries statements out; the first column of the last row, empty if there was none.
    pub(super) fn run(&self, sql: &str) -> io::Result<String> {
        let mut value = String::new();
        let to = (&raw mut value).cast();
        // SAFETY: the connection is open, and `keep_first` gets the string that outlives the call.
        let code = unsafe {
            (self.library.exec)(self.database, c_string(sql)?.as_ptr(), Some(keep_first), to, ptr::null_mut())
        };
        match code {
            OK => Ok(value),
            _ => Err(self.failure(sql)),
        }
    }

    fn failure(&self, doing: &str) -> io::Error {
        // SAFETY: SQLite takes a null connection too, and returns a C string that lives until its next call.
        let message = unsafe { CStr::from_ptr((self.library.message)(self.database)) };
        io::Error::other(format!("SQLite: {doing}: {}", message.to_string_lossy()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: opened by SQLite, and not used any more; null is allowed.
        unsafe { (self.library.close)(self.database) };
    }
}

/// # Safety
/// Called by SQLite for each row, with the string that [`Connection::run`] gave it.
unsafe extern "C" fn keep_first(
    to: *mut c_void,
    columns: c_int,
    values: *mut *mut c_char,
    _names: *mut *mut c_char,
) -> c_int {
    if columns > 0 {
        // SAFETY: the caller's promise; there are as many values as columns, each a C string or null.
        unsafe {
            let value = *values;
            *to.cast::<String>() = match value.is_null() {
                true => String::new(),
                false => CStr::from_ptr(value).to_string_lossy().into_owned(),
            };
        }
    }
    OK
}

fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::ErrorKind::InvalidInput.into())
}
