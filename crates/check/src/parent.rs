//! The tree that another one descends from, to be asked whether it has what the other one has from it.
//!
//! Keys are asked for in their order, mostly, so the nodes on the way to the last one are kept: what is read is what
//! lies beside the differences of the two, and memory is one way from the root to a leaf.

use crate::forest::Branch;
use crate::overlay::Overlay;
use crate::walk::Trees;
use syncline_device::Buffer;
use syncline_format::item::{EXTENT_PAGES_MAX, ExtentContent, ExtentItem};
use syncline_format::node::{self, NodePointer};
use syncline_format::{Key, Kind, ObjectNo, TreeId};

/// A tree as the log leaves it.
pub(crate) struct Parent<'a> {
    trees: Trees<'a>,
    tree: TreeId,
    root: NodePointer,
    overlay: &'a Overlay,
    /// From the root down.
    way: Vec<Step>,
}

/// A node that was read.
struct Step {
    level: u16,
    bytes: Buffer,
    low: Key,
    /// Exclusive.
    high: Option<Key>,
}

/// What cannot be read is told when the tree itself is walked.
struct Unreadable;

impl<'a> Parent<'a> {
    pub(crate) fn new(trees: Trees<'a>, tree: TreeId, branch: &'a Branch) -> Parent<'a> {
        Parent { trees, tree, root: branch.root, overlay: &branch.overlay, way: Vec::new() }
    }

    /// Whether the tree has the node that `pointer` leads to. `slot` is the key that leads to it in the other tree.
    pub(crate) fn has_node(&mut self, pointer: &NodePointer, slot: Key) -> bool {
        if self.root == *pointer || self.is_at(pointer, slot) {
            return true;
        }
        // What the other tree removed before it may have left its keys to the node: an item of it is where it was.
        match self.first_key(pointer) {
            Some(key) => self.is_at(pointer, key),
            None => false,
        }
    }

    fn is_at(&mut self, pointer: &NodePointer, key: Key) -> bool {
        // What cannot be read may lead to it.
        self.pointer_at(pointer.level, key).map_or(true, |found| found == Some(*pointer))
    }

    /// The smallest key below a node of the other tree, if it can be read.
    fn first_key(&self, pointer: &NodePointer) -> Option<Key> {
        let mut pointer = *pointer;
        loop {
            let bytes = self.trees.holds(&pointer).then(|| self.trees.read(self.tree, &pointer))?.ok()?;
            if node::head(&bytes).count.get() == 0 {
                return None;
            }
            if pointer.level == 0 {
                return Some(node::slot_key(&bytes, 0));
            }
            pointer = NodePointer::decode(node::slot_value(&bytes, 0)).ok()?;
        }
    }

    /// The pointer of a level that leads to the key; `None`: the tree is not so high.
    fn pointer_at(&mut self, level: u16, key: Key) -> Result<Option<NodePointer>, Unreadable> {
        if self.root.level <= level {
            return Ok((self.root.level == level).then_some(self.root));
        }
        self.descend(level + 1, key)?;
        Ok(self.way.last().map(|step| step.child(step.index_of(key)).0))
    }

    /// Makes the way end with the node of this level that the key belongs to. The tree is as high.
    fn descend(&mut self, level: u16, key: Key) -> Result<(), Unreadable> {
        let leads =
            |step: &Step| step.level >= level && key >= step.low && step.high.is_none_or(|high| key < high);
        while self.way.last().is_some_and(|step| !leads(step)) {
            self.way.pop();
        }
        if self.way.is_empty() {
            let root = self.root;
            self.enter(root, Key::MIN, None)?;
        }
        while let Some(step) = self.way.last().filter(|step| step.level > level) {
            let (pointer, low, high) = step.child(step.index_of(key));
            self.enter(pointer, low, high)?;
        }
        Ok(())
    }

    fn enter(&mut self, pointer: NodePointer, low: Key, high: Option<Key>) -> Result<(), Unreadable> {
        if !self.trees.holds(&pointer) {
            return Err(Unreadable);
        }
        let bytes = self.trees.read(self.tree, &pointer).map_err(|_| Unreadable)?;
        self.way.push(Step { level: pointer.level, bytes, low, high });
        Ok(())
    }

    /// Whether the tree has all blocks of an extent at the same pages, since the same era and with the same content.
    /// What cannot be read may be so.
    pub(crate) fn has_extent(&mut self, key: Key, extent: &ExtentItem) -> bool {
        let end = key.offset.saturating_add(u64::from(extent.pages()));
        let Ok(others) = self.extents(key.object, key.offset, end) else { return true };
        let mut alike = 0;
        for (first, other) in others {
            let from = first.max(key.offset);
            let to = end.min(first.saturating_add(u64::from(other.pages())));
            if from < to {
                let (mine, others) = ((from - key.offset) as u32, (from - first) as u32);
                let pages = (to - from) as u32;
                alike += if is_alike(extent, mine, &other, others, pages) { to - from } else { 0 };
            }
        }
        alike == u64::from(extent.pages())
    }

    /// The extents of a file that cover any of the pages.
    fn extents(
        &mut self,
        object: ObjectNo,
        first: u64,
        end: u64,
    ) -> Result<Vec<(u64, ExtentItem)>, Unreadable> {
        let mut found = Vec::new();
        let mut take = |page: u64, value: &[u8]| {
            if let Ok(extent) = ExtentItem::decode(value)
                && page.saturating_add(u64::from(extent.pages())) > first
            {
                found.push((page, extent));
            }
        };
        let from = Key::extent(object, first.saturating_sub(u64::from(EXTENT_PAGES_MAX)));
        let last = Key::extent(object, end.saturating_sub(1));
        let mut at = from;
        loop {
            self.descend(0, at)?;
            let Some(leaf) = self.way.last() else { break };
            for index in leaf.lower_bound(from)..leaf.count() {
                let key = node::slot_key(&leaf.bytes, index);
                if key > last {
                    break;
                }
                if key.kind == Kind::Extent && !self.overlay.speaks_of(key) {
                    take(key.offset, node::slot_value(&leaf.bytes, index));
                }
            }
            match leaf.high {
                Some(high) if high <= last && high > at => at = high,
                _ => break,
            }
        }
        for (key, value) in self.overlay.range(from..=last) {
            value.iter().for_each(|value| take(key.offset, value));
        }
        Ok(found)
    }
}

impl Step {
    fn count(&self) -> usize {
        usize::from(node::head(&self.bytes).count.get())
    }

    /// The first slot whose key is not below `key`.
    fn lower_bound(&self, key: Key) -> usize {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = usize::midpoint(low, high);
            match node::slot_key(&self.bytes, middle) < key {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// The slot of an interior node that leads to the key.
    fn index_of(&self, key: Key) -> usize {
        let index = self.lower_bound(key);
        let is_there = index < self.count() && node::slot_key(&self.bytes, index) == key;
        if is_there { index } else { index.saturating_sub(1) }
    }

    /// A child, and the keys that it may hold.
    fn child(&self, index: usize) -> (NodePointer, Key, Option<Key>) {
        let pointer = NodePointer::decode(node::slot_value(&self.bytes, index));
        let low = if index == 0 { self.low } else { node::slot_key(&self.bytes, index) };
        let next = (index + 1 < self.count()).then(|| node::slot_key(&self.bytes, index + 1));
        (pointer.expect("a verified node holds decodable pointers"), low, next.or(self.high))
    }
}

/// Whether `pages` pages of two extents, from these on, are the same blocks with the same content.
fn is_alike(mine: &ExtentItem, at: u32, other: &ExtentItem, from: u32, pages: u32) -> bool {
    let is_same =
        mine.birth == other.birth && mine.block_of(u64::from(at)) == other.block_of(u64::from(from));
    let part = |sums: &[u64], at: u32| sums[at as usize..(at + pages) as usize].to_vec();
    is_same
        && match (&mine.content, &other.content) {
            (ExtentContent::Written(mine), ExtentContent::Written(other)) => {
                part(mine, at) == part(other, from)
            }
            (ExtentContent::Unwritten { .. }, ExtentContent::Unwritten { .. }) => true,
            _ => false,
        }
}
