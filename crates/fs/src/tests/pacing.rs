//! How much of a large sync is in flight in the device, alone and beside small syncs and reads: counted on a device
//! that completes a write only when somebody waits for it.

use super::{MIB, TestClock, pattern};
use crate::SyncScope;
use crate::content::inode::Inode;
use crate::core::account::Standing;
use crate::write::WriteAt;
use crate::{Context, Fs, FsOptions, MkfsOptions, SystemEntropy};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, MemoryDevice, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo, ObjectNo};

/// Room for a record of the journal beside the bulk data.
const JOURNAL_BYTES: u64 = 64 << 10;

/// Writes that were submitted and not completed.
#[derive(Default)]
struct Queue {
    writes: VecDeque<(Ticket, BlockNo, Vec<Arc<Buffer>>)>,
    bytes: u64,
    bytes_most: u64,
}

struct LazyDevice {
    inner: MemoryDevice,
    queue: Mutex<Queue>,
    /// Called within the next flush.
    during_flush: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl LazyDevice {
    fn complete_first(&self) -> bool {
        let mut queue = self.queue.lock().unwrap();
        let Some((ticket, at, data)) = queue.writes.pop_front() else { return false };
        queue.bytes -= bytes(&data);
        ticket.complete(self.inner.write(at, data));
        true
    }

    /// The most that was in flight together since this was asked for the last time.
    fn most_in_flight(&self) -> u64 {
        std::mem::take(&mut self.queue.lock().unwrap().bytes_most)
    }
}

fn bytes(data: &[Arc<Buffer>]) -> u64 {
    data.iter().map(|buffer| buffer.blocks()).sum::<u64>() * BLOCK_BYTES as u64
}

impl Device for LazyDevice {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(at, into)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let ticket = Ticket::pending();
        let mut queue = self.queue.lock().unwrap();
        queue.bytes += bytes(&data);
        queue.bytes_most = queue.bytes_most.max(queue.bytes);
        queue.writes.push_back((ticket.clone(), at, data));
        ticket
    }

    fn submit_flush(&self) -> Ticket {
        let act = self.during_flush.lock().unwrap().take();
        act.into_iter().for_each(|act| act());
        self.inner.submit_flush()
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        while !ticket.is_complete() && self.complete_first() {}
        ticket.result().unwrap_or(Ok(()))
    }

    fn poll(&self) {}

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.inner.discard(at, blocks)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

fn volume() -> (Arc<LazyDevice>, Arc<Fs>) {
    let device = MemoryDevice::new(256 * MIB / BLOCK_BYTES as u64);
    let clock = Arc::new(TestClock::default());
    let entropy = SystemEntropy::default();
    Fs::format(&device, &MkfsOptions::default(), &*clock, &entropy, &mut |_, _| {}).unwrap();
    let device =
        Arc::new(LazyDevice { inner: device, queue: Mutex::default(), during_flush: Mutex::default() });
    let fs = Fs::open(device.clone(), FsOptions::default(), clock, &entropy).unwrap();
    (device, fs)
}

fn create(fs: &Fs, name: &str) -> Arc<Inode> {
    let entry = fs.names.mknod(&Context::root(), ObjectNo::ROOT_DIR, name.as_bytes(), 0o100644, 0).unwrap();
    fs.content.inode(entry.attr.inode).unwrap()
}

fn dirty(fs: &Fs, inode: &Arc<Inode>, bytes: u64) {
    fs.files
        .writer
        .file_write(inode, WriteAt::Offset(0), &pattern(bytes, bytes as usize), &mut |_| {})
        .unwrap();
}

/// What keeps a device busy that does not say otherwise.
const BUSY: u64 = 2 * MIB;

#[test]
fn a_large_sync_keeps_little_in_flight_beside_small_ones_and_as_much_as_keeps_the_device_busy_alone() {
    let (device, fs) = volume();
    let (large, small) = (create(&fs, "large"), create(&fs, "small"));
    dirty(&fs, &large, 32 * MIB);
    device.most_in_flight();
    fs.syncs.file_sync(&large, SyncScope::All).unwrap();
    let alone = device.most_in_flight();
    assert!((BUSY..=BUSY + JOURNAL_BYTES).contains(&alone), "{alone}");

    dirty(&fs, &large, 32 * MIB);
    dirty(&fs, &small, 4096);
    fs.syncs.file_sync(&small, SyncScope::All).unwrap();
    device.most_in_flight();
    fs.syncs.file_sync(&large, SyncScope::All).unwrap();
    let beside = device.most_in_flight();
    assert!(beside <= MIB / 4 + JOURNAL_BYTES, "{beside}");

    // Nobody syncs any more: at first still careful, then as fast as the device takes it.
    for _ in 0..2 {
        dirty(&fs, &large, 48 * MIB);
        fs.syncs.file_sync(&large, SyncScope::All).unwrap();
    }
    let alone = device.most_in_flight();
    assert!((BUSY..=BUSY + JOURNAL_BYTES).contains(&alone), "{alone}");
}

#[test]
fn the_background_keeps_little_in_flight_for_a_first_sync_to_wait_behind_also_when_memory_is_short() {
    let (device, fs) = volume();
    let large = create(&fs, "large");
    let of_background = || {
        device.most_in_flight();
        fs.maintain(fs.core.clock.now(), 64).unwrap();
        device.most_in_flight()
    };
    dirty(&fs, &large, 32 * MIB);
    let alone = of_background();
    assert!(alone <= BUSY + JOURNAL_BYTES, "{alone}");
    assert!(!fs.writeback.has_many_dirty(), "all of it was written in one call");
    // Pages that cannot be dropped for another reason.
    dirty(&fs, &large, 32 * MIB);
    let (free, pinned) = (Standing::default(), Standing { pinned: true, ..Standing::default() });
    let pages = 20 * MIB / BLOCK_BYTES as u64;
    (0..pages).for_each(|_| fs.core.account.moved(free, pinned));
    assert!(fs.writeback.is_short_of_memory(|| false));
    let short = of_background();
    assert!((BUSY..=BUSY + 4 * JOURNAL_BYTES).contains(&short), "{short}");
    (0..pages).for_each(|_| fs.core.account.moved(pinned, free));
}

#[test]
fn a_transaction_keeps_little_in_flight_while_others_sync_and_a_mebibyte_alone() {
    let (device, fs) = volume();
    let (large, small) = (create(&fs, "large"), create(&fs, "small"));
    let stage = || {
        let mut transaction = fs.begin().unwrap();
        device.most_in_flight();
        for offset in (0..8 * MIB).step_by(MIB as usize) {
            transaction.write(large.number, offset, &pattern(offset, MIB as usize)).unwrap();
        }
        device.most_in_flight()
    };
    let alone = stage();
    assert!(alone >= MIB / 2, "{alone}");
    dirty(&fs, &small, 4096);
    fs.syncs.file_sync(&small, SyncScope::All).unwrap();
    let beside = stage();
    assert!(beside <= MIB / 4, "{beside}");
}

#[test]
fn what_went_to_the_device_alone_is_over_before_anything_goes_beside_a_small_request() {
    let (device, fs) = volume();
    let (lane, at) = (&fs.core.lane, BlockNo(fs.core.store.device().blocks() / 2));
    let pages = |count| (0..count).map(|_| Arc::new(Buffer::zeroed(1))).collect::<Vec<_>>();
    for _ in 0..4 {
        assert_eq!(lane.write_pages_max(), 256);
        lane.submit(&fs.core.store, at, pages(256));
    }
    assert_eq!(device.most_in_flight(), BUSY);
    lane.note_small_request();
    for _ in 0..4 {
        assert_eq!(lane.write_pages_max(), 64);
        lane.submit(&fs.core.store, at, pages(64));
        assert_eq!(device.queue.lock().unwrap().bytes, MIB / 4);
    }
    // Small pieces may share the room.
    lane.submit(&fs.core.store, at, pages(16));
    lane.submit(&fs.core.store, at, pages(48));
    assert_eq!(device.queue.lock().unwrap().bytes, MIB / 4);
}

#[test]
fn a_large_writer_and_the_background_together_leave_no_more_for_a_first_sync_to_wait_behind() {
    let (device, fs) = volume();
    let large = create(&fs, "large");
    device.most_in_flight();
    // More than may be un-written: the writer writes some of it, as do two of the background.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| fs.maintain(fs.core.clock.now(), 16).unwrap());
        }
        scope.spawn(|| {
            for offset in (0..96 * MIB).step_by(MIB as usize) {
                let piece = pattern(offset, MIB as usize);
                fs.files.writer.file_write(&large, WriteAt::Offset(offset), &piece, &mut |_| {}).unwrap();
            }
        });
    });
    let most = device.most_in_flight();
    assert!((BUSY / 2..=BUSY + JOURNAL_BYTES).contains(&most), "{most}");
}

#[test]
fn a_checkpoint_keeps_no_more_in_flight_than_keeps_the_device_busy() {
    let (device, fs) = volume();
    for number in 0..16_000 {
        create(&fs, &format!("a name of some length, so that leaves are soon full, {number}"));
    }
    while device.complete_first() {}
    let before = device.counters().written_bytes;
    device.most_in_flight();
    fs.core.checkpoint().unwrap();
    let most = device.most_in_flight();
    let written = device.counters().written_bytes - before;
    assert!(written > 2 * BUSY, "{written}");
    assert!((BUSY / 2..=BUSY + 4 * JOURNAL_BYTES).contains(&most), "{most}");
}

#[test]
fn a_first_small_request_is_given_way_to_before_any_more_is_submitted() {
    let (device, fs) = volume();
    let (lane, at) = (&fs.core.lane, BlockNo(fs.core.store.device().blocks() / 2));
    let small = create(&fs, "small");
    dirty(&fs, &small, 4096);
    let pages = |count| (0..count).map(|_| Arc::new(Buffer::zeroed(1))).collect::<Vec<_>>();
    lane.submit(&fs.core.store, at, pages(64));
    while device.complete_first() {}
    let (flushing, submitted) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let (of_flush, seen) = (flushing.clone(), submitted.clone());
    *device.during_flush.lock().unwrap() = Some(Box::new(move || {
        of_flush.wait();
        // Whoever goes ahead of the flush has every opportunity to do so.
        (0..10_000).for_each(|_| std::thread::yield_now());
        assert!(!seen.load(Ordering::SeqCst), "the bulk went ahead of the flush");
    }));
    std::thread::scope(|scope| {
        scope.spawn(|| fs.syncs.file_sync(&small, SyncScope::All).unwrap());
        flushing.wait();
        lane.submit(&fs.core.store, at, pages(64));
        submitted.store(true, Ordering::SeqCst);
    });
    assert!(device.during_flush.lock().unwrap().is_none(), "the sync has flushed");
}

#[test]
fn the_background_and_slowed_writers_share_what_is_left_to_them_beside_small_syncs() {
    let (device, fs) = volume();
    let (first, second, small) = (create(&fs, "first"), create(&fs, "second"), create(&fs, "small"));
    dirty(&fs, &first, 12 * MIB);
    dirty(&fs, &second, 12 * MIB);
    dirty(&fs, &small, 4096);
    fs.syncs.file_sync(&small, SyncScope::All).unwrap();
    device.most_in_flight();
    std::thread::scope(|scope| {
        for large in [&first, &second] {
            scope.spawn(|| fs.syncs.file_sync(large, SyncScope::All).unwrap());
        }
        scope.spawn(|| fs.maintain(fs.core.clock.now(), 16).unwrap());
    });
    let beside = device.most_in_flight();
    assert!(beside <= MIB / 4 + JOURNAL_BYTES, "{beside}");
}

#[test]
fn who_writes_little_and_syncs_does_not_write_for_who_fills_the_memory() {
    let (device, fs) = volume();
    let (large, small) = (create(&fs, "large"), create(&fs, "small"));
    // More than half of what may be un-written, so that writers slow down.
    dirty(&fs, &large, 48 * MIB);
    assert!(fs.writeback.must_slow_down(&large, 4096), "who has much un-written");
    assert!(!fs.writeback.must_slow_down(&small, 4096) && fs.writeback.must_slow_down(&small, MIB as usize));
    while device.complete_first() {}
    let before = device.counters().written_bytes;
    for _ in 0..50 {
        dirty(&fs, &small, 4096);
        fs.syncs.file_sync(&small, SyncScope::All).unwrap();
    }
    while device.complete_first() {}
    let written = device.counters().written_bytes - before;
    assert!(written <= 3 * MIB / 4, "{written} bytes for 50 pages");
    dirty(&fs, &large, 4096);
    while device.complete_first() {}
    let written = device.counters().written_bytes - before;
    assert!(written > MIB, "{written} bytes: the large file's writer wrote some of it");
}
