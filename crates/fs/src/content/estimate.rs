//! How much room in the journal a batch of page images needs.

use syncline_format::BLOCK_BYTES;
use syncline_format::batch::{BATCH_HEADER_BYTES, IMAGE_OVERHEAD_BYTES, PUT_OVERHEAD_BYTES};
use syncline_format::item::INODE_BYTES;
use syncline_store::Estimate;

/// Bounds of a batch with `pages` images and an inode.
pub(crate) fn image_estimate(pages: u64) -> Estimate {
    let images = pages as usize;
    let bytes =
        BATCH_HEADER_BYTES + PUT_OVERHEAD_BYTES + INODE_BYTES + images * (IMAGE_OVERHEAD_BYTES + BLOCK_BYTES);
    Estimate { bytes, items: 1, images }
}
