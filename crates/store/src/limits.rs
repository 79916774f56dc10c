//! The store's limits and tunables, each with its reason; their relations are checked when this is compiled.
//!
//! What bounds memory, requests to the device and shares of the ring and of free space is here. Constants of a data
//! structure (masks, first numbers) stay with it, and those of the format are in `syncline-format`.

use syncline_format::node::NODE_SPACE_BYTES;
use syncline_format::{BLOCK_BYTES, NODE_BLOCKS};

// Defaults of `StoreOptions`.

/// Clean tree nodes in memory.
pub(crate) const NODE_CACHE_BYTES: usize = 64 << 20;
/// The largest record that a force fills up.
pub(crate) const PIGGYBACK_BYTES: usize = 64 << 10;
/// Buffered batches beyond this are written out without a flush.
pub(crate) const STREAM_BYTES: usize = 128 << 10;

// Commit and journal.

/// Data that may be in flight together when its batches are logged: a small sync never waits for more.
pub(crate) const DATA_WINDOW_BYTES: u64 = 1 << 20;
/// Records stop growing here unless a single batch is larger.
pub(crate) const GROUP_BYTES_TARGET: usize = 1 << 20;
/// Largest record whose memory is kept for the next one: 64 KiB.
pub(crate) const SPARE_RECORD_BLOCKS_MAX: u64 = 16;
/// So many blocks are written at once where the ring was never written (1 MiB).
pub(crate) const FRESH_RING_BLOCKS: u64 = 256;

// Shares of the ring (R17).

/// A batch is at most this share of the ring.
pub(crate) const RECORD_RING_SHARE: u64 = 8;
/// Ring blocks kept for destage batches that are larger than the one block reserved per image, and one more for so
/// many images: all of them may have to be logged once more, each with its header.
pub(crate) const DESTAGE_SLACK_BLOCKS: u64 = 4;
pub(crate) const IMAGES_PER_SLACK_BLOCK: u64 = 64;
/// Sixteenths of the ring's blocks that may be live images, and a few more for what gives space back. None of them
/// may ever get home, if what has to be read for it is damaged: with as much kept for logging them anew, the rest of
/// the ring is for others.
pub(crate) const IMAGE_SIXTEENTHS: u64 = 5;
pub(crate) const RECLAIM_IMAGE_SIXTEENTHS: u64 = 6;
/// Room promised ahead of those who need it: blocks, and images among them. This share of the ring has to be left
/// besides.
pub(crate) const CREDIT_RING_BLOCKS: u64 = 32;
pub(crate) const CREDIT_RING_IMAGES: u64 = 16;
pub(crate) const CREDIT_RING_SHARE: u64 = 4;
/// Sealing rounds each record up to blocks and adds its header: a block for each of at least so many records.
pub(crate) const SEAL_SLACK_BLOCKS: u64 = 2;

// Tree nodes.

/// Leaves and interior nodes below this share of their space look for a neighbour to merge with.
pub(crate) const UNDERFULL_BYTES: usize = NODE_SPACE_BYTES / 4;
/// A merge must leave room, or the next insert splits again.
pub(crate) const MERGED_BYTES_MAX: usize = NODE_SPACE_BYTES * 3 / 4;
/// Fewest items at which a test may make nodes full: each half of an interior one that was split has two.
pub(crate) const NODE_ITEMS_LEAST: usize = 3;
/// What the bound on nodes that a batch makes current adds to the levels that there are, if nodes take few items: `n`
/// puts may split `n` nodes of each of them, and `n` more from the root on.
pub(crate) const NARROW_LEVELS: u16 = 2;
/// Fewest nodes that a cache keeps, whatever its bound: a few paths.
pub(crate) const CACHED_NODES_MIN: usize = 64;
/// Most bytes of nodes that may be dirty. Replay brings back the dirty nodes of the session before, whose memory
/// bound says nothing about the one that recovers: this keeps recovery within the default bound (256 MiB) and to
/// about a second.
pub(crate) const DIRTY_NODE_BYTES_MAX: usize = 128 << 20;

// Space.

/// Candidate runs looked at before the longest is taken.
pub(crate) const RUN_CANDIDATES_MAX: u32 = 32;
/// Items of the largest change that must get through on a full volume as a whole: an unlink.
pub(crate) const HEADROOM_ITEMS: usize = 6;
/// Bounds of the headroom that the volume's size decides, in chunks; what an unlink needs in the tree as it is may be
/// more.
pub(crate) const HEADROOM_MIN: u64 = 28;
pub(crate) const HEADROOM_MAX: u64 = 256;
/// Share of the headroom that is kept besides it, for stored pages that are overwritten on a full volume. Half of
/// that they may take until they are written, so that who frees something finds the other half.
pub(crate) const OVERWRITE_SHARE: u64 = 4;
/// Blocks reserved, and chunks claimed, ahead of those who need them: a few dozen syncs' worth. And how many times that
/// has to be left where some is.
pub(crate) const CREDIT_BLOCKS: u64 = 64;
pub(crate) const CREDIT_CHUNKS: u64 = 64;
pub(crate) const AMPLE_CREDITS: u64 = 8;
/// Blocks that one hold of a trim takes at most (64 MiB): so much is out of reach at a time.
pub(crate) const HOLD_BLOCKS_MAX: u64 = 1 << 14;

// Checkpoint.

/// Node and bitmap writes in flight, and blocks of one (1 MiB, a whole number of nodes).
pub(crate) const CHECKPOINT_WRITES_MAX: usize = 8;
pub(crate) const CHECKPOINT_WRITE_BLOCKS_MAX: u64 = 256;
/// Blocks in flight while forces come in between (256 KiB): their records and flushes wait behind no more than this.
pub(crate) const BLOCKS_BESIDE_FORCES_MAX: u64 = 64;
/// A shorter write counts like one of so many blocks, because it costs the device about as much.
pub(crate) const CHECKPOINT_WRITE_BLOCKS_LEAST: u64 = 8;
/// Writes for which a force is heeded.
pub(crate) const HEEDED_WRITES: u32 = 64;

// Opening and recovery.

/// Groups whose bitmaps are read at a time.
pub(crate) const GROUPS_PER_READ: usize = 256;
/// Blocks of the ring read at a time (8 MiB), and blocks of each of the requests that are in flight together.
pub(crate) const SCAN_WINDOW_BLOCKS: u64 = 2048;
pub(crate) const SCAN_REQUEST_BLOCKS: usize = 256;
/// Blocks read at a place that does not continue the window.
pub(crate) const SCAN_LOOK_BLOCKS: u64 = 128;
/// Epochs that are remembered of what was read. There are as many as sessions whose records are still in the ring;
/// more are forged.
pub(crate) const EPOCHS_MAX: usize = 4096;
/// The search for records beyond the end verifies at most this many times the ring.
pub(crate) const VERIFY_RINGS_MAX: u64 = 4;
/// Payloads of unconfirmed records kept in memory; those of further ones are read again.
pub(crate) const REPLAY_KEPT_BYTES_MAX: usize = 32 << 20;
/// Memory of gathered changes after which they are entered into the trees.
pub(crate) const GATHERED_BYTES_MAX: usize = 16 << 20;
/// Changes whose leaves are read together.
pub(crate) const ENTERED_TOGETHER: usize = 256;
/// Fresh data read at a time, all of it in flight together.
pub(crate) const PROOF_BYTES_MAX: usize = 8 << 20;
/// Blocks of one record of carried images at most, so that little of a full one is left unused.
pub(crate) const CARRIED_RECORD_BLOCKS_MAX: u64 = 256;

// Snapshots.

/// Trees at a time: their items are in memory. Few in the tests of this crate's own, which come to the end.
pub(crate) const TREES_MAX: usize = if cfg!(test) { 12 } else { 1 << 16 };
/// Images that may be logged between looking how many a snapshot inherits and making it.
pub(crate) const INHERITED_SLACK: u64 = 16;
/// Inherited images that are settled by one batch.
pub(crate) const SETTLED_TOGETHER: usize = 64;
/// Available behind a snapshot are at least so many blocks (16 MiB), or this share of the volume (R35).
pub(crate) const AVAILABLE_BEHIND_SNAPSHOT: u64 = 1 << 12;
pub(crate) const AVAILABLE_SHARE: u64 = 50;
/// Pages of an overlay that are given back by one batch of a deletion.
pub(crate) const REAPED_OVERLAYS: usize = 4;
/// Chunks that nobody but a deletion gets (R33): a step copies the way to two items of the volume tree and to one of
/// the root tree, and so does the checkpoint that has not brought the chunks of the step before back.
pub(crate) const DELETION_CHUNKS: u64 = 24;
/// Chunks that are free besides them where a volume may be upgraded to version 2: the upgrade's own two, and some for
/// the first checkpoints behind it, each of which writes the volume tree and the root tree anew.
pub(crate) const UPGRADE_CHUNKS: u64 = 8;
/// Leaves that are read together where one after the other is looked at, and no more, and nodes of one read: 512 KiB.
pub(crate) const LEAVES_AHEAD: usize = 32;
/// Leaves that one batch of a deletion looks at, and runs of dead blocks after which it looks at no more: the trees'
/// lock is held so long.
pub(crate) const REAPED_LEAVES_MAX: usize = 32;
pub(crate) const REAPED_RUNS: usize = 200;
/// Leaves of the next tree that are read ahead beside one of a dying tree: where it has grown they are more.
pub(crate) const BESIDE_ONE_LEAF_MAX: usize = 4;
/// Bytes of a batch that gives back data: those runs, and all of the leaf that is looked at last. The smallest journal
/// takes it.
pub(crate) const REAPED_BYTES: usize = 24 << 10;

// Formatting.

/// Blocks of zeros written at a time (1 MiB).
pub(crate) const MKFS_ZERO_BLOCKS: u64 = 256;
/// So much of the journal's beginning is written in any case (32 MiB).
pub(crate) const MKFS_JOURNAL_BLOCKS: u64 = 8192;
/// Groups (of 126 MiB) up to which all bitmaps are written, 16 MiB of them.
pub(crate) const MKFS_GROUPS_MAX: u32 = 4096;

const _: () = {
    // A force can always take what fills it, and a stream never waits for a record to be full.
    assert!(PIGGYBACK_BYTES <= GROUP_BYTES_TARGET && STREAM_BYTES <= GROUP_BYTES_TARGET);
    // All images once more, and the rest of the ring for others.
    assert!(IMAGE_SIXTEENTHS <= RECLAIM_IMAGE_SIXTEENTHS && 2 * RECLAIM_IMAGE_SIXTEENTHS < 16);
    // Two nodes that are merged do not look for a third one at once.
    assert!(UNDERFULL_BYTES < MERGED_BYTES_MAX && MERGED_BYTES_MAX < NODE_SPACE_BYTES);
    assert!(HEADROOM_MIN <= HEADROOM_MAX);
    assert!(CHECKPOINT_WRITE_BLOCKS_MAX.is_multiple_of(NODE_BLOCKS as u64));
    assert!(CHECKPOINT_WRITE_BLOCKS_LEAST <= BLOCKS_BESIDE_FORCES_MAX);
    assert!(BLOCKS_BESIDE_FORCES_MAX <= CHECKPOINT_WRITE_BLOCKS_MAX * CHECKPOINT_WRITES_MAX as u64);
    assert!(
        SCAN_LOOK_BLOCKS <= SCAN_WINDOW_BLOCKS
            && SCAN_WINDOW_BLOCKS.is_multiple_of(SCAN_REQUEST_BLOCKS as u64)
    );
    assert!(PROOF_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
};

/// Batches for which one look at the room that there is may answer.
pub(crate) const ROOM_AHEAD_BATCHES: u64 = 32;
