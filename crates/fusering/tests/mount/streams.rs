//! Large reads over io_uring come by a queue's deputy, which runs anywhere for them.

use crate::harness::Test;
use fusering::abi::AttrFlags;
use fusering::request::{GetAttr, Lookup, Read};
use fusering::{
    Attributes, Config, DeviceNumber, Entry, Filesystem, NodeId, ReplyAttributes, ReplyData, ReplyEntry,
    RequestContext, Time, TransportKind, UringSettings,
};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Mutex;
use std::time::Duration;

const FILE: NodeId = NodeId(2);
const FILE_BYTES: u64 = 64 << 20;
const LARGE: usize = 1 << 20;
/// Of the name that is asked for, which is never remembered.
const NOBODY: &str = "nobody";

/// One file, `file`: each page begins with its number.
struct Streaming {
    /// Reads are answered by another thread, if the one that brings them may not wait.
    elsewhere: bool,
    /// Of each request: whether it came by a deputy, and on how many CPUs that thread may run.
    came: Mutex<Vec<(bool, usize)>>,
}

/// On how many CPUs this thread may run.
fn cpus() -> usize {
    // SAFETY: all zeros is the empty set, which is then filled.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed), 0);
        libc::CPU_COUNT(&allowed) as usize
    }
}

impl Streaming {
    fn note(&self, context: &RequestContext<'_>) {
        self.came.lock().unwrap().push((context.may_wait(), cpus()));
    }

    fn noted(&self) -> Vec<(bool, usize)> {
        std::mem::take(&mut *self.came.lock().unwrap())
    }
}

fn attributes(node: NodeId) -> Attributes {
    let now = Time::now();
    let is_root = node == NodeId::ROOT;
    Attributes {
        ino: node.0,
        size: if is_root { 0 } else { FILE_BYTES },
        blocks: 0,
        accessed: now,
        modified: now,
        changed: now,
        mode: if is_root { 0o040755 } else { 0o100644 },
        links: 1,
        uid: 0,
        gid: 0,
        device: DeviceNumber::default(),
        block_bytes: 4096,
        flags: AttrFlags::empty(),
    }
}

impl Filesystem for Streaming {
    fn lookup(&self, context: &RequestContext<'_>, request: &Lookup<'_>, reply: ReplyEntry) {
        let forever = Duration::from_secs(1000);
        if request.name != "file" {
            self.note(context);
            return reply.absent(Duration::ZERO);
        }
        reply.entry(&Entry {
            node: FILE,
            generation: 0,
            entry_valid: forever,
            attributes_valid: forever,
            attributes: attributes(FILE),
        });
    }

    fn getattr(&self, _: &RequestContext<'_>, request: &GetAttr, reply: ReplyAttributes) {
        reply.attributes(&attributes(request.node), Duration::from_secs(1000));
    }

    fn read(&self, context: &RequestContext<'_>, request: &Read, reply: ReplyData) {
        self.note(context);
        let (offset, bytes) = (request.offset, request.size as usize);
        let answer = move || {
            reply.fill(bytes, |into| {
                for (page, at) in into.chunks_mut(4096).zip((offset..).step_by(4096)) {
                    page[..8].copy_from_slice(&at.to_ne_bytes());
                }
                Ok(bytes)
            });
        };
        match self.elsewhere && !context.may_wait() {
            true => drop(std::thread::spawn(answer)),
            false => answer(),
        }
    }
}

/// Memory on a page boundary, for reads past the page cache.
#[repr(align(4096))]
struct Aligned([u8; LARGE]);

fn read(file: &File, into: &mut Aligned, bytes: usize, offset: u64) {
    // SAFETY: the buffer has room.
    let read =
        unsafe { libc::pread(file.as_raw_fd(), into.0.as_mut_ptr().cast(), bytes, offset as libc::off_t) };
    assert_eq!(read, bytes as isize, "{}", std::io::Error::last_os_error());
    for (page, at) in into.0[..bytes].chunks(4096).zip((offset..).step_by(4096)) {
        assert_eq!(page[..8], at.to_ne_bytes());
    }
}

fn stream_and_ask(name: &str, elsewhere: bool) {
    let test = Test::new(TransportKind::Uring, name);
    let everywhere = cpus();
    let uring = UringSettings::default().deputy(true);
    let streaming = Streaming { elsewhere, came: Mutex::default() };
    let Some(mount) = test.mount(streaming, Config::default().uring(uring)) else { return };
    let (filesystem, path, nobody) = (mount.filesystem.clone(), mount.path("file"), mount.path(NOBODY));
    let caller = std::thread::spawn(move || {
        // SAFETY: all zeros is the empty set, to which a CPU is added.
        unsafe {
            let mut only: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut only);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&only), &raw const only), 0);
        }
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let mut into: Box<Aligned> = Box::new(Aligned([0; LARGE]));
        let mut at = (0..FILE_BYTES).step_by(LARGE).cycle();
        for _ in 0..3 {
            // An answer that comes before the handler has returned leaves the entry where it is.
            let goes_over = (0..1000).any(|_| {
                read(&file, &mut into, LARGE, at.next().unwrap());
                filesystem.noted() == [(true, everywhere)]
            });
            assert!(goes_over, "large reads come by the deputy in the end");
            (0..8).for_each(|_| read(&file, &mut into, LARGE, at.next().unwrap()));
            assert_eq!(filesystem.noted(), [(true, everywhere); 8]);
            // It is next to its caller for what is small.
            read(&file, &mut into, 4096, 0);
            assert!(std::fs::metadata(&nobody).is_err());
            assert_eq!(filesystem.noted(), [(true, 1); 2]);
        }
    });
    caller.join().expect("the thread's own assertions hold");
}

#[test]
fn large_reads_that_are_answered_at_once_come_by_a_deputy_that_runs_anywhere() {
    stream_and_ask("large_reads_that_are_answered_at_once_come_by_a_deputy_that_runs_anywhere", false);
}

#[test]
fn large_reads_that_other_threads_answer_come_by_a_deputy_that_runs_anywhere() {
    stream_and_ask("large_reads_that_other_threads_answer_come_by_a_deputy_that_runs_anywhere", true);
}
