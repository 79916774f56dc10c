//! Volumes that the VFS opens itself, on image files, and one that is open for reading only.

use crate::common::{Place, open, reopened, run, set_modes, value};
use rusqlite::{Connection, ErrorCode};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use syncline::{MkfsOptions, Volume, VolumeOptions};

/// An image with a journal that a transaction easily outgrows.
struct Image {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    fn new() -> Image {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("v.img");
        let options = MkfsOptions::default().size_bytes(64 << 20).journal_bytes(256 << 10);
        Volume::create(&path, &options).expect("mkfs").close().expect("close");
        Image { _directory: directory, path }
    }

    fn open(&self, database: &str) -> Connection {
        open(&format!("file:/{database}?vfs=syncline&volume={}", self.path.display())).expect("open")
    }
}

const ROWS: &str = "CREATE TABLE t(a INTEGER PRIMARY KEY, b);
    INSERT INTO t SELECT value, zeroblob(3000) FROM
        (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value+1 FROM n WHERE value<600) SELECT value FROM n)";

#[test]
fn a_journal_that_is_kept_is_found_where_none_was_before() {
    let image = Image::new();
    // Keeps the volume open, and what is known of it.
    let other = image.open("other");
    run(&other, "CREATE TABLE u(a)");
    let connection = image.open("db");
    run(&connection, ROWS);
    for row in 0..3 {
        run(&connection, &format!("UPDATE t SET b=zeroblob(3000) WHERE a={row}"));
    }
    run(&connection, "PRAGMA cache_size=10; BEGIN; UPDATE t SET b=randomblob(2900) WHERE a%2");
    drop(connection);
    let connection = image.open("db");
    assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM t WHERE b=zeroblob(3000)"), 600);
    assert_eq!(value::<String>(&connection, "PRAGMA integrity_check"), "ok");
    run(&connection, "UPDATE t SET b=2 WHERE a=1");
    drop((connection, other));
    let volume = reopened(&image.path, &VolumeOptions::new());
    assert!(!volume.try_exists("/db-journal").expect("look"));
    volume.close().expect("close");
}

#[test]
fn a_log_that_another_connection_begins_is_found_where_none_was_before() {
    let image = Image::new();
    let (reader, writer) = (image.open("db"), image.open("db"));
    run(&writer, "CREATE TABLE t(a)");
    assert_eq!(value::<i64>(&reader, "SELECT count(*) FROM t"), 0);
    set_modes(&writer, "WAL", "FULL");
    run(&writer, "INSERT INTO t VALUES(1)");
    assert_eq!(value::<i64>(&reader, "SELECT count(*) FROM t"), 1);
    assert_eq!(value::<String>(&reader, "PRAGMA journal_mode"), "wal");
    run(&reader, "INSERT INTO t VALUES(2)");
    assert_eq!(value::<i64>(&writer, "SELECT count(*) FROM t"), 2);
}

#[test]
fn databases_of_a_volume_that_is_open_for_reading_only_are_read() {
    for mode in ["DELETE", "WAL"] {
        let image = Image::new();
        let connection = image.open("db");
        set_modes(&connection, mode, "FULL");
        run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES(1)");
        drop(connection);
        let volume = reopened(&image.path, &VolumeOptions::new().read_only(true));
        let place = Place::of(volume);
        let connection = place.open("db");
        assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM t"), 1, "{mode}");
        assert_eq!(value::<String>(&connection, "PRAGMA integrity_check"), "ok", "{mode}");
        let refused = connection.execute_batch("INSERT INTO t VALUES(2)").expect_err("it is read-only");
        assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::ReadOnly), "{mode}: {refused}");
        assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM t"), 1, "{mode}");
    }
}

#[test]
fn a_database_lies_on_an_export_of_an_nbd_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("sock");
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.args(["-f", "--unix"]).arg(&socket).args(["memory", "64M"]).stdin(Stdio::null());
    let Ok(mut server) = nbdkit.spawn() else {
        // A test that cannot tell is skipped all the same.
        let _ = writeln!(std::io::stderr(), "skipped: a_database_lies_on_an_export: nbdkit is not installed");
        return;
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !socket.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let address = format!("nbd+unix:///?socket={}", socket.display());
    Volume::create(&address, &MkfsOptions::default()).expect("mkfs").close().expect("close");
    let encoded = address.replace('?', "%3F").replace('&', "%26");
    let uri = format!("file:/db?vfs=syncline&volume={encoded}");
    let connection = open(&uri).expect("open");
    run(&connection, ROWS);
    // By its full name, with what names the snapshot.
    let volume = open(&format!("file:{encoded}:/db?vfs=syncline")).expect("open");
    assert_eq!(value::<i64>(&volume, "SELECT count(*) FROM t"), 600);
    let second =
        Volume::open(&address).map(drop).expect_err("one process has a volume, and one handle of it");
    assert_eq!(second.kind(), std::io::ErrorKind::ResourceBusy, "{second}");
    drop((connection, volume));
    let volume = reopened(address.as_ref(), &VolumeOptions::new());
    volume.snapshot("first").expect("a snapshot");
    volume.close().expect("close");
    let before = open(&format!("{uri}%23first")).expect("open");
    assert_eq!(value::<i64>(&before, "SELECT count(*) FROM t"), 600);
    drop(before);
    server.kill().and_then(|()| server.wait()).expect("ended");
}
