//! Heads: writable branches of a volume, each made of a snapshot, and open at the same time (C12).
//!
//! Each open head is an [`Fs`] of its own over what the volume has once: the store with its journal, the account of
//! pages, the lane. So their syncs share records and flushes. The head that the volume was opened with tends the others
//! ([`Fs::maintain`]) and ends with them ([`Fs::close`]).
//!
//! Lock: a head is opened and deleted under [`OpenHeads`](crate::engine::OpenHeads)' lock, so that nobody opens one
//! that goes away.

use crate::engine::OpenHead;
use crate::snapshots::is_seen;
use crate::{Entropy, Error, Fs, Result, Timestamp};
use std::ops::Deref;
use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::TreeId;
use syncline_format::item::ExtentContent;
use syncline_format::tree_item::{OverlayItem, Role, Stay, TreeItem};
use syncline_store::{SnapshotLabel, StoreError, TreeReader};

/// What a head is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadInfo {
    /// 1 to 255 bytes.
    pub name: String,
    /// Of this head alone; zeros of a volume's first.
    pub uuid: [u8; 16],
    /// When it was made; the epoch for a volume's first.
    pub made: Timestamp,
    /// Number of its tree.
    pub tree: u32,
    /// It is shown when nobody names a head.
    pub is_default: bool,
    /// The newest snapshot of it, or the one that it was made of, if that has a name.
    pub parent: Option<String>,
}

/// An open head. It stays open while this or a clone of it exists, and no longer than the volume. What is un-synced
/// when the last one is dropped is written in the background.
#[derive(Clone)]
pub struct Head {
    fs: Arc<Fs>,
    _user: Arc<()>,
}

impl Head {
    /// The files of the head.
    pub fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }
}

impl Deref for Head {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        &self.fs
    }
}

/// The heads of a volume.
pub struct Heads<'a> {
    fs: &'a Fs,
}

impl Fs {
    /// The heads of the volume. Call it on what [`Fs::open`] has returned.
    pub fn heads(&self) -> Heads<'_> {
        Heads { fs: self }
    }
}

impl Heads<'_> {
    /// The heads, in the order in which they were made; of a volume of version 1 none.
    pub fn list(&self) -> Vec<HeadInfo> {
        let trees = self.fs.core.store.trees();
        // One that was deleted has no name, and its own parent.
        let named = |item: &TreeItem| {
            let above =
                std::iter::successors(item.parent, |tree| trees.get(tree).and_then(|item| item.parent));
            above.filter_map(|tree| trees.get(&tree)).find(|item| is_seen(item)).map(|item| item.name.clone())
        };
        let seen = trees.iter().filter(|(_, item)| item.role == Role::Head && is_seen(item));
        let info = |(tree, item): (&TreeId, &TreeItem)| HeadInfo {
            name: item.name.clone(),
            uuid: item.uuid,
            made: item.made,
            tree: tree.0,
            is_default: item.is_default,
            parent: named(item),
        };
        seen.map(info).collect()
    }

    /// Errors: `Invalid` of another head's files, or a snapshot's.
    fn check_whole(&self) -> Result<()> {
        match self.fs.core.opened.get() == Some(&self.fs.content.tree) {
            true => Ok(()),
            false => Err(Error::Invalid("only the head that the volume was opened with knows the others")),
        }
    }

    fn named(&self, name: &str) -> Result<TreeId> {
        let found = self.list().into_iter().find(|head| head.name == name);
        found.map(|head| TreeId(head.tree)).ok_or_else(|| Error::NoHead { name: name.to_owned() })
    }

    /// Makes a head that begins as a snapshot is. It is durable when this has returned: one write and one flush, and as
    /// many pages as the snapshot has beside its tree.
    ///
    /// Errors: `NotFound`, there is no such snapshot; EEXIST, EINVAL for what is no name; ENOSPC if too little is left
    /// for the volume to go on; damage of what the snapshot has beside its tree.
    pub fn make(&self, of: &str, name: &str, entropy: &dyn Entropy) -> Result<HeadInfo> {
        let core = &self.fs.core;
        core.check_writable()?;
        self.check_whole()?;
        let label = self.label(name, entropy);
        let (head, named) = self.clone_of(of, &label, false)?;
        let lsn = match named {
            Some(lsn) => lsn,
            None => self.fs.relieved(|store| store.show_head(&head, name))?,
        };
        core.store.force(lsn)?;
        let made = self.list().into_iter().find(|made| made.tree == head.tree().0);
        made.ok_or_else(|| Error::NoHead { name: name.to_owned() })
    }

    fn label(&self, name: &str, entropy: &dyn Entropy) -> SnapshotLabel {
        let uuid = crate::session::random_uuid(entropy);
        SnapshotLabel { name: name.to_owned(), uuid, made: self.fs.core.clock.now(), stay: Stay::default() }
    }

    /// A clone of a snapshot, with the snapshot's overlay; the LSN if it has its name already. Otherwise it is hidden,
    /// and goes away with the reader.
    fn clone_of(
        &self,
        of: &str,
        label: &SnapshotLabel,
        hide: bool,
    ) -> Result<(TreeReader, Option<syncline_format::Lsn>)> {
        let store = &self.fs.core.store;
        let tree = self.fs.snapshot_named(of)?;
        let _reading = store.reader(tree).map_err(|_| Error::NotFound)?;
        while store.is_settling(tree) {
            self.fs.relieved(|store| store.settle())?;
        }
        let overlay = store.overlay(tree)?;
        let is_hidden = hide || !overlay.is_empty();
        let (head, lsn) = self.fs.relieved(|store| store.clone_tree(tree, label, is_hidden))?;
        if !overlay.is_empty() {
            self.copy_overlay(head.tree(), &overlay)?;
        }
        Ok((head, (!is_hidden).then_some(lsn)))
    }

    /// Writes the pages that stand for what a snapshot's tree has into a clone of it.
    fn copy_overlay(&self, tree: TreeId, overlay: &[OverlayItem]) -> Result<()> {
        let head = Fs::of_tree(self.fs.core.clone(), tree);
        for item in overlay {
            let ExtentContent::Written(sums) = &item.extent.content else { continue };
            for (index, sum) in (0_u64..).zip(sums) {
                let (page, block) = (item.page + index, item.extent.block_of(index));
                // Reserved before it counts as logged: destaging asks for no space (R18).
                let mut room = Some(head.writeback.reserve(1)?);
                head.lay_page_over_with(item.object, page, &mut || {
                    let mut content = Buffer::zeroed(1);
                    head.core.store.device().read(block, &mut content)?;
                    match syncline_format::checksum(&content) == *sum {
                        true => Ok((content, room.take())),
                        false => Err(Error::Checksum { object: item.object, page, block }),
                    }
                })?;
            }
        }
        head.writeback.destage_everything()?;
        match head.content.aside.first_error() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Opens a head. Whoever has it open already shares it.
    ///
    /// Errors: `NoHead`; `Busy` for the head that the volume was opened with; damage.
    pub fn open(&self, name: &str) -> Result<Head> {
        self.fs.core.check_failure()?;
        self.check_whole()?;
        let mut open = self.fs.open_heads.lock();
        let tree = self.named(name)?;
        if tree == self.fs.content.tree {
            return Err(Error::Busy);
        }
        let known = open.get(&tree);
        if let Some(OpenHead { fs, users, is_left: false }) = known {
            return Ok(Head { fs: fs.clone(), _user: users.clone() });
        }
        let left = known.map(|head| head.fs.clone());
        let fs = left.unwrap_or_else(|| Fs::of_tree(self.fs.core.clone(), tree));
        if !self.fs.core.options.read_only {
            let shifts = fs.removal.note_shifts()?;
            fs.removal.finish_orphans()?;
            fs.removal.finish_shifts(&shifts)?;
        }
        let waker = Arc::downgrade(&self.fs.writeback);
        fs.writeback.on_demand(Box::new(move || {
            if let Some(waker) = waker.upgrade() {
                waker.wake_background();
            }
        }));
        let users = Arc::new(());
        let head = Head { fs: fs.clone(), _user: users.clone() };
        open.insert(tree, OpenHead { fs, users, is_left: false });
        Ok(head)
    }

    /// Writes everything of a head and closes its files. It leaves memory when nobody has it open any more.
    ///
    /// Errors: `SetAside` if damaged files could not be committed.
    pub fn close(&self, head: &Head) -> Result<()> {
        if self.fs.core.options.read_only {
            return Ok(());
        }
        head.fs.write_out()?
    }

    /// Deletes a head that nobody has open, for good when this has returned. What is un-synced of it is gone, and its
    /// space comes back in the background.
    ///
    /// Errors: `NoHead`; `HeadInUse` also for the one that the volume was opened with, EBUSY for the default one.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.fs.core.check_writable()?;
        self.check_whole()?;
        let mut open = self.fs.open_heads.lock();
        let tree = self.named(name)?;
        if tree == self.fs.core.store.default_head() {
            return Err(StoreError::DefaultHead.into());
        }
        if tree == self.fs.content.tree || open.get(&tree).is_some_and(OpenHead::is_used) {
            return Err(Error::HeadInUse { name: name.to_owned() });
        }
        let lsn = self.fs.relieved(|store| store.delete_tree(tree))?;
        open.remove(&tree);
        drop(open);
        self.fs.writeback.wake_background();
        Ok(self.fs.core.store.force(lsn)?)
    }

    /// Takes the head that the volume was opened with back to a snapshot: a clone of the snapshot takes its place and
    /// its name. With `keep` what it shows now stays as a snapshot of that name; otherwise it is gone. Snapshots stay
    /// as they are. It is durable when this has returned, and made by one batch: after a crash the head is the old one
    /// or the new one. This `Fs` is of no use any more then: close it, and open the volume again.
    ///
    /// Errors: as [`Heads::make`] and [`Fs::snapshot`]; `Busy` while a file is open.
    pub fn roll_back(&self, to: &str, keep: Option<&str>, entropy: &dyn Entropy) -> Result<()> {
        let fs = self.fs;
        fs.core.check_writable()?;
        self.check_whole()?;
        if !fs.content.handles.is_empty() {
            return Err(Error::Busy);
        }
        let store = &fs.core.store;
        let keep = keep.map(|name| self.label(name, entropy));
        if let Some(label) = &keep {
            store.check_label(fs.content.tree, label)?;
            fs.write_for_snapshot()?;
        }
        // Its name counts for nothing: it gets the head's. It has to be one, and nobody's.
        let unused = self.label(&self.unused_name(), entropy);
        let (clone, _) = self.clone_of(to, &unused, true)?;
        // No snapshot shows half of a move.
        let moving = fs.content.moving.write();
        for inode in fs.content.inodes.shifting() {
            fs.shape.finish_truncation(&inode)?;
        }
        let replaced = fs.relieved(|store| store.replace_head(fs.content.tree, &clone, keep.as_ref()));
        drop(moving);
        Ok(store.force(replaced?)?)
    }

    fn unused_name(&self) -> String {
        let trees = self.fs.core.store.trees();
        let is_free = |name: &String| trees.values().all(|item| item.name != *name);
        (0_u64..).map(|number| format!("rollback {number}")).find(is_free).unwrap_or_default()
    }
}
