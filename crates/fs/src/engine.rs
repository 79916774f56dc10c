//! [`Fs`]: one opened volume, addressed by inode numbers. Adapters (the mount) and the path-based facade stand on it.

use crate::clock::Clock;
use crate::data::Writeback;
use crate::namespace::InodeTable;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use syncline_store::Store;

/// How a volume behaves once it is open.
#[derive(Debug, Clone)]
pub struct FsOptions {
    /// Writes nothing, not even recovery.
    pub read_only: bool,
    /// Un-synced data is written and committed after at most this long (contract C9).
    pub commit_interval: Duration,
    /// Bound on all memory for cached pages and tree nodes, in bytes.
    pub memory_bytes_max: usize,
    /// Update access times: always, relative to modification (the default), or never.
    pub access_times: AccessTimes,
}

/// When reading updates a file's access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTimes {
    Never,
    /// When the old one is not newer than modification or change, or older than a day.
    #[default]
    Relative,
    Always,
}

impl Default for FsOptions {
    fn default() -> FsOptions {
        FsOptions {
            read_only: false,
            commit_interval: Duration::from_secs(1),
            memory_bytes_max: 256 << 20,
            access_times: AccessTimes::default(),
        }
    }
}

/// An opened volume.
pub struct Fs {
    // Constant after open.
    pub(crate) store: Arc<Store>,
    pub(crate) options: FsOptions,
    pub(crate) clock: Arc<dyn Clock>,
    /// Inodes in memory.
    pub(crate) inodes: InodeTable,
    /// Renames of directories, one at a time: outermost lock.
    pub(crate) renames: Mutex<()>,
    /// Dirty and logged pages of all files, and the page cache's account.
    pub(crate) writeback: Writeback,
}
