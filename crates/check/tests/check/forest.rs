//! Volumes with snapshots: what belongs to whom, and each rule broken once under valid checksums.

use crate::grove::*;
use crate::hostile::Random;
use crate::image::*;
use syncline_check::{CheckOptions, Code, check};
use syncline_device::{Device, MemoryDevice};
use syncline_format::tree_item::{Role, TreeItem, TreeState};
use syncline_format::*;

/// Exactly these codes; and repair changes nothing where one of them is fatal.
#[track_caller]
fn expect_all(device: &MemoryDevice, want: &[Code]) {
    let options = CheckOptions::default().data(true).all(true);
    let report = check(device, options).expect("a volume");
    assert_eq!(codes(&report), want, "in all trees: {:#?}", report.findings);
    expect(device, want);
    if want.iter().any(|code| code.severity() == syncline_check::Severity::Fatal) {
        let before = device.to_bytes();
        assert!(repair(device).refused.is_some());
        assert_eq!(device.to_bytes(), before, "repair changes nothing");
    }
}

#[track_caller]
fn expect_of(change: impl FnOnce(&mut Grove), want: &[Code]) {
    let mut grove = Grove::new();
    change(&mut grove);
    expect_all(&grove.build(), want);
}

#[test]
fn a_sound_volume_with_snapshots_has_no_findings() {
    let device = Grove::new().build();
    let report = expect(&device, &[]);
    assert_eq!((report.totals.trees, report.totals.data_blocks_verified), (3, 8));
    expect_all(&device, &[]);
    let overlay = |grove: &mut Grove| drop(grove.add_overlay(OLDER, 0, A, 1));
    expect_of(overlay, &[]);
    let hidden = |grove: &mut Grove| {
        let item = grove.item(NEWER);
        (item.is_hidden, item.name) = (true, String::new());
    };
    expect_of(hidden, &[]);
}

#[test]
fn a_tree_that_goes_away_has_given_back_what_lies_before_its_cursor() {
    let at_b = Key::inode(B);
    let first_page = |grove: &Grove| grove.extent(A_OLD, Key::extent(A, 0)).start.0;
    // Page 0 of file A died with the older snapshot; pages 1 and 2 are the newer one's.
    for cursor in [at_b, Key::MAX] {
        let given_back = |grove: &mut Grove| {
            grove.delete(OLDER, cursor);
            grove.free.insert(first_page(grove));
        };
        expect_of(given_back, &[]);
    }
    expect_of(|grove| grove.delete(OLDER, Key::MIN), &[]);
    // The cursor says less than was done, or more.
    let too_much = |grove: &mut Grove| {
        grove.delete(OLDER, Key::inode(A));
        grove.free.insert(first_page(grove));
    };
    expect_of(too_much, &[Code::BlockUnmarked]);
    expect_of(|grove| grove.delete(OLDER, at_b), &[Code::BlockLeaked]);
    // Of the newer one the head has everything but file B, and that is older.
    for cursor in [Key::MIN, at_b, Key::MAX] {
        expect_of(|grove| grove.delete(NEWER, cursor), &[]);
    }
}

#[test]
fn a_tree_without_a_root_stands_for_its_own_parent() {
    let without_root = |grove: &mut Grove, tree: u32, cursor: Key| {
        grove.delete(tree, cursor);
        grove.trees.get_mut(&tree).expect("a tree").has_root = false;
    };
    expect_of(|grove| without_root(grove, OLDER, Key::MAX), &[]);
    expect_of(|grove| without_root(grove, OLDER, Key::inode(B)), &[Code::TreesDiffer]);
    expect_of(|grove| without_root(grove, NEWER, Key::MAX), &[]);
    let both = |grove: &mut Grove| {
        without_root(grove, OLDER, Key::MAX);
        without_root(grove, NEWER, Key::MAX);
    };
    expect_of(both, &[]);
}

#[test]
fn root_tree_and_volume_tree_have_to_name_the_same_trees() {
    let without = |tree: u32| {
        move |grove: &mut Grove| {
            grove.root_hook = Box::new(move |slots| slots.retain(|(key, _)| *key != Key::tree(TreeId(tree))));
        }
    };
    expect_of(without(OLDER), &[Code::TreesDiffer]);
    expect_of(without(TreeId::VOLUME.0), &[Code::VolumeTreeMissing]);
    expect_of(without(HEAD), &[Code::TreesDiffer, Code::RootDirectory]);
    let unnamed = |grove: &mut Grove| {
        grove.root_hook = Box::new(|slots| {
            let more = slots[0].1.clone();
            slots.push((Key::tree(TreeId(40)), more));
        });
        grove.state.next_tree = TreeId(41);
    };
    expect_of(unnamed, &[Code::TreesDiffer]);
    let unknown = |grove: &mut Grove| {
        grove.root_hook = Box::new(|slots| {
            let more = slots[0].1.clone();
            slots.insert(2, (Key::tree(TreeId(7)), more));
        });
    };
    expect_of(unknown, &[Code::RootTreeItem]);
}

#[test]
fn items_of_the_volume_tree_have_to_be_readable() {
    for (key, value) in [
        (Key::tree_info(TreeId(NEWER)), vec![1; 20]),
        (Key::overlay(TreeId(NEWER), 0), vec![1; 20]),
        (Key::overlay(TreeId(NEWER), 1024), vec![1; 20]),
        (Key::new(ObjectNo(16), Kind::Shared, 0), vec![]),
        (Key::inode(ObjectNo(16)), vec![]),
    ] {
        expect_of(|grove| drop(grove.volume_items.insert(key, value)), &[Code::TreeItem]);
    }
}

#[test]
fn a_tree_descends_from_an_older_snapshot() {
    expect_of(|grove| grove.item(OLDER).parent = Some(TreeId(NEWER)), &[Code::TreeParent]);
    expect_of(|grove| grove.item(OLDER).parent = Some(TreeId(OLDER)), &[Code::TreeParent]);
    expect_of(|grove| grove.item(NEWER).parent = Some(TreeId(HEAD)), &[Code::TreeParent]);
    expect_of(|grove| grove.item(NEWER).parent = Some(TreeId(9999)), &[Code::TreeParent]);
    expect_of(|grove| grove.item(HEAD).known = Era(1), &[Code::TreeParent]);
    expect_of(|grove| grove.item(OLDER).era = Era(2), &[Code::TreeParent]);
}

#[test]
fn no_tree_is_newer_than_the_volume() {
    expect_of(|grove| grove.state.next_tree = TreeId(17), &[Code::TreeNewer]);
    expect_of(|grove| grove.item(NEWER).era = Era(3), &[Code::TreeNewer, Code::TreeParent]);
    expect_of(|grove| grove.item(HEAD).known = Era(4_000_000), &[Code::TreeNewer]);
}

#[test]
fn names_are_given_once_and_one_head_is_shown() {
    expect_of(|grove| grove.item(OLDER).name = "of era 2".into(), &[Code::TreeName]);
    expect_of(|grove| grove.item(HEAD).is_default = false, &[Code::DefaultHead]);
    expect_of(|grove| grove.item(NEWER).is_default = true, &[Code::DefaultHead]);
}

#[test]
fn two_trees_that_descend_from_one_keep_it() {
    let branch = |grove: &mut Grove| {
        let head = &grove.trees[&HEAD];
        let item = TreeItem { name: "other".into(), is_default: false, ..head.item.clone() };
        let other = Tree { birth: 2, leaves: grove.trees[&NEWER].leaves.clone(), item, has_root: true };
        grove.trees.insert(18, other);
        grove.same_root.insert(18, NEWER);
        grove.state.next_tree = TreeId(19);
    };
    expect_of(branch, &[]);
    let deleted = |grove: &mut Grove| {
        branch(grove);
        grove.delete(NEWER, Key::MIN);
    };
    expect_of(deleted, &[Code::TreeBranch]);
}

#[test]
fn no_extent_lies_across_a_cursor() {
    let across = |grove: &mut Grove| {
        grove.delete(OLDER, Key::extent(A, 1));
        grove.free.insert(grove.extent(A_OLD, Key::extent(A, 0)).start.0);
    };
    expect_of(across, &[Code::TreeCursor]);
    // A cursor beyond everything is one at the end.
    let beyond = |grove: &mut Grove| {
        grove.delete(OLDER, Key::extent(ObjectNo(u64::MAX), u64::MAX));
        grove.free.insert(grove.extent(A_OLD, Key::extent(A, 0)).start.0);
    };
    expect_of(beyond, &[]);
}

#[test]
fn nothing_is_born_behind_what_names_it_or_its_tree() {
    expect_of(|grove| grove.leaves[A_OLD].birth = 2, &[Code::BirthBeyond]);
    expect_of(|grove| grove.leaves[B_NEW].birth = u32::MAX - 1, &[Code::BirthBeyond]);
    let extent = |grove: &mut Grove| {
        let key = Key::extent(A, 0);
        let extent = grove.extent(A_NEW, key).born(Era(3));
        grove.put_extent(A_NEW, key, &extent);
    };
    // The head takes it for its own as well.
    expect_of(extent, &[Code::BlockShared, Code::BirthBeyond]);
    let root = |grove: &mut Grove| grove.trees.get_mut(&NEWER).expect("a tree").birth = 3;
    expect_of(root, &[Code::BirthBeyond]);
    let overlay = |grove: &mut Grove| {
        let mut item = grove.add_overlay(OLDER, 0, A, 1);
        item.extent.birth = Era(4);
        grove.volume_items.insert(Key::overlay(TreeId(OLDER), 0), item.encode());
    };
    expect_of(overlay, &[Code::BirthBeyond]);
}

#[test]
fn an_old_node_is_one_of_the_parent() {
    // The older snapshot has it, and the newer one, from which the head descends, does not.
    let skipped = |grove: &mut Grove| grove.trees.get_mut(&HEAD).expect("a tree").leaves[1] = A_OLD;
    expect_of(skipped, &[Code::NodeNotInParent]);
    let other_sum = |grove: &mut Grove| {
        grove.pointer_hook = Box::new(|tree, pointers| {
            if tree == HEAD {
                pointers[1].1.checksum ^= 1;
            }
        });
    };
    let mut grove = Grove::new();
    other_sum(&mut grove);
    let report = look(&grove.build());
    assert!(report.has(Code::NodeNotInParent) && report.has(Code::LeafUnreadable), "{:#?}", report.findings);
    // What the removal of others has left to a node changes nothing about it.
    let first = |grove: &mut Grove| {
        grove.pointer_hook = Box::new(|tree, pointers| {
            if tree == HEAD {
                pointers[1].0 = Key::xattr(ObjectNo::ROOT_DIR, 500_000);
            }
        });
    };
    expect_of(first, &[]);
}

#[test]
fn old_blocks_are_blocks_of_the_parent() {
    let key = Key::extent(B, 0);
    let too_old = |grove: &mut Grove| {
        let extent = grove.extent(B_NEW, key).born(Era(2));
        grove.put_extent(B_NEW, key, &extent);
    };
    expect_of(too_old, &[Code::ExtentNotInParent]);
    let elsewhere = |grove: &mut Grove| {
        let old = grove.extent(A_NEW, Key::extent(A, 1));
        grove.leaves[B_NEW].items.remove(&key);
        grove.put_extent(B_NEW, key, &old);
    };
    expect_of(elsewhere, &[Code::ExtentNotInParent]);
    let other_sums = |grove: &mut Grove| {
        let mut old = grove.extent(A_NEW, Key::extent(A, 1));
        if let item::ExtentContent::Written(sums) = &mut old.content {
            sums[1] ^= 1;
        }
        grove.put_extent(A_NEW, Key::extent(A, 1), &old);
    };
    expect_of(other_sums, &[Code::ExtentNotInParent]);
}

#[test]
fn a_block_belongs_to_one_tree() {
    let extents = |grove: &mut Grove| {
        let extent = grove.extent(A_NEW, Key::extent(A, 0)).born(Era(3));
        let rest = grove.extent(B_NEW, Key::extent(B, 0)).slice(1, 1);
        grove.put_extent(B_NEW, Key::extent(B, 0), &extent);
        grove.put_extent(B_NEW, Key::extent(B, 1), &rest);
    };
    expect_of(extents, &[Code::BlockShared]);
    let overlay = |grove: &mut Grove| {
        let item = grove.add_overlay(OLDER, 0, A, 1);
        grove.put_extent(B_NEW, Key::extent(B, 0), &item.extent);
        let rest = grove.extent(B_OLD, Key::extent(B, 0)).slice(1, 1);
        grove.put_extent(B_NEW, Key::extent(B, 1), &rest);
    };
    expect_of(overlay, &[Code::BlockShared]);
    let node = |grove: &mut Grove| {
        let twice = grove.trees[&OLDER].leaves.clone();
        let tree = grove.trees.get_mut(&OLDER).expect("a tree");
        tree.leaves = [twice[0], twice[1], twice[1], twice[2]].into();
        grove.pointer_hook = Box::new(|tree, pointers| {
            if tree == OLDER {
                pointers[2].0 = Key::xattr(A, 500_000);
            }
        });
    };
    let mut grove = Grove::new();
    node(&mut grove);
    assert!(look(&grove.build()).has(Code::NodeShared));
}

#[test]
fn an_overlay_is_a_snapshots_and_names_each_page_once() {
    expect_of(|grove| drop(grove.add_overlay(HEAD, 0, A, 1)), &[Code::OverlayItem]);
    expect_of(|grove| drop(grove.add_overlay(99, 0, A, 1)), &[Code::OverlayItem]);
    let twice = |grove: &mut Grove| {
        grove.add_overlay(NEWER, 0, A, 1);
        grove.add_overlay(NEWER, 3, A, 1);
    };
    expect_of(twice, &[Code::OverlayItem]);
    let begun = |grove: &mut Grove| {
        grove.add_overlay(NEWER, 0, A, 1);
        grove.delete(NEWER, Key::inode(A));
    };
    expect_of(begun, &[Code::OverlayItem]);
    let to_begin = |grove: &mut Grove| {
        grove.add_overlay(NEWER, 0, A, 1);
        grove.delete(NEWER, Key::MIN);
    };
    expect_of(to_begin, &[]);
}

#[test]
fn damaged_data_is_told_in_each_tree_that_shows_it() {
    let mut grove = Grove::new();
    let shared = grove.extent(A_OLD, Key::extent(A, 0)).block_of(1);
    let overlay = grove.add_overlay(OLDER, 0, B, 0).extent.start;
    let device = grove.build();
    patch(&device, shared, |block| block[9] ^= 1);
    patch(&device, overlay, |block| block[9] ^= 1);
    let report = expect(&device, &[Code::DataChecksum]);
    let of = |tree: u32| report.findings.iter().filter(move |found| found.tree == Some(TreeId(tree)));
    assert_eq!((of(TreeId::VOLUME.0).count(), of(OLDER).count(), of(HEAD).count()), (1, 1, 1));
    assert!(of(HEAD).all(|found| found.path.as_deref() == Some(b"/a")), "{:#?}", report.findings);
    assert_eq!(report.totals.data_blocks_damaged, 2, "each is read once");
}

#[test]
fn names_of_a_snapshot_are_judged_when_asked_for() {
    let mut grove = Grove::new();
    let (key, _) = grove.leaves[B_OLD].items.iter().next().expect("an inode");
    let key = *key;
    let mut wrong = inode(0o100644);
    (wrong.size, wrong.blocks, wrong.nlink) = (8192, 2, 7);
    grove.leaves[B_OLD].items.insert(key, wrong.encode().to_vec());
    let device = grove.build();
    expect(&device, &[]);
    let report = check(&device, CheckOptions::default().all(true)).expect("a volume");
    assert_eq!(codes(&report), [Code::LinkCount]);
    assert_eq!(
        report.findings.iter().map(|found| found.tree).collect::<Vec<_>>(),
        [16, 17].map(|n| Some(TreeId(n)))
    );
    assert!(report.findings.iter().all(|found| found.path.as_deref() == Some(b"/b")));
}

#[test]
fn what_snapshots_share_is_read_once() {
    let reads = |snapshots: u32| {
        let mut grove = Grove::new();
        for number in 0..snapshots {
            let (tree, parent) = (18 + number, 17 + number);
            let leaves = grove.trees[&NEWER].leaves.clone();
            grove.trees.insert(
                tree,
                Tree { birth: 2, leaves, item: snapshot(3 + number, Some(parent)), has_root: true },
            );
            grove.same_root.insert(tree, NEWER);
        }
        let (last, era) = (17 + snapshots, 3 + snapshots);
        (grove.item(HEAD).parent, grove.item(HEAD).known) = (Some(TreeId(last)), Era(era - 1));
        grove.state = syncline_format::superblock::TreesState {
            era: Era(era),
            next_tree: TreeId(last + 1),
            name_key: None,
        };
        grove.trees.get_mut(&HEAD).expect("a tree").birth = era;
        grove.leaves[B_NEW].birth = era;
        let extent = grove.extent(B_NEW, Key::extent(B, 0)).born(Era(era));
        grove.put_extent(B_NEW, Key::extent(B, 0), &extent);
        let device = grove.build();
        let before = device.counters().reads;
        let report = expect(&device, &[]);
        (device.counters().reads - before, report.totals.nodes)
    };
    let (few, nodes) = reads(1);
    let (many, more_nodes) = reads(240);
    assert!(more_nodes <= nodes + 10, "only tables grow: {nodes}, {more_nodes}");
    assert!(many <= few + 20, "{few} reads with one more snapshot, {many} with 240");
}

#[test]
fn more_trees_than_there_may_be_end_in_a_finding() {
    let mut grove = Grove::new();
    grove.root_hook = Box::new(|slots| {
        let root = slots[0].1.clone();
        slots.extend((18..18 + 65_537).map(|tree| (Key::tree(TreeId(tree)), root.clone())));
    });
    grove.state.next_tree = TreeId(1 << 20);
    expect(&grove.build(), &[Code::TreesTooMany]);
}

#[test]
fn bitmaps_are_rebuilt_from_all_trees() {
    let of_snapshot = |grove: &Grove| grove.extent(A_OLD, Key::extent(A, 0)).start;
    for loss in 0..3 {
        let mut grove = Grove::new();
        let block = of_snapshot(&grove);
        grove.free.extend((loss != 1).then_some(block.0));
        let device = grove.build();
        let layout = grove.image.superblock.layout;
        let (group, in_last_group) = (layout.group_start(GroupNo(0)), layout.group_start(GroupNo(1)).0 + 100);
        if loss == 1 {
            patch(&device, group, |block| block[100] ^= 1);
        }
        if loss == 2 {
            write_bitmap(
                &device,
                &grove.image.superblock,
                GroupNo(1),
                0,
                GENERATION,
                &[in_last_group].into(),
            );
        }
        let ring = read(&device, BlockNo(16), 64);
        let before = look(&device);
        assert!(!before.is_sound() && before.repairable == before.errors_left(), "{:#?}", before.findings);
        expect_repaired(&device, &[]);
        expect_all(&device, &[]);
        assert_eq!(read(&device, BlockNo(16), 64), ring, "the journal stays");
    }
}

#[test]
fn what_is_no_matter_of_bitmaps_is_left_as_it_is() {
    let mut grove = Grove::new();
    grove.item(HEAD).is_default = false;
    let device = grove.build();
    let before = device.to_bytes();
    let report = repair(&device);
    assert!(report.refused.is_some_and(|why| why.contains("in snapshots, which never change")));
    assert_eq!((report.repaired, report.repairable), (false, 0));
    assert_eq!(device.to_bytes(), before);
}

#[test]
fn a_head_that_is_no_default_and_goes_away_is_a_tree_like_others() {
    let clone = |grove: &mut Grove| {
        let head = &grove.trees[&HEAD];
        let item = TreeItem {
            name: String::new(),
            is_default: false,
            state: TreeState::Deleting { cursor: Key::inode(A) },
            ..head.item.clone()
        };
        assert_eq!(item.role, Role::Head);
        let other = Tree { birth: 2, leaves: grove.trees[&NEWER].leaves.clone(), item, has_root: true };
        grove.trees.insert(18, other);
        grove.same_root.insert(18, NEWER);
        grove.state.next_tree = TreeId(19);
    };
    expect_of(clone, &[]);
}

/// Changes a few things at random, all under valid checksums.
fn disturb(grove: &mut Grove, random: &mut Random) {
    let era = |random: &mut Random| [0, 1, 2, 3, 4, 9, u32::MAX - 1][random.below(7) as usize];
    let tree = |random: &mut Random| [1, 2, 16, 17, 18, 99, (1 << 24) - 1][random.below(7) as usize];
    let object = |random: &mut Random| {
        [ObjectNo(0), ObjectNo::ROOT_DIR, A, B, ObjectNo(u64::MAX)][random.below(5) as usize]
    };
    let numbers = [HEAD, OLDER, NEWER];
    let number = numbers[random.below(3) as usize];
    let leaf = random.below(grove.leaves.len() as u64) as usize;
    match random.below(12) {
        0 => grove.item(number).parent = Some(TreeId(tree(random))),
        1 => grove.item(number).era = Era(era(random)),
        2 => grove.item(number).known = Era(era(random)),
        3 => grove.delete(number, Key::new(object(random), Kind::Extent, random.below(4))),
        4 => grove.leaves[leaf].birth = era(random),
        5 => grove.trees.get_mut(&number).expect("a tree").birth = era(random),
        6 => grove.trees.get_mut(&number).expect("a tree").leaves[1 + random.below(2) as usize] = leaf,
        7 => grove.state.next_tree = TreeId(tree(random).max(16)),
        8 => grove.state.era = Era(era(random).max(1)),
        9 => drop(grove.add_overlay(tree(random), random.below(3), object(random), random.below(3))),
        10 => {
            let extents: Vec<Key> =
                grove.leaves[leaf].items.keys().filter(|key| key.kind == Kind::Extent).copied().collect();
            if let Some(key) = extents.first() {
                let extent = grove.extent(leaf, *key).born(Era(era(random)));
                grove.put_extent(leaf, *key, &extent);
            }
        }
        _ => {
            let other = numbers[random.below(3) as usize];
            if other != number && !grove.same_root.contains_key(&other) {
                grove.same_root.insert(number, other);
            }
        }
    }
}

#[test]
fn whatever_trees_say_of_each_other_a_check_ends_and_repair_does_no_harm() {
    for seed in 1..=400u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut grove = Grove::new();
        for _ in 0..1 + random.below(3) {
            disturb(&mut grove, &mut random);
        }
        // One root has one owner here.
        let chained: Vec<u32> = grove
            .same_root
            .iter()
            .filter(|(_, of)| grove.same_root.contains_key(of))
            .map(|(n, _)| *n)
            .collect();
        grove.same_root.retain(|number, _| !chained.contains(number));
        let sorted = |leaves: &Vec<usize>| leaves.windows(2).all(|pair| pair[0] < pair[1]);
        if !grove.trees.values().all(|tree| sorted(&tree.leaves)) {
            continue;
        }
        let device = grove.build();
        let options = CheckOptions::default().data(true).all(true);
        let before = check(&device, options).expect("a volume");
        let after = repair(&device);
        assert!(after.errors_left() <= before.errors_left(), "seed {seed}: {:#?}", after.findings);
    }
}
