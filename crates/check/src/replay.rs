//! What the log adds to the checkpoint, kept in memory: overlays over the trees, space operations, page images.

use crate::Code;
use crate::block_map::BlockMap;
use crate::forest::Forest;
use crate::lost::Lost;
use crate::overlay::Overlay;
use crate::report::Findings;
use crate::walk::GivenUp;
use std::collections::BTreeMap;
use syncline_format::batch::{Op, Outcome, fresh_extent};
use syncline_format::layout::Layout;
use syncline_format::range::COUNTER_MAX;
use syncline_format::tree_item::{Role, TreeItem, TreeState};
use syncline_format::{BlockNo, Key, Kind, Lsn, ObjectNo, Sequence, TreeId};

const NO_TREE: &str = "a tree that does not exist is not repaired";

/// One allocation or free of a batch, in the order of the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpaceOp {
    pub(crate) index: u32,
    pub(crate) len: u32,
    pub(crate) used: bool,
}

/// Where a page image's bytes are in the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageAt {
    /// Position of the record in the ring.
    pub(crate) position: u64,
    /// Offset of the bytes in the record's batches.
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// The log, applied.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The trees, with the changes of the log over them.
    pub(crate) forest: Forest,
    /// By group.
    pub(crate) space: BTreeMap<u32, Vec<SpaceOp>>,
    /// By tree, inode and page.
    pub(crate) images: BTreeMap<(TreeId, ObjectNo, u64), ImageAt>,
    /// Blocks that any chained record names, cut-off ones included: never to be written to (R12).
    pub(crate) named: BlockMap,
    /// Nodes that walks leave out: what is lost with them was made whole in the overlays.
    pub(crate) given_up: GivenUp,
    /// What each tree has lost with them.
    pub(crate) lost: BTreeMap<TreeId, Lost>,
    pub(crate) last_lsn: Lsn,
    /// All records up to this one were durable, and the data of their batches.
    pub(crate) known_flushed: Sequence,
    /// The log ended before the chain did; what follows only names blocks.
    pub(crate) cut: bool,
    pub(crate) records: u64,
    pub(crate) batches: u64,
    /// Highest object that the log put items for.
    pub(crate) object_max: ObjectNo,
}

impl Replay {
    pub(crate) fn new(layout: Layout, checkpoint: Lsn, forest: Forest) -> Replay {
        Replay {
            forest,
            space: BTreeMap::new(),
            images: BTreeMap::new(),
            named: BlockMap::new(layout),
            given_up: GivenUp::new(),
            lost: BTreeMap::new(),
            last_lsn: checkpoint,
            known_flushed: Sequence(0),
            cut: false,
            records: 0,
            batches: 0,
            object_max: ObjectNo(0),
        }
    }

    /// Whether the tree has lost nodes, and what is left of it is repaired, snapshot or not.
    pub(crate) fn is_mended(&self, tree: TreeId) -> bool {
        let is_shown = |item: &TreeItem| item.state == TreeState::Live && !item.is_hidden;
        self.lost.contains_key(&tree) && self.forest.items.get(&tree).is_some_and(is_shown)
    }

    /// The changes of a tree that there is.
    pub(crate) fn overlay(&self, tree: TreeId) -> &Overlay {
        &self.forest.branches.get(&tree).expect(NO_TREE).overlay
    }

    /// The same, to be edited.
    pub(crate) fn overlay_mut(&mut self, tree: TreeId) -> &mut Overlay {
        &mut self.forest.branches.get_mut(&tree).expect(NO_TREE).overlay
    }

    /// Remembers every block that the operation names as used, whether or not it counts.
    pub(crate) fn note_blocks(&mut self, op: &Op<'_>, layout: &Layout) {
        let run = match *op {
            Op::Allocate { start, len } => Some((start, len)),
            Op::Put { key, value, fresh: true, .. } => {
                fresh_extent(key, value).ok().map(|extent| (extent.start, extent.pages()))
            }
            _ => None,
        };
        if let Some((start, len)) = run.filter(|&(start, len)| layout.holds_run(start, len)) {
            self.named.insert(start, len);
        }
    }

    /// Applies one operation. `newer`: the checkpoint does not hold its batch yet. `source`: the record's batches and
    /// its position, to find images again.
    pub(crate) fn apply(
        &mut self,
        op: &Op<'_>,
        newer: bool,
        source: (&[u8], u64),
        layout: &Layout,
        findings: &mut Findings,
    ) {
        let has_trees = self.forest.state.is_some();
        if op.needs_trees() && !has_trees {
            let message = "a batch holds an operation of a later version than the volume's";
            return findings.add(Code::JournalTree, message);
        }
        // Trees that a batch before the checkpoint names may be gone.
        let judged = newer || !has_trees;
        if let Some(message) = self.forest.refuses(op).filter(|_| judged) {
            return findings.add(Code::JournalTree, message);
        }
        match *op {
            Op::Image { tree, object, page, bytes } => {
                let (payload, position) = source;
                let offset = bytes.as_ptr().addr() - payload.as_ptr().addr();
                self.images.insert((tree, object, page), ImageAt { position, offset, len: bytes.len() });
            }
            Op::Drop { tree, object, first, end } => self.drop_images(tree, object, first, end),
            Op::MakeTree { tree, source, role, era } => {
                self.make(tree, (source, role), era, newer, findings);
            }
            Op::TreeGone { tree } => self.images.retain(|(of, ..), _| *of != tree),
            _ if !newer => {}
            Op::Put { tree, key, value, .. } => self.change(tree, key, Some(value), findings),
            Op::Delete { tree, key } => self.change(tree, key, None, findings),
            Op::Allocate { start, len } => self.space_op(start, len, Some(true), layout, findings),
            Op::Free { start, len } => self.space_op(start, len, Some(false), layout, findings),
            Op::Release { outcome, start, len, .. } => {
                let frees = (outcome == Outcome::Free).then_some(false);
                self.space_op(start, len, frees, layout, findings);
            }
        }
    }

    /// A tree comes to be, with the images that its source has. The checkpoint may hold it already, but for these.
    fn make(
        &mut self,
        tree: TreeId,
        from: (Option<TreeId>, Role),
        era: syncline_format::Era,
        newer: bool,
        findings: &mut Findings,
    ) {
        if newer && let Err(message) = self.forest.make(tree, from, era) {
            return findings.add(Code::JournalTree, message);
        }
        let Some(source) = from.0 else { return };
        let all = (source, ObjectNo(0), 0)..=(source, ObjectNo(u64::MAX), u64::MAX);
        let inherited: Vec<_> =
            self.images.range(all).map(|((_, object, page), at)| ((tree, *object, *page), *at)).collect();
        self.images.extend(inherited);
    }

    /// Takes out the images of a tree.
    pub(crate) fn take_images(&mut self, tree: TreeId) -> BTreeMap<(TreeId, ObjectNo, u64), ImageAt> {
        let mut taken = self.images.split_off(&(tree, ObjectNo(0), 0));
        let mut others = taken.split_off(&(TreeId(tree.0 + 1), ObjectNo(0), 0));
        self.images.append(&mut others);
        taken
    }

    fn change(&mut self, tree: TreeId, key: Key, value: Option<&[u8]>, findings: &mut Findings) {
        if tree == TreeId::VOLUME {
            if let Err(error) = self.forest.note(key, value) {
                return findings.add(Code::JournalTree, format!("a batch changes the volume tree: {error}"));
            }
        } else if value.is_some() {
            if key.object.0 >= COUNTER_MAX {
                // Also where the log deletes it again: no superblock could say what comes next.
                let message = format!("a batch holds object {}", key.object);
                return findings.add(Code::SuperblockExhausted, message);
            }
            self.object_max = self.object_max.max(key.object);
        }
        self.judge_birth(key, value, findings);
        if let Some(branch) = self.forest.branches.get_mut(&tree) {
            branch.overlay.insert(key, value.map(<[u8]>::to_vec));
        }
    }

    /// What a batch puts was born in the era of that moment, or before.
    fn judge_birth(&self, key: Key, value: Option<&[u8]>, findings: &mut Findings) {
        let (Some(state), Some(value)) = (self.forest.state, value) else { return };
        let may_be_extent = matches!(key.kind, Kind::Extent | Kind::Overlay);
        let extent = fresh_extent(key, value).ok().filter(|_| may_be_extent);
        if let Some(extent) = extent.filter(|extent| extent.birth > state.era) {
            let message = format!("a batch of era {} puts an extent of era {}", state.era, extent.birth);
            findings.both(Code::BirthBeyond, extent.start, key.object, message);
        }
    }

    pub(crate) fn drop_images(&mut self, tree: TreeId, object: ObjectNo, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let pages = self.images.range((tree, object, first)..(tree, object, end));
        let pages: Vec<_> = pages.map(|(key, _)| *key).collect();
        for page in pages {
            self.images.remove(&page);
        }
    }

    /// `used`: what becomes of the blocks; `None`: they stay as they are.
    fn space_op(
        &mut self,
        start: BlockNo,
        len: u32,
        used: Option<bool>,
        layout: &Layout,
        findings: &mut Findings,
    ) {
        match layout.locate(start) {
            Some((group, index)) if layout.holds_run(start, len) => {
                let op = used.map(|used| SpaceOp { index, len, used });
                self.space.entry(group.0).or_default().extend(op);
            }
            _ => findings.at(
                Code::JournalSpace,
                start,
                format!("a batch names {len} blocks from {start}, which are not one run inside a group"),
            ),
        }
    }
}
