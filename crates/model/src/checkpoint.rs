//! Checkpoints (design 3.5), beside the logging: freeze, write out, force, flush, superblock, flush, release.

use crate::device::{GROUPS, Place};
use crate::engine::State;
use crate::forest::Forest;
use crate::rules::Rule;
use crate::scope::Scope;
use crate::volume::{Block, Blocks, Content, Lsn, Superblock, bit, each};
use std::sync::Arc;

/// What was frozen, and how far its writing is.
#[derive(Debug, Clone, Hash)]
pub struct Checkpoint {
    pub lsn: Lsn,
    pub forest: Forest,
    /// Nodes of trees that it writes, and where.
    pub homes: Vec<(u8, Block)>,
    /// Nodes that are no part of any tree any more.
    superseded: Blocks,
    /// Blocks in use as of `lsn`, and the checkpoint's own node (R15).
    used: Blocks,
    dirty: [bool; GROUPS],
    /// The oldest LSN that replay needs (R2).
    oldest: Lsn,
    /// Node of the tree before; superseded by this checkpoint.
    old_root: Block,
    pub root: Option<Block>,
    /// The slots that the bitmaps were written to.
    slots: [u8; GROUPS],
    /// The superblock on its way, and the ring position of its tail.
    pub superblock: Option<(Superblock, u8)>,
}

impl State {
    /// Whether a checkpoint would change anything.
    pub fn can_freeze(&self, scope: &Scope) -> bool {
        let engine = &self.engine;
        if engine.checkpoint.is_some() {
            return false;
        }
        let oldest = engine.oldest_image(scope).map_or(engine.lsn, |image| image.min(engine.lsn));
        engine.lsn != engine.durable.lsn
            || engine.superseded != 0
            || engine.durable.trees != scope.trees
            || engine
                .forest
                .each()
                .any(|(tree, branch)| branch.root.is_none() && engine.gone & 1 << tree == 0)
            || (engine.journal.durable >= oldest
                && engine.journal.tail_for(scope, oldest).0 != engine.durable.tail)
    }

    /// Freezes: the tree, the bitmaps and the pinned frees as of X, the tail by the images not dropped by any LSN <= X
    /// (R2, R15, R16). Constant time, nothing is written.
    pub fn freeze(&mut self, scope: &Scope) -> Option<()> {
        if !self.can_freeze(scope) {
            return None;
        }
        self.left.checkpoints = self.left.checkpoints.checked_sub(1)?;
        let engine = &mut self.engine;
        let old_root = engine.durable.root;
        engine.space.dirty[usize::from(scope.group(old_root))] = true;
        let superseded = std::mem::take(&mut engine.superseded);
        each(superseded).for_each(|block| engine.space.dirty[usize::from(scope.group(block))] = true);
        if scope.trees {
            engine.forest.freeze();
        }
        engine.checkpoint = Some(Checkpoint {
            lsn: engine.lsn,
            forest: engine.forest.clone(),
            homes: Vec::new(),
            superseded,
            used: engine.space.committed & !bit(old_root) & !superseded,
            dirty: std::mem::take(&mut engine.space.dirty),
            oldest: engine.oldest_image(scope).map_or(engine.lsn, |image| image.min(engine.lsn)),
            old_root,
            root: None,
            slots: engine.space.slots,
            superblock: None,
        });
        engine.space.frozen = std::mem::take(&mut engine.space.pinned);
        Some(())
    }

    /// Writes the node and the bitmaps of the frozen state. The bitmaps go to the slots that are not current under
    /// the last durable superblock (R9).
    pub fn write_out(&mut self, scope: &Scope) -> Option<()> {
        let mut checkpoint = self.engine.checkpoint.take().filter(|running| running.root.is_none())?;
        if scope.trees {
            for (id, tree) in checkpoint.forest.homeless() {
                let block = self.engine.space.last(scope)?;
                self.engine.space.allocate(scope, block);
                checkpoint.used |= bit(block);
                checkpoint.dirty[usize::from(scope.group(block))] = true;
                checkpoint.homes.push((id, block));
                self.device.write(Place::Block(block), Content::Node(Arc::new(tree)));
            }
        }
        let root = self.engine.space.last(scope)?;
        self.engine.space.allocate(scope, root);
        checkpoint.root = Some(root);
        checkpoint.used |= bit(root);
        checkpoint.dirty[usize::from(scope.group(root))] = true;
        let stored = checkpoint.forest.stored(scope, &checkpoint.homes);
        self.device.write(Place::Block(root), Content::Root(Arc::new(stored)));
        if !scope.on(Rule::R15) {
            let space = &self.engine.space;
            let gone = bit(checkpoint.old_root) | checkpoint.superseded;
            checkpoint.used = (space.committed | space.writing) & !gone;
        }
        let generation = self.engine.durable.generation + 1;
        self.write_bitmaps(scope, checkpoint.used, generation, checkpoint.dirty);
        checkpoint.slots = self.engine.space.slots;
        self.engine.checkpoint = Some(checkpoint);
        Some(())
    }

    pub fn write_bitmaps(&mut self, scope: &Scope, used: Blocks, generation: u8, dirty: [bool; GROUPS]) {
        for group in (0..GROUPS as u8).filter(|group| dirty[usize::from(*group)]) {
            let current = &mut self.engine.space.slots[usize::from(group)];
            let place = Place::Bitmap { group, slot: 1 - *current };
            if !scope.on(Rule::R9) {
                *current = 1 - *current;
            }
            if scope.on(Rule::R8) {
                self.device.wait(place);
            }
            self.device.write(place, Content::Bitmap { generation, used });
        }
    }

    /// When everything up to X is forced (R1): waits for the checkpoint's own writes, flushes, and starts the
    /// superblock, in the slot that is not current (R9).
    pub fn write_super(&mut self, scope: &Scope) -> Option<()> {
        let checkpoint = self.engine.checkpoint.as_ref().filter(|running| running.superblock.is_none())?;
        let (root, lsn, dirty) = (checkpoint.root?, checkpoint.lsn, checkpoint.dirty);
        if scope.on(Rule::R1) && self.engine.journal.durable < lsn {
            return None;
        }
        let images = self.engine.oldest_image(scope).map_or(lsn, |image| image.min(lsn));
        let oldest = if scope.on(Rule::R2) { checkpoint.oldest } else { images };
        let (tail, position) = self.engine.journal.tail_for(scope, oldest);
        let superblock = Superblock {
            generation: self.engine.durable.generation + 1,
            lsn,
            epoch: self.engine.durable.epoch,
            tail,
            root,
            root_sum: checkpoint.forest.stored(scope, &checkpoint.homes).checksum(),
            cut: None,
            trees: scope.trees,
        };
        let nodes = checkpoint.homes.iter().fold(bit(root), |set, (_, block)| set | bit(*block));
        // R1, and of an upgrade R21: what the superblock names is durable before it is written.
        if scope.on(Rule::R21) || self.engine.durable.trees == scope.trees {
            self.wait_for_checkpoint(nodes, dirty);
            self.device.flush();
        }
        self.device.write(Place::Super(1 - self.engine.slot), Content::Super(superblock));
        if !scope.on(Rule::R3) {
            self.engine.journal.release_to(position);
        }
        self.engine.checkpoint.as_mut()?.superblock = Some((superblock, position));
        Some(())
    }

    fn wait_for_checkpoint(&mut self, nodes: Blocks, dirty: [bool; GROUPS]) {
        each(nodes).for_each(|block| self.device.wait(Place::Block(block)));
        for group in (0..GROUPS as u8).filter(|group| dirty[usize::from(*group)]) {
            self.device.wait(Place::Bitmap { group, slot: 0 });
            self.device.wait(Place::Bitmap { group, slot: 1 });
        }
    }

    /// Flushes the superblock. It is durable: the frees up to X are handed out (R11, R16), the tail moves (R3).
    pub fn finish(&mut self, scope: &Scope) -> Option<()> {
        self.engine.checkpoint.as_ref()?.superblock?;
        self.device.wait(Place::Super(1 - self.engine.slot));
        self.device.flush();
        self.settle(scope)
    }

    fn settle(&mut self, scope: &Scope) -> Option<()> {
        let checkpoint = self.engine.checkpoint.take()?;
        let (superblock, position) = checkpoint.superblock?;
        let engine = &mut self.engine;
        engine.durable = superblock;
        engine.slot = 1 - engine.slot;
        for group in (0..GROUPS).filter(|group| checkpoint.dirty[*group]) {
            let written =
                if scope.on(Rule::R9) { 1 - checkpoint.slots[group] } else { checkpoint.slots[group] };
            engine.space.slots[group] = written;
        }
        let mut released = std::mem::take(&mut engine.space.frozen);
        if !scope.on(Rule::R16) {
            released |= std::mem::take(&mut engine.space.pinned);
        }
        // R8: a block is not handed out while a write to it is in flight.
        if scope.on(Rule::R8) {
            each(released).for_each(|block| self.device.wait(Place::Block(block)));
        }
        for (id, block) in checkpoint.homes {
            if engine.superseded_ids.contains(&id) {
                engine.superseded |= bit(block);
            }
            let roots = engine.forest.branches.iter_mut().flatten().filter_map(|branch| branch.root.as_mut());
            for root in roots.filter(|root| root.home.is_none() && root.id == id) {
                (root.home, root.id, root.frozen) = (Some(block), 0, false);
            }
        }
        engine.superseded_ids.clear();
        let emptied = checkpoint.forest.each().filter(|(_, branch)| branch.root.is_none());
        engine.gone |= emptied.fold(0, |set, (tree, _)| set | 1 << tree);
        let gone = bit(checkpoint.old_root) | checkpoint.superseded;
        engine.space.committed &= !gone;
        each(gone).for_each(|block| engine.space.dirty[usize::from(scope.group(block))] = true);
        engine.journal.release_to(position);
        Some(())
    }

    /// Gives up before the superblock, for a reason that is no I/O error: waits for the checkpoint's own writes (R8),
    /// and leaves everything to the next one.
    pub fn abort(&mut self, scope: &Scope) -> Option<()> {
        let checkpoint = self.engine.checkpoint.take().filter(|running| running.superblock.is_none())?;
        let root = checkpoint.root?;
        self.left.aborts = self.left.aborts.checked_sub(1)?;
        let nodes = checkpoint.homes.iter().fold(bit(root), |set, (_, block)| set | bit(*block));
        if scope.on(Rule::R8) {
            self.wait_for_checkpoint(nodes, checkpoint.dirty);
        }
        self.engine.superseded |= checkpoint.superseded;
        self.engine.superseded_ids.clear();
        let space = &mut self.engine.space;
        space.committed &= !nodes;
        space.pinned |= std::mem::take(&mut space.frozen);
        for group in 0..GROUPS {
            space.dirty[group] |= checkpoint.dirty[group];
        }
        Some(())
    }

    /// The superblock's write or its flush fails: the slot may hold it or not. The volume latches (C8).
    pub fn fail_super(&mut self, scope: &Scope) -> Option<()> {
        self.engine.checkpoint.as_ref()?.superblock?;
        self.left.faults = self.left.faults.checked_sub(1)?;
        self.device.fail_write(Place::Super(1 - self.engine.slot));
        if scope.on(Rule::LatchSuper) {
            self.engine.latched = true;
            self.engine.waiters.clear();
            return Some(());
        }
        self.settle(scope)
    }
}
