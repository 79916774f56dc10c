//! Names, links and extended attributes: net effects, conflicts, what stays of files that lose their names.

use crate::common::*;
use crate::data::pattern;
use syncline_device::Device;
use syncline_fs::{Error, Fs, RenameFlags, SetAttr, SetXattr, Transaction};

fn rename(fs: &Fs, old: &[u8], new: &[u8]) {
    fs.names().rename(&root(), ROOT, old, ROOT, new, RenameFlags::default()).expect("rename");
}

#[test]
fn new_files_appear_together_with_their_content() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let dir = mkdir(&fs, ROOT, "dir");
    let mut transaction = fs.begin().expect("begin");
    let small = transaction.create(&root(), dir, b"small", 0o640).expect("create");
    let large = transaction.create(&root(), ROOT, b"large", 0o600).expect("create");
    transaction.write(small, 10, b"content").expect("write");
    transaction.write(large, 0, &pattern(1, 3 << 20)).expect("write");
    transaction.set_xattr(large, b"user.kind", &[7; 20_000]).expect("setxattr");
    transaction.set_xattr(large, b"user.other", &[8; 10_000]).expect("setxattr");
    transaction.link(small, ROOT, b"second name").expect("link");
    assert_eq!(transaction.lookup(ROOT, b"large"), Ok(Some(large)));
    assert_eq!(names(&fs, ROOT), ["dir"]);
    assert!(names(&fs, dir).is_empty());
    assert_eq!(error(fs.attributes().getattr(small)), Error::Stale);
    let before = rig.volatile.counters().flushes;
    transaction.commit().expect("commit");
    assert_eq!(rig.volatile.counters().flushes - before, 1);
    for crash in [false, true] {
        if crash {
            rig.crash();
        }
        let fs = &rig.fs;
        assert_eq!(names(fs, ROOT), ["dir", "large", "second name"]);
        assert_eq!(lookup(fs, dir, "small"), Ok(small));
        assert_eq!(content(fs, small), b"\0\0\0\0\0\0\0\0\0\0content");
        assert!(content(fs, large) == pattern(1, 3 << 20));
        assert_eq!(fs.attributes().getattr(small).expect("attributes").mode, 0o100640);
        assert_eq!(fs.attributes().xattr(&root(), large, b"user.kind"), Ok(vec![7; 20_000]));
        assert_eq!(fs.attributes().xattr(&root(), large, b"user.other"), Ok(vec![8; 10_000]));
        check_tree(fs);
    }
}

#[test]
fn replacing_many_files_is_one_record() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    for n in 0..10 {
        put(&fs, ROOT, &format!("config-{n}"), b"old");
    }
    fs.sync_all().expect("sync");
    let before = rig.volatile.counters();
    let mut transaction = fs.begin().expect("begin");
    for n in 0..10 {
        let new = transaction.create(&root(), ROOT, format!("new-{n}").as_bytes(), 0o644).expect("create");
        transaction.write(new, 0, format!("new {n}").as_bytes()).expect("write");
        let (from, to) = (format!("new-{n}"), format!("config-{n}"));
        transaction.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), false).expect("rename");
    }
    transaction.commit_start(Box::new(|result| result.expect("force"))).expect("commit");
    fs.sync_metadata().expect("force");
    let after = rig.volatile.counters();
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1));
    drop(fs);
    rig.crash();
    assert_eq!(names(&rig.fs, ROOT).len(), 10);
    for n in 0..10 {
        let file = lookup(&rig.fs, ROOT, &format!("config-{n}")).expect("file");
        assert_eq!(content(&rig.fs, file), format!("new {n}").as_bytes());
    }
    check_tree(&rig.fs);
}

#[test]
fn names_have_their_net_effect() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let a = put(&fs, ROOT, "a", b"a");
    let b = put(&fs, ROOT, "b", b"b");
    let c = put(&fs, ROOT, "c", &pattern(3, 50_000));
    let mut transaction = fs.begin().expect("begin");
    transaction.rename(ROOT, b"a", ROOT, b"t", false).expect("rename");
    transaction.rename(ROOT, b"b", ROOT, b"a", false).expect("rename");
    transaction.rename(ROOT, b"t", ROOT, b"b", false).expect("rename");
    transaction.unlink(ROOT, b"c").expect("unlink");
    let fresh = transaction.create(&root(), ROOT, b"c", 0o644).expect("create");
    transaction.write(fresh, 0, b"new").expect("write");
    let dropped = transaction.create(&root(), ROOT, b"dropped", 0o644).expect("create");
    transaction.write(dropped, 0, &vec![1; 2 << 20]).expect("write");
    transaction.unlink(ROOT, b"dropped").expect("unlink");
    assert_eq!(error(transaction.rename(ROOT, b"a", ROOT, b"b", true)), Error::Exists);
    assert_eq!(error(transaction.unlink(ROOT, b"dropped")), Error::NotFound);
    assert_eq!(error(transaction.create(&root(), ROOT, b"c", 0o644)), Error::Exists);
    transaction.commit().expect("commit");
    drop(fs);
    for crash in [false, true] {
        if crash {
            rig.crash();
        }
        let fs = &rig.fs;
        assert_eq!(names(fs, ROOT), ["a", "b", "c"]);
        assert_eq!((lookup(fs, ROOT, "a"), lookup(fs, ROOT, "b")), (Ok(b), Ok(a)));
        assert_eq!(content(fs, lookup(fs, ROOT, "c").expect("c")), b"new");
        assert_eq!(
            (error(fs.attributes().getattr(c)), error(fs.attributes().getattr(dropped))),
            (Error::Stale, Error::Stale)
        );
        check_tree(fs);
    }
}

#[test]
fn a_dropped_transaction_leaves_no_name_and_no_space_taken() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", &pattern(1, 100_000));
    fs.sync_all().expect("sync");
    fs.checkpoint().expect("checkpoint");
    let before = (fs.statfs().blocks_available, fs.attributes().getattr(file));
    let mut transaction = fs.begin().expect("begin");
    let new = transaction.create(&root(), ROOT, b"new", 0o644).expect("create");
    transaction.write(new, 0, &vec![1; 5 << 20]).expect("write");
    transaction.unlink(ROOT, b"file").expect("unlink");
    transaction.set_xattr(file, b"user.x", b"y").expect("setxattr");
    drop(transaction);
    assert_eq!(names(fs, ROOT), ["file"]);
    assert_eq!((fs.statfs().blocks_available, fs.attributes().getattr(file)), before);
}

#[test]
fn a_change_of_a_name_by_others_is_a_conflict() {
    type Change = fn(&Fs);
    let changes: [(&str, Change); 5] = [
        ("taken", |fs| {
            touch(fs, ROOT, "free");
        }),
        ("removed", |fs| fs.names().unlink(ROOT, b"file").expect("unlink")),
        ("moved away", |fs| rename(fs, b"file", b"away")),
        ("replaced", |fs| rename(fs, b"other", b"file")),
        ("removed and made again", |fs| {
            fs.names().unlink(ROOT, b"file").expect("unlink");
            touch(fs, ROOT, "file");
        }),
    ];
    for (name, change) in changes {
        let rig = Rig::new();
        let fs = &rig.fs;
        touch(fs, ROOT, "file");
        touch(fs, ROOT, "other");
        let bystander = put(fs, ROOT, "bystander", b"before");
        let mut transaction = fs.begin().expect("begin");
        transaction.rename(ROOT, b"file", ROOT, b"free", false).expect("rename");
        transaction.write(bystander, 0, b"after!").expect("write");
        change(fs);
        let want = list(fs, ROOT);
        assert_eq!(transaction.commit(), Err(Error::Conflict), "{name}");
        assert_eq!(list(fs, ROOT), want, "{name}");
        assert_eq!(content(fs, bystander), b"before", "{name}");
        check_tree(fs);
    }
}

#[test]
fn a_name_or_attribute_that_was_only_read_counts_too() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", b"");
    let mut transaction = fs.begin().expect("begin");
    assert_eq!(transaction.lookup(ROOT, b"lock"), Ok(None));
    transaction.write(file, 0, b"nobody has the lock").expect("write");
    touch(fs, ROOT, "lock");
    assert_eq!(transaction.commit(), Err(Error::Conflict));

    let mut transaction = fs.begin().expect("begin");
    transaction.set_xattr(file, b"user.version", b"2").expect("setxattr");
    fs.attributes().set_xattr(&root(), file, b"user.version", b"1", SetXattr::Any).expect("setxattr");
    assert_eq!(transaction.commit(), Err(Error::Conflict));
    assert_eq!(fs.attributes().xattr(&root(), file, b"user.version"), Ok(b"1".to_vec()));

    let mut transaction = fs.begin().expect("begin");
    transaction.remove_xattr(file, b"user.version").expect("removexattr");
    assert_eq!(error(transaction.remove_xattr(file, b"user.version")), Error::NoAttribute);
    transaction.commit().expect("commit");
    assert_eq!(error(fs.attributes().xattr(&root(), file, b"user.version")), Error::NoAttribute);
}

#[test]
fn of_two_transactions_on_one_name_the_second_fails() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let mut first = fs.begin().expect("begin");
    let mut second = fs.begin().expect("begin");
    let one = first.create(&root(), ROOT, b"name", 0o644).expect("create");
    second.create(&root(), ROOT, b"name", 0o644).expect("create");
    second.create(&root(), ROOT, b"other", 0o644).expect("create");
    first.commit().expect("commit");
    assert_eq!(second.commit(), Err(Error::Conflict));
    assert_eq!(list(fs, ROOT).into_iter().collect::<Vec<_>>(), [("name".to_owned(), one)]);
    check_tree(fs);
}

#[test]
fn a_removed_directory_and_an_immutable_file_refuse_the_commit() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    let mut transaction = fs.begin().expect("begin");
    transaction.create(&root(), dir, b"file", 0o644).expect("create");
    fs.names().rmdir(ROOT, b"dir").expect("rmdir");
    assert_eq!(transaction.commit(), Err(Error::Conflict));

    let file = put(fs, ROOT, "file", b"before");
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 0, b"x").expect("write");
    fs.attributes().set_inode_flags(&root(), file, syncline_fs::FLAG_IMMUTABLE).expect("chattr");
    assert_eq!(transaction.commit(), Err(Error::NotPermitted));
    assert_eq!(content(fs, file), b"before");
}

#[test]
fn a_new_file_has_what_its_directory_hands_down_at_the_commit() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    let set = |set: SetAttr| {
        fs.attributes().setattr(&root(), dir, &set, None).expect("setattr");
    };
    let chgrp = |gid| set(SetAttr { gid: Some(gid), ..SetAttr::default() });
    let chmod = |mode| set(SetAttr { mode: Some(mode), ..SetAttr::default() });
    let set_acl = |others: u8| {
        // Version, then tag, permissions and id of owner, group and others.
        let mut acl = vec![2, 0, 0, 0];
        for (tag, permissions) in [(0x01, 6), (0x04, 4), (0x20, others)] {
            acl.extend([tag, 0, permissions, 0, 255, 255, 255, 255]);
        }
        fs.attributes()
            .set_xattr(&root(), dir, b"system.posix_acl_default", &acl, SetXattr::Any)
            .expect("default ACL");
    };
    let staged = |name: &[u8]| {
        let mut transaction = fs.begin().expect("begin");
        transaction.create(&root(), dir, name, 0o666).expect("create");
        transaction
    };
    chgrp(7);
    // One after the other; the last two change nothing that a new file takes over.
    let changes: [(&str, &dyn Fn(), bool); 6] = [
        ("a first ACL", &|| set_acl(4), true),
        ("another ACL", &|| set_acl(0), true),
        ("a group that is handed down", &|| chmod(0o2775), true),
        ("another group", &|| chgrp(8), true),
        ("another mode", &|| chmod(0o2700), false),
        ("the same ACL", &|| set_acl(0), false),
    ];
    for (what, change, conflicts) in changes {
        let transaction = staged(b"file");
        change();
        let result = transaction.commit();
        assert_eq!(result, if conflicts { Err(Error::Conflict) } else { Ok(()) }, "{what}");
        if !conflicts {
            let attr = fs.names().lookup(dir, b"file").expect("lookup").attr;
            assert_eq!((attr.mode & 0o7777, attr.gid), (0o640, 8), "{what}");
            fs.names().unlink(dir, b"file").expect("unlink");
        }
    }
    // Two that found it otherwise cannot be one.
    let mut first = staged(b"first");
    set_acl(4);
    first.absorb(staged(b"second")).expect("absorb");
    assert_eq!(first.commit(), Err(Error::Conflict));
    check_tree(fs);
}

#[test]
fn directories_are_left_to_operations_of_their_own() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    touch(fs, ROOT, "file");
    let mut transaction = fs.begin().expect("begin");
    assert!(matches!(transaction.rename(ROOT, b"dir", ROOT, b"x", false), Err(Error::Invalid(_))));
    assert!(matches!(transaction.link(dir, ROOT, b"x"), Err(Error::Invalid(_))));
    assert_eq!(error(transaction.unlink(ROOT, b"dir")), Error::IsDirectory);
    assert_eq!(error(transaction.rename(ROOT, b"file", ROOT, b"dir", false)), Error::IsDirectory);
    assert_eq!(error(transaction.write(dir, 0, b"x")), Error::IsDirectory);
    assert!(matches!(transaction.set_xattr(dir, b"system.posix_acl_access", b""), Err(Error::Invalid(_))));
    assert!(transaction.is_empty());
    transaction.commit().expect("nothing to commit");
}

#[test]
fn an_open_file_outlives_its_last_name_in_a_transaction() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let file = put(&fs, ROOT, "file", &pattern(1, 50_000));
    fs.sync_all().expect("sync");
    let handle = fs.files().open_handle(&root(), file, syncline_fs::OpenFlags::READ).expect("open");
    let mut transaction = fs.begin().expect("begin");
    transaction.unlink(ROOT, b"file").expect("unlink");
    transaction.commit().expect("commit");
    let mut bytes = vec![0; 50_000];
    assert_eq!(fs.files().read(handle, 0, &mut bytes), Ok(50_000));
    assert!(bytes == pattern(1, 50_000));
    drop(fs);
    rig.crash();
    assert_eq!(error(rig.fs.attributes().getattr(file)), Error::Stale);
    check_tree(&rig.fs);
}

#[test]
fn a_file_without_a_name_gets_one() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let flags = syncline_fs::OpenFlags::READ_WRITE;
    let (entry, handle) = fs.names().tmpfile(&root(), ROOT, 0o644, flags, false).expect("tmpfile");
    write(&fs, handle, 0, b"content");
    fs.files().sync_handle(handle, syncline_fs::SyncScope::All).expect("sync");
    let mut transaction = fs.begin().expect("begin");
    transaction.link(entry.attr.inode, ROOT, b"name").expect("link");
    transaction.commit().expect("commit");
    fs.files().release(handle).expect("release");
    drop(fs);
    rig.crash();
    assert_eq!(content(&rig.fs, lookup(&rig.fs, ROOT, "name").expect("name")), b"content");
    check_tree(&rig.fs);
}

#[test]
fn absorbing_takes_names_along_and_refuses_the_same_one() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let mut first = fs.begin().expect("begin");
    first.create(&root(), ROOT, b"one", 0o644).expect("create");
    let mut second = fs.begin().expect("begin");
    let two = second.create(&root(), ROOT, b"two", 0o644).expect("create");
    second.write(two, 0, b"two").expect("write");
    let mut third = fs.begin().expect("begin");
    third.create(&root(), ROOT, b"one", 0o644).expect("create");
    first.absorb(second).expect("absorb");
    assert_eq!(first.absorb(third), Err(Error::Conflict));
    first.commit().expect("commit");
    assert_eq!(names(fs, ROOT), ["one", "two"]);
    assert_eq!(content(fs, two), b"two");
    check_tree(fs);
}

#[test]
fn what_was_staged_as_it_was_before_is_not_lost_to_whoever_absorbs_it() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", b"content");
    fs.attributes().set_xattr(&root(), file, b"user.a", b"old", SetXattr::Any).expect("attribute");
    let staged = |stage: &dyn Fn(&mut Transaction)| {
        let mut transaction = fs.begin().expect("begin");
        stage(&mut transaction);
        transaction
    };
    let value = |value: &'static [u8]| {
        staged(&|transaction| transaction.set_xattr(file, b"user.a", value).expect("set"))
    };
    // Either way round: whoever commits is told that both cannot be.
    assert_eq!(value(b"new").absorb(value(b"old")), Err(Error::Conflict));
    assert_eq!(value(b"old").absorb(value(b"new")), Err(Error::Conflict));
    let set_and_removed = staged(&|transaction| {
        transaction.set_xattr(file, b"user.b", b"b").expect("set");
        transaction.remove_xattr(file, b"user.b").expect("remove");
    });
    let mut first = staged(&|transaction| transaction.set_xattr(file, b"user.b", b"b").expect("set"));
    assert_eq!(first.absorb(set_and_removed), Err(Error::Conflict));
    drop(first);

    let there_and_back = staged(&|transaction| {
        transaction.rename(ROOT, b"file", ROOT, b"other", false).expect("rename");
        transaction.rename(ROOT, b"other", ROOT, b"file", false).expect("rename back");
    });
    let mut first = staged(&|transaction| transaction.unlink(ROOT, b"file").expect("unlink"));
    assert_eq!(first.absorb(there_and_back), Err(Error::Conflict));
    drop(first);

    // What the other one has only looked at is no more than that.
    let looked = staged(&|transaction| {
        assert_eq!(transaction.lookup(ROOT, b"file"), Ok(Some(file)));
        assert_eq!(transaction.remove_xattr(file, b"user.b"), Err(Error::NoAttribute));
    });
    let mut first = staged(&|transaction| {
        transaction.rename(ROOT, b"file", ROOT, b"other", false).expect("rename");
        transaction.set_xattr(file, b"user.b", b"b").expect("set");
    });
    first.absorb(looked).expect("absorb");
    first.commit().expect("commit");
    assert_eq!(names(fs, ROOT), ["other"]);
    assert_eq!(fs.attributes().xattr(&root(), file, b"user.a"), Ok(b"old".to_vec()));
    assert_eq!(fs.attributes().xattr(&root(), file, b"user.b"), Ok(b"b".to_vec()));
    check_tree(fs);
}

#[test]
fn a_transaction_may_outlive_the_session() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let file = put(&fs, ROOT, "file", &pattern(1, 50_000));
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 0, &pattern(2, 300_000)).expect("write");
    fs.names().unlink(ROOT, b"file").expect("unlink");
    fs.close().expect("close");
    drop(transaction);
    drop(fs);
    rig.crash();
    assert_eq!(error(rig.fs.attributes().getattr(file)), Error::Stale);
    check_tree(&rig.fs);
}

#[test]
fn a_file_that_becomes_immutable_keeps_its_names() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = touch(fs, ROOT, "file");
    let mut transaction = fs.begin().expect("begin");
    transaction.rename(ROOT, b"file", ROOT, b"moved", false).expect("rename");
    fs.attributes().set_inode_flags(&root(), file, syncline_fs::FLAG_IMMUTABLE).expect("chattr");
    assert_eq!(transaction.commit(), Err(Error::NotPermitted));
    assert_eq!(names(fs, ROOT), ["file"]);
}

#[test]
fn a_name_is_made_again_as_often_as_it_is_given_up() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let taken = touch(&fs, ROOT, "taken");
    let mut transaction = fs.begin().expect("begin");
    let mut put = |name: &[u8], new_name: Option<&[u8]>, content: &[u8]| {
        let file = transaction.create(&root(), ROOT, name, 0o600).expect("create");
        transaction.write(file, 0, content).expect("write");
        transaction.set_xattr(file, b"user.kind", &content[..content.len().min(20_000)]).expect("setxattr");
        match new_name {
            Some(new_name) => transaction.rename(ROOT, name, ROOT, new_name, false).expect("rename"),
            None => transaction.unlink(ROOT, name).expect("unlink"),
        }
        file
    };
    put(b"t", None, &[1; 100_000]);
    let first = put(b"t", Some(b"first"), &[2; 100_000]);
    put(b"t", None, b"small");
    // Replaces a new file and one that was there.
    put(b"t", Some(b"second"), &[3; 5000]);
    let second = put(b"t", Some(b"second"), &[4; 5000]);
    let replaced = put(b"t", Some(b"taken"), &[5; 5000]);
    transaction.rename(ROOT, b"taken", ROOT, b"moved", false).expect("rename");
    let again = transaction.create(&root(), ROOT, b"taken", 0o600).expect("create");
    transaction.write(again, 0, b"again").expect("write");
    transaction.commit().expect("commit");
    assert_eq!(error(fs.attributes().getattr(taken)), Error::Stale);
    for crash in [false, true] {
        if crash {
            rig.crash();
        }
        let fs = &rig.fs;
        assert_eq!(names(fs, ROOT), ["first", "moved", "second", "taken"]);
        for (name, number, expected) in [
            ("first", first, vec![2; 100_000]),
            ("moved", replaced, vec![5; 5000]),
            ("second", second, vec![4; 5000]),
            ("taken", again, b"again".to_vec()),
        ] {
            assert_eq!(lookup(fs, ROOT, name), Ok(number));
            assert!(content(fs, number) == expected, "{name}");
            assert_eq!(fs.attributes().getattr(number).expect("attributes").nlink, 1);
        }
        check_tree(fs);
    }
}
