//! The state of the one object whose items are passing by.

use crate::Code;
use crate::facts::Facts;
use crate::items::FILE_PAGES_MAX;
use crate::report::Findings;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use syncline_format::item::{
    ExtentContent, ExtentItem, InodeItem, OrphanReason, Shift, XATTR_PIECE_BYTES, XATTR_PIECES_MAX,
    XattrItem, XattrValue,
};
use syncline_format::{BLOCK_BYTES, KEYED_SLOTS, Key, NameHash, ObjectNo};

/// The object, and what its items so far have to agree with.
#[derive(Default)]
pub(crate) struct Current {
    /// 0 before the first.
    pub(crate) object: ObjectNo,
    pub(crate) inode: Option<InodeItem>,
    pub(crate) symlink_bytes: Option<u64>,
    pub(crate) names: RecentNames,
    pub(crate) xattr_names: RecentNames,
    pieces: BTreeMap<u64, Pieces>,
    /// The first page behind the extents so far.
    extents_end: u64,
}

/// A value in pieces: how long it is and how many pieces were seen.
struct Pieces {
    len: usize,
    seen: u64,
}

impl Pieces {
    fn count(&self) -> u64 {
        self.len.div_ceil(XATTR_PIECE_BYTES) as u64
    }
}

/// The last few names of a directory: equal names have equal hashes, so they are within one row of slots.
#[derive(Default)]
pub(crate) struct RecentNames {
    /// Of a seeded hash, whose rows overlap: those that lie less than a row apart.
    near: VecDeque<(u64, Vec<u8>)>,
    /// Of a keyed hash: those of one row.
    row: BTreeSet<Vec<u8>>,
    row_number: u64,
}

impl RecentNames {
    /// Adds a name; tells whether it was there already.
    pub(crate) fn repeats(&mut self, hash: &NameHash, offset: u64, name: &[u8]) -> bool {
        if let NameHash::Keyed(_) = hash {
            if std::mem::replace(&mut self.row_number, offset / KEYED_SLOTS) != offset / KEYED_SLOTS {
                self.row.clear();
            }
            return !self.row.insert(name.to_vec());
        }
        while self.near.front().is_some_and(|(first, _)| offset - first >= hash.reach()) {
            self.near.pop_front();
        }
        let repeats = self.near.iter().any(|(_, known)| known == name);
        self.near.push_back((offset, name.to_vec()));
        repeats
    }
}

impl Current {
    /// Notes the pieces that an attribute must have.
    pub(crate) fn expect_pieces(&mut self, xattr: &XattrItem, object: ObjectNo, findings: &mut Findings) {
        if let XattrValue::Pieces { number, len } = xattr.value {
            let pieces = Pieces { len: len as usize, seen: 0 };
            if self.pieces.insert(number, pieces).is_some() {
                findings.of(Code::XattrPieces, object, format!("two attributes share value {number}"));
            }
        }
    }

    /// Takes a piece; `false` if no attribute wants it.
    pub(crate) fn take_piece(&mut self, key: Key, bytes: usize, findings: &mut Findings) -> bool {
        let (number, index) = (key.offset / XATTR_PIECES_MAX, key.offset % XATTR_PIECES_MAX);
        let Some(pieces) = self.pieces.get_mut(&number).filter(|pieces| index < pieces.count()) else {
            return false;
        };
        let want = (pieces.len - index as usize * XATTR_PIECE_BYTES).min(XATTR_PIECE_BYTES);
        if bytes != want {
            let message = format!("piece {index} of value {number} has {bytes} bytes instead of {want}");
            findings.of(Code::XattrPieces, key.object, message);
        }
        pieces.seen += 1;
        true
    }

    /// Judges an extent against the one before it and the size.
    pub(crate) fn add_extent(
        &mut self,
        object: ObjectNo,
        page: u64,
        extent: &ExtentItem,
        facts: &Facts,
        findings: &mut Findings,
    ) {
        if page < self.extents_end {
            findings.of(Code::ExtentOverlap, object, format!("page {page} is in two extents"));
        }
        let end = page + u64::from(extent.pages());
        if let Some(OrphanReason::Shifting(shift)) = facts.orphans.get(&object) {
            let gap = shift.gap();
            // The extents around it keep to their sides, so that none is met twice.
            if page < gap.end && end > gap.start && !gap.is_empty() {
                let message = format!("page {page} lies where an unfinished move of others goes");
                findings.of(Code::ExtentOverlap, object, message);
            }
        }
        self.extents_end = self.extents_end.max(end);
        let Some(inode) = &self.inode else { return };
        let pages = inode.size.div_ceil(BLOCK_BYTES as u64);
        let written = matches!(extent.content, ExtentContent::Written(_));
        let end = match facts.orphans.get(&object) {
            Some(OrphanReason::Shifting(shift)) => end_after(shift, page, end),
            Some(_) => return,
            None => end,
        };
        if written && end > pages || end > FILE_PAGES_MAX {
            let message = format!("written pages up to {end}, but the size ends at page {pages}");
            findings.of(Code::ExtentBeyondSize, object, message);
        }
    }

    /// Judges the object as a whole, once all its items have passed.
    pub(crate) fn close(self, findings: &mut Findings, facts: &mut Facts) {
        if self.object == ObjectNo::VOLUME {
            return;
        }
        let Some(inode) = self.inode else {
            findings.of(Code::ItemWithoutInode, self.object, "its items belong to no inode");
            return;
        };
        if facts.is_removed(self.object.0) {
            // Being taken apart: what is left of it need not be complete.
            return;
        }
        if inode.is_symlink() && self.symlink_bytes != Some(inode.size) {
            let message = match self.symlink_bytes {
                Some(bytes) => format!("the target has {bytes} bytes, the inode says {}", inode.size),
                None => "the target is missing".to_string(),
            };
            findings.of(Code::SymlinkTarget, self.object, message);
        }
        for (number, pieces) in self.pieces {
            if pieces.seen != pieces.count() {
                let message = format!("value {number} has {} of {} pieces", pieces.seen, pieces.count());
                findings.of(Code::XattrPieces, self.object, message);
            }
        }
        let found = facts.of(self.object).pages_found;
        if inode.blocks != found {
            let message = format!("the inode counts {} blocks, its extents hold {found}", inode.blocks);
            findings.of(Code::InodeBlocks, self.object, message);
        }
    }
}

/// Where an extent ends once the move has ended; what is to be freed ends where the range begins.
fn end_after(shift: &Shift, page: u64, end: u64) -> u64 {
    match shift.inserts {
        true if page < shift.next && end > shift.first => end + shift.count,
        false if end > shift.next => end.saturating_sub(shift.count).max(shift.first.min(end)),
        _ => end,
    }
}
