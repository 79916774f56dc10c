//! Databases in snapshots, and snapshots made by SQL.

use crate::common::{Place, open, reopened, set_modes, unique};
use rusqlite::Connection;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline::{MkfsOptions, Volume, VolumeOptions};

fn place() -> Place {
    let options = MkfsOptions::default();
    Place::of(VolumeOptions::new().create_in_memory(256 << 20, &options).expect("a volume"))
}

fn count(connection: &Connection) -> i64 {
    connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).expect("count")
}

fn snapshot(connection: &Connection, name: &str) -> rusqlite::Result<String> {
    connection.query_row("SELECT syncline_snapshot(?)", [name], |row| row.get(0))
}

fn read_at(place: &Place, database: &str, snapshot: &str) -> rusqlite::Result<Connection> {
    open(&format!("{}&snapshot={snapshot}", place.uri(database)))
}

#[test]
fn a_database_is_read_as_it_was_when_sql_made_the_snapshot_in_every_journal_mode() {
    for journal in ["delete", "truncate", "persist", "wal"] {
        let place = place();
        let connection = place.open("db");
        set_modes(&connection, journal, "full");
        connection
            .execute_batch("CREATE TABLE t(a, b); INSERT INTO t VALUES(1, randomblob(9000))")
            .expect("made");
        assert_eq!(snapshot(&connection, "one").expect("snapshot"), "one", "{journal}");
        connection.execute_batch("INSERT INTO t VALUES(2, randomblob(9000))").expect("insert");
        // What is not committed is in no snapshot.
        connection.execute_batch("BEGIN; INSERT INTO t VALUES(3, 3)").expect("insert");
        snapshot(&connection, "two").expect("snapshot");
        connection.execute_batch("COMMIT").expect("commit");
        for (name, rows) in [("one", 1), ("two", 2)] {
            let then = read_at(&place, "db", name).expect("open");
            assert_eq!(count(&then), rows, "{journal} {name}");
            let checked: String =
                then.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("check");
            assert_eq!(checked, "ok", "{journal} {name}");
            let refused = then.execute_batch("INSERT INTO t VALUES(9, 9)").expect_err("it never changes");
            assert!(refused.to_string().contains("readonly"), "{refused}");
            assert_eq!(then.path(), Some(&*format!("{}#{name}:/db", place.name)));
        }
        assert_eq!(count(&connection), 3, "{journal}");
    }
}

#[test]
fn a_snapshot_is_attached_beside_the_database_that_it_was_made_of() {
    let place = place();
    let connection = place.open("db");
    connection.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES(1)").expect("made");
    snapshot(&connection, "before").expect("snapshot");
    connection.execute_batch("DELETE FROM t").expect("delete");
    connection.execute("ATTACH ? AS past", [format!("{}&snapshot=before", place.uri("db"))]).expect("attach");
    connection.execute_batch("INSERT INTO main.t SELECT a FROM past.t").expect("brought back");
    assert_eq!(count(&connection), 1);
    connection.execute_batch("DETACH past").expect("detach");
    // Nothing of it stays in use.
    place.volume().delete_snapshot("before").expect("delete");
    place.volume().reclaim().expect("reclaim");
    assert!(read_at(&place, "db", "before").is_err());
}

#[test]
fn a_head_has_databases_of_its_own_and_each_commit_is_one_write_and_one_flush() {
    let place = place();
    let connection = place.open("db");
    connection.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES(1)").expect("made");
    snapshot(&connection, "one").expect("snapshot");
    place.volume().clone_snapshot("one", "left").expect("clone");
    let in_head = |name: &str| open(&format!("{}&head={name}", place.uri("db")));
    let left = in_head("left").expect("open");
    assert_eq!(left.path(), Some(&*format!("{}#head/left:/db", place.name)));
    left.execute_batch("INSERT INTO t VALUES(2)").expect("insert");
    let before = place.volume().stats().engine.device;
    left.execute_batch("INSERT INTO t VALUES(3)").expect("insert");
    let after = place.volume().stats().engine.device;
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1));
    connection.execute_batch("DELETE FROM t").expect("delete");
    assert_eq!((count(&connection), count(&left)), (0, 3));
    // What SQL makes a snapshot of is the head of its database.
    snapshot(&left, "of left").expect("snapshot");
    left.execute_batch("DELETE FROM t").expect("delete");
    assert_eq!(count(&read_at(&place, "db", "of left").expect("open")), 3);
    let error = in_head("none").expect_err("there is no such head").to_string();
    assert!(error.contains("unable to open"), "{error}");
    assert!(open(&format!("{}&head=left&snapshot=one", place.uri("db"))).is_err(), "one of them");
    assert!(read_at(&place, "db", "head/left").is_err(), "a snapshot is no head");
    drop(left);
    // Nothing of it stays in use.
    place.volume().delete_head("left").expect("delete");
}

#[test]
fn an_image_is_in_use_as_long_as_a_snapshot_of_it_is() {
    crate::common::register();
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("volume.img");
    File::create(&image).expect("file").set_len(64 << 20).expect("length");
    let made = VolumeOptions::new().create(&image, &MkfsOptions::default()).expect("made");
    made.write("unrelated", "x").expect("write");
    made.close().expect("close");
    let uri = format!("file:/db?vfs=syncline&volume={}", image.display());
    let connection = open(&uri).expect("open");
    connection.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES(1)").expect("made");
    snapshot(&connection, "s").expect("snapshot");
    connection.close().expect("close");
    let then = open(&format!("{uri}&snapshot=s")).expect("open");
    assert_eq!(count(&then), 1);
    let same =
        open(&format!("file:/db?vfs=syncline&volume={}%23s", image.display())).expect("by its full name");
    assert_eq!(count(&same), 1);
    assert!(Volume::open(&image).is_err(), "it is in use");
    drop((then, same));
    reopened(&image, &VolumeOptions::new()).close().expect("close");
}

#[test]
fn each_snapshot_lies_between_two_transactions_of_all_databases() {
    let place = place();
    let (left, right) = (place.open("left"), place.open("right"));
    for connection in [&left, &right] {
        set_modes(connection, "delete", "full");
        connection.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES(0)").expect("made");
    }
    left.execute("ATTACH ? AS other", [place.uri("right")]).expect("attach");
    drop(right);
    let ended = AtomicBool::new(false);
    let running = &ended;
    let name = unique("s");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for value in 1..200 {
                left.execute_batch(&format!(
                    "BEGIN; UPDATE t SET a = {value}; UPDATE other.t SET a = {value}; COMMIT"
                ))
                .expect("one transaction of both");
            }
            running.store(true, Ordering::Relaxed);
        });
        let mut made = 0;
        let asking = place.open("right");
        while made < 3 || made < 100 && !ended.load(Ordering::Relaxed) {
            snapshot(&asking, &format!("{name}{made}")).expect("snapshot");
            made += 1;
        }
        for number in 0..made {
            let value = |database: &str| -> i64 {
                let then = read_at(&place, database, &format!("{name}{number}")).expect("open");
                then.query_row("SELECT a FROM t", [], |row| row.get(0)).expect("value")
            };
            assert_eq!(value("left"), value("right"), "snapshot {number} of {made}");
        }
    });
}

#[test]
fn what_cannot_be_made_or_found_is_told_in_a_sentence() {
    let place = place();
    let connection = place.open("db");
    connection.execute_batch("CREATE TABLE t(a)").expect("made");
    snapshot(&connection, "s").expect("snapshot");
    let told = |name: &str| snapshot(&connection, name).expect_err(name).to_string();
    assert!(told("s").contains("exist"), "{}", told("s"));
    for name in ["", "a/b"] {
        assert!(told(name).contains("no name for a snapshot"), "{}", told(name));
    }
    let null = connection.query_row("SELECT syncline_snapshot(NULL)", [], |_| Ok(())).expect_err("no name");
    assert!(null.to_string().contains("name the snapshot"), "{null}");
    let elsewhere = Connection::open_in_memory().expect("open");
    let none = snapshot(&elsewhere, "s").expect_err("not on the VFS").to_string();
    assert!(none.contains("no open database of the VFS"), "{none}");
    assert!(read_at(&place, "db", "missing").is_err());
    let other = connection.query_row("SELECT syncline_snapshot('x', 'nowhere')", [], |_| Ok(()));
    assert!(other.expect_err("no such schema").to_string().contains("nowhere"));
    connection.execute_batch("CREATE VIEW v AS SELECT syncline_snapshot('hidden')").expect("a view");
    assert!(connection.query_row("SELECT * FROM v", [], |_| Ok(())).is_err(), "a view makes none");
    // On a volume of version 1.
    let options = MkfsOptions::default().format(1);
    let old = Place::of(VolumeOptions::new().create_in_memory(64 << 20, &options).expect("a volume"));
    let refused = snapshot(&old.open("db"), "s").expect_err("version 1").to_string();
    assert!(refused.contains("version"), "{refused}");
}

#[test]
fn no_snapshot_is_made_amid_a_transaction_that_is_written_directly() {
    let options = MkfsOptions::default().journal_bytes(512 << 10);
    let volume = VolumeOptions::new().create_in_memory(256 << 20, &options).expect("a volume");
    let place = Place::of(volume);
    let connection = place.open("db");
    set_modes(&connection, "delete", "full");
    connection.execute_batch("PRAGMA cache_size = 10; CREATE TABLE t(a)").expect("made");
    connection.execute_batch("BEGIN").expect("begin");
    let mut refused = None;
    for row in 0..2000 {
        connection.execute("INSERT INTO t VALUES(randomblob(20000))", []).expect("insert");
        let other = place.open("other");
        if row % 100 == 99 {
            match snapshot(&other, &format!("s{row}")) {
                Ok(_) => {}
                Err(error) => {
                    refused = Some(error.to_string());
                    break;
                }
            }
        }
    }
    let refused = refused.expect("it becomes too large for a record");
    assert!(refused.contains("too large for one record"), "{refused}");
    connection.execute_batch("COMMIT").expect("commit");
    snapshot(&connection, "behind").expect("snapshot");
    let rows = count(&connection);
    assert_eq!(count(&read_at(&place, "db", "behind").expect("open")), rows);
    assert!(place.volume().metadata(Path::new("/db")).is_ok());
}
