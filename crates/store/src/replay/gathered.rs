//! The last change of each item, entered into the tree in the order of the keys.

use crate::StoreError;
use crate::shared::{Shared, Trees};
use crate::store::misplaced;
use crate::tree::cache::Pinned;
use crate::tree::{Editor, Missing, Obstacle};
use std::ops::Range;
use syncline_format::{Key, TreeId};

/// Memory of gathered changes after which they are entered.
const GATHERED_BYTES_MAX: usize = 16 << 20;
/// What a change takes in memory besides its value.
const OVERHEAD_BYTES: usize = 96;
/// Changes whose leaves are read together.
const ENTER_TOGETHER: usize = 256;

#[derive(Default)]
pub(super) struct Gathered {
    /// In the order of the log: the key, and where its value is in `values`; `None`: deleted.
    changes: Vec<(Key, Option<Range<usize>>)>,
    values: Vec<u8>,
}

impl Gathered {
    pub(super) fn put(&mut self, key: Key, value: &[u8]) {
        let start = self.values.len();
        self.values.extend_from_slice(value);
        self.changes.push((key, Some(start..self.values.len())));
    }

    pub(super) fn delete(&mut self, key: Key) {
        self.changes.push((key, None));
    }

    pub(super) fn is_full(&self) -> bool {
        self.values.len() + self.changes.len() * OVERHEAD_BYTES >= GATHERED_BYTES_MAX
    }

    /// Enters everything gathered so far.
    pub(super) fn enter(&mut self, shared: &Shared) -> Result<(), StoreError> {
        let mut changes = std::mem::take(&mut self.changes);
        // A stable sort: of one key the last comes last, and stays.
        changes.sort_by_key(|(key, _)| *key);
        let last_of_key = changes.chunk_by(|a, b| a.0 == b.0).filter_map(|same| same.last());
        let changes: Vec<Change<'_>> =
            last_of_key.map(|(key, place)| (*key, place.clone().map(|place| &self.values[place]))).collect();
        for changes in changes.chunks(ENTER_TOGETHER) {
            let pinned = Pinned::new(&shared.cache);
            let entered = load_leaves(shared, changes, &pinned);
            match entered.and_then(|()| enter_some(shared, changes, &pinned)) {
                Err(error) if error.is_unreadable() && shared.options.read_only => {
                    changes.iter().try_for_each(|change| enter_readable(shared, change, &pinned))?;
                }
                // A batch is applied whole or not at all, and its other items may lie where all can be read.
                Err(error) if error.is_unreadable() => {
                    return Err(StoreError::ReplayUnreadable { cause: Box::new(error) });
                }
                entered => entered?,
            }
        }
        shared.cache.set_dirty(shared.trees.read().current_nodes);
        self.values.clear();
        Ok(())
    }
}

type Change<'a> = (Key, Option<&'a [u8]>);

/// Reads what is missing on the ways to the items, level by level, the nodes of a level together.
fn load_leaves(shared: &Shared, items: &[Change<'_>], pinned: &Pinned<'_>) -> Result<(), StoreError> {
    loop {
        let mut missing: Vec<Missing> = Vec::new();
        {
            let trees = shared.trees.read();
            for (key, _) in items {
                match trees.main.check_resident(*key, pinned) {
                    Err(Obstacle::Missing(node)) if missing.last().is_none_or(|last| last.0 != node.0) => {
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
        pinned.load_many(&*shared.device, TreeId::MAIN, &missing)?;
    }
}

/// Enters a change of a volume opened read-only, if the nodes on the way to it can be read. If not, the node in the way
/// is not read again: it would show the item as it was before.
fn enter_readable(shared: &Shared, change: &Change<'_>, pinned: &Pinned<'_>) -> Result<(), StoreError> {
    loop {
        let way = shared.trees.read().main.check_resident(change.0, pinned);
        let (block, loaded) = match way {
            Ok(_) => break,
            Err(Obstacle::Misplaced(block)) => (block, Err(misplaced(block))),
            Err(Obstacle::Missing(node)) => {
                (node.0.block, pinned.load_many(&*shared.device, TreeId::MAIN, &[node]))
            }
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
    enter_some(shared, std::slice::from_ref(change), pinned)
}

fn enter_some(shared: &Shared, items: &[Change<'_>], pinned: &Pinned<'_>) -> Result<(), StoreError> {
    let mut rest = items;
    while let Some((key, value)) = rest.first() {
        let mut trees = shared.trees.write();
        // An emptied leaf leaves its keys to a neighbour, which may not have been on the way to any.
        match trees.main.check_resident(*key, pinned) {
            Ok(_) => {}
            Err(Obstacle::Missing(missing)) => {
                drop(trees);
                pinned.load_many(&*shared.device, TreeId::MAIN, &[missing])?;
                continue;
            }
            Err(Obstacle::Misplaced(block)) => return Err(misplaced(block)),
        }
        let Trees { main, freeze, superseded, current_nodes, .. } = &mut *trees;
        let mut editor = Editor { resident: pinned, freeze: *freeze, superseded, current_nodes };
        let Some(value) = value else {
            main.delete(*key, &mut editor);
            rest = &rest[1..];
            continue;
        };
        let entered = main.put_into_leaf(rest, &mut editor);
        rest = &rest[entered..];
        if entered == 0 {
            main.put(*key, value, &mut editor);
            rest = &rest[1..];
        }
    }
    Ok(())
}
