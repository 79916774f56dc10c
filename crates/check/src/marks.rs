//! The blocks that trees use. Each belongs to one tree, whichever others share it.

use crate::Code;
use crate::block_map::BlockMap;
use crate::report::{Findings, Totals};
use syncline_format::item::ExtentItem;
use syncline_format::layout::Layout;
use syncline_format::node::NodePointer;
use syncline_format::{BlockNo, NODE_BLOCKS};

pub(crate) struct Marks {
    /// Blocks of tree nodes.
    pub(crate) nodes: BlockMap,
    /// Blocks of extents.
    pub(crate) data: BlockMap,
    /// Those whose data was read and found damaged.
    pub(crate) damaged: BlockMap,
}

impl Marks {
    pub(crate) fn new(layout: Layout) -> Marks {
        Marks { nodes: BlockMap::new(layout), data: BlockMap::new(layout), damaged: BlockMap::new(layout) }
    }

    /// Accounts the four blocks of a node; `false` if it must not be entered.
    pub(crate) fn node(
        &mut self,
        pointer: &NodePointer,
        findings: &mut Findings,
        totals: &mut Totals,
    ) -> bool {
        if let Some(block) = self.data.first_of(pointer.block, NODE_BLOCKS) {
            let message = "a tree node lies in a block of file data";
            findings.at(Code::BlockShared, block, message);
        }
        totals.nodes += 1;
        if let Some(block) = self.nodes.insert(pointer.block, NODE_BLOCKS) {
            findings.at(Code::NodeShared, block, "two pointers lead to one node");
            return false;
        }
        true
    }

    /// Accounts the blocks of an extent that lies in a group; returns one that something else uses.
    pub(crate) fn extent(&mut self, extent: &ExtentItem) -> Option<BlockNo> {
        let of_node = self.nodes.first_of(extent.start, extent.pages());
        self.data.insert(extent.start, extent.pages()).or(of_node)
    }
}
