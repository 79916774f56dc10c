//! From paths to inodes.

use crate::volume::Shared;
use crate::{Attr, Error, Result};
use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use syncline_format::ObjectNo;
use syncline_format::item::{MODE_DIRECTORY, MODE_SYMLINK, MODE_TYPE_MASK};

/// Most symbolic links on the way to one file.
const SYMLINKS_MAX: u32 = 40;
/// Longest path, as on Linux.
const PATH_BYTES_MAX: usize = 4096;

/// Times that a path is looked up again. Others would have to replace what it leads to each time; only damage does
/// that for ever.
const STALE_MAX: u32 = 1000;

/// Where a path leads.
pub(crate) struct Place {
    /// The directory of the last name.
    pub(crate) parent: ObjectNo,
    /// The last name; empty when the path ends in the root, `.` or `..`.
    pub(crate) name: Vec<u8>,
    /// What is there, if anything.
    pub(crate) attr: Option<Attr>,
    /// The path ends in a slash: only a directory will do.
    pub(crate) wants_directory: bool,
}

impl Place {
    /// What is there. Errors: `NotFound`, `NotDirectory`.
    pub(crate) fn existing(self) -> Result<Attr> {
        let attr = self.attr.ok_or(Error::NotFound)?;
        if self.wants_directory && attr.mode & MODE_TYPE_MASK != MODE_DIRECTORY {
            return Err(Error::NotDirectory);
        }
        Ok(attr)
    }

    /// The last name, for an operation that makes or removes it. Errors: `Exists` for the root and `..`.
    pub(crate) fn named(self) -> Result<(ObjectNo, Vec<u8>)> {
        if self.name.is_empty() { Err(Error::Exists) } else { Ok((self.parent, self.name)) }
    }
}

impl Shared {
    /// Follows a path; a symbolic link in the last place only if `follow`.
    ///
    /// Errors: `NotFound` (also for an empty path), `NotDirectory`, `SymlinkLoop`, `NameTooLong`, `Invalid`.
    pub(crate) fn resolve(&self, path: &Path, follow: bool) -> Result<Place> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(Error::NotFound);
        }
        if bytes.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        again_if_stale(|| self.walk(bytes, follow))
    }

    fn walk(&self, path: &[u8], follow: bool) -> Result<Place> {
        // The next name is the last one.
        let mut rest: Vec<Cow<'_, [u8]>> = Vec::new();
        let mut wants_directory = path.ends_with(b"/");
        rest.extend(names(path).map(Cow::Borrowed));
        let mut links = 0;
        let mut current = ObjectNo::ROOT_DIR;
        loop {
            let Some(name) = rest.pop() else {
                let attr = Some(self.fs()?.attributes().getattr(current)?);
                return Ok(Place { parent: current, name: Vec::new(), attr, wants_directory });
            };
            let entry = match self.fs()?.names().lookup(current, &name) {
                Ok(entry) => entry.attr,
                Err(Error::NotFound) if rest.is_empty() => {
                    let name = name.into_owned();
                    return Ok(Place { parent: current, name, attr: None, wants_directory });
                }
                Err(error) => return Err(error),
            };
            let file_type = entry.mode & MODE_TYPE_MASK;
            let last = rest.is_empty();
            if file_type == MODE_SYMLINK && (!last || follow || wants_directory) {
                links += 1;
                if links > SYMLINKS_MAX {
                    return Err(Error::SymlinkLoop);
                }
                let target = self.fs()?.attributes().readlink(entry.inode)?;
                if target.starts_with(b"/") {
                    current = ObjectNo::ROOT_DIR;
                }
                wants_directory |= last && target.ends_with(b"/");
                rest.extend(names(&target).map(|name| Cow::Owned(name.to_vec())));
                continue;
            }
            if last && *name != *b".." {
                let name = name.into_owned();
                return Ok(Place { parent: current, name, attr: Some(entry), wants_directory });
            }
            if file_type != MODE_DIRECTORY {
                return Err(Error::NotDirectory);
            }
            current = entry.inode;
        }
    }
}

/// Does what begins with looking a path up, and does it again if what was found has been replaced or removed before
/// it was used: its path may lead elsewhere by then. A number is never used twice, so it is another one each time,
/// unless the volume is damaged.
pub(crate) fn again_if_stale<T>(mut act: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..STALE_MAX {
        match act() {
            Err(Error::Stale) => {}
            result => return result,
        }
    }
    act()
}

/// A file that was found by its path and is gone when it is used is stale: another one may have the path by now.
pub(crate) fn not_found_is_stale(error: Error) -> Error {
    match error {
        Error::NotFound => Error::Stale,
        other => other,
    }
}

/// A path's names, the last one first.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').rev().filter(|name| !matches!(*name, b"" | b"."))
}
