//! The last change of each item, entered into the tree in the order of the keys.

use crate::StoreError;
use crate::limits::{ENTERED_TOGETHER, GATHERED_BYTES_MAX};
use crate::shared::Shared;
use crate::store::misplaced;
use crate::tree::cache::Pinned;
use crate::tree::{Missing, Obstacle};
use std::collections::BTreeMap;
use std::ops::Range;
use syncline_format::{Key, TreeId};

/// What a change takes in memory besides its value.
const OVERHEAD_BYTES: usize = 96;

/// A key, and where its value is in `Gathered::values`; `None`: deleted.
type Place = (Key, Option<Range<usize>>);

#[derive(Default)]
pub(super) struct Gathered {
    /// Of each tree in the order of the log.
    trees: BTreeMap<TreeId, Vec<Place>>,
    /// Of all trees.
    changes: usize,
    values: Vec<u8>,
}

impl Gathered {
    pub(super) fn put(&mut self, tree: TreeId, key: Key, value: &[u8]) {
        let start = self.values.len();
        self.values.extend_from_slice(value);
        self.change(tree, key, Some(start..self.values.len()));
    }

    pub(super) fn delete(&mut self, tree: TreeId, key: Key) {
        self.change(tree, key, None);
    }

    fn change(&mut self, tree: TreeId, key: Key, value: Option<Range<usize>>) {
        self.trees.entry(tree).or_default().push((key, value));
        self.changes += 1;
    }

    pub(super) fn is_full(&self) -> bool {
        self.values.len() + self.changes * OVERHEAD_BYTES >= GATHERED_BYTES_MAX
    }

    /// Enters everything gathered so far.
    pub(super) fn enter(&mut self, shared: &Shared) -> Result<(), StoreError> {
        for (tree, mut changes) in std::mem::take(&mut self.trees) {
            // A stable sort: of one key the last comes last, and stays.
            changes.sort_by_key(|(key, _)| *key);
            let last_of_key = changes.chunk_by(|a, b| a.0 == b.0).filter_map(|same| same.last());
            let changes: Vec<Change<'_>> = last_of_key
                .map(|(key, place)| (*key, place.clone().map(|place| &self.values[place])))
                .collect();
            for changes in changes.chunks(ENTERED_TOGETHER) {
                let pinned = Pinned::new(&shared.cache);
                let entered = load_leaves(shared, tree, changes, &pinned);
                match entered.and_then(|()| enter_some(shared, tree, changes, &pinned)) {
                    Err(error) if error.is_unreadable() && shared.options.read_only => {
                        changes
                            .iter()
                            .try_for_each(|change| enter_readable(shared, tree, change, &pinned))?;
                    }
                    // A batch is applied whole or not at all, and its other items may lie where all can be read.
                    Err(error) if error.is_unreadable() => {
                        return Err(StoreError::ReplayUnreadable { cause: Box::new(error) });
                    }
                    entered => entered?,
                }
            }
        }
        self.changes = 0;
        shared.cache.set_dirty(shared.trees.read().current_nodes);
        self.values.clear();
        Ok(())
    }
}

type Change<'a> = (Key, Option<&'a [u8]>);

/// Reads what is missing on the ways to the items, level by level, the nodes of a level together.
fn load_leaves(
    shared: &Shared,
    tree: TreeId,
    items: &[Change<'_>],
    pinned: &Pinned<'_>,
) -> Result<(), StoreError> {
    loop {
        let mut missing: Vec<Missing> = Vec::new();
        {
            let trees = shared.trees.read();
            let tree = trees.tree(tree)?;
            for (key, _) in items {
                match tree.check_resident(*key, pinned) {
                    Err(Obstacle::Missing(node))
                        if missing.last().is_none_or(|last| last.pointer != node.pointer) =>
                    {
                        missing.push(node);
                    }
                    Err(Obstacle::Misplaced(block)) => return Err(misplaced(block)),
                    _ => {}
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        pinned.load_many(&*shared.device, &missing)?;
    }
}

/// Enters a change of a volume opened read-only, if the nodes on the way to it can be read. If not, the node in the way
/// is not read again: it would show the item as it was before.
fn enter_readable(
    shared: &Shared,
    tree: TreeId,
    change: &Change<'_>,
    pinned: &Pinned<'_>,
) -> Result<(), StoreError> {
    loop {
        let way = shared.trees.read().tree(tree)?.check_resident(change.0, pinned);
        let (block, loaded) = match way {
            Ok(_) => break,
            Err(Obstacle::Misplaced(block)) => (block, Err(misplaced(block))),
            Err(Obstacle::Missing(node)) => (node.pointer.block, pinned.load_many(&*shared.device, &[node])),
        };
        match loaded {
            Err(error) if error.is_unreadable() => {
                tracing::error!(%error, "the journal changes a node that cannot be read; it is left out");
                shared.cache.give_up(block);
                return Ok(());
            }
            loaded => loaded?,
        }
    }
    enter_some(shared, tree, std::slice::from_ref(change), pinned)
}

fn enter_some(
    shared: &Shared,
    tree: TreeId,
    items: &[Change<'_>],
    pinned: &Pinned<'_>,
) -> Result<(), StoreError> {
    let mut rest = items;
    while let Some((key, value)) = rest.first() {
        let mut trees = shared.trees.write();
        // An emptied leaf leaves its keys to a neighbour, which may not have been on the way to any.
        match trees.tree(tree)?.check_resident(*key, pinned) {
            Ok(_) => {}
            Err(Obstacle::Missing(missing)) => {
                drop(trees);
                pinned.load_many(&*shared.device, &[missing])?;
                continue;
            }
            Err(Obstacle::Misplaced(block)) => return Err(misplaced(block)),
        }
        let (tree, mut editor) = trees.editor(tree, pinned)?;
        let Some(value) = value else {
            tree.delete(*key, &mut editor);
            rest = &rest[1..];
            continue;
        };
        let entered = tree.put_into_leaf(rest, &mut editor);
        rest = &rest[entered..];
        if entered == 0 {
            tree.put(*key, value, &mut editor);
            rest = &rest[1..];
        }
    }
    Ok(())
}
