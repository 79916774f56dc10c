//! [`Merge`]: what several cuts make of each block.

use crate::tap::{Change, Cut};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Block, Buffer};
use syncline_format::replica::RunKind;
use syncline_format::{BLOCK_BYTES, BlockNo};

/// What a block became.
#[derive(Clone)]
pub enum Content {
    /// A block of a shared buffer.
    Written(Arc<Buffer>, usize),
    Read(Block),
    Zeros,
    Discarded,
}

impl Content {
    /// Its bytes, if they matter.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Content::Written(buffer, index) => Some(&buffer[index * BLOCK_BYTES..][..BLOCK_BYTES]),
            Content::Read(block) => Some(block),
            Content::Zeros | Content::Discarded => None,
        }
    }

    pub fn kind(&self) -> RunKind {
        match (self, self.bytes()) {
            (Content::Discarded, _) => RunKind::Discarded,
            (_, Some(bytes)) if !is_zero(bytes) => RunKind::Data,
            _ => RunKind::Zeros,
        }
    }
}

/// Most blocks that are not zero say so within their first words.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// The last content of each block.
#[derive(Default)]
pub struct Merge {
    blocks: BTreeMap<u64, Content>,
    /// Cuts that were merged.
    pub cuts: u64,
    /// The newest flush among them.
    pub flush: Option<u64>,
}

impl Merge {
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.cuts == 0
    }

    pub fn blocks(&self) -> &BTreeMap<u64, Content> {
        &self.blocks
    }

    /// Lays a cut over what is there.
    pub fn add(&mut self, cut: Cut) {
        for (at, change) in cut.changes {
            match change {
                Change::Written(buffers) => self.write(at, buffers),
                Change::Discarded(blocks) => self.discard(at, blocks),
            }
        }
        self.cuts += 1;
        self.flush = self.flush.max(Some(cut.flush));
    }

    fn write(&mut self, at: BlockNo, buffers: Vec<Arc<Buffer>>) {
        let mut block = at.0;
        for buffer in buffers {
            for index in 0..buffer.blocks() as usize {
                self.blocks.insert(block, Content::Written(Arc::clone(&buffer), index));
                block += 1;
            }
        }
    }

    fn discard(&mut self, at: BlockNo, blocks: u64) {
        self.blocks.extend((at.0..at.0 + blocks).map(|block| (block, Content::Discarded)));
    }

    /// What was read from the device.
    pub fn read(&mut self, at: u64, content: Content) {
        self.blocks.insert(at, content);
    }

    /// These blocks are read again: what was read of them before is older.
    pub fn forget(&mut self, run: Range<u64>) {
        let old: Vec<u64> = self.blocks.range(run).map(|(block, _)| *block).collect();
        old.iter().for_each(|block| drop(self.blocks.remove(block)));
    }

    /// Lays other content under what cuts have brought.
    pub fn underlay(&mut self, below: Merge) {
        for (at, content) in below.blocks {
            self.blocks.entry(at).or_insert(content);
        }
    }
}
