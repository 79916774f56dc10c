//! What is promised of the free space: blocks that are reserved for data, and chunks that are claimed for nodes (R18).

use super::SpaceMap;
use crate::limits::{DELETION_CHUNKS, OVERWRITE_SHARE};
use crate::{Class, StoreError};
use syncline_format::NODE_BLOCKS;

impl SpaceMap {
    /// What a new reservation could get beside these.
    pub(super) fn left(&self, reserved: u64, node_claims: u64) -> u64 {
        let chunks = (node_claims + self.kept_chunks()) * u64::from(NODE_BLOCKS);
        self.free.saturating_sub(chunks).saturating_sub(reserved)
    }

    /// Whole chunks that data leaves alone, besides the claimed ones: the headroom, and as much again so that changes
    /// other than freeing find chunks too on a volume whose free space is in fragments. Recovery may use them: it has
    /// to get through whatever state the volume was in.
    pub(super) fn kept_chunks(&self) -> u64 {
        if self.recovering { 0 } else { 2 * self.headroom + self.for_deletions }
    }

    /// The part of them that stays when space is being freed.
    fn kept_when_freeing(&self) -> u64 {
        if self.recovering { 0 } else { self.headroom + self.for_deletions }
    }

    /// The volume has trees that can be deleted.
    pub(crate) fn keep_for_deletions(&mut self) {
        self.for_deletions = DELETION_CHUNKS;
        self.show();
    }

    /// Chunks that are free now.
    pub(crate) fn free_chunks(&self) -> u64 {
        self.free_chunks
    }

    /// Recovery is over.
    pub(crate) fn end_recovery(&mut self) {
        self.recovering = false;
        self.show();
    }

    pub(crate) fn reserve(&mut self, blocks: u64) -> Result<(), StoreError> {
        if blocks > self.unpromised() && !(self.recall() && blocks <= self.unpromised()) {
            return Err(StoreError::NoSpace);
        }
        self.reserved += blocks;
        self.show();
        Ok(())
    }

    /// Like `reserve`, for a block that replaces one which is freed then: half of what data leaves alone may be used
    /// as well.
    pub(crate) fn reserve_for_freeing(&mut self, blocks: u64) -> Result<(), StoreError> {
        self.reserve_beside(self.kept_when_freeing(), blocks)
    }

    /// Like `reserve_for_freeing`, but leaves half of what that could use. The blocks that come back for it are
    /// counted, not their place: chunks that are broken for it stay broken, and serve the next ones.
    pub(crate) fn reserve_to_overwrite(&mut self, blocks: u64) -> Result<(), StoreError> {
        self.reserve_beside(self.kept_when_freeing() + self.headroom / OVERWRITE_SHARE / 2, blocks)
    }

    fn reserve_beside(&mut self, kept: u64, blocks: u64) -> Result<(), StoreError> {
        let fits = |map: &SpaceMap| {
            let chunks = (map.node_claims + kept) * u64::from(NODE_BLOCKS);
            blocks + map.reserved + chunks <= map.free
        };
        let is_there = fits(self) || self.recall() && fits(self);
        if !is_there {
            return Err(StoreError::NoSpace);
        }
        self.reserved += blocks;
        self.show();
        Ok(())
    }

    pub(crate) fn unreserve(&mut self, blocks: u64) {
        assert!(self.reserved >= blocks, "reservations are returned once");
        self.reserved -= blocks;
        self.show();
    }

    /// Makes the headroom large enough for one change that needs so many nodes. Trees seldom grow a level, and what a
    /// volume kept once it goes on keeping.
    pub(crate) fn widen_headroom(&mut self, nodes: u64) {
        self.headroom = self.headroom.max(nodes + 1);
        self.show();
    }

    /// Claims chunks for nodes; false if the volume cannot give them.
    pub(crate) fn claim_nodes(&mut self, nodes: u64, class: Class) -> bool {
        let may = self.may_claim_nodes(nodes, class);
        self.node_claims += if may { nodes } else { 0 };
        self.show();
        may
    }

    /// Whether [`SpaceMap::claim_nodes`] would claim them.
    pub(crate) fn may_claim_nodes(&mut self, nodes: u64, class: Class) -> bool {
        self.fits_nodes(nodes, class) || self.recall() && self.fits_nodes(nodes, class)
    }

    /// Only what frees space takes of the headroom, and only deletions of what is kept for them.
    fn fits_nodes(&self, nodes: u64, class: Class) -> bool {
        let (headroom, overwrites) = match class {
            Class::Normal => (self.headroom + self.for_deletions, self.headroom / OVERWRITE_SHARE),
            Class::Reclaim => (self.for_deletions, 0),
            // What is destaged was promised its place; and nothing may be kept from a deletion.
            Class::Destage | Class::Deletion => (0, 0),
        };
        let claims = self.node_claims + nodes;
        let blocks = (claims + headroom + overwrites) * u64::from(NODE_BLOCKS);
        claims + headroom <= self.free_chunks && blocks + self.reserved <= self.free
    }

    /// Whole free chunks beyond claims and headroom.
    pub(super) fn spare_chunks(&self) -> u64 {
        self.free_chunks.saturating_sub(self.node_claims + self.headroom)
    }

    /// Whether there are so many.
    pub(crate) fn has_spare_chunks(&mut self, chunks: u64) -> bool {
        self.spare_chunks() >= chunks || self.recall() && self.spare_chunks() >= chunks
    }

    /// Changes the claims to what is really needed now: no more than was claimed for it before, or is free beside all
    /// that is promised.
    pub(crate) fn adjust_claims(&mut self, less: u64, more: u64) {
        let kept = self.keeps_promises();
        self.node_claims = (self.node_claims + more).checked_sub(less).expect("claims are returned once");
        debug_assert!(
            !kept || self.keeps_promises(),
            "{more} claims instead of {less} leave {} chunks of {} and {} blocks of {} promised",
            self.node_claims,
            self.free_chunks,
            self.reserved,
            self.free
        );
        self.show();
    }

    /// Whether claimed chunks are whole and free, and reserved blocks beside them (R18). What is promised ahead counts
    /// as promised. Recovery makes do with what there is.
    fn keeps_promises(&self) -> bool {
        let chunks = self.node_claims * u64::from(NODE_BLOCKS);
        self.recovering || self.node_claims <= self.free_chunks && chunks + self.reserved <= self.free
    }
}
