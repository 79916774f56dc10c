//! What is kept of one tree where nodes of it cannot be read.
//!
//! The keys of a node that is given up tell which items may have been in it. Inodes of which some items were elsewhere
//! are made whole in the overlay, so that what is left can be judged and repaired like any other tree. Everything that
//! this makes up, leaves out or removes is a finding of its inode. Nothing is made up that lets anybody in: an inode
//! made anew belongs to root alone.
//!
//! A snapshot keeps all its extents, because trees that descend from it may have them from there.

use super::edits::{Editor, now};
use crate::Code;
use crate::facts::{Facts, InodeFacts};
use crate::items::lossy;
use crate::lost::{Lost, keys_of};
use crate::report::Findings;
use std::collections::BTreeSet;
use syncline_format::item::{
    ExtentContent, ExtentItem, InodeItem, MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK, OrphanReason,
    XATTR_PIECE_BYTES, XATTR_PIECES_MAX, XattrItem, XattrValue,
};
use syncline_format::{BLOCK_BYTES, Key, Kind, ObjectNo};

const PAGE: u64 = BLOCK_BYTES as u64;
/// Ranges of pages that are told of one file.
const RANGES_TOLD_MAX: usize = 4;

/// Makes whole what the lost nodes leave of a tree. `facts` are what is left of it, `beyond` the files with content
/// beyond their sizes.
pub(crate) fn run(
    editor: Editor<'_>,
    (lost, facts, beyond): (&Lost, &Facts, &BTreeSet<ObjectNo>),
    findings: &mut Findings,
) {
    let mut salvage = Salvage { editor, lost, facts, findings };
    for object in salvage.touched() {
        salvage.object(object);
    }
    for &object in beyond {
        salvage.beyond(object);
    }
}

struct Salvage<'a> {
    editor: Editor<'a>,
    lost: &'a Lost,
    facts: &'a Facts,
    findings: &'a mut Findings,
}

impl Salvage<'_> {
    /// The inodes that may have had items in what is lost.
    fn touched(&self) -> BTreeSet<ObjectNo> {
        let mut touched = BTreeSet::from([ObjectNo::ROOT_DIR]);
        for (node, _) in self.lost.nodes() {
            touched.extend(self.facts.inodes.range(node.objects()).map(|(&object, _)| ObjectNo(object)));
        }
        let tree = self.editor.tree;
        let images = self.editor.replay.images.range((tree, ObjectNo(0), 0)..);
        let images = images.map(|((of, object, _), _)| (*of, *object));
        touched.extend(images.take_while(|(of, _)| *of == tree).map(|(_, object)| object));
        touched.remove(&ObjectNo::VOLUME);
        touched
    }

    fn object(&mut self, object: ObjectNo) {
        let found = self.facts.inodes.get(&object.0).copied().unwrap_or_default();
        if !found.exists() {
            if self.lost.may_hold(Key::inode(object)) {
                self.without_inode(object, &found);
            }
            return;
        }
        if self.facts.is_removed(object.0) || !self.lost.meets(keys_of(object)) {
            return;
        }
        let Some(inode) = self.editor.inode(object) else { return };
        if inode.is_symlink() {
            let key = Key::symlink(object);
            if self.lost.may_hold(key) && self.editor.get(key).is_none() {
                self.tell(object, "its target is lost; a repair removes it");
                return self.remove(object);
            }
        } else if inode.is_directory() {
            self.names(object, inode, &found);
        } else if inode.is_regular() {
            self.content(object, inode, &found);
        }
        self.xattrs(object);
    }

    fn tell(&mut self, object: ObjectNo, message: impl Into<String>) {
        self.findings.of(Code::ItemLost, object, message);
    }

    /// Removes what is left of an inode; names that lead to it dangle then, and are removed as such.
    fn remove(&mut self, object: ObjectNo) {
        let keeps_extents = self.editor.keeps_extents();
        for (key, _) in self.editor.items(keys_of(object)) {
            if key.kind != Kind::Extent || !keeps_extents {
                self.editor.delete(key);
            }
        }
        self.editor.replay.drop_images(self.editor.tree, object, 0, u64::MAX);
    }

    fn without_inode(&mut self, object: ObjectNo, found: &InodeFacts) {
        let items = self.editor.items(keys_of(object));
        let reason = self.facts.orphans.get(&object);
        let is_kept = self.editor.keeps_extents() && items.iter().any(|(key, _)| key.kind == Kind::Extent);
        let is_unlinked = reason == Some(&OrphanReason::Unlinked) && found.names == 0;
        if is_unlinked && object != ObjectNo::ROOT_DIR && !is_kept {
            return self.remove(object);
        }
        if matches!(reason, Some(OrphanReason::Shifting(_))) {
            // How far it has come means nothing without the size.
            self.editor.delete(Key::orphan(object));
        }
        let Some(mut inode) = self.made_anew(object, &items) else {
            if !items.is_empty() {
                self.tell(object, "its inode is lost, and its content with it; a repair removes the rest");
            }
            return self.remove(object);
        };
        inode.blocks = found.pages_found;
        inode.entries = found.entries_found;
        if inode.is_directory() {
            let inside = self.facts.subdirectories().get(&object.0).copied().unwrap_or(0);
            inode.nlink = inside.saturating_add(2);
            let is_named = found.names > 0 && object != ObjectNo::ROOT_DIR;
            inode.parent = if is_named { ObjectNo(found.named_in) } else { ObjectNo::ROOT_DIR };
            let message = format!(
                "its inode is lost; a repair makes one for root, mode 700, with the {} names that are left",
                inode.entries
            );
            self.tell(object, message);
        } else {
            inode.nlink = found.names.min(u32::MAX - 1);
            let message = format!(
                "its inode is lost; a repair makes one for root, mode 600, with the {} bytes that are left",
                inode.size
            );
            self.tell(object, message);
        }
        self.editor.put(Key::inode(object), inode.encode().to_vec());
        self.xattrs(object);
    }

    /// An inode for these items and the images; `None` if they make none.
    fn made_anew(&self, object: ObjectNo, items: &[(Key, Vec<u8>)]) -> Option<InodeItem> {
        let has = |kind| items.iter().any(|(key, _)| key.kind == kind);
        let tree = self.editor.tree;
        let images =
            self.editor.replay.images.range((tree, object, 0)..=(tree, object, u64::MAX)).next_back();
        let is_directory = has(Kind::Dirent) || object == ObjectNo::ROOT_DIR;
        let (mode, size) = match (has(Kind::Extent) || images.is_some(), is_directory, has(Kind::Symlink)) {
            (true, false, false) => {
                let of_image = images.map_or(0, |(&(.., page), image)| page * PAGE + image.len as u64);
                (MODE_REGULAR | 0o600, content_end(items).max(of_image).min(i64::MAX as u64))
            }
            (false, true, false) => (MODE_DIRECTORY | 0o700, 0),
            (false, false, true) => {
                let target = items.iter().find(|(key, _)| key.kind == Kind::Symlink);
                (MODE_SYMLINK | 0o777, target.map_or(0, |(_, target)| target.len() as u64))
            }
            _ => return None,
        };
        let now = now();
        Some(InodeItem {
            mode,
            nlink: 0,
            uid: 0,
            gid: 0,
            size,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            rdev: 0,
            parent: ObjectNo(0),
            entries: 0,
            flags: 0,
            project: 0,
        })
    }

    fn names(&mut self, object: ObjectNo, mut inode: InodeItem, found: &InodeFacts) {
        let lost = inode.entries.saturating_sub(found.entries_found);
        if lost == 0 {
            return;
        }
        let message = format!("{lost} of its {} names are lost", inode.entries);
        self.tell(object, message);
        inode.entries = found.entries_found;
        self.editor.put(Key::inode(object), inode.encode().to_vec());
    }

    fn content(&mut self, object: ObjectNo, mut inode: InodeItem, found: &InodeFacts) {
        let lost = inode.blocks.saturating_sub(found.pages_found);
        let ranges: Vec<String> = self.lost.pages(object).map(|range| told(range, inode.size)).collect();
        if lost == 0 || ranges.is_empty() {
            return;
        }
        let more = if ranges.len() > RANGES_TOLD_MAX { " and more" } else { "" };
        let places = ranges[..ranges.len().min(RANGES_TOLD_MAX)].join(", ");
        let message = format!(
            "{lost} of its {} stored pages are lost, those in {places}{more}; what the journal does not hold reads \
             as zeros after a repair",
            inode.blocks
        );
        self.tell(object, message);
        inode.blocks = found.pages_found;
        self.editor.put(Key::inode(object), inode.encode().to_vec());
    }

    /// Removes attributes whose values are not whole any more.
    fn xattrs(&mut self, object: ObjectNo) {
        let pieces = |number: u64, count: u64| {
            let first = number * XATTR_PIECES_MAX;
            (Key::new(object, Kind::XattrPiece, first), Key::new(object, Kind::XattrPiece, first + count - 1))
        };
        let all = (Key::new(object, Kind::Xattr, 0), Key::new(object, Kind::XattrPiece, u64::MAX));
        if !self.lost.meets(all) {
            return;
        }
        for (key, value) in self.editor.items((all.0, Key::new(object, Kind::Xattr, u64::MAX))) {
            let Ok(XattrItem { name, value: XattrValue::Pieces { number, len } }) = XattrItem::decode(&value)
            else {
                continue;
            };
            let count = (len as usize).div_ceil(XATTR_PIECE_BYTES) as u64;
            let kept = self.editor.items(pieces(number, count));
            if kept.len() as u64 == count || !self.lost.meets(pieces(number, count)) {
                continue;
            }
            self.tell(object, format!("the value of {:?} is lost; a repair removes it", lossy(&name)));
            kept.into_iter().map(|(piece, _)| piece).chain([key]).for_each(|key| self.editor.delete(key));
        }
        self.tell(object, "extended attributes of it may be lost, an access control list among them");
    }

    /// The word that a truncation is to be finished may have been lost.
    fn beyond(&mut self, object: ObjectNo) {
        if !self.lost.may_hold(Key::orphan(object)) || self.facts.orphans.contains_key(&object) {
            return;
        }
        let Some(inode) = self.editor.inode(object) else { return };
        if self.editor.keeps_extents() {
            return self.editor.put(Key::orphan(object), OrphanReason::Truncated.encode());
        }
        self.editor.cut_tail(object, inode.size.div_ceil(PAGE));
    }
}

/// Where the content of the extents ends.
fn content_end(items: &[(Key, Vec<u8>)]) -> u64 {
    let extents = items.iter().filter(|(key, _)| key.kind == Kind::Extent);
    let ends = extents.filter_map(|(key, value)| {
        let extent = ExtentItem::decode(value).ok()?;
        let written = matches!(extent.content, ExtentContent::Written(_));
        written.then(|| key.offset.saturating_add(u64::from(extent.pages())).saturating_mul(PAGE))
    });
    ends.max().unwrap_or(0)
}

fn told((first, last): (u64, u64), size: u64) -> String {
    let last = last.min(size.div_ceil(PAGE).saturating_sub(1)).max(first);
    format!("pages {first} to {last}")
}
