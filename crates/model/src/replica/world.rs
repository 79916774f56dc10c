//! The store's objects, the machines, and what a look at the store finds.

use super::protocol::{Budget, Rule, Scope};
use std::collections::BTreeMap;

/// A write to the volume; each has a number of its own, from 1 on.
pub type Stamp = u8;
/// Number of a claim, from 1 on.
pub type ClaimNo = u8;
/// Number of a manifest, from 1 on.
pub type ManifestNo = u8;
/// Name of a pack.
pub type PackId = u8;
/// Name of a unit: its claim and its number within.
pub type UnitId = (ClaimNo, u8);

/// A name in the store that may be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Object {
    Unit(UnitId),
    Pack(PackId),
    Manifest(ManifestNo),
}

/// What is restored from where.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Manifest {
    /// Whose it is.
    pub claim: ClaimNo,
    /// Everything in front of `from`.
    pub pack: Option<PackId>,
    /// The first unit that is found by probing.
    pub from: UnitId,
    /// How many units of each claim before this one's count.
    pub ends: Vec<u8>,
}

impl Manifest {
    /// What holds while there is none.
    pub fn before_any() -> Manifest {
        Manifest { from: (1, 0), ..Manifest::default() }
    }
}

/// A copy of a manifest that keeps objects alive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Branch {
    pub objects: Vec<Object>,
    /// Whoever made it was told that it is whole.
    pub promised: bool,
}

#[derive(Debug, Clone, Hash, Default)]
pub struct Store {
    /// Which session holds each claim.
    pub claims: Vec<u8>,
    pub units: BTreeMap<UnitId, Vec<Stamp>>,
    pub packs: BTreeMap<PackId, Vec<Stamp>>,
    /// Each with whether the time of grace has passed since it was created.
    pub manifests: BTreeMap<ManifestNo, (Manifest, bool)>,
    pub branches: Vec<Branch>,
    /// A manifest's name that was deleted was created once more.
    pub deleted_manifests: Vec<ManifestNo>,
    pub created_twice: Option<ManifestNo>,
}

/// A PUT of a unit that its sender has given up waiting for.
#[derive(Debug, Clone, Hash)]
pub struct Late {
    pub unit: UnitId,
    pub stamps: Vec<Stamp>,
}

/// A unit as its writer knows it.
#[derive(Debug, Clone, Hash)]
pub struct Attempt {
    pub stamps: Vec<Stamp>,
    /// The PUT was answered.
    pub answered: bool,
    /// A look for the next claim, issued after that, found none.
    pub cleared: bool,
    pub counts: bool,
}

/// What an owner does besides shipping.
#[derive(Debug, Clone, Hash, PartialEq, Eq)]
pub enum Task {
    None,
    /// A pack is put, no manifest names it yet.
    Packed {
        pack: PackId,
        upto: u8,
    },
    Listed(Vec<Object>),
    /// The next claim was not there behind the listing.
    Cleared(Vec<Object>),
}

/// Whoever may write.
#[derive(Debug, Clone, Hash)]
pub struct Owner {
    pub claim: ClaimNo,
    /// The newest manifest that it knows.
    pub number: ManifestNo,
    pub attempts: Vec<Attempt>,
    /// Written and in no unit yet.
    pub pending: Vec<Stamp>,
    /// A look for the next claim found none at some time.
    pub looked: bool,
    pub task: Task,
}

#[derive(Debug, Clone, Hash)]
pub enum Session {
    Closed,
    /// The newest claim was read; with what was restored, where the rules let that happen so early.
    Claiming {
        seen: ClaimNo,
        resume: bool,
        early: Option<(ManifestNo, Manifest)>,
    },
    Claimed {
        claim: ClaimNo,
        resume: bool,
    },
    /// The newest manifest was read.
    Reading {
        claim: ClaimNo,
        resume: bool,
        number: ManifestNo,
    },
    /// The end of the claims before is known.
    Probed {
        claim: ClaimNo,
        resume: bool,
        number: ManifestNo,
        next: Manifest,
    },
    Owner(Owner),
    Fenced,
}

/// The volume on a machine's own disk.
#[derive(Debug, Clone, Hash)]
pub struct Disk {
    pub history: Vec<Stamp>,
    /// The last claim that wrote to it.
    pub claim: ClaimNo,
}

#[derive(Debug, Clone, Hash)]
pub struct Machine {
    pub disk: Option<Disk>,
    pub session: Session,
}

/// Whoever restores without a claim: the manifest that it read, and what counted by then.
pub type Reader = Option<(ManifestNo, Manifest, Vec<Stamp>)>;

/// Whoever makes a branch.
#[derive(Debug, Clone, Hash)]
pub enum Brancher {
    Idle,
    Copied(Vec<Object>),
    /// Index of the branch that is to be confirmed.
    Put(usize),
}

#[derive(Debug, Clone, Hash)]
pub struct World {
    pub store: Store,
    pub late: Vec<Late>,
    pub machines: [Machine; 2],
    pub reader: Reader,
    pub brancher: Brancher,
    /// For each write the one before it in the volume that it was written to; 0 for none.
    pub parents: Vec<Stamp>,
    /// What was reported as replicated.
    pub counted: Vec<Stamp>,
    pub sessions: u8,
    pub packs: PackId,
    pub left: Budget,
}

impl World {
    pub fn new(scope: &Scope) -> World {
        let machine = || Machine { disk: None, session: Session::Closed };
        World {
            store: Store::default(),
            late: Vec::new(),
            machines: [machine(), machine()],
            reader: None,
            brancher: Brancher::Idle,
            parents: Vec::new(),
            counted: Vec::new(),
            sessions: 0,
            packs: 0,
            left: scope.budget,
        }
    }
}

impl Store {
    pub fn newest(&self) -> Option<(ManifestNo, &Manifest)> {
        self.manifests.last_key_value().map(|(number, (manifest, _))| (*number, manifest))
    }

    pub fn newest_number(&self) -> ManifestNo {
        self.newest().map_or(0, |(number, _)| number)
    }

    pub fn newest_claim(&self) -> ClaimNo {
        self.claims.len() as ClaimNo
    }

    /// Units of a claim that are there, from `start` on without a gap: where the first is missing.
    pub fn probe(&self, claim: ClaimNo, start: u8) -> u8 {
        (start..).find(|number| !self.units.contains_key(&(claim, *number))).expect("units end somewhere")
    }

    /// The units that a manifest stands for beside its pack, in order, as far as they are found. One whose number is
    /// below its claim's recorded end is listed even if it is not there.
    pub fn units_of(&self, manifest: &Manifest, scope: &Scope) -> Vec<UnitId> {
        let last = if scope.on(Rule::EndRecorded) { manifest.claim } else { self.newest_claim() };
        let mut units = Vec::new();
        for claim in manifest.from.0.max(1)..=last {
            let start = if claim == manifest.from.0 { manifest.from.1 } else { 0 };
            let known = manifest.ends.get(usize::from(claim) - 1).copied();
            let end = known.unwrap_or_else(|| self.probe(claim, start));
            units.extend((start..end).map(|number| (claim, number)));
        }
        units
    }

    /// The volume that a manifest stands for, or the object that is missing.
    pub fn restore(&self, manifest: &Manifest, scope: &Scope) -> Result<Vec<Stamp>, Object> {
        let mut history = match manifest.pack {
            Some(pack) => self.packs.get(&pack).ok_or(Object::Pack(pack))?.clone(),
            None => Vec::new(),
        };
        for unit in self.units_of(manifest, scope) {
            history.extend(self.units.get(&unit).ok_or(Object::Unit(unit))?);
        }
        Ok(history)
    }

    /// Everything that a manifest names or stands for.
    pub fn objects_of(&self, manifest: &Manifest, scope: &Scope) -> Vec<Object> {
        let units = self.units_of(manifest, scope).into_iter().map(Object::Unit);
        manifest.pack.map(Object::Pack).into_iter().chain(units).collect()
    }

    pub fn has(&self, object: Object) -> bool {
        match object {
            Object::Unit(unit) => self.units.contains_key(&unit),
            Object::Pack(pack) => self.packs.contains_key(&pack),
            Object::Manifest(number) => self.manifests.contains_key(&number),
        }
    }

    pub fn delete(&mut self, object: Object) {
        match object {
            Object::Unit(unit) => drop(self.units.remove(&unit)),
            Object::Pack(pack) => drop(self.packs.remove(&pack)),
            Object::Manifest(number) => {
                if self.manifests.remove(&number).is_some() {
                    self.deleted_manifests.push(number);
                }
            }
        }
    }

    /// PutNew of a manifest; whether its name was free. Without P6 it is a PUT, which always succeeds.
    pub fn put_manifest(&mut self, number: ManifestNo, manifest: Manifest, scope: &Scope) -> bool {
        if scope.on(Rule::ManifestCreated) && self.manifests.contains_key(&number) {
            return false;
        }
        if self.deleted_manifests.contains(&number) {
            self.created_twice = Some(number);
        }
        self.manifests.insert(number, (manifest, false));
        true
    }
}
