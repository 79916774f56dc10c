//! Repair of a volume with trees: its bitmaps, and nothing that they are rebuilt from.
//!
//! The bitmaps follow from the trees of the checkpoint, all of them. They are written anew beside those that count,
//! with a superblock of the next generation that is otherwise the old one: trees and journal stay as they are, so that
//! whoever opens the volume next replays the same log.

use super::Repair;
use crate::CheckError;
use crate::analysis::Subject;
use crate::forest::Forest;
use crate::replay::Replay;
use crate::report::{Findings, Totals};

impl Repair<'_> {
    /// Writes all bitmaps anew, as of the checkpoint.
    pub(super) fn bitmaps(self) -> Result<(), CheckError> {
        let old = &self.chosen.superblock;
        let generation = old.generation.next();
        let forest = Forest::read(self.device, old, &mut Findings::default());
        let replay = Replay::new(old.layout, old.checkpoint_lsn, forest);
        let subject = Subject {
            device: self.device,
            superblock: old,
            replay: &replay,
            data: false,
            only: None,
            all: false,
        };
        let found = subject.look(&mut Findings::default(), &mut Totals::default(), self.progress);
        self.write_bitmaps([&found.nodes, &found.data], generation)?;
        self.device.flush()?;
        let mut superblock = old.clone();
        superblock.generation = generation;
        let used = found.nodes.len() + found.data.len();
        superblock.free_blocks = old.layout.data_blocks().saturating_sub(used);
        self.write_superblock(&superblock)
    }
}
