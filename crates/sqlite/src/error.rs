//! What can go wrong, as data; worded and turned into SQLite's codes in one place.

use crate::abi;
use crate::part::Part;
use std::ffi::c_int;
use std::io;
use std::path::{Path, PathBuf};
use syncline_device::OpenError;

/// Why the VFS could not do what SQLite asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VfsError {
    #[error(
        "{} is in use by another process or mounted; to share a database between processes use the mount, with SQLite's own VFS",
        .image.display()
    )]
    InUse { image: PathBuf },
    #[error("{}: an operation on this volume has panicked; close all connections to it, and open it again", .image.display())]
    Panicked { image: PathBuf },
    #[error(transparent)]
    Forked(#[from] syncline_device::Forked),
    #[error("timeout={0}: give the time to wait for another process as a number of milliseconds")]
    Timeout(String),
    #[error("{}: there is no such file; 'syncline mkfs --size SIZE IMAGE' makes a volume in a file", .image.display())]
    NoImage { image: PathBuf },
    #[error("{} is a directory; name the image file or block device of a volume", .image.display())]
    Directory { image: PathBuf },
    #[error("{}", of_image(.image, .source))]
    Volume { image: PathBuf, source: io::Error },
    #[error("{}: {part}: {source}", .image.display())]
    Part { image: PathBuf, part: Part, source: io::Error },
    #[error("snapshot={snapshot}, head={head}: a database is opened in one of them; leave the other out")]
    TwoParts { snapshot: String, head: String },
    #[error(
        "{0} is amid a transaction that is too large for one record; half of it would be in the snapshot: make it when that has ended"
    )]
    UnderWay(String),
    #[error("no volume is named; open the database as file:/NAME?vfs=syncline&volume=IMAGE")]
    NoVolume,
    #[error("{0}: this name is no path within a volume")]
    Name(String),
    #[error("{0} is a symbolic link; name the database itself, or its journal would not be found again")]
    Symlink(String),
    #[error("{0} takes part in the transaction, but lies in another volume or VFS; commit it on its own")]
    Foreign(String),
    #[error(
        "{0} takes part in a transaction over several databases that is too large for one record, and has no journal to go on with; commit it in parts, or use a volume with a larger journal"
    )]
    TooLargeTogether(String),
    /// SQLite does it over with its journal.
    #[error(transparent)]
    Batch(Box<VfsError>),
    #[error("{0}: there is no such file or directory in the volume")]
    Missing(String),
    #[error("{0} was opened for reading only")]
    NotWritable(String),
    #[error("{name}: {source}")]
    Engine { name: String, source: syncline::Error },
    #[error("{name}: {source}")]
    Io { name: String, source: io::Error },
}

/// What the engine says of an image: whatever it is about, it is to be named once.
fn of_image(image: &Path, source: &io::Error) -> String {
    let (image, told) = (image.display().to_string(), source.to_string());
    if told.contains(&image) { told } else { format!("{image}: {told}") }
}

impl VfsError {
    /// Why a name leads to no open volume.
    pub(crate) fn no_volume() -> VfsError {
        match crate::loaded_in().check() {
            Ok(()) => VfsError::NoVolume,
            Err(forked) => VfsError::Forked(forked),
        }
    }

    /// Why a volume could not be opened.
    pub(crate) fn of_volume(image: &Path, source: io::Error) -> VfsError {
        use syncline::Error::Open;
        let image = image.to_owned();
        match source.get_ref().and_then(|inner| inner.downcast_ref::<syncline::Error>()) {
            Some(Open(
                OpenError::Locked { .. } | OpenError::ReadLocked { .. } | OpenError::Mounted { .. },
            )) => VfsError::InUse { image },
            None if source.kind() == io::ErrorKind::NotFound => VfsError::NoImage { image },
            _ => VfsError::Volume { image, source },
        }
    }

    /// For `map_err`: an error of the engine with the name of the file.
    pub(crate) fn engine(name: &[u8]) -> impl FnOnce(syncline::Error) -> VfsError {
        move |source| VfsError::Engine { name: String::from_utf8_lossy(name).into_owned(), source }
    }

    /// For `map_err`: an I/O error with the name of the file.
    pub(crate) fn io(name: &[u8]) -> impl FnOnce(io::Error) -> VfsError {
        move |source| {
            let name = String::from_utf8_lossy(name).into_owned();
            match source.kind() {
                io::ErrorKind::NotFound => VfsError::Missing(name),
                _ => VfsError::Io { name, source },
            }
        }
    }

    /// SQLite's code; `otherwise` is that of the operation that failed.
    ///
    /// Only a lack of space and a volume that is read-only have codes of their own. A transaction too large is like a
    /// lack of space: SQLite rolls it back, and the next one may succeed.
    pub(crate) fn code(&self, otherwise: c_int) -> c_int {
        use syncline::Error::{NoSpace, ReadOnly, TransactionTooLarge};
        match self {
            VfsError::NotWritable(_) => abi::READONLY,
            VfsError::TooLargeTogether(_) => abi::FULL,
            VfsError::Engine { source: NoSpace | TransactionTooLarge { .. }, .. } => abi::FULL,
            VfsError::Engine { source: ReadOnly, .. } => abi::READONLY,
            VfsError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => abi::FULL,
            VfsError::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                abi::READONLY
            }
            VfsError::Symlink(_) => abi::CANTOPEN_SYMLINK,
            _ => otherwise,
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, VfsError>;
