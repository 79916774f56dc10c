//! The rules as switches. With all of them on, no violation may be found; with any one off, there has to be one.

/// A rule of docs/design.md section 4, or one that an extension of the model needs.
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
    /// Not kept any more. R12 as first designed: recovery does not allocate blocks that cut batches name.
    Quarantine,
    /// Kept, but the model finds nothing that only it prevents. Of R14: a record names its predecessor's checksum.
    Predecessor,
}

impl Rule {
    /// The rules without which a promise is broken.
    pub const ALL: [Rule; 32] = [
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
            Rule::Quarantine => "R12, quarantine",
            Rule::Predecessor => "R14, predecessor",
            numbered => NAMES[numbered as usize],
        }
    }
}

/// Which rules are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules(u64);

impl Rules {
    /// What the store keeps: all but the quarantine, which the mark of a cut has replaced.
    pub const ALL: Rules = Rules(!(1 << Rule::Quarantine as u64));

    pub const fn without(self, rule: Rule) -> Rules {
        Rules(self.0 & !(1 << rule as u64))
    }

    pub fn with(self, rule: Rule) -> Rules {
        Rules(self.0 | 1 << rule as u64)
    }

    pub fn on(self, rule: Rule) -> bool {
        self.0 & 1 << rule as u64 != 0
    }
}
