//! Operations on names and whole files (section 5): one batch each, no I/O, no wait. And transactions (C4).

use crate::engine::{State, Waiter};
use crate::rules::Rule;
use crate::scope::Scope;
use crate::volume::{Extent, FILES, Op, Spot, Stamp, bit, spots_of};

impl State {
    pub fn create(&mut self, scope: &Scope, name: u8) -> Option<()> {
        // Numbers of files come once only.
        let file = self.born;
        if usize::from(file) >= FILES || self.engine.tree().names[usize::from(name)].is_some() {
            return None;
        }
        self.born += 1;
        let tree = self.engine.head;
        let ops = vec![Op::File { tree, file, exists: true }, Op::Name { tree, name, file: Some(file) }];
        let empty: Vec<(Spot, Stamp)> = spots_of(tree, file).map(|spot| (spot, 0)).collect();
        self.operate(scope, ops, &empty, &[])
    }

    pub fn unlink(&mut self, scope: &Scope, name: u8) -> Option<()> {
        let file = self.engine.tree().names[usize::from(name)]?;
        let mut ops = vec![Op::Name { tree: self.engine.head, name, file: None }];
        self.drop_link(scope, file, &mut ops);
        self.operate(scope, ops, &[], &[])
    }

    pub fn link(&mut self, scope: &Scope, from: u8, to: u8) -> Option<()> {
        let file = self.engine.tree().names[usize::from(from)]?;
        if self.engine.tree().names[usize::from(to)].is_some() {
            return None;
        }
        self.operate(scope, vec![Op::Name { tree: self.engine.head, name: to, file: Some(file) }], &[], &[])
    }

    /// R20, C3: the batch that replaces a name carries the source's dirty pages (or waits until they are logged as
    /// extents, which is a rename that comes later).
    pub fn rename(&mut self, scope: &Scope, from: u8, to: u8) -> Option<()> {
        let file = self.engine.tree().names[usize::from(from)]?;
        let replaced = self.engine.tree().names[usize::from(to)];
        if replaced == Some(file) {
            return None;
        }
        let (tree, mut ops) = (self.engine.head, Vec::new());
        if replaced.is_some() && scope.on(Rule::R20) {
            let dirty: Vec<Spot> = spots_of(tree, file).filter(|spot| self.engine.is_dirty(*spot)).collect();
            ops = self.images_of(&dirty);
        }
        ops.push(Op::Name { tree, name: from, file: None });
        ops.push(Op::Name { tree, name: to, file: Some(file) });
        if let Some(replaced) = replaced {
            self.drop_link(scope, replaced, &mut ops);
        }
        let whole: &[u8] = if replaced.is_some() { &[file] } else { &[] };
        self.operate(scope, ops, &[], whole)
    }

    /// The last name of a file goes: its content goes with it (R5).
    fn drop_link(&mut self, scope: &Scope, file: u8, ops: &mut Vec<Op>) {
        if self.engine.tree().links(file) > 1 {
            return;
        }
        self.empty(scope, file, ops);
        ops.push(Op::File { tree: self.engine.head, file, exists: false });
    }

    /// To length zero.
    pub fn truncate(&mut self, scope: &Scope, file: u8) -> Option<()> {
        if !self.engine.tree().exists[usize::from(file)] {
            return None;
        }
        let mut ops = Vec::new();
        self.empty(scope, file, &mut ops);
        if ops.is_empty() {
            return None;
        }
        let zeros: Vec<(Spot, Stamp)> = spots_of(self.engine.head, file).map(|spot| (spot, 0)).collect();
        self.operate(scope, ops, &zeros, &[])
    }

    fn empty(&mut self, scope: &Scope, file: u8, ops: &mut Vec<Op>) {
        for spot in spots_of(self.engine.head, file) {
            let extent = *self.engine.tree().extents.at(spot);
            let page = self.engine.pages.at_mut(spot).take();
            if page.is_some() {
                self.engine.void_image(scope, spot, ops);
            }
            if extent != Extent::Hole {
                ops.push(Op::Extent { spot, extent: Extent::Hole, fresh: false });
                self.engine.release(scope, spot, extent, ops);
            }
        }
    }

    /// `fallocate` of a page that has no block.
    pub fn preallocate(&mut self, scope: &Scope, spot: Spot) -> Option<()> {
        let exists = self.engine.tree().exists[usize::from(spot.file)];
        let empty =
            self.engine.pages.at(spot).is_none() && *self.engine.tree().extents.at(spot) == Extent::Hole;
        let free = self.engine.space.available(scope).count_ones();
        if !exists
            || !empty
            || (scope.on(Rule::R18)
                && free <= self.engine.reserved(scope) + self.engine.nodes_needed(scope) + 1)
        {
            return None;
        }
        let block = self.engine.space.first(scope)?;
        let extent = Extent::Unwritten { block, birth: self.engine.forest.era };
        let extent = Op::Extent { spot, extent, fresh: false };
        self.operate(scope, vec![Op::Allocate(block), extent], &[], &[])
    }

    /// The first page of `to` becomes that of `from`, sharing its block. What the source has newer in memory is written
    /// out before.
    pub fn share(&mut self, scope: &Scope, from: u8, to: u8) -> Option<()> {
        let tree = self.engine.head;
        let (source, target) = (Spot { tree, file: from, page: 0 }, Spot { tree, file: to, page: 0 });
        let exists = |file: u8| self.engine.tree().exists[usize::from(file)];
        if !exists(from) || !exists(to) {
            return None;
        }
        if scope.on(Rule::ShareLogged) && self.engine.pages.at(source).is_some() {
            return None;
        }
        let extent = *self.engine.tree().extents.at(source);
        let block = extent.block()?;
        let old = *self.engine.tree().extents.at(target);
        if old.block() == Some(block) {
            return None;
        }
        let others = self.engine.tree().shared[usize::from(block)] + 1;
        let mut ops =
            vec![Op::Extent { spot: target, extent, fresh: false }, Op::Shared { tree, block, others }];
        if self.engine.pages.at_mut(target).take().is_some() {
            self.engine.void_image(scope, target, &mut ops);
        }
        self.engine.release(scope, target, old, &mut ops);
        let content = self.contract.content(source);
        self.operate(scope, ops, &[(target, content)], &[])
    }

    /// A transaction over the first pages of two files: staged in private, committed as one batch and forced (C4).
    /// Large ones write their extents first, small ones are images; either way it is one batch in one record.
    pub fn transact(&mut self, scope: &Scope, first: u8, second: u8, as_extents: bool) -> Option<()> {
        self.left.syncs = self.left.syncs.checked_sub(1)?;
        let mut changes = Vec::new();
        let (mut ops, mut data) = (Vec::new(), 0);
        for file in [first, second] {
            if !self.engine.tree().exists[usize::from(file)] {
                return None;
            }
            let spot = Spot { tree: self.engine.head, file, page: 0 };
            let content = self.contract.stage();
            changes.push((spot, content));
            *self.engine.pages.at_mut(spot) = None;
            if as_extents {
                let (block, in_place) = self.block_for(scope, spot)?;
                self.write_data(scope, block, content);
                self.extent_ops(scope, spot, content, block, in_place, self.engine.forest.era, &mut ops);
                data |= bit(block);
            } else {
                ops.push(Op::Image { spot, content });
            }
            if !scope.on(Rule::OneBatch) && file == first {
                self.admit(scope, 1, 1)?;
                self.engine.commit(scope, std::mem::take(&mut ops), std::mem::take(&mut data));
            }
        }
        self.commit_operation(scope, ops, data, &changes, &[])?;
        let promise = self.contract.promise(None);
        if scope.on(Rule::CommitForces) {
            self.engine.waiters.push(Waiter { lsn: self.engine.lsn, promise });
        } else {
            self.contract.keep(&promise);
        }
        self.within_reserves(scope).then_some(())
    }

    fn operate(
        &mut self,
        scope: &Scope,
        ops: Vec<Op>,
        changes: &[(Spot, Stamp)],
        whole: &[u8],
    ) -> Option<()> {
        self.commit_operation(scope, ops, 0, changes, whole)
    }

    /// Commits the batch of an operation and tells the contract.
    fn commit_operation(
        &mut self,
        scope: &Scope,
        ops: Vec<Op>,
        data: u16,
        changes: &[(Spot, Stamp)],
        whole: &[u8],
    ) -> Option<()> {
        self.left.ops = self.left.ops.checked_sub(1)?;
        let images = ops.iter().filter(|op| matches!(op, Op::Image { .. })).count() as u8;
        self.admit(scope, images, images)?;
        let removes = !ops.iter().any(|op| matches!(op, Op::Allocate(_)));
        self.engine.commit(scope, ops, data);
        self.contract.operate(self.engine.head, self.engine.tree().names, changes, whole);
        // R33: beside snapshots a removal frees nothing at first, and needs a node.
        let bounded = scope.trees && (scope.on(Rule::R33) || !removes);
        (!bounded || self.within_reserves(scope)).then_some(())
    }
}
