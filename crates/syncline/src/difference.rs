//! What differs between snapshots.

use crate::Volume;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A path that differs between two snapshots.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Change {
    /// From the root, without a leading slash; empty for the root itself.
    pub path: PathBuf,
    /// What has happened to it.
    pub kind: ChangeKind,
}

/// What has happened to a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ChangeKind {
    /// It is in the older snapshot only.
    Removed,
    /// It is in the newer one only.
    Added,
    /// The same file or directory had another path in the older one.
    Renamed {
        /// That path.
        from: PathBuf,
    },
    /// It has another content, or other attributes: owner, mode, flags, extended attributes, or, with the same content,
    /// another time of modification. Directories do not count for what is in them.
    Modified {
        /// The content.
        content: bool,
        /// The attributes.
        attributes: bool,
    },
}

impl From<syncline_fs::Change> for Change {
    fn from(change: syncline_fs::Change) -> Change {
        let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
        let kind = match change.kind {
            syncline_fs::ChangeKind::Removed => ChangeKind::Removed,
            syncline_fs::ChangeKind::Added => ChangeKind::Added,
            syncline_fs::ChangeKind::Renamed { from } => ChangeKind::Renamed { from: path(from) },
            syncline_fs::ChangeKind::Modified { content, attributes } => {
                ChangeKind::Modified { content, attributes }
            }
            other => unreachable!("{other:?} is listed above"),
        };
        Change { path: path(change.path), kind }
    }
}

impl Volume {
    /// What differs between a snapshot and a later one, or, without a later one, the volume as it is now; sorted by
    /// path. What both share is not read: it takes as long as the changes are many. Only files that were modified where
    /// they are cost one pass over the volume's names. The parts of a removed directory are listed, too.
    ///
    /// A page that was written counts as changed, whatever is in it; with `content` the checksums are compared.
    ///
    /// Errors: `NotFound`; without a later one those of [`Volume::snapshot`].
    ///
    /// ```
    /// use syncline::{ChangeKind, MkfsOptions, VolumeOptions};
    ///
    /// let options = MkfsOptions::default().format(2);
    /// let volume = VolumeOptions::new().create_in_memory(64 << 20, &options)?;
    /// volume.write("notes", "first")?;
    /// volume.snapshot("before")?;
    /// volume.rename("notes", "diary")?;
    /// let changes = volume.diff("before", None, false)?;
    /// assert_eq!(changes[0].path.to_str(), Some("diary"));
    /// assert_eq!(changes[0].kind, ChangeKind::Renamed { from: "notes".into() });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn diff(&self, older: &str, newer: Option<&str>, content: bool) -> io::Result<Vec<Change>> {
        let shared = self.shared();
        let changes = shared.fs()?.difference(older, newer, content, &*shared.entropy)?;
        Ok(changes.into_iter().map(Change::from).collect())
    }
}
