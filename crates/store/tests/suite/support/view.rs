//! What a tree of a few files shows, read through the store.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use syncline_format::item::{ExtentContent, ExtentItem};
use syncline_format::{BLOCK_BYTES, Key, Kind, ObjectNo, TreeId, checksum};
use syncline_store::Store;

/// Files of a tree.
pub const OBJECTS: u64 = 24;

pub fn object(number: u64) -> ObjectNo {
    ObjectNo(100 + number)
}

/// An item that gives the tree a shape, of a kind that nothing else has to agree with.
pub fn shape(number: u64) -> Key {
    Key::new(object(number), Kind::XattrPiece, 0)
}

/// What a tree shows: items as they are, and for each page of a file what every byte of it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    pub items: BTreeMap<u64, Vec<u8>>,
    pub pages: BTreeMap<(u64, u64), u8>,
}

pub fn extents(store: &Store, tree: TreeId, file: u64) -> BTreeMap<u64, ExtentItem> {
    let mut extents = BTreeMap::new();
    let (from, end) = (Key::extent(object(file), 0), Key::extent(object(file), u64::MAX));
    store
        .scan(tree, from, end, &mut |key, value| {
            extents.insert(key.offset, ExtentItem::decode(value).expect("an extent"));
            ControlFlow::Continue(())
        })
        .expect("scan");
    extents
}

/// Reads what a tree shows, overlay included, all of it verified.
pub fn view(store: &Store, tree: TreeId) -> View {
    let mut view = View::default();
    store
        .scan(tree, Key::MIN, Key::MAX, &mut |key, value| {
            if key.kind == Kind::XattrPiece {
                view.items.insert(key.object.0 - 100, value.to_vec());
            }
            ControlFlow::Continue(())
        })
        .expect("scan");
    let mut read = |file: u64, first: u64, item: &ExtentItem| {
        let ExtentContent::Written(sums) = &item.content else { return };
        for (page, sum) in (0u64..).zip(sums) {
            let mut bytes = vec![0; BLOCK_BYTES];
            store.device().read(item.block_of(page), &mut bytes).expect("read");
            assert_eq!(checksum(&bytes), *sum, "page {} of file {file} in tree {tree}", first + page);
            view.pages.insert((file, first + page), bytes[0]);
        }
    };
    for file in 0..OBJECTS {
        extents(store, tree, file).iter().for_each(|(first, item)| read(file, *first, item));
    }
    for item in store.overlay(tree).expect("overlay") {
        read(item.object.0 - 100, item.page, &item.extent);
    }
    view
}
