//! Answers to READDIR and READDIRPLUS: records put one after the other into the answer's memory.

use super::slot::ReplySlot;
use super::{dirent, reply_common};
use crate::abi::{self, record_aligned};
use crate::memory::ReplyMemory;
use crate::types::{Entry, NodeId};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use zerocopy::IntoBytes;

/// One entry of a directory.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryEntry<'a> {
    /// Number that `readdir` shows.
    pub node: NodeId,
    /// Where reading goes on after this entry: any number but 0.
    pub next: u64,
    /// The mode's type bits shifted right by 12 (`DT_*`).
    pub file_type: u8,
    pub name: &'a OsStr,
}

/// Records so far.
struct Records {
    memory: Option<ReplyMemory>,
    bytes: usize,
    bytes_max: usize,
}

impl Records {
    fn new(bytes_max: usize) -> Records {
        Records { memory: None, bytes: 0, bytes_max }
    }

    /// Puts `header`, name and padding; false if there is no room.
    fn put(&mut self, slot: &ReplySlot, header: &[u8], name: &[u8]) -> bool {
        let record_bytes = record_aligned(header.len() + name.len());
        if record_bytes > self.bytes_max - self.bytes {
            return false;
        }
        let bytes_max = self.bytes_max;
        let memory = self.memory.get_or_insert_with(|| slot.memory(bytes_max));
        let record = &mut memory.as_mut_slice()[self.bytes..self.bytes + record_bytes];
        let (head, tail) = record.split_at_mut(header.len());
        head.copy_from_slice(header);
        let (text, padding) = tail.split_at_mut(name.len());
        text.copy_from_slice(name);
        padding.fill(0);
        self.bytes += record_bytes;
        true
    }

    fn send(mut self, slot: ReplySlot) {
        match self.memory.take() {
            Some(memory) => slot.send_memory(memory, self.bytes),
            None => slot.bytes(&[]),
        }
    }
}

/// Entries without attributes.
#[must_use = "dropped, it answers EIO"]
pub struct ReplyDirectory {
    slot: ReplySlot,
    records: Records,
}

reply_common!(ReplyDirectory);

impl ReplyDirectory {
    pub(crate) fn new(slot: ReplySlot, bytes_max: u32) -> ReplyDirectory {
        ReplyDirectory { slot, records: Records::new(bytes_max as usize) }
    }

    /// False if there was no room: the entry is not part of the answer, and further ones should not be added.
    #[must_use]
    pub fn add(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        let header = dirent(entry.node, entry.next, entry.name.len(), entry.file_type);
        self.records.put(&self.slot, header.as_bytes(), entry.name.as_bytes())
    }

    /// Answers with what was added; with nothing at the end of the directory.
    pub fn ok(self) {
        self.records.send(self.slot);
    }
}

/// Entries with their attributes: each counts as looked up, except `.`, `..` and those added without.
#[must_use = "dropped, it answers EIO"]
pub struct ReplyDirectoryPlus {
    slot: ReplySlot,
    records: Records,
}

reply_common!(ReplyDirectoryPlus);

impl ReplyDirectoryPlus {
    pub(crate) fn new(slot: ReplySlot, bytes_max: u32) -> ReplyDirectoryPlus {
        ReplyDirectoryPlus { slot, records: Records::new(bytes_max as usize) }
    }

    /// `found: None`: the name is listed, and looked up when it is needed. False if there was no room: the entry is not
    /// part of the answer (and does not count as looked up).
    #[must_use]
    pub fn add(&mut self, entry: &DirectoryEntry<'_>, found: Option<&Entry>) -> bool {
        let header = abi::DirentPlus {
            entry_out: found.map_or_else(abi::EntryOut::default, |found| found.to_wire()),
            dirent: dirent(entry.node, entry.next, entry.name.len(), entry.file_type),
        };
        self.records.put(&self.slot, header.as_bytes(), entry.name.as_bytes())
    }

    /// Answers with what was added; with nothing at the end of the directory.
    pub fn ok(self) {
        self.records.send(self.slot);
    }
}
