//! How many locks the calls take that programs wait for. The device's and the memory pools' do not count.

use super::{MIB, TestVolume, pattern};
use crate::content::steps::{Step, count};
use crate::{Context, Error, Handle, OpenFlags, Reach, RenameFlags, SyncScope};
use syncline_format::ObjectNo;
use syncline_store::lock_order::trace;

/// The locks that appending 4 KiB takes, and those of the sync behind it, by the rounds' numbers.
fn append_and_sync(
    volume: &TestVolume,
    handle: Handle<'_>,
    round: u64,
) -> (Vec<&'static str>, Vec<&'static str>) {
    let (ctx, page) = (Context::root(), pattern(round, 4096));
    let (_, append) = trace(|| volume.fs.files.write_unsynced(&ctx, handle, round * 4096, &page).unwrap());
    let (_, sync) = trace(|| volume.fs.syncs.sync(handle, SyncScope::All, Reach::Whole).unwrap());
    (append, sync)
}

#[test]
fn a_lone_append_and_sync_takes_ten_locks_at_most_and_looks_its_handle_up_once_a_call() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("log");
    let id = volume.fs.files.open_handle(&Context::root(), inode.number, OpenFlags::READ_WRITE).unwrap();
    let opened = volume.fs.files.opened(id).unwrap();
    let lookups = |taken: &[&str]| taken.iter().filter(|lock| **lock == "the open files").count();
    let mut all = 0;
    for round in 0..150 {
        // As an adapter calls that knows numbers only, and as the library does.
        let is_named = round % 2 == 0;
        let handle = if is_named { Handle::Named(id) } else { Handle::Held(&opened) };
        let (append, sync) = append_and_sync(&volume, handle, round);
        let once = usize::from(is_named);
        assert_eq!((lookups(&append), lookups(&sync)), (once, once));
        // While it is small, the file is a candidate for being taken along by syncs of others; the first force behind
        // that finds that there is none any more.
        if round < 5 {
            continue;
        }
        let besides = append.len() + sync.len() - 2 * once;
        // Once in a while blocks are set aside for the next ones.
        assert!(besides <= 10, "round {round}: {append:?}, {sync:?}");
        all += besides;
    }
    assert!(all <= 145 * 9 + 4, "{all} in 145 rounds");
}

#[test]
fn what_is_held_of_a_handle_ends_with_it() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("log");
    let id = volume.fs.files.open_handle(&Context::root(), inode.number, OpenFlags::READ_WRITE).unwrap();
    let opened = volume.fs.files.opened(id).unwrap();
    volume.fs.files.write_unsynced(&Context::root(), &opened, 0, b"x").unwrap();
    volume.fs.files.release(id).unwrap();
    let wrote = volume.fs.files.write_unsynced(&Context::root(), &opened, 1, b"y");
    assert!(matches!(wrote, Err(Error::BadHandle)), "{wrote:?}");
    let synced = volume.fs.syncs.sync(&opened, SyncScope::All, Reach::Whole);
    assert!(matches!(synced, Err(Error::BadHandle)), "{synced:?}");
    assert!(volume.fs.files.opened(id).is_err());
}

#[test]
fn a_rename_looks_each_name_up_twice_at_most() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let (ctx, root) = (Context::root(), ObjectNo::ROOT_DIR);
    let names = &volume.fs.names;
    let other = names.mkdir(&ctx, root, b"other", 0o755).unwrap().attr.inode;
    let rename = |from: (ObjectNo, &[u8]), to: (ObjectNo, &[u8])| {
        count(Step::NameLookedUp, || {
            names.rename(&ctx, from.0, from.1, to.0, to.1, RenameFlags::default()).unwrap()
        })
    };
    for name in ["a", "b", "c"] {
        volume.create(name);
    }
    assert!(rename((root, b"a"), (root, b"free")) <= 4, "to a free name");
    assert!(rename((root, b"b"), (root, b"free")) <= 4, "over a file");
    assert!(rename((root, b"c"), (other, b"free")) <= 4, "into another directory");
    names.mkdir(&ctx, root, b"moved", 0o755).unwrap();
    assert!(rename((root, b"moved"), (other, b"moved")) <= 4, "a directory into another one");
}

#[test]
fn a_change_of_names_or_attributes_is_admitted_along_with_its_commit_and_looks_for_no_attributes() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let (ctx, root) = (Context::root(), ObjectNo::ROOT_DIR);
    let of = |taken: &[&str], what: &str| taken.iter().filter(|lock| **lock == what).count();
    let mut made = Vec::new();
    let mut all = 0;
    for round in 0..120u64 {
        let name = format!("file-{round}");
        let (entry, created) =
            trace(|| volume.fs.names.mknod(&ctx, root, name.as_bytes(), 0o644, 0).unwrap());
        let number = entry.attr.inode;
        let mode = crate::SetAttr { mode: Some(0o600), ..Default::default() };
        let (_, changed) = trace(|| volume.fs.attributes.setattr(&ctx, number, &mode, None).unwrap());
        let capability = b"security.capability";
        let (found, looked) = trace(|| volume.fs.attributes.xattr(&ctx, number, capability));
        assert!(matches!(found, Err(Error::NoAttribute)));
        let (_, removed) = trace(|| volume.fs.names.unlink(root, name.as_bytes()).unwrap());
        made.push(entry);
        if round < 20 {
            continue;
        }
        assert_eq!(of(&looked, "the trees"), 0, "nobody has given it one");
        assert_eq!(
            (of(&created, "the trees"), of(&changed, "the trees")),
            (2, 1),
            "{created:?}, {changed:?}"
        );
        assert_eq!((of(&created, "the journal"), of(&changed, "the journal")), (1, 1));
        // Twice the name, and the batch.
        assert_eq!((of(&removed, "the trees"), of(&removed, "the journal")), (3, 1), "{removed:?}");
        all += [created, changed, removed].iter().map(|taken| of(taken, "the space")).sum::<usize>();
    }
    // Once in a while chunks are claimed for the next ones.
    assert!(all <= 30, "the space was locked {all} times in 100 rounds");
}

#[test]
fn a_small_file_is_removed_with_four_looks_at_the_trees_and_one_at_the_journal() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let of = |taken: &[&str], what: &str| taken.iter().filter(|lock| **lock == what).count();
    for round in 0..20 {
        let file = volume.create("file");
        volume.write(&file, 0, &[7; 9000]);
        drop(file);
        let (_, removed) = trace(|| volume.fs.names.unlink(ObjectNo::ROOT_DIR, b"file").unwrap());
        // Twice the name, the extents, and the batch.
        let looks = (of(&removed, "the trees"), of(&removed, "the journal"));
        assert!(round < 10 || looks == (4, 1), "{removed:?}");
    }
}
