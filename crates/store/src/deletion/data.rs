//! The second part of a deletion: blocks of data.
//!
//! The dying tree does not change, so what it has to read is read without locks. That the child lacks a page is looked
//! for under the lock under which the batch is committed: the child may be a head, which goes on changing (R29).

use super::ahead::Ahead;
use super::{DATA_BATCH_BYTES, Hindered, Pair, put_cursor};
use crate::limits::{REAPED_BYTES, REAPED_RUNS};
use crate::store::misplaced;
use crate::tree::cache::Pinned;
use crate::tree::{Found, Missing, Tree};
use crate::{Class, Estimate, Store, StoreError};
use syncline_format::batch::RELEASE_BYTES;
use syncline_format::item::{EXTENT_HEADER_BYTES, ExtentPlace};
use syncline_format::node::NODE_SPACE_BYTES;
use syncline_format::range::FILE_PAGES_MAX;
use syncline_format::tree_item::TreeState;
use syncline_format::{BlockNo, Era, FormatError, Key, Kind, TreeId};

/// Blocks that nobody has but the dying tree.
struct Dead {
    start: BlockNo,
    len: u32,
    birth: Era,
}

/// Adds blocks. What goes on where the run before ends becomes one with it: files that were written one after another
/// lie one after another, and each run takes its place in the log. No run reaches from one group to the next, whose
/// head is between them.
fn add(dead: &mut Vec<Dead>, start: BlockNo, len: u32, birth: Era) {
    match dead.last_mut() {
        Some(last) if last.birth == birth && last.start.plus(u64::from(last.len)) == start => last.len += len,
        _ => dead.push(Dead { start, len, birth }),
    }
}

/// One leaf always fits behind the runs of those before: it has fewer pages than its space has sums, and between two
/// runs of one extent the child has a page. Two extents take more than two pages and their sums.
const _: () = {
    let runs_of_a_leaf = (NODE_SPACE_BYTES - EXTENT_HEADER_BYTES) / 8 / 2;
    assert!((REAPED_RUNS + runs_of_a_leaf) * RELEASE_BYTES <= REAPED_BYTES);
};

impl Store {
    /// Gives back the data of some leaves of the tree. Those of the next step are read meanwhile: `ahead` keeps them.
    pub(super) fn reap_data(
        &self,
        tree: TreeId,
        leaves: usize,
        ahead: &mut Option<Ahead>,
    ) -> Result<(), StoreError> {
        let shared = &self.shared;
        let pinned = Pinned::new(&shared.cache);
        let cursor = cursor_of(&shared.trees.read(), tree)?;
        self.read_on(ahead, tree, cursor, leaves, &pinned);
        // Everything that the step needs is read before the lock is taken for writing.
        self.looked(
            &pinned,
            (cursor, leaves),
            |trees, pinned| trees.pair(tree, pinned),
            |pair| collect(pair, cursor, leaves).map(drop),
        )?;
        let estimate = Estimate { bytes: DATA_BATCH_BYTES, items: 1, images: 0 };
        self.change_trees_with(Class::Deletion, estimate, &pinned, |trees, batch| {
            let cursor = cursor_of(trees, tree)?;
            let (dead, next) = collect(&trees.pair(tree, &pinned)?, cursor, leaves)?;
            for Dead { start, len, birth } in dead {
                batch.give_back(start, len, birth);
            }
            Ok(put_cursor(trees, tree, next, batch)?)
        })?;
        Ok(())
    }
}

fn cursor_of(trees: &crate::trees::Trees, tree: TreeId) -> Result<Key, StoreError> {
    match super::item_of(trees, tree)?.state {
        TreeState::Deleting { cursor } => Ok(cursor),
        TreeState::Live => Err(StoreError::NoTree { tree }),
    }
}

/// How many blocks die of up to so many leaves from the cursor on, and where the cursor lies behind them.
pub(super) fn dying(pair: &Pair<'_>, cursor: Key, leaves: usize) -> Result<(u64, Key), Hindered> {
    let (dead, next) = collect(pair, cursor, leaves)?;
    Ok((dead.iter().map(|run| u64::from(run.len)).sum(), next))
}

/// What dies of up to so many leaves from the cursor on, and where the cursor lies behind them.
fn collect(pair: &Pair<'_>, cursor: Key, leaves: usize) -> Result<(Vec<Dead>, Key), Hindered> {
    let (mut dead, mut last, mut cursor) = (Vec::new(), None, cursor);
    for _ in 0..leaves {
        let (next, leaf) = next_leaf(pair, cursor)?;
        cursor = next;
        let found = match leaf {
            Next::Nothing => break,
            Next::Root(found) => found,
            Next::Below(above, index) => above.child(index, pair.resident)?,
        };
        if !found.is_in_place() {
            return Err(misplaced(found.leaf.block()).into());
        }
        let page = &found.leaf.page;
        for index in page.search(cursor).unwrap_or_else(|index| index)..page.count() {
            let key = page.key(index);
            if key.kind == Kind::Extent {
                let block = found.leaf.block();
                let item = ExtentPlace::decode(page.value(index));
                let item = item.map_err(|source| StoreError::Corrupt { block, source })?;
                bury(pair, key, &item, &mut dead)?;
            }
        }
        cursor = found.place.end.unwrap_or(Key::MAX);
        last = Some(found);
        if dead.len() >= REAPED_RUNS {
            break;
        }
    }
    // An extent may reach beyond the keys of its leaf, and the child may hold a later part of it on its own. It is the
    // last of the leaf that was looked at last: the one behind that is not read for it.
    if cursor < Key::MAX
        && let Some(found) = last
        && let Some(index) = found.leaf.page.count().checked_sub(1)
    {
        let (key, page) = (found.leaf.page.key(index), &found.leaf.page);
        if key.kind == Kind::Extent {
            let block = found.leaf.block();
            let item = ExtentPlace::decode(page.value(index));
            let item = item.map_err(|source| StoreError::Corrupt { block, source })?;
            cursor = cursor.max(Key::extent(key.object, key.offset.saturating_add(u64::from(item.pages))));
        }
    }
    Ok((dead, cursor))
}

/// A leaf, as the walk comes to it.
pub(super) enum Next {
    Nothing,
    /// The tree has no other.
    Root(Found),
    /// The child at a slot of a node.
    Below(Found, usize),
}

/// The next leaf, from `from` on, that may name data that only the dying tree has; all that lies before the key can be
/// passed by.
pub(super) fn next_leaf(pair: &Pair<'_>, from: Key) -> Result<(Key, Next), Missing> {
    let nothing = Ok((Key::MAX, Next::Nothing));
    let Some(root) = pair.root() else { return nothing };
    if from == Key::MAX || !pair.is_alone(root.block, root.level, root.birth, Key::MIN)? {
        return nothing;
    }
    let mut from = from;
    'descent: loop {
        let mut found = pair.dying.root_found(pair.resident)?;
        if found.leaf.is_leaf() {
            return Ok((from, Next::Root(found)));
        }
        loop {
            let mut index = found.leaf.page.child_index(from);
            let level = loop {
                let (pointer, place) = (found.leaf.pointer(index), found.place_of(index));
                let low = place.low.unwrap_or(Key::MIN);
                if may_hold_extents(low, place.end)
                    && pair.is_alone(pointer.block, pointer.level, pointer.birth, low)?
                {
                    break pointer.level;
                }
                let Some(end) = place.end else { return nothing };
                from = from.max(end);
                index += 1;
                if index == found.leaf.page.count() {
                    continue 'descent;
                }
            };
            if level == 0 {
                return Ok((from, Next::Below(found, index)));
            }
            found = found.child(index, pair.resident)?;
        }
    }
}

/// Whether extents may lie among these keys: a leaf in the midst of one directory's names need not be read.
pub(super) fn may_hold_extents(low: Key, end: Option<Key>) -> bool {
    let Some(end) = end.filter(|end| end.object == low.object) else { return true };
    low.kind <= Kind::Extent && end > Key::extent(low.object, 0)
}

/// The page behind an extent. Errors: no file has so many.
fn end_of(page: u64, item: &ExtentPlace) -> Result<u64, StoreError> {
    let end = page.checked_add(u64::from(item.pages)).filter(|end| *end <= FILE_PAGES_MAX);
    let source = FormatError::Field { what: "extent", field: "page", value: page };
    end.ok_or(StoreError::Corrupt { block: item.start, source })
}

/// Adds the pages of an extent of the dying tree that the child does not have.
fn bury(pair: &Pair<'_>, key: Key, item: &ExtentPlace, dead: &mut Vec<Dead>) -> Result<(), Hindered> {
    if pair.low.is_some_and(|low| item.birth <= low) {
        return Ok(());
    }
    let (first, end) = (key.offset, end_of(key.offset, item)?);
    let mut at = first;
    let mut bury = |from: u64, to: u64| {
        if from < to {
            add(dead, item.block_of(from - first), (to - from) as u32, item.birth);
        }
    };
    let Some(child) = pair.child else {
        bury(first, end);
        return Ok(());
    };
    while at < end {
        let Some((page, other)) = next_extent(child, Key::extent(key.object, at), end, pair)? else { break };
        let (from, to) = (page.max(at), end_of(page, &other)?.min(end));
        let is_same = other.birth == item.birth && other.block_of(from - page) == item.block_of(from - first);
        bury(at, if is_same { from } else { to });
        at = to;
    }
    bury(at, end);
    Ok(())
}

/// The first extent of the child that covers a page from `key`'s up to `end`.
fn next_extent(
    child: &Tree,
    key: Key,
    end: u64,
    pair: &Pair<'_>,
) -> Result<Option<(u64, ExtentPlace)>, Hindered> {
    let decode = |found: &Found, index: usize| {
        let block = found.leaf.block();
        ExtentPlace::decode(found.leaf.page.value(index))
            .map_err(|source| StoreError::Corrupt { block, source })
    };
    let mut held = pair.leaf.borrow_mut();
    let mut covering = |key: Key| -> Result<Found, Hindered> {
        match held.as_ref().filter(|found| found.covers(key)) {
            Some(found) => Ok(found.clone()),
            None => Ok(held.insert(child.find(key, pair.resident)?).clone()),
        }
    };
    let found = covering(key)?;
    // The leaf before has it where the key comes first in its own.
    let before = match found.leaf.page.search(key) {
        Ok(index) => Some((found, index)),
        Err(index) if index > 0 && found.is_in_place() => Some((found, index - 1)),
        Err(_) => child.last_at_or_before(key, pair.resident)?,
    };
    if let Some((found, index)) = before {
        let at = found.leaf.page.key(index);
        if at.object == key.object && at.kind == Kind::Extent {
            let item = decode(&found, index)?;
            if end_of(at.offset, &item)? > key.offset {
                return Ok(Some((at.offset, item)));
            }
        }
    }
    let mut from = key;
    loop {
        let found = covering(from)?;
        if !found.is_in_place() {
            return Err(misplaced(found.leaf.block()).into());
        }
        let page = &found.leaf.page;
        let index = page.search(from).unwrap_or_else(|index| index);
        if index < page.count() {
            let at = page.key(index);
            let is_next = at.object == key.object && at.kind == Kind::Extent && at.offset < end;
            return if is_next { Ok(Some((at.offset, decode(&found, index)?))) } else { Ok(None) };
        }
        match found.place.end {
            Some(next) if next < Key::extent(key.object, end) => from = next,
            _ => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_follow_one_another_die_as_one_run() {
        let mut dead = Vec::new();
        let (old, new) = (Era(3), Era(4));
        for (start, len, birth) in
            [(10, 1, old), (11, 3, old), (14, 1, new), (15, 1, new), (17, 1, new), (16, 1, new)]
        {
            add(&mut dead, BlockNo(start), len, birth);
        }
        let found: Vec<_> = dead.iter().map(|run| (run.start.0, run.len, run.birth)).collect();
        assert_eq!(found, [(10, 4, old), (14, 2, new), (17, 1, new), (16, 1, new)]);
    }
}
