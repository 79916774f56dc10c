//! `SELECT syncline_snapshot('NAME')`, and `syncline_snapshot('NAME', 'SCHEMA')`: a snapshot of the volume in which a
//! database is.

use crate::abi::{self, Routines};
use crate::api::{self, Context, Sqlite, Value};
use std::ffi::{CStr, c_char, c_int, c_void};

const NAME: &CStr = c"syncline_snapshot";

/// What the function asks the database's file for.
pub(crate) struct Request<'a> {
    pub(crate) name: &'a str,
    pub(crate) refused: Option<String>,
}

/// Gives a connection the function. Errors: SQLite's code.
///
/// # Safety
/// `database` is null or an open connection.
pub(crate) unsafe fn offer(database: *mut Sqlite) -> c_int {
    if database.is_null() {
        return abi::OK;
    }
    for arguments in [1, 2] {
        // SAFETY: the caller's promise; the function is one of SQLite's type.
        let code = unsafe { api::get().create_function(database, NAME, arguments, snapshot) };
        if code != abi::OK {
            return code;
        }
    }
    abi::OK
}

/// Has each connection that is opened from here on offered the function.
pub(crate) fn offer_to_all() {
    // Without memory the function is missing, and its caller is told so by SQLite.
    let _ = api::get().auto_extension(offer_to);
}

unsafe extern "C" fn offer_to(
    database: *mut Sqlite,
    _message: *mut *mut c_char,
    _routines: *const Routines,
) -> c_int {
    // SAFETY: SQLite gives the connection that it has opened.
    unsafe { offer(database) }
}

unsafe extern "C" fn snapshot(context: *mut Context, count: c_int, values: *mut *mut Value) {
    // SAFETY: SQLite gives as many values as it says.
    let values = unsafe { std::slice::from_raw_parts(values, count.max(0) as usize) };
    // SAFETY: SQLite's context and its values; texts live for the call, for nothing else is asked of the values.
    let refused = unsafe {
        let texts: Vec<Option<&CStr>> = values.iter().map(|&value| api::get().text_of(value)).collect();
        match texts[..] {
            [Some(name)] => ask(context, name, c"main"),
            [Some(name), Some(schema)] => ask(context, name, schema),
            _ => Some("syncline_snapshot('NAME'): name the snapshot".to_owned()),
        }
    };
    // SAFETY: as above.
    unsafe {
        match refused {
            Some(sentence) => api::get().fail(context, &sentence),
            None => api::get().answer(context, values[0]),
        }
    }
}

/// Returns why no snapshot was made.
///
/// # Safety
/// `context` is that of a running function.
unsafe fn ask(context: *mut Context, name: &CStr, schema: &CStr) -> Option<String> {
    let Ok(name) = name.to_str() else { return Some("a snapshot's name is UTF-8".to_owned()) };
    let mut request = Request { name, refused: None };
    let argument = std::ptr::from_mut(&mut request).cast::<c_void>();
    // SAFETY: the caller's promise; only this crate's VFS knows the operation, and it uses the argument for the call.
    let code = unsafe { api::get().file_control(context, schema, abi::FCNTL_SNAPSHOT, argument) };
    match code {
        abi::OK => request.refused,
        _ => {
            let schema = schema.to_string_lossy();
            Some(format!(
                "\"{schema}\" is no open database of the VFS \"syncline\": nothing has snapshots there"
            ))
        }
    }
}
