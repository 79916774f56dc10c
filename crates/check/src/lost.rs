//! Nodes of a filesystem's tree that cannot be read, and what may have been in them and below them.

use crate::Code;
use std::ops::RangeInclusive;
use syncline_format::{BlockNo, Key, Kind, ObjectNo};

/// A node of a head or a snapshot that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostNode {
    pub(crate) block: BlockNo,
    pub(crate) level: u16,
    /// The keys that it may have held, or led to.
    pub(crate) low: Key,
    /// Exclusive; `None` is the end of all keys.
    pub(crate) high: Option<Key>,
}

impl LostNode {
    /// Whether the tree has nothing else.
    pub(crate) fn is_all(&self) -> bool {
        self.low == Key::MIN && self.high.is_none()
    }

    /// The code that tells it.
    pub(crate) fn code(&self) -> Code {
        if self.level == 0 { Code::LeafUnreadable } else { Code::SubtreeLost }
    }

    /// The objects it may have held items of.
    pub(crate) fn objects(&self) -> RangeInclusive<u64> {
        self.low.object.0..=self.high.map_or(u64::MAX, |high| high.object.0)
    }

    /// The pages of a file whose extents may have begun in it, both included; `None` if there are none.
    fn pages(&self, object: ObjectNo) -> Option<(u64, u64)> {
        let first = self.low.max(Key::extent(object, 0));
        let is_extent = |key: &Key| key.object == object && key.kind == Kind::Extent;
        let last = match self.high {
            Some(high) if is_extent(&high) => high.offset.checked_sub(1)?,
            Some(high) if high <= first => return None,
            _ => u64::MAX,
        };
        (is_extent(&first) && first.offset <= last).then_some((first.offset, last))
    }
}

/// All of a tree's, in the order of their keys. No two of them share any.
#[derive(Debug, Default, Clone)]
pub(crate) struct Lost(Vec<(LostNode, String)>);

impl Lost {
    /// Adds a node behind all others, with the reason.
    pub(crate) fn push(&mut self, node: LostNode, why: String) {
        self.0.push((node, why));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn nodes(&self) -> &[(LostNode, String)] {
        &self.0
    }

    /// Whether nothing of the tree can be read.
    pub(crate) fn is_all(&self) -> bool {
        self.0.iter().any(|(node, _)| node.is_all())
    }

    /// Whether an item with this key may have been in one.
    pub(crate) fn may_hold(&self, key: Key) -> bool {
        self.meets((key, key))
    }

    /// Whether an item with a key of this range, ends included, may have been in one.
    pub(crate) fn meets(&self, range: (Key, Key)) -> bool {
        !self.of(range).is_empty()
    }

    /// Whether a key from `low` to below `high` (`None`: the end of all keys) may have been in one.
    pub(crate) fn meets_node(&self, low: Key, high: Option<Key>) -> bool {
        let next = self.0.partition_point(|(node, _)| node.high.is_some_and(|end| end <= low));
        self.0.get(next).is_some_and(|(node, _)| high.is_none_or(|high| node.low < high))
    }

    /// The pages of a file whose extents may have been in one.
    pub(crate) fn pages(&self, object: ObjectNo) -> impl Iterator<Item = (u64, u64)> + use<'_> {
        let nodes = self.of((Key::extent(object, 0), Key::extent(object, u64::MAX)));
        nodes.iter().filter_map(move |(node, _)| node.pages(object))
    }

    fn of(&self, (first, last): (Key, Key)) -> &[(LostNode, String)] {
        let from = self.0.partition_point(|(node, _)| node.high.is_some_and(|high| high <= first));
        let end = self.0.partition_point(|(node, _)| node.low <= last);
        self.0.get(from..end).unwrap_or_default()
    }
}

/// The keys of an object's own items, ends included.
pub(crate) fn keys_of(object: ObjectNo) -> (Key, Key) {
    (Key::new(object, Kind::Inode, 0), Key::new(object, Key::MAX.kind, u64::MAX))
}
