//! A thread that reads /dev/fuse, beside a caller that is alone.
//!
//! What a message costs is decided by where the reading thread wakes up: on the caller's CPU, which has nothing to do while
//! the caller waits, a few microseconds; on another one, which has to be woken, ten times as much. The scheduler wakes a thread where it
//! slept, so whichever of the two it is stays. Therefore a thread that has read nothing but the requests of one caller
//! for a while is tied to that caller's CPU, is moved after it, and is untied by the first request of somebody else.
//!
//! Large reads untie as well: the kernel reads ahead while its caller goes on, which is best done on another CPU.
//!
//! A wrong guess costs time and nothing else.

use super::cpus;

/// So many requests of one caller without any of others make it one that is alone; after as many again it is
/// looked where it runs now.
const LOOK_EVERY: u32 = 64;
/// A read of so many bytes is part of a stream.
pub(super) const STREAMING_BYTES_MIN: u32 = 128 << 10;

/// What a thread knows of its caller. It belongs to that thread.
pub(super) struct Beside {
    follows: bool,
    caller: u32,
    /// Requests of `caller` without any of others in between.
    alone_for: u32,
    tied: Option<Tied>,
}

struct Tied {
    to: usize,
    /// Where the thread could run before.
    before: libc::cpu_set_t,
}

impl Beside {
    /// `follows`: false to stay wherever the scheduler wants.
    pub(super) fn new(follows: bool) -> Beside {
        Beside { follows, caller: 0, alone_for: 0, tied: None }
    }

    /// The calling thread has read a request of thread `caller` (0: the kernel of its own accord).
    pub(super) fn note(&mut self, caller: u32, streams: bool) {
        if !self.follows || caller == 0 {
            return;
        }
        if caller != self.caller || streams {
            self.caller = caller;
            self.alone_for = 0;
            return self.untie();
        }
        self.alone_for = self.alone_for.wrapping_add(1);
        if self.alone_for.is_multiple_of(LOOK_EVERY) {
            self.follow();
        }
    }

    fn follow(&mut self) {
        let before = match &self.tied {
            Some(tied) => Some(tied.before),
            None => cpus::allowed(),
        };
        // A thread that has no choice need not be told.
        let Some(before) = before.filter(|mask| cpus::count(mask) > 1) else { return };
        match cpus::of_thread(self.caller).filter(|&cpu| cpus::holds(&before, cpu)) {
            Some(cpu) if self.tied.as_ref().is_some_and(|tied| tied.to == cpu) => {}
            Some(cpu) if cpus::confine(&cpus::only(cpu)) => self.tied = Some(Tied { to: cpu, before }),
            Some(_) => {}
            None => self.untie(),
        }
    }

    fn untie(&mut self) {
        if let Some(tied) = self.tied.take()
            && !cpus::confine(&tied.before)
        {
            tracing::debug!(cpu = tied.to, "a thread that reads requests stays tied to a CPU");
        }
    }
}
