//! What a report tells people: where the damage is, how much there is, and whether repair would help.

use crate::image::*;
use syncline_check::Code;
use syncline_format::batch::Op;
use syncline_format::item::*;
use syncline_format::*;

/// A volume with `/deep/er/file` of three pages, of which the second is damaged when it is built.
fn with_damaged_file() -> (Image, ObjectNo, BlockNo) {
    let mut image = Image::populated();
    let deep = image.add_directory(ObjectNo::ROOT_DIR, "deep");
    let deeper = image.add_directory(deep, "er");
    let file = image.add_file(deeper, "file", 3);
    let extent = ExtentItem::decode(&image.items[&Key::extent(file, 0)]).expect("an extent");
    (image, file, extent.start.plus(1))
}

#[test]
fn findings_tell_where_their_inode_is() {
    let (mut image, file, block) = with_damaged_file();
    image.change_inode(ObjectNo::ROOT_DIR, |inode| inode.entries += 1);
    let device = image.build();
    patch(&device, block, |page| page[5] ^= 1);
    let report = expect(&device, &[Code::DataChecksum, Code::EntryCount]);
    let path =
        |code| report.findings.iter().find(|finding| finding.code == code).and_then(|f| f.path.clone());
    assert_eq!(path(Code::DataChecksum), Some(b"/deep/er/file".to_vec()), "inode {file}");
    assert_eq!(path(Code::EntryCount), Some(b"/".to_vec()));
}

#[test]
fn paths_are_those_of_the_log() {
    let (mut image, file, block) = with_damaged_file();
    let device = image.build();
    patch(&device, block, |page| page[5] ^= 1);
    let mut log = Log::new(&image);
    let dirent = DirentItem { inode: file, file_type: 8, name: b"renamed".to_vec() }.encode();
    let deeper = image.items.iter().find_map(|(key, value)| {
        let dirent = DirentItem::decode(value).ok().filter(|_| key.kind == Kind::Dirent)?;
        (dirent.inode == file).then_some(key.object)
    });
    let deeper = deeper.expect("the file has a name");
    let delete = Op::Delete { tree: TreeId::MAIN, key: image.name_key(deeper, "file") };
    log.write(&device, &[delete, put(image.name_key(deeper, "renamed"), &dirent)]);
    let report = expect(&device, &[Code::JournalReplay, Code::DataChecksum]);
    let finding = report.findings.iter().find(|finding| finding.code == Code::DataChecksum);
    assert_eq!(finding.and_then(|finding| finding.path.clone()), Some(b"/deep/er/renamed".to_vec()));
}

#[test]
fn what_no_name_leads_to_has_no_path() {
    let mut image = Image::populated();
    let one = image.new_object();
    let mut inode = inode(MODE_DIRECTORY);
    (inode.parent, inode.entries, inode.nlink) = (one, 1, 3);
    image.put_inode(one, &inode);
    image.put(
        image.name_key(one, "itself"),
        DirentItem { inode: one, file_type: 4, name: b"itself".to_vec() }.encode(),
    );
    let report = look(&image.build());
    assert!(report.has(Code::DirectoryUnreachable));
    assert!(report.findings.iter().all(|finding| finding.path.is_none()), "{:#?}", report.findings);
}

#[test]
fn a_damaged_block_is_not_counted_as_verified() {
    let (mut image, _, block) = with_damaged_file();
    let device = image.build();
    let sound = expect(&device, &[]).totals;
    assert_eq!(sound.data_blocks_damaged, 0);
    patch(&device, block, |page| page[5] ^= 1);
    let totals = expect(&device, &[Code::DataChecksum]).totals;
    assert_eq!(
        (totals.data_blocks_verified, totals.data_blocks_damaged),
        (sound.data_blocks_verified - 1, 1)
    );
    let device = crate::hostile::Faulty { inner: device, unreadable: block };
    let options = syncline_check::CheckOptions::default().data(true);
    let totals = syncline_check::check(&device, options).expect("a volume").totals;
    assert_eq!(
        (totals.data_blocks_verified, totals.data_blocks_damaged),
        (sound.data_blocks_verified - 1, 1)
    );
}

#[test]
fn only_what_repair_corrects_counts_as_repairable() {
    let (mut image, _, block) = with_damaged_file();
    image.change_inode(ObjectNo::ROOT_DIR, |inode| inode.entries += 1);
    let device = image.build();
    let count = expect(&device, &[Code::EntryCount]);
    assert_eq!((count.repairable, count.beyond_repair().count()), (1, 0));
    patch(&device, block, |page| page[5] ^= 1);
    let both = expect(&device, &[Code::DataChecksum, Code::EntryCount]);
    assert_eq!((both.repairable, both.errors_left()), (1, 2));
    assert_eq!(both.beyond_repair().collect::<Vec<_>>(), [Code::DataChecksum]);
    let repaired = repair(&device);
    assert!(repaired.repaired);
    assert_eq!((repaired.repairable, repaired.errors_left()), (0, 1), "what repair promised it has done");
}

#[test]
fn nothing_is_repairable_while_something_is_unreadable() {
    let (mut image, file, _) = with_damaged_file();
    image.change_inode(ObjectNo::ROOT_DIR, |inode| inode.entries += 1);
    image.put(Key::symlink(file), b"an item of another type".to_vec());
    image.put(Key::inode(ObjectNo(900)), vec![1; 3]);
    let report = look(&image.build());
    assert!(report.has(Code::ItemUndecodable));
    assert_eq!(report.repairable, 0);
    assert!(report.beyond_repair().any(|code| code == Code::ItemUndecodable));
}

#[test]
fn a_name_of_which_only_remains_exist_is_not_repairable() {
    let mut image = Image::populated();
    let file = image.add_file(ObjectNo::ROOT_DIR, "lost-its-inode", 1);
    image.items.remove(&Key::inode(file));
    let report = look(&image.build());
    assert!(report.has(Code::DirentDangling) && report.has(Code::ItemWithoutInode));
    assert_eq!(report.repairable, 0, "{:#?}", report.findings);
}
