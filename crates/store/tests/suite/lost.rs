//! What is missing on the device is told when the volume is opened, and not taken for what never was.

use crate::support;
use crate::support::{CrashDevice, Random};
use std::sync::Arc;
use syncline_device::{Buffer, Device};
use syncline_format::bitmap;
use syncline_format::layout::Layout;
use syncline_format::{BLOCK_BYTES, BlockNo, GroupNo, Key, Lsn, ObjectNo, TreeId, VolumeId};
use syncline_store::{Batch, Class, Estimate, Store, StoreError, StoreOptions};

const FILE: ObjectNo = ObjectNo(500);
const RING_BLOCKS: u64 = 64;

fn format() -> (Arc<CrashDevice>, Layout) {
    let device = CrashDevice::new(2048);
    support::format(&*device, RING_BLOCKS, vec![(Key::inode(ObjectNo(1)), vec![1; 160])]);
    (device, Layout::new(2048, Some(RING_BLOCKS)).expect("valid"))
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

fn overwrite(device: &CrashDevice, at: BlockNo, byte: u8) {
    let mut lost = Buffer::zeroed(1);
    lost.fill(byte);
    device.write(at, vec![Arc::new(lost)]).expect("write");
    device.flush().expect("flush");
}

/// The slot of the first group's bitmap that is newest.
fn current_slot(device: &CrashDevice, layout: &Layout) -> BlockNo {
    let generation = |slot: u8| {
        let at = layout.bitmap_slot(GroupNo(0), slot);
        let mut bytes = Buffer::zeroed(1);
        device.read(at, &mut bytes).expect("read");
        let volume = VolumeId(u64::from_le_bytes([7; 8]));
        bitmap::decode(&bytes, GroupNo(0), at, volume).map(|(generation, _)| generation).ok()
    };
    layout.bitmap_slot(GroupNo(0), if generation(1) > generation(0) { 1 } else { 0 })
}

/// The bitmap before it calls free what is in use since: whoever took it would write over that.
// Shows: C7.
#[test]
fn a_lost_bitmap_is_not_replaced_by_the_one_before_it() {
    for byte in [0, 0xa5] {
        let (device, layout) = format();
        let store = open(&device, 5).expect("a fresh volume");
        for object in 0..400 {
            commit(&store, |batch| batch.put(Key::inode(ObjectNo(600 + object)), &[1; 160]));
        }
        store.close().expect("close");
        drop(store);
        overwrite(&device, current_slot(&device, &layout), byte);
        let told = open(&device, 6).map(drop).expect_err("a bitmap is missing");
        assert!(matches!(told, StoreError::Inconsistent { .. } | StoreError::Corrupt { .. }), "{told}");
    }
}

/// A slot that a crash has torn is not the current one: it is no damage.
#[test]
fn a_slot_that_no_superblock_has_reached_may_be_torn() {
    let (device, layout) = format();
    let store = open(&device, 5).expect("a fresh volume");
    for object in 0..400 {
        commit(&store, |batch| batch.put(Key::inode(ObjectNo(600 + object)), &[1; 160]));
    }
    store.close().expect("close");
    drop(store);
    let current = current_slot(&device, &layout);
    let other = [0, 1].map(|slot| layout.bitmap_slot(GroupNo(0), slot)).into_iter().find(|at| *at != current);
    overwrite(&device, other.expect("two slots"), 0xa5);
    let store = open(&device, 6).expect("nothing is missing");
    assert!(store.get(TreeId::MAIN, Key::inode(ObjectNo(999))).expect("get").is_some());
}

/// The images that recovery could not destage begin at ring block 0, as does the log of a session without records.
// Shows: R10.
#[test]
fn the_first_record_of_carried_images_is_missed_wherever_it_was() {
    let (device, layout) = format();
    let store = open(&device, 5).expect("a fresh volume");
    // Until the free part of the ring before the log is the largest.
    for object in 0..40 {
        let lsn = commit(&store, |batch| batch.put(Key::inode(ObjectNo(600 + object)), &[1; 160]));
        store.force(lsn).expect("force");
        store.checkpoint().expect("checkpoint");
    }
    let lsn = commit(&store, |batch| batch.image(FILE, 0, &[7; BLOCK_BYTES]));
    store.force(lsn).expect("force");
    let crashed = device.crash(&mut Random(1));
    let recovery = Store::open(crashed.clone(), StoreOptions::new(6)).expect("open");
    drop(recovery.finish().expect("the image is carried"));
    let again = crashed.crash(&mut Random(1));
    let mut recovery = Store::open(again.clone(), StoreOptions::new(7)).expect("open");
    let images = recovery.take_images();
    assert_eq!(images.len(), 1);
    assert_eq!(recovery.read_images(&images).expect("read")[0][..], [7; BLOCK_BYTES]);
    drop(recovery);
    overwrite(&again, layout.journal_start, 0xa5);
    let told = Store::open(again, StoreOptions::new(7)).map(drop).expect_err("the image is missing");
    assert!(matches!(told, StoreError::JournalBroken { .. }), "{told}");
}
