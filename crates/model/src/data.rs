//! File data (design 3.3, 3.4, section 5): dirty pages, syncs, images, writeback and destage.

use crate::device::Place;
use crate::engine::{Page, State, Waiter, Writeback};
use crate::rules::Rule;
use crate::scope::Scope;
use crate::volume::{Block, Blocks, Content, Era, Extent, Op, Spot, bit, spots_of};

impl State {
    /// `write`: dirties a page and reserves the block it will need (R18). A lack of space is told here and nowhere
    /// else.
    pub fn write(&mut self, scope: &Scope, spot: Spot) -> Option<()> {
        self.left.ops = self.left.ops.checked_sub(1)?;
        let before = *self.engine.pages.at(spot);
        let (image, logged) = before.map_or((None, 0), |page| (page.image, page.logged));
        let content = self.contract.write(spot);
        *self.engine.pages.at_mut(spot) = Some(Page { content, dirty: true, image, logged });
        self.within_reserves(scope).then_some(())
    }

    /// R18: every dirty or logged page has a free block, and so have the next checkpoint's nodes, unless the running
    /// one has its.
    pub fn within_reserves(&self, scope: &Scope) -> bool {
        let free = self.engine.space.available(scope).count_ones();
        !scope.on(Rule::R18) || free > self.engine.reserved(scope) + self.engine.nodes_needed(scope)
    }

    /// `fsync`: commits the file's dirty pages, as images or as extents whose data is written beside the record, and
    /// waits for the volume's last LSN (R19). It returns at once if that is durable already.
    pub fn sync(&mut self, scope: &Scope, file: u8, as_extents: bool) -> Option<()> {
        self.left.syncs = self.left.syncs.checked_sub(1)?;
        let head = self.engine.head;
        let dirty: Vec<Spot> =
            spots_of(head, file).filter(|spot| self.counts_as_dirty(scope, *spot)).collect();
        if dirty.is_empty() && as_extents {
            return None;
        }
        let promise = self.contract.promise(Some((head, file)));
        if dirty.is_empty() && !scope.on(Rule::R19) {
            self.contract.keep(&promise);
            return Some(());
        }
        if as_extents {
            self.commit_extents(scope, &dirty)?;
        } else if !dirty.is_empty() {
            let ops = self.images_of(&dirty);
            self.admit(scope, dirty.len() as u8, dirty.len() as u8)?;
            self.engine.commit(scope, ops, 0);
        }
        self.engine.waiters.push(Waiter { lsn: self.engine.lsn, promise });
        self.acknowledge();
        Some(())
    }

    /// R6: a page whose writeback is under way counts as dirty until it is logged.
    fn counts_as_dirty(&self, scope: &Scope, spot: Spot) -> bool {
        let underway = || self.engine.writeback_of(spot).is_some();
        self.engine.is_dirty(spot) && (scope.on(Rule::Underway) || !underway())
    }

    /// Whole pages as images, one ring block each.
    pub fn images_of(&self, spots: &[Spot]) -> Vec<Op> {
        let image = |spot: &Spot| {
            let page = self.engine.pages.at(*spot).as_ref()?;
            Some(Op::Image { spot: *spot, content: page.content })
        };
        spots.iter().filter_map(image).collect()
    }

    /// Admission of a batch with `images` images (R17).
    pub fn admit(&self, scope: &Scope, cells: u8, images: u8) -> Option<()> {
        let images = self.engine.live_images(scope) + images;
        let fits = cells <= scope.record_cells;
        (fits && self.engine.journal.admits(scope, cells.max(1), images, false)).then_some(())
    }

    /// Data in parallel with the record: starts the writes and commits the extents in one step, to be proven by
    /// recovery (R4).
    fn commit_extents(&mut self, scope: &Scope, dirty: &[Spot]) -> Option<()> {
        self.admit(scope, 1, 0)?;
        let mut ops = Vec::new();
        let mut data: Blocks = 0;
        for spot in dirty {
            let content = self.engine.pages.at(*spot).as_ref()?.content;
            let (block, in_place) = self.block_for(scope, *spot)?;
            self.write_data(scope, block, content);
            data |= bit(block);
            self.extent_ops(scope, *spot, content, block, in_place, self.engine.forest.era, &mut ops);
            *self.engine.pages.at_mut(*spot) = None;
        }
        self.engine.commit(scope, ops, data);
        Some(())
    }

    /// Where a page is written: into its preallocated block, if that is the head's own (R25), or a free one.
    pub fn block_for(&mut self, scope: &Scope, spot: Spot) -> Option<(Block, bool)> {
        let tree = self.engine.forest.tree(spot.tree)?;
        if let Extent::Unwritten { block, birth } = *tree.extents.at(spot)
            && (tree.shared[usize::from(block)] == 0 || !scope.on(Rule::ShareWritten))
            && (birth > self.engine.forest.low(spot.tree) || !scope.on(Rule::OwnInPlace))
        {
            return Some((block, true));
        }
        let block = self.engine.space.first(scope)?;
        self.engine.space.writing |= bit(block);
        Some((block, false))
    }

    pub fn write_data(&mut self, scope: &Scope, block: Block, content: u8) {
        // R8: nothing is written to a block while an earlier write to it is in flight.
        if scope.on(Rule::R8) {
            self.device.wait(Place::Block(block));
        }
        self.device.write(Place::Block(block), Content::Data(content));
    }

    /// The batch of a page written to its block: the extent, the drop of its image (R5), the free of what was there.
    /// `birth` is the era of the commit (R23).
    #[allow(clippy::too_many_arguments)]
    pub fn extent_ops(
        &self,
        scope: &Scope,
        spot: Spot,
        content: u8,
        block: Block,
        in_place: bool,
        birth: Era,
        ops: &mut Vec<Op>,
    ) {
        if !in_place {
            ops.push(Op::Allocate(block));
        }
        let before =
            self.engine.forest.tree(spot.tree).map(|tree| *tree.extents.at(spot)).unwrap_or_default();
        // What is written in place is no new reference: a snapshot may have come that has the block.
        let kept = before.reference().filter(|_| in_place && scope.on(Rule::KeptBirth));
        let birth = kept.map_or(birth, |(_, birth)| birth);
        ops.push(Op::Extent { spot, extent: Extent::Written { block, sum: content, birth }, fresh: true });
        self.engine.void_image(scope, spot, ops);
        if !in_place {
            self.engine.release(scope, spot, before, ops);
        }
    }

    /// Writeback, and the destage of a logged page: the write is started, the batch comes later.
    pub fn start_writeback(&mut self, scope: &Scope, spot: Spot) -> Option<()> {
        self.left.writebacks = self.left.writebacks.checked_sub(1)?;
        let content = self.engine.pages.at(spot).as_ref()?.content;
        let (block, in_place) = self.block_for(scope, spot)?;
        self.write_data(scope, block, content);
        let forest = &self.engine.forest;
        let replaced = forest.tree(spot.tree)?.extents.at(spot).reference();
        let owned = replaced.is_none_or(|(_, birth)| forest.frees(scope, spot, birth));
        let era = forest.era;
        self.engine.writebacks.push(Writeback { spot, content, block, in_place, era, owned });
        Some(())
    }

    /// Logs what was written. R6: under the lock, before that, identity, truncation and version are checked; what
    /// changed is left out, and its block is given back when its write has completed (R8).
    pub fn log_writeback(&mut self, scope: &Scope, index: u8) -> Option<()> {
        if usize::from(index) >= self.engine.writebacks.len() {
            return None;
        }
        let Writeback { spot, content, block, in_place, era, owned } =
            self.engine.writebacks.remove(usize::from(index));
        let page = *self.engine.pages.at(spot);
        let unchanged = page.is_some_and(|page| page.content == content);
        let exists =
            self.engine.forest.tree(spot.tree).is_some_and(|tree| tree.exists[usize::from(spot.file)]);
        if !unchanged && (scope.on(Rule::R6) || !exists) {
            if scope.on(Rule::R8) {
                self.device.wait(Place::Block(block));
            }
            if !in_place {
                self.engine.space.writing &= !bit(block);
            }
            return Some(());
        }
        if !self.engine.journal.admits(scope, 1, self.engine.live_images(scope), true) {
            return None;
        }
        let mut ops = Vec::new();
        let birth = if scope.on(Rule::R23) { self.engine.forest.era } else { era };
        self.extent_ops(scope, spot, content, block, in_place, birth, &mut ops);
        if !scope.on(Rule::R24) {
            // As it was when the batch was built.
            for op in &mut ops {
                if let Op::Release { block, .. } = *op {
                    *op = if owned { Op::Free(block) } else { Op::Left(block) };
                }
            }
        }
        if unchanged {
            *self.engine.pages.at_mut(spot) = None;
        }
        self.engine.commit(scope, ops, bit(block));
        Some(())
    }
}
