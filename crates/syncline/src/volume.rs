//! [`Volume`].

use crate::file::File;
use crate::maintenance::Maintenance;
use crate::open::OpenOptions;
use crate::path::{again_if_stale, not_found_is_stale};
use crate::read_dir::ReadDir;
#[cfg(feature = "replica")]
use crate::replicate::Shipping;
use crate::sync_thread::SyncThread;
use crate::ticket::Progress;
use crate::volume_options::VolumeOptions;
use crate::{
    Attr, Context, Entropy, Error, LatencyHistogram, MkfsOptions, RenameFlags, SyncScope, VolumeSpace,
    VolumeStats,
};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use syncline_device::{Device, InUse, ProcessBound};
use syncline_format::Lsn;
use syncline_format::item::{MODE_DIRECTORY, MODE_TYPE_MASK};
use syncline_fs::{Fs, Head, ObjectNo};

/// Names in the longest canonical path; damage can make the parents of a directory a cycle.
const PATH_DEPTH_MAX: usize = 1 << 16;

/// What a volume's handles share.
pub(crate) struct Shared {
    own: ProcessBound<Own>,
    pub(crate) context: Context,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) sync_latency: Arc<LatencyHistogram>,
}

/// What is the opening process' alone: a forked child has neither the threads nor, whatever others were doing, the
/// locks.
struct Own {
    fs: Arc<Fs>,
    maintenance: Option<Maintenance>,
    sync_thread: Option<SyncThread>,
    /// Another head than the one that the volume was opened with, and the volume, which tends it.
    beside: Option<(Head, Arc<Shared>)>,
    #[cfg(feature = "replica")]
    shipping: Shipping,
    /// Dropped last.
    _in_use: InUse,
}

impl Shared {
    /// The engine: what every operation begins with, before it takes a lock. Errors: this is a forked child.
    pub(crate) fn fs(&self) -> crate::Result<&Arc<Fs>> {
        Ok(&self.own.get()?.fs)
    }

    fn sync_thread(&self) -> Option<&SyncThread> {
        self.own.get().ok()?.sync_thread.as_ref()
    }

    #[cfg(feature = "replica")]
    pub(crate) fn shipping(&self) -> Option<&Shipping> {
        Some(&self.own.get().ok()?.shipping)
    }

    /// Whether started syncs go on without anybody who waits for them.
    pub(crate) fn drives_syncs(&self) -> bool {
        self.sync_thread().is_some()
    }

    /// Has somebody force what started syncs depend on, if there is somebody for that.
    pub(crate) fn drive_force(&self, lsn: Lsn) {
        if let Some(thread) = self.sync_thread() {
            thread.force(lsn);
        }
    }

    /// Has somebody commit what a started sync has left; false if there is nobody for that.
    pub(crate) fn drive_commit(&self, progress: &Arc<Progress>) -> bool {
        self.sync_thread().is_some_and(|thread| thread.commit(progress))
    }
}

/// An open volume: a filesystem inside this process.
///
/// Paths are relative to the volume's root. Methods take `&self` and may be called from any thread; clones are the same
/// volume. A thread writes un-synced data in the background until the last clone and the last [`File`] are dropped.
///
/// Dropping a volume without [`Volume::close`] loses nothing that was synced; closing it writes the rest too.
///
/// A volume belongs to the process that opened it (C8b). In a forked child it is refused with [`Error::Forked`], as
/// are its files, tickets and transactions, and dropping them does nothing. Nor can the child open one, unless it was
/// forked while none was open.
///
/// ```
/// use syncline::Volume;
///
/// let volume = Volume::create_in_memory(64 << 20)?;
/// volume.create_dir("notes")?;
/// volume.write("notes/today", "sync less, keep more")?;
/// volume.rename("notes/today", "notes/yesterday")?;
/// volume.sync_all()?;
/// assert_eq!(volume.read("notes/yesterday")?, b"sync less, keep more");
/// volume.close()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
}

impl Volume {
    /// Makes an empty volume and opens it. With [`MkfsOptions::size_bytes`], `path` becomes an image file of that
    /// size; otherwise it is an existing image file or block device, which is used as it is.
    ///
    /// Errors: `AlreadyExists` if there is a volume or another filesystem on it already, or if a file holds anything
    /// but zeros in its first 128 KiB. An image that was made for it is removed if no volume comes of it.
    ///
    /// ```no_run
    /// use syncline::{MkfsOptions, Volume};
    ///
    /// let volume =
    ///     Volume::create("data.img", &MkfsOptions::default().size_bytes(1 << 30))?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn create(path: impl AsRef<Path>, options: &MkfsOptions) -> io::Result<Volume> {
        VolumeOptions::new().create(path, options)
    }

    /// Opens the volume in an image file or on a block device, recovering it if it was not closed.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Volume> {
        VolumeOptions::new().open(path)
    }

    /// Opens a volume with options.
    pub fn open_with(path: impl AsRef<Path>, options: &VolumeOptions) -> io::Result<Volume> {
        options.open(path)
    }

    /// Makes a volume of `bytes` bytes in memory; it takes only what is written to it.
    pub fn create_in_memory(bytes: u64) -> io::Result<Volume> {
        VolumeOptions::new().create_in_memory(bytes, &MkfsOptions::default())
    }

    /// Opens the volume on any device.
    pub fn on_device(device: Arc<dyn Device>, options: &VolumeOptions) -> io::Result<Volume> {
        let in_use = InUse::begin().map_err(Error::from)?;
        #[cfg(feature = "replica")]
        let (device, shipping) = Shipping::begin(device, options)?;
        let fs = Fs::open(device, options.fs.clone(), options.clock.clone(), &*options.entropy)?;
        let (maintenance, sync_thread) = if options.background && !options.fs.read_only {
            let maintenance = Maintenance::start(fs.clone(), options.clock.clone())?;
            (Some(maintenance), Some(SyncThread::start(fs.clone())?))
        } else {
            (None, None)
        };
        let shared = Shared {
            own: ProcessBound::new(Own {
                fs,
                maintenance,
                sync_thread,
                beside: None,
                #[cfg(feature = "replica")]
                shipping,
                _in_use: in_use,
            }),
            context: options.context.clone(),
            entropy: options.entropy.clone(),
            sync_latency: Arc::default(),
        };
        Ok(Volume { shared: Arc::new(shared) })
    }

    /// A volume over an engine that nobody has to tend: a snapshot of `of`.
    pub(crate) fn over(fs: Arc<Fs>, of: &Shared) -> Result<Volume, syncline_device::Forked> {
        let own = Own {
            fs,
            maintenance: None,
            sync_thread: None,
            beside: None,
            #[cfg(feature = "replica")]
            shipping: Shipping::default(),
            _in_use: InUse::begin()?,
        };
        Ok(Volume::of(own, of))
    }

    fn of(own: Own, of: &Shared) -> Volume {
        let shared = Shared {
            own: ProcessBound::new(own),
            context: of.context.clone(),
            entropy: of.entropy.clone(),
            sync_latency: Arc::default(),
        };
        Volume { shared: Arc::new(shared) }
    }

    /// A volume over another head of this one, which goes on to tend it.
    pub(crate) fn beside(head: Head, of: &Arc<Shared>) -> io::Result<Volume> {
        let fs = head.fs().clone();
        let sync_thread = match of.drives_syncs() {
            true => Some(SyncThread::start(fs.clone())?),
            false => None,
        };
        let beside = Some((head, of.clone()));
        let in_use = InUse::begin().map_err(Error::from)?;
        let own = Own {
            fs,
            maintenance: None,
            sync_thread,
            beside,
            #[cfg(feature = "replica")]
            shipping: Shipping::default(),
            _in_use: in_use,
        };
        Ok(Volume::of(own, of))
    }

    /// The volume as it was opened, which knows all heads.
    pub(crate) fn whole(&self) -> crate::Result<&Arc<Shared>> {
        Ok(self.shared.own.get()?.beside.as_ref().map_or(&self.shared, |(_, of)| of))
    }

    /// Ends the threads: whoever goes on is alone.
    pub(crate) fn stop_threads(&self) -> crate::Result<&Arc<Fs>> {
        let own = self.shared.own.get()?;
        own.fs.end_trims();
        if let Some(maintenance) = &own.maintenance {
            maintenance.stop();
        }
        if let Some(thread) = &own.sync_thread {
            thread.stop();
        }
        Ok(&own.fs)
    }

    /// Writes everything, removes unlinked files that were still open, and marks the volume clean. Files of the volume
    /// that are still open are closed, and so are other heads ([`Volume::head`]). Of a volume that is such a head
    /// itself it writes everything of the head, closes its files, and leaves the others open.
    pub fn close(self) -> io::Result<()> {
        let own = self.shared.own.get().map_err(Error::from)?;
        if let Some((head, of)) = &own.beside {
            if let Some(thread) = &own.sync_thread {
                thread.stop();
            }
            return Ok(of.fs()?.heads().close(head)?);
        }
        self.stop_threads()?.close()?;
        #[cfg(feature = "replica")]
        own.shipping.end()?;
        Ok(())
    }

    /// Stops the volume at once, as a power cut would: nothing is written any more, and every sync fails. What was
    /// synced is there after the next open. For a program that does not trust its own state any more. A volume that is
    /// a head beside others ([`Volume::head`]) stops them too; a snapshot's ([`Volume::at`]) stops nothing.
    pub fn shut_down(&self) {
        if let Ok(fs) = self.shared.fs() {
            fs.shut_down();
        }
    }

    /// The engine, for adapters. It does not know what a fork is: an adapter refuses a child's calls itself, before
    /// the engine takes a lock ([`syncline_device::Process`]). What gets through to a device on a file is refused
    /// there.
    ///
    /// Not a part of the public interface: it changes with the engine.
    #[doc(hidden)]
    pub fn inner(&self) -> &Arc<Fs> {
        &self.shared.own.constant().fs
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn existing(&self, path: &Path, follow: bool) -> crate::Result<Attr> {
        self.shared.resolve(path, follow)?.existing()
    }

    /// The place of a name that is to be made. A trailing slash is for directories only.
    fn vacant(&self, path: &Path, directory: bool) -> crate::Result<(ObjectNo, Vec<u8>)> {
        let place = self.shared.resolve(path, false)?;
        if place.attr.is_some() {
            return Err(Error::Exists);
        }
        if place.wants_directory && !directory {
            return Err(Error::NotFound);
        }
        place.named()
    }

    /// Makes or empties a file and opens it for writing.
    pub fn create_file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// Opens a file for reading.
    pub fn open_file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// The whole content of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        use std::io::Read;
        let file = self.open_file(path)?;
        let mut content = Vec::new();
        (&file).read_to_end(&mut content)?;
        Ok(content)
    }

    /// The whole content of a file of text. Errors: `InvalidData` if it is not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> io::Result<String> {
        String::from_utf8(self.read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Makes or replaces a file's content. Not atomic: see [`Volume::rename`] for that.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
        let file = self.create_file(path)?;
        (&file).write_all(content.as_ref())
    }

    /// Makes a directory.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.create_dir_with_mode(path, 0o777)
    }

    /// Makes a directory with these permission bits, before the umask.
    pub fn create_dir_with_mode(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        Ok(again_if_stale(|| {
            let (parent, name) = self.vacant(path.as_ref(), true)?;
            self.shared.fs()?.names().mkdir(&self.shared.context, parent, &name, mode).map(drop)
        })?)
    }

    /// Makes a directory and those above it that are missing.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut prefix = PathBuf::new();
        for component in path.as_ref().components() {
            prefix.push(component);
            match self.create_dir(&prefix) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if !self.metadata(&prefix)?.is_dir() {
                        return Err(Error::NotDirectory.into());
                    }
                }
                result => result?,
            }
        }
        Ok(())
    }

    /// Removes a name of a file; the file goes with its last name and its last open handle.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(again_if_stale(|| {
            let place = self.shared.resolve(path.as_ref(), false)?;
            if place.name.is_empty() {
                return Err(Error::IsDirectory);
            }
            if place.wants_directory {
                place.existing()?;
                return Err(Error::IsDirectory);
            }
            self.shared.fs()?.names().unlink(place.parent, &place.name)
        })?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(again_if_stale(|| {
            let place = self.shared.resolve(path.as_ref(), false)?;
            if place.name.is_empty() {
                return Err(Error::Busy);
            }
            self.shared.fs()?.names().rmdir(place.parent, &place.name)
        })?)
    }

    /// Removes a directory and everything in it. Symbolic links are removed, not followed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        if !self.symlink_metadata(path)?.is_dir() {
            return Err(Error::NotDirectory.into());
        }
        // Directories on the way down, each before those in it.
        let mut directories = vec![path.to_owned()];
        let mut next = 0;
        while next < directories.len() {
            for entry in self.read_dir(&directories[next])? {
                let entry = entry?;
                if entry.is_dir() {
                    directories.push(entry.path());
                } else {
                    self.remove_file(entry.path())?;
                }
            }
            next += 1;
        }
        directories.iter().rev().try_for_each(|directory| self.remove_dir(directory))
    }

    /// Renames atomically, replacing what has the new name. A crash shows the old file or the new one, whole (C3).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        self.rename_with(from, to, RenameFlags::default())
    }

    /// Renames with flags: refuse to replace, exchange, leave a whiteout.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> io::Result<()> {
        Ok(again_if_stale(|| {
            let from = self.shared.resolve(from.as_ref(), false)?;
            let to = self.shared.resolve(to.as_ref(), false)?;
            if from.name.is_empty() || to.name.is_empty() {
                return Err(Error::Busy);
            }
            let source = from.attr.as_ref().ok_or(Error::NotFound)?;
            if (from.wants_directory || to.wants_directory) && source.mode & MODE_TYPE_MASK != MODE_DIRECTORY
            {
                return Err(Error::NotDirectory);
            }
            let context = &self.shared.context;
            self.shared.fs()?.names().rename(context, from.parent, &from.name, to.parent, &to.name, flags)
        })?)
    }

    /// Gives a file another name.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        Ok(again_if_stale(|| {
            let attr = self.existing(original.as_ref(), false)?;
            let (parent, name) = self.vacant(link.as_ref(), false)?;
            // One that has lost its last name since.
            self.shared.fs()?.names().link(attr.inode, parent, &name).map(drop).map_err(not_found_is_stale)
        })?)
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        Ok(again_if_stale(|| {
            let (parent, name) = self.vacant(link.as_ref(), false)?;
            self.shared.fs()?.names().symlink(&self.shared.context, parent, &name, target).map(drop)
        })?)
    }

    /// Target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let target = again_if_stale(|| {
            let attr = self.existing(path.as_ref(), false)?;
            self.shared.fs()?.attributes().readlink(attr.inode)
        })?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    /// Whether a path leads to something. Errors other than its absence are told.
    pub fn try_exists(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        match self.existing(path.as_ref(), true) {
            Ok(_) => Ok(true),
            Err(Error::NotFound) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Iterates over a directory.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<ReadDir> {
        let path = path.as_ref();
        let handle = again_if_stale(|| self.shared.fs()?.files().opendir(self.existing(path, true)?.inode))?;
        Ok(ReadDir::new(self.shared.clone(), handle, path.to_owned()))
    }

    /// The absolute path without symbolic links, `.` and `..`.
    pub fn canonicalize(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        Ok(again_if_stale(|| self.canonical(path.as_ref()))?)
    }

    fn canonical(&self, path: &Path) -> crate::Result<PathBuf> {
        let place = self.shared.resolve(path, true)?;
        let mut names = Vec::new();
        let mut directory = place.parent;
        if !place.name.is_empty() {
            names.push(place.name.clone());
        }
        place.existing()?;
        while directory != ObjectNo::ROOT_DIR {
            let (parent, name) = self.name_of(directory)?;
            names.push(name);
            if names.len() > PATH_DEPTH_MAX {
                return Err(Error::NameTooLong);
            }
            directory = parent;
        }
        let mut path = PathBuf::from("/");
        path.extend(names.iter().rev().map(|name| OsStr::from_bytes(name)));
        Ok(path)
    }

    /// A directory's parent, and its name there.
    fn name_of(&self, directory: ObjectNo) -> crate::Result<(ObjectNo, Vec<u8>)> {
        let fs = self.shared.fs()?;
        let parent = fs.names().lookup(directory, b"..")?.attr.inode;
        let handle = fs.files().opendir(parent)?;
        let mut found = None;
        let read = fs.names().readdir(handle, 2, &mut |entry| {
            if entry.inode == directory {
                found = Some(entry.name.to_vec());
                return std::ops::ControlFlow::Break(());
            }
            std::ops::ControlFlow::Continue(())
        });
        fs.files().release(handle)?;
        read?;
        Ok((parent, found.ok_or(Error::NotFound)?))
    }

    /// Space and limits; nothing but zeros in a forked child.
    pub fn statfs(&self) -> VolumeSpace {
        self.shared.fs().map(|fs| fs.statfs()).unwrap_or_default()
    }

    /// Makes everything on the volume durable, un-synced data of all files included. Of other heads only what is
    /// committed: each syncs its own.
    pub fn sync_all(&self) -> io::Result<()> {
        let (fs, start) = (self.shared.fs()?, Instant::now());
        let result = fs.sync_all();
        self.shared.sync_latency.record(start.elapsed());
        Ok(result?)
    }

    /// Makes several files of this volume durable, content and attributes, with one group commit. All are tried; the
    /// first error is returned. Errors: `InvalidInput` for a file of another volume.
    pub fn sync_many<'a>(&self, files: impl IntoIterator<Item = &'a File>) -> io::Result<()> {
        let (fs, start) = (self.shared.fs()?, Instant::now());
        let handles: crate::Result<Vec<_>> =
            files.into_iter().map(|file| file.handle_in(&self.shared)).collect();
        let result = fs.syncs().sync_handles(&handles?, SyncScope::All);
        self.shared.sync_latency.record(start.elapsed());
        Ok(result?)
    }

    /// Writes a checkpoint, so that the next open has little to recover. Not needed for durability.
    pub fn checkpoint(&self) -> io::Result<()> {
        Ok(self.shared.fs()?.checkpoint()?)
    }

    /// Tells the device which blocks of a range of the volume's bytes are free, in runs of at least `length_min`
    /// bytes, and returns how many bytes that were: what `fstrim` does on a mount (C7a). An image file gets holes
    /// there.
    ///
    /// Errors: `Unsupported` if the device cannot discard, `ReadOnlyFilesystem`, `InvalidInput` for a range that is
    /// outside of the volume or shorter than a block, and a `length_min` of more than 128 MiB.
    ///
    /// ```
    /// use syncline::Volume;
    ///
    /// let volume = Volume::create_in_memory(64 << 20)?;
    /// volume.write("large", vec![1; 10 << 20])?;
    /// volume.sync_all()?;
    /// volume.remove_file("large")?;
    /// assert!(volume.trim(0..u64::MAX, 0)? >= 10 << 20);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn trim(&self, range: Range<u64>, length_min: u64) -> io::Result<u64> {
        Ok(self.shared.fs()?.trim(range, length_min)?)
    }

    /// What the volume has done and how full it is; nothing but zeros in a forked child.
    pub fn stats(&self) -> VolumeStats {
        match self.shared.fs() {
            Ok(fs) => VolumeStats {
                sync_latency: LatencyHistogram::clone(&self.shared.sync_latency),
                engine: fs.stats(),
                space: fs.statfs(),
            },
            Err(_) => VolumeStats::default(),
        }
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("info", &self.inner().volume_info()).finish()
    }
}
