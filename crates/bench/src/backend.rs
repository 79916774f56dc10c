//! The narrow interface that workloads are written against, for directories and for the embedded engine.

mod atomic;
mod ring;
mod snapshots;
mod tickets;

use snapshots::Snapshots;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::SystemTime;
use syncline::{SyncScope, SyncTicket, Volume};

/// Bytes that a large transaction stages at a time.
const STAGED_CHUNK: usize = 1 << 20;

/// How a file is opened; always for reading and writing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Open {
    Existing,
    /// Made if it is missing.
    Create,
    /// Made if it is missing, emptied if not.
    Truncate,
}

/// Somewhere to keep files.
pub(crate) trait Backend: Sync {
    fn open(&self, name: &str, how: Open) -> io::Result<Box<dyn BackendFile>>;
    fn make_directory(&self, name: &str) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn link(&self, original: &str, link: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// A directory with everything in it.
    fn remove_tree(&self, name: &str) -> io::Result<()>;
    /// Asks for the attributes of a name; an error if there is none.
    fn look_up(&self, name: &str) -> io::Result<()>;
    /// Counts the entries of a directory, by listing it.
    fn list(&self, name: &str) -> io::Result<usize>;
    /// Asks for the free space.
    fn free_space(&self) -> io::Result<()>;
    /// Makes a directory's entries durable.
    fn sync_directory(&self, name: &str) -> io::Result<()>;
    /// Has the file system write its own state, as it does from time to time: a checkpoint, or a commit of everything.
    fn commit(&self) -> io::Result<()>;
    /// Opens each file, begins its sync, and closes it; returns when all are durable. No thread waits for a single
    /// sync.
    fn sync_pass(&self, names: &[String]) -> io::Result<()>;
    /// The same by tickets: opens each file and starts its sync, then waits for all. Errors: `Unsupported` where
    /// there are none.
    fn ticket_pass(&self, names: &[String]) -> io::Result<()>;
    /// Writes the page at each of the offsets of a file, all of them or none, durable on return. Errors:
    /// `Unsupported` where there are no atomic writes.
    fn write_atomically(&self, name: &str, offsets: &[u64], page: &[u8]) -> io::Result<()>;
    /// Writes so many bytes of a file, MiB by MiB, as one change; `staged` is called when they are all there and not
    /// yet committed. Errors: as [`Backend::write_atomically`].
    fn write_staged(
        &self,
        name: &str,
        bytes: u64,
        staged: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()>;
    /// Whether [`Backend::write_atomically`] can be used.
    fn has_atomic_writes(&self) -> io::Result<bool> {
        let name = "atomic-writes-tried";
        self.create(name)?.write_at(0, &[0; 4096])?;
        let tried = self.write_atomically(name, &[0], &[1; 4096]);
        self.remove(name)?;
        match tried {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
            other => other.map(|()| true),
        }
    }
    /// Makes a snapshot of everything, durable on return. Errors: `Unsupported` where there are none.
    fn snapshot(&self, name: &str) -> io::Result<()>;
    fn delete_snapshot(&self, name: &str) -> io::Result<()>;
    /// Finds what differs between two snapshots; how many changes that are, where they are counted. Errors: as
    /// [`Backend::reclaim`].
    fn diff(&self, older: &str, newer: &str) -> io::Result<Option<u64>>;
    /// Waits until the space of deleted snapshots is free. Errors: `Unsupported` where nothing tells that.
    fn reclaim(&self) -> io::Result<()>;
    /// Forgets what can be read again.
    fn drop_caches(&self) -> io::Result<()>;

    fn create(&self, name: &str) -> io::Result<Box<dyn BackendFile>> {
        self.open(name, Open::Truncate)
    }
}

/// An open file.
pub(crate) trait BackendFile: Send + Sync {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    fn sync(&self) -> io::Result<()>;
    fn bytes(&self) -> io::Result<u64>;
    /// Sets the time of modification.
    fn touch(&self) -> io::Result<()>;
    /// Has the kernel forget what it caches of the file, so that the next read goes to the device. Of a part of the
    /// file it would keep whatever lies in one folio with other pages.
    fn forget(&self) -> io::Result<()>;
}

/// A directory of any mounted file system.
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    snapshots: Snapshots,
}

impl Directory {
    pub(crate) fn new(path: PathBuf) -> Directory {
        Directory { snapshots: Snapshots::of(path.clone()), path }
    }
}

impl Backend for Directory {
    fn open(&self, name: &str, how: Open) -> io::Result<Box<dyn BackendFile>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(how != Open::Existing).truncate(how == Open::Truncate);
        Ok(Box::new(options.open(self.path.join(name))?))
    }

    fn make_directory(&self, name: &str) -> io::Result<()> {
        fs::create_dir(self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn link(&self, original: &str, link: &str) -> io::Result<()> {
        fs::hard_link(self.path.join(original), self.path.join(link))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn remove_tree(&self, name: &str) -> io::Result<()> {
        fs::remove_dir_all(self.path.join(name))
    }

    fn look_up(&self, name: &str) -> io::Result<()> {
        fs::metadata(self.path.join(name)).map(drop)
    }

    fn list(&self, name: &str) -> io::Result<usize> {
        Ok(fs::read_dir(self.path.join(name))?.count())
    }

    fn free_space(&self) -> io::Result<()> {
        rustix::fs::statvfs(&self.path)?;
        Ok(())
    }

    fn sync_directory(&self, name: &str) -> io::Result<()> {
        File::open(self.path.join(name))?.sync_all()
    }

    fn commit(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.path)?)?)
    }

    fn sync_pass(&self, names: &[String]) -> io::Result<()> {
        ring::sync_pass(&self.path, names)
    }

    /// By the ioctls of `include/syncline/ioctl.h`.
    fn ticket_pass(&self, names: &[String]) -> io::Result<()> {
        tickets::pass(&self.path, names)
    }

    /// By the interface of f2fs, which the mount has as well.
    fn write_atomically(&self, name: &str, offsets: &[u64], page: &[u8]) -> io::Result<()> {
        let file = fs::OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        atomic::start(&file)?;
        offsets.iter().try_for_each(|&offset| file.write_all_at(page, offset))?;
        atomic::commit(&file)
    }

    fn write_staged(
        &self,
        name: &str,
        bytes: u64,
        staged: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let file = fs::OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        atomic::start(&file)?;
        let chunk = vec![11; STAGED_CHUNK];
        (0..bytes).step_by(STAGED_CHUNK).try_for_each(|offset| file.write_all_at(&chunk, offset))?;
        staged()?;
        atomic::commit(&file)
    }

    fn snapshot(&self, name: &str) -> io::Result<()> {
        self.snapshots.make(name)
    }

    fn delete_snapshot(&self, name: &str) -> io::Result<()> {
        self.snapshots.delete(name)
    }

    fn diff(&self, older: &str, newer: &str) -> io::Result<Option<u64>> {
        self.snapshots.diff(older, newer)
    }

    fn reclaim(&self) -> io::Result<()> {
        self.snapshots.reclaim()
    }

    fn drop_caches(&self) -> io::Result<()> {
        rustix::fs::sync();
        fs::write("/proc/sys/vm/drop_caches", "3")
    }
}

impl BackendFile for File {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, into, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn touch(&self) -> io::Result<()> {
        self.set_modified(SystemTime::now())
    }

    fn forget(&self) -> io::Result<()> {
        Ok(rustix::fs::fadvise(self, 0, None, rustix::fs::Advice::DontNeed)?)
    }
}

/// The engine in this process.
pub(crate) struct Engine(pub(crate) Volume);

impl Backend for Engine {
    fn open(&self, name: &str, how: Open) -> io::Result<Box<dyn BackendFile>> {
        let mut options = syncline::OpenOptions::new();
        options.read(true).write(true).create(how != Open::Existing).truncate(how == Open::Truncate);
        Ok(Box::new(options.open(&self.0, name)?))
    }

    fn make_directory(&self, name: &str) -> io::Result<()> {
        self.0.create_dir(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn link(&self, original: &str, link: &str) -> io::Result<()> {
        self.0.hard_link(original, link)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove_file(name)
    }

    fn remove_tree(&self, name: &str) -> io::Result<()> {
        self.0.remove_dir_all(name)
    }

    fn look_up(&self, name: &str) -> io::Result<()> {
        self.0.metadata(name).map(drop)
    }

    fn list(&self, name: &str) -> io::Result<usize> {
        Ok(self.0.read_dir(name)?.count())
    }

    fn free_space(&self) -> io::Result<()> {
        self.0.statfs();
        Ok(())
    }

    fn sync_directory(&self, _name: &str) -> io::Result<()> {
        Ok(self.0.inner().sync_metadata()?)
    }

    fn commit(&self) -> io::Result<()> {
        self.0.checkpoint()
    }

    fn sync_pass(&self, names: &[String]) -> io::Result<()> {
        let begun = names.iter().map(|name| {
            let file = self.0.open_file(name)?;
            Ok(file.sync_async(SyncScope::All))
        });
        let tickets = begun.collect::<io::Result<Vec<SyncTicket>>>()?;
        tickets.iter().try_for_each(SyncTicket::wait)
    }

    fn ticket_pass(&self, _names: &[String]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_atomically(&self, name: &str, offsets: &[u64], page: &[u8]) -> io::Result<()> {
        let mut transaction = self.0.transaction()?;
        let file = transaction.open(name)?;
        offsets.iter().try_for_each(|&offset| transaction.write_at(file, page, offset))?;
        transaction.commit()
    }

    fn write_staged(
        &self,
        name: &str,
        bytes: u64,
        staged: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut transaction = self.0.transaction()?;
        let file = transaction.open(name)?;
        let chunk = vec![11; STAGED_CHUNK];
        (0..bytes).step_by(STAGED_CHUNK).try_for_each(|offset| transaction.write_at(file, &chunk, offset))?;
        staged()?;
        transaction.commit()
    }

    fn snapshot(&self, name: &str) -> io::Result<()> {
        self.0.snapshot(name).map(drop)
    }

    fn delete_snapshot(&self, name: &str) -> io::Result<()> {
        self.0.delete_snapshot(name)
    }

    fn diff(&self, older: &str, newer: &str) -> io::Result<Option<u64>> {
        Ok(Some(self.0.diff(older, Some(newer), false)?.len() as u64))
    }

    fn reclaim(&self) -> io::Result<()> {
        self.0.reclaim()
    }

    /// Pages leave the engine when its memory bound asks for it: a file larger than that is cold at its beginning.
    fn drop_caches(&self) -> io::Result<()> {
        Ok(())
    }
}

impl BackendFile for syncline::File {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        syncline::File::read_at(self, into, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn touch(&self) -> io::Result<()> {
        self.set_times(None, Some(SystemTime::now()))
    }

    /// Does nothing: see [`Engine::drop_caches`].
    fn forget(&self) -> io::Result<()> {
        Ok(())
    }
}
