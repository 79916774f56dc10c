//! Changes of the log over one tree, in layers: a snapshot that the log makes shares those before it with its source.

use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::ops::RangeInclusive;
use std::sync::Arc;
use syncline_format::Key;

/// A value, or `None` for a deleted item.
type Changes = BTreeMap<Key, Option<Vec<u8>>>;

/// The changes of a tree; a clone shares them, and what is changed behind it is changed in one of the two alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay(Vec<Arc<Changes>>);

impl Overlay {
    pub(crate) fn insert(&mut self, key: Key, value: Option<Vec<u8>>) {
        match self.0.last_mut().and_then(Arc::get_mut) {
            Some(newest) => drop(newest.insert(key, value)),
            None => self.0.push(Arc::new(Changes::from([(key, value)]))),
        }
    }

    /// The newest word on each key of the range, in the order of the keys.
    pub(crate) fn range(&self, range: RangeInclusive<Key>) -> Range<'_> {
        Range { layers: self.0.iter().map(|layer| layer.range(range.clone()).peekable()).collect() }
    }

    /// Whether the log says anything about the key.
    pub(crate) fn speaks_of(&self, key: Key) -> bool {
        self.0.iter().any(|layer| layer.contains_key(&key))
    }
}

/// See [`Overlay::range`].
pub(crate) struct Range<'a> {
    /// Oldest first.
    layers: Vec<Peekable<btree_map::Range<'a, Key, Option<Vec<u8>>>>>,
}

impl<'a> Iterator for Range<'a> {
    type Item = (&'a Key, &'a Option<Vec<u8>>);

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.layers.iter_mut().filter_map(|layer| layer.peek().map(|(key, _)| **key)).min()?;
        let mut newest = None;
        for layer in &mut self.layers {
            newest = layer.next_if(|(key, _)| **key == first).or(newest);
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_format::ObjectNo;

    #[test]
    fn what_is_changed_behind_a_clone_is_changed_in_one_alone() {
        let key = |page| Key::extent(ObjectNo(9), page);
        let mut head = Overlay::default();
        head.insert(key(1), Some(vec![1]));
        head.insert(key(2), Some(vec![2]));
        let snapshot = head.clone();
        head.insert(key(2), None);
        head.insert(key(0), Some(vec![0]));
        let shown = |overlay: &Overlay| -> Vec<(u64, Option<Vec<u8>>)> {
            overlay.range(Key::MIN..=Key::MAX).map(|(key, value)| (key.offset, value.clone())).collect()
        };
        assert_eq!(shown(&snapshot), [(1, Some(vec![1])), (2, Some(vec![2]))]);
        assert_eq!(shown(&head), [(0, Some(vec![0])), (1, Some(vec![1])), (2, None)]);
        assert!(head.speaks_of(key(2)) && !snapshot.speaks_of(key(0)));
    }
}
