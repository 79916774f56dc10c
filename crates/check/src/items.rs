//! Checks every item as a walk hands it out: decodable, in its place, in agreement with its inode.
//!
//! Items come in key order, so everything of one object is judged with a small state for the current object; what
//! concerns several objects goes into [`Facts`] and is judged by `names`.

use crate::analysis::Analysis;
use crate::block_map::BlockMap;
use crate::data::DataCheck;
use crate::facts::Facts;
use crate::lost::{Lost, LostLeaf};
use crate::report::{Findings, Totals};
use crate::walk::Visitor;
use crate::{Code, acl, object};
use std::collections::BTreeMap;
use syncline_format::item::{DirentItem, ExtentItem, InodeItem, OrphanReason, XattrItem, is_symlink_target};
use syncline_format::node::NodePointer;
pub(crate) use syncline_format::range::FILE_PAGES_MAX;
use syncline_format::superblock::Superblock;
use syncline_format::{BlockNo, FormatError, Key, Kind, NAME_PROBES, NODE_BLOCKS, ObjectNo, name_hash};

/// The checker of one walk.
pub(crate) struct ItemCheck<'a> {
    pub(crate) superblock: &'a Superblock,
    pub(crate) findings: &'a mut Findings,
    pub(crate) totals: &'a mut Totals,
    pub(crate) facts: Facts,
    /// Blocks of tree nodes.
    pub(crate) nodes: BlockMap,
    /// Blocks of extents.
    pub(crate) data: BlockMap,
    pub(crate) verify: DataCheck<'a>,
    lost: Lost,
    object: object::Current,
}

impl<'a> ItemCheck<'a> {
    pub(crate) fn new(
        superblock: &'a Superblock,
        findings: &'a mut Findings,
        totals: &'a mut Totals,
        verify: DataCheck<'a>,
    ) -> ItemCheck<'a> {
        ItemCheck {
            superblock,
            findings,
            totals,
            facts: Facts::default(),
            nodes: BlockMap::new(superblock.layout),
            data: BlockMap::new(superblock.layout),
            verify,
            lost: Lost::default(),
            object: object::Current::default(),
        }
    }

    /// Judges the last object and returns what was learned.
    pub(crate) fn finish(mut self, main: Option<NodePointer>) -> Analysis {
        self.close_object();
        self.totals.blocks_used = self.nodes.len() + self.data.len();
        let ItemCheck { facts, nodes, data, lost, .. } = self;
        Analysis { main, facts, nodes, data, lost, name_faults: BTreeMap::new() }
    }

    /// Accounts the four blocks of a node; `false` if it must not be entered.
    pub(crate) fn mark_node(&mut self, pointer: &NodePointer) -> bool {
        self.totals.nodes += 1;
        if let Some(block) = self.nodes.insert(pointer.block, NODE_BLOCKS) {
            self.findings.at(Code::NodeShared, block, "two pointers lead to one node");
            return false;
        }
        true
    }

    fn close_object(&mut self) {
        let current = std::mem::take(&mut self.object);
        current.close(self.findings, &mut self.facts);
    }

    fn undecodable(&mut self, key: Key, error: &FormatError) {
        self.findings.of(Code::ItemUndecodable, key.object, format!("{}: {error}", describe(&key)));
    }

    fn misplaced(&mut self, key: Key) {
        self.findings.of(
            Code::ItemMisplaced,
            key.object,
            format!("{} does not belong there", describe(&key)),
        );
    }

    /// Reports an item that the inode's type cannot have.
    fn expect_type(&mut self, key: Key, fits: bool) {
        if self.object.inode.is_some() && !fits {
            let message = format!("{} of an inode of another type", describe(&key));
            self.findings.of(Code::ItemOfOtherType, key.object, message);
        }
    }

    fn inode(&mut self, key: Key, value: &[u8]) {
        if key.offset != 0 {
            return self.misplaced(key);
        }
        match InodeItem::decode(value) {
            Ok(inode) => {
                let facts = self.facts.of(key.object);
                facts.mode = inode.mode;
                facts.nlink = inode.nlink;
                facts.parent = inode.parent.0;
                facts.blocks = inode.blocks;
                facts.entries = inode.entries;
                self.totals.inodes += 1;
                self.totals.directories += u64::from(inode.is_directory());
                self.object.inode = Some(inode);
            }
            Err(error) => self.undecodable(key, &error),
        }
    }

    fn symlink(&mut self, key: Key, value: &[u8]) {
        if key.offset != 0 {
            return self.misplaced(key);
        }
        self.expect_type(key, self.object.inode.as_ref().is_some_and(InodeItem::is_symlink));
        if !is_symlink_target(value, value.len() as u64) {
            let message = format!("a target of {} bytes is none", value.len());
            self.findings.of(Code::SymlinkTarget, key.object, message);
        }
        self.object.symlink_bytes = Some(value.len() as u64);
    }

    fn dirent(&mut self, key: Key, value: &[u8]) {
        self.expect_type(key, self.object.inode.as_ref().is_some_and(InodeItem::is_directory));
        let dirent = match DirentItem::decode(value) {
            Ok(dirent) => dirent,
            Err(error) => return self.undecodable(key, &error),
        };
        if !is_hash_of(self.superblock.hash_seed, &dirent.name, key.offset) {
            let message = format!("the name {:?} is at {:#x}", lossy(&dirent.name), key.offset);
            self.findings.of(Code::DirentHash, key.object, message);
        }
        if self.object.names.repeats(key.offset, &dirent.name) {
            let message = format!("the name {:?} occurs twice", lossy(&dirent.name));
            self.findings.of(Code::DirentDuplicate, key.object, message);
        }
        self.facts.of(key.object).entries_found += 1;
        let target = self.facts.of(dirent.inode);
        target.names = target.names.saturating_add(1);
        target.named_in = key.object.0;
        target.told_types |= 1 << dirent.file_type;
    }

    fn xattr(&mut self, key: Key, value: &[u8]) {
        let xattr = match XattrItem::decode(value) {
            Ok(xattr) => xattr,
            Err(error) => return self.undecodable(key, &error),
        };
        if !is_hash_of(self.superblock.hash_seed, &xattr.name, key.offset) {
            let message = format!("the attribute {:?} is at {:#x}", lossy(&xattr.name), key.offset);
            self.findings.of(Code::XattrHash, key.object, message);
        }
        if self.object.xattr_names.repeats(key.offset, &xattr.name) {
            let message = format!("the attribute {:?} occurs twice", lossy(&xattr.name));
            self.findings.of(Code::XattrDuplicate, key.object, message);
        }
        if acl::is_acl(&xattr.name) && !acl::is_valid(&xattr.value) {
            let message = format!("{:?} holds none", lossy(&xattr.name));
            self.findings.of(Code::AclInvalid, key.object, message);
        }
        self.object.expect_pieces(&xattr, key.object, self.findings);
    }

    fn xattr_piece(&mut self, key: Key, value: &[u8]) {
        if !self.object.take_piece(key, value.len(), self.findings) {
            self.facts.unused_pieces.push(key);
            let message = format!("{} belongs to no attribute", describe(&key));
            self.findings.of(Code::XattrPieceUnused, key.object, message);
        }
    }

    fn extent(&mut self, key: Key, value: &[u8]) {
        self.expect_type(key, self.object.inode.as_ref().is_some_and(InodeItem::is_regular));
        let extent = match ExtentItem::decode(value) {
            Ok(extent) => extent,
            Err(error) => return self.undecodable(key, &error),
        };
        let pages = u64::from(extent.pages());
        if key.offset > FILE_PAGES_MAX - pages {
            return self.misplaced(key);
        }
        self.object.add_extent(key.object, key.offset, &extent, &self.facts, self.findings);
        self.facts.of(key.object).pages_found += pages;
        if !self.superblock.layout.holds_run(extent.start, extent.pages()) {
            let message = format!("page {}: {pages} blocks from {}", key.offset, extent.start);
            self.findings.both(Code::BlockRange, extent.start, key.object, message);
            return;
        }
        let of_node = self.nodes.first_of(extent.start, extent.pages());
        let twice = self.data.insert(extent.start, extent.pages());
        if let Some(block) = twice.or(of_node) {
            let message = format!("page {} lies in a block that something else uses", key.offset);
            self.findings.both(Code::BlockShared, block, key.object, message);
        }
        self.verify.extent(key, &extent, self.findings, self.totals);
    }

    fn orphan(&mut self, key: Key, value: &[u8]) {
        match OrphanReason::decode(value) {
            Ok(_) if key.check().is_err() => self.misplaced(key),
            Ok(reason) => {
                self.facts.orphans.insert(ObjectNo(key.offset), reason);
            }
            Err(error) => self.undecodable(key, &error),
        }
    }
}

impl Visitor for ItemCheck<'_> {
    fn node(&mut self, pointer: &NodePointer) -> bool {
        if let Some(block) = self.data.first_of(pointer.block, NODE_BLOCKS) {
            let message = "a tree node lies in a block of file data";
            self.findings.at(Code::BlockShared, block, message);
        }
        self.mark_node(pointer)
    }

    fn damaged(&mut self, code: Code, block: BlockNo, message: String) {
        self.findings.at(code, block, message);
    }

    fn lost(&mut self, leaf: LostLeaf, message: String) {
        self.findings.at(Code::LeafUnreadable, leaf.block, message.clone());
        self.lost.push(leaf, message);
    }

    fn stored_key(&mut self, key: Key) {
        self.facts.stored_object_max = self.facts.stored_object_max.max(key.object.0);
    }

    fn item(&mut self, key: Key, value: &[u8]) {
        self.totals.items += 1;
        self.verify.progress.item();
        if (key.object == ObjectNo::VOLUME) != (key.kind == Kind::Orphan) {
            return self.misplaced(key);
        }
        if key.kind == Kind::Orphan {
            return self.orphan(key, value);
        }
        if self.object.object != key.object {
            self.close_object();
            self.object.object = key.object;
            self.facts.object_max = self.facts.object_max.max(key.object.0);
            self.facts.of(key.object).has_items = true;
        }
        match key.kind {
            Kind::Inode => self.inode(key, value),
            Kind::Symlink => self.symlink(key, value),
            Kind::Dirent => self.dirent(key, value),
            Kind::Xattr => self.xattr(key, value),
            Kind::XattrPiece => self.xattr_piece(key, value),
            Kind::Extent => self.extent(key, value),
            Kind::Orphan | Kind::Tree | Kind::TreeInfo | Kind::Shared | Kind::Overlay => self.misplaced(key),
        }
    }
}

/// Whether a name may be stored at `offset`: its hash or one of the following probes.
fn is_hash_of(seed: u64, name: &[u8], offset: u64) -> bool {
    offset.checked_sub(name_hash(seed, name)).is_some_and(|probe| probe < NAME_PROBES)
}

/// A name for a message.
pub(crate) fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// A key for a message.
pub(crate) fn describe(key: &Key) -> String {
    format!("item {:?} at {} of object {}", key.kind, key.offset, key.object)
}
