//! Time comes from outside: the engine reads no clock of its own accord, so that every run can be replayed.

use syncline_format::item::Timestamp;

/// A source of wall-clock time.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
}

/// The machine's real-time clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        use std::time::{SystemTime, UNIX_EPOCH};
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
            Err(before) => Timestamp { seconds: -(before.duration().as_secs() as i64), nanoseconds: 0 },
        }
    }
}
