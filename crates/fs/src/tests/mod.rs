//! Tests of file content on a device in memory; crashes are a [`Volatile`] device whose unflushed writes are gone.

use crate::content::inode::Inode;
use crate::write::WriteAt;
use crate::{Clock, Context, Fs, FsOptions, MkfsOptions, Result, SystemEntropy, Timestamp};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_check::{CheckOptions, Code, check};
use syncline_device::{Buffer, Device, MemoryDevice, Volatile};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock, VolumeState};
use syncline_format::{BLOCK_BYTES, BlockNo, Key, ObjectNo};
use syncline_store::lock_order::elsewhere;

pub(crate) mod ablation;
pub(crate) mod at_once;
pub(crate) mod colliding;
pub(crate) mod crash;
pub(crate) mod damage;
pub(crate) mod destage;
pub(crate) mod failure;
#[cfg(debug_assertions)]
pub(crate) mod locks;
pub(crate) mod model;
pub(crate) mod pacing;
pub(crate) mod parting;
pub(crate) mod pressure;
pub(crate) mod races;
pub(crate) mod scale;
pub(crate) mod schedule;
pub(crate) mod snapshots;
pub(crate) mod stream;
pub(crate) mod sync;
pub(crate) mod together;

pub(crate) const MIB: u64 = 1 << 20;

/// What somebody else does while the engine looks at the clock; true when it is done.
type Meanwhile = Box<dyn FnMut() -> bool + Send>;

/// A clock that only moves when it is told to.
#[derive(Default)]
pub(crate) struct TestClock {
    milliseconds: AtomicU64,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl TestClock {
    pub(crate) fn advance(&self, milliseconds: u64) -> Timestamp {
        self.milliseconds.fetch_add(milliseconds, Ordering::Relaxed);
        self.now()
    }

    pub(crate) fn set_back(&self, milliseconds: u64) -> Timestamp {
        self.milliseconds.fetch_sub(milliseconds, Ordering::Relaxed);
        self.now()
    }

    /// Does something between two steps of the engine: tried at each look at the clock until it is done.
    pub(crate) fn meanwhile(&self, act: impl FnMut() -> bool + Send + 'static) {
        *self.meanwhile.lock() = Some(Box::new(act));
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        // Taken out, so that what is done may look at the clock.
        let meanwhile = self.meanwhile.lock().take();
        if let Some(mut act) = meanwhile
            && !elsewhere(&mut act)
        {
            *self.meanwhile.lock() = Some(act);
        }
        let milliseconds = self.milliseconds.load(Ordering::Relaxed);
        let nanoseconds = (milliseconds % 1000) as u32 * 1_000_000;
        Timestamp { seconds: 1_000_000 + (milliseconds / 1000) as i64, nanoseconds }
    }
}

/// A volume whose power can be cut.
pub(crate) struct TestVolume {
    memory: Arc<MemoryDevice>,
    pub(crate) device: Arc<Volatile>,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) fs: Arc<Fs>,
    options: FsOptions,
}

impl TestVolume {
    pub(crate) fn new(bytes: u64, journal_bytes: u64) -> TestVolume {
        TestVolume::with_options(bytes, journal_bytes, FsOptions::default())
    }

    pub(crate) fn with_options(bytes: u64, journal_bytes: u64, options: FsOptions) -> TestVolume {
        let mkfs = MkfsOptions { journal_bytes: Some(journal_bytes), ..MkfsOptions::default() };
        TestVolume::made(bytes, mkfs, options)
    }

    pub(crate) fn made(bytes: u64, mkfs: MkfsOptions, options: FsOptions) -> TestVolume {
        let memory = Arc::new(MemoryDevice::new(bytes / BLOCK_BYTES as u64));
        let clock = Arc::new(TestClock::default());
        Fs::format(&*memory, &mkfs, &*clock, &SystemEntropy::default(), &mut |_, _| {}).unwrap();
        let device = Arc::new(Volatile::new(memory.clone()));
        let fs = open(&device, &options, &clock);
        TestVolume { memory, device, clock, fs, options }
    }

    /// Loses everything that was not flushed, and opens the volume again.
    pub(crate) fn crash(&mut self) {
        self.cut();
        self.check();
        self.recover();
    }

    /// Loses everything that was not flushed.
    pub(crate) fn cut(&mut self) {
        self.fs.core.shut_down();
        // A copy, so that nothing the old session still does can reach it.
        self.memory = Arc::new(MemoryDevice::from_bytes(self.memory.to_bytes()));
    }

    /// Opens the volume again.
    pub(crate) fn recover(&mut self) {
        self.device = Arc::new(Volatile::new(self.memory.clone()));
        self.fs = open(&self.device, &self.options, &self.clock);
    }

    /// What the offline check thinks of what is on the device.
    fn check(&self) {
        let options = CheckOptions::default().data(true);
        let report = check(&*self.memory, options).unwrap();
        assert!(report.is_sound(), "{:#?}", report.findings);
    }

    /// Repairs what is on the device offline; returns what a check said before, by code.
    pub(crate) fn repair(&self) -> Vec<Code> {
        let options = CheckOptions::default().data(true).repair(true);
        let report = check(&*self.memory, options).unwrap();
        assert!(report.repaired && report.is_sound(), "{:#?}", report.findings);
        report.counts.keys().copied().collect()
    }

    /// Why the volume cannot be opened.
    pub(crate) fn refused(&self) -> crate::Error {
        let device = Arc::new(Volatile::new(self.memory.clone()));
        let clock = self.clock.clone();
        Fs::open(device, self.options.clone(), clock, &SystemEntropy::default()).map(drop).unwrap_err()
    }

    /// Changes a bit of the block with this content, behind the engine's back.
    pub(crate) fn damage(&self, content: &[u8]) {
        let mut block = Buffer::zeroed(1);
        for at in (0..self.memory.blocks()).map(BlockNo) {
            self.memory.read(at, &mut block).unwrap();
            if block[..] == *content {
                block[17] ^= 4;
                return self.memory.write(at, vec![Arc::new(block)]).unwrap();
            }
        }
        panic!("no block has this content");
    }

    /// Changes a bit of every leaf on the device all of whose items are wanted; the same again undoes it.
    pub(crate) fn rot_leaves(&self, wanted: impl Fn(Key) -> bool) -> usize {
        let mut rotten = 0;
        let mut block = Buffer::zeroed(4);
        for at in (0..self.memory.blocks() - 4).map(BlockNo) {
            self.memory.read(at, &mut block).unwrap();
            let number = |from: usize| u64::from_le_bytes(block[from..from + 8].try_into().unwrap());
            let small = |from: usize| usize::from(u16::from_le_bytes([block[from], block[from + 1]]));
            if block[..4] != *b"SLND" || number(16) != at.0 || small(40) != 0 || block[48] != 1 {
                continue;
            }
            let keys = (0..small(42)).map(|slot| {
                let from = 64 + 24 * slot;
                let kind = syncline_format::Kind::try_from(block[from + 20]).unwrap();
                Key::new(ObjectNo(number(from)), kind, number(from + 8))
            });
            if keys.clone().count() > 0 && keys.clone().all(&wanted) {
                block[16_383] ^= 4;
                self.memory.write(at, vec![Arc::new(block.clone())]).unwrap();
                rotten += 1;
            }
        }
        rotten
    }

    /// Ends the session properly, and opens the volume again.
    pub(crate) fn reopen(&mut self) {
        self.fs.close().unwrap();
        assert_eq!(self.state(), VolumeState::Clean);
        self.crash();
    }

    /// What the newest superblock says.
    fn state(&self) -> VolumeState {
        let found = SUPERBLOCK_SLOTS.into_iter().filter_map(|slot| {
            let mut bytes = Buffer::zeroed(1);
            self.memory.read(slot, &mut bytes).unwrap();
            Superblock::decode(&bytes, slot, self.memory.blocks()).ok()
        });
        found.max_by_key(|superblock| superblock.generation).expect("a superblock").state
    }

    /// What is durable now, opened read-only.
    pub(crate) fn read_only_copy(&self) -> TestVolume {
        let memory = Arc::new(MemoryDevice::from_bytes(self.memory.to_bytes()));
        let device = Arc::new(Volatile::new(memory.clone()));
        let options = FsOptions { read_only: true, ..self.options.clone() };
        let fs = open(&device, &options, &self.clock);
        TestVolume { memory, device, clock: self.clock.clone(), fs, options }
    }

    pub(crate) fn create(&self, name: &str) -> Arc<Inode> {
        let entry =
            self.fs.names.mknod(&Context::root(), ObjectNo::ROOT_DIR, name.as_bytes(), 0o100644, 0).unwrap();
        self.fs.content.inode(entry.attr.inode).unwrap()
    }

    pub(crate) fn find(&self, name: &str) -> Arc<Inode> {
        let entry = self.fs.names.lookup(ObjectNo::ROOT_DIR, name.as_bytes()).unwrap();
        self.fs.content.inode(entry.attr.inode).unwrap()
    }

    pub(crate) fn write(&self, inode: &Arc<Inode>, offset: u64, data: &[u8]) {
        let (_, written) = self.try_write(inode, offset, data).unwrap();
        assert_eq!(written, data.len());
    }

    pub(crate) fn try_write(&self, inode: &Arc<Inode>, offset: u64, data: &[u8]) -> Result<(u64, usize)> {
        self.fs.files.writer.file_write(inode, WriteAt::Offset(offset), data, &mut |_| {})
    }

    pub(crate) fn truncate(&self, inode: &Arc<Inode>, size: u64) {
        self.fs.shape.file_truncate(inode, size, &mut |_| {}).unwrap();
    }

    pub(crate) fn sync(&self, inode: &Arc<Inode>) {
        self.fs.syncs.file_sync(inode, super::SyncScope::All).unwrap();
    }

    pub(crate) fn content(&self, inode: &Arc<Inode>) -> Vec<u8> {
        let size = inode.state.read().item.size as usize;
        let mut content = vec![0xAA; size];
        assert_eq!(self.fs.shape.file_read(inode, 0, &mut content).unwrap(), size);
        content
    }

    /// Forgets all clean pages of the file, so that the next read goes to the device.
    pub(crate) fn drop_cache(&self, inode: &Arc<Inode>) {
        let mut state = inode.state.write();
        for _ in 0..2 {
            state.data.hand = 0;
            state.data.evict(usize::MAX);
        }
    }
}

fn open(device: &Arc<Volatile>, options: &FsOptions, clock: &Arc<TestClock>) -> Arc<Fs> {
    let device: Arc<dyn Device> = device.clone();
    Fs::open(device, options.clone(), clock.clone(), &SystemEntropy::default()).unwrap()
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    (0..len).map(|_| random.next() as u8).collect()
}

/// A small random generator, so that a failing run can be repeated by its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
