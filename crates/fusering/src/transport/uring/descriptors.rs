//! How many descriptors this process may have.
//!
//! A queue takes two (its ring and its bell), and each of its two deputies two more; the kernel wants a queue for each
//! CPU that this machine could ever have. The usual limit of 1,024 is a soft one, kept low for programs that call
//! `select`; where the queues need more, it is raised. Deputies are a luxury: they leave some for everything else.

use super::queue::Role;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A queue's, or a deputy's.
const RING_DESCRIPTORS: usize = 2;
/// Descriptors for everything else in this process.
const OTHERS: usize = 64;

/// Raises the soft limit to the hard one if `queues` need that. It goes on without: what cannot be opened says so.
pub(super) fn make_room(queues: usize, with_deputies: bool) {
    // Besides what is open already and what is to be left.
    let needed =
        RING_DESCRIPTORS * queues * (1 + if with_deputies { Role::DEPUTIES.len() } else { 0 }) + 2 * OTHERS;
    let Ok(limit) = limit() else { return };
    if needed as libc::rlim_t <= limit.rlim_cur || limit.rlim_cur >= limit.rlim_max {
        return;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: a valid limit.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } != 0 {
        let error = io::Error::last_os_error();
        tracing::debug!(%error, needed, "the limit on open files stays as it is");
    }
}

/// EMFILE if these, which were opened last, have left fewer than [`OTHERS`]. The kernel gives the lowest number that
/// is free.
pub(super) fn leave_some(opened: &[BorrowedFd<'_>]) -> io::Result<()> {
    let next = opened.iter().map(|fd| fd.as_raw_fd() as usize + 1).max().unwrap_or(0);
    match limit() {
        Ok(limit) if (next + OTHERS) as libc::rlim_t > limit.rlim_cur => {
            Err(io::Error::from_raw_os_error(libc::EMFILE))
        }
        _ => Ok(()),
    }
}

fn limit() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one limit.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Prepared, prepare};
    use super::*;
    use crate::session::UringSettings;
    use crate::transport::cpus;
    use std::fs::File;
    use std::process::Command;

    /// Which limits the other process has.
    const LIMITS: &str = "FUSERING_TEST_LIMITS";
    const OTHER_PROCESS: &str = "transport::uring::descriptors::tests::rings_within_limits";

    /// Runs a test of this file in a process of its own, which limits concern alone.
    fn within(limits: &str) {
        let program = std::env::current_exe().expect("tests have a file");
        let status = Command::new(program)
            .args(["--exact", OTHER_PROCESS, "--nocapture"])
            .env(LIMITS, limits)
            .status();
        assert!(status.expect("this program can be started").success(), "{limits}");
    }

    #[test]
    fn a_soft_limit_is_raised_for_the_queues() {
        within("soft");
    }

    #[test]
    fn queues_go_without_deputies_where_there_are_no_descriptors_for_them() {
        within("none");
        within("one");
    }

    /// The other process of the tests above.
    #[test]
    fn rings_within_limits() {
        let Ok(limits) = std::env::var(LIMITS) else { return };
        let next = File::open("/dev/null").expect("it is there").as_raw_fd() as usize;
        // What this process has inherited further up would be in between.
        // SAFETY: nobody in this process uses them.
        unsafe { libc::syscall(libc::SYS_close_range, next, u32::MAX, 0) };
        let queues = usize::from(cpus::possible_count().expect("this machine says"));
        let (enough_for_queues, all) =
            (next + RING_DESCRIPTORS * queues, next + 3 * RING_DESCRIPTORS * queues);
        let (soft, hard, deputies) = match limits.as_str() {
            "soft" => (enough_for_queues, all + OTHERS, 2 * queues),
            "none" => (enough_for_queues + OTHERS, enough_for_queues + OTHERS, 0),
            _ => (enough_for_queues, enough_for_queues + OTHERS + RING_DESCRIPTORS, 1),
        };
        let limit =
            libc::rlimit { rlim_cur: soft.max(next + 1) as libc::rlim_t, rlim_max: hard as libc::rlim_t };
        // SAFETY: a valid limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        let settings = UringSettings { depth: 3, deputy: true, ..UringSettings::default() };
        let Prepared { workers } = match prepare(&settings, 4096) {
            Ok(prepared) => prepared,
            Err(why) if is_refused_here() => return println!("skipped: rings_within_limits: {why}"),
            Err(why) => panic!("queues need no deputies: {why}"),
        };
        let with = workers.iter().map(|worker| worker.deputies.len()).sum::<usize>();
        assert_eq!((workers.len(), with), (queues, deputies), "{limits}");
    }

    /// Whether this process gets no rings at all, which has other reasons than limits.
    fn is_refused_here() -> bool {
        let Err(error) = io_uring::IoUring::new(1) else { return false };
        error.raw_os_error() != Some(libc::EMFILE)
    }
}
