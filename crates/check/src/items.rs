//! Checks every item as a walk hands it out: decodable, in its place, in agreement with its inode.
//!
//! Items come in key order, so everything of one object is judged with a small state for the current object; what
//! concerns several objects goes into [`Facts`] and is judged by `names`.
//!
//! Of a tree that shares nodes with its parent, only what is its own is accounted, and what is not has to be the
//! parent's. Unless the tree is judged in full, what it shares is not even read.

use crate::block_map::BlockMap;
use crate::data::DataCheck;
use crate::facts::Facts;
use crate::forest::fault_of_birth;
use crate::lost::{Lost, LostNode};
use crate::marks::Marks;
use crate::owner::Owner;
use crate::report::{Findings, Totals};
use crate::walk::{Place, Source, Visitor};
use crate::{Code, acl, object};
use syncline_format::item::{DirentItem, ExtentItem, InodeItem, OrphanReason, XattrItem, is_symlink_target};
use syncline_format::node::NodePointer;
pub(crate) use syncline_format::range::FILE_PAGES_MAX;
use syncline_format::superblock::Superblock;
use syncline_format::{BlockNo, FormatError, Key, Kind, NODE_BLOCKS, ObjectNo};

/// The checker of one walk.
pub(crate) struct ItemCheck<'a> {
    pub(crate) superblock: &'a Superblock,
    pub(crate) findings: &'a mut Findings,
    pub(crate) totals: &'a mut Totals,
    pub(crate) facts: Facts,
    pub(crate) marks: &'a mut Marks,
    pub(crate) verify: DataCheck<'a>,
    owner: Owner<'a>,
    /// Names, links and sizes are judged too.
    in_full: bool,
    /// The nodes met so far, whosever they are; of a tree that shares any.
    met: BlockMap,
    lost: Lost,
    object: object::Current,
}

impl<'a> ItemCheck<'a> {
    pub(crate) fn new(
        superblock: &'a Superblock,
        (owner, in_full): (Owner<'a>, bool),
        (findings, totals): (&'a mut Findings, &'a mut Totals),
        marks: &'a mut Marks,
        verify: DataCheck<'a>,
    ) -> ItemCheck<'a> {
        ItemCheck {
            superblock,
            findings,
            totals,
            facts: Facts::default(),
            marks,
            verify,
            owner,
            in_full,
            met: BlockMap::new(superblock.layout),
            lost: Lost::default(),
            object: object::Current::default(),
        }
    }

    /// Judges the last object and returns what was learned.
    pub(crate) fn finish(mut self) -> (Facts, Lost) {
        if self.in_full {
            self.close_object();
        }
        (self.facts, self.lost)
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
        if !self.superblock.name_hash().slots(&dirent.name).contains(&key.offset) {
            let message = format!("the name {:?} is at {:#x}", lossy(&dirent.name), key.offset);
            self.findings.of(Code::DirentHash, key.object, message);
        }
        if self.object.names.repeats(&self.superblock.name_hash(), key.offset, &dirent.name) {
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
        if !self.superblock.name_hash().slots(&xattr.name).contains(&key.offset) {
            let message = format!("the attribute {:?} is at {:#x}", lossy(&xattr.name), key.offset);
            self.findings.of(Code::XattrHash, key.object, message);
        }
        if self.object.xattr_names.repeats(&self.superblock.name_hash(), key.offset, &xattr.name) {
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

    fn extent(&mut self, key: Key, value: &[u8], source: Source) {
        if self.in_full {
            self.expect_type(key, self.object.inode.as_ref().is_some_and(InodeItem::is_regular));
        }
        let extent = match ExtentItem::decode(value) {
            Ok(extent) => extent,
            Err(error) => return self.undecodable(key, &error),
        };
        let pages = u64::from(extent.pages());
        if key.offset > FILE_PAGES_MAX - pages {
            return self.misplaced(key);
        }
        if self.in_full {
            self.object.add_extent(key.object, key.offset, &extent, &self.facts, self.findings);
            self.facts.of(key.object).pages_found += pages;
        }
        if !self.superblock.layout.holds_run(extent.start, extent.pages()) {
            let message = format!("page {}: {pages} blocks from {}", key.offset, extent.start);
            self.findings.both(Code::BlockRange, extent.start, key.object, message);
            return;
        }
        self.birth(key, &extent, source);
        if let Some(cursor) = self.owner.cursor_behind(key, extent.birth) {
            // It was given back, or is the child's.
            if Key::extent(key.object, key.offset + pages) > cursor {
                let message = format!("page {}: it is {pages} pages long", key.offset);
                self.findings.both(Code::TreeCursor, extent.start, key.object, message);
            }
            return;
        }
        if !self.owner.owns_extent(key, extent.birth) {
            if self.in_full && self.verify.wanted {
                DataCheck::tell_shared(key, &extent, self.marks, self.findings);
            }
            return;
        }
        if let Some(block) = self.marks.extent(&extent) {
            let message = format!("page {} lies in a block that something else uses", key.offset);
            self.findings.both(Code::BlockShared, block, key.object, message);
        }
        self.verify.extent(key, &extent, self.marks, self.findings, self.totals);
    }

    /// Judges the birth of an extent, and whether the parent has what was born in its time.
    fn birth(&mut self, key: Key, extent: &ExtentItem, source: Source) {
        let Some(most) = self.owner.most() else { return };
        let (above, is_own) = match source {
            Source::Leaf(birth) => (Some(birth), self.owner.owns_node(birth)),
            Source::Log => (None, true),
        };
        if let Some(message) = fault_of_birth(extent.birth, above, most) {
            let message = format!("page {}: {message}", key.offset);
            self.findings.both(Code::BirthBeyond, extent.start, key.object, message);
        }
        // A leaf of the parent has been held against the parent as a whole.
        if let Some(parent) = self.owner.parent_with_extent(key, extent.birth).filter(|_| is_own)
            && !parent.has_extent(key, extent)
        {
            let message = format!("page {} has blocks since era {}", key.offset, extent.birth);
            self.findings.both(Code::ExtentNotInParent, extent.start, key.object, message);
        }
    }

    /// An item of a tree that is not judged in full.
    fn alone(&mut self, key: Key, value: &[u8], source: Source) {
        if key.check().is_err() {
            return self.misplaced(key);
        }
        let error = match key.kind {
            Kind::Extent => return self.extent(key, value, source),
            Kind::Inode => InodeItem::decode(value).err(),
            Kind::Dirent => DirentItem::decode(value).err(),
            Kind::Xattr => XattrItem::decode(value).err(),
            Kind::Orphan => OrphanReason::decode(value).err(),
            _ => None,
        };
        if let Some(error) = error {
            self.undecodable(key, &error);
        }
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
    fn node(&mut self, pointer: &NodePointer, place: &Place) -> bool {
        let birth = pointer.birth;
        let Some(most) = self.owner.most() else {
            return self.marks.node(pointer, self.findings, self.totals);
        };
        if let Some(message) = fault_of_birth(birth, place.above, most) {
            self.findings.at(Code::BirthBeyond, pointer.block, message);
        }
        if let Some(block) = self.met.insert(pointer.block, NODE_BLOCKS) {
            self.findings.at(Code::NodeShared, block, "two pointers of a tree lead to one node");
            return false;
        }
        if self.owner.owns_node(birth) {
            return self.marks.node(pointer, self.findings, self.totals);
        }
        // Below a node that is the parent's, all is.
        let is_first = place.above.is_none_or(|above| self.owner.owns_node(above));
        if is_first
            && let Some(parent) = self.owner.parent_with(birth)
            && !parent.has_node(pointer, place.slot)
        {
            let message = format!("a node of level {} has been here since era {birth}", pointer.level);
            self.findings.at(Code::NodeNotInParent, pointer.block, message);
        }
        let is_lost = self.owner.is_lost_in_parent(place.low, place.high);
        if is_lost {
            // No other walk may come by it: it is in use all the same.
            self.marks.nodes.insert(pointer.block, NODE_BLOCKS);
        }
        self.in_full || is_lost || self.owner.may_hold_passed(place.low, birth)
    }

    fn damaged(&mut self, code: Code, block: BlockNo, message: String) {
        self.findings.at(code, block, message);
    }

    fn lost(&mut self, node: LostNode, message: String) {
        let code = if node.is_all() { Code::NodeUnreadable } else { node.code() };
        self.findings.at(code, node.block, message.clone());
        self.lost.push(node, message);
    }

    fn stored_key(&mut self, key: Key) {
        self.facts.stored_object_max = self.facts.stored_object_max.max(key.object.0);
    }

    fn item(&mut self, key: Key, value: &[u8], source: Source) {
        self.totals.items += 1;
        self.verify.progress.item();
        if !self.in_full {
            return self.alone(key, value, source);
        }
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
            Kind::Extent => self.extent(key, value, source),
            Kind::Orphan | Kind::Tree | Kind::TreeInfo | Kind::Shared | Kind::Overlay | Kind::Policy => {
                self.misplaced(key)
            }
        }
    }
}

/// A name for a message.
pub(crate) fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// A key for a message.
pub(crate) fn describe(key: &Key) -> String {
    format!("item {:?} at {} of object {}", key.kind, key.offset, key.object)
}
