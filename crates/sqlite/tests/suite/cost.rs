//! What a commit costs, counted by the volume itself.

use crate::common::{Place, run, set_modes, value};
use rusqlite::Connection;
use syncline::Volume;

/// Device writes and flushes since the last look.
fn counts(volume: &Volume) -> (u64, u64) {
    let device = volume.stats().engine.device;
    (device.writes, device.flushes)
}

/// Writes and flushes of one call; background work must have nothing to do in between.
fn cost(volume: &Volume, mut call: impl FnMut()) -> (u64, u64) {
    // What may still be on its way from before.
    volume.sync_all().expect("sync");
    let before = counts(volume);
    call();
    let after = counts(volume);
    (after.0 - before.0, after.1 - before.1)
}

fn quiet_place() -> Place {
    let device = std::sync::Arc::new(syncline_device::MemoryDevice::new((64 << 20) / 4096));
    let entropy = syncline::SystemEntropy::default();
    let options = syncline::MkfsOptions::default();
    syncline_fs::Fs::format(&*device, &options, &syncline::SystemClock, &entropy, &mut |_, _| {})
        .expect("mkfs");
    // Without the thread, so that only commits are counted.
    Place::of(syncline::VolumeOptions::new().background(false).open_device(device).expect("open"))
}

fn table(place: &Place, journal: &str, synchronous: &str) -> Connection {
    let connection = place.open("db");
    run(&connection, "CREATE TABLE t(a INTEGER PRIMARY KEY, b)");
    set_modes(&connection, journal, synchronous);
    run(&connection, "INSERT INTO t(b) VALUES('first')");
    connection
}

#[test]
fn a_commit_is_one_write_and_one_flush_in_every_journal_mode() {
    for journal in ["DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF"] {
        for synchronous in ["NORMAL", "FULL", "EXTRA"] {
            let place = quiet_place();
            let connection = table(&place, journal, synchronous);
            for sql in [
                "INSERT INTO t(b) VALUES('x')",
                "UPDATE t SET b='y' WHERE a=1",
                "DELETE FROM t WHERE a=(SELECT max(a) FROM t)",
                "BEGIN; INSERT INTO t(b) VALUES(1); INSERT INTO t(b) VALUES(2); UPDATE t SET b=b||'z'; COMMIT",
            ] {
                let cost = cost(place.volume(), || run(&connection, sql));
                assert_eq!(cost, (1, 1), "{journal} {synchronous} {sql}");
            }
        }
    }
}

#[test]
fn a_commit_in_wal_mode_is_one_write_and_one_flush_when_full() {
    let place = quiet_place();
    let connection = table(&place, "WAL", "FULL");
    let full = cost(place.volume(), || run(&connection, "INSERT INTO t(b) VALUES('x')"));
    assert_eq!(full, (1, 1));
    run(&connection, "PRAGMA synchronous=NORMAL");
    let normal = cost(place.volume(), || run(&connection, "INSERT INTO t(b) VALUES('x')"));
    assert_eq!(normal, (0, 0));
}

#[test]
fn a_commit_of_three_databases_is_one_write_and_one_flush() {
    for journal in ["DELETE", "TRUNCATE", "PERSIST"] {
        let place = quiet_place();
        let connection = table(&place, journal, "FULL");
        for (name, schema) in [("two", "b"), ("three", "c")] {
            run(&connection, &format!("ATTACH '{}' AS {schema}", place.uri(name)));
            run(&connection, &format!("CREATE TABLE {schema}.t(a INTEGER PRIMARY KEY, b)"));
            run(&connection, &format!("PRAGMA {schema}.journal_mode={journal}"));
        }
        let sql = "BEGIN; INSERT INTO main.t(b) VALUES(1); INSERT INTO b.t(b) VALUES(1);
                   INSERT INTO c.t(b) VALUES(1); COMMIT";
        assert_eq!(cost(place.volume(), || run(&connection, sql)), (1, 1), "{journal}");
        assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM c.t"), 1);
    }
}

#[test]
fn reading_and_rolling_back_cost_nothing() {
    let place = quiet_place();
    let connection = table(&place, "DELETE", "FULL");
    run(&connection, "PRAGMA cache_size=5; CREATE TABLE big(x)");
    run(
        &connection,
        "INSERT INTO big SELECT randomblob(500) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<400) SELECT i FROM n)",
    );
    let read = cost(place.volume(), || {
        assert_eq!(value::<i64>(&connection, "SELECT sum(length(x)) FROM big"), 200_000);
    });
    assert_eq!(read, (0, 0));
    // The cache is too small for it: pages have been written to the database before it is rolled back.
    let (_, flushes) =
        cost(place.volume(), || run(&connection, "BEGIN; UPDATE big SET x=zeroblob(500); ROLLBACK"));
    assert_eq!(flushes, 0);
    assert_eq!(value::<String>(&connection, "PRAGMA integrity_check"), "ok");
}

#[test]
fn without_synchronous_a_commit_waits_for_nothing_and_is_there() {
    for journal in ["DELETE", "MEMORY"] {
        let place = Place::new();
        let connection = table(&place, journal, "OFF");
        run(&connection, "INSERT INTO t(b) VALUES('x'); BEGIN; DELETE FROM t; ROLLBACK");
        assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM t"), 2);
        drop(connection);
        assert_eq!(value::<i64>(&place.open("db"), "SELECT count(*) FROM t"), 2);
    }
}

#[test]
fn thousands_of_commits_without_synchronous_need_no_thread() {
    let place = quiet_place();
    let connection = table(&place, "DELETE", "OFF");
    for number in 0..3000 {
        run(&connection, &format!("INSERT INTO t(b) VALUES({number})"));
    }
    drop(connection);
    assert_eq!(value::<i64>(&place.open("db"), "SELECT count(*) FROM t"), 3001);
}
