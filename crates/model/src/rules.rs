//! The rules as switches. With all of them on, no violation may be found; with any one off, there has to be one.

/// A rule of docs/design.md section 4, of docs/snapshots.md, or one that an extension of the model needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    R16,
    R17,
    R18,
    R19,
    R20,
    /// Of R4: the known-flushed sequence bounds what is verified.
    Flushed,
    /// Of R6: a page whose writeback is under way counts as dirty until it is logged.
    Underway,
    /// Of R9: recovery's checkpoint rewrites every group that has a slot newer than the superblock.
    StaleSlot,
    /// Of R12: the mark of a cut repeats the superblock's generation, it does not take the next one.
    SameGeneration,
    /// C8: a failed flush latches the volume.
    LatchFlush,
    /// C8: a failed write of a superblock latches the volume.
    LatchSuper,
    /// After a failed flush the next open reads from the device, not from a cache that holds what the flush has lost.
    FreshCache,
    /// A shared block is freed by the batch that removes its last reference.
    LastReference,
    /// A range is shared only when its newest content is in blocks.
    ShareLogged,
    /// A preallocated block that is shared is not written in place.
    ShareWritten,
    /// A transaction is one batch.
    OneBatch,
    /// A commit forces before it returns, and its data is covered by that force.
    CommitForces,
    /// An upgrade flushes what its superblock names before that is written.
    R21,
    /// A snapshot inherits the images that live in its head.
    R22,
    /// Of R22: also where the checkpoint already holds its tree.
    InheritAgain,
    /// Of R22: changes gathered before a snapshot are entered before it.
    Gathered,
    /// Births are stamped in the commit.
    R23,
    /// Of R23: what is written in place keeps its birth.
    KeptBirth,
    /// Of R23: a snapshot makes all nodes of its head immutable.
    Freeze,
    /// Whether a removed reference is freed is decided in the commit.
    R24,
    /// A head frees only what it owns.
    R25,
    /// Of R25: a head writes in place only into what it owns.
    OwnInPlace,
    /// Of R25: a head frees only nodes that it owns.
    OwnNodes,
    /// Of R25: what a deletion of its parent has passed a head owns.
    Passed,
    /// Of R25: and nothing that it has not passed.
    PassedCursor,
    /// Of R25: nor what the parent's parent has.
    PassedEra,
    /// The tail is computed from the images of all trees.
    R26,
    /// Of R26: room in the ring is promised for inherited images.
    InheritedRing,
    /// Of R26: blocks are promised for inherited images.
    InheritedBlocks,
    /// A tree from which two descend is not taken apart.
    R27,
    /// Of R27: nor one that somebody reads.
    Reader,
    /// Of R27: nor one that is not wholly on the device.
    OnDevice,
    /// Of R27: of a tree that goes away no clone is made.
    CloneOfGone,
    /// Inherited images go to an overlay, not into the snapshot's tree.
    R28,
    /// Of R27: one tree at a time is taken apart.
    OneAtATime,
    /// Of R28: a clone gets the overlay's pages.
    CloneOverlay,
    /// Pages of overlays are proven as fresh data is (R4).
    ProveOverlay,
    /// The frees of a step of a deletion and its cursor are one batch.
    R29,
    /// Of R29: the item of a tree ends when no superblock leads to the tree.
    EndBehind,
    /// A removal keeps to the reserves when it has to copy a node.
    R33,
    /// A snapshot leaves room for its head to go on.
    R35,
    /// A rollback is one batch.
    RollBackAtOnce,
    /// Not kept any more. R12 as first designed: recovery does not allocate blocks that cut batches name.
    Quarantine,
    /// Kept, but the model finds nothing that only it prevents. Of R14: a record names its predecessor's checksum.
    Predecessor,
}

impl Rule {
    /// The rules without which a promise is broken.
    pub const ALL: [Rule; 62] = [
        Rule::R1,
        Rule::R2,
        Rule::R3,
        Rule::R4,
        Rule::R5,
        Rule::R6,
        Rule::R7,
        Rule::R8,
        Rule::R9,
        Rule::R10,
        Rule::R11,
        Rule::R12,
        Rule::R13,
        Rule::R14,
        Rule::R15,
        Rule::R16,
        Rule::R17,
        Rule::R18,
        Rule::R19,
        Rule::R20,
        Rule::Flushed,
        Rule::Underway,
        Rule::StaleSlot,
        Rule::SameGeneration,
        Rule::LatchFlush,
        Rule::LatchSuper,
        Rule::FreshCache,
        Rule::LastReference,
        Rule::ShareLogged,
        Rule::ShareWritten,
        Rule::OneBatch,
        Rule::CommitForces,
        Rule::R21,
        Rule::R22,
        Rule::InheritAgain,
        Rule::Gathered,
        Rule::R23,
        Rule::KeptBirth,
        Rule::Freeze,
        Rule::R24,
        Rule::R25,
        Rule::OwnInPlace,
        Rule::OwnNodes,
        Rule::Passed,
        Rule::PassedCursor,
        Rule::PassedEra,
        Rule::R26,
        Rule::InheritedRing,
        Rule::InheritedBlocks,
        Rule::R27,
        Rule::Reader,
        Rule::OnDevice,
        Rule::CloneOfGone,
        Rule::R28,
        Rule::OneAtATime,
        Rule::CloneOverlay,
        Rule::ProveOverlay,
        Rule::R29,
        Rule::EndBehind,
        Rule::R33,
        Rule::R35,
        Rule::RollBackAtOnce,
    ];

    /// The rule's name in documents.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 20] = [
            "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15",
            "R16", "R17", "R18", "R19", "R20",
        ];
        match self {
            Rule::Flushed => "R4, known flushed",
            Rule::Underway => "R6, under way",
            Rule::StaleSlot => "R9, stale slots",
            Rule::SameGeneration => "R12, generation",
            Rule::LatchFlush => "C8, flush",
            Rule::LatchSuper => "C8, superblock",
            Rule::FreshCache => "C8, reopening",
            Rule::LastReference => "shared, last reference",
            Rule::ShareLogged => "shared, logged",
            Rule::ShareWritten => "shared, in place",
            Rule::OneBatch => "C4, one batch",
            Rule::CommitForces => "C4, forced",
            Rule::R21 => "R21",
            Rule::R22 => "R22",
            Rule::InheritAgain => "R22, in replay",
            Rule::Gathered => "R22, gathered",
            Rule::R23 => "R23",
            Rule::KeptBirth => "R23, in place",
            Rule::Freeze => "R23, nodes",
            Rule::R24 => "R24",
            Rule::R25 => "R25",
            Rule::OwnInPlace => "R25, in place",
            Rule::OwnNodes => "R25, nodes",
            Rule::Passed => "R25, passed",
            Rule::PassedCursor => "R25, cursor",
            Rule::PassedEra => "R25, before",
            Rule::R26 => "R26",
            Rule::InheritedRing => "R26, ring",
            Rule::InheritedBlocks => "R26, blocks",
            Rule::R27 => "R27",
            Rule::Reader => "R27, reader",
            Rule::OnDevice => "R27, device",
            Rule::CloneOfGone => "R27, clone",
            Rule::R28 => "R28",
            Rule::OneAtATime => "R27, one at a time",
            Rule::CloneOverlay => "R28, clone",
            Rule::ProveOverlay => "R28, proof",
            Rule::R29 => "R29",
            Rule::EndBehind => "R29, end",
            Rule::R33 => "R33",
            Rule::R35 => "R35",
            Rule::RollBackAtOnce => "C12, rollback",
            Rule::Quarantine => "R12, quarantine",
            Rule::Predecessor => "R14, predecessor",
            numbered => NAMES[numbered as usize],
        }
    }
}

/// Which rules are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules(u128);

impl Rules {
    /// What the store keeps: all but the quarantine, which the mark of a cut has replaced.
    pub const ALL: Rules = Rules(!(1 << Rule::Quarantine as u128));

    pub const fn without(self, rule: Rule) -> Rules {
        Rules(self.0 & !(1 << rule as u128))
    }

    pub fn with(self, rule: Rule) -> Rules {
        Rules(self.0 | 1 << rule as u128)
    }

    pub fn on(self, rule: Rule) -> bool {
        self.0 & 1 << rule as u128 != 0
    }
}
