//! Content: what a transaction reads and writes, what others see of it, what a commit costs.

use crate::common::*;
use syncline_device::Device;
use syncline_fs::{Error, FallocateMode, Fs, ObjectNo, OpenFlags, SetAttr, SyncScope};

pub const PAGE: u64 = 4096;

/// Bytes that tell where they belong.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(step).collect()
}

fn overwrite(fs: &Fs, file: ObjectNo, offset: u64, data: &[u8]) {
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    write(fs, handle, offset, data);
    fs.files().release(handle).expect("release");
}

fn set_size(fs: &Fs, file: ObjectNo, size: u64) {
    fs.attributes()
        .setattr(&root(), file, &SetAttr { size: Some(size), ..SetAttr::default() }, None)
        .expect("truncate");
}

fn free_blocks(fs: &Fs) -> u64 {
    fs.sync_all().expect("sync");
    fs.checkpoint().expect("checkpoint");
    fs.checkpoint().expect("checkpoint");
    fs.statfs().blocks_available
}

#[test]
fn staged_content_is_seen_by_its_transaction_only() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", b"before");
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 3, b"staged").expect("write");
    assert_eq!(transaction.size(file), Ok(9));
    let mut bytes = [0; 16];
    assert_eq!(transaction.read(file, 0, &mut bytes), Ok(9));
    assert_eq!(&bytes[..9], b"befstaged");
    assert_eq!(content(fs, file), b"before");
    transaction.commit().expect("commit");
    assert_eq!(content(fs, file), b"befstaged");
}

// Shows: C4.
#[test]
fn an_acknowledged_commit_survives_a_crash_whole() {
    // Images, extents, and both sides of the border between them.
    for pages in [1, 3, 16, 17, 40, 300, 1000] {
        let mut rig = Rig::new();
        let fs = rig.fs.clone();
        let first = put(&fs, ROOT, "first", &pattern(1, 10_000));
        let second = put(&fs, ROOT, "second", b"");
        fs.sync_all().expect("sync");
        let mut transaction = fs.begin().expect("begin");
        let data = pattern(pages, (pages * PAGE) as usize);
        transaction.write(first, 5_000, &data).expect("write");
        transaction.write(second, 0, &data).expect("write");
        transaction.commit().expect("commit");
        let mut want = pattern(1, 10_000);
        want.resize(want.len().max(5_000 + data.len()), 0);
        want[5_000..5_000 + data.len()].copy_from_slice(&data);
        assert!(
            content(&fs, first) == want && content(&fs, second) == data,
            "{pages} pages, before the crash"
        );
        drop(fs);
        for _ in 0..2 {
            rig.crash();
            let fs = &rig.fs;
            assert!(content(fs, first) == want && content(fs, second) == data, "{pages} pages");
        }
    }
}

#[test]
fn a_dropped_transaction_leaves_nothing_and_gives_its_space_back() {
    for pages in [2, 5_000] {
        let rig = Rig::new();
        let fs = &rig.fs;
        let file = put(fs, ROOT, "file", &pattern(1, 100_000));
        let before = free_blocks(fs);
        let mut transaction = fs.begin().expect("begin");
        transaction.write(file, 50_000, &vec![7; (pages * PAGE) as usize]).expect("write");
        transaction.truncate(file, 10_000).expect("truncate");
        transaction.write(file, 80_000, &vec![8; (pages * PAGE) as usize]).expect("write");
        assert!(fs.statfs().blocks_available + pages <= before);
        drop(transaction);
        assert_eq!(content(fs, file), pattern(1, 100_000));
        assert_eq!(free_blocks(fs), before);
    }
}

// Shows: C4.
#[test]
fn a_small_commit_is_one_write_and_one_flush() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let files: Vec<ObjectNo> = (0..8).map(|n| put(fs, ROOT, &format!("{n}"), &pattern(n, 30_000))).collect();
    fs.sync_all().expect("sync");
    let before = (rig.volatile.counters(), fs.stats().store);
    let mut transaction = fs.begin().expect("begin");
    for (n, file) in (0..).zip(&files) {
        transaction.write(*file, 3 * PAGE + n, b"a few bytes").expect("write");
        transaction.truncate(*file, 25_000).expect("truncate");
    }
    transaction.commit().expect("commit");
    let after = (rig.volatile.counters(), fs.stats().store);
    assert_eq!(after.0.writes - before.0.writes, 1);
    assert_eq!(after.0.flushes - before.0.flushes, 1);
    assert_eq!(
        (after.1.groups - before.1.groups, after.1.grouped_batches - before.1.grouped_batches),
        (1, 1)
    );
}

#[test]
fn a_large_commit_is_one_batch_and_one_flush() {
    let rig = Rig::with_size(256 * MIB);
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", b"");
    fs.sync_all().expect("sync");
    let before = (rig.volatile.counters(), fs.stats().store);
    let mut transaction = fs.begin().expect("begin");
    let data = pattern(3, 4 << 20);
    for piece in 0..16 {
        transaction.write(file, piece * (4 << 20), &data).expect("write");
    }
    transaction.commit().expect("commit");
    let after = (rig.volatile.counters(), fs.stats().store);
    assert_eq!(after.0.flushes - before.0.flushes, 1);
    assert_eq!(
        (after.1.groups - before.1.groups, after.1.grouped_batches - before.1.grouped_batches),
        (1, 1)
    );
    let found = content(fs, file);
    assert!(found.len() == 64 << 20 && found.chunks(4 << 20).all(|piece| piece == data));
}

// Shows: C4.
#[test]
fn an_ordinary_change_of_what_was_staged_or_read_is_a_conflict() {
    type Change = fn(&Fs, ObjectNo);
    let changes: [(&str, Change); 7] = [
        ("write", |fs, file| overwrite(fs, file, 2 * PAGE, b"x")),
        ("truncate", |fs, file| set_size(fs, file, 2 * PAGE + 1)),
        ("truncate to nothing", |fs, file| set_size(fs, file, 0)),
        ("punch", |fs, file| allocate(fs, file, FallocateMode::PunchHole, 2 * PAGE, PAGE)),
        ("collapse", |fs, file| allocate(fs, file, FallocateMode::CollapseRange, 0, PAGE)),
        ("insert", |fs, file| allocate(fs, file, FallocateMode::InsertRange, PAGE, PAGE)),
        ("transaction", |fs, file| {
            let mut other = fs_arc(fs).begin().expect("begin");
            other.write(file, 2 * PAGE + 5, b"x").expect("write");
            other.commit().expect("commit");
        }),
    ];
    for (name, change) in changes {
        for reads in [false, true] {
            let rig = Rig::new();
            FS.with(|fs| *fs.borrow_mut() = Some(rig.fs.clone()));
            let fs = &rig.fs;
            let file = put(fs, ROOT, "file", &pattern(1, 40_000));
            let other = put(fs, ROOT, "other", b"other");
            let mut transaction = fs.begin().expect("begin");
            if reads {
                transaction.read(file, 2 * PAGE, &mut [0; 10]).expect("read");
            } else {
                transaction.write(file, 2 * PAGE + 100, b"staged").expect("write");
            }
            transaction.write(other, 0, b"changed").expect("write");
            change(fs, file);
            let want = content(fs, file);
            assert_eq!(transaction.commit(), Err(Error::Conflict), "{name}, reads {reads}");
            assert_eq!(content(fs, file), want, "{name}");
            assert_eq!(content(fs, other), b"other", "{name}: nothing is applied");
        }
    }
    FS.with(|fs| *fs.borrow_mut() = None);
}

thread_local! {
    /// For changes that begin transactions of their own.
    static FS: std::cell::RefCell<Option<std::sync::Arc<Fs>>> = const { std::cell::RefCell::new(None) };
}

fn fs_arc(_: &Fs) -> std::sync::Arc<Fs> {
    FS.with(|fs| fs.borrow().clone().expect("set by the test"))
}

fn allocate(fs: &Fs, file: ObjectNo, mode: FallocateMode, offset: u64, len: u64) {
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    fs.files().fallocate(&root(), handle, mode, offset, len).expect("fallocate");
    fs.files().release(handle).expect("release");
}

#[test]
fn changes_elsewhere_are_no_conflict() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", &pattern(1, 40_000));
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 2 * PAGE, b"staged").expect("write");
    overwrite(fs, file, 3 * PAGE, b"other page");
    overwrite(fs, file, 100_000, b"growth");
    fs.attributes()
        .setattr(&root(), file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, None)
        .expect("chmod");
    let mut second = fs.begin().expect("begin");
    second.write(file, 5 * PAGE, b"another").expect("write");
    second.commit().expect("commit");
    transaction.commit().expect("commit");
    let mut want = pattern(1, 40_000);
    want.resize(100_006, 0);
    for (at, bytes) in
        [(2 * PAGE, &b"staged"[..]), (3 * PAGE, b"other page"), (5 * PAGE, b"another"), (100_000, b"growth")]
    {
        want[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }
    assert!(content(fs, file) == want);
    assert_eq!(fs.attributes().getattr(file).expect("attributes").mode & 0o777, 0o600);
}

#[test]
fn who_asked_for_the_size_conflicts_with_growth() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", b"123");
    let other = put(fs, ROOT, "other", b"");
    let mut transaction = fs.begin().expect("begin");
    assert_eq!(transaction.size(file), Ok(3));
    transaction.write(other, 0, b"3").expect("write");
    overwrite(fs, file, 10 * PAGE, b"growth");
    assert_eq!(transaction.commit(), Err(Error::Conflict));
    assert_eq!(content(fs, other), b"");
}

#[test]
fn truncations_and_writes_have_their_net_effect() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let file = put(&fs, ROOT, "file", &pattern(1, 400_000));
    fs.sync_all().expect("sync");
    let mut transaction = fs.begin().expect("begin");
    transaction.truncate(file, 10_000).expect("truncate");
    transaction.truncate(file, 50_000).expect("grow");
    transaction.write(file, 30_000, b"in the middle").expect("write");
    transaction.write(file, 90_000, b"end").expect("write");
    let mut want = pattern(1, 10_000);
    want.resize(90_003, 0);
    want[30_000..30_013].copy_from_slice(b"in the middle");
    want[90_000..].copy_from_slice(b"end");
    let mut seen = vec![1; 100_000];
    assert_eq!(transaction.read(file, 0, &mut seen), Ok(90_003));
    assert!(seen[..90_003] == want);
    transaction.commit().expect("commit");
    assert!(content(&fs, file) == want);
    set_size(&fs, file, 95_000);
    want.resize(95_000, 0);
    assert!(content(&fs, file) == want, "growing shows zeros");
    fs.files().sync_inode(file, SyncScope::All).expect("sync");
    drop(fs);
    rig.crash();
    assert!(content(&rig.fs, file) == want);
}

#[test]
fn a_long_transaction_reads_back_what_has_left_its_memory() {
    let rig = Rig::with_size(128 * MIB);
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", &pattern(9, 9_000));
    let mut transaction = fs.begin().expect("begin");
    let mut want = pattern(9, 9_000);
    want.resize(12 << 20, 0);
    for round in 0..600u64 {
        let at = (round * 7_919_113) % (11 << 20);
        let data = pattern(round, 1 + (round as usize * 331) % 60_000);
        transaction.write(file, at, &data).expect("write");
        want[at as usize..at as usize + data.len()].copy_from_slice(&data);
        if round % 50 == 0 {
            let from = (round * 104_729) % (8 << 20);
            let mut bytes = vec![0; 300_000];
            let count = transaction.read(file, from, &mut bytes).expect("read");
            assert!(bytes[..count] == want[from as usize..from as usize + count], "round {round}");
        }
    }
    let size = transaction.size(file).expect("size");
    want.truncate(size as usize);
    transaction.commit().expect("commit");
    assert!(content(fs, file) == want);
}

#[test]
fn a_write_without_space_stages_nothing_and_the_transaction_goes_on() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", b"before");
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 0, b"staged").expect("write");
    assert_eq!(transaction.write(file, 4096, &vec![1; 80 << 20]), Err(Error::NoSpace));
    assert_eq!(transaction.size(file), Ok(6));
    transaction.commit().expect("commit");
    assert_eq!(content(fs, file), b"staged");
}

#[test]
fn an_unlinked_file_stays_as_long_as_a_transaction_has_it() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let before = free_blocks(&fs);
    let file = put(&fs, ROOT, "file", &pattern(1, 100_000));
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 0, b"staged").expect("write");
    fs.names().unlink(ROOT, b"file").expect("unlink");
    let mut bytes = [0; 10];
    transaction.read(file, 0, &mut bytes).expect("read");
    assert_eq!(&bytes[..6], b"staged");
    transaction.commit().expect("commit");
    assert_eq!(error(fs.attributes().getattr(file)), Error::Stale);
    assert!(free_blocks(&fs) + 4 >= before);
    drop(fs);
    rig.crash();
    check_tree(&rig.fs);
}

#[test]
fn a_transaction_of_a_read_only_or_stopped_volume_is_refused() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let file = put(&fs, ROOT, "file", b"before");
    fs.sync_all().expect("sync");
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 0, b"staged").expect("write");
    fs.shut_down();
    assert_eq!(transaction.commit(), Err(Error::ReadOnly));
    assert_eq!(content(&fs, file), b"before");
    assert!(matches!(fs.begin(), Err(Error::ReadOnly)));
    drop(fs);
    rig.options.read_only = true;
    rig.crash();
    assert!(matches!(rig.fs.begin(), Err(Error::ReadOnly)));
}

#[test]
fn absorbed_transactions_are_committed_together() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", &pattern(1, 20_000));
    let other = put(fs, ROOT, "other", b"");
    let mut first = fs.begin().expect("begin");
    first.write(file, 0, b"first").expect("write");
    let mut second = fs.begin().expect("begin");
    second.write(file, PAGE, b"second").expect("write");
    second.write(other, 0, &vec![5; 3 << 20]).expect("write");
    let mut third = fs.begin().expect("begin");
    third.write(file, PAGE + 100, b"third").expect("write");
    first.absorb(second).expect("absorb");
    assert_eq!(first.absorb(third), Err(Error::Conflict));
    let before = rig.volatile.counters();
    first.commit().expect("commit");
    assert_eq!(rig.volatile.counters().flushes - before.flushes, 1);
    let mut want = pattern(1, 20_000);
    want[..5].copy_from_slice(b"first");
    want[PAGE as usize..PAGE as usize + 6].copy_from_slice(b"second");
    assert!(content(fs, file) == want);
    assert!(content(fs, other) == vec![5; 3 << 20]);
}

// Shows: C4.
#[test]
fn a_commit_of_nothing_makes_durable_what_it_may_have_read() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let file = put(&fs, ROOT, "file", b"old");
    fs.sync_all().expect("sync");
    let mut first = fs.begin().expect("begin");
    first.write(file, 0, b"new").expect("write");
    first.commit_start(Box::new(|_| {})).expect("commit");
    let mut reader = fs.begin().expect("begin");
    reader.read(file, 0, &mut [0; 3]).expect("read");
    reader.commit().expect("commit");
    let before = rig.volatile.counters();
    fs.begin().expect("begin").commit().expect("commit");
    assert_eq!(rig.volatile.counters(), before, "nothing new, no I/O");
    drop(fs);
    rig.crash();
    assert_eq!(content(&rig.fs, file), b"new");
}
