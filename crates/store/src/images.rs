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

    /// The images of one tree are from here on another one's as well (R22).
    pub(crate) fn inherit(&mut self, from: TreeId, to: TreeId) {
        let inherited: Vec<(ObjectNo, u64, Lsn)> = self.of(from).collect();
        for (object, page, lsn) in inherited {
            self.insert(to, object, page, lsn);
        }
    }

    /// The images of a tree.
    pub(crate) fn of(&self, tree: TreeId) -> impl Iterator<Item = (ObjectNo, u64, Lsn)> {
        let all = (tree, ObjectNo(0), 0)..=(tree, ObjectNo(u64::MAX), u64::MAX);
        self.pages.range(all).map(|((_, object, page), lsn)| (*object, *page, *lsn))
    }

    /// A tree is gone.
    pub(crate) fn drop_tree(&mut self, tree: TreeId) {
        let dropped: Vec<(ObjectNo, u64, Lsn)> = self.of(tree).collect();
        for (object, page, lsn) in dropped {
            self.pages.remove(&(tree, object, page));
            self.forget(lsn);
        }
    }

    /// The trees that have any, each once.
    pub(crate) fn trees(&self) -> impl Iterator<Item = TreeId> {
        let mut next = Some(TreeId(0));
        std::iter::from_fn(move || {
            let ((tree, ..), _) = self.pages.range((next?, ObjectNo(0), 0)..).next()?;
            next = tree.0.checked_add(1).map(TreeId);
            Some(*tree)
        })
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

    #[test]
    fn an_inherited_image_outlives_that_of_its_head() {
        let mut index = ImageIndex::default();
        let (head, snapshot, object) = (TreeId::MAIN, TreeId::FIRST_MADE, ObjectNo(4));
        index.insert(head, object, 0, Lsn(1));
        index.insert(head, object, 7, Lsn(2));
        index.inherit(head, snapshot);
        index.insert(head, object, 0, Lsn(3));
        index.drop_range(head, object, 7, 8);
        assert_eq!(index.oldest(), Some(Lsn(1)), "the snapshot's (R26)");
        assert_eq!(index.of(snapshot).collect::<Vec<_>>(), [(object, 0, Lsn(1)), (object, 7, Lsn(2))]);
        assert_eq!(index.trees().collect::<Vec<_>>(), [head, snapshot]);
        index.drop_tree(snapshot);
        assert_eq!((index.oldest(), index.len()), (Some(Lsn(3)), 1));
    }
}
