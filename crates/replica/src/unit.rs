//! A unit's bytes, and back.

use crate::error::ReplicaError;
use crate::merge::Content;
use std::collections::BTreeMap;
use std::ops::Range;
use syncline_format::replica::{
    FOOTER_BYTES, FRAME_BLOCKS, Footer, Frame, Index, Run, RunKind, UNIT_HEADER_BYTES, UnitHeader,
};
use syncline_format::{BLOCK_BYTES, BlockNo, FormatError, checksum};

/// A unit, ready to be put.
pub struct Encoded {
    pub bytes: Vec<u8>,
    pub identity: u64,
}

/// Makes the unit of these blocks.
pub fn encode(header: &UnitHeader, blocks: &BTreeMap<u64, Content>) -> Encoded {
    let mut maker = Maker::new(header);
    for (&block, content) in blocks {
        match (content.kind(), content.bytes()) {
            (RunKind::Data, Some(data)) => maker.data(block, data),
            (kind, _) => maker.run(block..block + 1, kind),
        }
    }
    maker.finish()
}

/// Makes a unit, or a pack, of what comes in the order of the volume's blocks.
pub struct Maker {
    head: [u8; UNIT_HEADER_BYTES],
    bytes: Vec<u8>,
    index: Index,
    frame: Vec<u8>,
}

impl Maker {
    pub fn new(header: &UnitHeader) -> Maker {
        let head = header.encode();
        let frame = Vec::with_capacity(FRAME_BLOCKS * BLOCK_BYTES);
        Maker { head, bytes: head.to_vec(), index: Index::default(), frame }
    }

    /// A block and its content.
    pub fn data(&mut self, block: u64, content: &[u8]) {
        extend(&mut self.index.runs, block..block + 1, RunKind::Data);
        self.index.sums.push(checksum(content));
        self.frame.extend_from_slice(content);
        if self.frame.len() == FRAME_BLOCKS * BLOCK_BYTES {
            self.end_frame();
        }
    }

    /// Blocks without content of their own.
    pub fn run(&mut self, blocks: Range<u64>, kind: RunKind) {
        extend(&mut self.index.runs, blocks, kind);
    }

    fn end_frame(&mut self) {
        self.index.frames.push(put_frame(&mut self.bytes, &self.frame));
        self.frame.clear();
    }

    pub fn finish(mut self) -> Encoded {
        if !self.frame.is_empty() {
            self.end_frame();
        }
        let index_offset = self.bytes.len() as u64;
        let index = self.index.encode();
        let (footer, identity) = Footer::encode(index_offset, &index, &self.head);
        self.bytes.extend_from_slice(&index);
        self.bytes.extend_from_slice(&footer);
        Encoded { bytes: self.bytes, identity }
    }
}

/// Longest run, in blocks.
const RUN_MAX: u64 = u32::MAX as u64;

/// Lengthens the last run, or begins another.
fn extend(runs: &mut Vec<Run>, mut blocks: Range<u64>, kind: RunKind) {
    if let Some(run) = runs.last_mut().filter(|run| run.end() == blocks.start && run.kind == kind) {
        let more = (blocks.end - blocks.start).min(RUN_MAX - u64::from(run.blocks));
        run.blocks += more as u32;
        blocks.start += more;
    }
    while !blocks.is_empty() {
        let count = (blocks.end - blocks.start).min(RUN_MAX);
        runs.push(Run { first: BlockNo(blocks.start), blocks: count as u32, kind });
        blocks.start += count;
    }
}

/// Appends a frame, compressed if that saves an eighth.
fn put_frame(bytes: &mut Vec<u8>, content: &[u8]) -> Frame {
    let offset = bytes.len() as u64;
    let packed = lz4_flex::block::compress(content);
    let stored = if packed.len() <= content.len() - content.len() / 8 { &packed } else { content };
    bytes.extend_from_slice(stored);
    Frame { offset, stored: stored.len() as u32, content: content.len() as u32, checksum: checksum(stored) }
}

/// Header, index and identity of a unit, without its frames.
#[derive(Debug, Clone)]
pub struct Outline {
    pub header: UnitHeader,
    pub index: Index,
    pub identity: u64,
}

impl Outline {
    /// From the first and the last bytes of an object of `length` bytes. `None`: the end is too short for the index;
    /// so many bytes are needed.
    pub fn decode(start: &[u8], end: &[u8], length: u64) -> Result<Result<Outline, u64>, FormatError> {
        let header = UnitHeader::decode(start)?;
        let footer = Footer::decode(end, length)?;
        let got = checksum(&start[..UNIT_HEADER_BYTES]);
        if got != footer.header_checksum {
            return Err(FormatError::Checksum { what: "unit", want: footer.header_checksum, got });
        }
        let tail = footer.index_bytes + FOOTER_BYTES as u64;
        if (end.len() as u64) < tail {
            return Ok(Err(tail));
        }
        let at = end.len() - tail as usize;
        let index = Index::decode(&end[at..end.len() - FOOTER_BYTES], &footer, header.blocks)?;
        Ok(Ok(Outline { header, index, identity: footer.identity }))
    }

    /// Of a whole object.
    pub fn of(bytes: &[u8]) -> Result<Outline, FormatError> {
        let whole = Outline::decode(bytes, bytes, bytes.len() as u64)?;
        whole.map_err(|want| FormatError::Truncated { what: "unit", want: want as usize, got: bytes.len() })
    }
}

/// The content of a frame.
///
/// # Errors
/// The stored bytes are not those that the index names.
pub fn open_frame(name: &str, frame: &Frame, stored: &[u8]) -> Result<Vec<u8>, ReplicaError> {
    let damaged = |what| ReplicaError::Inconsistent { name: name.to_owned(), what };
    if stored.len() != frame.stored as usize || checksum(stored) != frame.checksum {
        return Err(damaged("a frame does not match its checksum"));
    }
    if frame.stored == frame.content {
        return Ok(stored.to_vec());
    }
    let content = lz4_flex::block::decompress(stored, frame.content as usize);
    match content {
        Ok(content) if content.len() == frame.content as usize => Ok(content),
        _ => Err(damaged("a frame does not decompress")),
    }
}
