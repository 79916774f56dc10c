//! A day of a replica on a simulated clock: it is compacted and pruned while it is written to, and restored all along.
//!
//! Every unit that counts is noted with the content that the volume had at its last flush. What is restored is compared
//! with that, byte for byte. Whoever asks for a position gets the last one that is kept in front of it, and nothing
//! older than retention allows. Compactions and prunings die at any step, two run at the same time, and sessions of the
//! writer end, cleanly and by a crash.

use crate::lab::{Tally, guarded};
use crate::objects::{Network, SimStore};
use crate::random::{Random, derive};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{Buffer, Device, MemoryDevice};
use syncline_format::replica::Keep;
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_replica::runs::RunSet;
use syncline_replica::{
    Compacted, Compaction, How, Opened, Opener, Opening, Phase, Pruner, Pruning, ReplicaError, Replicator,
    Restore, Settings, TapDevice, Target,
};

const UUID: [u8; 16] = [7; 16];
const BLOCKS: u64 = 64;
const SECOND: u64 = 1_000_000_000;
/// What is kept: an hour of everything, then minutes, then steps of a quarter of an hour.
const KEEP: [Keep; 3] =
    [Keep { age: 3600, step: 1 }, Keep { age: 6 * 3600, step: 60 }, Keep { age: 36 * 3600, step: 900 }];
/// Time of grace, in seconds.
const GRACE: u64 = 900;
/// Time between two compactions, in seconds.
const EVERY: u64 = 600;

/// What a unit's last flush held.
struct Moment {
    time: u64,
    contents: Vec<u64>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events {
    pub units: usize,
    pub packs: usize,
    pub deleted: usize,
    pub restored: usize,
    pub sessions: u64,
    /// Compactions and prunings that died.
    pub died: usize,
    /// Bytes of units, and of packs.
    pub shipped: u64,
    pub packed: u64,
    /// Objects that are there in the end.
    pub left: usize,
}

struct Day {
    store: SimStore,
    random: Random,
    /// Nanoseconds.
    now: u64,
    device: Arc<MemoryDevice>,
    contents: Vec<u64>,
    stamp: u64,
    moments: BTreeMap<(u64, u64), Moment>,
    claim: u64,
    events: Events,
}

/// Some hours from a seed.
pub fn hours(seed: u64) -> Tally {
    judged(seed, 3 * 3600 + seed % 7 * 3600, 60)
}

/// A day and a night from a seed, restored to 1,000 positions in the end.
pub fn day(seed: u64) -> Tally {
    judged(seed, 24 * 3600, 1000)
}

fn judged(seed: u64, seconds: u64, restores: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        match run(seed, seconds, restores) {
            Ok(events) if (events.restored as u64) < restores => {
                tally.violation(format!("of {restores} positions {} are restored", events.restored));
            }
            Ok(events) => {
                tally.operations += events.units as u64;
                tally.states += events.restored as u64;
            }
            Err(what) => tally.violation(what),
        }
    })
}

/// A history of so many seconds; `restores` positions of it are restored in the end.
///
/// # Errors
/// What was not as it should be.
pub fn run(seed: u64, seconds: u64, restores: u64) -> Result<Events, String> {
    let mut day = Day {
        store: SimStore::new(Network::GOOD, derive(seed, 1)),
        random: Random::new(derive(seed, 2)),
        now: 1_800_000_000 * SECOND,
        device: Arc::new(MemoryDevice::new(BLOCKS)),
        contents: vec![0; BLOCKS as usize],
        stamp: 0,
        moments: BTreeMap::new(),
        claim: 0,
        events: Events::default(),
    };
    let end = day.now + seconds * SECOND;
    while day.now < end {
        day.session(end)?;
    }
    day.keep_house(false)?;
    for _ in 0..restores {
        day.restore_some()?;
    }
    day.events.left = day.store.objects().len();
    Ok(day.events)
}

impl Day {
    /// The writer opens, writes for some hours, and closes or dies.
    fn session(&mut self, end: u64) -> Result<(), String> {
        let opened = self.open()?;
        self.claim = opened.claim;
        self.events.sessions += 1;
        let closed = opened.last.is_some_and(|last| last.flags.has(syncline_format::replica::Flags::CLOSED));
        let unknown = RunSet::from(0..if closed { 0 } else { BLOCKS });
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let tap = TapDevice::new(device, 1 << 20, unknown);
        let settings = Settings { interval: SECOND, ..Settings::default() };
        let mut replicator = Replicator::new(Arc::clone(&tap), &opened, settings, 0);
        let until = end.min(self.now + (1 + self.random.below(5)) * 3600 * SECOND);
        let mut flushed: Vec<Vec<u64>> = vec![self.contents.clone()];
        let mut house = self.now + EVERY * SECOND;
        while self.now < until {
            let longest = if self.random.one_in(60) { 900 } else { 8 };
            self.now += (1 + self.random.below(longest)) * SECOND;
            for _ in 0..1 + self.random.below(3) {
                self.write(&tap);
            }
            tap.flush().map_err(|error| error.to_string())?;
            self.ship(&mut replicator, &tap, &mut flushed);
            if self.now >= house {
                house = self.now + EVERY * SECOND;
                self.keep_house(true)?;
                self.restore_some()?;
            }
        }
        if self.random.one_in(2) {
            replicator.close();
            self.ship(&mut replicator, &tap, &mut flushed);
            if *replicator.phase() != Phase::Closed {
                return Err(format!("the writer does not close: {:?}", replicator.phase()));
            }
        }
        Ok(())
    }

    fn open(&mut self) -> Result<Opened, String> {
        let opener = Opener {
            uuid: UUID,
            blocks: BLOCKS,
            continued: self.claim,
            marked: 0,
            generation: None,
            take_over: false,
            nonce: self.random.number(),
            time: self.now,
            process: 1,
            host: String::new(),
        };
        let mut opening = Opening::new(opener);
        loop {
            if opening.to_mark().is_some() {
                opening.marked();
            }
            for request in opening.poll(u64::MAX) {
                let result = self.store.carry_out(&request.operation);
                opening.answer(request.id, 0, result);
            }
            if let Some(outcome) = opening.outcome() {
                return outcome.clone().map_err(|error| format!("the replica does not open: {error}"));
            }
        }
    }

    fn write(&mut self, tap: &TapDevice) {
        self.stamp += 1;
        let first = self.random.below(BLOCKS);
        let count = 1 + self.random.below(4);
        for block in (first..BLOCKS.min(first + count)).filter(|block| *block != 3) {
            // Some blocks become zeros, some do not compress.
            let stamp = if self.random.one_in(5) { 0 } else { self.stamp };
            self.contents[block as usize] = stamp;
            tap.write(BlockNo(block), vec![Arc::new(Buffer::from_bytes(&page(stamp)))]).expect("memory");
        }
    }

    /// Until everything counts.
    fn ship(&mut self, replicator: &mut Replicator, tap: &TapDevice, flushed: &mut Vec<Vec<u64>>) {
        for _ in 0..1000 {
            while flushed.len() as u64 <= tap.flushes() {
                flushed.push(self.contents.clone());
            }
            let requests = replicator.poll(self.now);
            let idle = requests.is_empty();
            for request in requests {
                let result = self.store.carry_out(&request.operation);
                replicator.answer(request.id, self.now, result);
            }
            for unit in replicator.take_counted() {
                self.events.units += 1;
                self.events.shipped += unit.bytes;
                if let Some(flush) = unit.flush {
                    let contents = flushed[flush as usize].clone();
                    // A flush of the replicator's own comes with what was there.
                    while flushed.len() as u64 <= tap.flushes() {
                        flushed.push(self.contents.clone());
                    }
                    self.moments.insert((self.claim, unit.number), Moment { time: self.now, contents });
                }
            }
            if idle {
                match replicator.next_due().filter(|due| *due <= self.now + 3 * SECOND) {
                    Some(due) => self.now = self.now.max(due),
                    None => return,
                }
            }
        }
    }

    /// Packs and deletes; with `dies` maybe only a part of that, and maybe two at the same time.
    fn keep_house(&mut self, dies: bool) -> Result<(), String> {
        for _ in 0..8 {
            let steps = if dies && self.random.one_in(6) { self.random.below(60) } else { u64::MAX };
            let both = dies && self.random.one_in(6);
            match self.compact(steps, both)? {
                Some(done) if done.published => {}
                Some(_) => break,
                None => {
                    self.events.died += 1;
                    return Ok(());
                }
            }
        }
        let mut pruning = Pruning::new(Pruner { uuid: UUID, time: self.now, dry: false, grace: None });
        let mut steps = if dies && self.random.one_in(6) { self.random.below(8) } else { u64::MAX };
        loop {
            for request in pruning.poll(u64::MAX) {
                if steps == 0 {
                    self.events.died += 1;
                    return Ok(());
                }
                steps -= 1;
                let result = self.store.carry_out(&request.operation);
                pruning.answer(request.id, 0, result);
            }
            match pruning.outcome() {
                None => {}
                Some(Ok(done)) => {
                    self.events.deleted += done.units.len() + done.packs.len();
                    return Ok(());
                }
                Some(Err(error)) => return Err(format!("pruning fails: {error}")),
            }
        }
    }

    fn compact(&mut self, mut steps: u64, both: bool) -> Result<Option<Compacted>, String> {
        let how = |random: &mut Random, now| How {
            keep: Some(KEEP.to_vec()),
            grace: Some(GRACE),
            pack_blocks: 1 + random.below(BLOCKS),
            ..How::new(UUID, random.number(), now)
        };
        let mut compactions = vec![Compaction::new(how(&mut self.random, self.now))];
        if both {
            compactions.push(Compaction::new(how(&mut self.random, self.now)));
        }
        loop {
            for compaction in &mut compactions {
                for request in compaction.poll(u64::MAX) {
                    if steps == 0 {
                        return Ok(None);
                    }
                    steps -= 1;
                    let result = self.store.carry_out(&request.operation);
                    compaction.answer(request.id, 0, result);
                }
            }
            if compactions.iter().any(|compaction| compaction.outcome().is_none()) {
                continue;
            }
            let mut done = None;
            for compaction in &compactions {
                match compaction.outcome() {
                    Some(Ok(one)) => {
                        self.events.packs += one.packs;
                        self.events.packed += one.bytes;
                        done = Some(one.clone());
                    }
                    Some(Err(ReplicaError::Disturbed)) if both => {}
                    Some(Err(error)) => return Err(format!("compacting fails: {error}")),
                    None => {}
                }
            }
            return done.map(Some).ok_or_else(|| "two compactions are in each other's way".to_owned());
        }
    }

    /// A position, or a moment, of anywhere in the history.
    fn restore_some(&mut self) -> Result<(), String> {
        let Some((_, last)) = self.moments.last_key_value() else { return Ok(()) };
        let newest = last.time;
        let index = self.random.below(self.moments.len() as u64) as usize;
        // Half of them of the last two hours.
        let recent = self.moments.iter().rposition(|(_, moment)| moment.time + 7200 * SECOND < newest);
        let index = match recent {
            Some(start) if self.random.one_in(2) => {
                start + self.random.below((self.moments.len() - start) as u64) as usize
            }
            _ => index,
        };
        let Some((&at, moment)) = self.moments.iter().nth(index) else { return Ok(()) };
        let time = moment.time;
        let target = if self.random.one_in(2) { Target::Time(time) } else { Target::Position(at.0, at.1) };
        let (end, contents) = match self.restore(target) {
            Ok(restored) => restored,
            // Of a step its end is kept, and nothing is in front of the first one.
            Err(ReplicaError::NothingBefore) if self.is_of_first_step(time, newest) => return Ok(()),
            Err(error) => return Err(format!("{target:?} cannot be restored: {error}")),
        };
        let told = format!("{target:?} of {at:?} is restored to {end:?}");
        let Some(found) = self.moments.get(&end) else { return Err(format!("{told}, which never was")) };
        if found.contents != contents {
            return Err(format!("{told}, and holds something else"));
        }
        // A unit that was made by then may have counted a moment later.
        if end > at && matches!(target, Target::Time(_)) && found.time <= time + 3 * SECOND {
            self.events.restored += 1;
            return Ok(());
        }
        if end > at {
            return Err(format!("{told}, which is behind it"));
        }
        let age = (newest - time) / SECOND;
        let step = KEEP.iter().find(|keep| age < keep.age.saturating_sub(keep.step)).map(|keep| keep.step);
        let between = self.moments.range(end..=at).filter(|(_, moment)| moment.time <= time).count();
        // A step that began in front of it has ended in front of it, or what is restored is of the same step.
        let late = time.saturating_sub(found.time) / SECOND;
        let fits = match step {
            None => true,
            Some(1) => between <= 1,
            Some(step) => between <= 1 || late < 2 * step || self.first_of_step(end, time, step),
        };
        self.events.restored += 1;
        if fits { Ok(()) } else { Err(format!("{told}, {late} s and {between} units in front of it")) }
    }

    fn is_of_first_step(&self, time: u64, newest: u64) -> bool {
        let age = (newest - time) / SECOND;
        let step = KEEP
            .iter()
            .find(|keep| age < keep.age.saturating_sub(keep.step))
            .map_or(u64::MAX, |keep| keep.step);
        let first = self.moments.first_key_value().map_or(time, |(_, moment)| moment.time);
        (time - first) / SECOND < step
    }

    /// Whether nothing was shipped between the end of a step and the step of this time.
    fn first_of_step(&self, end: (u64, u64), time: u64, step: u64) -> bool {
        let part = |time: u64| time / (step * SECOND);
        let mut behind = self.moments.range(end..).skip(1).map(|(_, moment)| part(moment.time));
        behind.next().is_some_and(|next| next >= part(time))
    }

    fn restore(&mut self, target: Target) -> Result<((u64, u64), Vec<u64>), ReplicaError> {
        let mut restore = Restore::new(UUID, target);
        let mut contents = vec![0; BLOCKS as usize];
        loop {
            for request in restore.poll(u64::MAX) {
                let result = self.store.carry_out(&request.operation);
                restore.answer(request.id, 0, result);
            }
            for (at, buffer) in restore.take_writes() {
                for (block, bytes) in (at.0..).zip(buffer.chunks_exact(BLOCK_BYTES)) {
                    contents[block as usize] = stamp_of(bytes);
                }
            }
            match (restore.outcome(), restore.plan()) {
                (Some(Ok(())), Some(plan)) => return Ok(((plan.end.claim, plan.end.number), contents)),
                (Some(Err(error)), _) => return Err(error.clone()),
                _ => {}
            }
        }
    }
}

/// The bytes of a block with a stamp; half of the stamps do not compress.
fn page(stamp: u64) -> Vec<u8> {
    let mut random = Random::new(stamp);
    let word = |random: &mut Random| if stamp.is_multiple_of(2) { stamp } else { random.number() };
    let words = std::iter::once(stamp).chain((1..BLOCK_BYTES / 8).map(|_| word(&mut random)));
    words.flat_map(u64::to_le_bytes).collect()
}

/// The stamp of a block; one that nothing has if its bytes are not those of its stamp.
fn stamp_of(bytes: &[u8]) -> u64 {
    let stamp = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    if page(stamp) == bytes { stamp } else { u64::MAX }
}
