//! Where a caller that is alone is served over /dev/fuse.

use crate::harness::{Test, wait_until};
use fusering::abi::AttrFlags;
use fusering::request::{GetAttr, Lookup};
use fusering::{
    Attributes, Config, DevSettings, DeviceNumber, Errno, Filesystem, NodeId, ReplyAttributes, ReplyEntry,
    RequestContext, Time, TransportKind,
};
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// More requests than it takes until a caller counts as alone, and until it is looked where it runs.
const MANY: usize = 400;

/// Has no names, and notes where it is asked for them.
#[derive(Default)]
struct Nowhere {
    /// The CPU of the last lookup, and on how many its thread may run.
    last: Mutex<(usize, usize)>,
}

/// The CPU of this thread, and on how many it may run.
fn place() -> (usize, usize) {
    // SAFETY: all zeros is the empty set, which is then filled.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed), 0);
        (libc::sched_getcpu() as usize, libc::CPU_COUNT(&allowed) as usize)
    }
}

/// Moves this thread.
fn run_on(cpu: usize) {
    // SAFETY: all zeros is the empty set; the machine's CPUs are within it.
    unsafe {
        let mut only: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut only);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&only), &raw const only), 0);
    }
}

impl Filesystem for Nowhere {
    fn lookup(&self, _: &RequestContext<'_>, _: &Lookup<'_>, reply: ReplyEntry) {
        *self.last.lock().unwrap() = place();
        reply.absent(Duration::ZERO);
    }

    fn getattr(&self, _: &RequestContext<'_>, request: &GetAttr, reply: ReplyAttributes) {
        if request.node != NodeId::ROOT {
            return reply.error(Errno::ENOENT);
        }
        let now = Time::now();
        let attributes = Attributes {
            ino: 1,
            size: 0,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            mode: 0o040755,
            links: 2,
            uid: 0,
            gid: 0,
            device: DeviceNumber::default(),
            block_bytes: 4096,
            flags: AttrFlags::empty(),
        };
        reply.attributes(&attributes, Duration::from_secs(1000));
    }
}

fn look_up(root: &Path, count: usize) {
    for _ in 0..count {
        fs::metadata(root.join("nobody")).expect_err("there are no names");
    }
}

#[test]
fn a_caller_that_is_alone_is_served_on_its_cpu_until_another_one_asks() {
    let test =
        Test::new(TransportKind::Dev, "a_caller_that_is_alone_is_served_on_its_cpu_until_another_one_asks");
    let (_, cpus) = place();
    if cpus < 2 {
        return test.skip("there is one CPU");
    }
    let Some(mount) = test.mount(Nowhere::default(), Config::default()) else { return };
    let last = || *mount.filesystem.last.lock().unwrap();
    let (filesystem, root) = (mount.filesystem.clone(), mount.root().to_owned());
    let caller = std::thread::spawn(move || {
        for cpu in [0, 1, 0] {
            run_on(cpu);
            // A thread that takes another one's place has to learn it anew.
            wait_until("a caller is served on its CPU", || {
                look_up(&root, MANY);
                *filesystem.last.lock().unwrap() == (cpu, 1)
            });
        }
    });
    caller.join().unwrap();
    look_up(mount.root(), 1);
    assert_eq!(last().1, cpus, "another caller is served wherever there is time");
}

#[test]
fn who_does_not_want_its_threads_moved_says_so() {
    let test = Test::new(TransportKind::Dev, "who_does_not_want_its_threads_moved_says_so");
    let dev = DevSettings::default().follow_lone_caller(false);
    let Some(mount) = test.mount(Nowhere::default(), Config::default().dev(dev)) else { return };
    look_up(mount.root(), MANY);
    assert_eq!(mount.filesystem.last.lock().unwrap().1, place().1);
}
