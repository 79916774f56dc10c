//! Leaves are read for the step of a deletion that comes next, while the device would have nothing to do.
//!
//! Most of a deletion's time goes to reading the leaves of two trees. Which they are the nodes above tell, so the next
//! step's are asked for before those of this one are verified and held against each other. It is a guess: what the step
//! needs and does not find in memory it reads itself.

use super::Pair;
use super::data::{Next, may_hold_extents, next_leaf};
use crate::Store;
use crate::limits::BESIDE_ONE_LEAF_MAX;
use crate::tree::Missing;
use crate::tree::cache::{Coming, Pinned};
use syncline_format::node::NodePointer;
use syncline_format::{Key, TreeId};

/// What is on its way into memory.
pub(crate) struct Ahead {
    tree: TreeId,
    /// The leaves of these keys of the tree.
    from: Key,
    until: Key,
    coming: Coming,
}

impl Store {
    /// Before a step that looks at `leaves` leaves from the cursor on: takes in what comes, once the cursor has got
    /// there, and asks for what lies behind it. What cannot be told or read now is left to the step.
    pub(super) fn read_on(
        &self,
        ahead: &mut Option<Ahead>,
        tree: TreeId,
        cursor: Key,
        leaves: usize,
        pinned: &Pinned<'_>,
    ) {
        let (cache, device) = (&self.shared.cache, &*self.shared.device);
        let ask = |from: Key| {
            let (wanted, until) = {
                let trees = self.shared.trees.read();
                wanted(&trees.pair(tree, pinned).ok()?, from, leaves).ok()?
            };
            Some(Ahead { tree, from, until, coming: cache.begin_ahead(device, &wanted) })
        };
        let known = ahead.take().filter(|known| known.tree == tree);
        if known.as_ref().is_some_and(|known| cursor < known.from) {
            *ahead = known;
            return;
        }
        let Some(now) = known.or_else(|| ask(cursor)) else { return };
        *ahead = Some(now.until.max(cursor)).filter(|from| *from < Key::MAX).and_then(ask);
        cache.end_ahead(device, now.coming);
    }
}

/// The leaves that a look at so many from a key on reads, of both trees, and the key behind them.
pub(super) fn wanted(pair: &Pair<'_>, from: Key, leaves: usize) -> Result<(Vec<Missing>, Key), Missing> {
    let (mut wanted, mut last, mut from, mut left) = (Vec::new(), None, from, leaves);
    while left > 0 {
        let (next, leaf) = next_leaf(pair, from)?;
        from = next;
        let Next::Below(above, first) = leaf else { break };
        for index in first..above.leaf.page.count() {
            let (pointer, place) = (above.leaf.pointer(index), above.place_of(index));
            from = from.max(place.end.unwrap_or(Key::MAX));
            let low = place.low.unwrap_or(Key::MIN);
            if !may_hold_extents(low, place.end)
                || !pair.is_alone(pointer.block, pointer.level, pointer.birth, low)?
            {
                continue;
            }
            wanted.push(Missing { tree: pair.dying.id, pointer });
            beside(pair, low, place.end, &mut last, &mut wanted)?;
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    Ok((wanted, from))
}

/// The leaves of the child that cover keys from `low` up to `end`, behind the `last` one that is wanted already: the
/// two trees have split their leaves at different keys.
fn beside(
    pair: &Pair<'_>,
    low: Key,
    end: Option<Key>,
    last: &mut Option<NodePointer>,
    wanted: &mut Vec<Missing>,
) -> Result<(), Missing> {
    let Some(child) = pair.child else { return Ok(()) };
    let mut at = low;
    for _ in 0..BESIDE_ONE_LEAF_MAX {
        let (leaf, next) = pair.leaf_of_child(at)?;
        if leaf.is_some() && leaf != *last {
            *last = leaf;
            wanted.extend(leaf.map(|pointer| Missing { tree: child.id, pointer }));
        }
        match next {
            Some(next) if end.is_none_or(|end| next < end) => at = next,
            _ => break,
        }
    }
    Ok(())
}
