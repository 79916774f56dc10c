//! What differs between two trees, told by the walk that passes by what they share, and by reading both.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use syncline_format::{Key, TreeId};
use syncline_store::Store;

type Items = BTreeMap<Key, Vec<u8>>;

fn items(store: &Store, tree: TreeId) -> Items {
    let mut items = Items::new();
    store
        .scan(tree, Key::MIN, Key::MAX, &mut |key, value| {
            items.insert(key, value.to_vec());
            ControlFlow::Continue(())
        })
        .expect("scan");
    items
}

/// Holds the walk against a reading of both trees. Returns how many items differ.
pub fn compare(store: &Store, older: TreeId, newer: TreeId) -> usize {
    let (old, new) = (items(store, older), items(store, newer));
    let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(key)));
    let differs = keys.filter(|key| old.get(key) != new.get(key));
    let mut wanted: Vec<_> =
        differs.map(|key| (*key, old.get(key).cloned(), new.get(key).cloned())).collect();
    wanted.sort();
    let mut told = Vec::new();
    let owned = |value: Option<&[u8]>| value.map(<[u8]>::to_vec);
    store
        .difference(older, newer, &mut |key, old, new| {
            told.push((key, owned(old), owned(new)));
            ControlFlow::Continue(())
        })
        .expect("difference");
    assert!(told == wanted, "{} items between {older:?} and {newer:?}, told {}", wanted.len(), told.len());
    told.len()
}
