use super::*;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};

/// Runs `act` in a forked child, and returns its number.
pub(crate) fn in_child(act: impl FnOnce() -> u64) -> u64 {
    in_child_of(
        || {
            // SAFETY: the child calls `act` and ends.
            unsafe { libc::fork() }
        },
        act,
    )
}

/// The same, with another way to fork.
fn in_child_of(fork: impl FnOnce() -> libc::pid_t, act: impl FnOnce() -> u64) -> u64 {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are ours.
    let (mut reader, mut writer) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    };
    match fork() {
        0 => {
            let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
            let code = said.map_or(1, |number| writer.write_all(&number.to_le_bytes()).map_or(2, |()| 0));
            // SAFETY: ends the child, and nothing of the parent's is touched on the way.
            unsafe { libc::_exit(code) }
        }
        child => {
            assert!(child > 0, "fork failed");
            drop(writer);
            let mut bytes = [0; 8];
            let read = reader.read_exact(&mut bytes);
            let mut status = 0;
            // SAFETY: our own child, waited for once.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child ends as it should");
            read.expect("the child has said something");
            u64::from_le_bytes(bytes)
        }
    }
}

#[test]
fn a_child_is_another_process_and_so_is_its_child() {
    let parent = Process::current();
    assert!(parent.is_current());
    assert_eq!(parent.check(), Ok(()));
    let differ = in_child(|| {
        let child = Process::current();
        let grandchild_differs = in_child(|| {
            let grandchild = Process::current();
            u64::from(grandchild != child && grandchild != parent && child.check() == Err(Forked))
        });
        u64::from(child != parent && parent.check() == Err(Forked)) + grandchild_differs
    });
    assert_eq!(differ, 2);
    assert!(parent.is_current(), "the parent stays what it was");
}

#[test]
fn a_child_that_no_handler_knows_of_is_another_process_too() {
    let parent = Process::current();
    let bare = || {
        // SAFETY: like a fork, without the C library's handlers.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t }
    };
    assert_eq!(in_child_of(bare, || u64::from(!parent.is_current())), 1);
}

#[test]
fn a_bound_value_is_neither_lent_nor_dropped_in_a_child() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, SeqCst);
        }
    }
    let mut bound = Some(ProcessBound::new(Counted));
    let mut taken = Some(ProcessBound::new(Counted));
    let dropped = in_child(|| {
        assert!(bound.as_ref().unwrap().get().is_err());
        assert!(bound.as_mut().unwrap().get_mut().is_err());
        bound = None;
        assert!(taken.take().unwrap().take().is_err());
        DROPPED.load(SeqCst) as u64
    });
    assert_eq!(dropped, 0);
    drop(bound);
    assert_eq!(DROPPED.load(SeqCst), 1, "the parent's is its own");
    drop(taken.take().unwrap().take());
    assert_eq!(DROPPED.load(SeqCst), 2);
}

#[test]
fn each_process_has_a_static_of_its_own() {
    static COUNT: PerProcess<AtomicU64> = PerProcess::new(|| AtomicU64::new(7));
    assert_eq!(COUNT.get().fetch_add(1, SeqCst), 7);
    assert_eq!(in_child(|| COUNT.get().load(SeqCst)), 7);
    assert_eq!(COUNT.get().load(SeqCst), 8);
}

#[test]
fn a_private_descriptor_is_closed_in_a_child_and_another_files_number_is_left_alone() {
    let mut private = Some(Private::open(|| File::open("/dev/null")).unwrap());
    let number = private.as_ref().unwrap().as_raw_fd();
    let is_open = || {
        // SAFETY: asks for flags.
        unsafe { libc::fcntl(number, libc::F_GETFD) != -1 }
    };
    let said = in_child(|| {
        let closed = !is_open();
        // Takes the lowest free numbers, the private one's among them.
        let files: Vec<File> = (0..64).map(|_| File::open("/dev/zero").unwrap()).collect();
        assert!(files.iter().any(|file| file.as_raw_fd() == number));
        private = None;
        u64::from(closed && is_open())
    });
    assert_eq!(said, 1);
    assert!(is_open());
}

#[test]
fn no_child_keeps_a_lock_however_forks_and_opens_meet() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("private");
    File::create(&path).unwrap();
    let opens = AtomicUsize::new(0);
    let ended = AtomicBool::new(false);
    let mut children = Vec::new();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| {
            let mut kept = 0;
            while !ended.load(SeqCst) {
                let private = Private::open(|| File::open(&path)).unwrap();
                rustix::fs::flock(&*private, FlockOperation::LockExclusive).unwrap();
                // As when the process is killed: closed without an unlock, while it is still in the list.
                private.close_as_if_killed();
                let next = File::open(&path).unwrap();
                // A program that another test starts has the descriptor until it is executed: for a moment. A child
                // keeps it for good.
                let free = (0..1000).any(|_| {
                    let locked = rustix::fs::flock(&next, FlockOperation::NonBlockingLockExclusive);
                    locked.is_ok() || {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                        false
                    }
                });
                let _ = rustix::fs::flock(&next, FlockOperation::Unlock);
                kept += usize::from(!free);
                opens.fetch_add(1, SeqCst);
                if kept > 0 {
                    break;
                }
            }
            kept
        });
        while !opener.is_finished() && (children.len() < 60 || opens.load(SeqCst) < 600) {
            if children.len() < 200 {
                // SAFETY: the child does nothing but wait for its end.
                match unsafe { libc::fork() } {
                    0 => loop {
                        // SAFETY: waits for a signal.
                        unsafe { libc::pause() };
                    },
                    child => children.push(child),
                }
            }
        }
        ended.store(true, SeqCst);
        let kept = opener.join().unwrap();
        for child in &children {
            // SAFETY: our own child, killed and waited for once.
            unsafe {
                libc::kill(*child, libc::SIGKILL);
                libc::waitpid(*child, null_mut(), 0);
            }
        }
        assert_eq!(kept, 0, "a child keeps the lock of a file that its parent has left");
    });
}

#[test]
fn a_child_opens_nothing_if_something_was_in_use_when_it_was_forked_and_neither_do_its_children() {
    let in_use = InUse::begin().unwrap();
    let refused = || u64::from(InUse::begin().is_err());
    assert_eq!(in_child(|| refused() + in_child(refused)), 2);
    let bare = || {
        // SAFETY: like a fork, without the C library's handlers.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t }
    };
    assert_eq!(in_child_of(bare, refused), 1);
    drop(in_use);
    assert!(InUse::begin().is_ok(), "the parent goes on");
}
