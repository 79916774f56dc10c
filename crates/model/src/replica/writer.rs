//! The steps of a machine that writes.

use super::protocol::{Rule, Scope};
use super::world::{
    Attempt, Branch, ClaimNo, Disk, Late, Manifest, ManifestNo, Object, Owner, Session, Stamp, Store, Task,
    World,
};

/// Units whose PUT is not answered yet, at most.
const IN_FLIGHT_MAX: usize = 2;

/// One step of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Looks for the newest claim; continues its own volume, or restores.
    Open {
        resume: bool,
    },
    Claim,
    ReadManifest,
    Probe,
    Record,
    Write,
    Put,
    /// A PUT that is given up before its answer; it may arrive at any time.
    PutLate,
    Retry,
    /// Looks for the next claim.
    Look,
    Count(u8),
    Pack,
    Publish,
    List,
    LookBeforeDelete,
    Delete,
    Crash,
}

impl World {
    /// The steps that a machine may take now.
    pub fn steps(&self, machine: usize, scope: &Scope) -> Vec<Step> {
        let one = &self.machines[machine];
        let mut steps = Vec::new();
        match &one.session {
            Session::Closed | Session::Fenced => {
                if self.left.opens > 0 {
                    steps.push(Step::Open { resume: false });
                    steps.extend(one.disk.is_some().then_some(Step::Open { resume: true }));
                }
            }
            Session::Claiming { .. } => steps.push(Step::Claim),
            Session::Claimed { .. } => steps.push(Step::ReadManifest),
            Session::Reading { .. } => steps.push(Step::Probe),
            Session::Probed { .. } => steps.push(Step::Record),
            Session::Owner(owner) => self.owner_steps(owner, scope, &mut steps),
        }
        let idle = matches!(one.session, Session::Closed | Session::Fenced);
        steps.extend((!idle && self.left.crashes > 0).then_some(Step::Crash));
        steps
    }

    fn owner_steps(&self, owner: &Owner, scope: &Scope, steps: &mut Vec<Step>) {
        steps.extend((self.left.writes > 0).then_some(Step::Write));
        let unanswered = owner.attempts.iter().filter(|attempt| !attempt.answered).count();
        if !owner.pending.is_empty() && unanswered < IN_FLIGHT_MAX {
            steps.push(Step::Put);
            steps.extend((self.left.delays > 0).then_some(Step::PutLate));
        }
        steps.extend((unanswered > 0).then_some(Step::Retry));
        if owner.attempts.iter().any(|attempt| !attempt.cleared) || !owner.looked {
            steps.push(Step::Look);
        }
        let count = |number: &u8| owner.may_count(usize::from(*number), scope);
        steps.extend((0..owner.attempts.len() as u8).filter(count).map(Step::Count));
        match &owner.task {
            Task::None => {
                let counts = owner.counts();
                let known = &self.store.manifests.get(&owner.number);
                let packed = known.is_some_and(|(manifest, _)| manifest.from == (owner.claim, counts));
                steps.extend((self.left.packs > 0 && counts > 0 && !packed).then_some(Step::Pack));
                let aged = known.is_some_and(|(_, aged)| *aged) || !scope.on(Rule::Grace);
                steps.extend((self.left.deletions > 0 && aged).then_some(Step::List));
            }
            Task::Packed { .. } => steps.push(Step::Publish),
            Task::Listed(_) => steps.push(Step::LookBeforeDelete),
            Task::Cleared(_) => steps.push(Step::Delete),
        }
    }

    /// Takes a step.
    pub fn take(&mut self, machine: usize, step: Step, scope: &Scope) {
        match step {
            Step::Open { resume } => self.open(machine, resume, scope),
            Step::Claim => self.claim(machine, scope),
            Step::ReadManifest | Step::Probe | Step::Record => self.begin(machine, step, scope),
            Step::Write => self.write(machine),
            Step::Crash => {
                self.left.crashes -= 1;
                self.machines[machine].session = Session::Closed;
            }
            Step::Put | Step::PutLate | Step::Retry => self.ship(machine, step, scope),
            Step::Look | Step::Count(_) => self.count(machine, step),
            Step::Pack | Step::Publish => self.compact(machine, step, scope),
            Step::List | Step::LookBeforeDelete | Step::Delete => self.delete(machine, step, scope),
        }
    }

    fn open(&mut self, machine: usize, resume: bool, scope: &Scope) {
        self.left.opens -= 1;
        let seen = self.store.newest_claim();
        let one = &mut self.machines[machine];
        if !resume {
            one.disk = None;
        } else if scope.on(Rule::NotBehind) && one.disk.as_ref().is_none_or(|disk| disk.claim != seen) {
            one.session = Session::Closed;
            return;
        }
        let early = (!scope.on(Rule::ProbeAfterClaim)).then(|| {
            let number = self.store.newest_number();
            (number, self.store.first_manifest(seen + 1, number, scope))
        });
        one.session = Session::Claiming { seen, resume, early };
    }

    fn claim(&mut self, machine: usize, scope: &Scope) {
        let one = &mut self.machines[machine];
        let Session::Claiming { seen, resume, early } = one.session.clone() else { return };
        self.sessions += 1;
        let claim = seen + 1;
        match self.store.claims.get_mut(usize::from(seen)) {
            None => self.store.claims.push(self.sessions),
            Some(_) if scope.on(Rule::ClaimCreated) => {
                one.session = Session::Closed;
                return;
            }
            Some(holder) => *holder = self.sessions,
        }
        one.session = match early {
            None => Session::Claimed { claim, resume },
            Some((number, next)) => Session::Probed { claim, resume, number, next },
        };
    }

    /// From the claim to the first manifest.
    fn begin(&mut self, machine: usize, step: Step, scope: &Scope) {
        let store = &mut self.store;
        let session = self.machines[machine].session.clone();
        self.machines[machine].session = match (step, session) {
            (Step::ReadManifest, Session::Claimed { claim, resume }) => match store.newest() {
                Some((_, newest)) if newest.claim > claim => Session::Fenced,
                _ => Session::Reading { claim, resume, number: store.newest_number() },
            },
            (Step::Probe, Session::Reading { claim, resume, number }) => {
                let next = store.first_manifest(claim, number, scope);
                Session::Probed { claim, resume, number, next }
            }
            (Step::Record, Session::Probed { claim, resume, number, next }) => {
                let number = if scope.on(Rule::EndRecorded) { number + 1 } else { number };
                let recorded =
                    !scope.on(Rule::EndRecorded) || store.put_manifest(number, next.clone(), scope);
                if recorded {
                    return self.own(machine, claim, number, resume, &next, scope);
                }
                // Somebody else was first: everything that was read is read again.
                Session::Claimed { claim, resume }
            }
            (_, session) => session,
        };
    }

    /// The machine writes from now on, over its own volume or over what is restored.
    fn own(
        &mut self,
        machine: usize,
        claim: ClaimNo,
        number: ManifestNo,
        resume: bool,
        first: &Manifest,
        scope: &Scope,
    ) {
        let restored = self.store.restore(first, scope).unwrap_or_default();
        let one = &mut self.machines[machine];
        let kept = one.disk.take().filter(|_| resume).map(|disk| disk.history);
        let history = kept.unwrap_or_else(|| restored.clone());
        let pending = history.iter().copied().filter(|stamp| !restored.contains(stamp)).collect();
        one.disk = Some(Disk { history, claim });
        let attempts = Vec::new();
        one.session =
            Session::Owner(Owner { claim, number, attempts, pending, looked: false, task: Task::None });
    }

    fn write(&mut self, machine: usize) {
        let one = &mut self.machines[machine];
        let (Session::Owner(owner), Some(disk)) = (&mut one.session, &mut one.disk) else { return };
        self.left.writes -= 1;
        self.parents.push(disk.history.last().copied().unwrap_or(0));
        let stamp = self.parents.len() as Stamp;
        disk.history.push(stamp);
        owner.pending.push(stamp);
    }

    fn ship(&mut self, machine: usize, step: Step, scope: &Scope) {
        let Session::Owner(owner) = &mut self.machines[machine].session else { return };
        let number = match step {
            Step::Retry => owner.attempts.iter().position(|attempt| !attempt.answered).unwrap_or(0),
            _ => {
                let stamps = std::mem::take(&mut owner.pending);
                owner.attempts.push(Attempt { stamps, answered: false, cleared: false, counts: false });
                owner.attempts.len() - 1
            }
        };
        let unit = (owner.claim, number as u8);
        let attempt = &mut owner.attempts[number];
        if step == Step::PutLate {
            self.left.delays -= 1;
            self.late.push(Late { unit, stamps: attempt.stamps.clone() });
            return;
        }
        if step == Step::Retry && !scope.on(Rule::SameBytes) && number + 1 == owner.attempts.len() {
            let pending = std::mem::take(&mut owner.pending);
            owner.attempts[number].stamps.extend(pending);
        }
        let attempt = &mut owner.attempts[number];
        attempt.answered = true;
        self.store.units.insert(unit, attempt.stamps.clone());
    }

    fn count(&mut self, machine: usize, step: Step) {
        let one = &mut self.machines[machine];
        let Session::Owner(owner) = &mut one.session else { return };
        match step {
            Step::Look if self.store.newest_claim() > owner.claim => one.session = Session::Fenced,
            Step::Look => {
                owner.looked = true;
                owner.attempts.iter_mut().for_each(|attempt| attempt.cleared = attempt.answered);
            }
            Step::Count(number) => {
                let attempt = &mut owner.attempts[usize::from(number)];
                attempt.counts = true;
                self.counted.extend(&attempt.stamps);
            }
            _ => {}
        }
    }

    fn compact(&mut self, machine: usize, step: Step, scope: &Scope) {
        let World { store, machines, left, packs, .. } = self;
        let one = &mut machines[machine];
        let Session::Owner(owner) = &mut one.session else { return };
        let Some((known, _)) = store.manifests.get(&owner.number) else { return };
        let mut next = known.clone();
        match (step, owner.task.clone()) {
            (Step::Pack, Task::None) => {
                left.packs -= 1;
                *packs += 1;
                let upto = owner.counts();
                let counted = |unit: &(ClaimNo, u8)| unit.0 < owner.claim || unit.1 < upto;
                let units = store.units_of(known, scope).into_iter().filter(counted);
                let mut stamps =
                    known.pack.and_then(|pack| store.packs.get(&pack)).cloned().unwrap_or_default();
                stamps.extend(units.filter_map(|unit| store.units.get(&unit)).flatten());
                store.packs.insert(*packs, stamps);
                owner.task = Task::Packed { pack: *packs, upto };
            }
            (Step::Publish, Task::Packed { pack, upto }) => {
                next = Manifest {
                    claim: owner.claim,
                    pack: Some(pack),
                    from: (owner.claim, upto),
                    ends: next.ends.clone(),
                };
                let mut number = owner.number + 1;
                let mut done = store.put_manifest(number, next.clone(), scope);
                if !done && !scope.on(Rule::ManifestOrder) {
                    number = store.newest_number() + 1;
                    done = store.put_manifest(number, next, scope);
                }
                owner.task = Task::None;
                owner.number = number;
                if !done {
                    // Nobody else writes manifests of this claim: the one that is there is a later claim's.
                    one.session = Session::Fenced;
                }
            }
            _ => {}
        }
    }

    fn delete(&mut self, machine: usize, step: Step, scope: &Scope) {
        let World { store, machines, left, .. } = self;
        let one = &mut machines[machine];
        let Session::Owner(owner) = &mut one.session else { return };
        owner.task = match (step, owner.task.clone()) {
            (Step::List, Task::None) => {
                left.deletions -= 1;
                let objects = store.deletable(owner.number, scope);
                if scope.on(Rule::LookedBeforeDelete) {
                    Task::Listed(objects)
                } else {
                    Task::Cleared(objects)
                }
            }
            (Step::LookBeforeDelete, Task::Listed(objects)) => {
                if store.newest_claim() > owner.claim {
                    one.session = Session::Fenced;
                    return;
                }
                Task::Cleared(objects)
            }
            (Step::Delete, Task::Cleared(objects)) => {
                objects.into_iter().for_each(|object| store.delete(object));
                Task::None
            }
            (_, task) => task,
        };
    }
}

impl Owner {
    /// How many units count, from the first on.
    pub fn counts(&self) -> u8 {
        self.attempts.iter().take_while(|attempt| attempt.counts).count() as u8
    }

    fn may_count(&self, number: usize, scope: &Scope) -> bool {
        let attempt = &self.attempts[number];
        let chained = !scope.on(Rule::Chained) || self.attempts[..number].iter().all(|before| before.counts);
        let looked =
            !scope.on(Rule::Looked) || attempt.cleared || (!scope.on(Rule::LookedAfterPut) && self.looked);
        !attempt.counts && attempt.answered && chained && looked
    }
}

impl Store {
    /// The first manifest of a claim over manifest `number`: it says where all claims before it end.
    fn first_manifest(&self, claim: ClaimNo, number: ManifestNo, scope: &Scope) -> Manifest {
        let known = self.manifests.get(&number).map(|(manifest, _)| manifest.clone());
        let known = known.unwrap_or_else(Manifest::before_any);
        let mut ends = known.ends.clone();
        for before in ends.len() as ClaimNo + 1..claim {
            let start = if before == known.from.0 { known.from.1 } else { 0 };
            // A claim behind the manifest's has written none, so nothing of it counts.
            let counts = before <= known.claim || !scope.on(Rule::EndRecorded);
            ends.push(if counts { self.probe(before, start) } else { 0 });
        }
        Manifest { claim, ends, ..known }
    }

    /// What nothing from manifest `number` on needs.
    fn deletable(&self, number: ManifestNo, scope: &Scope) -> Vec<Object> {
        let Some((manifest, _)) = self.manifests.get(&number) else { return Vec::new() };
        let units = self.units.keys().filter(|unit| **unit < manifest.from).copied().map(Object::Unit);
        let needed = |pack: &u8| scope.on(Rule::Named) && manifest.pack == Some(*pack);
        let packs = self.packs.keys().filter(|pack| !needed(pack)).copied().map(Object::Pack);
        let firsts = |at: ManifestNo| {
            let claim_at = |at: ManifestNo| self.manifests.get(&at).map(|(manifest, _)| manifest.claim);
            at == 1 || claim_at(at - 1) != claim_at(at)
        };
        let old = self.manifests.range(..number).filter(|(_, (_, aged))| *aged).map(|(at, _)| *at);
        let old = old.filter(|at| !scope.on(Rule::FirstManifests) || !firsts(*at)).map(Object::Manifest);
        let pinned = |object: &Object| {
            let holds = |branch: &Branch| branch.objects.contains(object);
            scope.on(Rule::Branches) && self.branches.iter().any(holds)
        };
        units.chain(packs).chain(old).filter(|object| !pinned(object)).collect()
    }
}
