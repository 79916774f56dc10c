//! Journals that exist in this process only.
//!
//! SQLite's rollback journal makes a commit atomic on a filesystem that cannot do it. Here a commit is a transaction of the
//! volume, and the journal serves what else SQLite uses it for: undoing what it has already written, in this process. So
//! journals and super-journals are [`Scratch`], never synced, and a crash takes them along, which leaves the last commit.
//!
//! A journal that lies in the volume (imported, or left through the mount) is a [`Content::Real`] one: it is read where it is,
//! so that SQLite finds it hot and plays it back. Before its first change its content moves to scratch and the file is unlinked.
//! The unlinking comes before every later commit in the volume's order, so an old journal never meets a newer database.

use crate::error::{Result, VfsError};
use crate::scratch::Scratch;
use crate::volumes::VolumeRef;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline::File;

/// Bytes of a real journal copied at a time.
const COPY_BYTES: usize = 64 << 10;

/// What a virtual file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Journal,
    /// Its deletion commits every database that was synced under its name.
    SuperJournal,
}

enum Content {
    Scratch(Scratch),
    Real(File),
}

/// A journal of this process.
pub(crate) struct VirtualFile {
    path: PathBuf,
    purpose: Purpose,
    content: Mutex<Content>,
}

/// The journals of a volume by their paths.
#[derive(Default)]
pub(crate) struct VirtualFiles {
    files: Mutex<HashMap<PathBuf, Arc<VirtualFile>>>,
}

impl VirtualFiles {
    /// Opens a journal: one that exists here, else one that lies in the volume, else a new one if it may be created.
    pub(crate) fn open(
        &self,
        volume: &VolumeRef,
        path: &Path,
        purpose: Purpose,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<VirtualFile>> {
        let missing = || VfsError::Missing(path.display().to_string());
        let mut files = self.files.lock();
        if let Some(file) = files.get(path) {
            return if exclusive { Err(missing()) } else { Ok(file.clone()) };
        }
        let content = match volume.volume().open_file(path) {
            Ok(real) => Content::Real(real),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && create => {
                Content::Scratch(Scratch::new(Some(volume.downgrade())))
            }
            Err(error) => return Err(VfsError::io(path.as_os_str().as_bytes())(error)),
        };
        let file = Arc::new(VirtualFile { path: path.to_owned(), purpose, content: Mutex::new(content) });
        files.insert(path.to_owned(), file.clone());
        Ok(file)
    }

    /// The journal of a path that was opened before.
    pub(crate) fn get(&self, path: &Path) -> Option<Arc<VirtualFile>> {
        self.files.lock().get(path).cloned()
    }

    /// A handle of a journal was closed: one that lies in the volume is no longer stood in for.
    pub(crate) fn closed(&self, file: &Arc<VirtualFile>) {
        let mut files = self.files.lock();
        // The table, and whoever closes it.
        let last = Arc::strong_count(file) <= 2;
        if last && matches!(*file.content.lock(), Content::Real(_)) {
            files.retain(|_, other| !Arc::ptr_eq(other, file));
        }
    }

    /// Takes a journal away; what lies in the volume is unlinked.
    pub(crate) fn remove(&self, volume: &VolumeRef, path: &Path) -> Result<()> {
        let removed = self.files.lock().remove(path);
        if let Some(file) = removed
            && let Content::Real(_) = *file.content.lock()
        {
            unlink(volume, path)?;
        }
        Ok(())
    }

    /// Forgets a journal without touching what lies in the volume: nobody has the database open any more.
    pub(crate) fn forget(&self, path: &Path) {
        self.files.lock().remove(path);
    }
}

fn unlink(volume: &VolumeRef, path: &Path) -> Result<()> {
    volume.volume().remove_file(path).map_err(VfsError::io(path.as_os_str().as_bytes()))
}

impl VirtualFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn name(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    pub(crate) fn size(&self) -> Result<u64> {
        match &*self.content.lock() {
            Content::Scratch(scratch) => Ok(scratch.size()),
            Content::Real(file) => Ok(file.metadata().map_err(VfsError::io(self.name()))?.len()),
        }
    }

    /// Reads; fewer bytes than asked for only at the end.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        match &*self.content.lock() {
            Content::Scratch(scratch) => scratch.read(offset, into),
            Content::Real(file) => file.read_at(into, offset).map_err(VfsError::io(self.name())),
        }
    }

    pub(crate) fn write(&self, volume: &VolumeRef, offset: u64, data: &[u8]) -> Result<()> {
        let mut content = self.content.lock();
        self.scratch(volume, &mut content, true)?.write(offset, data)
    }

    pub(crate) fn truncate(&self, volume: &VolumeRef, size: u64) -> Result<()> {
        let mut content = self.content.lock();
        self.scratch(volume, &mut content, size > 0)?.truncate(size)
    }

    /// The content in scratch; a real file becomes that first, and is unlinked.
    fn scratch<'a>(
        &self,
        volume: &VolumeRef,
        content: &'a mut Content,
        keep: bool,
    ) -> Result<&'a mut Scratch> {
        if let Content::Real(file) = content {
            let mut scratch = Scratch::new(Some(volume.downgrade()));
            if keep {
                self.copy(file, &mut scratch)?;
            }
            unlink(volume, &self.path)?;
            *content = Content::Scratch(scratch);
        }
        match content {
            Content::Scratch(scratch) => Ok(scratch),
            Content::Real(_) => unreachable!("a real journal has just become scratch"),
        }
    }

    fn copy(&self, file: &File, scratch: &mut Scratch) -> Result<()> {
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let offset = scratch.size();
            let count = file.read_at(&mut buffer, offset).map_err(VfsError::io(self.name()))?;
            if count == 0 {
                return Ok(());
            }
            scratch.write(offset, &buffer[..count])?;
        }
    }
}
