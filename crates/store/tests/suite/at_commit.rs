//! Batches that are admitted by their own commit: out of what is promised ahead while there is plenty, and never at the
//! cost of anybody else.

use crate::support;
use crate::support::CrashDevice;
#[cfg(debug_assertions)]
use std::cell::Cell;
use std::sync::Arc;
use syncline_format::{Key, Lsn, ObjectNo, TreeId};
use syncline_store::{Batch, Class, Estimate, Permit, Pressure, Store, StoreError, StoreOptions};

fn open(blocks: u64, journal_blocks: u64) -> (Arc<CrashDevice>, Arc<Store>) {
    let device = CrashDevice::new(blocks);
    support::format(&*device, journal_blocks, Vec::new());
    let store = Store::open(device.clone(), StoreOptions::new(5)).expect("open").finish().expect("finish");
    (device, store)
}

fn batch(object: u64) -> Batch {
    let mut batch = Batch::new(TreeId::MAIN);
    batch.image(ObjectNo(object), 0, &[7; 4096]);
    batch.put(Key::inode(ObjectNo(object)), &[1; 160]);
    batch
}

const RING_BLOCKS: u64 = 4096;

#[test]
fn a_commit_that_finds_no_room_does_nothing() {
    let (_device, store) = open(4096, 64);
    let mut last = Lsn(0);
    let refused = loop {
        match store.try_commit(Class::Normal, batch(600)) {
            Ok(lsn) => last = lsn,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, StoreError::Pressure(Pressure::Journal));
    assert!(last.0 > 4, "some had room: {last:?}");
    assert_eq!(store.last_lsn(), last);
    store.force(last).expect("forced");
    // Gone home, the image does not keep the tail any more.
    let permit = store.admit(Class::Destage, Estimate { bytes: 200, items: 0, images: 0 }).expect("admitted");
    let mut home = Batch::new(TreeId::MAIN);
    home.drop_images(ObjectNo(600), 0, 1);
    store.commit(permit, home).expect("committed");
    store.checkpoint().expect("checkpoint");
    let lsn = store.try_commit(Class::Normal, batch(601)).expect("there is room again");
    store.force(lsn).expect("forced");
}

#[test]
fn room_that_is_promised_ahead_is_had_by_whoever_asks_for_it() {
    let (_device, store) = open(1 << 15, RING_BLOCKS);
    for object in 600..620 {
        store.try_commit(Class::Normal, batch(object)).expect("committed");
    }
    // Nothing but the bound on images refuses these: the promises ahead count for none of it.
    let eight = Estimate { bytes: 100, items: 0, images: 8 };
    let permits: Vec<Permit> = std::iter::from_fn(|| store.admit(Class::Normal, eight).ok()).collect();
    assert_eq!(permits.len() as u64, (RING_BLOCKS * 5 / 16 - 20) / 8);
    // What is left may be none for a while, and comes back.
    drop(permits);
    assert!(store.try_commit(Class::Normal, batch(620)).is_ok());
}

#[test]
fn blocks_that_are_promised_ahead_are_had_by_whoever_asks_for_them() {
    for blocks in [2048, 1 << 15] {
        let (_device, store) = open(blocks, 256);
        let available = store.space().available;
        store.try_commit(Class::Normal, batch(600)).expect("committed");
        let claimed = store.space().available;
        assert!(claimed <= available);
        drop(store.reserve(1).expect("there is space"));
        assert_eq!(store.space().available, claimed, "what is promised to nobody is available");
        let all = store.reserve(claimed).expect("all of it can be had by one");
        assert_eq!(store.space().available, 0);
        assert!(store.reserve(1).is_err() && store.try_reserve(1).is_err());
        drop(all);
        assert_eq!(store.space().available, claimed);
    }
}

#[cfg(debug_assertions)]
#[test]
fn a_commit_at_once_and_a_lone_force_take_four_locks() {
    let (_device, store) = open(1 << 15, RING_BLOCKS);
    for round in 0..50 {
        let (_, taken) = syncline_store::lock_order::trace(|| {
            let lsn = store.try_commit(Class::Normal, batch(600)).expect("committed");
            store.force(lsn).expect("forced");
        });
        // The first ones make nodes current, and promise ahead what the others draw.
        let few = ["the trees", "the journal", "the journal", "the journal"];
        assert!(round < 2 || taken == few, "round {round}: {taken:?}");
    }
}

/// What is claimed out of a share that is kept for some is never promised ahead to others.
#[cfg(debug_assertions)]
#[test]
fn nobody_who_has_a_share_of_his_own_puts_anything_back_for_others() {
    let (_device, store) = open(1 << 15, RING_BLOCKS);
    let takes_space = |what: &dyn Fn()| {
        let ((), taken) = syncline_store::lock_order::trace(what);
        taken.contains(&"the space")
    };
    let one = Estimate { bytes: 100, items: 1, images: 0 };
    for (class, is_put_back) in
        [(Class::Normal, true), (Class::Reclaim, false), (Class::Deletion, false), (Class::Destage, false)]
    {
        let permit = Cell::new(Some(store.admit(class, one).expect("admitted")));
        assert_ne!(takes_space(&|| drop(permit.take())), is_put_back, "{class:?}");
    }
    drop(store.reserve(1).expect("space"));
    drop(store.reserve(1).expect("space"));
    for (reserved, is_put_back) in [
        (store.reserve(1), true),
        (store.reserve_for_freeing(1), false),
        (store.reserve_to_overwrite(1), false),
    ] {
        let mut reserved = reserved.expect("space");
        let part = Cell::new(Some(reserved.split(1)));
        assert_ne!(takes_space(&|| drop(part.take())), is_put_back);
    }
    let mut mixed = store.reserve(1).expect("space");
    mixed.merge(store.reserve_for_freeing(1).expect("space"));
    let mixed = Cell::new(Some(mixed));
    assert!(takes_space(&|| drop(mixed.take())));
}

#[test]
fn a_large_batch_that_admits_itself_is_refused_as_by_admission() {
    let (_device, store) = open(4096, 64);
    let mut batch = Batch::new(TreeId::MAIN);
    (0..64).for_each(|page| batch.image(ObjectNo(600), page, &[7; 4096]));
    let refused = store.try_commit(Class::Normal, batch);
    assert!(matches!(refused, Err(StoreError::BatchTooLarge { .. })), "{refused:?}");
    assert_eq!(store.last_lsn(), store.durable_lsn());
}
