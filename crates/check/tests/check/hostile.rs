//! Whatever a device holds or does, a check ends with findings or an error.

use crate::image::*;
use std::sync::{Arc, Mutex};
use syncline_check::{CheckOptions, FINDINGS_PER_CODE_MAX, check};
use syncline_device::*;
use syncline_format::batch::Op;
use syncline_format::*;

/// A device with one block that cannot be read.
pub struct Faulty {
    pub inner: MemoryDevice,
    pub unreadable: BlockNo,
}

impl Layer for Faulty {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let end = at.0 + (into.len() / BLOCK_BYTES) as u64;
        if (at.0..end).contains(&self.unreadable.0) {
            return Err(DeviceError::Io { operation: Operation::Read, block: self.unreadable, errno: 5 });
        }
        self.inner.read(at, into)
    }
}

/// What a device was asked to make durable.
#[derive(Clone)]
pub enum Event {
    Write(BlockNo, Vec<u8>),
    Flush,
}

/// A device that writes down every write and flush.
pub struct Recorder {
    inner: MemoryDevice,
    pub events: Mutex<Vec<Event>>,
}

impl Recorder {
    pub fn new(inner: MemoryDevice) -> Recorder {
        Recorder { inner, events: Mutex::default() }
    }
}

impl Layer for Recorder {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let bytes = data.iter().flat_map(|buffer| buffer.to_vec()).collect();
        self.events.lock().expect("no panic").push(Event::Write(at, bytes));
        self.inner.submit_write(at, data)
    }

    fn on_flush(&self) -> Ticket {
        self.events.lock().expect("no panic").push(Event::Flush);
        self.inner.submit_flush()
    }
}

/// A small generator, so that a failing case is found again by its seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Blocks of the metadata of a populated volume with a log.
fn volume_with_log() -> (Image, MemoryDevice) {
    let mut image = Image::populated();
    let device = image.build();
    let mut log = Log::new(&image);
    let root = image.items[&Key::inode(ObjectNo::ROOT_DIR)].clone();
    for page in 0..4 {
        let picture = Op::Image { tree: TreeId::MAIN, object: ObjectNo(12), page, bytes: b"image" };
        let free = Op::Free { start: BlockNo(20_000 + page), len: 1 };
        let used = Op::Allocate { start: BlockNo(20_000 + page), len: 1 };
        log.write(&device, &[put(Key::inode(ObjectNo::ROOT_DIR), &root), picture, used, free]);
    }
    (image, device)
}

/// The structures to damage: first block and length in blocks.
fn structures(image: &Image) -> Vec<(u64, usize)> {
    let layout = image.superblock.layout;
    let group = layout.group_start(GroupNo(0)).0;
    let nodes = (0..16).map(|node| (group + 4 + 4 * node, 4));
    let records = (0..4).map(|record| (16 + record, 1));
    nodes.chain(records).chain([(2, 1), (group, 1), (layout.group_start(GroupNo(1)).0, 1)]).collect()
}

#[test]
fn resealed_damage_ends_in_findings_and_never_in_a_panic() {
    let (image, device) = volume_with_log();
    let places = structures(&image);
    for seed in 1..=1500u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut undo = Vec::new();
        for _ in 0..1 + random.below(3) {
            let (at, blocks) = places[random.below(places.len() as u64) as usize];
            let old = read(&device, BlockNo(at), blocks);
            let mut new = old.clone();
            // Heads and the ends of values are where the structure is.
            let region = if random.below(2) == 0 { 300 } else { new.len() as u64 };
            for _ in 0..1 + random.below(4) {
                let at = random.below(region) as usize;
                new[at] = if random.below(3) == 0 { 0xff } else { random.next() as u8 };
            }
            if random.below(4) != 0 {
                header::seal(&mut new);
            }
            write(&device, BlockNo(at), &new);
            undo.push((at, old));
        }
        // An error is as good as findings; what counts is that it ends.
        let _ = check(&device, CheckOptions::default().data(true));
        for (at, old) in undo.into_iter().rev() {
            write(&device, BlockNo(at), &old);
        }
    }
}

#[test]
fn damaged_items_under_valid_checksums_end_in_findings_and_repair_does_no_harm() {
    for seed in 1..=150u64 {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut image = Image::populated();
        let keys: Vec<Key> = image.items.keys().copied().collect();
        for _ in 0..1 + random.below(3) {
            let key = keys[random.below(keys.len() as u64) as usize];
            if let Some(mut value) = image.items.remove(&key) {
                match random.below(5) {
                    0 => {}
                    1 => drop(image.items.insert(Key { object: ObjectNo(random.below(40)), ..key }, value)),
                    2 => drop(image.items.insert(Key { offset: random.next(), ..key }, value)),
                    3 => {
                        value.truncate(random.below(value.len() as u64 + 1) as usize);
                        image.items.insert(key, value);
                    }
                    _ => {
                        let at = random.below(value.len().max(1) as u64) as usize;
                        if let Some(byte) = value.get_mut(at) {
                            *byte = random.next() as u8;
                        }
                        image.items.insert(key, value);
                    }
                }
            }
        }
        let device = image.build();
        let before = look(&device);
        let after = repair(&device);
        let errors = |report: &syncline_check::Report| report.errors_left();
        assert!(errors(&after) <= errors(&before), "seed {seed}: {:#?}", after.findings);
        let again = repair(&device);
        assert!(!again.repaired || again.left == after.left, "seed {seed}: repair settles");
    }
}

#[test]
fn a_device_of_noise_is_no_volume() {
    let mut random = Random(7);
    let bytes: Vec<u8> = (0..1100 * BLOCK_BYTES).map(|_| random.next() as u8).collect();
    assert!(check(&MemoryDevice::from_bytes(bytes), CheckOptions::default()).is_err());
}

#[test]
fn findings_of_one_code_are_bounded_but_counted() {
    let mut image = Image::populated();
    image.bits = (0..3000).map(|index| (20_000 + 2 * index, true)).collect();
    let report = look(&image.build());
    assert_eq!(report.findings.len() as u64, FINDINGS_PER_CODE_MAX);
    assert_eq!(report.errors_left(), 3000);
}

#[test]
fn an_unreadable_block_of_metadata_is_a_finding() {
    let (image, _) = volume_with_log();
    for (block, _) in structures(&image) {
        let device = Faulty { inner: volume_with_log().1, unreadable: BlockNo(block) };
        let report = check(&device, CheckOptions::default()).expect("a volume");
        assert!(!report.findings.is_empty(), "block {block}");
    }
}
