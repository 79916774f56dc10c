//! Syncs while the file system writes its own state, and names that nobody syncs: what W2 and W3 are about.

use super::{Context, PAGE, page, timed};
use crate::backend::Open;
use crate::measure::{Latencies, Outcome};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Threads that sync meanwhile.
const THREADS: u64 = 4;
/// Files that are made before each commit, so that it has something to write.
const CREATES: u64 = 2000;
/// A sync for so many renames and links.
const NAMES_PER_SYNC: u64 = 100;

/// Four threads append and sync; beside them files are made, and the file system writes its checkpoint (commits
/// everything), over and over.
pub(super) fn during_commits(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let backend = context.backend;
    let each = context.arguments.operations.div_ceil(THREADS);
    backend.make_directory("elsewhere")?;
    let (ended, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    let (ended, commits) = (&ended, &commits);
    context.meter.begin()?;
    let start = Instant::now();
    let (elapsed, latencies) = std::thread::scope(|scope| {
        let committing = scope.spawn(move || -> io::Result<()> {
            while !ended.load(Ordering::Relaxed) {
                let commit = commits.fetch_add(1, Ordering::Relaxed);
                for index in 0..CREATES {
                    backend.create(&format!("elsewhere/{commit}-{index}"))?;
                }
                backend.commit()?;
            }
            Ok(())
        });
        let appending: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || -> io::Result<Latencies> {
                    let file = backend.create(&format!("thread-{thread}"))?;
                    super::threads::appends(file.as_ref(), 0, each)
                })
            })
            .collect();
        let mut latencies = Latencies::default();
        let mut result = Ok(());
        for thread in appending {
            match thread.join().expect("a thread of the workload panicked") {
                Ok(part) => latencies.extend(part),
                Err(error) => result = Err(error),
            }
        }
        let elapsed = start.elapsed();
        ended.store(true, Ordering::Relaxed);
        let committed = committing.join().expect("a thread of the workload panicked");
        result.and(committed).map(|()| (elapsed, latencies))
    })?;
    context.meter.end()?;
    let commits = commits.load(Ordering::Relaxed) as f64;
    Ok(Outcome { operations: each * THREADS, elapsed, latencies, ..Outcome::default() }
        .with("commits", commits))
}

/// Renames over another name and links of files that were synced; now and then one of them is synced again.
pub(super) fn names(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    context.backend.make_directory("names")?;
    for index in 0..NAMES_PER_SYNC {
        let file = context.backend.create(&format!("names/{index}"))?;
        file.write_at(0, &page(index))?;
        file.sync()?;
    }
    timed(context, context.arguments.operations, |index| {
        let (of, turn) = (index / 2 % NAMES_PER_SYNC, index % 2);
        match turn {
            0 => context.backend.link(&format!("names/{of}"), &format!("names/link-{index}"))?,
            _ => context
                .backend
                .rename(&format!("names/link-{}", index - 1), &format!("names/renamed-{of}"))?,
        }
        match index % NAMES_PER_SYNC {
            0 => {
                let file = context.backend.open(&format!("names/{of}"), Open::Existing)?;
                file.write_at(0, &page(index))?;
                file.sync()
            }
            _ => Ok(()),
        }
    })
}

/// What a database does that commits with a rollback journal it keeps: journal written and synced, three pages of the
/// database written and synced, the journal's header overwritten.
pub(super) fn rollback_journal(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    const TOUCHED: u64 = 3;
    const PAGES: u64 = 4096;
    let journal = context.backend.create("journal")?;
    let database = context.backend.create("database")?;
    database.write_at(0, &vec![1; PAGES as usize * PAGE])?;
    database.sync()?;
    timed(context, context.arguments.operations.div_ceil(2), |index| {
        for touched in 0..=TOUCHED {
            journal.write_at(touched * PAGE as u64, &page(index))?;
        }
        journal.sync()?;
        for touched in 0..TOUCHED {
            database.write_at((index * 7919 + touched * 104_729) % PAGES * PAGE as u64, &page(index))?;
        }
        database.sync()?;
        journal.write_at(0, &page(0))
    })
}

/// Three pages of a database, changed as one atomic write. Before each, files are made elsewhere that nobody syncs.
pub(super) fn atomic(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    const PAGES: u64 = 4096;
    const CREATES: u64 = 4;
    let database = context.backend.create("database")?;
    database.write_at(0, &vec![1; PAGES as usize * PAGE])?;
    database.sync()?;
    drop(database);
    context.backend.make_directory("elsewhere")?;
    let outcome = timed(context, context.arguments.operations.div_ceil(2), |index| {
        for other in 0..CREATES {
            context.backend.create(&format!("elsewhere/{index}-{other}"))?;
        }
        let places = [0, 104_729, 1_299_709].map(|step| (index * 7919 + step) % PAGES * PAGE as u64);
        context.backend.write_atomically("database", &places, &page(index))
    });
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            Ok(Outcome::skipped("the file system has no atomic writes"))
        }
        other => other,
    }
}
