//! The watchdog: a workload that makes no progress is a finding, told with the command that shows it again.
//!
//! Progress is a step of the driver or a new device, which every crash state has. A thread is watched while it runs a workload
//! ([`Watch`]); one thread of the process looks at all of them. An engine that hangs cannot be interrupted, so the process
//! ends, with [`EXIT_CODE`].
//!
//! Locks: the list of slots, then one slot's text; nothing else is taken inside.

use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};

/// A state takes milliseconds; a machine that is loaded makes seconds of it, never a minute.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What the process ends with after a hang.
pub const EXIT_CODE: i32 = 3;
/// The line that tells a hang begins like this.
pub const PREFIX: &str = "HANG";

const IDLE: u64 = u64::MAX;
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What is known of one thread.
struct Slot {
    /// Milliseconds since the process began, of the last progress; `IDLE` while nothing is watched.
    progress: AtomicU64,
    /// How to show the workload again.
    replay: Mutex<String>,
}

static SLOTS: Mutex<Vec<Arc<Slot>>> = Mutex::new(Vec::new());
static PATIENCE_MS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static MINE: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

fn now() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_millis() as u64
}

fn mine() -> Arc<Slot> {
    MINE.with_borrow_mut(|mine| {
        let slot = mine.get_or_insert_with(|| {
            let slot = Arc::new(Slot { progress: AtomicU64::new(IDLE), replay: Mutex::default() });
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
        if let Some(slot) = mine
            && slot.progress.load(Ordering::Relaxed) != IDLE
        {
            slot.progress.store(now(), Ordering::Relaxed);
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
    before: u64,
}

impl Watch {
    pub fn begin() -> Watch {
        static STARTED: Once = Once::new();
        STARTED.call_once(|| drop(std::thread::spawn(look)));
        let slot = mine();
        let before = slot.progress.swap(now(), Ordering::Relaxed);
        Watch { slot, before }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let after = if self.before == IDLE { IDLE } else { now() };
        self.slot.progress.store(after, Ordering::Relaxed);
    }
}

fn look() {
    loop {
        std::thread::sleep(LOOK_EVERY);
        let patience = match PATIENCE_MS.load(Ordering::Relaxed) {
            0 => PATIENCE.as_millis() as u64,
            patience => patience,
        };
        let now = now();
        for slot in &*SLOTS.lock() {
            let progress = slot.progress.load(Ordering::Relaxed);
            if progress != IDLE && now.saturating_sub(progress) > patience {
                let seconds = patience as f64 / 1000.0;
                println!("{PREFIX} no progress for {seconds} s\n    replay: {}", slot.replay.lock());
                std::process::exit(EXIT_CODE);
            }
        }
    }
}
