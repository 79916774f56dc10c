use syncline_device::DeviceError;
use syncline_format::{BlockNo, FormatError, Generation, Sequence, TreeId};

/// What has to be relieved before a batch can be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// The journal ring is full below its durable tail: destage images, then checkpoint.
    Journal,
    /// Too many dirty tree nodes for the free space or the memory bound: checkpoint.
    Nodes,
}

/// Why the store cannot do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A structure on the device is damaged.
    #[error("corruption at block {block}: {source}")]
    Corrupt { block: BlockNo, source: FormatError },
    /// A structure is well-formed but contradicts another.
    #[error("corruption at block {block}: {what}")]
    Inconsistent { block: BlockNo, what: &'static str },
    #[error("no valid superblock: {source}")]
    NoSuperblock { source: FormatError },
    #[error("this is not a Syncline volume (no superblock at its places); check the path")]
    NotSyncline,
    #[error(
        "both superblocks of this volume were overwritten, only their backups at its end are left; write nothing to it, \
         and restore it from a copy"
    )]
    SlotsLost,
    #[error("the device has {device_blocks} blocks of 4 KiB, too few to be a volume; check the path")]
    TooSmall { device_blocks: u64 },
    #[error(
        "the device or image is shorter ({} bytes) than its volume ({} bytes): it was cut off; \
         restore the whole image",
        .device_blocks.saturating_mul(4096),
        .volume_blocks.saturating_mul(4096)
    )]
    TooShort { volume_blocks: u64, device_blocks: u64 },
    #[error(
        "journal record {sequence} is missing or damaged although a later one says it was flushed; \
         \"syncline export --partial\" copies what is older"
    )]
    JournalBroken { sequence: Sequence },
    #[error(
        "journal record of generation {record} is newer than the superblock (generation {superblock}); \
         a superblock slot was lost; \"syncline export --partial\" copies what is older"
    )]
    SuperblockLost { record: Generation, superblock: Generation },
    /// Opening read-only still shows their content.
    #[error(
        "{images} page image(s) of damaged files cannot leave the journal, and it has no room to keep them, so the volume \
         cannot be opened for writing: open it read-only and copy what can be read, or run \"syncline check --repair\""
    )]
    NoRoomForImages { images: u64 },
    /// What was acknowledged cannot be entered into the tree. Opening read-only still shows all that can be read.
    #[error(
        "the journal changes a tree node that cannot be read ({cause}), so the volume cannot be opened for writing: open it \
         read-only and copy what can be read, or run \"syncline check --repair\""
    )]
    ReplayUnreadable { cause: Box<StoreError> },
    #[error("the volume has no tree {tree}")]
    NoTree { tree: TreeId },
    /// It never changes.
    #[error("tree {tree} is a snapshot: it never changes")]
    NotAHead { tree: TreeId },
    #[error("tree {tree} is no snapshot: only of a snapshot a head can be made")]
    NotASnapshot { tree: TreeId },
    /// Moved blocks would be named in two places.
    #[error("the blocks are a snapshot's as well")]
    SharedBlocks,
    #[error("the default head cannot be deleted: it is what the volume shows when nobody names a head")]
    DefaultHead,
    /// Somebody wants it to stay.
    #[error(
        "the snapshot \"{name}\" is held; release it before it is deleted (\"syncline snapshot release\")"
    )]
    TreeHeld { name: String },
    #[error("the volume has version 1 of the format, which has no snapshots; upgrade it first")]
    NeedsUpgrade,
    #[error("a snapshot or head named \"{name}\" exists already")]
    TreeExists { name: String },
    #[error(
        "\"{name}\" is no name for a snapshot: it is empty, longer than 255 bytes, \".\" or \"..\", or has a \"/\" or a NUL"
    )]
    BadTreeName { name: String },
    #[error("the volume has as many snapshots and heads as it may have ({most}); delete some")]
    TooManyTrees { most: usize },
    /// Only a volume whose last session has ended can be upgraded.
    #[error("the volume was not closed; open it once and close it, then upgrade it")]
    NotClosed,
    #[error("no space left on the volume")]
    NoSpace,
    /// Not an error to report: relieve the pressure and try again.
    #[error("{0:?} must be relieved first")]
    Pressure(Pressure),
    #[error("a batch of {bytes} bytes is larger than this volume's journal allows ({bytes_max})")]
    BatchTooLarge { bytes: usize, bytes_max: usize },
    #[error("the volume is read-only")]
    ReadOnly,
    /// A write or flush failed earlier; nothing can be made durable until the volume is reopened (C8).
    #[error("the volume stopped after an I/O error and is read-only until it is reopened: {cause}")]
    Failed { cause: DeviceError },
    /// The device, or the host's filesystem below an image, has no discards.
    #[error("the device cannot discard")]
    NoDiscard,
    #[error("the volume was shut down")]
    ShutDown,
    #[error("{0}")]
    Layout(FormatError),
}

impl StoreError {
    /// Whether it says that something on the device cannot be read, or is not what was written.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, StoreError::Device(_) | StoreError::Corrupt { .. } | StoreError::Inconsistent { .. })
    }
}
