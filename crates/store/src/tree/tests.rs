//! The tree against a sorted map, through freezes and simulated checkpoints.

use super::*;
use crate::limits::NARROW_LEVELS;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use syncline_format::{BlockNo, Era, Generation, ObjectNo, VolumeId, node};

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

fn empty_tree(freeze: u64) -> Tree {
    let page = Page::empty(TreeId::MAIN, 0);
    let leaf = Node { page, freeze, birth: Era(0), home: OnceLock::new(), children: Vec::new() };
    Tree::new(TreeId::MAIN, Root::Held(Arc::new(leaf)), freeze)
}

/// Of a tree that owns everything.
fn editor<'a>(
    resident: &'a Shelf,
    freeze: u64,
    superseded: &'a mut Vec<Superseded>,
    current_nodes: &'a mut u64,
) -> Editor<'a> {
    let (birth, items_max) = (Era(0), usize::MAX);
    Editor { resident, freeze, birth, low: None, items_max, superseded, current_nodes, lost: None }
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
        match found.place.end {
            Some(next) => from = next,
            None => return out,
        }
    }
}

#[test]
fn the_tree_is_a_sorted_map_and_frozen_trees_do_not_change() {
    assert!(compare_with_a_map(usize::MAX, 10_000) > 0);
}

#[test]
fn nodes_of_few_items_make_the_same_map_of_many_levels_and_keep_to_the_bound() {
    for items_max in [3, 6] {
        let highest = compare_with_a_map(items_max, 800);
        assert!(highest > 3, "{highest} levels above leaves of {items_max} items");
    }
}

/// Grows and shrinks a tree, each three times in so many steps; the level of its highest root.
fn compare_with_a_map(items_max: usize, part: u32) -> u16 {
    let mut highest = 0;
    let shelf = Shelf::default();
    let mut superseded = Vec::new();
    let mut current = 1u64;
    let mut freeze = 1;
    let mut next = 0;
    let mut tree = empty_tree(freeze);
    let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    let mut frozen: Option<(Tree, BTreeMap<Key, Vec<u8>>)> = None;
    let mut seed = 42u64;
    for step in 0..6 * part {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let bound = nodes_bound(tree.root_level() + NARROW_LEVELS, 1);
        let before = current;
        let mut editor = Editor { items_max, ..editor(&shelf, freeze, &mut superseded, &mut current) };
        let key = Key::extent(ObjectNo(1 + (seed >> 60)), (seed >> 33) % 4000);
        // Grow, then shrink, so that splits and merges both happen.
        let delete = (seed >> 20) % 10 < if (step / part).is_multiple_of(2) { 2 } else { 8 };
        if delete {
            tree.delete(key, &mut editor);
            model.remove(&key);
        } else {
            let value = vec![step as u8; (seed >> 10) as usize % 700];
            tree.put(key, &value, &mut editor);
            model.insert(key, value);
        }
        assert!(current.saturating_sub(before) <= bound, "{before} current nodes became {current}");
        highest = highest.max(tree.root_level());
        if step % (part / 2) == part / 2 - 1 {
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
        let mut editor = Editor { items_max, ..editor(&shelf, freeze, &mut superseded, &mut current) };
        tree.delete(*key, &mut editor);
    }
    assert!(contents(&tree, &shelf).is_empty());
    assert_eq!(tree.root_level(), 0, "an emptied tree is one leaf again");
    assert_eq!(current, 1, "the count of current nodes is exact");
    highest
}

#[test]
fn a_first_child_that_was_emptied_leaves_its_keys_to_the_next_one_in_order() {
    let shelf = Shelf::default();
    let (mut superseded, mut current, mut next) = (Vec::new(), 1u64, 0);
    let mut tree = empty_tree(1);
    let mut editor = editor(&shelf, 1, &mut superseded, &mut current);
    let key = |n: u64| Key::extent(ObjectNo(7), n);
    for n in 1000..1200 {
        tree.put(key(n), &[1; 500], &mut editor);
    }
    let first_end = tree.find(key(1000), &shelf).expect("resident").place.end.expect("more leaves");
    for n in 1000..first_end.offset {
        tree.delete(key(n), &mut editor);
    }
    for n in (0..200).rev() {
        tree.put(key(n), &[2; 500], &mut editor);
    }
    let all = contents(&tree, &shelf);
    assert_eq!(all.len() as u64, 400 - (first_end.offset - 1000));
    let Root::Held(root) = &tree.root else { panic!("held") };
    write_out(root, &shelf, &mut next);
}

fn keys_of(range: std::ops::Range<u64>) -> Vec<Key> {
    range.map(|n| Key::extent(ObjectNo(7), n)).collect()
}

/// A tree as a device holds it, of leaves that stand for ten keys each and hold what they are given.
fn shelved(shelf: &Shelf, leaves: [std::ops::Range<u64>; 4]) -> Tree {
    let mut next = 0;
    let mut write = |level: u16, slots: &[(Key, Vec<u8>)]| {
        let mut page = Page::empty(TreeId::MAIN, level);
        for (index, (key, value)) in slots.iter().enumerate() {
            page.insert(index, *key, value).expect("room");
        }
        let node =
            Arc::new(Node { page, freeze: 1, birth: Era(0), home: OnceLock::new(), children: Vec::new() });
        write_out(&node, shelf, &mut next)
    };
    let item = |key: Key| (key, vec![key.offset as u8; 300]);
    let leaves = leaves.map(|keys| write(0, &keys_of(keys).into_iter().map(item).collect::<Vec<_>>()));
    let places = keys_of(0..40).into_iter().step_by(10);
    let slots: Vec<_> = places.zip(leaves).map(|(key, leaf)| (key, leaf.encode().to_vec())).collect();
    Tree::new(TreeId::MAIN, Root::Clean(write(1, &slots)), 1)
}

#[test]
fn leaves_in_each_others_places_are_neither_edited_nor_merged() {
    let shelf = Shelf::default();
    let mut tree = shelved(&shelf, [0..10, 20..30, 10..20, 30..40]);
    let (mut superseded, mut current) = (Vec::new(), 0);
    let mut editor = editor(&shelf, 2, &mut superseded, &mut current);
    for key in keys_of(0..40) {
        let way = tree.check_resident(key, &shelf);
        assert_eq!(way.is_ok(), !(10..30).contains(&key.offset), "{way:?}");
        let change = |deletes| Change { puts: 0, deletes, bytes: 0 };
        let heirs = tree.check_heirs(key, change(10), &shelf);
        assert!(matches!(heirs, Err(Obstacle::Misplaced(_))), "one of its neighbours is not in its place");
        tree.check_heirs(key, change(1), &shelf).expect("its leaf stays");
    }
    // Down to leaves that would be merged with what lies beside them.
    for key in keys_of(0..9).into_iter().chain(keys_of(31..40)) {
        tree.delete(key, &mut editor);
    }
    let is_misplaced = |key: &Key| !tree.find(*key, &shelf).expect("resident").is_in_place();
    assert!(keys_of(10..30).iter().all(is_misplaced), "what is damaged has come to look sound");
    assert!(!keys_of(9..10).iter().chain(&keys_of(30..31)).any(is_misplaced));
}

#[test]
fn a_leaf_without_items_among_others_hides_nothing() {
    let shelf = Shelf::default();
    let tree = shelved(&shelf, [0..10, 10..10, 20..20, 30..40]);
    for key in keys_of(10..30) {
        assert!(!tree.find(key, &shelf).expect("resident").is_in_place());
        let found = tree.last_at_or_before(key, &shelf).expect("resident");
        assert!(found.is_some_and(|(found, _)| !found.is_in_place()), "there are items before it");
        assert!(matches!(tree.check_resident(key, &shelf), Err(Obstacle::Misplaced(_))));
    }
}

#[test]
fn a_node_that_is_given_up_is_not_in_memory_either() {
    let layout = syncline_format::layout::Layout::new(2048, Some(64)).expect("valid");
    let cache = cache::NodeCache::new(1 << 20, VolumeId(5), layout);
    let home =
        NodePointer { block: BlockNo(400), checksum: 1, generation: Generation(1), level: 0, birth: Era(0) };
    cache.insert(Arc::new(Node::clean(Page::empty(TreeId::MAIN, 0), home)));
    assert!(cache.resident(&home).is_some());
    cache.give_up(home.block);
    assert!(cache.resident(&home).is_none());
}

#[test]
fn nodes_that_are_forgotten_leave_nothing_behind_and_others_stay() {
    let layout = syncline_format::layout::Layout::new(1 << 20, Some(64)).expect("valid");
    let cache = cache::NodeCache::new(64 << 20, VolumeId(5), layout);
    let home = |block| NodePointer {
        block: BlockNo(block),
        checksum: 1,
        generation: Generation(1),
        level: 0,
        birth: Era(0),
    };
    let node = |block| Arc::new(Node::clean(Page::empty(TreeId::MAIN, 0), home(block)));
    let kept = 400;
    cache.insert(node(kept));
    for _ in 0..20 {
        let blocks: Vec<BlockNo> = (0..500).map(|number| BlockNo(1_000 + 4 * number)).collect();
        blocks.iter().for_each(|block| cache.insert(node(block.0)));
        assert_eq!(cache.len(), (501, cache.len().1));
        cache.forget(&blocks);
        let (held, in_order) = cache.len();
        assert_eq!(held, 1);
        assert!(in_order <= 1_000, "{in_order}");
        assert!(cache.resident(&home(1_000)).is_none() && cache.resident(&home(kept)).is_some());
    }
}
