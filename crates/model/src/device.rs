//! The device: what is durable, and what was written since.
//!
//! - A write is *in flight* until somebody has waited for it; then it is *done*.
//! - A flush makes durable, of each place, the last write that was done when the flush was issued. It covers nothing
//!   that was in flight (R7).
//! - At a power cut any subset of the other writes survives, in any order: of each place, the durable content or that
//!   of any write since. Superblock and bitmap slots may also be torn. Elsewhere that adds nothing: a torn record,
//!   node or page is as good as one that was replaced, and "replaced" is among the choices already.
//! - When only the process dies, the writes in flight complete (the lock is held until then) and the cache stays.
//! - A flush that fails makes nothing durable, and what it should have covered is *doomed*: a later flush that succeeds
//!   does not cover it either, though it may survive a power cut, and reads show it as long as the cache lives.
//!
//! Completions are no steps of their own. A write that nobody has waited for may be lost at a power cut whether it is
//! complete or not; if it counts as incomplete, a flush covers less and more is lost. So it is enough to let writes
//! complete when they are waited for, and every loss that an earlier completion allows is still found.

use crate::volume::{Block, Content, checksum};

/// Allocation groups; the blocks are divided evenly among them.
pub const GROUPS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    Super(u8),
    Bitmap {
        group: u8,
        slot: u8,
    },
    /// A block of the journal ring.
    Cell(u8),
    Block(Block),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Progress {
    InFlight,
    Done,
    Doomed,
}

#[derive(Debug, Clone, Hash)]
struct Write {
    at: Place,
    content: Content,
    progress: Progress,
}

#[derive(Debug, Clone, Hash)]
pub struct Device {
    supers: [Content; 2],
    bitmaps: [[Content; 2]; GROUPS],
    cells: Vec<Content>,
    blocks: Vec<Content>,
    /// Not yet durable, in the order of issue.
    pending: Vec<Write>,
}

impl Device {
    pub fn new(cells: u8, blocks: u8) -> Device {
        Device {
            supers: [Content::Blank, Content::Blank],
            bitmaps: [[Content::Blank, Content::Blank], [Content::Blank, Content::Blank]],
            cells: vec![Content::Blank; usize::from(cells)],
            blocks: vec![Content::Blank; usize::from(blocks)],
            pending: Vec::new(),
        }
    }

    pub fn cells(&self) -> u8 {
        self.cells.len() as u8
    }

    /// Starts a write.
    pub fn write(&mut self, at: Place, content: Content) {
        self.pending.push(Write { at, content, progress: Progress::InFlight });
    }

    /// Waits for the last write to a place, if one is in flight.
    pub fn wait(&mut self, at: Place) {
        let last = self.pending.iter_mut().rev().find(|write| write.at == at);
        if let Some(write) = last.filter(|write| write.progress == Progress::InFlight) {
            write.progress = Progress::Done;
        }
    }

    pub fn flush(&mut self) {
        for write in std::mem::take(&mut self.pending) {
            match write.progress {
                Progress::Done => *self.durable_mut(write.at) = write.content,
                Progress::InFlight | Progress::Doomed => self.pending.push(write),
            }
        }
    }

    pub fn fail_flush(&mut self) {
        for write in self.pending.iter_mut().filter(|write| write.progress == Progress::Done) {
            write.progress = Progress::Doomed;
        }
    }

    /// A write fails: it may have reached the device or not.
    pub fn fail_write(&mut self, at: Place) {
        if let Some(write) = self.pending.iter_mut().rev().find(|write| write.at == at) {
            write.progress = Progress::Doomed;
        }
    }

    /// What a read finds.
    pub fn read(&self, at: Place) -> &Content {
        let newest = self.pending.iter().rev();
        let mut seen = newest.filter(|write| write.at == at && write.progress != Progress::InFlight);
        seen.next().map_or(self.durable(at), |write| &write.content)
    }

    /// All writes in flight complete: somebody waits for them, or the process dies and the machine does not.
    pub fn complete_all(&mut self) {
        for write in self.pending.iter_mut().filter(|write| write.progress == Progress::InFlight) {
            write.progress = Progress::Done;
        }
    }

    /// The cache is dropped before the device is opened again: what a failed flush should have covered is gone from it.
    pub fn forget_doomed(&mut self) {
        self.pending.retain(|write| write.progress != Progress::Doomed);
    }

    /// A stored block changes by itself.
    pub fn rot(&mut self, block: Block) {
        self.blocks[usize::from(block)] = Content::Torn;
    }

    /// In how many ways the power can fail now.
    pub fn losses(&self) -> u32 {
        self.pending_places().iter().map(|at| self.outcomes(*at)).product()
    }

    /// The device after a power cut; `choice` is below [`Device::losses`].
    pub fn after_loss(&self, mut choice: u32) -> Device {
        let mut after = self.clone();
        after.pending.clear();
        for at in self.pending_places() {
            let outcomes = self.outcomes(at);
            if let Some(content) = self.outcome(at, choice % outcomes) {
                *after.durable_mut(at) = content;
            }
            choice /= outcomes;
        }
        after
    }

    /// Hashes of what the power cuts leave, without making it: most have been seen before.
    pub fn loss_hashes(&self) -> LossHashes {
        let durable = |at: Place| checksum(&(at, self.durable(at)));
        let places = (0..2)
            .map(Place::Super)
            .chain((0..GROUPS as u8).flat_map(|group| (0..2).map(move |slot| Place::Bitmap { group, slot })))
            .chain((0..self.cells.len() as u8).map(Place::Cell))
            .chain((0..self.blocks.len() as u8).map(Place::Block));
        let base = places.map(durable).fold(0, u64::wrapping_add);
        let change = |at: Place, choice: u32| match self.outcome(at, choice) {
            Some(content) => checksum(&(at, &content)).wrapping_sub(durable(at)),
            None => 0,
        };
        let changes = |at: Place| (0..self.outcomes(at)).map(|choice| change(at, choice)).collect();
        LossHashes { base, changes: self.pending_places().into_iter().map(changes).collect() }
    }

    /// What a power cut does to each place with unflushed writes, in words.
    pub fn describe_loss(&self, mut choice: u32) -> String {
        let (mut kept, mut lost, mut torn) = (Vec::new(), Vec::new(), Vec::new());
        for at in self.pending_places() {
            let outcomes = self.outcomes(at);
            match self.outcome(at, choice % outcomes) {
                None => lost.push(at),
                Some(Content::Torn) => torn.push(at),
                Some(_) => kept.push(at),
            }
            choice /= outcomes;
        }
        let list = |what: &str, places: Vec<Place>| match places.is_empty() {
            true => String::new(),
            false => format!("; {what}: {}", places.iter().map(name).collect::<Vec<_>>().join(", ")),
        };
        format!("{}{}{}", list("survives", kept), list("lost", lost), list("torn", torn))
    }

    fn pending_places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for write in &self.pending {
            if !places.contains(&write.at) {
                places.push(write.at);
            }
        }
        places
    }

    /// The durable content, each pending one, and for slots a torn one.
    fn outcomes(&self, at: Place) -> u32 {
        let pending = self.pending.iter().filter(|write| write.at == at).count() as u32;
        1 + pending + u32::from(matches!(at, Place::Super(_) | Place::Bitmap { .. }))
    }

    fn outcome(&self, at: Place, choice: u32) -> Option<Content> {
        if choice == 0 {
            return None;
        }
        let mut pending = self.pending.iter().filter(|write| write.at == at);
        let content = pending.nth(choice as usize - 1).map(|write| write.content.clone());
        Some(content.unwrap_or(Content::Torn))
    }

    fn durable(&self, at: Place) -> &Content {
        match at {
            Place::Super(slot) => &self.supers[usize::from(slot)],
            Place::Bitmap { group, slot } => &self.bitmaps[usize::from(group)][usize::from(slot)],
            Place::Cell(cell) => &self.cells[usize::from(cell)],
            Place::Block(block) => &self.blocks[usize::from(block)],
        }
    }

    fn durable_mut(&mut self, at: Place) -> &mut Content {
        match at {
            Place::Super(slot) => &mut self.supers[usize::from(slot)],
            Place::Bitmap { group, slot } => &mut self.bitmaps[usize::from(group)][usize::from(slot)],
            Place::Cell(cell) => &mut self.cells[usize::from(cell)],
            Place::Block(block) => &mut self.blocks[usize::from(block)],
        }
    }
}

/// Of all ways in which the power can fail: a sum over the places.
pub struct LossHashes {
    base: u64,
    /// By place with pending writes, by what survives there.
    changes: Vec<Vec<u64>>,
}

impl LossHashes {
    pub fn of(&self, mut choice: u32) -> u64 {
        let mut sum = self.base;
        for outcomes in &self.changes {
            sum = sum.wrapping_add(outcomes[choice as usize % outcomes.len()]);
            choice /= outcomes.len() as u32;
        }
        sum
    }
}

fn name(place: &Place) -> String {
    match place {
        Place::Super(slot) => format!("superblock slot {slot}"),
        Place::Bitmap { group, slot } => format!("bitmap slot {slot} of group {group}"),
        Place::Cell(cell) => format!("ring block {cell}"),
        Place::Block(block) => format!("block {block}"),
    }
}
