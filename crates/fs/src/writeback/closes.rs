//! Waits for closes that are under way.
//!
//! The kernel tells a mount of a last close behind the caller's back, so a program that has closed and removed a file
//! may ask for its space before the engine has it back.

use crate::clock::{is_over, since};
use crate::limits::{CLOSE_PATIENCE, CLOSE_PAUSE, CLOSE_WAITS_MAX};
use crate::writeback::Writeback;
use crate::{Error, ObjectNo, Result, Timestamp};
use std::ops::ControlFlow;
use std::time::Duration;
use syncline_format::{Key, Kind};

/// Closes of removed files, and who waits for them.
#[derive(Default)]
pub(crate) struct Closing {
    /// Removed files whose space has come back.
    closed: u64,
    /// Since when calls wait for the next one, or have waited in vain.
    awaited_since: Option<Timestamp>,
    /// Calls that have waited.
    pub(crate) waits: u64,
}

impl Closing {
    /// How long a call may wait.
    fn patience(&self, now: Timestamp) -> Duration {
        match self.awaited_since {
            Some(began) if !is_over(CLOSE_PAUSE, now, began) => {
                CLOSE_PATIENCE.saturating_sub(since(now, began))
            }
            _ => CLOSE_PATIENCE,
        }
    }
}

impl Writeback {
    /// What the attempt says. One that finds no space is made again, for a moment, while a removed file has its space
    /// still.
    pub(crate) fn awaiting_closes<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..CLOSE_WAITS_MAX {
            let seen = self.closing.lock().closed;
            match attempt() {
                Err(Error::NoSpace) if self.wait_for_close(seen)? => {}
                result => return result,
            }
        }
        attempt()
    }

    /// A file is removed that may be open: whoever finds no space may wait for its close.
    pub(crate) fn expect_close(&self) {
        self.closing.lock().awaited_since = None;
    }

    /// The space of a removed file is back.
    pub(crate) fn note_close(&self) {
        let mut closing = self.closing.lock();
        closing.closed += 1;
        closing.awaited_since = None;
        drop(closing);
        self.closed.notify_all();
    }

    /// Whether a removed file has its space still.
    fn has_unclosed(&self) -> Result<bool> {
        let (from, end) = (Key::orphan(ObjectNo(0)), Key::new(ObjectNo::VOLUME, Kind::Tree, 0));
        let mut any = false;
        let scanned = self.core.store.scan(self.content.tree, from, end, &mut |_, _| {
            any = true;
            ControlFlow::Break(())
        });
        match scanned {
            Ok(()) => Ok(any),
            // Damage here is told to whoever opens or checks the volume.
            Err(error) if error.is_unreadable() && self.core.store.failure().is_none() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until more than `seen` have been closed; `false`: none is to come, or all calls together have waited long
    /// enough.
    #[expect(
        clippy::disallowed_methods,
        reason = "a bound on the wait for others, not a reading of the time"
    )]
    fn wait_for_close(&self, seen: u64) -> Result<bool> {
        let now = self.core.clock.now();
        let left = self.closing.lock().patience(now);
        let is_to_come = !left.is_zero() && self.has_unclosed()?;
        let mut closing = self.closing.lock();
        if closing.closed != seen || !is_to_come {
            return Ok(closing.closed != seen);
        }
        if left == CLOSE_PATIENCE {
            closing.awaited_since = Some(now);
        }
        closing.waits += 1;
        Ok(!self.closed.wait_for(&mut closing, left))
    }
}
