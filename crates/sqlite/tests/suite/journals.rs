//! Journals that lie in the volume, because a database came from elsewhere; and rollbacks.

use crate::common::{Place, open, run, set_modes, value};
use rusqlite::{Connection, ErrorCode};
use std::path::Path;

/// A database of SQLite's own VFS, and what it looks like in the middle of a transaction whose pages have been
/// written to it.
struct Interrupted {
    database: Vec<u8>,
    journal: Vec<u8>,
}

fn interrupted(directory: &Path, journal_mode: &str) -> Interrupted {
    let path = directory.join("db");
    let connection = Connection::open(&path).expect("open");
    set_modes(&connection, journal_mode, "FULL");
    run(&connection, "PRAGMA cache_size=5; CREATE TABLE t(a INTEGER PRIMARY KEY, b)");
    run(
        &connection,
        "INSERT INTO t SELECT value, zeroblob(500) FROM
            (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value+1 FROM n WHERE value<200) SELECT value FROM n)",
    );
    run(&connection, "BEGIN; UPDATE t SET b=randomblob(900); DELETE FROM t WHERE a>150");
    let read = |name: &str| std::fs::read(directory.join(name)).expect("read");
    Interrupted { database: read("db"), journal: read("db-journal") }
}

fn is_whole(connection: &Connection) {
    assert_eq!(value::<String>(connection, "PRAGMA integrity_check"), "ok");
    assert_eq!(value::<i64>(connection, "SELECT count(*) FROM t WHERE b=zeroblob(500)"), 200);
}

#[test]
fn a_hot_journal_in_the_volume_is_played_back() {
    let directory = tempfile::tempdir().expect("a directory");
    for (journal_mode, then) in [("delete", "delete"), ("truncate", "persist"), ("persist", "memory")] {
        let place = Place::new();
        std::fs::remove_file(directory.path().join("db")).ok();
        let found = interrupted(directory.path(), journal_mode);
        place.volume().write("/db", &found.database).expect("write");
        is_not_whole(&place);
        place.volume().write("/db", &found.database).expect("write");
        place.volume().write("/db-journal", &found.journal).expect("write");
        let connection = place.open("db");
        is_whole(&connection);
        set_modes(&connection, then, "FULL");
        run(&connection, "INSERT INTO t VALUES(1000, zeroblob(500)); DELETE FROM t WHERE a=1000");
        assert!(!place.volume().try_exists("/db-journal").expect("look"), "the journal has served");
        drop(connection);
        is_whole(&place.open("db"));
    }
}

/// Without its journal the database shows the middle of the transaction; else these tests would show nothing.
fn is_not_whole(place: &Place) {
    let connection = place.open("db");
    let count =
        connection.query_row("SELECT count(*) FROM t WHERE b=zeroblob(500)", [], |row| row.get::<_, i64>(0));
    assert_ne!(count.unwrap_or(0), 200);
}

#[test]
fn a_hot_journal_is_left_alone_until_there_is_a_reason_to_write() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = Place::new();
    let found = interrupted(directory.path(), "delete");
    place.volume().write("/db", &found.database).expect("write");
    place.volume().write("/db-journal", &found.journal).expect("write");
    let reader = open(&format!("{}&mode=ro", place.uri("db"))).expect("open");
    assert!(reader.query_row("SELECT count(*) FROM t", [], |_| Ok(())).is_err());
    assert_eq!(place.volume().read("/db-journal").expect("read"), found.journal);
    drop(reader);
    is_whole(&place.open("db"));
}

#[test]
fn a_finished_journal_that_was_kept_is_no_hot_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let connection = Connection::open(directory.path().join("db")).expect("open");
    set_modes(&connection, "persist", "FULL");
    run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES(1)");
    let place = Place::new();
    for name in ["db", "db-journal"] {
        let content = std::fs::read(directory.path().join(name)).expect("read");
        place.volume().write(format!("/{name}"), content).expect("write");
    }
    let connection = place.open("db");
    set_modes(&connection, "persist", "FULL");
    assert_eq!(value::<i64>(&connection, "SELECT a FROM t"), 1);
    run(&connection, "UPDATE t SET a=2");
    // With batch atomic writes SQLite does not look at it at all.
    let batches: bool = value(&connection, "SELECT sqlite_compileoption_used('ENABLE_BATCH_ATOMIC_WRITE')");
    let there = place.volume().try_exists("/db-journal").expect("look");
    assert!(batches || !there, "journals are not written to the volume");
    drop(connection);
    assert_eq!(value::<i64>(&place.open("db"), "SELECT a FROM t"), 2);
}

#[test]
fn a_log_in_the_volume_is_recovered() {
    let directory = tempfile::tempdir().expect("a directory");
    let connection = Connection::open(directory.path().join("db")).expect("open");
    set_modes(&connection, "wal", "FULL");
    run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES(1),(2),(3)");
    let place = Place::new();
    for name in ["db", "db-wal"] {
        let content = std::fs::read(directory.path().join(name)).expect("read");
        place.volume().write(format!("/{name}"), content).expect("write");
    }
    assert_eq!(value::<i64>(&place.open("db"), "SELECT sum(a) FROM t"), 6);
}

#[test]
fn a_database_goes_back_to_sqlites_own_vfs_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    for journal in ["delete", "truncate", "persist", "memory", "wal"] {
        let place = Place::new();
        let connection = place.open("db");
        set_modes(&connection, journal, "FULL");
        run(
            &connection,
            "CREATE TABLE t(a); INSERT INTO t VALUES(randomblob(100000)); BEGIN; DELETE FROM t; ROLLBACK",
        );
        drop(connection);
        let names: Vec<_> = place
            .volume()
            .read_dir("/")
            .expect("list")
            .map(|entry| entry.expect("entry").file_name().to_owned())
            .collect();
        assert_eq!(names, ["db"], "{journal}");
        let path = directory.path().join(journal);
        std::fs::write(&path, place.volume().read("/db").expect("read")).expect("write");
        let connection = Connection::open(&path).expect("open");
        assert_eq!(value::<String>(&connection, "PRAGMA integrity_check"), "ok");
        assert_eq!(value::<i64>(&connection, "SELECT length(a) FROM t"), 100_000);
    }
}

#[test]
fn a_transaction_over_databases_of_another_vfs_is_refused_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = Place::new();
    let connection = place.open("db");
    run(&connection, "CREATE TABLE t(a)");
    let other = format!("file:{}?vfs=unix", directory.path().join("other").display());
    run(&connection, &format!("ATTACH '{other}' AS other; CREATE TABLE other.t(a)"));
    let refused = connection
        .execute_batch("BEGIN; INSERT INTO main.t VALUES(1); INSERT INTO other.t VALUES(1); COMMIT");
    assert!(refused.is_err());
    if !connection.is_autocommit() {
        run(&connection, "ROLLBACK");
    }
    assert_eq!(
        value::<i64>(&connection, "SELECT (SELECT count(*) FROM main.t) + (SELECT count(*) FROM other.t)"),
        0
    );
    run(&connection, "INSERT INTO main.t VALUES(1); INSERT INTO other.t VALUES(1)");
}

#[test]
fn a_transaction_that_does_not_fit_is_rolled_back_and_the_volume_stays_usable() {
    for journal in ["delete", "persist", "memory"] {
        let place = Place::of(syncline::Volume::create_in_memory(24 << 20).expect("a volume"));
        let connection = place.open("db");
        set_modes(&connection, journal, "FULL");
        run(&connection, "PRAGMA cache_size=50; CREATE TABLE t(a INTEGER PRIMARY KEY, b)");
        run(
            &connection,
            "INSERT INTO t SELECT value, zeroblob(1000) FROM
               (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value+1 FROM n WHERE value<2000) SELECT value FROM n)",
        );
        let full = connection
            .execute_batch("BEGIN; UPDATE t SET b=randomblob(60000); COMMIT")
            .expect_err("no space");
        assert_eq!(full.sqlite_error_code(), Some(ErrorCode::DiskFull), "{journal}: {full}");
        if !connection.is_autocommit() {
            run(&connection, "ROLLBACK");
        }
        assert_eq!(value::<String>(&connection, "PRAGMA integrity_check"), "ok", "{journal}");
        assert_eq!(
            value::<i64>(&connection, "SELECT count(*) FROM t WHERE b=zeroblob(1000)"),
            2000,
            "{journal}"
        );
        run(&connection, "UPDATE t SET b=1 WHERE a<10");
        drop(connection);
        assert_eq!(value::<i64>(&place.open("db"), "SELECT count(*) FROM t WHERE b=1"), 9);
    }
}

/// A volume whose journal is so small that a few hundred strewn pages are too much for a record.
fn small_journal() -> Place {
    let device = std::sync::Arc::new(syncline_device::MemoryDevice::new((64 << 20) / 4096));
    let entropy = syncline::SystemEntropy::default();
    let options = syncline::MkfsOptions::default().journal_bytes(256 << 10);
    syncline_fs::Fs::format(&*device, &options, &syncline::SystemClock, &entropy, &mut |_, _| {})
        .expect("mkfs");
    Place::of(syncline::VolumeOptions::new().open_device(device).expect("open"))
}

const LARGE: &str = "CREATE TABLE t(a INTEGER PRIMARY KEY, b); INSERT INTO t SELECT value, zeroblob(3000) FROM
    (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value+1 FROM n WHERE value<600) SELECT value FROM n)";

#[test]
fn a_transaction_too_large_for_a_record_goes_through_a_journal_in_the_volume() {
    for journal in ["delete", "truncate", "persist"] {
        let place = small_journal();
        let connection = place.open("db");
        set_modes(&connection, journal, "FULL");
        run(&connection, LARGE);
        run(&connection, "PRAGMA cache_size=10; BEGIN; UPDATE t SET b=randomblob(2900) WHERE a%2");
        assert!(place.volume().metadata("/db-journal").expect("it is kept").len() > 500_000, "{journal}");
        let read = "SELECT count(*) FROM t WHERE b=zeroblob(3000)";
        assert_eq!(value::<i64>(&connection, read), 300);
        run(&connection, "ROLLBACK");
        assert!(!place.volume().try_exists("/db-journal").expect("look"), "{journal}");
        assert_eq!(value::<i64>(&connection, read), 600);
        run(&connection, "UPDATE t SET b=randomblob(2900) WHERE a%2");
        assert!(!place.volume().try_exists("/db-journal").expect("look"), "{journal}");
        assert_eq!(value::<i64>(&connection, read), 300);
        assert_eq!(value::<String>(&connection, "PRAGMA integrity_check"), "ok");
        // The next one is staged again.
        run(&connection, "BEGIN; UPDATE t SET b=1 WHERE a<20");
        assert!(!place.volume().try_exists("/db-journal").expect("look"), "{journal}");
        run(&connection, "ROLLBACK");
    }
}

#[test]
fn a_large_transaction_of_a_connection_that_is_gone_is_played_back() {
    let place = small_journal();
    let connection = place.open("db");
    run(&connection, LARGE);
    let main = place.volume().read("/db").expect("read");
    run(&connection, "PRAGMA cache_size=10; BEGIN; UPDATE t SET b=randomblob(2900) WHERE a%2");
    // As a crash would leave it.
    let (database, journal) =
        (place.volume().read("/db").expect("read"), place.volume().read("/db-journal").expect("read"));
    assert!(database != main);
    drop(connection);
    let other = small_journal();
    other.volume().write("/db", database).expect("write");
    other.volume().write("/db-journal", journal).expect("write");
    for place in [&place, &other] {
        let connection = place.open("db");
        assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM t WHERE b=zeroblob(3000)"), 600);
        assert_eq!(value::<String>(&connection, "PRAGMA integrity_check"), "ok");
        run(&connection, "UPDATE t SET b=2 WHERE a=1");
        assert!(!place.volume().try_exists("/db-journal").expect("look"));
    }
}

#[test]
fn without_a_journal_a_transaction_too_large_fails_and_leaves_the_database_as_it_was() {
    let place = small_journal();
    let connection = place.open("db");
    run(&connection, LARGE);
    set_modes(&connection, "memory", "FULL");
    let full = connection.execute_batch("UPDATE t SET b=randomblob(2900) WHERE a%2").expect_err("too large");
    assert_eq!(full.sqlite_error_code(), Some(ErrorCode::DiskFull));
    assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM t WHERE b=zeroblob(3000)"), 600);
}

/// Two databases with the same large table.
fn two_large(place: &Place, journal: &str) -> Connection {
    let connection = place.open("db");
    run(&connection, LARGE);
    let two = place.uri("two");
    run(&connection, &format!("ATTACH '{two}' AS two; CREATE TABLE two.t(a INTEGER PRIMARY KEY, b)"));
    run(&connection, "INSERT INTO two.t SELECT * FROM main.t");
    for name in ["main", "two"] {
        connection
            .query_row(&format!("PRAGMA {name}.journal_mode={journal}"), [], |_| Ok(()))
            .expect("a journal mode");
    }
    connection
}

#[test]
fn two_databases_are_changed_together_however_large_the_transaction() {
    for journal in ["delete", "truncate", "persist"] {
        let place = small_journal();
        let connection = two_large(&place, journal);
        // Both fit one record; each alone; neither. Or one is small.
        for rows in [20, 60, 100, 140, 180, 220, 300, 600] {
            for (main, two) in [(rows, rows), (rows, 3), (3, rows)] {
                let mark = format!("{main}-{two};");
                let change = |name: &str, rows: i64| {
                    format!("UPDATE {name}.t SET b='{mark}' || randomblob(2900) WHERE a%2 AND a<={rows};")
                };
                let changes = change("main", main) + &change("two", two);
                let changed = |name: &str| {
                    let with = format!("SELECT count(*) FROM {name}.t WHERE CAST(b AS TEXT) LIKE '{mark}%'");
                    value::<i64>(&connection, &with)
                };
                run(&connection, &format!("BEGIN; {changes} ROLLBACK"));
                assert_eq!((changed("main"), changed("two")), (0, 0), "{journal} {mark}");
                run(&connection, &format!("BEGIN; {changes} COMMIT"));
                assert_eq!((changed("main"), changed("two")), ((main + 1) / 2, (two + 1) / 2), "{mark}");
                for left in ["/db-journal", "/two-journal"] {
                    assert!(!place.volume().try_exists(left).expect("look"), "{journal} {mark}: {left}");
                }
            }
        }
        assert_eq!(value::<String>(&connection, "PRAGMA main.integrity_check"), "ok");
        assert_eq!(value::<String>(&connection, "PRAGMA two.integrity_check"), "ok");
    }
}

#[test]
fn a_large_transaction_over_two_databases_that_was_cut_off_is_played_back_wherever_they_are() {
    let place = small_journal();
    let connection = two_large(&place, "delete");
    run(&connection, "PRAGMA main.cache_size=10; PRAGMA two.cache_size=10");
    run(&connection, "BEGIN; UPDATE main.t SET b=1 WHERE a%2; UPDATE two.t SET b=1 WHERE a%2");
    // As a crash would leave it, and under another name.
    let other = small_journal();
    for name in ["/db", "/db-journal", "/two", "/two-journal"] {
        other.volume().write(name, place.volume().read(name).expect("read")).expect("write");
    }
    run(&connection, "COMMIT");
    assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM two.t WHERE b=1"), 300);
    for name in ["two", "db"] {
        let connection = other.open(name);
        assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM t WHERE b=zeroblob(3000)"), 600);
        assert_eq!(value::<String>(&connection, "PRAGMA integrity_check"), "ok");
    }
}

#[test]
fn a_database_without_a_journal_has_no_part_in_a_transaction_too_large() {
    let place = small_journal();
    let connection = two_large(&place, "delete");
    run(&connection, "ATTACH ':memory:' AS three; CREATE TABLE three.t(x)");
    connection.query_row("PRAGMA two.journal_mode=memory", [], |_| Ok(())).expect("a journal mode");
    let together =
        "BEGIN; UPDATE main.t SET b=1 WHERE a=1; UPDATE two.t SET b=randomblob(2900) WHERE a%2; COMMIT";
    let full = connection.execute_batch(together).expect_err("too large");
    assert_eq!(full.sqlite_error_code(), Some(ErrorCode::DiskFull));
    if !connection.is_autocommit() {
        run(&connection, "ROLLBACK");
    }
    assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM two.t WHERE b=zeroblob(3000)"), 600);
}

#[test]
fn a_rollback_without_a_journal_leaves_the_last_commit() {
    let place = Place::new();
    let connection = place.open("db");
    run(&connection, LARGE);
    set_modes(&connection, "off", "FULL");
    run(&connection, "PRAGMA cache_size=5; BEGIN; UPDATE t SET b=randomblob(2900)");
    // SQLite cannot undo what it has written by now, and says so or not; the volume can.
    connection.execute_batch("ROLLBACK").ok();
    let other = place.open("db");
    assert_eq!(value::<String>(&other, "PRAGMA integrity_check"), "ok");
    assert_eq!(value::<i64>(&other, "SELECT count(*) FROM t WHERE b=zeroblob(3000)"), 600);
    run(&other, "UPDATE t SET b=1 WHERE a=1");
}
