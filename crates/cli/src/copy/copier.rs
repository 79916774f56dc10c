//! [`Copier`].

use super::beside;
use super::side::{Kind, Node, Reading, Side};
use crate::error::{Failure, without_numbers};
use crate::output;
use indicatif::ProgressBar;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use syncline::Error;

/// Attempts to find a name that nobody has.
const ATTEMPTS_MAX: u32 = 100;

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

/// A file being read: counts for the progress bar, and remembers which side of a copy has failed.
struct Watched<'a> {
    content: Box<dyn Reading>,
    bar: &'a ProgressBar,
    failed: bool,
}

impl Watched<'_> {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.failed |= result.is_err();
        result
    }
}

impl Reading for Watched<'_> {
    fn next_data(&mut self, offset: u64, size: u64) -> io::Result<Option<Range<u64>>> {
        let result = self.content.next_data(offset, size);
        self.note(result)
    }

    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let result = self.content.read_at(into, offset);
        self.bar.inc(*result.as_ref().unwrap_or(&0) as u64);
        self.note(result)
    }
}

/// What is being made: where it grows, and the name that it gets when it is whole.
struct New<'a> {
    aside: PathBuf,
    target: &'a Path,
}

/// Copies trees from one side to the other. What lies in a tree and cannot be read is told and left out, whole; any other
/// failure ends the copy, and what was copied until then stays.
pub(crate) struct Copier<'a> {
    from: &'a dyn Side,
    to: &'a dyn Side,
    force: bool,
    bar: ProgressBar,
    copied: Copied,
    unreadable: u64,
    /// Where the inodes with several names went.
    linked: HashMap<(u64, u64), PathBuf>,
    left_out: Vec<String>,
}

impl<'a> Copier<'a> {
    pub(crate) fn new(from: &'a dyn Side, to: &'a dyn Side, force: bool, bar: ProgressBar) -> Copier<'a> {
        let (linked, left_out) = (HashMap::new(), Vec::new());
        Copier { from, to, force, bar, copied: Copied::default(), unreadable: 0, linked, left_out }
    }

    pub(crate) fn copied(&self) -> Copied {
        self.copied
    }

    /// How many files and directories in a tree could not be read; each was told.
    pub(crate) fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// What was not copied because it is the volume's own image.
    pub(crate) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Copies what is at `source`, and everything below it, to the name `target`.
    pub(crate) fn copy(&mut self, source: &Path, target: &Path) -> Result<(), Failure> {
        let node = self.reading(source, self.from.node(source))?;
        let node = node.ok_or_else(|| self.read_failure(source, Error::NotFound.into()))?;
        if node.kind() == Kind::Directory {
            return self.copy_tree(source, target, &node);
        }
        self.copy_leaf(source, target, &node)
    }

    /// Directories get their attributes when everything is in them: a time would change, and a mode might forbid it.
    fn copy_tree(&mut self, source: &Path, target: &Path, node: &Node) -> Result<(), Failure> {
        let mut made = Vec::new();
        let mut pending = vec![(source.to_owned(), target.to_owned(), node.clone())];
        while let Some((source, target, node)) = pending.pop() {
            self.make_directory(&target)?;
            let xattrs = self.xattrs(&source);
            let xattrs = self.left_out_if_unreadable(xattrs)?.unwrap_or_default();
            self.set_xattrs(&target, &target, &xattrs)?;
            let names = self.reading(&source, self.from.names(&source));
            for name in self.left_out_if_unreadable(names)?.unwrap_or_default() {
                let (below, goes_to) = (source.join(&name), target.join(&name));
                let found = self.reading(&below, self.from.node(&below));
                match self.left_out_if_unreadable(found)?.flatten() {
                    Some(node) if node.kind() == Kind::Directory => pending.push((below, goes_to, node)),
                    Some(node) => {
                        let copied = self.copy_leaf(&below, &goes_to, &node);
                        self.left_out_if_unreadable(copied)?;
                    }
                    // Removed meanwhile.
                    None => {}
                }
            }
            made.push((target, node));
        }
        for (target, node) in made.iter().rev() {
            self.writing(target, self.to.set_attributes(target, node))?;
        }
        Ok(())
    }

    /// One damaged file must not keep all behind it from being copied.
    fn left_out_if_unreadable<T>(&mut self, result: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match result {
            Err(failure @ Failure::Unreadable { .. }) => {
                self.unreadable += 1;
                self.tell(&without_numbers(&failure.to_string()));
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    fn tell(&self, sentence: &str) {
        self.bar.suspend(|| output::tell(sentence));
    }

    fn make_directory(&mut self, target: &Path) -> Result<(), Failure> {
        if self.writing(target, self.to.is_directory(target))? {
            return Ok(());
        }
        if self.writing(target, self.to.node(target))?.is_some() {
            return Err(self.write_failure(target, Error::NotDirectory.into()));
        }
        self.writing(target, self.to.make_directory(target))?;
        self.copied.directories += 1;
        Ok(())
    }

    fn copy_leaf(&mut self, source: &Path, target: &Path, node: &Node) -> Result<(), Failure> {
        if self.from.is_the_volume(node) {
            self.left_out.push(self.from.show(source));
            return Ok(());
        }
        let existing = self.writing(target, self.to.node(target))?;
        if let Some(existing) = &existing {
            if existing.kind() == Kind::Directory {
                return Err(self.write_failure(target, Error::IsDirectory.into()));
            }
            if !self.force || self.to.is_the_volume(existing) {
                return Err(Failure::Occupied { what: self.to.show(target) });
            }
        }
        let new = New { aside: self.vacant_beside(target)?, target };
        let made = self.make_leaf(source, &new, node);
        let replace = existing.is_some();
        let placed = made.and_then(|()| self.writing(target, self.to.rename(&new.aside, target, replace)));
        match placed {
            Err(_) => {
                // The first failure is the one to tell.
                let _ = self.to.remove(&new.aside);
            }
            // Only now: what has failed may be left out and the copy goes on; a link to its name would be one to an older file.
            Ok(()) if node.links > 1 => drop(self.linked.insert(node.identity, target.to_owned())),
            Ok(()) => {}
        }
        placed
    }

    fn vacant_beside(&self, target: &Path) -> Result<PathBuf, Failure> {
        for attempt in 0..ATTEMPTS_MAX {
            let path = beside(target, attempt);
            if self.writing(&path, self.to.node(&path))?.is_none() {
                return Ok(path);
            }
        }
        Err(Failure::Occupied { what: self.to.show(&beside(target, 0)) })
    }

    /// Makes anything but a directory, whole, under a name that nobody looks for.
    fn make_leaf(&mut self, source: &Path, new: &New<'_>, node: &Node) -> Result<(), Failure> {
        let (aside, target) = (&new.aside, new.target);
        if let Some(original) = self.linked.get(&node.identity).filter(|_| node.links > 1) {
            self.writing(target, self.to.make_hard_link(original, aside))?;
            self.copied.hard_links += 1;
            return Ok(());
        }
        // Before anything is made of it: what has lost its attributes is left out like what has lost its data.
        let xattrs = self.xattrs(source)?;
        let mut bytes = 0;
        match node.kind() {
            Kind::File => {
                let content = self.reading(source, self.from.read(source))?;
                let mut content = Watched { content, bar: &self.bar, failed: false };
                let made = self.to.make_file(aside, node.size, &mut content);
                bytes = match content.failed {
                    true => self.reading(source, made)?,
                    false => self.writing(target, made)?,
                };
            }
            Kind::Symlink => {
                let leads_to = self.reading(source, self.from.target(source))?;
                self.writing(target, self.to.make_symlink(aside, &leads_to))?;
            }
            Kind::Special => self.writing(target, self.to.make_special(aside, node))?,
            Kind::Directory => unreachable!("directories are made by copy_tree"),
        }
        self.set_xattrs(aside, target, &xattrs)?;
        self.writing(target, self.to.set_attributes(aside, node))?;
        self.copied.bytes += bytes;
        *match node.kind() {
            Kind::Symlink => &mut self.copied.symlinks,
            Kind::Special => &mut self.copied.special,
            Kind::File | Kind::Directory => &mut self.copied.files,
        } += 1;
        Ok(())
    }

    fn xattrs(&self, source: &Path) -> Result<Vec<(OsString, Vec<u8>)>, Failure> {
        let xattrs = self.from.xattrs(source);
        xattrs.map_err(|source_error| Failure::Unreadable {
            what: format!("{}: extended attributes", self.from.show(source)),
            source: source_error,
        })
    }

    /// Sets them on what is at `path` now and will be known as `target`.
    fn set_xattrs(&self, path: &Path, target: &Path, xattrs: &[(OsString, Vec<u8>)]) -> Result<(), Failure> {
        for (name, value) in xattrs {
            if !self.writing(target, self.to.set_xattr(path, name, value))? {
                self.tell(&format!("{}: without its attribute {}", self.to.show(target), name.display()));
            }
        }
        Ok(())
    }

    fn reading<T>(&self, path: &Path, result: io::Result<T>) -> Result<T, Failure> {
        result.map_err(|source| self.read_failure(path, source))
    }

    fn read_failure(&self, path: &Path, source: io::Error) -> Failure {
        Failure::Unreadable { what: self.from.show(path), source }
    }

    fn writing<T>(&self, path: &Path, result: io::Result<T>) -> Result<T, Failure> {
        result.map_err(|source| self.write_failure(path, source))
    }

    fn write_failure(&self, path: &Path, source: io::Error) -> Failure {
        Failure::Copy { what: self.to.show(path), source }
    }
}
