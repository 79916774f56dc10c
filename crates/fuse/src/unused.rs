//! Memory that the daemon has and does not use goes back to the system.
//!
//! The bound on memory is one on what caches hold. Beside it there is what they held: wholly free slabs for buffers,
//! which are kept for the next burst, and pieces of the C library's heap that were freed. Behind a tree that was
//! unpacked and removed that was more than all caches together.
//!
//! - *Slabs* go back when nobody has needed them for a period.
//! - *The heap* is looked through when the daemon has worked and then had next to nothing to do for a period: whoever
//!   allocates waits meanwhile.

use std::time::{Duration, Instant};

/// As long as data waits to be written out by default, so that each period has its burst.
const PERIOD: Duration = Duration::from_secs(5);
/// Processor time of a period in which there was next to nothing to do.
const QUIET: Duration = Duration::from_millis(50);
/// Processor time behind which it is worth looking through the heap.
const WORTH: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Unused {
    looked: Instant,
    /// Processor time of the process so far.
    worked: Duration,
    /// And when the heap was looked through.
    trimmed: Duration,
}

/// What is to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    Slabs,
    SlabsAndHeap,
}

impl Unused {
    pub(crate) fn new(now: Instant) -> Unused {
        Unused { looked: now, worked: Duration::ZERO, trimmed: Duration::ZERO }
    }

    /// Gives back what was not used for a while. To be called now and then.
    pub(crate) fn maintain(&mut self, now: Instant) {
        let due = self.due(now, processor_time);
        if due == Due::Nothing {
            return;
        }
        syncline_device::give_back_unused_buffers();
        if due == Due::SlabsAndHeap {
            give_back_heap();
        }
    }

    fn due(&mut self, now: Instant, processor_time: impl FnOnce() -> Duration) -> Due {
        if now.duration_since(self.looked) < PERIOD {
            return Due::Nothing;
        }
        let worked = processor_time();
        let of_period = worked.saturating_sub(self.worked);
        (self.looked, self.worked) = (now, worked);
        if of_period >= QUIET || worked.saturating_sub(self.trimmed) < WORTH {
            return Due::Slabs;
        }
        self.trimmed = worked;
        Due::SlabsAndHeap
    }
}

/// Freed memory goes back to the system: the C library keeps what lies between pieces in use.
pub(crate) fn give_back_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// What all threads of this process have used so far.
fn processor_time() -> Duration {
    // SAFETY: all zeros is a value of the type.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_looked_through_once_when_work_has_ended() {
        let mut now = Instant::now();
        let mut unused = Unused::new(now);
        let mut after = |periods: u32, worked_ms: u64| {
            now += PERIOD * periods / 2;
            unused.due(now, || Duration::from_millis(worked_ms))
        };
        assert_eq!([after(1, 400), after(1, 400)], [Due::Nothing, Due::Slabs]);
        assert_eq!(
            [after(2, 410), after(2, 3_000)],
            [Due::Slabs, Due::Slabs],
            "little work; in the midst of work"
        );
        assert_eq!([after(2, 3_010), after(2, 3_020)], [Due::SlabsAndHeap, Due::Slabs]);
        assert_eq!([after(2, 3_400), after(2, 3_440)], [Due::Slabs, Due::Slabs]);
        assert_eq!([after(2, 3_900), after(2, 3_930)], [Due::Slabs, Due::SlabsAndHeap]);
    }

    #[test]
    fn processor_time_passes() {
        let before = processor_time();
        let mut sum = 0_u64;
        while processor_time() <= before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(before > Duration::ZERO);
    }
}
