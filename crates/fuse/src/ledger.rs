//! What each user has open in groups and tickets, so that nobody takes more than a share of what all use.
//!
//! A group holds memory beyond the caches, and free space that nobody sees as used. Both are counted for the user who
//! has begun it. Groups and tickets are limited by number for everybody; memory and space for everybody but root and
//! whoever runs the daemon, who have other means. What is in memory also counts against the volume's bound:
//! transactions tell the engine themselves, tickets are told here.
//!
//! A limit is asked before something is staged and what came of it is booked afterwards, so calls that run at once
//! may go beyond it by what each of them stages.
//!
//! Lock: `users` is innermost.

use fusering::Errno;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use syncline_fs::{Footprint, Fs, MemoryCharge};

/// Groups that one user may have open, all open files together. Each is a transaction of the engine.
pub(crate) const GROUPS_MAX: usize = 1024;
/// Tickets that one user may have, all open files together.
pub(crate) const TICKETS_MAX: usize = 65536;
/// What a ticket takes in memory, tables included.
const TICKET_BYTES: u64 = 128;
/// Share of the bound on all memory that one user may stage.
const MEMORY_SHARE: u64 = 8;
/// Share of the free space, what the user has reserved included, that one user may stage.
const SPACE_SHARE: u64 = 2;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Account {
    groups: usize,
    tickets: usize,
    footprint: Footprint,
}

/// All users' accounts together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) users: usize,
    pub(crate) groups: usize,
    pub(crate) tickets: usize,
    pub(crate) footprint: Footprint,
}

pub(crate) struct Ledger {
    // Constant.
    fs: Arc<Fs>,
    /// Who runs the daemon.
    own_uid: u32,
    state: Mutex<State>,
}

struct State {
    users: HashMap<u32, Account>,
    tickets: usize,
    /// Of all tickets.
    charge: MemoryCharge,
}

impl State {
    /// Changes an account; one with nothing in it is forgotten.
    fn change(&mut self, uid: u32, change: impl FnOnce(&mut Account)) {
        let account = self.users.entry(uid).or_default();
        change(account);
        if *account == Account::default() {
            self.users.remove(&uid);
        }
    }

    fn set_tickets(&mut self, tickets: usize) {
        self.tickets = tickets;
        self.charge.set(tickets as u64 * TICKET_BYTES);
    }
}

impl Ledger {
    pub(crate) fn new(fs: Arc<Fs>) -> Ledger {
        let charge = fs.memory_charge();
        // SAFETY: geteuid has no preconditions and cannot fail.
        let own_uid = unsafe { libc::geteuid() };
        let state = State { users: HashMap::new(), tickets: 0, charge };
        Ledger { fs, own_uid, state: Mutex::new(state) }
    }

    /// Errors: EAGAIN, this user has too many.
    pub(crate) fn open_group(&self, uid: u32) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.users.get(&uid).is_some_and(|account| account.groups >= GROUPS_MAX) {
            return Err(Errno::EAGAIN);
        }
        state.change(uid, |account| account.groups += 1);
        Ok(())
    }

    pub(crate) fn close_group(&self, uid: u32) {
        self.state.lock().change(uid, |account| account.groups -= 1);
    }

    /// Errors: EDQUOT, this user stages as much as one may, or would with so many blocks more.
    pub(crate) fn check(&self, uid: u32, blocks: u64) -> Result<(), Errno> {
        if uid == 0 || uid == self.own_uid {
            return Ok(());
        }
        let staged =
            self.state.lock().users.get(&uid).map_or(Footprint::default(), |account| account.footprint);
        let memory_max = self.fs.memory_bytes_max() as u64 / MEMORY_SHARE;
        let mut within = staged.bytes < memory_max;
        if blocks > 0 {
            let space = self.fs.statfs().blocks_available + staged.blocks;
            within &= staged.blocks + blocks <= space / SPACE_SHARE;
        }
        if within { Ok(()) } else { Err(Errno::from_number(libc::EDQUOT)) }
    }

    /// A group of this user's takes something else than before.
    pub(crate) fn rebook(&self, uid: u32, before: Footprint, after: Footprint) {
        if before != after {
            self.state.lock().change(uid, |account| {
                let sum = &mut account.footprint;
                sum.bytes = sum.bytes + after.bytes - before.bytes;
                sum.blocks = sum.blocks + after.blocks - before.blocks;
            });
        }
    }

    /// Errors: EAGAIN, this user has too many tickets that nobody asked about.
    pub(crate) fn issue_ticket(&self, uid: u32) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.users.get(&uid).is_some_and(|account| account.tickets >= TICKETS_MAX) {
            return Err(Errno::EAGAIN);
        }
        state.change(uid, |account| account.tickets += 1);
        let tickets = state.tickets + 1;
        state.set_tickets(tickets);
        Ok(())
    }

    pub(crate) fn drop_tickets(&self, uid: u32, count: usize) {
        let mut state = self.state.lock();
        state.change(uid, |account| account.tickets -= count);
        let tickets = state.tickets - count;
        state.set_tickets(tickets);
    }

    pub(crate) fn totals(&self) -> Totals {
        let state = self.state.lock();
        let mut totals = Totals { users: state.users.len(), ..Totals::default() };
        for account in state.users.values() {
            totals.groups += account.groups;
            totals.tickets += account.tickets;
            totals.footprint.bytes += account.footprint.bytes + account.tickets as u64 * TICKET_BYTES;
            totals.footprint.blocks += account.footprint.blocks;
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline::Volume;

    const USER: u32 = 54321;

    fn ledger() -> (Volume, Ledger) {
        let volume = Volume::create_in_memory(16 << 20).expect("a volume");
        let ledger = Ledger::new(volume.inner().clone());
        (volume, ledger)
    }

    #[test]
    fn each_user_has_a_limit_of_its_own_and_gets_back_what_it_gives_back() {
        let (_volume, ledger) = ledger();
        for _ in 0..GROUPS_MAX {
            ledger.open_group(USER).expect("is within the limit");
        }
        assert_eq!(ledger.open_group(USER), Err(Errno::EAGAIN));
        ledger.open_group(USER + 1).expect("another user");
        ledger.close_group(USER);
        ledger.open_group(USER).expect("there is room again");
        for _ in 0..TICKETS_MAX {
            ledger.issue_ticket(USER).expect("is within the limit");
        }
        assert_eq!(ledger.issue_ticket(USER), Err(Errno::EAGAIN));
        ledger.issue_ticket(USER + 1).expect("another user");
        let totals = ledger.totals();
        assert_eq!((totals.users, totals.groups, totals.tickets), (2, GROUPS_MAX + 1, TICKETS_MAX + 1));
        for (uid, tickets, groups) in [(USER, TICKETS_MAX, GROUPS_MAX), (USER + 1, 1, 1)] {
            ledger.drop_tickets(uid, tickets);
            (0..groups).for_each(|_| ledger.close_group(uid));
        }
        assert_eq!(ledger.totals(), Totals::default(), "nothing is kept of who has nothing");
    }

    #[test]
    fn memory_and_space_are_limited_but_for_root_and_the_daemons_user() {
        let (volume, ledger) = ledger();
        let fs = volume.inner();
        let most = fs.options().memory_bytes_max as u64 / MEMORY_SHARE;
        let full = Footprint { bytes: most, blocks: 0 };
        let space = fs.statfs().blocks_available;
        for uid in [USER, 0, ledger.own_uid] {
            let is_limited = uid == USER;
            assert_eq!(ledger.check(uid, space / 2), Ok(()));
            assert_eq!(ledger.check(uid, space / 2 + 1).is_err(), is_limited, "user {uid}");
            ledger.rebook(uid, Footprint::default(), full);
            assert_eq!(ledger.check(uid, 0).is_err(), is_limited, "user {uid}");
            ledger.rebook(uid, full, Footprint::default());
            assert_eq!(ledger.check(uid, 0), Ok(()));
        }
        assert_eq!(ledger.totals(), Totals::default());
    }
}
