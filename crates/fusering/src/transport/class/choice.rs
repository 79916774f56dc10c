//! Which class a thread that answers should have, from what it has seen.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// A thread that answers and waits for less than this on average each time it wants to run does not wait.
pub(super) const WAIT_MAX: Duration = Duration::from_micros(50);
/// The same of the watch, which looks every 2 ms and may look a little later.
pub(super) const WAIT_MAX_OF_WATCH: Duration = Duration::from_millis(1);
/// How long a thread stays in the usual class before it tries the other one again: at first, and at most. What takes
/// the CPU for a moment, as a thread of the kernel does, is to cost little more than that moment.
const STAY_MIN: Duration = Duration::from_nanos(1_000_000_000 / 16);
const STAY_MAX: Duration = Duration::from_secs(64);
/// How long it is known how much a thread waits in a class in which it is not.
const KNOWN: Duration = Duration::from_secs(10);
/// A thread that was asked for a sync comes back to SCHED_IDLE once fewer than one in so many requests are syncs. An
/// append with its sync is two requests, a file that dpkg unpacks about twelve.
const REQUESTS_PER_SYNC: u32 = 16;

/// What the scheduler has counted of a thread so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// On a CPU.
    pub(super) ran: Duration,
    /// Waiting for one.
    waited: Duration,
    /// How often it ran.
    runs: u64,
}

impl Times {
    pub(super) fn read(schedstat: &File) -> io::Result<Times> {
        let mut text = [0; 96];
        let len = schedstat.read_at(&mut text, 0)?;
        Times::parse(&text[..len]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Time on a CPU, time waiting for one, both in nanoseconds, and times it ran.
    fn parse(text: &[u8]) -> Option<Times> {
        let mut fields = str::from_utf8(text).ok()?.split_ascii_whitespace();
        let ran = Duration::from_nanos(fields.next()?.parse().ok()?);
        let waited = Duration::from_nanos(fields.next()?.parse().ok()?);
        Some(Times { ran, waited, runs: fields.next()?.parse().ok()? })
    }

    /// The average wait since then, without that for the only caller, which has run for so long meanwhile.
    pub(super) fn average_wait(&self, earlier: &Times, caller_ran: Duration) -> Duration {
        let runs = self.runs.saturating_sub(earlier.runs).max(1);
        let waited = self.waited.saturating_sub(earlier.waited).saturating_sub(caller_ran);
        waited / u32::try_from(runs).unwrap_or(u32::MAX)
    }
}

/// Which class a thread should have.
#[derive(Debug)]
pub(super) struct Choice {
    /// It is asked for syncs.
    syncing: bool,
    /// Requests since the last look, and how many of them were syncs.
    requests: u32,
    syncs: u32,
    by_waits: ByWaits,
}

impl Choice {
    /// `wait_max`: what is no wait.
    pub(super) fn new(wait_max: Duration) -> Choice {
        Choice { syncing: false, requests: 0, syncs: 0, by_waits: ByWaits::new(wait_max) }
    }

    /// Whether it is SCHED_IDLE.
    pub(super) fn idle(&self) -> bool {
        !self.syncing && self.by_waits.idle
    }

    /// A request is about to be handled. The class may be another one from now on.
    pub(super) fn takes(&mut self, is_sync: bool) {
        self.requests += 1;
        self.syncs += u32::from(is_sync);
        self.syncing |= is_sync;
    }

    /// Takes note of what came since the last time and of the average wait; whether the class is another one now.
    pub(super) fn changes(&mut self, average: Duration, now: Instant) -> bool {
        let was_idle = self.idle();
        let (requests, syncs) = (std::mem::take(&mut self.requests), std::mem::take(&mut self.syncs));
        if self.syncing {
            // What it waited in a class that syncs have chosen says nothing about the other one.
            self.syncing = syncs * REQUESTS_PER_SYNC >= requests;
        } else {
            self.by_waits.changes(average, now);
        }
        self.idle() != was_idle
    }
}

/// Which class a thread should have, by how long it waits.
#[derive(Debug)]
struct ByWaits {
    wait_max: Duration,
    idle: bool,
    /// Until when it is in the usual class, and how long the next time.
    until: Option<Instant>,
    stay: Duration,
    /// How long it waited in the class in which it is not, and when.
    other: Option<(Duration, Instant)>,
}

impl ByWaits {
    fn new(wait_max: Duration) -> ByWaits {
        ByWaits { wait_max, idle: true, until: None, stay: STAY_MIN, other: None }
    }

    /// Takes note of an average wait since the last time; whether the class is another one now.
    fn changes(&mut self, average: Duration, now: Instant) -> bool {
        let other =
            self.other.filter(|(_, then)| now.duration_since(*then) < KNOWN).map(|(waited, _)| waited);
        let waits_less_there = other.is_none_or(|waited| waited < average);
        let leaves = match (self.idle, self.until) {
            (true, _) => average > self.wait_max && waits_less_there,
            (false, Some(until)) if now >= until => true,
            (false, _) => other.is_some_and(|waited| waited < average),
        };
        if !leaves {
            if self.idle && average <= self.wait_max {
                self.stay = STAY_MIN;
            }
            return false;
        }
        self.other = Some((average, now));
        if self.idle {
            self.until = Some(now + self.stay);
            self.stay = (self.stay * 2).min(STAY_MAX);
        }
        self.idle = !self.idle;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LITTLE: Duration = Duration::from_micros(5);
    const MUCH: Duration = Duration::from_millis(10);
    const MORE: Duration = Duration::from_millis(20);

    #[test]
    fn who_waits_for_a_cpu_tries_the_usual_class_and_comes_back_ever_later() {
        let (mut choice, mut now) = (ByWaits::new(WAIT_MAX), Instant::now());
        for _ in 0..100 {
            assert!(!choice.changes(LITTLE, now), "it gets a CPU when it wants one");
        }
        let mut stays = Vec::new();
        for _ in 0..13 {
            assert!(choice.changes(MUCH, now) && !choice.idle);
            let left = now;
            while !choice.changes(LITTLE, now) {
                now += STAY_MIN / 2;
            }
            assert!(choice.idle);
            stays.push(now.duration_since(left).div_duration_f64(STAY_MIN));
        }
        assert_eq!(stays, [1., 2., 4., 8., 16., 32., 64., 128., 256., 512., 1024., 1024., 1024.]);
        // Once it waits no more it is as at the beginning.
        assert!(!choice.changes(LITTLE, now) && choice.changes(MUCH, now));
        assert_eq!(choice.until, Some(now + STAY_MIN));
    }

    #[test]
    fn who_waits_in_both_classes_stays_where_it_waits_less() {
        let (mut choice, mut now) = (ByWaits::new(WAIT_MAX), Instant::now());
        assert!(choice.changes(MUCH, now) && !choice.idle);
        assert!(choice.changes(MORE, now) && choice.idle, "the usual class is worse");
        for _ in 0..50 {
            now += Duration::from_millis(100);
            assert!(!choice.changes(MUCH, now), "that is known for a while");
        }
        now += KNOWN;
        assert!(choice.changes(MUCH, now) && !choice.idle, "and then tried again");
    }

    #[test]
    fn waits_are_read_as_the_kernel_writes_them() {
        let earlier = Times::parse(b"500 1000000 10\n").unwrap();
        let later = Times::parse(b"900 5000000 14\n").unwrap();
        assert_eq!(later.ran, Duration::from_nanos(900));
        let average = |caller_ran| later.average_wait(&earlier, Duration::from_millis(caller_ran));
        assert_eq!(average(0), Duration::from_millis(1));
        assert_eq!(average(2), Duration::from_micros(500), "for the caller it did not wait");
        assert_eq!(average(5), Duration::ZERO);
        assert_eq!(earlier.average_wait(&earlier, Duration::ZERO), Duration::ZERO);
        assert_eq!(Times::parse(b"500 x"), None);
    }

    #[test]
    fn who_is_asked_for_a_sync_is_of_the_usual_class_until_few_come() {
        let (mut choice, now) = (Choice::new(WAIT_MAX), Instant::now());
        let take = |choice: &mut Choice, requests: u32, syncs: u32| {
            (0..requests).for_each(|request| choice.takes(request < syncs));
        };
        take(&mut choice, 64, 0);
        assert!(choice.idle() && !choice.changes(LITTLE, now));
        take(&mut choice, 1, 1);
        assert!(!choice.idle(), "at once");
        take(&mut choice, 63, 3);
        assert!(!choice.changes(MUCH, now) && !choice.idle());
        take(&mut choice, 64, 3);
        assert!(
            choice.changes(MUCH, now) && choice.idle(),
            "waits of the usual class are not held against this one"
        );
        take(&mut choice, 64, 0);
        assert!(choice.changes(MUCH, now) && !choice.idle(), "its own are");
    }
}
