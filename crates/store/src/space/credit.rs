//! [`Credit`]: blocks that are reserved, and chunks that are claimed, for nobody yet.
//!
//! Each sync needs a few of both for a moment, mostly where there is plenty. So some are promised ahead, as if somebody
//! held them, and are drawn and put back without the space's lock.
//!
//! What is here counts in `SpaceMap::reserved` and `SpaceMap::node_claims`, so to draw it breaks no promise (R18).
//! Whoever is refused under the lock recalls all of it and asks again, so it is never missing. Where space is not
//! ample, nothing is drawn and nothing put back. Who may use what is kept for some, as a deletion, neither draws nor
//! puts anything back, so others never get that through here.

use super::SpaceMap;
use crate::limits::{AMPLE_CREDITS, CREDIT_BLOCKS, CREDIT_CHUNKS};
use crate::primitives::{AtomicU64, Ordering};

/// Relaxed throughout: these are amounts, and nothing else is read by them.
pub(crate) struct Credit {
    blocks: AtomicU64,
    chunks: AtomicU64,
    /// As the map was left last: what a new reservation could get, chunks beyond claims and headroom, and the headroom.
    available: AtomicU64,
    spare_chunks: AtomicU64,
    headroom: AtomicU64,
}

impl Credit {
    pub(super) fn new() -> Credit {
        Credit {
            blocks: AtomicU64::new(0),
            chunks: AtomicU64::new(0),
            available: AtomicU64::new(0),
            spare_chunks: AtomicU64::new(0),
            headroom: AtomicU64::new(0),
        }
    }

    /// What a new reservation could get as the map was left last, or less.
    pub(crate) fn available(&self) -> u64 {
        self.available.load(Ordering::Relaxed)
    }

    fn has_ample_blocks(&self) -> bool {
        self.available() >= AMPLE_CREDITS * CREDIT_BLOCKS
    }

    fn has_ample_chunks(&self, besides: u64) -> bool {
        self.spare_chunks.load(Ordering::Relaxed) >= AMPLE_CREDITS * CREDIT_CHUNKS + besides
    }

    /// Sets blocks aside; false if the map has to be asked.
    pub(crate) fn draw_blocks(&self, blocks: u64) -> bool {
        self.has_ample_blocks() && draw(&self.blocks, blocks)
    }

    /// Takes reserved blocks back; false if they are the map's.
    pub(crate) fn keep_blocks(&self, blocks: u64) -> bool {
        self.has_ample_blocks() && keep(&self.blocks, blocks, CREDIT_BLOCKS)
    }

    /// Claims chunks for a batch of class [`Class::Normal`](crate::Class::Normal), where so many `besides` are free and
    /// the headroom is as large as that; false if the map has to be asked.
    pub(crate) fn draw_chunks(&self, chunks: u64, besides: u64, headroom: u64) -> bool {
        self.has_ample_chunks(besides)
            && self.headroom.load(Ordering::Relaxed) >= headroom
            && draw(&self.chunks, chunks)
    }

    /// Takes claims back; false if they are the map's.
    pub(crate) fn keep_chunks(&self, chunks: u64) -> bool {
        self.has_ample_chunks(0) && keep(&self.chunks, chunks, CREDIT_CHUNKS)
    }
}

fn draw(from: &AtomicU64, amount: u64) -> bool {
    let less = |have: u64| have.checked_sub(amount);
    from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}

fn keep(to: &AtomicU64, amount: u64, most: u64) -> bool {
    let more = |have: u64| Some(have + amount).filter(|sum| *sum <= most);
    to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

impl SpaceMap {
    /// Takes back what is promised to nobody; false if nothing was.
    pub(super) fn recall(&mut self) -> bool {
        let blocks = self.credit.blocks.swap(0, Ordering::Relaxed);
        let chunks = self.credit.chunks.swap(0, Ordering::Relaxed);
        self.reserved -= blocks;
        self.node_claims -= chunks;
        self.show();
        blocks + chunks > 0
    }

    /// Promises some blocks ahead, if there is plenty.
    pub(crate) fn give_credit(&mut self) {
        let is_ample = self.unpromised() >= (AMPLE_CREDITS + 1) * CREDIT_BLOCKS;
        let more = CREDIT_BLOCKS.saturating_sub(self.credit.blocks.load(Ordering::Relaxed));
        if !self.recovering && is_ample && keep(&self.credit.blocks, more, CREDIT_BLOCKS) {
            self.reserved += more;
        }
        self.show();
    }

    /// What a new reservation could get, with what is promised to nobody.
    pub(crate) fn available(&self) -> u64 {
        let (blocks, chunks) = (&self.credit.blocks, &self.credit.chunks);
        self.left(
            self.reserved.saturating_sub(blocks.load(Ordering::Relaxed)),
            self.node_claims.saturating_sub(chunks.load(Ordering::Relaxed)),
        )
    }

    /// What a new reservation could get.
    pub(super) fn unpromised(&self) -> u64 {
        self.left(self.reserved, self.node_claims)
    }

    /// Shows those who ask without the lock how much there is. Called after each change of it.
    pub(super) fn show(&self) {
        self.credit.available.store(self.unpromised(), Ordering::Relaxed);
        let spare_chunks = self.spare_chunks().saturating_sub(self.for_deletions);
        self.credit.spare_chunks.store(spare_chunks, Ordering::Relaxed);
        self.credit.headroom.store(self.headroom, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::map_of;
    use super::*;
    use crate::Class;
    use crate::limits::OVERWRITE_SHARE;
    use std::sync::Arc;

    #[test]
    fn what_is_promised_to_nobody_is_drawn_without_the_map_and_missing_nowhere() {
        let mut map = map_of(1 << 14);
        map.end_recovery();
        let credit = Arc::clone(&map.credit);
        let all = map.available();
        assert!(!credit.draw_blocks(1), "nothing yet");
        map.give_credit();
        assert!(credit.draw_blocks(3) && !credit.draw_blocks(CREDIT_BLOCKS));
        assert_eq!(map.available(), all - 3);
        assert!(credit.keep_blocks(2) && !credit.keep_blocks(CREDIT_BLOCKS));
        // All but what is held can be had by one, and nothing is left for the other way then.
        map.reserve(all - 1).expect("space");
        assert!(map.reserve(1).is_err() && !credit.draw_blocks(1) && !credit.keep_blocks(1));
        map.unreserve(all);
        assert_eq!(map.available(), all);
    }

    #[test]
    fn claims_are_put_back_where_chunks_are_ample_and_recalled_where_they_are_needed() {
        let mut map = map_of(1 << 14);
        map.end_recovery();
        let credit = Arc::clone(&map.credit);
        let (all, spare) = (map.available(), map.spare_chunks());
        assert!(map.claim_nodes(8, Class::Normal) && credit.keep_chunks(8));
        assert_eq!(map.available(), all, "nobody has them");
        assert!(credit.draw_chunks(5, 0, 1) && !credit.draw_chunks(5, 0, 1));
        assert!(!credit.draw_chunks(1, spare, 1), "others need those that are left");
        assert!(!credit.draw_chunks(1, 0, 1 << 20), "the headroom has to be made wider first");
        map.adjust_claims(5, 0);
        let mut claimed = 0;
        while map.claim_nodes(1, Class::Normal) {
            claimed += 1;
        }
        assert!(
            claimed >= spare - map.headroom / OVERWRITE_SHARE && claimed <= spare,
            "{claimed} of {spare}"
        );
        assert!(!credit.keep_chunks(1), "the headroom's are nobody's credit");
        map.adjust_claims(claimed, 0);
        assert_eq!((map.available(), map.spare_chunks()), (all, spare));
    }
}
