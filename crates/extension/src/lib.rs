//! `libsyncline_sqlite.so`: what SQLite finds in it by name, from `crates/sqlite`.

pub use vfs::{sqlite3_synclinedefault_init, sqlite3_synclinesqlite_init, syncline_sqlite_auto};
