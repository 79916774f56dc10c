//! What counts as proof that a superblock was lost, and what users can make look like it.

use crate::support;
use crate::support::{CrashDevice, Random};
use std::sync::Arc;
use syncline_device::{Buffer, Device};
use syncline_format::record::{self, RecordInfo};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, FormatError, Generation, Key, Lsn, ObjectNo, Sequence, TreeId, VolumeId};
use syncline_store::{Batch, Class, Estimate, Store, StoreError, StoreOptions};

const FILE: ObjectNo = ObjectNo(500);
/// Where an image's bytes begin in a record of one batch with one operation: headers of the record, the batch, the
/// operation.
const IMAGE_AT: usize = 128 + 8 + 23;

fn format() -> Arc<CrashDevice> {
    let device = CrashDevice::new(2048);
    support::format(&*device, 64, vec![(Key::inode(ObjectNo(1)), vec![1; 160])]);
    device
}

fn open(device: &Arc<CrashDevice>, epoch: u64) -> Result<Arc<Store>, StoreError> {
    Store::open(device.clone(), StoreOptions::new(epoch))?.finish()
}

fn commit(store: &Store, fill: impl FnOnce(&mut Batch)) -> Lsn {
    let permit =
        store.admit(Class::Normal, Estimate { bytes: 8192, items: 1, images: 1 }).expect("there is room");
    let mut batch = Batch::new(TreeId::MAIN);
    fill(&mut batch);
    store.commit(permit, batch).expect("commit")
}

#[test]
fn page_image_that_looks_like_a_record_of_a_newer_superblock_is_no_proof_of_one() {
    let device = format();
    let store = open(&device, 5).expect("a fresh volume");
    let journal = syncline_format::layout::Layout::new(2048, Some(64)).expect("valid").journal_start;
    // The first record of a session is at ring block 0, so its image crosses into block 1.
    let info = RecordInfo {
        epoch: 12345,
        sequence: Sequence(1000),
        predecessor: 0,
        known_flushed: Sequence(999),
        generation: Generation(1 << 40),
        first_lsn: Lsn(1),
        batches: 1,
        payload_bytes: (IMAGE_AT - record::RECORD_HEADER_BYTES) as u32,
    };
    let mut forged = vec![0; BLOCK_BYTES];
    forged[record::RECORD_HEADER_BYTES..IMAGE_AT].fill(0xee);
    record::seal(&mut forged, journal.plus(1), &info, VolumeId(u64::from_le_bytes([7; 8])));
    let mut page = vec![0x11; BLOCK_BYTES];
    page[BLOCK_BYTES - IMAGE_AT..].copy_from_slice(&forged[..IMAGE_AT]);
    let lsn = commit(&store, |batch| batch.image(FILE, 0, &page));
    store.force(lsn).expect("force");
    let mut there = Buffer::zeroed(1);
    device.read(journal.plus(1), &mut there).expect("read");
    assert!(record::verify(&there, journal.plus(1), VolumeId(u64::from_le_bytes([7; 8]))).is_ok());
    // Within the chain it is never looked at; behind the tail it has to be told apart by its epoch.
    let crashed = device.crash(&mut Random(1));
    drop(Store::open(crashed, StoreOptions::new(6)).expect("the record that holds it is chained"));
    commit(&store, |batch| batch.drop_images(FILE, 0, 1));
    store.checkpoint().expect("checkpoint");
    let lsn = commit(&store, |batch| batch.put(Key::inode(ObjectNo(600)), &[1; 160]));
    store.force(lsn).expect("force");
    let crashed = device.crash(&mut Random(2));
    let reopened = open(&crashed, 7).expect("a page image proves nothing");
    assert!(reopened.get(TreeId::MAIN, Key::inode(ObjectNo(600))).expect("get").is_some());
}

#[test]
fn first_record_of_a_session_proves_that_its_superblock_was_lost() {
    let device = format();
    let store = open(&device, 5).expect("a fresh volume");
    let lsn = commit(&store, |batch| batch.put(Key::inode(ObjectNo(600)), &[1; 160]));
    store.force(lsn).expect("force");
    // The superblock of this session is in the slot that mkfs left empty; what mkfs wrote says that all is clean.
    let lost = vec![Arc::new(Buffer::zeroed(1))];
    device.write(SUPERBLOCK_SLOTS[1], lost).expect("write");
    device.flush().expect("flush");
    let crashed = device.crash(&mut Random(1));
    assert!(matches!(open(&crashed, 6), Err(StoreError::SuperblockLost { .. })));
}

/// The superblocks of both slots; `None` where there is none.
fn superblocks(device: &CrashDevice) -> [Option<Superblock>; 2] {
    SUPERBLOCK_SLOTS.map(|block| {
        let mut bytes = Buffer::zeroed(1);
        device.read(block, &mut bytes).expect("read");
        Superblock::decode(&bytes, block, device.blocks()).ok()
    })
}

#[test]
fn newest_superblock_whose_counters_cannot_be_true_is_corruption_and_not_passed_over() {
    type Forge = fn(&mut Superblock);
    let forgeries: [Forge; 4] = [
        |superblock| superblock.generation = Generation((1 << 62) + 1),
        |superblock| superblock.checkpoint_lsn = Lsn(u64::MAX),
        |superblock| superblock.tail.sequence = Sequence((1 << 62) + 1),
        |superblock| superblock.next_object = ObjectNo(u64::MAX),
    ];
    for (number, forge) in forgeries.into_iter().enumerate() {
        let device = format();
        let store = open(&device, 5).expect("a fresh volume");
        store.close().expect("close");
        drop(store);
        let [first, second] = superblocks(&device);
        let (first, second) = (first.expect("mkfs or close"), second.expect("open or close"));
        let (mut forged, other) = if first.rank() > second.rank() { (first, 1) } else { (second, 0) };
        forged.generation = forged.generation.next();
        forge(&mut forged);
        let block = SUPERBLOCK_SLOTS[other];
        device.write(block, vec![Arc::new(Buffer::from_bytes(&forged.encode(block)))]).expect("write");
        match open(&device, 6) {
            Err(StoreError::Corrupt { block: told, .. }) => assert_eq!(told, block, "forgery {number}"),
            other => panic!("forgery {number} is opened: {:?}", other.err()),
        }
    }
}

/// The version lies under the checksum: a sealed one tells of another software, any other of rot.
#[test]
fn a_slot_whose_version_has_rotted_is_passed_over_and_a_newer_version_is_refused() {
    const VERSION_AT: usize = 16;
    let device = format();
    drop(open(&device, 5).expect("a fresh volume").close());
    for slot in SUPERBLOCK_SLOTS {
        let mut bytes = Buffer::zeroed(1);
        device.read(slot, &mut bytes).expect("read");
        bytes[VERSION_AT] ^= 0x7f;
        for sealed in [false, true] {
            if sealed {
                let checksum = syncline_format::checksum(&bytes[16..]);
                bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
            }
            let copy = device.crash(&mut Random(1));
            copy.write(slot, vec![Arc::new(Buffer::from_bytes(&bytes))]).expect("write");
            match open(&copy, 6) {
                Ok(_) => assert!(!sealed),
                Err(StoreError::NoSuperblock { source: FormatError::Version { got, .. } }) => {
                    assert!(sealed && got != 1);
                }
                Err(error) => panic!("sealed {sealed}: {error}"),
            }
        }
    }
}

#[test]
fn object_of_an_impossibly_high_number_in_the_log_is_corruption() {
    for (number, sound) in [((1 << 62) - 1, true), (1 << 62, false), (u64::MAX, false)] {
        let device = format();
        let store = open(&device, 5).expect("a fresh volume");
        let lsn = commit(&store, |batch| batch.put(Key::inode(ObjectNo(number)), &[1; 160]));
        store.force(lsn).expect("force");
        let crashed = device.crash(&mut Random(1));
        match open(&crashed, 6) {
            Ok(_) => assert!(sound, "object {number} is accepted"),
            Err(StoreError::Inconsistent { .. }) => assert!(!sound, "object {number} is refused"),
            Err(other) => panic!("object {number}: {other}"),
        }
    }
}
