//! Volumes.

use crate::arguments::{self, MakeArguments, OpenArguments, Stat};
use crate::buffer::{Buffer, new_bytes};
use crate::error;
use crate::file::File;
use crate::snapshot;
use crate::sqlite::Lending;
use crate::statistics;
use crate::transaction::Transaction;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use syncline::{OpenOptions, RenameFlags, SetAttr, SetTime, VolumeOptions};

/// How often a thread that closes a volume looks whether the calls of others have ended.
const LOOK: Duration = Duration::from_millis(1);

/// An open volume with all that keeps it open. It is closed when the last share of it is given up.
pub(crate) struct OpenVolume {
    /// Taken when it is closed.
    volume: Option<syncline::Volume>,
    pub(crate) lending: Mutex<Lending>,
    /// What a snapshot or a head is of: that stays open as long. Dropped last.
    _of: Option<Arc<OpenVolume>>,
}

impl OpenVolume {
    fn new(volume: syncline::Volume, of: Option<Arc<OpenVolume>>) -> OpenVolume {
        OpenVolume { volume: Some(volume), lending: Mutex::default(), _of: of }
    }

    pub(crate) fn volume(&self) -> &syncline::Volume {
        self.volume.as_ref().expect("it is taken when the last share is given up")
    }

    /// Errors: this is a forked child.
    fn check_process(&self) -> io::Result<()> {
        match self.volume().metadata("/") {
            Err(failure) if error::is_forked(&failure) => Err(failure),
            _ => Ok(()),
        }
    }

    /// Ends the lending to SQLite. Errors: connections are open.
    fn end_lending(&self) -> io::Result<()> {
        self.lending.lock().unwrap_or_else(PoisonError::into_inner).end()
    }

    /// Ends it by `close`, or by what closes it as well.
    fn end(&mut self, close: impl FnOnce(syncline::Volume) -> io::Result<()>) -> io::Result<()> {
        let Some(volume) = self.volume.take() else { return Ok(()) };
        match self.end_lending() {
            Ok(()) => close(volume),
            // Closed with the last connection.
            Err(_) => Ok(()),
        }
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        // Nobody is left to be told; what was synced is safe.
        let _ = self.end(syncline::Volume::close);
    }
}

/// An open volume; `syncline.Volume` is what programs use.
#[pyclass(frozen, module = "syncline._native")]
pub(crate) struct Volume {
    open: Mutex<Option<Arc<OpenVolume>>>,
    /// What was in `open`, while the volume is being closed.
    closing: Mutex<Option<Arc<OpenVolume>>>,
}

impl Volume {
    fn new(volume: syncline::Volume) -> Volume {
        Volume::over(OpenVolume::new(volume, None))
    }

    fn over(open: OpenVolume) -> Volume {
        Volume { open: Mutex::new(Some(Arc::new(open))), closing: Mutex::default() }
    }

    /// A share of the volume for one call. Errors: `ValueError` once it is closed.
    pub(crate) fn share(&self) -> PyResult<Arc<OpenVolume>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| error::closed("volume"))
    }

    fn lock_closing(&self) -> MutexGuard<'_, Option<Arc<OpenVolume>>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Arc<OpenVolume>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Does something without the interpreter's lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&syncline::Volume) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        let open = self.share()?;
        py.detach(move || act(open.volume())).map_err(error::of)
    }

    /// Ends the volume by `close`; false if files or calls of other threads keep it open still.
    fn end_by(
        &self,
        py: Python<'_>,
        close: impl FnOnce(syncline::Volume) -> io::Result<()> + Send,
    ) -> PyResult<bool> {
        let Some(share) = self.lock_closing().take() else { return Ok(true) };
        match Arc::try_unwrap(share) {
            Ok(mut open) => py.detach(move || open.end(close)).map_err(error::of).map(|()| true),
            Err(shared) => {
                *self.lock_closing() = Some(shared);
                py.detach(|| std::thread::sleep(LOOK));
                py.check_signals()?;
                Ok(false)
            }
        }
    }

    /// Another tree of this volume, which stays open as long.
    fn beside(
        &self,
        py: Python<'_>,
        open_it: impl FnOnce(&syncline::Volume) -> io::Result<syncline::Volume> + Send,
    ) -> PyResult<Volume> {
        let open = self.share()?;
        let view = py.detach(|| open_it(open.volume())).map_err(error::of)?;
        Ok(Volume::over(OpenVolume::new(view, Some(open))))
    }

    /// [`Volume::run`] with what a path names.
    fn of_path<T: Send>(
        &self,
        py: Python<'_>,
        path: &Path,
        act: impl FnOnce(&syncline::Volume, &Path) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        let open = self.share()?;
        py.detach(move || act(open.volume(), path)).map_err(|error| error::of_path(error, path))
    }

    /// The same with two paths.
    fn between(
        &self,
        py: Python<'_>,
        (from, to): (&Path, &Path),
        act: impl FnOnce(&syncline::Volume) -> io::Result<()> + Send,
    ) -> PyResult<()> {
        let open = self.share()?;
        py.detach(move || act(open.volume())).map_err(|error| error::of_paths(error, from, to))
    }
}

/// How a file is opened: what the letters of Python's modes stand for.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct FileArguments {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    follow: bool,
    permissions: u32,
    write_back_every: u64,
}

impl FileArguments {
    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(self.read).write(self.write).append(self.append).truncate(self.truncate);
        options.create(self.create).create_new(self.create_new).follow_symlink(self.follow);
        options.mode(self.permissions).write_back_every(self.write_back_every);
        options
    }
}

#[pymethods]
impl Volume {
    /// Opens the volume of an image file or block device.
    #[staticmethod]
    fn open(py: Python<'_>, image: PathBuf, options: OpenArguments) -> PyResult<Volume> {
        let options = options.options()?;
        let opened = py.detach(|| options.open(&image)).map_err(|error| error::of_path(error, &image))?;
        Ok(Volume::new(opened))
    }

    /// Makes an empty volume and opens it.
    #[staticmethod]
    fn create(
        py: Python<'_>,
        image: PathBuf,
        size: Option<u64>,
        made: MakeArguments,
        options: OpenArguments,
    ) -> PyResult<Volume> {
        let options = options.options()?;
        let made = made.options().size_bytes(size);
        let opened = py.detach(|| {
            // Opened by the options that the caller gave, not by those of making it.
            syncline::Volume::create(&image, &made)?.close()?;
            options.open(&image)
        });
        Ok(Volume::new(opened.map_err(|error| error::of_path(error, &image))?))
    }

    /// Makes a volume in memory.
    #[staticmethod]
    fn in_memory(py: Python<'_>, size: u64, made: MakeArguments) -> PyResult<Volume> {
        let options = made.options();
        let made = py.detach(|| VolumeOptions::new().create_in_memory(size, &options));
        Ok(Volume::new(made.map_err(error::of)?))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.share().is_err()
    }

    /// Refuses calls from now on; false if that was so before. Errors: `EBUSY` if SQLite has connections.
    fn begin_close(&self, py: Python<'_>) -> PyResult<bool> {
        let Ok(open) = self.share() else { return Ok(false) };
        let may_close = py.detach(|| open.check_process().and_then(|()| open.end_lending()));
        may_close.map_err(error::of)?;
        drop(open);
        let Some(share) = self.take() else { return Ok(false) };
        *self.lock_closing() = Some(share);
        Ok(true)
    }

    /// Writes everything and marks the volume clean; false if files or calls of other threads keep it open still.
    fn end_close(&self, py: Python<'_>) -> PyResult<bool> {
        self.end_by(py, syncline::Volume::close)
    }

    /// The same, and takes the head that was opened back to a snapshot.
    fn end_by_rollback(&self, py: Python<'_>, to: &str, keep: Option<&str>) -> PyResult<bool> {
        self.end_by(py, |volume| volume.rollback(to, keep))
    }

    /// Gives up this object's share: files that are open go on, and the last one closes the volume.
    fn release(&self, py: Python<'_>) {
        let share = self.take();
        py.detach(move || drop(share));
    }

    fn open_file(&self, py: Python<'_>, path: PathBuf, options: FileArguments) -> PyResult<File> {
        let options = options.options();
        let file = self.of_path(py, &path, |volume, path| {
            let file = options.open(volume, path)?;
            // The library opens a directory for reading, as the system does. Python's own files do not.
            if file.metadata()?.is_dir() {
                return Err(io::Error::from_raw_os_error(libc::EISDIR));
            }
            Ok(file)
        })?;
        Ok(File::new(file, self.share()?))
    }

    fn read<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
        let (file, length) = self.of_path(py, &path, |volume, path| {
            let file = volume.open_file(path)?;
            let length = file.metadata()?.len();
            Ok((file, length))
        })?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        new_bytes(py, length, |into| {
            let read = py.detach(move || {
                let mut done = 0;
                while done < into.len() {
                    match (&file).read(&mut into[done..])? {
                        0 => break,
                        count => done += count,
                    }
                }
                Ok(done)
            });
            read.map_err(|error| error::of_path(error, &path))
        })
    }

    fn write(&self, py: Python<'_>, path: PathBuf, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let data = Buffer::of(data)?;
        let bytes = data.bytes();
        self.of_path(py, &path, |volume, path| volume.write(path, bytes))?;
        Ok(bytes.len())
    }

    fn stat(&self, py: Python<'_>, path: PathBuf, follow: bool) -> PyResult<Stat> {
        let metadata = self.of_path(py, &path, |volume, path| {
            if follow { volume.metadata(path) } else { volume.symlink_metadata(path) }
        })?;
        Ok(arguments::stat_of(metadata.attr()))
    }

    fn exists(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        self.of_path(py, &path, |volume, path| volume.try_exists(path))
    }

    /// Names and types (the type bits of a mode), in no particular order.
    fn read_dir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<(OsString, u32)>> {
        self.of_path(py, &path, |volume, path| {
            let entries = volume.read_dir(path)?.map(|entry| {
                let entry = entry?;
                let kind = match () {
                    () if entry.is_dir() => libc::S_IFDIR,
                    () if entry.is_file() => libc::S_IFREG,
                    () if entry.is_symlink() => libc::S_IFLNK,
                    () => 0,
                };
                Ok((entry.file_name().to_owned(), kind))
            });
            entries.collect()
        })
    }

    fn mkdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.of_path(py, &path, |volume, path| volume.create_dir(path))
    }

    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.of_path(py, &path, |volume, path| volume.remove_file(path))
    }

    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.of_path(py, &path, |volume, path| volume.remove_dir(path))
    }

    fn rmtree(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.of_path(py, &path, |volume, path| volume.remove_dir_all(path))
    }

    fn rename(
        &self,
        py: Python<'_>,
        from: PathBuf,
        to: PathBuf,
        no_replace: bool,
        exchange: bool,
    ) -> PyResult<()> {
        let flags = RenameFlags { no_replace, exchange, ..RenameFlags::default() };
        self.between(py, (&from, &to), |volume| volume.rename_with(&from, &to, flags))
    }

    fn link(&self, py: Python<'_>, original: PathBuf, link: PathBuf) -> PyResult<()> {
        self.between(py, (&original, &link), |volume| volume.hard_link(&original, &link))
    }

    fn symlink(&self, py: Python<'_>, target: PathBuf, link: PathBuf) -> PyResult<()> {
        self.between(py, (&target, &link), |volume| volume.symlink(&target, &link))
    }

    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        self.of_path(py, &path, |volume, path| volume.read_link(path).map(PathBuf::into_os_string))
    }

    fn resolve(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        self.of_path(py, &path, |volume, path| volume.canonicalize(path).map(PathBuf::into_os_string))
    }

    fn chmod(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        self.of_path(py, &path, |volume, path| volume.set_permissions(path, mode))
    }

    fn chown(&self, py: Python<'_>, path: PathBuf, uid: Option<u32>, gid: Option<u32>) -> PyResult<()> {
        let set = SetAttr { uid, gid, ..SetAttr::default() };
        self.of_path(py, &path, |volume, path| volume.set_attributes(path, &set))
    }

    /// Times in nanoseconds since 1970; now, if none are given.
    fn utime(&self, py: Python<'_>, path: PathBuf, times: Option<(i128, i128)>) -> PyResult<()> {
        let (accessed, modified) = match times {
            None => (SetTime::Now, SetTime::Now),
            Some((accessed, modified)) => {
                (SetTime::At(arguments::timestamp(accessed)?), SetTime::At(arguments::timestamp(modified)?))
            }
        };
        let set = SetAttr { accessed: Some(accessed), modified: Some(modified), ..SetAttr::default() };
        self.of_path(py, &path, |volume, path| volume.set_attributes(path, &set))
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        name: OsString,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.of_path(py, &path, |volume, path| volume.xattr(path, &name))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathBuf,
        name: OsString,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let value = Buffer::of(value)?;
        let bytes = value.bytes();
        self.of_path(py, &path, |volume, path| volume.set_xattr(path, &name, bytes))
    }

    fn removexattr(&self, py: Python<'_>, path: PathBuf, name: OsString) -> PyResult<()> {
        self.of_path(py, &path, |volume, path| volume.remove_xattr(path, &name))
    }

    fn listxattr(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        self.of_path(py, &path, |volume, path| volume.list_xattrs(path))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, syncline::Volume::sync_all)
    }

    /// Makes several open files durable together.
    fn sync_files(&self, py: Python<'_>, files: Vec<Bound<'_, File>>) -> PyResult<()> {
        let files: Vec<_> = files.iter().map(|file| file.get().share()).collect::<PyResult<_>>()?;
        self.run(py, move |volume| volume.sync_many(files.iter().map(|open| &open.file)))
    }

    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, syncline::Volume::checkpoint)
    }

    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |volume| volume.trim(0..u64::MAX, 0))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let open = self.share()?;
        let stats = py.detach(move || open.check_process().map(|()| open.volume().stats()));
        statistics::of(py, &stats.map_err(error::of)?)
    }

    fn begin(&self, py: Python<'_>) -> PyResult<Transaction> {
        let open = self.share()?;
        let begun = py.detach(|| open.volume().transaction());
        Ok(Transaction::new(begun.map_err(error::of)?, open))
    }

    /// Lends the volume to SQLite under a name. Errors: `ValueError` if another volume has the name there.
    fn lend(&self, py: Python<'_>, name: PathBuf) -> PyResult<()> {
        let open = self.share()?;
        let lent = py.detach(move || {
            let mut lending = open.lending.lock().unwrap_or_else(PoisonError::into_inner);
            lending.begin(&name, open.volume())
        });
        lent.map_err(PyValueError::new_err)
    }

    /// Makes a snapshot: of all that was written, or of what is committed.
    fn snapshot(&self, py: Python<'_>, name: &str, committed: bool) -> PyResult<snapshot::Told> {
        let made = self.run(py, |volume| match committed {
            true => volume.snapshot_committed(name),
            false => volume.snapshot(name),
        })?;
        Ok(snapshot::told(made))
    }

    /// All snapshots, oldest first.
    fn snapshots(&self, py: Python<'_>) -> PyResult<Vec<snapshot::Told>> {
        Ok(self.run(py, syncline::Volume::snapshots)?.into_iter().map(snapshot::told).collect())
    }

    /// A snapshot as a volume that is read only.
    fn at(&self, py: Python<'_>, name: &str) -> PyResult<Volume> {
        self.beside(py, |volume| volume.at(name))
    }

    /// Makes a head of a snapshot.
    fn clone_snapshot(&self, py: Python<'_>, snapshot: &str, head: &str) -> PyResult<snapshot::ToldHead> {
        Ok(snapshot::told_head(self.run(py, |volume| volume.clone_snapshot(snapshot, head))?))
    }

    /// All heads, oldest first.
    fn heads(&self, py: Python<'_>) -> PyResult<Vec<snapshot::ToldHead>> {
        Ok(self.run(py, syncline::Volume::heads)?.into_iter().map(snapshot::told_head).collect())
    }

    /// A head as a volume beside this one.
    fn head(&self, py: Python<'_>, name: &str) -> PyResult<Volume> {
        self.beside(py, |volume| volume.head(name))
    }

    fn delete_head(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |volume| volume.delete_head(name))
    }

    fn delete_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |volume| volume.delete_snapshot(name))
    }

    fn rename_snapshot(&self, py: Python<'_>, name: &str, to: &str) -> PyResult<()> {
        self.run(py, |volume| volume.rename_snapshot(name, to))
    }

    fn hold_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |volume| volume.hold_snapshot(name))
    }

    fn release_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |volume| volume.release_snapshot(name))
    }

    /// What differs between a snapshot and a later one, or the volume as it is now.
    fn diff(
        &self,
        py: Python<'_>,
        older: &str,
        newer: Option<&str>,
        content: bool,
    ) -> PyResult<Vec<snapshot::Changed>> {
        let changes = self.run(py, |volume| volume.diff(older, newer, content))?;
        Ok(changes.into_iter().map(snapshot::changed).collect())
    }

    /// Bytes that deleting these together would give back.
    fn snapshot_usage(&self, py: Python<'_>, names: Vec<String>) -> PyResult<u64> {
        self.run(py, |volume| volume.snapshot_usage(&names))
    }

    /// The schedule of snapshots, as its words.
    fn schedule(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.run(py, syncline::Volume::schedule)?.map(|schedule| schedule.to_string()))
    }

    /// Gives the volume a schedule, or takes it away.
    fn set_schedule(&self, py: Python<'_>, schedule: Option<&str>) -> PyResult<()> {
        let what = "the text is no schedule; it is like \"hourly=24 daily=7\"";
        let read =
            |text: &str| text.parse::<syncline::Schedule>().map_err(|_| syncline::Error::Invalid(what));
        self.run(py, |volume| volume.set_schedule(schedule.map(read).transpose()?.as_ref()))
    }

    /// Waits until the space of deleted snapshots is free.
    fn reclaim(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, syncline::Volume::reclaim)
    }
}
