use syncline_device::DeviceError;
use syncline_format::item::NAME_BYTES_MAX;
use syncline_format::{BlockNo, FormatError, ObjectNo};
use syncline_store::StoreError;

/// Why a filesystem operation failed. [`Error::errno`] is the one mapping to error numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// ENOENT.
    #[error("no such file or directory")]
    NotFound,
    /// ESTALE: an inode number or handle outlived its inode.
    #[error("stale file handle: the file was removed")]
    Stale,
    /// EEXIST.
    #[error("file exists")]
    Exists,
    /// ENOTDIR.
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR.
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY.
    #[error("directory not empty")]
    NotEmpty,
    /// EINVAL.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// EPERM.
    #[error("operation not permitted")]
    NotPermitted,
    /// EACCES.
    #[error("permission denied")]
    AccessDenied,
    /// ENAMETOOLONG.
    #[error("name too long (at most 255 bytes, a link's target at most 4095)")]
    NameTooLong,
    /// EMLINK.
    #[error("too many links")]
    TooManyLinks,
    /// ELOOP.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// EFBIG.
    #[error("file too large")]
    FileTooLarge,
    /// ENODATA.
    #[error("no such extended attribute")]
    NoAttribute,
    /// ERANGE.
    #[error("out of range: the limit or the size needed is {0} bytes")]
    Range(usize),
    /// E2BIG.
    #[error("the value is larger than 65536 bytes")]
    TooBig,
    /// EOPNOTSUPP.
    #[error("operation not supported")]
    NotSupported,
    /// EOPNOTSUPP: blocks were to be moved within a file that a snapshot has too. Whoever moves a range makes them the
    /// file's own before, so nobody outside meets it.
    #[error("blocks behind the range are a snapshot's as well and cannot be moved; try again")]
    SharedWithSnapshot,
    /// EBADF.
    #[error("bad file handle")]
    BadHandle,
    /// ENXIO.
    #[error("no such device or address")]
    NoSuchDevice,
    /// EXDEV.
    #[error("cross-device link")]
    CrossDevice,
    /// EBUSY.
    #[error("resource busy")]
    Busy,
    /// ENOENT: the volume has no head of that name.
    #[error("the volume has no head named \"{name}\"")]
    NoHead {
        /// What was asked for.
        name: String,
    },
    /// EBUSY: a head is not deleted while somebody has it open.
    #[error("the head \"{name}\" is in use; close it first")]
    HeadInUse {
        /// The head.
        name: String,
    },
    /// ENOSPC.
    #[error("no space left on the volume")]
    NoSpace,
    /// EAGAIN: somebody else has changed what a transaction depends on. Nothing of it was applied; begun anew, it may
    /// succeed.
    #[error(
        "the transaction conflicts with a change made by others meanwhile; nothing of it was applied: begin it again"
    )]
    Conflict,
    /// E2BIG: EFBIG would blame a file, and it is the list of changes that is too long.
    #[error(
        "the transaction is too large for one journal record ({bytes} of at most {bytes_max} bytes); split it, or make the volume with a larger journal"
    )]
    TransactionTooLarge {
        /// What its changes take in the journal, at least.
        bytes: usize,
        /// What one record holds.
        bytes_max: usize,
    },
    /// E2BIG: what a transaction remembers of names and attributes is bounded.
    #[error(
        "the transaction has looked at too many names and attributes (it remembers {bytes_max} bytes of them); split it"
    )]
    TransactionNames {
        /// What it may remember.
        bytes_max: usize,
    },
    /// EDQUOT: what all transactions keep in memory is bounded together.
    #[error(
        "all transactions together keep as much in memory as they may ({bytes_max} bytes); commit or drop some, or open the volume with a larger memory bound"
    )]
    TransactionMemory {
        /// What they may keep.
        bytes_max: usize,
    },
    /// EROFS.
    #[error("the volume is read-only")]
    ReadOnly,
    /// C7: the block was read, and is not what was written.
    #[error("data of inode {object} at page {page} (block {block}) does not match its checksum")]
    Checksum {
        /// The file.
        object: ObjectNo,
        /// The page within the file.
        page: u64,
        /// Where it was read from.
        block: BlockNo,
    },
    /// An item is well-formed but contradicts another.
    #[error("corruption in inode {object}: {what}; run `syncline check` on the unmounted volume")]
    Inconsistent {
        /// The inode whose items contradict each other.
        object: ObjectNo,
        /// What is wrong.
        what: &'static str,
    },
    /// An item is damaged.
    #[error("corruption: {0}; run `syncline check` on the unmounted volume")]
    Format(#[from] FormatError),
    /// Changes of damaged files could not be committed; those of all others are durable.
    #[error(
        "{files} damaged file(s) could not be written back, all others were; the first is inode {object}: {cause}"
    )]
    SetAside {
        /// How many.
        files: usize,
        /// The first of them.
        object: ObjectNo,
        /// What of it cannot be read.
        cause: Box<Error>,
    },
    /// The store cannot do it.
    #[error(transparent)]
    Store(StoreError),
    /// The device cannot do it.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// ENOSPC: opening for writing writes, and what holds the image has no room for that.
    #[error(
        "the file system that holds the image is full ({cause}), so the volume cannot be opened for writing: make room there, \
         or open it read-only (mount -o ro)"
    )]
    HostFull {
        /// What could not be written.
        cause: DeviceError,
    },
    /// ESTALE: a volume, file, ticket or transaction of the process that this one was forked from; or a volume that
    /// is to be opened here though that process had one open.
    #[error(transparent)]
    Forked(#[from] syncline_device::Forked),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] syncline_device::OpenError),
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        match error {
            StoreError::NoSpace | StoreError::BatchTooLarge { .. } => Error::NoSpace,
            StoreError::ReadOnly => Error::ReadOnly,
            StoreError::NoDiscard => Error::NotSupported,
            StoreError::SharedBlocks => Error::SharedWithSnapshot,
            other => Error::Store(other),
        }
    }
}

/// ENOSPC and EDQUOT, from what holds an image.
const HOST_FULL: [i32; 2] = [28, 122];

impl Error {
    /// Why a volume cannot be opened for writing, where that is another reason than it seems.
    pub(crate) fn of_opening(self) -> Error {
        let cause = match &self {
            Error::Device(cause) => cause,
            Error::Store(StoreError::Device(cause) | StoreError::Failed { cause }) => cause,
            _ => return self,
        };
        match cause {
            DeviceError::Io { errno, .. } if HOST_FULL.contains(errno) => {
                Error::HostFull { cause: cause.clone() }
            }
            _ => self,
        }
    }

    /// Whether it says that a snapshot is held, and so not deleted.
    pub fn is_held_snapshot(&self) -> bool {
        matches!(self, Error::Store(StoreError::TreeHeld { .. }))
    }

    /// The Linux error number.
    ///
    /// A volume that stopped after an I/O error refuses changes with `ReadOnly` (EROFS); what still reaches the store,
    /// above all syncs, gets EIO (C8). Corruption and I/O errors are EIO.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotPermitted => 1,
            Error::NotFound | Error::NoHead { .. } => 2,
            Error::NoSuchDevice => 6,
            Error::TooBig | Error::TransactionTooLarge { .. } | Error::TransactionNames { .. } => 7,
            Error::BadHandle => 9,
            Error::Conflict => 11,
            Error::AccessDenied => 13,
            Error::Busy | Error::HeadInUse { .. } => 16,
            Error::Exists => 17,
            Error::CrossDevice => 18,
            Error::NotDirectory => 20,
            Error::IsDirectory => 21,
            Error::Invalid(_) => 22,
            Error::FileTooLarge => 27,
            Error::NoSpace | Error::HostFull { .. } => 28,
            Error::ReadOnly => 30,
            Error::TooManyLinks => 31,
            Error::Range(_) => 34,
            Error::NameTooLong => 36,
            Error::NotEmpty => 39,
            Error::SymlinkLoop => 40,
            Error::NoAttribute => 61,
            Error::NotSupported | Error::SharedWithSnapshot => 95,
            Error::Stale | Error::Forked(_) => 116,
            Error::TransactionMemory { .. } => 122,
            Error::Checksum { .. }
            | Error::Inconsistent { .. }
            | Error::Format(_)
            | Error::SetAside { .. }
            | Error::Device(_) => 5,
            Error::Store(error) => store_errno(error),
            Error::Open(error) => error.errno(),
        }
    }
}

/// What has a number of its own, of the errors that keep their words.
fn store_errno(error: &StoreError) -> i32 {
    match error {
        StoreError::NoTree { .. } => 2,
        StoreError::DefaultHead | StoreError::TreeHeld { .. } => 16,
        StoreError::TreeExists { .. } => 17,
        StoreError::BadTreeName { name } if name.len() > NAME_BYTES_MAX => 36,
        StoreError::BadTreeName { .. } => 22,
        StoreError::TooManyTrees { .. } => 28,
        StoreError::NotASnapshot { .. } => 22,
        StoreError::NotAHead { .. } => 30,
        StoreError::NeedsUpgrade => 95,
        _ => 5,
    }
}

impl From<Error> for std::io::Error {
    /// Keeps the error number, so that `kind` and `raw_os_error` are what programs expect. Errors that say more than
    /// their number does (corruption, I/O) keep their message instead.
    fn from(error: Error) -> std::io::Error {
        match error {
            Error::Checksum { .. }
            | Error::Conflict
            | Error::SharedWithSnapshot
            | Error::NoHead { .. }
            | Error::HeadInUse { .. }
            | Error::TransactionTooLarge { .. }
            | Error::TransactionNames { .. }
            | Error::TransactionMemory { .. }
            | Error::Invalid(_)
            | Error::Inconsistent { .. }
            | Error::Format(_)
            | Error::SetAside { .. }
            | Error::Store(_)
            | Error::Device(_)
            | Error::HostFull { .. }
            | Error::Forked(_)
            | Error::Open(_) => {
                let kind = std::io::Error::from_raw_os_error(error.errno()).kind();
                std::io::Error::new(kind, error)
            }
            _ => std::io::Error::from_raw_os_error(error.errno()),
        }
    }
}

/// Result of filesystem operations.
pub type Result<T> = std::result::Result<T, Error>;

/// An inode number that is no longer in use is a stale reference, not a missing name.
pub(crate) fn not_found_is_stale(error: Error) -> Error {
    match error {
        Error::NotFound => Error::Stale,
        other => other,
    }
}
