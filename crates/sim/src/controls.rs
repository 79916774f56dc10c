//! Negative controls: a lab that finds nothing proves nothing, so faults are planted that it has to find.
//!
//! The device is made to lie: each flush of a run in turn covers nothing, each write in turn is acknowledged and
//! lost, all flushes do nothing. What a flush or write is for is told by where it goes. A single lie may be harmless
//! (the next flush may make up for it before anything depended on it), so a kind counts as caught if one of its lies
//! was.
//!
//! Rot is the other way round: a flipped bit in any stored block must lead to an error or to what was there before,
//! never to wrong bytes (C7).

use crate::ace::{BLOCKS, JOURNAL_BLOCKS};
use crate::crash::{Effort, Lie};
use crate::device::{Event, SimDevice, Trace};
use crate::lab::{Depth, Recorded, Start, Tally, guarded, judge_states, record, recover};
use crate::operation::Op;
use crate::random::derive;
use std::collections::BTreeMap;
use syncline_format::layout::{JOURNAL_START, Layout};

/// Crash states per lie.
const DEPTH: Depth = Depth {
    effort: Effort { subsets: 2, torn: 1 },
    states_max: 400,
    check_every: 1 << 40,
    recovery_every: 1 << 40,
};

/// What a write is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    Superblock,
    Bitmap,
    Journal,
    /// Tree nodes and file data.
    Content,
    Nothing,
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    IgnoredFlush(Purpose),
    LostWrite(Purpose),
    IgnoredFlushes,
}

/// Planted and caught, by kind.
pub type Score = BTreeMap<Fault, (u64, u64)>;

fn purpose(at: u64) -> Purpose {
    let layout = Layout::new(BLOCKS, Some(JOURNAL_BLOCKS)).expect("the geometry of the lab's volumes");
    match at {
        at if at < JOURNAL_START.0 => Purpose::Superblock,
        at if at < layout.groups_start.0 => Purpose::Journal,
        at if at < layout.groups_start.0 + 2 => Purpose::Bitmap,
        _ => Purpose::Content,
    }
}

/// What each flush of the trace is for: the most telling of the writes since the flush before it.
fn flush_purposes(trace: &Trace) -> Vec<Purpose> {
    let mut purposes = vec![Purpose::Nothing; trace.flushes];
    let mut since = Purpose::Nothing;
    for event in &trace.events {
        match event {
            Event::Completed(id, _) => since = since.min(purpose(trace.writes[*id].at)),
            Event::FlushIssued(id) => purposes[*id] = std::mem::replace(&mut since, Purpose::Nothing),
            _ => {}
        }
    }
    purposes
}

/// Plants every lie into one workload.
pub fn plant(start: &Start, ops: &[Op], seed: u64) -> Score {
    let mut score = Score::new();
    let mut recorded = None;
    guarded(|tally| recorded = record(start, ops, seed, usize::MAX, tally));
    let Some(run) = recorded else { return score };
    let mut lies = vec![(Fault::IgnoredFlushes, Lie::IgnoredFlushes)];
    for (flush, purpose) in flush_purposes(&run.trace).into_iter().enumerate() {
        lies.push((Fault::IgnoredFlush(purpose), Lie::IgnoredFlush(flush)));
    }
    for (id, write) in run.trace.writes.iter().enumerate() {
        lies.push((Fault::LostWrite(purpose(write.at)), Lie::LostWrite(id)));
    }
    for (fault, lie) in lies {
        let (planted, caught) = score.entry(fault).or_default();
        *planted += 1;
        *caught += u64::from(is_caught(&run, seed, lie));
    }
    score
}

fn is_caught(run: &Recorded, seed: u64, lie: Lie) -> bool {
    let tally = guarded(|tally| drop(judge_states(run, seed, DEPTH, lie, tally)));
    !tally.violations.is_empty()
}

/// Syncs that were acknowledged before the last record was written: that record says so, and no damage to others can
/// hide it.
fn confirmed(trace: &Trace) -> usize {
    let is_record = |event: &Event| matches!(event, Event::Submitted(id) if purpose(trace.writes[*id].at) == Purpose::Journal);
    let last = trace.events.iter().rposition(is_record).unwrap_or(0);
    let acknowledged = trace.events[..last].iter().filter_map(|event| match event {
        Event::Acknowledged(count) => Some(*count),
        _ => None,
    });
    acknowledged.max().unwrap_or(0)
}

/// Flips a bit in each block that the workload leaves on the device. Counts of flips that were told (the volume or a
/// file cannot be read) and of those that made no difference are returned besides the violations.
pub fn rot(start: &Start, ops: &[Op], seed: u64) -> (Tally, u64, u64) {
    let (mut told, mut harmless) = (0, 0);
    let tally = guarded(|tally| {
        tally.workloads += 1;
        let Some(run) = record(start, ops, seed, usize::MAX, tally) else { return };
        let confirmed = confirmed(&run.trace);
        let mut disk = run.base.clone();
        for write in &run.trace.writes {
            for (block, page) in (write.at..).zip(&write.pages) {
                disk.put(block, page.clone());
            }
        }
        for block in (0..disk.blocks()).filter(|block| disk.get(*block).is_some()).collect::<Vec<_>>() {
            let mut rotten = disk.clone();
            rotten.flip(block, derive(seed, block));
            tally.states += 1;
            match recover(&SimDevice::new(rotten, seed), derive(seed, 6)) {
                Err(_) => told += 1,
                // Damage to the last record looks like a crash (C9): what was acknowledged before it counts.
                Ok(view) => match run.model.judge(&view, confirmed) {
                    Ok(()) => harmless += 1,
                    Err(violation) => tally.violation(format!("C7: rot in block {block}: {violation:?}")),
                },
            }
        }
    });
    (tally, told, harmless)
}

/// Workloads for the controls: syncs of all kinds, checkpoints, and reuse of what was freed.
pub const WORKLOADS: &[&str] = &[
    "write:A/foo:0:5000:1;fsync:A/foo;creat:A/bar;fsync:A/bar;rename:A/foo:A/bar;sync",
    "write:A/foo:0:90000:2;fsync:A/foo;checkpoint;write:A/foo:0:90000:3;fsync:A/foo;checkpoint;write:A/foo:0:90000:4;\
     fsync:A/foo;checkpoint;creat:x;write:x:0:90000:5;fsync:x",
    "write:A/foo:0:200000:2;sync;checkpoint;unlink:A/foo;checkpoint;creat:y;write:y:0:200000:7;maintain:2000;checkpoint;\
     unlink:y;checkpoint;creat:z;write:z:0:300000:8;write:B/foo:0:90000:9;sync;checkpoint",
    "dsyncwrite:B/foo:0:300:6;dsyncwrite:B/foo:0:300:7;maintain:6000;checkpoint;dsyncwrite:B/foo:0:300:8;mkdir:d;fsync:d;\
     checkpoint;dsyncwrite:B/foo:0:300:9",
];

/// Whether a kind of fault leaves something wrong behind. A flush with nothing before it has nothing to lose.
pub fn must_be_caught(fault: Fault) -> bool {
    !matches!(fault, Fault::IgnoredFlush(Purpose::Nothing))
}
