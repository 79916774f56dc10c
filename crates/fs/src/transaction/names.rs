//! [`StagedNames`]: what a transaction does to names, and to the inodes that have them.
//!
//! For every name that was looked up: who had it then, and who has it now as the transaction sees it. Numbers of
//! inodes are never used twice, so the commit finds out whether somebody else was there by comparing numbers. Of an
//! inode only the difference in links is kept. A new inode is private: its number is nowhere before the commit, and
//! if all its names are taken away again it never was.
//!
//! Every inode here is held like an open file, so that what loses its last name outside stays until the transaction
//! ends.

use crate::attributes::flags::{forbid_change, forbid_removal_in, is_immutable};
use crate::attributes::xattr::{CAPABILITY_XATTR, is_acl};
use crate::content::inode::{Inode, InodeState};
use crate::limits::LOOKED_AT_BYTES_MAX;
use crate::names::create::Legacy;
use crate::names::find::check_name;
use crate::{Context, Error, Fs, MemoryCharge, ObjectNo, Result, Transaction};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that an entry takes beside its name and value: tables, and an inode that is held.
const ENTRY_BYTES: usize = 256;
/// What an inode that is held takes of memory beyond that.
const INODE_BYTES: usize = 1024;

/// A name in a directory.
pub(crate) type Place = (ObjectNo, Vec<u8>);

/// What a name or an attribute is, as the transaction has it; `None`: it is not there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overlaid<T> {
    /// When the transaction first looked.
    pub(crate) base: Option<T>,
    pub(crate) now: Option<T>,
    /// The transaction has said what it is to be, if only what it was before. The commit has nothing to do for that,
    /// but together with another transaction that says something else it would be lost.
    is_staged: bool,
}

/// Who has a name.
pub(crate) type Holder = Overlaid<ObjectNo>;

/// The value of an extended attribute.
pub(crate) type Value = Overlaid<Vec<u8>>;

impl<T: PartialEq> Overlaid<T> {
    fn stage(&mut self, now: Option<T>) {
        self.now = now;
        self.is_staged = true;
    }

    /// Whether the commit changes it.
    pub(crate) fn is_changed(&self) -> bool {
        self.base != self.now
    }

    /// Whether this and what another transaction has of the same cannot be in one.
    fn collides(&self, theirs: &Overlaid<T>) -> bool {
        let both_staged = self.is_staged && theirs.is_staged;
        self.base != theirs.base || both_staged
    }

    /// Takes over what another transaction has of the same; they do not collide.
    fn absorb(&mut self, theirs: Overlaid<T>) {
        if theirs.is_staged {
            *self = theirs;
        }
    }
}

/// An inode whose names the transaction changes.
pub(crate) struct Linked {
    pub(crate) inode: Arc<Inode>,
    pub(crate) is_new: bool,
    /// StagedNames more (or less) than it has.
    pub(crate) links: i64,
}

/// StagedNames, links and extended attributes as the transaction has them.
#[derive(Default)]
pub(crate) struct StagedNames {
    pub(crate) places: BTreeMap<Place, Holder>,
    pub(crate) directories: BTreeMap<ObjectNo, Arc<Inode>>,
    pub(crate) inodes: BTreeMap<ObjectNo, Linked>,
    /// By inode and name.
    pub(crate) xattrs: BTreeMap<(ObjectNo, Vec<u8>), Value>,
    /// What new files have taken over from their directories, one entry for several files that found it the same.
    pub(crate) legacies: Vec<(ObjectNo, Legacy)>,
    /// Of all entries, at most.
    bytes: usize,
    /// What all this takes in memory.
    charge: Option<MemoryCharge>,
}

impl StagedNames {
    /// What is kept here takes so much memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.bytes + self.inodes.len() * INODE_BYTES) as u64
    }

    /// Tells the volume.
    fn note_memory(&mut self) {
        let bytes = self.memory_bytes();
        if let Some(charge) = &mut self.charge {
            charge.set(bytes);
        }
    }

    /// There is one entry more, of so many bytes. Errors: `TransactionNames`, `TransactionMemory`; it does not count
    /// then.
    pub(crate) fn charge(&mut self, fs: &Fs, bytes: usize) -> Result<()> {
        self.recharge(fs, 0, ENTRY_BYTES + bytes)
    }

    /// Takes one entry's charge back.
    pub(crate) fn discharge(&mut self) {
        self.bytes -= ENTRY_BYTES;
        self.note_memory();
    }

    fn recharge(&mut self, fs: &Fs, less: usize, more: usize) -> Result<()> {
        let bytes_max = LOOKED_AT_BYTES_MAX + fs.core.store.batch_bytes_max();
        let charged = (self.bytes + more).saturating_sub(less);
        if more > less && charged > bytes_max {
            return Err(Error::TransactionNames { bytes_max });
        }
        if more > less {
            fs.core.check_charged()?;
        }
        self.bytes = charged;
        self.charge.get_or_insert_with(|| fs.core.memory_charge());
        self.note_memory();
        Ok(())
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.places.values().any(|holder| holder.is_changed()) || self.xattrs.values().any(Value::is_changed)
    }

    /// Changed names.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (&Place, Holder)> {
        self.places.iter().map(|(place, holder)| (place, *holder)).filter(|(_, holder)| holder.is_changed())
    }

    /// A new inode of this transaction.
    pub(crate) fn new_inode(&self, number: ObjectNo) -> Option<&Arc<Inode>> {
        self.inodes.get(&number).filter(|linked| linked.is_new).map(|linked| &linked.inode)
    }

    /// The directory, which has to be one now.
    fn directory(&mut self, fs: &Fs, number: ObjectNo) -> Result<Arc<Inode>> {
        if let Entry::Vacant(vacant) = self.directories.entry(number) {
            vacant.insert(fs.content.directory(number)?);
        }
        Ok(self.directories[&number].clone())
    }

    /// Who has a name, as the transaction sees it.
    pub(crate) fn lookup(&mut self, fs: &Fs, parent: ObjectNo, name: &[u8]) -> Result<Option<ObjectNo>> {
        check_name(name)?;
        let directory = self.directory(fs, parent)?;
        let place = (parent, name.to_vec());
        if let Some(holder) = self.places.get(&place) {
            return Ok(holder.now);
        }
        let state = directory.state.read();
        if state.is_dead() {
            return Err(Error::NotFound);
        }
        let base = fs.names.find_name(parent, name)?.found().map(|found| found.inode);
        self.charge(fs, name.len())?;
        self.places.insert(place, Holder { base, now: base, is_staged: false });
        Ok(base)
    }

    fn set(&mut self, parent: ObjectNo, name: &[u8], now: Option<ObjectNo>) {
        let holder = self.places.get_mut(&(parent, name.to_vec())).expect("the name was looked up");
        holder.stage(now);
    }

    /// The inode, held; its links as the transaction changes them.
    pub(crate) fn linked(&mut self, fs: &Fs, number: ObjectNo) -> Result<&mut Linked> {
        if !self.inodes.contains_key(&number) {
            let inode =
                fs.content.live_inode(number).map_err(|error| self.lost_is_conflict(number, error))?;
            self.charge(fs, 0)?;
            if let Err(error) = hold(&inode) {
                self.discharge();
                return Err(self.lost_is_conflict(number, error));
            }
            self.inodes.insert(number, Linked { inode, is_new: false, links: 0 });
        }
        Ok(self.inodes.get_mut(&number).expect("it is there by now"))
    }

    /// An inode that is gone, or has no name any more, had the name by which the transaction found it taken away
    /// since: that is a conflict. One that was named by its number stays what it is.
    pub(crate) fn lost_is_conflict(&self, number: ObjectNo, error: Error) -> Error {
        let was_found = || self.places.values().any(|holder| holder.base == Some(number));
        match error {
            Error::Stale | Error::NotFound if was_found() => Error::Conflict,
            error => error,
        }
    }

    /// The file loses its capabilities, unless the transaction has set them.
    pub(crate) fn drop_capabilities(&mut self, fs: &Fs, inode: &Inode) -> Result<()> {
        let key = (inode.number, CAPABILITY_XATTR.to_vec());
        if self.xattrs.contains_key(&key) {
            return Ok(());
        }
        let base = {
            let mut state = inode.state.write();
            let base = fs.attributes.stored_xattr(inode.number, CAPABILITY_XATTR)?;
            state.has_capabilities = Some(base.is_some());
            base
        };
        if base.is_some() {
            self.linked(fs, inode.number)?;
            self.xattrs.insert(key, Value { base, now: None, is_staged: true });
        }
        Ok(())
    }

    /// Takes over another transaction's names. Errors: `Conflict` if both have staged one; nothing is taken over then.
    pub(crate) fn check_absorb(&self, other: &StagedNames) -> Result<()> {
        for (place, theirs) in &other.places {
            if let Some(ours) = self.places.get(place)
                && ours.collides(theirs)
            {
                return Err(Error::Conflict);
            }
        }
        for (key, theirs) in &other.xattrs {
            if let Some(ours) = self.xattrs.get(key)
                && ours.collides(theirs)
            {
                return Err(Error::Conflict);
            }
        }
        Ok(())
    }

    /// After [`StagedNames::check_absorb`]; returns the inodes that are held twice now.
    pub(crate) fn absorb(&mut self, mut other: StagedNames) -> Vec<Arc<Inode>> {
        let mut twice = Vec::new();
        for (place, theirs) in other.places {
            self.places.entry(place).or_insert(theirs).absorb(theirs);
        }
        for (key, theirs) in other.xattrs {
            match self.xattrs.entry(key) {
                Entry::Occupied(mut ours) => ours.get_mut().absorb(theirs),
                Entry::Vacant(vacant) => drop(vacant.insert(theirs)),
            }
        }
        self.directories.append(&mut other.directories);
        self.legacies.append(&mut other.legacies);
        self.bytes += other.bytes;
        self.charge = self.charge.take().or(other.charge.take());
        for (number, theirs) in other.inodes {
            match self.inodes.entry(number) {
                Entry::Vacant(vacant) => drop(vacant.insert(theirs)),
                Entry::Occupied(mut ours) => {
                    ours.get_mut().links += theirs.links;
                    twice.push(theirs.inode);
                }
            }
        }
        self.note_memory();
        twice
    }
}

/// Counts a handle. Errors: `Stale`.
fn hold(inode: &Inode) -> Result<()> {
    let state = inode.state.read();
    if state.is_gone() {
        return Err(Error::Stale);
    }
    inode.handles.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

/// A sentence for what transactions leave to single operations.
const DIRECTORIES: &str =
    "directories cannot be moved or linked inside a transaction: use the operation of its own";

impl Transaction {
    /// Who has a name, as the transaction sees it; the commit depends on the answer.
    ///
    /// Errors: `NotFound` or `NotDirectory` (the directory), name errors, `TransactionNames`, I/O errors.
    pub fn lookup(&mut self, parent: ObjectNo, name: &[u8]) -> Result<Option<ObjectNo>> {
        self.names.lookup(&self.fs, parent, name)
    }

    /// Stages a new regular file and returns its number, which nobody else can use before the commit.
    ///
    /// Owner, mode and ACL are as the directory is now; the commit is a conflict if it hands down others by then.
    ///
    /// Errors: `Exists`, `NotPermitted` in an immutable directory, `ReadOnly`, and as [`Transaction::lookup`].
    pub fn create(&mut self, ctx: &Context, parent: ObjectNo, name: &[u8], mode: u32) -> Result<ObjectNo> {
        let fs = self.fs.clone();
        self.check_vacant(parent, name)?;
        // Also if the name is taken away again: it stays until the commit.
        self.names.charge(&fs, 0)?;
        let (inherited, legacy) = fs.names.inherit_file(ctx, &self.names.directories[&parent], mode)?;
        let number = fs.core.store.new_object();
        let inode = Arc::new(Inode::new(number, inherited.item.clone()));
        hold(&inode)?;
        if let Some(acl) = inherited.access_xattr() {
            let key = (number, crate::acl::ACCESS_XATTR.to_vec());
            self.names.xattrs.insert(key, Value { base: None, now: Some(acl), is_staged: true });
        }
        let legacy = (parent, legacy);
        if !self.names.legacies.contains(&legacy) {
            self.names.legacies.push(legacy);
        }
        self.names.inodes.insert(number, Linked { inode, is_new: true, links: 1 });
        self.names.set(parent, name, Some(number));
        Ok(number)
    }

    /// Stages another name of a file. Errors: `Exists`, `NotPermitted` (immutable, append-only), `Invalid` for a
    /// directory, `NotFound` if it has lost its last name, `Stale`, `Conflict` instead of both if the transaction has
    /// looked that name up, `ReadOnly`, and as [`Transaction::lookup`].
    pub fn link(&mut self, object: ObjectNo, parent: ObjectNo, name: &[u8]) -> Result<()> {
        self.check_vacant(parent, name)?;
        let fs = self.fs.clone();
        let linked = self.names.linked(&fs, object)?;
        {
            let links = if linked.is_new { linked.links - 1 } else { linked.links };
            let linkable = check_linkable(&linked.inode.state.read(), links);
            linkable.map_err(|error| self.names.lost_is_conflict(object, error))?;
        }
        self.names.linked(&fs, object)?.links += 1;
        self.names.set(parent, name, Some(object));
        Ok(())
    }

    /// Stages the removal of a name of anything but a directory.
    ///
    /// Errors: `NotFound`, `IsDirectory`, `NotPermitted` (immutable, append-only), `Conflict` if somebody has taken
    /// the name away since it was looked up, `ReadOnly`, and as [`Transaction::lookup`].
    pub fn unlink(&mut self, parent: ObjectNo, name: &[u8]) -> Result<()> {
        self.fs.core.check_writable()?;
        let fs = self.fs.clone();
        let number = self.names.lookup(&fs, parent, name)?.ok_or(Error::NotFound)?;
        forbid_removal_in(&self.names.directories[&parent].state.read().item)?;
        let linked = self.names.linked(&fs, number)?;
        check_removable(&linked.inode.state.read())?;
        linked.links -= 1;
        self.names.set(parent, name, None);
        Ok(())
    }

    /// Stages a rename of anything but a directory; what has the new name loses it, unless `no_replace`.
    ///
    /// Errors: `NotFound`, `Exists` (with `no_replace`), `Invalid` if it is a directory, `IsDirectory` if the new
    /// name is a directory's, `NotPermitted` (immutable, append-only), `Conflict` if somebody has taken one of the
    /// names away since it was looked up, `ReadOnly`, and as [`Transaction::lookup`].
    pub fn rename(
        &mut self,
        parent: ObjectNo,
        name: &[u8],
        new_parent: ObjectNo,
        new_name: &[u8],
        no_replace: bool,
    ) -> Result<()> {
        self.fs.core.check_writable()?;
        let fs = self.fs.clone();
        let source = self.names.lookup(&fs, parent, name)?.ok_or(Error::NotFound)?;
        let target = self.names.lookup(&fs, new_parent, new_name)?;
        if no_replace && target.is_some() {
            return Err(Error::Exists);
        }
        if target == Some(source) {
            return Ok(());
        }
        forbid_removal_in(&self.names.directories[&parent].state.read().item)?;
        {
            let state = self.names.linked(&fs, source)?.inode.state.read();
            if state.item.is_directory() {
                return Err(Error::Invalid(DIRECTORIES));
            }
            forbid_change(&state.item)?;
        }
        match target {
            Some(target) => {
                forbid_removal_in(&self.names.directories[&new_parent].state.read().item)?;
                let linked = self.names.linked(&fs, target)?;
                check_removable(&linked.inode.state.read())?;
                linked.links -= 1;
            }
            None if is_immutable(&self.names.directories[&new_parent].state.read().item) => {
                return Err(Error::NotPermitted);
            }
            None => {}
        }
        self.names.set(parent, name, None);
        self.names.set(new_parent, new_name, Some(source));
        Ok(())
    }

    /// Nobody has the name, and somebody may.
    fn check_vacant(&mut self, parent: ObjectNo, name: &[u8]) -> Result<()> {
        self.fs.core.check_writable()?;
        let fs = self.fs.clone();
        if self.names.lookup(&fs, parent, name)?.is_some() {
            return Err(Error::Exists);
        }
        match is_immutable(&self.names.directories[&parent].state.read().item) {
            true => Err(Error::NotPermitted),
            false => Ok(()),
        }
    }

    /// Value of an extended attribute as the transaction sees it.
    fn value(&mut self, object: ObjectNo, name: &[u8]) -> Result<&mut Value> {
        let fs = self.fs.clone();
        crate::attributes::xattr::check_xattr_name(name)?;
        if is_acl(name) {
            return Err(Error::Invalid(
                "an ACL cannot be changed inside a transaction: use the operation of its own",
            ));
        }
        let inode = self.names.linked(&fs, object)?.inode.clone();
        let state = inode.state.read();
        forbid_change(&state.item)?;
        crate::attributes::xattr::check_user_namespace(name, &state.item)?;
        let key = (object, name.to_vec());
        if !self.names.xattrs.contains_key(&key) {
            let base = fs.attributes.stored_xattr(object, name)?;
            self.names.charge(&fs, name.len() + 2 * base.as_ref().map_or(0, Vec::len))?;
            self.names.xattrs.insert(key.clone(), Value { now: base.clone(), base, is_staged: false });
        }
        Ok(self.names.xattrs.get_mut(&key).expect("it is there by now"))
    }

    /// Stages a new value of an extended attribute. Errors: `TooBig`, `TransactionNames`, `Range`, `NotSupported`,
    /// `Invalid` for an ACL, `NotPermitted` (immutable, append-only, or `user.` on a special file), `Stale`,
    /// `ReadOnly`.
    pub fn set_xattr(&mut self, object: ObjectNo, name: &[u8], value: &[u8]) -> Result<()> {
        self.fs.core.check_writable()?;
        if value.len() > syncline_format::item::XATTR_VALUE_BYTES_MAX {
            return Err(Error::TooBig);
        }
        let fs = self.fs.clone();
        let before = self.value(object, name)?.now.as_ref().map_or(0, Vec::len);
        self.names.recharge(&fs, before, value.len())?;
        self.value(object, name)?.stage(Some(value.to_vec()));
        Ok(())
    }

    /// Stages the removal of an extended attribute. Errors: `NoAttribute`, and as [`Transaction::set_xattr`].
    pub fn remove_xattr(&mut self, object: ObjectNo, name: &[u8]) -> Result<()> {
        self.fs.core.check_writable()?;
        let value = self.value(object, name)?;
        if value.now.is_none() {
            return Err(Error::NoAttribute);
        }
        value.stage(None);
        Ok(())
    }
}

/// Whether a file with so many links more may have another one.
pub(crate) fn check_linkable(state: &InodeState, links: i64) -> Result<()> {
    if state.item.is_directory() {
        return Err(Error::Invalid(DIRECTORIES));
    }
    forbid_change(&state.item)?;
    let nameless = i64::from(state.item.nlink) + links <= 0;
    if state.is_gone() || nameless && state.item.nlink == 0 && !state.linkable {
        return Err(Error::NotFound);
    }
    if i64::from(state.item.nlink) + links >= i64::from(syncline_format::item::LINKS_MAX) {
        return Err(Error::TooManyLinks);
    }
    Ok(())
}

fn check_removable(state: &InodeState) -> Result<()> {
    if state.item.is_directory() {
        return Err(Error::IsDirectory);
    }
    forbid_change(&state.item)
}
