//! Committing a transaction: one batch of everything, one force.
//!
//! What the batch will be is worked out twice: without locks, to be admitted with, and under the turns and the
//! inodes' locks. If it has become more in between, everything starts over with what it is now. Up to the store's
//! commit nothing has changed but blocks that nobody else knows; after it nothing can fail but the force.
//!
//! What is acknowledged, and by what it is true:
//! - A commit: the record's write and the flush behind it. Images and items are in the record. What is at home was
//!   complete before the batch was logged, or its writes are conditions of the batch, and the flush begins when they
//!   are complete (R7).
//! - A conflict or any other refusal: nothing was logged. Homes are in no bitmap (R15), numbers of new inodes in no
//!   item.
//! - A staged write: the reservation of its blocks (R18).

use crate::content::change::{Locked, estimate};
use crate::content::inode::Inode;
use crate::limits::{COMMIT_TRIES_MAX, NECESSARY_ITEMS_MAX};
use crate::transaction::batch::{Checked, Items, plus};
use crate::transaction::staged_commit::FilePlan;
use crate::{Error, ObjectNo, Result, SyncPlan, Transaction};
use std::sync::Arc;
use syncline_format::item::InodeItem;
use syncline_format::{Key, Lsn};
use syncline_store::{Batch, Class, Estimate, Permit, Pressure, StoreError};

/// An inode's attributes as the transaction leaves them.
struct NewItem {
    number: ObjectNo,
    item: InodeItem,
    /// As they are logged.
    logged: InodeItem,
}

/// What came of one attempt.
enum Attempt {
    Done(Lsn),
    /// The batch has outgrown its permit, or a turn has to be waited for.
    Again,
}

impl Transaction {
    pub(crate) fn commit_durably(mut self) -> Result<()> {
        let lsn = self.apply()?;
        Ok(self.fs.core.store.force(lsn)?)
    }

    pub(crate) fn start_durably(mut self, done: Box<dyn FnOnce(Result<()>) + Send>) -> Result<()> {
        let lsn = self.apply()?;
        self.fs.core.store.start_force(lsn, Box::new(|result| done(result.map_err(Into::into))));
        Ok(())
    }

    /// Commits the batch; what is left is a force.
    pub fn commit_begin(mut self) -> Result<SyncPlan> {
        Ok(SyncPlan::committed(self.apply()?))
    }

    /// Commits the batch without forcing it; what has to be forced then. One that changes nothing may have read what
    /// is not durable yet: it is forced like a file that is clean (R19).
    fn apply(&mut self) -> Result<Lsn> {
        let fs = self.fs.clone();
        self.check_quietness()?;
        if self.is_empty() {
            self.names.check_unlocked(&fs)?;
            return Ok(fs.core.store.last_lsn());
        }
        fs.core.check_writable()?;
        fs.core.check_failure()?;
        fs.writeback.note_sync();
        self.prepare_names()?;
        let mut images = true;
        let mut beside = true;
        for _ in 0..COMMIT_TRIES_MAX {
            self.staging.prepare(&fs, images)?;
            let bound = self.bound(&self.staging.plan(&fs)?)?;
            let permit = match self.admit(bound) {
                Ok(permit) => permit,
                // Extents need less of the ring.
                Err(Error::Store(StoreError::Pressure(_)) | Error::TransactionTooLarge { .. }) if images => {
                    images = false;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Attempt::Done(lsn) = self.attempt(permit, bound, beside)? {
                return Ok(lsn);
            }
            beside = false;
        }
        Err(Error::Busy)
    }

    /// Errors: `Conflict` as soon as it is known.
    fn check_quietness(&self) -> Result<()> {
        match self.staging.files().any(|file| file.is_conflicted()) {
            true => Err(Error::Conflict),
            false => Ok(()),
        }
    }

    /// Bound of the whole batch.
    fn bound(&self, plans: &[FilePlan]) -> Result<Estimate> {
        let inodes = plus(estimate(plans.len(), 0, 0, 0), self.names.bound(&self.fs)?);
        Ok(plans.iter().map(FilePlan::bound).fold(inodes, plus))
    }

    /// Room for the batch. Images are not worth relieving a full journal for: that is for the caller to decide.
    fn admit(&self, bound: Estimate) -> Result<Permit> {
        let fs = &self.fs;
        let bytes_max = fs.core.store.batch_bytes_max();
        if bound.bytes > bytes_max {
            return Err(Error::TransactionTooLarge { bytes: bound.bytes, bytes_max });
        }
        if bound.images > 0 {
            match fs.core.store.admit(Class::Normal, bound) {
                Ok(permit) => return Ok(permit),
                Err(StoreError::Pressure(Pressure::Journal)) => {
                    return Err(Error::Store(StoreError::Pressure(Pressure::Journal)));
                }
                Err(_) => {}
            }
        }
        match fs.writeback.admit(Class::Normal, bound) {
            // Its data has its blocks reserved, as data that was written and accepted has; but a large one could take
            // all that is kept for emptying a full volume.
            Err(Error::NoSpace) if bound.items <= NECESSARY_ITEMS_MAX => {
                fs.writeback.admit(Class::Reclaim, bound)
            }
            result => result,
        }
    }

    fn attempt(&mut self, permit: Permit, bound: Estimate, beside: bool) -> Result<Attempt> {
        let fs = self.fs.clone();
        let turns = self.staging.take_turns(beside);
        let plans = self.staging.plan(&fs)?;
        let needed = self.bound(&plans)?;
        if needed.bytes > bound.bytes || needed.items > bound.items || needed.images > bound.images {
            return Ok(Attempt::Again);
        }
        let mut batch = fs.core.store.batch_with_capacity(fs.content.tree, needed.bytes);
        self.staging.attach_flights(&fs, &mut batch)?;
        let inodes = self.inodes();
        let mut locked = Locked::new(&inodes.iter().collect::<Vec<_>>());
        for file in self.staging.files() {
            let number = file.inode().number;
            if !self.staging.verify(number, locked.state(number), &turns)? {
                return Ok(Attempt::Again);
            }
        }
        self.names.check_legacies(&fs, &mut locked)?;
        let checked = self.names.check(&fs, &locked)?;
        let items = self.fill(&plans, checked, &locked, &mut batch)?;
        // In the table before anybody can learn their numbers, so that there is never a second copy of one.
        let news: Vec<_> =
            inodes.iter().filter(|inode| self.names.new_inode(inode.number).is_some()).collect();
        news.iter().for_each(|inode| fs.content.inodes.insert_own(inode));
        let lsn = match fs.core.store.commit(permit, batch) {
            Ok(lsn) => lsn,
            Err(error) => {
                for inode in news {
                    locked.state_mut(inode.number).gone = true;
                    fs.content.inodes.remove(inode.number);
                }
                return Err(error.into());
            }
        };
        for plan in &plans {
            self.staging.apply(&fs, plan, locked.state_mut(plan.number));
        }
        self.update_inodes(items, &inodes, &mut locked);
        self.names.apply(&mut locked);
        drop(locked);
        drop(turns);
        fs.writeback.note_progress();
        if let Err(error) = self.staging.finish_truncations(&fs, &plans) {
            // The transaction is committed; the orphan item says what is left, whoever comes there next ends it.
            tracing::warn!(%error, "freeing what a transaction has cut off is left for later");
        }
        fs.content.shrink_cache();
        Ok(Attempt::Done(lsn))
    }

    /// Writes everything into the batch; returns the inodes' new attributes, ascending.
    fn fill(
        &self,
        plans: &[FilePlan],
        checked: Checked<'_>,
        locked: &Locked<'_>,
        batch: &mut Batch,
    ) -> Result<Vec<NewItem>> {
        let now = self.fs.core.clock.now();
        let mut items = Items::new();
        self.names.fill(&self.fs, checked, locked, now, &mut items, batch)?;
        for plan in plans {
            let state = locked.state(plan.number);
            let item = items.entry(plan.number).or_insert_with(|| state.item.clone());
            self.staging.emit(plan, item, now, batch);
        }
        let log = |(number, item): (ObjectNo, InodeItem)| {
            let mut logged = item.clone();
            if logged.is_regular() {
                logged.size = logged.size.min(self.staging.covers(number, locked.state(number)));
            }
            batch.put(Key::inode(number), &logged.encode());
            NewItem { number, item, logged }
        };
        Ok(items.into_iter().map(log).collect())
    }

    /// The batch is committed: attributes in memory become what it says.
    fn update_inodes(&self, items: Vec<NewItem>, inodes: &[Arc<Inode>], locked: &mut Locked<'_>) {
        let mut inodes = inodes.iter();
        for NewItem { number, item, logged } in items {
            // Both are in ascending order.
            let inode = inodes.find(|inode| inode.number == number).expect("all that change take part");
            let state = locked.state_mut(inode.number);
            state.item_dirty = item != logged;
            state.item = item;
            self.fs.content.note_dirty(inode, state);
        }
    }
}
