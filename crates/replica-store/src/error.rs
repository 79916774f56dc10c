use std::path::PathBuf;
use syncline_device::{DeviceError, OpenError};
use syncline_format::FormatError;
use syncline_replica::{LazyError, ReplicaError, StoreError};

/// Why a replica cannot be used. Each is one sentence that says what to do where something can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{url} is no address of a replica: {why}")]
    Address { url: String, why: String },
    #[error("{url} needs a syncline with the feature {feature}, which this one was built without")]
    Feature { url: String, feature: &'static str },
    #[error("{url} cannot hold a replica: {why}")]
    Unfit { url: String, why: String },
    #[error("{url}: {error}")]
    Unreachable { url: String, error: StoreError },
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    #[error("the device holds no volume that can be replicated: {0}")]
    NoVolume(FormatError),
    #[error("what the volume says about its replica is damaged ({0}); begin a new replica")]
    Mark(FormatError),
    #[error(
        "{url} holds a replica of this volume already, written by {by}; mount the volume with it, or give another place"
    )]
    Occupied { url: String, by: String },
    #[error("{url} holds no replica")]
    NoReplica { url: String },
    #[error(
        "{url} holds replicas of {count} volumes; name one by --volume, or by volume= of a mount: {uuids}"
    )]
    SeveralVolumes { url: String, count: usize, uuids: String },
    #[error("{} holds another volume than {url}; name another image, or another replica", .path.display())]
    OtherVolume { path: PathBuf, url: String },
    #[error(
        "what {} was begun from ({position}) is not kept in its replica any more; move it away, and begin anew", .path.display()
    )]
    Outrun { path: PathBuf, position: String },
    #[error("{}: {error}; name an image that can be made", .path.display())]
    Image { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Lazy(#[from] LazyError),
    #[error("the device failed: {0}")]
    Device(#[from] DeviceError),
    #[error("cannot start what drives the replica: {0}")]
    Thread(#[from] std::io::Error),
}
