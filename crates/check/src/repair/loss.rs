//! Nodes of heads and snapshots that cannot be read: which trees lose what, and what becomes of each tree.
//!
//! Such a node is given up: walks leave it out, with all below it. Several trees may share it, and each loses what its
//! own keys say. A tree that keeps something is mended by itself (see [`super::salvage`]); no other tree changes.
//!
//! - A head of which nothing is left is made anew, empty, so that it can be rolled back.
//! - A snapshot that is mended keeps all blocks that trees have from it: nothing enters a tree with a birth at or
//!   before its parent's era, so whatever a descendant has of that age the snapshot had at the same place. It is put
//!   back.
//! - A snapshot of which nothing is left goes away, as a deletion would leave it: what descends from it descends from
//!   its parent. Where several trees do, it stays hidden, with what they share.
//! - So does a tree that goes away already and cannot be read to the end.
//!
//! Where nothing of any tree would be left, nothing is given up. Nothing is written here, so a look shows the same as
//! a repair.

use super::edits::Editor;
use super::salvage;
use crate::Code;
use crate::analysis::{Analysis, Subject};
use crate::lost::{Lost, LostNode};
use crate::overlay::Overlay;
use crate::progress::Reporter;
use crate::replay::Replay;
use crate::report::Findings;
use crate::walk::{GivenUp, Place, Source, Trees, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use syncline_device::Device;
use syncline_format::item::{EXTENT_PAGES_MAX, ExtentItem};
use syncline_format::node::NodePointer;
use syncline_format::superblock::Superblock;
use syncline_format::tree_item::{Role, Stay, TreeItem, TreeState};
use syncline_format::{BlockNo, Era, Key, Kind, TreeId};

/// What each tree loses.
pub(crate) type Losses = BTreeMap<TreeId, Lost>;

/// What each tree loses, after a look that came by all that is unreadable. `None`: nothing is lost, or it cannot be
/// given up, because something else is unreadable as well, or nothing would be left.
pub(crate) fn plan(
    (device, superblock): (&dyn Device, &Superblock),
    found: &Analysis,
    replay: &Replay,
    findings: &Findings,
) -> Option<Losses> {
    let met = || found.lost.values().flat_map(Lost::nodes);
    let whole = met().filter(|(node, _)| node.is_all()).count() as u64;
    let root_is_lost =
        found.lost.values().any(|lost| lost.may_hold(Key::inode(syncline_format::ObjectNo::ROOT_DIR)));
    let follows = |code| match code {
        Code::RootDirectory => root_is_lost,
        Code::NodeUnreadable => findings.count(code) == whole,
        _ => false,
    };
    if found.main.is_none() || met().next().is_none() || findings.fatal_but(follows).is_some() {
        return None;
    }
    let blocks: BTreeMap<BlockNo, &str> = met().map(|(node, why)| (node.block, why.as_str())).collect();
    let given_up = GivenUp::new();
    let trees = Trees::new(device, superblock, &given_up);
    let mut losses = Losses::new();
    let filesystems = || replay.forest.branches.iter().filter(|(tree, _)| tree.is_filesystem());
    for (tree, branch) in filesystems() {
        let mut holder = Holder { blocks: &blocks, seen: BTreeSet::new(), lost: Lost::default() };
        trees.walk(*tree, &branch.root, &Overlay::default(), &mut holder as &mut dyn Visitor);
        if !holder.lost.is_empty() {
            losses.insert(*tree, holder.lost);
        }
    }
    let is_left = |tree: &TreeId| {
        let is_shown = |item: &TreeItem| item.state == TreeState::Live && !item.is_hidden;
        replay.forest.items.get(tree).is_none_or(is_shown) && !losses.get(tree).is_some_and(Lost::is_all)
    };
    filesystems().any(|(tree, _)| is_left(tree)).then_some(losses)
}

/// Finds the unreadable nodes in one tree, whosever they are. Leaves are not read again.
struct Holder<'a> {
    blocks: &'a BTreeMap<BlockNo, &'a str>,
    /// Nodes above the leaves.
    seen: BTreeSet<BlockNo>,
    lost: Lost,
}

impl Visitor for Holder<'_> {
    fn node(&mut self, pointer: &NodePointer, place: &Place) -> bool {
        let (block, level) = (pointer.block, pointer.level);
        if let Some(why) = self.blocks.get(&block) {
            let node = LostNode { block, level, low: place.low, high: place.high };
            self.lost.push(node, (*why).to_owned());
            return false;
        }
        level > 0 && self.seen.insert(block)
    }

    fn item(&mut self, _key: Key, _value: &[u8], _source: Source) {}
}

/// Gives up what the plan says, and makes whole what that leaves of each tree.
pub(crate) fn run(
    (device, superblock): (&dyn Device, &Superblock),
    losses: Losses,
    replay: &mut Replay,
    findings: &mut Findings,
    progress: &mut Reporter,
) {
    let nodes = losses.values().flat_map(Lost::nodes);
    replay.given_up.extend(nodes.map(|(node, _)| node.block));
    replay.lost = losses;
    // Each tree behind those that descend from it.
    let mut order: Vec<TreeId> = replay.forest.order();
    order.retain(|tree| replay.lost.contains_key(tree));
    let has_trees = superblock.trees.is_some();
    for tree in order.into_iter().rev() {
        findings.within(has_trees.then_some(tree));
        let mut loss = Loss { device, superblock, tree, replay, findings };
        loss.run(progress);
    }
    findings.within(None);
}

/// What becomes of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Mended,
    /// Nobody can see it, but trees descend from it.
    Hidden,
    Gone,
}

struct Loss<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    tree: TreeId,
    replay: &'a mut Replay,
    findings: &'a mut Findings,
}

impl Loss<'_> {
    fn run(&mut self, progress: &mut Reporter) {
        let Some(lost) = self.replay.lost.get(&self.tree).cloned() else { return };
        let item = self.replay.forest.items.get(&self.tree).cloned();
        let fate = item.as_ref().map_or(Fate::Mended, |item| self.fate(item, &lost));
        self.tell(&lost, fate, item.as_ref());
        if fate == Fate::Gone {
            return self.remove();
        }
        if let Some(item) = item.as_ref().filter(|item| item.role == Role::Snapshot) {
            self.put_back(item.era, &lost);
        }
        match (fate, item) {
            (Fate::Hidden, Some(item)) if !item.is_hidden => {
                let hidden = TreeItem { is_hidden: true, name: String::new(), stay: Stay::default(), ..item };
                self.put_item(self.tree, hidden);
            }
            (Fate::Hidden, _) => {}
            _ => {
                let (device, superblock, replay) = (self.device, self.superblock, &*self.replay);
                let subject = Subject { device, superblock, replay, data: false, only: None, all: false };
                let (facts, beyond) = subject.facts_of(self.tree, progress);
                let root = self.replay.forest.branches[&self.tree].root;
                let editor = Editor { device, superblock, tree: self.tree, root, replay: self.replay };
                salvage::run(editor, (&lost, &facts, &beyond), self.findings);
            }
        }
    }

    fn fate(&self, item: &TreeItem, lost: &Lost) -> Fate {
        let children =
            self.replay.forest.items.values().filter(|item| item.parent == Some(self.tree)).count();
        let is_snapshot = item.role == Role::Snapshot;
        match item.state {
            TreeState::Deleting { .. } => Fate::Gone,
            TreeState::Live if children <= 1 && is_snapshot && lost.is_all() => Fate::Gone,
            TreeState::Live if item.is_hidden || is_snapshot && lost.is_all() => Fate::Hidden,
            TreeState::Live => Fate::Mended,
        }
    }

    fn tell(&mut self, lost: &Lost, fate: Fate, item: Option<&TreeItem>) {
        for (node, why) in lost.nodes() {
            let what = if node.level == 0 { "in it" } else { "in it and below it" };
            let message = match fate {
                Fate::Mended => format!("{why}; a repair gives up what was {what}"),
                Fate::Hidden | Fate::Gone => why.clone(),
            };
            self.findings.at(node.code(), node.block, message);
        }
        let Some(item) = item else { return };
        let name = &item.name;
        let message = match (fate, item.state, item.role) {
            (Fate::Gone | Fate::Hidden, TreeState::Live, _) if name.is_empty() => return,
            (Fate::Gone | Fate::Hidden, TreeState::Live, _) => {
                format!("nothing of snapshot {name:?} can be read; a repair deletes it")
            }
            (Fate::Gone, TreeState::Deleting { .. }, _) => {
                "its deletion cannot go on; a repair ends it".into()
            }
            (Fate::Mended, _, Role::Head) if lost.is_all() && item.parent.is_some() => format!(
                "nothing of head {name:?} can be read; a repair makes it anew, empty, so that it can be rolled back"
            ),
            (Fate::Mended, _, Role::Head) if lost.is_all() => {
                format!("nothing of head {name:?} can be read; a repair makes it anew, empty")
            }
            _ => return,
        };
        self.findings.add(Code::TreeLost, message);
    }

    fn editor(&mut self, tree: TreeId) -> Editor<'_> {
        let root = self.replay.forest.branches[&tree].root;
        Editor { device: self.device, superblock: self.superblock, tree, root, replay: self.replay }
    }

    fn put_item(&mut self, tree: TreeId, item: TreeItem) {
        self.editor(TreeId::VOLUME).put(Key::tree_info(tree), item.encode());
        self.replay.forest.items.insert(tree, item);
    }

    /// Ends the tree as the last step of a deletion does.
    fn remove(&mut self) {
        let tree = self.tree;
        let gone = self.replay.forest.items.remove(&tree).expect("its fate was told by its item");
        let items = self.replay.forest.items.iter();
        let children: Vec<_> = items.filter(|(_, item)| item.parent == Some(tree)).collect();
        let children: Vec<_> = children.into_iter().map(|(child, item)| (*child, item.clone())).collect();
        for (child, item) in children {
            self.put_item(child, TreeItem { parent: gone.parent, ..item });
        }
        self.replay.take_images(tree);
        let mut editor = self.editor(TreeId::VOLUME);
        let overlay = editor.items((Key::overlay(tree, 0), Key::overlay(tree, u64::MAX)));
        overlay.into_iter().for_each(|(key, _)| editor.delete(key));
        editor.delete(Key::tree_info(tree));
        self.replay.forest.branches.remove(&tree);
        self.replay.lost.remove(&tree);
    }

    /// Puts back into a snapshot what trees that descend from it have since its era.
    fn put_back(&mut self, era: Era, lost: &Lost) {
        let forest = &self.replay.forest;
        let is_of_it = |tree: &TreeId| forest.parent(*tree).is_some_and(|(parent, _)| parent == self.tree);
        let children: Vec<TreeId> = forest.branches.keys().copied().filter(is_of_it).collect();
        for child in children {
            for (node, _) in lost.nodes() {
                for (key, extent) in self.extents(child, era, reach(node)) {
                    self.put_missing(key, &extent);
                }
            }
        }
    }

    /// The extents of a range that the tree has since the era, or before.
    fn extents(&self, tree: TreeId, era: Era, range: (Key, Key)) -> Vec<(Key, ExtentItem)> {
        struct Collect {
            era: Era,
            extents: Vec<(Key, ExtentItem)>,
        }
        impl Visitor for Collect {
            fn item(&mut self, key: Key, value: &[u8], _source: Source) {
                let extent = ExtentItem::decode(value).ok().filter(|_| key.kind == Kind::Extent);
                let old = extent.filter(|extent| extent.birth <= self.era);
                self.extents.extend(old.map(|extent| (key, extent)));
            }
        }
        let mut collect = Collect { era, extents: Vec::new() };
        let branch = &self.replay.forest.branches[&tree];
        let trees = Trees::new(self.device, self.superblock, &self.replay.given_up);
        trees.walk_range(tree, &branch.root, &branch.overlay, range, &mut collect as &mut dyn Visitor);
        collect.extents
    }

    /// Puts those pages of an extent into the tree for which it has nothing.
    fn put_missing(&mut self, key: Key, extent: &ExtentItem) {
        let end = key.offset.saturating_add(u64::from(extent.pages()));
        let from = Key::extent(key.object, key.offset.saturating_sub(u64::from(EXTENT_PAGES_MAX)));
        let mut editor = self.editor(self.tree);
        let mut at = key.offset;
        let there = editor.items((from, Key::extent(key.object, end.saturating_sub(1))));
        let there =
            there.iter().filter_map(|(key, value)| Some((key.offset, ExtentItem::decode(value).ok()?)));
        let there: Vec<_> = there.map(|(first, extent)| (first, first + u64::from(extent.pages()))).collect();
        for (first, behind) in there.into_iter().chain([(end, end)]) {
            if behind <= at && behind < end {
                continue;
            }
            if at < first.min(end) {
                let (skipped, len) = ((at - key.offset) as u32, (first.min(end) - at) as u32);
                editor.put(Key::extent(key.object, at), extent.slice(skipped, len).encode());
            }
            at = at.max(behind);
        }
    }
}

/// The keys at which other trees may have what began in the node: also behind it, where only the end is left of an
/// extent.
fn reach(node: &LostNode) -> (Key, Key) {
    let end = match node.high {
        Some(high) if high.kind == Kind::Extent => {
            Key::extent(high.object, high.offset.saturating_add(u64::from(EXTENT_PAGES_MAX)))
        }
        Some(high) => high,
        None => Key::MAX,
    };
    (node.low, end)
}
