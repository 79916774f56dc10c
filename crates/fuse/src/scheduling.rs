//! How soon the daemon's threads run once somebody waits for them.
//!
//! A request costs its caller several switches to threads that run for some microseconds each. Where more threads
//! want to run than there are CPUs, each of them queues up behind the callers' own work, for a whole slice at worst
//! (milliseconds). A thread may tell the scheduler that it wants little at a time: it then runs sooner and is
//! preempted sooner, for the same share of the CPU (Linux 6.12; older kernels ignore it). Threads inherit this from
//! the one that starts them.

use fusering::scheduling::Scheduling;
use std::io;

/// What the daemon's threads ask for: the shortest that the kernel grants.
const SHORT_SLICE_NS: u64 = 100_000;
/// Asks for what everybody has.
const USUAL_SLICE_NS: u64 = 0;

/// For a thread for which somebody waits, and those that it will start.
pub(crate) fn ask_for_short_slices() {
    ask("short slices", SHORT_SLICE_NS);
}

/// How much nicer a thread is that works behind those for which somebody waits.
#[cfg(feature = "replica")]
const BEHIND_NICER: i32 = 10;

/// For a thread whose work nobody waits for, and that has much of it at a time, and those that it will start.
#[cfg(feature = "replica")]
pub(crate) fn work_behind() {
    let set = || {
        let own = Scheduling::of_this_thread()?;
        match own.is_usual() {
            true => own.with_slice_ns(USUAL_SLICE_NS).behind(BEHIND_NICER).apply(),
            false => io::Result::Ok(()),
        }
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "the scheduler does not let a thread work behind others");
    }
}

/// For a thread that works in the background.
pub(crate) fn ask_for_usual_slices() {
    ask("usual slices", USUAL_SLICE_NS);
}

fn ask(what: &str, nanoseconds: u64) {
    // It works without; a sandbox may forbid the call.
    if let Err(error) = set_slice(nanoseconds) {
        tracing::debug!(%error, what, "the scheduler does not give");
    }
}

/// Of the calling thread, if it is scheduled as usual and not by a policy that somebody has chosen for it.
fn set_slice(nanoseconds: u64) -> io::Result<()> {
    let scheduling = Scheduling::of_this_thread()?;
    match scheduling.is_usual() {
        true => scheduling.with_slice_ns(nanoseconds).apply(),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice() -> u64 {
        Scheduling::of_this_thread().unwrap().slice_ns()
    }

    #[test]
    fn threads_inherit_short_slices_and_one_in_the_background_gives_them_back() {
        let usual = std::thread::spawn(slice).join().unwrap();
        let slices = std::thread::spawn(move || {
            ask_for_short_slices();
            let inherited = std::thread::spawn(|| {
                let inherited = slice();
                ask_for_usual_slices();
                (inherited, slice())
            });
            (slice(), inherited.join().unwrap())
        });
        let (short, (inherited, given_back)) = slices.join().unwrap();
        if usual == 0 || short == usual {
            return println!("skipped: slices: this kernel does not let threads ask for theirs");
        }
        assert_eq!((short, inherited, given_back), (SHORT_SLICE_NS, SHORT_SLICE_NS, usual));
    }

    #[cfg(feature = "replica")]
    #[test]
    fn a_thread_that_works_behind_others_is_nicer_and_so_is_what_it_starts() {
        let nice = || Scheduling::of_this_thread().unwrap().nice();
        let (own, behind, started) = std::thread::spawn(move || {
            let own = nice();
            work_behind();
            (own, nice(), std::thread::spawn(nice).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((behind, started), ((own + BEHIND_NICER).min(19), behind));
    }
}
