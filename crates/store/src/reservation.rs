use crate::shared::Shared;
use std::sync::Arc;

/// Blocks set aside for data that is not allocated yet (R18). Dropping it gives them back.
#[derive(Debug)]
pub struct Reservation {
    pub(crate) shared: Arc<Shared>,
    pub(crate) blocks: u64,
}

impl Reservation {
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Splits off `blocks` of the reservation (at most all of it).
    pub fn split(&mut self, blocks: u64) -> Reservation {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        Reservation { shared: Arc::clone(&self.shared), blocks }
    }

    /// Takes `blocks` of another reservation of the same store over, or all of it if it has fewer; returns how many.
    pub fn take(&mut self, from: &mut Reservation, blocks: u64) -> u64 {
        assert!(Arc::ptr_eq(&self.shared, &from.shared), "reservations of one store");
        let blocks = blocks.min(from.blocks);
        from.blocks -= blocks;
        self.blocks += blocks;
        blocks
    }

    /// Takes over another reservation of the same store.
    pub fn merge(&mut self, mut other: Reservation) {
        assert!(Arc::ptr_eq(&self.shared, &other.shared), "reservations of one store");
        self.blocks += std::mem::take(&mut other.blocks);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.blocks > 0 && !self.shared.credit.keep_blocks(self.blocks) {
            self.shared.space.lock().unreserve(self.blocks);
        }
    }
}
