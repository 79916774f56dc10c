//! Units: header, frames, index, footer.

use super::{CLAIM_MAX, NUMBER_END, REPLICA_VERSION, field, seal, verify};
use crate::layout::VOLUME_BLOCKS_MAX;
use crate::{BLOCK_BYTES, BlockNo, FormatError, checksum};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a unit in front of its frames.
pub const UNIT_HEADER_BYTES: usize = 128;
/// Bytes of a unit behind its index.
pub const FOOTER_BYTES: usize = 64;
/// Blocks of a frame; only the last one of a unit may have fewer.
pub const FRAME_BLOCKS: usize = 16;
/// Data blocks of a unit, at most: 4 GiB.
pub const DATA_BLOCKS_MAX: usize = 1 << 20;

const MAGIC: [u8; 4] = *b"SLRU";
const FOOTER_MAGIC: [u8; 4] = *b"SLRF";
const RUNS_MAX: usize = 1 << 20;
const HEADER: &str = "unit";
const INDEX: &str = "unit's index";
const FOOTER: &str = "unit's footer";

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct HeaderRaw {
    magic: [u8; 4],
    version: U16,
    reserved: U16,
    checksum: U64,
    uuid: [u8; 16],
    claim: U64,
    number: U64,
    predecessor: U64,
    epoch: U64,
    generation: U64,
    lsn: U64,
    cuts: U64,
    time: U64,
    blocks: U64,
    flags: U16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<HeaderRaw>() == UNIT_HEADER_BYTES);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct IndexRaw {
    runs: U32,
    frames: U32,
    data_blocks: U32,
    reserved: [u8; 20],
}

const _: () = assert!(size_of::<IndexRaw>() == INDEX_BYTES);
const INDEX_BYTES: usize = 32;

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RunRaw {
    first: U64,
    blocks: U32,
    kind: u8,
    reserved: [u8; 3],
}

const _: () = assert!(size_of::<RunRaw>() == 16);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct FrameRaw {
    offset: U64,
    stored: U32,
    content: U32,
    checksum: U64,
}

const _: () = assert!(size_of::<FrameRaw>() == 24);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct FooterRaw {
    magic: [u8; 4],
    version: U16,
    reserved: U16,
    checksum: U64,
    index_offset: U64,
    index_bytes: U64,
    index_checksum: U64,
    header_checksum: U64,
    rest: [u8; 16],
}

const _: () = assert!(size_of::<FooterRaw>() == FOOTER_BYTES);

/// What a unit is, as a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u16);

impl Flags {
    /// A restore may end with this unit.
    pub const CONSISTENT: Flags = Flags(1);
    /// The volume was closed, and nothing is missing.
    pub const CLOSED: Flags = Flags(2);
    /// Nothing in front of it is needed.
    pub const BASE: Flags = Flags(4);
    const KNOWN: u16 = 7;

    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Head of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitHeader {
    pub flags: Flags,
    pub uuid: [u8; 16],
    pub claim: u64,
    pub number: u64,
    /// Identity of the unit before it, of whichever claim; 0 for none.
    pub predecessor: u64,
    /// Of the newest superblock that was shipped by then; 0 if none was.
    pub epoch: u64,
    pub generation: u64,
    /// The last LSN of the newest journal record that was shipped by then; 0 if none was.
    pub lsn: u64,
    /// Cuts that were merged.
    pub cuts: u64,
    /// Nanoseconds since 1970, by the writer's clock.
    pub time: u64,
    /// Of the volume.
    pub blocks: u64,
}

impl UnitHeader {
    pub fn encode(&self) -> [u8; UNIT_HEADER_BYTES] {
        let raw = HeaderRaw {
            magic: MAGIC,
            version: U16::new(REPLICA_VERSION),
            reserved: U16::ZERO,
            checksum: U64::ZERO,
            uuid: self.uuid,
            claim: U64::new(self.claim),
            number: U64::new(self.number),
            predecessor: U64::new(self.predecessor),
            epoch: U64::new(self.epoch),
            generation: U64::new(self.generation),
            lsn: U64::new(self.lsn),
            cuts: U64::new(self.cuts),
            time: U64::new(self.time),
            blocks: U64::new(self.blocks),
            flags: U16::new(self.flags.0),
            rest: [0; 22],
        };
        let mut bytes = [0; UNIT_HEADER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        seal(&mut bytes);
        bytes
    }

    /// The header at the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<UnitHeader, FormatError> {
        let Ok((raw, _)) = HeaderRaw::ref_from_prefix(bytes) else {
            return Err(FormatError::Truncated { what: HEADER, want: UNIT_HEADER_BYTES, got: bytes.len() });
        };
        verify(HEADER, MAGIC, &bytes[..UNIT_HEADER_BYTES])?;
        let flags = raw.flags.get();
        field(HEADER, "flags", u64::from(flags), flags & !Flags::KNOWN == 0)?;
        let (claim, number, blocks) = (raw.claim.get(), raw.number.get(), raw.blocks.get());
        Ok(UnitHeader {
            flags: Flags(flags),
            uuid: raw.uuid,
            claim: field(HEADER, "claim", claim, (1..=CLAIM_MAX).contains(&claim))?,
            number: field(HEADER, "number", number, number < NUMBER_END)?,
            predecessor: raw.predecessor.get(),
            epoch: raw.epoch.get(),
            generation: raw.generation.get(),
            lsn: raw.lsn.get(),
            cuts: raw.cuts.get(),
            time: raw.time.get(),
            blocks: field(HEADER, "blocks", blocks, (1..=VOLUME_BLOCKS_MAX).contains(&blocks))?,
        })
    }
}

/// What a run of blocks became.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RunKind {
    /// Its content is in the frames.
    Data = 1,
    Zeros = 2,
    /// Its content matters to nobody.
    Discarded = 3,
}

/// Consecutive blocks of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub first: BlockNo,
    /// At least one.
    pub blocks: u32,
    pub kind: RunKind,
}

impl Run {
    /// The block behind it.
    pub fn end(&self) -> u64 {
        self.first.0 + u64::from(self.blocks)
    }
}

/// Where up to [`FRAME_BLOCKS`] data blocks lie in the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    pub offset: u64,
    /// Bytes in the object; equal to those of the content: not compressed.
    pub stored: u32,
    pub content: u32,
    /// Of the stored bytes.
    pub checksum: u64,
}

/// What a unit holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    /// Ascending, without overlaps.
    pub runs: Vec<Run>,
    pub frames: Vec<Frame>,
    /// Checksum of each data block.
    pub sums: Vec<u64>,
}

impl Index {
    pub fn encode(&self) -> Vec<u8> {
        let head = IndexRaw {
            runs: U32::new(self.runs.len() as u32),
            frames: U32::new(self.frames.len() as u32),
            data_blocks: U32::new(self.sums.len() as u32),
            reserved: [0; 20],
        };
        let mut bytes = head.as_bytes().to_vec();
        for run in &self.runs {
            let (first, blocks) = (U64::new(run.first.0), U32::new(run.blocks));
            bytes.extend_from_slice(
                RunRaw { first, blocks, kind: run.kind as u8, reserved: [0; 3] }.as_bytes(),
            );
        }
        for frame in &self.frames {
            let raw = FrameRaw {
                offset: U64::new(frame.offset),
                stored: U32::new(frame.stored),
                content: U32::new(frame.content),
                checksum: U64::new(frame.checksum),
            };
            bytes.extend_from_slice(raw.as_bytes());
        }
        self.sums.iter().for_each(|sum| bytes.extend_from_slice(&sum.to_le_bytes()));
        bytes
    }

    /// The index of a unit of a volume with so many blocks.
    pub fn decode(bytes: &[u8], footer: &Footer, blocks: u64) -> Result<Index, FormatError> {
        let truncated = |want| FormatError::Truncated { what: INDEX, want, got: bytes.len() };
        let got = checksum(bytes);
        if got != footer.index_checksum {
            return Err(FormatError::Checksum { what: INDEX, want: footer.index_checksum, got });
        }
        let Ok((head, rest)) = IndexRaw::ref_from_prefix(bytes) else { return Err(truncated(INDEX_BYTES)) };
        let count = |name, value: U32, most: usize| {
            let value = u64::from(value.get());
            field(INDEX, name, value, value <= most as u64).map(|value| value as usize)
        };
        let runs = count("runs", head.runs, RUNS_MAX)?;
        let sums = count("data blocks", head.data_blocks, DATA_BLOCKS_MAX)?;
        let frames = count("frames", head.frames, DATA_BLOCKS_MAX)?;
        field(INDEX, "frames", frames as u64, frames == sums.div_ceil(FRAME_BLOCKS))?;
        let want = runs * size_of::<RunRaw>() + frames * size_of::<FrameRaw>() + sums * 8;
        if rest.len() != want {
            return Err(truncated(INDEX_BYTES + want));
        }
        let (run_bytes, rest) = rest.split_at(runs * size_of::<RunRaw>());
        let (frame_bytes, sum_bytes) = rest.split_at(frames * size_of::<FrameRaw>());
        let index = Index {
            runs: decode_runs(run_bytes, blocks, sums)?,
            frames: decode_frames(frame_bytes, sums, footer.index_offset)?,
            sums: sum_bytes
                .chunks_exact(8)
                .map(|sum| u64::from_le_bytes(sum.try_into().expect("eight")))
                .collect(),
        };
        Ok(index)
    }

    /// Each data run with the number of its first data block.
    pub fn data_runs(&self) -> impl Iterator<Item = (usize, &Run)> {
        let data = self.runs.iter().filter(|run| run.kind == RunKind::Data);
        data.scan(0, |at, run| {
            let first = *at;
            *at += run.blocks as usize;
            Some((first, run))
        })
    }
}

fn decode_runs(bytes: &[u8], blocks: u64, data_blocks: usize) -> Result<Vec<Run>, FormatError> {
    let mut runs = Vec::with_capacity(bytes.len() / size_of::<RunRaw>());
    let (mut end, mut data) = (0, 0);
    for piece in bytes.chunks_exact(size_of::<RunRaw>()) {
        let raw = RunRaw::ref_from_bytes(piece).expect("a piece is a run");
        let (first, length) = (raw.first.get(), raw.blocks.get());
        field(INDEX, "first block", first, first >= end && first < blocks)?;
        let inside = length > 0 && u64::from(length) <= blocks - first;
        field(INDEX, "blocks of a run", u64::from(length), inside)?;
        let kind = match raw.kind {
            1 => RunKind::Data,
            2 => RunKind::Zeros,
            3 => RunKind::Discarded,
            other => return Err(FormatError::Field { what: INDEX, field: "kind", value: u64::from(other) }),
        };
        end = first + u64::from(length);
        data += if kind == RunKind::Data { u64::from(length) } else { 0 };
        runs.push(Run { first: BlockNo(first), blocks: length, kind });
    }
    field(INDEX, "data blocks", data_blocks as u64, data == data_blocks as u64)?;
    Ok(runs)
}

fn decode_frames(bytes: &[u8], data_blocks: usize, frames_end: u64) -> Result<Vec<Frame>, FormatError> {
    let mut frames = Vec::with_capacity(bytes.len() / size_of::<FrameRaw>());
    let (mut at, mut left) = (UNIT_HEADER_BYTES as u64, data_blocks);
    for piece in bytes.chunks_exact(size_of::<FrameRaw>()) {
        let raw = FrameRaw::ref_from_bytes(piece).expect("a piece is a frame");
        let (offset, stored, content) = (raw.offset.get(), raw.stored.get(), raw.content.get());
        let blocks = left.min(FRAME_BLOCKS);
        field(INDEX, "offset of a frame", offset, offset == at)?;
        field(INDEX, "content of a frame", u64::from(content), content as usize == blocks * BLOCK_BYTES)?;
        field(INDEX, "length of a frame", u64::from(stored), stored > 0 && stored <= content)?;
        at += u64::from(stored);
        left -= blocks;
        frames.push(Frame { offset, stored, content, checksum: raw.checksum.get() });
    }
    field(INDEX, "end of the frames", at, at == frames_end)?;
    Ok(frames)
}

/// End of a unit: where its index is, and the unit's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    pub index_offset: u64,
    pub index_bytes: u64,
    pub index_checksum: u64,
    pub header_checksum: u64,
    /// Names the unit with everything in it.
    pub identity: u64,
}

impl Footer {
    /// Bytes of the footer, and the unit's identity.
    pub fn encode(
        index_offset: u64,
        index: &[u8],
        header: &[u8; UNIT_HEADER_BYTES],
    ) -> ([u8; FOOTER_BYTES], u64) {
        let raw = FooterRaw {
            magic: FOOTER_MAGIC,
            version: U16::new(REPLICA_VERSION),
            reserved: U16::ZERO,
            checksum: U64::ZERO,
            index_offset: U64::new(index_offset),
            index_bytes: U64::new(index.len() as u64),
            index_checksum: U64::new(checksum(index)),
            header_checksum: U64::new(checksum(header)),
            rest: [0; 16],
        };
        let mut bytes = [0; FOOTER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        let identity = seal(&mut bytes);
        (bytes, identity)
    }

    /// The footer of an object of `length` bytes that ends with `bytes`.
    pub fn decode(bytes: &[u8], length: u64) -> Result<Footer, FormatError> {
        let Ok((_, raw)) = FooterRaw::ref_from_suffix(bytes) else {
            return Err(FormatError::Truncated { what: FOOTER, want: FOOTER_BYTES, got: bytes.len() });
        };
        verify(FOOTER, FOOTER_MAGIC, raw.as_bytes())?;
        let (offset, index_bytes) = (raw.index_offset.get(), raw.index_bytes.get());
        field(FOOTER, "index offset", offset, offset >= UNIT_HEADER_BYTES as u64)?;
        let end = offset.checked_add(index_bytes).and_then(|end| end.checked_add(FOOTER_BYTES as u64));
        field(FOOTER, "index length", index_bytes, end == Some(length))?;
        Ok(Footer {
            index_offset: offset,
            index_bytes,
            index_checksum: raw.index_checksum.get(),
            header_checksum: raw.header_checksum.get(),
            identity: raw.checksum.get(),
        })
    }
}
