//! [`Encoded`]: a batch's bytes on their way to a record.
//!
//! Who seals keeps everybody who syncs waiting, and megabytes take long to copy. So a batch that is large enough to
//! have a record to itself is laid out as that record before anybody is kept waiting, by the one who commits it.

use syncline_device::Buffer;
use syncline_format::record::{RECORD_HEADER_BYTES, record_blocks};

pub(crate) enum Encoded {
    Bytes(Vec<u8>),
    Laid(Laid),
}

/// A record without its header.
pub(crate) struct Laid {
    pub(super) record: Buffer,
    /// Bytes of the batch.
    len: usize,
}

impl Laid {
    pub(super) fn new(batch: &[u8]) -> Laid {
        let mut record = Buffer::for_overwrite(record_blocks(batch.len()) as usize);
        let (content, padding) = record[RECORD_HEADER_BYTES..].split_at_mut(batch.len());
        content.copy_from_slice(batch);
        padding.fill(0);
        Laid { record, len: batch.len() }
    }
}

impl Encoded {
    pub(super) fn len(&self) -> usize {
        match self {
            Encoded::Bytes(bytes) => bytes.len(),
            Encoded::Laid(laid) => laid.len,
        }
    }

    /// The batch.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Encoded::Bytes(bytes) => bytes,
            Encoded::Laid(laid) => &laid.record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + laid.len],
        }
    }
}
