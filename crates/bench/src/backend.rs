//! The narrow interface that workloads are written against, for directories and for the embedded engine.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use syncline::{SyncScope, SyncTicket, Volume};

/// Somewhere to keep files.
pub(crate) trait Backend: Sync {
    fn create(&self, name: &str) -> io::Result<Box<dyn BackendFile>>;
    fn open(&self, name: &str) -> io::Result<Box<dyn BackendFile>>;
    fn make_directory(&self, name: &str) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn link(&self, original: &str, link: &str) -> io::Result<()>;
    /// Makes a directory's entries durable.
    fn sync_directory(&self, name: &str) -> io::Result<()>;
    /// Forgets what can be read again.
    fn drop_caches(&self) -> io::Result<()>;
}

/// An open file.
pub(crate) trait BackendFile: Send + Sync {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    fn sync(&self) -> io::Result<()>;
    /// Begins a sync to be waited for later; `None` where there is no such interface.
    fn begin_sync(&self) -> Option<SyncTicket> {
        None
    }
}

/// A directory of any mounted file system.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Backend for Directory {
    fn create(&self, name: &str) -> io::Result<Box<dyn BackendFile>> {
        let mut options = OpenOptions::new();
        Ok(Box::new(options.read(true).write(true).create(true).truncate(true).open(self.0.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn BackendFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).open(self.0.join(name))?))
    }

    fn make_directory(&self, name: &str) -> io::Result<()> {
        fs::create_dir(self.0.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn link(&self, original: &str, link: &str) -> io::Result<()> {
        fs::hard_link(self.0.join(original), self.0.join(link))
    }

    fn sync_directory(&self, name: &str) -> io::Result<()> {
        fs::File::open(self.0.join(name))?.sync_all()
    }

    fn drop_caches(&self) -> io::Result<()> {
        rustix::fs::sync();
        fs::write("/proc/sys/vm/drop_caches", "3")
    }
}

impl BackendFile for fs::File {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, into, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// The engine in this process.
pub(crate) struct Engine(pub(crate) Volume);

impl Backend for Engine {
    fn create(&self, name: &str) -> io::Result<Box<dyn BackendFile>> {
        let mut options = syncline::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        Ok(Box::new(options.open(&self.0, name)?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn BackendFile>> {
        Ok(Box::new(syncline::OpenOptions::new().read(true).write(true).open(&self.0, name)?))
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

    fn sync_directory(&self, _name: &str) -> io::Result<()> {
        self.0.sync_all()
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

    fn begin_sync(&self) -> Option<SyncTicket> {
        Some(self.sync_async(SyncScope::All))
    }
}
