use crate::BlockNo;

/// Why bytes are not a well-formed structure of the format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    #[error("not a Syncline {what}: magic {got:#010x}")]
    Magic { what: &'static str, got: u64 },
    #[error("format version {got} of the {what} is not supported (this software reads versions 1 and 2)")]
    Version { what: &'static str, got: u16 },
    #[error("checksum mismatch in the {what}: stored {want:#018x}, computed {got:#018x}")]
    Checksum { what: &'static str, want: u64, got: u64 },
    #[error("misplaced {what}: it says block {got}, it was read from block {want}")]
    Address { what: &'static str, want: BlockNo, got: BlockNo },
    #[error("the {what} belongs to another volume")]
    ForeignVolume { what: &'static str },
    #[error("{what}: field {field} has the impossible value {value}")]
    Field { what: &'static str, field: &'static str, value: u64 },
    #[error("{what} is truncated: {got} bytes, at least {want} expected")]
    Truncated { what: &'static str, want: usize, got: usize },
    #[error(
        "only a part of this volume was fetched from its replica so far: mount the replica with local= to go on"
    )]
    Partial,
    #[error("the volume needs features that this software does not know: {unknown:#x}")]
    Features { unknown: u64 },
}
