//! What crash states of a volume with snapshots and heads have to show.

use super::record::{MAIN, Run, Step};
use super::{Shown, differs, heads, open, read_only, snapshots};
use crate::crash::{Builder, CrashState, Effort, Lie, states};
use crate::device::{Disk, SimDevice};
use crate::driver::SimClock;
use crate::lab::{Depth, Tally, complaints, grown};
use crate::oracle::PAGE;
use crate::random::{Random, derive};
use std::sync::Arc;
use syncline_format::NODE_BLOCKS;
use syncline_fs::{Error, Fs};

/// Blocks of the tables in which a snapshot and its overlay are named, at most.
const TABLES_MAX: u64 = 16;

/// How thoroughly crash states are examined.
#[derive(Clone, Copy)]
pub(super) struct Pains {
    pub(super) depth: Depth,
    /// One of so many states is opened read-only before it is recovered.
    pub(super) looked_at_every: u64,
    /// One of so many recovered volumes loses all its snapshots, and is checked.
    pub(super) emptied_every: u64,
}

/// Judges the crash states of a run.
pub(super) fn judge(run: &Run, seed: u64, pains: Pains, tally: &mut Tally) {
    let mut random = Random::new(derive(seed, 56));
    let mut all = states(&run.trace, run.opened, pains.depth.effort, Lie::None, &mut random);
    while all.len() > pains.depth.states_max {
        all.swap_remove(random.below(all.len() as u64) as usize);
    }
    all.sort_by_key(|state| state.event);
    let mut builder = Builder::new(run.base.clone(), &run.trace, Lie::None);
    for (index, state) in all.iter().enumerate() {
        let disk = builder.build(state);
        let seed = derive(seed, 2000 + index as u64);
        let judged = judge_one(run, state, disk, seed, pains, &mut random, tally);
        if let Err(what) = judged {
            let (event, survivors) = (state.event, &state.survivors);
            return tally
                .violation(format!("{what} [crash behind event {event} with survivors {survivors:?}]"));
        }
    }
}

fn judge_one(
    run: &Run,
    state: &CrashState,
    disk: Disk,
    seed: u64,
    pains: Pains,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<(), String> {
    tally.states += 1;
    let device = SimDevice::new(disk, seed);
    let looks = random.one_in(pains.looked_at_every);
    let (fs, snapshots, heads) = recover(run, &device, state.acknowledged, seed, looks)?;
    if random.one_in(pains.depth.recovery_every) {
        let seen = (&snapshots, &heads);
        cut_recovery(run, &device, state.acknowledged, seen, seed, tally)?;
    }
    if random.one_in(pains.depth.check_every) {
        tally.checks += 1;
        let (crashed, _) = device.recorded();
        for (when, disk) in [("before", crashed), ("after", device.settled())] {
            if let Some(what) = complaints(&*SimDevice::new(disk, 0)).pop() {
                return Err(format!("check {when} recovery: {what}"));
            }
        }
        grown(&device, &heads[MAIN], seed)?;
    }
    if random.one_in(pains.emptied_every) {
        empty(&fs, &device)?;
    }
    Ok(())
}

/// What a state shows to who opens it read-only, which writes nothing: snapshots, and heads.
fn look(device: &Arc<SimDevice>, seed: u64) -> Result<(Shown, Shown), String> {
    let copy = SimDevice::new(device.settled(), derive(seed, 61));
    let fs = read_only(&copy, derive(seed, 62))?;
    let shown = (snapshots(&fs)?, heads(&fs)?);
    match copy.recorded().1.writes.len() {
        0 => Ok(shown),
        written => Err(format!("opened read-only, the volume is written to {written} times")),
    }
}

/// Opens a volume, and holds it, its heads and its snapshots against what may be there. `looks`: before that somebody
/// opens it read-only.
fn recover(
    run: &Run,
    device: &Arc<SimDevice>,
    acknowledged: usize,
    seed: u64,
    looks: bool,
) -> Result<(Arc<Fs>, Shown, Shown), String> {
    let looked = looks.then(|| look(device, seed)).transpose()?;
    let fs = open(device, &SimClock::new(), derive(seed, 57), run.node_items_max)
        .map_err(|error| format!("recovery fails: {error}"))?;
    let got = (snapshots(&fs)?, heads(&fs)?);
    if let Some(looked) = looked.filter(|looked| *looked != got) {
        let (snapshots, heads) = (differs("snapshot", &got.0, &looked.0), differs("head", &got.1, &looked.1));
        return Err(format!("opened read-only the volume shows something else: {snapshots}; {heads}"));
    }
    let (got, heads) = got;
    let told = run.steps.iter().rposition(|step| step.ack <= acknowledged).expect("the start is");
    let is_alike = |step: &Step| step.shown == got && step.heads.keys().eq(heads.keys());
    let mut wrong = Vec::new();
    for index in (told..run.steps.len()).filter(|index| is_alike(&run.steps[*index])) {
        match judge_heads(run, index, &heads, acknowledged) {
            Ok(()) => return Ok((fs, got, heads)),
            Err(what) => wrong.push(what),
        }
    }
    if !wrong.is_empty() {
        return Err(wrong.join("; or else "));
    }
    let step = &run.steps[told];
    let names = |names: Vec<&String>| format!("{names:?}");
    let (now, then) = (names(heads.keys().collect()), names(step.heads.keys().collect()));
    Err(format!("{}; heads {now}, not {then}", differs("snapshot", &step.shown, &got)))
}

/// Whether the heads may look like this if the log ends behind this step, and before the next one.
fn judge_heads(run: &Run, index: usize, heads: &Shown, acknowledged: usize) -> Result<(), String> {
    let (step, next) = (&run.steps[index], run.steps.get(index + 1));
    // The log holds everything before the step.
    let acknowledged = &run.acks[acknowledged.max(step.ack)];
    for (name, view) in heads {
        let model = step.heads[name];
        let syncs = acknowledged.get(model).copied().unwrap_or(0);
        // What came behind the next step is not in a log that ends before it (C2).
        let may = next.map_or(run.models[model].metas(), |next| next.metas[model]);
        let judged = run.models[model].judge_up_to(view, syncs, may);
        judged.map_err(|violation| format!("head {name}, {syncs} syncs acknowledged: {violation:?}"))?;
    }
    Ok(())
}

/// Cuts the recovery that the device has recorded at each of its writes: what it has shown somebody may have seen.
fn cut_recovery(
    run: &Run,
    device: &Arc<SimDevice>,
    acknowledged: usize,
    seen: (&Shown, &Shown),
    seed: u64,
    tally: &mut Tally,
) -> Result<(), String> {
    let (base, trace) = device.recorded();
    let mut random = Random::new(derive(seed, 58));
    let all = states(&trace, 0, Effort { subsets: 1, torn: 1 }, Lie::None, &mut random);
    let mut builder = Builder::new(base, &trace, Lie::None);
    for state in &all {
        tally.states += 1;
        tally.recovery_states += 1;
        let device = SimDevice::new(builder.build(state), derive(seed, 59));
        let again =
            recover(run, &device, acknowledged, derive(seed, 60), true).and_then(|(_, snapshots, heads)| {
                match (&snapshots, &heads) == seen {
                    true => Ok(()),
                    false => Err(format!(
                        "a second recovery differs from the first: {}",
                        differs("head", seen.1, &heads)
                    )),
                }
            });
        again.map_err(|what| format!("{what} [recovery cut behind event {}]", state.event))?;
    }
    Ok(())
}

/// Deletes one snapshot: it is refused while the snapshot is held, and gives back what was told before.
fn usage(fs: &Fs) -> Result<(), String> {
    let failed = |what: &'static str| move |error: Error| format!("{what}: {error}");
    let Some(name) = fs.snapshots().into_iter().rev().nth(1).map(|snapshot| snapshot.name) else {
        return Ok(());
    };
    fs.finish_deletions().map_err(failed("what was deleted before is not taken apart"))?;
    let told = fs.usage(&[&name]).map_err(failed("usage"))? / PAGE;
    fs.hold_snapshot(&name).map_err(failed("a snapshot cannot be held"))?;
    if fs.delete_snapshot(&name).is_ok() {
        return Err(format!("the snapshot {name} was deleted although it is held"));
    }
    fs.release_snapshot(&name).map_err(failed("a snapshot cannot be released"))?;
    let free = |fs: &Fs| {
        fs.reclaim().map_err(failed("a deleted snapshot is not taken apart"))?;
        Ok::<u64, String>(fs.statfs().blocks_free)
    };
    let before = free(fs)?;
    fs.delete_snapshot(&name).map_err(failed("a snapshot cannot be deleted"))?;
    let gained = free(fs)?.saturating_sub(before);
    // The tables of the volume become shorter, by whole nodes: a page that was not told of is no part of these.
    let is_of_tables = |blocks: u64| blocks <= TABLES_MAX && blocks.is_multiple_of(u64::from(NODE_BLOCKS));
    match gained.checked_sub(told).is_some_and(is_of_tables) {
        true => Ok(()),
        false => Err(format!("the deletion of {name} was to give back {told} blocks, and gave {gained}")),
    }
}

/// Deletes all snapshots and all heads but one: the rest is a volume that is sound, and has none.
fn empty(fs: &Fs, device: &Arc<SimDevice>) -> Result<(), String> {
    let failed = |what: &'static str| move |error: Error| format!("{what}: {error}");
    for head in fs.heads().list().into_iter().filter(|head| !head.is_default) {
        fs.heads().delete(&head.name).map_err(failed("a head cannot be deleted"))?;
    }
    usage(fs)?;
    for snapshot in fs.snapshots() {
        // What reads it ends as the session of a volume does, and ends nothing of the volume.
        let view = fs.at(&snapshot.name).map_err(failed("a snapshot does not open"))?;
        view.end_trims();
        view.shut_down();
        view.close().map_err(failed("a snapshot that was read cannot be closed"))?;
        drop(view);
        // A deletion waits for nothing but the headroom of a full volume.
        fs.delete_snapshot(&snapshot.name).map_err(failed("a snapshot cannot be deleted"))?;
    }
    fs.reclaim().map_err(failed("deleted snapshots are not taken apart"))?;
    if fs.finish_deletions().map_err(failed("deletions of snapshots do not end"))? {
        return Err("deleted snapshots keep their space".to_owned());
    }
    fs.close().map_err(failed("close"))?;
    match complaints(&*SimDevice::new(device.settled(), 0)).pop() {
        Some(what) => Err(format!("check behind the deletion of all snapshots: {what}")),
        None => Ok(()),
    }
}
