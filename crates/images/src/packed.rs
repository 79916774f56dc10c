//! Images as they are kept: the blocks that are not zero, deflated.
//!
//! Layout before compression, little-endian: magic `SLPK`, blocks of the device (8), number of blocks stored (8), their
//! numbers (8 each, ascending), their contents (4096 each).

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Buffer, Device, MemoryDevice};
use syncline_format::{BLOCK_BYTES, BlockNo};

const MAGIC: &[u8; 4] = b"SLPK";
const HEADER_BYTES: usize = 20;
/// Largest image that is unpacked.
const UNPACKED_BYTES_MAX: usize = 64 << 20;
const COMPRESSION_LEVEL: u8 = 10;
const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// A device's content, without the blocks that are zero.
#[derive(Clone, PartialEq, Eq)]
pub struct SparseImage {
    pub blocks: u64,
    pub content: BTreeMap<u64, Box<[u8; BLOCK_BYTES]>>,
}

impl SparseImage {
    /// What a device holds now.
    pub fn of(device: &MemoryDevice) -> SparseImage {
        let mut content = BTreeMap::new();
        let mut block = Box::new([0; BLOCK_BYTES]);
        for at in 0..device.blocks() {
            device.read(BlockNo(at), &mut block[..]).expect("a memory device reads what it has");
            if *block != ZEROS {
                content.insert(at, block.clone());
            }
        }
        SparseImage { blocks: device.blocks(), content }
    }

    /// A device with this content.
    pub fn device(&self) -> Arc<MemoryDevice> {
        let device = MemoryDevice::new(self.blocks);
        for (at, block) in &self.content {
            let buffer = Arc::new(Buffer::from_bytes(&block[..]));
            device.write(BlockNo(*at), vec![buffer]).expect("a memory device takes its own blocks");
        }
        Arc::new(device)
    }

    /// A copy of `len` bytes from a byte offset of the device.
    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for (number, within, range) in pieces(at, len) {
            if let Some(block) = self.content.get(&number) {
                out[range.clone()].copy_from_slice(&block[within..within + range.len()]);
            }
        }
        out
    }

    /// Overwrites bytes; what would lie beyond the device is left out.
    pub fn patch(&mut self, at: u64, bytes: &[u8]) {
        for (number, within, range) in pieces(at, bytes.len()) {
            if number < self.blocks {
                let block = self.content.entry(number).or_insert_with(|| Box::new([0; BLOCK_BYTES]));
                block[within..within + range.len()].copy_from_slice(&bytes[range]);
            }
        }
    }

    pub fn pack(&self) -> Vec<u8> {
        let mut plain = Vec::with_capacity(HEADER_BYTES + self.content.len() * (8 + BLOCK_BYTES));
        plain.extend_from_slice(MAGIC);
        plain.extend_from_slice(&self.blocks.to_le_bytes());
        plain.extend_from_slice(&(self.content.len() as u64).to_le_bytes());
        self.content.keys().for_each(|at| plain.extend_from_slice(&at.to_le_bytes()));
        self.content.values().for_each(|block| plain.extend_from_slice(&block[..]));
        compress_to_vec_zlib(&plain, COMPRESSION_LEVEL)
    }

    /// Errors: one sentence why these bytes are no packed image.
    pub fn unpack(packed: &[u8]) -> Result<SparseImage, String> {
        let plain = decompress_to_vec_zlib_with_limit(packed, UNPACKED_BYTES_MAX)
            .map_err(|error| format!("not a packed image: {error}"))?;
        let number = |at: usize| {
            let bytes = plain.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).ok_or_else(|| "the packed image is cut off".to_owned())
        };
        if !plain.starts_with(MAGIC) {
            return Err("not a packed image: no magic".to_owned());
        }
        let (blocks, count) = (number(4)?, number(12)? as usize);
        if plain.len() != count.saturating_mul(8 + BLOCK_BYTES).saturating_add(HEADER_BYTES) {
            return Err("the packed image has another length than it says".to_owned());
        }
        let contents = plain[HEADER_BYTES + 8 * count..].chunks_exact(BLOCK_BYTES);
        let mut content = BTreeMap::new();
        for (index, bytes) in contents.enumerate() {
            let mut block = Box::new([0; BLOCK_BYTES]);
            block.copy_from_slice(bytes);
            content.insert(number(HEADER_BYTES + 8 * index)?, block);
        }
        match content.last_key_value() {
            Some((&last, _)) if last >= blocks => Err("a block lies beyond the image's end".to_owned()),
            _ => Ok(SparseImage { blocks, content }),
        }
    }
}

/// Splits a range of the device at block boundaries: block, offset in it, and the piece's place in the range.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let position = at.checked_add(done as u64).filter(|_| done < len)?;
        let within = (position % BLOCK_BYTES as u64) as usize;
        let piece = (BLOCK_BYTES - within).min(len - done);
        done += piece;
        Some((position / BLOCK_BYTES as u64, within, done - piece..done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_unpacks_to_what_was_packed() {
        let device = MemoryDevice::new(5000);
        for at in [0, 1, 4999] {
            let page = Arc::new(Buffer::from_bytes(&[at as u8 + 1; BLOCK_BYTES]));
            device.write(BlockNo(at), vec![page]).unwrap();
        }
        let image = SparseImage::of(&device);
        assert_eq!(image.content.len(), 3);
        let packed = image.pack();
        assert!(packed.len() < 500);
        let again = SparseImage::unpack(&packed).unwrap();
        assert!(again == image);
        assert_eq!(again.device().to_bytes(), device.to_bytes());
    }

    #[test]
    fn damaged_packing_is_refused() {
        let packed = SparseImage { blocks: 1, content: BTreeMap::new() }.pack();
        assert!(SparseImage::unpack(&packed[..packed.len() / 2]).is_err());
        assert!(SparseImage::unpack(b"").is_err());
        let beyond = BTreeMap::from([(7, Box::new([1; BLOCK_BYTES]))]);
        assert!(SparseImage::unpack(&SparseImage { blocks: 7, content: beyond }.pack()).is_err());
    }
}
