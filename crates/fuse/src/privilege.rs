//! Whether a caller has CAP_SYS_ADMIN, which FUSE does not tell: it tells user and group.
//!
//! The capabilities are looked up in /proc, of the calling thread: it waits for the answer, so its number is nobody
//! else's meanwhile. They count for the user namespace that the caller is in, and root of a container's is not ours;
//! so it has to be the daemon's. A daemon that does not have the capability itself serves the image of whoever
//! started it, and that user may do with the image what he likes.

use crate::convert::Caller;
use std::os::unix::fs::MetadataExt;

/// Bit of `CapEff` in `/proc/PID/status`.
const CAP_SYS_ADMIN: u32 = 21;

/// Whether `caller` may do what the kernel keeps to CAP_SYS_ADMIN.
pub(crate) fn may_administer(caller: &Caller) -> bool {
    let pid = caller.pid.to_string();
    // 0: it is in a namespace of processes that the daemon does not see.
    if caller.pid != 0 && is_administrator(&pid) && user_namespace(&pid) == user_namespace("self") {
        return true;
    }
    // SAFETY: geteuid has no preconditions and cannot fail.
    let own = unsafe { libc::geteuid() };
    caller.uid == own && !is_administrator("self")
}

fn is_administrator(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    effective(&status).is_some_and(|capabilities| capabilities >> CAP_SYS_ADMIN & 1 == 1)
}

/// Effective capabilities in the text of `/proc/PID/status`.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
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
    fn capabilities_are_read_as_the_kernel_writes_them() {
        let status = |line: &str| format!("Name:\tfstrim\n{line}\nCapBnd:\t000001ffffffffff\n");
        let is_admin = |line: &str| effective(&status(line)).map(|bits| bits >> CAP_SYS_ADMIN & 1 == 1);
        assert_eq!(is_admin("CapEff:\t000001ffffffffff"), Some(true));
        assert_eq!(is_admin("CapEff:\t000001ffffdfffff"), Some(false));
        assert_eq!(is_admin("CapPrm:\t000001ffffffffff"), None);
        assert!(effective("").is_none());
        assert!(user_namespace("self").is_some());
    }

    #[test]
    fn nobody_without_a_number_is_an_administrator() {
        let hidden = Caller { uid: u32::MAX, gid: 0, pid: 0 };
        assert!(!may_administer(&hidden));
    }
}
