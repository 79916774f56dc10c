//! What others do at the wrong moment, and what is left when a commit is refused.

use crate::common::*;
use crate::data::pattern;
use std::collections::BTreeMap;
use syncline_device::Device;
use syncline_fs::{Error, Fs, ObjectNo, OpenFlags, SetXattr};

const CAPABILITY: &[u8] = b"security.capability";

#[test]
fn a_file_that_was_made_and_removed_again_never_was() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let kept = put(&fs, ROOT, "kept", b"content");
    let mut transaction = fs.begin().expect("begin");
    let new = transaction.create(&root(), ROOT, b"new", 0o644).expect("create");
    transaction.write(new, 0, &pattern(1, 3_000_000)).expect("write");
    transaction.set_xattr(new, b"user.a", &pattern(2, 10_000)).expect("set");
    transaction.rename(ROOT, b"new", ROOT, b"newer", false).expect("rename");
    transaction.unlink(ROOT, b"newer").expect("unlink");
    transaction.commit().expect("commit");
    assert_eq!(names(&fs, ROOT), ["kept"]);
    drop(fs);
    rig.crash();
    assert_eq!(names(&rig.fs, ROOT), ["kept"]);
    assert_eq!(error(rig.fs.attributes().getattr(new)), Error::Stale);
    put(&rig.fs, ROOT, "later", b"more");
    rig.reopen();
    assert_eq!(content(&rig.fs, kept), b"content");
    check_tree(&rig.fs);
}

#[test]
fn a_file_that_others_have_removed_does_not_come_back_by_two_links() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let file = put(&fs, ROOT, "file", b"content");
    let mut transaction = fs.begin().expect("begin");
    for name in [b"one", b"two"] {
        transaction.link(file, ROOT, name).expect("link");
    }
    fs.names().unlink(ROOT, b"file").expect("unlink");
    assert_eq!(transaction.commit(), Err(Error::Conflict));
    assert!(names(&fs, ROOT).is_empty());
    assert_eq!(error(fs.attributes().getattr(file)), Error::Stale);
    drop(fs);
    rig.reopen();
    assert!(names(&rig.fs, ROOT).is_empty());
}

#[test]
fn a_refused_commit_leaves_the_capabilities_and_an_accepted_one_takes_them() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let file = put(&fs, ROOT, "file", b"program");
    fs.attributes().set_xattr(&root(), file, CAPABILITY, b"all", SetXattr::Any).expect("set");
    fs.sync_all().expect("sync");
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 0, b"other").expect("write");
    assert_eq!(transaction.lookup(ROOT, b"name"), Ok(None));
    touch(&fs, ROOT, "name");
    assert_eq!(transaction.commit(), Err(Error::Conflict));
    assert_eq!(fs.attributes().xattr(&root(), file, CAPABILITY).as_deref(), Ok(&b"all"[..]));
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 0, b"other").expect("write");
    assert_eq!(fs.attributes().xattr(&root(), file, CAPABILITY).as_deref(), Ok(&b"all"[..]));
    transaction.commit().expect("commit");
    assert_eq!(error(fs.attributes().xattr(&root(), file, CAPABILITY)), Error::NoAttribute);
    drop(fs);
    rig.crash();
    assert_eq!(content(&rig.fs, file), b"otheram");
    assert_eq!(error(rig.fs.attributes().xattr(&root(), file, CAPABILITY)), Error::NoAttribute);
}

/// A transaction of random operations on few names, and what is to be there after it.
fn random_names(fs: &std::sync::Arc<Fs>, seed: u64, model: &mut BTreeMap<String, ObjectNo>) {
    let bytes = pattern(seed, 200);
    let mut transaction = fs.begin().expect("begin");
    let mut after = model.clone();
    let mut bytes = bytes.iter().map(|byte| usize::from(*byte));
    let mut next = || bytes.next().expect("enough");
    for _ in 0..10 {
        let (from, to) = (format!("n{}", next() % 5), format!("n{}", next() % 5));
        match next() % 4 {
            0 => match transaction.create(&root(), ROOT, to.as_bytes(), 0o644) {
                Ok(number) => {
                    if next() % 2 == 0 {
                        transaction.write(number, 0, &pattern(seed, next() * 100)).expect("write");
                    }
                    assert_eq!(after.insert(to, number), None);
                }
                Err(error) => assert!(error == Error::Exists && after.contains_key(&to), "{error}"),
            },
            1 => {
                let Some(&number) = after.get(&from) else { continue };
                match transaction.link(number, ROOT, to.as_bytes()) {
                    Ok(()) => assert_eq!(after.insert(to, number), None),
                    Err(error) => assert!(error == Error::Exists && after.contains_key(&to), "{error}"),
                }
            }
            2 => match transaction.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), false) {
                Ok(()) => {
                    let number = after[&from];
                    if after.get(&to) != Some(&number) {
                        after.remove(&from);
                        after.insert(to, number);
                    }
                }
                Err(error) => assert!(error == Error::NotFound && !after.contains_key(&from), "{error}"),
            },
            _ => match transaction.unlink(ROOT, from.as_bytes()) {
                Ok(()) => assert!(after.remove(&from).is_some()),
                Err(error) => assert!(error == Error::NotFound && !after.contains_key(&from), "{error}"),
            },
        }
    }
    if next() % 4 == 0 {
        drop(transaction);
    } else {
        transaction.commit().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        *model = after;
    }
}

#[test]
fn any_mixture_of_names_has_its_net_effect_and_the_right_counts() {
    let mut rig = Rig::new();
    let mut model = BTreeMap::new();
    for seed in 0..200 {
        let fs = rig.fs.clone();
        // An open file outlives its names.
        let open = model
            .values()
            .next()
            .map(|number| fs.files().open_handle(&root(), *number, OpenFlags::READ).expect("open"));
        random_names(&fs, seed, &mut model);
        assert_eq!(list(&fs, ROOT), model, "seed {seed}");
        check_tree(&fs);
        if let Some(handle) = open {
            fs.files().handle_attr(handle).expect("still there");
            fs.files().release(handle).expect("release");
        }
        drop(fs);
        if seed % 5 == 0 {
            rig.crash();
            assert_eq!(list(&rig.fs, ROOT), model, "seed {seed}, after the crash");
            check_tree(&rig.fs);
        }
    }
    rig.reopen();
    check_tree(&rig.fs);
}

#[test]
fn a_thousand_files_are_one_transaction() {
    let mut rig = Rig::with_size(256 * MIB);
    let fs = rig.fs.clone();
    let mut transaction = fs.begin().expect("begin");
    for number in 0..1000 {
        let file = transaction.create(&root(), ROOT, format!("{number}").as_bytes(), 0o644).expect("create");
        transaction.write(file, 0, format!("content {number}").as_bytes()).expect("write");
    }
    transaction.commit().expect("commit");
    drop(fs);
    rig.crash();
    assert_eq!(names(&rig.fs, ROOT).len(), 1000);
    for number in (0..1000).step_by(31) {
        let file = lookup(&rig.fs, ROOT, &format!("{number}")).expect("lookup");
        assert_eq!(content(&rig.fs, file), format!("content {number}").as_bytes());
    }
    check_tree(&rig.fs);
    assert_eq!(rig.fs.attributes().getattr(ROOT).expect("attributes").size, 32 * 1000);
}

#[test]
fn many_transactions_share_the_memory_for_what_is_staged() {
    let mut rig = Rig::with_size(256 * MIB);
    rig.options.memory_bytes_max = 64 << 20;
    rig.reopen();
    let fs = rig.fs.clone();
    let files: Vec<ObjectNo> = (0..100).map(|number| touch(&fs, ROOT, &format!("{number}"))).collect();
    fs.sync_all().expect("sync");
    let before = rig.volatile.counters().written_bytes;
    // Alone, each would keep as much in memory.
    let pages = 250;
    let data = pattern(7, pages * 4096);
    let mut transactions = Vec::new();
    for file in &files {
        let mut transaction = fs.begin().expect("begin");
        for (page, content) in data.chunks(4096).enumerate() {
            transaction.write(*file, page as u64 * 4096, content).expect("write");
        }
        transactions.push(transaction);
    }
    let written = rig.volatile.counters().written_bytes - before;
    let in_memory = (100 * pages) as u64 - written / 4096;
    assert!(in_memory * 4096 < 20 << 20, "{in_memory} pages in memory");
    for (transaction, file) in transactions.into_iter().zip(&files).skip(50) {
        transaction.commit().expect("commit");
        assert!(content(&fs, *file) == data);
    }
    drop(fs);
    rig.crash();
    for file in &files[50..] {
        assert!(content(&rig.fs, *file) == data);
    }
    assert_eq!(rig.fs.attributes().getattr(files[0]).expect("attributes").size, 0);
}

#[test]
fn what_a_transaction_remembers_of_names_is_bounded_and_it_can_still_be_committed() {
    let rig = Rig::with_size(64 * MIB);
    let fs = rig.fs.clone();
    let file = touch(&fs, ROOT, "file");
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 0, b"staged").expect("write");
    let mut looked_up = 0;
    let refused = loop {
        match transaction.lookup(ROOT, format!("{looked_up}").as_bytes()) {
            Ok(found) => assert_eq!(found, None),
            Err(error) => break error,
        }
        looked_up += 1;
        assert!(looked_up < 200_000, "no bound");
    };
    assert!(matches!(refused, Error::TransactionNames { .. }), "{refused}");
    assert_eq!(refused.errno(), 7);
    assert!(looked_up > 50_000, "{looked_up}");
    assert_eq!(transaction.lookup(ROOT, b"7"), Ok(None), "it is remembered");
    assert_eq!(transaction.lookup(ROOT, b"file").map_err(|error| error.errno()), Err(7));
    // What goes wrong takes nothing of the rest.
    for _ in 0..3 {
        assert!(transaction.set_xattr(file, b"user.a", b"value").is_err());
    }
    transaction.commit().expect("commit");
    assert_eq!(content(&fs, file), b"staged");
}

#[test]
fn what_all_transactions_keep_in_memory_is_charged_bounded_together_and_given_back() {
    let mut rig = Rig::new();
    rig.options.memory_bytes_max = 16 << 20;
    rig.reopen();
    let fs = rig.fs.clone();
    let bytes_max = fs.options().memory_bytes_max as u64 / 4;
    // A few pages each: none has enough to be worth writing home.
    let mut transactions = Vec::new();
    let refused = loop {
        let file = touch(&fs, ROOT, &format!("f{}", transactions.len()));
        let mut transaction = fs.begin().expect("begin");
        let staged = transaction.write(file, 0, &pattern(1, 31 * 4096));
        transactions.push(transaction);
        if let Err(error) = staged {
            break error;
        }
        assert!(fs.charged_bytes() < bytes_max + 40 * 4096, "{} bytes", fs.charged_bytes());
    };
    assert!(matches!(refused, Error::TransactionMemory { .. }) && refused.errno() == 122, "{refused}");
    let footprint: u64 = transactions.iter().map(|transaction| transaction.footprint().bytes).sum();
    assert!(fs.charged_bytes() >= bytes_max && fs.charged_bytes().abs_diff(footprint) < 65536);
    assert!(transactions.len() as u64 * 31 * 4096 > bytes_max / 2, "{} transactions", transactions.len());
    // Everything else goes on, and what one gives back another one has.
    let other = put(&fs, ROOT, "other", b"written");
    let mut last = transactions.pop().expect("the refused one");
    assert!(last.lookup(ROOT, b"nobody").is_err());
    transactions.pop().expect("another").commit().expect("commit");
    assert_eq!(last.lookup(ROOT, b"nobody"), Ok(None));
    drop((transactions, last));
    assert_eq!(fs.charged_bytes(), 0);
    assert_eq!(content(&fs, other), b"written");
}
