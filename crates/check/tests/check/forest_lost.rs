//! Volumes with snapshots of which nodes cannot be read: each tree loses what its own keys say, and no more.

use crate::grove::*;
use crate::image::*;
use std::collections::BTreeMap;
use syncline_check::{CheckOptions, Code, Report, check};
use syncline_device::MemoryDevice;
use syncline_format::batch::Op;
use syncline_format::item::*;
use syncline_format::node::{self, NodePointer};
use syncline_format::superblock::Superblock;
use syncline_format::tree_item::{OverlayItem, Role, TreeItem, TreeState};
use syncline_format::*;

type Items = BTreeMap<Key, Vec<u8>>;

/// Where [`Grove::build`] puts its nodes: leaves, then roots in the order of the trees' numbers, then the volume tree's
/// root and the root tree's.
fn node_at(grove: &Grove, index: usize) -> BlockNo {
    grove.image.superblock.layout.group_start(GroupNo(0)).plus(8000 + 4 * index as u64)
}

const LEAVES: usize = 5;
const ROOT_OF_HEAD: usize = LEAVES;
const ROOT_OF_OLDER: usize = LEAVES + 1;
const ROOT_OF_NEWER: usize = LEAVES + 2;
const ROOT_OF_VOLUME: usize = LEAVES + 3;
const ROOT_TREE: usize = LEAVES + 4;

/// The items of all trees as the newest superblock leads to them; the log is to be empty.
fn trees(device: &MemoryDevice) -> BTreeMap<u32, Items> {
    let slots = [BlockNo(1), BlockNo(2)];
    let superblocks =
        slots.iter().filter_map(|&at| Superblock::decode(&read(device, at, 1), at, VOLUME_BLOCKS).ok());
    let newest = superblocks.max_by_key(|superblock| superblock.generation).expect("a superblock");
    let mut roots = Items::new();
    collect(device, &newest.root, &mut roots);
    let mut trees = BTreeMap::new();
    for (key, root) in roots {
        let items = trees.entry(key.object.0 as u32).or_default();
        collect(device, &NodePointer::decode(&root).expect("a pointer"), items);
    }
    trees
}

fn collect(device: &MemoryDevice, pointer: &NodePointer, items: &mut Items) {
    let bytes = read(device, pointer.block, 4);
    for slot in 0..usize::from(node::head(&bytes).count.get()) {
        let value = node::slot_value(&bytes, slot);
        match pointer.level {
            0 => drop(items.insert(node::slot_key(&bytes, slot), value.to_vec())),
            _ => collect(device, &NodePointer::decode(value).expect("a pointer"), items),
        }
    }
}

fn infos(trees: &BTreeMap<u32, Items>) -> BTreeMap<u32, TreeItem> {
    let infos = trees[&TreeId::VOLUME.0].iter().filter(|(key, _)| key.kind == Kind::TreeInfo);
    infos.map(|(key, value)| (key.object.0 as u32, TreeItem::decode(value).expect("valid"))).collect()
}

fn lose(grove: &Grove, device: &MemoryDevice, nodes: &[usize]) {
    nodes.iter().for_each(|&index| patch(device, node_at(grove, index).plus(1), |block| block[200] ^= 1));
}

fn check_all(device: &MemoryDevice, repair: bool) -> Report {
    check(device, CheckOptions::default().data(true).all(true).repair(repair)).expect("a volume")
}

/// What was told: of which tree, with which code, of which file.
fn told(report: &Report) -> Vec<(u32, Code, Option<&str>)> {
    let told = report.findings.iter().map(|finding| {
        let path = finding.path.as_deref().map(|path| std::str::from_utf8(path).expect("UTF-8"));
        (finding.tree.map_or(0, |tree| tree.0), finding.code, path)
    });
    told.collect()
}

/// Loses nodes and repairs; a look foretells what a repair does. Returns what was told, and what is left.
#[track_caller]
fn repair_without(grove: &mut Grove, nodes: &[usize]) -> (Report, BTreeMap<u32, Items>) {
    let device = grove.build();
    lose(grove, &device, nodes);
    let seen = check_all(&device, false);
    assert_eq!(
        (seen.repairable, seen.beyond_repair().count()),
        (seen.errors_left(), 0),
        "{:#?}",
        seen.findings
    );
    let repaired = check_all(&device, true);
    assert!(repaired.repaired && repaired.refused.is_none(), "{:#?}", repaired.findings);
    assert_eq!(repaired.left, BTreeMap::new(), "{:#?}", repaired.findings);
    assert_eq!(told(&seen), told(&repaired), "a look tells all that a repair does");
    let again = check_all(&device, true);
    assert!(!again.repaired && again.counts.is_empty(), "{:#?}", again.findings);
    (seen, trees(&device))
}

fn sound(grove: &mut Grove) -> BTreeMap<u32, Items> {
    trees(&grove.build())
}

fn inode_of(items: &Items, object: ObjectNo) -> InodeItem {
    InodeItem::decode(&items[&Key::inode(object)]).expect("valid")
}

fn name<'a>(grove: &Grove, items: &'a Items, name: &str) -> Option<&'a Vec<u8>> {
    items.get(&grove.image.name_key(ObjectNo::ROOT_DIR, name))
}

// Shows: C7, C10.
#[test]
fn a_leaf_that_a_snapshot_has_alone_is_lost_there_alone() {
    let before = sound(&mut Grove::new());
    let mut grove = Grove::new();
    let (seen, after) = repair_without(&mut grove, &[A_OLD]);
    let lost = (OLDER, Code::ItemLost, Some("/a"));
    let want = [(OLDER, Code::LeafUnreadable, None), lost, lost];
    assert_eq!(told(&seen), want, "{:#?}", seen.findings);
    assert_eq!((&after[&HEAD], &after[&NEWER]), (&before[&HEAD], &before[&NEWER]));
    // What the newer snapshot has from it is there again.
    let older = &after[&OLDER];
    assert!(!older.contains_key(&Key::extent(A, 0)), "only it had this page");
    assert_eq!(older[&Key::extent(A, 1)], before[&NEWER][&Key::extent(A, 1)]);
    let inode = inode_of(older, A);
    assert_eq!((inode.mode, inode.size, inode.blocks), (MODE_REGULAR | 0o600, 3 * 4096, 2));
    for key in before[&OLDER].keys().filter(|key| key.object == B) {
        assert_eq!(older[key], before[&OLDER][key]);
    }
    assert_eq!(infos(&after), infos(&before));
}

// Shows: C7, C10.
#[test]
fn a_leaf_that_trees_share_is_lost_in_each_of_them() {
    let before = sound(&mut Grove::new());
    let mut grove = Grove::new();
    let (seen, after) = repair_without(&mut grove, &[B_OLD]);
    let trees: Vec<u32> = told(&seen).iter().map(|(tree, ..)| *tree).collect();
    assert!(
        !trees.contains(&HEAD) && trees.contains(&OLDER) && trees.contains(&NEWER),
        "{:#?}",
        seen.findings
    );
    assert_eq!(after[&HEAD], before[&HEAD]);
    for tree in [OLDER, NEWER] {
        assert!(name(&grove, &after[&tree], "b").is_none() && name(&grove, &after[&tree], "a").is_some());
        for key in before[&tree].keys().filter(|key| key.object == A) {
            assert_eq!(after[&tree][key], before[&tree][key]);
        }
    }
    let mut grove = Grove::new();
    let (seen, after) = repair_without(&mut grove, &[DIRECTORY]);
    let unnamed = told(&seen).into_iter().filter(|(_, code, _)| *code == Code::InodeUnnamed);
    assert_eq!(unnamed.count(), 6, "two files of three trees: {:#?}", seen.findings);
    for tree in [HEAD, OLDER, NEWER] {
        assert!(name(&grove, &after[&tree], "lost+found").is_some());
        for key in before[&tree].keys().filter(|key| key.object == A || key.object == B) {
            assert_eq!(after[&tree][key], before[&tree][key], "{key:?} of {tree}");
        }
    }
}

// Shows: C7, C10.
#[test]
fn a_tree_without_its_root_goes_away_and_others_stay() {
    let before = sound(&mut Grove::new());
    for (node, lost) in [(ROOT_OF_OLDER, OLDER), (ROOT_OF_NEWER, NEWER)] {
        let (seen, after) = repair_without(&mut Grove::new(), &[node]);
        assert_eq!(told(&seen), [(lost, Code::SubtreeLost, None), (lost, Code::TreeLost, None)]);
        let infos = infos(&after);
        assert!(!infos.contains_key(&lost) && !after.contains_key(&lost));
        for tree in [HEAD, OLDER, NEWER].into_iter().filter(|tree| *tree != lost) {
            assert_eq!(after[&tree], before[&tree], "tree {tree} without {lost}");
        }
        let parent = |tree: u32| infos[&tree].parent.map(|parent| parent.0);
        match lost {
            OLDER => assert_eq!((parent(NEWER), parent(HEAD)), (None, Some(NEWER))),
            _ => assert_eq!(parent(HEAD), Some(OLDER)),
        }
    }
    let (seen, after) = repair_without(&mut Grove::new(), &[ROOT_OF_HEAD]);
    assert!(told(&seen).contains(&(HEAD, Code::TreeLost, None)), "{:#?}", seen.findings);
    assert_eq!((&after[&OLDER], &after[&NEWER]), (&before[&OLDER], &before[&NEWER]));
    assert_eq!(inode_of(&after[&HEAD], ObjectNo::ROOT_DIR).entries, 0, "it can be rolled back");
    assert_eq!(infos(&after)[&HEAD], infos(&before)[&HEAD]);
}

#[test]
fn a_branch_point_without_its_root_stays_hidden_with_what_its_children_share() {
    let with_branch = || {
        let mut grove = Grove::new();
        let item = TreeItem { is_default: false, name: "branch".into(), ..TreeItem::first_head() };
        let item = TreeItem { parent: Some(TreeId(OLDER)), known: Era(2), uuid: [9; 16], ..item };
        grove
            .trees
            .insert(18, Tree { birth: 3, leaves: vec![DIRECTORY, A_OLD, B_NEW], item, has_root: true });
        grove.trees.get_mut(&HEAD).expect("a tree").leaves[2] = B_OLD;
        grove.state.next_tree = TreeId(19);
        grove
    };
    let before = sound(&mut with_branch());
    let (seen, after) = repair_without(&mut with_branch(), &[ROOT_OF_OLDER]);
    assert_eq!(told(&seen), [(OLDER, Code::SubtreeLost, None), (OLDER, Code::TreeLost, None)]);
    let hidden = &infos(&after)[&OLDER];
    assert!(hidden.is_hidden && hidden.name.is_empty());
    for tree in [HEAD, NEWER, 18] {
        assert_eq!(after[&tree], before[&tree], "tree {tree}");
    }
    let extents = |items: &Items| items.keys().filter(|key| key.kind == Kind::Extent).count();
    assert!(extents(&after[&OLDER]) > 0);
}

#[test]
fn a_deletion_that_cannot_go_on_is_ended() {
    let before = sound(&mut Grove::new());
    for node in [A_OLD, B_OLD, ROOT_OF_OLDER] {
        for cursor in [Key::MIN, Key::inode(B), Key::MAX] {
            let mut grove = Grove::new();
            grove.delete(OLDER, cursor);
            if cursor > Key::MIN {
                grove.free.insert(grove.extent(A_OLD, Key::extent(A, 0)).start.0);
            }
            let (seen, after) = repair_without(&mut grove, &[node]);
            assert!(told(&seen).contains(&(OLDER, Code::TreeLost, None)), "{:#?}", seen.findings);
            assert!(!infos(&after).contains_key(&OLDER));
            assert_eq!(after[&HEAD], before[&HEAD]);
            assert!(node == B_OLD || after[&NEWER] == before[&NEWER]);
        }
    }
}

#[test]
fn what_stands_for_all_of_the_volume_is_not_given_up() {
    let roots = [ROOT_OF_HEAD, ROOT_OF_OLDER, ROOT_OF_NEWER];
    for nodes in [&[ROOT_OF_VOLUME][..], &[ROOT_TREE], &[A_OLD, ROOT_OF_VOLUME], &[B_NEW, ROOT_TREE], &roots]
    {
        let mut grove = Grove::new();
        let device = grove.build();
        lose(&grove, &device, nodes);
        let before = device.to_bytes();
        let report = check_all(&device, true);
        assert!(report.has(Code::NodeUnreadable), "{nodes:?}: {:#?}", report.findings);
        assert!(report.refused.is_some() && !report.repaired && report.repairable == 0, "{nodes:?}");
        assert_eq!(device.to_bytes(), before, "{nodes:?}: nothing is changed");
    }
}

/// Nothing enters a snapshot that it did not have, and nobody else's blocks are written to while bitmaps are lost too.
#[test]
fn nodes_are_given_up_while_bitmaps_are_lost() {
    let before = sound(&mut Grove::new());
    for node in 0..=ROOT_OF_NEWER {
        let mut grove = Grove::new();
        let device = grove.build();
        lose(&grove, &device, &[node]);
        let layout = grove.image.superblock.layout;
        for slot in 0..2 {
            patch(&device, layout.bitmap_slot(GroupNo(0), slot), |block| block.fill(0x5a));
        }
        let report = check_all(&device, true);
        assert!(report.repaired && report.is_sound(), "{node}: {:#?}", report.findings);
        let after = trees(&device);
        let has_it = |tree: u32| {
            let roots = [(ROOT_OF_HEAD, HEAD), (ROOT_OF_OLDER, OLDER), (ROOT_OF_NEWER, NEWER)];
            roots.contains(&(node, tree)) || grove.trees[&tree].leaves.contains(&node)
        };
        for tree in [HEAD, OLDER, NEWER].into_iter().filter(|tree| !has_it(*tree)) {
            assert_eq!(after[&tree], before[&tree], "tree {tree} without node {node}");
        }
    }
}

/// Pages that a snapshot has beside its tree, some on the device and some in the log.
#[test]
fn pages_that_a_snapshot_has_inherited_stay_with_those_that_have_blocks() {
    let mut grove = Grove::new();
    let there = grove.add_overlay(OLDER, 0, A, 1);
    let device = grove.build();
    let image = Op::Image { tree: TreeId(OLDER), object: A, page: 2, bytes: b"inherited" };
    Log::new(&grove.image).write(&device, &[image]);
    lose(&grove, &device, &[B_NEW]);
    let report = check_all(&device, true);
    assert!(report.repaired && report.is_sound(), "{:#?}", report.findings);
    let after = trees(&device);
    let overlay =
        after[&TreeId::VOLUME.0].range(Key::overlay(TreeId(OLDER), 0)..=Key::overlay(TreeId(OLDER), 9));
    let overlay: Vec<_> = overlay.map(|(_, value)| OverlayItem::decode(value).expect("valid")).collect();
    assert_eq!(overlay.len(), 2);
    assert_eq!(overlay[0], there);
    assert_eq!((overlay[1].object, overlay[1].page), (A, 2));
    assert!(read(&device, overlay[1].extent.start, 1).starts_with(b"inherited"));
}

/// What was removed while it was open is kept in snapshots as long as others have its blocks from there.
#[test]
fn content_without_a_name_stays_in_a_snapshot() {
    let with_orphan = |reason: OrphanReason| {
        let mut grove = Grove::new();
        for leaf in [A_OLD, A_NEW] {
            let mut inode = inode(MODE_REGULAR | 0o644);
            (inode.nlink, inode.size, inode.blocks) = (0, 3 * 4096, 3);
            grove.leaves[leaf].items.insert(Key::inode(A), inode.encode().to_vec());
        }
        let directory = &mut grove.leaves[DIRECTORY].items;
        directory.remove(&grove.image.name_key(ObjectNo::ROOT_DIR, "a"));
        let mut root = InodeItem::decode(&directory[&Key::inode(ObjectNo::ROOT_DIR)]).expect("valid");
        root.entries = 1;
        directory.insert(Key::inode(ObjectNo::ROOT_DIR), root.encode().to_vec());
        directory.insert(Key::orphan(A), reason.encode());
        grove
    };
    let mut grove = with_orphan(OrphanReason::Unlinked);
    let device = grove.build();
    lose(&grove, &device, &[A_OLD]);
    let report = check_all(&device, true);
    assert!(report.repaired && report.is_sound(), "{:#?}", report.findings);
    let after = trees(&device);
    assert!(after[&OLDER].contains_key(&Key::extent(A, 1)) && after[&OLDER].contains_key(&Key::orphan(A)));
    assert_eq!(inode_of(&after[&OLDER], A).nlink, 0);
    assert!(matches!(infos(&after)[&OLDER], TreeItem { role: Role::Snapshot, state: TreeState::Live, .. }));
}
