//! [`Waiters`]: threads that sleep until a ticket is complete, for devices whose requests are completed by a thread of
//! their own.

use crate::{DeviceError, Ticket};
use parking_lot::Mutex;
use std::thread::Thread;

/// Who waits for which ticket. Its lock is innermost.
#[derive(Debug, Default)]
pub struct Waiters(Mutex<Vec<(Ticket, Thread)>>);

impl Waiters {
    /// Blocks until the ticket is complete. Whoever completes it has to do so by [`Waiters::complete`].
    pub fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        loop {
            if let Some(result) = ticket.result() {
                return result;
            }
            {
                let mut waiting = self.0.lock();
                if ticket.is_complete() {
                    continue;
                }
                waiting.push((ticket.clone(), std::thread::current()));
            }
            while !ticket.is_complete() {
                std::thread::park();
            }
        }
    }

    /// Completes a ticket, and wakes who waits for it and nobody else.
    pub fn complete(&self, ticket: &Ticket, result: Result<(), DeviceError>) {
        let mut waiting = self.0.lock();
        ticket.complete(result);
        waiting.retain(|(of, thread)| {
            let is_it = of.is_same(ticket);
            if is_it {
                thread.unpark();
            }
            !is_it
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_are_woken_by_their_tickets() {
        let waiters = Waiters::default();
        let tickets: Vec<Ticket> = (0..100).map(|_| Ticket::pending()).collect();
        std::thread::scope(|scope| {
            for ticket in tickets.iter().chain(&tickets) {
                let waiters = &waiters;
                scope.spawn(move || waiters.wait(ticket).expect_err("the result"));
            }
            for ticket in tickets.iter().rev() {
                waiters.complete(ticket, Err(DeviceError::ShutDown));
            }
            assert_eq!(waiters.wait(&tickets[3]), Err(DeviceError::ShutDown));
        });
        assert!(waiters.0.lock().is_empty());
    }
}
