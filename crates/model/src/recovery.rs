//! Recovery (design 3.7): choose, follow, prove, apply; then mark the cut, destage, checkpoint under a new epoch.

use crate::contract::{Contract, Shot, View, Violation};
use crate::device::{Device, GROUPS, Place};
use crate::engine::{Engine, Mode, Page, Space, State};
use crate::forest::{At, Branch, Forest, Root};
use crate::journal::Journal;
use crate::rules::Rule;
use crate::scope::{Budget, Scope};
use crate::volume::{
    Batch, Block, Blocks, Content, Extent, Lsn, Op, PerTree, Record, Role, Sequence, Superblock, TREES, Tail,
    bit, each, spots_in, spots_of,
};
use std::sync::Arc;

type Result<T> = std::result::Result<T, Violation>;

impl State {
    /// The power fails; of the writes since the last flush, those of `choice` survive. The volume is opened again.
    pub fn cut_power(&self, scope: &Scope, choice: u32) -> Result<State> {
        self.open_after(scope, self.device.after_loss(choice))
    }

    /// Opens the volume that a power cut has left.
    pub fn open_after(&self, scope: &Scope, device: Device) -> Result<State> {
        let mut left = self.left;
        left.cuts -= 1;
        let opened = open(scope, device, self.contract.clone(), left, (self.epochs, self.born));
        match opened {
            Ok(state) => Ok(State { rotted: self.rotted, ..state }),
            // C7: what rotted is told. Here the story ends.
            Err(violation) if self.rotted && violation.told => {
                let mut ended = self.clone();
                ended.engine.latched = true;
                ended.engine.mode = Mode::Running;
                ended.left = Budget::default();
                Ok(ended)
            }
            Err(violation) => Err(violation),
        }
    }

    /// Whether the recovery under way can be brought to its end: all that it may lack are free blocks.
    pub fn recover(&self, scope: &Scope) -> Result<()> {
        if self.engine.latched {
            return Ok(());
        }
        let mut state = self.clone();
        if let Mode::Replayed { .. } = state.engine.mode {
            state.engine.mode = Mode::Marked;
        }
        match state.destage_all(scope) {
            Some(()) => Ok(()),
            None => Err(Violation::new("stuck: recovery finds no free block for an image or for the tree")),
        }
    }

    /// The process dies; the device keeps its cache. The volume is opened again.
    pub fn kill(&self, scope: &Scope) -> Result<State> {
        let mut left = self.left;
        left.kills -= 1;
        let mut device = self.device.clone();
        device.complete_all();
        if scope.on(Rule::FreshCache) {
            device.forget_doomed();
        }
        open(scope, device, self.contract.clone(), left, (self.epochs, self.born))
    }

    /// R12: where the log was cut is made durable before anything else is written. The superblock is repeated into
    /// the other slot, with the same generation: with the next one, bitmap slots of a checkpoint that was not
    /// completed would count.
    pub fn mark_cut(&mut self, scope: &Scope) -> Option<()> {
        let Mode::Replayed { cut } = self.engine.mode else { return None };
        self.engine.mode = Mode::Marked;
        if let (Some(cut), true, None) = (cut, scope.on(Rule::R12), self.engine.durable.cut) {
            self.engine.durable.cut = Some(cut);
            if !scope.on(Rule::SameGeneration) {
                self.engine.durable.generation += 1;
            }
            let place = Place::Super(1 - self.engine.slot);
            self.device.write(place, Content::Super(self.engine.durable));
            self.engine.mode = Mode::Marking;
        }
        Some(())
    }

    pub fn flush_mark(&mut self) -> Option<()> {
        if self.engine.mode != Mode::Marking {
            return None;
        }
        self.engine.slot = 1 - self.engine.slot;
        self.device.wait(Place::Super(self.engine.slot));
        self.device.flush();
        self.engine.mode = Mode::Marked;
        Some(())
    }

    /// R10: all images are destaged, in place or into free blocks, those of snapshots into their overlays; then the
    /// trees and the bitmaps are written.
    pub fn destage_all(&mut self, scope: &Scope) -> Option<()> {
        if self.engine.mode != Mode::Marked {
            return None;
        }
        for spot in (0..TREES as u8).flat_map(spots_in) {
            let Some(page) = *self.engine.pages.at(spot) else { continue };
            let mut ops = Vec::new();
            let exists =
                self.engine.forest.tree(spot.tree).is_some_and(|tree| tree.exists[usize::from(spot.file)]);
            if exists && self.engine.is_snapshot(spot.tree) && scope.on(Rule::R28) {
                let block = self.engine.space.first(scope)?;
                self.write_data(scope, block, page.content);
                ops.extend([Op::Allocate(block), Op::Overlay { spot, page: Some((block, page.content)) }]);
            } else if exists {
                let (block, in_place) = self.block_for(scope, spot)?;
                self.write_data(scope, block, page.content);
                self.extent_ops(scope, spot, page.content, block, in_place, self.engine.forest.era, &mut ops);
            }
            for op in &ops {
                match *op {
                    Op::Release { at, block, birth } if self.engine.forest.frees(scope, at, birth) => {
                        self.engine.apply(scope, &Op::Free(block));
                    }
                    ref op => self.engine.apply(scope, op),
                }
            }
            *self.engine.pages.at_mut(spot) = None;
        }
        let mut homes = Vec::new();
        if scope.trees {
            for (id, tree) in self.engine.forest.homeless() {
                let block = self.engine.space.last(scope)?;
                self.engine.space.allocate(scope, block);
                self.device.write(Place::Block(block), Content::Node(Arc::new(tree)));
                homes.push((id, block));
            }
        }
        for branch in self.engine.forest.branches.iter_mut().flatten() {
            if let Some(root) = &mut branch.root
                && let Some(block) = crate::forest::home_of(&homes, root.id)
            {
                (root.home, root.id, root.frozen) = (Some(block), 0, false);
            }
        }
        for block in each(std::mem::take(&mut self.engine.superseded)) {
            self.engine.space.free(scope, block);
        }
        let old_root = self.engine.durable.root;
        let root = self.engine.space.last(scope)?;
        self.engine.space.allocate(scope, root);
        self.engine.space.free(scope, old_root);
        let stored = self.engine.forest.stored(scope, &[]);
        self.device.write(Place::Block(root), Content::Root(Arc::new(stored)));
        let (used, dirty) = (self.engine.space.committed, self.engine.space.dirty);
        let generation = self.engine.durable.generation + 1;
        self.write_bitmaps(scope, used, generation, dirty);
        self.engine.durable.root = root;
        self.engine.mode = Mode::Written;
        Some(())
    }

    /// R10: what was written is flushed before the superblock of the new epoch.
    pub fn write_first_super(&mut self, scope: &Scope) -> Option<()> {
        if self.engine.mode != Mode::Written {
            return None;
        }
        self.device.complete_all();
        if scope.on(Rule::R10) {
            self.device.flush();
        }
        self.epochs += 1;
        let engine = &mut self.engine;
        engine.durable = Superblock {
            generation: engine.durable.generation + 1,
            lsn: engine.lsn,
            epoch: self.epochs,
            tail: Tail::first(self.epochs),
            root: engine.durable.root,
            root_sum: engine.forest.stored(scope, &[]).checksum(),
            cut: None,
            trees: scope.trees,
        };
        self.device.write(Place::Super(1 - engine.slot), Content::Super(engine.durable));
        engine.mode = Mode::Ending;
        Some(())
    }

    /// The superblock is durable: the session begins. What recovery has shown is what there is now.
    pub fn end_recovery(&mut self, scope: &Scope) -> Option<()> {
        if self.engine.mode != Mode::Ending {
            return None;
        }
        let engine = &mut self.engine;
        engine.slot = 1 - engine.slot;
        self.device.wait(Place::Super(engine.slot));
        self.device.flush();
        for group in 0..GROUPS {
            if std::mem::take(&mut engine.space.dirty[group]) && scope.on(Rule::R9) {
                engine.space.slots[group] = 1 - engine.space.slots[group];
            }
        }
        engine.space.pinned = 0;
        engine.journal = Journal::new(self.epochs, engine.lsn);
        engine.mode = Mode::Running;
        let view = self.contract.seen.take()?;
        self.contract = Contract::new(self.engine.head, &view, self.contract.clock());
        Some(())
    }
}

/// The part of recovery that writes nothing. The volume that it shows has to keep the contract.
fn open(
    scope: &Scope,
    mut device: Device,
    mut contract: Contract,
    left: Budget,
    (epochs, born): (u8, u8),
) -> Result<State> {
    let (superblock, slot) = choose_superblock(&device)?;
    if scope.on(Rule::R13) {
        // R13: what was read may be in a cache only.
        device.flush();
    }
    let forest = load_forest(&device, &superblock)?;
    let mut engine = Engine {
        mode: Mode::Replayed { cut: None },
        head: forest
            .default_head()
            .ok_or_else(|| Violation::told("no head is shown when nobody names one"))?,
        forest,
        lsn: superblock.lsn,
        pages: PerTree::default(),
        writebacks: Vec::new(),
        journal: Journal::new(0, superblock.lsn),
        space: load_space(&device, scope, &superblock)?,
        checkpoint: None,
        durable: superblock,
        slot,
        latched: false,
        waiters: Vec::new(),
        superseded: 0,
        superseded_ids: Vec::new(),
        reading: None,
        gone: 0,
        unmoved: false,
    };
    let emptied = engine.forest.each().filter(|(_, branch)| branch.root.is_none());
    engine.gone = emptied.fold(0, |set, (tree, _)| set | 1 << tree);
    let chain = follow(&device, scope, &superblock)?;
    let cut = replay(&device, scope, &mut engine, &chain)?;
    engine.mode = Mode::Replayed { cut };
    search_beyond(&device, &superblock, &chain)?;
    engine.head = engine.forest.default_head().ok_or_else(|| Violation::told("no head is shown"))?;
    let view = read_all(&device, &engine)?;
    contract.judge(&view)?;
    check_space(&engine)?;
    if let Some(seen) = contract.seen.filter(|_| scope.repeatable)
        && seen != view
    {
        return Err(Violation::new(
            "R12: recovery, repeated after a crash of recovery, shows another volume than the first time",
        ));
    }
    contract.seen = Some(view);
    Ok(State { device, engine, contract, left, epochs, born, rotted: false, complaint: None })
}

/// The valid superblock of the highest rank.
fn choose_superblock(device: &Device) -> Result<(Superblock, u8)> {
    let slots = (0..2).filter_map(|slot| match device.read(Place::Super(slot)) {
        Content::Super(superblock) => Some((*superblock, slot)),
        _ => None,
    });
    let best = slots.max_by_key(|(superblock, _)| superblock.rank());
    best.ok_or_else(|| Violation::new("C1: no superblock slot is valid"))
}

/// Of each group the newest slot that is not newer than the superblock. R9: groups that have a newer one are to be
/// rewritten.
fn load_space(device: &Device, scope: &Scope, superblock: &Superblock) -> Result<Space> {
    let mut space = Space::default();
    for group in 0..GROUPS as u8 {
        let mut best: Option<(u8, u8, Blocks)> = None;
        for slot in 0..2 {
            let Content::Bitmap { generation, used } = device.read(Place::Bitmap { group, slot }) else {
                continue;
            };
            if *generation > superblock.generation {
                space.dirty[usize::from(group)] |= scope.on(Rule::StaleSlot);
            } else if best.is_none_or(|(newest, _, _)| newest < *generation) {
                best = Some((*generation, slot, *used));
            }
        }
        let Some((_, slot, used)) = best else {
            return Err(Violation::new(format!("C1: no bitmap slot of group {group} is valid")));
        };
        let members = (0..scope.blocks).filter(|block| scope.group(*block) == group);
        space.committed |= used & members.fold(0, |set, block| set | bit(block));
        space.slots[usize::from(group)] = slot;
    }
    Ok(space)
}

/// The record at a ring block, if all its parts are there.
fn record_at(device: &Device, cell: u8) -> Option<Arc<Record>> {
    let Content::Record { record, part: 0 } = device.read(Place::Cell(cell)) else { return None };
    if cell + record.cells > device.cells() {
        return None;
    }
    let whole = (1..record.cells).all(|part| match device.read(Place::Cell(cell + part)) {
        Content::Record { record: other, part: found } => other.sum == record.sum && *found == part,
        _ => false,
    });
    whole.then(|| Arc::clone(record))
}

/// The chain of records from the tail to its end (R14).
fn follow(device: &Device, scope: &Scope, superblock: &Superblock) -> Result<Vec<Arc<Record>>> {
    let Tail { mut cell, mut sequence, mut predecessor } = superblock.tail;
    let mut chain: Vec<Arc<Record>> = Vec::new();
    let mut taken = 0;
    loop {
        // A record that did not fit the rest of the lap starts the next one.
        let place = [cell, 0].into_iter().find_map(|candidate| {
            let record = record_at(device, candidate % device.cells())?;
            let follows = record.predecessor == predecessor || !scope.on(Rule::Predecessor);
            let fits = record.sequence == sequence && follows;
            let again = chain.iter().any(|earlier| earlier.sum == record.sum);
            let matches = fits || (!scope.on(Rule::R14) && !again);
            (record.epoch == superblock.epoch && matches).then_some((candidate, record))
        });
        let Some((at, record)) = place.filter(|_| taken < device.cells()) else { break };
        if record.generation > superblock.generation {
            return Err(Violation::told("recovery reports a superblock that was lost, and none was"));
        }
        cell = at % device.cells() + record.cells;
        taken += record.cells;
        (sequence, predecessor) = (record.sequence + 1, record.sum);
        chain.push(record);
    }
    let reached = chain.last().map_or(superblock.lsn, |last| last.last_lsn());
    let begins = chain.first().is_none_or(|first| first.first_lsn <= superblock.lsn + 1);
    if reached < superblock.lsn || !begins {
        return Err(Violation::told(
            "recovery reports a record that the checkpoint needs and that is not there",
        ));
    }
    Ok(chain)
}

/// At the end of the chain: a record of the epoch behind it that knew the missing one flushed means damage.
fn search_beyond(device: &Device, superblock: &Superblock, chain: &[Arc<Record>]) -> Result<()> {
    let end: Sequence = chain.last().map_or(superblock.tail.sequence, |last| last.sequence + 1);
    let beyond = (0..device.cells()).filter_map(|cell| record_at(device, cell)).any(|record| {
        record.epoch == superblock.epoch && record.sequence > end && record.known_flushed >= end
    });
    match beyond {
        true => Err(Violation::told("recovery reports that the log is broken before its end")),
        false => Ok(()),
    }
}

/// The trees as the superblock names them.
fn load_forest(device: &Device, superblock: &Superblock) -> Result<Forest> {
    let Content::Root(stored) = device.read(Place::Block(superblock.root)) else {
        return Err(Violation::told("C7: the root's node is not where the superblock says"));
    };
    if stored.checksum() != superblock.root_sum {
        return Err(Violation::told("C7: the root's node is another one than the superblock says"));
    }
    let mut forest = Forest { era: stored.era, next: stored.next, branches: [None; TREES] };
    for (branch, of) in forest.branches.iter_mut().zip(&stored.branches) {
        let Some((item, at, overlay)) = *of else { continue };
        let root = match at {
            At::Nowhere => None,
            At::Here(tree) => Some(Root { tree, birth: 1, home: None, id: 0, frozen: false }),
            At::Block { block, sum, birth } => match device.read(Place::Block(block)) {
                Content::Node(tree) if tree.checksum() == sum => {
                    Some(Root { tree: **tree, birth, home: Some(block), id: 0, frozen: false })
                }
                _ => return Err(Violation::told(format!("C7: the node of a tree is not in block {block}"))),
            },
        };
        *branch = Some(Branch { item, root, overlay });
    }
    Ok(forest)
}

/// Applies the chain; returns the first batch that was cut off. R4: fresh extents beyond the known-flushed sequence
/// of the last record are proven; the first that fails ends the log. R12: what an earlier recovery has cut stays cut.
fn replay(device: &Device, scope: &Scope, engine: &mut Engine, chain: &[Arc<Record>]) -> Result<Option<Lsn>> {
    let known_flushed = chain.last().map_or(0, |last| last.known_flushed);
    let checkpoint = engine.durable.lsn;
    let mut cut = None;
    let mut gathered = Vec::new();
    for record in chain {
        for (index, batch) in record.batches.iter().enumerate() {
            let lsn = record.first_lsn + index as u8;
            let new = lsn > checkpoint;
            if new && cut.is_none() {
                let flushed = record.sequence <= known_flushed && scope.on(Rule::Flushed);
                let proven = flushed || !scope.on(Rule::R4) || is_proven(device, scope, batch);
                let marked = engine.durable.cut.is_some_and(|mark| lsn >= mark);
                cut = (!proven || marked).then_some(lsn);
            }
            if cut.is_some() {
                quarantine(scope, engine, batch);
            } else {
                replay_batch(scope, engine, batch, lsn, new, &mut gathered)?;
            }
        }
    }
    gathered.iter().for_each(|op| engine.apply(scope, op));
    Ok(cut)
}

fn is_proven(device: &Device, scope: &Scope, batch: &Batch) -> bool {
    batch.ops.iter().all(|op| match op {
        Op::Extent { extent: Extent::Written { block, sum, .. }, fresh: true, .. } => {
            holds(device, *block, *sum)
        }
        Op::Overlay { page: Some((block, sum)), .. } => {
            holds(device, *block, *sum) || !scope.on(Rule::ProveOverlay)
        }
        _ => true,
    })
}

fn holds(device: &Device, block: Block, sum: u8) -> bool {
    matches!(device.read(Place::Block(block)), Content::Data(stamp) if *stamp == sum)
}

/// Images and drops of every record, the rest only of batches that the checkpoint does not hold.
fn replay_batch(
    scope: &Scope,
    engine: &mut Engine,
    batch: &Batch,
    lsn: Lsn,
    new: bool,
    gathered: &mut Vec<Op>,
) -> Result<()> {
    for op in &batch.ops {
        match *op {
            Op::Image { spot, content } => {
                let image = Some(lsn);
                *engine.pages.at_mut(spot) = Some(Page { content, dirty: false, image, logged: content });
            }
            Op::Drop(spot) => *engine.pages.at_mut(spot) = None,
            Op::Allocate(block) if new => {
                if (engine.space.committed | engine.space.pinned) & bit(block) != 0 {
                    return Err(Violation::told(format!(
                        "recovery reports that the journal allocates block {block}, which is in use"
                    )));
                }
                engine.apply(scope, op);
            }
            Op::Free(block) if new => {
                if engine.space.committed & bit(block) == 0 {
                    return Err(Violation::told(format!(
                        "recovery reports that the journal frees block {block}, which is free"
                    )));
                }
                engine.apply(scope, op);
            }
            // The checkpoint has it otherwise (R22).
            Op::Make { tree, of, .. } if !new && scope.on(Rule::R22) && scope.on(Rule::InheritAgain) => {
                engine.inherit(of, tree);
            }
            Op::Item { tree, item: None } if !new => engine.pages.0[usize::from(tree)] = Default::default(),
            _ if new && op.edits().is_some() && !scope.on(Rule::Gathered) => gathered.push(*op),
            _ if new => engine.apply(scope, op),
            _ => {}
        }
    }
    engine.lsn = engine.lsn.max(lsn);
    Ok(())
}

/// R12, as first designed: recovery does not allocate what cut batches name.
fn quarantine(scope: &Scope, engine: &mut Engine, batch: &Batch) {
    if !scope.on(Rule::Quarantine) {
        return;
    }
    for op in &batch.ops {
        if let Op::Allocate(block) = op
            && engine.space.committed & bit(*block) == 0
        {
            engine.space.pinned |= bit(*block);
        }
    }
}

/// Every file that has a name, of every tree that people see, read and compared with its checksums (C7).
fn read_all(device: &Device, engine: &Engine) -> Result<View> {
    let mut view = View { main: read_tree(device, engine, engine.head)?, ..View::default() };
    for tree in engine.forest.shown(Role::Snapshot) {
        view.kept[usize::from(tree)] = Some(read_tree(device, engine, tree)?);
    }
    for tree in engine.forest.shown(Role::Head).filter(|tree| *tree != engine.head) {
        view.heads[usize::from(tree)] = Some(read_tree(device, engine, tree)?);
    }
    Ok(view)
}

/// The same of one tree.
pub fn read_tree(device: &Device, engine: &Engine, number: u8) -> Result<Shot> {
    let Some(tree) = engine.forest.tree(number) else {
        return Err(Violation::new(format!("C10: tree {number} has no root")));
    };
    let mut shot = Shot { names: tree.names, ..Shot::default() };
    for file in tree.names.iter().flatten() {
        if !tree.exists[usize::from(*file)] {
            return Err(Violation::new(format!("C2: a name leads to file {file}, which does not exist")));
        }
        for spot in spots_of(number, *file) {
            let stored = match engine.stored_page(spot) {
                None => 0,
                Some((block, sum)) if holds(device, block, sum) => sum,
                Some((block, _)) => {
                    return Err(Violation::told(format!(
                        "C1, C7: file {file} page {} of tree {number} cannot be read: block {block} does not match its \
                         checksum",
                        spot.page
                    )));
                }
            };
            *shot.pages.at_mut(spot) = engine.pages.at(spot).map_or(stored, |page| page.content);
        }
    }
    Ok(shot)
}

/// The bitmaps say "in use" of what trees name, and of nothing else.
fn check_space(engine: &Engine) -> Result<()> {
    let named = engine.forest.blocks() | engine.superseded | bit(engine.durable.root);
    let used = engine.space.committed;
    if named & !used != 0 {
        let blocks: Vec<Block> = each(named & !used).collect();
        return Err(Violation::new(format!("blocks {blocks:?} are free by the bitmaps and named by a tree")));
    }
    if used & !named != 0 {
        let blocks: Vec<Block> = each(used & !named).collect();
        return Err(Violation::new(format!("blocks {blocks:?} are leaked for good")));
    }
    Ok(())
}
