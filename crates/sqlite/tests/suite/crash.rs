//! Power cuts under a bank: after each, the sums are right, every acknowledged transfer is there, SQLite finds the
//! databases whole, and the volume's check finds the volume sound.
//!
//! A workload runs once without a cut to count the device's operations, then again with a cut at many of them. After
//! a cut the device holds what was flushed, and of the rest nothing or sectors by chance. `SYNCLINE_TEST_FULL` cuts
//! at every operation.

use crate::common::{Place, run, set_modes, value};
use crate::power::{Keep, PowerDevice};
use rusqlite::Connection;
use std::collections::HashMap;
use std::sync::Arc;
use syncline::{MkfsOptions, SystemClock, SystemEntropy, VolumeOptions};
use syncline_fs::{Ablation, Fs};

const BLOCKS: u64 = (32 << 20) / 4096;
const ACCOUNTS: i64 = 40;
const START: i64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// The page cache is too small for a transaction.
    Spill,
    Savepoints,
    /// Each transfer goes over three databases.
    Attach,
    Vacuum,
    /// Larger than a record of the volume: SQLite's journal is kept in the volume.
    Large,
    /// The same over three databases, one or two of which are too large alone, or all of them together.
    LargeAttach,
    /// Statements fail in the middle, and transactions are rolled back.
    Failing,
}

#[derive(Debug, Clone, Copy)]
struct Scenario {
    kind: Kind,
    journal: &'static str,
    synchronous: &'static str,
    /// Whether a commit that has returned is durable.
    durable: bool,
    /// Every change is a record of its own, and waits for the one before it, as the benchmark has it (W4).
    waiting: bool,
}

impl Scenario {
    /// Transfers of one run.
    fn transfers(self) -> i64 {
        match self.kind {
            Kind::Large => 4,
            Kind::LargeAttach => 3,
            _ => 10,
        }
    }

    /// Cuts in a short run.
    fn cuts(self) -> u64 {
        if self.is_large() { 12 } else { 24 }
    }

    fn is_large(self) -> bool {
        matches!(self.kind, Kind::Large | Kind::LargeAttach)
    }

    fn databases(self) -> &'static [&'static str] {
        if matches!(self.kind, Kind::Attach | Kind::LargeAttach) {
            &["main", "two", "three"]
        } else {
            &["main"]
        }
    }

    fn open(self, place: &Place) -> rusqlite::Result<Connection> {
        let connection = crate::common::open(&place.uri("main"))?;
        for name in &self.databases()[1..] {
            connection.execute_batch(&format!("ATTACH '{}' AS {name}", place.uri(name)))?;
        }
        for name in self.databases() {
            let sql = format!("PRAGMA {name}.journal_mode={}", self.journal);
            connection.query_row(&sql, [], |_| Ok(()))?;
            connection.execute_batch(&format!("PRAGMA {name}.synchronous={}", self.synchronous))?;
        }
        let pages = if matches!(
            self.kind,
            Kind::Spill | Kind::Failing | Kind::Attach | Kind::Large | Kind::LargeAttach | Kind::Savepoints
        ) {
            5
        } else {
            200
        };
        connection.execute_batch(&format!("PRAGMA cache_size={pages}"))?;
        Ok(connection)
    }
}

fn set_up(scenario: Scenario) -> HashMap<u64, Vec<u8>> {
    let device = Arc::new(PowerDevice::new(BLOCKS, u64::MAX));
    let journal_bytes = if scenario.is_large() { 256 << 10 } else { 1 << 20 };
    let options = MkfsOptions::default().journal_bytes(journal_bytes);
    Fs::format(&*device, &options, &SystemClock, &SystemEntropy::default(), &mut |_, _| {}).expect("mkfs");
    let place = Place::of(volume_on(device.clone()));
    let connection = scenario.open(&place).expect("open");
    let wide = if scenario.is_large() { 600 } else { 1 };
    for name in scenario.databases() {
        run(
            &connection,
            &format!(
                "CREATE TABLE {name}.account(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, pad BLOB);
                 CREATE TABLE {name}.log(id INTEGER PRIMARY KEY, source INT, target INT, amount INT);
                 CREATE TABLE {name}.filler(x);
                 CREATE TABLE {name}.wide(id INTEGER PRIMARY KEY, x);
                 INSERT INTO {name}.wide SELECT value, zeroblob(3000) FROM
                     (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value+1 FROM n WHERE value<{wide})
                      SELECT value FROM n);
                 INSERT INTO {name}.account SELECT value, {START}, zeroblob(600) FROM
                     (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value+1 FROM n WHERE value<{ACCOUNTS})
                      SELECT value FROM n)"
            ),
        );
    }
    drop(connection);
    drop(place);
    device.durable()
}

fn volume_on(device: Arc<dyn syncline_device::Device>) -> syncline::Volume {
    VolumeOptions::new().background(false).open_device(device).expect("open the volume")
}

fn transfer(connection: &Connection, scenario: Scenario, number: i64) -> rusqlite::Result<()> {
    let (source, target, amount) = (number % ACCOUNTS + 1, number * 7 % ACCOUNTS + 1, number % 17 + 1);
    let names = scenario.databases();
    let (from, to) = (names[number as usize % names.len()], names[(number + 1) as usize % names.len()]);
    connection.execute_batch(&format!(
        "UPDATE {from}.account SET balance=balance-{amount} WHERE id={source};
         UPDATE {to}.account SET balance=balance+{amount} WHERE id={target};"
    ))?;
    for name in names {
        connection.execute_batch(&format!(
            "INSERT INTO {name}.log VALUES({number}, {source}, {target}, {amount})"
        ))?;
    }
    Ok(())
}

/// One acknowledged transfer with what the scenario does around it. In its middle everything on the volume is synced,
/// as the background might do at any time: what SQLite has written by then must not count.
fn step(connection: &Connection, place: &Place, scenario: Scenario, number: i64) -> rusqlite::Result<()> {
    let execute = |sql: &str| connection.execute_batch(sql);
    match scenario.kind {
        Kind::Plain => {
            execute("BEGIN")?;
            transfer(connection, scenario, number)?;
        }
        Kind::Spill | Kind::Attach => {
            execute("BEGIN IMMEDIATE")?;
            for name in scenario.databases() {
                execute(&format!("UPDATE {name}.account SET pad=randomblob(600+{number})"))?;
            }
            transfer(connection, scenario, number)?;
        }
        Kind::Savepoints => {
            execute("BEGIN; SAVEPOINT a; UPDATE account SET balance=0, pad=randomblob(900); SAVEPOINT b")?;
            sync_everything(place);
            execute(
                "DELETE FROM account; ROLLBACK TO b; DELETE FROM log; ROLLBACK TO a; RELEASE a; SAVEPOINT c",
            )?;
            transfer(connection, scenario, number)?;
            execute("RELEASE c")?;
        }
        Kind::Large => {
            if number % 3 == 0 {
                execute(
                    "BEGIN; UPDATE wide SET x=randomblob(2000) WHERE id % 2; DELETE FROM account; ROLLBACK",
                )?;
            }
            execute(&format!("BEGIN; UPDATE wide SET x=randomblob(3000) WHERE id % 2 = {number} % 2"))?;
            transfer(connection, scenario, number)?;
        }
        Kind::LargeAttach => {
            let rows: &[(&str, i64)] = match number % 3 {
                0 => &[("main", 600), ("two", 10)],
                1 => &[("main", 60), ("two", 60), ("three", 60)],
                _ => &[("two", 200), ("three", 600)],
            };
            execute("BEGIN")?;
            for (name, rows) in rows {
                execute(&format!(
                    "UPDATE {name}.wide SET x=randomblob(3000) WHERE id%2={number}%2 AND id<={rows}"
                ))?;
            }
            transfer(connection, scenario, number)?;
        }
        Kind::Vacuum => {
            execute(
                "INSERT INTO filler VALUES(randomblob(60000)); INSERT INTO filler VALUES(randomblob(9000))",
            )?;
            execute("BEGIN")?;
            transfer(connection, scenario, number)?;
            execute("DELETE FROM filler WHERE length(x)=60000")?;
        }
        Kind::Failing => {
            execute("BEGIN; UPDATE account SET balance=7, pad=randomblob(700)")?;
            sync_everything(place);
            execute("ROLLBACK; BEGIN")?;
            transfer(connection, scenario, number)?;
            // Fails at the 35th row, when the others before it have been changed.
            let failing =
                "UPDATE account SET balance=CASE WHEN id=35 THEN NULL ELSE 0 END, pad=randomblob(800)";
            match execute(failing) {
                Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) => {
                }
                Err(error) => return Err(error),
                Ok(()) => panic!("the statement has to fail"),
            }
        }
    }
    sync_everything(place);
    execute("COMMIT")?;
    Ok(())
}

/// Fails only when the power is gone, and then SQLite is told as well.
fn sync_everything(place: &Place) {
    place.volume().sync_all().ok();
}

/// Works until it is done or the power goes; returns the last acknowledged transfer.
fn work(device: &Arc<PowerDevice>, scenario: Scenario) -> i64 {
    let ablation = Ablation { ordered_records: scenario.waiting, ..Ablation::default() };
    let options = VolumeOptions::new().background(false).ablation(ablation);
    let place = match options.open_device(device.clone()) {
        Ok(volume) => Place::of(volume),
        Err(error) => {
            assert!(device.is_cut(), "the volume cannot be opened: {error}");
            return 0;
        }
    };
    let mut acknowledged = 0;
    let mut work = || -> rusqlite::Result<()> {
        let connection = scenario.open(&place)?;
        for number in 1..=scenario.transfers() {
            step(&connection, &place, scenario, number)?;
            acknowledged = number;
            // The journal was there, and is gone.
            for name in scenario.databases() {
                let journal = format!("/{name}-journal");
                assert!(!place.volume().try_exists(journal).is_ok_and(|there| there));
            }
            if scenario.kind == Kind::Vacuum && number % 4 == 0 {
                connection.execute_batch("VACUUM")?;
            }
        }
        Ok(())
    };
    match work() {
        Ok(()) => assert_eq!(acknowledged, scenario.transfers()),
        Err(error) => {
            let code = error.sqlite_error().map(|error| error.extended_code);
            assert!(device.is_cut(), "{scenario:?} failed before the cut: {error} ({code:?})");
        }
    }
    acknowledged
}

fn verify(scenario: Scenario, device: Arc<syncline_device::MemoryDevice>, acknowledged: i64, told: &str) {
    let options = syncline_check::CheckOptions::default().data(true);
    let report = syncline_check::check(&*device, options).expect("check");
    assert!(report.is_sound(), "{told}: {:?}", report.findings);
    let place = Place::of(volume_on(device));
    let connection = scenario.open(&place).unwrap_or_else(|error| panic!("{told}: {error}"));
    let mut total = 0;
    let mut last = None;
    for name in scenario.databases() {
        let ok: String = value(&connection, &format!("PRAGMA {name}.integrity_check"));
        assert_eq!(ok, "ok", "{told}: {name}");
        total += value::<i64>(&connection, &format!("SELECT sum(balance) FROM {name}.account"));
        let log: (i64, i64) = connection
            .query_row(&format!("SELECT count(*), coalesce(max(id), 0) FROM {name}.log"), [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .expect("log");
        assert_eq!(log.0, log.1, "{told}: {name}: a transfer is missing in between");
        assert!(last.is_none_or(|last| last == log.1), "{told}: the databases are not of one moment");
        last = Some(log.1);
    }
    let last = last.expect("there is a database");
    assert_eq!(total, START * ACCOUNTS * scenario.databases().len() as i64, "{told}: money was made or lost");
    if scenario.durable {
        assert!(
            last >= acknowledged,
            "{told}: transfer {acknowledged} was acknowledged, {last} is the last one"
        );
    }
    assert!(last <= acknowledged + 1, "{told}: {last} was never begun");
    if scenario.databases().len() == 1 {
        let wrong: i64 = value(
            &connection,
            &format!(
                "SELECT count(*) FROM account WHERE balance <> {START}
                   - (SELECT coalesce(sum(amount), 0) FROM log WHERE source=account.id)
                   + (SELECT coalesce(sum(amount), 0) FROM log WHERE target=account.id)"
            ),
        );
        assert_eq!(wrong, 0, "{told}: balances do not follow from the log");
    }
    // And it goes on from there.
    run(&connection, "BEGIN; UPDATE account SET balance=balance; COMMIT");
}

fn cut(scenario: Scenario) {
    crate::common::register();
    let image = set_up(scenario);
    let whole = Arc::new(PowerDevice::with(&image, BLOCKS, u64::MAX));
    assert_eq!(work(&whole, scenario), scenario.transfers());
    let operations = whole.operations();
    assert!(operations > scenario.transfers() as u64, "{scenario:?} did {operations} operations");
    if scenario.is_large() && scenario.journal != "WAL" {
        use syncline_device::Device;
        let flushes = whole.counters().flushes;
        assert!(flushes >= 4 * scenario.transfers() as u64, "the journal was not kept: {flushes} flushes");
    }
    let every = if std::env::var_os("SYNCLINE_TEST_FULL").is_some() { operations } else { scenario.cuts() };
    println!("{scenario:?}: {} of {operations} operations are cut at", every.min(operations));
    for index in 0..every.min(operations) {
        let cut_at = 1 + index * operations / every.min(operations);
        let device = Arc::new(PowerDevice::with(&image, BLOCKS, cut_at));
        let acknowledged = work(&device, scenario);
        for keep in [Keep::Flushed, Keep::Some(cut_at), Keep::Some(cut_at + 1000)] {
            let told = format!("{scenario:?} cut at operation {cut_at} of {operations}, {keep:?}");
            verify(scenario, device.after(keep), acknowledged, &told);
        }
    }
}

fn cut_all(kind: Kind, modes: &[(&'static str, &'static str, bool)]) {
    for &(journal, synchronous, durable) in modes {
        cut(Scenario { kind, journal, synchronous, durable, waiting: false });
    }
}

/// Journal mode, synchronous, and whether an acknowledged commit is durable.
const ROLLBACK_MODES: &[(&str, &str, bool)] =
    &[("DELETE", "FULL", true), ("TRUNCATE", "NORMAL", true), ("PERSIST", "EXTRA", true)];

#[test]
fn plain_transfers_survive_cuts_in_every_mode() {
    cut_all(Kind::Plain, ROLLBACK_MODES);
    cut_all(
        Kind::Plain,
        &[("MEMORY", "FULL", true), ("OFF", "FULL", true), ("WAL", "FULL", true), ("WAL", "NORMAL", false)],
    );
}

#[test]
fn the_last_transfer_survives_cuts_whether_records_wait_for_each_other_or_not() {
    for waiting in [false, true] {
        for (journal, synchronous) in [("PERSIST", "FULL"), ("DELETE", "FULL")] {
            cut(Scenario { kind: Kind::Plain, journal, synchronous, durable: true, waiting });
        }
    }
}

#[test]
fn transfers_without_synchronous_are_whole_or_not_there() {
    cut_all(Kind::Plain, &[("DELETE", "OFF", false), ("MEMORY", "OFF", false)]);
    cut_all(Kind::Spill, &[("DELETE", "OFF", false)]);
}

#[test]
fn transfers_that_spill_the_cache_survive_cuts() {
    cut_all(Kind::Spill, ROLLBACK_MODES);
    cut_all(Kind::Spill, &[("MEMORY", "FULL", true), ("WAL", "FULL", true)]);
}

#[test]
fn transfers_with_savepoints_survive_cuts() {
    cut_all(Kind::Savepoints, ROLLBACK_MODES);
    cut_all(Kind::Savepoints, &[("MEMORY", "FULL", true), ("WAL", "FULL", true)]);
}

#[test]
fn transfers_over_three_databases_are_whole_after_cuts() {
    cut_all(Kind::Attach, ROLLBACK_MODES);
}

#[test]
fn transfers_too_large_for_a_record_survive_cuts() {
    cut_all(Kind::Large, ROLLBACK_MODES);
    cut_all(Kind::Large, &[("DELETE", "OFF", false), ("WAL", "FULL", true)]);
}

#[test]
fn transfers_over_three_databases_too_large_for_a_record_survive_cuts() {
    cut_all(Kind::LargeAttach, ROLLBACK_MODES);
}

#[test]
fn vacuum_between_transfers_survives_cuts() {
    cut_all(Kind::Vacuum, &[("DELETE", "FULL", true), ("MEMORY", "NORMAL", true), ("WAL", "FULL", true)]);
}

#[test]
fn failed_statements_and_rollbacks_survive_cuts() {
    cut_all(Kind::Failing, ROLLBACK_MODES);
    cut_all(Kind::Failing, &[("MEMORY", "FULL", true), ("WAL", "FULL", true)]);
}

#[test]
fn a_cut_can_lose_what_was_not_synced() {
    // The device under these tests does lose things: without a sync, a write is gone.
    let (kind, journal, synchronous) = (Kind::Plain, "DELETE", "FULL");
    let scenario = Scenario { kind, journal, synchronous, durable: true, waiting: false };
    crate::common::register();
    let image = set_up(scenario);
    let device = Arc::new(PowerDevice::with(&image, BLOCKS, u64::MAX));
    let place = Place::of(volume_on(device.clone()));
    place.volume().write("/unsynced", "x").expect("write");
    assert!(!volume_on(device.after(Keep::Flushed)).try_exists("/unsynced").expect("look"));
    let connection = place.open("main");
    set_modes(&connection, "delete", "FULL");
    run(&connection, "INSERT INTO filler VALUES(1)");
    assert!(volume_on(device.after(Keep::Flushed)).try_exists("/unsynced").expect("look"), "C1");
}
