//! Renaming: one batch, whatever it replaces, exchanges or leaves behind.
//!
//! Names are looked up without locks first, to know which inodes take part; then these are locked and the names looked
//! up again. If they changed meanwhile, everything starts over. Moving a directory into another one additionally
//! holds `Fs::renames`, so that no two of them can together make a cycle.

use crate::attributes::flags::{forbid_change, forbid_removal_in, is_immutable};
use crate::content::change::{Change, Locked, estimate, put_inode};
use crate::content::inode::Inode;
use crate::limits::DIRECTORY_DEPTH_MAX;
use crate::limits::IMAGE_PAGES_MAX;
use crate::names::find::{FoundEntry, Slot, check_name, put_dirent};
use crate::{Attr, Context, Error, Names, Result};
use std::sync::Arc;
use syncline_format::item::{InodeItem, LINKS_MAX, MODE_CHARACTER};
use syncline_format::{Key, ObjectNo};
use syncline_store::Class;

/// How `Names::rename` deals with the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenameFlags {
    /// Fails with `Exists` instead of replacing (RENAME_NOREPLACE).
    pub no_replace: bool,
    /// Swaps the two names (RENAME_EXCHANGE); excludes the others.
    pub exchange: bool,
    /// Leaves a character device 0:0 at the old name (RENAME_WHITEOUT).
    pub whiteout: bool,
}

/// One end of a rename.
#[derive(Clone, Copy)]
struct Place<'a> {
    parent: ObjectNo,
    name: &'a [u8],
}

/// The inodes that take part.
struct Parties {
    old_directory: Arc<Inode>,
    new_directory: Arc<Inode>,
    source_entry: FoundEntry,
    source: Arc<Inode>,
    target_slot: Slot,
    target: Option<Arc<Inode>>,
}

/// A rename whose names were looked up once; they are once more when the inodes are locked.
pub struct RenamePlan {
    parent: ObjectNo,
    name: Vec<u8>,
    new_parent: ObjectNo,
    new_name: Vec<u8>,
    parties: Parties,
}

impl RenamePlan {
    /// Whether the rename may take long: a source with much dirty data is written back before it replaces anything
    /// (C3), what is replaced may be removed.
    pub fn is_heavy(&self) -> bool {
        let Some(target) = &self.parties.target else { return false };
        target.state.read().is_heavy()
            || self.parties.source.state.read().data.dirty_pages() > IMAGE_PAGES_MAX
    }
}

/// Errors: `Invalid` for flags that contradict each other.
fn check_flags(flags: RenameFlags) -> Result<()> {
    match flags.exchange && (flags.no_replace || flags.whiteout) {
        true => Err(Error::Invalid("an exchange can neither forbid replacing nor leave a whiteout")),
        false => Ok(()),
    }
}

/// An operation's locks turned out to protect names that have changed since.
enum Attempt {
    Done,
    Again,
}

impl Names {
    /// Renames atomically, replacing what has the new name unless the flags say otherwise. A regular file that
    /// replaces another one has its data written (not flushed) first, so that a crash shows one or the other (C3).
    ///
    /// Errors: `NotFound`, `Exists`, `IsDirectory`, `NotDirectory`, `NotEmpty`, `Invalid` (a directory into itself,
    /// or contradicting flags), `TooManyLinks`, `NotPermitted`, name errors, `NoSpace`, `ReadOnly`.
    pub fn rename(
        &self,
        ctx: &Context,
        parent: ObjectNo,
        name: &[u8],
        new_parent: ObjectNo,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        check_flags(flags)?;
        self.rename_planned(ctx, self.plan_rename(parent, name, new_parent, new_name)?, flags).map(drop)
    }

    /// Looks both names up, without locks. Errors: as [`Names::rename`].
    pub fn plan_rename(
        &self,
        parent: ObjectNo,
        name: &[u8],
        new_parent: ObjectNo,
        new_name: &[u8],
    ) -> Result<RenamePlan> {
        check_name(name)?;
        check_name(new_name)?;
        self.core.check_writable()?;
        let parties = self.parties(Place { parent, name }, Place { parent: new_parent, name: new_name })?;
        Ok(RenamePlan { parent, name: name.to_vec(), new_parent, new_name: new_name.to_vec(), parties })
    }

    /// As [`Names::rename`]. Returns the attributes of what has lost its last name with it.
    pub fn rename_planned(
        &self,
        ctx: &Context,
        plan: RenamePlan,
        flags: RenameFlags,
    ) -> Result<Option<Attr>> {
        check_flags(flags)?;
        let RenamePlan { parent, name, new_parent, new_name, mut parties } = plan;
        let old = Place { parent, name: &name };
        let new = Place { parent: new_parent, name: &new_name };
        let mut renames = None;
        loop {
            if parties.target.as_ref().is_some_and(|target| target.number == parties.source.number) {
                // Looked up one after the other, the names may never have been two of one file.
                if self.are_current(old, new, &parties)? {
                    return if flags.no_replace { Err(Error::Exists) } else { Ok(None) };
                }
                parties = self.parties(old, new)?;
                continue;
            }
            if parent != new_parent && parties.moves_directory(flags) {
                let locked_before = renames.is_some();
                renames.get_or_insert_with(|| self.renames.lock());
                // Whether the names still lead to them is seen with their locks held, but for those in an error.
                match self.forbid_cycles(&parties, flags) {
                    Err(_) if !locked_before => {
                        parties = self.parties(old, new)?;
                        continue;
                    }
                    checked => checked?,
                }
            }
            if let Some(target) = &parties.target
                && !flags.no_replace
            {
                self.write_back_replacements(&parties.source, target, flags)?;
            }
            if let Attempt::Done = self.rename_parties(ctx, old, new, &parties, flags)? {
                drop(renames);
                self.name_moved()?;
                let Some(target) = parties.target.filter(|_| !flags.exchange) else { return Ok(None) };
                let last = self.attributes.attr_of_nameless(&target);
                self.removal.reap_if_unused(&target)?;
                return Ok(last);
            }
            parties = self.parties(old, new)?;
        }
    }

    /// Logs the data of what is about to take an existing name, so that a crash shows that name with the old content or
    /// the new one (C3, R20). An exchange gives both files a name that had another.
    fn write_back_replacements(
        &self,
        source: &Arc<Inode>,
        target: &Arc<Inode>,
        flags: RenameFlags,
    ) -> Result<()> {
        let is = |inode: &Arc<Inode>, what: fn(&InodeItem) -> bool| what(&inode.state.read().item);
        if is(source, InodeItem::is_regular) && (flags.exchange || !is(target, InodeItem::is_directory)) {
            self.syncs.write_back_file(source)?;
        }
        if flags.exchange && is(target, InodeItem::is_regular) {
            self.syncs.write_back_file(target)?;
        }
        Ok(())
    }

    /// Looks both names up, without locks.
    fn parties(&self, old: Place<'_>, new: Place<'_>) -> Result<Parties> {
        let old_directory = self.content.directory(old.parent)?;
        let new_directory = self.content.directory(new.parent)?;
        loop {
            let source_entry = self.find_entry(old.parent, old.name)?;
            let target_slot = self.find_name(new.parent, new.name)?;
            let source = self.content.inode(source_entry.inode);
            let target = match target_slot.clone().found() {
                Some(entry) => self.content.inode(entry.inode).map(Some),
                None => Ok(None),
            };
            match (source, target) {
                (Ok(source), Ok(target)) => {
                    return Ok(Parties {
                        old_directory,
                        new_directory,
                        source_entry,
                        source,
                        target_slot,
                        target,
                    });
                }
                // Removed between the two steps, unless the names still say the same: then the volume is damaged.
                (Err(Error::NotFound), _) | (_, Err(Error::NotFound)) => {
                    if self.find_entry(old.parent, old.name)? == source_entry
                        && self.find_name(new.parent, new.name)? == target_slot
                    {
                        let what = "a directory entry names an inode that does not exist";
                        return Err(Error::Inconsistent { object: old.parent, what });
                    }
                }
                (Err(error), _) | (_, Err(error)) => return Err(error),
            }
        }
    }

    /// Whether both names lead to the parties at one moment.
    fn are_current(&self, old: Place<'_>, new: Place<'_>, parties: &Parties) -> Result<bool> {
        let _locked = Locked::new(&[&parties.old_directory, &parties.new_directory]);
        self.still_lead_to(old, new, parties)
    }

    /// Whether the names lead to the parties. The directories are locked.
    fn still_lead_to(&self, old: Place<'_>, new: Place<'_>, parties: &Parties) -> Result<bool> {
        Ok(self.find_name(old.parent, old.name)?.found().as_ref() == Some(&parties.source_entry)
            && self.find_name(new.parent, new.name)? == parties.target_slot)
    }

    /// A directory may not become its own descendant. What the flags say of the new name comes first, as in Linux.
    /// The caller holds `Fs::renames`.
    fn forbid_cycles(&self, parties: &Parties, flags: RenameFlags) -> Result<()> {
        match &parties.target {
            None if flags.exchange => return Err(Error::NotFound),
            Some(_) if flags.no_replace => return Err(Error::Exists),
            _ => {}
        }
        let into_itself = Error::Invalid("a directory cannot be moved into itself");
        if self.has_ancestor(&parties.new_directory, parties.source.number)? {
            return Err(into_itself);
        }
        match &parties.target {
            Some(target) if self.has_ancestor(&parties.old_directory, target.number)? => {
                Err(if flags.exchange { into_itself } else { Error::NotEmpty })
            }
            _ => Ok(()),
        }
    }

    /// Whether `ancestor` is the directory itself or above it.
    fn has_ancestor(&self, directory: &Arc<Inode>, ancestor: ObjectNo) -> Result<bool> {
        let mut current = directory.clone();
        // Damage can make the parents a cycle; no sound tree is this deep.
        for _ in 0..DIRECTORY_DEPTH_MAX {
            if current.number == ancestor {
                return Ok(true);
            }
            let parent = current.state.read().item.parent;
            if parent == current.number {
                return Ok(false);
            }
            current = match self.content.inode(parent) {
                Ok(inode) => inode,
                // The directory was removed meanwhile; the locked lookup will find that out.
                Err(Error::NotFound) => return Ok(false),
                Err(error) => return Err(error),
            };
        }
        let what = "the parents of the directory do not lead to the root";
        Err(Error::Inconsistent { object: directory.number, what })
    }

    fn rename_parties(
        &self,
        ctx: &Context,
        old: Place<'_>,
        new: Place<'_>,
        parties: &Parties,
        flags: RenameFlags,
    ) -> Result<Attempt> {
        let permit = self.writeback.admit(Class::Normal, estimate(5, 4, 0, 0))?;
        let mut inodes = vec![&parties.old_directory, &parties.new_directory, &parties.source];
        inodes.extend(&parties.target);
        let locked = Locked::new(&inodes);
        if locked.state(old.parent).is_dead() || locked.state(new.parent).is_dead() {
            return Err(Error::NotFound);
        }
        if !self.still_lead_to(old, new, parties)? {
            return Ok(Attempt::Again);
        }
        check_rename(&locked, old, new, parties, flags)?;
        let mut change = Change::new(&self.content, locked);
        let mut whiteout = None;
        match &parties.target {
            Some(target) if flags.exchange => exchange(&mut change, old, new, parties, target),
            _ => {
                self.replace(&mut change, old, new, parties)?;
                if flags.whiteout {
                    whiteout = Some(self.leave_whiteout(ctx, &mut change, old, parties));
                }
            }
        }
        let now = self.core.clock.now();
        for number in [old.parent, new.parent] {
            let item = change.item(number);
            item.modified = now;
            item.changed = now;
        }
        change.item(parties.source.number).changed = now;
        if let Some(target) = &parties.target {
            change.item(target.number).changed = now;
        }
        let whiteout = whiteout.map(|inode| self.content.inodes.insert_new(inode));
        let committed = change.commit(&self.content, permit).map(drop);
        if let (Err(_), Some(inode)) = (&committed, &whiteout) {
            self.content.inodes.remove(inode.number);
        }
        committed.map(|()| Attempt::Done)
    }

    /// Source takes the new name; whatever had it loses it.
    fn replace(
        &self,
        change: &mut Change<'_>,
        old: Place<'_>,
        new: Place<'_>,
        parties: &Parties,
    ) -> Result<()> {
        let source = parties.source.number;
        let item = change.item(source);
        let (mode, is_directory) = (item.mode, item.is_directory());
        let slot = match &parties.target_slot {
            Slot::Free(slot) => *slot,
            Slot::Taken(entry) => entry.slot,
            Slot::Full => return Err(Error::NoSpace),
        };
        change.batch.delete(Key::dirent(old.parent, parties.source_entry.slot));
        put_dirent(&mut change.batch, Key::dirent(new.parent, slot), source, mode, new.name);
        let item = change.item(old.parent);
        item.entries = item.entries.saturating_sub(1);
        match &parties.target {
            Some(target) => drop(self.drop_link(change, target, None)?),
            None => {
                let item = change.item(new.parent);
                item.entries = item.entries.saturating_add(1);
            }
        }
        if is_directory {
            let item = change.item(old.parent);
            item.nlink = item.nlink.saturating_sub(1);
            // A directory that is replaced takes its ".." with it.
            let item = change.item(new.parent);
            item.nlink = item.nlink.saturating_add(u32::from(parties.target.is_none()));
            change.item(source).parent = new.parent;
        }
        Ok(())
    }

    fn leave_whiteout(
        &self,
        ctx: &Context,
        change: &mut Change<'_>,
        old: Place<'_>,
        parties: &Parties,
    ) -> Inode {
        let directory = change.item(old.parent);
        directory.entries = directory.entries.saturating_add(1);
        let directory = directory.clone();
        let inode = self.new_whiteout(ctx, old.parent, &directory);
        let state = inode.state.read();
        put_inode(&mut change.batch, inode.number, &state, &state.item);
        drop(state);
        let at = Key::dirent(old.parent, parties.source_entry.slot);
        put_dirent(&mut change.batch, at, inode.number, MODE_CHARACTER, old.name);
        inode
    }
}

impl Parties {
    /// Whether a directory changes its parent if the two places are in different directories.
    fn moves_directory(&self, flags: RenameFlags) -> bool {
        let is_directory = |inode: &Arc<Inode>| inode.state.read().item.is_directory();
        is_directory(&self.source) || (flags.exchange && self.target.as_ref().is_some_and(is_directory))
    }
}

/// Both inodes keep their names' slots and change places.
fn exchange(change: &mut Change<'_>, old: Place<'_>, new: Place<'_>, parties: &Parties, target: &Arc<Inode>) {
    let Slot::Taken(target_entry) = &parties.target_slot else {
        unreachable!("a target inode was found by its entry")
    };
    let source = &parties.source;
    let source_mode = change.item(source.number).mode;
    let target_mode = change.item(target.number).mode;
    let old_key = Key::dirent(old.parent, parties.source_entry.slot);
    let new_key = Key::dirent(new.parent, target_entry.slot);
    put_dirent(&mut change.batch, old_key, target.number, target_mode, old.name);
    put_dirent(&mut change.batch, new_key, source.number, source_mode, new.name);
    for (inode, from, to) in [(source, old.parent, new.parent), (target, new.parent, old.parent)] {
        if from != to && change.item(inode.number).is_directory() {
            change.item(inode.number).parent = to;
            let item = change.item(from);
            item.nlink = item.nlink.saturating_sub(1);
            let item = change.item(to);
            item.nlink = item.nlink.saturating_add(1);
        }
    }
}

/// Everything that forbids the rename, with the names and inodes locked.
fn check_rename(
    locked: &Locked<'_>,
    old: Place<'_>,
    new: Place<'_>,
    parties: &Parties,
    flags: RenameFlags,
) -> Result<()> {
    let source = &locked.state(parties.source.number).item;
    let old_directory = &locked.state(old.parent).item;
    let new_directory = &locked.state(new.parent).item;
    if flags.no_replace && parties.target.is_some() {
        return Err(Error::Exists);
    }
    if flags.exchange && parties.target.is_none() {
        return Err(Error::NotFound);
    }
    forbid_removal_in(old_directory)?;
    if is_immutable(new_directory) {
        return Err(Error::NotPermitted);
    }
    forbid_change(source)?;
    if let Some(target) = &parties.target {
        let target = &locked.state(target.number).item;
        forbid_removal_in(new_directory)?;
        forbid_change(target)?;
        if !flags.exchange {
            match (source.is_directory(), target.is_directory()) {
                (true, false) => return Err(Error::NotDirectory),
                (false, true) => return Err(Error::IsDirectory),
                (true, true) if target.entries > 0 => return Err(Error::NotEmpty),
                _ => {}
            }
        }
    }
    let arrives = source.is_directory() && (parties.target.is_none() || flags.exchange);
    if old.parent != new.parent && arrives && new_directory.nlink >= LINKS_MAX {
        return Err(Error::TooManyLinks);
    }
    Ok(())
}
