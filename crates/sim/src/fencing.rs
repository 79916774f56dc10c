//! Oracle B: machines that take over from each other, over a bad network, each stalling anywhere for any time.
//!
//! A volume is a few blocks, and each write to it makes a state of its own, told by a stamp in its first block. So what
//! is restored can be compared with what was written, exactly: it has to be one of these states, and every state that
//! any machine was told to count has to be among its ancestors (C13, C15).
//!
//! Meanwhile two bystanders compact and prune, and one restores; they stall as well. Whoever restores gets a state that
//! was, with everything in it that counted when it began, or is told that it was too slow (P7).

use crate::keepers::{Keeper, Kept};
use crate::lab::{Tally, guarded};
use crate::objects::{Network, SimStore};
use crate::random::{Random, derive};
use crate::replicas::restore;
use std::sync::Arc;
use syncline_device::{Buffer, Device, MemoryDevice};
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_replica::runs::RunSet;
use syncline_replica::{
    Answer, Opener, Opening, Phase, ReplicaError, Replicator, RequestId, Restore, Settings, StoreError,
    TapDevice, Target,
};

pub(crate) const UUID: [u8; 16] = [7; 16];
pub(crate) const BLOCKS: u64 = 24;
const MACHINES: usize = 3;
const KEEPERS: usize = 3;
/// The one of them that restores.
pub(crate) const READER: usize = 0;
/// Steps of one run.
const STEPS: u64 = 4000;
/// Longest stall, in nanoseconds of simulated time: an hour.
const STALL: u64 = 3_600_000_000_000;
/// Longest pause of who restores slowly: less than the time of grace.
const PAUSE: u64 = 30_000_000_000;

type Stamp = u64;

/// Everything that was ever written.
#[derive(Default)]
struct History {
    /// By stamp less one: the state before it, and the stamp that each block holds then.
    states: Vec<(Stamp, Vec<Stamp>)>,
}

impl History {
    fn contents(&self, stamp: Stamp) -> Vec<Stamp> {
        match stamp {
            0 => vec![0; BLOCKS as usize],
            _ => self.states[stamp as usize - 1].1.clone(),
        }
    }

    fn is_ancestor(&self, old: Stamp, mut of: Stamp) -> bool {
        while of > old {
            of = self.states[of as usize - 1].0;
        }
        of == old
    }
}

/// What a machine does.
enum Session {
    Closed,
    Opening(Box<Opening>, bool),
    /// Owns the claim, and fetches what the replica holds.
    /// The last tells whether nothing counted when it began.
    Restoring(Box<Restore>, Box<syncline_replica::Opened>, Arc<MemoryDevice>, bool),
    Shipping(Box<Replicator>, Arc<TapDevice>),
}

struct Machine {
    session: Session,
    disk: Option<(Arc<MemoryDevice>, Stamp)>,
    /// The claim that last wrote to the disk.
    claim: u64,
    /// Nonce of the session that last meant to claim for it.
    marked: u64,
    /// Number of the session, so that answers to an earlier one are not taken for its own.
    number: usize,
    stalled_until: u64,
    /// Answers that came while it stalled.
    inbox: Vec<(usize, RequestId, Result<Answer, StoreError>)>,
    /// Stamps by flush.
    flushed: Vec<Stamp>,
}

struct World {
    manner: Manner,
    store: SimStore,
    random: Random,
    now: u64,
    history: History,
    machines: Vec<Machine>,
    keepers: Vec<Keeper>,
    sessions: usize,
    /// Stamps that were counted, each only if it is not an ancestor of a later one.
    counted: Vec<Stamp>,
    bases: u64,
    fenced: u64,
    taken_over: u64,
    pruned: Kept,
}

impl Machine {
    /// Takes what came, all at once if it has stalled.
    fn take_answers(&mut self, now: u64) {
        for (number, id, result) in std::mem::take(&mut self.inbox) {
            match &mut self.session {
                // An answer to an earlier session.
                _ if number != self.number => {}
                Session::Closed => {}
                Session::Opening(opening, _) => opening.answer(id, now, result),
                Session::Restoring(restore, ..) => restore.answer(id, now, result),
                Session::Shipping(replicator, _) => replicator.answer(id, now, result),
            }
        }
    }
}

/// What came of a run, beside violations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events {
    pub counted: u64,
    pub fenced: u64,
    pub taken_over: u64,
    pub kept: Kept,
}

/// One run from a seed.
pub fn run(seed: u64) -> Tally {
    run_counting(seed).0
}

/// What is slow in a run besides what stalls in any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Usual,
    /// Who restores makes pauses that are shorter than the time of grace: what it needs has to stay all the while.
    /// Those who pack and prune have more of the time.
    SlowReader,
    /// Every other session is far from the store: what it asked first may be answered last, and others take over
    /// meanwhile.
    FarAway,
}

impl Manner {
    /// That of the run with a number.
    fn of(number: u64) -> Manner {
        match number % 8 {
            3 => Manner::SlowReader,
            7 => Manner::FarAway,
            _ => Manner::Usual,
        }
    }
}

/// The run of a number.
pub fn run_number(number: u64, seed: u64) -> Tally {
    run_as(seed, Manner::of(number)).0
}

/// One run, and what happened in it.
pub fn run_counting(seed: u64) -> (Tally, Events) {
    run_as(seed, Manner::Usual)
}

fn run_as(seed: u64, manner: Manner) -> (Tally, Events) {
    let mut events = Events::default();
    let tally = guarded(|tally| {
        tally.workloads += 1;
        let mut world = World::new(seed, manner);
        for _ in 0..STEPS {
            tally.operations += 1;
            if let Err(what) = world.step() {
                return tally.violation(what);
            }
        }
        if let Err(what) = world.judge() {
            tally.violation(what);
        }
        tally.states += world.bases;
        events = Events {
            counted: world.counted.len() as u64,
            fenced: world.fenced,
            taken_over: world.taken_over,
            kept: world.pruned,
        };
    });
    (tally, events)
}

fn page(stamp: Stamp) -> Arc<Buffer> {
    Arc::new(Buffer::from_bytes(&stamp.to_le_bytes()))
}

impl World {
    fn new(seed: u64, manner: Manner) -> World {
        let machine = || Machine {
            session: Session::Closed,
            disk: None,
            claim: 0,
            marked: 0,
            number: 0,
            stalled_until: 0,
            inbox: Vec::new(),
            flushed: Vec::new(),
        };
        let network = if manner == Manner::FarAway { Network::WORSE } else { Network::BAD };
        World {
            manner,
            store: SimStore::new(network, derive(seed, 1)),
            random: Random::new(derive(seed, 2)),
            now: 1,
            history: History::default(),
            machines: (0..MACHINES).map(|_| machine()).collect(),
            keepers: (0..KEEPERS).map(|_| Keeper::default()).collect(),
            sessions: 0,
            counted: Vec::new(),
            bases: 0,
            fenced: 0,
            taken_over: 0,
            pruned: Kept::default(),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.now = match self.store.next() {
            Some(next) if self.random.one_in(2) => next.max(self.now),
            _ => self.now + 1 + self.random.below(400_000_000),
        };
        for (client, id, result) in self.store.advance(self.now) {
            if let Some(machine) = self.machines.iter_mut().find(|machine| machine.number == client) {
                machine.inbox.push((client, id, result));
            } else if let Some(keeper) = self.keepers.iter_mut().find(|keeper| keeper.number == client) {
                keeper.inbox.push((id, result));
            }
        }
        for machine in self.machines.iter_mut().filter(|machine| machine.stalled_until <= self.now) {
            machine.take_answers(self.now);
        }
        if let Some(name) = self.store.changed.first() {
            return Err(format!("P4: {name} was put with other bytes"));
        }
        if self.random.one_in(3) || self.manner == Manner::SlowReader && self.random.one_in(2) {
            return self.keep();
        }
        let machine = self.random.below(MACHINES as u64) as usize;
        if self.machines[machine].stalled_until > self.now {
            return Ok(());
        }
        if self.random.one_in(150) {
            let stall = (1 + self.random.below(STALL)) >> self.random.below(30);
            self.machines[machine].stalled_until = self.now + stall;
        }
        self.act(machine)?;
        if self.random.one_in(200) { self.judge() } else { Ok(()) }
    }

    /// One of those who compact, prune and read does something.
    fn keep(&mut self) -> Result<(), String> {
        let number = self.random.below(KEEPERS as u64) as usize;
        let keeper = &mut self.keepers[number];
        if keeper.stalled_until > self.now {
            return Ok(());
        }
        if self.random.one_in(150) {
            let stall = (1 + self.random.below(STALL)) >> self.random.below(30);
            keeper.stalled_until = self.now + stall;
        }
        if self.manner == Manner::SlowReader && number == READER && self.random.one_in(6) {
            keeper.stalled_until = self.now + self.random.below(PAUSE);
        }
        if keeper.is_idle() {
            self.sessions += 1;
            keeper.begin(self.sessions, number, self.now, &mut self.random, &self.counted);
        }
        let client = keeper.number;
        let (requests, read) = keeper.step(self.now, &mut self.pruned)?;
        self.store.send(client, self.now, requests);
        let Some((device, counted)) = read else { return Ok(()) };
        let stamp = self.stamp_of(&*device)?;
        match counted.iter().find(|counted| !self.history.is_ancestor(**counted, stamp)) {
            Some(lost) => {
                Err(format!("C13: state {lost} counted when a restore began, and is not in state {stamp}"))
            }
            None => Ok(()),
        }
    }

    /// One machine does something.
    fn act(&mut self, machine: usize) -> Result<(), String> {
        let dies = self.random.one_in(300);
        let one = &mut self.machines[machine];
        if dies {
            one.session = Session::Closed;
            return Ok(());
        }
        let (now, client) = (self.now, one.number);
        let requests = match &mut one.session {
            Session::Closed => {
                self.open(machine);
                return Ok(());
            }
            Session::Opening(opening, _) => {
                if let Some((claim, nonce)) = opening.to_mark() {
                    (one.claim, one.marked) = (claim, nonce);
                    opening.marked();
                }
                opening.poll(now)
            }
            Session::Restoring(restore, ..) => restore.poll(now),
            Session::Shipping(replicator, _) => replicator.poll(now),
        };
        self.store.send(client, now, requests);
        match &self.machines[machine].session {
            Session::Closed => Ok(()),
            Session::Opening(..) => self.opened(machine),
            Session::Restoring(..) => self.restored(machine),
            Session::Shipping(..) => self.ship(machine),
        }
    }

    fn open(&mut self, machine: usize) {
        let own = self.machines[machine].disk.is_some() && !self.random.one_in(4);
        // Taking over is what an operator does now and then.
        if !own && !self.random.one_in(40) && self.sessions > 0 {
            return;
        }
        self.sessions += 1;
        let one = &mut self.machines[machine];
        if !own {
            one.disk = None;
            (one.claim, one.marked) = (0, 0);
        }
        one.number = self.sessions;
        let opener = Opener {
            uuid: UUID,
            blocks: BLOCKS,
            continued: one.claim,
            marked: one.marked,
            generation: Some(0),
            take_over: !own,
            nonce: self.random.number(),
            time: self.now,
            process: self.sessions as u32,
            host: format!("machine {machine}"),
        };
        one.session = Session::Opening(Box::new(Opening::new(opener)), own);
    }

    fn opened(&mut self, machine: usize) -> Result<(), String> {
        let one = &mut self.machines[machine];
        let Session::Opening(opening, own) = &one.session else { return Ok(()) };
        let Some(outcome) = opening.outcome().cloned() else { return Ok(()) };
        let own = *own;
        let opened = match outcome {
            Ok(opened) => opened,
            Err(ReplicaError::Behind { .. }) => {
                // What is on this disk is exported, never merged.
                self.fenced += 1;
                one.disk = None;
                (one.claim, one.marked) = (0, 0);
                one.session = Session::Closed;
                return Ok(());
            }
            Err(ReplicaError::Contended { .. } | ReplicaError::Fenced { .. }) => {
                one.session = Session::Closed;
                return Ok(());
            }
            Err(error) => return Err(format!("opening fails: {error}")),
        };
        one.claim = opened.claim;
        if own && one.disk.is_some() {
            self.begin(machine, &opened, true);
            return Ok(());
        }
        self.taken_over += 1;
        let device = Arc::new(MemoryDevice::new(BLOCKS));
        if opened.last.is_none() {
            self.machines[machine].disk = Some((device, 0));
            self.begin(machine, &opened, true);
            return Ok(());
        }
        let restore = Box::new(Restore::new(UUID, Target::Newest));
        let nothing = self.counted.is_empty();
        self.machines[machine].session = Session::Restoring(restore, Box::new(opened), device, nothing);
        Ok(())
    }

    fn restored(&mut self, machine: usize) -> Result<(), String> {
        let one = &mut self.machines[machine];
        let Session::Restoring(restore, opened, device, nothing) = &mut one.session else { return Ok(()) };
        for (at, buffer) in restore.take_writes() {
            device.write(at, vec![buffer]).expect("memory");
        }
        let opened = (**opened).clone();
        match restore.outcome() {
            None => Ok(()),
            Some(Ok(())) => {
                let device = Arc::clone(device);
                let stamp = self.stamp_of(&*device)?;
                self.machines[machine].disk = Some((device, stamp));
                self.begin(machine, &opened, !opened.may_stream());
                Ok(())
            }
            // Nothing consistent was shipped when it looked. A later owner's base may count by now.
            Some(Err(ReplicaError::NothingBefore)) if *nothing => {
                self.machines[machine].disk = Some((Arc::new(MemoryDevice::new(BLOCKS)), 0));
                self.begin(machine, &opened, true);
                Ok(())
            }
            // It stood still for longer than the time of grace.
            Some(Err(ReplicaError::Pruned { .. })) => {
                one.session = Session::Closed;
                one.disk = None;
                Ok(())
            }
            Some(Err(error)) => Err(format!("an owner cannot restore: {error}")),
        }
    }

    fn begin(&mut self, machine: usize, opened: &syncline_replica::Opened, base: bool) {
        let one = &mut self.machines[machine];
        let Some((device, stamp)) = &one.disk else { return };
        let held = 1 << (12 + self.random.below(5));
        let unknown = RunSet::from(0..if base { BLOCKS } else { 0 });
        let tap = TapDevice::new(Arc::clone(device) as Arc<dyn Device>, held, unknown);
        let settings = Settings {
            interval: self.random.below(2_000_000_000),
            unit_bytes: 1 << 14,
            read_blocks: 1 + self.random.below(BLOCKS),
            rest_blocks: self.random.below(BLOCKS),
        };
        one.flushed = vec![*stamp];
        let replicator = Replicator::new(Arc::clone(&tap), opened, settings, 0);
        one.session = Session::Shipping(Box::new(replicator), tap);
    }

    /// Writes now and then, and takes what counts.
    fn ship(&mut self, machine: usize) -> Result<(), String> {
        let writes = self.random.one_in(3);
        let one = &mut self.machines[machine];
        let Session::Shipping(replicator, tap) = &mut one.session else { return Ok(()) };
        // The replicator flushes by itself now and then; such a flush holds what was written by then.
        while one.flushed.len() as u64 <= tap.flushes() {
            let last = *one.flushed.last().expect("the first is there from the beginning");
            one.flushed.push(last);
        }
        for unit in replicator.take_counted() {
            if let Some(flush) = unit.flush {
                let stamp = one.flushed[flush as usize];
                self.counted.push(stamp);
            }
        }
        match replicator.phase() {
            Phase::Failed(ReplicaError::Fenced { .. }) => {
                self.fenced += 1;
                one.session = Session::Closed;
                return Ok(());
            }
            Phase::Failed(error) => return Err(format!("shipping fails: {error}")),
            _ => {}
        }
        if writes {
            let (tap, before) = (Arc::clone(tap), one.disk.as_ref().map_or(0, |(_, stamp)| *stamp));
            let mut contents = self.history.contents(before);
            let stamp = self.history.states.len() as Stamp + 1;
            let block = 4 + self.random.below(BLOCKS - 4);
            contents[0] = stamp;
            contents[block as usize] = stamp;
            self.history.states.push((before, contents));
            let one = &mut self.machines[machine];
            for at in [0, block] {
                tap.write(BlockNo(at), vec![page(stamp)]).expect("memory");
            }
            tap.flush().expect("memory");
            one.flushed.push(stamp);
            if let Some((_, last)) = &mut one.disk {
                *last = stamp;
            }
        }
        Ok(())
    }

    /// Which state a device is in.
    fn stamp_of(&self, device: &dyn Device) -> Result<Stamp, String> {
        let mut contents = Vec::new();
        let mut block = [0; BLOCK_BYTES];
        for at in 0..BLOCKS {
            device.read(BlockNo(at), &mut block).expect("memory");
            contents.push(Stamp::from_le_bytes(block[..8].try_into().expect("eight bytes")));
        }
        let stamp = contents[0];
        let want = self.history.contents(stamp);
        match contents == want {
            true => Ok(stamp),
            false => Err(format!("what is restored is none of the states: {contents:?}, not {want:?}")),
        }
    }

    /// Restores what is in the store now.
    fn judge(&mut self) -> Result<(), String> {
        let stamp = match restore(&mut self.store, Target::Newest) {
            Err(_) if self.counted.is_empty() => return Ok(()),
            Err(error) => return Err(format!("the replica cannot be restored: {error}")),
            Ok(disk) => {
                let device = MemoryDevice::new(BLOCKS);
                for block in 0..BLOCKS {
                    if let Some(page) = disk.get(block) {
                        let buffer = Arc::new(Buffer::from_bytes(&page[..]));
                        device.write(BlockNo(block), vec![buffer]).expect("memory");
                    }
                }
                self.stamp_of(&device)?
            }
        };
        self.bases += 1;
        match self.counted.iter().find(|counted| !self.history.is_ancestor(**counted, stamp)) {
            Some(lost) => {
                Err(format!("C13: state {lost} counted, and is not in state {stamp}, which is restored"))
            }
            None => Ok(()),
        }
    }
}
