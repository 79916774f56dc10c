//! Snapshots of the whole volume: made, listed, read, renamed, deleted (C10, C11).

use crate::content::pages::PAGE_BYTES;
use crate::core::Core;
use crate::limits::{SNAPSHOT_MEMORY_BYTES, SNAPSHOT_TRIES};
use crate::writeback::pinned_max_of;
use crate::{Entropy, Error, Fs, Result, Timestamp};
use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::tree_item::{Role, TreeItem, TreeState};
use syncline_format::{ObjectNo, TreeId};
use syncline_store::{Reservation, SnapshotLabel, StoreError};

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
}

/// Which data a snapshot shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotData {
    /// That of all writes that have returned: they are written out first.
    Written,
    /// What is committed: of each file nothing older than its last sync. Nothing is written but the snapshot.
    Committed,
}

impl Fs {
    /// Makes a snapshot of the volume as it is now. It is durable when this has returned, and never changes (C10).
    ///
    /// Errors: among others EEXIST, EINVAL for what is no name, EOPNOTSUPP on a volume of version 1, ENOSPC if too
    /// little would be left for the volume to go on, `SetAside` if a damaged file could not be committed.
    pub fn snapshot(&self, name: &str, data: SnapshotData, entropy: &dyn Entropy) -> Result<SnapshotInfo> {
        self.core.check_writable()?;
        let uuid = crate::session::random_uuid(entropy);
        let label = SnapshotLabel { name: name.to_owned(), uuid, made: self.core.clock.now() };
        // Said before anything is written.
        self.core.store.check_label(self.content.tree, &label)?;
        if data == SnapshotData::Written {
            self.write_for_snapshot()?;
        }
        let (tree, lsn) = self.make_snapshot(&label)?;
        self.core.store.force(lsn)?;
        Ok(SnapshotInfo { name: label.name, uuid, made: label.made, tree: tree.0 })
    }

    /// Commits all data that is dirty, and writes home what is in the journal only: that would have to be written once
    /// more for the snapshot.
    pub(crate) fn write_for_snapshot(&self) -> Result<()> {
        self.writeback.retry_set_aside(None)?;
        self.writeback.write_back_everything()?;
        self.writeback.check_all_committed()?;
        self.writeback.destage_everything()
    }

    fn make_snapshot(&self, label: &SnapshotLabel) -> Result<(TreeId, syncline_format::Lsn)> {
        // No snapshot shows half of a move: nobody begins one, and those that have begun are ended.
        let _moving = self.content.moving.write();
        for inode in self.content.inodes.shifting() {
            self.shape.finish_truncation(&inode)?;
        }
        self.relieved(|store| store.snapshot(self.content.tree, label))
    }

    /// Whether the volume can have snapshots: it is of version 2 of the format.
    pub fn can_have_snapshots(&self) -> bool {
        self.core.store.has_trees()
    }

    /// The snapshots, in the order in which they were made.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let trees = self.core.store.trees();
        let seen = trees.into_iter().filter(|(_, item)| item.role == Role::Snapshot && is_seen(item));
        let info = |(tree, item): (TreeId, TreeItem)| SnapshotInfo {
            name: item.name,
            uuid: item.uuid,
            made: item.made,
            tree: tree.0,
        };
        seen.map(info).collect()
    }

    pub(crate) fn snapshot_named(&self, name: &str) -> Result<TreeId> {
        let found = self.snapshots().into_iter().find(|snapshot| snapshot.name == name);
        found.map(|snapshot| TreeId(snapshot.tree)).ok_or(Error::NotFound)
    }

    /// Deletes a snapshot, for good when this has returned. Its space comes back in the background, and not before
    /// nobody reads it any more.
    ///
    /// Errors: `NotFound`.
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

    pub(crate) fn relieved<T>(
        &self,
        call: impl Fn(&syncline_store::Store) -> std::result::Result<T, StoreError>,
    ) -> Result<T> {
        for _ in 0..SNAPSHOT_TRIES {
            match call(&self.core.store) {
                Err(StoreError::Pressure(pressure)) => drop(self.writeback.relieve(pressure)?),
                Err(StoreError::NoSpace) if self.writeback.reclaim_deleted()? => {}
                done => return Ok(done?),
            }
        }
        Err(Error::NoSpace)
    }

    /// Gives back all that deleted snapshots had, as far as nobody reads them, and returns when it is free.
    pub fn reclaim(&self) -> Result<()> {
        self.core.check_writable()?;
        while self.relieved(|store| store.reap(usize::MAX))? {}
        // What was freed last is free behind a checkpoint that holds it.
        self.core.checkpoint()
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

/// Whether people see a tree.
pub(crate) fn is_seen(item: &TreeItem) -> bool {
    item.state == TreeState::Live && !item.is_hidden
}
