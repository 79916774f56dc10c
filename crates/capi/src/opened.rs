//! [`OpenVolume`]: a volume that callers have a handle of.

use crate::error::{Failure, Result};
use crate::notifier::Notifier;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline::Volume;

/// A volume, and what its handles share.
pub(crate) struct OpenVolume {
    // Constant.
    number: u64,
    volume: Volume,
    notifier: Arc<Notifier>,

    /// A call on it has panicked: the engine may have been left half-way.
    panicked: AtomicBool,
}

static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl OpenVolume {
    pub(crate) fn new(volume: Volume) -> Arc<OpenVolume> {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Arc::new(OpenVolume { number, volume, notifier: Notifier::new(), panicked: AtomicBool::new(false) })
    }

    /// Tells it from all others of this process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(crate) fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// Runs one call. Errors: its own, or a panic, which ends this volume: nothing of it is written any more, and
    /// nobody is served.
    pub(crate) fn guard<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.panicked.load(Ordering::Relaxed) {
            return Err(Failure::panicked());
        }
        match std::panic::catch_unwind(AssertUnwindSafe(act)) {
            Ok(result) => result,
            Err(_) => {
                self.panicked.store(true, Ordering::SeqCst);
                // What it has left may panic again.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(|| self.volume.shut_down()));
                Err(Failure::panicked())
            }
        }
    }

    /// Closes the volume, whose handles are gone.
    pub(crate) fn close(&self) -> Result<()> {
        self.end(|volume| Ok(volume.close()?))
    }

    /// The same, by a call that closes it.
    pub(crate) fn end(&self, close: impl FnOnce(Volume) -> Result<()>) -> Result<()> {
        let closed = self.guard(|| close(self.volume.clone()));
        // Whatever was started has ended by now, well or not.
        self.notifier.stop();
        closed
    }
}
