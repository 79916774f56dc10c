//! Flushes that are answered when they count in the replica (C14).

use syncline_device::{DeviceError, Ticket};

struct Waiting {
    flush: u64,
    below: Ticket,
    answer: Ticket,
}

/// Flushes that somebody waits for.
#[derive(Default)]
pub(crate) struct Answers {
    waiting: Vec<Waiting>,
    /// Flushes up to this one count.
    counted: u64,
}

impl Answers {
    /// The ticket that is completed when this flush has ended on the device and counts.
    pub(crate) fn wait_for(&mut self, flush: u64, below: &Ticket) -> Ticket {
        let answer = Ticket::pending();
        self.waiting.push(Waiting { flush, below: below.clone(), answer: answer.clone() });
        answer
    }

    /// The device's own ticket behind one that is not completed yet.
    pub(crate) fn below(&self, answer: &Ticket) -> Option<Ticket> {
        self.waiting
            .iter()
            .find(|waiting| waiting.answer.is_same(answer))
            .map(|waiting| waiting.below.clone())
    }

    /// Everything up to this flush counts.
    pub(crate) fn count(&mut self, flush: u64) {
        self.counted = self.counted.max(flush);
        self.tell();
    }

    /// Tells those whose flushes count and have ended, or have failed.
    pub(crate) fn tell(&mut self) {
        let counted = self.counted;
        self.waiting.retain(|waiting| match waiting.below.result() {
            Some(result) if waiting.flush <= counted || result.is_err() => {
                waiting.answer.complete(result);
                false
            }
            _ => true,
        });
    }

    /// Nothing counts any more.
    pub(crate) fn fail(&mut self, error: &DeviceError) {
        for waiting in self.waiting.drain(..) {
            waiting.answer.complete(Err(error.clone()));
        }
    }
}
