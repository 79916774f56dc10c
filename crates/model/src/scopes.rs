//! The scopes: for each rule a small world in which its absence shows, and larger ones.

mod trees;

pub use self::trees::*;
use crate::rules::{Rule, Rules};
use crate::scope::{Budget, Ops, Scope};

/// Two files with a written page each.
const BASE: Scope = Scope {
    name: "base",
    rules: Rules::ALL,
    cells: 4,
    blocks: 6,
    files: 2,
    filled: true,
    preallocated: false,
    trees: false,
    upgrade: false,
    names: 2,
    pages: 1,
    record_cells: 1,
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::WRITEBACK),
    budget: Budget {
        ops: 1,
        syncs: 1,
        writebacks: 1,
        checkpoints: 1,
        cuts: 1,
        kills: 0,
        aborts: 0,
        faults: 0,
        trees: 0,
    },
    repeatable: true,
};

const SYNCS: Ops = Ops::SYNC_IMAGES.and(Ops::SYNC_EXTENTS);
const DATA: Ops = Ops::WRITE.and(SYNCS).and(Ops::WRITEBACK);

/// Data, images, destage, one checkpoint beside them.
pub const PAGES: Scope = Scope {
    name: "pages",
    files: 1,
    names: 1,
    ops: DATA,
    budget: Budget { ops: 2, syncs: 2, writebacks: 1, ..BASE.budget },
    ..BASE
};

/// Truncation and removal beside writeback.
pub const REMOVAL: Scope = Scope {
    name: "removal",
    files: 1,
    names: 1,
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::WRITEBACK).and(Ops::TRUNCATE).and(Ops::UNLINK),
    budget: Budget { ops: 2, syncs: 2, writebacks: 1, ..BASE.budget },
    ..BASE
};

/// Names.
pub const NAMESPACE: Scope = Scope {
    name: "namespace",
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::CREATE).and(Ops::UNLINK).and(Ops::RENAME).and(Ops::LINK),
    names: 3,
    budget: Budget { ops: 2, writebacks: 0, ..BASE.budget },
    ..BASE
};

/// Blocks freed and used again.
pub const REUSE: Scope = Scope {
    name: "reuse",
    files: 1,
    ops: Ops::WRITE.and(Ops::SYNC_EXTENTS).and(Ops::TRUNCATE).and(Ops::LINK),
    budget: Budget { ops: 3, writebacks: 0, ..BASE.budget },
    ..BASE
};

/// An image older than the checkpoint, destaged behind it.
pub const TAIL: Scope = Scope {
    name: "tail",
    files: 1,
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::LINK).and(Ops::WRITEBACK),
    budget: Budget { ops: 2, syncs: 1, writebacks: 1, ..BASE.budget },
    ..BASE
};

/// Names only, more records than the ring holds.
pub const RING: Scope = Scope {
    name: "ring",
    files: 1,
    ops: Ops::RENAME,
    budget: Budget { ops: 5, syncs: 1, writebacks: 0, ..BASE.budget },
    ..BASE
};

/// A volume that is nearly full.
pub const FULL_VOLUME: Scope = Scope {
    name: "full volume",
    blocks: 5,
    ops: DATA,
    budget: Budget { ops: 2, syncs: 1, writebacks: 1, ..BASE.budget },
    ..BASE
};

/// Checkpoints given up.
pub const ABORTS: Scope = Scope {
    name: "aborts",
    files: 1,
    names: 1,
    ops: DATA.and(Ops::UNLINK),
    budget: Budget { ops: 2, syncs: 1, writebacks: 1, checkpoints: 2, aborts: 1, ..BASE.budget },
    ..BASE
};

/// Crashes in recovery.
pub const RECOVERY: Scope = Scope {
    name: "recovery",
    files: 1,
    names: 1,
    ops: DATA,
    budget: Budget { ops: 2, syncs: 1, writebacks: 1, checkpoints: 1, cuts: 2, ..BASE.budget },
    ..BASE
};

/// The same with an operation that shows behind a destage that was cut.
pub const RECOVERY_NAMES: Scope = Scope {
    name: "recovery, names",
    names: 2,
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::WRITEBACK).and(Ops::LINK),
    budget: Budget { checkpoints: 0, ..RECOVERY.budget },
    ..RECOVERY
};

/// The process dies, then the power fails.
pub const KILLS: Scope = Scope {
    name: "kills",
    budget: Budget { ops: 2, syncs: 1, writebacks: 0, checkpoints: 1, cuts: 1, kills: 1, ..BASE.budget },
    repeatable: false,
    ..RECOVERY
};

/// Preallocated blocks, written in place.
pub const IN_PLACE: Scope = Scope {
    name: "in place",
    filled: false,
    preallocated: true,
    budget: Budget { ops: 2, syncs: 2, writebacks: 1, checkpoints: 0, cuts: 2, ..BASE.budget },
    ..RECOVERY
};

/// I/O errors, then a power cut.
pub const FAULTS: Scope = Scope {
    name: "faults",
    files: 1,
    names: 1,
    ops: DATA.and(Ops::TRUNCATE),
    budget: Budget { ops: 2, syncs: 2, writebacks: 1, checkpoints: 1, faults: 1, ..BASE.budget },
    ..BASE
};

/// An I/O error, the process ends, the volume is opened again, the power fails.
pub const REOPENING: Scope = Scope {
    name: "reopening",
    budget: Budget { ops: 1, syncs: 1, writebacks: 0, checkpoints: 0, faults: 1, kills: 1, ..BASE.budget },
    repeatable: false,
    ..FAULTS
};

/// A block rots.
pub const ROT: Scope = Scope {
    name: "rot",
    names: 2,
    ops: Ops::WRITE.and(Ops::SYNC_EXTENTS).and(Ops::LINK).and(Ops::ROT),
    budget: Budget { ops: 2, syncs: 2, writebacks: 0, faults: 1, ..BASE.budget },
    ..FAULTS
};

/// Blocks shared by two files.
pub const SHARED: Scope = Scope {
    name: "shared",
    ops: Ops::WRITE.and(SYNCS).and(Ops::SHARE).and(Ops::UNLINK),
    budget: Budget { ops: 2, syncs: 1, writebacks: 0, ..BASE.budget },
    ..BASE
};

/// Preallocated blocks shared by two files.
pub const SHARED_IN_PLACE: Scope = Scope {
    name: "shared in place",
    filled: false,
    preallocated: true,
    ops: Ops::WRITE.and(Ops::SYNC_EXTENTS).and(Ops::SHARE),
    budget: Budget { ops: 3, syncs: 2, writebacks: 0, checkpoints: 0, ..BASE.budget },
    ..BASE
};

/// Transactions over two files.
pub const TRANSACTIONS: Scope = Scope {
    name: "transactions",
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::TRANSACTION),
    record_cells: 2,
    cells: 6,
    blocks: 8,
    budget: Budget { ops: 2, syncs: 2, writebacks: 0, ..BASE.budget },
    ..BASE
};

/// The small scopes.
pub const SMALL: [Scope; 36] = [
    PAGES,
    REMOVAL,
    NAMESPACE,
    REUSE,
    TAIL,
    RING,
    FULL_VOLUME,
    ABORTS,
    RECOVERY,
    RECOVERY_NAMES,
    KILLS,
    IN_PLACE,
    FAULTS,
    REOPENING,
    ROT,
    SHARED,
    SHARED_IN_PLACE,
    TRANSACTIONS,
    SNAPSHOT,
    INHERITED,
    SETTLED,
    SNAPSHOT_IN_PLACE,
    DELETION,
    DELETION_NODES,
    DELETION_IMAGES,
    TWO_DELETIONS,
    PASSING,
    READERS,
    CLONES,
    CLONES_IMAGES,
    CLONES_IN_PLACE,
    ROLL_BACK,
    FULL_SNAPSHOTS,
    FULL_INHERITED,
    FULL_RING,
    UPGRADE,
];

/// Where the absence of a rule shows.
pub fn scope_of(rule: Rule) -> Scope {
    match rule {
        Rule::R1 | Rule::R4 | Rule::R7 | Rule::R14 | Rule::Underway | Rule::Predecessor => PAGES,
        Rule::R5 | Rule::R6 => REMOVAL,
        Rule::R19 | Rule::R20 => NAMESPACE,
        Rule::Flushed => ROT,
        Rule::R11 | Rule::R16 | Rule::Quarantine => REUSE,
        Rule::R2 => TAIL,
        Rule::R3 | Rule::R17 => RING,
        Rule::R18 => FULL_VOLUME,
        Rule::R8 | Rule::R9 | Rule::R15 => ABORTS,
        Rule::R10 | Rule::StaleSlot | Rule::SameGeneration => RECOVERY,
        Rule::R13 => KILLS,
        Rule::R12 => IN_PLACE,
        Rule::LatchFlush | Rule::LatchSuper => FAULTS,
        Rule::FreshCache => REOPENING,
        Rule::LastReference | Rule::ShareLogged => SHARED,
        Rule::ShareWritten => SHARED_IN_PLACE,
        Rule::OneBatch | Rule::CommitForces => TRANSACTIONS,
        Rule::R21 => UPGRADE,
        Rule::R23 | Rule::Freeze | Rule::R24 | Rule::R25 | Rule::OwnNodes | Rule::Gathered => SNAPSHOT,
        Rule::R22 | Rule::InheritAgain | Rule::R26 => INHERITED,
        Rule::ProveOverlay => SETTLED,
        Rule::KeptBirth => SNAPSHOT_IN_PLACE,
        Rule::OwnInPlace => CLONES_IN_PLACE,
        Rule::R29 | Rule::EndBehind => DELETION,
        Rule::OnDevice => DELETION_NODES,
        Rule::R28 => DELETION_IMAGES,
        Rule::Passed | Rule::PassedCursor | Rule::PassedEra => PASSING,
        Rule::Reader => READERS,
        Rule::R27 | Rule::CloneOfGone => CLONES,
        Rule::OneAtATime => TWO_DELETIONS,
        Rule::CloneOverlay => CLONES_IMAGES,
        Rule::RollBackAtOnce => ROLL_BACK,
        Rule::R33 | Rule::R35 => FULL_SNAPSHOTS,
        Rule::InheritedBlocks => FULL_INHERITED,
        Rule::InheritedRing => FULL_RING,
    }
}

/// The small scopes once more, with more of everything. These take minutes.
pub const LARGE: [Scope; 22] = [
    Scope { budget: Budget { ops: 3, syncs: 3, writebacks: 2, ..PAGES.budget }, ..PAGES },
    Scope { pages: 2, record_cells: 2, cells: 6, blocks: 8, name: "two pages", ..PAGES },
    Scope { budget: Budget { ops: 6, checkpoints: 2, ..RING.budget }, ..RING },
    Scope {
        ops: DATA.and(Ops::TRUNCATE).and(Ops::UNLINK),
        budget: Budget { ops: 3, ..REMOVAL.budget },
        ..REMOVAL
    },
    Scope { budget: Budget { ops: 3, ..NAMESPACE.budget }, ..NAMESPACE },
    Scope { files: 2, budget: Budget { syncs: 2, ..REUSE.budget }, ..REUSE },
    Scope {
        budget: Budget { ops: 3, syncs: 3, writebacks: 1, checkpoints: 2, ..PAGES.budget },
        name: "laps",
        ..PAGES
    },
    Scope {
        ops: DATA.and(Ops::TRUNCATE),
        budget: Budget { ops: 3, writebacks: 2, ..FULL_VOLUME.budget },
        ..FULL_VOLUME
    },
    Scope { budget: Budget { ops: 3, syncs: 2, writebacks: 2, ..ABORTS.budget }, ..ABORTS },
    Scope { budget: Budget { syncs: 2, cuts: 3, ..RECOVERY.budget }, ..RECOVERY },
    Scope { budget: Budget { ops: 3, checkpoints: 1, cuts: 3, ..IN_PLACE.budget }, ..IN_PLACE },
    Scope { budget: Budget { faults: 2, kills: 1, ..FAULTS.budget }, repeatable: false, ..FAULTS },
    Scope {
        ops: DATA.and(Ops::TRANSACTION),
        budget: Budget { writebacks: 1, cuts: 2, ..TRANSACTIONS.budget },
        ..TRANSACTIONS
    },
    Scope { ops: DATA.and(Ops::SNAPSHOT), budget: Budget { trees: 2, ..SNAPSHOT.budget }, ..SNAPSHOT },
    Scope { budget: Budget { cuts: 2, trees: 2, ..INHERITED.budget }, ..INHERITED },
    Scope { budget: Budget { ops: 2, syncs: 2, trees: 3, ..DELETION.budget }, ..DELETION },
    Scope { blocks: 14, budget: Budget { checkpoints: 2, ..DELETION_IMAGES.budget }, ..DELETION_IMAGES },
    Scope { budget: Budget { syncs: 1, checkpoints: 2, cuts: 2, ..PASSING.budget }, ..PASSING },
    Scope {
        ops: CLONES.ops.and(Ops::ROLL_BACK),
        budget: Budget { checkpoints: 2, trees: 4, ..CLONES.budget },
        ..CLONES
    },
    Scope { budget: Budget { checkpoints: 2, trees: 4, ..CLONES_IMAGES.budget }, ..CLONES_IMAGES },
    // R12 is for equality only: the contract is kept without it.
    Scope {
        name: "recovery, no mark",
        rules: Rules::ALL.without(Rule::R12),
        budget: Budget { cuts: 3, syncs: 2, ..RECOVERY_NAMES.budget },
        repeatable: false,
        ..RECOVERY_NAMES
    },
    Scope {
        name: "in place, no mark",
        rules: Rules::ALL.without(Rule::R12),
        budget: Budget { cuts: 3, checkpoints: 1, ..IN_PLACE.budget },
        repeatable: false,
        ..IN_PLACE
    },
];

/// For random walks: everything at once.
pub const WIDE: Scope = Scope {
    name: "everything",
    cells: 8,
    blocks: 12,
    names: 3,
    pages: 2,
    record_cells: 2,
    ops: Ops((Ops::ROT.0 - 1) | Ops::WRITEBACK.0),
    budget: Budget {
        ops: 40,
        syncs: 30,
        writebacks: 30,
        checkpoints: 12,
        cuts: 4,
        kills: 0,
        aborts: 2,
        faults: 0,
        trees: 0,
    },
    ..BASE
};

/// The same with I/O errors and deaths of the process.
pub const WIDE_FAULTS: Scope = Scope {
    name: "everything, with errors",
    budget: Budget { kills: 2, faults: 2, ..WIDE.budget },
    repeatable: false,
    ..WIDE
};

/// A question about the design, and what the model answers.
pub struct Question {
    pub asks: &'static str,
    pub scope: Scope,
    pub kept: bool,
}

/// Cuts and recoveries of recoveries (R12), and rules that others make redundant.
pub fn questions() -> Vec<Question> {
    let bare = |scope: Scope| scope.without(Rule::R12);
    let first =
        |scope: Scope| Scope { rules: scope.rules.without(Rule::R12).with(Rule::Quarantine), ..scope };
    let once = |scope: Scope| Scope { repeatable: false, ..scope };
    vec![
        Question {
            asks: "no mark, no quarantine: the contract",
            scope: once(bare(RECOVERY_NAMES)),
            kept: true,
        },
        Question { asks: "the same, written in place", scope: once(bare(IN_PLACE)), kept: true },
        Question {
            asks: "no mark, no quarantine: second recovery = first",
            scope: bare(RECOVERY_NAMES),
            kept: false,
        },
        Question {
            asks: "quarantine alone: second recovery = first",
            scope: first(RECOVERY_NAMES),
            kept: true,
        },
        Question { asks: "the same, written in place", scope: first(IN_PLACE), kept: false },
        Question { asks: "quarantine on a nearly full volume", scope: first(FULL_VOLUME), kept: false },
        Question {
            asks: "quarantine beside the mark, nearly full",
            scope: Scope { rules: Rules::ALL.with(Rule::Quarantine), ..FULL_VOLUME },
            kept: false,
        },
        Question {
            asks: "the process dies: second recovery = first",
            scope: Scope { repeatable: true, ..KILLS },
            kept: true,
        },
        Question { asks: "no predecessor in records", scope: PAGES.without(Rule::Predecessor), kept: true },
    ]
}
