//! Journals that exist in this process only.
//!
//! SQLite's rollback journal makes a commit atomic on a filesystem that cannot do it. Here a commit is a transaction of the
//! volume, and the journal serves what else SQLite uses it for: undoing what it has already written, in this process. So
//! journals and super-journals are [`Scratch`], never synced, and a crash takes them along, which leaves the last commit.
//!
//! The exception is a transaction that is too large for one record of the volume. Then the journal is *kept*: written to the volume
//! and synced, as on any file system, before the database is written to directly ([`VirtualFile::keep`]). When SQLite ends such a
//! journal, the database is synced, the journal unlinked, and that made durable, whatever synchronous says.
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
use syncline::{File, OpenOptions};

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
    /// It lies in the volume and was found there.
    Real(File),
    /// It lies in the volume because the database depends on it.
    Kept {
        file: File,
        synced: bool,
    },
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

    /// A handle of a journal was closed: one that was found in the volume is no longer stood in for. (A kept one is: SQLite
    /// closes a journal before it deletes it.)
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
        let Some(file) = self.get(path) else { return Ok(()) };
        match *file.content.lock() {
            Content::Scratch(_) => {}
            Content::Real(_) => unlink(volume, path)?,
            Content::Kept { .. } => end_kept(volume, path)?,
        }
        self.forget(path);
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

/// Ends a kept journal: from here on the database counts as it is.
fn end_kept(volume: &VolumeRef, path: &Path) -> Result<()> {
    let database = crate::database::of_companion(volume, path, b"-journal");
    if let Some(database) = &database {
        database.sync(volume)?;
    }
    unlink(volume, path)?;
    if let Some(database) = &database {
        // With it every earlier change of names is durable (C1).
        database.sync(volume)?;
        database.end_direct();
    }
    Ok(())
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
            Content::Real(file) | Content::Kept { file, .. } => {
                Ok(file.metadata().map_err(VfsError::io(self.name()))?.len())
            }
        }
    }

    /// Reads; fewer bytes than asked for only at the end.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        match &*self.content.lock() {
            Content::Scratch(scratch) => scratch.read(offset, into),
            Content::Real(file) | Content::Kept { file, .. } => {
                file.read_at(into, offset).map_err(VfsError::io(self.name()))
            }
        }
    }

    pub(crate) fn write(&self, volume: &VolumeRef, offset: u64, data: &[u8]) -> Result<()> {
        let mut content = self.content.lock();
        // Zeros over the header are how a journal ends that is to persist.
        let ends = offset == 0 && data.iter().all(|&byte| byte == 0);
        match &mut *content {
            Content::Kept { file, synced } if !ends => {
                *synced = false;
                file.write_all_at(data, offset).map_err(VfsError::io(self.name()))
            }
            _ => self.scratch(volume, &mut content, !ends)?.write(offset, data),
        }
    }

    pub(crate) fn truncate(&self, volume: &VolumeRef, size: u64) -> Result<()> {
        let mut content = self.content.lock();
        match &mut *content {
            Content::Kept { file, synced } if size > 0 => {
                *synced = false;
                file.set_len(size).map_err(VfsError::io(self.name()))
            }
            _ => self.scratch(volume, &mut content, size > 0)?.truncate(size),
        }
    }

    /// Syncs a kept journal; there is nothing to be synced of another one.
    pub(crate) fn sync(&self) -> Result<()> {
        match &mut *self.content.lock() {
            Content::Kept { file, synced } if !*synced => {
                file.sync_data().map_err(VfsError::io(self.name()))?;
                *synced = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether it could undo something: it begins with a header, and not with zeros.
    pub(crate) fn is_armed(&self) -> Result<bool> {
        let mut first = [0];
        Ok(self.read(0, &mut first)? == 1 && first != [0])
    }

    /// Makes the journal lie in the volume, durable, for as long as it is not ended.
    pub(crate) fn keep(&self, volume: &VolumeRef) -> Result<()> {
        {
            let mut content = self.content.lock();
            let mut options = OpenOptions::new();
            options.read(true).write(true).mode(0o644);
            let file = match &*content {
                Content::Kept { .. } => None,
                Content::Real(_) => Some(options.open(volume.volume(), &self.path)),
                Content::Scratch(_) => Some(options.create_new(true).open(volume.volume(), &self.path)),
            };
            let file = file.transpose().map_err(VfsError::io(self.name()))?;
            if let (Content::Scratch(scratch), Some(file)) = (&*content, &file)
                && let Err(error) = self.write_out(scratch, file)
            {
                unlink(volume, &self.path)?;
                return Err(error);
            }
            if let Some(file) = file {
                *content = Content::Kept { file, synced: false };
            }
        }
        self.sync()
    }

    fn write_out(&self, scratch: &Scratch, file: &File) -> Result<()> {
        let mut buffer = vec![0; COPY_BYTES];
        let mut offset = 0;
        while offset < scratch.size() {
            let count = scratch.read(offset, &mut buffer)?;
            file.write_all_at(&buffer[..count], offset).map_err(VfsError::io(self.name()))?;
            offset += count as u64;
        }
        Ok(())
    }

    /// The content in scratch; what lies in the volume becomes that first, and is unlinked.
    fn scratch<'a>(
        &self,
        volume: &VolumeRef,
        content: &'a mut Content,
        copy: bool,
    ) -> Result<&'a mut Scratch> {
        if let Content::Real(file) | Content::Kept { file, .. } = &*content {
            let mut scratch = Scratch::new(Some(volume.downgrade()));
            if copy {
                self.copy(file, &mut scratch)?;
            }
            match content {
                Content::Kept { .. } => end_kept(volume, &self.path)?,
                _ => unlink(volume, &self.path)?,
            }
            *content = Content::Scratch(scratch);
        }
        match content {
            Content::Scratch(scratch) => Ok(scratch),
            Content::Real(_) | Content::Kept { .. } => unreachable!("it has just become scratch"),
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
