use super::{MIB, Random, TestVolume, pattern};
use crate::FallocateMode;
use crate::limits::{CLOSE_PATIENCE, CLOSE_PAUSE};
use crate::{Context, Error, FsOptions, OpenFlags, SetXattr};
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_format::ObjectNo;

#[test]
fn full_volume_refuses_the_write_and_takes_it_after_a_removal() {
    let mut volume = TestVolume::new(16 * MIB, MIB);
    let inode = volume.create("a");
    let chunk = pattern(1, 64 << 10);
    let mut written = 0;
    let error = loop {
        match volume.try_write(&inode, written, &chunk) {
            Ok((_, len)) => written += len as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::NoSpace);
    assert!(written > 8 * MIB, "only {written} bytes fit");
    volume.sync(&inode);
    drop(inode);
    volume.crash();
    let inode = volume.find("a");
    let content = volume.content(&inode);
    assert_eq!(content.len() as u64, written);
    assert!(content.chunks(chunk.len()).all(|part| part == &chunk[..part.len()]));
    assert!(volume.fs.statfs().blocks_available < 64);
    volume.truncate(&inode, 0);
    let space = volume.fs.statfs();
    assert!(space.blocks_available * 4096 > written / 2, "df shows what the next write gets: {space:?}");
    volume.write(&inode, 0, &chunk);
    volume.sync(&inode);
    assert_eq!(volume.content(&inode), chunk);
}

/// A mount is told of a last close behind the caller's back: what follows a removal may be there first.
#[test]
fn what_finds_no_space_waits_for_the_close_of_a_removed_file() {
    let volume = TestVolume::new(16 * MIB, MIB);
    let inode = volume.create("a");
    let other = volume.create("b");
    let chunk = pattern(1, 64 << 10);
    let mut written = 0;
    while let Ok((_, len)) = volume.try_write(&inode, written, &chunk) {
        written += len as u64;
    }
    let handle = volume.fs.files.open_handle(&Context::root(), inode.number, OpenFlags::READ).unwrap();
    drop(inode);
    volume.fs.names.unlink(ObjectNo::ROOT_DIR, b"a").unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| volume.try_write(&other, 0, &chunk));
        while volume.fs.writeback.closing.lock().waits == 0 {
            assert!(!writer.is_finished(), "a removed file has its space until it is closed");
            std::thread::yield_now();
        }
        volume.fs.files.release(handle).unwrap();
        assert_eq!(writer.join().unwrap().map(|(_, len)| len), Ok(chunk.len()));
    });
}

/// Who waits may have a thread that others want.
#[test]
fn a_removed_file_that_stays_open_is_waited_for_once() {
    let volume = TestVolume::new(16 * MIB, MIB);
    let (inode, other) = (volume.create("a"), volume.create("b"));
    let chunk = pattern(1, 64 << 10);
    let mut written = 0;
    while let Ok((_, len)) = volume.try_write(&inode, written, &chunk) {
        written += len as u64;
    }
    let handle = volume.fs.files.open_handle(&Context::root(), inode.number, OpenFlags::READ).unwrap();
    drop(inode);
    volume.fs.names.unlink(ObjectNo::ROOT_DIR, b"a").unwrap();
    let page = [1; 4096];
    let waits = || volume.fs.writeback.closing.lock().waits;
    assert_eq!(volume.try_write(&other, 0, &page).unwrap_err(), Error::NoSpace);
    assert_eq!(waits(), 1);
    volume.clock.advance(CLOSE_PATIENCE.as_millis() as u64);
    for _ in 0..100 {
        assert_eq!(volume.try_write(&other, 0, &page).unwrap_err(), Error::NoSpace);
    }
    assert_eq!(waits(), 1, "all of them together have waited long enough");
    volume.clock.advance(CLOSE_PAUSE.as_millis() as u64);
    assert_eq!(volume.try_write(&other, 0, &page).unwrap_err(), Error::NoSpace);
    assert_eq!(waits(), 2);
    volume.fs.files.release(handle).unwrap();
    assert_eq!(volume.try_write(&other, 0, &page).map(|(_, len)| len), Ok(page.len()));
}

#[test]
fn preallocated_space_can_be_written_on_a_full_volume() {
    let volume = TestVolume::new(16 * MIB, MIB);
    let (reserved, filler) = (volume.create("reserved"), volume.create("filler"));
    let mode = FallocateMode::Allocate { keep_size: false };
    volume.fs.shape.file_allocate(&reserved, mode, 0, MIB, &mut |_| {}).unwrap();
    let mut offset = 0;
    while let Ok((_, len)) = volume.try_write(&filler, offset, &[1; 65_536]) {
        offset += len as u64;
    }
    volume.sync(&filler);
    let data = pattern(2, MIB as usize);
    for (page, bytes) in data.chunks(4096).enumerate() {
        volume.write(&reserved, page as u64 * 4096, bytes);
    }
    volume.sync(&reserved);
    volume.drop_cache(&reserved);
    assert_eq!(volume.content(&reserved), data);
}

#[test]
fn a_small_journal_takes_any_number_of_small_syncs() {
    let mut volume = TestVolume::new(32 * MIB, MIB / 4);
    let files: Vec<_> = (0..20).map(|n| volume.create(&format!("f{n}"))).collect();
    for round in 0..1000u64 {
        let file = &files[round as usize % 20];
        volume.write(file, round / 20 * 4096, &pattern(round, 4096));
        volume.sync(file);
    }
    drop(files);
    volume.crash();
    for n in 0..20 {
        let content = volume.content(&volume.find(&format!("f{n}")));
        assert_eq!(content.len(), 50 * 4096);
        for (index, page) in content.chunks(4096).enumerate() {
            assert_eq!(page, pattern(index as u64 * 20 + n, 4096));
        }
    }
}

#[test]
fn more_dirty_data_than_memory_is_written_as_it_comes() {
    let options = FsOptions { memory_bytes_max: 1 << 20, ..FsOptions::default() };
    let volume = TestVolume::with_options(128 * MIB, MIB, options);
    let inode = volume.create("a");
    for part in 0..48 {
        volume.write(&inode, part * MIB, &pattern(part, MIB as usize));
    }
    let account = &volume.fs.core.account;
    assert!(account.cached() <= volume.fs.content.pages_max + 1024, "{} pages cached", account.cached());
    for part in 0..48 {
        let mut content = vec![0; MIB as usize];
        volume.fs.shape.file_read(&inode, part * MIB, &mut content).unwrap();
        assert_eq!(content, pattern(part, MIB as usize), "part {part}");
    }
}

#[test]
fn syncs_writes_and_maintenance_run_together() {
    let volume = TestVolume::new(128 * MIB, MIB);
    let files: Vec<_> = (0..3).map(|n| volume.create(&format!("f{n}"))).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (n, file) in files.iter().enumerate().take(2) {
            let (volume, stop) = (&volume, &stop);
            scope.spawn(move || {
                for round in 0..400u64 {
                    volume.write(file, round % 50 * 4096, &pattern(round * 2 + n as u64, 4096));
                    volume.sync(file);
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        let (volume, stop, large) = (&volume, &stop, &files[2]);
        scope.spawn(move || {
            for round in 0u64.. {
                volume.write(large, round % 20 * MIB, &pattern(round, MIB as usize));
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                volume.fs.maintain(volume.clock.advance(300), 4).unwrap();
            }
        });
    });
    for (n, file) in files.iter().enumerate().take(2) {
        volume.fs.writeback.destage_everything().unwrap();
        volume.drop_cache(file);
        for (page, content) in volume.content(file).chunks(4096).enumerate() {
            assert_eq!(content, pattern((350 + page as u64) * 2 + n as u64, 4096));
        }
    }
}

// Shows: C7.
#[test]
fn damaged_data_is_an_error_and_never_wrong_bytes() {
    use std::sync::Arc;
    use syncline_device::{Buffer, Device};
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    volume.write(&inode, 0, &pattern(1, 100_000));
    volume.sync(&inode);
    volume.drop_cache(&inode);
    let map = crate::content::extents::ExtentMap::load(&volume.fs.content, inode.number, 0..25).unwrap();
    let block = map.find(0).unwrap().1.start.plus(3);
    volume.device.write(block, vec![Arc::new(Buffer::from_bytes(&[1; 4096]))]).unwrap();
    let mut content = vec![0; 100_000];
    let error = volume.fs.shape.file_read(&inode, 0, &mut content).unwrap_err();
    assert_eq!(error, Error::Checksum { object: inode.number, page: 3, block });
}

#[test]
fn syncs_and_maintenance_of_one_file_never_wait_for_each_other_for_good() {
    let options = FsOptions { commit_interval: std::time::Duration::ZERO, ..FsOptions::default() };
    let volume = TestVolume::with_options(128 * MIB, MIB, options);
    let inode = volume.create("a");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                volume.fs.maintain(volume.clock.advance(1), 4).unwrap();
            }
        });
        for round in 0..3000u64 {
            volume.write(&inode, round * 4096, &[round as u8; 4096]);
            volume.sync(&inode);
            if round % 100 == 99 {
                volume.truncate(&inode, round * 4096 + 1000);
                volume.truncate(&inode, (round + 1) * 4096);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for (round, page) in volume.content(&inode).chunks(4096).enumerate() {
        let kept = if round % 100 == 99 { 1000 } else { 4096 };
        assert!(page[..kept].iter().all(|&byte| byte == round as u8), "page {round}");
        assert!(page[kept..].iter().all(|&byte| byte == 0), "page {round}");
    }
}

#[test]
fn a_brim_full_volume_shrinks_files_and_tells_taken_names_apart() {
    let volume = TestVolume::new(24 * MIB, MIB);
    let fs = &volume.fs;
    let small = volume.create("small");
    volume.write(&small, 0, &pattern(1, 4096));
    fs.attributes.set_xattr(&Context::root(), small.number, b"user.a", b"b", SetXattr::Any).unwrap();
    volume.sync(&small);
    let filler = volume.create("filler");
    let mut filled = 0;
    while let Ok((_, written)) = volume.try_write(&filler, filled, &pattern(2, 65536)) {
        filled += written as u64;
    }
    volume.sync(&filler);
    fs.core.checkpoint().unwrap();
    // Inodes, until not even one more fits.
    let context = Context::root();
    let mut index = 0;
    let refused = loop {
        let name = format!("file-{index}");
        match fs.names.mknod(&context, ObjectNo::ROOT_DIR, name.as_bytes(), 0o100644, 0) {
            Ok(_) => index += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::NoSpace), "{refused:?}");
    let taken = fs.names.mknod(&context, ObjectNo::ROOT_DIR, b"small", 0o100644, 0);
    assert!(matches!(taken, Err(Error::Exists)), "{taken:?}");
    volume.drop_cache(&small);
    volume.truncate(&small, 100);
    assert_eq!(volume.content(&small), pattern(1, 4096)[..100]);
    fs.attributes.remove_xattr(&context, small.number, b"user.a").unwrap();
    fs.syncs.sync_all().unwrap();
    fs.names.unlink(ObjectNo::ROOT_DIR, b"filler").unwrap();
    volume.write(&small, 100, &pattern(3, 65536));
}

#[test]
fn zeros_of_a_punched_edge_never_extend_a_file() {
    let volume = TestVolume::new(24 * MIB, MIB);
    let inode = volume.create("a");
    volume.write(&inode, 0, &pattern(1, 5000));
    let punch = |offset, len| {
        let hole = FallocateMode::PunchHole;
        volume.fs.shape.file_allocate(&inode, hole, offset, len, &mut |_| {}).unwrap();
        volume.content(&inode)
    };
    assert_eq!(punch(5000, 100), pattern(1, 5000));
    assert_eq!(punch(9000, 100), pattern(1, 5000));
    let content = punch(4900, 200);
    assert_eq!(content.len(), 5000);
    assert!(content[4900..].iter().all(|&byte| byte == 0) && content[..4900] == pattern(1, 5000)[..4900]);
}

#[test]
fn syncs_into_fragmented_space_keep_to_what_they_were_admitted_with() {
    const PAGES: u64 = 2048;
    let volume = TestVolume::new(48 * MIB, 4 * MIB);
    let (file, filler) = (volume.create("file"), volume.create("filler"));
    let mut model = pattern(1, PAGES as usize * 4096);
    volume.write(&file, 0, &model);
    volume.sync(&file);
    let mut end = 0;
    while end < 26 * MIB {
        volume.write(&filler, end, &pattern(end, MIB as usize));
        volume.sync(&filler);
        end += MIB;
    }
    // Free space in pieces of one to six blocks.
    let mut random = Random(7);
    let mut page = 0;
    while page + 8 < end / 4096 {
        let len = 1 + random.below(6);
        let hole = FallocateMode::PunchHole;
        volume.fs.shape.file_allocate(&filler, hole, page * 4096, len * 4096, &mut |_| {}).unwrap();
        page += len + 1;
    }
    for round in 0..4000 {
        let mut page = random.below(PAGES - 80);
        for _ in 0..1 + random.below(2) {
            let len = (5 + random.below(16)).min(PAGES - page);
            let data = pattern(round * PAGES + page, len as usize * 4096);
            volume.write(&file, page * 4096, &data);
            model[page as usize * 4096..][..data.len()].copy_from_slice(&data);
            page = (page + len + 1 + random.below(12)).min(PAGES - 1);
        }
        volume.sync(&file);
        if round % 64 == 0 {
            volume.fs.core.checkpoint().unwrap();
        }
    }
    volume.drop_cache(&file);
    assert!(volume.content(&file) == model);
}

/// What is refused on a full volume has changed nothing (C8), and what was accepted is there after a crash.
fn change_a_full_volume(seed: u64, steps: u32) {
    let mut volume = TestVolume::new(12 * MIB, MIB);
    let mut random = Random(seed | 1);
    let mut wanted: Vec<Vec<u8>> = vec![Vec::new(); 30];
    let mut files: Vec<_> = (0..wanted.len()).map(|n| volume.create(&format!("f{n}"))).collect();
    for step in 0..steps {
        let n = random.below(files.len() as u64) as usize;
        let (file, want) = (&files[n], &mut wanted[n]);
        let offset = random.below(MIB) as usize;
        let len = match random.below(2) {
            0 => 1 + random.below(9000) as usize,
            _ => 1 + random.below(MIB / 3) as usize,
        };
        let fall = |mode| volume.fs.shape.file_allocate(file, mode, offset as u64, len as u64, &mut |_| {});
        let put = |want: &mut Vec<u8>, content: &[u8]| {
            want.resize(want.len().max(offset + content.len()), 0);
            want[offset..offset + content.len()].copy_from_slice(content);
        };
        let result = match random.below(10) {
            0..5 => {
                let content = pattern(u64::from(step) + seed, len);
                volume.try_write(file, offset as u64, &content).map(|(_, count)| put(want, &content[..count]))
            }
            5 => fall(FallocateMode::ZeroRange { keep_size: false }).map(|()| put(want, &vec![0; len])),
            6 => fall(FallocateMode::PunchHole).map(|()| {
                let end = (offset + len).min(want.len());
                want[offset.min(end)..end].fill(0);
            }),
            7 => fall(FallocateMode::Allocate { keep_size: true }),
            8 => {
                let size = random.below(MIB) as usize;
                volume.fs.shape.file_truncate(file, size as u64, &mut |_| {}).map(|()| want.resize(size, 0))
            }
            _ => {
                volume.sync(file);
                Ok(())
            }
        };
        assert!(matches!(result, Ok(()) | Err(Error::NoSpace)), "seed {seed}, step {step}: {result:?}");
        assert!(
            volume.content(file) == *want,
            "seed {seed}, step {step}: {result:?} at {offset}, {len} bytes"
        );
        if step % 500 == 499 {
            volume.fs.sync_all().unwrap();
            files.clear();
            volume.crash();
            files.extend((0..wanted.len()).map(|n| volume.find(&format!("f{n}"))));
            for (n, want) in wanted.iter().enumerate() {
                assert!(
                    volume.content(&files[n]) == *want,
                    "seed {seed}, step {step}: file {n} after a crash"
                );
            }
        }
    }
}

#[test]
fn what_a_full_volume_refuses_has_changed_nothing() {
    for seed in 1..=2 {
        change_a_full_volume(seed, 1500);
    }
}

#[test]
fn all_that_is_free_can_be_allocated_and_zeroed() {
    for mode in [FallocateMode::Allocate { keep_size: false }, FallocateMode::ZeroRange { keep_size: false }]
    {
        let volume = TestVolume::new(16 * MIB, MIB);
        let file = volume.create("a");
        let free = volume.fs.core.store.space().available * 4096;
        volume.fs.shape.file_allocate(&file, mode, 0, free, &mut |_| {}).unwrap();
        assert_eq!(file.state.read().item.blocks * 4096, free);
        let other = volume.create("b");
        assert_eq!(volume.try_write(&other, 0, &[1; 4096]), Err(Error::NoSpace));
        volume.write(&file, free - 4096, &[1; 4096]);
        volume.sync(&file);
    }
}

/// What was read stays where the bound grows; what is beyond it goes at once where it shrinks, and is read again.
#[test]
fn the_bound_on_memory_can_be_moved_both_ways() {
    let options = FsOptions { memory_bytes_max: 16 << 20, ..FsOptions::default() };
    let volume = TestVolume::with_options(256 * MIB, 16 * MIB, options);
    let files: Vec<_> = (0..40).map(|n| volume.create(&format!("f{n}"))).collect();
    for (n, file) in files.iter().enumerate() {
        volume.write(file, 0, &pattern(n as u64, MIB as usize));
        volume.sync(file);
    }
    volume.fs.checkpoint().unwrap();
    let read_all = || {
        for (n, file) in files.iter().enumerate() {
            let mut content = vec![0; MIB as usize];
            volume.fs.shape.file_read(file, 0, &mut content).unwrap();
            assert_eq!(content, pattern(n as u64, MIB as usize), "file {n}");
        }
    };
    let evictions = || volume.fs.stats().pages.evictions;
    let before = evictions();
    read_all();
    assert!(evictions() > before, "40 MiB do not fit");

    volume.fs.set_memory_bytes_max(128 << 20);
    read_all();
    let before = evictions();
    read_all();
    assert_eq!(evictions(), before);
    let stats = volume.fs.stats();
    assert_eq!((stats.memory_bytes_max, stats.pages.cached), (128 << 20, 40 * 256));

    volume.fs.set_memory_bytes_max(4 << 20);
    let stats = volume.fs.stats();
    let (cached, cached_max) = (stats.pages.cached, stats.pages.cached_max);
    assert!(cached <= cached_max && cached_max < 40 * 256 / 4, "{cached} of {cached_max}");
    read_all();
}

#[test]
fn inodes_in_memory_follow_the_bound_too() {
    let options = FsOptions { memory_bytes_max: 64 << 20, ..FsOptions::default() };
    let volume = TestVolume::with_options(256 * MIB, 32 * MIB, options);
    for n in 0..3000 {
        volume.create(&format!("f{n}"));
    }
    volume.fs.sync_all().unwrap();
    volume.fs.checkpoint().unwrap();
    let many = volume.fs.stats().inodes_cached;
    volume.fs.set_memory_bytes_max(1 << 20);
    let few = volume.fs.stats().inodes_cached;
    assert!(many > 2000 && few < many / 4, "{many} before, {few} behind");
    assert!((0..3000).all(|n| volume.find(&format!("f{n}")).number.0 > 0));
}
