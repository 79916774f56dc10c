//! [`RingCredit`]: room of the ring that is promised already, and to nobody yet.
//!
//! Each small batch leaves as much behind as it was admitted with, while the journal's lock is held for it anyway; the
//! next one draws that without the lock. What is here counts in `State::promised`, so to draw it breaks no promise
//! (R17). Whoever is refused recalls all of it and asks again, so it is never missing.

use super::{Journal, Promise, State};
use crate::limits::{CREDIT_RING_BLOCKS, CREDIT_RING_IMAGES, CREDIT_RING_SHARE};
use crate::primitives::{AtomicU64, Ordering};
use crate::{Class, StoreError};

/// Blocks in the lower half, images in the upper one. Relaxed: an amount, and nothing else is read by it.
pub(super) struct RingCredit(AtomicU64);

const IMAGES_SHIFT: u32 = 32;

impl Promise {
    fn packed(self) -> u64 {
        self.images << IMAGES_SHIFT | self.blocks
    }

    fn unpacked(packed: u64) -> Promise {
        Promise { blocks: packed & ((1 << IMAGES_SHIFT) - 1), images: packed >> IMAGES_SHIFT }
    }
}

impl RingCredit {
    pub(super) fn new() -> RingCredit {
        RingCredit(AtomicU64::new(0))
    }

    fn draw(&self, promise: Promise) -> bool {
        let less = |packed: u64| {
            let have = Promise::unpacked(packed);
            let blocks = have.blocks.checked_sub(promise.blocks)?;
            let images = have.images.checked_sub(promise.images)?;
            Some(Promise { blocks, images }.packed())
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// All of it.
    fn take(&self) -> Promise {
        Promise::unpacked(self.0.swap(0, Ordering::Relaxed))
    }

    fn is_full_with(&self, more: Promise) -> bool {
        let have = Promise::unpacked(self.0.load(Ordering::Relaxed));
        have.blocks + more.blocks > CREDIT_RING_BLOCKS || have.images + more.images > CREDIT_RING_IMAGES
    }

    /// Only under the journal's lock, so that no half runs over.
    fn add(&self, promise: Promise) {
        self.0.fetch_add(promise.packed(), Ordering::Relaxed);
    }
}

impl Journal {
    /// As [`Journal::admit`], mostly without the lock: for who commits at once.
    pub(crate) fn admit_now(&self, promise: Promise, class: Class) -> Result<(), StoreError> {
        match class == Class::Normal && self.credit.draw(promise) {
            true => Ok(()),
            false => self.admit(promise, class),
        }
    }

    /// Promises ahead what a batch was promised that has just been appended.
    pub(super) fn renew(&self, state: &mut State, promise: Promise) {
        let wide = Promise { blocks: promise.blocks + self.ring_blocks / CREDIT_RING_SHARE, ..promise };
        let is_nothing = promise == Promise::default();
        if is_nothing || self.credit.is_full_with(promise) || self.fits(state, wide, Class::Normal).is_err() {
            return;
        }
        state.promise(promise);
        self.credit.add(promise);
    }

    /// Takes back what is promised to nobody; false if nothing was.
    pub(super) fn recall(&self, state: &mut State) -> bool {
        let credit = self.credit.take();
        state.take_back(credit);
        credit != Promise::default()
    }
}
