//! Several connections of one process: locks, WAL, and what the VFS says of itself.

use crate::common::{Place, open, reopened, run, set_modes, unique, value};
use rusqlite::{Connection, ErrorCode};
use std::time::Duration;
use syncline::{Volume, VolumeOptions};

#[test]
fn a_database_is_there_when_it_is_opened_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("v.img");
    let options = syncline::MkfsOptions::default().size_bytes(32 << 20);
    Volume::create(&image, &options).expect("mkfs").close().expect("close");
    let uri = format!("file:/dir/../db?vfs=syncline&volume={}", image.display());
    let connection = open(&uri).expect("open");
    run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES(7)");
    let listed: String = connection.query_row("PRAGMA database_list", [], |row| row.get(2)).expect("list");
    assert_eq!(listed, format!("{}:/db", image.canonicalize().expect("path").display()));
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
    let named =
        Connection::open_with_flags_and_vfs(&listed, flags, "syncline").expect("the full name will do");
    assert_eq!(value::<i64>(&named, "SELECT a FROM t"), 7);
    drop((connection, named));
    // Closed properly, and to be had by others.
    let volume = reopened(&image, &VolumeOptions::new());
    assert!(volume.metadata("/db").expect("there").len() > 0);
    assert!(!volume.try_exists("/db-journal").expect("look"));
    let waiting = open(&uri).expect("open");
    waiting.busy_timeout(Duration::ZERO).expect("timeout");
    let refused = waiting.query_row("SELECT a FROM t", [], |_| Ok(())).expect_err("the volume is in use");
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    let without_locks = open(&format!("{uri}&nolock=1")).expect_err("the volume is in use");
    assert_eq!(without_locks.sqlite_error_code(), Some(ErrorCode::CannotOpen));
    volume.close().expect("close");
    assert_eq!(value::<i64>(&waiting, "SELECT a FROM t"), 7);
    drop(waiting);
    assert_eq!(value::<i64>(&open(&uri).expect("open"), "SELECT a FROM t"), 7);
}

#[test]
fn a_writer_and_readers_keep_sqlites_rules() {
    let place = Place::new();
    let (one, other) = (place.open("db"), place.open("db"));
    run(&one, "CREATE TABLE t(a); INSERT INTO t VALUES(1)");
    run(&one, "BEGIN IMMEDIATE; INSERT INTO t VALUES(2)");
    assert_eq!(value::<i64>(&other, "SELECT count(*) FROM t"), 1, "uncommitted rows are not seen");
    let busy = other.execute_batch("BEGIN IMMEDIATE").expect_err("one writer");
    assert_eq!(busy.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    run(&other, "BEGIN; SELECT * FROM t");
    assert_eq!(value::<i64>(&other, "SELECT count(*) FROM t"), 1);
    let busy = one.execute_batch("COMMIT").expect_err("a reader is in the way");
    assert_eq!(busy.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    run(&other, "COMMIT");
    run(&one, "COMMIT");
    assert_eq!(value::<i64>(&other, "SELECT count(*) FROM t"), 2);
}

#[test]
fn spilled_pages_are_not_seen_by_others_and_go_with_the_connection() {
    let place = Place::new();
    let one = place.open("db");
    run(&one, "PRAGMA cache_size=5; CREATE TABLE t(a)");
    run(
        &one,
        "BEGIN; INSERT INTO t SELECT randomblob(3000) FROM (VALUES(1),(2),(3),(4),(5),(6),(7),(8)), (VALUES(1),(2),(3))",
    );
    // Dropped in the middle of a transaction whose pages are in the database's staging already.
    drop(one);
    assert_eq!(value::<i64>(&place.open("db"), "SELECT count(*) FROM t"), 0);
}

fn many_threads(journal: &str) {
    let place = Place::new();
    let connection = place.open("db");
    set_modes(&connection, journal, "NORMAL");
    run(&connection, "CREATE TABLE t(id INTEGER PRIMARY KEY, n INT); INSERT INTO t VALUES(1,0),(2,0)");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let connection = place.open("db");
                connection.busy_timeout(Duration::from_secs(60)).expect("timeout");
                for _ in 0..25 {
                    run(&connection, "BEGIN IMMEDIATE; UPDATE t SET n=n+1 WHERE id=1; UPDATE t SET n=n-1 WHERE id=2; COMMIT");
                    assert_eq!(value::<i64>(&connection, "SELECT sum(n) FROM t"), 0);
                }
            });
        }
    });
    assert_eq!(value::<i64>(&connection, "SELECT n FROM t WHERE id=1"), 100);
    assert_eq!(value::<String>(&connection, "PRAGMA integrity_check"), "ok");
}

#[test]
fn threads_take_turns_in_rollback_mode() {
    many_threads("delete");
    many_threads("persist");
}

#[test]
fn threads_take_turns_in_wal_mode() {
    many_threads("wal");
}

#[test]
fn wal_readers_keep_their_snapshot_and_checkpoints_move_it_into_the_database() {
    let place = Place::new();
    let (writer, reader) = (place.open("db"), place.open("db"));
    set_modes(&writer, "wal", "FULL");
    run(&writer, "CREATE TABLE t(a); INSERT INTO t VALUES(1)");
    run(&reader, "BEGIN");
    assert_eq!(value::<i64>(&reader, "SELECT count(*) FROM t"), 1);
    run(&writer, "INSERT INTO t VALUES(2)");
    assert_eq!(value::<i64>(&reader, "SELECT count(*) FROM t"), 1);
    run(&reader, "COMMIT");
    assert_eq!(value::<i64>(&reader, "SELECT count(*) FROM t"), 2);
    let mut checkpoint = writer.prepare("PRAGMA wal_checkpoint(TRUNCATE)").expect("prepare");
    let busy: i64 = checkpoint.query_row([], |row| row.get(0)).expect("checkpoint");
    assert_eq!(busy, 0);
    drop(checkpoint);
    assert_eq!(place.volume().metadata("/db-wal").expect("the log").len(), 0);
    assert_eq!(value::<i64>(&reader, "SELECT count(*) FROM t"), 2);
    drop((writer, reader));
    assert!(!place.volume().try_exists("/db-wal").expect("look"), "the last connection takes the log away");
    let again = place.open("db");
    assert_eq!(value::<String>(&again, "PRAGMA journal_mode"), "wal");
    assert_eq!(value::<String>(&again, "PRAGMA journal_mode=delete"), "delete");
    assert_eq!(value::<i64>(&again, "SELECT count(*) FROM t"), 2);
}

#[test]
fn exclusive_locking_works_with_and_without_a_wal() {
    for journal in ["delete", "truncate", "persist", "wal"] {
        let place = Place::new();
        let connection = place.open("db");
        assert_eq!(value::<String>(&connection, "PRAGMA locking_mode=exclusive"), "exclusive");
        set_modes(&connection, journal, "FULL");
        run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES(1)");
        run(&connection, "BEGIN; INSERT INTO t VALUES(2); ROLLBACK; INSERT INTO t VALUES(3)");
        let other = place.open("db");
        let busy = other.query_row("SELECT * FROM t", [], |_| Ok(())).expect_err("locked");
        assert_eq!(busy.sqlite_error_code(), Some(ErrorCode::DatabaseBusy), "{journal}");
        drop(connection);
        assert_eq!(value::<i64>(&other, "SELECT sum(a) FROM t"), 4, "{journal}");
    }
}

#[test]
fn memory_mapping_is_declined_and_the_vfs_tells_its_name() {
    let place = Place::new();
    let connection = place.open("db");
    run(&connection, "CREATE TABLE t(a)");
    assert_eq!(value::<i64>(&connection, "PRAGMA mmap_size=1000000"), 0);
}

#[test]
fn reading_connections_cannot_write_and_missing_databases_are_not_made() {
    let place = Place::new();
    let missing = open(&format!("{}&mode=rw", place.uri("db"))).expect_err("there is none");
    assert_eq!(missing.sqlite_error_code(), Some(ErrorCode::CannotOpen));
    run(&place.open("db"), "CREATE TABLE t(a)");
    let reader = open(&format!("{}&mode=ro", place.uri("db"))).expect("open");
    let refused = reader.execute_batch("INSERT INTO t VALUES(1)").expect_err("read-only");
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::ReadOnly));
    assert_eq!(value::<i64>(&reader, "SELECT count(*) FROM t"), 0);
}

#[test]
fn names_that_cannot_be_are_refused() {
    let place = Place::new();
    run(&place.open("db"), "CREATE TABLE t(a)");
    place.volume().symlink("db", "/link").expect("symlink");
    place.volume().create_dir("/dir").expect("mkdir");
    for name in ["link", "dir", "", "no/such/dir/db"] {
        let refused =
            open(&place.uri(name)).and_then(|connection| connection.execute_batch("CREATE TABLE u(a)"));
        assert!(refused.is_err(), "{name:?}");
    }
    assert!(open("file:/db?vfs=syncline&volume=/no/such/image").is_err());
}

#[test]
fn temporary_tables_and_sorters_outgrow_memory() {
    let place = Place::new();
    let connection = place.open("db");
    run(&connection, "PRAGMA temp_store=FILE; PRAGMA cache_size=10; PRAGMA temp.cache_size=10");
    run(
        &connection,
        "CREATE TEMP TABLE t AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<4000)
         SELECT i, randomblob(700) AS x FROM n",
    );
    assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM (SELECT * FROM t ORDER BY x)"), 4000);
    run(&connection, "BEGIN; DELETE FROM temp.t WHERE i%2; ROLLBACK");
    assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM t"), 4000);
    let names: Vec<_> = place.volume().read_dir("/").expect("list").collect();
    assert!(names.len() <= 1, "temporary files have no names");
}

#[test]
fn a_copy_can_be_vacuumed_into_another_database_of_the_volume() {
    let place = Place::new();
    let connection = place.open("db");
    run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES(5)");
    run(&connection, &format!("VACUUM INTO '{}'", place.uri("copy")));
    assert_eq!(value::<i64>(&place.open("copy"), "SELECT a FROM t"), 5);
}

#[test]
fn a_volume_is_lent_once_under_a_name() {
    crate::common::register();
    let name = unique("twice");
    let first = syncline_sqlite::Lent::new(&name, Volume::create_in_memory(16 << 20).expect("a volume"));
    let second = syncline_sqlite::Lent::new(&name, Volume::create_in_memory(16 << 20).expect("a volume"));
    assert!(first.is_ok() && second.is_err());
}

#[test]
fn connections_outlive_the_loan() {
    let mut place = Place::new();
    let connection: Connection = place.open("db");
    run(&connection, "CREATE TABLE t(a)");
    place.lent = None;
    run(&connection, "INSERT INTO t VALUES(1)");
    assert_eq!(value::<i64>(&place.open("db"), "SELECT a FROM t"), 1);
}
