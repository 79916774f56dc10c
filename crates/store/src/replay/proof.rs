//! R4: order is replaced by proof. The data of fresh extents that nothing confirms is read and compared.

use super::{Replay, Unconfirmed};
use crate::StoreError;
use crate::limits::PROOF_BYTES_MAX;
use crate::ring_scan::RingReader;
use std::collections::VecDeque;
use syncline_device::{Buffer, ReadRequest};
use syncline_format::batch::{Op, decode_batches, fresh_extent};
use syncline_format::item::{ExtentContent, ExtentItem};
use syncline_format::{BLOCK_BYTES, Lsn, checksum};

/// Extents to be proven together, in the order of the log, each with the batch that wrote it.
#[derive(Default)]
struct Claims {
    extents: Vec<(Lsn, ExtentItem)>,
    bytes: usize,
}

impl Replay<'_> {
    /// The first of the batches whose own data is not whole on the device.
    pub(super) fn find_cut(
        &self,
        unconfirmed: &VecDeque<Unconfirmed>,
        reader: &mut RingReader<'_>,
    ) -> Result<Option<Lsn>, StoreError> {
        let mut claims = Claims::default();
        for record in unconfirmed {
            let info = record.chained.info;
            let block = self.block_of(&record.chained);
            let batches = decode_batches(record.payload(reader)?, info.batches)
                .map_err(|source| StoreError::Corrupt { block, source })?;
            for (index, ops) in batches.iter().enumerate() {
                let lsn = Lsn(info.first_lsn.0 + index as u64);
                if lsn <= self.superblock.checkpoint_lsn {
                    continue;
                }
                for op in ops {
                    let Op::Put { key, value, fresh: true, .. } = *op else { continue };
                    match fresh_extent(key, value) {
                        Ok(extent) if self.shared.layout().holds_run(extent.start, extent.pages()) => {
                            claims.add(lsn, extent);
                        }
                        // What no device can hold was not written; what came before it may have been.
                        _ => return Ok(self.first_unproven(&mut claims)?.or(Some(lsn))),
                    }
                }
                if claims.bytes >= PROOF_BYTES_MAX
                    && let Some(lsn) = self.first_unproven(&mut claims)?
                {
                    return Ok(Some(lsn));
                }
            }
        }
        self.first_unproven(&mut claims)
    }

    /// The first batch of which an extent does not hold what it claims.
    fn first_unproven(&self, claims: &mut Claims) -> Result<Option<Lsn>, StoreError> {
        let Claims { extents, .. } = std::mem::take(claims);
        let device = &*self.shared.device;
        let mut data: Vec<Buffer> =
            extents.iter().map(|(_, extent)| Buffer::for_overwrite(extent.pages() as usize)).collect();
        let mut requests: Vec<ReadRequest<'_>> = extents
            .iter()
            .zip(&mut data)
            .map(|((_, extent), into)| ReadRequest { at: extent.start, into })
            .collect();
        let all_read = device.read_many(&mut requests).is_ok();
        drop(requests);
        for ((lsn, extent), data) in extents.iter().zip(&mut data) {
            if !all_read {
                // Which read failed is not known; one behind the cut is none of ours.
                device.read(extent.start, data)?;
            }
            let ExtentContent::Written(sums) = &extent.content else { continue };
            let whole = data.chunks_exact(BLOCK_BYTES).zip(sums).all(|(page, sum)| checksum(page) == *sum);
            if !whole {
                return Ok(Some(*lsn));
            }
        }
        Ok(None)
    }
}

impl Claims {
    fn add(&mut self, lsn: Lsn, extent: ExtentItem) {
        if matches!(extent.content, ExtentContent::Written(_)) {
            self.bytes += extent.pages() as usize * BLOCK_BYTES;
            self.extents.push((lsn, extent));
        }
    }
}
