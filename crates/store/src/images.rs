//! Index of live page images: which pages have their newest content only in the journal.
//!
//! The journal's tail may not pass the record that holds the oldest of them (R2).

use std::collections::BTreeMap;
use syncline_format::{Lsn, ObjectNo, TreeId};

type PageKey = (TreeId, ObjectNo, u64);

#[derive(Default)]
pub(crate) struct ImageIndex {
    /// The newest image of each page counts.
    pages: BTreeMap<PageKey, Lsn>,
    /// Live images per LSN.
    by_lsn: BTreeMap<Lsn, u64>,
}

impl ImageIndex {
    pub(crate) fn insert(&mut self, tree: TreeId, object: ObjectNo, page: u64, lsn: Lsn) {
        if let Some(old) = self.pages.insert((tree, object, page), lsn) {
            self.forget(old);
        }
        *self.by_lsn.entry(lsn).or_default() += 1;
    }

    /// Drops the images of pages `first..end` of an object.
    pub(crate) fn drop_range(&mut self, tree: TreeId, object: ObjectNo, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let dropped: Vec<PageKey> =
            self.pages.range((tree, object, first)..(tree, object, end)).map(|(key, _)| *key).collect();
        for key in dropped {
            if let Some(lsn) = self.pages.remove(&key) {
                self.forget(lsn);
            }
        }
    }

    pub(crate) fn holds(&self, tree: TreeId, object: ObjectNo, page: u64) -> bool {
        self.pages.contains_key(&(tree, object, page))
    }

    pub(crate) fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    /// LSN of the oldest live image.
    pub(crate) fn oldest(&self) -> Option<Lsn> {
        self.by_lsn.keys().next().copied()
    }

    fn forget(&mut self, lsn: Lsn) {
        let count = self.by_lsn.get_mut(&lsn).expect("every live image is counted");
        *count -= 1;
        if *count == 0 {
            self.by_lsn.remove(&lsn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_image_counts_and_drops_release_the_tail() {
        let mut index = ImageIndex::default();
        let (tree, object) = (TreeId::MAIN, ObjectNo(4));
        index.insert(tree, object, 0, Lsn(1));
        index.insert(tree, object, 1, Lsn(2));
        index.insert(tree, object, 0, Lsn(3));
        assert_eq!((index.oldest(), index.len()), (Some(Lsn(2)), 2));
        index.drop_range(tree, object, 1, 2);
        assert_eq!(index.oldest(), Some(Lsn(3)));
        index.drop_range(tree, ObjectNo(5), 0, u64::MAX);
        index.drop_range(tree, object, 0, u64::MAX);
        assert_eq!((index.oldest(), index.len()), (None, 0));
    }
}
