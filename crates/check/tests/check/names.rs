use crate::image::*;
use syncline_check::Code;
use syncline_format::item::*;
use syncline_format::{Key, ObjectNo};

const ROOT: ObjectNo = ObjectNo::ROOT_DIR;

#[test]
fn an_inode_without_a_name_goes_to_lost_and_found() {
    let mut image = Image::populated();
    let file = image.add_file(ROOT, "lost", 2);
    image.items.remove(&image.name_key(ROOT, "lost"));
    image.change_inode(ROOT, |inode| inode.entries -= 1);
    let device = image.build();
    let report = expect(&device, &[Code::InodeUnnamed]);
    assert_eq!(report.findings[0].object, Some(file));
    expect_repaired(&device, &[]);
    let report = expect(&device, &[]);
    assert_eq!(report.totals.directories, 3, "the root, dir and lost+found");
    assert_eq!(report.totals.data_blocks_verified, 25, "its data is still there");
}

#[test]
fn an_existing_lost_and_found_is_used() {
    let mut image = Image::populated();
    image.add_directory(ROOT, "lost+found");
    let directory = image.add_directory(ROOT, "lost");
    image.add_file(directory, "inside", 1);
    image.items.remove(&image.name_key(ROOT, "lost"));
    image.change_inode(ROOT, |inode| {
        inode.entries -= 1;
        inode.nlink -= 1;
    });
    let device = image.build();
    expect(&device, &[Code::InodeUnnamed]);
    expect_repaired(&device, &[]);
    assert_eq!(expect(&device, &[]).totals.directories, 4);
}

#[test]
fn lost_and_found_that_is_a_file_is_left_alone() {
    let mut image = Image::populated();
    image.add_file(ROOT, "lost+found", 1);
    let nameless = image.new_object();
    image.put_inode(nameless, &inode(MODE_REGULAR | 0o600));
    let device = image.build();
    expect(&device, &[Code::InodeUnnamed]);
    expect_repaired(&device, &[Code::InodeUnnamed]);
}

#[test]
fn a_name_that_points_nowhere_is_removed() {
    let mut image = Image::populated();
    image.add_name(ROOT, "nowhere", ObjectNo(700), 8);
    let device = image.build();
    let report = expect(&device, &[Code::DirentDangling]);
    assert_eq!(report.findings[0].object, Some(ROOT));
    assert!(report.findings[0].message.contains("\"nowhere\""));
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn a_name_is_kept_while_anything_of_its_inode_is_left() {
    let mut image = Image::populated();
    image.add_name(ROOT, "remains", ObjectNo(700), 8);
    let extent = image.new_extent(1);
    image.put(Key::extent(ObjectNo(700), 0), extent.encode());
    image.bits.insert(20_000, true);
    let device = image.build();
    expect(&device, &[Code::BlockLeaked, Code::ItemWithoutInode, Code::DirentDangling]);
    expect_repaired(&device, &[Code::ItemWithoutInode, Code::DirentDangling]);
}

#[test]
fn a_name_with_the_wrong_type_is_corrected() {
    let mut image = Image::populated();
    let file = image.add_file(ROOT, "typed", 1);
    let key = image.name_key(ROOT, "typed");
    image.put(key, DirentItem { inode: file, file_type: 10, name: b"typed".to_vec() }.encode());
    let device = image.build();
    expect(&device, &[Code::DirentType]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn a_name_under_the_wrong_hash_is_found() {
    let mut image = Image::populated();
    let key = image.name_key(ROOT, "link");
    let dirent = image.items.remove(&key).expect("it was there");
    image.put(Key { offset: key.offset + 7, ..key }, dirent.clone());
    expect(&image.build(), &[]);
    image.items.remove(&Key { offset: key.offset + 7, ..key });
    image.put(Key { offset: key.offset - 1, ..key }, dirent);
    expect(&image.build(), &[Code::DirentHash]);
}

#[test]
fn a_name_twice_in_a_directory_is_found() {
    let mut image = Image::populated();
    let key = image.name_key(ROOT, "link");
    let dirent = image.items[&key].clone();
    image.put(Key { offset: key.offset + 1, ..key }, dirent);
    image.change_inode(ROOT, |inode| inode.entries += 1);
    let report = look(&image.build());
    assert_eq!(codes(&report), [Code::LinkCount, Code::DirentDuplicate]);
}

#[test]
fn wrong_link_counts_of_files_and_directories_are_corrected() {
    let mut image = Image::populated();
    let file = image.add_file(ROOT, "linked", 1);
    image.change_inode(file, |inode| inode.nlink = 7);
    image.change_inode(ROOT, |inode| inode.nlink = 2);
    let device = image.build();
    let report = expect(&device, &[Code::LinkCount]);
    assert_eq!(report.findings.iter().map(|f| f.object).collect::<Vec<_>>(), [Some(ROOT), Some(file)]);
    let report = expect_repaired(&device, &[]);
    assert_eq!(report.exit_code(), 1);
    expect(&device, &[]);
}

#[test]
fn a_wrong_entry_count_is_corrected() {
    let mut image = Image::populated();
    image.change_inode(ROOT, |inode| inode.entries += 3);
    let device = image.build();
    expect(&device, &[Code::EntryCount]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn a_wrong_parent_is_corrected() {
    let mut image = Image::populated();
    let outer = image.add_directory(ROOT, "outer");
    let inner = image.add_directory(outer, "inner");
    image.change_inode(inner, |inode| inode.parent = ROOT);
    image.change_inode(ROOT, |inode| inode.parent = outer);
    let device = image.build();
    let report = expect(&device, &[Code::DirectoryParent]);
    assert_eq!(report.findings.len(), 2);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn a_directory_with_two_names_is_found() {
    let mut image = Image::populated();
    let directory = image.add_directory(ROOT, "one");
    let other = image.add_directory(ROOT, "other");
    image.add_name(other, "two", directory, 4);
    assert!(look(&image.build()).has(Code::DirectoryNames));
}

#[test]
fn directories_in_a_circle_are_found() {
    let mut image = Image::populated();
    let a = image.add_directory(ROOT, "a");
    let b = image.add_directory(a, "b");
    image.items.remove(&image.name_key(ROOT, "a"));
    image.change_inode(ROOT, |inode| {
        inode.entries -= 1;
        inode.nlink -= 1;
    });
    image.add_name(b, "a", a, 4);
    image.change_inode(b, |inode| inode.nlink += 1);
    image.change_inode(a, |inode| inode.parent = b);
    let report = expect(&image.build(), &[Code::DirectoryUnreachable]);
    assert_eq!(report.findings.iter().map(|f| f.object).collect::<Vec<_>>(), [Some(a), Some(b)]);
}

#[test]
fn a_volume_without_its_root_directory_is_reported() {
    let mut image = Image::populated();
    image.put_inode(ROOT, &inode(MODE_REGULAR | 0o644));
    assert!(look(&image.build()).has(Code::RootDirectory));
}

#[test]
fn orphans_are_normal_and_finished_by_repair() {
    let mut image = Image::populated();
    let unlinked = image.add_file(ROOT, "unlinked", 3);
    image.items.remove(&image.name_key(ROOT, "unlinked"));
    image.change_inode(ROOT, |inode| inode.entries -= 1);
    image.change_inode(unlinked, |inode| inode.nlink = 0);
    image.put(Key::orphan(unlinked), OrphanReason::Unlinked.encode().to_vec());
    let truncated = image.add_file(ROOT, "truncated", 5);
    image.change_inode(truncated, |inode| inode.size = 4097);
    image.put(Key::orphan(truncated), OrphanReason::Truncated.encode().to_vec());
    let both = image.new_object();
    image.put_inode(both, &InodeItem { nlink: 0, ..inode(MODE_REGULAR | 0o644) });
    image.put(Key::orphan(both), OrphanReason::Truncated.encode().to_vec());
    let device = image.build();
    let report = expect(&device, &[Code::OrphanPending]);
    assert_eq!(report.exit_code(), 0);
    let inodes = report.totals.inodes;
    expect_repaired(&device, &[]);
    let report = expect(&device, &[]);
    assert_eq!(report.totals.inodes, inodes - 2);
    assert_eq!(report.totals.data_blocks_verified, 25, "two pages of the truncated file are left");
}

#[test]
fn an_orphan_of_no_inode_is_dropped() {
    let mut image = Image::populated();
    image.put(Key::orphan(ObjectNo(600)), vec![1]);
    let device = image.build();
    expect(&device, &[Code::OrphanMissing]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn an_orphan_with_a_name_is_kept_as_a_file() {
    let mut image = Image::populated();
    let file = image.add_file(ROOT, "named", 1);
    image.put(Key::orphan(file), OrphanReason::Unlinked.encode().to_vec());
    let device = image.build();
    let inodes = expect(&device, &[Code::OrphanNamed]).totals.inodes;
    expect_repaired(&device, &[]);
    assert_eq!(expect(&device, &[]).totals.inodes, inodes);
}

/// The engine keeps what counts links, and forgets the orphan.
#[test]
fn an_orphan_that_counts_links_is_kept_though_nothing_names_it() {
    let mut image = Image::populated();
    let file = image.add_file(ROOT, "counted", 3);
    image.items.remove(&image.name_key(ROOT, "counted"));
    image.change_inode(ROOT, |inode| inode.entries -= 1);
    image.put(Key::orphan(file), OrphanReason::Unlinked.encode().to_vec());
    let device = image.build();
    let inodes = expect(&device, &[Code::InodeUnnamed, Code::OrphanNamed]).totals.inodes;
    expect_repaired(&device, &[]);
    assert_eq!(expect(&device, &[]).totals.inodes, inodes + 1, "and lost+found");
}

#[test]
fn an_orphan_without_links_that_has_a_name_is_kept_as_a_file() {
    let mut image = Image::populated();
    let file = image.add_file(ROOT, "named", 1);
    image.change_inode(file, |inode| inode.nlink = 0);
    image.put(Key::orphan(file), OrphanReason::Unlinked.encode().to_vec());
    let device = image.build();
    let inodes = expect(&device, &[Code::OrphanPending, Code::OrphanNamed]).totals.inodes;
    expect_repaired(&device, &[]);
    assert_eq!(expect(&device, &[]).totals.inodes, inodes);
}

#[test]
fn an_object_that_leaves_no_number_for_the_next_one_forbids_repair() {
    let mut image = Image::populated();
    image.put_inode(ObjectNo(1 << 62), &inode(MODE_REGULAR | 0o644));
    let device = image.build();
    assert!(look(&device).has(Code::SuperblockExhausted));
    let report = repair(&device);
    assert!(!report.repaired && report.refused.is_some());
}

#[test]
fn a_range_that_is_being_moved_is_left_to_the_next_open() {
    let moving = |shift: Shift| {
        let mut image = Image::populated();
        let file = image.add_file(ROOT, "moving", 5);
        image.put(Key::orphan(file), OrphanReason::Shifting(shift).encode());
        image.build()
    };
    let down = Shift { first: 0, count: 2, inserts: false, next: 0 };
    for shift in [down, Shift { first: 3, ..down }.at(3), Shift { first: 9, ..down }.at(10)] {
        let device = moving(shift);
        assert_eq!(expect(&device, &[Code::OrphanPending]).exit_code(), 0, "{shift:?}");
        expect_repaired(&device, &[Code::OrphanPending]);
    }
    // Extents where none can be, and some that the move would bring beyond the end of the file.
    expect(&moving(down.at(1)), &[Code::ExtentOverlap, Code::OrphanPending]);
    let up = Shift { first: 0, count: 4, inserts: true, next: 5 };
    expect(&moving(up), &[Code::ExtentBeyondSize, Code::OrphanPending]);
    expect(&moving(up.at(4)), &[Code::ExtentOverlap, Code::ExtentBeyondSize, Code::OrphanPending]);
    expect(&moving(up.at(0)), &[Code::ExtentOverlap, Code::OrphanPending]);
}

trait At {
    fn at(self, next: u64) -> Shift;
}

impl At for Shift {
    fn at(self, next: u64) -> Shift {
        Shift { next, ..self }
    }
}
