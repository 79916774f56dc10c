//! Syncs while a checkpoint stands still: none waits for it as long as the journal has room; once it has none writers
//! wait, and go on behind the checkpoint (R17).

use crate::common;
use crate::common::{CountingEntropy, ROOT, TickingClock, root};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use syncline_device::{Buffer, Device, Layer, MemoryDevice, Ticket};
use syncline_format::BlockNo;
use syncline_format::superblock::SUPERBLOCK_SLOTS;
use syncline_fs::{Fs, FsOptions, MkfsOptions, OpenFlags, SyncScope};

const BLOCKS: u64 = 64 << 8;
const JOURNAL_BYTES: u64 = 8 << 20;
const WRITERS: u64 = 4;

/// Holds back the write that ends a checkpoint.
struct Held {
    memory: MemoryDevice,
    holds: Mutex<bool>,
    changed: Condvar,
    reached: AtomicBool,
}

impl Layer for Held {
    fn below(&self) -> &dyn Device {
        &self.memory
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        if SUPERBLOCK_SLOTS.contains(&at) {
            let mut holds = self.holds.lock().expect("no panic");
            while *holds {
                self.reached.store(true, Ordering::SeqCst);
                holds = self.changed.wait(holds).expect("no panic");
            }
        }
        self.memory.submit_write(at, data)
    }
}

impl Held {
    fn hold(&self, holds: bool) {
        *self.holds.lock().expect("no panic") = holds;
        self.changed.notify_all();
    }
}

/// A device and a volume on it with a small journal.
fn volume() -> (Arc<Held>, Arc<Fs>) {
    let memory = MemoryDevice::new(BLOCKS);
    let clock = Arc::new(TickingClock::starting_at(1_000_000));
    let entropy = CountingEntropy::starting_at(1);
    let options = MkfsOptions::default().journal_bytes(JOURNAL_BYTES);
    Fs::format(&memory, &options, &*clock, &entropy, &mut |_, _| {}).expect("mkfs");
    let (holds, changed) = (Mutex::new(false), Condvar::new());
    let device = Arc::new(Held { memory, holds, changed, reached: AtomicBool::new(false) });
    let fs = Fs::open(device.clone(), FsOptions::default(), clock, &entropy).expect("open");
    (device, fs)
}

/// Appends to a file of its own and syncs, until told to stop; counts the syncs.
fn append_and_sync(fs: &Fs, name: &str, done: &AtomicU64, stops: &dyn Fn(u64) -> bool) {
    let flags = OpenFlags::READ_WRITE;
    let (_, handle) = fs.names().create(&root(), ROOT, name.as_bytes(), 0o644, flags).expect("create");
    let mut syncs = 0;
    while !stops(syncs) {
        common::write(fs, handle, syncs * 10, b"ten bytes.");
        fs.files().sync_handle(handle, SyncScope::All).expect("fsync");
        syncs += 1;
        done.fetch_add(1, Ordering::SeqCst);
    }
    fs.files().release(handle).expect("release");
}

#[test]
fn a_thousand_syncs_pass_a_checkpoint_that_is_held_back_and_writers_wait_only_for_a_full_journal() {
    let (device, fs) = volume();
    common::put(&fs, ROOT, "before", b"so that there is something to write");
    device.hold(true);
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| fs.checkpoint().expect("checkpoint"));
        while !device.reached.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        append_and_sync(&fs, "alone", &done, &|syncs| syncs == 1000);
        assert!(!checkpoint.is_finished(), "the checkpoint is still held back");
        for writer in 0..WRITERS {
            let (fs, done, stop) = (&fs, &done, &stop);
            let name = format!("writer {writer}");
            scope.spawn(move || append_and_sync(fs, &name, done, &|_| stop.load(Ordering::SeqCst)));
        }
        // The ring takes no more than a record for each of its blocks; nobody gets beyond that.
        let mut seen = 0;
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let now = done.load(Ordering::SeqCst);
            assert!(now <= JOURNAL_BYTES / 4096, "{now} syncs in a ring of {} blocks", JOURNAL_BYTES / 4096);
            if now == seen && now > 1000 {
                break;
            }
            seen = now;
        }
        assert!(!checkpoint.is_finished());
        device.hold(false);
        while done.load(Ordering::SeqCst) < seen + 2 * JOURNAL_BYTES / 4096 {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert!(common::content(&fs, common::lookup(&fs, ROOT, "alone").expect("there")).len() == 10_000);
    fs.close().expect("close");
}
