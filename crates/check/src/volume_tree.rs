//! Checks the items of the volume tree: what trees are, and the pages that snapshots inherited as images.

use crate::Code;
use crate::data::DataCheck;
use crate::forest::{Forest, fault_of_birth};
use crate::items::describe;
use crate::marks::Marks;
use crate::report::{Findings, Totals};
use crate::walk::{Place, Source, Visitor};
use syncline_format::node::NodePointer;
use syncline_format::schedule::Schedule;
use syncline_format::superblock::Superblock;
use syncline_format::tree_item::{OverlayItem, Role, TreeItem, TreeState};
use syncline_format::{BlockNo, Key, Kind, ObjectNo, TreeId};

/// The checker of one walk over the volume tree.
pub(crate) struct VolumeCheck<'a> {
    pub(crate) superblock: &'a Superblock,
    pub(crate) forest: &'a Forest,
    pub(crate) findings: &'a mut Findings,
    pub(crate) totals: &'a mut Totals,
    pub(crate) marks: &'a mut Marks,
    pub(crate) verify: DataCheck<'a>,
    /// The snapshot whose overlay passes by, and the pages of it so far: object, first, end.
    pub(crate) overlay: (TreeId, Vec<(ObjectNo, u64, u64)>),
}

impl VolumeCheck<'_> {
    fn overlay(&mut self, key: Key, value: &[u8], source: Source) {
        let item = match OverlayItem::decode(value) {
            Ok(item) => item,
            Err(error) => return self.unreadable(key, &error.to_string()),
        };
        let tree = TreeId(key.object.0 as u32);
        if self.forest.is_whole && !self.may_have_overlay(tree) {
            let message =
                format!("{}: there is no such snapshot, or none that has pages left", describe(&key));
            self.findings.add(Code::OverlayItem, message);
        }
        let extent = &item.extent;
        let (first, end) = (item.page, item.page + u64::from(extent.pages()));
        if self.overlay.0 != tree {
            self.overlay = (tree, Vec::new());
        }
        let overlaps =
            |(of, from, to): &(ObjectNo, u64, u64)| *of == item.object && first < *to && *from < end;
        if self.overlay.1.iter().any(overlaps) {
            let message = format!("{}: page {first} of object {} again", describe(&key), item.object);
            self.findings.add(Code::OverlayItem, message);
        }
        self.overlay.1.push((item.object, first, end));
        let (above, most) = match source {
            Source::Leaf(birth) => (Some(birth), self.forest.era()),
            Source::Log => (None, self.forest.era()),
        };
        if let Some(message) = fault_of_birth(extent.birth, above, most) {
            self.findings.both(Code::BirthBeyond, extent.start, item.object, message);
        }
        if !self.superblock.layout.holds_run(extent.start, extent.pages()) {
            let message = format!("page {first}: {} blocks from {}", extent.pages(), extent.start);
            return self.findings.both(Code::BlockRange, extent.start, item.object, message);
        }
        if let Some(block) = self.marks.extent(extent) {
            let message = format!("page {first} of a snapshot lies in a block that something else uses");
            self.findings.both(Code::BlockShared, block, item.object, message);
        }
        let at = Key::extent(item.object, item.page);
        self.verify.extent(at, extent, self.marks, self.findings, self.totals);
    }

    /// A deletion takes the overlay first.
    fn may_have_overlay(&self, tree: TreeId) -> bool {
        self.forest.items.get(&tree).is_some_and(|item| {
            let has_begun = !matches!(item.state, TreeState::Live | TreeState::Deleting { cursor: Key::MIN });
            item.role == Role::Snapshot && !has_begun
        })
    }

    pub(crate) fn unreadable(&mut self, key: Key, why: &str) {
        self.findings.add(Code::TreeItem, format!("{}: {why}", describe(&key)));
    }
}

impl Visitor for VolumeCheck<'_> {
    fn node(&mut self, pointer: &NodePointer, place: &Place) -> bool {
        if let Some(message) = fault_of_birth(pointer.birth, place.above, self.forest.era()) {
            self.findings.at(Code::BirthBeyond, pointer.block, message);
        }
        self.marks.node(pointer, self.findings, self.totals)
    }

    fn damaged(&mut self, code: Code, block: BlockNo, message: String) {
        self.findings.at(code, block, message);
    }

    fn item(&mut self, key: Key, value: &[u8], source: Source) {
        self.totals.items += 1;
        self.verify.progress.item();
        if let Err(error) = key.check_volume() {
            return self.unreadable(key, &error.to_string());
        }
        match key.kind {
            Kind::TreeInfo => {
                if let Err(error) = TreeItem::decode(value) {
                    self.unreadable(key, &error.to_string());
                }
            }
            Kind::Policy => {
                if let Err(error) = Schedule::decode(value) {
                    self.unreadable(key, &error.to_string());
                }
            }
            _ => self.overlay(key, value, source),
        }
    }
}
