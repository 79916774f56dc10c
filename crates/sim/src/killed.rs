//! Processes that die while the machine lives on, and a power cut during the recovery after that.
//!
//! What a dead process had written may be in the device's cache only. Recovery reads it from there, so it must make it
//! durable before it writes anything of its own (R13). The crash states of the recovery are those in which what was in
//! the cache may still be lost.

use crate::crash::{Builder, CrashState, Effort, Lie, states};
use crate::device::{Event, SimDevice, Trace, WriteId};
use crate::lab::{Recorded, Tally, guarded, record, recover};
use crate::random::{Random, derive};
use crate::workload;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_device::{Buffer, Device};
use syncline_format::BlockNo;

/// Deaths per workload.
const DEATHS: u64 = 8;

/// Runs a random workload and lets it die at some moments.
pub fn run(seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let Some((start, ops)) = workload::round(seed, 0) else { return };
        let Some(run) = record(&start, &ops, derive(seed, 1), usize::MAX, tally) else { return };
        let mut random = Random::new(derive(seed, 2));
        let events = run.trace.events.len() as u64;
        for death in 0..DEATHS {
            // A superblock that is written and not flushed is what most depends on the order.
            let moments = superblock_writes(&run.trace);
            let event = match death % 2 == 0 && !moments.is_empty() {
                true => *random.pick(&moments),
                false => (run.opened as u64 + random.below(events - run.opened as u64)) as usize + 1,
            };
            die(&run, event.min(run.trace.events.len()), derive(seed, 3 + death), tally);
        }
    })
}

/// Moments behind completed writes of superblocks.
fn superblock_writes(trace: &Trace) -> Vec<usize> {
    let is_superblock = |id: WriteId| trace.writes[id].at < syncline_format::layout::JOURNAL_START.0;
    let moments = trace.events.iter().enumerate().filter_map(|(index, event)| match event {
        Event::Completed(id, true) if is_superblock(*id) => Some(index + 1),
        _ => None,
    });
    moments.collect()
}

/// Writes that are completed behind so many events and not durable, and the syncs acknowledged by then.
fn cached(trace: &Trace, event: usize) -> (BTreeSet<WriteId>, usize) {
    let mut cached = BTreeSet::new();
    let mut covers: BTreeMap<usize, BTreeSet<WriteId>> = BTreeMap::new();
    let mut acknowledged = 0;
    for event in &trace.events[..event] {
        match event {
            Event::Completed(id, true) => drop(cached.insert(*id)),
            Event::FlushIssued(id) => drop(covers.insert(*id, cached.clone())),
            Event::FlushDone(id, true) => {
                let covered = covers.remove(id).unwrap_or_default();
                cached.retain(|id| !covered.contains(id));
            }
            Event::Acknowledged(count) => acknowledged = *count,
            _ => {}
        }
    }
    (cached, acknowledged)
}

/// The process dies behind the event; recovery runs on the device as it is then, and is crashed.
fn die(run: &Recorded, event: usize, seed: u64, tally: &mut Tally) {
    let (cached, acknowledged) = cached(&run.trace, event);
    let mut builder = Builder::new(run.base.clone(), &run.trace, Lie::None);
    let durable = builder.build(&CrashState { event, acknowledged, survivors: Vec::new() });
    let device = SimDevice::new(durable, derive(seed, 1));
    for id in cached {
        let write = &run.trace.writes[id];
        let buffers = write.pages.iter().map(|page| Arc::new(Buffer::from_bytes(&page[..]))).collect();
        device.write(BlockNo(write.at), buffers).expect("no error is injected");
    }
    let began = device.position();
    tally.states += 1;
    let view = match recover(&device, derive(seed, 2)) {
        Ok(view) => view,
        Err(what) => return tally.violation(format!("{what} [the process died behind event {event}]")),
    };
    if let Err(violation) = run.model.judge(&view, acknowledged) {
        return tally.violation(format!("{violation:?} [the process died behind event {event}]"));
    }
    let (base, trace) = device.recorded();
    let mut random = Random::new(derive(seed, 3));
    let all = states(&trace, began, Effort { subsets: 2, torn: 1 }, Lie::None, &mut random);
    let mut builder = Builder::new(base, &trace, Lie::None);
    for state in &all {
        let at = || {
            let (crash, survivors) = (state.event - began.min(state.event), &state.survivors);
            format!(
                "[the process died behind event {event}, power failed behind event {crash} of recovery, survivors {survivors:?}]"
            )
        };
        let disk = builder.build(state);
        tally.states += 1;
        tally.recovery_states += 1;
        match recover(&SimDevice::new(disk, derive(seed, 4)), derive(seed, 5)) {
            Ok(again) if state.event == trace.events.len() && again != view => {
                return tally.violation(format!("what recovery had shown is lost {}", at()));
            }
            Ok(again) => {
                if let Err(violation) = run.model.judge(&again, acknowledged) {
                    return tally.violation(format!("{violation:?} {}", at()));
                }
            }
            Err(what) => return tally.violation(format!("{what} {}", at())),
        }
    }
}
