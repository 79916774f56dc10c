//! Compacting and pruning a replica: beside its writer, or by a command of its own.

use crate::client::{Client, Machine};
use crate::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use syncline_format::replica::{Keep, Manifest};
use syncline_replica::{Compacted, Compaction, How, Pruned, Pruner, Pruning, ReplicaError, StoreError};

/// How long one answer is waited for.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longest time without an answer.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Times that somebody else may be faster.
const TRIES_MAX: u32 = 5;

/// How a replica is kept.
#[derive(Debug, Clone, Default)]
pub struct Housekeeping {
    /// Nothing is changed.
    pub dry: bool,
    /// What is kept from now on; nothing: as it was.
    pub keep: Option<Vec<Keep>>,
    /// Seconds that objects stay which nothing names any more; nothing: as it was.
    pub grace: Option<u64>,
    /// Objects are packed, and nothing is deleted.
    pub packs_only: bool,
}

/// What was done, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The newest manifest.
    pub manifest: Manifest,
    /// Packs that were made, and their bytes.
    pub packs: usize,
    pub packed_bytes: u64,
    /// Packs that are part of the replica no more.
    pub dropped: usize,
    /// Objects that were deleted.
    pub deleted: Pruned,
}

fn time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Packs what is due, leaves out what is old, and deletes what was left out the time of grace ago. `goes_on` is asked
/// between two answers.
///
/// # Errors
/// The store does not answer, something that is needed is damaged or missing, or somebody takes the replica over.
pub fn keep_house(
    client: &mut Client,
    uuid: [u8; 16],
    how: &Housekeeping,
    goes_on: &dyn Fn() -> bool,
) -> Result<Kept, Error> {
    let (mut packs, mut packed_bytes, mut dropped, mut tries) = (0, 0, 0, 0);
    let manifest = loop {
        let one = How {
            keep: how.keep.clone(),
            grace: how.grace,
            dry: how.dry,
            ..How::new(uuid, syncline_device::random_number(), time())
        };
        match drive(client, &mut Compaction::new(one), goes_on) {
            Ok(done) => {
                let Compacted { manifest, published, packs: made, bytes, dropped: left } = done;
                (packs, packed_bytes, dropped) = (packs + made, packed_bytes + bytes, dropped + left);
                // What was packed may be packed further.
                if how.dry || !published {
                    break manifest;
                }
            }
            Err(Error::Replica(ReplicaError::Disturbed)) if tries < TRIES_MAX => tries += 1,
            Err(error) => return Err(error),
        }
    };
    let deleted = match how.packs_only {
        true => Pruned::default(),
        false => {
            let pruner = Pruner { uuid, time: time(), dry: how.dry, grace: how.grace };
            drive(client, &mut Pruning::new(pruner), goes_on)?
        }
    };
    Ok(Kept { manifest, packs, packed_bytes, dropped, deleted })
}

/// A state machine that ends.
trait Ends: Machine {
    type Outcome;
    fn outcome(&self) -> Option<Result<Self::Outcome, ReplicaError>>;
    fn trouble(&self) -> Option<StoreError>;
}

macro_rules! ends {
    ($name:ty, $outcome:ty) => {
        impl Ends for $name {
            type Outcome = $outcome;

            fn outcome(&self) -> Option<Result<$outcome, ReplicaError>> {
                <$name>::outcome(self).cloned()
            }

            fn trouble(&self) -> Option<StoreError> {
                <$name>::trouble(self).cloned()
            }
        }
    };
}

ends!(Compaction, Compacted);
ends!(Pruning, Pruned);

fn drive<M: Ends>(
    client: &mut Client,
    machine: &mut M,
    goes_on: &dyn Fn() -> bool,
) -> Result<M::Outcome, Error> {
    client.forget();
    let mut heard = client.now();
    let result = loop {
        if client.step(machine, PATIENCE) && machine.trouble().is_none() {
            heard = client.now();
        }
        if let Some(outcome) = machine.outcome() {
            break outcome.map_err(Error::from);
        }
        let silent = client.now() - heard > SILENCE_MAX.as_nanos() as u64;
        if silent || !goes_on() {
            let no_answer = || StoreError::Unavailable("no answer".to_owned());
            let error = machine.trouble().unwrap_or_else(no_answer);
            break Err(Error::Unreachable { url: client.address().url.clone(), error });
        }
    };
    client.forget();
    result
}
