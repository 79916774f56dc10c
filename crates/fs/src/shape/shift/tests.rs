use super::*;
use crate::FallocateMode;
use crate::FsOptions;
use crate::tests::{MIB, TestVolume, pattern};
use crate::write::WriteAt;

const PAGE: usize = PAGE_BYTES as usize;
/// Of the file that the tests use: with a journal of 1 MiB a batch moves some hundred.
const EXTENTS: usize = 500;
/// Pages from the start of one extent to that of the next; they are 1 to 3 pages long.
const STRIDE: usize = 4;

/// A volume with the file `a` of many extents, on the device; and its content.
fn fragmented() -> (TestVolume, Arc<Inode>, Vec<u8>) {
    let volume = TestVolume::with_options(32 * MIB, MIB, FsOptions::default());
    let inode = volume.create("a");
    let mut content = vec![0; EXTENTS * STRIDE * PAGE];
    for extent in 0..EXTENTS {
        let (at, len) = (extent * STRIDE * PAGE, (1 + extent % 3) * PAGE);
        let data = pattern(extent as u64 + 1, len);
        volume.write(&inode, at as u64, &data);
        content[at..at + len].copy_from_slice(&data);
    }
    content.truncate((EXTENTS - 1) * STRIDE * PAGE + PAGE + 100);
    volume.truncate(&inode, content.len() as u64);
    let keep = FallocateMode::Allocate { keep_size: true };
    volume
        .fs
        .shape
        .file_allocate(&inode, keep, content.len() as u64 + 3 * PAGE_BYTES, 9 * PAGE_BYTES, &mut |_| {})
        .unwrap();
    volume.sync(&inode);
    volume.fs.writeback.destage_everything().unwrap();
    (volume, inode, content)
}

/// Ranges in pages, cut through the middle of extents and not.
const RANGES: [(usize, usize); 4] = [(0, 1), (5, 9), (1001, 700), (1990, 1)];

fn shifted(content: &[u8], (first, count): (usize, usize), inserts: bool) -> Vec<u8> {
    let mut after = content.to_vec();
    match inserts {
        true => drop(after.splice(first * PAGE..first * PAGE, vec![0; count * PAGE])),
        false => drop(after.drain(first * PAGE..(first + count) * PAGE)),
    }
    after
}

fn start((first, count): (usize, usize), inserts: bool) -> Shift {
    let next = if inserts { PAGES_END } else { first as u64 };
    Shift { first: first as u64, count: count as u64, inserts, next }
}

fn allocate(volume: &TestVolume, inode: &Arc<Inode>, (first, count): (usize, usize), inserts: bool) {
    let mode = if inserts { FallocateMode::InsertRange } else { FallocateMode::CollapseRange };
    let (offset, len) = ((first * PAGE) as u64, (count * PAGE) as u64);
    volume.fs.shape.file_allocate(inode, mode, offset, len, &mut |_| {}).unwrap();
}

/// Begins a shift and moves on by so many batches; false if it ended before.
fn interrupted(volume: &TestVolume, inode: &Arc<Inode>, shift: Shift, batches: usize) -> bool {
    volume.fs.shape.settle(inode, shift.first).unwrap();
    assert!(volume.fs.shape.begin_shift(inode, shift, &mut |_| {}).unwrap());
    for _ in 0..batches {
        if inode.state.read().data.stored.shifting.is_none() {
            return false;
        }
        volume.fs.shape.shift_some(inode).unwrap();
    }
    inode.state.read().data.stored.shifting.is_some()
}

#[test]
fn a_file_of_many_extents_is_collapsed_and_inserted_into() {
    let (mut volume, mut inode, mut content) = fragmented();
    for range in RANGES {
        for inserts in [true, false, true] {
            allocate(&volume, &inode, range, inserts);
            content = shifted(&content, range, inserts);
            assert!(volume.content(&inode) == content, "{range:?} inserts {inserts}");
        }
        drop(inode);
        volume.reopen();
        inode = volume.find("a");
        assert!(volume.content(&inode) == content, "{range:?} after reopening");
    }
}

#[test]
fn a_shift_that_a_crash_cuts_off_is_ended_by_the_next_open() {
    let mut cut_off = 0;
    for range in RANGES {
        for (inserts, batches) in [(false, 0), (false, 1), (false, 3), (true, 0), (true, 1), (true, 3)] {
            let (mut volume, inode, content) = fragmented();
            let after = shifted(&content, range, inserts);
            cut_off += usize::from(interrupted(&volume, &inode, start(range, inserts), batches));
            volume.fs.core.store.force(volume.fs.core.store.last_lsn()).unwrap();
            drop(inode);
            let read_only = volume.read_only_copy();
            let inode = read_only.find("a");
            assert!(read_only.content(&inode) == after, "{range:?} {inserts} {batches}, read-only");
            drop(inode);
            // The crashed volume is checked as well.
            volume.crash();
            let inode = volume.find("a");
            assert!(inode.state.read().data.stored.shifting.is_none());
            assert!(volume.content(&inode) == after, "{range:?} {inserts} {batches}");
            drop(inode);
            volume.reopen();
            assert!(volume.content(&volume.find("a")) == after);
        }
    }
    assert!(cut_off >= 12, "{cut_off} shifts were cut off");
}

#[test]
fn a_shift_whose_begin_is_not_durable_has_not_happened() {
    for inserts in [false, true] {
        let (mut volume, inode, content) = fragmented();
        assert!(interrupted(&volume, &inode, start((5, 9), inserts), 1));
        drop(inode);
        volume.crash();
        assert!(volume.content(&volume.find("a")) == content);
    }
}

#[test]
fn whoever_comes_behind_the_start_of_a_shift_finds_it_ended() {
    type Step = fn(&TestVolume, &Arc<Inode>, &mut Vec<u8>);
    let steps: [(&str, Step); 8] = [
        ("read", |_, _, _| {}),
        ("write", |volume, inode, content| {
            volume.write(inode, 900 * PAGE_BYTES + 7, b"news");
            content[900 * PAGE + 7..][..4].copy_from_slice(b"news");
        }),
        ("write in front, sync", |volume, inode, content| {
            volume.write(inode, PAGE_BYTES, &[9; PAGE]);
            content[PAGE..2 * PAGE].fill(9);
            volume.sync(inode);
        }),
        ("append", |volume, inode, content| {
            volume.fs.files.writer.file_write(inode, WriteAt::End, b"end", &mut |_| {}).unwrap();
            content.extend_from_slice(b"end");
        }),
        ("truncate", |volume, inode, content| {
            volume.truncate(inode, 1000 * PAGE_BYTES + 5);
            content.truncate(1000 * PAGE + 5);
        }),
        ("punch", |volume, inode, content| {
            let (offset, len) = (800 * PAGE_BYTES + 5, 70 * PAGE_BYTES);
            volume.fs.shape.file_allocate(inode, FallocateMode::PunchHole, offset, len, &mut |_| {}).unwrap();
            content[offset as usize..(offset + len) as usize].fill(0);
        }),
        ("allocate", |volume, inode, _| {
            let keep = FallocateMode::Allocate { keep_size: true };
            volume.fs.shape.file_allocate(inode, keep, 0, 1500 * PAGE_BYTES, &mut |_| {}).unwrap();
        }),
        ("seek", |volume, inode, content| {
            let hole = volume.fs.shape.file_seek(inode, 0, crate::SeekWhat::Hole).unwrap();
            assert_eq!(content[hole as usize..][..PAGE], [0; PAGE]);
            let data =
                volume.fs.shape.file_seek(inode, 999 * PAGE_BYTES, crate::SeekWhat::Data).unwrap() as usize;
            assert_ne!(content[data..][..PAGE], [0; PAGE]);
            assert!(content[999 * PAGE..data].iter().all(|byte| *byte == 0));
        }),
    ];
    for (what, step) in steps {
        for inserts in [false, true] {
            let (mut volume, inode, content) = fragmented();
            assert!(interrupted(&volume, &inode, start((9, 5), inserts), 1), "{what}");
            let mut after = shifted(&content, (9, 5), inserts);
            step(&volume, &inode, &mut after);
            assert!(volume.content(&inode) == after, "{what} {inserts}");
            assert!(inode.state.read().data.stored.shifting.is_none(), "{what}");
            volume.sync(&inode);
            drop(inode);
            volume.crash();
            assert!(volume.content(&volume.find("a")) == after, "{what} {inserts} after a crash");
        }
    }
}

#[test]
fn a_file_that_loses_its_name_in_the_middle_of_a_shift_is_removed() {
    for inserts in [false, true] {
        let (mut volume, inode, _) = fragmented();
        assert!(interrupted(&volume, &inode, start((5, 9), inserts), 1));
        volume.fs.names.unlink(ObjectNo::ROOT_DIR, b"a").unwrap();
        volume.fs.core.store.force(volume.fs.core.store.last_lsn()).unwrap();
        drop(inode);
        volume.crash();
        let other = volume.create("b");
        volume.sync(&other);
        drop(other);
        volume.reopen();
        assert!(volume.fs.names.lookup(ObjectNo::ROOT_DIR, b"a").is_err());
    }
}

#[test]
fn an_extent_in_the_way_of_a_shift_is_told_and_not_overwritten() {
    let (volume, inode, _) = fragmented();
    for shift in [
        Shift { first: 8, count: 8, inserts: false, next: 40 },
        Shift { first: 8, count: 8, inserts: true, next: 40 },
        Shift { first: 8, count: 1, inserts: true, next: 46 },
    ] {
        let planned = volume.fs.shape.plan_shift(inode.number, shift, 100);
        assert!(matches!(planned.map(drop), Err(Error::Inconsistent { .. })), "{shift:?}");
    }
}
