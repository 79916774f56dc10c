//! A device that keeps unflushed writes apart, so that tests can crash it: any subset of them survives, torn at
//! 512-byte granularity.

pub mod compare;
pub mod reach;
pub mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use syncline_check::{CheckOptions, Code, Finding, Severity, check};
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, Operation, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo, Key};
use syncline_store::{FormatOptions, Store};

const SECTOR: usize = 512;

#[derive(Default)]
struct Inner {
    stable: BTreeMap<u64, Vec<u8>>,
    /// Unflushed writes in order of completion: (block, bytes).
    unflushed: Vec<(u64, Vec<u8>)>,
    /// Writes after the power went off: the running engine sees them, the crashed device does not.
    ghost: Vec<(u64, Vec<u8>)>,
    counters: DeviceCounters,
    /// Fails every write and flush from this many on.
    fail_after: Option<u64>,
    /// Powers off after this many more writes: they are dropped silently, flushes do nothing.
    off_after_writes: Option<u64>,
    ignore_flushes: bool,
}

pub struct CrashDevice {
    blocks: u64,
    inner: Mutex<Inner>,
}

/// Puts an empty volume, or one with these items, on the whole device.
pub fn format(device: &dyn Device, journal_blocks: u64, items: Vec<(Key, Vec<u8>)>) {
    Store::format(device, &options(journal_blocks, items), &mut |_, _| {}).expect("format");
}

/// The same of version 2.
pub fn format_with_trees(device: &dyn Device, journal_blocks: u64, items: Vec<(Key, Vec<u8>)>) {
    Store::format_with_trees(device, &options(journal_blocks, items), &mut |_, _| {}).expect("format");
}

fn options(journal_blocks: u64, items: Vec<(Key, Vec<u8>)>) -> FormatOptions {
    FormatOptions {
        uuid: [7; 16],
        label: "test".into(),
        journal_blocks: Some(journal_blocks),
        blocks: None,
        hash_seed: 1,
        name_key: None,
        epoch: 99,
        created_seconds: 0,
        created_nanoseconds: 0,
        items,
    }
}

/// The offline check finds nothing wrong with a volume, but for what follows from files without inodes and a volume
/// without directories.
pub fn checked(device: &dyn Device, what: &str) {
    const EXPECTED: [Code; 5] = [
        Code::RootDirectory,
        Code::ItemWithoutInode,
        Code::XattrPieceUnused,
        Code::JournalImage,
        Code::NextObject,
    ];
    let report = check(device, CheckOptions::default().data(true)).expect("a volume");
    let is_wrong = |found: &&Finding| found.severity >= Severity::Error && !EXPECTED.contains(&found.code);
    let wrong: Vec<_> = report.findings.iter().filter(is_wrong).collect();
    assert!(wrong.is_empty(), "{what}: {wrong:#?}");
}

/// Small deterministic generator (SplitMix64, Steele et al. 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn overlay(base: &mut BTreeMap<u64, Vec<u8>>, block: u64, bytes: &[u8], keep: &mut dyn FnMut() -> bool) {
    for (i, page) in bytes.chunks(BLOCK_BYTES).enumerate() {
        let target = base.entry(block + i as u64).or_insert_with(|| vec![0; BLOCK_BYTES]);
        for (sector, data) in page.chunks(SECTOR).enumerate() {
            if keep() {
                target[sector * SECTOR..sector * SECTOR + data.len()].copy_from_slice(data);
            }
        }
    }
}

impl CrashDevice {
    pub fn new(blocks: u64) -> Arc<CrashDevice> {
        Arc::new(CrashDevice { blocks, inner: Mutex::default() })
    }

    /// The device after a power cut: a random subset of the unflushed writes, some torn.
    pub fn crash(&self, random: &mut Random) -> Arc<CrashDevice> {
        let inner = self.inner.lock().unwrap();
        let mut stable = inner.stable.clone();
        let mode = random.below(4);
        let cut = random.below(inner.unflushed.len() as u64 + 1) as usize;
        for (index, (block, bytes)) in inner.unflushed.iter().enumerate() {
            let survives = match mode {
                0 => false,
                1 => index < cut,
                2 => index != cut,
                _ => random.one_in(2),
            };
            let torn = mode == 3 && random.one_in(3);
            if survives {
                overlay(&mut stable, *block, bytes, &mut || !torn || random.one_in(2));
            }
        }
        let inner = Inner { stable, ..Inner::default() };
        Arc::new(CrashDevice { blocks: self.blocks, inner: Mutex::new(inner) })
    }

    /// Writes and flushes fail once `operations` more have been done.
    pub fn fail_after(&self, operations: u64) {
        self.inner.lock().unwrap().fail_after = Some(operations);
    }

    /// The power goes off after `writes` more writes; callers are not told.
    pub fn power_off_after(&self, writes: u64) {
        self.inner.lock().unwrap().off_after_writes = Some(writes);
    }

    /// Whether the power is off by now.
    pub fn is_off(&self) -> bool {
        self.inner.lock().unwrap().off_after_writes == Some(0)
    }

    /// Flushes are acknowledged and not done (a negative control).
    pub fn ignore_flushes(&self) {
        self.inner.lock().unwrap().ignore_flushes = true;
    }

    fn write_now(&self, at: BlockNo, data: &[Arc<Buffer>]) -> Result<(), DeviceError> {
        let mut inner = self.inner.lock().unwrap();
        inner.countdown(Operation::Write, at)?;
        let bytes: Vec<u8> = data.iter().flat_map(|b| b.iter().copied()).collect();
        inner.counters.writes += 1;
        inner.counters.written_bytes += bytes.len() as u64;
        match &mut inner.off_after_writes {
            Some(0) => {
                inner.ghost.push((at.0, bytes));
                return Ok(());
            }
            Some(left) => *left -= 1,
            None => {}
        }
        assert!(at.0 + (bytes.len() / BLOCK_BYTES) as u64 <= self.blocks, "write beyond the end");
        inner.unflushed.push((at.0, bytes));
        Ok(())
    }
}

impl Inner {
    fn countdown(&mut self, operation: Operation, block: BlockNo) -> Result<(), DeviceError> {
        match &mut self.fail_after {
            Some(0) => Err(DeviceError::Io { operation, block, errno: 5 }),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Device for CrashDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let inner = self.inner.lock().unwrap();
        for (i, page) in into.chunks_mut(BLOCK_BYTES).enumerate() {
            match inner.stable.get(&(at.0 + i as u64)) {
                Some(stored) => page.copy_from_slice(stored),
                None => page.fill(0),
            }
        }
        let end = at.0 + (into.len() / BLOCK_BYTES) as u64;
        for (block, bytes) in inner.unflushed.iter().chain(&inner.ghost) {
            for (i, page) in bytes.chunks(BLOCK_BYTES).enumerate() {
                let block = block + i as u64;
                if (at.0..end).contains(&block) {
                    let from = (block - at.0) as usize * BLOCK_BYTES;
                    into[from..from + BLOCK_BYTES].copy_from_slice(page);
                }
            }
        }
        Ok(())
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        Ticket::completed(self.write_now(at, &data))
    }

    fn submit_flush(&self) -> Ticket {
        let mut inner = self.inner.lock().unwrap();
        if let Err(error) = inner.countdown(Operation::Flush, BlockNo(0)) {
            return Ticket::completed(Err(error));
        }
        inner.counters.flushes += 1;
        if inner.off_after_writes != Some(0) && !inner.ignore_flushes {
            for (block, bytes) in std::mem::take(&mut inner.unflushed) {
                overlay(&mut inner.stable, block, &bytes, &mut || true);
            }
        }
        Ticket::completed(Ok(()))
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        ticket.result().expect("writes complete at once")
    }

    fn poll(&self) {}

    fn discard(&self, _at: BlockNo, _blocks: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.lock().unwrap().counters
    }
}
