//! A thread that reads /dev/fuse, beside a caller that is alone.
//!
//! What a message costs is decided by where the reading thread wakes up: on the caller's CPU, which has nothing to do while
//! the caller waits, a few microseconds; on another one, which has to be woken, ten times as much. The scheduler wakes a thread where it
//! slept, so whichever of the two it is stays. Therefore a thread that has read nothing but the requests of one caller
//! for a while is tied to that caller's CPU, and is untied by the first request of somebody else.
//!
//! When another CPU is awake and idle, the scheduler may move the caller there, because the reading thread still runs when it wakes
//! it. Following is of no use then: a caller that is not where the thread was tied to has it untied, and it takes twice as many requests
//! until it is tied again.
//!
//! Large reads untie as well: the kernel reads ahead while its caller goes on, which is best done on another CPU.
//!
//! A wrong guess costs time and nothing else.

use super::cpus;

/// So many requests of one caller without any of others make it one that is alone; after as many again it is looked
/// whether it is still there.
const LOOK_EVERY_MIN: u32 = 64;
/// The same of one that is found elsewhere each time.
const LOOK_EVERY_MAX: u32 = 64 << 10;
/// A read of so many bytes is part of a stream.
pub(super) const STREAMING_BYTES_MIN: u32 = 128 << 10;

/// What a thread knows of its caller. It belongs to that thread.
pub(super) struct Beside {
    follows: bool,
    caller: u32,
    /// Requests of `caller`, without any of others in between, until it is looked where it runs.
    until_look: u32,
    look_every: u32,
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
        Beside { follows, caller: 0, until_look: LOOK_EVERY_MIN, look_every: LOOK_EVERY_MIN, tied: None }
    }

    /// The calling thread has read a request of thread `caller` (0: the kernel of its own accord).
    pub(super) fn note(&mut self, caller: u32, streams: bool) {
        if !self.follows || caller == 0 {
            return;
        }
        if caller != self.caller || streams {
            (self.caller, self.look_every, self.until_look) = (caller, LOOK_EVERY_MIN, LOOK_EVERY_MIN);
            return self.untie();
        }
        self.until_look -= 1;
        if self.until_look == 0 {
            self.look();
            self.until_look = self.look_every;
        }
    }

    fn look(&mut self) {
        match &self.tied {
            None => self.follow(),
            Some(tied) if cpus::of_thread(self.caller) == Some(tied.to) => self.look_every = LOOK_EVERY_MIN,
            Some(_) => {
                self.untie();
                self.look_every = (2 * self.look_every).min(LOOK_EVERY_MAX);
            }
        }
    }

    fn follow(&mut self) {
        // A thread that has no choice need not be told.
        let Some(before) = cpus::allowed().filter(|mask| cpus::count(mask) > 1) else { return };
        let Some(to) = cpus::of_thread(self.caller).filter(|&cpu| cpus::holds(&before, cpu)) else { return };
        if cpus::confine(&cpus::only(to)) {
            self.tied = Some(Tied { to, before });
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn allowed() -> libc::cpu_set_t {
        cpus::allowed().expect("the machines of tests have few CPUs")
    }

    fn is_tied_to(cpu: usize) -> bool {
        let mask = allowed();
        cpus::count(&mask) == 1 && cpus::holds(&mask, cpu)
    }

    #[test]
    fn a_caller_that_went_elsewhere_is_followed_after_twice_as_many_requests() {
        let all = allowed();
        let mut cpus = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| cpus::holds(&all, cpu));
        let (Some(first), Some(second)) = (cpus.next(), cpus.next()) else { return };
        let (go, going) = channel();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for cpu in going {
                assert!(cpus::confine(&cpus::only(cpu)));
                // SAFETY: takes no arguments.
                tell.send(unsafe { libc::gettid() } as u32).expect("the test waits");
            }
        });
        let caller_on = |cpu| {
            go.send(cpu).expect("the caller waits");
            told.recv().expect("the caller has moved")
        };
        let mut beside = Beside::new(true);
        let mut ask = |caller: u32, count: u32| (0..count).for_each(|_| beside.note(caller, false));
        let caller = caller_on(first);
        ask(caller, 1 + LOOK_EVERY_MIN - 1);
        assert_eq!(cpus::count(&allowed()), cpus::count(&all), "it may not be alone yet");
        ask(caller, 1);
        assert!(is_tied_to(first));
        caller_on(second);
        ask(caller, LOOK_EVERY_MIN);
        assert_eq!(cpus::count(&allowed()), cpus::count(&all), "it is not there any more");
        ask(caller, 2 * LOOK_EVERY_MIN - 1);
        assert_eq!(cpus::count(&allowed()), cpus::count(&all));
        ask(caller, 1);
        assert!(is_tied_to(second));
        ask(caller + 1, 1);
        assert_eq!(cpus::count(&allowed()), cpus::count(&all), "it is not alone");
    }
}
