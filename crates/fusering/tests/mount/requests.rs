//! Requests and answers apart from what files do: many in flight, late answers, interruptions, notifications.

use crate::harness::{Mounted, Test, check, errno, over_both_transports, wait_until};
use crate::scripted::{CACHED, Scripted};
use fusering::abi::InitFlags;
use fusering::{Config, Errno, NodeId, ReplyBatch};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

over_both_transports!(
    sixty_four_requests_wait_and_are_answered_by_another_thread,
    requests_go_on_while_syncs_wait,
    a_batch_carries_errors_and_successes,
    an_interrupted_request_is_told_and_given_up,
    a_dropped_reply_is_an_error_to_the_caller,
    what_is_written_lies_on_a_page_boundary,
    pollers_are_woken,
    cached_data_is_invalidated_stored_and_retrieved,
    names_are_invalidated,
    locks_wait_for_each_other,
);

fn mounted(test: &Test, filesystem: Scripted) -> Option<Mounted<Scripted>> {
    let config = Config::default();
    let wanted = config.wanted | InitFlags::POSIX_LOCKS;
    test.mount(filesystem, config.wanted(wanted))
}

/// Files whose syncs are kept.
fn held(mount: &Mounted<Scripted>, files: usize) -> Vec<File> {
    (0..files).map(|number| File::open(mount.path(&format!("held{number}"))).expect("open")).collect()
}

fn sixty_four_requests_wait_and_are_answered_by_another_thread(test: &Test) {
    const CLIENTS: usize = 64;
    let Some(mount) = mounted(test, Scripted::default()) else { return };
    let files = held(&mount, CLIENTS);
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| file.sync_all().expect("sync"));
        }
        wait_until("all wait", || mount.filesystem.state().kept.len() == CLIENTS);
        let kept = std::mem::take(&mut mount.filesystem.state().kept);
        scope.spawn(move || {
            let mut batch = ReplyBatch::new();
            kept.into_values().for_each(|reply| batch.ok(reply));
            assert_eq!(batch.len(), CLIENTS);
            batch.send();
        });
    });
    assert!(mount.filesystem.state().kept.is_empty());
}

fn requests_go_on_while_syncs_wait(test: &Test) {
    let Some(mount) = mounted(test, Scripted::default()) else { return };
    // More than there are threads that read requests.
    let files = held(&mount, 40);
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| file.sync_all().expect("sync"));
        }
        wait_until("all wait", || mount.filesystem.state().kept.len() == 40);
        let other = File::open(mount.path("cached")).expect("open");
        for _ in 0..100 {
            other.sync_all().expect("a sync of another file is answered");
        }
        let kept = std::mem::take(&mut mount.filesystem.state().kept);
        kept.into_values().for_each(|reply| reply.ok());
    });
}

fn a_batch_carries_errors_and_successes(test: &Test) {
    let Some(mount) = mounted(test, Scripted::default()) else { return };
    let files = held(&mount, 10);
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = files.iter().map(|file| scope.spawn(|| file.sync_all())).collect();
        wait_until("all wait", || mount.filesystem.state().kept.len() == 10);
        let kept = std::mem::take(&mut mount.filesystem.state().kept);
        let mut batch = ReplyBatch::new();
        for (number, reply) in kept.into_values().enumerate() {
            match number {
                0..4 => batch.error(reply, Errno::ENOSPC),
                _ => batch.ok(reply),
            }
        }
        batch.send();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    let failed = results.iter().filter(|result| result.is_err());
    assert_eq!(failed.clone().count(), 4);
    assert!(
        failed
            .into_iter()
            .all(|result| { result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOSPC)) })
    );
}

extern "C" fn nothing(_: libc::c_int) {}

/// Makes SIGUSR1 interrupt system calls instead of ending the process.
fn let_signals_interrupt() {
    // SAFETY: the handler does nothing; without SA_RESTART calls end with EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}

fn an_interrupted_request_is_told_and_given_up(test: &Test) {
    let Some(mount) = mounted(test, Scripted::default()) else { return };
    let_signals_interrupt();
    let file = File::open(mount.path("held")).expect("open");
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: no preconditions.
            sender.send(unsafe { libc::pthread_self() }).expect("receiver");
            // The standard library would try again.
            // SAFETY: an open descriptor.
            check(i64::from(unsafe { libc::fsync(file.as_raw_fd()) }))
        });
        let id = receiver.recv().expect("sender");
        wait_until("it waits", || mount.filesystem.state().kept.len() == 1);
        let request = *mount.filesystem.state().kept.keys().next().expect("one");
        // SAFETY: the thread is not joined yet.
        unsafe { libc::pthread_kill(id, libc::SIGUSR1) };
        assert_eq!(errno(thread.join().expect("no panic")), libc::EINTR);
        assert!(mount.filesystem.state().interrupted.contains(&request));
    });
}

fn a_dropped_reply_is_an_error_to_the_caller(test: &Test) {
    let Some(mount) = mounted(test, Scripted::default()) else { return };
    let file = File::open(mount.path("dropped")).expect("open");
    assert_eq!(errno(file.read_at(&mut [0; 10], 0)), libc::EIO);
}

fn what_is_written_lies_on_a_page_boundary(test: &Test) {
    let Some(mount) = mounted(test, Scripted::default()) else { return };
    let file = File::options().write(true).open(mount.path("held")).expect("open");
    for bytes in [1, 512, 4096, 100_000] {
        // The filesystem looks; a panic there would be EIO here.
        assert_eq!(file.write_at(&vec![7; bytes], 3).expect("write"), bytes);
    }
}

fn pollers_are_woken(test: &Test) {
    let Some(mount) = mounted(test, Scripted::default()) else { return };
    let file = File::open(mount.path("polled")).expect("open");
    let poll = |timeout_ms| {
        let mut wanted = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&raw mut wanted, 1, timeout_ms) };
        check(i64::from(ready)).map(|_| wanted.revents)
    };
    assert_eq!(poll(0).expect("poll"), 0);
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| poll(60_000));
        wait_until("it is polled", || !mount.filesystem.state().polls.is_empty());
        mount.filesystem.state().ready = true;
        let handle = mount.filesystem.state().polls[0];
        mount.session.notifier().poll_wakeup(handle).expect("notify");
        assert_eq!(poller.join().expect("no panic").expect("poll"), libc::POLLIN);
    });
}

fn content(mount: &Mounted<Scripted>) -> Vec<u8> {
    fs::read(mount.path("cached")).expect("read")
}

fn cached_data_is_invalidated_stored_and_retrieved(test: &Test) {
    let Some(mount) = mounted(test, Scripted::default()) else { return };
    let set = |text: &[u8]| mount.filesystem.state().content = text.to_vec();
    set(b"first");
    assert_eq!(content(&mount), b"first");
    let reads = mount.filesystem.state().reads;
    assert_eq!(content(&mount), b"first");
    assert_eq!(mount.filesystem.state().reads, reads, "the kernel has it in its cache");
    set(b"other");
    assert_eq!(content(&mount), b"first", "as long as it is not told");
    let notifier = mount.session.notifier();
    notifier.invalidate_node(CACHED, 0, 0).expect("invalidate");
    assert_eq!(content(&mount), b"other");
    notifier.store(CACHED, 0, b"STORE").expect("store");
    assert_eq!(content(&mount), b"STORE");
    let id = notifier.retrieve(CACHED, 0, 5).expect("retrieve");
    wait_until("the data arrives", || !mount.filesystem.state().retrieved.is_empty());
    assert_eq!(mount.filesystem.state().retrieved, [(id, b"STORE".to_vec())]);
    let unknown = notifier.invalidate_node(NodeId(99), 0, 0);
    assert_eq!(errno(unknown), libc::ENOENT);
}

fn names_are_invalidated(test: &Test) {
    let Some(mount) = mounted(test, Scripted::default()) else { return };
    fs::metadata(mount.path("cached")).expect("stat");
    let notifier = mount.session.notifier();
    notifier.invalidate_entry(NodeId::ROOT, OsStr::new("cached")).expect("invalidate");
    assert_eq!(errno(notifier.invalidate_entry(NodeId::ROOT, OsStr::new("none"))), libc::ENOENT);
    fs::metadata(mount.path("cached")).expect("stat");
    notifier.expire_entry(NodeId::ROOT, OsStr::new("cached")).expect("expire");
    fs::metadata(mount.path("cached")).expect("stat");
    notifier.deleted(NodeId::ROOT, CACHED, OsStr::new("cached")).expect("delete");
    fs::metadata(mount.path("cached")).expect("it is looked up again");
}

fn lock(file: &File, kind: libc::c_int, command: libc::c_int) -> io::Result<libc::flock> {
    // SAFETY: a zeroed flock is valid, and the descriptor is open.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = kind as libc::c_short;
        lock.l_len = 10;
        check(i64::from(libc::fcntl(file.as_raw_fd(), command, &raw mut lock))).map(|_| lock)
    }
}

fn locks_wait_for_each_other(test: &Test) {
    let Some(mount) = mounted(test, Scripted::default()) else { return };
    let open = || File::options().read(true).write(true).open(mount.path("held")).expect("open");
    // Locks of open files, so that two of one process get in each other's way.
    let (first, second) = (open(), open());
    lock(&first, libc::F_WRLCK, libc::F_OFD_SETLK).expect("lock");
    assert_eq!(errno(lock(&second, libc::F_WRLCK, libc::F_OFD_SETLK)), libc::EAGAIN);
    let held = lock(&second, libc::F_WRLCK, libc::F_OFD_GETLK).expect("look");
    assert_eq!(i32::from(held.l_type), libc::F_WRLCK);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lock(&second, libc::F_WRLCK, libc::F_OFD_SETLKW));
        wait_until("it waits", || !mount.filesystem.state().lock_waiters.is_empty());
        lock(&first, libc::F_UNLCK, libc::F_OFD_SETLK).expect("unlock");
        waiter.join().expect("no panic").expect("locked");
    });
    lock(&second, libc::F_UNLCK, libc::F_OFD_SETLK).expect("unlock");
    assert!(mount.filesystem.state().lock.is_none());
}

/// A method that blocks its thread does not keep the others from reading.
fn others_go_on_while_a_thread_is_blocked(announces: bool, config: Config, blocked: usize) {
    let test = Test::new(fusering::TransportKind::Dev, "others_go_on_while_a_thread_is_blocked");
    let filesystem = Scripted { announces, ..Scripted::default() };
    let Some(mount) = test.mount(filesystem, config) else { return };
    let file = File::open(mount.path("blocked")).expect("open");
    let finished = Arc::new(AtomicBool::new(false));
    let together = Barrier::new(blocked);
    std::thread::scope(|scope| {
        for _ in 0..blocked {
            scope.spawn(|| {
                together.wait();
                let mut text = [0; 7];
                file.read_exact_at(&mut text, 0).expect("read");
                assert_eq!(&text, b"at last");
                assert!(finished.load(Ordering::SeqCst), "the gate opens last");
            });
        }
        wait_until("they are blocked", || mount.filesystem.state().blocked == blocked);
        for _ in 0..200 {
            file.sync_all().expect("sync");
            fs::metadata(mount.path("polled")).expect("stat");
        }
        finished.store(true, Ordering::SeqCst);
        mount.filesystem.open_gate();
    });
}

#[test]
fn others_go_on_while_threads_are_blocked_without_a_word() {
    others_go_on_while_a_thread_is_blocked(false, Config::default(), 7);
}

#[test]
fn others_go_on_while_threads_say_that_they_wait() {
    others_go_on_while_a_thread_is_blocked(true, Config::default(), 7);
}

#[test]
fn others_go_on_when_all_threads_read() {
    let config = Config::default();
    let dev = config.dev.spread(true).clone_descriptors(true);
    others_go_on_while_a_thread_is_blocked(false, config.dev(dev), 7);
}
