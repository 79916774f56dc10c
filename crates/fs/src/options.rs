//! What may be chosen: [`FsOptions`] for an open volume, [`MkfsOptions`] for a new one.

use std::time::Duration;
use syncline_format::NAME_BITS;
#[cfg(feature = "ablation")]
use syncline_store::Ablation;

/// How a volume behaves once it is open.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FsOptions {
    /// Writes nothing, not even recovery.
    pub read_only: bool,
    /// Read-only, a journal that is broken amid is shown up to there, instead of refused
    /// ([`crate::Fs::is_journal_broken`]).
    pub salvage: bool,
    /// Un-synced data is written and committed after at most this long (contract C9).
    pub commit_interval: Duration,
    /// Bound on all memory for cached pages and tree nodes, in bytes.
    pub memory_bytes_max: usize,
    /// Update access times: always, relative to modification (the default), or never.
    pub access_times: AccessTimes,
    /// Whoever reads keeps what was read, as the kernel does above a mount: files that are read in order and in large
    /// pieces are not cached a second time.
    pub readers_keep: bool,
    /// Name of the head that is opened; by default the one that is shown when nobody names one.
    pub head: Option<String>,
    /// Bound on the leaves that one step of a deletion of a snapshot looks at. For tests: trees of few leaves take
    /// several steps.
    #[doc(hidden)]
    pub reaped_leaves_max: usize,
    /// A node of a tree that holds so many items takes no more. For tests: trees of few items have several levels.
    #[doc(hidden)]
    pub node_items_max: usize,
    /// Mechanisms to do without, for a benchmark.
    #[cfg(feature = "ablation")]
    pub ablation: Ablation,
}

impl Default for FsOptions {
    fn default() -> FsOptions {
        FsOptions {
            read_only: false,
            salvage: false,
            commit_interval: Duration::from_secs(1),
            memory_bytes_max: 256 << 20,
            access_times: AccessTimes::default(),
            readers_keep: false,
            head: None,
            reaped_leaves_max: usize::MAX,
            node_items_max: usize::MAX,
            #[cfg(feature = "ablation")]
            ablation: Ablation::default(),
        }
    }
}

impl FsOptions {
    /// Writes nothing, not even recovery.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> FsOptions {
        self.read_only = read_only;
        self
    }

    /// Read-only, a journal that is broken amid is shown up to there, instead of refused
    /// ([`crate::Fs::is_journal_broken`]).
    #[must_use]
    pub fn salvage(mut self, salvage: bool) -> FsOptions {
        self.salvage = salvage;
        self
    }

    /// Un-synced data is written and committed after at most this long (contract C9).
    #[must_use]
    pub fn commit_interval(mut self, commit_interval: Duration) -> FsOptions {
        self.commit_interval = commit_interval;
        self
    }

    /// Bound on all memory for cached pages and tree nodes, in bytes.
    #[must_use]
    pub fn memory_bytes_max(mut self, memory_bytes_max: usize) -> FsOptions {
        self.memory_bytes_max = memory_bytes_max;
        self
    }

    /// Update access times: always, relative to modification (the default), or never.
    #[must_use]
    pub fn access_times(mut self, access_times: AccessTimes) -> FsOptions {
        self.access_times = access_times;
        self
    }

    /// Whoever reads keeps what was read, as the kernel does above a mount: files that are read in order and in large
    /// pieces are not cached a second time.
    #[must_use]
    pub fn readers_keep(mut self, readers_keep: bool) -> FsOptions {
        self.readers_keep = readers_keep;
        self
    }

    /// Name of the head that is opened; by default the one that is shown when nobody names one.
    #[must_use]
    pub fn head(mut self, head: impl Into<Option<String>>) -> FsOptions {
        self.head = head.into();
        self
    }

    /// Bound on the leaves that one step of a deletion of a snapshot looks at.
    #[doc(hidden)]
    #[must_use]
    pub fn reaped_leaves_max(mut self, reaped_leaves_max: usize) -> FsOptions {
        self.reaped_leaves_max = reaped_leaves_max;
        self
    }

    /// A node of a tree that holds so many items takes no more.
    #[doc(hidden)]
    #[must_use]
    pub fn node_items_max(mut self, node_items_max: usize) -> FsOptions {
        self.node_items_max = node_items_max;
        self
    }

    /// Mechanisms to do without, for a benchmark.
    #[cfg(feature = "ablation")]
    #[must_use]
    pub fn ablation(mut self, ablation: Ablation) -> FsOptions {
        self.ablation = ablation;
        self
    }
}

/// When reading updates a file's access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTimes {
    /// Not at all.
    Never,
    /// When the old one is not newer than modification or change, or older than a day.
    #[default]
    Relative,
    /// With every read.
    Always,
}

/// What `mkfs` decides.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MkfsOptions {
    /// Name of the volume: UTF-8, at most 64 bytes.
    pub label: String,
    /// Chosen at random when not given.
    pub uuid: Option<[u8; 16]>,
    /// Size of the journal; by default 1/64 of the volume, 16 MiB to 1 GiB, less on small volumes.
    pub journal_bytes: Option<u64>,
    /// Size of the volume; by default the whole device.
    pub size_bytes: Option<u64>,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Version of the format: 2, or 1 for a volume that has no snapshots before it is upgraded.
    pub format: u32,
    /// Bits of the names' hash that count in version 2, 46 and no more: fewer make names collide, for tests.
    #[doc(hidden)]
    pub name_bits: u8,
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions {
            label: String::new(),
            uuid: None,
            journal_bytes: None,
            size_bytes: None,
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o755,
            format: 2,
            name_bits: NAME_BITS,
        }
    }
}

impl MkfsOptions {
    /// Name of the volume: UTF-8, at most 64 bytes.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> MkfsOptions {
        self.label = label.into();
        self
    }

    /// Chosen at random when not given.
    #[must_use]
    pub fn uuid(mut self, uuid: impl Into<Option<[u8; 16]>>) -> MkfsOptions {
        self.uuid = uuid.into();
        self
    }

    /// Size of the journal; by default 1/64 of the volume, 16 MiB to 1 GiB, less on small volumes.
    #[must_use]
    pub fn journal_bytes(mut self, journal_bytes: impl Into<Option<u64>>) -> MkfsOptions {
        self.journal_bytes = journal_bytes.into();
        self
    }

    /// Size of the volume; by default the whole device.
    #[must_use]
    pub fn size_bytes(mut self, size_bytes: impl Into<Option<u64>>) -> MkfsOptions {
        self.size_bytes = size_bytes.into();
        self
    }

    /// Owner of the root directory.
    #[must_use]
    pub fn root_uid(mut self, root_uid: u32) -> MkfsOptions {
        self.root_uid = root_uid;
        self
    }

    /// Group of the root directory.
    #[must_use]
    pub fn root_gid(mut self, root_gid: u32) -> MkfsOptions {
        self.root_gid = root_gid;
        self
    }

    /// Version of the format: 2, or 1 for a volume that has no snapshots before it is upgraded.
    #[must_use]
    pub fn format(mut self, format: u32) -> MkfsOptions {
        self.format = format;
        self
    }

    /// Permission bits of the root directory.
    #[must_use]
    pub fn root_mode(mut self, root_mode: u32) -> MkfsOptions {
        self.root_mode = root_mode;
        self
    }
}
