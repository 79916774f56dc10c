//! How long the only caller of a thread has run.
//!
//! The caller takes the CPU as soon as it has its answer, before the thread that answered has gone to sleep. The
//! scheduler counts the thread as waiting until the caller asks for something again.

use super::choice::Times;
use std::fs::File;
use std::time::Duration;

/// The caller of a thread's requests since its last look.
#[derive(Default)]
pub(super) struct Caller {
    asked: Asked,
    known: Option<Known>,
}

/// Whose requests there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Asked {
    #[default]
    Nobody,
    One(u32),
    Several,
}

struct Known {
    thread: u32,
    schedstat: File,
    ran: Duration,
}

impl Caller {
    /// A request of this thread has arrived (0: of the kernel's own accord).
    pub(super) fn asks(&mut self, thread: u32) {
        self.asked = match self.asked {
            _ if thread == 0 => return,
            Asked::Nobody => Asked::One(thread),
            Asked::One(before) if before == thread => return,
            _ => Asked::Several,
        };
    }

    /// How long the caller has run since the last look, `elapsed` ago, if it was the only one; otherwise, and where the
    /// system does not tell, nothing. Of one that was not known yet counts what it has run at all, if it has not run
    /// for longer than that.
    pub(super) fn ran(&mut self, elapsed: Duration) -> Duration {
        let Asked::One(thread) = std::mem::take(&mut self.asked) else { return Duration::ZERO };
        let known = self.known.take().filter(|known| known.thread == thread);
        self.known = known.or_else(|| Known::of(thread));
        let Some(known) = &mut self.known else { return Duration::ZERO };
        match Times::read(&known.schedstat) {
            Ok(times) => {
                let ran = times.ran.saturating_sub(std::mem::replace(&mut known.ran, times.ran));
                if ran <= elapsed { ran } else { Duration::ZERO }
            }
            Err(_) => {
                // It has ended.
                self.known = None;
                Duration::ZERO
            }
        }
    }
}

impl Known {
    fn of(thread: u32) -> Option<Known> {
        let schedstat = File::open(format!("/proc/{thread}/schedstat")).ok()?;
        Some(Known { thread, schedstat, ran: Duration::ZERO })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this_thread() -> u32 {
        // SAFETY: takes no arguments.
        unsafe { libc::gettid() as u32 }
    }

    #[test]
    fn what_the_only_caller_has_run_is_known_and_of_several_nothing_is() {
        if Known::of(this_thread()).is_none() {
            return println!("skipped: the caller's time: the system does not tell it");
        }
        let mut caller = Caller::default();
        let mut ran_behind = |asking: &[u32]| {
            asking.iter().for_each(|&thread| caller.asks(thread));
            // The kernel enters what a thread has run when it leaves its CPU.
            std::thread::sleep(Duration::from_millis(1));
            caller.ran(Duration::from_secs(3600))
        };
        assert_eq!(ran_behind(&[]), Duration::ZERO);
        let has_run =
            || Times::read(&Known::of(this_thread()).expect("it was there").schedstat).expect("read").ran;
        let before = has_run();
        assert_ne!(ran_behind(&[this_thread(), 0, this_thread()]), Duration::ZERO);
        let since = ran_behind(&[this_thread()]);
        assert!(since <= has_run() - before, "only what came since the last look");
        assert_eq!(ran_behind(&[this_thread(), 1]), Duration::ZERO);
        assert_eq!(ran_behind(&[u32::MAX]), Duration::ZERO, "there is no such thread");
        let mut other = Caller::default();
        other.asks(this_thread());
        assert_eq!(other.ran(Duration::ZERO), Duration::ZERO, "it ran before the last look");
    }
}
