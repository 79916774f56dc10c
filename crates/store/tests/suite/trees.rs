//! Reads and batches are of the tree they name.

use crate::support;
use crate::support::CrashDevice;
use std::ops::ControlFlow;
use std::sync::Arc;
use syncline_format::{Key, ObjectNo, TreeId};
use syncline_store::{Batch, Class, Estimate, Store, StoreError, StoreOptions};

const OTHER: TreeId = TreeId(7);

fn open() -> Arc<Store> {
    let device = CrashDevice::new(4096);
    support::format(&*device, 64, Vec::new());
    Store::open(device, StoreOptions::new(7)).expect("open").finish().expect("finish")
}

fn put(store: &Store, tree: TreeId, object: u64) -> Result<(), StoreError> {
    let permit = store.admit(Class::Normal, Estimate { bytes: 200, items: 1, images: 1 })?;
    let mut batch = Batch::new(tree);
    batch.put(Key::inode(ObjectNo(object)), &[1; 16]);
    store.commit(permit, batch).map(drop)
}

#[test]
fn a_tree_that_does_not_exist_is_told_and_nothing_changes() {
    let store = open();
    put(&store, TreeId::MAIN, 100).expect("the main tree is there");
    let last = store.last_lsn();
    let refused = StoreError::NoTree { tree: OTHER };
    assert_eq!(put(&store, OTHER, 101), Err(refused.clone()));
    let mut image = Batch::new(OTHER);
    image.image(ObjectNo(100), 0, b"x");
    let estimate = Estimate { bytes: 200, items: 0, images: 1 };
    let permit = store.admit(Class::Normal, estimate).expect("there is room");
    assert_eq!(store.commit(permit, image), Err(refused.clone()));
    assert_eq!((store.last_lsn(), store.load().images), (last, 0));

    let key = Key::inode(ObjectNo(100));
    assert_eq!(store.get(OTHER, key), Err(refused.clone()));
    assert_eq!(store.last_at_or_before(OTHER, key), Err(refused.clone()));
    let mut visit = |_, _: &[u8]| ControlFlow::Continue(());
    assert_eq!(store.scan(OTHER, key, Key::inode(ObjectNo(200)), &mut visit), Err(refused));
    assert_eq!(store.get(TreeId::MAIN, key).expect("read"), Some(vec![1; 16]));
}
