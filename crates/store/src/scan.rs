//! Going through the items of a tree in their order. What comes next is read ahead.

use crate::limits::LEAVES_AHEAD;
use crate::store::check_place;
use crate::tree::Missing;
use crate::{Store, StoreError};
use std::ops::ControlFlow;
use syncline_format::{Key, TreeId};

impl Store {
    /// Visits the items of a tree in `from..end`, ascending, until the visitor breaks. No lock is held during a
    /// visit; each leaf is seen at one moment, the whole scan is not.
    pub fn scan(
        &self,
        tree: TreeId,
        from: Key,
        end: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let mut from = from;
        let mut read_to = None;
        loop {
            let found = self.look(tree, |tree, resident| tree.find(from, resident))?;
            // What a leaf holds outside of its place would come twice, or for ever where a cookie leads back.
            check_place(&found)?;
            let page = &found.leaf.page;
            let first = page.search(from).unwrap_or_else(|index| index);
            for index in first..page.count() {
                let key = page.key(index);
                if key >= end || visit(key, page.value(index)).is_break() {
                    return Ok(());
                }
            }
            match found.place.end {
                Some(next) if next < end => from = from.max(next),
                _ => return Ok(()),
            }
            if read_to.is_none_or(|to| to <= from) {
                read_to = Some(self.read_leaves_ahead(tree, from, end)?);
            }
        }
    }

    /// Reads leaves together that hold what comes behind a key, as far as they are not in memory. Returns the key up to
    /// which that was done; none was read if the node above them is not in memory: the scan reads it on its way to the
    /// next leaf, and asks again.
    fn read_leaves_ahead(&self, tree: TreeId, from: Key, end: Key) -> Result<Key, StoreError> {
        let shared = &self.shared;
        let mut wanted = Vec::new();
        let mut to = from;
        {
            let trees = shared.trees.read();
            let above = match trees.tree(tree)?.find_at(1, from, &shared.cache) {
                Ok(Some(above)) => above,
                Ok(None) => return Ok(Key::MAX),
                Err(_) => return Ok(from),
            };
            let first = above.leaf.page.child_index(from);
            for index in (first..above.leaf.page.count()).take(LEAVES_AHEAD) {
                let place = above.place_of(index);
                if place.low.is_some_and(|low| low >= end) {
                    break;
                }
                to = place.end.unwrap_or(Key::MAX);
                if !matches!(above.leaf.children.get(index), Some(Some(_))) {
                    wanted.push(Missing { tree, pointer: above.leaf.pointer(index) });
                }
            }
        }
        shared.cache.load_ahead(&*shared.device, &wanted);
        Ok(to)
    }
}
