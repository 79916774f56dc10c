use syncline_device::DeviceError;
use syncline_format::{BlockNo, FormatError, ObjectNo};
use syncline_store::StoreError;

/// Why a filesystem operation failed. [`Error::errno`] is the one mapping to error numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("no such file or directory")]
    NotFound,
    #[error("file exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("directory not empty")]
    NotEmpty,
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    #[error("operation not permitted")]
    NotPermitted,
    #[error("permission denied")]
    AccessDenied,
    #[error("name too long (at most 255 bytes)")]
    NameTooLong,
    #[error("too many links")]
    TooManyLinks,
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    #[error("file too large")]
    FileTooLarge,
    #[error("no such extended attribute")]
    NoAttribute,
    #[error("the value does not fit: {0} bytes are needed")]
    Range(usize),
    #[error("the value is larger than 65536 bytes")]
    TooBig,
    #[error("operation not supported")]
    NotSupported,
    #[error("bad file handle")]
    BadHandle,
    #[error("no such device or address")]
    NoSuchDevice,
    #[error("cross-device link")]
    CrossDevice,
    #[error("resource busy")]
    Busy,
    #[error("no space left on the volume")]
    NoSpace,
    #[error("the volume is read-only")]
    ReadOnly,
    /// C7: the block was read, and is not what was written.
    #[error("data of inode {object} at page {page} (block {block}) does not match its checksum")]
    Checksum { object: ObjectNo, page: u64, block: BlockNo },
    /// An item is well-formed but contradicts another.
    #[error("corruption in inode {object}: {what}")]
    Inconsistent { object: ObjectNo, what: &'static str },
    #[error("corruption: {0}")]
    Format(#[from] FormatError),
    #[error(transparent)]
    Store(StoreError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        match error {
            StoreError::NoSpace => Error::NoSpace,
            StoreError::ReadOnly => Error::ReadOnly,
            other => Error::Store(other),
        }
    }
}

/// Result of filesystem operations.
pub type Result<T> = std::result::Result<T, Error>;
