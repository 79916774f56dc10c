//! A thread that reads /dev/fuse, beside a caller that is alone.
//!
//! What a message costs is decided by where the reading thread wakes up: on the caller's CPU, which has nothing to do
//! while the caller waits, a few microseconds; on another one, which has to be woken, ten times as much. The
//! scheduler wakes a thread where it slept, so whichever of the two it is stays. Therefore a thread that has read
//! nothing but the requests of one caller for a while is tied to that caller's CPU, and is untied by the first
//! request of somebody else.
//!
//! The scheduler may move the caller, because the reading thread still runs when it wakes it: to another CPU that is
//! awake and idle, as it is for a moment behind a flush, or whenever something else has just run there. From then on
//! each message wakes two CPUs. So it is looked where the caller is every few requests, which costs a fraction of
//! one, and the thread goes where the caller went. If the caller is elsewhere each time, it is looked less often, but
//! never seldom: a look and a move cost as much as two or three messages between two CPUs, and pay even where the
//! caller stays for a few dozen only.
//!
//! A caller on the same CPU takes it from a thread of class SCHED_IDLE before the answer has been sent to its end, and
//! its next message is there when the thread goes on. So a message that had to be waited for is a hint that the caller
//! has gone, and it is looked at once, unless such hints were wrong of late.
//!
//! Large reads untie as well: the kernel reads ahead while its caller goes on, which is best done on another CPU.
//!
//! A wrong guess costs time and nothing else.

use super::cpus;

/// So many requests of one caller without any of others make it one that is alone.
const ALONE_AFTER: u32 = 64;
/// Requests of one that is alone until it is looked whether it is still there: behind a move,
const LOOK_EVERY_MIN: u32 = 8;
/// where it stays,
const LOOK_EVERY_STAYING: u32 = 32;
/// of one that is found elsewhere each time, at most,
const LOOK_EVERY_MOVING_MAX: u32 = 64;
/// and of one that is where this thread may not go.
const LOOK_EVERY_OUT_OF_REACH: u32 = 4 << 10;

/// What a thread knows of its caller. It belongs to that thread.
pub(super) struct Beside {
    follows: bool,
    caller: u32,
    /// Requests of `caller`, without any of others in between, until it is looked where it runs.
    until_look: u32,
    look_every: u32,
    /// The same if a request was waited for.
    until_doubt: u32,
    doubt_every: u32,
    tied: Option<Tied>,
}

struct Tied {
    to: usize,
    /// The caller was found there since, or its request was.
    was_right: bool,
    /// Where the thread could run before it was tied at all.
    before: libc::cpu_set_t,
}

impl Beside {
    /// `follows`: false to stay wherever the scheduler wants.
    pub(super) fn new(follows: bool) -> Beside {
        Beside {
            follows,
            caller: 0,
            until_look: ALONE_AFTER,
            look_every: LOOK_EVERY_MIN,
            until_doubt: 1,
            doubt_every: 1,
            tied: None,
        }
    }

    /// The calling thread has read a request of thread `caller` (0: the kernel of its own accord), for which it slept
    /// (`awaited`) or not. Returns where it runs from now on, if that has changed.
    pub(super) fn note(&mut self, caller: u32, streams: bool, awaited: bool) -> Option<libc::cpu_set_t> {
        if !self.follows || caller == 0 {
            return None;
        }
        if caller != self.caller || streams {
            (self.caller, self.look_every, self.until_look) = (caller, LOOK_EVERY_MIN, ALONE_AFTER);
            (self.until_doubt, self.doubt_every) = (1, 1);
            return self.untie();
        }
        self.until_look -= 1;
        self.until_doubt = self.until_doubt.saturating_sub(1);
        let doubts = match &mut self.tied {
            Some(_) if awaited => self.until_doubt == 0,
            Some(tied) => {
                tied.was_right = true;
                false
            }
            None => false,
        };
        if self.until_look > 0 && !doubts {
            return None;
        }
        let was_right = self.tied.as_ref().is_none_or(|tied| tied.was_right);
        let moved = self.look();
        self.until_look = self.look_every;
        self.doubt_every = match moved {
            Some(_) if was_right => 1,
            // As soon as this thread followed it, the caller was elsewhere.
            Some(_) => (2 * self.doubt_every).min(LOOK_EVERY_MOVING_MAX),
            None => (2 * self.doubt_every).min(LOOK_EVERY_STAYING),
        };
        self.until_doubt = self.doubt_every;
        moved
    }

    fn look(&mut self) -> Option<libc::cpu_set_t> {
        let Some(before) = self.tied.as_ref().map(|tied| tied.before).or_else(choice) else {
            self.look_every = LOOK_EVERY_OUT_OF_REACH;
            return None;
        };
        let found = cpus::of_thread(self.caller);
        if let Some(tied) = &mut self.tied
            && found == Some(tied.to)
        {
            tied.was_right = true;
            self.look_every = (2 * self.look_every).min(LOOK_EVERY_STAYING);
            return None;
        }
        let in_vain = self.tied.as_ref().is_some_and(|tied| !tied.was_right);
        self.look_every =
            if in_vain { (2 * self.look_every).min(LOOK_EVERY_MOVING_MAX) } else { LOOK_EVERY_MIN };
        let followed = found.and_then(|to| self.tie(to, before));
        if followed.is_none() {
            // It is where this thread may not go.
            self.look_every = LOOK_EVERY_OUT_OF_REACH;
            return self.untie();
        }
        followed
    }

    fn tie(&mut self, to: usize, before: libc::cpu_set_t) -> Option<libc::cpu_set_t> {
        let place = cpus::holds(&before, to).then(|| cpus::only(to))?;
        if !cpus::confine(&place) {
            return None;
        }
        self.tied = Some(Tied { to, was_right: false, before });
        Some(place)
    }

    fn untie(&mut self) -> Option<libc::cpu_set_t> {
        let tied = self.tied.take()?;
        if !cpus::confine(&tied.before) {
            tracing::debug!(cpu = tied.to, "a thread that reads requests stays tied to a CPU");
        }
        Some(tied.before)
    }
}

/// Where the calling thread may run, if there is a choice.
fn choice() -> Option<libc::cpu_set_t> {
    cpus::allowed().filter(|mask| cpus::count(mask) > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    fn allowed() -> libc::cpu_set_t {
        cpus::allowed().expect("the machines of tests have few CPUs")
    }

    fn is_tied_to(cpu: usize) -> bool {
        let mask = allowed();
        cpus::count(&mask) == 1 && cpus::holds(&mask, cpu)
    }

    /// A thread that goes where it is told.
    struct Caller {
        go: Sender<usize>,
        told: Receiver<u32>,
    }

    impl Caller {
        fn new() -> Caller {
            let (go, going) = channel();
            let (tell, told) = channel();
            std::thread::spawn(move || {
                for cpu in going {
                    assert!(cpus::confine(&cpus::only(cpu)));
                    // SAFETY: takes no arguments.
                    tell.send(unsafe { libc::gettid() } as u32).expect("the test waits");
                }
            });
            Caller { go, told }
        }

        fn on(&self, cpu: usize) -> u32 {
            self.go.send(cpu).expect("the caller waits");
            self.told.recv().expect("the caller has moved")
        }
    }

    /// Two CPUs of this machine; `None`: there is one.
    fn two_cpus() -> Option<[usize; 2]> {
        let all = allowed();
        let mut cpus = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| cpus::holds(&all, cpu));
        Some([cpus.next()?, cpus.next()?])
    }

    #[test]
    fn a_caller_that_is_alone_is_followed_until_another_one_asks() {
        let Some([first, second]) = two_cpus() else { return };
        let (all, go) = (allowed(), Caller::new());
        let mut beside = Beside::new(true);
        let mut ask = |caller: u32, count: u32| {
            (0..count)
                .filter_map(|_| beside.note(caller, false, false))
                .last()
                .map(|place| cpus::count(&place))
        };
        let caller = go.on(first);
        assert_eq!(ask(caller, 1 + ALONE_AFTER - 1), None, "it may not be alone yet");
        assert_eq!(ask(caller, 1), Some(1));
        assert!(is_tied_to(first));
        assert_eq!(ask(caller, LOOK_EVERY_MIN), None, "it is there");
        go.on(second);
        assert_eq!(ask(caller, LOOK_EVERY_STAYING), Some(1));
        assert!(is_tied_to(second));
        assert_eq!(ask(caller + 1, 1), Some(cpus::count(&all)), "it is not alone");
        assert_eq!(cpus::count(&allowed()), cpus::count(&all));
    }

    #[test]
    fn a_caller_whose_request_had_to_be_waited_for_is_followed_at_once() {
        let Some([first, second]) = two_cpus() else { return };
        let go = Caller::new();
        let mut beside = Beside::new(true);
        let caller = go.on(first);
        let mut ask = |count: u32, awaited: bool| {
            (0..count).filter_map(|_| beside.note(caller, false, awaited)).last().is_some()
        };
        assert!(ask(1 + ALONE_AFTER, false) && is_tied_to(first));
        for on in [second, first, second] {
            assert!(!ask(3, false), "nothing tells that it has gone");
            go.on(on);
            assert!(ask(1, true) && is_tied_to(on));
        }
        assert!(!ask(1, true), "it is there: it only took its time");
        go.on(first);
        assert!(!ask(1, true), "the hint was wrong the last time");
        assert!(ask(1, true) && is_tied_to(first));
    }

    #[test]
    fn a_caller_that_is_never_where_it_was_is_looked_for_less_often_but_not_seldom() {
        let Some(both) = two_cpus() else { return };
        let go = Caller::new();
        let mut beside = Beside::new(true);
        let caller = go.on(both[0]);
        beside.note(caller, false, true);
        let mut requests = 0;
        let mut every = Vec::new();
        for turn in 0..9 {
            let mut count = 1;
            while beside.note(caller, false, true).is_none() {
                count += 1;
            }
            assert!(is_tied_to(both[turn % 2]));
            every.push(count);
            requests += count;
            go.on(both[(turn + 1) % 2]);
        }
        let expected = [ALONE_AFTER, 1, 2, 4, 8, 16, 32, 64, 64];
        assert_eq!((every.as_slice(), requests), (&expected[..], expected.iter().sum()));
    }
}
