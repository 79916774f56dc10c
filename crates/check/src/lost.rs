//! Leaves of the main tree that cannot be read, and what may have been in them.

use std::ops::RangeInclusive;
use syncline_format::{BlockNo, Key, Kind, ObjectNo};

/// A leaf of the main tree that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostLeaf {
    pub(crate) block: BlockNo,
    /// The keys that it may have held.
    pub(crate) low: Key,
    /// Exclusive; `None` is the end of all keys.
    pub(crate) high: Option<Key>,
}

impl LostLeaf {
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

/// All of a volume's, in the order of their keys. No two of them share any.
#[derive(Debug, Default)]
pub(crate) struct Lost(Vec<(LostLeaf, String)>);

impl Lost {
    /// Adds a leaf behind all others, with the reason.
    pub(crate) fn push(&mut self, leaf: LostLeaf, why: String) {
        self.0.push((leaf, why));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn leaves(&self) -> &[(LostLeaf, String)] {
        &self.0
    }

    /// Whether an item with this key may have been in one.
    pub(crate) fn may_hold(&self, key: Key) -> bool {
        self.meets((key, key))
    }

    /// Whether an item with a key of this range, ends included, may have been in one.
    pub(crate) fn meets(&self, range: (Key, Key)) -> bool {
        !self.of(range).is_empty()
    }

    /// The pages of a file whose extents may have been in one.
    pub(crate) fn pages(&self, object: ObjectNo) -> impl Iterator<Item = (u64, u64)> + use<'_> {
        let leaves = self.of((Key::extent(object, 0), Key::extent(object, u64::MAX)));
        leaves.iter().filter_map(move |(leaf, _)| leaf.pages(object))
    }

    fn of(&self, (first, last): (Key, Key)) -> &[(LostLeaf, String)] {
        let from = self.0.partition_point(|(leaf, _)| leaf.high.is_some_and(|high| high <= first));
        let end = self.0.partition_point(|(leaf, _)| leaf.low <= last);
        self.0.get(from..end).unwrap_or_default()
    }
}

/// The keys of an object's own items, ends included.
pub(crate) fn keys_of(object: ObjectNo) -> (Key, Key) {
    (Key::new(object, Kind::Inode, 0), Key::new(object, Key::MAX.kind, u64::MAX))
}
