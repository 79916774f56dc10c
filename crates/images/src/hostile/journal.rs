//! Target of the journal's scan: records with any header and payload anywhere in a small ring, sealed, then opened.

use super::input::Input;
use super::patch::{base, operation};
use super::seal;
use crate::packed::SparseImage;
use crate::session;
use syncline_format::batch::BatchBuf;
use syncline_format::layout::Layout;
use syncline_format::record::{self, RECORD_HEADER_BYTES, RecordInfo};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, Generation, Lsn, Sequence};
use syncline_store::{Store, StoreOptions};

const RECORDS_MAX: usize = 40;
const BASE: &str = "v1-smallest";
const OPS_MAX: u8 = 12;

pub fn journal(input: &[u8]) {
    let mut image = base(BASE).clone();
    let Some(mut superblock) = seal::superblock(&image) else { return };
    let mut input = Input::new(input);
    let layout = superblock.layout;
    // An empty ring of a new epoch, so that the input alone decides what the log is.
    image.patch(layout.journal_start.byte_offset(), &vec![0; layout.journal_blocks as usize * BLOCK_BYTES]);
    superblock.tail.block = u64::from(input.byte()) % layout.journal_blocks;
    superblock.tail.sequence = Sequence(1);
    superblock.tail.predecessor = superblock.epoch;
    for at in syncline_format::superblock::SUPERBLOCK_SLOTS {
        image.patch(at.byte_offset(), &superblock.encode(at));
    }
    write_records(&mut image, &superblock, &mut input);
    for read_only in [true, false] {
        let device = image.device();
        let options = StoreOptions::new(99).read_only(read_only);
        if let Ok(mut recovery) = Store::open(device.clone(), options) {
            recovery.take_images();
        }
        if let Ok(fs) = session::open(device, read_only, 5) {
            let _ = fs.close();
        }
    }
    super::image::check_and_repair(&image);
}

/// Writes records one behind the other or wherever the input says, each the successor of the one before unless it says
/// otherwise.
fn write_records(image: &mut SparseImage, superblock: &Superblock, input: &mut Input<'_>) {
    let layout = superblock.layout;
    let mut next = Next {
        block: superblock.tail.block,
        sequence: 1,
        predecessor: superblock.epoch,
        lsn: superblock.checkpoint_lsn.0 + 1,
    };
    for _ in 0..RECORDS_MAX {
        if input.is_empty() {
            return;
        }
        write_record(image, superblock, &layout, &mut next, input);
    }
}

struct Next {
    block: u64,
    sequence: u64,
    predecessor: u64,
    lsn: u64,
}

fn write_record(
    image: &mut SparseImage,
    superblock: &Superblock,
    layout: &Layout,
    next: &mut Next,
    input: &mut Input<'_>,
) {
    let odd = input.byte();
    let is_odd = |bit: u8| odd & (1 << bit) != 0;
    let (payload, batches) = payload(is_odd(0), input);
    let mut info = RecordInfo {
        epoch: superblock.epoch,
        sequence: Sequence(next.sequence),
        predecessor: next.predecessor,
        known_flushed: Sequence(next.sequence - 1),
        generation: superblock.generation,
        first_lsn: Lsn(next.lsn),
        batches,
        payload_bytes: payload.len() as u32,
    };
    if is_odd(1) {
        info.sequence = Sequence(input.number());
    }
    if is_odd(2) {
        info.known_flushed = Sequence(input.number());
    }
    if is_odd(3) {
        info.first_lsn = Lsn(input.number());
    }
    if is_odd(4) {
        info.generation = Generation(input.number());
    }
    if is_odd(5) {
        info.batches = input.number() as u32;
    }
    if is_odd(6) {
        next.block = input.number() % layout.journal_blocks;
    }
    if next.block + info.blocks() > layout.journal_blocks {
        next.block = 0;
    }
    let mut bytes = vec![0; info.blocks() as usize * BLOCK_BYTES];
    bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload.len()].copy_from_slice(&payload);
    let at = layout.journal_start.plus(next.block);
    let sum = record::seal(&mut bytes, at, &info, superblock.volume_id());
    if is_odd(7) {
        let (place, content) = (usize::from(input.u16()) % bytes.len(), input.take(8));
        let end = (place + content.len()).min(bytes.len());
        bytes[place..end].copy_from_slice(&content[..end - place]);
    }
    image.patch(at.byte_offset(), &bytes);
    next.block += info.blocks();
    next.sequence += 1;
    next.predecessor = sum;
    next.lsn = info.first_lsn.0.saturating_add(u64::from(info.batches)).min(1 << 62);
}

/// Batches of operations, or any bytes.
fn payload(raw: bool, input: &mut Input<'_>) -> (Vec<u8>, u32) {
    if raw {
        let len = usize::from(input.u16()) % 16_000;
        return (input.take(len).to_vec(), 1);
    }
    let mut batch = BatchBuf::new();
    for _ in 0..input.byte() % OPS_MAX {
        operation(&mut batch, input, base(BASE));
    }
    (batch.into_encoded(), 1)
}
