//! Why an export could not be opened.

use std::io;
use std::path::PathBuf;
use syncline_device::OpenError;

/// Why an export could not be opened. Each is one sentence that says what to do where something can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    #[error(
        "{url} is no address of an NBD export ({why}); write it like nbd://host/export or nbd+unix:///export?socket=/path"
    )]
    Address { url: String, why: &'static str },
    #[error("{url} cannot be reached: {source}; see whether its server runs")]
    Connect { url: String, source: io::Error },
    #[error(
        "{url}: the server does not answer within {seconds} s; it may serve one client at a time and have one"
    )]
    Silent { url: String, seconds: u64 },
    #[error("{url}: the server has closed the connection ({source}); its log may tell why")]
    Closed { url: String, source: io::Error },
    #[error("{url}: what answers there breaks the protocol of NBD ({what}); see whether it is an NBD server")]
    Protocol { url: String, what: &'static str },
    #[error("{url}: the server has no such export{told}; \"nbdinfo --list\" shows those that it has")]
    NoExport { url: String, told: Told },
    #[error("{url}: the server wants TLS, which is not spoken here; reach it by a tunnel")]
    Tls { url: String },
    #[error("{url}: the server refuses the export{told}")]
    Refused { url: String, told: Told },
    #[error(
        "{url}: the server cannot flush, so nothing written to it would be durable; serve it by one that can"
    )]
    NoFlush { url: String },
    #[error(
        "{url}: the export has {bytes} bytes, which is not a whole number of 4 KiB, or none; serve a size that is, as by nbdkit \
         --filter=truncate round-up=4096"
    )]
    Size { url: String, bytes: u64 },
    #[error(
        "{url}: the server takes no requests of 4 KiB (at least {min} bytes, at most {max}); serve it by one that does"
    )]
    BlockSize { url: String, min: u32, max: u32 },
    #[error("{} cannot be opened for writing (the export is read-only); use it read-only", .url.display())]
    ReadOnly { url: PathBuf },
    #[error("{} is in use by another process of this machine (a mount?); unmount it first", .url.display())]
    InUse { url: PathBuf },
    #[error(transparent)]
    Forked(#[from] syncline_device::Forked),
}

/// What a server has said of a refusal, as far as it can be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told(pub(crate) String);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_str() {
            "" => Ok(()),
            told => write!(f, " (\"{told}\")"),
        }
    }
}

impl NbdError {
    fn errno(&self) -> i32 {
        match self {
            NbdError::Address { .. } => libc::EINVAL,
            NbdError::Connect { source, .. } | NbdError::Closed { source, .. } => {
                source.raw_os_error().unwrap_or(libc::ECONNRESET)
            }
            NbdError::Silent { .. } => libc::ETIMEDOUT,
            NbdError::Protocol { .. } => libc::EPROTO,
            NbdError::NoExport { .. } => libc::ENOENT,
            NbdError::Tls { .. } | NbdError::Refused { .. } => libc::EACCES,
            NbdError::NoFlush { .. } | NbdError::Size { .. } | NbdError::BlockSize { .. } => libc::EOPNOTSUPP,
            NbdError::ReadOnly { .. } => libc::EROFS,
            NbdError::InUse { .. } => libc::EBUSY,
            NbdError::Forked(_) => libc::ESTALE,
        }
    }
}

impl From<NbdError> for OpenError {
    fn from(error: NbdError) -> OpenError {
        match error {
            NbdError::ReadOnly { url } => OpenError::NotWritable { path: url, errno: libc::EROFS },
            NbdError::InUse { url } => OpenError::Locked { path: url },
            NbdError::Forked(forked) => OpenError::Forked(forked),
            error => OpenError::Remote { errno: error.errno(), sentence: error.to_string().into() },
        }
    }
}
