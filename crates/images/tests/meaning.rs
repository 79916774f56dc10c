//! Volumes whose checksums are right and whose meaning is hostile, one by one: what each was found to do, and must not.

use std::ops::ControlFlow;
use std::sync::Arc;
use syncline::{Context, Error, OpenOptions, SyncScope};
use syncline_check::{CheckOptions, Code, Report, check};
use syncline_format::item::{DirentItem, InodeItem, MODE_DIRECTORY};
use syncline_format::range::{
    Field, INODE_BLOCKS, INODE_MODIFIED, INODE_NLINK, NAME_SLOT_MAX, SUPERBLOCK_FREE_BLOCKS,
};
use syncline_format::{Key, Kind};
use syncline_fs::{Fs, ObjectNo, OpenFlags};
use syncline_images::golden::{RECIPES, look};
use syncline_images::hostile::semantics::TreeChange;
use syncline_images::hostile::semantics::model::{Model, Patch};
use syncline_images::packed::SparseImage;
use syncline_images::session;
use syncline_store::StoreError;

fn model() -> Model {
    let clean = RECIPES.iter().find(|recipe| recipe.name == "v1-clean").expect("a recipe of this name");
    Model::of(&clean.load().expect("in the tree").image)
}

fn open(image: &SparseImage) -> Arc<Fs> {
    session::open(image.device(), false, 5).expect("opens")
}

fn report(image: &SparseImage) -> Report {
    look(image).expect("can be checked")
}

/// The inode of a path of the clean volume.
fn inode(model: &Model, path: &[&str]) -> ObjectNo {
    path.iter().fold(ObjectNo::ROOT_DIR, |directory, name| {
        let entries =
            model.items.iter().filter(|(key, _)| key.object == directory && key.kind == Kind::Dirent);
        let mut entries = entries.map(|(_, value)| DirentItem::decode(value).expect("a sound volume"));
        entries.find(|entry| entry.name == name.as_bytes()).expect("a name of the volume").inode
    })
}

fn overwrite(model: &mut Model, object: ObjectNo, field: &Field, value: u64) {
    let item = model.items.get_mut(&Key::inode(object)).expect("an inode of the volume");
    item[field.at..field.at + field.bytes].copy_from_slice(&value.to_le_bytes()[..field.bytes]);
}

#[track_caller]
fn assert_damaged<T: std::fmt::Debug>(result: Result<T, Error>) {
    match result {
        Err(Error::Inconsistent { .. } | Error::Format(_)) => {}
        other => panic!("not told as damage: {other:?}"),
    }
}

#[test]
fn a_count_of_blocks_that_no_volume_has_is_damage_and_the_highest_possible_one_can_be_written_to() {
    let mut model = model();
    let (forged, most) = (inode(&model, &["a", "b", "large"]), inode(&model, &["a", "sparse"]));
    overwrite(&mut model, forged, &INODE_BLOCKS, u64::MAX);
    overwrite(&mut model, most, &INODE_BLOCKS, INODE_BLOCKS.most);
    overwrite(&mut model, most, &INODE_NLINK, INODE_NLINK.most);
    let image = model.seal();
    assert!(report(&image).has(Code::ItemUndecodable));
    let fs = open(&image);
    assert_damaged(fs.attributes().getattr(forged));
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let handle = fs.files().open_handle(&Context::root(), most, flags).expect("opens");
    fs.files().write(&Context::root(), handle, 100_000, &[7; 300_000]).expect("writes");
    fs.files().sync_handle(handle, SyncScope::All).expect("syncs");
    assert!(matches!(fs.names().link(most, ObjectNo::ROOT_DIR, b"more"), Err(Error::TooManyLinks)));
    fs.files().release(handle).expect("closes");
    fs.close().expect("closes");
}

#[test]
fn an_entry_where_none_may_lie_ends_a_listing_with_an_error() {
    for slot in [0, 15, NAME_SLOT_MAX + 1, i64::MAX as u64 + 1, u64::MAX] {
        let mut model = model();
        let file = inode(&model, &["a", "small"]);
        let dirent = DirentItem { inode: file, file_type: 8, name: b"far".to_vec() };
        model.edit(Key::dirent(ObjectNo::ROOT_DIR, slot), Some(dirent.encode()));
        let image = model.seal();
        assert!(report(&image).has(Code::DirentHash));
        let fs = open(&image);
        let directory = fs.files().opendir(ObjectNo::ROOT_DIR).expect("opens");
        let mut cookie = 0;
        let listed = loop {
            let mut seen = 0;
            let read = fs.names().readdir(directory, cookie, &mut |entry| {
                assert!(entry.cookie > cookie && entry.cookie <= i64::MAX as u64);
                (cookie, seen) = (entry.cookie, seen + 1);
                ControlFlow::Break(())
            });
            if read.is_err() || seen == 0 {
                break read;
            }
        };
        assert_damaged(listed);
    }
}

/// Lists everything below the root by paths; returns how many directories there are, and how many could not be entered.
fn directories(image: &SparseImage) -> (usize, usize) {
    let volume = session::open_volume(image.device(), true, 5).expect("opens");
    let (mut entered, mut refused) = (0, 0);
    let mut pending = vec![std::path::PathBuf::from("/")];
    while let Some(path) = pending.pop() {
        let Ok(entries) = volume.read_dir(&path) else {
            refused += 1;
            continue;
        };
        entered += 1;
        assert!(entered < 1000, "a walk without end");
        pending
            .extend(entries.filter_map(Result::ok).filter(|entry| entry.is_dir()).map(|entry| entry.path()));
    }
    (entered, refused)
}

fn chain(model: &mut Model, depth: u64, names: &[&str]) {
    let mut parent = ObjectNo::ROOT_DIR;
    let plain = InodeItem::decode(&model.items[&Key::inode(ObjectNo::ROOT_DIR)]).expect("a root");
    for _ in 0..depth {
        let child = model.superblock.next_object;
        model.superblock.next_object = ObjectNo(child.0 + 1);
        let item = InodeItem { parent, entries: names.len() as u64, ..plain.clone() };
        model.edit(Key::inode(child), Some(item.encode().to_vec()));
        for name in names {
            model.name(parent, name.as_bytes(), child, (MODE_DIRECTORY >> 12) as u8);
        }
        parent = child;
    }
}

#[test]
fn directories_with_two_names_are_entered_by_one() {
    let mut model = model();
    let before = directories(&model.clone().seal()).0;
    chain(&mut model, 40, &["one", "other"]);
    let image = model.seal();
    assert!(report(&image).has(Code::DirectoryNames));
    assert_eq!(directories(&image), (before + 40, 40), "2^40 paths lead to the last one");
}

#[test]
fn names_of_directories_that_have_another_parent_are_damage() {
    let mut model = model();
    let a = inode(&model, &["a"]);
    let empty = inode(&model, &["empty"]);
    let b = inode(&model, &["a", "b"]);
    model.name(b, b"up", a, 4);
    model.name(b, b"top", ObjectNo::ROOT_DIR, 4);
    model.name(b, b"self", b, 4);
    model.name(b, b"aside", empty, 4);
    model.name(ObjectNo::ROOT_DIR, b"root", ObjectNo::ROOT_DIR, 4);
    let image = model.seal();
    assert!(report(&image).has(Code::DirectoryNames));
    let fs = open(&image);
    for (directory, name) in
        [(b, &b"up"[..]), (b, b"top"), (b, b"self"), (b, b"aside"), (ObjectNo::ROOT_DIR, b"root")]
    {
        assert_damaged(fs.names().lookup(directory, name));
        assert_damaged(fs.names().lookup(directory, name));
    }
    assert!(fs.names().lookup(ObjectNo::ROOT_DIR, b"a").is_ok() && fs.names().lookup(a, b"b").is_ok());
    let handle = fs.files().opendir(b).expect("opens");
    fs.names()
        .readdir_plus(handle, 2, &mut |entry, attr| {
            let is_forged = entry.file_type == 4 && entry.name != b"c";
            assert_eq!(attr.is_none(), is_forged, "{:?}", String::from_utf8_lossy(entry.name));
            ControlFlow::Continue(())
        })
        .expect("reads");
}

#[test]
fn a_directory_that_moves_keeps_being_found_by_its_name() {
    let fs = open(&model().seal());
    let root = ObjectNo::ROOT_DIR;
    let directory = fs.names().lookup(root, b"a").expect("there").attr.inode;
    let other = fs.names().lookup(root, b"empty").expect("there").attr.inode;
    let (mut parent, mut name) = (root, b"a".to_vec());
    for round in 0..20 {
        let new = if round % 3 == 0 { other } else { root };
        let new_name = format!("a-{}", round % 4).into_bytes();
        fs.names()
            .rename(&Context::root(), parent, &name, new, &new_name, Default::default())
            .expect("renames");
        assert!(matches!(fs.names().lookup(parent, &name), Err(Error::NotFound)));
        (parent, name) = (new, new_name);
        for _ in 0..2 {
            assert_eq!(
                fs.names().lookup(parent, &name).expect("there").attr.inode,
                directory,
                "round {round}"
            );
        }
    }
}

#[test]
fn a_name_that_is_listed_twice_is_damage() {
    let mut model = model();
    let a = inode(&model, &["a"]);
    let hash = model.superblock.name_hash().first(b"b");
    let again = model.items[&Key::dirent(a, hash)].clone();
    model.edit(Key::dirent(a, hash + 1), Some(again));
    let image = model.seal();
    assert!(report(&image).has(Code::DirentDuplicate));
    let fs = open(&image);
    let handle = fs.files().opendir(a).expect("opens");
    assert_damaged(fs.names().readdir(handle, 0, &mut |_| ControlFlow::Continue(())));
    assert!(fs.names().lookup(a, b"b").is_ok());
}

#[test]
fn the_ends_of_time_are_times() {
    for seconds in [i64::MIN, i64::MIN + 1, -1, i64::MAX] {
        let mut model = model();
        let file = inode(&model, &["a", "small"]);
        overwrite(&mut model, file, &INODE_MODIFIED, seconds as u64);
        let image = model.seal();
        assert!(report(&image).is_sound());
        let volume = session::open_volume(image.device(), false, 5).expect("opens");
        let metadata = volume.metadata("a/small").expect("there");
        assert_eq!(metadata.attr().modified.seconds, seconds);
        let _ = (metadata.modified(), metadata.accessed(), metadata.created());
        let file = OpenOptions::new().read(true).write(true).open(&volume, "a/small").expect("opens");
        file.write_all_at(b"new", 0).expect("writes");
        file.sync_all().expect("syncs");
        volume.close().expect("closes");
    }
}

#[test]
fn leaves_in_each_others_places_are_damage_and_not_a_lack_of_what_they_hold() {
    let base = model();
    let mut damaged = 0;
    for node in 0..8 {
        let mut model = base.clone();
        model.leaf_bytes = 600;
        model.tree_changes.push(TreeChange::Swapped { node });
        let image = model.seal();
        assert!(report(&image).has(Code::NodeBounds));
        let Ok(fs) = session::open(image.device(), true, 5) else { continue };
        for object in base.objects() {
            match fs.attributes().getattr(object) {
                Ok(_) => {}
                Err(Error::Store(StoreError::Inconsistent { .. })) => damaged += 1,
                Err(error) => panic!("object {object}: not told as damage: {error:?}"),
            }
        }
    }
    assert!(damaged > 0);
}

/// By this count a bitmap that was lost is told from one that was never written.
#[test]
fn a_wrong_count_of_free_blocks_is_damage_until_it_is_repaired() {
    for (slot, value) in [(0, 0), (1, 21), (2, u64::MAX)] {
        let (at, bytes) = (SUPERBLOCK_FREE_BLOCKS.at, SUPERBLOCK_FREE_BLOCKS.bytes);
        let mut model = model();
        model.superblock_patches.push(Patch { slot, at, bytes, value });
        let image = model.seal();
        let opened = session::open(image.device(), true, 5).map(drop);
        assert_eq!(opened.is_ok(), !report(&image).has(Code::FreeBlocks), "slot {slot}: {opened:?}");
        let device = image.device();
        let options = CheckOptions::default().repair(true);
        let repaired = check(&*device, options).expect("can be checked");
        assert!(repaired.repaired && repaired.is_sound(), "{:#?}", repaired.findings);
        session::open(device, false, 5).expect("what is repaired opens").close().expect("closes");
    }
}

#[test]
fn what_the_journal_says_of_leaves_in_each_others_places_is_not_passed_over() {
    const OWNER: u32 = 4711;
    let (mut refused, mut left_out) = (0, 0);
    for node in 0..12 {
        let mut model = model();
        model.leaf_bytes = 600;
        model.tree_changes.push(TreeChange::Swapped { node });
        model.into_log = true;
        for object in model.objects() {
            let mut inode = InodeItem::decode(&model.items[&Key::inode(object)]).expect("a sound volume");
            inode.uid = OWNER;
            model.edit(Key::inode(object), Some(inode.encode().to_vec()));
        }
        let image = model.clone().seal();
        let told = session::open(image.device(), false, 5).map(drop);
        match told {
            Err(Error::Store(StoreError::ReplayUnreadable { .. })) => refused += 1,
            // Leaves without an inode.
            Ok(()) => {}
            Err(error) => panic!("node {node}: {error:?}"),
        }
        let fs = match session::open(image.device(), true, 5) {
            Ok(fs) => fs,
            // The root directory's own leaf.
            Err(Error::Store(StoreError::Inconsistent { .. })) if node == 0 => continue,
            Err(error) => panic!("node {node}: {error:?}"),
        };
        for object in model.objects() {
            match fs.attributes().getattr(object) {
                Ok(found) => assert_eq!(found.uid, OWNER, "object {object} is as it was before"),
                Err(Error::Store(StoreError::Inconsistent { .. })) => left_out += 1,
                Err(error) => panic!("object {object}: not told as damage: {error:?}"),
            }
        }
    }
    assert!(refused > 0 && left_out > 0);
}
