//! Admission to the journal, reservation of blocks, and what to do when either is refused.
//!
//! Only one thread relieves at a time; the others wait for it and ask again. Nobody who waits here holds a turn or an
//! inode's lock, so relief can destage every file. Destaging itself is admitted from the ring's reserve (R17) and never
//! waits for a relief: it checkpoints on its own if it has to.

use crate::limits::{ADMISSION_WAITS_MAX, RELIEFS_MAX, SMALLER_ITEMS, SMALLEST_ITEMS};
use crate::writeback::Writeback;
use crate::{Error, Result};
use syncline_store::{Class, Estimate, Permit, Pressure, Reservation, StoreError};

impl Writeback {
    /// The right to commit a batch within the estimate; relieves the store as often as needed. Takes no lock that is
    /// held on return; the caller holds no turn and no inode.
    ///
    /// Errors: `NoSpace` if neither relief nor closes that are under way help.
    pub(crate) fn admit(&self, class: Class, estimate: Estimate) -> Result<Permit> {
        match class {
            Class::Normal => self.awaiting_closes(|| self.admit_now(class, estimate)),
            _ => self.admit_now(class, estimate),
        }
    }

    /// The same without a wait for closes: what frees space may be what the close itself does.
    fn admit_now(&self, class: Class, estimate: Estimate) -> Result<Permit> {
        let (mut led, mut reclaimed) = (0, 0);
        loop {
            match self.core.store.admit(class, estimate) {
                Ok(permit) => return Ok(permit),
                Err(StoreError::NoSpace)
                    if class == Class::Normal && reclaimed < RELIEFS_MAX && self.reclaim_deleted()? =>
                {
                    reclaimed += 1;
                }
                Err(StoreError::Pressure(_)) if led >= RELIEFS_MAX => return Err(Error::NoSpace),
                Err(StoreError::Pressure(_)) if class == Class::Destage => {
                    // Nobody else's relief is waited for: it may be this one.
                    if led > 0 {
                        self.core.carry_heads()?;
                    }
                    self.core.checkpoint()?;
                    led += 1;
                }
                Err(StoreError::Pressure(pressure)) => led += u32::from(self.relieve(pressure)?),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Admits what needs no new space, or even frees some: data that has its blocks reserved, truncation, removal. It
    /// must get through on a full volume, so it draws on the space that is kept for nodes, and makes do with a smaller
    /// batch. Returns how many items were granted.
    pub(crate) fn admit_necessary(
        &self,
        class: Class,
        estimate: impl Fn(usize) -> Estimate,
        items: usize,
    ) -> Result<(Permit, usize)> {
        let mut result = self.admit_now(class, estimate(items)).map(|permit| (permit, items));
        let class = if class == Class::Normal { Class::Reclaim } else { class };
        let waits =
            SMALLER_ITEMS.iter().copied().chain(std::iter::repeat_n(SMALLEST_ITEMS, ADMISSION_WAITS_MAX));
        for (attempt, smaller) in waits.enumerate() {
            if !matches!(result, Err(Error::NoSpace)) {
                break;
            }
            if attempt >= SMALLER_ITEMS.len() {
                // What others are admitted for right now may be all that there is.
                let seen = self.progress();
                self.wait_for_progress(seen);
            }
            let items = items.min(smaller);
            result = self.admit_now(class, estimate(items)).map(|permit| (permit, items));
        }
        result
    }

    /// Sets blocks aside (R18). The caller holds no turn and no inode.
    ///
    /// Errors: `NoSpace` when not even a checkpoint, writing everything back, what deleted snapshots had and closes
    /// that are under way bring enough blocks.
    pub(crate) fn reserve(&self, blocks: u64) -> Result<Reservation> {
        self.awaiting_closes(|| self.reserve_now(blocks))
    }

    /// The same without a wait for closes: what frees space may be what the close itself does.
    pub(crate) fn reserve_now(&self, blocks: u64) -> Result<Reservation> {
        for attempt in 0..RELIEFS_MAX + 2 {
            match self.core.store.reserve(blocks) {
                Err(StoreError::NoSpace) => {}
                other => return Ok(other?),
            }
            let space = self.core.store.space();
            match attempt {
                // Freed blocks come back with the next durable checkpoint (R11).
                0 if space.pinned > 0 => self.core.checkpoint()?,
                0 => {}
                // Overwritten pages hold two blocks until they are written, and pages of preallocated extents hold one
                // they do not need.
                1 if self.core.account.pinned() > 0 => {
                    self.core.write_back_heads()?;
                    self.core.destage_heads()?;
                    self.core.checkpoint()?;
                }
                1 => {}
                // Others may take what has become free first.
                2.. if self.reclaim_deleted()? => {}
                _ => return Err(Error::NoSpace),
            }
        }
        Err(Error::NoSpace)
    }

    /// Gives back what deleted snapshots and heads have, as far as nobody reads it; `false`: nothing has become free,
    /// here or by others (C11). For whoever would be told that the volume is full.
    pub(crate) fn reclaim_deleted(&self) -> Result<bool> {
        let available = self.core.store.space().available;
        let mut had_any = false;
        loop {
            match self.core.store.reap(usize::MAX) {
                Ok(true) => had_any = true,
                Ok(false) => break,
                Err(StoreError::Pressure(pressure)) => drop(self.relieve(pressure)?),
                // What others are admitted for may be all that there is, or a deleted snapshot is damaged.
                Err(StoreError::NoSpace) => break,
                Err(error) if error.is_unreadable() && self.core.store.failure().is_none() => break,
                Err(error) => return Err(error.into()),
            }
        }
        // What was freed last, by whomever, is free behind a checkpoint that holds it.
        if had_any || self.core.store.space().pinned > 0 {
            self.core.checkpoint()?;
        }
        Ok(had_any || self.core.store.space().available > available)
    }

    /// Relieves the store, or waits for whoever does already; true if this call did it.
    pub(crate) fn relieve(&self, pressure: Pressure) -> Result<bool> {
        let mut relief = self.relief.lock();
        if relief.running {
            let ended = relief.ended;
            while relief.running && relief.ended == ended {
                self.relieved.wait(&mut relief);
            }
            return Ok(false);
        }
        relief.running = true;
        drop(relief);
        let result = self.relieve_now(pressure);
        let mut relief = self.relief.lock();
        relief.running = false;
        relief.ended += 1;
        drop(relief);
        self.relieved.notify_all();
        result.map(|()| true)
    }

    /// What snapshots have inherited holds the journal's tail as well (R26).
    fn settle_snapshots(&self) -> Result<()> {
        loop {
            match self.core.store.settle() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(StoreError::Pressure(_)) => self.core.checkpoint()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn relieve_now(&self, pressure: Pressure) -> Result<()> {
        // Memory that pages do not need may do instead of a checkpoint.
        if self.content.balance_memory() && pressure == Pressure::Nodes {
            return Ok(());
        }
        if pressure == Pressure::Journal {
            // The tail cannot pass the oldest live image (R2), whichever head it is of.
            self.core.destage_heads()?;
            self.core.carry_heads()?;
            self.settle_snapshots()?;
        }
        self.core.checkpoint()
    }
}
