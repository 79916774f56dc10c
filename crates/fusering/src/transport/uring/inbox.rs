//! Answers on their way to the thread that owns a queue.
//!
//! Only that thread may submit to its ring. Others leave their answers here and ring the bell, an eventfd that the ring
//! polls, but only when the thread sleeps or is about to: an answer left while it is awake costs no system call.
//!
//! Invariant: if `answers` is not empty, the thread is awake or the bell has been rung since it went to sleep. Both are
//! decided under the one lock, so there is no order of events that loses an answer.

use super::memory::EntryIndex;
use crate::memory::PageBuffer;
use crate::reply::slot::ShortAnswer;
use crate::transport::streams::STREAMING_BYTES_MIN;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// What an entry's request is to be answered with, and where those bytes are.
pub(super) enum Content {
    /// An error number, or up to a few dozen bytes.
    Short(ShortAnswer),
    /// The first bytes of the entry's payload.
    InPlace(usize),
    /// Bytes of a longer answer that could not be put in place while the request was still being read.
    Copied(Vec<u8>),
    /// The first bytes of memory of the filesystem's own.
    Buffer(PageBuffer, usize),
}

/// One answer.
pub(super) struct Outgoing {
    pub entry: EntryIndex,
    /// The kernel's number of the request that is answered.
    pub unique: u64,
    pub content: Content,
}

impl Outgoing {
    /// Whether it is part of a stream: so long that it matters on which CPU the kernel copies it.
    pub fn streams(&self) -> bool {
        let bytes = match &self.content {
            Content::Short(_) => 0,
            Content::InPlace(bytes) | Content::Buffer(_, bytes) => *bytes,
            Content::Copied(data) => data.len(),
        };
        bytes >= STREAMING_BYTES_MIN
    }
}

/// Where other threads leave answers.
pub(super) struct Inbox {
    state: Mutex<State>,
    bell: OwnedFd,
    rings: AtomicU64,
}

struct State {
    answers: Vec<Outgoing>,
    /// The thread sleeps, or will without looking here again.
    sleeping: bool,
    /// Of a deputy: it has an entry, or an answer that brings it one.
    taken: bool,
    ending: Ending,
    /// The thread is gone: answers are lost.
    closed: bool,
}

/// Why the queue's thread is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// It is not.
    No,
    /// The connection has ended: as soon as the kernel has returned all entries.
    Ended,
    /// Registration failed elsewhere and this queue will get no requests: at once.
    Abandoned,
}

/// What the queue's thread finds when it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing: it may sleep, the bell will wake it.
    MaySleep,
    /// Something came in.
    News,
}

impl Inbox {
    pub fn new() -> io::Result<Inbox> {
        // SAFETY: eventfd takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: eventfd returned a new descriptor that nobody else owns.
        let bell = unsafe { OwnedFd::from_raw_fd(fd) };
        let state =
            State { answers: Vec::new(), sleeping: false, taken: false, ending: Ending::No, closed: false };
        Ok(Inbox { state: Mutex::new(state), bell, rings: AtomicU64::new(0) })
    }

    /// The descriptor that becomes readable when the thread must wake up.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// How often a sleeping thread was woken.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::Relaxed)
    }

    /// Leaves answers; wakes the thread at most once.
    pub fn leave(&self, answers: impl IntoIterator<Item = Outgoing>) {
        let wake = {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.answers.extend(answers);
            // What is left for a deputy brings it an entry too.
            state.taken |= !state.answers.is_empty();
            !state.answers.is_empty() && std::mem::take(&mut state.sleeping)
        };
        if wake {
            self.ring();
        }
    }

    /// Leaves a deputy the answer that brings it its entry; returns it if the deputy has one, or is gone.
    pub fn leave_if_free(&self, answer: Outgoing) -> Option<Outgoing> {
        let wake = {
            let mut state = self.state.lock();
            if state.taken || state.closed || state.ending != Ending::No {
                return Some(answer);
            }
            state.taken = true;
            state.answers.push(answer);
            std::mem::take(&mut state.sleeping)
        };
        if wake {
            self.ring();
        }
        None
    }

    /// For a deputy that has no entry: another one may be brought, unless one is on its way.
    pub fn vacate(&self) {
        let mut state = self.state.lock();
        state.taken = !state.answers.is_empty();
    }

    /// Tells the thread to end.
    pub fn end(&self, why: Ending) {
        let wake = {
            let mut state = self.state.lock();
            state.ending = state.ending.max(why);
            std::mem::take(&mut state.sleeping)
        };
        if wake {
            self.ring();
        }
    }

    /// For the thread: takes all answers into `into`, which must be empty.
    pub fn take(&self, into: &mut Vec<Outgoing>) -> Ending {
        debug_assert!(into.is_empty());
        let mut state = self.state.lock();
        state.sleeping = false;
        std::mem::swap(&mut state.answers, into);
        state.ending
    }

    /// For the thread, before it sleeps. `known`: what [`Inbox::take`] told it.
    pub fn look_before_sleep(&self, known: Ending) -> Look {
        let mut state = self.state.lock();
        if !state.answers.is_empty() || state.ending != known {
            return Look::News;
        }
        state.sleeping = true;
        Look::MaySleep
    }

    /// For the thread, when it ends: answers that are there or come later are lost.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.answers = Vec::new();
    }

    fn ring(&self) {
        self.rings.fetch_add(1, Ordering::Relaxed);
        let one = 1u64.to_ne_bytes();
        loop {
            // SAFETY: eight readable bytes, which is what an eventfd takes.
            let written = unsafe { libc::write(self.bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            // EAGAIN (the counter is full) cannot come before 2^64 - 2 rings; EINTR is the only other error.
            if written >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(unique: u64) -> Outgoing {
        Outgoing { entry: EntryIndex(0), unique, content: Content::InPlace(0) }
    }

    #[test]
    fn a_thread_that_is_awake_is_not_woken() {
        let inbox = Inbox::new().expect("eventfds are to be had");
        inbox.leave([answer(1)]);
        assert_eq!(inbox.rings(), 0);
        assert_eq!(inbox.look_before_sleep(Ending::No), Look::News);
        let mut found = Vec::new();
        assert_eq!(inbox.take(&mut found), Ending::No);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_sleeping_thread_is_woken_once_for_a_batch_and_for_what_follows_it() {
        let inbox = Inbox::new().expect("eventfds are to be had");
        assert_eq!(inbox.look_before_sleep(Ending::No), Look::MaySleep);
        inbox.leave((1..=64).map(answer));
        inbox.leave([answer(65)]);
        assert_eq!(inbox.rings(), 1);
        let mut found = Vec::new();
        inbox.take(&mut found);
        assert_eq!(found.len(), 65);
    }

    #[test]
    fn a_deputy_is_brought_one_answer_until_it_is_vacant_again() {
        let inbox = Inbox::new().expect("eventfds are to be had");
        assert!(inbox.leave_if_free(answer(1)).is_none());
        assert!(inbox.leave_if_free(answer(2)).is_some());
        inbox.vacate();
        assert!(inbox.leave_if_free(answer(3)).is_some(), "what brings it its entry is on its way");
        inbox.take(&mut Vec::new());
        assert!(inbox.leave_if_free(answer(4)).is_some(), "it has an entry");
        inbox.vacate();
        assert!(inbox.leave_if_free(answer(5)).is_none());
        inbox.take(&mut Vec::new());
        inbox.vacate();
        inbox.end(Ending::Ended);
        assert!(inbox.leave_if_free(answer(6)).is_some(), "nothing is brought to one that ends");
    }

    #[test]
    fn an_end_is_told_once() {
        let inbox = Inbox::new().expect("eventfds are to be had");
        inbox.end(Ending::Ended);
        assert_eq!(inbox.look_before_sleep(Ending::No), Look::News);
        assert_eq!(inbox.take(&mut Vec::new()), Ending::Ended);
        assert_eq!(inbox.look_before_sleep(Ending::Ended), Look::MaySleep);
        inbox.end(Ending::Ended);
        assert_eq!(inbox.rings(), 1);
    }

    #[test]
    fn answers_to_a_closed_inbox_are_lost() {
        let inbox = Inbox::new().expect("eventfds are to be had");
        inbox.close();
        inbox.leave([answer(1)]);
        let mut found = Vec::new();
        inbox.take(&mut found);
        assert!(found.is_empty());
    }
}
