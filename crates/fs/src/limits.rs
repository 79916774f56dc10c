//! Limits and shares by which the engine decides: what is tuned is here, each with the reason for its value. What
//! follows from a format, or has a meaning in one function only, stays at its place.

use std::time::Duration;
use syncline_format::BLOCK_BYTES;

// Memory: shares of the bound, and what is told apart by it.

/// Pages at most.
pub(crate) const PAGES_PERCENT: u64 = 35;
/// Fewest pages, whatever the memory bound says: one batch must always fit.
pub(crate) const PAGES_MIN: u64 = 2048;
/// Share of the memory bound for pages and nodes. Of the rest an eighth of the bound is for inodes; then there are the
/// transport's messages and what the allocator cannot reuse.
pub(crate) const SHARED_PERCENT: u64 = 66;
/// Clean nodes, whatever else there is.
pub(crate) const CLEAN_PERCENT: u64 = 12;
/// Dirty nodes: at least, and at most.
pub(crate) const DIRTY_PERCENT: (u64, u64) = (12, 35);
/// Left between the pages there are and their bound, so that the cache can grow into what nodes do not use.
pub(crate) const GROWTH_PERCENT: u64 = 4;
/// Share of the page bound that pages may take which cannot be dropped.
pub(crate) const PINNED_PERCENT: u64 = 60;
/// Light writers are not slowed down before so much more than the bound cannot be dropped: an eighth of it, which
/// only they use.
pub(crate) const LIGHT_SHARE: u64 = 8;
/// The background writes while more than this share of the pages that cannot be dropped is dirty (7 MiB by default):
/// early, so that a sync finds little left.
pub(crate) const BACKGROUND_SHARE: u64 = 8;
/// Fraction of the memory bound that clean inodes may take.
pub(crate) const INODES_SHARE: usize = 16;
/// Rough memory of a clean inode without pages, in bytes.
pub(crate) const INODE_MEMORY_BYTES: usize = 1024;
/// Entries looked at for eviction per insertion; more than one, so that a full table shrinks again.
pub(crate) const INODE_EVICTION_STEPS: usize = 4;
/// Share of the memory bound that may be charged: 64 MiB by default.
pub(crate) const CHARGED_SHARE: u64 = 4;
/// Share of the memory bound for clean tree nodes while a volume recovers; then they share it with pages.
pub(crate) const RECOVERY_NODES_SHARE: usize = 8;
/// Pages looked at per visit of a file.
pub(crate) const EVICTION_VISIT_PAGES: usize = 256;
/// Visits per call; a cache that is still too large then is shrunk further by the next caller.
pub(crate) const EVICTION_VISITS_MAX: usize = 256;
/// Small files that were dirtied last; older ones are left to the background. A program that writes many and then
/// syncs them all begins with the oldest, so they have to last for a pass over as many as are written within the
/// commit interval.
pub(crate) const RECENT_FILES_MAX: usize = 4096;
/// Flights that can be given up for others; older ones have mostly landed.
pub(crate) const AHEAD_NOTES_MAX: usize = 256;
/// Separate ranges that one watch keeps; beyond that close ones are taken for one, which may report a conflict that
/// was none.
pub(crate) const WATCHED_RANGES_MAX: usize = 4096;

// Reading.

/// Most pages of one flight: 1 MiB, one read where the file lies in one piece.
pub(crate) const FLIGHT_PAGES_MAX: u64 = 256;
/// The furthest that is read ahead: 4 MiB.
pub(crate) const AHEAD_PAGES_MAX: u64 = 1024;
/// Pages that the first sequential miss reads ahead: 128 KiB.
pub(crate) const AHEAD_PAGES_MIN: u64 = 32;
/// Requests of one reader may come out of order by this much (4 MiB): a kernel sends several at once.
pub(crate) const DISORDER_PAGES: u64 = 1024;
/// Pages that a reader wants at once (256 KiB) and that need not be kept for it if it keeps them itself. Smaller
/// requests may come from a reader that changes parts of pages, which would have to be read again for that.
pub(crate) const PASSING_PAGES_MIN: u64 = 64;
/// Share of the page cache that may be under way ahead of readers.
pub(crate) const AHEAD_SHARE: u64 = 8;
/// What was read ahead is kept for so long for a reader that does not go on.
pub(crate) const AHEAD_AGE: Duration = Duration::from_secs(10);
/// Files whose flights are given up at most to make room for another one.
pub(crate) const AHEAD_RECLAIMS_MAX: usize = 8;
/// Pages of one device read: 1 MiB.
pub(crate) const READ_PAGES_MAX: u64 = 256;
/// Fetches without the turn before the turn is taken.
pub(crate) const FETCH_TRIES: u32 = 3;

// Writing, and slowing writers down.

/// Bytes of a write that are done under one hold of the lock, so that an append of this size is one piece.
pub(crate) const WRITE_CHUNK_BYTES_MAX: usize = 4 << 20;
/// Writes of at least this much are taken for parts of a stream.
pub(crate) const STREAMING_BYTES_MIN: usize = 128 << 10;
/// Bytes copied at a time.
pub(crate) const COPY_BYTES: u64 = 1 << 20;
/// Rounds that a writer does for others at most before it goes on.
pub(crate) const THROTTLE_ROUNDS_MAX: u32 = 64;
/// Waits for rounds of others (of up to 50 ms each) before a writer goes on all the same: somebody is stuck then.
pub(crate) const THROTTLE_WAITS_MAX: u32 = 600;
/// Writers that write for others at the same time: enough to keep the device busy.
pub(crate) const THROTTLE_WRITERS_MAX: u64 = 3;
/// Files considered when a group is picked for writeback.
pub(crate) const PICK_FILES_MAX: usize = 64;
/// A file of which so little is dirty (256 KiB) and a write as long are light: whoever syncs now and then does not wait
/// behind who writes gigabytes.
pub(crate) const LIGHT_PAGES: u64 = 64;
/// How long a writer waits for others to write before it looks whether it can do so itself.
pub(crate) const PROGRESS_PATIENCE: Duration = Duration::from_millis(10);
/// The same for a writer that is slowed down and told when there is room: a bound for what nobody tells.
pub(crate) const ROOM_PATIENCE: Duration = Duration::from_millis(50);

// Rounds, streams, and the lane of bulk data.

/// Pages of a round: 4 MiB of data, long enough for a disk to stream.
pub(crate) const ROUND_PAGES_MAX: u64 = 1024;
/// Items of a round's batch: the store sets aside the nodes that each may need.
pub(crate) const ROUND_ITEMS_MAX: usize = 128;
/// Bytes of a round's batch that are asked for even if the pages look cheap; one piece always fits.
pub(crate) const ROUND_BYTES_MIN: usize = 4096;
/// A file with fewer pages to write (1 MiB) is not worth a stream.
pub(crate) const STREAM_PAGES_MIN: u64 = 256;
/// Pages of a round of the background, and of any round beside syncs (1 MiB): what the lane lets through is logged
/// soon.
pub(crate) const PIECEMEAL_PAGES: u64 = 256;
/// Rounds in flight while small syncs and reads come in between.
pub(crate) const CAREFUL_IN_FLIGHT: usize = 2;
/// Bulk data in flight while the lane is narrow: 256 KiB, which a fast disk takes in less time than a flush.
pub(crate) const NARROW_BYTES: u64 = (NARROW_PAGES * BLOCK_BYTES) as u64;
/// Pages of one write meanwhile.
pub(crate) const NARROW_PAGES: usize = 64;
/// A shorter write counts like one of 32 KiB, because it costs the device about as much.
pub(crate) const LANE_LEAST_BYTES: u64 = 32 << 10;
/// Bulk data that is written narrowly after each small request: about 50 ms of a fast disk.
pub(crate) const HEEDED_BYTES: u64 = 32 << 20;
/// Pages of one write else.
pub(crate) const WRITE_PAGES_MAX: usize = 256;

// The background, admission, and what is set aside.

/// Images older than this are destaged.
pub(crate) const DESTAGE_AGE: Duration = Duration::from_secs(5);
/// Images beyond this are destaged at once: 32 MiB.
pub(crate) const LOGGED_PAGES_MAX: u64 = (32 << 20) / BLOCK_BYTES as u64;
/// Images are destaged at once if a checkpoint would leave more than this part of the ring in use because of them: an
/// eighth. Not those of pages that are logged again and again: the last image of such a page is young.
pub(crate) const IMAGE_SHARE: u64 = 8;
/// A checkpoint is due after this, if anything happened: recovery replays no more than that.
pub(crate) const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(30);
/// Pinned blocks that are not worth a checkpoint.
pub(crate) const PINNED_BLOCKS_MIN: u64 = 1024;
/// Calls of the background without any sync between them after which it no longer gives way.
pub(crate) const QUIET_CALLS: u32 = 16;
/// Pages that may wait in the queue: 16 MiB.
pub(crate) const HINTED_PAGES_MAX: u64 = (16 << 20) / BLOCK_BYTES as u64;
/// Hints that may wait.
pub(crate) const HINTS_MAX: usize = 1024;
/// Reliefs that one admission leads before it gives up: after that the batch cannot fit. One may have been a larger
/// bound only, and a second checkpoint brings back what the first one superseded.
pub(crate) const RELIEFS_MAX: u32 = 4;
/// Items of smaller batches that are asked for in turn when the volume is too full for the nodes of a large one.
pub(crate) const SMALLER_ITEMS: [usize; 2] = [12, SMALLEST_ITEMS];
/// The fewest items with which every necessary batch gets somewhere.
pub(crate) const SMALLEST_ITEMS: usize = 4;
/// Times that a necessary batch waits for others to end before the volume counts as too full for it.
pub(crate) const ADMISSION_WAITS_MAX: usize = 20;
/// How long calls that find no space wait while a removed file has its space still, all of them together. A close is
/// under way for less than a millisecond, or as long as the processors are busy with others. A test's other thread is
/// waited for longer.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 1000 } else { 50 });
/// From the first of these calls until calls wait again, unless a file is removed or closed before: who waits may have
/// a thread of a mount, which others want, and a removed file may be open for days.
pub(crate) const CLOSE_PAUSE: Duration = Duration::from_secs(2);
/// Closes that one call waits for. Others may take what each of them gives back.
pub(crate) const CLOSE_WAITS_MAX: u32 = 5;
/// How often the background tries what is set aside.
pub(crate) const ASIDE_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Images that are carried by one batch: 256 KiB.
pub(crate) const CARRIED_PAGES_MAX: usize = 64;
/// Checkpoints that make room for one such batch.
pub(crate) const CARRY_TRIES_MAX: u32 = 3;
/// Images read and destaged together: 8 MiB.
pub(crate) const IMAGES_TOGETHER: usize = 2048;

// Syncs.

/// A sync with at most this many dirty pages (16 KiB) logs them as images. Larger data would cost its bytes twice, and
/// data and record in parallel are as fast.
pub(crate) const IMAGE_PAGES_MAX: u64 = 4;
/// A file with more pieces to write is left to a batch of its own: a few like it fill one, and others would wait for
/// several.
pub(crate) const PIECES_MAX: u64 = 4;
/// Pages that are written out by a caller who must not wait: 128 KiB, for which a caller on the same CPU is held up no
/// longer than for a large write.
pub(crate) const AT_ONCE_PAGES_MAX: u64 = 32;
/// Files looked at per force; many of them may be clean by now.
pub(crate) const ALONG_LOOKS_MAX: usize = 512;
/// Files in use that are kept for the next force: then this one looks no further.
pub(crate) const ALONG_LATER_MAX: usize = 32;
/// Syncs of a group behind which files are taken along.
pub(crate) const ALONG_PLACES_MAX: usize = 64;
/// Files that a force usually takes along at most, however small.
pub(crate) const ALONG_FILES_MAX: usize = 32;
/// Doublings of what is taken along: all who share the force wait for it.
pub(crate) const ALONG_DOUBLINGS_MAX: usize = 2;

// Shapes of files, and removal.

/// Pages whose extents are looked at together: at first, because most holes are near, and at most.
pub(crate) const SEEK_PAGES_FIRST: u64 = 1 << 7;
pub(crate) const SEEK_PAGES_MAX: u64 = 1 << 15;
/// Pages looked at together: 128 MiB.
pub(crate) const ALLOCATE_PAGES: u64 = 1 << 15;
/// Extents that one batch puts.
pub(crate) const PIECES_PER_BATCH: usize = 128;
/// Extents of a file that is removed in one small batch.
pub(crate) const FEW_EXTENTS: usize = 16;
/// Extents that one batch frees at most.
pub(crate) const EXTENTS_PER_BATCH: usize = 200;
/// Pages that are made a file's own before they are written out: 8 MiB.
pub(crate) const OWNED_TOGETHER: u64 = 2048;
/// Times that a file is written back before one that never stops changing is given up.
pub(crate) const SETTLE_TRIES: u32 = 16;
/// Items of an inode that one batch of its removal deletes at most.
pub(crate) const REAP_ITEMS_MAX: usize = 256;
/// A file with at most this many blocks (1 MiB), stored or dirty, is truncated or removed by one small batch.
pub(crate) const LIGHT_BLOCKS_MAX: u64 = 256;
/// Directories above one another that a cycle check follows.
pub(crate) const DIRECTORY_DEPTH_MAX: u32 = 1 << 20;

// Transactions.

/// A transaction with at most this many pages in memory logs them as images: their bytes cost less than the writes of
/// pages that lie apart.
pub(crate) const STAGED_IMAGE_PAGES_MAX: usize = 16;
/// Extents that a truncation frees in the transaction's own batch, if it can leave more to be freed later.
pub(crate) const FREED_EXTENTS_MAX: usize = 1024;
/// Pages that are looked at in one piece, and extents: about 100 us.
pub(crate) const PIECE_PAGES: usize = 2048;
pub(crate) const PIECE_EXTENTS: usize = 64;
/// Bytes of staged pages that one transaction keeps in memory at most.
pub(crate) const STAGED_MEMORY_BYTES_MAX: usize = 1 << 20;
/// Share of the volume's memory that one transaction's staged pages may take.
pub(crate) const STAGED_MEMORY_SHARE: usize = 64;
/// Fewest pages that are spilled together.
pub(crate) const STAGED_PAGES_MIN: usize = 32;
/// Share of the volume's pages that all transactions together keep staged in memory before each keeps as few as it can.
pub(crate) const STAGED_SHARE: u64 = 16;
/// Times that a commit starts over because others are faster, before it gives up.
pub(crate) const COMMIT_TRIES_MAX: u32 = 64;
/// Items of a batch that may draw on the space that is kept for a full volume.
pub(crate) const NECESSARY_ITEMS_MAX: usize = 128;
/// What a transaction remembers of names and attributes that it has only looked at, in bytes. What it changes is
/// bounded by a record, of which a change takes more than it does of memory.
pub(crate) const LOOKED_AT_BYTES_MAX: usize = 16 << 20;

// Snapshots.

/// Memory of a snapshot that is read, for pages and inodes; the nodes are the volume's.
pub(crate) const SNAPSHOT_MEMORY_BYTES: usize = 32 << 20;
/// Times that making or deleting one starts over because others use up what was relieved.
pub(crate) const SNAPSHOT_TRIES: u32 = 64;
/// How often snapshots are looked through for those whose time has come.
pub(crate) const SCHEDULE_LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// How long the schedule waits when a snapshot could not be made.
pub(crate) const SCHEDULE_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Snapshots that are deleted by one call of the background: a batch each.
pub(crate) const SCHEDULE_DELETIONS_MAX: usize = 16;

/// Leaves that a step of a deletion looks at while somebody syncs: the trees' lock is held for less than 100 us.
pub(crate) const REAPED_BESIDE_SYNCS: usize = 4;
