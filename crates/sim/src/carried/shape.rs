//! What a run of `carried` does: its shape, and the operations that come of it.

use crate::lab::{Start, prepare};
use crate::operation::{Op, from_text};
use crate::oracle::PAGE;
use std::sync::OnceLock;

pub(super) const BLOCKS: u64 = 4096;
pub(super) const JOURNAL_BLOCKS: u64 = 64;
/// Files of many extents, each of one page, so that they have leaves of their own.
pub(super) const SPREAD_FILES: u64 = 2;
pub(super) const EXTENTS: u64 = 600;
pub(super) const OTHER_FILES: u64 = 3;

/// What rots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// All leaves that hold nothing but extents of the files.
    Extents,
    /// One such leaf of each file: the other images of the file go home.
    OneLeaf,
    /// The leaf of a file's inode, and of what is around it.
    Inode,
}

/// When it rots, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    UnreadableBehindTheCut,
    FlippedBehindTheCut,
    /// Before the first session, which carries images itself whenever its checkpoints move the tail.
    UnreadableBefore,
}

/// What follows the images before the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    /// The checkpoint has the images behind it: they hold the tail.
    Checkpoint,
    CheckpointAndSyncs,
}

/// What the session does behind the recovery that carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    Nothing,
    Syncs,
    /// The ring goes round several times; the session ends by a close.
    Laps,
    /// More images of the damaged files, and a checkpoint.
    Images,
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) what: What,
    pub(super) when: When,
    pub(super) after: After,
    pub(super) behind: Behind,
    /// Damaged files.
    pub(super) files: u64,
    /// Images of all of them together; a record of this ring takes seven at most.
    pub(super) images: u64,
    /// Syncs in front of the images: where in the ring the log begins.
    pub(super) turn: u64,
}

const WHATS: [What; 4] = [What::Extents, What::OneLeaf, What::Extents, What::Inode];
const WHENS: [When; 3] = [When::UnreadableBehindTheCut, When::UnreadableBefore, When::FlippedBehindTheCut];
const AFTERS: [After; 3] = [After::Nothing, After::Checkpoint, After::CheckpointAndSyncs];
const BEHINDS: [Behind; 4] = [Behind::Laps, Behind::Syncs, Behind::Images, Behind::Nothing];
const FILES: [u64; 2] = [1, SPREAD_FILES];
const IMAGES: [u64; 4] = [3, 10, 18, 1];
const TURNS: [u64; 5] = [0, 11, 20, 29, 38];
/// All shapes.
pub const COUNT: u64 =
    (WHATS.len() * WHENS.len() * AFTERS.len() * BEHINDS.len() * FILES.len() * IMAGES.len() * TURNS.len())
        as u64;
/// Coprime to their count, so that a few runs have some of everything.
const STRIDE: u64 = 1_663;

/// The shape of a number below [`COUNT`].
pub(super) fn shape(number: u64) -> Shape {
    let mut rest = number * STRIDE % COUNT;
    let mut digit = |count: usize| {
        let digit = (rest % count as u64) as usize;
        rest /= count as u64;
        digit
    };
    let turn = TURNS[digit(TURNS.len())];
    let images = IMAGES[digit(IMAGES.len())];
    let what = WHATS[digit(WHATS.len())];
    let when = WHENS[digit(WHENS.len())];
    let after = AFTERS[digit(AFTERS.len())];
    let behind = BEHINDS[digit(BEHINDS.len())];
    let files = FILES[digit(FILES.len())];
    match what {
        // Behind a change of an inode that cannot be read no volume opens, and nobody syncs one.
        What::Inode if when == When::UnreadableBefore => {
            Shape { what, when: When::UnreadableBehindTheCut, after, behind, files, images, turn }
        }
        _ => Shape { what, when, after, behind, files, images, turn },
    }
}

/// The volume that every run begins with.
pub(super) fn start() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let mut text = String::new();
        for file in 0..SPREAD_FILES {
            text += &format!("creat:spread-{file};");
            for extent in 0..EXTENTS {
                let at = (2 * extent + 1) * PAGE;
                text += &format!("write:spread-{file}:{at}:{PAGE}:{};", (file * 7 + extent) % 250);
            }
            text += &format!("fsync:spread-{file};");
        }
        for file in 0..OTHER_FILES {
            text += &format!("creat:other-{file};write:other-{file}:0:30000:{file};");
        }
        prepare(BLOCKS, JOURNAL_BLOCKS, &operations(&(text + "sync")), 41)
    })
}

pub(super) fn operations(text: &str) -> Vec<Op> {
    from_text(text.trim_end_matches(';')).expect("the workload holds operations")
}

/// The damaged files, the first of them one whose inode is in no leaf with what the root holds.
pub(super) fn spread(file: u64) -> String {
    format!("spread-{}", (file + 1) % SPREAD_FILES)
}

impl Shape {
    /// Syncs of files that nothing is wrong with.
    pub(super) fn others(count: u64, fill: u64) -> String {
        let one = |number: u64| {
            let (file, page) = (number % OTHER_FILES, number % 7);
            let fill = (fill + number) % 250;
            format!("write:other-{file}:{}:{PAGE}:{fill};fsync:other-{file};", page * PAGE)
        };
        (0..count).map(one).collect()
    }

    /// Synced pages of the files that are damaged, all over them; every sync is an image for each.
    pub(super) fn images(&self, salt: u64) -> String {
        let one = |number: u64| {
            let file = spread(number % self.files);
            let extent = (EXTENTS / 2 + salt + number * 5) % EXTENTS;
            let fill = (salt + number * 3 + 1) % 250;
            // Two pages at most are dirty then, so that they become images.
            let sync = match number / self.files % 2 {
                1 => format!("fsync:{file};"),
                _ => String::new(),
            };
            format!("write:{file}:{}:{PAGE}:{fill};{sync}", (2 * extent + 1) * PAGE)
        };
        let last = (0..self.files).map(|file| format!("fsync:{};", spread(file)));
        (0..self.images).map(one).chain(last).collect()
    }
}
