//! Who asks: whether a sync comes from a caller that is alone.
//!
//! A lone caller's sync is driven where it arrived: by the thread that read it from /dev/fuse, or on the CPU of its
//! queue. To be woken elsewhere costs several times what the whole round trip does.
//!
//! Relaxed atomics: a wrong guess costs some microseconds and nothing else.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

#[derive(Debug)]
pub(crate) struct Callers {
    /// Who synced last, and whether anybody else made a request since.
    last_syncer: AtomicU32,
    others_since: AtomicBool,
}

impl Callers {
    pub(crate) fn new() -> Callers {
        Callers { last_syncer: AtomicU32::new(0), others_since: AtomicBool::new(true) }
    }

    /// Thread `pid` made a request (0: the kernel of its own accord).
    pub(crate) fn note(&self, pid: u32) {
        if pid != 0 && pid != self.last_syncer.load(Relaxed) && !self.others_since.load(Relaxed) {
            self.others_since.store(true, Relaxed);
        }
    }

    /// Whether thread `pid`, which syncs, is alone: nobody else has made a request since its last sync.
    pub(crate) fn is_lone_syncer(&self, pid: u32) -> bool {
        let same = self.last_syncer.swap(pid, Relaxed) == pid;
        let alone = !self.others_since.swap(false, Relaxed);
        same && alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_alone_from_its_second_sync_on_until_another_one_asks() {
        let callers = Callers::new();
        let sync = |pid| {
            callers.note(pid);
            callers.is_lone_syncer(pid)
        };
        assert_eq!([sync(7), sync(7), sync(7)], [false, true, true]);
        callers.note(8);
        assert_eq!([sync(7), sync(7)], [false, true]);
        callers.note(0);
        assert!(sync(7), "the kernel's own requests are nobody's");
        assert_eq!([sync(8), sync(7), sync(7)], [false, false, true]);
    }
}
