//! Time and chance come from outside: the engine reads neither of its own accord, so that every run can be replayed.

use std::time::Duration;
use syncline_format::item::Timestamp;

/// A source of wall-clock time.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// Time from `then` to `now`; zero if the clock went back.
pub(crate) fn since(now: Timestamp, then: Timestamp) -> Duration {
    let nanoseconds =
        |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    let between = (nanoseconds(now) - nanoseconds(then)).max(0);
    Duration::from_nanos(u64::try_from(between).unwrap_or(u64::MAX))
}

/// Whether so much time has passed. If `then` lies as far ahead, the clock was set back; what was to be done after
/// the interval is not to wait until it shows that time again.
pub(crate) fn is_over(interval: Duration, now: Timestamp, then: Timestamp) -> bool {
    since(now, then) >= interval || since(then, now) >= interval
}

/// The machine's real-time clock, for adapters that have no other: the one place of this crate that reads one.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "who opens a volume hands this clock in, or another one")]
    fn now(&self) -> Timestamp {
        use std::time::{SystemTime, UNIX_EPOCH};
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
            Err(before) => Timestamp { seconds: -(before.duration().as_secs() as i64), nanoseconds: 0 },
        }
    }
}

/// A source of random numbers: identifiers of volumes and sessions, seeds of hashes.
pub trait Entropy: Send + Sync {
    /// The next number, unpredictable to whoever names files.
    fn number(&self) -> u64;
}

/// Random numbers from the kernel, each asked for when it is needed: what a process keeps in its memory a fork gives
/// to its children as well.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy {
    _private: (),
}

impl Entropy for SystemEntropy {
    fn number(&self) -> u64 {
        syncline_device::random_number()
    }
}
