//! Started syncs: what they cost, who drives them, what their tickets tell.
//!
//! The tests count threads and flushes, so they run one at a time.

#[path = "../../fs/tests/gate/mod.rs"]
mod gate;

use gate::{Closed, Gate};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use syncline::{File, OpenOptions, SyncScope, SyncTicket, Volume, VolumeOptions};

const MIB: usize = 1 << 20;
/// Ends no test that goes well.
const LONG: Duration = Duration::from_secs(60);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn open(gate: &Arc<Gate>) -> Volume {
    // Only what is synced is written.
    let options = VolumeOptions::new().commit_interval(Duration::from_secs(3600));
    options.open_device(gate.clone()).expect("open")
}

fn file(volume: &Volume, name: &str) -> File {
    let options = OpenOptions::new().read(true).write(true).create(true).clone();
    options.open(volume, name).expect("open a file")
}

/// Threads that the library has started.
fn library_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("syncline-")).count()
}

/// Opens a gate when the caller is likely to wait.
fn open_later(closed: Closed) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        drop(closed);
    })
}

/// Waits until the library's threads are so many: their names come and go a little late.
fn await_threads(count: usize) {
    let since = Instant::now();
    while library_threads() != count {
        assert!(since.elapsed() < LONG, "{} threads, not {count}", library_threads());
        std::thread::yield_now();
    }
}

// Shows: C5.
#[test]
fn ten_thousand_tickets_take_two_flushes_and_no_threads() {
    let _alone = alone();
    let gate = Gate::new(1 << 30);
    let volume = open(&gate);
    let files: Vec<File> = (0..100).map(|index| file(&volume, &format!("file{index}"))).collect();
    volume.sync_all().expect("sync");
    // One for maintenance, one for syncs.
    await_threads(2);
    let closed = gate.close();
    let flushes = gate.flushes();
    let mut tickets = Vec::new();
    for round in 0..100 {
        for (index, file) in files.iter().enumerate() {
            if index % 10 == round % 10 {
                file.write_at(&[round as u8; 100], 0).expect("write");
            }
            tickets.push(file.sync_async(SyncScope::All));
        }
    }
    assert_eq!(library_threads(), 2);
    assert!(SyncTicket::poll_many(&tickets).is_empty());
    assert!(SyncTicket::wait_any(&tickets, Some(Duration::from_millis(1))).is_empty());
    drop(closed);
    for ticket in &tickets {
        ticket.wait_timeout(LONG).expect("it ends").expect("it succeeds");
    }
    assert_eq!(SyncTicket::poll_many(&tickets).len(), 10_000);
    // The first one's group, and everybody else's.
    let taken = gate.flushes() - flushes;
    assert!((1..=2).contains(&taken), "{taken} flushes");
    assert_eq!(library_threads(), 2);
    let volume = open(&gate.after_power_cut());
    for index in 0..100 {
        let last =
            (0..100).rev().find(|round| round % 10 == index % 10).expect("every file was written") as u8;
        assert_eq!(volume.read(format!("file{index}")).expect("read"), vec![last; 100]);
    }
}

#[test]
fn syncs_that_could_not_be_committed_at_their_start_share_forces() {
    let _alone = alone();
    let gate = Gate::new(256 << 20);
    let volume = open(&gate);
    let files: Vec<File> = (0..200).map(|index| file(&volume, &format!("file{index}"))).collect();
    volume.sync_all().expect("sync");
    // Five pages are too many to be logged without waiting for data.
    files.iter().for_each(|file| file.write_all_at(&[7; 5 * 4096], 0).expect("write"));
    let flushes = gate.flushes();
    let closed = gate.close();
    let tickets: Vec<SyncTicket> = files.iter().map(|file| file.sync_async(SyncScope::All)).collect();
    drop(closed);
    for ticket in &tickets {
        ticket.wait_timeout(LONG).expect("it ends").expect("it succeeds");
    }
    let taken = gate.flushes() - flushes;
    assert!(taken <= 10, "{taken} flushes for 200 syncs");
}

#[test]
fn starting_a_large_sync_waits_for_no_write() {
    let _alone = alone();
    let gate = Gate::new(256 << 20);
    let volume = open(&gate);
    let large = file(&volume, "large");
    let small = file(&volume, "small");
    let content: Vec<u8> = (0..5 * MIB).map(|at| (at / 4096 + at) as u8).collect();
    large.write_all_at(&content, 0).expect("write");
    let closed = gate.close();
    let ticket = large.sync_async(SyncScope::Data);
    small.write_at(b"small", 0).expect("write");
    let behind = small.sync_async(SyncScope::All);
    assert!(!ticket.is_complete());
    assert!(ticket.wait_timeout(Duration::from_millis(5)).is_none());
    drop(closed);
    ticket.wait().expect("the large sync");
    behind.wait().expect("the small sync");
    let volume = open(&gate.after_power_cut());
    assert!(volume.read("large").expect("read") == content);
    assert_eq!(volume.read("small").expect("read"), b"small");
}

// Shows: C5.
#[test]
fn a_sync_whose_ticket_file_and_volume_are_dropped_is_carried_out_and_leaves_nothing() {
    let _alone = alone();
    for bytes in [100, 3 * MIB] {
        let gate = Gate::new(64 << 20);
        let volume = open(&gate);
        let file = file(&volume, "file");
        file.write_all_at(&vec![7; bytes], 0).expect("write");
        let closed = gate.close();
        drop(file.sync_async(SyncScope::All));
        let engine = Arc::downgrade(volume.inner());
        let opening = open_later(closed);
        drop(file);
        drop(volume);
        opening.join().expect("the gate opens");
        assert!(engine.upgrade().is_none(), "the engine is still held");
        let volume = open(&gate.after_power_cut());
        assert!(volume.read("file").expect("read") == vec![7; bytes]);
    }
}

#[test]
fn every_ticket_tells_the_error_and_so_do_later_ones() {
    let _alone = alone();
    let gate = Gate::new(64 << 20);
    let volume = open(&gate);
    let files: Vec<File> = (0..10).map(|index| file(&volume, &format!("file{index}"))).collect();
    volume.sync_all().expect("sync");
    let closed = gate.close();
    let mut tickets = Vec::new();
    for (index, file) in files.iter().enumerate() {
        // Every third one has more to commit than can be committed at once.
        file.write_all_at(&vec![1; if index % 3 == 0 { MIB / 2 } else { 10 }], 0).expect("write");
        tickets.push(file.sync_async(SyncScope::All));
    }
    gate.fail_flushes();
    drop(closed);
    for ticket in &tickets {
        assert!(ticket.wait_timeout(LONG).expect("it ends").is_err());
        assert!(ticket.wait().is_err(), "it stays");
    }
    // Also of a file that was not touched (C8).
    let untouched = files[0].sync_async(SyncScope::Data);
    assert!(untouched.is_complete());
    assert!(untouched.wait().is_err());
    assert!(volume.sync_many(&files).is_err());
}

/// Runs futures to their ends on this thread.
struct Executor {
    thread: Thread,
    woken: AtomicUsize,
}

impl Wake for Executor {
    fn wake(self: Arc<Executor>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// How often the executor was woken.
fn run<F: Future<Output = std::io::Result<()>> + Unpin>(mut futures: Vec<F>) -> usize {
    let executor = Arc::new(Executor { thread: std::thread::current(), woken: AtomicUsize::new(0) });
    let waker = Waker::from(executor.clone());
    while !futures.is_empty() {
        let mut context = Context::from_waker(&waker);
        futures.retain_mut(|future| match Pin::new(future).poll(&mut context) {
            Poll::Ready(result) => {
                result.expect("the sync succeeds");
                false
            }
            Poll::Pending => true,
        });
        if !futures.is_empty() {
            std::thread::park();
        }
    }
    executor.woken.load(Ordering::SeqCst)
}

#[test]
fn tickets_are_futures_that_wake_once() {
    let _alone = alone();
    let gate = Gate::new(64 << 20);
    let volume = open(&gate);
    let files: Vec<File> = (0..50).map(|index| file(&volume, &format!("file{index}"))).collect();
    volume.sync_all().expect("sync");
    let closed = gate.close();
    let write_and_sync = |file: &File| {
        file.write_at(b"content", 0).expect("write");
        file.sync_async(SyncScope::All)
    };
    let tickets: Vec<SyncTicket> = files.iter().map(write_and_sync).collect();
    let opening = open_later(closed);
    let woken = run(tickets);
    assert!(woken <= 50, "{woken} wakes of 50 futures");
    opening.join().expect("the gate opens");
    let volume = open(&gate.after_power_cut());
    assert_eq!(volume.read("file49").expect("read"), b"content");
}

#[test]
fn without_a_thread_polling_and_waiting_drive_the_sync() {
    let _alone = alone();
    let gate = Gate::new(64 << 20);
    let volume = VolumeOptions::new().background(false).open_device(gate.clone()).expect("open");
    await_threads(0);
    let file = file(&volume, "file");
    for content in [vec![1; 10], vec![2; MIB]] {
        for way in 0..4 {
            file.write_all_at(&content, 0).expect("write");
            let ticket = file.sync_async(SyncScope::All);
            match way {
                0 => drop(run(vec![ticket])),
                1 => ticket.wait().expect("it succeeds"),
                2 => ticket.wait_timeout(LONG).expect("it ends").expect("it succeeds"),
                _ => assert_eq!(SyncTicket::wait_any(&[ticket], None), [0]),
            }
        }
    }
    assert_eq!(library_threads(), 0);
    let volume = open(&gate.after_power_cut());
    assert!(volume.read("file").expect("read") == vec![2; MIB]);
}

#[test]
fn many_files_are_synced_by_one_flush() {
    let _alone = alone();
    let gate = Gate::new(64 << 20);
    let volume = open(&gate);
    let files: Vec<File> = (0..200).map(|index| file(&volume, &format!("file{index}"))).collect();
    for file in &files {
        file.write_at(&[9; 5000], 0).expect("write");
    }
    let flushes = gate.flushes();
    volume.sync_many(&files).expect("sync");
    assert_eq!(gate.flushes() - flushes, 1);
    volume.sync_many(&files).expect("sync");
    assert_eq!(gate.flushes() - flushes, 1, "there was nothing to do (C8a)");
    let other = Volume::create_in_memory(64 << 20).expect("another volume");
    let error = other.sync_many(&files).expect_err("files of another volume");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let volume = open(&gate.after_power_cut());
    for index in 0..200 {
        assert_eq!(volume.read(format!("file{index}")).expect("read"), [9; 5000]);
    }
}
