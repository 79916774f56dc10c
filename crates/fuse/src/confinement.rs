//! What the daemon gives up once it has its device: it serves programs of all users, and needs little for that.
//!
//! Root's daemon keeps the capabilities of the mount: to mount and unmount (CAP_SYS_ADMIN), to find the mount point
//! again through directories of others (CAP_DAC_READ_SEARCH), and to see in /proc who asks (CAP_SYS_PTRACE,
//! `privilege`); and the one to have a ring for each CPU however little memory a user may lock (CAP_IPC_LOCK): what
//! all of a user's mounts have is added up, and the usual 8 MiB are about a hundred rings. Its threads leave the class
//! SCHED_IDLE as RLIMIT_NICE allows; where that cannot be raised, by CAP_SYS_NICE. It gains no other, for it executes
//! no program any more. A daemon of anybody else has none to begin with; it unmounts by fusermount3, which
//! is set-user-ID, so it may still gain what that has. Memory holds files of all users: no daemon leaves a core dump.
//!
//! Capabilities are each thread's own and inherited: this comes before the first other thread.

use fusering::{may_mount, raise_nice_limit};
use std::io;

const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_NICE: u32 = 23;
const KEPT: u64 = 1 << CAP_DAC_READ_SEARCH | 1 << CAP_IPC_LOCK | 1 << CAP_SYS_PTRACE | 1 << CAP_SYS_ADMIN;

/// `_LINUX_CAPABILITY_VERSION_3` of linux/capability.h: two words of 32 bits.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

type Step = fn() -> io::Result<()>;

/// Gives up what is not needed from here on. The daemon works with more, too: where the system refuses, that is told
/// and no more.
pub(crate) fn confine() {
    let steps: [(&str, Step); 3] = [
        ("core dumps", forbid_core_dumps),
        ("new privileges", forbid_new_privileges),
        ("capabilities", drop_capabilities),
    ];
    // Without root there are none to give up, and fusermount3 needs what it gains.
    let count = if may_mount() { steps.len() } else { 1 };
    for (what, give_up) in &steps[..count] {
        if let Err(error) = give_up() {
            tracing::warn!(%error, what, "the daemon keeps what it does not need");
        }
    }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn forbid_core_dumps() -> io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid limit.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) })
}

/// prctl(2) takes words, whatever its declaration says.
fn prctl(option: libc::c_int, first: libc::c_int, second: u32) -> io::Result<()> {
    let [first, second, none] = [first as libc::c_ulong, libc::c_ulong::from(second), 0];
    // SAFETY: the calls made here take numbers only.
    checked(unsafe { libc::prctl(option, first, second, none, none) })
}

fn forbid_new_privileges() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)
}

fn drop_capabilities() -> io::Result<()> {
    let kept = if raise_nice_limit() { KEPT } else { KEPT | 1 << CAP_SYS_NICE };
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0)?;
    for capability in (0..64).filter(|capability| kept >> capability & 1 == 0) {
        match prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            // EINVAL: the kernel has no more of them. EPERM: without the right to it, as in a container, the set
            // stays; nothing is executed that could use it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => break,
            result => result?,
        }
    }
    let header = Header { version: CAPABILITY_VERSION, pid: 0 };
    let mut words = [Word::default(); 2];
    // SAFETY: the version says that the kernel writes two words.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw const header, words.as_mut_ptr()) };
    checked(got as libc::c_int)?;
    for (word, kept) in words.iter_mut().zip([kept as u32, (kept >> 32) as u32]) {
        let permitted = word.permitted & kept;
        *word = Word { effective: permitted, permitted, inheritable: 0 };
    }
    // SAFETY: the version says that the kernel reads two words.
    checked(unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) } as libc::c_int)
}
