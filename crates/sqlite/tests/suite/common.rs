//! SQLite with the VFS registered, and volumes lent to it.

use rusqlite::ffi;
use rusqlite::{Connection, OpenFlags};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use syncline::{Volume, VolumeOptions};
use syncline_sqlite::Lent;

static REGISTERED: Once = Once::new();
static NAMES: AtomicU32 = AtomicU32::new(0);

/// Registers the VFS with the SQLite that is linked into this program.
pub fn register() {
    REGISTERED.call_once(|| {
        // SAFETY: the entry point has the type that sqlite3_auto_extension documents, and nothing else runs yet in this
        // process that reads the environment.
        unsafe {
            std::env::set_var("SYNCLINE_SQLITE_QUIET", "1");
            let entry = syncline_sqlite::syncline_sqlite_auto as *const ();
            let entry = std::mem::transmute::<
                *const (),
                unsafe extern "C" fn(
                    *mut ffi::sqlite3,
                    *mut *mut std::ffi::c_char,
                    *const ffi::sqlite3_api_routines,
                ) -> std::ffi::c_int,
            >(entry);
            assert_eq!(ffi::sqlite3_auto_extension(Some(entry)), ffi::SQLITE_OK);
        }
        Connection::open_in_memory().expect("a connection runs the entry point");
    });
}

/// Opens an image whose last connection was closed. A file without a name of another test's connection may lie in it
/// for a moment: such files go to any volume that is open.
pub fn reopened(image: &Path, options: &VolumeOptions) -> Volume {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match options.open(image) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => return opened.unwrap_or_else(|error| panic!("{}: {error}", image.display())),
        }
    }
}

/// A name that no other volume of this process has.
pub fn unique(what: &str) -> String {
    format!("{what}-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// A volume lent to SQLite.
pub struct Place {
    pub lent: Option<Lent>,
    pub name: String,
}

impl Place {
    /// A volume in memory.
    pub fn new() -> Place {
        Place::of(Volume::create_in_memory(256 << 20).expect("a volume"))
    }

    pub fn of(volume: Volume) -> Place {
        register();
        let name = unique("volume");
        let lent = Lent::new(Path::new(&name), volume);
        let lent = lent.unwrap_or_else(|_| panic!("the name {name} is taken"));
        Place { lent: Some(lent), name }
    }

    pub fn volume(&self) -> &Volume {
        self.lent.as_ref().expect("the volume is lent").volume()
    }

    /// The URI of a database.
    pub fn uri(&self, database: &str) -> String {
        format!("file:/{database}?vfs=syncline&volume={}", self.name)
    }

    #[track_caller]
    pub fn open(&self, database: &str) -> Connection {
        open(&self.uri(database)).unwrap_or_else(|error| panic!("{database}: {error}"))
    }
}

pub fn open(uri: &str) -> rusqlite::Result<Connection> {
    register();
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri, flags)
}

/// Sets journal mode and synchronous, and checks that they are what was asked for.
#[track_caller]
pub fn set_modes(connection: &Connection, journal: &str, synchronous: &str) {
    let set: String = connection
        .query_row(&format!("PRAGMA journal_mode={journal}"), [], |row| row.get(0))
        .expect("journal_mode");
    assert_eq!(set, journal.to_lowercase());
    connection.execute_batch(&format!("PRAGMA synchronous={synchronous}")).expect("synchronous");
}

/// One value of one row.
#[track_caller]
pub fn value<T: rusqlite::types::FromSql>(connection: &Connection, sql: &str) -> T {
    connection.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

#[track_caller]
pub fn run(connection: &Connection, sql: &str) {
    connection.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}
