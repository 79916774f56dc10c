//! Syncs beside busy loops: what is left to who has little to do when others take all processors.
//!
//! The loops run in this process, at its nice value unless they are told otherwise. The floor is not measured: it would
//! wait for a CPU, too.

use super::{Context, PAGE, page};
use crate::measure::{Latencies, Outcome};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

/// Most syncs beside loops: each may take the scheduler's tick.
const OPERATIONS_MAX: u64 = 2000;

/// What a busy loop asks the scheduler for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Claim {
    Usual,
    /// Nice value -20.
    Favoured,
    /// SCHED_FIFO on this CPU.
    FirstCome(usize),
}

impl Claim {
    /// For the calling thread. Errors: only root may.
    fn make(self) -> io::Result<()> {
        let made = match self {
            Claim::Usual => 0,
            // SAFETY: a nice value for the calling thread.
            Claim::Favoured => unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) },
            Claim::FirstCome(cpu) => {
                crate::runner::pin(cpu).map_err(|error| io::Error::other(error.to_string()))?;
                let lowest = libc::sched_param { sched_priority: 1 };
                // SAFETY: a class for the calling thread.
                unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) }
            }
        };
        if made == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A loop for each CPU.
pub(super) fn usual(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let cpus = std::thread::available_parallelism()?.get();
    beside(context, &vec![Claim::Usual; cpus])
}

pub(super) fn favoured(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let cpus = std::thread::available_parallelism()?.get();
    beside(context, &vec![Claim::Favoured; cpus])
}

/// One loop, on the first CPU that this process may use.
pub(super) fn first_come(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let mut cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    match (cpus.next(), cpus.next()) {
        (Some(first), Some(_)) => beside(context, &[Claim::FirstCome(first)]),
        _ => Ok(Outcome::skipped("with one CPU nobody else would run")),
    }
}

fn beside(context: &Context<'_>, claims: &[Claim]) -> io::Result<Outcome> {
    let over = AtomicBool::new(false);
    let (told, claimed) = mpsc::channel();
    std::thread::scope(|scope| {
        for &claim in claims {
            let (over, told) = (&over, told.clone());
            scope.spawn(move || {
                let made = claim.make();
                let is_made = made.is_ok();
                drop(told.send(made));
                while is_made && !over.load(Ordering::Relaxed) {
                    // A processor's pause would leave more to others on the same core.
                    std::hint::black_box(());
                }
            });
        }
        let made = claims.iter().try_for_each(|_| claimed.recv().map_err(io::Error::other)?);
        let measured = match made {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Ok(Outcome::skipped("loops that come first are root's"))
            }
            Err(error) => Err(error),
            Ok(()) => appends(context, context.arguments.operations.min(OPERATIONS_MAX)),
        };
        over.store(true, Ordering::Relaxed);
        measured
    })
}

fn appends(context: &Context<'_>, operations: u64) -> io::Result<Outcome> {
    let file = context.backend.create("beside-hogs")?;
    file.sync()?;
    let mut latencies = Latencies::default();
    context.meter.begin()?;
    let start = Instant::now();
    for index in 0..operations {
        let begin = Instant::now();
        file.write_at(index * PAGE as u64, &page(index))?;
        file.sync()?;
        latencies.push(begin.elapsed());
    }
    let elapsed = start.elapsed();
    context.meter.end()?;
    Ok(Outcome { operations, elapsed, latencies, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_may_not_claim_what_it_asks_for_says_so_or_does() {
        for claim in [Claim::Usual, Claim::Favoured] {
            let made = std::thread::spawn(move || claim.make()).join().unwrap();
            let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
            assert!(made.as_ref().map_or_else(is_refused, |()| true), "{claim:?}: {made:?}");
        }
    }
}
