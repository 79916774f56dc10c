use syncline_device::DeviceError;

/// Why a check could not be carried out. Damage is a finding, not an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The device failed where the check cannot go on without it.
    #[error("cannot check the volume: {0}")]
    Device(#[from] DeviceError),
    /// No superblock place holds one: this is no volume, or its start is overwritten.
    #[error("this is not a Syncline volume (no superblock at its places); check the path")]
    NotAVolume,
    /// The device is too small to hold any volume.
    #[error("the device has {blocks} blocks of 4 KiB, too few to be a volume; check the path")]
    TooSmall { blocks: u64 },
    /// Another version of the format, or features that this software does not know.
    #[error("{0}; use a newer version of syncline")]
    Unsupported(syncline_format::FormatError),
    /// What repair was about to make is not sound: a mistake of this program. Nothing was changed.
    #[error("repair would have left {code} ({what}); nothing was changed; this is a bug, please report it")]
    RepairFailed { code: &'static str, what: &'static str },
    /// Repair found no room for the new trees; nothing was changed.
    #[error("repair needs {needed} free blocks in runs of four and found {found}; nothing was changed")]
    NoSpace { needed: u64, found: u64 },
}
