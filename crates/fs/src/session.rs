//! From device to open volume and back: `mkfs`, recovery, the last checkpoint.

use crate::limits::RECOVERY_NODES_SHARE;
use crate::{Clock, Entropy, Error, Fs, FsOptions, MkfsOptions, Result, Timestamp};
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::item::{InodeItem, MODE_DIRECTORY};
use syncline_format::tree_item::TreeItem;
use syncline_format::{BLOCK_BYTES, Key, NameKey, ObjectNo, TreeId};
use syncline_store::{FormatOptions, Recovery, RecoverySummary, Store, StoreOptions};

/// Longest label, in bytes of UTF-8.
const LABEL_BYTES_MAX: usize = 64;

impl Fs {
    /// Makes an empty volume on a device, whatever was on it. `progress` is told (done, of) bytes.
    ///
    /// Errors: `Invalid` (label), a device too small or a journal that does not fit, I/O errors.
    pub fn format(
        device: &dyn Device,
        options: &MkfsOptions,
        clock: &dyn Clock,
        entropy: &dyn Entropy,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        if options.label.len() > LABEL_BYTES_MAX || options.label.contains('\0') {
            return Err(Error::Invalid("a label has at most 64 bytes and no NUL"));
        }
        let now = clock.now();
        let blocks = |bytes: u64| bytes / BLOCK_BYTES as u64;
        let format = FormatOptions {
            uuid: options.uuid.unwrap_or_else(|| random_uuid(entropy)),
            label: options.label.clone(),
            journal_blocks: options.journal_bytes.map(blocks),
            blocks: options.size_bytes.map(blocks),
            hash_seed: entropy.number(),
            name_key: (options.format > 1)
                .then(|| NameKey { key: [entropy.number(), entropy.number()], bits: options.name_bits }),
            epoch: entropy.number(),
            created_seconds: now.seconds,
            created_nanoseconds: now.nanoseconds,
            items: vec![(Key::inode(ObjectNo::ROOT_DIR), root_directory(options, now).encode().to_vec())],
        };
        match options.format {
            1 => Ok(Store::format(device, &format, progress)?),
            2 => Ok(Store::format_with_trees(device, &format, progress)?),
            _ => Err(Error::Invalid("the format's version is 1 or 2")),
        }
    }

    /// Makes a volume of version 2 of the format of one of version 1; `false` if it has version 2 already. Nobody has
    /// it open. Interrupted at any moment it leaves a volume of either version, with the same content.
    ///
    /// Errors: those of [`Fs::open`] and [`Fs::close`]; `NoSpace`, and the volume is as it was.
    pub fn upgrade(
        device: &Arc<dyn Device>,
        options: &FsOptions,
        clock: &Arc<dyn Clock>,
        entropy: &dyn Entropy,
    ) -> Result<bool> {
        if options.read_only {
            return Err(Error::ReadOnly);
        }
        // One session in front, so that all is in one checkpoint. One behind, so that both superblocks name the new
        // volume, and to see that it opens; it also ends an upgrade that was interrupted between the two.
        let session = || Fs::open(device.clone(), options.clone(), clock.clone(), entropy)?.close();
        session()?;
        let upgraded = Store::upgrade(&**device)?;
        if upgraded {
            session()?;
        }
        Ok(upgraded)
    }

    /// Opens the volume on a device, recovering what the last session synced. Read-only, nothing is written.
    ///
    /// Errors: no volume, damage, I/O errors.
    pub fn open(
        device: Arc<dyn Device>,
        options: FsOptions,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
    ) -> Result<Arc<Fs>> {
        Ok(Fs::open_reporting(device, options, clock, entropy)?.0)
    }

    /// Like [`Fs::open`], and tells what recovery did.
    pub fn open_reporting(
        device: Arc<dyn Device>,
        options: FsOptions,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
    ) -> Result<(Arc<Fs>, RecoverySummary)> {
        Fs::recover(device, options, clock, entropy).map_err(Error::of_opening)
    }

    fn recover(
        device: Arc<dyn Device>,
        options: FsOptions,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
    ) -> Result<(Arc<Fs>, RecoverySummary)> {
        let store_options = StoreOptions::new(entropy.number())
            .trees()
            .read_only(options.read_only)
            .salvage(options.salvage)
            .node_items_max(options.node_items_max)
            .node_cache_bytes(options.memory_bytes_max / RECOVERY_NODES_SHARE);
        #[cfg(feature = "ablation")]
        let store_options = store_options.without(options.ablation);
        let mut recovery = Store::open(device, store_options)?;
        let summary = recovery.summary();
        let store = recovery.store().clone();
        let tree = head_of(&store, options.head.as_deref())?;
        let fs = Fs::over(store, tree, options, clock);
        fs.core.opened.get_or_init(|| tree);
        let root = fs.content.inode(ObjectNo::ROOT_DIR).map_err(|error| match error {
            Error::NotFound => {
                let what = "the volume has no root directory";
                Error::Inconsistent { object: ObjectNo::ROOT_DIR, what }
            }
            other => other,
        })?;
        if !root.state.read().item.is_directory() {
            let what = "the root is not a directory";
            return Err(Error::Inconsistent { object: ObjectNo::ROOT_DIR, what });
        }
        fs.recover_images(&mut recovery)?;
        let shifts = fs.removal.note_shifts()?;
        if fs.core.options.read_only {
            // In memory only, like all that recovery does here.
            fs.removal.finish_shifts(&shifts)?;
            fs.finish_shifts_beside()?;
            recovery.finish()?;
        } else {
            fs.removal.finish_orphans()?;
            recovery.finish()?;
            fs.removal.finish_shifts(&shifts)?;
        }
        fs.content.balance_memory();
        fs.core
            .store
            .set_piggyback(Arc::downgrade(&fs.syncs) as std::sync::Weak<dyn syncline_store::Piggyback>);
        Ok((fs, summary))
    }

    /// Ends the session: everything is written, unlinked files are removed, and the superblock says clean. Nothing
    /// may be called afterwards. Dropping an `Fs` without it loses nothing that was synced.
    ///
    /// Errors: `SetAside` if damaged files could not be committed, and what tells of damage if an image that a snapshot
    /// has inherited cannot be read; the session has ended, and all else was.
    pub fn close(&self) -> Result<()> {
        if self.core.options.read_only {
            return Ok(());
        }
        let mut committed = Ok(());
        for head in self.open_heads.all() {
            committed = committed.and(head.write_out()?);
        }
        self.open_heads.lock().clear();
        committed = self.write_out()?.and(committed);
        // Images that snapshots have inherited become extents of theirs: the journal is not empty before that.
        let settled = loop {
            match self.relieved(Store::settle) {
                Ok(true) => {}
                settled => break settled.map(drop),
            }
        };
        self.core.timed_checkpoint(Store::close)?;
        committed.and(settled)
    }

    /// Writes everything of the head out, so that nothing is left in memory and in the journal but what is damaged;
    /// files that are open are closed. The inner error tells of damage.
    pub(crate) fn write_out(&self) -> Result<Result<()>> {
        if !self.core.store.is_head(self.content.tree) {
            // Another head has taken its place.
            return Ok(Ok(()));
        }
        self.files.release_all();
        let committed = match self.syncs.sync_all() {
            Err(error @ Error::SetAside { .. }) => Err(error),
            synced => Ok(synced?),
        };
        self.writeback.destage_everything()?;
        Ok(committed)
    }

    /// Images of all heads become extents, or pages in memory where nothing is written.
    fn recover_images(&self, recovery: &mut Recovery) -> Result<()> {
        let images = recovery.take_images();
        for images in images.chunk_by(|a, b| a.tree == b.tree) {
            if images[0].tree == self.content.tree {
                self.writeback.recover_images(recovery, images)?;
                continue;
            }
            let head = Fs::of_tree(self.core.clone(), images[0].tree);
            head.writeback.recover_images(recovery, images)?;
            if head.content.has_to_stay() {
                self.open_heads.keep(head);
            }
        }
        Ok(())
    }

    /// Of a volume that is opened read-only moves of extents have to end while it recovers, also in other heads.
    fn finish_shifts_beside(&self) -> Result<()> {
        let trees = self.core.store.trees().into_keys();
        for tree in trees.filter(|tree| *tree != self.content.tree && self.core.store.is_head(*tree)) {
            let open = self.open_heads.lock().get(&tree).map(|head| head.fs.clone());
            let head = open.unwrap_or_else(|| Fs::of_tree(self.core.clone(), tree));
            let shifts = head.removal.note_shifts()?;
            if !shifts.is_empty() {
                head.removal.finish_shifts(&shifts)?;
                self.open_heads.keep(head);
            }
        }
        Ok(())
    }
}

/// The head of this name, or the one that is shown when nobody names one. Errors: `NoHead`.
fn head_of(store: &Store, name: Option<&str>) -> Result<TreeId> {
    let Some(name) = name else { return Ok(store.default_head()) };
    let is_meant = |(tree, item): &(TreeId, TreeItem)| item.name == name && store.is_head(*tree);
    let found = store.trees().into_iter().find(is_meant);
    found.map(|(tree, _)| tree).ok_or_else(|| Error::NoHead { name: name.to_owned() })
}

pub(crate) fn random_uuid(entropy: &dyn Entropy) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&entropy.number().to_le_bytes());
    uuid[8..].copy_from_slice(&entropy.number().to_le_bytes());
    // Version 4, variant 1 of RFC 9562.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

fn root_directory(options: &MkfsOptions, now: Timestamp) -> InodeItem {
    InodeItem {
        mode: MODE_DIRECTORY | options.root_mode & 0o7777,
        nlink: 2,
        uid: options.root_uid,
        gid: options.root_gid,
        size: 0,
        blocks: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        rdev: 0,
        parent: ObjectNo::ROOT_DIR,
        entries: 0,
        flags: 0,
        project: 0,
    }
}
