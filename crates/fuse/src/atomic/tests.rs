use super::*;
use std::sync::Barrier;
use syncline::Volume;
use syncline_fs::{Context, OpenFlags};

/// A file `f` of a new volume, open for reading and writing.
fn opened() -> (Volume, Arc<Fs>, HandleId) {
    let volume = Volume::create_in_memory(16 << 20).expect("a volume");
    let fs = volume.inner().clone();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let made = fs.names().create(&Context::root(), ObjectNo::ROOT_DIR, b"f", 0o600, flags);
    let handle = made.expect("a file").1;
    (volume, fs, handle)
}

#[test]
fn a_page_that_is_staged_again_and_again_makes_a_group_no_heavier() {
    let (_volume, fs, handle) = opened();
    let atomics = Atomics::new(fs.clone(), Arc::new(Ledger::new(fs.clone())));
    atomics.start(handle, 0).expect("a group");
    let member = atomics.member(handle).expect("is in it");
    let write = |page: usize, bytes: usize| {
        let written = atomics.write(&member, (page * 4096) as u64, &vec![1; bytes]);
        written.expect("a group").expect("is staged");
    };
    for _ in 0..4 * LIGHT_PAGES_MAX {
        write(0, 4096);
    }
    write(1, LIGHT_PAGES_MAX * 4096 - 4096);
    assert!(!member.group.may_wait());
    write(LIGHT_PAGES_MAX - 1, 4097);
    assert!(member.group.may_wait());
    atomics.truncate(&member, 4096).expect("a group").expect("is staged");
    assert!(!member.group.may_wait(), "what was cut off is staged no more");
    atomics.finish(&atomics.of_single(handle).expect("is its own").expect("a group"), drop);
    fs.files().release(handle).expect("is closed");
}

#[test]
fn what_came_before_the_end_of_a_group_waits_for_it_and_is_not_done_outside_of_it() {
    let (volume, fs, handle) = opened();
    let atomics = Atomics::new(fs.clone(), Arc::new(Ledger::new(fs.clone())));
    for (is_committed, content) in [(true, b"one"), (false, b"two")] {
        let token = atomics.begin(handle, 0).expect("a group");
        atomics.join(handle, token, 0).expect("is in it");
        let member = atomics.member(handle).expect("is in it");
        atomics.write(&member, 0, content).expect("a group").expect("is staged");
        let group = atomics.of_token(handle, token).expect("a group");
        let gate = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let end = |transaction: Transaction| {
                    gate.wait();
                    gate.wait();
                    if is_committed { transaction.commit().map(drop) } else { Ok(()) }
                };
                atomics.finish(&group, end).expect("nobody else ends it").0.expect("is committed");
            });
            // The group is ending.
            gate.wait();
            let late = scope.spawn(|| atomics.write(&member, 0, b"late"));
            let seen = scope.spawn(|| {
                let mut seen = [0; 4];
                // It has looked the group up before its end, or comes behind it.
                atomics.read(member.object, 0, &mut seen).map(|read| seen[..read.expect("is read")].to_vec())
            });
            assert!(group.may_wait(), "so it is not done on a queue's thread");
            gate.wait();
            assert!(late.join().expect("ends").is_none(), "neither staged nor written");
            assert_eq!(seen.join().expect("ends"), None, "to be read as committed");
        });
        assert_eq!(volume.read("f").expect("is read"), b"one", "of the first round");
        assert!(atomics.member(handle).is_none());
        assert!(atomics.is_idle());
    }
    fs.files().release(handle).expect("is closed");
}

/// Another open file, of its own name, and an account that is nobody else's.
fn another(fs: &Arc<Fs>, name: &str) -> HandleId {
    let made = fs.names().create(
        &Context::root(),
        ObjectNo::ROOT_DIR,
        name.as_bytes(),
        0o600,
        OpenFlags::READ_WRITE,
    );
    made.expect("a file").1
}

#[test]
fn an_end_costs_what_the_group_has_however_many_others_there_are() {
    let (_volume, fs, _) = opened();
    let ledger = Arc::new(Ledger::new(fs.clone()));
    let atomics = Atomics::new(fs.clone(), ledger.clone());
    let visited_by = |count: usize| {
        let owner = another(&fs, &format!("owner{count}"));
        let file = another(&fs, &format!("file{count}"));
        let before = atomics.counts().1;
        let token = atomics.begin(owner, 1).expect("a group");
        atomics.join(file, token, 1).expect("is in it");
        for name in [format!("a{count}"), format!("b{count}")] {
            let from = (ObjectNo::ROOT_DIR, format!("file{count}").into_bytes());
            let to = (ObjectNo::ROOT_DIR, name.into_bytes());
            atomics.rename(1, &from, &to, false).expect("is a group's").expect("is staged");
            atomics.rename(1, &to, &from, false).expect("is a group's").expect("is staged");
        }
        // Others' opens, changes of names and closes meanwhile.
        let other = another(&fs, &format!("other{count}"));
        atomics.check_names(None, &[(ObjectNo::ROOT_DIR, b"other")]).expect("is free");
        assert!(atomics.release(other).is_empty());
        assert!(atomics.release(file).is_empty());
        for left in atomics.release(owner) {
            atomics.settle(&left.group);
        }
        atomics.counts().1 - before
    };
    let alone = visited_by(0);
    let mut owners = Vec::new();
    for user in 0..20 {
        for number in 0..16 {
            let owner = another(&fs, &format!("hostile{user}.{number}"));
            for _ in 0..GROUPS_MAX {
                atomics.begin(owner, 1000 + user).expect("a group");
            }
            owners.push(owner);
        }
    }
    assert_eq!(atomics.counts().0, 20 * 16 * GROUPS_MAX);
    assert_eq!(visited_by(1), alone, "nobody goes through the groups of others");
    assert!(alone < 20, "{alone}");
    for owner in owners {
        for left in atomics.release(owner) {
            atomics.settle(&left.group);
        }
    }
    assert!(atomics.is_idle());
    assert_eq!((ledger.totals(), fs.charged_bytes()), (crate::ledger::Totals::default(), 0));
}

#[test]
fn a_name_of_a_group_is_nobodys_until_the_kernel_knows_that_the_group_is_over() {
    let (_volume, fs, handle) = opened();
    let atomics = Atomics::new(fs.clone(), Arc::new(Ledger::new(fs.clone())));
    let name = |name: &str| (ObjectNo::ROOT_DIR, name.as_bytes().to_vec());
    for is_given_up in [true, false] {
        let token = atomics.begin(handle, 1).expect("a group");
        atomics.join(handle, token, 1).expect("is in it");
        atomics.rename(1, &name("f"), &name("g"), false).expect("is a group's").expect("is staged");
        let check = |taken: &str| atomics.check_names(None, &[(ObjectNo::ROOT_DIR, taken.as_bytes())]);
        assert_eq!((check("f"), check("g"), check("h")), (Err(Errno::EBUSY), Err(Errno::EBUSY), Ok(())));
        assert_eq!(atomics.staged_name(ObjectNo::ROOT_DIR, b"f"), Some(None));
        // Nor another group's.
        let second = another(&fs, if is_given_up { "s" } else { "t" });
        let other = atomics.begin(second, 2).expect("a group");
        atomics.join(second, other, 2).expect("is in it");
        let own = name(if is_given_up { "s" } else { "t" });
        for taken in ["f", "g"] {
            assert_eq!(atomics.rename(2, &own, &name(taken), false), Some(Err(Errno::EBUSY)), "{taken}");
            let object = fs.files().handle_inode(second).expect("is open");
            assert_eq!(atomics.link(2, object, &name(taken)), Some(Err(Errno::EBUSY)), "{taken}");
        }
        let group = atomics.of_token(handle, token).expect("a group");
        let ((), left) = atomics.finish(&group, drop).expect("nobody else ends it");
        assert_eq!(atomics.staged_name(ObjectNo::ROOT_DIR, b"f"), None, "who looks sees what is committed");
        assert_eq!((check("f"), check("g")), (Err(Errno::EBUSY), Err(Errno::EBUSY)));
        assert_eq!(atomics.rename(1, &name("f"), &name("h"), false), None, "it is in no group");
        atomics.settle(&left.group);
        assert_eq!((check("f"), check("g")), (Ok(()), Ok(())));
        for left in atomics.release(second) {
            atomics.settle(&left.group);
        }
        assert!(atomics.is_idle());
    }
}

#[test]
fn what_a_user_stages_is_booked_limited_and_given_back() {
    let (volume, fs, handle) = opened();
    let ledger = Arc::new(Ledger::new(fs.clone()));
    let atomics = Atomics::new(fs.clone(), ledger.clone());
    let available = fs.statfs().blocks_available;
    let token = atomics.begin(handle, 54321).expect("a group");
    atomics.join(handle, token, 54321).expect("is in it");
    let member = atomics.member(handle).expect("is in it");
    let write = |page: u64| atomics.write(&member, page * 4096, &[1; 4096]).expect("a group");
    let staged = (0..available).take_while(|page| write(*page).is_ok()).count() as u64;
    assert_eq!(write(staged), Err(Errno::EDQUOT));
    assert!(staged >= available / 2 - 16 && staged <= available / 2, "{staged} of {available} blocks");
    write(0).expect_err("also what is staged already: it is not looked up");
    assert_eq!(ledger.totals().footprint.blocks, staged);
    assert!(ledger.totals().footprint.bytes >= staged * 100);
    assert!(fs.charged_bytes() >= staged * 100);
    volume.write("g", [1; 4096]).expect("there is room for others");
    atomics.truncate(&member, 0).expect("a group").expect("is staged");
    assert_eq!(ledger.totals().footprint.blocks, 0);
    for left in atomics.release(handle) {
        atomics.settle(&left.group);
    }
    assert_eq!((ledger.totals(), fs.charged_bytes()), (crate::ledger::Totals::default(), 0));
}
