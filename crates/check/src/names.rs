//! Judges what concerns several objects: names and the inodes they point to, link counts, the shape of the directory
//! tree, orphans, page images.

use crate::Code;
use crate::facts::{Facts, InodeFacts};
use crate::items::lossy;
use crate::replay::Replay;
use crate::report::Findings;
use crate::walk::{Source, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use syncline_format::item::{DirentItem, OrphanReason};
use syncline_format::range::SUPERBLOCK_NEXT_OBJECT;
use syncline_format::superblock::Superblock;
use syncline_format::{Key, Kind, ObjectNo, TreeId};

const ROOT: u64 = ObjectNo::ROOT_DIR.0;
/// `mode >> 12` of a file with content.
const TYPE_FILE: u8 = 8;

/// Judges the facts of one walk.
pub(crate) struct NameCheck<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) findings: &'a mut Findings,
    /// Some item or node could not be read: what is missing proves nothing.
    pub(crate) incomplete: bool,
}

impl NameCheck<'_> {
    /// Everything but the names themselves, which need another walk (see [`DirentCheck`]).
    pub(crate) fn run(&mut self, superblock: &Superblock, replay: &Replay, tree: TreeId) {
        self.root();
        judge_next_object(superblock, self.facts, self.findings);
        if self.incomplete {
            return;
        }
        let subdirectories = self.facts.subdirectories();
        for (&object, inode) in &self.facts.inodes {
            if inode.exists() {
                self.inode(object, inode, subdirectories.get(&object).copied().unwrap_or(0));
            }
        }
        self.orphans();
        self.reach();
        self.images(replay, tree);
    }

    fn root(&mut self) {
        if !self.facts.inodes.get(&ROOT).is_some_and(InodeFacts::is_directory) {
            let message = "object 1 is no directory";
            self.findings.of(Code::RootDirectory, ObjectNo::ROOT_DIR, message);
        }
    }

    fn inode(&mut self, object: u64, inode: &InodeFacts, subdirectories: u32) {
        let number = ObjectNo(object);
        if self.facts.is_removed(object) {
            if inode.names > 0 {
                let message = format!("{} names are left", inode.names);
                self.findings.of(Code::OrphanNamed, number, message);
            }
            return;
        }
        if inode.names == 0 && object != ROOT {
            self.findings.of(Code::InodeUnnamed, number, "no directory names it");
        }
        let want = expected_links(inode, subdirectories);
        if inode.nlink != want && (inode.names > 0 || object == ROOT) {
            let message = format!("the inode says {}, its names make {want}", inode.nlink);
            self.findings.of(Code::LinkCount, number, message);
        }
        if !inode.is_directory() {
            return;
        }
        if inode.entries != inode.entries_found {
            let message = format!("the inode says {}, there are {}", inode.entries, inode.entries_found);
            self.findings.of(Code::EntryCount, number, message);
        }
        if inode.names > u32::from(object != ROOT) {
            let message = format!("{} names", inode.names);
            self.findings.of(Code::DirectoryNames, number, message);
        } else if inode.parent != expected_parent(object, inode) && (inode.names == 1 || object == ROOT) {
            let want = expected_parent(object, inode);
            let message = format!("the inode says {}, it is named in {want}", inode.parent);
            self.findings.of(Code::DirectoryParent, number, message);
        }
    }

    fn orphans(&mut self) {
        for (&object, &reason) in &self.facts.orphans {
            let inode = self.facts.inodes.get(&object.0).filter(|inode| inode.exists());
            let is_file = inode.is_some_and(|inode| inode.file_type() == TYPE_FILE);
            if inode.is_some() && !is_file && reason != OrphanReason::Unlinked {
                let message = "its content is to be finished, but it is no file";
                self.findings.of(Code::ItemOfOtherType, object, message);
                continue;
            }
            let message = match (inode.is_some(), reason) {
                (true, OrphanReason::Unlinked) if object == ObjectNo::ROOT_DIR => {
                    self.findings.of(Code::OrphanNamed, object, "it is the root directory");
                    continue;
                }
                (false, _) => {
                    self.findings.of(Code::OrphanMissing, object, "there is no such inode");
                    continue;
                }
                (true, _) if self.facts.is_removed(object.0) => "to be removed",
                (true, OrphanReason::Unlinked) => {
                    let links = inode.map_or(0, |inode| inode.nlink);
                    self.findings.of(Code::OrphanNamed, object, format!("the inode counts {links} links"));
                    continue;
                }
                (true, OrphanReason::Truncated) => "a truncation is to be finished",
                (true, OrphanReason::Shifting(_)) => "a range that was taken out or put in is to be finished",
            };
            self.findings.of(Code::OrphanPending, object, message);
        }
    }

    /// Every directory must lead to the root by the directories that name it.
    fn reach(&mut self) {
        let mut reached = BTreeSet::from([ROOT]);
        let mut lost = BTreeSet::new();
        for (&object, inode) in &self.facts.inodes {
            if !inode.is_directory() || inode.names == 0 {
                continue;
            }
            let mut path = BTreeSet::new();
            let mut at = object;
            let arrives = loop {
                if reached.contains(&at) {
                    break true;
                }
                let Some(next) = self.facts.inodes.get(&at).filter(|inode| inode.is_directory()) else {
                    break false;
                };
                if lost.contains(&at) || !path.insert(at) {
                    break false;
                }
                if next.names == 0 {
                    // An unnamed directory is reported as such; what is below it comes back with it.
                    break true;
                }
                at = next.named_in;
            };
            if arrives {
                reached.append(&mut path);
            } else {
                lost.append(&mut path);
            }
        }
        for object in lost {
            let message = "no way leads from the root to it";
            self.findings.of(Code::DirectoryUnreachable, ObjectNo(object), message);
        }
    }

    fn images(&mut self, replay: &Replay, tree: TreeId) {
        let mut last = None;
        let all = (tree, ObjectNo(0), 0)..=(tree, ObjectNo(u64::MAX), u64::MAX);
        for (&(_, object, page), _) in replay.images.range(all) {
            if let Some(OrphanReason::Shifting(shift)) = self.facts.orphans.get(&object)
                && page >= shift.first
                && last != Some(object)
            {
                last = Some(object);
                let message = format!("an image of page {page}, but others are still to be moved there");
                self.findings.of(Code::ExtentOverlap, object, message);
                continue;
            }
            let inode = self.facts.inodes.get(&object.0).filter(|inode| inode.exists());
            if inode.is_some_and(|inode| inode.file_type() == TYPE_FILE) || last == Some(object) {
                continue;
            }
            last = Some(object);
            let message = format!("an image of page {page}, but there is no such file");
            self.findings.of(Code::JournalImage, object, message);
        }
    }
}

/// No object has a number that the next one may get.
pub(crate) fn judge_next_object(superblock: &Superblock, facts: &Facts, findings: &mut Findings) {
    let highest = facts.stored_object_max;
    if superblock.next_object.0 <= highest {
        let message = format!("next is {}, but object {highest} exists", superblock.next_object);
        findings.add(Code::NextObject, message);
    }
    let highest = highest.max(facts.object_max);
    if highest >= SUPERBLOCK_NEXT_OBJECT.most {
        // No superblock could say what comes next.
        let message = format!("object {highest} has an impossibly high number");
        findings.add(Code::SuperblockExhausted, message);
    }
}

/// Links that an inode with these names must count.
pub(crate) fn expected_links(inode: &InodeFacts, subdirectories: u32) -> u32 {
    if inode.is_directory() { subdirectories.saturating_add(2) } else { inode.names }
}

/// The directory that a directory must name as its parent.
pub(crate) fn expected_parent(object: u64, inode: &InodeFacts) -> u64 {
    if object == ROOT { ROOT } else { inode.named_in }
}

/// What is wrong with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameFault {
    /// Neither an inode nor anything else of that number exists.
    Nothing,
    /// There is no inode, but there are other items of its number.
    Remains,
    /// The inode has this type.
    Type(u8),
}

/// Second walk, only where the first one saw that some name is wrong: finds out which.
pub(crate) struct DirentCheck<'a> {
    facts: &'a Facts,
    pub(crate) faults: BTreeMap<Key, (DirentItem, NameFault)>,
}

impl<'a> DirentCheck<'a> {
    /// `None`: every name points to an inode of its type.
    pub(crate) fn needed(facts: &'a Facts) -> Option<DirentCheck<'a>> {
        let wrong = |inode: &InodeFacts| {
            inode.names > 0 && (!inode.exists() || inode.told_types != 1 << inode.file_type())
        };
        let any = facts.inodes.values().any(wrong);
        any.then(|| DirentCheck { facts, faults: BTreeMap::new() })
    }

    pub(crate) fn report(&self, findings: &mut Findings) {
        for (key, (dirent, fault)) in &self.faults {
            let name = lossy(&dirent.name);
            match fault {
                NameFault::Nothing => {
                    let message = format!("{name:?} points to inode {}, which does not exist", dirent.inode);
                    findings.of(Code::DirentDangling, key.object, message);
                }
                NameFault::Remains => {
                    let message =
                        format!("{name:?} points to inode {}, of which only remains exist", dirent.inode);
                    findings.hopeless(Code::DirentDangling, key.object, message);
                }
                NameFault::Type(want) => {
                    let message = format!(
                        "{name:?} says type {}, inode {} has type {want}",
                        dirent.file_type, dirent.inode
                    );
                    findings.of(Code::DirentType, key.object, message);
                }
            }
        }
    }
}

impl Visitor for DirentCheck<'_> {
    fn item(&mut self, key: Key, value: &[u8], _source: Source) {
        if key.kind != Kind::Dirent || key.object == ObjectNo::VOLUME {
            return;
        }
        let Ok(dirent) = DirentItem::decode(value) else { return };
        let inode = self.facts.inodes.get(&dirent.inode.0).copied().unwrap_or_default();
        let fault = if !inode.exists() {
            if inode.has_items { NameFault::Remains } else { NameFault::Nothing }
        } else if inode.file_type() != dirent.file_type {
            NameFault::Type(inode.file_type())
        } else {
            return;
        };
        self.faults.insert(key, (dirent, fault));
    }
}
