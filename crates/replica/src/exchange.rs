//! [`Exchange`]: requests under way, and their repetition.
//!
//! A request whose answer did not come, or came from a store that has trouble, is asked again with the same bytes (P4)
//! after a while that doubles. What that means for a creation is the asker's: its name may be taken by itself.

use crate::request::{Answer, Operation, Request, RequestId, StoreError};
use std::collections::BTreeMap;

/// First pause before a repetition, in nanoseconds.
const PAUSE: u64 = 100_000_000;
/// Longest pause: 30 s.
const PAUSE_MAX: u64 = 30_000_000_000;

struct Pending<P> {
    purpose: P,
    operation: Operation,
    /// Asked, and not answered.
    sent: bool,
    /// When it may be asked, in nanoseconds.
    due: u64,
    pause: u64,
}

/// Requests, each with what it is for.
pub struct Exchange<P> {
    next: u64,
    pending: BTreeMap<RequestId, Pending<P>>,
    /// Why the last repetition was needed; gone with the next answer.
    trouble: Option<StoreError>,
    /// Refusals are repeated too: whoever is at work already waits for credentials to come back.
    patient: bool,
    /// Requests sent.
    pub requests: u64,
}

impl<P> Default for Exchange<P> {
    fn default() -> Exchange<P> {
        Exchange { next: 0, pending: BTreeMap::new(), trouble: None, patient: false, requests: 0 }
    }
}

impl<P: Copy> Exchange<P> {
    /// One that repeats what was refused as well.
    pub fn patient() -> Exchange<P> {
        Exchange { patient: true, ..Exchange::default() }
    }

    /// Asks for something with the next [`Exchange::poll`].
    pub fn ask(&mut self, purpose: P, operation: Operation) {
        let pending = Pending { purpose, operation, sent: false, due: 0, pause: PAUSE };
        self.pending.insert(RequestId(self.next), pending);
        self.next += 1;
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// What each pending request is for.
    pub fn purposes(&self) -> impl Iterator<Item = P> {
        self.pending.values().map(|pending| pending.purpose)
    }

    pub fn trouble(&self) -> Option<&StoreError> {
        self.trouble.as_ref()
    }

    /// Gives up everything; answers that still come are ignored.
    pub fn clear(&mut self) {
        self.pending.clear();
    }

    /// Gives up everything else.
    pub fn keep(&mut self, is_kept: impl Fn(&P) -> bool) {
        self.pending.retain(|_, pending| is_kept(&pending.purpose));
    }

    /// What is to be sent now.
    pub fn poll(&mut self, now: u64) -> Vec<Request> {
        let due = self.pending.iter_mut().filter(|(_, pending)| !pending.sent && pending.due <= now);
        let requests: Vec<Request> = due
            .map(|(id, pending)| {
                pending.sent = true;
                Request { id: *id, operation: pending.operation.clone() }
            })
            .collect();
        self.requests += requests.len() as u64;
        requests
    }

    /// When the next request is due that waits for a repetition.
    pub fn next_due(&self) -> Option<u64> {
        self.pending.values().filter(|pending| !pending.sent).map(|pending| pending.due).min()
    }

    /// Takes an answer. `None`: nobody waits for it, or it will be asked again.
    pub fn answer(
        &mut self,
        id: RequestId,
        now: u64,
        result: Result<Answer, StoreError>,
    ) -> Option<(P, Operation, Result<Answer, StoreError>)> {
        let pending = self.pending.get_mut(&id).filter(|pending| pending.sent)?;
        let again = match &result {
            Err(StoreError::Unavailable(_)) => true,
            Err(StoreError::Refused(_)) => self.patient,
            _ => false,
        };
        if again {
            self.trouble = result.err();
            pending.sent = false;
            pending.due = now.saturating_add(pending.pause);
            pending.pause = (pending.pause * 2).min(PAUSE_MAX);
            return None;
        }
        self.trouble = None;
        let pending = self.pending.remove(&id).expect("it was just there");
        Some((pending.purpose, pending.operation, result))
    }
}
