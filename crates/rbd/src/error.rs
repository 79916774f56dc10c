//! Why an image could not be opened.

use std::io;
use std::path::PathBuf;
use syncline_device::OpenError;

/// Why an image could not be opened. Each is one sentence that says what to do where something can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RbdError {
    #[error(
        "{url} is no address of an image of Ceph ({why}); write it like rbd:pool/image or rbd:pool/image?conf=/path&id=user"
    )]
    Address { url: String, why: &'static str },
    #[error("{url} needs Ceph's library, which cannot be loaded ({why}); install librbd1")]
    Library { url: String, why: String },
    #[error(
        "{url}: no configuration of a Ceph cluster is found; give ?conf=/path, or put it into /etc/ceph/ceph.conf"
    )]
    NoConf { url: String },
    #[error("{url}: the cluster cannot be reached as {user}: {}; see whether its monitors run and the user's key is right", io::Error::from_raw_os_error(*.errno))]
    Connect { url: String, user: String, errno: i32 },
    #[error("{url}: the cluster has no pool {pool}; \"ceph osd pool ls\" shows those that it has")]
    NoPool { url: String, pool: String },
    #[error("{url}: there is no such image; \"rbd create --size SIZE\" makes one")]
    NoImage { url: String },
    #[error(
        "{url}: the image has {bytes} bytes, which is not a whole number of 4 KiB, or none; make one of another size"
    )]
    Size { url: String, bytes: u64 },
    #[error(
        "{url}: the image has no exclusive lock, so nothing keeps a second machine from it; \"rbd feature enable\" gives it exclusive-lock"
    )]
    NoLock { url: String },
    #[error(
        "{url} is in use by {owners}; unmount it there. If that machine is lost, its lock ends with it within half a minute, and --take-over \
         (mount -o take_over) breaks it at once"
    )]
    InUse { url: String, owners: String },
    #[error(
        "{url} cannot be opened for writing ({}); give the user \"profile rbd\" for the pool, or use it read-only",
        io::Error::from_raw_os_error(*.errno)
    )]
    NotWritable { url: String, errno: i32 },
    #[error("{url}: cannot {doing}: {}", io::Error::from_raw_os_error(*.errno))]
    Step { url: String, doing: &'static str, errno: i32 },
    #[error(transparent)]
    Forked(#[from] syncline_device::Forked),
}

impl RbdError {
    fn errno(&self) -> i32 {
        match self {
            RbdError::Address { .. } => libc::EINVAL,
            RbdError::Library { .. } => libc::ELIBACC,
            RbdError::NoConf { .. } | RbdError::NoPool { .. } | RbdError::NoImage { .. } => libc::ENOENT,
            RbdError::Size { .. } | RbdError::NoLock { .. } => libc::EOPNOTSUPP,
            RbdError::InUse { .. } => libc::EBUSY,
            RbdError::Connect { errno, .. }
            | RbdError::NotWritable { errno, .. }
            | RbdError::Step { errno, .. } => *errno,
            RbdError::Forked(_) => libc::ESTALE,
        }
    }
}

impl From<RbdError> for OpenError {
    fn from(error: RbdError) -> OpenError {
        match error {
            // Who may not write may read.
            RbdError::NotWritable { url, errno } => {
                OpenError::NotWritable { path: PathBuf::from(url), errno }
            }
            RbdError::Forked(forked) => OpenError::Forked(forked),
            error => OpenError::Remote { errno: error.errno(), sentence: error.to_string().into() },
        }
    }
}
