use crate::image::*;
use syncline_check::Code;
use syncline_format::node::NodePointer;
use syncline_format::{BlockNo, Era, Generation, Key, Kind, ObjectNo, TreeId};

/// Nothing may be repaired while a tree is damaged, though there is a leak that could be.
#[track_caller]
fn expect_refused(image: &mut Image, want: &[Code]) {
    image.bits.insert(20_000, true);
    let device = image.build();
    let report = expect(&device, want);
    assert_eq!(report.exit_code(), 4);
    let before = device.to_bytes();
    let report = repair(&device);
    assert!(!report.repaired && report.refused.is_some());
    assert_eq!(device.to_bytes(), before, "repair over a damaged tree changes nothing");
}

fn leaf_of(image: &mut Image) -> (syncline_device::MemoryDevice, BlockNo) {
    let device = image.build();
    // The first leaf is the first node that the image writes.
    (device, image.superblock.layout.group_start(syncline_format::GroupNo(0)).plus(4))
}

#[test]
fn a_damaged_leaf_is_found_and_proves_no_leak() {
    let mut image = Image::populated();
    image.bits.insert(20_000, true);
    let (device, leaf) = leaf_of(&mut image);
    patch(&device, leaf.plus(3), |block| block[4000] ^= 1);
    let report = look(&device);
    assert!(report.has(Code::LeafUnreadable));
    assert!(!report.has(Code::BlockLeaked), "what the leaf held may own the blocks");
    assert_eq!(report.findings[0].block, Some(leaf));
}

#[test]
fn a_leaf_from_an_older_checkpoint_does_not_pass() {
    let mut image = Image::populated();
    let (device, leaf) = leaf_of(&mut image);
    // A whole, well-sealed node, but not the one that the parent vouches for.
    let mut bytes = read(&device, leaf, 4);
    bytes[60] ^= 1;
    syncline_format::header::seal(&mut bytes);
    write(&device, leaf, &bytes);
    assert!(look(&device).has(Code::LeafUnreadable));
}

#[test]
fn a_leaf_without_items_among_others_is_found() {
    for empty in [0, 1, 3] {
        let mut image = Image::populated();
        image.leaf_hook = Box::new(move |index, slots| {
            if index == empty {
                slots.clear();
            }
        });
        let report = look(&image.build());
        assert!(report.has(Code::LeafUnreadable), "{:#?}", report.findings);
    }
}

#[test]
fn keys_outside_the_parents_range_are_found() {
    let mut image = Image::populated();
    image.leaf_hook = Box::new(|index, slots| {
        if index == 1 {
            slots.push((Key::inode(ObjectNo(900)), inode(0o100644).encode().to_vec()));
        }
    });
    expect_refused(&mut image, &[Code::NodeBounds]);
}

#[test]
fn a_node_newer_than_its_parent_is_found() {
    let mut image = Image::populated();
    image.node_generation = Generation(GENERATION.0 + 1);
    expect_refused(&mut image, &[Code::NodeNewer]);
}

#[test]
fn a_node_with_two_parents_is_found_and_entered_once() {
    let mut image = Image::populated();
    image.pointer_hook = Box::new(|pointers| {
        let again = pointers[1].1;
        pointers[2].1 = again;
    });
    let device = image.build();
    let report = look(&device);
    assert!(report.has(Code::NodeShared));
    assert!(repair(&device).refused.is_some());
}

#[test]
fn a_pointer_to_where_no_node_may_lie_is_found() {
    for block in [0, 7, 17, VOLUME_BLOCKS - 2, u64::MAX] {
        let mut image = Image::populated();
        image.pointer_hook = Box::new(move |pointers| pointers[1].1.block = BlockNo(block));
        assert!(look(&image.build()).has(Code::NodePlace));
    }
}

#[test]
fn a_volume_without_its_main_tree_is_reported() {
    let mut image = Image::populated();
    image.root_hook = Box::new(|_, slots| slots.clear());
    let report = look(&image.build());
    assert_eq!(codes(&report), [Code::MainTreeMissing, Code::RootDirectory]);
}

#[test]
fn an_unknown_tree_is_reported_and_its_blocks_are_not_freed() {
    let mut image = Image::populated();
    image.root_hook = Box::new(|_, slots| {
        let other = NodePointer {
            block: BlockNo(30_000),
            checksum: 0,
            generation: GENERATION,
            level: 0,
            birth: Era(0),
        };
        slots.push((Key::tree(TreeId(7)), other.encode().to_vec()));
    });
    expect_refused(&mut image, &[Code::RootTreeItem]);
}

#[test]
fn items_that_do_not_decode_are_reported_and_kept() {
    let cases: [(Key, Vec<u8>); 5] = [
        (Key::inode(ObjectNo(800)), vec![0; 160]),
        (Key::dirent(ObjectNo::ROOT_DIR, 500), vec![1; 3]),
        (Key::xattr(ObjectNo::ROOT_DIR, 500), vec![0; 20]),
        (Key::extent(ObjectNo::ROOT_DIR, 5), vec![0; 15]),
        (Key::orphan(ObjectNo(3)), vec![9]),
    ];
    for (key, value) in cases {
        let mut image = Image::populated();
        image.put(key, value);
        image.bits.insert(20_000, true);
        let device = image.build();
        let report = repair(&device);
        assert!(report.has(Code::ItemUndecodable), "{key:?}");
        assert!(report.refused.is_some() && !report.repaired);
    }
}

#[test]
fn items_in_the_wrong_place_are_reported() {
    let file = inode(0o100644).encode().to_vec();
    let cases = [
        (Key::new(ObjectNo::ROOT_DIR, Kind::Inode, 1), file.clone()),
        (Key::new(ObjectNo::ROOT_DIR, Kind::Symlink, 1), b"target".to_vec()),
        (Key::new(ObjectNo::VOLUME, Kind::Inode, 0), file),
        (Key::new(ObjectNo::ROOT_DIR, Kind::Orphan, 1), vec![1]),
        (Key::new(ObjectNo::ROOT_DIR, Kind::Tree, 0), vec![0; 32]),
        (Key::new(ObjectNo::ROOT_DIR, Kind::TreeInfo, 0), vec![]),
        (Key::new(ObjectNo::ROOT_DIR, Kind::Shared, 0), vec![]),
    ];
    for (key, value) in cases {
        let mut image = Image::populated();
        image.put(key, value);
        expect(&image.build(), &[Code::ItemMisplaced]);
    }
}
