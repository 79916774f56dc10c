use crate::shared::Shared;
use std::sync::Arc;

/// Blocks set aside for data that is not allocated yet (R18). Dropping it gives them back.
#[derive(Debug)]
pub struct Reservation {
    pub(crate) shared: Arc<Shared>,
    pub(crate) blocks: u64,
    /// All of them were to be had by anybody: no share that is kept for some was drawn on.
    is_usual: bool,
}

impl Reservation {
    pub(crate) fn new(shared: &Arc<Shared>, blocks: u64, is_usual: bool) -> Reservation {
        Reservation { shared: Arc::clone(shared), blocks, is_usual }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Splits off `blocks` of the reservation (at most all of it).
    pub fn split(&mut self, blocks: u64) -> Reservation {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        Reservation::new(&self.shared, blocks, self.is_usual)
    }

    /// Takes `blocks` of another reservation of the same store over, or all of it if it has fewer; returns how many.
    pub fn take(&mut self, from: &mut Reservation, blocks: u64) -> u64 {
        assert!(Arc::ptr_eq(&self.shared, &from.shared), "reservations of one store");
        let blocks = blocks.min(from.blocks);
        from.blocks -= blocks;
        self.blocks += blocks;
        self.is_usual &= from.is_usual || blocks == 0;
        blocks
    }

    /// Takes over another reservation of the same store.
    pub fn merge(&mut self, mut other: Reservation) {
        assert!(Arc::ptr_eq(&self.shared, &other.shared), "reservations of one store");
        self.is_usual &= other.is_usual;
        self.blocks += std::mem::take(&mut other.blocks);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let is_left = self.is_usual && self.shared.credit.keep_blocks(self.blocks);
        if self.blocks > 0 && !is_left {
            self.shared.space.lock().unreserve(self.blocks);
        }
    }
}
