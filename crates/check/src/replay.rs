//! What the log adds to the checkpoint, kept in memory: an overlay over the main tree, space operations, page images.

use crate::Code;
use crate::block_map::BlockMap;
use crate::report::Findings;
use crate::walk::GivenUp;
use std::collections::BTreeMap;
use syncline_format::batch::Op;
use syncline_format::item::ExtentItem;
use syncline_format::layout::Layout;
use syncline_format::range::COUNTER_MAX;
use syncline_format::{BlockNo, Key, Lsn, ObjectNo, Sequence, TreeId};

/// Changes over the main tree: a value, or `None` for a deleted item.
pub(crate) type Overlay = BTreeMap<Key, Option<Vec<u8>>>;

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
    pub(crate) overlay: Overlay,
    /// By group.
    pub(crate) space: BTreeMap<u32, Vec<SpaceOp>>,
    /// By inode and page.
    pub(crate) images: BTreeMap<(ObjectNo, u64), ImageAt>,
    /// Blocks that any chained record names, cut-off ones included: never to be written to (R12).
    pub(crate) named: BlockMap,
    /// Leaves that walks leave out: what is lost with them was made whole in `overlay`.
    pub(crate) given_up: GivenUp,
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
    pub(crate) fn new(layout: Layout, checkpoint: Lsn) -> Replay {
        Replay {
            overlay: Overlay::new(),
            space: BTreeMap::new(),
            images: BTreeMap::new(),
            named: BlockMap::new(layout),
            given_up: GivenUp::new(),
            last_lsn: checkpoint,
            known_flushed: Sequence(0),
            cut: false,
            records: 0,
            batches: 0,
            object_max: ObjectNo(0),
        }
    }

    /// Remembers every block that the operation names as used, whether or not it counts.
    pub(crate) fn note_blocks(&mut self, op: &Op<'_>, layout: &Layout) {
        let run = match *op {
            Op::Allocate { start, len } => Some((start, len)),
            Op::Put { value, fresh: true, .. } => {
                ExtentItem::decode(value).ok().map(|extent| (extent.start, extent.pages()))
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
        let tree = match *op {
            Op::Put { tree, .. } | Op::Delete { tree, .. } => Some(tree),
            Op::Image { tree, .. } | Op::Drop { tree, .. } => Some(tree),
            _ => None,
        };
        if tree.is_some_and(|tree| tree != TreeId::MAIN) {
            findings.add(Code::JournalTree, "a batch changes a tree other than the main tree");
            return;
        }
        if op.needs_trees() {
            findings
                .add(Code::JournalTree, "a batch holds an operation of a later version than the volume's");
            return;
        }
        match *op {
            Op::Image { object, page, bytes, .. } => {
                let (payload, position) = source;
                let offset = bytes.as_ptr().addr() - payload.as_ptr().addr();
                self.images.insert((object, page), ImageAt { position, offset, len: bytes.len() });
            }
            Op::Drop { object, first, end, .. } => self.drop_images(object, first, end),
            _ if !newer => {}
            Op::Put { key, value, .. } => {
                if key.object.0 >= COUNTER_MAX {
                    // Also where the log deletes it again: no superblock could say what comes next.
                    let message = format!("a batch holds object {}", key.object);
                    findings.add(Code::SuperblockExhausted, message);
                    return;
                }
                self.object_max = self.object_max.max(key.object);
                self.overlay.insert(key, Some(value.to_vec()));
            }
            Op::Delete { key, .. } => {
                self.overlay.insert(key, None);
            }
            Op::Allocate { start, len } => self.space_op(start, len, true, layout, findings),
            Op::Free { start, len } => self.space_op(start, len, false, layout, findings),
            Op::MakeTree { .. } | Op::Release { .. } | Op::TreeGone { .. } => {}
        }
    }

    pub(crate) fn drop_images(&mut self, object: ObjectNo, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let pages: Vec<_> = self.images.range((object, first)..(object, end)).map(|(key, _)| *key).collect();
        for page in pages {
            self.images.remove(&page);
        }
    }

    fn space_op(&mut self, start: BlockNo, len: u32, used: bool, layout: &Layout, findings: &mut Findings) {
        match layout.locate(start) {
            Some((group, index)) if layout.holds_run(start, len) => {
                self.space.entry(group.0).or_default().push(SpaceOp { index, len, used });
            }
            _ => findings.at(
                Code::JournalSpace,
                start,
                format!("a batch names {len} blocks from {start}, which are not one run inside a group"),
            ),
        }
    }
}
