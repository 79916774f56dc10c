//! Whether a caller has CAP_SYS_ADMIN, which FUSE does not tell: it tells user and group.
//!
//! The kernel is asked for the capabilities of the calling thread (`capget`): it waits for the answer, so its number is
//! nobody else's meanwhile. They count for the user namespace that the caller is in, and root of a container's is not
//! ours; so it has to be the daemon's, which /proc tells. A daemon that does not have the capability itself serves the
//! image of whoever started it, and that user may do with the image what he likes.

use crate::convert::Caller;
use rustix::thread::{CapabilitySet, Pid, capabilities};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Whether `caller` may do what the kernel keeps to CAP_SYS_ADMIN.
pub(crate) fn may_administer(caller: &Caller) -> bool {
    // None for 0: it is in a namespace of processes that the daemon does not see.
    let thread = i32::try_from(caller.pid).ok().and_then(Pid::from_raw);
    if thread.is_some_and(|thread| is_administrator(Some(thread)) && is_in_our_namespace(thread)) {
        return true;
    }
    // SAFETY: geteuid has no preconditions and cannot fail.
    let own = unsafe { libc::geteuid() };
    caller.uid == own && !is_administrator(None)
}

/// `None`: the calling thread.
fn is_administrator(thread: Option<Pid>) -> bool {
    capabilities(thread).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

fn is_in_our_namespace(thread: Pid) -> bool {
    // The daemon never leaves its own.
    static OURS: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    let theirs = user_namespace(&thread.as_raw_nonzero().to_string());
    theirs == *OURS.get_or_init(|| user_namespace("self"))
}

/// `None` where it cannot be looked at, which is equal to no other but `None`: a kernel without such namespaces has
/// one.
fn user_namespace(process: &str) -> Option<(u64, u64)> {
    let namespace = std::fs::metadata(format!("/proc/{process}/ns/user")).ok()?;
    Some((namespace.dev(), namespace.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_asked_for_by_its_number_and_nobody_has_that_of_none() {
        // SAFETY: no preconditions.
        let own = Pid::from_raw(unsafe { libc::gettid() });
        assert_eq!(is_administrator(own), is_administrator(None));
        assert!(own.is_some_and(is_in_our_namespace));
        assert!(user_namespace("self").is_some());
        // Beyond the largest that the kernel gives.
        assert!(!is_administrator(Pid::from_raw(i32::MAX)));
    }

    #[test]
    fn a_thread_without_the_capability_is_no_administrator() {
        let without = || {
            let mut sets = capabilities(None)?;
            sets.effective.remove(CapabilitySet::SYS_ADMIN);
            // Of this thread alone.
            rustix::thread::set_capabilities(None, sets)?;
            Ok::<_, std::io::Error>(is_administrator(None))
        };
        let told = std::thread::spawn(without).join().expect("it does not panic");
        assert!(!told.expect("a thread may give up what it has"));
    }

    #[test]
    fn nobody_without_a_number_is_an_administrator() {
        let hidden = Caller { uid: u32::MAX, gid: 0, pid: 0 };
        assert!(!may_administer(&hidden));
    }
}
