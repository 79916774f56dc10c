//! Journals that exist in this process only.
//!
//! SQLite's rollback journal makes a commit atomic on a filesystem that cannot do it. Here a commit is a transaction
//! of the volume, and the journal serves what else SQLite uses it for: undoing what it has already written, in this
//! process. So journals and super-journals are [`Scratch`], never synced, and a crash takes them along, which leaves
//! the last commit.
//!
//! The exception is a transaction that is too large for one record of the volume. Then the journal is *kept*: written
//! to the volume and synced, as on any file system, before the database is written to directly
//! ([`VirtualFile::keep`]). When SQLite ends such a journal, the database is synced, the journal unlinked, and that
//! made durable, whatever synchronous says. If it takes part in a transaction over several databases, it is unlinked
//! by their commit ([`crate::together`]), and what SQLite writes at its end to name the super-journal stays in
//! memory: the journal in the volume is one that is played back as long as it is there.
//!
//! A journal that lies in the volume (imported, or left through the mount) is a [`Content::Real`] one: it is read
//! where it is, so that SQLite finds it hot and plays it back. Before its first change its content moves to scratch
//! and the file is unlinked. The unlinking comes before every later commit in the volume's order, so an old journal
//! never meets a newer database.

use crate::error::{Result, VfsError};
use crate::scratch::Scratch;
use crate::volumes::VolumeRef;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline::{File, OpenOptions};

/// Bytes of a real journal copied at a time.
const COPY_BYTES: usize = 64 << 10;
/// Where a journal's header tells the size of the database's pages.
const PAGE_SIZE_AT: u64 = 24;
/// The page with this byte is never journaled; its number begins the name of the super-journal at the journal's end.
const LOCK_BYTE: u32 = 1 << 30;
/// Shorter writes at the beginning change a header, others begin a journal anew.
const HEADER_BYTES: usize = 28;

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
        /// What names the super-journal, and where it begins.
        trailer: Option<(u64, Scratch)>,
    },
}

/// A journal of this process.
pub(crate) struct VirtualFile {
    path: PathBuf,
    purpose: Purpose,
    content: Mutex<Content>,
    /// Where the name of the super-journal begins in scratch; `NO_TRAILER` while there is none.
    trailer_at: AtomicU64,
}

const NO_TRAILER: u64 = u64::MAX;

/// The journals of a volume by their paths. (Few at a time, and looked for several times in every commit.)
#[derive(Default)]
pub(crate) struct VirtualFiles {
    files: Mutex<BTreeMap<OsString, Arc<VirtualFile>>>,
    /// Memory of the journal that ended last.
    spare: Mutex<Vec<u8>>,
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
        if let Some(file) = files.get(path.as_os_str()) {
            return if exclusive { Err(missing()) } else { Ok(file.clone()) };
        }
        let found = volume.absent.look(path, || volume.volume().open_file(path));
        let content = match found.map_err(VfsError::io(path.as_os_str().as_bytes()))? {
            Some(real) => Content::Real(real),
            None if create => {
                let spare = std::mem::take(&mut *self.spare.lock());
                Content::Scratch(Scratch::reusing(Some(volume.downgrade()), spare))
            }
            None => return Err(missing()),
        };
        let (path_of, content) = (path.to_owned(), Mutex::new(content));
        let trailer_at = AtomicU64::new(NO_TRAILER);
        let file = Arc::new(VirtualFile { path: path_of, purpose, content, trailer_at });
        files.insert(path.as_os_str().to_owned(), file.clone());
        Ok(file)
    }

    /// The journal of a path that was opened before.
    pub(crate) fn get(&self, path: &Path) -> Option<Arc<VirtualFile>> {
        self.files.lock().get(path.as_os_str()).cloned()
    }

    /// A handle of a journal was closed: one that was found in the volume is no longer stood in for. (A kept one is:
    /// SQLite closes a journal before it deletes it.)
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
        drop(file);
        self.forget(path);
        Ok(())
    }

    /// A kept journal was unlinked, by the commit that ended it.
    pub(crate) fn kept_ended(&self, volume: &VolumeRef, path: &Path) {
        if let Some(file) = self.get(path) {
            *file.content.lock() = Content::Scratch(Scratch::new(Some(volume.downgrade())));
        }
    }

    /// Forgets a journal without touching what lies in the volume: nobody has the database open any more.
    pub(crate) fn forget(&self, path: &Path) {
        let file = self.files.lock().remove(path.as_os_str());
        let content = file.and_then(Arc::into_inner).map(|file| file.content.into_inner());
        if let Some(Content::Scratch(scratch)) = content {
            *self.spare.lock() = scratch.into_spare();
        }
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
    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn name(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    pub(crate) fn size(&self) -> Result<u64> {
        match &*self.content.lock() {
            Content::Scratch(scratch) => Ok(scratch.size()),
            Content::Kept { trailer: Some((at, trailer)), .. } => Ok(at + trailer.size()),
            Content::Real(file) | Content::Kept { file, .. } => {
                Ok(file.metadata().map_err(VfsError::io(self.name()))?.len())
            }
        }
    }

    /// Reads; fewer bytes than asked for only at the end.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        match &*self.content.lock() {
            Content::Scratch(scratch) => scratch.read(offset, into),
            Content::Kept { file, trailer: Some((at, trailer)), .. } => {
                let of_file =
                    usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
                let (first, second) = into.split_at_mut(of_file);
                let count = file.read_at(first, offset).map_err(VfsError::io(self.name()))?;
                if count < first.len() || second.is_empty() {
                    return Ok(count);
                }
                Ok(count + trailer.read(offset + count as u64 - at, second)?)
            }
            Content::Real(file) | Content::Kept { file, .. } => {
                file.read_at(into, offset).map_err(VfsError::io(self.name()))
            }
        }
    }

    pub(crate) fn write(&self, volume: &VolumeRef, offset: u64, data: &[u8]) -> Result<()> {
        let mut content = self.content.lock();
        // Zeros over the header are how a journal ends that is to persist.
        let ends = offset == 0 && data.iter().all(|&byte| byte == 0);
        if offset == 0 && data.len() >= HEADER_BYTES {
            self.trailer_at.store(NO_TRAILER, Ordering::Relaxed);
        } else if self.is_trailer(volume, &content, offset, data)? {
            let at = offset - 4;
            self.trailer_at.store(at, Ordering::Relaxed);
            if let Content::Kept { file, synced, trailer } = &mut *content {
                *synced = false;
                file.set_len(at).map_err(VfsError::io(self.name()))?;
                *trailer = Some((at, Scratch::new(None)));
            }
        }
        match &mut *content {
            Content::Kept { trailer: Some((at, trailer)), .. } if !ends && offset >= *at => {
                trailer.write(offset - *at, data)
            }
            Content::Kept { file, synced, .. } if !ends => {
                *synced = false;
                file.write_all_at(data, offset).map_err(VfsError::io(self.name()))
            }
            _ => self.scratch(volume, &mut content, !ends)?.write(offset, data),
        }
    }

    /// Whether this write is the name of a super-journal at the journal's end: it follows the number of the page that
    /// is never journaled.
    fn is_trailer(&self, volume: &VolumeRef, content: &Content, offset: u64, data: &[u8]) -> Result<bool> {
        if self.purpose != Purpose::Journal || offset < 4 || !volume.is_named_by(data) {
            return Ok(false);
        }
        let number = |at: u64| -> Result<u32> {
            let mut bytes = [0; 4];
            match content {
                Content::Scratch(scratch) => scratch.read(at, &mut bytes)?,
                Content::Real(file) | Content::Kept { file, .. } => {
                    file.read_at(&mut bytes, at).map_err(VfsError::io(self.name()))?
                }
            };
            Ok(u32::from_be_bytes(bytes))
        };
        let page_bytes = number(PAGE_SIZE_AT)?;
        Ok(page_bytes > 0 && number(offset - 4)? == LOCK_BYTE / page_bytes + 1)
    }

    pub(crate) fn truncate(&self, volume: &VolumeRef, size: u64) -> Result<()> {
        let mut content = self.content.lock();
        match &mut *content {
            Content::Kept { trailer: Some((at, trailer)), .. } if size >= *at => trailer.truncate(size - *at),
            Content::Kept { file, synced, trailer } if size > 0 => {
                *synced = false;
                *trailer = None;
                file.set_len(size).map_err(VfsError::io(self.name()))
            }
            _ => self.scratch(volume, &mut content, size > 0)?.truncate(size),
        }
    }

    /// Syncs a kept journal; there is nothing to be synced of another one.
    pub(crate) fn sync(&self) -> Result<()> {
        match &mut *self.content.lock() {
            Content::Kept { file, synced, .. } if !*synced => {
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
            volume.absent.note_made();
            let file = file.transpose().map_err(VfsError::io(self.name()))?;
            let mut trailer = None;
            if let (Content::Scratch(scratch), Some(file)) = (&*content, &file) {
                match self.write_out(scratch, file) {
                    Ok(rest) => trailer = rest,
                    Err(error) => {
                        unlink(volume, &self.path)?;
                        return Err(error);
                    }
                }
            }
            if let Some(file) = file {
                *content = Content::Kept { file, synced: false, trailer };
            }
        }
        self.sync()
    }

    /// Writes everything to the volume but what names a super-journal, which is returned.
    fn write_out(&self, scratch: &Scratch, file: &File) -> Result<Option<(u64, Scratch)>> {
        let end = self.trailer_at.load(Ordering::Relaxed).min(scratch.size());
        let mut buffer = vec![0; COPY_BYTES];
        let mut offset = 0;
        while offset < end {
            let part = COPY_BYTES.min(usize::try_from(end - offset).unwrap_or(usize::MAX));
            let count = scratch.read(offset, &mut buffer[..part])?;
            file.write_all_at(&buffer[..count], offset).map_err(VfsError::io(self.name()))?;
            offset += count as u64;
        }
        if end == scratch.size() {
            return Ok(None);
        }
        let mut trailer = Scratch::new(None);
        while offset < scratch.size() {
            let count = scratch.read(offset, &mut buffer)?;
            trailer.write(offset - end, &buffer[..count])?;
            offset += count as u64;
        }
        Ok(Some((end, trailer)))
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
