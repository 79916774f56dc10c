//! [`Shipping`]: units under way, and which of them count.
//!
//! P3: a unit counts when the one in front of it does, its PUT was answered, and a look for the next claim, issued
//! behind that answer, has found nothing. One look may serve several units. P4: a unit is made once; what is put again
//! is the same bytes, by [`Exchange`].

use crate::error::ReplicaError;
use crate::exchange::Exchange;
use crate::names::Names;
use crate::opened::Opened;
use crate::opening::{decode, tell, unexpected};
use crate::request::{Answer, Operation, Part, Request, RequestId, StoreError};
use crate::unit::Encoded;
use std::collections::VecDeque;
use std::sync::Arc;
use syncline_format::replica::Claim;

/// Units that are put and do not count yet, at most. [`crate::search`] relies on it.
pub const IN_FLIGHT_MAX: usize = 2;

/// A unit that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    pub number: u64,
    /// The last flush that it holds, of a consistent one.
    pub flush: Option<u64>,
    /// When the oldest of what it holds was first seen, in nanoseconds.
    pub since: u64,
    pub bytes: u64,
    pub closed: bool,
}

#[derive(Debug, Clone, Copy)]
enum Purpose {
    Put(u64),
    /// Behind the answers of all units below this one.
    Look(u64),
}

/// The units of one claim.
pub struct Shipping {
    names: Names,
    claim: u64,
    exchange: Exchange<Purpose>,
    /// Number of the next unit.
    next: u64,
    /// Identity of the last unit that was made.
    tail: u64,
    /// Put and not counted, each with whether its PUT was answered.
    window: VecDeque<(Unit, bool)>,
}

impl Shipping {
    pub fn new(opened: &Opened) -> Shipping {
        let exchange = Exchange::patient();
        let (names, claim) = (Names::new(opened.uuid), opened.claim);
        Shipping { names, claim, exchange, next: 0, tail: opened.tail, window: VecDeque::new() }
    }

    pub fn has_room(&self) -> bool {
        self.window.len() < IN_FLIGHT_MAX
    }

    pub fn is_idle(&self) -> bool {
        self.window.is_empty()
    }

    /// How many units count.
    pub fn counted(&self) -> u64 {
        self.next - self.window.len() as u64
    }

    /// When the oldest of what does not count was first seen.
    pub fn oldest(&self) -> Option<u64> {
        self.window.iter().map(|(unit, _)| unit.since).min()
    }

    /// Identity of the last unit that was made, or of the one in front of the first.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    pub fn requests(&self) -> u64 {
        self.exchange.requests
    }

    pub fn trouble(&self) -> Option<&StoreError> {
        self.exchange.trouble()
    }

    /// Puts the next unit, which is made of its number and the identity of the one in front of it.
    pub fn ship(&mut self, unit: Unit, make: impl FnOnce(u64, u64) -> Encoded) {
        assert!(self.has_room(), "units are made when there is room for them");
        let number = self.next;
        let encoded = make(number, self.tail);
        self.next += 1;
        self.tail = encoded.identity;
        let unit = Unit { number, bytes: encoded.bytes.len() as u64, ..unit };
        self.window.push_back((unit, false));
        let (name, bytes) = (self.names.unit(self.claim, number), Arc::new(encoded.bytes));
        self.exchange.ask(Purpose::Put(number), Operation::Put { name, bytes });
    }

    /// The last unit under way holds everything up to this flush as well.
    pub fn covers(&mut self, flush: u64) {
        if let Some((unit, _)) = self.window.back_mut() {
            unit.flush = unit.flush.map(|covered| covered.max(flush));
        }
    }

    pub fn poll(&mut self, now: u64) -> Vec<Request> {
        self.exchange.poll(now)
    }

    pub fn next_due(&self) -> Option<u64> {
        self.exchange.next_due()
    }

    /// Gives up what is under way.
    pub fn abandon(&mut self) {
        self.exchange.clear();
    }

    /// Takes an answer; the units that count by it.
    ///
    /// # Errors
    /// [`ReplicaError::Fenced`]: somebody else writes from now on.
    pub fn answer(
        &mut self,
        id: RequestId,
        now: u64,
        result: Result<Answer, StoreError>,
    ) -> Result<Vec<Unit>, ReplicaError> {
        let Some((purpose, operation, result)) = self.exchange.answer(id, now, result) else {
            return Ok(Vec::new());
        };
        match (purpose, result) {
            (Purpose::Put(number), Ok(_)) => {
                let unit = self.window.iter_mut().find(|(unit, _)| unit.number == number);
                unit.expect("a unit under way is in the window").1 = true;
                self.look();
                Ok(Vec::new())
            }
            (Purpose::Look(upto), Err(StoreError::Missing)) => {
                let count = self.window.iter().take_while(|(unit, _)| unit.number < upto).count();
                let counted = self.window.drain(..count).map(|(unit, _)| unit).collect();
                self.look();
                Ok(counted)
            }
            (Purpose::Look(_), Ok(Answer::Bytes { bytes, .. })) => {
                let by = decode(&operation, Claim::decode(&bytes))?;
                Err(ReplicaError::Fenced { claim: by.claim, by: tell(&by) })
            }
            (_, Err(error)) => Err(error.into()),
            (_, Ok(_)) => Err(unexpected(&operation)),
        }
    }

    /// Looks for the next claim, if something waits for that and nobody looks yet.
    fn look(&mut self) {
        let answered = self.window.iter().take_while(|(_, answered)| *answered);
        let Some(last) = answered.map(|(unit, _)| unit.number).last() else { return };
        if self.exchange.purposes().any(|purpose| matches!(purpose, Purpose::Look(_))) {
            return;
        }
        let name = self.names.claim(self.claim + 1);
        self.exchange.ask(Purpose::Look(last + 1), Operation::Get { name, part: Part::All });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_format::replica::Manifest;

    /// Puts one more unit; what is asked for then.
    fn put(shipping: &mut Shipping) -> Vec<Request> {
        let unit = Unit { number: 0, flush: Some(1), since: 0, bytes: 0, closed: false };
        shipping.ship(unit, |number, _| Encoded { bytes: vec![number as u8], identity: number + 1 });
        shipping.poll(0)
    }

    #[test]
    fn a_unit_that_was_answered_behind_the_beginning_of_a_look_does_not_count_by_it() {
        let opened = Opened {
            uuid: [7; 16],
            claim: 1,
            manifest: Manifest::unpacked([7; 16], 1, 1, 1, Vec::new()),
            tail: 0,
            last: None,
            doubt: None,
        };
        let mut shipping = Shipping::new(&opened);
        let first = put(&mut shipping);
        assert_eq!(shipping.answer(first[0].id, 0, Ok(Answer::Done)), Ok(Vec::new()));
        let look = shipping.poll(0);
        // Somebody else may claim the replica here, and find the first unit only.
        let second = put(&mut shipping);
        assert_eq!(shipping.answer(second[0].id, 0, Ok(Answer::Done)), Ok(Vec::new()));
        let counted = shipping.answer(look[0].id, 0, Err(StoreError::Missing)).expect("nobody was seen");
        assert_eq!(counted.iter().map(|unit| unit.number).collect::<Vec<_>>(), [0]);
        let look = shipping.poll(0);
        let counted = shipping.answer(look[0].id, 0, Err(StoreError::Missing)).expect("nobody was seen");
        assert_eq!(counted.iter().map(|unit| unit.number).collect::<Vec<_>>(), [1]);
    }
}
