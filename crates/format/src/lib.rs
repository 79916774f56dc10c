//! The Syncline volume format: bytes to structs and back, and nothing else.
//!
//! `docs/format.md` is the prose of what this crate encodes, and `docs/replication-format.md` that of [`replica`].
//! Nothing here performs I/O, allocates blocks or knows which structure points at which: the crate turns bytes into
//! checked values and values into bytes.
//!
//! Invariants:
//! - every decoder takes untrusted bytes and returns an error, never a panic, for whatever is not well-formed: each
//!   field is held against its row of [`range`];
//! - every on-disk struct has a size assertion beside it; persistent numbers are never reused;
//! - a structure that is read back as one piece carries one XXH3-64 over everything behind its checksum field.
#![forbid(unsafe_code)]

pub mod batch;
pub mod bitmap;
pub mod header;
pub mod ids;
pub mod item;
pub mod key;
pub mod layout;
pub mod node;
pub mod range;
pub mod record;
pub mod replica;
pub mod schedule;
pub mod superblock;
pub mod tree_item;

mod error;
mod names;
mod orphan;

pub use error::FormatError;
pub use header::{BlockHeader, VolumeId};
pub use ids::{BlockNo, Era, Generation, GroupNo, Lsn, ObjectNo, Sequence, TreeId};
pub use key::{Key, Kind};
pub use names::{KEYED_SLOTS, NAME_BITS, NAME_HASH_MAX, NAME_HASH_MIN, NameHash, NameKey, SEEDED_SLOTS};

use twox_hash::XxHash3_64;

/// Bytes per block: the unit of addressing, allocation, checksumming and writing.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes per tree node (four contiguous, aligned blocks: one *chunk*).
pub const NODE_BYTES: usize = 16384;
/// Blocks per tree node, and the alignment of a node relative to its group.
pub const NODE_BLOCKS: u32 = (NODE_BYTES / BLOCK_BYTES) as u32;
/// The version of every block's own layout but the superblock's. Software versions are a different number.
pub const FORMAT_VERSION: u16 = 1;
/// The volume's version, which its superblocks bear, from which on it has trees beside the first head.
pub const TREES_VERSION: u16 = 2;
/// Largest value of one item, in bytes; three such items always fit a leaf, so every overfull leaf can be split in two.
pub const ITEM_VALUE_BYTES_MAX: usize = 4096;

const _: () = assert!(NODE_BYTES.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(3 * (ITEM_VALUE_BYTES_MAX + node::SLOT_BYTES) <= node::NODE_SPACE_BYTES);

/// XXH3-64 of `bytes`: the one checksum of the format. The crate takes the widest vectors that the processor has.
pub fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}
