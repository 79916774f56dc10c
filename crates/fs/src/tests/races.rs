//! Two callers on one file: what others do between two steps of an operation comes before all of it or behind all of
//! it.

use super::{MIB, TestVolume, pattern};
use crate::content::inode::Inode;
use crate::content::steps::{Step, meanwhile};
use crate::write::WriteAt;
use crate::{FallocateMode, Fs, FsOptions, MkfsOptions, SnapshotData, SystemEntropy};
use std::sync::Arc;

const PAGE: usize = 4096;

fn volume() -> TestVolume {
    TestVolume::new(64 * MIB, MIB)
}

/// Others do something to the file when this thread's next operation has come so far.
fn others(volume: &TestVolume, file: &Arc<Inode>, step: Step, act: impl FnOnce(&Fs, &Arc<Inode>) + 'static) {
    let (fs, file) = (volume.fs.clone(), file.clone());
    meanwhile(step, move || act(&fs, &file));
}

fn append(fs: &Fs, file: &Arc<Inode>, bytes: &[u8]) {
    fs.files.writer.file_write(file, WriteAt::End, bytes, &mut |_| {}).unwrap();
}

/// The file has these bytes and zeros behind them when it grows, now and after a crash.
fn ends_with_zeros(volume: &mut TestVolume, file: &Arc<Inode>, want: &[u8]) {
    assert_eq!(volume.content(file), want);
    let grown = want.len().next_multiple_of(PAGE) + PAGE;
    volume.truncate(file, grown as u64);
    let mut wanted = want.to_vec();
    wanted.resize(grown, 0);
    assert!(volume.content(file) == wanted, "what was cut off is seen again");
    volume.sync(file);
    volume.crash();
    let file = volume.find("f");
    assert!(volume.content(&file) == wanted, "what was cut off is stored");
}

// Shows: C7.
#[test]
fn a_truncation_into_a_hole_cuts_what_is_written_there_meanwhile() {
    for step in [Step::Admitted, Step::LookedUp] {
        let mut volume = volume();
        let file = volume.create("f");
        volume.truncate(&file, 12_000);
        others(&volume, &file, step, |fs, file| {
            fs.files.writer.file_write(file, WriteAt::Offset(8_300), &[7; 1000], &mut |_| {}).unwrap();
        });
        volume.truncate(&file, 8_500);
        let mut want = vec![0; 8_500];
        want[8_300..].fill(7);
        ends_with_zeros(&mut volume, &file, &want);
    }
}

#[test]
fn a_truncation_to_the_current_size_cuts_what_is_appended_meanwhile() {
    for (step, is_cached) in
        [(Step::Admitted, true), (Step::LookedUp, true), (Step::Admitted, false), (Step::LookedUp, false)]
    {
        let mut volume = volume();
        let file = volume.create("f");
        let content = pattern(1, 5000);
        volume.write(&file, 0, &content);
        volume.sync(&file);
        volume.fs.syncs.sync_all().unwrap();
        volume.clock.advance(10_000);
        while volume.fs.maintain(volume.clock.advance(0), 64).unwrap() {}
        if !is_cached {
            volume.drop_cache(&file);
        }
        others(&volume, &file, step, |fs, file| append(fs, file, &[9; 2000]));
        volume.truncate(&file, 5000);
        ends_with_zeros(&mut volume, &file, &content);
    }
}

/// A file of so many extents that they are not freed by one batch.
fn in_many_extents(volume: &TestVolume) -> Arc<Inode> {
    let file = volume.create("f");
    for page in (0..1200).step_by(2) {
        volume.write(&file, page * PAGE as u64, &[5; PAGE]);
    }
    volume.fs.syncs.sync_all().unwrap();
    file
}

#[test]
fn a_file_that_grows_beside_a_large_truncation_shows_nothing_of_what_was_cut() {
    type Grow = fn(&TestVolume, &Arc<Inode>);
    const SIZE: u64 = 1000 * PAGE as u64;
    let ways: [(&str, Grow); 3] = [
        ("truncate", |volume, file| volume.truncate(file, SIZE)),
        ("allocate", |volume, file| {
            let mode = FallocateMode::Allocate { keep_size: false };
            volume.fs.shape.file_allocate(file, mode, SIZE - 10, 10, &mut |_| {}).unwrap();
        }),
        ("zero", |volume, file| {
            let mode = FallocateMode::ZeroRange { keep_size: false };
            volume.fs.shape.file_allocate(file, mode, SIZE - 10, 10, &mut |_| {}).unwrap();
        }),
    ];
    for (name, grow) in ways {
        let mut volume = volume();
        let file = in_many_extents(&volume);
        others(&volume, &file, Step::Admitted, |fs, file| {
            // Its first batch; the rest is still to come.
            assert!(fs.shape.try_truncate(file, 0, &mut |_| {}).unwrap());
            assert!(file.state.read().data.is_truncating(), "the file has more extents than one batch frees");
        });
        grow(&volume, &file);
        volume.fs.shape.finish_truncation(&file).unwrap();
        let content = volume.content(&file);
        assert_eq!(content.len() as u64, SIZE, "{name}");
        assert!(content.iter().all(|&byte| byte == 0), "{name} shows what was cut off");
        volume.sync(&file);
        volume.crash();
        let content = volume.content(&volume.find("f"));
        assert!(content.len() as u64 == SIZE && content.iter().all(|&byte| byte == 0), "{name}");
    }
}

/// The writer has seen the old size when it looks up what it leaves of its first page.
// Shows: C2, C7.
#[test]
fn a_write_that_looks_a_page_up_beside_a_large_truncation_brings_back_nothing_of_what_was_cut() {
    const AT: usize = 1100 * PAGE + 100;
    let mut volume = volume();
    let file = in_many_extents(&volume);
    volume.clock.advance(10_000);
    while volume.fs.maintain(volume.clock.advance(0), 64).unwrap() {}
    volume.drop_cache(&file);
    others(&volume, &file, Step::Looked, |fs, file| {
        assert!(fs.shape.try_truncate(file, 0, &mut |_| {}).unwrap());
        assert!(file.state.read().data.is_truncating(), "the file has more extents than one batch frees");
    });
    volume.write(&file, AT as u64, &[8; 10]);
    let mut want = vec![0; AT + 10];
    want[AT..].fill(8);
    assert!(volume.content(&file) == want, "what was cut off is seen again");
    ends_with_zeros(&mut volume, &file, &want);
}

/// A snapshot that comes while blocks are written once more has some of them, and not those that follow: a move from
/// the end would begin, and never end.
// Shows: C10.
#[test]
fn a_move_begins_only_when_no_snapshot_has_any_of_what_moves() {
    const EXTENTS: usize = 600;
    for inserts in [true, false] {
        let mkfs = MkfsOptions { journal_bytes: Some(MIB), ..MkfsOptions::default() };
        let mut volume = TestVolume::made(64 * MIB, mkfs, FsOptions::default());
        let file = in_many_extents(&volume);
        volume.fs.snapshot("before", SnapshotData::Written, &SystemEntropy::default()).unwrap();
        let content = volume.content(&file);
        others(&volume, &file, Step::TakenOver, |fs, _| {
            fs.snapshot("meanwhile", SnapshotData::Written, &SystemEntropy::default()).unwrap();
        });
        let mode = if inserts { FallocateMode::InsertRange } else { FallocateMode::CollapseRange };
        volume.fs.shape.file_allocate(&file, mode, 0, 2 * PAGE as u64, &mut |_| {}).unwrap();
        let moved = match inserts {
            true => [vec![0; 2 * PAGE], content.clone()].concat(),
            false => content[2 * PAGE..].to_vec(),
        };
        assert!(content.len() > 2 * (EXTENTS - 1) * PAGE && volume.content(&file) == moved);
        volume.fs.snapshot("behind", SnapshotData::Written, &SystemEntropy::default()).unwrap();
        volume.crash();
        assert!(volume.content(&volume.find("f")) == moved, "after a crash the move has ended");
        for (name, wanted) in [("before", &content), ("meanwhile", &content), ("behind", &moved)] {
            let view = volume.fs.at(name).unwrap();
            let found = view.names().lookup(crate::ObjectNo::ROOT_DIR, b"f").unwrap();
            let mut seen = vec![0xEE; wanted.len()];
            let inode = view.content.inode(found.attr.inode).unwrap();
            assert_eq!(view.shape.file_read(&inode, 0, &mut seen).unwrap(), seen.len());
            assert!(seen == *wanted, "snapshot {name} is what it was");
        }
    }
}

#[test]
fn a_page_that_is_dropped_from_the_cache_beside_a_write_into_it_keeps_its_rest() {
    let volume = volume();
    let file = volume.create("f");
    let mut content = pattern(3, 2 * PAGE);
    volume.write(&file, 0, &content);
    volume.fs.syncs.sync_all().unwrap();
    volume.clock.advance(10_000);
    while volume.fs.maintain(volume.clock.advance(0), 64).unwrap() {}
    assert_eq!(volume.content(&file), content);
    others(&volume, &file, Step::LookedUp, |_, file| {
        let mut state = file.state.write();
        for _ in 0..2 {
            state.data.hand = 0;
            state.data.evict(usize::MAX);
        }
        assert_eq!(state.data.cached_pages(), 0, "the pages are clean");
    });
    volume.write(&file, 100, &[8; 10]);
    content[100..110].fill(8);
    assert!(volume.content(&file) == content, "the rest of the page is lost");
}

#[test]
fn a_read_beside_an_append_never_shows_a_size_without_its_content() {
    let volume = volume();
    let file = volume.create("f");
    volume.write(&file, 0, &[1; 100]);
    volume.fs.syncs.sync_all().unwrap();
    volume.clock.advance(10_000);
    while volume.fs.maintain(volume.clock.advance(0), 64).unwrap() {}
    volume.drop_cache(&file);
    others(&volume, &file, Step::Fetched, |fs, file| append(fs, file, &[2; 50]));
    let mut bytes = [0xEE; 300];
    let count = volume.fs.shape.file_read(&file, 0, &mut bytes).unwrap();
    let whole = [vec![1; 100], vec![2; 50]].concat();
    assert!(count == 100 || count == 150, "{count} bytes");
    assert_eq!(bytes[..count], whole[..count]);
    assert_eq!(volume.content(&file), whole);
}

/// Zeroing a range that reaches beyond the end, beside an append or a write across its borders.
#[test]
fn zeroing_a_range_is_one_step_beside_others() {
    type Other = fn(&Fs, &Arc<Inode>);
    const SIZE: usize = 5000;
    let others_do: [(Other, u64, usize); 2] = [
        (|fs, file| append(fs, file, &[2; 9000]), SIZE as u64, 9000),
        (
            |fs, file| {
                drop(fs.files.writer.file_write(file, WriteAt::Offset(900), &[2; 12_000], &mut |_| {}))
            },
            900,
            12_000,
        ),
    ];
    for mode in [FallocateMode::ZeroRange { keep_size: false }, FallocateMode::PunchHole] {
        let (from, len) = (1000, 10_000);
        let size = if mode == FallocateMode::PunchHole { SIZE } else { from + len };
        for (act, at, count) in others_do {
            for step in [Step::Admitted, Step::LookedUp] {
                let volume = volume();
                let file = volume.create("f");
                volume.write(&file, 0, &[1; SIZE]);
                others(&volume, &file, step, act);
                volume.fs.shape.file_allocate(&file, mode, from as u64, len as u64, &mut |_| {}).unwrap();
                let (at, end) = (at as usize, at as usize + count);
                let mut want = vec![1; SIZE];
                want.resize(SIZE.max(end), 0);
                want[at..end].fill(2);
                want.resize(want.len().max(size), 0);
                let until = want.len().min(from + len);
                want[from..until].fill(0);
                assert!(volume.content(&file) == want, "{mode:?}, {step:?}: neither order");
                // Grown: nothing is behind the end.
                volume.truncate(&file, want.len() as u64 + 5000);
                assert!(volume.content(&file)[want.len()..].iter().all(|&byte| byte == 0));
            }
        }
    }
}

#[test]
fn of_two_renames_of_one_name_to_another_only_one_finds_it() {
    let volume = volume();
    volume.create("a");
    volume.create("b");
    let rename = |fs: &Fs| {
        let (root, flags) = (crate::ObjectNo::ROOT_DIR, crate::RenameFlags::default());
        fs.names.rename(&crate::Context::root(), root, b"a", root, b"b", flags)
    };
    let fs = volume.fs.clone();
    // Between the lookups of the two names.
    meanwhile(Step::NameLookedUp, move || meanwhile(Step::NameLookedUp, move || rename(&fs).unwrap()));
    assert_eq!(rename(&volume.fs), Err(crate::Error::NotFound));
}
