//! Each session's records bear an epoch of their own, whatever random number the session was given.

use crate::support;
use crate::support::{CrashDevice, Random};
use std::sync::Arc;
use syncline_device::{Device, Layer};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, Key, ObjectNo, TreeId};
use syncline_store::{Batch, Class, Estimate, Store, StoreOptions};

fn put(store: &Store, object: u64, value: u8) {
    let permit =
        store.admit(Class::Normal, Estimate { bytes: 4096, items: 1, images: 0 }).expect("there is room");
    let mut batch = Batch::new(TreeId::MAIN);
    batch.put(Key::inode(ObjectNo(object)), &[value; 160]);
    let lsn = store.commit(permit, batch).expect("commit");
    store.force(lsn).expect("force");
}

/// The epoch that the newest superblock names.
fn epoch(device: &dyn Device) -> u64 {
    let slots = SUPERBLOCK_SLOTS.map(|slot| {
        let mut bytes = vec![0; BLOCK_BYTES];
        device.read(slot, &mut bytes).expect("read");
        Superblock::decode(&bytes, slot, device.blocks()).ok()
    });
    slots.into_iter().flatten().max_by_key(|superblock| superblock.generation).expect("a superblock").epoch
}

/// Two copies of one process open a volume one after the other and draw the same number; the second one writes less
/// and is killed.
// Shows: R10.
#[test]
fn a_session_that_draws_the_number_of_the_one_before_leaves_a_volume_that_opens() {
    let device = CrashDevice::new(2048);
    support::format(&*device, 64, Vec::new());
    let first = Store::open(device.clone(), StoreOptions::new(5)).expect("open").finish().expect("finish");
    (0..20).for_each(|object| put(&first, 600 + object, 1));
    first.close().expect("close");
    drop(first);
    let of_first = epoch(&*device);
    let second = Store::open(device.clone(), StoreOptions::new(5)).expect("open").finish().expect("finish");
    (0..3).for_each(|object| put(&second, 600 + object, 2));
    let of_second = epoch(&*device);
    let cut = device.crash(&mut Random(1));
    let third =
        Store::open(cut.clone(), StoreOptions::new(5)).expect("the volume opens").finish().expect("finish");
    for object in 0..20 {
        let value = third.get(TreeId::MAIN, Key::inode(ObjectNo(600 + object))).expect("get").expect("there");
        assert_eq!(value, vec![if object < 3 { 2 } else { 1 }; 160], "{object}");
    }
    assert_ne!(of_first, of_second);
    assert!(![of_first, of_second].contains(&epoch(&*cut)));
}

/// A number that leads to the epoch of the session before is not taken.
#[test]
fn an_epoch_that_the_ring_knows_is_not_used_again() {
    struct Passing(Arc<CrashDevice>);
    impl Layer for Passing {
        fn below(&self) -> &dyn Device {
            &*self.0
        }
    }
    let device = CrashDevice::new(2048);
    support::format(&*device, 64, Vec::new());
    let first = Store::open(device.clone(), StoreOptions::new(5)).expect("open").finish().expect("finish");
    (0..20).for_each(|object| put(&first, 600 + object, 1));
    let taken = epoch(&*device);
    let cut = device.crash(&mut Random(1));
    // Every number that a session could be given is one that leads to the epoch of the records in the ring for some
    // generation.
    let generation = 64;
    let stride = 0x9E37_79B9_7F4A_7C15_u64;
    for back in 0..generation {
        let number = taken.wrapping_sub(stride.wrapping_mul(back));
        let image = Arc::new(Passing(cut.crash(&mut Random(1))));
        Store::open(image.clone(), StoreOptions::new(number)).expect("open").finish().expect("finish");
        assert_ne!(epoch(&*image), taken, "number {number}");
    }
}
