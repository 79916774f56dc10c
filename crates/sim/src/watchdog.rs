//! The watchdog: a workload that makes no progress is a finding, told with the command that shows it again.
//!
//! Progress is a step of the driver or a new device, which every crash state has. A thread is watched while it runs a
//! workload ([`Watch`]); one thread of the process looks at all of them. An engine that hangs cannot be interrupted,
//! so the process ends, with [`EXIT_CODE`].
//!
//! What counts is not the time that passes but the time in which the thread could have got on: what it spent waiting
//! for a processor is taken off, and a process that stood still as a whole (stopped, or starved with its watchdog)
//! has not been looked at meanwhile. So neither a loaded machine nor a suspended one is taken for a hang; a thread
//! that spins and one that sleeps for ever are.
//!
//! Locks: the list of slots, then one slot's text; nothing else is taken inside.

use parking_lot::Mutex;
use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// A state takes milliseconds of a thread's own time.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What the process ends with after a hang.
pub const EXIT_CODE: i32 = 3;
/// The line that tells a hang begins like this.
pub const PREFIX: &str = "HANG";

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What is known of one thread.
struct Slot {
    /// Watched now.
    watched: AtomicBool,
    /// Grows with each progress.
    progress: AtomicU64,
    /// How to show the workload again.
    replay: Mutex<String>,
    /// Where the system tells how long the thread has waited for a processor; `None` where it does not.
    schedule: Option<PathBuf>,
}

static SLOTS: Mutex<Vec<Arc<Slot>>> = Mutex::new(Vec::new());
static PATIENCE_MS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static MINE: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

fn mine() -> Arc<Slot> {
    MINE.with_borrow_mut(|mine| {
        let slot = mine.get_or_insert_with(|| {
            let thread = fs::read_link("/proc/thread-self").ok();
            let slot = Arc::new(Slot {
                watched: AtomicBool::new(false),
                progress: AtomicU64::new(0),
                replay: Mutex::default(),
                schedule: thread.map(|thread| PathBuf::from("/proc").join(thread).join("schedstat")),
            });
            SLOTS.lock().push(Arc::clone(&slot));
            slot
        });
        Arc::clone(slot)
    })
}

/// Notes by which command the thread's next workload is shown again.
pub fn replayed_by(command: String) {
    *mine().replay.lock() = command;
}

/// The thread is getting on.
pub fn progress() {
    MINE.with_borrow(|mine| {
        if let Some(slot) = mine {
            slot.progress.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Sets how long a workload may make no progress ([`PATIENCE`] if nobody does).
pub fn set_patience(patience: Duration) {
    PATIENCE_MS.store(patience.as_millis() as u64, Ordering::Relaxed);
}

/// The thread is watched as long as this lives.
pub struct Watch {
    slot: Arc<Slot>,
    /// A watch may be inside another one.
    before: bool,
}

impl Watch {
    pub fn begin() -> Watch {
        static STARTED: Once = Once::new();
        STARTED.call_once(|| drop(std::thread::spawn(look)));
        let slot = mine();
        slot.progress.fetch_add(1, Ordering::Relaxed);
        let before = slot.watched.swap(true, Ordering::Relaxed);
        Watch { slot, before }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.slot.progress.fetch_add(1, Ordering::Relaxed);
        self.slot.watched.store(self.before, Ordering::Relaxed);
    }
}

/// What the watchdog has seen of one thread.
#[derive(Default)]
struct Seen {
    progress: u64,
    /// How long the thread had waited for a processor at the last look.
    waited: Duration,
    /// Time without progress in which it could have got on.
    stalled: Duration,
}

impl Seen {
    /// Takes a look, `elapsed` after the one before; how long the thread has made no progress.
    fn look(&mut self, progress: u64, waited: Duration, elapsed: Duration) -> Duration {
        // A look that comes late was kept from coming, and so was the thread perhaps.
        let own = elapsed.min(LOOK_EVERY * 2).saturating_sub(waited.saturating_sub(self.waited));
        self.stalled = if progress == self.progress { self.stalled + own } else { Duration::ZERO };
        (self.progress, self.waited) = (progress, waited);
        self.stalled
    }
}

/// How long a thread has waited for a processor in its life.
fn waited(slot: &Slot) -> Duration {
    let told = slot.schedule.as_ref().and_then(|path| fs::read_to_string(path).ok());
    let nanoseconds = told.and_then(|told| told.split(' ').nth(1)?.trim().parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn look() {
    let mut seen: Vec<Seen> = Vec::new();
    let mut before = Instant::now();
    loop {
        std::thread::sleep(LOOK_EVERY);
        let patience = match PATIENCE_MS.load(Ordering::Relaxed) {
            0 => PATIENCE,
            patience => Duration::from_millis(patience),
        };
        let elapsed = before.elapsed();
        before = Instant::now();
        // Slots are never taken off the list.
        let slots = SLOTS.lock();
        seen.resize_with(slots.len(), Seen::default);
        for (slot, seen) in slots.iter().zip(&mut seen) {
            if !slot.watched.load(Ordering::Relaxed) {
                seen.stalled = Duration::ZERO;
                continue;
            }
            let stalled = seen.look(slot.progress.load(Ordering::Relaxed), waited(slot), elapsed);
            if stalled > patience {
                let seconds = patience.as_secs_f64();
                println!("{PREFIX} no progress for {seconds} s\n    replay: {}", slot.replay.lock());
                std::process::exit(EXIT_CODE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = LOOK_EVERY;

    #[test]
    fn a_thread_that_sleeps_or_spins_is_stalled_and_one_that_waits_for_a_processor_is_not() {
        let mut sleeps = Seen::default();
        for look in 1..=10 {
            assert_eq!(sleeps.look(0, Duration::ZERO, LOOK), LOOK * look);
        }
        let mut waits = Seen::default();
        for look in 1..=10 {
            assert_eq!(waits.look(0, LOOK * look, LOOK), Duration::ZERO);
        }
    }

    #[test]
    fn progress_ends_a_stall_and_a_late_look_counts_little() {
        let mut seen = Seen::default();
        seen.look(0, Duration::ZERO, LOOK);
        assert_eq!(seen.look(1, Duration::ZERO, LOOK), Duration::ZERO);
        assert_eq!(seen.look(1, Duration::ZERO, Duration::from_secs(3600)), LOOK * 2);
    }
}
