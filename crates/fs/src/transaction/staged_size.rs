//! How much of a journal record a transaction is going to take, told while it is being staged.
//!
//! A batch has to fit one record (R17). Working out exactly what the staged content becomes means looking up extents,
//! so it is done only when a cheap bound says that it may be too much; from then on the bound counts from what was
//! found.

use crate::content::extents::{DROP_COST, put_cost};
use crate::transaction::staged::{StagedFile, Staging};
use crate::transaction::staged_commit::FilePlan;
use crate::{Error, Fs, ObjectNo, Result};
use std::ops::Range;
use syncline_format::BLOCK_BYTES;
use syncline_format::batch::{
    BATCH_HEADER_BYTES, DELETE_BYTES, PUT_OVERHEAD_BYTES, RELEASE_BYTES, SPACE_OP_BYTES,
};
use syncline_format::item::{EXTENT_PAGES_MAX, INODE_BYTES};

/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 8;

impl StagedFile {
    /// Bound of the bytes that staging these pages adds to the batch.
    fn more(&self, pages: &Range<u64>) -> usize {
        let staged = self.pages.range(pages.clone()).count();
        let added = (pages.end - pages.start) as usize - staged;
        if added == 0 {
            return 0;
        }
        let piece = put_cost(0).bytes + SPACE_OP_BYTES + RELEASE_BYTES + DELETE_BYTES + DROP_COST.bytes;
        let pieces = added / EXTENT_PAGES_MAX as usize + 1 + staged.min(added);
        // What is left of an old extent keeps its checksums, at each end of a run; one that only becomes longer has its
        // ends counted.
        let is_staged = |page: u64| self.pages.contains_key(&page);
        let joins = pages.start > 0 && is_staged(pages.start - 1) || is_staged(pages.end);
        let ends = if joins && staged == 0 { 0 } else { 2 };
        let inode = if self.pages.is_empty() { PUT_OVERHEAD_BYTES + INODE_BYTES } else { 0 };
        added * CHECKSUM_BYTES + pieces * piece + ends * put_cost(u64::from(EXTENT_PAGES_MAX)).bytes + inode
    }
}

/// What a staged page takes in memory beside its content.
const PAGE_ENTRY_BYTES: usize = 112;
/// What a file takes: its inode, which is held, and what is watched of it.
const FILE_BYTES: usize = 1536;

/// What a transaction holds before it is committed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of memory, about.
    pub bytes: u64,
    /// Blocks of the volume, free for nobody else.
    pub blocks: u64,
}

impl Staging {
    /// What is staged takes so much.
    pub(crate) fn footprint(&self) -> Footprint {
        let pages = self.page_total * PAGE_ENTRY_BYTES + self.newer.len() * BLOCK_BYTES;
        Footprint { bytes: (pages + self.files.len() * FILE_BYTES) as u64, blocks: self.page_total as u64 }
    }

    /// Tells the volume what is staged.
    pub(crate) fn recharge(&mut self) {
        self.charge.set(self.footprint().bytes);
    }

    /// Whether staging these pages too leaves a transaction that can be committed.
    ///
    /// Errors: `TransactionTooLarge`.
    pub(crate) fn check_size(&mut self, fs: &Fs, number: ObjectNo, pages: &Range<u64>) -> Result<()> {
        let bytes_max = fs.core.store.batch_bytes_max();
        let more = self.files[&number].more(pages);
        if self.bytes_bound.saturating_add(more) > bytes_max {
            self.work_out_size(fs)?;
        }
        let bytes = self.bytes_bound.saturating_add(more);
        if bytes > bytes_max {
            return Err(Error::TransactionTooLarge { bytes, bytes_max });
        }
        self.bytes_bound = bytes;
        Ok(())
    }

    /// Looks up what the staged content becomes, and bounds its bytes by that.
    pub(crate) fn work_out_size(&mut self, fs: &Fs) -> Result<()> {
        // What is in memory is taken for images otherwise.
        self.spill(fs)?;
        let inode = PUT_OVERHEAD_BYTES + INODE_BYTES;
        let sum = |sum, plan: &FilePlan| sum + inode + plan.bound().bytes;
        self.bytes_bound = self.plan(fs)?.iter().fold(BATCH_HEADER_BYTES, sum);
        Ok(())
    }

    /// Bound of the bytes that the content takes in the batch.
    pub(crate) fn bytes_bound(&self) -> usize {
        self.bytes_bound
    }
}
