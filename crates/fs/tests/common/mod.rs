//! What the tests of the engine share: a volume in memory with a clock and chance of its own, and a power switch.
#![allow(dead_code)] // Every test program uses another part.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use syncline_device::{Device, MemoryDevice, Volatile};
use syncline_fs::{
    Clock, Context, Entropy, Error, Fs, FsOptions, HandleId, MkfsOptions, ObjectNo, OpenFlags, Result,
    Timestamp,
};

pub const ROOT: ObjectNo = ObjectNo::ROOT_DIR;
pub const MIB: u64 = 1 << 20;

/// A clock that moves a second with every look, so that every change has a time of its own.
pub struct TickingClock(AtomicI64);

impl Clock for TickingClock {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: self.0.fetch_add(1, Ordering::SeqCst), nanoseconds: 0 }
    }
}

impl TickingClock {
    pub fn starting_at(seconds: i64) -> TickingClock {
        TickingClock(AtomicI64::new(seconds))
    }
}

/// Counts, scrambled.
pub struct CountingEntropy(AtomicU64);

impl CountingEntropy {
    pub fn starting_at(number: u64) -> CountingEntropy {
        CountingEntropy(AtomicU64::new(number))
    }
}

impl Entropy for CountingEntropy {
    fn number(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// A volume whose device forgets what was not flushed when the power is cut.
pub struct Rig {
    pub memory: Arc<MemoryDevice>,
    pub volatile: Arc<Volatile>,
    pub clock: Arc<TickingClock>,
    pub entropy: CountingEntropy,
    pub options: FsOptions,
    pub fs: Arc<Fs>,
}

/// Set by a run of a test program by itself.
const FORMAT: &str = "SYNCLINE_TEST_FORMAT";

/// Version of the format that tests use where any will do.
fn format_under_test() -> u32 {
    let given = std::env::var(FORMAT).ok();
    given.map_or(MkfsOptions::default().format, |given| given.parse().expect("a version of the format"))
}

/// The tests of this program once more.
#[test]
fn all_holds_on_volumes_of_version_1_as_well() {
    if std::env::var_os(FORMAT).is_some() {
        return;
    }
    let mut again = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = again.env(FORMAT, "1").output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("test result: ok."), "{told}");
}

impl Rig {
    pub fn new() -> Rig {
        Rig::with_size(64 * MIB)
    }

    pub fn with_size(bytes: u64) -> Rig {
        let memory = Arc::new(MemoryDevice::new(bytes / 4096));
        let clock = Arc::new(TickingClock(AtomicI64::new(1_000_000)));
        let entropy = CountingEntropy(AtomicU64::new(1));
        let mkfs = MkfsOptions::default().format(format_under_test());
        Fs::format(&*memory, &mkfs, &*clock, &entropy, &mut |_, _| {}).expect("mkfs");
        let volatile = Arc::new(Volatile::new(memory.clone()));
        let options = FsOptions::default();
        let fs = open(volatile.clone(), &options, &clock, &entropy).expect("open");
        Rig { memory, volatile, clock, entropy, options, fs }
    }

    /// Cuts the power: what was not flushed is gone. Then opens again.
    pub fn crash(&mut self) {
        self.volatile = Arc::new(Volatile::new(self.memory.clone()));
        self.fs = open(self.volatile.clone(), &self.options, &self.clock, &self.entropy).expect("recovery");
    }

    /// Closes and opens again.
    pub fn reopen(&mut self) {
        self.fs.close().expect("close");
        self.crash();
    }
}

pub fn open(
    device: Arc<dyn Device>,
    options: &FsOptions,
    clock: &Arc<TickingClock>,
    entropy: &CountingEntropy,
) -> Result<Arc<Fs>> {
    Fs::open(device, options.clone(), clock.clone(), entropy)
}

pub fn root() -> Context {
    Context::root()
}

pub fn user(uid: u32, gid: u32) -> Context {
    Context { uid, gid, groups: vec![gid], umask: 0o022, pid: 1 }
}

pub fn lookup(fs: &Fs, parent: ObjectNo, name: &str) -> Result<ObjectNo> {
    Ok(fs.names().lookup(parent, name.as_bytes())?.attr.inode)
}

pub fn mkdir(fs: &Fs, parent: ObjectNo, name: &str) -> ObjectNo {
    fs.names().mkdir(&root(), parent, name.as_bytes(), 0o755).expect("mkdir").attr.inode
}

/// Makes an empty file.
pub fn touch(fs: &Fs, parent: ObjectNo, name: &str) -> ObjectNo {
    fs.names().mknod(&root(), parent, name.as_bytes(), 0o100644, 0).expect("mknod").attr.inode
}

/// Makes a file with content.
pub fn put(fs: &Fs, parent: ObjectNo, name: &str, content: &[u8]) -> ObjectNo {
    let (entry, handle) =
        fs.names().create(&root(), parent, name.as_bytes(), 0o644, OpenFlags::READ_WRITE).expect("create");
    write(fs, handle, 0, content);
    fs.files().release(handle).expect("release");
    entry.attr.inode
}

pub fn write(fs: &Fs, handle: HandleId, offset: u64, content: &[u8]) {
    let (at, count) = fs.files().write(&root(), handle, offset, content).expect("write");
    assert_eq!((at, count), (offset, content.len()));
}

pub fn content(fs: &Fs, number: ObjectNo) -> Vec<u8> {
    let handle = fs.files().open_handle(&root(), number, OpenFlags::READ).expect("open");
    let size = fs.files().handle_attr(handle).expect("attr").size;
    let mut bytes = vec![0; size as usize];
    let mut done = 0;
    while done < bytes.len() {
        let count = fs.files().read(handle, done as u64, &mut bytes[done..]).expect("read");
        assert!(count > 0, "the file ends before its size");
        done += count;
    }
    fs.files().release(handle).expect("release");
    bytes
}

/// Names in a directory, without `.` and `..`, with their inodes; fails on a doubled one.
pub fn list(fs: &Fs, directory: ObjectNo) -> BTreeMap<String, ObjectNo> {
    let handle = fs.files().opendir(directory).expect("opendir");
    let mut names = BTreeMap::new();
    fs.names()
        .readdir(handle, 2, &mut |entry| {
            let name = String::from_utf8(entry.name.to_vec()).expect("UTF-8");
            assert_eq!(names.insert(name, entry.inode), None, "an entry came twice");
            ControlFlow::Continue(())
        })
        .expect("readdir");
    fs.files().release(handle).expect("releasedir");
    names
}

pub fn names(fs: &Fs, directory: ObjectNo) -> Vec<String> {
    list(fs, directory).into_keys().collect()
}

pub fn error<T: std::fmt::Debug>(result: Result<T>) -> Error {
    result.expect_err("this must fail")
}

/// Checks link counts, entry counts and parents of the whole tree below the root.
pub fn check_tree(fs: &Fs) {
    let mut links: BTreeMap<ObjectNo, u32> = BTreeMap::new();
    let mut stack = vec![(ROOT, ROOT)];
    while let Some((directory, parent)) = stack.pop() {
        let attr = fs.attributes().getattr(directory).expect("attributes of a directory");
        assert_eq!(lookup(fs, directory, "..").expect("parent"), parent, "parent of {directory}");
        let entries = list(fs, directory);
        assert_eq!(attr.size, 32 * entries.len() as u64, "entries of {directory}");
        let mut subdirectories = 0;
        for (name, inode) in entries {
            let attr = fs.attributes().getattr(inode).unwrap_or_else(|error| panic!("{name}: {error}"));
            if attr.mode & 0o170000 == 0o040000 {
                subdirectories += 1;
                stack.push((inode, directory));
            } else {
                *links.entry(inode).or_default() += 1;
            }
        }
        assert_eq!(attr.nlink, 2 + subdirectories, "links of directory {directory}");
    }
    for (inode, links) in links {
        assert_eq!(fs.attributes().getattr(inode).expect("attributes").nlink, links, "links of {inode}");
    }
}
