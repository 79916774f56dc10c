//! Space: who owns which block, now and as of the frozen checkpoint.
//!
//! Each group has two bitmaps in memory. `committed` is what the next checkpoint stores: blocks that items and nodes
//! name. `used` is what the allocator sees: additionally blocks reserved for writes that no batch has logged yet, and
//! blocks that were freed but are *pinned* until a checkpoint that contains the free is durable (R11). So `used` is
//! always a superset of `committed`.
//!
//! While a checkpoint is being written, a group that changes first keeps its frozen bits aside (R15); the checkpoint's
//! own nodes enter both.
//!
//! Tree nodes are aligned chunks of four blocks. Two invariants keep a checkpoint from ever starving, whatever the
//! fragmentation: the number of wholly free chunks never falls below the nodes that pending changes may need
//! (`node_claims`), and the free blocks outside of those chunks never fall below what has been reserved for data (R18).

mod bits;
mod credit;
mod hold;
mod promises;

pub(crate) use credit::Credit;
pub(crate) use hold::Cursor;

use crate::limits::{HEADROOM_MAX, HEADROOM_MIN, RUN_CANDIDATES_MAX};
use crate::store::Run;
use crate::{Batch, StoreError};
use bits::{all_bits, chunk_count, free_chunks, next_free, run_length, set_bits};
use std::collections::BTreeSet;
use std::sync::Arc;
use syncline_format::batch::{Op, Outcome};
use syncline_format::bitmap::{BITMAP_WORDS, Bits};
use syncline_format::layout::{GROUP_HEAD_BLOCKS, Layout};
use syncline_format::{BlockNo, GroupNo, NODE_BLOCKS};

pub(crate) struct Group {
    committed: Arc<Bits>,
    used: Arc<Bits>,
    /// The bits as of the freeze, once the group has changed since.
    frozen: Option<Arc<Bits>>,
    /// What the last checkpoint has released, if anything: the superblock before it still refers to that. It may be
    /// written to (who falls back to that superblock finds newer records and says so), but not be discarded.
    released: Option<Box<Bits>>,
    free: u32,
    free_chunks: u32,
    /// Slot that is current under the last durable superblock (R9).
    pub(crate) slot: u8,
}

pub(crate) struct SpaceMap {
    layout: Layout,
    groups: Vec<Group>,
    /// Free for the allocator.
    free: u64,
    free_chunks: u64,
    committed_free: u64,
    /// Promised to data.
    reserved: u64,
    /// Free, but out of reach while they are discarded.
    held: u64,
    /// Chunks that pending changes may need for nodes.
    node_claims: u64,
    /// Chunks kept for freeing space on a full volume.
    headroom: u64,
    /// Chunks kept from freeing as well, for the deletion of trees (R33): a removal frees nothing that a snapshot has.
    for_deletions: u64,
    recovering: bool,
    /// Groups whose committed bits differ from their slot on the device.
    dirty: BTreeSet<u32>,
    /// Groups that the running checkpoint has to write; `None` when none runs.
    frozen_dirty: Option<BTreeSet<u32>>,
    /// Freed by batches since the last freeze.
    pinned: Vec<Run>,
    pinned_blocks: u64,
    /// Freed up to the frozen LSN.
    frozen_pinned: Vec<Run>,
    data_cursor: BlockNo,
    node_cursor: BlockNo,
    /// Of `reserved` and `node_claims`, what nobody has yet.
    credit: Arc<Credit>,
}

impl SpaceMap {
    /// Takes over the bitmaps of a volume being opened.
    pub(crate) fn new(layout: Layout, bitmaps: Vec<(u8, Arc<Bits>)>) -> SpaceMap {
        let mut map = SpaceMap {
            layout,
            groups: Vec::with_capacity(bitmaps.len()),
            free: 0,
            free_chunks: 0,
            committed_free: 0,
            reserved: 0,
            held: 0,
            node_claims: 0,
            headroom: 0,
            for_deletions: 0,
            recovering: true,
            dirty: BTreeSet::new(),
            frozen_dirty: None,
            pinned: Vec::new(),
            pinned_blocks: 0,
            frozen_pinned: Vec::new(),
            data_cursor: layout.groups_start,
            node_cursor: layout.groups_start.plus((layout.blocks - layout.groups_start.0) / 8 * 7),
            credit: Arc::new(Credit::new()),
        };
        for (slot, bits) in bitmaps {
            let free: u32 = bits.iter().map(|w| w.count_zeros()).sum();
            let free_chunks: u32 = bits.iter().map(|w| free_chunks(*w).count_ones()).sum();
            map.free += u64::from(free);
            map.free_chunks += u64::from(free_chunks);
            map.groups.push(Group {
                used: Arc::clone(&bits),
                committed: bits,
                frozen: None,
                released: None,
                free,
                free_chunks,
                slot,
            });
        }
        map.committed_free = map.free;
        map.headroom = (layout.data_blocks() / u64::from(NODE_BLOCKS) / 64).clamp(HEADROOM_MIN, HEADROOM_MAX);
        map.show();
        map
    }

    /// What is to be had without the map.
    pub(crate) fn credit(&self) -> &Arc<Credit> {
        &self.credit
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.committed_free
    }

    pub(crate) fn pinned_blocks(&self) -> u64 {
        self.pinned_blocks
    }

    /// Allocates up to `blocks` reserved blocks as one run.
    pub(crate) fn allocate(&mut self, blocks: u32, near: Option<BlockNo>) -> Run {
        assert!(blocks > 0 && self.reserved > 0 && self.free > 0, "allocation is reserved");
        let near = near.filter(|b| self.layout.locate(*b).is_some());
        let start = near.unwrap_or(self.data_cursor);
        // Breaking a whole chunk is allowed while more of them are free than nodes may need. The kept ones are broken
        // only if they have been claimed partly for freeing space, so that too little is left outside.
        let unclaimed = self.free_chunks.saturating_sub(self.node_claims);
        let spare_chunks = unclaimed.saturating_sub(self.kept_chunks());
        let want = blocks.min(u32::try_from(self.reserved).unwrap_or(u32::MAX));
        let run = self
            .find_run(start, want, spare_chunks)
            .or_else(|| self.find_run(start, want, unclaimed))
            .expect("reserved blocks are free outside of the chunks kept for nodes");
        self.reserved -= u64::from(run.len);
        self.set_used(run, true);
        if near.is_none() {
            self.data_cursor = run.start.plus(u64::from(run.len));
        }
        run
    }

    /// Gives back a run that was never committed; it becomes reserved again.
    pub(crate) fn abandon(&mut self, run: Run) {
        self.reserved += u64::from(run.len);
        self.set_used(run, false);
    }

    /// Allocates one chunk for a node of the running checkpoint, which has claimed it.
    pub(crate) fn allocate_node(&mut self) -> Option<BlockNo> {
        let start = self.layout.locate(self.node_cursor).map_or(0, |(group, _)| group.0);
        let count = self.groups.len() as u32;
        for step in 0..=count {
            let group = (start + step) % count;
            if self.groups[group as usize].free_chunks == 0 {
                continue;
            }
            let from = match self.layout.locate(self.node_cursor) {
                Some((cursor, index)) if step == 0 && cursor.0 == group => index,
                _ => 0,
            };
            if let Some(block) = self.find_chunk(group, from) {
                let run = Run { start: block, len: NODE_BLOCKS };
                self.set_used(run, true);
                self.set_committed(run, true);
                self.set_frozen(run, true);
                self.node_cursor = block.plus(u64::from(NODE_BLOCKS));
                return Some(block);
            }
        }
        None
    }

    /// Enters what a batch allocates and frees; runs that follow one another as one, which a large batch has many of.
    pub(crate) fn commit_batch(&mut self, batch: &Batch) {
        let mut open: Option<(Run, bool)> = None;
        for op in batch.ops.iter() {
            let (run, frees) = match op {
                Op::Allocate { start, len } => (Run { start, len }, false),
                Op::Free { start, len } | Op::Release { outcome: Outcome::Free, start, len, .. } => {
                    (Run { start, len }, true)
                }
                _ => continue,
            };
            match &mut open {
                // No run reaches from one group to the next, whose head is between them.
                Some((before, same))
                    if *same == frees && before.start.plus(u64::from(before.len)) == run.start =>
                {
                    before.len += run.len;
                }
                _ => {
                    if let Some((before, frees)) = open.replace((run, frees)) {
                        self.commit_run(before, frees);
                    }
                }
            }
        }
        if let Some((last, frees)) = open {
            self.commit_run(last, frees);
        }
    }

    fn commit_run(&mut self, run: Run, frees: bool) {
        match frees {
            true => self.commit_free(run),
            false => self.commit_allocate(run),
        }
    }

    /// A batch names the run.
    pub(crate) fn commit_allocate(&mut self, run: Run) {
        self.set_committed(run, true);
    }

    /// A batch frees the run: pinned until a checkpoint with this free is durable.
    pub(crate) fn commit_free(&mut self, run: Run) {
        self.set_committed(run, false);
        self.pinned_blocks += u64::from(run.len);
        // No run reaches from one group to the next.
        match self.pinned.last_mut() {
            Some(last) if last.start.plus(u64::from(last.len)) == run.start => last.len += run.len,
            _ => self.pinned.push(run),
        }
    }

    /// Whether what the batch frees is in use. The callers know it from items of the volume, which may lie.
    pub(crate) fn check_frees(&self, batch: &Batch) -> Result<(), StoreError> {
        let mut freed: Vec<Run> = Vec::new();
        for op in batch.ops.iter() {
            let (Op::Free { start, len } | Op::Release { outcome: Outcome::Free, start, len, .. }) = op
            else {
                continue;
            };
            let run = Run { start, len };
            if !self.layout.holds_run(start, len) || !self.all_committed(run, true) {
                let what = "an item names blocks that are free or outside of any group";
                return Err(StoreError::Inconsistent { block: start, what });
            }
            freed.push(run);
        }
        freed.sort_by_key(|run| run.start);
        for pair in freed.windows(2) {
            if pair[0].start.plus(u64::from(pair[0].len)) > pair[1].start {
                let what = "two items name the same block";
                return Err(StoreError::Inconsistent { block: pair[1].start, what });
            }
        }
        Ok(())
    }

    /// Frees a node that the tree does not name any more.
    ///
    /// Errors: the bitmaps say that it is free already.
    pub(crate) fn free_node(&mut self, block: BlockNo) -> Result<(), StoreError> {
        let run = Run { start: block, len: NODE_BLOCKS };
        if !self.layout.holds_node(block) || !self.all_committed(run, true) {
            return Err(StoreError::Inconsistent { block, what: "a tree node lies in blocks that are free" });
        }
        self.commit_free(run);
        Ok(())
    }

    /// Frees nodes that no tree names any more, in the order of their places, which it brings them into: many lie one
    /// behind the other, and become free as one run. Errors: as [`SpaceMap::free_node`].
    pub(crate) fn free_nodes(&mut self, nodes: &mut [BlockNo]) -> Result<(), StoreError> {
        nodes.sort_unstable();
        let what = "a tree node lies in blocks that are free";
        if let Some(block) = nodes.iter().find(|block| !self.layout.holds_node(**block)) {
            return Err(StoreError::Inconsistent { block: *block, what });
        }
        let node_blocks = u64::from(NODE_BLOCKS);
        for nodes in nodes.chunk_by(|before, next| before.plus(node_blocks) == *next) {
            let run = Run { start: nodes[0], len: nodes.len() as u32 * NODE_BLOCKS };
            if !self.all_committed(run, true) {
                return Err(StoreError::Inconsistent { block: run.start, what });
            }
            self.commit_free(run);
        }
        Ok(())
    }

    /// Replays an allocation from the journal; false if the blocks were not free.
    pub(crate) fn replay_allocate(&mut self, run: Run) -> bool {
        if !self.all_committed(run, false) {
            return false;
        }
        // Blocks freed by an earlier batch of the replay are still pinned and already used.
        if self.any_used(run) {
            return false;
        }
        self.set_used(run, true);
        self.set_committed(run, true);
        true
    }

    /// Replays a free; false if the blocks were not in use.
    pub(crate) fn replay_free(&mut self, run: Run) -> bool {
        if !self.all_committed(run, true) {
            return false;
        }
        self.commit_free(run);
        true
    }

    /// Marks a group to be written by the next checkpoint.
    pub(crate) fn mark_dirty(&mut self, group: u32) {
        self.dirty.insert(group);
    }

    /// Freezes the bitmaps: from here on the checkpoint sees them as they are now (R15), and releases the frees so far
    /// (R16).
    pub(crate) fn freeze(&mut self) {
        assert!(self.frozen_dirty.is_none(), "one checkpoint at a time");
        self.frozen_dirty = Some(std::mem::take(&mut self.dirty));
        self.frozen_pinned = std::mem::take(&mut self.pinned);
    }

    /// Groups that the running checkpoint has to write, with their frozen bits and the slot that is not current.
    pub(crate) fn frozen_groups(&self) -> Vec<(GroupNo, u8, Arc<Bits>)> {
        let dirty = self.frozen_dirty.as_ref().expect("a checkpoint is running");
        dirty
            .iter()
            .map(|&number| {
                let group = &self.groups[number as usize];
                let bits = group.frozen.as_ref().unwrap_or(&group.committed);
                (GroupNo(number), 1 - group.slot, Arc::clone(bits))
            })
            .collect()
    }

    /// Free blocks as of the freeze.
    pub(crate) fn frozen_free(&self) -> u64 {
        let mut free = self.committed_free;
        for group in &self.groups {
            if let Some(frozen) = &group.frozen {
                let now: u64 = group.committed.iter().map(|w| u64::from(w.count_zeros())).sum();
                let then: u64 = frozen.iter().map(|w| u64::from(w.count_zeros())).sum();
                free = free + then - now;
            }
        }
        free
    }

    /// The checkpoint is durable: its slots are current, its frees may be handed out. Returns the released runs.
    pub(crate) fn thaw(&mut self) -> Vec<Run> {
        let dirty = self.frozen_dirty.take().expect("a checkpoint is running");
        for number in dirty {
            let group = &mut self.groups[number as usize];
            group.slot = 1 - group.slot;
        }
        for group in &mut self.groups {
            group.frozen = None;
            group.released = None;
        }
        let released = std::mem::take(&mut self.frozen_pinned);
        for run in &released {
            self.pinned_blocks -= u64::from(run.len);
            self.set_used(*run, false);
            let (number, index) = self.group_of(*run);
            let bits = self.groups[number].released.get_or_insert_with(|| Box::new([0; BITMAP_WORDS]));
            set_bits(bits, index, run.len, true);
        }
        released
    }

    /// Whether the superblock before the last one refers to blocks that are free.
    pub(crate) fn has_released(&self) -> bool {
        self.groups.iter().any(|group| group.released.is_some())
    }

    fn group_of(&self, run: Run) -> (usize, usize) {
        let (group, index) = self.layout.locate(run.start).expect("runs lie in a group");
        assert!(
            u64::from(index) >= GROUP_HEAD_BLOCKS && index + run.len <= self.layout.group_len(group),
            "run {run:?} lies inside its group"
        );
        (group.0 as usize, index as usize)
    }

    fn set_used(&mut self, run: Run, value: bool) {
        let (number, index) = self.group_of(run);
        let group = &mut self.groups[number];
        let before = chunk_count(&group.used, index, run.len);
        set_bits(Arc::make_mut(&mut group.used), index, run.len, value);
        let after = chunk_count(&group.used, index, run.len);
        group.free_chunks = group.free_chunks + after - before;
        self.free_chunks = self.free_chunks + u64::from(after) - u64::from(before);
        if value {
            group.free -= run.len;
            self.free -= u64::from(run.len);
        } else {
            group.free += run.len;
            self.free += u64::from(run.len);
        }
        self.show();
    }

    fn set_committed(&mut self, run: Run, value: bool) {
        let (number, index) = self.group_of(run);
        let group = &mut self.groups[number];
        if self.frozen_dirty.is_some() && group.frozen.is_none() {
            group.frozen = Some(Arc::clone(&group.committed));
        }
        set_bits(Arc::make_mut(&mut group.committed), index, run.len, value);
        self.dirty.insert(number as u32);
        if value {
            self.committed_free -= u64::from(run.len);
        } else {
            self.committed_free += u64::from(run.len);
        }
    }

    fn set_frozen(&mut self, run: Run, value: bool) {
        let (number, index) = self.group_of(run);
        let group = &mut self.groups[number];
        if let Some(frozen) = &mut group.frozen {
            set_bits(Arc::make_mut(frozen), index, run.len, value);
        }
        self.frozen_dirty.as_mut().expect("a checkpoint is running").insert(number as u32);
    }

    fn all_committed(&self, run: Run, value: bool) -> bool {
        let (number, index) = self.group_of(run);
        all_bits(&self.groups[number].committed, index, run.len, value)
    }

    fn any_used(&self, run: Run) -> bool {
        let (number, index) = self.group_of(run);
        !all_bits(&self.groups[number].used, index, run.len, false)
    }

    fn find_chunk(&self, group: u32, from: u32) -> Option<BlockNo> {
        let used = &self.groups[group as usize].used;
        let first_word = from as usize / 64;
        for step in 0..=BITMAP_WORDS {
            let word = (first_word + step) % BITMAP_WORDS;
            let mut chunks = free_chunks(used[word]);
            if step == 0 {
                chunks &= u64::MAX << (from % 64);
            }
            if chunks != 0 {
                let index = word * 64 + chunks.trailing_zeros() as usize;
                return Some(self.layout.group_start(GroupNo(group)).plus(index as u64));
            }
        }
        None
    }

    fn find_run(&self, start: BlockNo, want: u32, spare_chunks: u64) -> Option<Run> {
        let (first, first_index) = self.layout.locate(start).unwrap_or((GroupNo(0), 0));
        let count = self.groups.len() as u32;
        let mut best: Option<Run> = None;
        for step in 0..=count {
            let group = (first.0 + step) % count;
            if self.groups[group as usize].free == 0 {
                continue;
            }
            let from = if step == 0 { first_index } else { 0 };
            let end = if step == count { first_index } else { u32::MAX };
            if let Some(run) = self.find_in_group(group, from, end, want, spare_chunks)
                && best.is_none_or(|best| run.len > best.len)
            {
                best = Some(run);
            }
            if best.is_some_and(|best| best.len >= want.min(32)) {
                break;
            }
        }
        best
    }

    /// Longest of the first candidate runs of a group between two indices.
    fn find_in_group(&self, group: u32, from: u32, end: u32, want: u32, spare_chunks: u64) -> Option<Run> {
        let used = &self.groups[group as usize].used;
        let end = (self.layout.group_len(GroupNo(group)) as usize).min(end as usize);
        let base = self.layout.group_start(GroupNo(group));
        let mut at = from as usize;
        let mut best: Option<(usize, u32)> = None;
        let mut candidates = 0;
        while at < end {
            let Some(start) = next_free(used, at, end, spare_chunks == 0) else { break };
            let len = run_length(used, start, end, want, spare_chunks);
            if best.is_none_or(|(_, best)| len > best) {
                best = Some((start, len));
            }
            candidates += 1;
            if len >= want || candidates >= RUN_CANDIDATES_MAX {
                break;
            }
            at = start + len as usize;
        }
        best.map(|(start, len)| Run { start: base.plus(start as u64), len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;

    pub(super) fn map() -> SpaceMap {
        map_of(1024)
    }

    /// Of so many blocks, in one group.
    pub(super) fn map_of(blocks: u64) -> SpaceMap {
        let layout = Layout::new(blocks, Some(64)).expect("valid");
        let mut bits = [u64::MAX; BITMAP_WORDS];
        for i in GROUP_HEAD_BLOCKS as usize..layout.group_len(GroupNo(0)) as usize {
            bits[i / 64] &= !(1 << (i % 64));
        }
        SpaceMap::new(layout, vec![(0, Arc::new(bits))])
    }

    #[test]
    fn a_freed_block_is_not_handed_out_before_the_checkpoint_that_frees_it() {
        let mut map = map();
        map.reserve(1).expect("space");
        let run = map.allocate(1, None);
        map.commit_allocate(run);
        map.commit_free(run);
        let rest = map.available();
        map.reserve(rest).expect("space");
        let mut left = rest;
        while left > 0 {
            let other = map.allocate(left as u32, None);
            assert!(!(other.start.0..other.start.0 + u64::from(other.len)).contains(&run.start.0));
            left -= u64::from(other.len);
        }
        map.freeze();
        assert_eq!(map.thaw(), vec![run]);
        assert_eq!(map.pinned_blocks(), 0);
    }

    #[test]
    fn frees_after_the_freeze_stay_pinned_and_out_of_the_frozen_bits() {
        let mut map = map();
        map.reserve(2).expect("space");
        let run = map.allocate(2, None);
        map.commit_allocate(run);
        map.freeze();
        let before = map.frozen_free();
        map.commit_free(run);
        assert_eq!(map.frozen_free(), before, "the frozen bitmaps do not see it");
        assert!(map.thaw().is_empty(), "released only by the next checkpoint");
        assert_eq!(map.pinned_blocks(), 2);
    }

    #[test]
    fn data_never_takes_the_last_whole_chunks_from_nodes() {
        let mut map = map();
        let claims = 10;
        assert!(map.claim_nodes(claims, Class::Normal));
        let all = map.available();
        map.reserve(all).expect("space");
        let mut left = all;
        while left > 0 {
            left -= u64::from(map.allocate(3.min(left as u32), None).len);
        }
        assert_eq!(map.reserve(1), Err(StoreError::NoSpace));
        map.freeze();
        for _ in 0..claims {
            assert!(map.allocate_node().is_some(), "claimed chunks are there");
        }
    }
}
