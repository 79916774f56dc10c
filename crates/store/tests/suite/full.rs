//! A volume of which the last block is promised to somebody: each promise is kept (R18).

use crate::support;
use std::sync::{Arc, Mutex};
use syncline_device::{Buffer, Device, Layer, MemoryDevice, Ticket};
use syncline_format::layout::VOLUME_BLOCKS_MIN;
use syncline_format::superblock::SUPERBLOCK_SLOTS;
use syncline_format::{BlockNo, Key, ObjectNo, TreeId};
use syncline_store::lock_order::elsewhere;
use syncline_store::{Class, Estimate, Permit, Reservation, Store, StoreOptions};

/// What happens before the next superblock is written.
type Before = Box<dyn Fn() + Send + Sync>;

struct Told {
    below: MemoryDevice,
    before: Mutex<Option<Before>>,
}

impl Layer for Told {
    fn below(&self) -> &dyn Device {
        &self.below
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let before = if SUPERBLOCK_SLOTS.contains(&at) { self.before.lock().unwrap().take() } else { None };
        before.iter().for_each(elsewhere);
        self.below.submit_write(at, data)
    }
}

fn volume(with_trees: bool) -> (Arc<Told>, Arc<Store>) {
    let device = Arc::new(Told { below: MemoryDevice::new(VOLUME_BLOCKS_MIN), before: Mutex::default() });
    let options = StoreOptions::new(5);
    let options = match with_trees {
        true => {
            support::format_with_trees(&*device, 64, Vec::new());
            options.trees()
        }
        false => {
            support::format(&*device, 64, Vec::new());
            options
        }
    };
    let store = Store::open(device.clone(), options).expect("open").finish().expect("finish");
    (device, store)
}

fn change_an_item(store: &Store, value: u8) {
    let estimate = Estimate { bytes: 4096, items: 1, images: 0 };
    let permit = store.admit(Class::Reclaim, estimate).expect("there is room");
    let mut batch = store.batch(TreeId::MAIN);
    batch.put(Key::inode(ObjectNo(1000)), &[value; 160]);
    store.commit(permit, batch).expect("commit");
}

/// The most blocks that data can be promised but for `less`, and behind that the most chunks that nodes can.
fn promise_everything(store: &Store, less: u64) -> (Reservation, Vec<Permit>) {
    let total = store.space().total;
    let most = (1..=total).rev().find_map(|blocks| store.reserve_for_freeing(blocks).ok());
    let mut data = most.expect("there is space");
    drop(data.split(less));
    let mut nodes = Vec::new();
    for items in (1..100).rev() {
        let estimate = Estimate { bytes: 64, items, images: 0 };
        nodes.extend(std::iter::from_fn(|| store.try_admit(Class::Reclaim, estimate).ok()));
    }
    (data, nodes)
}

/// What a checkpoint claims for the one behind it was claimed without a look, while what it releases was not free
/// yet. That took a chunk which had been promised: whoever wrote out his data meanwhile did not find his blocks.
// Shows: R18.
#[test]
fn a_checkpoint_on_a_full_volume_takes_nothing_that_was_promised_to_others() {
    for with_trees in [false, true] {
        // Claims come in pieces: with one of these nothing at all is left over.
        for less in 0..32 {
            let (device, store) = volume(with_trees);
            change_an_item(&store, 1);
            store.checkpoint().expect("checkpoint");
            change_an_item(&store, 2);
            let (mut data, nodes) = promise_everything(&store, less);
            let wanted = data.blocks();
            let (held, allocated) = (store.clone(), Arc::new(Mutex::new(0)));
            let told = allocated.clone();
            let data = Mutex::new(data.split(wanted));
            *device.before.lock().unwrap() = Some(Box::new(move || {
                let mut data = data.lock().unwrap();
                while data.blocks() > 0 {
                    *told.lock().unwrap() += u64::from(held.allocate(&mut data, u32::MAX, None).len);
                }
            }));
            store.checkpoint().expect("checkpoint");
            assert_eq!(*allocated.lock().unwrap(), wanted);
            drop(nodes);
            change_an_item(&store, 3);
            store.checkpoint().expect("the next checkpoint finds its chunks as well");
        }
    }
}
