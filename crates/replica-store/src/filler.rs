//! [`Filler`]: fetches the rest of a volume that is used already, on a thread of its own.

use crate::remote::Lazy;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use syncline_device::DeviceError;

/// Blocks that are fetched at a time.
const BLOCKS: u64 = 2048;
/// Blocks, and time, after which what was fetched is made durable.
const SETTLE_BLOCKS: u64 = 16_384;
const SETTLE_EACH: Duration = Duration::from_secs(10);
/// Whoever has just mounted the volume wants to read first.
const BEGINS_AFTER: Duration = Duration::from_millis(500);
/// Others who wait for what they read go first, for so long.
const GIVES_WAY: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(2);
/// Pause after a failure, and the longest.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Pause while writes are under way to the last blocks.
const LAST: Duration = Duration::from_millis(50);
/// How long the end of the thread is waited for: it may wait for the store.
const END_WAIT: Duration = Duration::from_secs(2);

#[derive(Default)]
struct State {
    is_to_end: bool,
    has_ended: bool,
}

/// Fetches until everything is here, or until it is dropped.
pub struct Filler {
    state: Arc<(Mutex<State>, Condvar)>,
    ender: Arc<std::sync::atomic::AtomicBool>,
}

impl Filler {
    /// # Errors
    /// There is no thread to be had.
    pub fn start(lazy: &Lazy) -> std::io::Result<Filler> {
        let state: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let (mine, device, file) = (Arc::clone(&state), Arc::clone(&lazy.device), Arc::clone(&lazy.file));
        let fill = move || {
            let mut round = Round { unsettled: 0, settled: Instant::now(), pause: PAUSE, told: false };
            let pause = |long: Duration| {
                let mut state = mine.0.lock();
                mine.1.wait_while_for(&mut state, |state| !state.is_to_end, long);
                !state.is_to_end
            };
            pause(BEGINS_AFTER);
            while pause(Duration::ZERO) {
                let until = Instant::now() + GIVES_WAY;
                while device.waiting() > 0 && Instant::now() < until && pause(LOOK) {}
                match round.fetch(&device) {
                    Ok(Step::More) => {}
                    Ok(Step::Later) => drop(pause(LAST)),
                    Ok(Step::Whole) => {
                        if let Err(error) = file.shorten(device.partial().blocks) {
                            tracing::warn!(%error, "the image keeps what lies behind its volume");
                        }
                        tracing::info!(blocks = device.fetched(), "all of the volume is here");
                        break;
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut round.told, true) {
                            tracing::warn!("{error}; it is tried again");
                        }
                        pause(round.pause);
                        round.pause = (round.pause * 2).min(PAUSE_MAX);
                    }
                }
            }
            if let Err(error) = device.settle() {
                tracing::warn!(%error, "what was fetched last may have to be fetched again");
            }
            mine.0.lock().has_ended = true;
            mine.1.notify_all();
        };
        std::thread::Builder::new().name("syncline-fetch".to_owned()).spawn(fill)?;
        Ok(Filler { state, ender: Arc::clone(&lazy.ender) })
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.ender.store(true, Ordering::Relaxed);
        let mut state = self.state.0.lock();
        state.is_to_end = true;
        self.state.1.notify_all();
        self.state.1.wait_while_for(&mut state, |state| !state.has_ended, END_WAIT);
    }
}

enum Step {
    More,
    /// Nothing is absent, and something is being written.
    Later,
    Whole,
}

struct Round {
    unsettled: u64,
    settled: Instant,
    pause: Duration,
    told: bool,
}

impl Round {
    fn fetch(&mut self, device: &syncline_replica::LazyDevice) -> Result<Step, DeviceError> {
        if !device.fetch_more(BLOCKS)? {
            return Ok(if device.complete()? { Step::Whole } else { Step::Later });
        }
        (self.pause, self.told) = (PAUSE, false);
        self.unsettled += BLOCKS;
        if self.unsettled >= SETTLE_BLOCKS || self.settled.elapsed() >= SETTLE_EACH {
            device.settle()?;
            (self.unsettled, self.settled) = (0, Instant::now());
        }
        Ok(Step::More)
    }
}
