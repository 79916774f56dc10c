//! How many locks the calls take that programs wait for. The device's and the memory pools' do not count.

use super::{MIB, TestVolume, pattern};
use crate::content::steps::{Step, count};
use crate::{Context, OpenFlags, Reach, RenameFlags, SyncScope};
use syncline_format::ObjectNo;
use syncline_store::lock_order::trace;

#[test]
fn a_lone_append_and_sync_takes_few_locks_and_looks_its_handle_up_once_a_call() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("log");
    let handle = volume.fs.files.open_handle(&Context::root(), inode.number, OpenFlags::READ_WRITE).unwrap();
    for round in 0..20 {
        let page = pattern(round, 4096);
        let (_, append) =
            trace(|| volume.fs.files.write(&Context::root(), handle, round * 4096, &page).unwrap());
        let (_, sync) = trace(|| volume.fs.syncs.sync(handle, SyncScope::All, Reach::Whole).unwrap());
        let lookups = |taken: &[&str]| taken.iter().filter(|lock| **lock == "the open files").count();
        assert_eq!((lookups(&append), lookups(&sync)), (1, 1));
        // While it is small, the file is a candidate for being taken along by syncs of others.
        let is_small = (round + 1) * 4096 <= 4 * 4096;
        assert!(is_small || append.len() + sync.len() <= 12, "round {round}: {append:?}, {sync:?}");
    }
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
