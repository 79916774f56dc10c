//! Snapshots, heads and rollback, what snapshots inherit, and deletions step by step (docs/snapshots.md).

use crate::contract::Violation;
use crate::engine::State;
use crate::forest::{Branch, END};
use crate::rules::Rule;
use crate::scope::Scope;
use crate::volume::{Block, Extent, Item, Op, PerPage, Phase, Role, Spot, TREES, bit, spots_in};

impl State {
    /// The number of the next tree, if this may make one.
    fn next_tree(&mut self) -> Option<u8> {
        let tree = self.engine.forest.next;
        self.left.trees = self.left.trees.checked_sub(1)?;
        (usize::from(tree) < TREES && self.engine.durable.trees).then_some(tree)
    }

    fn images_in(&self, tree: u8) -> Vec<Spot> {
        spots_in(tree)
            .filter(|spot| self.engine.pages.at(*spot).is_some_and(|page| page.image.is_some()))
            .collect()
    }

    /// A snapshot of the head takes what is logged (R22), ends an era (R23), and has to leave the head room to go on
    /// (R35).
    pub fn snapshot(&mut self, scope: &Scope) -> Option<()> {
        let (of, tree) = (self.engine.head, self.next_tree()?);
        let inherited = if scope.on(Rule::InheritedRing) { self.images_in(of).len() as u8 } else { 0 };
        self.admit(scope, 1, inherited)?;
        let shot = self.engine.committed_shot(of);
        self.complaint = self.contract.judge_committed(of, &shot).err();
        let (era, head) = (self.engine.forest.era, self.engine.forest.branch(of)?.item);
        let parent = head.parent;
        let item = Item { role: Role::Snapshot, phase: Phase::Live, default: false, era, parent };
        let ops = vec![
            Op::Make { tree, of, era: era + 1 },
            Op::Item { tree, item: Some(item) },
            Op::Item { tree: of, item: Some(Item { parent: Some(tree), ..head }) },
        ];
        self.engine.commit(scope, ops, 0);
        self.contract.keep_snapshot(tree, Some(shot));
        if !self.within_reserves(scope) {
            return None;
        }
        if !self.has_room_for_a_page(scope, of) {
            if scope.on(Rule::R35) {
                return None;
            }
            self.complaint = Some(Violation::new("C8: the first overwrite behind a snapshot finds no space"));
        }
        Some(())
    }

    /// Whether a clean page may be overwritten.
    fn has_room_for_a_page(&self, scope: &Scope, head: u8) -> bool {
        let free = self.engine.space.available(scope).count_ones();
        let waits = spots_in(head).any(|spot| self.engine.pages.at(spot).is_some());
        let more = 1 + u32::from(!waits);
        free > self.engine.reserved(scope) + self.engine.nodes_needed(scope) + more
    }

    /// An image that a snapshot has inherited goes to a block beside its tree (R28).
    pub fn settle_image(&mut self, scope: &Scope, tree: u8) -> Option<()> {
        let spot = self.images_in(tree).into_iter().next()?;
        let content = self.engine.pages.at(spot).as_ref()?.content;
        let block = self.new_block(scope, content)?;
        let images = self.engine.live_images(scope);
        self.engine.journal.admits(scope, 1, images, true).then_some(())?;
        let mut ops = vec![Op::Allocate(block)];
        if scope.on(Rule::R28) {
            ops.push(Op::Overlay { spot, page: Some((block, content)) });
        } else {
            let old = *self.engine.forest.tree(tree)?.extents.at(spot);
            let birth = self.engine.forest.era;
            let extent = Extent::Written { block, sum: content, birth };
            ops.push(Op::Extent { spot, extent, fresh: true });
            self.engine.release(scope, spot, old, &mut ops);
        }
        ops.push(Op::Drop(spot));
        self.engine.commit(scope, ops, bit(block));
        Some(())
    }

    /// A free block to which the content is being written.
    fn new_block(&mut self, scope: &Scope, content: u8) -> Option<Block> {
        let block = self.engine.space.first(scope)?;
        self.engine.space.writing |= bit(block);
        self.write_data(scope, block, content);
        Some(block)
    }

    /// A head that begins as a snapshot is (C12).
    pub fn clone_tree(&mut self, scope: &Scope, of: u8) -> Option<()> {
        let shot = self.contract.snapshot(of).unwrap_or_else(|| self.engine.shot(of));
        let tree = self.branch_off(scope, of)?;
        let item = self.engine.forest.branch(tree)?.item;
        if item.phase == Phase::Hidden {
            self.admit(scope, 1, 0)?;
            let item = Item { phase: Phase::Live, ..item };
            self.engine.commit(scope, vec![Op::Item { tree, item: Some(item) }], 0);
        }
        self.contract.keep_head(tree, Some(&shot));
        self.has_room_for_a_page(scope, tree).then_some(())
    }

    /// Makes a head of a snapshot, hidden while it lacks pages of the snapshot's overlay.
    fn branch_off(&mut self, scope: &Scope, of: u8) -> Option<u8> {
        let source = *self.engine.forest.branch(of)?;
        let shown = source.item.phase == Phase::Live || !scope.on(Rule::CloneOfGone);
        if source.item.role != Role::Snapshot || !shown || !self.images_in(of).is_empty() {
            return None;
        }
        let tree = self.next_tree()?;
        let pages: Vec<(Spot, u8)> = spots_in(tree)
            .filter_map(|spot| source.overlay.at(spot).map(|(_, sum)| (spot, sum)))
            .filter(|_| scope.on(Rule::CloneOverlay))
            .collect();
        let phase = if pages.is_empty() { Phase::Live } else { Phase::Hidden };
        let item = Item { role: Role::Head, phase, default: false, era: 0, parent: Some(of) };
        self.admit(scope, 1, 0)?;
        let era = self.engine.forest.era;
        self.engine.commit(scope, vec![Op::Make { tree, of, era }, Op::Item { tree, item: Some(item) }], 0);
        for (spot, content) in pages {
            let block = self.new_block(scope, content)?;
            self.admit(scope, 1, 0)?;
            let mut ops = Vec::new();
            self.extent_ops(scope, spot, content, block, false, era, &mut ops);
            self.engine.commit(scope, ops, bit(block));
        }
        Some(tree)
    }

    /// The default head is as a snapshot was. What it was goes away, in the same batch (C12).
    pub fn roll_back(&mut self, scope: &Scope, to: u8) -> Option<()> {
        let old = self.engine.forest.default_head()?;
        let busy = self.engine.head != old
            || self.engine.writebacks.iter().any(|one| one.spot.tree == old)
            || spots_in(old).any(|spot| self.engine.is_dirty(spot));
        let shot = self.contract.snapshot(to).filter(|_| !busy)?;
        let tree = self.branch_off(scope, to)?;
        let (was, new) = (self.engine.forest.branch(old)?.item, self.engine.forest.branch(tree)?.item);
        self.admit(scope, 1, 0)?;
        let mut ops: Vec<Op> = self.images_in(old).into_iter().map(Op::Drop).collect();
        let gone = Item { phase: Phase::Deleting { cursor: 0 }, default: false, ..was };
        ops.push(Op::Item { tree: old, item: Some(gone) });
        ops.push(Op::Item { tree, item: Some(Item { phase: Phase::Live, default: true, ..new }) });
        if !scope.on(Rule::RollBackAtOnce) {
            // Somebody else's record may end here.
            self.engine.commit(scope, ops.drain(..ops.len() - 1).collect(), 0);
            self.seal(scope)?;
        }
        self.engine.commit(scope, ops, 0);
        self.engine.pages.0[usize::from(old)] = PerPage::default();
        self.engine.head = tree;
        self.contract.roll_back(tree, &shot);
        self.has_room_for_a_page(scope, tree).then_some(())
    }

    /// Callers turn to another head.
    pub fn turn(&mut self, head: u8) -> Option<()> {
        self.left.trees = self.left.trees.checked_sub(1)?;
        self.engine.head = head;
        Some(())
    }

    /// Somebody begins to read a snapshot.
    pub fn begin_read(&mut self, tree: u8) -> Option<()> {
        self.left.trees = self.left.trees.checked_sub(1)?;
        self.engine.reading = Some((tree, self.engine.shot(tree)));
        Some(())
    }

    /// It shows still what it has shown.
    pub fn end_read(&mut self) -> Option<()> {
        let (tree, shown) = self.engine.reading.take()?;
        let mut device = self.device.clone();
        device.complete_all();
        self.complaint = match crate::recovery::read_tree(&device, &self.engine, tree) {
            Ok(now) if now == shown => None,
            Ok(_) => Some(Violation::new("C11: a snapshot changes while somebody reads it")),
            Err(violation) => {
                Some(Violation::new(format!("C11, while somebody reads a snapshot: {}", violation.what)))
            }
        };
        Some(())
    }

    /// A snapshot or a head is deleted: it has no name from here on.
    pub fn doom(&mut self, scope: &Scope, tree: u8) -> Option<()> {
        self.left.trees = self.left.trees.checked_sub(1)?;
        let item = self.engine.forest.branch(tree)?.item;
        let busy = self.engine.writebacks.iter().any(|one| one.spot.tree == tree);
        if item.phase != Phase::Live || item.default || tree == self.engine.head || busy {
            return None;
        }
        self.begin_deletion(scope, tree)?;
        match item.role {
            Role::Snapshot => self.contract.keep_snapshot(tree, None),
            Role::Head => self.contract.keep_head(tree, None),
        }
        Some(())
    }

    /// R27: nobody reads it, and at most one tree descends from it.
    fn is_needed(&self, scope: &Scope, tree: u8) -> bool {
        let read = self.engine.reading.is_some_and(|(read, _)| read == tree);
        let branches = self.engine.forest.children(tree).count() > 1;
        (read && scope.on(Rule::Reader)) || (branches && scope.on(Rule::R27))
    }

    fn begin_deletion(&mut self, scope: &Scope, tree: u8) -> Option<()> {
        self.admit(scope, 1, 0)?;
        let item = self.engine.forest.branch(tree)?.item;
        let needed = self.is_needed(scope, tree);
        let phase = if needed { Phase::Hidden } else { Phase::Deleting { cursor: 0 } };
        let mut ops = Vec::new();
        if !needed {
            ops.extend(self.images_in(tree).into_iter().map(Op::Drop));
        }
        ops.push(Op::Item { tree, item: Some(Item { phase, ..item }) });
        self.engine.commit(scope, ops, 0);
        if item.role == Role::Head {
            self.engine.pages.0[usize::from(tree)] = PerPage::default();
        }
        Some(())
    }

    /// One step of a deletion.
    pub fn reap(&mut self, scope: &Scope) -> Option<()> {
        let forest = &self.engine.forest;
        let going = forest.each().filter_map(|(tree, branch)| match branch.item.phase {
            Phase::Deleting { cursor } => Some((tree, cursor)),
            _ => None,
        });
        // One at a time: what is not done of one tree may be what another one is held against.
        let begun = |(_, cursor): &(u8, u8)| *cursor > 0 && scope.on(Rule::OneAtATime);
        let going: Vec<(u8, u8)> = going.collect();
        let going = going.iter().find(|one| begun(one)).or(going.first()).copied();
        let Some((tree, cursor)) = going else {
            let hidden = forest.each().filter(|(_, branch)| branch.item.phase == Phase::Hidden);
            let hidden: Vec<u8> = hidden.map(|(tree, _)| tree).collect();
            let tree = hidden.into_iter().find(|tree| !self.is_needed(scope, *tree))?;
            return self.begin_deletion(scope, tree);
        };
        let branch = *forest.branch(tree)?;
        let Some(root) = branch.root else { return self.end_deletion(scope, tree, branch.item) };
        if root.home.is_none() && scope.on(Rule::OnDevice) {
            return None;
        }
        self.admit(scope, 1, 0)?;
        let overlay: Vec<(Spot, Block)> = spots_in(tree)
            .filter_map(|spot| branch.overlay.at(spot).map(|(block, _)| (spot, block)))
            .collect();
        if !overlay.is_empty() {
            let gone =
                |(spot, block): &(Spot, Block)| [Op::Overlay { spot: *spot, page: None }, Op::Free(*block)];
            self.engine.commit(scope, overlay.iter().flat_map(gone).collect(), 0);
            return Some(());
        }
        if cursor == END {
            return self.forget_node(tree);
        }
        self.reap_data(scope, tree, cursor, &branch)
    }

    /// R29: frees what nobody else has of a file, and moves the cursor, in one batch.
    fn reap_data(&mut self, scope: &Scope, tree: u8, cursor: u8, branch: &Branch) -> Option<()> {
        let (root, low) = (branch.root?, self.engine.forest.low(tree));
        let child =
            self.engine.forest.children(tree).next().and_then(|child| self.engine.forest.branch(child)?.root);
        let same_node = child.is_some_and(|child| child.home.is_some() && child.home == root.home);
        let mut ops = Vec::new();
        // What its parent or the tree behind it has as a whole is passed by.
        let next = if root.birth <= low || same_node { END } else { cursor + 1 };
        if next == cursor + 1 {
            for spot in spots_in(tree).filter(|spot| spot.file == cursor) {
                let Some((block, birth)) = root.tree.extents.at(spot).reference() else { continue };
                let others = child.and_then(|child| child.tree.extents.at(spot).reference());
                if birth > low && others != Some((block, birth)) {
                    ops.push(Op::Free(block));
                }
            }
        }
        if !scope.on(Rule::R29) && !ops.is_empty() && !self.engine.unmoved {
            self.engine.unmoved = true;
            self.engine.commit(scope, ops, 0);
            return Some(());
        }
        if std::mem::take(&mut self.engine.unmoved) {
            ops.clear();
        }
        // Of an empty file nothing has to be said.
        let mut next = next;
        while next < END
            && spots_in(tree).all(|spot| spot.file != next || root.tree.extents.at(spot).block().is_none())
        {
            next += 1;
        }
        let item = Item { phase: Phase::Deleting { cursor: next }, ..branch.item };
        ops.push(Op::Item { tree, item: Some(item) });
        self.engine.commit(scope, ops, 0);
        Some(())
    }

    /// Its node goes with the next checkpoint, whose root lacks the tree, if nobody else has it. This is not logged.
    fn forget_node(&mut self, tree: u8) -> Option<()> {
        let low = self.engine.forest.low(tree);
        let child =
            self.engine.forest.children(tree).next().and_then(|child| self.engine.forest.branch(child)?.root);
        let root = self.engine.forest.branch_mut(tree)?.root.take()?;
        let alone =
            root.birth > low && child.is_none_or(|child| child.home.is_none() || child.home != root.home);
        if alone {
            self.engine.superseded |= root.home.map_or(0, bit);
        }
        Some(())
    }

    /// R29: its item ends when no superblock leads to the tree.
    fn end_deletion(&mut self, scope: &Scope, tree: u8, item: Item) -> Option<()> {
        if self.engine.gone & 1 << tree == 0 && scope.on(Rule::EndBehind) {
            return None;
        }
        self.admit(scope, 1, 0)?;
        let mut ops = Vec::new();
        if let Some(child) = self.engine.forest.children(tree).next() {
            let of_child = self.engine.forest.branch(child)?.item;
            ops.push(Op::Item { tree: child, item: Some(Item { parent: item.parent, ..of_child }) });
        }
        ops.push(Op::Item { tree, item: None });
        self.engine.commit(scope, ops, 0);
        Some(())
    }

    /// What callers may do with trees.
    pub fn tree_calls(&self, scope: &Scope, actions: &mut Vec<crate::model::Action>) {
        use crate::model::Action;
        use crate::scope::Ops;
        let (forest, ops) = (&self.engine.forest, scope.ops);
        if self.engine.reading.is_some() {
            actions.push(Action::EndRead);
        }
        if self.left.trees == 0 {
            return;
        }
        if ops.has(Ops::HEADS) {
            let others = forest.shown(Role::Head).filter(|head| *head != self.engine.head);
            actions.extend(others.map(Action::Turn));
        }
        if ops.has(Ops::SNAPSHOT) {
            actions.push(Action::Snapshot);
        }
        for (tree, branch) in forest.each() {
            let live = branch.item.phase == Phase::Live;
            let snapshot = branch.item.role == Role::Snapshot;
            if ops.has(Ops::DELETE) && live && !branch.item.default {
                actions.push(Action::Doom(tree));
            }
            if ops.has(Ops::CLONE) && snapshot && branch.root.is_some() {
                actions.push(Action::Clone(tree));
            }
            if ops.has(Ops::ROLL_BACK) && snapshot && live {
                actions.push(Action::RollBack(tree));
            }
            if ops.has(Ops::READ) && snapshot && live && self.engine.reading.is_none() {
                actions.push(Action::Read(tree));
            }
        }
    }

    /// What the store does for them by itself.
    pub fn tree_background(&self, actions: &mut Vec<crate::model::Action>) {
        use crate::model::Action;
        let forest = &self.engine.forest;
        let inherits = |tree: &u8| self.engine.is_snapshot(*tree) && !self.images_in(*tree).is_empty();
        actions.extend((0..TREES as u8).filter(inherits).map(Action::Settle));
        if forest.each().any(|(_, branch)| branch.item.phase != Phase::Live) {
            actions.push(Action::Reap);
        }
    }

    /// What the next step of a deletion is about.
    pub fn reap_in_words(&self) -> String {
        for (tree, branch) in self.engine.forest.each() {
            let Phase::Deleting { cursor } = branch.item.phase else { continue };
            return match branch.root {
                None => format!("the item of tree {tree}"),
                Some(_) if branch.overlay != PerPage::default() => format!("the overlay of tree {tree}"),
                Some(_) if cursor == END => format!("the node of tree {tree}"),
                Some(_) => format!("file {cursor} of tree {tree}"),
            };
        }
        "it begins".to_owned()
    }

    /// Whether a deletion goes on by itself until it is done.
    pub fn deletes(&self, scope: &Scope) -> bool {
        self.engine.forest.each().any(|(tree, branch)| match branch.item.phase {
            Phase::Live => false,
            Phase::Hidden => !self.is_needed(scope, tree),
            Phase::Deleting { .. } => true,
        })
    }
}
