//! The third part of a deletion: the nodes, found by reading those that have children.

use super::{Hindered, Pair};
use crate::store::misplaced;
use crate::tree::cache::Pinned;
use crate::trees::{NodeWalk, Trees};
use crate::{Class, Estimate, Store, StoreError};
use syncline_format::{BlockNo, Key, TreeId};

impl Store {
    /// Looks for some more nodes of the tree; at the end the tree has no root any more.
    pub(super) fn reap_nodes(&self, tree: TreeId, nodes: usize) -> Result<(), StoreError> {
        let shared = &self.shared;
        // For the root tree, which loses an item: as many chunks as its way to one may take.
        let mut permit = self.admit(Class::Deletion, Estimate { bytes: 0, items: 2, images: 0 })?;
        let pinned = Pinned::new(&shared.cache);
        let mut stale = None;
        let mut looked_at = 0;
        while looked_at < nodes {
            let mut trees = shared.trees.write();
            // No walk begins of a tree that cannot be read.
            drop(trees.pair(tree, &pinned)?);
            let looked = begin(&mut trees, tree).and_then(|from| look(&trees.pair(tree, &pinned)?, from));
            match looked {
                Ok((lost, next)) => {
                    let Some(walk) = &mut trees.node_walk else { return Ok(()) };
                    walk.lost.extend(lost);
                    walk.at = next;
                    looked_at += 1;
                    if next == Key::MAX
                        && let Some(walk) = trees.node_walk.take()
                    {
                        let claims = trees.empty(walk);
                        shared.space.lock().adjust_claims(std::mem::take(&mut permit.nodes), claims);
                        return Ok(());
                    }
                }
                Err(Hindered::Missing(missing)) => {
                    drop(trees);
                    pinned.load(&*shared.device, &missing, &mut stale)?;
                }
                Err(Hindered::For(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Where the walk is; it begins now if there is none. From here on it is told what the child lets go of.
fn begin(trees: &mut Trees, tree: TreeId) -> Result<Key, Hindered> {
    if let Some(walk) = trees.node_walk.as_ref().filter(|walk| walk.tree == tree) {
        return Ok(walk.at);
    }
    let low = trees.tree(tree)?.low;
    let child = trees.branches.as_ref().and_then(|branches| branches.children(tree).next());
    trees.node_walk = Some(NodeWalk { tree, child, low, lost: Default::default(), at: Key::MIN });
    Ok(Key::MIN)
}

/// The nodes on the way to `from` and right above the leaves there, as far as nobody else has them; and where to look
/// next.
pub(super) fn look(pair: &Pair<'_>, from: Key) -> Result<(Vec<BlockNo>, Key), Hindered> {
    let mut lost = Vec::new();
    let Some(root) = pair.root() else { return Ok((lost, Key::MAX)) };
    if !pair.is_alone(root.block, root.level, root.birth, Key::MIN)? {
        return Ok((lost, Key::MAX));
    }
    lost.push(root.block);
    if root.level == 0 {
        return Ok((lost, Key::MAX));
    }
    let mut found = pair.dying.root_found(pair.resident)?;
    loop {
        if !found.is_in_place() {
            return Err(misplaced(found.leaf.block()).into());
        }
        let end = found.place.end.unwrap_or(Key::MAX);
        let page = &found.leaf.page;
        let mut below = None;
        // Right above the leaves all of them; further up the first that is alone.
        let is_lowest = page.level() == 1;
        let begin = if is_lowest { 0 } else { page.child_index(from) };
        for index in begin..page.count() {
            let (pointer, place) = (found.leaf.pointer(index), found.place_of(index));
            let low = place.low.unwrap_or(Key::MIN);
            if pair.is_alone(pointer.block, pointer.level, pointer.birth, low)? {
                lost.push(pointer.block);
                if !is_lowest {
                    below = Some(index);
                    break;
                }
            }
        }
        let Some(index) = below else { return Ok((lost, end)) };
        found = found.child(index, pair.resident)?;
    }
}
