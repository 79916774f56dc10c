//! Worlds with snapshots and several heads.

use super::{BASE, WIDE};
use crate::scope::{Budget, Ops, Scope};

/// A volume of version 2, with one file.
const TREES: Scope = Scope {
    name: "snapshots",
    trees: true,
    files: 1,
    names: 1,
    blocks: 9,
    ops: Ops::WRITE.and(Ops::SYNC_EXTENTS).and(Ops::SNAPSHOT),
    budget: Budget { ops: 1, syncs: 1, writebacks: 0, trees: 1, ..BASE.budget },
    ..BASE
};

/// A snapshot beside writeback and a checkpoint.
pub const SNAPSHOT: Scope = Scope {
    name: "snapshot",
    ops: Ops::WRITE.and(Ops::SYNC_EXTENTS).and(Ops::WRITEBACK).and(Ops::SNAPSHOT),
    budget: Budget { ops: 2, syncs: 1, writebacks: 1, ..TREES.budget },
    ..TREES
};

/// Images that a snapshot has inherited.
pub const INHERITED: Scope = Scope {
    name: "inherited images",
    cells: 6,
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::WRITEBACK).and(Ops::SNAPSHOT),
    budget: Budget { ops: 2, syncs: 1, writebacks: 1, ..TREES.budget },
    ..TREES
};

/// The same, and crashes in recovery.
pub const SETTLED: Scope = Scope {
    name: "settled images",
    cells: 6,
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::SNAPSHOT),
    budget: Budget { cuts: 2, ..TREES.budget },
    ..TREES
};

/// Preallocated blocks that a snapshot has.
pub const SNAPSHOT_IN_PLACE: Scope = Scope {
    name: "snapshot in place",
    filled: false,
    preallocated: true,
    ops: TREES.ops.and(Ops::WRITEBACK),
    budget: Budget { ops: 2, syncs: 1, writebacks: 1, ..TREES.budget },
    ..TREES
};

/// A snapshot goes.
pub const DELETION: Scope = Scope {
    name: "deletion",
    cells: 8,
    ops: Ops::WRITE.and(Ops::SYNC_EXTENTS).and(Ops::SNAPSHOT).and(Ops::DELETE),
    budget: Budget { ops: 1, syncs: 1, checkpoints: 2, trees: 2, ..TREES.budget },
    ..TREES
};

/// The same of a snapshot whose node no checkpoint has written.
pub const DELETION_NODES: Scope = Scope {
    name: "deletion, nodes",
    cells: 4,
    names: 2,
    ops: Ops::RENAME.and(Ops::SNAPSHOT).and(Ops::DELETE),
    budget: Budget { ops: 2, syncs: 0, ..DELETION.budget },
    ..DELETION
};

/// One of two snapshots goes, and images were inherited.
pub const DELETION_IMAGES: Scope = Scope {
    name: "deletion, images",
    cells: 6,
    blocks: 12,
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::SNAPSHOT).and(Ops::DELETE),
    budget: Budget { checkpoints: 0, trees: 3, ..DELETION.budget },
    ..DELETION
};

/// Two files, truncated while one of two snapshots goes.
pub const PASSING: Scope = Scope {
    name: "passing",
    files: 2,
    names: 2,
    blocks: 11,
    ops: Ops::TRUNCATE.and(Ops::SNAPSHOT).and(Ops::DELETE),
    budget: Budget { ops: 1, syncs: 0, checkpoints: 0, trees: 3, ..DELETION.budget },
    ..DELETION
};

/// Somebody reads a snapshot that is deleted.
pub const READERS: Scope = Scope {
    name: "readers",
    ops: Ops::TRUNCATE.and(Ops::SNAPSHOT).and(Ops::DELETE).and(Ops::READ),
    budget: Budget { ops: 1, syncs: 0, checkpoints: 0, cuts: 0, trees: 3, ..DELETION.budget },
    ..DELETION
};

/// Two snapshots go.
pub const TWO_DELETIONS: Scope = Scope {
    name: "two deletions",
    cells: 6,
    ops: Ops::SNAPSHOT.and(Ops::DELETE),
    budget: Budget { ops: 0, syncs: 0, checkpoints: 0, trees: 4, ..DELETION.budget },
    ..DELETION
};

/// Heads of a snapshot.
pub const CLONES: Scope = Scope {
    name: "clones",
    cells: 8,
    ops: Ops::WRITE
        .and(Ops::SYNC_EXTENTS)
        .and(Ops::SNAPSHOT)
        .and(Ops::CLONE)
        .and(Ops::DELETE)
        .and(Ops::HEADS),
    budget: Budget { ops: 1, syncs: 1, checkpoints: 0, trees: 3, ..TREES.budget },
    ..TREES
};

/// Heads of a snapshot that has inherited an image.
pub const CLONES_IMAGES: Scope = Scope {
    name: "clones, images",
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::SNAPSHOT).and(Ops::CLONE).and(Ops::HEADS),
    budget: Budget { ops: 1, checkpoints: 0, trees: 2, ..CLONES.budget },
    ..CLONES
};

/// Preallocated blocks that two heads have from a snapshot.
pub const CLONES_IN_PLACE: Scope = Scope {
    name: "clones in place",
    filled: false,
    preallocated: true,
    ops: Ops::WRITE.and(Ops::SYNC_EXTENTS).and(Ops::SNAPSHOT).and(Ops::CLONE).and(Ops::HEADS),
    budget: Budget { ops: 2, syncs: 2, ..CLONES.budget },
    ..CLONES
};

/// The volume is rolled back.
pub const ROLL_BACK: Scope = Scope {
    name: "rollback",
    ops: Ops::WRITE.and(Ops::SYNC_EXTENTS).and(Ops::SNAPSHOT).and(Ops::ROLL_BACK),
    budget: Budget { ops: 1, trees: 2, ..CLONES.budget },
    ..CLONES
};

/// A volume with a snapshot that is nearly full.
pub const FULL_SNAPSHOTS: Scope = Scope {
    name: "full, snapshots",
    blocks: 6,
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::TRUNCATE).and(Ops::SNAPSHOT).and(Ops::WRITEBACK),
    budget: Budget { ops: 2, syncs: 1, writebacks: 1, ..TREES.budget },
    ..TREES
};

/// The same with an image that the snapshot has inherited.
pub const FULL_INHERITED: Scope = Scope {
    name: "full, inherited images",
    cells: 8,
    blocks: 8,
    files: 2,
    names: 2,
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::SNAPSHOT),
    budget: Budget { ops: 2, syncs: 2, checkpoints: 0, ..TREES.budget },
    ..TREES
};

/// Images fill the ring.
pub const FULL_RING: Scope = Scope {
    name: "full ring, snapshots",
    cells: 5,
    ops: Ops::WRITE.and(Ops::SYNC_IMAGES).and(Ops::WRITEBACK).and(Ops::SNAPSHOT),
    budget: Budget { writebacks: 1, cuts: 0, trees: 2, ..TREES.budget },
    ..TREES
};

/// A volume of version 1 becomes one of version 2.
pub const UPGRADE: Scope =
    Scope { name: "upgrade", upgrade: true, budget: Budget { checkpoints: 2, ..TREES.budget }, ..TREES };

/// Snapshots, heads, deletions and rollbacks beside all but shared blocks.
pub const WIDE_TREES: Scope = Scope {
    name: "everything, with trees",
    trees: true,
    cells: 10,
    blocks: 16,
    files: 1,
    pages: 1,
    record_cells: 1,
    ops: Ops(Ops(1 << 19).0 - 1 - Ops::ROT.0 - Ops::SHARE.0 - Ops::TRANSACTION.0),
    budget: Budget { trees: 12, ..WIDE.budget },
    ..WIDE
};

/// The same with I/O errors and deaths of the process.
pub const WIDE_TREES_FAULTS: Scope = Scope {
    name: "everything, with trees and errors",
    budget: Budget { kills: 2, faults: 2, ..WIDE_TREES.budget },
    repeatable: false,
    ..WIDE_TREES
};
