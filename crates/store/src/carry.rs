//! Page images that recovery could not destage, because what of their files has to be read for it is damaged: the new
//! epoch's log begins with them.
//!
//! Their records are written into a part of the ring that the log of the old epoch does not take, and flushed, before
//! the superblock that starts the new epoch names the first of them as its tail (R10). So at every moment the durable
//! superblock leads to all images: before it the old log does, and of the new records nothing counts, since their
//! epoch is nobody's; after it the new one does. Their LSNs are not above the checkpoint's, so that a log that lacks
//! one of them is known to be broken.

use crate::journal::record_blocks_max;
use crate::limits::CARRIED_RECORD_BLOCKS_MAX;
use crate::shared::Shared;
use crate::{PageImage, StoreError};
use std::ops::Range;
use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::batch::{BatchBuf, Op};
use syncline_format::record::{self, RECORD_HEADER_BYTES, RecordInfo, record_blocks};
use syncline_format::superblock::JournalTail;
use syncline_format::{BLOCK_BYTES, Generation, Lsn, Sequence};

/// Of the first record. An empty log begins with 1, maybe at the same place: nobody would miss a record that is lost
/// there.
const FIRST: Sequence = Sequence(2);

/// A record that is on the device when the session begins.
pub(crate) struct Carried {
    /// Within the ring.
    pub(crate) block: u64,
    pub(crate) blocks: u64,
    pub(crate) last_lsn: Lsn,
    pub(crate) checksum: u64,
}

/// Images, each with its page.
pub(crate) type Pages<'a> = &'a [(PageImage, Buffer)];

/// The images that go into one record, and where that is.
struct Planned {
    block: u64,
    images: Range<usize>,
    batch: BatchBuf,
}

impl Shared {
    /// Writes the images, in free places of a ring of which the old log takes `taken`, as the log of the new epoch;
    /// from here on they live there. Nothing is flushed, and no superblock leads to it yet. Returns the records and
    /// the tail that names them.
    ///
    /// Errors: `NoRoomForImages`.
    pub(crate) fn carry(
        &self,
        pages: Pages<'_>,
        taken: &[Range<u64>],
        generation: Generation,
    ) -> Result<(Vec<Carried>, JournalTail), StoreError> {
        let ring_blocks = self.layout().journal_blocks;
        let planned = plan(pages, ring_blocks, taken)
            .ok_or(StoreError::NoRoomForImages { images: pages.len() as u64 })?;
        let epoch = self.epoch();
        let tail = JournalTail { block: planned[0].block, sequence: FIRST, predecessor: epoch };
        let mut carried: Vec<Carried> = Vec::with_capacity(planned.len());
        for (index, Planned { block, images, batch }) in planned.into_iter().enumerate() {
            let lsn = self.relog(&pages[images]);
            let payload = batch.into_encoded();
            let info = RecordInfo {
                epoch,
                sequence: Sequence(FIRST.0 + index as u64),
                predecessor: carried.last().map_or(epoch, |before| before.checksum),
                known_flushed: Sequence(0),
                generation,
                first_lsn: lsn,
                batches: 1,
                payload_bytes: payload.len() as u32,
            };
            let mut buffer = Buffer::zeroed(info.blocks() as usize);
            buffer[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload.len()].copy_from_slice(&payload);
            let at = self.layout().journal_start.plus(block);
            let checksum = record::seal(&mut buffer, at, &info, self.volume);
            self.device.write(at, vec![Arc::new(buffer)])?;
            carried.push(Carried { block, blocks: info.blocks(), last_lsn: lsn, checksum });
        }
        Ok((carried, tail))
    }

    /// The images are those of a batch of their own.
    fn relog(&self, pages: Pages<'_>) -> Lsn {
        let mut trees = self.trees.write();
        let lsn = trees.lsn.next();
        for (image, _) in pages {
            trees.images.insert(image.tree, image.object, image.page, lsn);
        }
        trees.lsn = lsn;
        lsn
    }
}

/// Which images go where; `None` if they do not fit. A reader looks for a record behind the one before it, and at
/// block 0.
fn plan(pages: Pages<'_>, ring_blocks: u64, taken: &[Range<u64>]) -> Option<Vec<Planned>> {
    let mut free = free_parts(ring_blocks, taken);
    let first = free.first().cloned().filter(|part| part.start == 0);
    free.sort_by_key(|part| std::cmp::Reverse(part.end - part.start));
    let one = free.iter().map(|part| vec![part.clone()]);
    let behind = free.iter().filter(|part| part.start > 0);
    let two = behind.filter_map(|part| Some(vec![part.clone(), first.clone()?]));
    one.chain(two).find_map(|parts| plan_in(pages, ring_blocks, &parts))
}

/// What of the ring is in none of the places.
fn free_parts(ring_blocks: u64, taken: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut taken: Vec<&Range<u64>> = taken.iter().collect();
    taken.sort_unstable_by_key(|place| place.start);
    let mut free = Vec::new();
    let mut next = 0;
    for place in taken {
        if place.start > next {
            free.push(next..place.start);
        }
        next = next.max(place.end);
    }
    if next < ring_blocks {
        free.push(next..ring_blocks);
    }
    free
}

fn plan_in(pages: Pages<'_>, ring_blocks: u64, parts: &[Range<u64>]) -> Option<Vec<Planned>> {
    let most = record_blocks_max(ring_blocks).min(CARRIED_RECORD_BLOCKS_MAX);
    let mut planned = Vec::new();
    let mut done = 0;
    for part in parts {
        let mut block = part.start;
        while done < pages.len() && block < part.end {
            let (count, batch) = fill(&pages[done..], most.min(part.end - block));
            if count == 0 {
                break;
            }
            let blocks = record_blocks(batch.len());
            planned.push(Planned { block, images: done..done + count, batch });
            block += blocks;
            done += count;
        }
    }
    (done == pages.len()).then_some(planned)
}

/// A batch of as many of the images, from the first on, as a record of so many blocks holds.
fn fill(pages: Pages<'_>, blocks: u64) -> (usize, BatchBuf) {
    let room = blocks as usize * BLOCK_BYTES - RECORD_HEADER_BYTES;
    let image = |(image, page): &(PageImage, Buffer), into: &mut BatchBuf| {
        into.push(Op::Image { tree: image.tree, object: image.object, page: image.page, bytes: page });
    };
    let mut count = 0;
    let mut bytes = BatchBuf::default().len();
    for page in pages {
        let mut alone = BatchBuf::default();
        image(page, &mut alone);
        bytes += alone.len() - BatchBuf::default().len();
        if bytes > room {
            break;
        }
        count += 1;
    }
    let mut batch = BatchBuf::default();
    pages[..count].iter().for_each(|page| image(page, &mut batch));
    (count, batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_old_log_does_not_take_is_free() {
        assert_eq!(free_parts(64, &[]), vec![0..64]);
        assert_eq!(free_parts(64, &[40..64, 8..12, 12..20]), vec![0..8, 20..40]);
        assert_eq!(free_parts(64, &[0..32, 32..64]), Vec::<Range<u64>>::new());
    }
}
