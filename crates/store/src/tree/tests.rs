//! The tree against a sorted map, through freezes and simulated checkpoints.

use super::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use syncline_format::{BlockNo, Generation, ObjectNo, VolumeId, node};

/// A device of nodes: everything that was "written" stays resident.
#[derive(Default)]
struct Shelf(RefCell<HashMap<BlockNo, Arc<Node>>>);

impl Resident for Shelf {
    fn resident(&self, pointer: &NodePointer) -> Option<Arc<Node>> {
        self.0.borrow().get(&pointer.block).cloned()
    }
}

fn write_out(node: &Arc<Node>, shelf: &Shelf, next: &mut u64) -> NodePointer {
    if let Some(home) = node.home.get() {
        return *home;
    }
    let mut page = node.page.clone();
    for (i, child) in node.children.iter().enumerate() {
        if let Some(child) = child {
            page.set_value(i, &write_out(child, shelf, next).encode());
        }
    }
    let mut bytes = (**page.bytes()).clone();
    *next += 4;
    let home = node::seal(&mut bytes, BlockNo(*next), Generation(1), VolumeId(5));
    node::verify(&bytes, &home, TreeId::MAIN, VolumeId(5)).expect("a written node verifies");
    node.home.set(home).expect("written once");
    let clean = Arc::new(Node::clean(Page::from_verified(Arc::new(bytes)), home));
    shelf.0.borrow_mut().insert(home.block, clean);
    home
}

fn contents(tree: &Tree, resident: &dyn Resident) -> BTreeMap<Key, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut from = Key::MIN;
    loop {
        let found = tree.find(from, resident).expect("all resident");
        assert!(found.is_in_place(), "no edit leaves keys where others belong");
        for i in 0..found.leaf.page.count() {
            out.insert(found.leaf.page.key(i), found.leaf.page.value(i).to_vec());
        }
        match found.next {
            Some(next) => from = next,
            None => return out,
        }
    }
}

#[test]
fn the_tree_is_a_sorted_map_and_frozen_trees_do_not_change() {
    let shelf = Shelf::default();
    let mut superseded = Vec::new();
    let mut current = 1u64;
    let mut freeze = 1;
    let mut next = 0;
    let mut tree =
        Tree { id: TreeId::MAIN, root: Root::Held(Arc::new(Node::empty_leaf(TreeId::MAIN, freeze))) };
    let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    let mut frozen: Option<(Tree, BTreeMap<Key, Vec<u8>>)> = None;
    let mut seed = 42u64;
    for step in 0..60_000u32 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mut editor =
            Editor { resident: &shelf, freeze, superseded: &mut superseded, current_nodes: &mut current };
        let key = Key::extent(ObjectNo(1 + (seed >> 60)), (seed >> 33) % 4000);
        // Grow, then shrink, so that splits and merges both happen.
        let delete = (seed >> 20) % 10 < if (step / 10_000).is_multiple_of(2) { 2 } else { 8 };
        if delete {
            tree.delete(key, &mut editor);
            model.remove(&key);
        } else {
            let value = vec![step as u8; (seed >> 10) as usize % 700];
            tree.put(key, &value, &mut editor);
            model.insert(key, value);
        }
        if step % 5_000 == 4_999 {
            if let Some((old, expected)) = frozen.take() {
                assert_eq!(contents(&old, &shelf), expected, "a frozen tree changed");
                let Root::Held(root) = &old.root else { panic!("held") };
                write_out(root, &shelf, &mut next);
                superseded.iter_mut().for_each(Superseded::settle);
                assert!(!superseded.is_empty(), "nothing is to be freed");
                let kept = superseded.iter().filter(|node| matches!(node, Superseded::Unwritten(_)));
                assert_eq!(kept.count(), 0, "the content of nodes that were written is kept");
            }
            assert_eq!(contents(&tree, &shelf), model);
            frozen = Some((tree.clone(), model.clone()));
            freeze += 1;
            current = 0;
            superseded.clear();
        }
        if step % 97 == 0 {
            let probe = Key::extent(ObjectNo(1 + (seed >> 60)), (seed >> 13) % 4000);
            let want = model.range(..=probe).next_back().map(|(k, v)| (*k, v.clone()));
            let found = tree.last_at_or_before(probe, &shelf).expect("resident");
            assert!(found.as_ref().is_none_or(|(found, _)| found.is_in_place()));
            let item = |(found, index): (super::Found, usize)| {
                (found.leaf.page.key(index), found.leaf.page.value(index).to_vec())
            };
            assert_eq!(found.map(item), want);
        }
    }
    for key in model.keys() {
        let mut editor =
            Editor { resident: &shelf, freeze, superseded: &mut superseded, current_nodes: &mut current };
        tree.delete(*key, &mut editor);
    }
    assert!(contents(&tree, &shelf).is_empty());
    assert_eq!(tree.root_level(), 0, "an emptied tree is one leaf again");
    assert_eq!(current, 1, "the count of current nodes is exact");
}
