use crate::StoreError;
use crate::ablation::Ablation;
use crate::limits::{NODE_CACHE_BYTES, NODE_ITEMS_LEAST, PIGGYBACK_BYTES, STREAM_BYTES};
use syncline_format::{Key, NameKey};

/// What `mkfs` decides.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    pub uuid: [u8; 16],
    /// UTF-8, at most 64 bytes.
    pub label: String,
    /// Journal size in blocks; `None` takes the default for the device's size.
    pub journal_blocks: Option<u64>,
    /// Volume size in blocks; `None` takes the whole device.
    pub blocks: Option<u64>,
    /// Secret seed of name hashes in version 1.
    pub hash_seed: u64,
    /// Secret key of name hashes in version 2; without one they are those of version 1.
    pub name_key: Option<NameKey>,
    /// Random number of the first journal epoch.
    pub epoch: u64,
    pub created_seconds: i64,
    pub created_nanoseconds: u32,
    /// First items of the main tree, in any order.
    pub items: Vec<(Key, Vec<u8>)>,
}

/// How a volume is opened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Writes nothing at all, not even recovery: what the journal holds is kept in memory.
    pub read_only: bool,
    /// Read-only, a journal that is broken amid is shown up to there, instead of refused
    /// ([`crate::Store::broken_journal`]).
    pub salvage: bool,
    /// Bound on cached clean tree nodes, in bytes; dirty nodes are bounded to the same amount by checkpoints. Can be
    /// changed later: [`crate::Store::set_node_bounds`].
    pub node_cache_bytes: usize,
    /// A random number, new for every open. This session's records are named by one that is derived from it, which no
    /// record that is in the ring bears.
    pub epoch: u64,
    /// The largest record that a force fills up with piggybacked batches, in bytes (0 switches piggyback off).
    pub piggyback_bytes: usize,
    /// Buffered batches beyond this many bytes are written out without a flush.
    pub stream_bytes: usize,
    /// Volumes of version 2 are opened as well. For tests: who is above the store does not know of trees yet.
    #[doc(hidden)]
    pub trees: bool,
    /// A node of a head or snapshot that holds so many items takes no more. For tests: trees of few items have many
    /// leaves, and several levels. At least 3; the format knows nothing of it.
    #[doc(hidden)]
    pub node_items_max: usize,
    /// Mechanisms to do without.
    #[cfg(feature = "ablation")]
    pub ablation: Ablation,
}

impl StoreOptions {
    /// Defaults, with the given session number.
    pub fn new(epoch: u64) -> StoreOptions {
        StoreOptions {
            read_only: false,
            salvage: false,
            node_cache_bytes: NODE_CACHE_BYTES,
            epoch,
            piggyback_bytes: PIGGYBACK_BYTES,
            stream_bytes: STREAM_BYTES,
            trees: false,
            node_items_max: usize::MAX,
            #[cfg(feature = "ablation")]
            ablation: Ablation::default(),
        }
    }

    /// Writes nothing at all, not even recovery: what the journal holds is kept in memory.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> StoreOptions {
        self.read_only = read_only;
        self
    }

    /// Read-only, a journal that is broken amid is shown up to there, instead of refused
    /// ([`crate::Store::broken_journal`]).
    #[must_use]
    pub fn salvage(mut self, salvage: bool) -> StoreOptions {
        self.salvage = salvage;
        self
    }

    /// Bound on cached clean tree nodes, in bytes; dirty nodes are bounded to the same amount by checkpoints. Can be
    /// changed later: [`crate::Store::set_node_bounds`].
    #[must_use]
    pub fn node_cache_bytes(mut self, node_cache_bytes: usize) -> StoreOptions {
        self.node_cache_bytes = node_cache_bytes;
        self
    }

    /// The largest record that a force fills up with piggybacked batches, in bytes (0 switches piggyback off).
    #[must_use]
    pub fn piggyback_bytes(mut self, piggyback_bytes: usize) -> StoreOptions {
        self.piggyback_bytes = piggyback_bytes;
        self
    }

    /// Buffered batches beyond this many bytes are written out without a flush.
    #[must_use]
    pub fn stream_bytes(mut self, stream_bytes: usize) -> StoreOptions {
        self.stream_bytes = stream_bytes;
        self
    }

    /// Volumes of version 2 are opened as well.
    #[doc(hidden)]
    #[must_use]
    pub fn trees(mut self) -> StoreOptions {
        self.trees = true;
        self
    }

    /// A node of a head or snapshot that holds so many items takes no more.
    #[doc(hidden)]
    #[must_use]
    pub fn node_items_max(mut self, node_items_max: usize) -> StoreOptions {
        self.node_items_max = node_items_max.max(NODE_ITEMS_LEAST);
        self
    }

    /// Mechanisms to do without.
    #[cfg(feature = "ablation")]
    #[must_use]
    pub fn without(mut self, ablation: Ablation) -> StoreOptions {
        self.ablation = ablation;
        self
    }

    /// Whether the log ends where this happens.
    pub(crate) fn ends_at(&self, error: &StoreError) -> bool {
        use StoreError::{Device, JournalBroken, SuperblockLost};
        self.salvage
            && self.read_only
            && matches!(error, JournalBroken { .. } | SuperblockLost { .. } | Device(_))
    }

    /// Mechanisms to do without: none, unless the feature is there and somebody has asked.
    pub(crate) fn ablation(&self) -> Ablation {
        #[cfg(feature = "ablation")]
        return self.ablation;
        #[cfg(not(feature = "ablation"))]
        Ablation
    }
}
