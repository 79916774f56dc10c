//! Those who compact, prune and restore a replica beside its writers.

use crate::fencing::{BLOCKS, READER, UUID};
use crate::random::Random;
use std::sync::Arc;
use syncline_device::{Device, MemoryDevice};
use syncline_format::replica::Keep;
use syncline_replica::{
    Answer, Compaction, How, Pruner, Pruning, ReplicaError, Request, RequestId, Restore, StoreError, Target,
};

/// What is kept: little, so that much is deleted.
const KEEP: [Keep; 3] = [Keep { age: 30, step: 1 }, Keep { age: 120, step: 8 }, Keep { age: 900, step: 64 }];
/// Time of grace, in seconds.
const GRACE: u64 = 40;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kept {
    pub packs: u64,
    pub deleted: u64,
    pub restored: u64,
    /// Restores that were told that they are too slow.
    pub outrun: u64,
    /// Compactions that were too late to be named.
    pub disturbed: u64,
}

#[derive(Default)]
enum Task {
    #[default]
    Nothing,
    Compact(Box<Compaction>),
    Prune(Box<Pruning>),
    /// With what counted when it began.
    Read(Box<Restore>, Arc<MemoryDevice>, Vec<u64>),
}

/// One of them.
#[derive(Default)]
pub struct Keeper {
    /// Number of its session.
    pub number: usize,
    pub stalled_until: u64,
    pub inbox: Vec<(RequestId, Result<Answer, StoreError>)>,
    task: Task,
    began: u64,
}

/// What a restore has brought, and what has to be in it.
pub type Read = (Arc<MemoryDevice>, Vec<u64>);

impl Keeper {
    pub fn is_idle(&self) -> bool {
        matches!(self.task, Task::Nothing)
    }

    /// Begins with something: the first one restores, the others compact and prune.
    pub fn begin(&mut self, session: usize, which: usize, now: u64, random: &mut Random, counted: &[u64]) {
        (self.number, self.began) = (session, now);
        self.inbox.clear();
        self.task = match which {
            READER => {
                let restore = Restore::new(UUID, Target::Newest);
                Task::Read(Box::new(restore), Arc::new(MemoryDevice::new(BLOCKS)), counted.to_vec())
            }
            _ if random.one_in(3) => {
                Task::Prune(Box::new(Pruning::new(Pruner { uuid: UUID, time: now, dry: false, grace: None })))
            }
            _ => {
                let how = How::new(UUID, random.number(), now);
                let (keep, grace) = (Some(KEEP.to_vec()), Some(GRACE));
                let pack_blocks = 1 + random.below(BLOCKS);
                Task::Compact(Box::new(Compaction::new(How { keep, grace, pack_blocks, ..how })))
            }
        };
    }

    /// Takes what came, and says what to ask for; what was restored, if it has ended.
    pub fn step(&mut self, now: u64, kept: &mut Kept) -> Result<(Vec<Request>, Option<Read>), String> {
        let inbox = std::mem::take(&mut self.inbox);
        let wrong = |what: &str, error: &ReplicaError| Err(format!("{what}: {error}"));
        match &mut self.task {
            Task::Nothing => return Ok((Vec::new(), None)),
            Task::Compact(compaction) => {
                inbox.into_iter().for_each(|(id, result)| compaction.answer(id, now, result));
                match compaction.outcome() {
                    None => return Ok((compaction.poll(now), None)),
                    Some(Ok(done)) => kept.packs += done.packs as u64,
                    Some(Err(ReplicaError::Disturbed)) => kept.disturbed += 1,
                    Some(Err(ReplicaError::Empty)) => {}
                    Some(Err(error)) => return wrong("compacting fails", error),
                }
            }
            Task::Prune(pruning) => {
                inbox.into_iter().for_each(|(id, result)| pruning.answer(id, now, result));
                match pruning.outcome() {
                    None => return Ok((pruning.poll(now), None)),
                    Some(Ok(done)) => kept.deleted += (done.units.len() + done.packs.len()) as u64,
                    Some(Err(
                        ReplicaError::Fenced { .. } | ReplicaError::Disturbed | ReplicaError::Empty,
                    )) => {}
                    Some(Err(error)) => return wrong("pruning fails", error),
                }
            }
            Task::Read(restore, device, counted) => {
                inbox.into_iter().for_each(|(id, result)| restore.answer(id, now, result));
                for (at, buffer) in restore.take_writes() {
                    device.write(at, vec![buffer]).expect("memory");
                }
                match restore.outcome() {
                    None => return Ok((restore.poll(now), None)),
                    Some(Ok(())) => {
                        kept.restored += 1;
                        let read = (Arc::clone(device), std::mem::take(counted));
                        self.task = Task::Nothing;
                        return Ok((Vec::new(), Some(read)));
                    }
                    Some(Err(ReplicaError::Pruned { .. })) if now - self.began > GRACE * 1_000_000_000 => {
                        kept.outrun += 1;
                    }
                    Some(Err(ReplicaError::Empty | ReplicaError::NothingBefore)) if counted.is_empty() => {}
                    Some(Err(error)) => return wrong("a restore fails", error),
                }
            }
        }
        self.task = Task::Nothing;
        Ok((Vec::new(), None))
    }
}
