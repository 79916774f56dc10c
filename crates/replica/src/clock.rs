//! [`Clock`]: what time it is for a machine that has no clock.

/// The time at which a machine was begun, carried on by its driver's clock.
///
/// The time of grace is counted from the time that a manifest tells. A machine that took long, or stood still, must not
/// tell the time at which it began: what others have begun to read meanwhile would be taken away from them.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Nanoseconds since 1970, when the machine was begun.
    start: u64,
    /// The driver's clock, first and last, in nanoseconds.
    seen: Option<(u64, u64)>,
}

impl Clock {
    pub fn new(start: u64) -> Clock {
        Clock { start, seen: None }
    }

    /// The driver's clock has come so far.
    pub fn note(&mut self, now: u64) {
        let (first, last) = self.seen.unwrap_or((now, now));
        self.seen = Some((first, last.max(now)));
    }

    /// Nanoseconds since 1970, now.
    pub fn time(&self) -> u64 {
        let (first, last) = self.seen.unwrap_or_default();
        self.start.saturating_add(last - first)
    }
}
