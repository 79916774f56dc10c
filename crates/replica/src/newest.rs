//! [`Newest`]: in which object the newest content of each block is.
//!
//! Outlines of objects are laid under each other, the newest first. What a restore writes, what a pack holds, and what
//! a volume that is read from its replica fetches is what is found here.

use crate::error::ReplicaError;
use crate::request::{Operation, Part};
use crate::runs::RunSet;
use crate::unit::{Outline, open_frame};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use syncline_format::replica::{FRAME_BLOCKS, Frame, RunKind};
use syncline_format::{BLOCK_BYTES, checksum};

/// Bytes of frames that one request fetches, about.
const FETCH_BYTES: u64 = 4 << 20;

/// An object whose outline is known.
pub struct Layer {
    pub name: String,
    pub outline: Outline,
}

/// What blocks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The first of them is this data block of this layer.
    Data {
        layer: usize,
        at: usize,
    },
    Zeros,
    Discarded,
}

/// Neighbouring frames of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    pub layer: usize,
    pub frames: Range<usize>,
}

/// Consecutive blocks with their bytes.
pub type Found = (u64, Vec<u8>);

/// Where everything is.
#[derive(Default)]
pub struct Newest {
    layers: Vec<Layer>,
    covered: RunSet,
    /// End and place by first block.
    places: BTreeMap<u64, (u64, Place)>,
    /// By layer: first block and count by the number of the first data block.
    pieces: Vec<BTreeMap<usize, (u64, usize)>>,
    data_blocks: u64,
}

impl Newest {
    /// Lays an object under those that are there.
    pub fn lay_under(&mut self, layer: Layer) {
        let number = self.layers.len();
        let mut pieces = BTreeMap::new();
        let mut data = 0;
        for run in &layer.outline.index.runs {
            for missing in self.covered.missing(run.first.0..run.end()) {
                let at = data + (missing.start - run.first.0) as usize;
                let count = missing.end - missing.start;
                let place = match run.kind {
                    RunKind::Data => Place::Data { layer: number, at },
                    RunKind::Zeros => Place::Zeros,
                    RunKind::Discarded => Place::Discarded,
                };
                if run.kind == RunKind::Data {
                    pieces.insert(at, (missing.start, count as usize));
                    self.data_blocks += count;
                }
                self.places.insert(missing.start, (missing.end, place));
            }
            if run.kind == RunKind::Data {
                data += run.blocks as usize;
            }
        }
        layer.outline.index.runs.iter().for_each(|run| self.covered.insert(run.first.0..run.end()));
        self.pieces.push(pieces);
        self.layers.push(layer);
    }

    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Blocks that have content.
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// What the blocks of a range are, ascending; of those left out nothing is known.
    pub fn places(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Place)> + '_ {
        let before = self.places.range(..range.start).next_back();
        let inside = self.places.range(range.start..range.end);
        before.into_iter().chain(inside).filter_map(move |(&start, &(end, place))| {
            let (from, to) = (start.max(range.start), end.min(range.end));
            let place = match place {
                Place::Data { layer, at } => Place::Data { layer, at: at + (from - start) as usize },
                other => other,
            };
            (from < to).then_some((from..to, place))
        })
    }

    /// Whether a block has this content there.
    pub fn is_content(&self, block: u64, content: &[u8]) -> bool {
        match self.sum(block) {
            Some(sum) => sum == checksum(content),
            None => content.iter().all(|byte| *byte == 0),
        }
    }

    /// Checksum of a block's content there; `None`: it is zeros, or nothing is known of it.
    pub fn sum(&self, block: u64) -> Option<u64> {
        match self.places(block..block + 1).next() {
            Some((_, Place::Data { layer, at })) => self.layers[layer].outline.index.sums.get(at).copied(),
            _ => None,
        }
    }

    /// The block behind the last one of a range from `start` on that has `data_blocks` blocks with content, at most
    /// `end`.
    pub fn end_of(&self, start: u64, data_blocks: u64, end: u64) -> u64 {
        let mut left = data_blocks;
        for (run, place) in self.places(start..end) {
            if matches!(place, Place::Data { .. }) {
                let count = run.end - run.start;
                if count >= left {
                    return run.start + left;
                }
                left -= count;
            }
        }
        end
    }

    /// `end`, if no block from `start` up to it has content; else `start`.
    pub fn last_part(&self, start: u64, end: u64) -> u64 {
        let content = self.places(start..end).any(|(_, place)| matches!(place, Place::Data { .. }));
        if content { start } else { end }
    }

    /// What has to be fetched for the content of these blocks, and how many bytes that is.
    pub fn fetches(&self, range: Range<u64>) -> (Vec<Fetch>, u64) {
        self.fetches_of(std::iter::once(range))
    }

    /// The same for the blocks of several ranges.
    pub fn fetches_of(&self, ranges: impl Iterator<Item = Range<u64>>) -> (Vec<Fetch>, u64) {
        let mut frames: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (run, place) in ranges.flat_map(|range| self.places(range)) {
            if let Place::Data { layer, at } = place {
                let last = at + (run.end - run.start) as usize - 1;
                frames.extend((at / FRAME_BLOCKS..=last / FRAME_BLOCKS).map(|frame| (layer, frame)));
            }
        }
        let (mut fetches, mut bytes, mut length): (Vec<Fetch>, u64, u64) = (Vec::new(), 0, 0);
        for (layer, frame) in frames {
            let stored = u64::from(self.layers[layer].outline.index.frames[frame].stored);
            bytes += stored;
            length += stored;
            match fetches.last_mut() {
                Some(last) if last.layer == layer && last.frames.end == frame && length <= FETCH_BYTES => {
                    last.frames.end += 1;
                }
                _ => {
                    fetches.push(Fetch { layer, frames: frame..frame + 1 });
                    length = stored;
                }
            }
        }
        (fetches, bytes)
    }

    /// A fetch of few bytes with the frames around it: those that are free, up to so many bytes on each side, as far
    /// as they have content that counts.
    pub fn widened(&self, fetch: &Fetch, around: u64, is_free: impl Fn((usize, usize)) -> bool) -> Fetch {
        let layer = fetch.layer;
        let all = &self.layers[layer].outline.index.frames;
        let stored = |frames: &[Frame]| -> u64 { frames.iter().map(|frame| u64::from(frame.stored)).sum() };
        let mut frames = fetch.frames.clone();
        if stored(&all[frames.clone()]) > around {
            return fetch.clone();
        }
        let counts = |frame: usize| {
            let blocks = frame * FRAME_BLOCKS..(frame + 1) * FRAME_BLOCKS;
            let before = self.pieces[layer].range(..blocks.start).next_back();
            before.is_some_and(|(at, (_, count))| at + count > blocks.start)
                || self.pieces[layer].range(blocks).next().is_some()
        };
        let takes =
            |frame: usize, more: &[Frame]| is_free((layer, frame)) && counts(frame) && stored(more) <= around;
        while frames.start > 0 && takes(frames.start - 1, &all[frames.start - 1..fetch.frames.start]) {
            frames.start -= 1;
        }
        while frames.end < all.len() && takes(frames.end, &all[fetch.frames.end..frames.end + 1]) {
            frames.end += 1;
        }
        Fetch { layer, frames }
    }

    /// What to ask the store for.
    pub fn request(&self, fetch: &Fetch) -> Operation {
        let layer = &self.layers[fetch.layer];
        let frames = &layer.outline.index.frames[fetch.frames.clone()];
        let start = frames[0].offset;
        let end = frames.last().map_or(start, |frame| frame.offset + u64::from(frame.stored));
        Operation::Get { name: layer.name.clone(), part: Part::Range(start, end - start) }
    }

    /// The blocks whose newest content is in what was fetched.
    ///
    /// # Errors
    /// The bytes are not those that the object's index names.
    pub fn open(&self, fetch: &Fetch, bytes: &[u8]) -> Result<Vec<Found>, ReplicaError> {
        let layer = &self.layers[fetch.layer];
        let mut found = Vec::new();
        let mut at = 0;
        for number in fetch.frames.clone() {
            let frame = &layer.outline.index.frames[number];
            let stored = bytes.get(at..at + frame.stored as usize).unwrap_or(&[]);
            let content = open_frame(&layer.name, frame, stored)?;
            at += frame.stored as usize;
            let first = number * FRAME_BLOCKS;
            let last = first + content.len() / BLOCK_BYTES;
            let pieces = &self.pieces[fetch.layer];
            let before = pieces.range(..first).next_back();
            for (&piece_at, &(block, count)) in before.into_iter().chain(pieces.range(first..last)) {
                let (from, to) = (piece_at.max(first), (piece_at + count).min(last));
                if from < to {
                    let data = content[(from - first) * BLOCK_BYTES..(to - first) * BLOCK_BYTES].to_vec();
                    found.push((block + (from - piece_at) as u64, data));
                }
            }
        }
        Ok(found)
    }
}
