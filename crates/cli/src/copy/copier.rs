//! [`Copier`].

use super::Manner;
use super::data::{Lost, Salvaged, Watched};
use super::side::{Identity, Kind, Node, Reading, Side, Xattrs};
use crate::error::{Failure, without_numbers};
use crate::output;
use indicatif::ProgressBar;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use syncline::Error;
use syncline_fuse::signals;

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) symlinks: u64,
    pub(crate) hard_links: u64,
    pub(crate) special: u64,
    pub(crate) bytes: u64,
}

/// What did not come over as it is; all of it was told.
#[derive(Debug, Default)]
pub(crate) struct Shortfall {
    /// Files and directories that could not be read.
    pub(crate) unreadable: u64,
    /// Files that somebody wrote while they were copied.
    pub(crate) changed: u64,
    /// Files that were copied as far as they could be read.
    pub(crate) damaged: Vec<Damaged>,
    /// What was not copied because it is the volume's own image.
    pub(crate) the_volume: Vec<String>,
}

/// A file of which something is missing.
#[derive(Debug)]
pub(crate) struct Damaged {
    pub(crate) path: String,
    pub(crate) lost: Vec<Lost>,
    /// Its extended attributes are missing too.
    pub(crate) without_attributes: bool,
}

/// Where a copy begins on one side: a directory, and a name in it. Without a name the directory itself is meant, that
/// is, what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) base: PathBuf,
    pub(crate) name: Option<OsString>,
}

impl Start {
    pub(crate) fn path(&self) -> PathBuf {
        self.name.as_ref().map_or_else(|| self.base.clone(), |name| self.base.join(name))
    }
}

/// A directory on its way: both sides of it are open until everything below is copied.
struct Level<F: Side, T: Side> {
    from: F::Directory,
    to: T::Directory,
    source: PathBuf,
    target: PathBuf,
    node: Node,
    xattrs: Xattrs,
    /// Directories in it that are still to be copied, the next one last.
    below: Vec<OsString>,
}

/// One thing to copy: the directory it lies in, its name there and its path, for people.
struct Item<'a, D> {
    at: &'a D,
    name: &'a OsStr,
    path: &'a Path,
}

/// Copies trees from one side to the other. What lies in a tree and cannot be read is told and left out, whole (or
/// what is left of it is copied, if that was asked for); any other failure ends the copy, and what was copied until
/// then stays.
pub(crate) struct Copier<'a, F: Side, T: Side> {
    from: &'a F,
    to: &'a T,
    /// Where the copy goes; hard links are found from here.
    base: T::Directory,
    base_path: PathBuf,
    manner: Manner,
    bar: ProgressBar,
    pub(crate) copied: Copied,
    pub(crate) shortfall: Shortfall,
    /// Where the inodes with several names went.
    linked: HashMap<Identity, (PathBuf, Identity)>,
    /// Directories that were come to, where each has one name.
    entered: HashSet<Identity>,
}

impl<'a, F: Side, T: Side> Copier<'a, F, T> {
    pub(crate) fn new(
        from: &'a F,
        to: &'a T,
        base: (T::Directory, PathBuf),
        manner: Manner,
        bar: ProgressBar,
    ) -> Copier<'a, F, T> {
        let ((base, base_path), linked, entered) = (base, HashMap::new(), HashSet::new());
        let (copied, shortfall) = (Copied::default(), Shortfall::default());
        Copier { from, to, base, base_path, manner, bar, copied, shortfall, linked, entered }
    }

    /// Copies what is at `source`, and everything below it, to `target`, whose base is the copier's.
    pub(crate) fn copy(&mut self, source: &Start, target: &Start) -> Result<(), Failure> {
        let (from_path, to_path) = (source.path(), target.path());
        let from = self.reading(&from_path, self.from.open(&source.base))?;
        let mut to = self.writing(&to_path, self.to.same(&self.base))?;
        let Some(name) = &source.name else {
            let to = self.directory(&mut to, target.name.as_deref(), &to_path)?;
            return self.copy_tree(from, to, from_path, to_path);
        };
        let node = self.reading(&from_path, self.from.node(&from, name))?;
        let node = node.ok_or_else(|| self.read_failure(&from_path, Error::NotFound.into()))?;
        if node.kind() == Kind::Directory {
            let from = self.reading(&from_path, self.from.enter(&from, name))?;
            let to = self.directory(&mut to, target.name.as_deref(), &to_path)?;
            return self.copy_tree(from, to, from_path, to_path);
        }
        let Some(goes_to) = target.name.as_deref() else {
            return Err(self.write_failure(&to_path, Error::IsDirectory.into()));
        };
        let item = Item { at: &from, name, path: &from_path };
        self.copy_leaf(&item, &node, &mut to, goes_to, &to_path)
    }

    /// Makes what was copied durable.
    pub(crate) fn settle(&self) -> io::Result<()> {
        self.to.settle(&self.base)
    }

    /// Directories get their attributes when everything is in them: a time would change, and a mode might forbid it,
    /// or let others in.
    fn copy_tree(
        &mut self,
        from: F::Directory,
        to: T::Directory,
        source: PathBuf,
        target: PathBuf,
    ) -> Result<(), Failure> {
        let mut levels = vec![self.fill(from, to, source, target)?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.below.pop() else {
                if let Some(level) = levels.pop() {
                    self.finish(level)?;
                }
                continue;
            };
            let (source, target) = (level.source.join(&name), level.target.join(&name));
            let entered = self.reading(&source, self.from.enter(&level.from, &name));
            let entered = entered.and_then(|from| self.check_only_name(&source, from));
            let Some(from) = self.left_out_if_unreadable(entered)? else { continue };
            let to = self.directory(&mut level.to, Some(&name), &target)?;
            levels.push(self.fill(from, to, source, target)?);
        }
        Ok(())
    }

    /// On a damaged volume a directory may have several names, and each would double what is copied.
    fn check_only_name(&mut self, source: &Path, from: F::Directory) -> Result<F::Directory, Failure> {
        if self.from.names_directories_once() {
            let identity = self.reading(source, self.from.node_of(&from))?.identity;
            if !self.entered.insert(identity) {
                let error = io::Error::other("corruption: a directory has several names");
                return Err(self.read_failure(source, error));
            }
        }
        Ok(from)
    }

    /// Copies all of a directory but the directories in it.
    fn fill(
        &mut self,
        from: F::Directory,
        mut to: T::Directory,
        source: PathBuf,
        target: PathBuf,
    ) -> Result<Level<F, T>, Failure> {
        let mut node = self.reading(&source, self.from.node_of(&from))?;
        let xattrs = self.attributes(&source, self.from.xattrs_of(&from));
        let xattrs = self.left_out_if_unreadable(xattrs)?.unwrap_or_else(|| {
            node = node.clone().private();
            Xattrs::new()
        });
        let names = self.reading(&source, self.from.names(&from)).and_then(|found| match found.failed {
            Some(error) if !self.manner.partial => Err(self.read_failure(&source, error)),
            failed => Ok((found.names, failed)),
        });
        let (names, failed) = self.left_out_if_unreadable(names)?.unwrap_or_default();
        if let Some(error) = failed {
            let failure = self.read_failure(&source, error);
            self.left_out_if_unreadable::<()>(Err(failure))?;
        }
        let mut below = Vec::new();
        for name in names {
            let (path, goes_to) = (source.join(&name), target.join(&name));
            let found = self.reading(&path, self.from.node(&from, &name));
            match self.left_out_if_unreadable(found)?.flatten() {
                Some(node) if node.kind() == Kind::Directory => below.push(name),
                Some(node) => {
                    let item = Item { at: &from, name: &name, path: &path };
                    let copied = self.copy_leaf(&item, &node, &mut to, &name, &goes_to);
                    self.left_out_if_unreadable(copied)?;
                }
                // Removed meanwhile.
                None => {}
            }
        }
        below.reverse();
        Ok(Level { from, to, source, target, node, xattrs, below })
    }

    fn finish(&self, mut level: Level<F, T>) -> Result<(), Failure> {
        let refused = self.to.dress_directory(&mut level.to, &level.node, &level.xattrs);
        self.tell_refused(&level.target, &self.writing(&level.target, refused)?);
        Ok(())
    }

    /// One damaged file must not keep all behind it from being copied.
    fn left_out_if_unreadable<T2>(&mut self, result: Result<T2, Failure>) -> Result<Option<T2>, Failure> {
        if let Some(signal) = signals::received() {
            return Err(Failure::Ended { signal });
        }
        match result {
            Err(failure @ Failure::Unreadable { .. }) => {
                self.shortfall.unreadable += 1;
                self.tell(&without_numbers(&failure.to_string()));
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    fn tell(&self, sentence: &str) {
        self.bar.suspend(|| output::tell(sentence));
    }

    /// A directory to copy into: the one with that name, made if there is none, or the one it would lie in. A link to
    /// one is none.
    fn directory(
        &mut self,
        at: &mut T::Directory,
        name: Option<&OsStr>,
        target: &Path,
    ) -> Result<T::Directory, Failure> {
        let Some(name) = name else { return self.writing(target, self.to.same(at)) };
        if self.writing(target, self.to.node(at, name))?.is_some() {
            return self.writing(target, self.to.enter(at, name));
        }
        let made = self.writing(target, self.to.make_directory(at, name))?;
        self.copied.directories += 1;
        Ok(made)
    }

    fn copy_leaf(
        &mut self,
        source: &Item<'_, F::Directory>,
        node: &Node,
        to: &mut T::Directory,
        name: &OsStr,
        target: &Path,
    ) -> Result<(), Failure> {
        if self.from.is_the_volume(node) {
            self.shortfall.the_volume.push(self.from.show(source.path));
            return Ok(());
        }
        let existing = self.writing(target, self.to.node(to, name))?;
        if let Some(existing) = &existing {
            if existing.kind() == Kind::Directory {
                return Err(self.write_failure(target, Error::IsDirectory.into()));
            }
            if !self.manner.force || self.to.is_the_volume(existing) {
                return Err(Failure::Occupied { what: self.to.show(target) });
            }
        }
        let (before, damaged) = (self.copied, self.shortfall.damaged.len());
        let made = self.make_leaf(source, to, target, node);
        let placed = made.and_then(|identity| {
            if existing.is_some() && self.shortfall.damaged.len() > damaged {
                // Nothing better has come.
                return Err(Failure::Occupied { what: self.to.show(target) });
            }
            Ok((identity, self.writing(target, self.to.place(to, name, existing.is_some()))?))
        });
        match placed {
            Err(Failure::Occupied { what }) if existing.is_some() => {
                self.to.discard(to);
                self.copied = before;
                self.tell(&format!("{what}: kept as it was, because what would replace it is damaged"));
                Ok(())
            }
            Err(failure) => {
                self.to.discard(to);
                Err(failure)
            }
            // Only now: what has failed may be left out and the copy goes on; a link to its name would be one to an
            // older file.
            Ok((Some(identity), placed)) => {
                let below_base = target.strip_prefix(&self.base_path).unwrap_or(target).to_owned();
                self.linked.insert(identity, (below_base, placed));
                Ok(())
            }
            Ok((None, _)) => Ok(()),
        }
    }

    /// Stages anything but a directory, whole. Returns what it is on its side, if it has further names that are to be
    /// linked.
    fn make_leaf(
        &mut self,
        source: &Item<'_, F::Directory>,
        to: &mut T::Directory,
        target: &Path,
        node: &Node,
    ) -> Result<Option<Identity>, Failure> {
        if node.kind() == Kind::File {
            return self.make_file(source, to, target);
        }
        if self.make_linked(to, target, node)? {
            return Ok(None);
        }
        let (at, name) = (source.at, source.name);
        // Before anything is made of it: what has lost its attributes is left out like what has lost its data.
        let xattrs = self.attributes(source.path, self.from.xattrs(at, name))?;
        if node.kind() == Kind::Symlink {
            let leads_to = self.reading(source.path, self.from.target(at, name))?;
            self.writing(target, self.to.make_symlink(to, &leads_to))?;
            self.copied.symlinks += 1;
        } else {
            self.writing(target, self.to.make_special(to, node))?;
            self.copied.special += 1;
        }
        self.dress(to, target, node, &xattrs)?;
        Ok((node.links > 1).then_some(node.identity))
    }

    /// Stages a further name of something that was copied under another one.
    fn make_linked(&mut self, to: &mut T::Directory, target: &Path, node: &Node) -> Result<bool, Failure> {
        let Some((original, identity)) = self.linked.get(&node.identity).filter(|_| node.links > 1) else {
            return Ok(false);
        };
        self.writing(target, self.to.make_hard_link(to, &self.base, original, *identity))?;
        self.copied.hard_links += 1;
        Ok(true)
    }

    fn make_file(
        &mut self,
        source: &Item<'_, F::Directory>,
        to: &mut T::Directory,
        target: &Path,
    ) -> Result<Option<Identity>, Failure> {
        let content = self.reading(source.path, self.from.read(source.at, source.name))?;
        // What was opened counts, not what had the name a moment ago.
        let mut node = self.reading(source.path, content.node())?;
        if self.make_linked(to, target, &node)? {
            return Ok(None);
        }
        let xattrs = self.attributes(source.path, content.xattrs());
        let without_attributes = self.manner.partial && xattrs.is_err();
        let xattrs = match xattrs {
            Err(Failure::Unreadable { .. }) if without_attributes => {
                node = node.private();
                Xattrs::new()
            }
            xattrs => xattrs?,
        };
        let bar = self.bar.clone();
        let mut content = Watched::new(content, &bar);
        let (copied, lost) = match self.manner.partial {
            false => {
                let made = self.to.make_file(to, node.size, &mut content);
                let failed = content.failed;
                (
                    if failed { self.reading(source.path, made)? } else { self.writing(target, made)? },
                    Vec::new(),
                )
            }
            true => {
                let mut salvaged = Salvaged::new(&mut content, node.size);
                let made = self.to.make_file(to, node.size, &mut salvaged);
                let (failed, lost) = (salvaged.failed(), salvaged.lost);
                (if failed { self.reading(source.path, made)? } else { self.writing(target, made)? }, lost)
            }
        };
        let after = self.reading(source.path, content.node())?;
        if node.has_changed_to(&after, copied.size) {
            self.shortfall.changed += 1;
            self.tell(&format!("{}: changed while it was copied", self.from.show(source.path)));
        }
        self.dress(to, target, &node, &xattrs)?;
        self.note_damage(source.path, lost, without_attributes);
        self.copied.bytes += copied.bytes;
        self.copied.files += 1;
        Ok((node.links > 1).then_some(node.identity))
    }

    fn note_damage(&mut self, source: &Path, lost: Vec<Lost>, without_attributes: bool) {
        let path = self.from.show(source);
        for Lost { bytes, why } in &lost {
            let sentence = format!(
                "{path}: bytes {} to {} cannot be read and are zeros in the copy ({why})",
                bytes.start,
                bytes.end - 1
            );
            self.tell(&without_numbers(&sentence));
        }
        if without_attributes {
            self.tell(&format!(
                "{path}: its extended attributes cannot be read; the copy is its owner's alone"
            ));
        }
        if without_attributes || !lost.is_empty() {
            self.shortfall.damaged.push(Damaged { path, lost, without_attributes });
        }
    }

    fn attributes(&self, source: &Path, xattrs: io::Result<Xattrs>) -> Result<Xattrs, Failure> {
        xattrs.map_err(|error| Failure::Unreadable {
            what: format!("{}: extended attributes", self.from.show(source)),
            source: error,
        })
    }

    fn dress(&self, at: &T::Directory, target: &Path, node: &Node, xattrs: &Xattrs) -> Result<(), Failure> {
        let refused = self.writing(target, self.to.dress(at, node, xattrs))?;
        self.tell_refused(target, &refused);
        Ok(())
    }

    fn tell_refused(&self, target: &Path, refused: &[OsString]) {
        for name in refused {
            self.tell(&format!("{}: without its attribute {}", self.to.show(target), name.display()));
        }
    }

    fn reading<R>(&self, path: &Path, result: io::Result<R>) -> Result<R, Failure> {
        result.map_err(|source| self.read_failure(path, source))
    }

    fn read_failure(&self, path: &Path, source: io::Error) -> Failure {
        Failure::Unreadable { what: self.from.show(path), source }
    }

    fn writing<R>(&self, path: &Path, result: io::Result<R>) -> Result<R, Failure> {
        result.map_err(|source| self.write_failure(path, source))
    }

    fn write_failure(&self, path: &Path, source: io::Error) -> Failure {
        Failure::Copy { what: self.to.show(path), source }
    }
}
