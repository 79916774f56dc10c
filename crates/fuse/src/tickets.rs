//! Tickets of syncs that were started by an ioctl: what became of each, until its owner has been told.
//!
//! A ticket belongs to the open file description that it was started on and ends with it; the sync does not. Whoever waits for
//! a ticket leaves his reply here and holds no thread.
//!
//! Lock: `open` is innermost; replies are sent without it.

use fusering::{Errno, ReplyIoctl};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use syncline::HandleId;

/// Tickets that one open file may have at once.
const TICKETS_MAX: usize = 65536;

enum Stage {
    /// And who waits for it.
    UnderWay(Vec<ReplyIoctl>),
    Ended(Result<(), Errno>),
}

#[derive(Default)]
pub(crate) struct Tickets {
    next: AtomicU64,
    open: Mutex<HashMap<HandleId, HashMap<u64, Stage>>>,
}

impl Tickets {
    /// A new ticket. Errors: EAGAIN when the file has too many that nobody asked about.
    pub(crate) fn issue(&self, handle: HandleId) -> Result<u64, Errno> {
        let ticket = self.next.fetch_add(1, Relaxed) + 1;
        let mut open = self.open.lock();
        let of_file = open.entry(handle).or_default();
        if of_file.len() >= TICKETS_MAX {
            return Err(Errno::EAGAIN);
        }
        of_file.insert(ticket, Stage::UnderWay(Vec::new()));
        Ok(ticket)
    }

    /// The sync has ended.
    pub(crate) fn complete(&self, handle: HandleId, ticket: u64, result: Result<(), Errno>) {
        let waiters = {
            let mut open = self.open.lock();
            let Some(of_file) = open.get_mut(&handle) else { return };
            match of_file.remove(&ticket) {
                Some(Stage::UnderWay(waiters)) if !waiters.is_empty() => waiters,
                Some(_) => {
                    of_file.insert(ticket, Stage::Ended(result));
                    return;
                }
                None => return,
            }
        };
        for waiter in waiters {
            answer(waiter, result);
        }
    }

    /// How the sync ended, `None` if it has not. Once told, the ticket is gone. Errors: EINVAL, there is no such ticket.
    pub(crate) fn poll(&self, handle: HandleId, ticket: u64) -> Result<Option<Result<(), Errno>>, Errno> {
        let mut open = self.open.lock();
        let of_file = open.get_mut(&handle).ok_or(Errno::EINVAL)?;
        match of_file.get(&ticket).ok_or(Errno::EINVAL)? {
            Stage::UnderWay(_) => Ok(None),
            Stage::Ended(result) => {
                let result = *result;
                of_file.remove(&ticket);
                Ok(Some(result))
            }
        }
    }

    /// Answers once the sync has ended. The ticket is gone then.
    pub(crate) fn wait(&self, handle: HandleId, ticket: u64, reply: ReplyIoctl) {
        let result = {
            let mut open = self.open.lock();
            let of_file = open.get_mut(&handle);
            match of_file.and_then(|of_file| of_file.remove(&ticket).map(|stage| (of_file, stage))) {
                None => Err(Errno::EINVAL),
                Some((_, Stage::Ended(result))) => result,
                Some((of_file, Stage::UnderWay(mut waiters))) => {
                    waiters.push(reply);
                    of_file.insert(ticket, Stage::UnderWay(waiters));
                    return;
                }
            }
        };
        answer(reply, result);
    }

    /// The open file is gone.
    pub(crate) fn forget(&self, handle: HandleId) {
        // Replies in it are dropped without the lock; the kernel lets no call go on beyond its file.
        let gone = self.open.lock().remove(&handle);
        drop(gone);
    }
}

fn answer(reply: ReplyIoctl, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.output(0, &[]),
        Err(errno) => reply.error(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: HandleId = HandleId(7);

    #[test]
    fn a_result_is_told_once_and_only_for_its_file() {
        let tickets = Tickets::default();
        let (one, two) = (tickets.issue(FILE).unwrap(), tickets.issue(FILE).unwrap());
        assert_eq!(tickets.poll(FILE, one), Ok(None));
        tickets.complete(FILE, one, Err(Errno::EIO));
        assert_eq!(tickets.poll(HandleId(8), one), Err(Errno::EINVAL));
        assert_eq!(tickets.poll(FILE, one), Ok(Some(Err(Errno::EIO))));
        assert_eq!(tickets.poll(FILE, one), Err(Errno::EINVAL));
        tickets.complete(FILE, two, Ok(()));
        assert_eq!(tickets.poll(FILE, two), Ok(Some(Ok(()))));
    }

    #[test]
    fn tickets_are_bounded_and_end_with_their_file() {
        let tickets = Tickets::default();
        let first = tickets.issue(FILE).unwrap();
        for _ in 1..TICKETS_MAX {
            tickets.issue(FILE).unwrap();
        }
        assert_eq!(tickets.issue(FILE), Err(Errno::EAGAIN));
        assert!(tickets.issue(HandleId(8)).is_ok());
        tickets.forget(FILE);
        assert_eq!(tickets.poll(FILE, first), Err(Errno::EINVAL));
        tickets.complete(FILE, first, Ok(()));
        assert!(tickets.open.lock().get(&FILE).is_none(), "nothing is kept for a file that is gone");
    }
}
