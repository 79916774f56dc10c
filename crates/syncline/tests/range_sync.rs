//! Syncs of ranges: what is written for them, and what is there after a power cut (C5).

#[path = "../../fs/tests/gate/mod.rs"]
mod gate;

use gate::Gate;
use std::sync::Arc;
use std::time::Duration;
use syncline::{File, OpenOptions, SyncScope, SyncTicket, Volume, VolumeOptions};

const PAGE: u64 = 4096;

fn open(gate: &Arc<Gate>) -> Volume {
    // Only what is synced is written.
    let options = VolumeOptions::new().commit_interval(Duration::from_secs(3600));
    options.open_device(gate.clone()).expect("open")
}

/// Without anybody who writes in the background.
fn open_quiet(gate: &Arc<Gate>) -> Volume {
    VolumeOptions::new().background(false).open_device(gate.clone()).expect("open")
}

fn file(volume: &Volume, name: &str) -> File {
    let options = OpenOptions::new().read(true).write(true).create(true).clone();
    options.open(volume, name).expect("open a file")
}

/// What a page is filled with: tells the page and the version.
fn page(number: u64, version: u8) -> Vec<u8> {
    let mut bytes = format!("<page {number} version {version}>").into_bytes();
    bytes.resize(PAGE as usize, version);
    bytes
}

fn mark(number: u64, version: u8) -> Vec<u8> {
    format!("<page {number} version {version}>").into_bytes()
}

fn write_pages(file: &File, pages: std::ops::Range<u64>, version: u8) {
    for number in pages {
        file.write_all_at(&page(number, version), number * PAGE).expect("write");
    }
}

fn page_of(content: &[u8], number: u64) -> &[u8] {
    &content[(number * PAGE) as usize..((number + 1) * PAGE) as usize]
}

// Shows: C5.
#[test]
fn only_the_pages_of_the_range_are_written() {
    // Few pages travel as images in the record, many to blocks of their own, and very many as a stream.
    for (first, end) in [(20, 22), (20, 90), (20, 420)] {
        let gate = Gate::new(16 << 20);
        let volume = open_quiet(&gate);
        let file = file(&volume, "file");
        write_pages(&file, 0..440, 1);
        let before = volume.stats().engine.device;
        file.sync_range(first * PAGE..end * PAGE, SyncScope::Data).expect("sync");
        let after = volume.stats().engine.device;
        let blocks = (after.written_bytes - before.written_bytes) / PAGE;
        let pages = end - first;
        assert!((pages + 1..=pages + 8).contains(&blocks), "{blocks} blocks for {pages} pages");
        assert_eq!(after.flushes - before.flushes, 1);
        let content = open(&gate.after_power_cut()).read("file").expect("read");
        assert_eq!(content.len() as u64, end * PAGE);
        for number in 0..end {
            let want = if number < first { vec![0; PAGE as usize] } else { page(number, 1) };
            assert!(page_of(&content, number) == want, "page {number}");
        }
        assert!(gate.holds(&mark(first, 1)));
        for outside in [0, first - 1, end, 439] {
            assert!(!gate.holds(&mark(outside, 1)), "page {outside} was written for {first}..{end}");
        }
        file.sync_range(first * PAGE..end * PAGE, SyncScope::Data).expect("sync again");
        assert_eq!(volume.stats().engine.device.writes, after.writes, "there was nothing to do (C8a)");
    }
}

#[test]
fn the_rest_of_a_small_file_does_not_travel_with_other_syncs() {
    let gate = Gate::new(16 << 20);
    let volume = open_quiet(&gate);
    let small = file(&volume, "small");
    write_pages(&small, 0..3, 1);
    small.sync_range(PAGE..PAGE + 1, SyncScope::All).expect("sync");
    let other = file(&volume, "other");
    other.write_all_at(b"other", 0).expect("write");
    other.sync_all().expect("sync");
    assert!(gate.holds(&mark(1, 1)));
    assert!(!gate.holds(&mark(0, 1)) && !gate.holds(&mark(2, 1)));
    small.sync_all().expect("sync");
    let content = open(&gate.after_power_cut()).read("small").expect("read");
    assert!(content == [page(0, 1), page(1, 1), page(2, 1)].concat());
}

// Shows: C5.
#[test]
fn around_the_range_is_the_old_content_after_a_power_cut() {
    for length in [1, 50] {
        let gate = Gate::new(64 << 20);
        let volume = open(&gate);
        let file = file(&volume, "file");
        write_pages(&file, 0..100, 1);
        file.sync_all().expect("sync");
        write_pages(&file, 0..100, 2);
        // Bytes in the middle of pages.
        let range = 10 * PAGE + 100..(10 + length) * PAGE - 100;
        file.sync_range(range, SyncScope::Data).expect("sync");
        let content = open(&gate.after_power_cut()).read("file").expect("read");
        assert_eq!(content.len() as u64, 100 * PAGE);
        for number in 0..100 {
            let version = if (10..10 + length).contains(&number) { 2 } else { 1 };
            assert!(page_of(&content, number) == page(number, version), "page {number}");
        }
        let live = volume.read("file").expect("read");
        assert!((0..100).all(|number| page_of(&live, number) == page(number, 2)));
        file.sync_all().expect("sync");
        let content = open(&gate.after_power_cut()).read("file").expect("read");
        assert!(content == live, "what the ranged sync left out is synced later");
    }
}

// Shows: C5.
#[test]
fn the_size_covers_a_range_that_is_a_hole() {
    let gate = Gate::new(64 << 20);
    let volume = open(&gate);
    let file = file(&volume, "file");
    file.write_all_at(b"first", 0).expect("write");
    file.write_all_at(b"last", 1000 * PAGE).expect("write");
    file.sync_range(50 * PAGE..60 * PAGE + 7, SyncScope::Data).expect("sync");
    let content = open(&gate.after_power_cut()).read("file").expect("read");
    assert_eq!(content, vec![0; 60 * PAGE as usize + 7]);
    file.sync_range(1000 * PAGE.., SyncScope::Data).expect("sync");
    let content = open(&gate.after_power_cut()).read("file").expect("read");
    assert_eq!(content.len() as u64, 1000 * PAGE + 4);
    assert_eq!(&content[1000 * PAGE as usize..], b"last");
    assert_eq!(&content[..5], [0; 5]);
    file.sync_range(.., SyncScope::Data).expect("sync");
    let content = open(&gate.after_power_cut()).read("file").expect("read");
    assert_eq!(&content[..5], b"first");
}

#[test]
fn an_empty_range_makes_names_durable_and_no_data() {
    let gate = Gate::new(64 << 20);
    let volume = open(&gate);
    let file = file(&volume, "file");
    write_pages(&file, 0..2, 1);
    volume.create_dir("directory").expect("mkdir");
    file.sync_range(100..100, SyncScope::Data).expect("sync");
    let after = open(&gate.after_power_cut());
    assert!(after.metadata("directory").expect("C1").is_dir());
    assert!(after.read("file").expect("read").is_empty());
}

#[test]
fn ranged_syncs_are_started_like_others() {
    let gate = Gate::new(64 << 20);
    let volume = open(&gate);
    let file = file(&volume, "file");
    write_pages(&file, 0..600, 3);
    let closed = gate.close();
    // Some with a few pages, one with many.
    let tickets: Vec<SyncTicket> = [(500, 502), (100, 400), (550, 551)]
        .map(|(first, end)| file.sync_range_async(first * PAGE..end * PAGE, SyncScope::Data))
        .into();
    assert!(SyncTicket::poll_many(&tickets).is_empty());
    drop(closed);
    tickets.iter().try_for_each(SyncTicket::wait).expect("all three");
    let content = open(&gate.after_power_cut()).read("file").expect("read");
    assert_eq!(content.len() as u64, 551 * PAGE);
    for number in 0..551 {
        let synced = [500..502, 100..400, 550..551].iter().any(|range| range.contains(&number));
        let want = if synced { page(number, 3) } else { vec![0; PAGE as usize] };
        assert!(page_of(&content, number) == want, "page {number}");
    }
}

#[test]
fn a_ranged_sync_fails_for_good_once_the_volume_has() {
    let gate = Gate::new(64 << 20);
    let volume = open(&gate);
    let file = file(&volume, "file");
    write_pages(&file, 0..2, 1);
    gate.fail_flushes();
    assert!(file.sync_range(0..PAGE, SyncScope::Data).is_err());
    assert!(file.sync_range(0..PAGE, SyncScope::Data).is_err());
    assert!(file.sync_range(10 * PAGE..11 * PAGE, SyncScope::Data).is_err(), "an untouched range (C8)");
    assert!(file.sync_range_async(0..PAGE, SyncScope::Data).wait().is_err());
}
