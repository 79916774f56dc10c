//! Tickets of syncs that were started by an ioctl: what became of each, until its owner has been told.
//!
//! A ticket belongs to the open file description that it was started on and ends with it; the sync does not. It is on
//! the account of the user who has started it (`ledger`). Whoever waits for a ticket leaves his reply here and holds
//! no thread.
//!
//! Lock: `open`, and the ledger's in it; replies are sent without it.

use crate::ledger::Ledger;
use fusering::{Errno, ReplyIoctl};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use syncline_fs::HandleId;

/// Tickets that one open file may have at once.
const TICKETS_MAX: usize = 65536;

enum Stage {
    /// And who waits for it.
    UnderWay(Vec<ReplyIoctl>),
    Ended(Result<(), Errno>),
}

struct Ticket {
    /// On whose account it is.
    uid: u32,
    stage: Stage,
}

pub(crate) struct Tickets {
    // Constant.
    ledger: Arc<Ledger>,
    next: AtomicU64,
    open: Mutex<HashMap<HandleId, HashMap<u64, Ticket>>>,
}

impl Tickets {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Tickets {
        Tickets { ledger, next: AtomicU64::new(0), open: Mutex::default() }
    }

    /// A new ticket. Errors: EAGAIN when the file or the user has too many that nobody asked about.
    pub(crate) fn issue(&self, handle: HandleId, uid: u32) -> Result<u64, Errno> {
        let number = self.next.fetch_add(1, Relaxed) + 1;
        let mut open = self.open.lock();
        if open.get(&handle).is_some_and(|of_file| of_file.len() >= TICKETS_MAX) {
            return Err(Errno::EAGAIN);
        }
        self.ledger.issue_ticket(uid)?;
        let ticket = Ticket { uid, stage: Stage::UnderWay(Vec::new()) };
        open.entry(handle).or_default().insert(number, ticket);
        Ok(number)
    }

    /// Takes a ticket away, and gives back what it was counted as.
    fn end(&self, of_file: &mut HashMap<u64, Ticket>, number: u64) -> Option<Stage> {
        let ticket = of_file.remove(&number)?;
        self.ledger.drop_tickets(ticket.uid, 1);
        Some(ticket.stage)
    }

    /// The sync has ended.
    pub(crate) fn complete(&self, handle: HandleId, number: u64, result: Result<(), Errno>) {
        let waiters = {
            let mut open = self.open.lock();
            let Some(of_file) = open.get_mut(&handle) else { return };
            let Some(ticket) = of_file.get_mut(&number) else { return };
            match std::mem::replace(&mut ticket.stage, Stage::Ended(result)) {
                Stage::UnderWay(waiters) if !waiters.is_empty() => {
                    drop(self.end(of_file, number));
                    waiters
                }
                _ => return,
            }
        };
        for waiter in waiters {
            answer(waiter, result);
        }
    }

    /// How the sync ended, `None` if it has not. Once told, the ticket is gone. Errors: EINVAL, there is no such
    /// ticket.
    pub(crate) fn poll(&self, handle: HandleId, number: u64) -> Result<Option<Result<(), Errno>>, Errno> {
        let mut open = self.open.lock();
        let of_file = open.get_mut(&handle).ok_or(Errno::EINVAL)?;
        match of_file.get(&number).ok_or(Errno::EINVAL)?.stage {
            Stage::UnderWay(_) => Ok(None),
            Stage::Ended(result) => {
                drop(self.end(of_file, number));
                Ok(Some(result))
            }
        }
    }

    /// Answers once the sync has ended. The ticket is gone then.
    pub(crate) fn wait(&self, handle: HandleId, number: u64, reply: ReplyIoctl) {
        let result = {
            let mut open = self.open.lock();
            let of_file = open.get_mut(&handle);
            match of_file.and_then(|of_file| Some((of_file.get_mut(&number)?.stage.ended(), of_file))) {
                None => Err(Errno::EINVAL),
                Some((Some(result), of_file)) => {
                    drop(self.end(of_file, number));
                    result
                }
                Some((None, of_file)) => {
                    let ticket =
                        of_file.get_mut(&number).expect("it was there a moment ago, under the same lock");
                    if let Stage::UnderWay(waiters) = &mut ticket.stage {
                        waiters.push(reply);
                    }
                    return;
                }
            }
        };
        answer(reply, result);
    }

    /// The open file is gone.
    pub(crate) fn forget(&self, handle: HandleId) {
        // Replies in it are dropped without the lock; the kernel lets no call go on beyond its file.
        let Some(gone) = self.open.lock().remove(&handle) else { return };
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for ticket in gone.values() {
            *counts.entry(ticket.uid).or_default() += 1;
        }
        for (uid, count) in counts {
            self.ledger.drop_tickets(uid, count);
        }
    }
}

impl Stage {
    /// How the sync ended, if it has.
    fn ended(&self) -> Option<Result<(), Errno>> {
        match self {
            Stage::UnderWay(_) => None,
            Stage::Ended(result) => Some(*result),
        }
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

    use crate::ledger::{TICKETS_MAX as TICKETS_OF_USER_MAX, Totals};
    use syncline::Volume;

    const FILE: HandleId = HandleId(7);
    const USER: u32 = 1000;

    fn tickets() -> (Volume, Tickets) {
        let volume = Volume::create_in_memory(16 << 20).expect("a volume");
        let ledger = Arc::new(Ledger::new(volume.inner().clone()));
        (volume, Tickets::new(ledger))
    }

    #[test]
    fn a_result_is_told_once_and_only_for_its_file() {
        let (_volume, tickets) = tickets();
        let (one, two) = (tickets.issue(FILE, USER).unwrap(), tickets.issue(FILE, USER).unwrap());
        assert_eq!(tickets.poll(FILE, one), Ok(None));
        tickets.complete(FILE, one, Err(Errno::EIO));
        assert_eq!(tickets.poll(HandleId(8), one), Err(Errno::EINVAL));
        assert_eq!(tickets.poll(FILE, one), Ok(Some(Err(Errno::EIO))));
        assert_eq!(tickets.poll(FILE, one), Err(Errno::EINVAL));
        tickets.complete(FILE, two, Ok(()));
        assert_eq!(tickets.poll(FILE, two), Ok(Some(Ok(()))));
        assert_eq!(tickets.ledger.totals(), Totals::default());
    }

    #[test]
    fn tickets_are_bounded_for_a_file_and_for_a_user_and_end_with_their_file() {
        let (volume, tickets) = tickets();
        let first = tickets.issue(FILE, USER).unwrap();
        for number in 1..TICKETS_MAX {
            tickets.issue(FILE, USER + number as u32 % 2).unwrap();
        }
        assert_eq!(tickets.issue(FILE, 0), Err(Errno::EAGAIN), "the file has as many as it can have");
        for number in TICKETS_MAX / 2..TICKETS_OF_USER_MAX {
            tickets.issue(HandleId(8 + number as u64), USER).unwrap();
        }
        assert_eq!(tickets.issue(HandleId(8), USER), Err(Errno::EAGAIN), "and so has the user");
        assert!(tickets.issue(HandleId(8), USER + 1).is_ok());
        let charged = volume.inner().charged_bytes();
        assert!(charged >= 64 * (TICKETS_MAX + TICKETS_OF_USER_MAX / 2) as u64, "{charged} bytes");
        tickets.forget(FILE);
        assert_eq!(tickets.poll(FILE, first), Err(Errno::EINVAL));
        tickets.complete(FILE, first, Ok(()));
        assert!(tickets.open.lock().get(&FILE).is_none(), "nothing is kept for a file that is gone");
        assert!(tickets.issue(HandleId(8), USER).is_ok());
        (8..8 + TICKETS_OF_USER_MAX as u64).for_each(|file| tickets.forget(HandleId(file)));
        assert_eq!((tickets.ledger.totals(), volume.inner().charged_bytes()), (Totals::default(), 0));
    }
}
