//! FUSE over io_uring (7.42): what is shared with the kernel per entry of a queue.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the area for [`InHeader`](super::InHeader), and on the way back for [`OutHeader`](super::OutHeader).
pub const IN_OUT_BYTES: usize = 128;
/// Bytes of the area for an operation's fixed header.
pub const OP_HEADER_BYTES: usize = 128;
/// Registers an entry and fetches its first request.
pub const CMD_REGISTER: u32 = 1;
/// Answers an entry's request and fetches the next one.
pub const CMD_COMMIT_AND_FETCH: u32 = 2;

/// State of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UringEntInOut {
    pub flags: u64,
    /// Names the request when it is answered.
    pub commit_id: u64,
    /// Bytes used of the payload buffer; in both directions.
    pub payload_sz: u32,
    pub padding: u32,
    pub reserved: u64,
}
const _: () = assert!(size_of::<UringEntInOut>() == 32);

/// Header buffer of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UringReqHeader {
    pub in_out: [u8; IN_OUT_BYTES],
    pub op_in: [u8; OP_HEADER_BYTES],
    pub ring_ent_in_out: UringEntInOut,
}
const _: () = assert!(size_of::<UringReqHeader>() == 288);

/// In the 80 bytes of command data of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UringCmdReq {
    pub flags: u64,
    pub commit_id: u64,
    /// Number of the queue.
    pub qid: u16,
    pub padding: [u8; 6],
}
const _: () = assert!(size_of::<UringCmdReq>() == 24);
