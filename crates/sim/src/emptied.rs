//! Full volumes with snapshots: removals free nothing there, because the snapshots have it, and take what is free for
//! copies of nodes. What is kept for deletions of snapshots has to be there all the same (R33): they empty the volume.

use crate::device::SimDevice;
use crate::driver::{self, SimClock, SimEntropy};
use crate::lab::{Start, Tally, complaints, guarded};
use crate::operation::{Op, from_text};
use crate::oracle::PAGE;
use crate::random::derive;
use crate::snapshots::prepare;
use crate::watchdog;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use syncline_device::Device;
use syncline_fs::{Error, Fs, SnapshotData};

const BLOCKS: u64 = 3072;
const JOURNAL_BLOCKS: u64 = 128;
const ENOSPC: i32 = 28;
/// Files, whose names fill many leaves: none of these a removal gives back.
const FILES: u64 = 1500;
/// So many blocks are left at most: with more, removals always find some.
pub const FREE_MAX: u64 = 120;

fn name(number: u64) -> String {
    format!("{number:0>200}")
}

fn start() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let mut setup = String::new();
        for number in 0..FILES {
            let _ = write!(setup, "creat:{};", name(number));
        }
        for (fill, snapshot) in [(1, "one"), (2, "two")] {
            let _ = write!(setup, "rewrite:{}:200000:{fill};snap:{snapshot};", name(0));
        }
        prepare(BLOCKS, JOURNAL_BLOCKS, &from_text(&setup).expect("the setup holds operations"), 91)
    })
}

/// A volume with so many blocks left is emptied.
pub fn run(free: u64, seed: u64) -> Tally {
    watchdog::replayed_by(format!("cargo run --release -p syncline-sim -- emptied --seed {seed} {free}"));
    guarded(|tally| {
        tally.workloads += 1;
        if let Err(what) = emptied(free, seed, tally) {
            tally.violation(format!("{what} [{free} blocks were left]"));
        }
    })
}

fn emptied(free: u64, seed: u64, tally: &mut Tally) -> Result<(), String> {
    let device = SimDevice::new(start().disk.clone(), derive(seed, 81));
    let clock = SimClock::behind(&start().view);
    let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 82))
        .map_err(|error| format!("the volume does not open: {error}"))?;
    let mut carry_out = |fs: &Fs, text: &str| {
        tally.operations += 1;
        let op: Op = text.parse().expect("an operation");
        match driver::carry_out(fs, &clock, &op) {
            Ok(effect) if effect.failed.is_none() => Ok(true),
            Ok(_) | Err(ENOSPC) => {
                tally.no_space += 1;
                Ok(false)
            }
            Err(errno) => Err(format!("{text} answers errno {errno}")),
        }
    };
    carry_out(&fs, "creat:filler")?;
    let most = fs.statfs().blocks_available.saturating_sub(free).max(1) * PAGE;
    carry_out(&fs, &format!("fallockeep:filler:0:{most}"))?;
    // What is left goes for small files, and then for removals.
    for number in 0.. {
        let made = carry_out(&fs, &format!("creat:small{number}"))?
            && carry_out(&fs, &format!("write:small{number}:0:4096:7"))?
            && carry_out(&fs, "sync")?;
        if !made {
            break;
        }
    }
    for number in (0..FILES).map(|number| number * 7 % FILES) {
        if !carry_out(&fs, &format!("unlink:{}", name(number)))? {
            break;
        }
    }
    let needs_none = |what: &'static str| move |error: Error| format!("R33: {what}: {error}");
    for snapshot in ["two", "one"] {
        fs.delete_snapshot(snapshot).map_err(needs_none("a snapshot cannot be deleted"))?;
    }
    fs.reclaim().map_err(needs_none("deleted snapshots are not taken apart"))?;
    let some_is_left = fs.finish_deletions().map_err(needs_none("deletions of snapshots do not end"))?;
    if some_is_left || !fs.snapshots().is_empty() {
        return Err("R33: snapshots are left".to_owned());
    }
    let entropy = SimEntropy::new(derive(seed, 83));
    for text in ["creat:after", "write:after:0:100000:9", "sync"] {
        if !carry_out(&fs, text)? {
            return Err(format!("{text} finds no space although the snapshots have gone"));
        }
    }
    fs.snapshot("three", SnapshotData::Written, &entropy)
        .map_err(|error| format!("there is no space for a snapshot: {error}"))?;
    fs.close().map_err(|error| format!("close: {error}"))?;
    tally.checks += 1;
    match complaints(&*SimDevice::new(device.settled(), 0)).pop() {
        Some(what) => Err(format!("check: {what}")),
        None => Ok(()),
    }
}
