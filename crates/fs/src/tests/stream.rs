use super::{MIB, TestVolume, pattern};
use crate::content::inode::Inode;
use crate::{Error, FsOptions};
use std::sync::mpsc;
use std::time::Duration;
use syncline_device::Device;

#[test]
fn large_file_is_whole_after_rounds_that_cut_the_extents_of_their_neighbours() {
    let mut volume = TestVolume::new(96 * MIB, 8 * MIB);
    let inode = volume.create("large");
    let old = pattern(1, 20 * MIB as usize);
    volume.write(&inode, 0, &old);
    volume.sync(&inode);
    // One page off, so that an extent reaches across every border between two rounds.
    let new = pattern(2, 14 * MIB as usize);
    volume.write(&inode, 4096, &new);
    volume.sync(&inode);
    drop(inode);
    volume.crash();
    let content = volume.content(&volume.find("large"));
    assert!(content[..4096] == old[..4096]);
    assert!(content[4096..][..new.len()] == new[..]);
    assert!(content[4096 + new.len()..] == old[4096 + new.len()..]);
}

#[test]
fn sync_of_a_new_page_does_not_wait_for_older_pages_that_are_destaged() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("log");
    volume.write(&inode, 0, &pattern(1, 4096));
    volume.sync(&inode);
    // As a round leaves it that is writing page 0 to its place.
    let turn = inode.lock_turn();
    inode.state.write().data.stored.destaging += 1;
    inode.state.write().data.update(0, |slot| slot.state.choose());
    volume.write(&inode, 4096, &pattern(2, 4096));
    let (ended, end) = mpsc::channel();
    let (fs, other) = (volume.fs.clone(), inode.clone());
    let sync = move || ended.send(fs.syncs.file_sync(&other, crate::SyncScope::All)).unwrap();
    let syncing = std::thread::spawn(sync.clone());
    end.recv_timeout(Duration::from_secs(60)).expect("the new page is synced beside the round").unwrap();
    syncing.join().unwrap();
    // The page that is being destaged was written to: its image would be dropped with the round's batch.
    volume.write(&inode, 0, b"newer");
    let syncing = std::thread::spawn(sync);
    assert!(end.recv_timeout(Duration::from_millis(100)).is_err(), "its sync waits for the round");
    inode.state.write().data.update(0, |slot| slot.state.put_back());
    inode.state.write().data.stored.destaging -= 1;
    drop(turn);
    end.recv_timeout(Duration::from_secs(60)).expect("the round is over").unwrap();
    syncing.join().unwrap();
}

#[test]
fn reading_in_order_reads_everything_once_and_ahead() {
    let mut volume = TestVolume::new(96 * MIB, 8 * MIB);
    let inode = volume.create("large");
    let data = pattern(3, 24 * MIB as usize);
    volume.write(&inode, 0, &data);
    drop(inode);
    volume.reopen();
    let inode = volume.find("large");
    let before = volume.device.counters();
    let mut chunk = vec![0; 128 << 10];
    for (index, expected) in data.chunks(chunk.len()).enumerate() {
        let offset = (index * chunk.len()) as u64;
        assert_eq!(volume.fs.shape.file_read(&inode, offset, &mut chunk).unwrap(), chunk.len());
        assert!(chunk == expected, "at {offset}");
    }
    let after = volume.device.counters();
    let read = after.read_bytes - before.read_bytes;
    assert!((24 * MIB..25 * MIB).contains(&read), "{read} bytes are read once, and a few nodes");
    assert!(after.reads - before.reads < 48, "in long reads, not in the caller's");
    assert!(inode.state.read().data.readers.flights.is_empty(), "nothing is left under way");
}

#[test]
fn what_passes_to_a_reader_that_keeps_it_is_not_kept_here_and_read_once() {
    for (request, kept_max) in [(1 << 20, 0), (768 << 10, 24 * 256), (128 << 10, 24 * 256)] {
        let options = FsOptions { readers_keep: true, ..FsOptions::default() };
        let mut volume = TestVolume::with_options(96 * MIB, 8 * MIB, options);
        let inode = volume.create("large");
        let data = pattern(6, 24 * MIB as usize - 1000);
        volume.write(&inode, 0, &data);
        drop(inode);
        volume.reopen();
        let inode = volume.find("large");
        let before = volume.device.counters().read_bytes;
        let mut chunk = vec![0; request];
        for (index, expected) in data.chunks(chunk.len()).enumerate() {
            let offset = (index * chunk.len()) as u64;
            assert_eq!(volume.fs.shape.file_read(&inode, offset, &mut chunk).unwrap(), expected.len());
            assert!(&chunk[..expected.len()] == expected, "at {offset}");
        }
        let read = volume.device.counters().read_bytes - before;
        assert!((24 * MIB - 4096..25 * MIB).contains(&read), "{read} bytes are read once, and a few nodes");
        let state = inode.state.read();
        let kept = state.data.cached_pages();
        assert!(kept <= kept_max && (kept == 0) == (kept_max == 0), "{kept} pages of requests of {request}");
        assert!(state.data.readers.flights.is_empty(), "nothing is left under way");
    }
}

#[test]
fn what_is_under_way_for_a_reader_that_does_not_go_on_is_given_up() {
    let mut volume = TestVolume::new(96 * MIB, 8 * MIB);
    let (stopped, going) = (volume.create("stopped"), volume.create("going"));
    let data = pattern(9, 16 * MIB as usize);
    volume.write(&stopped, 0, &data);
    volume.write(&going, 0, &data);
    drop((stopped, going));
    volume.reopen();
    let (stopped, going) = (volume.find("stopped"), volume.find("going"));
    let mut chunk = vec![0; MIB as usize];
    let mut read = |inode, at: u64| {
        assert_eq!(volume.fs.shape.file_read(inode, at * MIB, &mut chunk).unwrap(), chunk.len());
        assert!(chunk == data[(at * MIB) as usize..][..chunk.len()]);
    };
    (0..2).for_each(|at| read(&stopped, at));
    let under_way = |inode: &Inode| !inode.state.read().data.readers.flights.is_empty();
    for at in 0..8 {
        assert!(under_way(&stopped), "a slow reader is waited for");
        read(&going, at);
        volume.fs.maintain(volume.clock.advance(1500), 1).unwrap();
        assert!(under_way(&going), "at {at}");
        if at == 6 {
            assert!(!under_way(&stopped), "it has waited long enough");
            break;
        }
    }
    (2..16).for_each(|at| read(&stopped, at));
}

#[test]
fn readers_in_each_others_way_and_writers_see_each_page_as_it_is() {
    let options = FsOptions { readers_keep: true, ..FsOptions::default() };
    let mut volume = TestVolume::with_options(96 * MIB, 8 * MIB, options);
    let inode = volume.create("large");
    let data = pattern(7, 16 * MIB as usize);
    volume.write(&inode, 0, &data);
    drop(inode);
    volume.reopen();
    let inode = volume.find("large");
    let read = |request: usize| {
        let mut chunk = vec![0; request];
        for (index, expected) in data.chunks(request).enumerate() {
            let offset = (index * request) as u64;
            assert_eq!(volume.fs.shape.file_read(&inode, offset, &mut chunk).unwrap(), expected.len());
            assert!(&chunk[..expected.len()] == expected, "at {offset} by {request}");
        }
    };
    std::thread::scope(|scope| {
        for request in [1 << 20, 1 << 20, 300 << 10, 64 << 10] {
            scope.spawn(move || (0..3).for_each(|_| read(request)));
        }
        // The same content: whoever reads cannot tell, but what is read and what is stored change.
        for offset in (0..data.len()).step_by(3 << 20) {
            volume.write(&inode, offset as u64, &data[offset..][..200_000]);
            volume.sync(&inode);
            volume.fs.writeback.destage_everything().unwrap();
            volume.drop_cache(&inode);
        }
    });
}

#[test]
fn a_damaged_page_is_an_error_however_it_is_read() {
    for readers_keep in [false, true] {
        let options = FsOptions { readers_keep, ..FsOptions::default() };
        let mut volume = TestVolume::with_options(96 * MIB, 8 * MIB, options);
        let inode = volume.create("large");
        let data = pattern(8, 8 * MIB as usize);
        volume.write(&inode, 0, &data);
        volume.sync(&inode);
        drop(inode);
        volume.reopen();
        let (page, content) = (1500, &data[1500 * 4096..][..4096]);
        volume.damage(content);
        let inode = volume.find("large");
        let mut chunk = vec![0; 1 << 20];
        for offset in (0..8 * MIB).step_by(chunk.len()) {
            let result = volume.fs.shape.file_read(&inode, offset, &mut chunk);
            match (offset..offset + MIB).contains(&(page * 4096)) {
                true => assert!(matches!(result, Err(Error::Checksum { page: 1500, .. })), "{result:?}"),
                false => assert!(chunk[..result.unwrap()] == data[offset as usize..][..1 << 20]),
            }
        }
    }
}

#[test]
fn pages_changed_while_they_are_under_way_are_not_what_was_read() {
    let mut volume = TestVolume::new(96 * MIB, 8 * MIB);
    let inode = volume.create("large");
    let mut data = pattern(4, 4 * MIB as usize);
    volume.write(&inode, 0, &data);
    drop(inode);
    volume.reopen();
    let inode = volume.find("large");
    let mut chunk = vec![0; 128 << 10];
    for offset in (0..MIB).step_by(chunk.len()) {
        volume.fs.shape.file_read(&inode, offset, &mut chunk).unwrap();
    }
    let ahead = inode.state.read().data.readers.flights.last().map(|flight| flight.pages.clone());
    let ahead = ahead.expect("a flight is ahead of the reader");
    let at = ahead.start * 4096;
    let new = pattern(5, 8192);
    volume.write(&inode, at, &new);
    volume.sync(&inode);
    volume.fs.writeback.destage_everything().unwrap();
    volume.drop_cache(&inode);
    data[at as usize..][..8192].copy_from_slice(&new);
    assert!(volume.content(&inode) == data);
}

#[test]
fn background_gives_way_for_a_while_after_a_sync() {
    let volume = TestVolume::new(96 * MIB, 8 * MIB);
    let (large, small) = (volume.create("large"), volume.create("small"));
    volume.write(&large, 0, &pattern(6, 40 * MIB as usize));
    volume.write(&small, 0, b"small");
    volume.sync(&small);
    let before = volume.device.counters();
    assert!(volume.fs.maintain(volume.clock.advance(10), 64).unwrap(), "there is more to do");
    assert!(volume.fs.writeback.gives_way());
    let after = volume.device.counters();
    let written = after.written_bytes - before.written_bytes;
    assert!(written <= MIB + (64 << 10), "{written} bytes: a small piece");
    let mut calls = 0;
    while volume.fs.writeback.gives_way() {
        volume.fs.maintain(volume.clock.advance(10), 64).unwrap();
        calls += 1;
        assert!(calls < 100, "without further syncs the background works on");
    }
}
