//! [`Transaction`]: changes of many files that are seen together or not at all (C4).
//!
//! A transaction is an overlay: the net effect of its operations over what is committed, and what it depended on.
//! Nobody else sees it before the commit, which checks that everything it depended on is as it was, and then makes
//! *one batch* of it. So there is nothing to undo, neither at an abort nor after a crash, and the commit costs one
//! record and one flush.
//!
//! - Content is in [`Staging`] (module `data`): whole pages, a bounded number of them in memory, the others in free
//!   blocks.
//! - Names, links and extended attributes are in `StagedNames` (module `names`): who had a name, and who has it now.
//! - What the transaction looked at in a file's content is *watched*; any change of it by others makes the commit a
//!   `Conflict`.
//!
//! Order at the commit (module `commit`): everything that may wait (data writes, admission), turns, inodes in
//! ascending order, checks, the batch, memory; then, without any lock, the force.

use crate::transaction::staged::Staging;
use crate::{Error, Fs, ObjectNo, Result};
use names::StagedNames;
use std::sync::Arc;

pub(crate) mod batch;
pub(crate) mod commit;
pub(crate) mod names;
pub(crate) mod spill;
pub(crate) mod staged;
pub(crate) mod staged_commit;
pub(crate) mod staged_size;

pub use staged_size::Footprint;

/// Changes that are made together: visible to nobody before [`Transaction::commit`], all of them afterwards, and
/// after a crash all or none (C4). Dropping it leaves everything as it was.
///
/// It reads what it has staged over what is committed. Whoever else changes a page, name or attribute in between that
/// the transaction has read or staged makes its commit fail with [`Error::Conflict`], and nothing of it is applied.
///
/// ```
/// use std::sync::Arc;
/// use syncline_device::MemoryDevice;
/// use syncline_fs::{
///     Context, Fs, FsOptions, MkfsOptions, ObjectNo, OpenFlags, SystemClock, SystemEntropy,
/// };
///
/// let (device, entropy) = (Arc::new(MemoryDevice::new(16384)), SystemEntropy::default());
/// Fs::format(&*device, &MkfsOptions::default(), &SystemClock, &entropy, &mut |_, _| {})?;
/// let fs = Fs::open(device, FsOptions::default(), Arc::new(SystemClock), &entropy)?;
/// let root = Context::root();
/// let (accounts, file) = fs.names().create(&root, ObjectNo::ROOT_DIR, b"accounts", 0o600, OpenFlags::READ_WRITE)?;
/// let number = accounts.attr.inode;
///
/// let mut transfer = fs.begin()?;
/// transfer.write(number, 0, b"-100")?;
/// transfer.write(number, 4096, b"+100")?;
/// assert_eq!(fs.files().handle_attr(file)?.size, 0);
/// transfer.commit()?;
/// let mut sum = [0; 4];
/// fs.files().read(file, 4096, &mut sum)?;
/// assert_eq!(sum, *b"+100");
/// # Ok::<(), syncline_fs::Error>(())
/// ```
#[must_use = "a transaction that is dropped changes nothing"]
pub struct Transaction {
    fs: Arc<Fs>,
    staging: Staging,
    names: StagedNames,
}

impl Fs {
    /// Begins a transaction. Errors: `ReadOnly`.
    pub fn begin(self: &Arc<Fs>) -> Result<Transaction> {
        self.core.check_writable()?;
        Ok(Transaction { staging: Staging::new(self), names: StagedNames::default(), fs: self.clone() })
    }
}

impl Transaction {
    /// Reads from a file as the transaction sees it; less than asked for only at its end.
    ///
    /// Errors: `Stale` (`Conflict` if the transaction has found it by a name), `IsDirectory`, `Invalid` (no regular
    /// file), `Checksum` (C7), I/O errors.
    pub fn read(&mut self, object: ObjectNo, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.join(object)?;
        self.staging.read(&self.fs, object, offset, into)
    }

    /// Stages a write. The file grows with it if need be.
    ///
    /// Errors: `NoSpace`, `TransactionTooLarge`, `TransactionMemory`, `FileTooLarge`, `NotPermitted` (immutable,
    /// append-only), `ReadOnly`, and as [`Transaction::read`]. Nothing of the write is staged then, and the
    /// transaction can go on.
    pub fn write(&mut self, object: ObjectNo, offset: u64, data: &[u8]) -> Result<()> {
        self.fs.core.check_writable()?;
        self.join(object)?;
        self.staging.write(&self.fs, object, offset, data)
    }

    /// Stages a new size; what a larger one adds reads as zeros. Errors: as [`Transaction::write`].
    pub fn truncate(&mut self, object: ObjectNo, size: u64) -> Result<()> {
        self.fs.core.check_writable()?;
        self.join(object)?;
        self.staging.truncate(&self.fs, object, size)
    }

    /// Size of a file as the transaction sees it. Errors: as [`Transaction::read`].
    pub fn size(&mut self, object: ObjectNo) -> Result<u64> {
        self.join(object)?;
        Ok(self.staging.size(object))
    }

    /// Pages of a file that are staged, each counted once however often it was written.
    pub fn staged_pages(&self, object: ObjectNo) -> usize {
        self.staging.page_count(object)
    }

    /// What it holds until it is committed or dropped.
    pub fn footprint(&self) -> Footprint {
        let content = self.staging.footprint();
        Footprint { bytes: content.bytes + self.names.memory_bytes(), ..content }
    }

    /// Takes over what another transaction of the same volume has staged; both are committed together then. It sees
    /// nothing of this one, and this one nothing of it, until then.
    ///
    /// Errors: `Conflict` if both have staged the same page, name or extended attribute, be it to what it was before,
    /// or one has changed the size of a file that the other changes too; the other one is dropped then, and this one
    /// is as before. `Invalid` if it belongs to another volume.
    pub fn absorb(&mut self, mut other: Transaction) -> Result<()> {
        if !Arc::ptr_eq(&self.fs, &other.fs) {
            return Err(Error::Invalid("the transactions belong to different volumes"));
        }
        if self.staging.collides(&other.staging) {
            return Err(Error::Conflict);
        }
        self.names.check_absorb(&other.names)?;
        let twice = self.names.absorb(std::mem::take(&mut other.names));
        self.staging.absorb(&self.fs, &mut other.staging)?;
        twice.iter().try_for_each(|inode| self.fs.removal.let_go(inode))
    }

    /// Bound of the bytes that the staged content takes of the one record that a commit is, and how many a record
    /// takes at most: for whoever decides whether transactions can be committed together ([`Transaction::absorb`]).
    /// With `worked_out` the bound is looked up, for which the content goes to the device; otherwise it is a cheap
    /// and higher one.
    ///
    /// Errors: I/O errors, `Checksum` (C7).
    pub fn record_bytes(&mut self, worked_out: bool) -> Result<(usize, usize)> {
        if worked_out {
            self.staging.work_out_size(&self.fs)?;
        }
        Ok((self.staging.bytes_bound(), self.fs.core.store.batch_bytes_max()))
    }

    /// Whether committing would change nothing.
    pub fn is_empty(&self) -> bool {
        !self.staging.is_changed() && !self.names.is_changed()
    }

    /// Applies everything as one batch and makes it durable: one record, one flush.
    ///
    /// Errors: `Conflict` if others have changed what the transaction depends on, `TransactionTooLarge`, `NoSpace`,
    /// `NotPermitted` if a file has become immutable, `ReadOnly`, `Busy` after 64 attempts that others were faster
    /// than (try again with a new one): nothing is applied then. An I/O error stops the volume (C8).
    pub fn commit(self) -> Result<()> {
        self.commit_durably()
    }

    /// Like [`Transaction::commit`], but does not wait for the flush: the changes are visible when this returns, and
    /// `done` is called once they are durable, on the thread that drives the force, maybe before this returns.
    ///
    /// Errors: as [`Transaction::commit`]; nothing is applied then, and `done` is never called.
    pub fn commit_start(self, done: Box<dyn FnOnce(Result<()>) + Send>) -> Result<()> {
        self.start_durably(done)
    }

    /// Makes the file part of the transaction.
    fn join(&mut self, object: ObjectNo) -> Result<()> {
        if self.staging.has(object) {
            return Ok(());
        }
        let inode = match self.names.new_inode(object) {
            Some(inode) => inode.clone(),
            None => {
                let lost = |error| self.names.lost_is_conflict(object, error);
                self.fs.content.live_inode(object).map_err(lost)?
            }
        };
        self.names.charge(&self.fs, 0)?;
        self.staging.join(&inode).map_err(|error| {
            self.names.discharge();
            self.names.lost_is_conflict(object, error)
        })
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let linked = std::mem::take(&mut self.names.inodes).into_values().map(|linked| linked.inode);
        for inode in self.staging.release(&self.fs).into_iter().chain(linked) {
            if let Err(error) = self.fs.removal.let_go(&inode) {
                // The orphan item stays, so the next mount removes the inode.
                tracing::warn!(inode = %inode.number, %error, "removing an unlinked inode failed");
            }
        }
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}
