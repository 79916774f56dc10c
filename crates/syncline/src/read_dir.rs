//! Iterating over a directory.

use crate::metadata::Metadata;
use crate::volume::Shared;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use syncline_format::ObjectNo;
use syncline_format::item::{MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK};
use syncline_fs::HandleId;

/// Entries read ahead.
const CHUNK: usize = 256;

/// The entries of a directory, without `.` and `..`, in no particular order.
///
/// What is removed or added meanwhile may or may not be shown; every other entry is shown exactly once.
pub struct ReadDir {
    shared: Arc<Shared>,
    handle: HandleId,
    path: PathBuf,
    cookie: u64,
    ready: VecDeque<DirectoryEntry>,
    ended: bool,
}

/// One entry of a directory.
#[derive(Clone)]
pub struct DirectoryEntry {
    shared: Arc<Shared>,
    path: PathBuf,
    name: OsString,
    inode: ObjectNo,
    file_type: u8,
}

impl ReadDir {
    pub(crate) fn new(shared: Arc<Shared>, handle: HandleId, path: PathBuf) -> ReadDir {
        ReadDir { shared, handle, path, cookie: 0, ready: VecDeque::new(), ended: false }
    }

    fn fill(&mut self) -> crate::Result<()> {
        let ReadDir { shared, path, cookie, ready, .. } = self;
        let mut more = false;
        shared.fs()?.names().readdir(self.handle, *cookie, &mut |entry| {
            if ready.len() == CHUNK {
                more = true;
                return ControlFlow::Break(());
            }
            *cookie = entry.cookie;
            if entry.name != b"." && entry.name != b".." {
                let name = OsString::from_vec(entry.name.to_vec());
                let path = path.join(&name);
                let (inode, file_type) = (entry.inode, entry.file_type);
                ready.push_back(DirectoryEntry { shared: shared.clone(), path, name, inode, file_type });
            }
            ControlFlow::Continue(())
        })?;
        self.ended = !more;
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = io::Result<DirectoryEntry>;

    fn next(&mut self) -> Option<io::Result<DirectoryEntry>> {
        if self.ready.is_empty()
            && !self.ended
            && let Err(error) = self.fill()
        {
            self.ended = true;
            return Some(Err(error.into()));
        }
        self.ready.pop_front().map(Ok)
    }
}

impl Drop for ReadDir {
    fn drop(&mut self) {
        let Ok(fs) = self.shared.fs() else { return };
        if let Err(error) = fs.files().release(self.handle) {
            tracing::debug!(%error, "closing a directory failed");
        }
    }
}

impl DirectoryEntry {
    /// The name within its directory.
    pub fn file_name(&self) -> &OsStr {
        OsStr::from_bytes(self.name.as_bytes())
    }

    /// The directory's path as it was given, with the name.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Inode number.
    pub fn inode(&self) -> ObjectNo {
        self.inode
    }

    fn has_type(&self, mode: u32) -> bool {
        u32::from(self.file_type) == mode >> 12
    }

    /// A directory.
    pub fn is_dir(&self) -> bool {
        self.has_type(MODE_DIRECTORY)
    }

    /// A regular file.
    pub fn is_file(&self) -> bool {
        self.has_type(MODE_REGULAR)
    }

    /// A symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.has_type(MODE_SYMLINK)
    }

    /// Its attributes; those of a symbolic link itself.
    pub fn metadata(&self) -> io::Result<Metadata> {
        Ok(Metadata::new(self.shared.fs()?.attributes().getattr(self.inode)?))
    }
}
