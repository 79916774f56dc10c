//! [`Copier`].

use super::beside;
use super::side::{Kind, Node, Reading, Side};
use crate::error::{Failure, without_numbers};
use crate::output;
use indicatif::ProgressBar;
use std::collections::HashMap;
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
            let xattrs = self.copy_xattrs(&source, &target);
            self.left_out_if_unreadable(xattrs)?;
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
        let Some(existing) = existing else { return self.make_leaf(source, target, node) };
        if existing.kind() == Kind::Directory {
            return Err(self.write_failure(target, Error::IsDirectory.into()));
        }
        if !self.force || self.to.is_the_volume(&existing) {
            return Err(Failure::Occupied { what: self.to.show(target) });
        }
        let aside = self.vacant_beside(target)?;
        let made = self.make_leaf(source, &aside, node);
        let placed = made.and_then(|()| self.writing(target, self.to.rename(&aside, target)));
        if placed.is_err() {
            // The first failure is the one to tell.
            let _ = self.to.remove(&aside);
        }
        if let Some(place) = self.linked.get_mut(&node.identity)
            && *place == aside
        {
            *place = target.to_owned();
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

    /// Makes anything but a directory under a name that is free.
    fn make_leaf(&mut self, source: &Path, target: &Path, node: &Node) -> Result<(), Failure> {
        if node.links > 1
            && let Some(original) = self.linked.get(&node.identity)
        {
            self.writing(target, self.to.make_hard_link(original, target))?;
            self.copied.hard_links += 1;
            return Ok(());
        }
        match node.kind() {
            Kind::File => {
                let content = self.reading(source, self.from.read(source))?;
                let mut content = Watched { content, bar: &self.bar, failed: false };
                let made = self.to.make_file(target, node.size, &mut content);
                let bytes = if content.failed {
                    // Half a file under its name would pass for the whole. The first failure is the one to tell.
                    let _ = self.to.remove(target);
                    self.reading(source, made)?
                } else {
                    self.writing(target, made)?
                };
                self.copied.files += 1;
                self.copied.bytes += bytes;
            }
            Kind::Symlink => {
                let leads_to = self.reading(source, self.from.target(source))?;
                self.writing(target, self.to.make_symlink(target, &leads_to))?;
                self.copied.symlinks += 1;
            }
            Kind::Special => {
                self.writing(target, self.to.make_special(target, node))?;
                self.copied.special += 1;
            }
            Kind::Directory => unreachable!("directories are made by copy_tree"),
        }
        self.copy_xattrs(source, target)?;
        self.writing(target, self.to.set_attributes(target, node))?;
        // Last: what has failed may be removed again, and the copy goes on; a link to its name would be one to an older file.
        if node.links > 1 {
            self.linked.insert(node.identity, target.to_owned());
        }
        Ok(())
    }

    fn copy_xattrs(&self, source: &Path, target: &Path) -> Result<(), Failure> {
        for (name, value) in self.reading(source, self.from.xattrs(source))? {
            if !self.writing(target, self.to.set_xattr(target, &name, &value))? {
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
