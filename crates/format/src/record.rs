//! Journal records: the unit that one force writes. A header, then batches back to back, padded with zeros to 4 KiB.

use crate::header::{self, BlockHeader, MAGIC_RECORD, VolumeId};
use crate::{BLOCK_BYTES, BlockNo, FormatError, Generation, Lsn, Sequence};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Head of a record. The common header's checksum covers the whole record, padding included.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RecordHeader {
    /// Its generation is the superblock's that was durable when the record was sealed; its block is the record's
    /// first block on the device.
    pub header: BlockHeader,
    pub epoch: U64,
    pub sequence: U64,
    /// Checksum of the record with the preceding sequence number (R14).
    pub predecessor: U64,
    /// All records up to this sequence, and the data of their batches, were known to be flushed (R4).
    pub known_flushed: U64,
    /// LSN of the first batch; the others follow without a gap.
    pub first_lsn: U64,
    pub batches: U32,
    /// Bytes of batches behind this header.
    pub payload_bytes: U32,
    pub reserved: [u8; 40],
}

const _: () = assert!(size_of::<RecordHeader>() == RECORD_HEADER_BYTES);

/// Bytes of a record before its batches.
pub const RECORD_HEADER_BYTES: usize = 128;
/// Largest record that any journal allows (a ring's own bound, an eighth of it, is usually smaller).
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// What a record says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordInfo {
    pub epoch: u64,
    pub sequence: Sequence,
    pub predecessor: u64,
    pub known_flushed: Sequence,
    pub generation: Generation,
    pub first_lsn: Lsn,
    pub batches: u32,
    pub payload_bytes: u32,
}

impl RecordInfo {
    /// LSN of the last batch.
    pub fn last_lsn(&self) -> Lsn {
        Lsn(self.first_lsn.0 + u64::from(self.batches) - 1)
    }

    /// Blocks that the record takes in the ring.
    pub fn blocks(&self) -> u64 {
        record_blocks(self.payload_bytes as usize)
    }
}

/// Blocks of a record with `payload_bytes` of batches.
pub fn record_blocks(payload_bytes: usize) -> u64 {
    (RECORD_HEADER_BYTES + payload_bytes).div_ceil(BLOCK_BYTES) as u64
}

/// Writes header and checksum into `record`, which holds the batches behind [`RECORD_HEADER_BYTES`] and zero padding
/// to a whole number of blocks. Returns the checksum, the next record's predecessor.
pub fn seal(record: &mut [u8], at: BlockNo, info: &RecordInfo, volume: VolumeId) -> u64 {
    assert_eq!(record.len() as u64, info.blocks() * BLOCK_BYTES as u64, "a record is padded to whole blocks");
    let head = RecordHeader {
        header: BlockHeader::new(MAGIC_RECORD, at, info.generation, volume),
        epoch: U64::new(info.epoch),
        sequence: U64::new(info.sequence.0),
        predecessor: U64::new(info.predecessor),
        known_flushed: U64::new(info.known_flushed.0),
        first_lsn: U64::new(info.first_lsn.0),
        batches: U32::new(info.batches),
        payload_bytes: U32::new(info.payload_bytes),
        reserved: [0; 40],
    };
    record[..RECORD_HEADER_BYTES].copy_from_slice(head.as_bytes());
    header::seal(record)
}

/// Reads a record's header without verifying its checksum: enough to learn its length and whether it can matter.
///
/// Errors: not a record of this volume at this address, or impossible fields.
pub fn peek(bytes: &[u8], at: BlockNo, volume: VolumeId) -> Result<RecordInfo, FormatError> {
    const WHAT: &str = "journal record";
    let Ok((head, _)) = RecordHeader::read_from_prefix(bytes) else {
        return Err(FormatError::Truncated { what: WHAT, want: RECORD_HEADER_BYTES, got: bytes.len() });
    };
    let common = &head.header;
    if common.magic.get() != MAGIC_RECORD {
        return Err(FormatError::Magic { what: WHAT, got: u64::from(common.magic.get()) });
    }
    if common.version.get() != crate::FORMAT_VERSION {
        return Err(FormatError::Version { what: WHAT, got: common.version.get() });
    }
    if common.volume.get() != volume.0 {
        return Err(FormatError::ForeignVolume { what: WHAT });
    }
    if common.block.get() != at.0 {
        return Err(FormatError::Address { what: WHAT, want: at, got: BlockNo(common.block.get()) });
    }
    let payload_bytes = head.payload_bytes.get();
    if payload_bytes as usize > RECORD_BYTES_MAX || head.batches.get() == 0 {
        return Err(FormatError::Field {
            what: WHAT,
            field: "payload_bytes",
            value: u64::from(payload_bytes),
        });
    }
    if head.first_lsn.get().checked_add(u64::from(head.batches.get())).is_none() {
        return Err(FormatError::Field { what: WHAT, field: "first_lsn", value: head.first_lsn.get() });
    }
    Ok(RecordInfo {
        epoch: head.epoch.get(),
        sequence: Sequence(head.sequence.get()),
        predecessor: head.predecessor.get(),
        known_flushed: Sequence(head.known_flushed.get()),
        generation: common.generation(),
        first_lsn: Lsn(head.first_lsn.get()),
        batches: head.batches.get(),
        payload_bytes,
    })
}

/// Verifies a whole record; returns what it says, its checksum, and its batches' bytes.
pub fn verify(bytes: &[u8], at: BlockNo, volume: VolumeId) -> Result<(RecordInfo, u64, &[u8]), FormatError> {
    const WHAT: &str = "journal record";
    let info = peek(bytes, at, volume)?;
    let want = info.blocks() as usize * BLOCK_BYTES;
    if bytes.len() < want {
        return Err(FormatError::Truncated { what: WHAT, want, got: bytes.len() });
    }
    let common = header::verify(WHAT, MAGIC_RECORD, &bytes[..want], at, volume)?;
    let payload = &bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + info.payload_bytes as usize];
    Ok((info, common.checksum.get(), payload))
}
