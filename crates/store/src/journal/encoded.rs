//! [`Encoded`]: a batch's bytes on their way to a record.
//!
//! Who seals keeps everybody who syncs waiting, and megabytes take long to copy. So a batch that is large enough to
//! have a record to itself is laid out as that record before anybody is kept waiting, by the one who commits it.

use syncline_device::Buffer;
use syncline_format::batch::BatchBuf;
use syncline_format::record::{RECORD_HEADER_BYTES, record_blocks};

pub(crate) enum Encoded {
    Batch(BatchBuf),
    Laid(Laid),
}

/// A record without its header.
pub(crate) struct Laid {
    pub(super) record: Buffer,
    /// Bytes of the batch.
    len: usize,
}

impl Laid {
    pub(super) fn new(batch: &BatchBuf) -> Laid {
        let len = batch.len();
        let mut record = Buffer::for_overwrite(record_blocks(len) as usize);
        let (content, padding) = record[RECORD_HEADER_BYTES..].split_at_mut(len);
        batch.encode_into(content);
        padding.fill(0);
        Laid { record, len }
    }
}

impl Encoded {
    /// Bytes of the batch.
    pub(super) fn len(&self) -> usize {
        match self {
            Encoded::Batch(batch) => batch.len(),
            Encoded::Laid(laid) => laid.len,
        }
    }

    /// The bytes of a batch that is laid out already, to be changed before anybody sees them.
    pub(crate) fn laid_bytes(&mut self) -> Option<&mut [u8]> {
        match self {
            Encoded::Batch(_) => None,
            Encoded::Laid(laid) => {
                Some(&mut laid.record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + laid.len])
            }
        }
    }

    /// Copies the batch; `out` has its length.
    pub(super) fn copy_into(&self, out: &mut [u8]) {
        match self {
            Encoded::Batch(batch) => batch.encode_into(out),
            Encoded::Laid(laid) => {
                out.copy_from_slice(&laid.record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + laid.len]);
            }
        }
    }
}
