//! Snapshots of the whole volume: made, listed, read, renamed, deleted (C10, C11).

use crate::content::pages::PAGE_BYTES;
use crate::core::Core;
use crate::limits::{SNAPSHOT_MEMORY_BYTES, SNAPSHOT_TRIES};
use crate::writeback::pinned_max_of;
use crate::{Entropy, Error, Fs, Result, Timestamp};
use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::tree_item::{Role, Stay, TreeItem, TreeState};
use syncline_format::{Lsn, ObjectNo, TreeId};
use syncline_store::{Reservation, SnapshotLabel, StoreError, TreeReader};

/// What a snapshot is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// 1 to 255 bytes.
    pub name: String,
    /// Of this snapshot alone.
    pub uuid: [u8; 16],
    /// When it was made.
    pub made: Timestamp,
    /// Number of its tree; the later one has the greater.
    pub tree: u32,
    /// It is not deleted before it is released.
    pub is_held: bool,
    /// The schedule has made it, and deletes it.
    pub is_scheduled: bool,
    /// When it is deleted, in seconds since 1970; 0: never.
    pub expires: u64,
}

impl SnapshotInfo {
    fn new(tree: TreeId, item: TreeItem) -> SnapshotInfo {
        SnapshotInfo::of(tree, item.name, item.uuid, item.made, item.stay)
    }

    fn made(tree: TreeId, label: SnapshotLabel) -> SnapshotInfo {
        SnapshotInfo::of(tree, label.name, label.uuid, label.made, label.stay)
    }

    fn of(tree: TreeId, name: String, uuid: [u8; 16], made: Timestamp, stay: Stay) -> SnapshotInfo {
        let Stay { is_held, is_scheduled, expires } = stay;
        SnapshotInfo { name, uuid, made, tree: tree.0, is_held, is_scheduled, expires }
    }
}

/// Which data a snapshot shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotData {
    /// That of all writes that have returned: they are written out first.
    Written,
    /// What is committed: of each file nothing older than its last sync. Nothing is written but the snapshot.
    Committed,
}

/// What kind of a snapshot is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotKind {
    /// Which data it shows.
    pub data: SnapshotData,
    /// When it is deleted, in seconds since 1970; 0: never.
    pub expires: u64,
    /// It is not deleted before it is released.
    pub is_held: bool,
}

impl From<SnapshotData> for SnapshotKind {
    fn from(data: SnapshotData) -> SnapshotKind {
        SnapshotKind { data, expires: 0, is_held: false }
    }
}

/// The names of a volume's snapshots: what is asked for more often than all of them.
pub struct SnapshotNames<'a> {
    store: &'a syncline_store::Store,
}

impl SnapshotNames<'_> {
    /// The snapshot of a name.
    pub fn find(&self, name: &str) -> Option<SnapshotInfo> {
        let found = self.store.tree_named(name);
        let found = found.filter(|(_, item)| item.role == Role::Snapshot && is_seen(item));
        found.map(|(tree, item)| SnapshotInfo::new(tree, item))
    }

    /// The snapshot that was made next behind a number ([`SnapshotInfo::tree`]).
    pub fn behind(&self, tree: u32) -> Option<SnapshotInfo> {
        let behind = |tree: TreeId| self.store.tree_behind(tree);
        let mut all = std::iter::successors(behind(TreeId(tree)), |(tree, _)| behind(*tree));
        let found = all.find(|(_, item)| item.role == Role::Snapshot && is_seen(item));
        found.map(|(tree, item)| SnapshotInfo::new(tree, item))
    }

    /// A number that changes, as long as the volume is open, whenever a name may have come, gone, or changed hands.
    pub fn version(&self) -> u64 {
        self.store.naming()
    }
}

impl Fs {
    /// Makes a snapshot of the volume as it is now. It is durable when this has returned, and never changes (C10).
    ///
    /// Errors: among others EEXIST, EINVAL for what is no name, EOPNOTSUPP on a volume of version 1, ENOSPC if too
    /// little would be left for the volume to go on, `SetAside` if a damaged file could not be committed.
    pub fn snapshot(
        &self,
        name: &str,
        kind: impl Into<SnapshotKind>,
        entropy: &dyn Entropy,
    ) -> Result<SnapshotInfo> {
        let kind = kind.into();
        // Said before anything is written.
        let label = label(self, name, &kind, entropy)?;
        if kind.data == SnapshotData::Written {
            self.write_for_snapshot()?;
        }
        let (tree, lsn) = make_snapshot(self, &label)?;
        self.core.store.force(lsn)?;
        Ok(SnapshotInfo::made(tree, label))
    }

    /// As [`Fs::snapshot`] of all that was written, for whoever must not wait: it is durable when the LSN is forced.
    /// `None` if something has to be written first, or room to be made.
    pub fn try_snapshot(&self, name: &str, entropy: &dyn Entropy) -> Result<Option<(SnapshotInfo, Lsn)>> {
        let label = label(self, name, &SnapshotData::Written.into(), entropy)?;
        let Some(_moving) = self.content.moving.try_write() else { return Ok(None) };
        if !self.writeback.is_all_written() || !self.content.inodes.shifting().is_empty() {
            return Ok(None);
        }
        match self.core.store.snapshot(self.content.tree, &label) {
            Ok((tree, lsn)) => Ok(Some((SnapshotInfo::made(tree, label), lsn))),
            Err(StoreError::Pressure(_) | StoreError::NoSpace) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Commits all data that is dirty, and writes home what is in the journal only: that would have to be written once
    /// more for the snapshot.
    pub(crate) fn write_for_snapshot(&self) -> Result<()> {
        self.writeback.retry_set_aside(None)?;
        self.writeback.write_back_everything()?;
        self.writeback.check_all_committed()?;
        self.writeback.destage_everything()
    }

    /// No snapshot shows half of a move: nobody begins one, and those that have begun are ended.
    fn without_moves<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let _moving = self.content.moving.write();
        for inode in self.content.inodes.shifting() {
            self.shape.finish_truncation(&inode)?;
        }
        call()
    }

    /// Whether the volume can have snapshots: it is of version 2 of the format.
    pub fn can_have_snapshots(&self) -> bool {
        self.core.store.has_trees()
    }

    /// The snapshots, in the order in which they were made.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let trees = self.core.store.trees();
        let seen = trees.into_iter().filter(|(_, item)| item.role == Role::Snapshot && is_seen(item));
        seen.map(|(tree, item)| SnapshotInfo::new(tree, item)).collect()
    }

    /// The snapshots' names.
    pub fn snapshot_names(&self) -> SnapshotNames<'_> {
        SnapshotNames { store: &self.core.store }
    }

    pub(crate) fn snapshot_named(&self, name: &str) -> Result<TreeId> {
        self.snapshot_names().find(name).map(|snapshot| TreeId(snapshot.tree)).ok_or(Error::NotFound)
    }

    /// Deletes a snapshot, for good when this has returned. Its space comes back in the background, and not before
    /// nobody reads it any more.
    ///
    /// Errors: `NotFound`; EBUSY for one that is held.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.core.check_writable()?;
        let tree = self.snapshot_named(name)?;
        let lsn = self.relieved(|store| store.delete_tree(tree))?;
        self.writeback.wake_background();
        Ok(self.core.store.force(lsn)?)
    }

    /// Gives a snapshot another name, for good when this has returned. Errors: `NotFound`; EEXIST, EINVAL.
    pub fn rename_snapshot(&self, name: &str, to: &str) -> Result<()> {
        self.core.check_writable()?;
        let tree = self.snapshot_named(name)?;
        let lsn = self.relieved(|store| store.rename_tree(tree, to))?;
        Ok(self.core.store.force(lsn)?)
    }

    /// Holds a snapshot: it is not deleted before it is released. For good when this has returned. Errors: `NotFound`.
    pub fn hold_snapshot(&self, name: &str) -> Result<()> {
        self.set_held(name, true)
    }

    /// Lets a snapshot be deleted again, for good when this has returned. Errors: `NotFound`.
    pub fn release_snapshot(&self, name: &str) -> Result<()> {
        self.set_held(name, false)
    }

    fn set_held(&self, name: &str, is_held: bool) -> Result<()> {
        self.core.check_writable()?;
        let tree = self.snapshot_named(name)?;
        let lsn = self.relieved(|store| store.hold_tree(tree, is_held))?;
        Ok(self.core.store.force(lsn)?)
    }

    /// Bytes that would become free if these snapshots were deleted and nobody read them: what they have together, and
    /// nobody else has. It is as much as [`Fs::reclaim`] gives back then, to the byte, but for the tables in which
    /// snapshots are named, which become shorter. Snapshots that were deleted before do not count. It reads the nodes
    /// of the trees that differ, and no data.
    ///
    /// Errors: `NotFound`; `ReadOnly` on a volume that is opened read-only and was not closed cleanly; damage.
    pub fn usage(&self, names: &[&str]) -> Result<u64> {
        let all = self.snapshots();
        let named = |name: &&str| all.iter().find(|snapshot| snapshot.name == *name);
        let trees = names.iter().map(|name| named(name).map(|found| found.tree).ok_or(Error::NotFound));
        self.usage_of(&trees.collect::<Result<Vec<_>>>()?)
    }

    /// The same, by the snapshots' numbers ([`SnapshotInfo::tree`]).
    pub fn usage_of(&self, trees: &[u32]) -> Result<u64> {
        let trees = trees.iter().map(|tree| TreeId(*tree)).collect();
        let count = |store: &syncline_store::Store| store.usage(&trees);
        if self.core.options.read_only {
            return match count(&self.core.store) {
                Ok(blocks) => Ok(blocks * PAGE_BYTES),
                Err(StoreError::Pressure(_)) => Err(Error::ReadOnly),
                Err(error) => Err(error.into()),
            };
        }
        self.core.check_failure()?;
        while trees.iter().any(|tree| self.core.store.is_settling(*tree)) {
            self.relieved(|store| store.settle())?;
        }
        loop {
            match count(&self.core.store) {
                // Not wholly on the device so far.
                Err(StoreError::Pressure(_)) => self.core.checkpoint()?,
                counted => return Ok(counted? * PAGE_BYTES),
            }
        }
    }

    pub(crate) fn relieved<T>(
        &self,
        call: impl Fn(&syncline_store::Store) -> std::result::Result<T, StoreError>,
    ) -> Result<T> {
        for _ in 0..SNAPSHOT_TRIES {
            match call(&self.core.store) {
                Err(StoreError::Pressure(pressure)) => drop(self.writeback.relieve(pressure)?),
                Err(StoreError::NoSpace) if self.writeback.reclaim_deleted()? => {}
                // Others have deleted it since it was looked up.
                Err(StoreError::NoTree { .. } | StoreError::NotASnapshot { .. }) => {
                    return Err(Error::NotFound);
                }
                done => return Ok(done?),
            }
        }
        Err(Error::NoSpace)
    }

    /// Gives back all that deleted snapshots had, as far as nobody reads them, and returns when it is free, whoever
    /// gave it back. What ends their deletions behind that gives nothing back, and is left to the background. What
    /// heads free themselves comes back with the next checkpoint, as ever: none is written for that.
    pub fn reclaim(&self) -> Result<()> {
        self.core.check_writable()?;
        while self.relieved(|store| store.reap_space(self.writeback.reaped_leaves()))? {}
        self.core.timed_checkpoint(syncline_store::Store::checkpoint_of_freed)
    }

    /// As [`Fs::reclaim`], and returns when nothing is left to be done of deletions; `true` if some is, because
    /// somebody reads what was deleted.
    pub fn finish_deletions(&self) -> Result<bool> {
        self.core.check_writable()?;
        while self.relieved(|store| store.reap(self.writeback.reaped_leaves()))? {}
        self.core.checkpoint()?;
        Ok(self.core.store.is_reaping())
    }

    /// A snapshot as a volume of its own that cannot be changed. While it exists the snapshot's space does not come
    /// back, even if it is deleted.
    ///
    /// Errors: `NotFound`; damage of the tree in which snapshots are named. What is damaged of a file only its readers
    /// meet.
    pub fn at(&self, name: &str) -> Result<Arc<Fs>> {
        let tree = self.snapshot_named(name)?;
        let store = &self.core.store;
        let reader = store.reader(tree).map_err(|_| Error::NotFound)?;
        while !self.core.options.read_only && store.is_settling(tree) {
            self.relieved(|store| store.settle())?;
        }
        let options = self.core.options.clone().read_only(true).memory_bytes_max(SNAPSHOT_MEMORY_BYTES);
        let (_, light_max) = pinned_max_of(options.memory_bytes_max);
        let mut core = Core::new(store.clone(), options, self.core.clock.clone(), light_max);
        core.reader = Some(reader);
        let view = Fs::of_tree(Arc::new(core), tree);
        let overlay = store.overlay(tree)?.into_iter().map(|item| ((item.object, item.page), item.extent));
        let laid = view.content.overlay.set(overlay.collect());
        assert!(laid.is_ok(), "nobody has read of it yet");
        for (object, page, content) in store.unsettled(tree) {
            match view.lay_page_over_with(object, page, &mut || Ok((content.clone(), None))) {
                // Whoever reads the file meets it.
                Err(error) if self.core.is_damage(&error) => {}
                laid => laid?,
            }
        }
        Ok(view)
    }

    /// Keeps a page in memory, if its file is there and reaches so far, with a block that it is to be written to.
    pub(crate) fn lay_page_over_with(
        &self,
        object: ObjectNo,
        page: u64,
        content: &mut dyn FnMut() -> Result<(Buffer, Option<Reservation>)>,
    ) -> Result<()> {
        let inode = match self.content.inode(object) {
            Err(Error::NotFound) => return Ok(()),
            found => found?,
        };
        if page * PAGE_BYTES < inode.state.read().item.size {
            let (content, block) = content()?;
            self.writeback.adopt_with(&inode, page, content, block);
        }
        Ok(())
    }
}

/// What a new snapshot is called. Errors: as [`Fs::snapshot`], but for what only making it can tell.
fn label(fs: &Fs, name: &str, kind: &SnapshotKind, entropy: &dyn Entropy) -> Result<SnapshotLabel> {
    let &SnapshotKind { data: _, expires, is_held } = kind;
    fs.core.check_writable()?;
    if i64::try_from(expires).is_err() {
        return Err(Error::Invalid("a snapshot expires before the end of time"));
    }
    let uuid = crate::session::random_uuid(entropy);
    let stay = Stay { is_held, expires, is_scheduled: false };
    let label = SnapshotLabel { name: name.to_owned(), uuid, made: fs.core.clock.now(), stay };
    fs.core.store.check_label(fs.content.tree, &label)?;
    Ok(label)
}

/// The volume as it is now, as a snapshot without a name that goes away with its reader.
pub(crate) fn passing_snapshot(fs: &Fs, entropy: &dyn Entropy) -> Result<TreeReader> {
    fs.core.check_writable()?;
    let uuid = crate::session::random_uuid(entropy);
    // The name counts for nothing. It has to be one, and nobody's.
    let name = format!("{:032x}", u128::from_be_bytes(uuid));
    let label = SnapshotLabel { name, uuid, made: fs.core.clock.now(), stay: Stay::default() };
    fs.core.store.check_label(fs.content.tree, &label)?;
    fs.write_for_snapshot()?;
    fs.without_moves(|| fs.relieved(|store| store.passing_snapshot(fs.content.tree, &label)))
}

/// One batch, of what is committed.
pub(crate) fn make_snapshot(fs: &Fs, label: &SnapshotLabel) -> Result<(TreeId, Lsn)> {
    fs.without_moves(|| fs.relieved(|store| store.snapshot(fs.content.tree, label)))
}

/// Whether people see a tree.
pub(crate) fn is_seen(item: &TreeItem) -> bool {
    item.state == TreeState::Live && !item.is_hidden
}
