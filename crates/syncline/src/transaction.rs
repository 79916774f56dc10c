//! [`VolumeTransaction`]: transactions over paths and files.

use crate::Error;
use crate::file::File;
use crate::ticket::SyncTicket;
use crate::volume::{Shared, Volume};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use syncline_device::ProcessBound;
use syncline_format::item::{MODE_DIRECTORY, MODE_TYPE_MASK};
use syncline_fs::{ObjectNo, Transaction};

/// Permission bits of new files, before the umask.
const FILE_MODE: u32 = 0o666;

/// Names a file within one [`VolumeTransaction`]: an existing one, or one that it is about to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransactionFile(ObjectNo);

impl TransactionFile {
    /// The inode number.
    pub fn inode(self) -> ObjectNo {
        self.0
    }
}

/// Changes of any number of files that are made together: nobody sees any of them before
/// [`VolumeTransaction::commit`], all are there afterwards, and after a crash all or none (C4). Dropping it leaves
/// everything as it was.
///
/// It works on what is committed, with its own changes over that. If somebody else has changed a page, a size, a name
/// or an attribute in between that it has read or changed, the commit fails with an error of kind `WouldBlock`
/// (EAGAIN; the error inside is [`Error::Conflict`]), and nothing of it is applied: begin it again.
///
/// Data beyond 1 MiB waits in free blocks of the volume, not in memory. How large a transaction can be is said in C4;
/// one that is too large is refused as a whole. Directories are made, moved and removed outside of transactions.
///
/// Directories on the way to a name are looked up outside of the transaction. A symbolic link as the last name is not
/// followed.
///
/// ```
/// use syncline::Volume;
///
/// let volume = Volume::create_in_memory(64 << 20)?;
/// volume.create_dir("conf")?;
/// volume.write("conf/hosts", "old")?;
///
/// // New contents for several files at one durable point.
/// let mut transaction = volume.transaction()?;
/// transaction.write("conf/hosts", "new hosts")?;
/// transaction.write("conf/users", "new users")?;
/// let version = transaction.create("conf/version.new")?;
/// transaction.write_at(version, b"2", 0)?;
/// transaction.rename("conf/version.new", "conf/version")?;
/// assert_eq!(volume.read("conf/hosts")?, b"old");
/// transaction.commit()?;
/// assert_eq!(volume.read("conf/hosts")?, b"new hosts");
/// assert_eq!(volume.read("conf/version")?, b"2");
///
/// // The second of two that change the same thing is refused.
/// let mut first = volume.transaction()?;
/// let mut second = volume.transaction()?;
/// first.write("conf/hosts", "one")?;
/// second.write("conf/hosts", "two")?;
/// first.commit()?;
/// assert_eq!(second.commit().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a transaction that is dropped changes nothing"]
pub struct VolumeTransaction {
    shared: Arc<Shared>,
    inner: ProcessBound<Transaction>,
}

impl Volume {
    /// Begins a transaction. Errors: a read-only or stopped volume.
    pub fn transaction(&self) -> io::Result<VolumeTransaction> {
        let shared = self.shared().clone();
        Ok(VolumeTransaction { inner: ProcessBound::new(shared.fs()?.begin()?), shared })
    }
}

impl VolumeTransaction {
    fn inner(&mut self) -> crate::Result<&mut Transaction> {
        Ok(self.inner.get_mut()?)
    }

    /// The directory of a path's last name, and that name.
    fn place<'a>(&self, path: &'a Path) -> crate::Result<(ObjectNo, &'a [u8])> {
        let name = path.file_name().ok_or(Error::Invalid("the path ends in no name that can be changed"))?;
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Error::NotDirectory);
        }
        let parent = match path.parent() {
            None => ObjectNo::ROOT_DIR,
            Some(parent) if parent.as_os_str().is_empty() => ObjectNo::ROOT_DIR,
            Some(parent) => {
                let attr = self.shared.resolve(parent, true)?.existing()?;
                if attr.mode & MODE_TYPE_MASK != MODE_DIRECTORY {
                    return Err(Error::NotDirectory);
                }
                attr.inode
            }
        };
        Ok((parent, name.as_bytes()))
    }

    fn find(&mut self, path: &Path) -> crate::Result<Option<ObjectNo>> {
        let (parent, name) = self.place(path)?;
        self.inner()?.lookup(parent, name)
    }

    /// Whether a name is taken, as the transaction sees it.
    pub fn try_exists(&mut self, path: impl AsRef<Path>) -> io::Result<bool> {
        Ok(self.find(path.as_ref())?.is_some())
    }

    /// The file that has a name. Errors: `NotFound`.
    pub fn open(&mut self, path: impl AsRef<Path>) -> io::Result<TransactionFile> {
        let number = self.find(path.as_ref())?.ok_or(Error::NotFound)?;
        self.inner()?.size(number)?;
        Ok(TransactionFile(number))
    }

    /// Makes the transaction work on an open file. Errors: `InvalidInput` if it is one of another volume, `EBADF` if
    /// it is not open for writing.
    pub fn join(&mut self, file: &File) -> io::Result<TransactionFile> {
        let handle = file.handle_in(&self.shared)?;
        let fs = self.shared.fs()?;
        if !fs.files().handle_is_writable(handle)? {
            return Err(Error::BadHandle.into());
        }
        Ok(TransactionFile(fs.files().handle_inode(handle)?))
    }

    /// Makes a regular file. Errors: `AlreadyExists`.
    pub fn create(&mut self, path: impl AsRef<Path>) -> io::Result<TransactionFile> {
        self.create_with_mode(path, FILE_MODE)
    }

    /// Makes a regular file with these permission bits, before the umask. Errors: `AlreadyExists`.
    pub fn create_with_mode(&mut self, path: impl AsRef<Path>, mode: u32) -> io::Result<TransactionFile> {
        let (parent, name) = self.place(path.as_ref())?;
        let inner = self.inner.get_mut().map_err(Error::from)?;
        Ok(TransactionFile(inner.create(&self.shared.context, parent, name, mode)?))
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    pub fn read_at(&mut self, file: TransactionFile, into: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.inner()?.read(file.0, offset, into)?)
    }

    /// Writes all of `data` at an offset. Errors: `StorageFull` among others; nothing of it is staged then.
    pub fn write_at(&mut self, file: TransactionFile, data: &[u8], offset: u64) -> io::Result<()> {
        Ok(self.inner()?.write(file.0, offset, data)?)
    }

    /// Truncates or extends (with a hole).
    pub fn set_len(&mut self, file: TransactionFile, size: u64) -> io::Result<()> {
        Ok(self.inner()?.truncate(file.0, size)?)
    }

    /// The file's size, as the transaction sees it.
    pub fn len(&mut self, file: TransactionFile) -> io::Result<u64> {
        Ok(self.inner()?.size(file.0)?)
    }

    /// The whole content of a file.
    pub fn read(&mut self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let file = self.open(path)?;
        let size = usize::try_from(self.len(file)?).map_err(|_| Error::FileTooLarge)?;
        let mut content = vec![0; size];
        let count = self.read_at(file, &mut content, 0)?;
        content.truncate(count);
        Ok(content)
    }

    /// Makes a file, or replaces its content.
    pub fn write(&mut self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
        let path = path.as_ref();
        let file = match self.find(path)? {
            Some(number) => TransactionFile(number),
            None => self.create(path)?,
        };
        self.set_len(file, 0)?;
        self.write_at(file, content.as_ref(), 0)
    }

    /// Renames a file, replacing the one that has the new name.
    pub fn rename(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (parent, name) = self.place(from.as_ref())?;
        let (new_parent, new_name) = self.place(to.as_ref())?;
        Ok(self.inner()?.rename(parent, name, new_parent, new_name, false)?)
    }

    /// Gives a file another name.
    pub fn hard_link(&mut self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        let number = self.find(original.as_ref())?.ok_or(Error::NotFound)?;
        let (parent, name) = self.place(link.as_ref())?;
        Ok(self.inner()?.link(number, parent, name)?)
    }

    /// Removes a name of a file; the file goes with its last name and its last open handle.
    pub fn remove_file(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        let (parent, name) = self.place(path.as_ref())?;
        Ok(self.inner()?.unlink(parent, name)?)
    }

    /// Sets an extended attribute of a file or directory.
    pub fn set_xattr(
        &mut self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
    ) -> io::Result<()> {
        let number = self.find(path.as_ref())?.ok_or(Error::NotFound)?;
        Ok(self.inner()?.set_xattr(number, name.as_ref().as_bytes(), value)?)
    }

    /// Removes an extended attribute of a file or directory.
    pub fn remove_xattr(&mut self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<()> {
        let number = self.find(path.as_ref())?.ok_or(Error::NotFound)?;
        Ok(self.inner()?.remove_xattr(number, name.as_ref().as_bytes())?)
    }

    /// Whether committing would change nothing.
    pub fn is_empty(&self) -> bool {
        self.inner.get().map_or(true, Transaction::is_empty)
    }

    /// Applies everything and makes it durable, with every earlier change of names on the volume (C1): one journal
    /// record, one flush.
    ///
    /// Errors: `WouldBlock` for a conflict, `StorageFull`, `ArgumentListTooLong` for a transaction that is too large,
    /// `ResourceBusy` after 64 attempts that others were faster than; nothing is applied then. An I/O error stops the
    /// volume (C8).
    pub fn commit(self) -> io::Result<()> {
        Ok(self.inner.take().map_err(Error::from)?.commit()?)
    }

    /// Applies everything and starts making it durable; the ticket tells when it is, or why the transaction was not
    /// committed. If it was, others see it when this returns.
    pub fn commit_async(self) -> SyncTicket {
        let begun = self.inner.take().map_err(Error::from).and_then(Transaction::commit_begin);
        SyncTicket::start(&self.shared, begun)
    }
}

impl std::fmt::Debug for VolumeTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.inner.get() {
            Ok(inner) => inner.fmt(f),
            Err(forked) => f.debug_tuple("VolumeTransaction").field(&forked).finish(),
        }
    }
}
