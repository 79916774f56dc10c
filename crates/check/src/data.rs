//! Reads file data and compares it with the checksums in the extents.

use crate::Code;
use crate::marks::Marks;
use crate::progress::{Phase, Reporter};
use crate::report::{Findings, Totals};
use std::collections::BTreeSet;
use syncline_device::{Buffer, Device};
use syncline_format::item::{ExtentContent, ExtentItem};
use syncline_format::{BLOCK_BYTES, Key, ObjectNo, checksum};

/// Verifies data, or does not, as the options say.
pub(crate) struct DataCheck<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) wanted: bool,
    /// Of these objects alone.
    pub(crate) only: Option<&'a BTreeSet<ObjectNo>>,
    pub(crate) progress: &'a mut Reporter,
}

impl DataCheck<'_> {
    /// Verifies the blocks of a written extent; of others there is nothing to verify.
    pub(crate) fn extent(
        &mut self,
        key: Key,
        extent: &ExtentItem,
        marks: &mut Marks,
        findings: &mut Findings,
        totals: &mut Totals,
    ) {
        let ExtentContent::Written(sums) = &extent.content else { return };
        if !self.wanted || self.only.is_some_and(|only| !only.contains(&key.object)) {
            return;
        }
        let mut data = Buffer::zeroed(sums.len());
        let mut matching = 0;
        let mut note = |index: u64, matches: bool| {
            if !matches {
                marks.damaged.insert(extent.block_of(index), 1);
            }
            u64::from(matches)
        };
        if self.device.read(extent.start, &mut data).is_ok() {
            for (index, (block, &want)) in data.chunks_exact(BLOCK_BYTES).zip(sums).enumerate() {
                let index = index as u64;
                matching += note(index, compare(block, want, key, extent, index, findings));
            }
        } else {
            // Block by block, to say which one it is.
            for (index, &want) in (0u64..).zip(sums) {
                let mut block = Buffer::zeroed(1);
                match self.device.read(extent.block_of(index), &mut block) {
                    Ok(()) => {
                        matching += note(index, compare(&block, want, key, extent, index, findings));
                    }
                    Err(error) => {
                        note(index, false);
                        let message = format!("page {}: {error}", key.offset + index);
                        findings.both(Code::DataUnreadable, extent.block_of(index), key.object, message);
                    }
                }
            }
        }
        totals.data_blocks_verified += matching;
        totals.data_blocks_damaged += sums.len() as u64 - matching;
        self.progress.advance(Phase::Data, totals.data_blocks_verified + totals.data_blocks_damaged);
    }

    /// Tells what was found damaged where another tree has it, to which it belongs.
    pub(crate) fn tell_shared(key: Key, extent: &ExtentItem, marks: &Marks, findings: &mut Findings) {
        for index in 0..u64::from(extent.pages()) {
            let block = extent.block_of(index);
            if marks.damaged.first_of(block, 1).is_some() {
                let message =
                    format!("page {}: damaged in the snapshot that it is shared with", key.offset + index);
                findings.both(Code::DataChecksum, block, key.object, message);
            }
        }
    }
}

/// Whether the block matches its checksum.
fn compare(
    block: &[u8],
    want: u64,
    key: Key,
    extent: &ExtentItem,
    index: u64,
    findings: &mut Findings,
) -> bool {
    let got = checksum(block);
    if got != want {
        let message = format!("page {}: stored {want:#018x}, computed {got:#018x}", key.offset + index);
        findings.both(Code::DataChecksum, extent.block_of(index), key.object, message);
    }
    got == want
}
