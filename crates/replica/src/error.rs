use crate::request::StoreError;
use syncline_device::DeviceError;
use syncline_format::FormatError;

/// Why a replica cannot be written or read. Each is one sentence that says what to do where something can be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{name} in the replica is damaged: {error}")]
    Damaged { name: String, error: FormatError },
    #[error(
        "{name} in the replica was written by a newer version of syncline (its format is {version}); use that one"
    )]
    Newer { name: String, version: u16 },
    #[error("{name} in the replica is damaged: {what}")]
    Inconsistent { name: String, what: &'static str },
    #[error("{name} is missing in the replica, although it counts")]
    Missing { name: String },
    #[error("{name} is gone: the replica was pruned while it was read; begin again")]
    Pruned { name: String },
    #[error("others changed the replica at the same time; try again")]
    Disturbed,
    #[error("the replica has branches of a newer version of syncline, which alone may delete in it")]
    Branches,
    #[error("{name} belongs to another volume; the replica's address is one of another volume")]
    ForeignVolume { name: String },
    #[error(
        "the replica was written by {by} since this volume last was (claim {newest}, this volume has {own}); \
         restore the replica, or begin a new one"
    )]
    Behind { own: u64, newest: u64, by: String },
    #[error(
        "this volume was last shipped to a replica with claim {own}, the newest claim here is {newest}; \
         is it the right address?"
    )]
    Older { own: u64, newest: u64 },
    #[error(
        "this volume is older than its replica (generation {own}, the replica has {replica}): it was set back; \
         restore the replica, or begin a new one"
    )]
    SetBack { own: u64, replica: u64 },
    #[error("{by} has taken over the replica (claim {claim}); this volume ships nothing more")]
    Fenced { claim: u64, by: String },
    #[error("others opened the replica at the same time, {tries} times in a row; try again")]
    Contended { tries: u32 },
    #[error("the replica is empty: nothing has been shipped to it yet")]
    Empty,
    #[error("the replica holds no state that can be restored at that position or before it")]
    NothingBefore,
    #[error("the replica is one of {replica} blocks, this device has {device}")]
    OtherSize { replica: u64, device: u64 },
    #[error("the replica has {0} claims, which is more than this version can list; begin a new one")]
    TooManyClaims(u64),
    #[error(
        "the replica has {0} packs, which is more than this version can list; keep less, or begin a new one"
    )]
    TooManyPacks(usize),
    #[error("reading the volume for the replica failed: {0}")]
    Device(#[from] DeviceError),
    #[error("the object store did not take everything within {seconds} s; it is on this machine only")]
    NotShipped { seconds: u64 },
    #[error("a write or a flush of the volume failed, so nothing more is shipped")]
    VolumeFailed,
}

impl ReplicaError {
    /// An object of this name cannot be decoded.
    #[must_use]
    pub fn undecodable(name: String, error: FormatError) -> ReplicaError {
        match error {
            FormatError::Version { got, .. } if got > 0 => ReplicaError::Newer { name, version: got },
            error => ReplicaError::Damaged { name, error },
        }
    }
}
