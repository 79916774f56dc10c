use syncline_format::Key;

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
    /// Secret seed of name hashes.
    pub hash_seed: u64,
    /// Random number of the first journal epoch.
    pub epoch: u64,
    pub created_seconds: i64,
    pub created_nanoseconds: u32,
    /// First items of the main tree, in any order.
    pub items: Vec<(Key, Vec<u8>)>,
}

/// How a volume is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Writes nothing at all, not even recovery: what the journal holds is kept in memory.
    pub read_only: bool,
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
    /// Mechanisms to do without.
    #[doc(hidden)]
    pub ablation: Ablation,
}

/// Mechanisms that give way to the published older algorithm, so that a benchmark can show what each is worth.
/// Nothing of the contract is weakened by any of them. Each has one place where it is decided; the last three are the
/// filesystem's.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ablation {
    /// A force waits for the checkpoint that is being written.
    pub blocked_logging: bool,
    /// The data of a batch is complete before the batch is entered into the tree and logged.
    pub waiting_for_data: bool,
    /// Every batch is a record of its own, written before the next one is.
    pub ordered_records: bool,
    /// Every force writes what was committed up to its LSN and flushes by itself.
    pub no_group_commit: bool,
    /// A record carries only what had to be forced.
    pub no_piggyback: bool,
    /// Data goes to extents, never into the journal.
    pub no_images: bool,
    /// A rename and a link force the journal.
    pub forced_names: bool,
    /// A sync of a file ends with a checkpoint: what a tree without a journal has to do.
    pub checkpoint_per_sync: bool,
}

impl StoreOptions {
    /// Defaults, with the given session number.
    pub fn new(epoch: u64) -> StoreOptions {
        StoreOptions {
            read_only: false,
            node_cache_bytes: 64 << 20,
            epoch,
            piggyback_bytes: 64 << 10,
            stream_bytes: 128 << 10,
            ablation: Ablation::default(),
        }
    }
}
