//! The journal of a volume with snapshots: trees come and go in it, and images have several owners.

use crate::grove::*;
use crate::image::*;
use syncline_check::Code;
use syncline_device::MemoryDevice;
use syncline_format::batch::{Op, Outcome};
use syncline_format::item::ExtentItem;
use syncline_format::tree_item::{Role, TreeItem, TreeState};
use syncline_format::*;

const MADE: TreeId = TreeId(18);
const MAIN: TreeId = TreeId::MAIN;

fn put_of(tree: TreeId, key: Key, value: &[u8]) -> Op<'_> {
    Op::Put { tree, key, value, fresh: false }
}

fn image_of(tree: TreeId, object: ObjectNo) -> Op<'static> {
    Op::Image { tree, object, page: 0, bytes: b"image" }
}

/// A volume whose log makes a snapshot of its head.
struct Made {
    grove: Grove,
    device: MemoryDevice,
    log: Log,
}

fn make(tree: TreeId, source: Option<TreeId>) -> Op<'static> {
    Op::MakeTree { tree, source, role: Role::Snapshot, era: Era(4) }
}

impl Made {
    fn build() -> Made {
        let mut grove = Grove::new();
        let device = grove.build();
        let log = Log::new(&grove.image);
        Made { grove, device, log }
    }

    fn snapshot(&mut self) {
        let item = snapshot(3, Some(NEWER)).encode();
        let head = self.head(MADE).encode();
        let ops = [
            make(MADE, Some(MAIN)),
            put_of(TreeId::VOLUME, Key::tree_info(MADE), &item),
            put_of(TreeId::VOLUME, Key::tree_info(MAIN), &head),
        ];
        self.log.write(&self.device, &ops);
    }

    fn head(&mut self, parent: TreeId) -> TreeItem {
        TreeItem { parent: Some(parent), known: Era(3), ..self.grove.item(HEAD).clone() }
    }

    /// Overwrites file B in the head; the batch says this of the old blocks.
    fn overwrite(&mut self, birth: Era, outcome: Outcome) {
        let old = self.grove.extent(B_NEW, Key::extent(B, 0));
        let new = ExtentItem::unwritten(BlockNo(30_000), 2).born(birth).encode();
        let ops = [
            Op::Allocate { start: BlockNo(30_000), len: 2 },
            put_of(MAIN, Key::extent(B, 0), &new),
            Op::Release { outcome, start: old.start, len: 2, birth: old.birth },
        ];
        self.log.write(&self.device, &ops);
    }

    #[track_caller]
    fn expect(&self, want: &[Code]) {
        let mut want = want.to_vec();
        want.insert(want.iter().take_while(|code| **code < Code::JournalReplay).count(), Code::JournalReplay);
        expect(&self.device, &want);
        let all = syncline_check::CheckOptions::default().data(true).all(true);
        let report = syncline_check::check(&self.device, all).expect("a volume");
        assert_eq!(codes(&report), want, "in all trees: {:#?}", report.findings);
    }
}

#[test]
fn a_snapshot_in_the_log_keeps_what_its_head_lets_go_of() {
    let mut made = Made::build();
    made.snapshot();
    made.expect(&[]);
    made.overwrite(Era(4), Outcome::Left);
    made.expect(&[]);
}

#[test]
fn without_a_snapshot_the_head_frees_what_it_overwrites() {
    let mut made = Made::build();
    made.overwrite(Era(3), Outcome::Free);
    made.expect(&[]);
    let mut made = Made::build();
    made.overwrite(Era(3), Outcome::Left);
    made.expect(&[Code::BlockLeaked]);
}

#[test]
fn what_a_snapshot_has_is_not_freed() {
    let mut made = Made::build();
    made.snapshot();
    made.overwrite(Era(4), Outcome::Free);
    made.expect(&[Code::BlockUnmarked]);
}

#[test]
fn changes_before_a_snapshot_are_in_it_and_later_ones_are_not() {
    let mut made = Made::build();
    made.overwrite(Era(3), Outcome::Free);
    made.snapshot();
    // The snapshot has the new blocks, and the head takes them away without a word on the log.
    let name = made.grove.image.name_key(ObjectNo::ROOT_DIR, "b");
    made.expect(&[]);
    let ops = [Op::Delete { tree: MAIN, key: name }];
    made.log.write(&made.device, &ops);
    let report = look(&made.device);
    assert!(report.has(Code::InodeUnnamed) && report.has(Code::EntryCount), "{:#?}", report.findings);
    assert!(report.findings.iter().all(|found| found.tree != Some(MADE)));
}

#[test]
fn a_put_behind_a_snapshot_is_born_behind_it() {
    let mut made = Made::build();
    made.snapshot();
    made.overwrite(Era(3), Outcome::Left);
    made.expect(&[Code::ExtentNotInParent]);
    let mut made = Made::build();
    made.overwrite(Era(4), Outcome::Free);
    made.expect(&[Code::BirthBeyond]);
}

#[test]
fn batches_change_heads_and_the_volume_tree_alone() {
    let value = inode(0o100644).encode();
    let item = snapshot(1, None).encode();
    let refused = |ops: &[Op<'_>]| {
        let mut made = Made::build();
        made.log.write(&made.device, ops);
        let report = look(&made.device);
        assert!(report.has(Code::JournalTree), "{ops:?}: {:#?}", report.findings);
    };
    refused(&[put_of(TreeId(OLDER), Key::inode(B), &value)]);
    refused(&[put_of(TreeId(40), Key::inode(B), &value)]);
    refused(&[Op::Delete { tree: TreeId(NEWER), key: Key::inode(B) }]);
    refused(&[Op::Delete { tree: TreeId::VOLUME, key: Key::inode(B) }]);
    refused(&[put_of(TreeId::VOLUME, Key::tree_info(MAIN), &item[..20])]);
    refused(&[image_of(TreeId(40), B)]);
    refused(&[image_of(TreeId::VOLUME, B)]);
    refused(&[make(MADE, None)]);
    refused(&[make(MADE, Some(TreeId(NEWER)))]);
    refused(&[make(MADE, Some(TreeId::VOLUME))]);
    refused(&[make(TreeId(OLDER), Some(MAIN))]);
    refused(&[Op::TreeGone { tree: TreeId(OLDER) }]);
}

#[test]
fn a_tree_that_the_log_makes_needs_an_item() {
    let mut made = Made::build();
    made.log.write(&made.device, &[make(MADE, Some(MAIN))]);
    made.expect(&[Code::TreesDiffer]);
}

#[test]
fn a_snapshot_inherits_images_and_its_end_voids_them() {
    let mut made = Made::build();
    let file = made.grove.leaves[B_NEW].items[&Key::inode(B)].clone();
    made.log.write(&made.device, &[put_of(MAIN, Key::inode(B), &file), image_of(MAIN, B)]);
    made.snapshot();
    made.log.write(&made.device, &[Op::Drop { tree: MAIN, object: B, first: 0, end: 1 }]);
    let report = look(&made.device);
    let told = report.findings.iter().find(|found| found.code == Code::JournalReplay).expect("a replay");
    assert!(told.message.contains("and 1 page images"), "the snapshot's: {}", told.message);
    made.expect(&[]);
    made.log.write(&made.device, &[Op::Drop { tree: MADE, object: B, first: 0, end: 1 }]);
    let report = look(&made.device);
    assert!(report.findings.iter().any(|found| found.message.contains("and 0 page images")));
}

#[test]
fn an_image_of_no_file_is_told_in_the_snapshot_that_inherits_it() {
    let mut made = Made::build();
    made.log.write(&made.device, &[image_of(MAIN, ObjectNo(77))]);
    made.snapshot();
    made.log.write(&made.device, &[Op::Drop { tree: MAIN, object: ObjectNo(77), first: 0, end: 1 }]);
    expect(&made.device, &[Code::JournalReplay]);
    let all = syncline_check::CheckOptions::default().all(true);
    let report = syncline_check::check(&made.device, all).expect("a volume");
    assert_eq!(codes(&report), [Code::JournalReplay, Code::JournalImage]);
    assert_eq!(report.findings[1].tree, Some(MADE));
}

#[test]
fn a_deletion_in_the_log_gives_back_and_moves_the_cursor() {
    let gone = |cursor| {
        let item =
            TreeItem { state: TreeState::Deleting { cursor }, name: String::new(), ..snapshot(1, None) };
        item.encode()
    };
    let mut made = Made::build();
    let dead = made.grove.extent(A_OLD, Key::extent(A, 0)).start;
    let key = Key::tree_info(TreeId(OLDER));
    made.log.write(&made.device, &[put_of(TreeId::VOLUME, key, &gone(Key::MIN))]);
    made.expect(&[]);
    let free = Op::Release { outcome: Outcome::Free, start: dead, len: 1, birth: Era(1) };
    made.log.write(&made.device, &[free, put_of(TreeId::VOLUME, key, &gone(Key::inode(B)))]);
    made.expect(&[]);
    made.log.write(&made.device, &[put_of(TreeId::VOLUME, key, &gone(Key::MAX))]);
    made.expect(&[]);
}

#[test]
fn the_last_batch_of_a_deletion_ends_a_tree_without_a_root() {
    let mut grove = Grove::new();
    grove.delete(OLDER, Key::MAX);
    grove.trees.get_mut(&OLDER).expect("a tree").has_root = false;
    let device = grove.build();
    let mut log = Log::new(&grove.image);
    let child = TreeItem { parent: None, ..grove.item(NEWER).clone() }.encode();
    let ops = [
        Op::TreeGone { tree: TreeId(OLDER) },
        put_of(TreeId::VOLUME, Key::tree_info(TreeId(NEWER)), &child),
        Op::Delete { tree: TreeId::VOLUME, key: Key::tree_info(TreeId(OLDER)) },
    ];
    log.write(&device, &ops);
    Made { grove, device, log }.expect(&[]);
}

#[test]
fn bitmaps_are_repaired_under_a_log() {
    let mut made = Made::build();
    made.snapshot();
    made.overwrite(Era(4), Outcome::Left);
    let superblock = &made.grove.image.superblock;
    write_bitmap(&made.device, superblock, GroupNo(0), 0, GENERATION, &[20_000].into());
    let report = look(&made.device);
    assert!(report.has(Code::BlockUnmarked) && report.has(Code::BlockLeaked));
    expect_repaired(&made.device, &[Code::JournalReplay]);
    made.expect(&[]);
}
