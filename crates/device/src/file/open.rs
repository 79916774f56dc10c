//! Opening: type, lock, claim, size, O_DIRECT, ring; in this order, so that nothing is read from a volume in
//! use.

use super::lock::{Below, Deadline, in_use_by_kernel, lock};
use super::ring::Ring;
use super::transfer::Transfer;
use super::{Engine, FileDevice, Kind, Opened};
use crate::counters::Counters;
use crate::process::{Private, ProcessBound};
use crate::{Buffer, DeviceError, InUse, OpenError, OpenStep, follow_own_links};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use syncline_format::{BLOCK_BYTES, BlockNo};

/// `BLKROGET` of linux/fs.h: `_IO(0x12, 94)`.
const BLKROGET: libc::Ioctl = 0x125e;

/// How to open a [`FileDevice`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Refuse writes and share the lock with other readers. Default: false.
    pub read_only: bool,
    /// How long to wait for another holder of the device to leave. Default: none, refused at once.
    pub wait_for_lock: Option<Duration>,
    /// Bypass the host's page cache where possible. Default: true.
    pub direct: bool,
    /// Open although the kernel uses the device (it is mounted, or swap, or part of a RAID). The lock is
    /// needed all the same. Default: false.
    pub force: bool,
    /// Carry out submitted requests by io_uring where the kernel has it. Default: true.
    pub io_uring: bool,
    /// Break the lock of whoever has the device on another machine, and keep that machine's writes from it from then
    /// on. Files and block devices have no such lock ([`OpenError::NothingToTakeOver`]). Default: false.
    pub take_over: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            wait_for_lock: None,
            direct: true,
            force: false,
            io_uring: true,
            take_over: false,
        }
    }
}

impl OpenOptions {
    /// Refuse writes and share the lock with other readers. Default: false.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> OpenOptions {
        self.read_only = read_only;
        self
    }

    /// How long to wait for another holder of the device to leave. Default: none, refused at once.
    #[must_use]
    pub fn wait_for_lock(mut self, wait_for_lock: impl Into<Option<Duration>>) -> OpenOptions {
        self.wait_for_lock = wait_for_lock.into();
        self
    }

    /// Bypass the host's page cache where possible. Default: true.
    #[must_use]
    pub fn direct(mut self, direct: bool) -> OpenOptions {
        self.direct = direct;
        self
    }

    /// Open although the kernel uses the device (it is mounted, or swap, or part of a RAID). The lock is needed all the
    /// same. Default: false.
    #[must_use]
    pub fn force(mut self, force: bool) -> OpenOptions {
        self.force = force;
        self
    }

    /// Carry out submitted requests by io_uring where the kernel has it. Default: true.
    #[must_use]
    pub fn io_uring(mut self, io_uring: bool) -> OpenOptions {
        self.io_uring = io_uring;
        self
    }

    /// Break the lock of whoever has the device on another machine, and keep that machine's writes from it from then
    /// on. Files and block devices have no such lock ([`OpenError::NothingToTakeOver`]). Default: false.
    #[must_use]
    pub fn take_over(mut self, take_over: bool) -> OpenOptions {
        self.take_over = take_over;
        self
    }
}

impl FileDevice {
    /// Opens an image file or block device. A size that is no multiple of the block loses its last part.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<FileDevice, OpenError> {
        let in_use = InUse::begin()?;
        if options.take_over {
            return Err(OpenError::NothingToTakeOver { path: path.as_ref().to_owned() });
        }
        let path = &follow_own_links(path.as_ref())?;
        let kind = kind(path, &std::fs::metadata(path).map_err(failed(OpenStep::Open, path))?)?;
        let file = open_file(path, kind, options.read_only)?;
        let deadline = Deadline::after(options.wait_for_lock.unwrap_or_default());
        let below = lock(&file, path, kind, options.read_only, &deadline)?;
        if !options.force {
            deadline.for_claims().retry(|| in_use_by_kernel(path))?;
        }
        FileDevice::assemble(in_use, file, below, path, kind, options)
    }

    /// Creates an image file of `bytes` bytes, or changes the size of an existing one; the space is not allocated. A
    /// new one is its owner's alone: who reads an image reads every file in it, whatever their permissions say.
    pub fn create(path: impl AsRef<Path>, bytes: u64) -> Result<FileDevice, OpenError> {
        let in_use = InUse::begin()?;
        let path = &follow_own_links(path.as_ref())?;
        let mut is_new = false;
        match std::fs::metadata(path) {
            Ok(metadata) if kind(path, &metadata)? == Kind::BlockDevice => {
                return Err(OpenError::FixedSize { path: path.to_owned() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let create = File::options().write(true).create_new(true).mode(0o600).open(path);
                match create {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    result => {
                        drop(result.map_err(failed(OpenStep::Create, path))?);
                        is_new = true;
                    }
                }
                sync_parent(path).map_err(failed(OpenStep::Create, path))?;
            }
            Err(error) => return Err(failed(OpenStep::Create, path)(error)),
        }
        let options = OpenOptions::default();
        let file = open_file(path, Kind::Image, false)?;
        let now = Deadline::after(Duration::ZERO);
        let below = lock(&file, path, Kind::Image, false, &now)?;
        now.for_claims().retry(|| in_use_by_kernel(path))?;
        if let Err(error) = file.set_len(bytes) {
            if is_new {
                // Too large for its host, and of no use. The failure is the one to tell.
                let _ = std::fs::remove_file(path);
            }
            return Err(failed(OpenStep::Resize, path)(error));
        }
        FileDevice::assemble(in_use, file, below, path, Kind::Image, &options)
    }

    /// Makes a device of a file that is open and locked.
    fn assemble(
        in_use: InUse,
        mut file: Private<File>,
        below: Below,
        path: &Path,
        kind: Kind,
        options: &OpenOptions,
    ) -> Result<FileDevice, OpenError> {
        let bytes = file.file_mut().seek(SeekFrom::End(0)).map_err(failed(OpenStep::Inspect, path))?;
        let blocks = bytes / BLOCK_BYTES as u64;
        let direct = options.direct && make_direct(&file, path, kind, blocks)?;
        if options.direct && !direct {
            tracing::warn!(path = %path.display(), "the host refuses O_DIRECT here; using its page cache");
        }
        if !direct {
            drop_cache(&file, path);
        }
        let file = Arc::new(file);
        let engine = match options.io_uring.then(|| Ring::new(Arc::clone(&file))) {
            Some(Ok(ring)) => Engine::Ring(Box::new(ring)),
            Some(Err(error)) => {
                tracing::warn!(%error, "the kernel refuses io_uring; writing synchronously");
                Engine::Synchronous
            }
            None => Engine::Synchronous,
        };
        let name = match &engine {
            Engine::Ring(_) => "io_uring",
            Engine::Synchronous => "synchronous",
        };
        Ok(FileDevice {
            opened: ProcessBound::new(Opened { file, below: Some(below), engine, _in_use: in_use }),
            path: path.to_owned(),
            blocks,
            kind,
            read_only: options.read_only,
            direct,
            engine: name,
            counters: Counters::default(),
            failed_flush: Mutex::new(None),
            discards: AtomicBool::new(true),
            least_discard: OnceLock::new(),
        })
    }
}

fn failed(step: OpenStep, path: &Path) -> impl Fn(io::Error) -> OpenError {
    move |error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        OpenError::Io { step, path: path.to_owned(), errno }
    }
}

fn kind(path: &Path, metadata: &Metadata) -> Result<Kind, OpenError> {
    match metadata.file_type() {
        kind if kind.is_file() => Ok(Kind::Image),
        kind if kind.is_block_device() => Ok(Kind::BlockDevice),
        _ => Err(OpenError::WrongType { path: path.to_owned() }),
    }
}

fn open_file(path: &Path, kind: Kind, read_only: bool) -> Result<Private<File>, OpenError> {
    // Never O_EXCL: the kernel's own claim (a fuseblk mount of this device) has to succeed later. What was looked at
    // may be something else by now: a FIFO must not be waited for.
    let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
    let open = || File::options().read(true).write(!read_only).custom_flags(flags).open(path);
    let file = Private::open(open).map_err(|error| match error.raw_os_error() {
        Some(errno @ (libc::EROFS | libc::EACCES | libc::EPERM | libc::ETXTBSY)) if !read_only => {
            OpenError::NotWritable { path: path.to_owned(), errno }
        }
        _ => failed(OpenStep::Open, path)(error),
    })?;
    let found = file.metadata().map_err(failed(OpenStep::Inspect, path))?;
    if self::kind(path, &found)? != kind {
        return Err(OpenError::WrongType { path: path.to_owned() });
    }
    let flags =
        rustix::fs::fcntl_getfl(&*file).map_err(|error| failed(OpenStep::Open, path)(error.into()))?;
    rustix::fs::fcntl_setfl(&*file, flags - OFlags::NONBLOCK)
        .map_err(|error| failed(OpenStep::Open, path)(error.into()))?;
    // Root may open a block device for writing that refuses every write.
    if kind == Kind::BlockDevice && !read_only && refuses_writes(&file) {
        return Err(OpenError::NotWritable { path: path.to_owned(), errno: libc::EROFS });
    }
    Ok(file)
}

/// Whether a block device is set to read-only; one that does not tell is not.
#[allow(unsafe_code)]
fn refuses_writes(file: &File) -> bool {
    let mut is_read_only: libc::c_int = 0;
    // SAFETY: BLKROGET writes one int through the pointer.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET, &mut is_read_only) };
    result == 0 && is_read_only != 0
}

/// Switches the file to O_DIRECT and proves by a read that the host means it; false if it does not.
fn make_direct(file: &File, path: &Path, kind: Kind, blocks: u64) -> Result<bool, OpenError> {
    if kind == Kind::BlockDevice {
        let sector = rustix::fs::ioctl_blksszget(file)
            .map_err(|error| failed(OpenStep::Inspect, path)(error.into()))?;
        if sector as usize > BLOCK_BYTES {
            return Ok(false);
        }
    }
    let flags = rustix::fs::fcntl_getfl(file).map_err(|e| failed(OpenStep::Inspect, path)(e.into()))?;
    match rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT) {
        Ok(()) => {}
        Err(rustix::io::Errno::INVAL) => return Ok(false),
        Err(error) => return Err(failed(OpenStep::Open, path)(error.into())),
    }
    if blocks == 0 || first_block_reads(file, path)? {
        return Ok(true);
    }
    rustix::fs::fcntl_setfl(file, flags).map_err(|error| failed(OpenStep::Open, path)(error.into()))?;
    Ok(false)
}

/// Makes the host forget what it has cached of the file. After a failed flush the host keeps the lost pages as if
/// they had been written: a recovery that read them would believe what the device does not have (C8).
///
/// A failure to write is not the opener's: pages that are still dirty afterwards are covered by recovery's own flush,
/// which tells, and the others are dropped. The advice is the host's to follow; pages that another process has mapped
/// stay.
fn drop_cache(file: &File, path: &Path) {
    if let Err(error) = rustix::io::retry_on_intr(|| rustix::fs::fdatasync(file)) {
        tracing::warn!(path = %path.display(), %error, "what the host had cached could not be written");
    }
    if let Err(error) = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed) {
        tracing::warn!(path = %path.display(), %error, "the host does not drop its page cache");
    }
}

#[allow(unsafe_code)]
fn first_block_reads(file: &File, path: &Path) -> Result<bool, OpenError> {
    let mut block = Buffer::zeroed(1);
    // SAFETY: `block` outlives the transfer, which is done when `run` returns.
    let transfer = unsafe { Transfer::read(BlockNo(0), block.as_mut_ptr(), block.len()) };
    match transfer.run(file.as_raw_fd()) {
        Ok(()) => Ok(true),
        Err(DeviceError::Io { errno: libc::EINVAL, .. }) => Ok(false),
        Err(DeviceError::Io { errno, .. }) => {
            Err(OpenError::Io { step: OpenStep::Read, path: path.to_owned(), errno })
        }
        Err(other) => unreachable!("a transfer fails by an I/O error only: {other}"),
    }
}

/// Makes the new name durable: an image that is synced must not lose its name.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}
