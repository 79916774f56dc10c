//! SQLite on the engine in this process: the VFS on the volume that the engine has open, whatever it does without.
//!
//! As many threads as the workload is wide have a database each, and go through inserting, updating and deleting
//! together.

use super::library::{self, Library};
use super::{ROWS_MAX, deleting, inserting, updating};
use crate::measure::Outcome;
use crate::workload::Context;
use std::io;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// How often one thread goes through all; several share that. A pass takes a fifth of a second, too little to tell a
/// few percent.
const PASSES: usize = 4;

pub(crate) fn delete(context: &Context<'_>, width: usize) -> io::Result<Outcome> {
    measure(context, width, "DELETE")
}

pub(crate) fn persist(context: &Context<'_>, width: usize) -> io::Result<Outcome> {
    measure(context, width, "PERSIST")
}

fn measure(context: &Context<'_>, width: usize, mode: &str) -> io::Result<Outcome> {
    let Some(volume) = context.lent else {
        return Ok(Outcome::skipped("the volume has to be open in this process; measured as the engine"));
    };
    let Some(library) = library::load() else {
        return Ok(Outcome::skipped("libsqlite3.so.0 cannot be loaded; install the package libsqlite3-0"));
    };
    let databases = Databases { library, volume, mode, width };
    let count = context.arguments.operations.min(ROWS_MAX);
    databases
        .together(|database| database.run("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)").map(drop))?;
    let passes = PASSES.div_ceil(width);
    let (mut inserted, mut updated, mut deleted) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    context.meter.begin()?;
    for _ in 0..passes {
        inserted += databases.each(count, &inserting)?;
        databases.hold(count)?;
        updated += databases.each(count, &|index| updating(index, count))?;
        deleted += databases.each(count, &deleting)?;
        databases.hold(0)?;
    }
    context.meter.end()?;
    let of_each_kind = count * (passes * width) as u64;
    let operations = 3 * of_each_kind;
    let per_second = |elapsed: Duration| of_each_kind as f64 / elapsed.as_secs_f64();
    Ok(Outcome { operations, elapsed: inserted + updated + deleted, ..Outcome::default() }
        .with("ops_per_s", per_second(inserted))
        .with("insert_per_s", per_second(inserted))
        .with("update_per_s", per_second(updated))
        .with("delete_per_s", per_second(deleted)))
}

/// What the threads have in common.
struct Databases<'a> {
    library: &'static Library,
    volume: &'a str,
    mode: &'a str,
    width: usize,
}

impl Databases<'_> {
    /// Each thread carries out so many statements, each a transaction; the time from the first one's beginning to the
    /// last one's end.
    fn each(&self, count: u64, statement: &(dyn Fn(u64) -> String + Sync)) -> io::Result<Duration> {
        self.together(|database| (0..count).try_for_each(|index| database.run(&statement(index)).map(drop)))
    }

    fn hold(&self, rows: u64) -> io::Result<()> {
        self.together(|database| {
            let counted = database.run("SELECT count(*) FROM t")?;
            match counted == rows.to_string() {
                true => Ok(()),
                false => Err(io::Error::other(format!("SQLite counts {counted} rows, not {rows}"))),
            }
        })
        .map(drop)
    }

    /// Runs `job` on every database at once; opening them is not in the time.
    fn together(&self, job: impl Fn(&library::Connection) -> io::Result<()> + Sync) -> io::Result<Duration> {
        let meeting = Barrier::new(self.width);
        let body = |number: usize| {
            let opened = self.open(number);
            // One that has failed comes to the meeting too, since the others wait there.
            meeting.wait();
            let (begin, database) = (Instant::now(), opened?);
            job(&database)?;
            Ok((begin, Instant::now()))
        };
        let spans: Vec<io::Result<(Instant, Instant)>> = std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> = (0..self.width).map(|number| scope.spawn(move || body(number))).collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|joined| joined.expect("a thread of the workload panicked")).collect()
        });
        let spans = spans.into_iter().collect::<io::Result<Vec<_>>>()?;
        let first = spans.iter().map(|(begin, _)| *begin).min();
        let last = spans.iter().map(|(_, end)| *end).max();
        Ok(first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first))
    }

    fn open(&self, number: usize) -> io::Result<library::Connection> {
        let database = self.library.open(self.volume, &format!("bench-{number}.db"))?;
        let mode = database.run(&format!("PRAGMA synchronous=FULL; PRAGMA journal_mode={}", self.mode))?;
        match mode.eq_ignore_ascii_case(self.mode) {
            true => Ok(database),
            false => Err(io::Error::other(format!("SQLite takes journal mode {mode} for {}", self.mode))),
        }
    }
}
