//! Leaves that cannot be read: what repair gives up, what it keeps, and what it says.

use crate::hostile::Faulty;
use crate::image::*;
use std::collections::{BTreeMap, BTreeSet};
use syncline_check::{CheckOptions, Code, Report, check};
use syncline_device::MemoryDevice;
use syncline_format::batch::Op;
use syncline_format::item::*;
use syncline_format::node::{self, NodePointer};
use syncline_format::superblock::Superblock;
use syncline_format::*;

/// The items of the main tree as the superblock with the highest generation leads to them; the log is to be empty.
fn items(device: &MemoryDevice) -> BTreeMap<Key, Vec<u8>> {
    let slots = [BlockNo(1), BlockNo(2)];
    let superblocks =
        slots.iter().filter_map(|&at| Superblock::decode(&read(device, at, 1), at, VOLUME_BLOCKS).ok());
    let superblock = superblocks.max_by_key(|superblock| superblock.generation).expect("a superblock");
    let root = read(device, superblock.root.block, 4);
    let main = NodePointer::decode(node::slot_value(&root, 0)).expect("a pointer");
    let mut items = BTreeMap::new();
    let mut pending = vec![main];
    while let Some(pointer) = pending.pop() {
        let bytes = read(device, pointer.block, 4);
        for slot in 0..usize::from(node::head(&bytes).count.get()) {
            let value = node::slot_value(&bytes, slot);
            match pointer.level {
                0 => drop(items.insert(node::slot_key(&bytes, slot), value.to_vec())),
                _ => pending.push(NodePointer::decode(value).expect("a pointer")),
            }
        }
    }
    items
}

/// Each leaf, with its keys.
fn leaves(image: &Image) -> Vec<(BlockNo, Vec<Key>)> {
    let start = image.superblock.layout.group_start(GroupNo(0)).plus(4);
    let keys: Vec<Key> = image.items.keys().copied().collect();
    let leaves = keys.chunks(image.items_per_leaf());
    leaves.enumerate().map(|(index, keys)| (start.plus(4 * index as u64), keys.to_vec())).collect()
}

/// A volume with something of every kind, and of some of it much.
fn varied() -> Image {
    let mut image = Image::populated();
    let deep = image.add_directory(ObjectNo::ROOT_DIR, "deep");
    for index in 0..3 {
        let directory = image.add_directory(deep, &format!("inner-{index}"));
        let spread = image.add_file(directory, "spread", 1);
        for page in 1..9 {
            let extent = image.new_extent(1);
            image.put(Key::extent(spread, 2 * page), extent.encode());
        }
        image.change_inode(spread, |inode| (inode.size, inode.blocks) = (17 * 4096, 9));
        let link = image.add_symlink(directory, "link", b"to somewhere");
        for (object, name) in [(spread, "user.long"), (link, "user.long"), (directory, "user.long")] {
            let value = XattrValue::Pieces { number: 3, len: 9000 };
            let key = image.xattr_key(object, name);
            image.put(key, XattrItem { name: name.into(), value }.encode());
            for (piece, len) in [(0, 4096), (1, 4096), (2, 808)] {
                image.put(Key::new(object, Kind::XattrPiece, 3 * 32 + piece), vec![7; len]);
            }
        }
    }
    let removed = image.new_object();
    image.put_inode(removed, &InodeItem { nlink: 0, ..inode(MODE_REGULAR | 0o644) });
    image.put(Key::orphan(removed), OrphanReason::Unlinked.encode());
    let cut = image.add_file(deep, "being truncated", 6);
    image.change_inode(cut, |inode| inode.size = 4096);
    image.put(Key::orphan(cut), OrphanReason::Truncated.encode());
    image
}

fn messages(report: &Report) -> Vec<String> {
    let told = report.findings.iter().filter(|finding| finding.code == Code::ItemLost);
    told.map(|finding| finding.message.clone()).collect()
}

/// Objects that have anything to do with a leaf: what is in it, and what names in it lead to.
fn concerned(image: &Image, keys: &[Key]) -> BTreeSet<ObjectNo> {
    let mut concerned = BTreeSet::new();
    for key in keys {
        match key.kind {
            Kind::Orphan => drop(concerned.insert(ObjectNo(key.offset))),
            _ => drop(concerned.insert(key.object)),
        }
        if let Some(dirent) = DirentItem::decode(&image.items[key]).ok().filter(|_| key.kind == Kind::Dirent)
        {
            concerned.insert(dirent.inode);
        }
    }
    concerned
}

// Shows: C7.
#[test]
fn any_leaf_can_be_lost_and_repair_keeps_all_others_as_they_are() {
    for per_leaf in [1, 2, 3, 5, 7] {
        let mut image = varied();
        image.leaf_items(per_leaf);
        image.build();
        for (leaf, keys) in leaves(&image) {
            let device = varied_with(per_leaf);
            patch(&device, leaf.plus(1), |block| block[77] ^= 1);
            let seen = look(&device);
            assert_eq!(seen.counts.get(&Code::LeafUnreadable), Some(&1), "{keys:?}: {:#?}", seen.findings);
            assert_eq!((seen.repairable, seen.beyond_repair().count()), (seen.errors_left(), 0));
            let repaired = repair(&device);
            assert!(repaired.repaired, "{keys:?}: {:#?}", repaired.findings);
            assert_eq!(repaired.left, BTreeMap::new(), "{keys:?}: {:#?}", repaired.findings);
            let lines = |report: &Report| {
                let mut lines: Vec<_> =
                    report.findings.iter().map(|f| (f.code, f.object, f.message.clone())).collect();
                lines.sort();
                lines
            };
            assert_eq!(lines(&seen), lines(&repaired), "a look tells all that a repair does");
            let concerned = concerned(&image, &keys);
            let after = items(&device);
            let lost_root = keys.contains(&Key::inode(ObjectNo::ROOT_DIR));
            for (key, value) in &image.items {
                let is_other = key.kind != Kind::Orphan && !keys.contains(key);
                let kept = is_other && !concerned.contains(&key.object);
                // A directory whose subdirectory has lost its name counts fewer; names of lost inodes are gone.
                let of_directory = match key.kind {
                    Kind::Inode => InodeItem::decode(value).is_ok_and(|inode| inode.is_directory()),
                    Kind::Dirent => true,
                    Kind::Extent => image.items.contains_key(&Key::orphan(key.object)),
                    _ => false,
                };
                let removed = image.items.contains_key(&Key::orphan(key.object));
                if kept && !of_directory && !(removed || lost_root) {
                    assert_eq!(after.get(key), Some(value), "{key:?} without the leaf of {keys:?}");
                }
            }
        }
    }
}

fn varied_with(per_leaf: usize) -> MemoryDevice {
    let mut image = varied();
    image.leaf_items(per_leaf);
    image.build()
}

/// The leaf that holds a key.
fn leaf_with(image: &Image, key: Key) -> BlockNo {
    let leaves = leaves(image);
    leaves.iter().find(|(_, keys)| keys.contains(&key)).expect("a leaf").0
}

/// A file of many extents, others around it, and images of it in the log: of pages that were lost, and of others.
fn with_carried_images() -> (Image, MemoryDevice, ObjectNo) {
    let mut image = Image::populated();
    let file = image.add_file(ObjectNo::ROOT_DIR, "large", 1);
    for page in 1..40 {
        let extent = image.new_extent(1);
        image.put(Key::extent(file, 2 * page), extent.encode());
    }
    image.change_inode(file, |inode| (inode.size, inode.blocks) = (79 * 4096, 40));
    for index in 0..20 {
        image.add_file(ObjectNo::ROOT_DIR, &format!("behind-{index}"), 2);
    }
    let device = image.build();
    let page = |page, bytes| Op::Image { tree: TreeId::MAIN, object: file, page, bytes };
    Log::new(&image).write(&device, &[page(0, b"zero"), page(40, b"amid"), page(41, b"hole")]);
    (image, device, file)
}

fn content(device: &MemoryDevice, file: ObjectNo, page: u64) -> Option<Vec<u8>> {
    let items = items(device);
    let (key, value) = items.range(..=Key::extent(file, page)).next_back()?;
    let extent = ExtentItem::decode(value).ok().filter(|_| key.object == file)?;
    let index = page - key.offset;
    (index < u64::from(extent.pages())).then(|| read(device, extent.start.plus(index), 1))
}

// Shows: C7.
#[test]
fn images_of_a_file_whose_extents_are_lost_are_brought_home() {
    let (image, device, file) = with_carried_images();
    patch(&device, leaf_with(&image, Key::extent(file, 40)), |block| block[200] ^= 1);
    let seen = expect(&device, &[Code::JournalReplay, Code::LeafUnreadable, Code::ItemLost]);
    let told = messages(&seen);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("7 of its 40 stored pages are lost, those in pages "), "{told:?}");
    let finding = seen.findings.iter().find(|finding| finding.code == Code::ItemLost).expect("told");
    assert_eq!((finding.object, finding.path.as_deref()), (Some(file), Some(&b"/large"[..])));
    expect_repaired(&device, &[]);
    assert!(expect(&device, &[]).totals.inodes == seen.totals.inodes);
    for (page, start) in [(0, &b"zero"[..]), (40, b"amid"), (41, b"hole")] {
        assert!(
            content(&device, file, page).is_some_and(|content| content.starts_with(start)),
            "page {page}"
        );
    }
    let inode = InodeItem::decode(&items(&device)[&Key::inode(file)]).expect("valid");
    assert_eq!((inode.size, inode.mode), (79 * 4096, MODE_REGULAR | 0o644));
}

#[test]
fn a_device_that_cannot_read_a_leaf_is_repaired_too() {
    let (image, device, file) = with_carried_images();
    let leaf = leaf_with(&image, Key::extent(file, 40));
    let device = Faulty { inner: device, unreadable: leaf.plus(2) };
    let report = check(&device, CheckOptions::default().repair(true)).expect("a volume");
    assert!(report.repaired && report.is_sound(), "{:#?}", report.findings);
    expect(&device.inner, &[]);
    assert!(content(&device.inner, file, 41).is_some());
}

#[test]
fn content_whose_inode_is_lost_is_kept_for_root_alone_under_its_name() {
    let (image, device, file) = with_carried_images();
    patch(&device, leaf_with(&image, Key::inode(file)), |block| block[200] ^= 1);
    expect_repaired(&device, &[]);
    let after = items(&device);
    let inode = InodeItem::decode(&after[&Key::inode(file)]).expect("valid");
    assert_eq!((inode.size, inode.mode, inode.uid, inode.gid), (79 * 4096, MODE_REGULAR | 0o600, 0, 0));
    assert!(after.contains_key(&image.name_key(ObjectNo::ROOT_DIR, "large")));
    assert!(content(&device, file, 41).is_some_and(|content| content.starts_with(b"hole")));
}

/// What the engine carries for a file of which nothing can be read.
#[test]
fn a_file_that_is_left_in_images_only_is_kept() {
    let mut image = Image::populated();
    let file = image.add_file(ObjectNo::ROOT_DIR, "lost", 1);
    image.leaf_items(3);
    let device = image.build();
    let page = |page, bytes| Op::Image { tree: TreeId::MAIN, object: file, page, bytes };
    Log::new(&image).write(&device, &[page(0, b"image"), page(2, b"end")]);
    for key in [Key::inode(file), Key::extent(file, 0)] {
        let leaf = leaf_with(&image, key);
        patch(&device, leaf, |block| block[200] = 0xff);
    }
    expect_repaired(&device, &[]);
    let after = items(&device);
    assert_eq!(InodeItem::decode(&after[&Key::inode(file)]).expect("valid").size, 2 * 4096 + 3);
    assert!(after.contains_key(&image.name_key(ObjectNo::ROOT_DIR, "lost")));
    assert!(content(&device, file, 0).is_some_and(|content| content.starts_with(b"image")));
}

#[test]
fn without_its_leaf_the_root_directory_is_made_anew_and_loses_nobody() {
    let mut image = Image::populated();
    image.leaf_items(3);
    let device = image.build();
    let before = look(&device).totals;
    patch(&device, leaf_with(&image, Key::inode(ObjectNo::ROOT_DIR)), |block| block[200] ^= 1);
    expect_repaired(&device, &[]);
    let after = expect(&device, &[]).totals;
    assert_eq!(after.inodes, before.inodes + 1, "and lost+found");
    let root = InodeItem::decode(&items(&device)[&Key::inode(ObjectNo::ROOT_DIR)]).expect("valid");
    assert_eq!(root.mode, MODE_DIRECTORY | 0o700);
}

/// What the log says of a lost leaf's items is not lost.
#[test]
fn items_of_the_log_make_up_for_those_of_the_leaf() {
    let (image, device, file) = with_carried_images();
    let mut log = Log::new(&image);
    let leaf = leaf_with(&image, Key::extent(file, 40));
    let (_, keys) = leaves(&image).into_iter().find(|(block, _)| *block == leaf).expect("that leaf");
    let puts: Vec<_> = keys.iter().map(|&key| put(key, &image.items[&key])).collect();
    log.write(&device, &puts);
    patch(&device, leaf, |block| block[200] ^= 1);
    let seen = expect(&device, &[Code::JournalReplay, Code::LeafUnreadable]);
    assert_eq!(seen.repairable, 1);
    expect_repaired(&device, &[]);
    for key in keys {
        assert_eq!(items(&device).get(&key), Some(&image.items[&key]));
    }
}

#[test]
fn a_node_above_the_leaves_is_not_given_up() {
    let mut image = Image::populated();
    let device = image.build();
    let root = node_above(&image);
    patch(&device, root, |block| block[200] ^= 1);
    let before = device.to_bytes();
    let report = repair(&device);
    assert!(report.has(Code::NodeUnreadable) && report.refused.is_some() && !report.repaired);
    assert_eq!(device.to_bytes(), before);
}

/// The root of the main tree: behind the leaves.
fn node_above(image: &Image) -> BlockNo {
    leaves(image).last().expect("leaves").0.plus(4)
}

#[test]
fn a_damaged_item_beside_a_lost_leaf_forbids_the_repair() {
    let mut image = Image::populated();
    image.put(Key::inode(ObjectNo(900)), vec![1; 3]);
    let device = image.build();
    patch(&device, leaf_with(&image, Key::inode(ObjectNo::ROOT_DIR)), |block| block[200] ^= 1);
    let report = repair(&device);
    assert!(report.has(Code::LeafUnreadable) && report.has(Code::ItemUndecodable));
    assert!(report.refused.is_some() && !report.repaired);
    assert!(messages(&report).is_empty());
}
