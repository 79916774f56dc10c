//! What is told when the device fails (C8), and that nothing waits for what must not be waited for.

use super::{MIB, TestClock, pattern};
use crate::SyncScope;
use crate::content::inode::Inode;
use crate::write::WriteAt;
use crate::{Context, Error, Fs, FsOptions, MkfsOptions, Reach, SystemEntropy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use syncline_device::{Buffer, Device, DeviceError, Layer, MemoryDevice, Operation, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo, ObjectNo};
use syncline_store::StoreError;

/// A device whose larger writes can be made to fail.
struct Faulty {
    inner: MemoryDevice,
    /// Writes of at least this many blocks fail.
    failing_blocks: AtomicU64,
    flush_fails: AtomicBool,
}

impl Layer for Faulty {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let blocks = data.iter().map(|buffer| buffer.blocks()).sum::<u64>();
        if blocks >= self.failing_blocks.load(Ordering::Relaxed) {
            return Ticket::completed(Err(DeviceError::OutOfRange {
                operation: Operation::Write,
                block: at,
                blocks,
            }));
        }
        self.inner.submit_write(at, data)
    }

    fn on_flush(&self) -> Ticket {
        if self.flush_fails.load(Ordering::Relaxed) {
            let (operation, block) = (Operation::Flush, BlockNo(0));
            return Ticket::completed(Err(DeviceError::OutOfRange { operation, block, blocks: 0 }));
        }
        self.inner.submit_flush()
    }

    fn on_wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        ticket.result().expect("every ticket is complete when it is returned")
    }
}

/// A device on a host without any space left.
struct Full(Arc<Faulty>);

impl Layer for Full {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn on_write(&self, block: BlockNo, _data: Vec<Arc<Buffer>>) -> Ticket {
        Ticket::completed(Err(DeviceError::Io { operation: Operation::Write, block, errno: 28 }))
    }

    fn on_wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        ticket.result().expect("every ticket is complete when it is returned")
    }
}

#[test]
fn a_full_host_is_told_with_what_helps_and_the_volume_opens_read_only() {
    let (device, fs) = volume();
    // Images that recovery has to bring home.
    let inode = create(&fs, "file");
    fs.files.writer.file_write(&inode, WriteAt::End, b"synced", &mut |_| {}).unwrap();
    fs.syncs.file_sync(&inode, SyncScope::All).unwrap();
    drop(inode);
    for closed in [false, true] {
        let open = |read_only| {
            let options = FsOptions { read_only, ..FsOptions::default() };
            let full = Arc::new(Full(device.clone()));
            Fs::open(full, options, Arc::new(TestClock::default()), &SystemEntropy::default())
        };
        if closed {
            fs.close().unwrap();
        }
        let told = open(false).map(drop).unwrap_err();
        assert!(matches!(told, Error::HostFull { .. }) && told.errno() == 28, "{told}");
        assert!(told.to_string().contains("-o ro"), "{told}");
        let read_only = open(true).unwrap();
        assert_eq!(read_only.names.lookup(ObjectNo::ROOT_DIR, b"file").unwrap().attr.size, 6);
    }
}

fn volume() -> (Arc<Faulty>, Arc<Fs>) {
    let device = Arc::new(Faulty {
        inner: MemoryDevice::new(64 * MIB / BLOCK_BYTES as u64),
        failing_blocks: AtomicU64::new(u64::MAX),
        flush_fails: AtomicBool::new(false),
    });
    let clock = Arc::new(TestClock::default());
    let mkfs = MkfsOptions { journal_bytes: Some(4 * MIB), ..MkfsOptions::default() };
    Fs::format(&*device, &mkfs, &*clock, &SystemEntropy::default(), &mut |_, _| {}).unwrap();
    let fs = Fs::open(device.clone(), FsOptions::default(), clock, &SystemEntropy::default()).unwrap();
    (device, fs)
}

fn start_sync(fs: &Fs, inode: &Arc<Inode>, done: Box<dyn FnOnce(crate::Result<()>) + Send>) {
    let mut plan = fs.syncs.plan_for(inode, SyncScope::All, Reach::Whole).unwrap();
    let lsn = fs.syncs.commit(&mut plan).unwrap();
    fs.syncs.start_force(lsn, done);
}

fn create(fs: &Fs, name: &str) -> Arc<crate::content::inode::Inode> {
    let entry = fs.names.mknod(&Context::root(), ObjectNo::ROOT_DIR, name.as_bytes(), 0o100644, 0).unwrap();
    fs.content.inode(entry.attr.inode).unwrap()
}

#[test]
fn failed_data_write_fails_this_and_all_later_syncs() {
    for size in [100_000, 6 << 20] {
        let (device, fs) = volume();
        let (inode, other) = (create(&fs, "a"), create(&fs, "b"));
        fs.files.writer.file_write(&other, WriteAt::End, b"durable", &mut |_| {}).unwrap();
        fs.syncs.file_sync(&other, SyncScope::All).unwrap();
        fs.files.writer.file_write(&inode, WriteAt::End, &pattern(1, size), &mut |_| {}).unwrap();
        device.failing_blocks.store(20, Ordering::Relaxed);
        fs.syncs.file_sync(&inode, SyncScope::All).unwrap_err();
        device.failing_blocks.store(u64::MAX, Ordering::Relaxed);
        for _ in 0..2 {
            let error = fs.syncs.file_sync(&inode, SyncScope::All).unwrap_err();
            assert!(matches!(error, Error::Store(StoreError::Failed { .. })), "{error}");
            fs.syncs.file_sync(&other, SyncScope::Data).unwrap_err();
        }
        assert!(fs.files.writer.file_write(&inode, WriteAt::End, b"more", &mut |_| {}).is_err());
        let mut content = vec![0; size];
        assert_eq!(
            fs.shape.file_read(&inode, 0, &mut content).unwrap(),
            size,
            "what is in memory can be read"
        );
        assert_eq!(content, pattern(1, size));
        assert!(!fs.maintain(crate::Timestamp { seconds: 1 << 40, nanoseconds: 0 }, 8).unwrap());
    }
}

#[test]
fn failed_flush_is_told_to_everyone_who_waits() {
    let (device, fs) = volume();
    let inode = create(&fs, "a");
    fs.files.writer.file_write(&inode, WriteAt::End, b"content", &mut |_| {}).unwrap();
    device.flush_fails.store(true, Ordering::Relaxed);
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |result: crate::Result<()>| sender.send(result).unwrap());
    start_sync(&fs, &inode, done);
    while fs.core.store.drive() {}
    receiver.recv().unwrap().unwrap_err();
    device.flush_fails.store(false, Ordering::Relaxed);
    fs.syncs.file_sync(&inode, SyncScope::All).unwrap_err();
    fs.syncs.sync_all().unwrap_err();
}

#[test]
fn started_sync_completes_by_driving_the_store() {
    let (device, fs) = volume();
    let inode = create(&fs, "a");
    fs.files.writer.file_write(&inode, WriteAt::End, &pattern(1, 50_000), &mut |_| {}).unwrap();
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |result: crate::Result<()>| sender.send(result).unwrap());
    start_sync(&fs, &inode, done);
    while fs.core.store.drive() {}
    receiver.recv().unwrap().unwrap();
    let flushes = device.counters().flushes;
    fs.syncs.file_sync(&inode, SyncScope::All).unwrap();
    assert_eq!(device.counters().flushes, flushes, "it is durable already");
}
