//! The VFS in a program that links it statically, with the SQLite that rusqlite brings: `static_rusqlite IMAGE`.

use rusqlite::{Connection, ffi};
use std::ffi::{c_char, c_int, c_void};

/// The type that SQLite has for entry points of extensions.
type EntryPoint =
    unsafe extern "C" fn(*mut ffi::sqlite3, *mut *mut c_char, *const ffi::sqlite3_api_routines) -> c_int;

/// The same of this library, which knows none of rusqlite's types.
type OurEntryPoint =
    unsafe extern "C" fn(*mut c_void, *mut *mut c_char, *const syncline_sqlite::Routines) -> c_int;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args().nth(1).ok_or("usage: static_rusqlite IMAGE")?;
    let entry_point: OurEntryPoint = syncline_sqlite::syncline_sqlite_auto;
    // SAFETY: both types are pointers to functions that differ in what their pointers point to only.
    let entry_point = unsafe { std::mem::transmute::<OurEntryPoint, EntryPoint>(entry_point) };
    // SAFETY: the entry point stays for as long as the program.
    if unsafe { ffi::sqlite3_auto_extension(Some(entry_point)) } != ffi::SQLITE_OK {
        return Err("SQLite has no memory for an extension".into());
    }
    // The first connection runs it; from then on the VFS is there.
    Connection::open_in_memory()?;
    let database = Connection::open(format!("file:/ledger?vfs=syncline&volume={image}"))?;
    database.execute_batch("CREATE TABLE IF NOT EXISTS ledger(coins); INSERT INTO ledger VALUES(42)")?;
    let coins: i64 = database.query_row("SELECT coins FROM ledger", [], |row| row.get(0))?;
    println!("{coins} coins");
    Ok(())
}
