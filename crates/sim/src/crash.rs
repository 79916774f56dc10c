//! Crash states: from one recorded run, every device content that a power cut at any moment could have left.
//!
//! Between two events the device has a durable content and a list of writes that are not durable. The states of that
//! moment are: *drop all*, *each prefix* survives, *each single write missing*, *random subsets*, and *torn* ones.
//! Equal contents arise at many moments; only the last of them is kept, because by then the most syncs are
//! acknowledged: the strictest judge. (What had not begun by an earlier moment cannot be in the content anyway.)
//!
//! A content is named by the set of writes (with their surviving sectors) that it consists of, hashed without order.

use crate::device::{Disk, Event, Page, SECTOR_BYTES, SimDevice, Trace, Write, WriteId};
use crate::random::{Random, mix};
use std::collections::HashMap;
use std::sync::Arc;
use syncline_format::BLOCK_BYTES;

/// Longer lists of pending writes are sampled: that many prefixes and single losses.
const PENDING_EXHAUSTIVE_MAX: usize = 24;

/// Which sectors of a write survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    Whole,
    /// The first so many sectors.
    Head(u32),
    /// Those that the number chooses.
    Sectors(u64),
}

impl Survives {
    fn keeps(self, sector: u32) -> bool {
        match self {
            Survives::Whole => true,
            Survives::Head(count) => sector < count,
            Survives::Sectors(seed) => mix(seed ^ u64::from(sector)) & 1 == 1,
        }
    }

    fn key(self) -> u64 {
        match self {
            Survives::Whole => 0,
            Survives::Head(count) => 1 + u64::from(count),
            Survives::Sectors(seed) => mix(seed) | 1 << 63,
        }
    }
}

/// One state: what is durable by `event`, and what survives besides.
#[derive(Debug, Clone)]
pub struct CrashState {
    /// The crash is behind so many events.
    pub event: usize,
    /// Syncs acknowledged by then.
    pub acknowledged: usize,
    pub survivors: Vec<(WriteId, Survives)>,
}

/// How many states are made.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Random subsets per moment.
    pub subsets: u32,
    /// Torn states per moment.
    pub torn: u32,
}

/// How the device misbehaves beyond its fault model: the negative controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    None,
    /// This flush covers nothing.
    IgnoredFlush(usize),
    /// No flush covers anything.
    IgnoredFlushes,
    /// Acknowledged, never stored, whatever is flushed.
    LostWrite(WriteId),
}

/// Walks a trace: which writes are durable, which are pending.
struct Cursor<'a> {
    trace: &'a Trace,
    lie: Lie,
    pending: Vec<WriteId>,
    /// Completed well, by write.
    completed: Vec<bool>,
    /// Never durable: failed, or behind a failed flush.
    forsaken: Vec<bool>,
    /// Writes that each flush in flight covers.
    covers: HashMap<usize, Vec<WriteId>>,
    acknowledged: usize,
}

impl<'a> Cursor<'a> {
    fn new(trace: &'a Trace, lie: Lie) -> Cursor<'a> {
        let count = trace.writes.len();
        Cursor {
            trace,
            lie,
            pending: Vec::new(),
            completed: vec![false; count],
            forsaken: vec![false; count],
            covers: HashMap::new(),
            acknowledged: 0,
        }
    }

    /// Takes one event; returns what it made durable, in order of submission.
    fn step(&mut self, event: Event) -> Vec<WriteId> {
        match event {
            Event::Submitted(id) if self.lie == Lie::LostWrite(id) => {}
            Event::Submitted(id) => self.pending.push(id),
            Event::Completed(id, true) => self.completed[id] = true,
            Event::Completed(id, false) => self.forsaken[id] = true,
            Event::Acknowledged(count) => self.acknowledged = count,
            Event::FlushIssued(id) => {
                let covered = |id: &WriteId| self.completed[*id] && !self.forsaken[*id];
                self.covers.insert(id, self.pending.iter().copied().filter(covered).collect());
            }
            Event::FlushDone(id, ok) => {
                let covered = self.covers.remove(&id).unwrap_or_default();
                if !ok {
                    covered.iter().for_each(|id| self.forsaken[*id] = true);
                    return Vec::new();
                }
                if self.lie == Lie::IgnoredFlush(id) || self.lie == Lie::IgnoredFlushes {
                    return Vec::new();
                }
                let covered: Vec<WriteId> = covered.into_iter().filter(|id| !self.forsaken[*id]).collect();
                self.pending.retain(|id| !covered.contains(id));
                return covered;
            }
        }
        Vec::new()
    }
}

fn key_of(id: WriteId, survives: Survives) -> u64 {
    mix(mix(id as u64 + 1) ^ survives.key())
}

/// All states of crashes behind event `from` or later.
pub fn states(trace: &Trace, from: usize, effort: Effort, lie: Lie, random: &mut Random) -> Vec<CrashState> {
    let mut cursor = Cursor::new(trace, lie);
    let mut durable_key = 0u64;
    let mut found: Vec<CrashState> = Vec::new();
    let mut by_key: HashMap<u64, usize> = HashMap::new();
    let mut keep = |key: u64, state: CrashState| match by_key.get(&key) {
        Some(&index) => found[index] = state,
        None => {
            by_key.insert(key, found.len());
            found.push(state);
        }
    };
    for (index, event) in trace.events.iter().enumerate() {
        for id in cursor.step(*event) {
            durable_key = durable_key.wrapping_add(key_of(id, Survives::Whole));
        }
        let changes = !matches!(event, Event::Completed(_, true) | Event::FlushIssued(_));
        if index + 1 < from || !(changes || index + 1 == from) {
            continue;
        }
        // A sync's acknowledgement makes old contents wrong, it makes no new ones.
        let fresh = matches!(event, Event::Submitted(_));
        for survivors in subsets(&cursor.pending, trace, effort, fresh, random) {
            let key = survivors.iter().fold(durable_key, |sum, (id, s)| sum.wrapping_add(key_of(*id, *s)));
            keep(key, CrashState { event: index + 1, acknowledged: cursor.acknowledged, survivors });
        }
    }
    found.sort_by_key(|state| state.event);
    found
}

type Survivors = Vec<(WriteId, Survives)>;

fn subsets(
    pending: &[WriteId],
    trace: &Trace,
    effort: Effort,
    fresh: bool,
    random: &mut Random,
) -> Vec<Survivors> {
    let whole = |ids: &mut dyn Iterator<Item = WriteId>| -> Survivors {
        ids.map(|id| (id, Survives::Whole)).collect()
    };
    let mut result = vec![Vec::new()];
    if pending.is_empty() {
        return result;
    }
    let mut chosen: Vec<usize> = (0..pending.len()).collect();
    if pending.len() > PENDING_EXHAUSTIVE_MAX {
        chosen = (0..PENDING_EXHAUSTIVE_MAX).map(|_| random.below(pending.len() as u64) as usize).collect();
        chosen.push(pending.len() - 1);
    }
    for &index in &chosen {
        result.push(whole(&mut pending[..=index].iter().copied()));
        let others = pending.iter().enumerate().filter(|(other, _)| *other != index);
        result.push(whole(&mut others.map(|(_, id)| *id)));
    }
    if !fresh {
        return result;
    }
    for _ in 0..effort.subsets {
        if pending.len() > 2 {
            result.push(whole(&mut pending.iter().copied().filter(|_| random.one_in(2))));
        }
    }
    for round in 0..effort.torn {
        let torn = match round {
            0 => pending.len() - 1,
            _ => random.below(pending.len() as u64) as usize,
        };
        let sectors = sectors(&trace.writes[pending[torn]]);
        let how = match random.one_in(2) {
            true => Survives::Head(1 + random.below(u64::from(sectors) - 1) as u32),
            false => Survives::Sectors(random.number()),
        };
        let others = pending.iter().enumerate().filter(|(index, _)| {
            *index == torn || if round % 2 == 0 { *index < torn } else { random.one_in(2) }
        });
        let mut survivors: Survivors = others.map(|(_, id)| (*id, Survives::Whole)).collect();
        for survivor in survivors.iter_mut().filter(|(id, _)| *id == pending[torn]) {
            survivor.1 = how;
        }
        result.push(survivors);
    }
    result
}

fn sectors(write: &Write) -> u32 {
    (write.pages.len() * BLOCK_BYTES / SECTOR_BYTES) as u32
}

/// Builds the contents of states, which come in ascending order of their events.
pub struct Builder<'a> {
    cursor: Cursor<'a>,
    disk: Disk,
    event: usize,
}

impl<'a> Builder<'a> {
    pub fn new(base: Disk, trace: &'a Trace, lie: Lie) -> Builder<'a> {
        Builder { cursor: Cursor::new(trace, lie), disk: base, event: 0 }
    }

    pub fn build(&mut self, state: &CrashState) -> Disk {
        assert!(state.event >= self.event, "states are built in order");
        while self.event < state.event {
            let trace = self.cursor.trace;
            for id in self.cursor.step(trace.events[self.event]) {
                apply(&mut self.disk, &trace.writes[id], Survives::Whole);
            }
            self.event += 1;
        }
        let mut disk = self.disk.clone();
        for (id, survives) in &state.survivors {
            apply(&mut disk, &self.cursor.trace.writes[*id], *survives);
        }
        disk
    }
}

/// What a power cut leaves at least of what a device was given: what was flushed.
pub fn durable(device: &SimDevice) -> Disk {
    let (base, trace) = device.recorded();
    let state = CrashState { event: trace.events.len(), acknowledged: 0, survivors: Vec::new() };
    Builder::new(base, &trace, Lie::None).build(&state)
}

fn apply(disk: &mut Disk, write: &Write, survives: Survives) {
    for (index, page) in write.pages.iter().enumerate() {
        let block = write.at + index as u64;
        if survives == Survives::Whole {
            disk.put(block, Arc::clone(page));
            continue;
        }
        let mut torn: Page = disk.get(block).map_or([0; BLOCK_BYTES], |old| **old);
        let first = (index * BLOCK_BYTES / SECTOR_BYTES) as u32;
        let parts = torn.chunks_mut(SECTOR_BYTES).zip(page.chunks(SECTOR_BYTES));
        for (sector, (old, new)) in (first..).zip(parts) {
            if survives.keeps(sector) {
                old.copy_from_slice(new);
            }
        }
        disk.put(block, Arc::new(torn));
    }
}
