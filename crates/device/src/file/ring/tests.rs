use super::*;
use crate::{Buffer, Operation};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use syncline_format::{BLOCK_BYTES, BlockNo};

fn private(file: File) -> Private<File> {
    Private::open(|| file.try_clone()).unwrap()
}

/// A ring on a file that is written already and bypasses the page cache, so that requests really are in
/// flight; and another handle of the file to look at it.
fn ring(submission_entries: u32, in_flight_max: u32) -> (Ring, File) {
    let path = tempfile::NamedTempFile::new().unwrap();
    path.as_file().write_all_at(&vec![0; 2048 * BLOCK_BYTES], 0).unwrap();
    path.as_file().sync_all().unwrap();
    let direct = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(path.path());
    let file = direct.or_else(|_| File::options().read(true).write(true).open(path.path())).unwrap();
    let file = private(file);
    (Ring::with_limits(Arc::new(file), submission_entries, in_flight_max).unwrap(), path.into_file())
}

fn write(block: u64, content: u64, blocks: usize) -> Transfer {
    let buffer = |_| Arc::new(Buffer::from_bytes(&content.to_le_bytes().repeat(BLOCK_BYTES / 8)));
    Transfer::write(BlockNo(block), (0..blocks).map(buffer).collect())
}

fn content(file: &File, block: u64) -> u64 {
    let mut bytes = [0; BLOCK_BYTES];
    file.read_exact_at(&mut bytes, BlockNo(block).byte_offset()).unwrap();
    let content = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes[..], content.to_le_bytes().repeat(BLOCK_BYTES / 8));
    content
}

/// Fails the test, instead of hanging it, when a wakeup is lost.
fn within_a_minute(run: impl FnOnce() + Send + 'static) {
    let (done, finished) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        run();
        done.send(()).unwrap();
    });
    match finished.recv_timeout(Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("no progress: a wakeup was lost"),
        _ => thread.join().unwrap(),
    }
}

#[test]
fn no_wakeup_is_lost_among_many_waiters() {
    within_a_minute(|| {
        let (ring, file) = ring(8, 64);
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let ring = &ring;
                scope.spawn(move || {
                    for round in 0..1500u64 {
                        let at = thread * 64 + round % 16 * 4;
                        let first = ring.submit(write(at, round, 1));
                        let second = ring.submit(write(at + 1, round, 2));
                        if round % 7 == 0 {
                            ring.poll();
                        }
                        ring.wait(&second).unwrap();
                        ring.wait(&first).unwrap();
                        if round % 100 == 0 {
                            ring.poll();
                        }
                    }
                });
            }
        });
        for thread in 0..8 {
            assert_eq!(content(&file, thread * 64), 1488);
            assert_eq!(content(&file, thread * 64 + 15 * 4 + 2), 1487);
        }
    });
}

#[test]
fn ticket_is_waited_for_by_many_and_by_others_than_its_submitter() {
    within_a_minute(|| {
        let (ring, file) = ring(8, 64);
        let (ring, waits) = (&ring, &AtomicU64::new(0));
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..4).map(|_| std::sync::mpsc::channel::<Ticket>()).unzip();
        std::thread::scope(|scope| {
            for tickets in receivers {
                scope.spawn(move || {
                    for ticket in tickets {
                        ring.wait(&ticket).unwrap();
                        waits.fetch_add(1, Relaxed);
                    }
                });
            }
            scope.spawn(move || {
                for round in 0..2000 {
                    let ticket = ring.submit(write(round % 32, round, 1));
                    senders.iter().for_each(|sender| sender.send(ticket.clone()).unwrap());
                    if round % 32 == 31 {
                        ring.drain();
                    }
                }
            });
        });
        assert_eq!(waits.load(Relaxed), 4 * 2000);
        assert_eq!(content(&file, 5), 1989);
    });
}

#[test]
fn submitter_beyond_the_limit_waits_and_nothing_is_dropped() {
    within_a_minute(|| {
        let (ring, file) = ring(4, 8);
        let tickets: Vec<Ticket> = (0..500).map(|block| ring.submit(write(block, block + 1, 1))).collect();
        tickets.iter().for_each(|ticket| ring.wait(ticket).unwrap());
        (0..500).for_each(|block| assert_eq!(content(&file, block), block + 1));
        assert!(ring.requests.lock().slots.len() <= 8);
    });
}

#[test]
fn polling_alone_completes_requests() {
    within_a_minute(|| {
        let (ring, _file) = ring(8, 64);
        let tickets: Vec<Ticket> = (0..64).map(|block| ring.submit(write(block, 1, 1))).collect();
        while !tickets.iter().all(Ticket::is_complete) {
            ring.poll();
            std::thread::yield_now();
        }
    });
}

#[test]
fn list_longer_than_the_kernel_takes_is_written_whole() {
    let (ring, file) = ring(8, 64);
    ring.wait(&ring.submit(write(3, 77, super::super::transfer::SEGMENTS_MAX + 300))).unwrap();
    assert_eq!([3, 1026, 1027, 1326].map(|block| content(&file, block)), [77; 4]);
    assert_eq!(content(&file, 1327), 0);
}

#[test]
fn memory_is_released_before_the_ticket_completes() {
    let (ring, _file) = ring(8, 64);
    let mut buffer = Arc::new(Buffer::zeroed(1));
    for block in 0..100 {
        let transfer = Transfer::write(BlockNo(block), vec![Arc::clone(&buffer)]);
        ring.wait(&ring.submit(transfer)).unwrap();
        assert!(Arc::get_mut(&mut buffer).is_some());
    }
}

#[test]
fn failure_is_told_to_every_waiter_of_that_request_only() {
    let path = tempfile::NamedTempFile::new().unwrap();
    path.as_file().write_all_at(&[0; BLOCK_BYTES], 0).unwrap();
    let ring = Ring::new(Arc::new(private(File::open(path.path()).unwrap()))).unwrap();
    let failing = ring.submit(write(9, 1, 1));
    let mut block = Buffer::from_bytes(&[1; BLOCK_BYTES]);
    // SAFETY: `block` outlives the wait.
    let read = unsafe { Transfer::read(BlockNo(0), block.as_mut_ptr(), BLOCK_BYTES) };
    let read = ring.submit(read);
    let error = DeviceError::Io { operation: Operation::Write, block: BlockNo(9), errno: libc::EBADF };
    assert_eq!(ring.wait(&failing), Err(error.clone()));
    assert_eq!(ring.wait(&failing.clone()), Err(error));
    assert_eq!(ring.wait(&read), Ok(()));
    assert_eq!(*block, [0; BLOCK_BYTES]);
}

#[test]
fn requests_of_a_thread_that_has_ended_complete() {
    within_a_minute(|| {
        let (ring, file) = ring(8, 64);
        for round in 0..50 {
            let tickets: Vec<Ticket> = std::thread::scope(|scope| {
                let submit = || (0..32).map(|block| ring.submit(write(block, round, 4))).collect();
                scope.spawn(submit).join().unwrap()
            });
            tickets.iter().for_each(|ticket| ring.wait(ticket).unwrap());
        }
        assert_eq!(content(&file, 31), 49);
    });
}
