//! Changing a tree: put, delete, split, merge; all in memory, all infallible once the path is resident.

use super::page::{Full, Page};
use super::{Change, Found, Node, Obstacle, Place, Reached, Resident, Root, Superseded, Tree};
use crate::limits::{MERGED_BYTES_MAX, UNDERFULL_BYTES};
use std::collections::BTreeSet;
use std::sync::Arc;
use syncline_format::node::{NODE_POINTER_BYTES, NODE_SPACE_BYTES, SLOT_BYTES};
use syncline_format::{BlockNo, Era, Key};

/// What editing needs to know and what it leaves behind.
pub(crate) struct Editor<'a> {
    pub(crate) resident: &'a dyn Resident,
    /// The tree's freeze number; nodes of it may be edited in place.
    pub(crate) freeze: u64,
    /// The era that nodes are made in.
    pub(crate) birth: Era,
    /// The tree owns what was born behind this era; `None`: everything.
    pub(crate) low: Option<Era>,
    /// A node with so many items is full, whatever its bytes.
    pub(crate) items_max: usize,
    /// Nodes that are not part of the tree any more; their homes are kept until the next freeze.
    pub(crate) superseded: &'a mut Vec<Superseded>,
    /// Number of current nodes in the tree.
    pub(crate) current_nodes: &'a mut u64,
    /// The tree's parent goes away, and what both have of nodes behind this era is nobody's once the tree lets go of
    /// it.
    pub(crate) lost: Option<(Option<Era>, &'a mut BTreeSet<BlockNo>)>,
}

/// A new right sibling, to be entered into the parent.
struct Split {
    key: Key,
    node: Arc<Node>,
}

impl Tree {
    /// Reports the first node on the way to `key` that is not in memory, or not in its place.
    pub(crate) fn check_resident(&self, key: Key, resident: &dyn Resident) -> Result<Reached, Obstacle> {
        let root;
        let mut held = match &self.root {
            Root::Held(node) => node,
            Root::Clean(_) => {
                root = self.root(resident)?;
                &root
            }
        };
        let mut place = Place::default();
        let (index, parent) = loop {
            // A node that may be edited in place was in its place when it was copied, and edits keep it there.
            if held.freeze != self.freeze {
                place.check(held)?;
            }
            if held.is_leaf() {
                return Ok(Reached::leaf(held, place.end, self.items_max));
            }
            let index = held.page.child_index(key);
            match held.children.get(index) {
                Some(Some(child)) => {
                    place = place.child(held, index);
                    held = child;
                }
                _ => break (index, held),
            }
        };
        // From here on the path is clean.
        let mut node = parent.child(index, resident)?;
        place = place.child(parent, index);
        loop {
            place.check(&node)?;
            if node.is_leaf() {
                return Ok(Reached::leaf(&node, place.end, self.items_max));
            }
            let index = node.page.child_index(key);
            let child = node.child(index, resident)?;
            place = place.child(&node, index);
            node = child;
        }
    }

    /// Reports the first node that is missing, or not in its place, of the two leaves beside `key`'s, if a batch
    /// could empty that leaf: it leaves the tree then, and one of the two inherits
    /// its keys, which the rest of the batch may name. The path to `key` itself must be resident.
    pub(crate) fn check_heirs(
        &self,
        key: Key,
        change: Change,
        resident: &dyn Resident,
    ) -> Result<(), Obstacle> {
        let mut found = Found { leaf: self.root(resident)?, place: Place::default() };
        let (mut before, mut after) = (None, None);
        while !found.leaf.is_leaf() {
            let index = found.leaf.page.child_index(key);
            if index > 0 {
                before = Some((found.clone(), index - 1));
            }
            if index + 1 < found.leaf.page.count() {
                after = Some((found.clone(), index + 1));
            }
            found = found.child(index, resident)?;
        }
        let page = &found.leaf.page;
        // The batch's own puts may split the leaf first, and its deletes empty one half.
        let splits = page.used_bytes() + change.bytes > NODE_SPACE_BYTES
            || page.count() + change.puts > self.items_max;
        if page.count() > change.deletes && !splits {
            return Ok(());
        }
        for (heir, is_before) in [(before, true), (after, false)] {
            let Some((parent, index)) = heir else { continue };
            let mut found = parent.child(index, resident)?;
            while !found.leaf.is_leaf() {
                found.place.check(&found.leaf)?;
                let index = if is_before { found.leaf.page.count() - 1 } else { 0 };
                found = found.child(index, resident)?;
            }
            found.place.check(&found.leaf)?;
        }
        Ok(())
    }

    /// Sets an item. The path must be resident.
    pub(crate) fn put(&mut self, key: Key, value: &[u8], editor: &mut Editor<'_>) {
        let id = self.id;
        let root = self.hold_root(editor);
        if let Some(split) = editor.put(root, key, value) {
            let mut page = Page::empty(id.of_nodes(), root.page.level() + 1);
            let left = Arc::clone(root);
            page.insert(0, Key::MIN, &[0; NODE_POINTER_BYTES]).expect("an empty page has room");
            page.insert(1, split.key, &[0; NODE_POINTER_BYTES]).expect("an empty page has room");
            let children = vec![Some(left), Some(split.node)];
            *editor.current_nodes += 1;
            *root = Arc::new(Node::made(page, editor, children));
        }
    }

    /// Sets the first of the ascending items, up to the first deletion (`None`), that belong to one leaf and fit into
    /// it; returns how many. The path to the first one must be resident.
    pub(crate) fn put_into_leaf<V: AsRef<[u8]>>(
        &mut self,
        items: &[(Key, Option<V>)],
        editor: &mut Editor<'_>,
    ) -> usize {
        let Some((first, _)) = items.first() else { return 0 };
        let mut node = self.hold_root(editor);
        let mut end = None;
        loop {
            let current = editor.edit(node);
            if current.is_leaf() {
                return put_while_room(&mut current.page, items, end, editor.items_max);
            }
            let index = current.page.child_index(*first);
            end = current.end_of(index).or(end);
            node = editor.held_child(current, index);
        }
    }

    /// Removes an item if it is there. The path must be resident.
    pub(crate) fn delete(&mut self, key: Key, editor: &mut Editor<'_>) {
        let found = self.find(key, editor.resident).expect("the path was checked to be resident");
        if found.leaf.page.search(key).is_err() {
            // What removes nothing must not copy the path.
            return;
        }
        // Whoever else holds a node has it copied.
        drop(found);
        let id = self.id;
        let root = self.hold_root(editor);
        editor.delete(root, key, Place::default());
        loop {
            if root.is_leaf() {
                return;
            }
            match root.page.count() {
                0 => {
                    let leaf = Arc::new(Node::made(Page::empty(id.of_nodes(), 0), editor, Vec::new()));
                    *editor.current_nodes += 1;
                    editor.discard(std::mem::replace(root, leaf));
                    return;
                }
                1 => {
                    let Ok(child) = root.child(0, editor.resident) else { return };
                    editor.discard(std::mem::replace(root, child));
                }
                _ => return,
            }
        }
    }

    fn hold_root(&mut self, editor: &Editor<'_>) -> &mut Arc<Node> {
        if let Root::Clean(pointer) = &self.root {
            let node = editor.resident.resident(pointer).expect("the path was checked to be resident");
            self.root = Root::Held(node);
        }
        match &mut self.root {
            Root::Held(node) => node,
            Root::Clean(_) => unreachable!("the root is held by now"),
        }
    }
}

/// Sets the first of the items that lie before `end` and fit.
fn put_while_room<V: AsRef<[u8]>>(
    page: &mut Page,
    items: &[(Key, Option<V>)],
    end: Option<Key>,
    items_max: usize,
) -> usize {
    let mut entered = 0;
    for (key, value) in items {
        let Some(value) = value.as_ref().filter(|_| end.is_none_or(|end| *key < end)) else { break };
        if has_no_slot(page, *key, items_max) || page.put(*key, value.as_ref()).is_err() {
            break;
        }
        entered += 1;
    }
    entered
}

/// Whether the item would be one more than the node may have. One that has more has them from a session that allowed
/// it, and stays as it is.
fn has_no_slot(page: &Page, key: Key, items_max: usize) -> bool {
    page.count() == items_max && page.search(key).is_err()
}

impl Editor<'_> {
    /// Makes the node current and returns it for editing.
    fn edit<'n>(&mut self, node: &'n mut Arc<Node>) -> &'n mut Node {
        if node.freeze != self.freeze {
            let mut page = node.page.clone();
            if node.freeze == 0 {
                // Values of a node from the device may overlap; edited in place, one would change another.
                page.compact();
            }
            let copy = Node::made(page, self, node.children.clone());
            let old = std::mem::replace(node, Arc::new(copy));
            self.let_go(old);
            *self.current_nodes += 1;
        }
        let node = Arc::make_mut(node);
        // A snapshot of another tree may have ended the era in which it was made.
        node.birth = node.birth.max(self.birth);
        node
    }

    /// A node has left the tree.
    fn discard(&mut self, node: Arc<Node>) {
        if node.freeze == self.freeze {
            *self.current_nodes -= 1;
        } else {
            self.let_go(node);
        }
    }

    /// The tree does not hold an immutable node any more, which is freed if it was the tree's own (R25), or the tree
    /// was the last but one that had it and the last goes away.
    fn let_go(&mut self, node: Arc<Node>) {
        if self.low.is_none_or(|low| node.birth > low) {
            self.superseded.push(Superseded::new(node));
        } else if let Some((low, lost)) = &mut self.lost
            && low.is_none_or(|low| node.birth > low)
        {
            // Its parent is wholly on the device.
            lost.insert(node.block());
        }
    }

    fn put(&mut self, node: &mut Arc<Node>, key: Key, value: &[u8]) -> Option<Split> {
        let node = self.edit(node);
        if node.is_leaf() {
            if has_no_slot(&node.page, key, self.items_max) {
                return Some(self.split_leaf(node, key, value));
            }
            return match node.page.put(key, value) {
                Ok(()) => None,
                Err(Full) => Some(self.split_leaf(node, key, value)),
            };
        }
        let index = node.page.child_index(key);
        let split = self.put(self.held_child(node, index), key, value)?;
        self.enter(node, index + 1, split)
    }

    /// The child at `index`, held by its parent so that it can be edited.
    fn held_child<'n>(&self, node: &'n mut Node, index: usize) -> &'n mut Arc<Node> {
        if node.children.is_empty() {
            node.children = vec![None; node.page.count()];
        }
        if node.children[index].is_none() {
            let pointer = node.pointer(index);
            let child = self.resident.resident(&pointer).expect("the path was checked to be resident");
            node.children[index] = Some(child);
        }
        node.children[index].as_mut().expect("just filled")
    }

    fn split_leaf(&mut self, node: &mut Node, key: Key, value: &[u8]) -> Split {
        let index = match node.page.search(key) {
            Ok(index) => {
                node.page.remove(index);
                index
            }
            Err(index) => index,
        };
        let at = node.page.split_point(index, SLOT_BYTES + value.len());
        let mut right = node.page.split_off(at);
        let fits_left = index < at || (index == at && right.count() > 0);
        let placed_left = fits_left && node.page.insert(index, key, value).is_ok();
        if !placed_left {
            let at_right = index.saturating_sub(at);
            right.insert(at_right, key, value).expect("half a page has room for the largest item");
        }
        let split_key = right.key(0);
        Split { key: split_key, node: self.new_node(right, Vec::new()) }
    }

    fn new_node(&mut self, page: Page, children: Vec<Option<Arc<Node>>>) -> Arc<Node> {
        *self.current_nodes += 1;
        Arc::new(Node::made(page, self, children))
    }

    /// Enters a new child at `index` of an interior node.
    fn enter(&mut self, node: &mut Node, index: usize, split: Split) -> Option<Split> {
        let dummy = [0; NODE_POINTER_BYTES];
        if index == 1 && node.page.key(0) >= split.key {
            // The first child also holds keys below its slot's.
            node.page.set_key(0, Key::MIN);
        }
        if node.page.count() != self.items_max && node.page.insert(index, split.key, &dummy).is_ok() {
            node.children.insert(index, Some(split.node));
            return None;
        }
        let at =
            node.page.split_point(index, SLOT_BYTES + NODE_POINTER_BYTES).min(node.page.count() - 1).max(1);
        let mut right = node.page.split_off(at);
        let mut right_children = node.children.split_off(at);
        if index <= at {
            node.page.insert(index, split.key, &dummy).expect("half a page has room for a pointer");
            node.children.insert(index, Some(split.node));
        } else {
            right.insert(index - at, split.key, &dummy).expect("half a page has room for a pointer");
            right_children.insert(index - at, Some(split.node));
        }
        let key = right.key(0);
        Some(Split { key, node: self.new_node(right, right_children) })
    }

    /// Removes an item that is there.
    fn delete(&mut self, node: &mut Arc<Node>, key: Key, place: Place) {
        if node.is_leaf() {
            if let Ok(index) = node.page.search(key) {
                self.edit(node).page.remove(index);
            }
            return;
        }
        let index = node.page.child_index(key);
        let node = self.edit(node);
        let below = place.child(node, index);
        let child = self.held_child(node, index);
        self.delete(child, key, below);
        if child.page.count() == 0 {
            node.page.remove(index);
            let child = node.children.remove(index).expect("the child is held");
            self.discard(child);
        } else if child.page.used_bytes() < UNDERFULL_BYTES {
            self.merge(node, index, place);
        }
    }

    /// Merges the child at `index` with a neighbour, if one is in memory and both together leave room. A neighbour that
    /// is not in its place stays as it is.
    fn merge(&mut self, node: &mut Node, index: usize, place: Place) {
        for left in [index, index.wrapping_sub(1)] {
            if left == usize::MAX || left + 1 >= node.page.count() {
                continue;
            }
            let (Ok(a), Ok(b)) = (node.child(left, self.resident), node.child(left + 1, self.resident))
            else {
                continue;
            };
            let in_place = place.child(node, left).holds(&a) && place.child(node, left + 1).holds(&b);
            let is_large = a.page.used_bytes() + b.page.used_bytes() > MERGED_BYTES_MAX;
            let is_long = a.page.count() + b.page.count() > self.items_max - self.items_max / 4;
            if !in_place || is_large || is_long {
                continue;
            }
            drop(a);
            let separator = node.page.key(left + 1);
            let target = self.held_child(node, left);
            let left_node = self.edit(target);
            if left_node.is_leaf() {
                left_node.page.append(&b.page).expect("merged pages fit");
            } else {
                append_interior(left_node, &b, separator);
            }
            let separator_slot = left + 1;
            node.page.remove(separator_slot);
            node.children.remove(separator_slot);
            self.discard(b);
            return;
        }
    }
}

/// Appends the children of `right`. Its first slot stands for everything from the parent's separator on, whatever its
/// own key says, so it takes the separator's place.
fn append_interior(left: &mut Node, right: &Node, separator: Key) {
    if left.children.is_empty() {
        left.children = vec![None; left.page.count()];
    }
    for index in 0..right.page.count() {
        let key = if index == 0 { separator } else { right.page.key(index) };
        let end = left.page.count();
        left.page.insert(end, key, right.page.value(index)).expect("merged pages fit");
        left.children.push(right.children.get(index).cloned().flatten());
    }
}

/// Bound on the nodes that a batch of `items` puts and deletes can make current, for a tree whose root is at `level`.
pub(crate) fn nodes_bound(level: u16, items: usize) -> u64 {
    // Each item copies its path below the root and may split every node of it; the root is copied once, may split once
    // and may get a new root above it. A tree of one leaf grows by a level on the way.
    (items as u64) * (2 * u64::from(level)).max(u64::from(level) + 2) + 3
}
