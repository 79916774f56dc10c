//! [`Pruning`]: objects that nobody needs any more are deleted (P7).
//!
//! Let n be the newest manifest that was created the time of grace ago. What n does not name was left out of it, or of
//! an earlier one: names never return, for a unit's is that of its position, which only moves on, and a pack's tells
//! the manifest that it was made for. So whoever reads a manifest that named it began before the time of grace, and
//! whoever may still name it would have to create a manifest that is there already.
//!
//! The first manifest of each claim stays: whoever stands still between a claim and its first manifest must find its
//! name taken.

use crate::error::ReplicaError;
use crate::exchange::Exchange;
use crate::names::{Names, newest};
use crate::opening::{decode, tell, unexpected};
use crate::request::{Answer, Operation, Part, Request, RequestId, StoreError};
use std::collections::BTreeSet;
use syncline_format::replica::{Claim, Manifest};

/// Names that one request deletes, at most.
const BATCH: usize = 1000;

/// How it is done.
#[derive(Debug, Clone, Copy)]
pub struct Pruner {
    pub uuid: [u8; 16],
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Nothing is deleted.
    pub dry: bool,
    /// Seconds; nothing: what the manifest says.
    pub grace: Option<u64>,
}

/// What was deleted, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pruned {
    pub units: Vec<String>,
    pub packs: Vec<String>,
    pub manifests: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
enum Purpose {
    Manifests,
    Newest,
    Old,
    Branches,
    Packs,
    Units,
    /// For the next claim.
    Look,
    Delete,
}

/// A pruning under way.
pub struct Pruning {
    how: Pruner,
    names: Names,
    exchange: Exchange<Purpose>,
    listed: Vec<String>,
    newest: Option<Manifest>,
    old: Option<Manifest>,
    pruned: Pruned,
    outcome: Option<Result<Pruned, ReplicaError>>,
}

impl Pruning {
    pub fn new(how: Pruner) -> Pruning {
        let names = Names::new(how.uuid);
        let mut exchange = Exchange::default();
        exchange.ask(Purpose::Manifests, Operation::List { prefix: names.manifests() });
        Pruning {
            how,
            names,
            exchange,
            listed: Vec::new(),
            newest: None,
            old: None,
            pruned: Pruned::default(),
            outcome: None,
        }
    }

    /// What is to be sent now.
    pub fn poll(&mut self, now: u64) -> Vec<Request> {
        self.exchange.poll(now)
    }

    /// When to poll again although nothing is answered.
    pub fn next_due(&self) -> Option<u64> {
        self.exchange.next_due()
    }

    /// Why the last request has to be repeated.
    pub fn trouble(&self) -> Option<&StoreError> {
        self.exchange.trouble()
    }

    /// How it ended, once it has.
    pub fn outcome(&self) -> Option<&Result<Pruned, ReplicaError>> {
        self.outcome.as_ref()
    }

    pub fn answer(&mut self, id: RequestId, now: u64, result: Result<Answer, StoreError>) {
        let Some((purpose, operation, result)) = self.exchange.answer(id, now, result) else { return };
        if let Err(error) = self.advance(purpose, &operation, result) {
            self.exchange.clear();
            self.outcome = Some(Err(error));
        }
    }

    fn get(&mut self, purpose: Purpose, name: String) {
        self.exchange.ask(purpose, Operation::Get { name, part: Part::All });
    }

    fn list(&mut self, purpose: Purpose, prefix: String) {
        self.exchange.ask(purpose, Operation::List { prefix });
    }

    fn advance(
        &mut self,
        purpose: Purpose,
        operation: &Operation,
        result: Result<Answer, StoreError>,
    ) -> Result<(), ReplicaError> {
        match (purpose, result) {
            (Purpose::Manifests, Ok(Answer::Names(names))) => {
                let number = newest(&names);
                if number == 0 {
                    return Err(ReplicaError::Empty);
                }
                self.listed = names;
                self.get(Purpose::Newest, self.names.manifest(number));
            }
            (Purpose::Newest, Ok(Answer::Bytes { bytes, .. })) => {
                self.newest_read(decode(operation, Manifest::decode(&bytes))?)?;
            }
            (Purpose::Old, Ok(Answer::Bytes { bytes, .. })) => {
                self.old = Some(decode(operation, Manifest::decode(&bytes))?);
                self.list(Purpose::Branches, self.names.branches());
            }
            (Purpose::Branches, Ok(Answer::Names(names))) => {
                if !names.is_empty() {
                    return Err(ReplicaError::Branches);
                }
                self.list(Purpose::Packs, self.names.packs());
            }
            (Purpose::Packs, Ok(Answer::Names(names))) => {
                self.pruned.packs = names.into_iter().filter(|name| self.is_old_pack(name)).collect();
                self.list(Purpose::Units, self.names.all_units());
            }
            (Purpose::Units, Ok(Answer::Names(names))) => {
                self.pruned.units = names.into_iter().filter(|name| self.is_old_unit(name)).collect();
                let listed = std::mem::take(&mut self.listed);
                self.pruned.manifests =
                    listed.into_iter().filter(|name| self.is_old_manifest(name)).collect();
                self.look();
            }
            (Purpose::Look, Err(StoreError::Missing)) => self.delete(),
            (Purpose::Look, Ok(Answer::Bytes { bytes, .. })) => {
                let by = decode(operation, Claim::decode(&bytes))?;
                return Err(ReplicaError::Fenced { claim: by.claim, by: tell(&by) });
            }
            (Purpose::Delete, Ok(_)) => {
                if self.exchange.is_idle() {
                    self.end();
                }
            }
            // Somebody else prunes, and is further.
            (Purpose::Newest | Purpose::Old, Err(StoreError::Missing)) => {
                return Err(ReplicaError::Disturbed);
            }
            (_, Err(error)) => return Err(error.into()),
            (_, Ok(_)) => return Err(unexpected(operation)),
        }
        Ok(())
    }

    fn newest_read(&mut self, manifest: Manifest) -> Result<(), ReplicaError> {
        if manifest.uuid != self.how.uuid {
            return Err(ReplicaError::ForeignVolume { name: self.names.manifest(manifest.number) });
        }
        let grace = self.how.grace.unwrap_or(manifest.grace).saturating_mul(1_000_000_000);
        let is_old = |time: u64| time.saturating_add(grace) <= self.how.time;
        let recent = manifest.recent.iter().rev().find(|recent| is_old(recent.time));
        let old = recent.map(|recent| recent.number);
        match (is_old(manifest.time), old) {
            (true, _) => {
                self.old = Some(manifest.clone());
                self.list(Purpose::Branches, self.names.branches());
            }
            (false, Some(number)) => self.get(Purpose::Old, self.names.manifest(number)),
            // Nothing is old enough.
            (false, None) => self.end(),
        }
        self.newest = Some(manifest);
        Ok(())
    }

    fn is_old_pack(&self, name: &str) -> bool {
        let (Some(old), Some(newest), Some(pack)) = (&self.old, &self.newest, Names::pack_of(name)) else {
            return false;
        };
        let names = |manifest: &Manifest| manifest.packs.iter().any(|one| (one.number, one.id) == pack);
        pack.0 <= old.number && !names(old) && !names(newest)
    }

    fn is_old_unit(&self, name: &str) -> bool {
        let (Some(old), Some((claim, unit))) = (&self.old, Names::position_of(name)) else { return false };
        let end = old.ends.get((claim as usize).wrapping_sub(1)).map(|end| end.units);
        (claim, unit) < old.from || end.is_some_and(|end| unit >= end)
    }

    fn is_old_manifest(&self, name: &str) -> bool {
        let (Some(old), Some(newest)) = (&self.old, &self.newest) else { return false };
        let Some(number) = Names::number_of(name) else { return false };
        let firsts: BTreeSet<u64> = newest.ends.iter().map(|end| end.manifest).collect();
        number < old.number
            && number > newest.known
            && number != newest.first
            && !firsts.contains(&number)
            && !newest.recent.iter().any(|recent| recent.number == number)
    }

    fn look(&mut self) {
        let Pruned { units, packs, manifests } = &self.pruned;
        match &self.newest {
            Some(newest) if !self.how.dry && units.len() + packs.len() + manifests.len() > 0 => {
                let name = self.names.claim(newest.claim + 1);
                self.get(Purpose::Look, name);
            }
            _ => self.end(),
        }
    }

    fn delete(&mut self) {
        let Pruned { units, packs, manifests } = &self.pruned;
        let all: Vec<String> = units.iter().chain(packs).chain(manifests).cloned().collect();
        for names in all.chunks(BATCH) {
            self.exchange.ask(Purpose::Delete, Operation::Delete { names: names.to_vec() });
        }
    }

    fn end(&mut self) {
        self.outcome = Some(Ok(self.pruned.clone()));
    }
}
