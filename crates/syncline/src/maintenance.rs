//! The thread that keeps a volume in shape: writeback by age, destaging, checkpoints.

use crate::Clock;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use syncline_fs::Fs;

/// How often maintenance looks for something to do.
const PERIOD: Duration = Duration::from_millis(100);
/// Rounds of one call of [`Fs::maintain`].
const BUDGET_ROUNDS: usize = 64;
/// Bounds of the pause after a piece of work that gave way to syncs.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Signal {
    kicked: bool,
    stop: bool,
}

#[derive(Default)]
struct Control {
    signal: Mutex<Signal>,
    changed: Condvar,
}

impl Control {
    fn kick(&self) {
        self.signal.lock().kicked = true;
        self.changed.notify_one();
    }
}

/// Runs [`Fs::maintain`] until dropped.
pub(crate) struct Maintenance {
    control: Arc<Control>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Maintenance {
    /// Starts the thread. Errors: the system's, when it gives no thread.
    pub(crate) fn start(fs: Arc<Fs>, clock: Arc<dyn Clock>) -> std::io::Result<Maintenance> {
        let control = Arc::new(Control::default());
        let of_thread = control.clone();
        let of_writers = control.clone();
        fs.on_demand(Box::new(move || of_writers.kick()));
        let thread = std::thread::Builder::new()
            .name("syncline-maintain".to_owned())
            .spawn(move || run(&fs, &*clock, &of_thread))?;
        Ok(Maintenance { control, thread: Mutex::new(Some(thread)) })
    }

    /// Stops the thread and waits until it has ended.
    pub(crate) fn stop(&self) {
        self.control.signal.lock().stop = true;
        self.control.changed.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!(
                "the maintenance thread panicked; the volume was not written back in the background"
            );
        }
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(fs: &Fs, clock: &dyn Clock, control: &Control) {
    let mut reported = None;
    loop {
        {
            let mut signal = control.signal.lock();
            if !signal.kicked && !signal.stop {
                control.changed.wait_for(&mut signal, PERIOD);
            }
            signal.kicked = false;
            if signal.stop {
                return;
            }
        }
        loop {
            let began = Instant::now();
            match fs.maintain(clock.now(), BUDGET_ROUNDS) {
                Ok(true) if !control.signal.lock().stop => {
                    if fs.gives_way() {
                        // Two thirds of the device's time are left to the syncs.
                        std::thread::sleep((began.elapsed() * 2).clamp(PAUSE_MIN, PAUSE_MAX));
                    }
                }
                Ok(_) => break,
                Err(error) => {
                    if reported.as_ref() != Some(&error) {
                        tracing::error!(%error, "writing in the background failed");
                        reported = Some(error);
                    }
                    break;
                }
            }
        }
    }
}
