//! [`Opened`]: who owns a replica, and what its volume may go on with.

use crate::error::ReplicaError;
use syncline_format::replica::{Flags, Manifest, UnitHeader};
use syncline_format::superblock::Superblock;

/// An owner, before its first unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    pub uuid: [u8; 16],
    pub claim: u64,
    /// Its first one.
    pub manifest: Manifest,
    /// Identity of the last unit that counts; 0 for none.
    pub tail: u64,
    /// Header of that unit.
    pub last: Option<UnitHeader>,
    /// What is wrong with the claim that was taken over from: nobody knows whose it was.
    pub doubt: Option<ReplicaError>,
}

impl Opened {
    /// Whether a volume that is exactly what the replica holds may go on with cuts alone. Units that do not end in a
    /// consistent one would otherwise lie under what is shipped next: then a base has to begin.
    pub fn may_stream(&self) -> bool {
        self.last.is_none_or(|last| last.flags.has(Flags::CONSISTENT))
    }

    /// Whether a volume of this epoch and generation, which nobody has written to since it was closed, is that.
    pub fn is_closed_at(&self, epoch: u64, generation: u64) -> bool {
        self.last.is_some_and(|last| {
            last.flags.has(Flags::CONSISTENT.with(Flags::CLOSED))
                && (last.epoch, last.generation) == (epoch, generation)
        })
    }

    /// Whether a volume, which is as this superblock and its mark's `holds` say, was once what the last unit has left,
    /// and has gone on from there: only then do generations tell what has changed since. A volume that is in the epoch
    /// of that unit, and is not older, is a later moment of the session that shipped it: no other session has this
    /// epoch. What the mark says was true when it was written, and is of all that came of the volume since.
    ///
    /// Generations alone do not say so: an image that was set back, and used without its replica, has made other nodes
    /// of the same generations.
    pub fn is_earlier(&self, superblock: &Superblock, holds: u64) -> bool {
        let is_held = holds != 0 && holds == self.tail;
        let is_consistent = |last: &UnitHeader| last.flags.has(Flags::CONSISTENT);
        self.last.filter(is_consistent).is_some_and(|last| {
            is_held || last.epoch == superblock.epoch && last.generation <= superblock.generation.0
        })
    }
}
