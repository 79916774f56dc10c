//! Everything that is no step of a writer: the network, time, readers and branchers.

use super::judge::judge_history;
use super::protocol::{Rule, Scope};
use super::world::{Branch, Brancher, ManifestNo, World};

/// A step of somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A PUT that was given up arrives.
    Arrive(u8),
    /// The time of grace has passed since a manifest was created.
    Age(ManifestNo),
    ReadManifest,
    Restore,
    CopyManifest,
    PutBranch,
    ReadAgain,
}

impl World {
    /// The steps that may be taken now.
    pub fn bystander_steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..self.late.len() as u8).map(Step::Arrive).collect();
        let deletes = self.left.deletions > 0;
        let oldest = self.reader.as_ref().map_or(ManifestNo::MAX, |(number, _, _)| *number);
        let young = self.store.manifests.iter().filter(|(number, (_, aged))| !aged && **number <= oldest);
        // A restore that takes longer than the time of grace is one that nobody promises anything.
        steps.extend(young.filter(|_| deletes).map(|(number, _)| Step::Age(*number)));
        let written = !self.store.manifests.is_empty();
        match &self.reader {
            Some(_) => steps.push(Step::Restore),
            None => steps.extend((written && self.left.readers > 0).then_some(Step::ReadManifest)),
        }
        match &self.brancher {
            Brancher::Idle => steps.extend((written && self.left.branches > 0).then_some(Step::CopyManifest)),
            Brancher::Copied(_) => steps.push(Step::PutBranch),
            Brancher::Put(_) => steps.push(Step::ReadAgain),
        }
        steps
    }

    /// Takes a step; an error is a broken promise.
    pub fn pass(&mut self, step: Step, scope: &Scope) -> Result<(), String> {
        match step {
            Step::Arrive(index) => {
                let late = self.late.remove(usize::from(index));
                self.store.units.insert(late.unit, late.stamps);
            }
            Step::Age(number) => {
                self.store.manifests.entry(number).and_modify(|(_, aged)| *aged = true);
            }
            Step::ReadManifest => {
                self.left.readers -= 1;
                let newest = self.store.newest();
                self.reader =
                    newest.map(|(number, manifest)| (number, manifest.clone(), self.counted.clone()));
            }
            Step::Restore => {
                let Some((_, manifest, counted)) = self.reader.take() else { return Ok(()) };
                let restored = self.store.restore(&manifest, scope);
                let history = restored.map_err(|object| format!("a restore misses {object:?}"))?;
                judge_history(self, &history, &counted).map_err(|what| format!("a restore: {what}"))?;
            }
            Step::CopyManifest | Step::PutBranch | Step::ReadAgain => self.branch(step, scope),
        }
        Ok(())
    }

    fn branch(&mut self, step: Step, scope: &Scope) {
        self.brancher = match (step, std::mem::replace(&mut self.brancher, Brancher::Idle)) {
            (Step::CopyManifest, Brancher::Idle) => {
                self.left.branches -= 1;
                let newest = self.store.newest().map(|(_, manifest)| manifest);
                let objects = newest.map(|manifest| self.store.objects_of(manifest, scope));
                objects.map_or(Brancher::Idle, Brancher::Copied)
            }
            (Step::PutBranch, Brancher::Copied(objects)) => {
                let promised = !scope.on(Rule::ReadAgain);
                self.store.branches.push(Branch { objects, promised });
                let index = self.store.branches.len() - 1;
                if promised { Brancher::Idle } else { Brancher::Put(index) }
            }
            (Step::ReadAgain, Brancher::Put(index)) => {
                let newest = self.store.newest().map(|(_, manifest)| manifest);
                let named = newest.map_or(Vec::new(), |manifest| self.store.objects_of(manifest, scope));
                let branch = &mut self.store.branches[index];
                branch.promised = branch.objects.iter().all(|object| named.contains(object));
                Brancher::Idle
            }
            (_, brancher) => brancher,
        };
    }
}
