//! A volume that is used while it is fetched, and one that is read from its replica: what each request costs, and what
//! is told when something cannot be fetched.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_device::{Buffer, Device, MemoryDevice};
use syncline_format::replica::{Flags, Partial, UnitHeader};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, BlockNo, FormatError};
use syncline_replica::merge::Content;
use syncline_replica::newest::{Layer, Newest};
use syncline_replica::unit::{Outline, encode};
use syncline_replica::{Answer, LazyDevice, Operation, Part, RemoteDevice, Source, StoreError};

const BLOCKS: u64 = 2048;
const PARTIAL: Partial = Partial { uuid: [5; 16], blocks: BLOCKS, claim: 1, unit: 0 };

/// One object.
#[derive(Clone)]
struct Store {
    bytes: Arc<Mutex<Vec<u8>>>,
    asked: Arc<AtomicU64>,
    down: Arc<AtomicBool>,
}

impl Source for Store {
    fn get(&self, operations: &[Operation]) -> Vec<Result<Answer, StoreError>> {
        self.asked.fetch_add(operations.len() as u64, Ordering::Relaxed);
        let bytes = self.bytes.lock();
        let get = |operation: &Operation| match operation {
            _ if self.down.load(Ordering::Relaxed) => {
                Err(StoreError::Unavailable("no answer within 60 s".to_owned()))
            }
            Operation::Get { part: Part::Range(from, count), .. } => {
                let part = bytes[*from as usize..(from + count) as usize].to_vec();
                Ok(Answer::Bytes { bytes: part, length: bytes.len() as u64 })
            }
            _ => Err(StoreError::Missing),
        };
        operations.iter().map(get).collect()
    }
}

fn content(block: u64) -> Vec<u8> {
    (0..BLOCK_BYTES).map(|at| (at as u64 * 7 + block) as u8).collect()
}

/// A replica of blocks 0 to 255, each of its own content.
fn replica() -> (Newest, Store) {
    let header = UnitHeader {
        flags: Flags::CONSISTENT.with(Flags::BASE),
        uuid: PARTIAL.uuid,
        claim: 1,
        number: 0,
        predecessor: 0,
        epoch: 1,
        generation: 1,
        lsn: 1,
        cuts: 1,
        time: 1,
        blocks: BLOCKS,
    };
    let blocks: BTreeMap<u64, Content> = (0..256)
        .map(|block| (block, Content::Written(Arc::new(Buffer::from_bytes(&content(block))), 0)))
        .collect();
    let bytes = encode(&header, &blocks).bytes;
    let outline = Outline::of(&bytes).expect("a unit");
    let mut newest = Newest::default();
    newest.lay_under(Layer { name: "unit".to_owned(), outline });
    let bytes = Arc::new(Mutex::new(bytes));
    (newest, Store { bytes, asked: Arc::default(), down: Arc::default() })
}

fn begun() -> (Arc<MemoryDevice>, LazyDevice, Store) {
    let (newest, store) = replica();
    let local = Arc::new(MemoryDevice::new(LazyDevice::local_blocks(BLOCKS)));
    let device = Arc::clone(&local) as Arc<dyn Device>;
    let lazy = LazyDevice::begin(device, PARTIAL, newest, store.clone()).expect("begun");
    (local, lazy, store)
}

fn read(device: &dyn Device, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    device.read(BlockNo(block), &mut bytes).expect("read");
    bytes
}

fn write(device: &dyn Device, block: u64, byte: u8) {
    let data = vec![Arc::new(Buffer::from_bytes(&[byte; BLOCK_BYTES]))];
    device.write(BlockNo(block), data).expect("written");
}

/// Writes and flushes of the local device by `act`.
fn cost(local: &MemoryDevice, act: impl FnOnce()) -> (u64, u64) {
    let before = local.counters();
    act();
    let after = local.counters();
    (after.writes - before.writes, after.flushes - before.flushes)
}

// Shows: C1.
#[test]
fn a_sync_waits_for_the_map_only_behind_a_write_to_what_was_absent() {
    let (local, lazy, _) = begun();
    let sync = || lazy.flush().expect("flushed");
    assert_eq!(
        cost(&local, || (write(&lazy, 1000, 1), sync()).1),
        (1, 1),
        "a block that has no content there"
    );
    assert_eq!(cost(&local, || (drop(read(&lazy, 40)), sync()).1), (1, 1), "what was only fetched");
    assert_eq!(cost(&local, || (write(&lazy, 100, 1), sync()).1), (2, 2), "an absent block");
    assert_eq!(cost(&local, || (write(&lazy, 100, 2), sync()).1), (1, 1), "the same once more");
    drop(read(&lazy, 160));
    assert_eq!(
        cost(&local, || (write(&lazy, 161, 2), sync()).1),
        (2, 2),
        "one that was fetched, and is not in the map"
    );
    lazy.settle().expect("settled");
    assert_eq!(cost(&local, || (write(&lazy, 42, 2), sync()).1), (1, 1), "one that is in the map");
    assert_eq!(read(&lazy, 100), vec![2; BLOCK_BYTES]);
    assert_eq!(read(&lazy, 43), content(43));
}

#[test]
fn a_block_is_fetched_with_its_frame_and_once() {
    let (_, lazy, store) = begun();
    let before = store.asked.load(Ordering::Relaxed);
    for block in 64..80 {
        assert_eq!(read(&lazy, block), content(block));
    }
    assert_eq!(store.asked.load(Ordering::Relaxed) - before, 1);
    assert_eq!(read(&lazy, 1500), vec![0; BLOCK_BYTES], "what the replica does not hold");
    assert_eq!(store.asked.load(Ordering::Relaxed) - before, 1);
}

// Shows: C13.
#[test]
fn half_of_an_image_is_no_volume_and_all_of_it_is_what_the_replica_holds() {
    let (local, lazy, _) = begun();
    for slot in SUPERBLOCK_SLOTS {
        let found = Superblock::decode(&read(&*local, slot.0), slot, local.blocks());
        assert_eq!(found.unwrap_err(), FormatError::Partial);
        assert_eq!(read(&lazy, slot.0), content(slot.0), "through the device it is there");
    }
    write(&lazy, 1, 9);
    while lazy.fetch_more(10).expect("fetched") {}
    assert!(lazy.complete().expect("completed") && lazy.is_whole());
    assert!(LazyDevice::is_partial(&*local).expect("read").is_none());
    assert_eq!(read(&*local, 1), vec![9; BLOCK_BYTES]);
    for block in (0..256).filter(|block| *block != 1) {
        assert_eq!(read(&*local, block), content(block), "block {block}");
    }
}

#[test]
fn what_cannot_be_fetched_is_told_and_asked_for_again() {
    let (_, lazy, store) = begun();
    store.down.store(true, Ordering::Relaxed);
    let mut bytes = vec![0; BLOCK_BYTES];
    let told = lazy.read(BlockNo(200), &mut bytes).unwrap_err().to_string();
    assert!(
        told.contains("cannot be fetched from its replica: the object store cannot be reached"),
        "{told}"
    );
    write(&lazy, 201, 3);
    lazy.flush().expect("a write needs nothing of the store");
    store.down.store(false, Ordering::Relaxed);
    assert_eq!(read(&lazy, 200), content(200));
    assert_eq!(read(&lazy, 201), vec![3; BLOCK_BYTES]);

    let frame = Outline::of(&store.bytes.lock()).expect("a unit").index.frames[8].offset;
    store.bytes.lock()[frame as usize + 5] ^= 1;
    let damaged = (0..256).find_map(|block| lazy.read(BlockNo(block), &mut bytes).err());
    let told = damaged.expect("a frame is damaged").to_string();
    assert!(told.contains("unit in the replica is damaged: a frame does not match its checksum"), "{told}");
    assert!(lazy.read(BlockNo(BLOCKS), &mut bytes).is_err(), "behind the volume");
}

// Shows: C13.
#[test]
fn a_volume_that_is_read_from_its_replica_takes_no_write_and_little_memory() {
    let (newest, store) = replica();
    let device = RemoteDevice::new(BLOCKS, newest, store.clone(), 0);
    let mut all = vec![0; 300 * BLOCK_BYTES];
    device.read(BlockNo(0), &mut all).expect("read");
    for (block, bytes) in (0..).zip(all.chunks(BLOCK_BYTES)) {
        let want = if block < 256 { content(block) } else { vec![0; BLOCK_BYTES] };
        assert_eq!(bytes, want, "block {block}");
    }
    assert_eq!(read(&device, 255), content(255));
    let data = vec![Arc::new(Buffer::zeroed(1))];
    assert!(device.write(BlockNo(3), data).is_err() && device.discard(BlockNo(3), 1).is_err());
    assert!(device.read(BlockNo(BLOCKS), &mut [0; BLOCK_BYTES]).is_err());
}

#[test]
fn what_lies_around_a_block_that_somebody_reads_comes_with_it() {
    let (_, lazy, store) = begun();
    let lazy = lazy.reading_around(128 << 10);
    let asked = || store.asked.load(Ordering::Relaxed);
    assert_eq!(read(&lazy, 100), content(100));
    let before = asked();
    // Frames of 16 blocks, which compress well.
    for block in [60, 95, 120, 160] {
        assert_eq!(read(&lazy, block), content(block));
    }
    assert_eq!(asked(), before);
    // What was written meanwhile is not replaced.
    let (_, lazy, _) = begun();
    let lazy = lazy.reading_around(128 << 10);
    write(&lazy, 101, 9);
    assert_eq!(read(&lazy, 120), content(120));
    assert_eq!(read(&lazy, 101), [9; BLOCK_BYTES]);
}
