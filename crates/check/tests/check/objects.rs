use crate::image::*;
use syncline_check::Code;
use syncline_format::item::*;
use syncline_format::{BLOCK_BYTES, BlockNo, Key, Kind, ObjectNo};

/// A populated volume and a file of four pages in its root.
fn with_file() -> (Image, ObjectNo) {
    let mut image = Image::populated();
    let file = image.add_file(ObjectNo::ROOT_DIR, "four", 4);
    (image, file)
}

fn extent(image: &Image, file: ObjectNo) -> ExtentItem {
    ExtentItem::decode(&image.items[&Key::extent(file, 0)]).expect("valid")
}

#[test]
fn items_without_an_inode_are_found_and_kept() {
    let mut image = Image::populated();
    let extent = image.new_extent(2);
    image.put(Key::extent(ObjectNo(500), 0), extent.encode());
    let device = image.build();
    let report = expect(&device, &[Code::ItemWithoutInode]);
    assert_eq!(report.findings[0].object, Some(ObjectNo(500)));
    assert!(!repair(&device).repaired);
}

#[test]
fn items_of_another_type_are_found() {
    let (mut image, file) = with_file();
    let directory = image.add_directory(ObjectNo::ROOT_DIR, "directory");
    let moved = image.new_extent(1);
    image.put(Key::extent(directory, 0), moved.encode());
    image.change_inode(directory, |inode| {
        inode.blocks = 1;
        inode.size = BLOCK_BYTES as u64;
    });
    image.put(Key::symlink(file), b"x".to_vec());
    let report = expect(&image.build(), &[Code::ItemOfOtherType]);
    assert_eq!(report.findings.len(), 2);
}

#[test]
fn overlapping_extents_are_found() {
    let (mut image, file) = with_file();
    let more = image.new_extent(2);
    image.put(Key::extent(file, 3), more.encode());
    image.change_inode(file, |inode| {
        inode.blocks += 2;
        inode.size += BLOCK_BYTES as u64;
    });
    let report = expect(&image.build(), &[Code::ExtentOverlap]);
    assert_eq!(report.findings[0].object, Some(file));
}

#[test]
fn written_data_beyond_the_size_is_found_but_unwritten_is_allowed() {
    let (mut image, file) = with_file();
    let whole = extent(&image, file);
    image.change_inode(file, |inode| inode.size = 2 * BLOCK_BYTES as u64);
    expect(&image.build(), &[Code::ExtentBeyondSize]);
    image.put(Key::extent(file, 0), whole.slice(0, 2).encode());
    let start = whole.start.plus(2);
    image.put(Key::extent(file, 2), ExtentItem::unwritten(start, 2).encode());
    expect(&image.build(), &[]);
}

#[test]
fn a_wrong_block_count_is_corrected() {
    let (mut image, file) = with_file();
    image.change_inode(file, |inode| inode.blocks = 9);
    let device = image.build();
    let report = expect(&device, &[Code::InodeBlocks]);
    assert_eq!(report.findings[0].object, Some(file));
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn a_symlink_without_its_target_is_found() {
    for change in [None, Some(b"toolong".to_vec()), Some(b"t\0rget".to_vec())] {
        let mut image = Image::populated();
        let symlink = image.add_symlink(ObjectNo::ROOT_DIR, "six", b"target");
        match change {
            Some(target) => image.put(Key::symlink(symlink), target),
            None => drop(image.items.remove(&Key::symlink(symlink))),
        }
        let report = expect(&image.build(), &[Code::SymlinkTarget]);
        assert_eq!(report.findings[0].object, Some(symlink));
    }
}

#[test]
fn damaged_data_is_found_and_named_by_page() {
    let (mut image, file) = with_file();
    let device = image.build();
    let block = extent(&image, file).start.plus(2);
    patch(&device, block, |page| page[17] ^= 0x20);
    let report = expect(&device, &[Code::DataChecksum]);
    let finding = &report.findings[0];
    assert_eq!((finding.block, finding.object), (Some(block), Some(file)));
    assert!(finding.message.starts_with("page 2:"));
    let fast = syncline_check::check(&device, Default::default()).expect("a volume");
    assert!(fast.findings.is_empty(), "data is read only when asked for");
}

#[test]
fn data_that_cannot_be_read_is_named_by_block() {
    let (mut image, file) = with_file();
    let device = image.build();
    let block = extent(&image, file).start.plus(1);
    let device = crate::hostile::Faulty { inner: device, unreadable: block };
    let options = syncline_check::CheckOptions::default().data(true);
    let report = syncline_check::check(&device, options).expect("a volume");
    assert_eq!(codes(&report), [Code::DataUnreadable]);
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].block, Some(block));
}

#[test]
fn an_attribute_under_the_wrong_hash_is_found() {
    let mut image = Image::populated();
    let xattr = XattrItem { name: b"user.a".to_vec(), value: XattrValue::Inline(vec![1]) };
    let key = image.xattr_key(ObjectNo::ROOT_DIR, "user.a");
    for (probe, want) in [(0, &[][..]), (7, &[]), (8, &[Code::XattrHash])] {
        image.put(Key { offset: key.offset + probe, ..key }, xattr.encode());
        expect(&image.build(), want);
        image.items.remove(&Key { offset: key.offset + probe, ..key });
    }
}

#[test]
fn an_attribute_twice_is_found() {
    let mut image = Image::populated();
    let xattr = XattrItem { name: b"user.a".to_vec(), value: XattrValue::Inline(vec![1]) };
    let key = image.xattr_key(ObjectNo::ROOT_DIR, "user.a");
    image.put(key, xattr.encode());
    image.put(Key { offset: key.offset + 3, ..key }, xattr.encode());
    expect(&image.build(), &[Code::XattrDuplicate]);
}

#[test]
fn attribute_values_in_pieces_must_be_complete() {
    let mut image = Image::populated();
    let xattr = XattrItem { name: b"user.big".to_vec(), value: XattrValue::Pieces { number: 2, len: 9000 } };
    image.put(image.xattr_key(ObjectNo::ROOT_DIR, "user.big"), xattr.encode());
    let piece = |index: u64| Key::new(ObjectNo::ROOT_DIR, Kind::XattrPiece, 64 + index);
    for (index, bytes) in [(0, 4096), (1, 4096), (2, 808)] {
        image.put(piece(index), vec![5; bytes]);
    }
    expect(&image.build(), &[]);
    image.put(piece(2), vec![5; 807]);
    expect(&image.build(), &[Code::XattrPieces]);
    image.items.remove(&piece(2));
    expect(&image.build(), &[Code::XattrPieces]);
}

#[test]
fn an_access_control_list_has_to_be_a_valid_one() {
    let list = |entries: &[(u16, u16)]| {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, permissions) in entries {
            bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes(), [1, 0], [0, 0]].concat());
        }
        XattrValue::Inline(bytes)
    };
    let cases = [
        (XattrValue::Inline(Vec::new()), true),
        (XattrValue::Inline(vec![2, 0, 0, 0]), true),
        (XattrValue::Inline(vec![1, 0, 0, 0]), false),
        (XattrValue::Inline(vec![2, 0, 0]), false),
        (list(&[(1, 7), (4, 5), (0x20, 0)]), true),
        (list(&[(1, 7), (2, 6), (2, 1), (4, 5), (8, 4), (0x10, 6), (0x20, 0)]), true),
        (list(&[(1, 7), (2, 6), (4, 5), (0x20, 0)]), false),
        (list(&[(1, 7), (4, 5), (0x10, 1), (0x10, 1), (0x20, 0)]), false),
        (list(&[(1, 7), (4, 5)]), false),
        (list(&[(4, 5), (1, 7), (0x20, 0)]), false),
        (list(&[(1, 8), (4, 5), (0x20, 0)]), false),
        (list(&[(1, 7), (3, 7), (4, 5), (0x20, 0)]), false),
    ];
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        for (value, valid) in &cases {
            let mut image = Image::populated();
            let xattr = XattrItem { name: name.into(), value: value.clone() };
            image.put(image.xattr_key(ObjectNo::ROOT_DIR, name), xattr.encode());
            let want: &[Code] = if *valid { &[] } else { &[Code::AclInvalid] };
            expect(&image.build(), want);
        }
    }
    // Nobody can tell what was meant, so repair does not guess.
    let mut image = Image::populated();
    let xattr =
        XattrItem { name: b"system.posix_acl_access".to_vec(), value: XattrValue::Inline(vec![9; 12]) };
    image.put(image.xattr_key(ObjectNo::ROOT_DIR, "system.posix_acl_access"), xattr.encode());
    assert_eq!(codes(&repair(&image.build())), [Code::AclInvalid]);
}

#[test]
fn pieces_of_no_attribute_are_removed() {
    let mut image = Image::populated();
    let piece = Key::new(ObjectNo::ROOT_DIR, Kind::XattrPiece, 64);
    image.put(piece, vec![5; 10]);
    let device = image.build();
    expect(&device, &[Code::XattrPieceUnused]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn an_extent_of_a_page_number_beyond_any_file_is_misplaced() {
    let (mut image, file) = with_file();
    let far = ExtentItem::unwritten(BlockNo(25_000), 1);
    image.put(Key::extent(file, u64::MAX), far.encode());
    assert!(look(&image.build()).has(Code::ItemMisplaced));
}
