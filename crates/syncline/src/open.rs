//! [`OpenOptions`].

use crate::file::{File, WriteBehind};
use crate::path::again_if_stale;
use crate::volume::{Shared, Volume};
use crate::{Error, Result};
use std::io;
use std::path::Path;
use std::sync::Arc;
use syncline_fs::{HandleId, OpenFlags};

/// How to open a [`File`]; the methods mean what those of [`std::fs::OpenOptions`] mean.
///
/// ```
/// use syncline::{OpenOptions, Volume};
/// use std::io::Write;
///
/// let volume = Volume::create_in_memory(64 << 20)?;
/// let mut log = OpenOptions::new().append(true).create(true).open(&volume, "log")?;
/// log.write_all(b"one line\n")?;
/// log.sync_data()?;
/// assert_eq!(volume.read_to_string("log")?, "one line\n");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct OpenOptions {
    flags: OpenFlags,
    create: bool,
    create_new: bool,
    follow: bool,
    mode: u32,
    write_back_every: u64,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Nothing is set: add at least `read`, `write` or `append`.
    pub fn new() -> OpenOptions {
        OpenOptions {
            flags: OpenFlags::default(),
            create: false,
            create_new: false,
            follow: true,
            mode: 0o666,
            write_back_every: 0,
        }
    }

    /// Allows reading.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.flags.read = read;
        self
    }

    /// Allows writing.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.flags.write = write;
        self
    }

    /// Allows writing, always at the end.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.flags.append = append;
        self
    }

    /// Empties the file. Needs `write`.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.flags.truncate = truncate;
        self
    }

    /// Makes the file if there is none. Needs `write` or `append`.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// Makes the file and fails if there is one. Needs `write` or `append`.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Permission bits of a file that is made, before the umask.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = mode;
        self
    }

    /// Every write returns when it and all attributes are durable (O_SYNC).
    pub fn sync(&mut self, sync: bool) -> &mut OpenOptions {
        self.flags.sync = sync;
        self
    }

    /// Every write returns when it is durable (O_DSYNC).
    pub fn data_sync(&mut self, dsync: bool) -> &mut OpenOptions {
        self.flags.dsync = dsync;
        self
    }

    /// After every so many bytes written through this handle, starts writing them ([`File::write_back`]), so that the
    /// sync at the end of a checkpoint has little left to do. 0, the default, for never.
    pub fn write_back_every(&mut self, bytes: u64) -> &mut OpenOptions {
        self.write_back_every = bytes;
        self
    }

    /// Whether a symbolic link in the last place is followed (the default) or refused.
    pub fn follow_symlink(&mut self, follow: bool) -> &mut OpenOptions {
        self.follow = follow;
        self
    }

    /// Opens the file. Errors: `InvalidInput` for contradicting options, and those of the filesystem.
    pub fn open(&self, volume: &Volume, path: impl AsRef<Path>) -> io::Result<File> {
        let flags = self.checked_flags()?;
        let shared = volume.shared();
        let handle = loop {
            match again_if_stale(|| self.open_handle(shared, path.as_ref(), flags)) {
                // Made between lookup and open: look again.
                Err(Error::Exists) if !self.create_new => {}
                result => break result?,
            }
        };
        let behind = (self.write_back_every > 0).then(|| WriteBehind::new(self.write_back_every));
        let opened = shared.fs()?.files().opened(handle)?;
        Ok(File::new(shared.clone(), (handle, opened), flags, behind))
    }

    fn checked_flags(&self) -> Result<OpenFlags> {
        let mut flags = self.flags;
        flags.write |= flags.append;
        if !flags.read && !flags.write {
            return Err(Error::Invalid("open for reading, writing or appending"));
        }
        let makes = self.create || self.create_new;
        if (makes || flags.truncate) && !flags.write {
            return Err(Error::Invalid("creating and truncating need write access"));
        }
        if flags.truncate && flags.append && !self.create_new {
            return Err(Error::Invalid("a file opened for appending cannot be truncated"));
        }
        Ok(flags)
    }

    fn open_handle(&self, shared: &Arc<Shared>, path: &Path, flags: OpenFlags) -> Result<HandleId> {
        let place = shared.resolve(path, self.follow && !self.create_new)?;
        if place.attr.is_some() {
            if self.create_new {
                return Err(Error::Exists);
            }
            let attr = place.existing()?;
            return shared.fs()?.files().open_handle(&shared.context, attr.inode, flags);
        }
        if !self.create && !self.create_new {
            return Err(Error::NotFound);
        }
        if place.wants_directory {
            return Err(Error::IsDirectory);
        }
        let (parent, name) = place.named()?;
        Ok(shared.fs()?.names().create(&shared.context, parent, &name, self.mode, flags)?.1)
    }
}
