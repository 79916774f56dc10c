//! [`VolumeOptions`].

use crate::volume::Volume;
use crate::{AccessTimes, Clock, Context, Entropy, Error, MkfsOptions, SystemClock, SystemEntropy};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Device, FileDevice, MemoryDevice, Process};
use syncline_format::BLOCK_BYTES;
use syncline_format::layout::Layout;
use syncline_fs::{Fs, FsOptions};

/// How a [`Volume`] is opened.
///
/// ```no_run
/// use std::time::Duration;
/// use syncline::VolumeOptions;
///
/// let volume = VolumeOptions::new().commit_interval(Duration::from_secs(5)).open("data.img")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct VolumeOptions {
    pub(crate) fs: FsOptions,
    pub(crate) context: Context,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) background: bool,
    wait_for_lock: Option<Duration>,
    take_over: bool,
    #[cfg(feature = "replica")]
    pub(crate) replication: Option<crate::Replication>,
}

impl Default for VolumeOptions {
    fn default() -> VolumeOptions {
        VolumeOptions::new()
    }
}

impl VolumeOptions {
    /// Read-write, un-synced data written after one second, 256 MiB of memory, as the superuser with umask 022.
    pub fn new() -> VolumeOptions {
        VolumeOptions {
            fs: FsOptions::default(),
            context: Context { umask: 0o022, ..Context::root() },
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy::default()),
            background: true,
            wait_for_lock: None,
            take_over: false,
            #[cfg(feature = "replica")]
            replication: None,
        }
    }

    /// Writes nothing, not even recovery.
    pub fn read_only(mut self, read_only: bool) -> VolumeOptions {
        self.fs.read_only = read_only;
        self
    }

    /// With [`VolumeOptions::read_only`]: a volume whose journal is damaged amid opens all the same, and shows what it
    /// held before that. Some pages may be older still, or zeros. For rescuing:
    /// [`syncline_fs::Fs::is_journal_broken`] tells whether it is so.
    #[doc(hidden)]
    pub fn salvage(mut self, salvage: bool) -> VolumeOptions {
        self.fs.salvage = salvage;
        self
    }

    /// How long un-synced data may stay unwritten (C9).
    pub fn commit_interval(mut self, interval: Duration) -> VolumeOptions {
        self.fs.commit_interval = interval;
        self
    }

    /// Bound on memory for cached data and metadata.
    pub fn memory_bytes_max(mut self, bytes: usize) -> VolumeOptions {
        self.fs.memory_bytes_max = bytes;
        self
    }

    /// When reading updates access times.
    pub fn access_times(mut self, access_times: AccessTimes) -> VolumeOptions {
        self.fs.access_times = access_times;
        self
    }

    /// Opens another head than the one that is shown when nobody names one ([`Volume::heads`]).
    pub fn head(mut self, name: impl Into<String>) -> VolumeOptions {
        self.fs.head = Some(name.into());
        self
    }

    /// Mechanisms to do without, for a benchmark.
    #[cfg(feature = "ablation")]
    pub fn ablation(mut self, ablation: syncline_fs::Ablation) -> VolumeOptions {
        self.fs.ablation = ablation;
        self
    }

    /// Owner and umask of what is created.
    pub fn context(mut self, context: Context) -> VolumeOptions {
        self.context = context;
        self
    }

    /// Where the time comes from.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> VolumeOptions {
        self.clock = clock;
        self
    }

    /// Where random numbers come from.
    pub fn entropy(mut self, entropy: Arc<dyn Entropy>) -> VolumeOptions {
        self.entropy = entropy;
        self
    }

    /// Whether a thread maintains the volume. Without one, call [`syncline_fs::Fs::maintain`].
    pub fn background(mut self, background: bool) -> VolumeOptions {
        self.background = background;
        self
    }

    /// How long to wait for another process to leave the volume; by default not at all.
    pub fn wait_for_lock(mut self, wait: Duration) -> VolumeOptions {
        self.wait_for_lock = Some(wait);
        self
    }

    /// Breaks the lock of whoever has the volume on another machine, and shuts that machine out, which is told so
    /// (C15). Only images of Ceph have such a lock: opening anything else fails with this.
    pub fn take_over(mut self, take_over: bool) -> VolumeOptions {
        self.take_over = take_over;
        self
    }

    /// How the device is opened.
    pub(crate) fn device_options(&self) -> syncline_device::OpenOptions {
        let options = syncline_device::OpenOptions::default();
        options.read_only(self.fs.read_only).wait_for_lock(self.wait_for_lock).take_over(self.take_over)
    }

    /// Opens the volume in an image file or on a block device; or on an export of an NBD server
    /// (`nbd://host/export`, `nbd+unix:///export?socket=/path`) or an image of Ceph (`rbd:pool/image`).
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<Volume> {
        Process::may_open().map_err(Error::from)?;
        let opened = syncline_source::open(path, &self.device_options()).map_err(Error::from)?;
        self.open_device(opened.into_device())
    }

    /// Opens the volume in an image file or on a block device that is open already. The volume opens it once more, so
    /// that the descriptor stays its owner's, who may close it at any time. Needs `/proc`.
    ///
    /// ```
    /// use syncline::{MkfsOptions, VolumeOptions};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let path = directory.path().join("image");
    /// VolumeOptions::new().create(&path, &MkfsOptions::default().size_bytes(16 << 20))?.close()?;
    /// let file = std::fs::File::open(&path)?;
    /// let volume = VolumeOptions::new().open_fd(&file)?;
    /// drop(file);
    /// volume.write("name", "content")?;
    /// volume.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn open_fd(&self, file: impl AsFd) -> io::Result<Volume> {
        self.open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
    }

    /// Makes an empty volume and opens it with these options: see [`Volume::create`].
    ///
    /// Errors: `InvalidInput` with [`VolumeOptions::read_only`], and those of [`Volume::create`].
    pub fn create(&self, path: impl AsRef<Path>, options: &MkfsOptions) -> io::Result<Volume> {
        self.may_create()?;
        let path = path.as_ref();
        if syncline_source::is_address(path) {
            return self.create_at_address(path, options);
        }
        let is_new = !path.exists();
        if !is_new {
            refuse_data(path)?;
        }
        // Before there is a file of that size.
        options.size_bytes.map_or(Ok(()), |bytes| check_size(bytes / BLOCK_BYTES as u64, options))?;
        let is_file = is_new || path.metadata()?.is_file();
        let device = match options.size_bytes {
            Some(bytes) if is_file => FileDevice::create(path, bytes),
            _ => FileDevice::open(path, &self.device_options()),
        };
        let device = Arc::new(device.map_err(Error::from)?);
        let made = self.format_and_open(device.clone(), options);
        if made.is_err() && is_new {
            // A file that was made for it and is no volume is worth nothing. It is locked still.
            let _ = std::fs::remove_file(path);
        }
        drop(device);
        made
    }

    fn create_at_address(&self, name: &Path, options: &MkfsOptions) -> io::Result<Volume> {
        let opened = syncline_source::open(name, &self.device_options()).map_err(Error::from)?;
        let device = opened.device();
        let found = match syncline_device::probe_device(device).map_err(Error::from)? {
            Some(signature) => Some(signature.to_string()),
            None if syncline_device::device_holds_unknown_data(device).map_err(Error::from)? => {
                Some(UNKNOWN_DATA.to_owned())
            }
            None => None,
        };
        match found {
            Some(found) => Err(holds(name, &found)),
            None => self.format_and_open(opened.into_device(), options),
        }
    }

    /// Makes a volume of `bytes` bytes in memory and opens it with these options; it takes only what is written to it.
    ///
    /// Errors: `InvalidInput` with [`VolumeOptions::read_only`], or for a size that no volume can have.
    pub fn create_in_memory(&self, bytes: u64, options: &MkfsOptions) -> io::Result<Volume> {
        self.create_device(Arc::new(MemoryDevice::new(bytes / BLOCK_BYTES as u64)), options)
    }

    /// Makes an empty volume on any device, and opens it with these options. What the device holds is overwritten.
    ///
    /// Errors: `InvalidInput` with [`VolumeOptions::read_only`], or for a size that no volume can have.
    pub fn create_device(&self, device: Arc<dyn Device>, options: &MkfsOptions) -> io::Result<Volume> {
        self.may_create()?;
        self.format_and_open(device, options)
    }

    fn may_create(&self) -> io::Result<()> {
        match self.fs.read_only {
            true => Err(Error::Invalid("a volume cannot be made read-only").into()),
            false => Ok(Process::may_open().map_err(Error::from)?),
        }
    }

    fn format_and_open(&self, device: Arc<dyn Device>, options: &MkfsOptions) -> io::Result<Volume> {
        check_size(options.size_bytes.map_or(device.blocks(), |bytes| bytes / BLOCK_BYTES as u64), options)?;
        Fs::format(&*device, options, &*self.clock, &*self.entropy, &mut |_, _| {})?;
        self.open_device(device)
    }

    /// Opens the volume on any device.
    pub fn open_device(&self, device: Arc<dyn Device>) -> io::Result<Volume> {
        Volume::on_device(device, self)
    }
}

/// Refuses what somebody may still need: a known format, or a plain file that is not empty.
fn refuse_data(path: &Path) -> io::Result<()> {
    let found = match syncline_device::probe(path).map_err(Error::from)? {
        Some(signature) => signature.to_string(),
        None if syncline_device::holds_unknown_data(path).map_err(Error::from)? => UNKNOWN_DATA.to_owned(),
        None => return Ok(()),
    };
    Err(holds(path, &found))
}

const UNKNOWN_DATA: &str = "data of an unknown kind";

fn holds(path: &Path, found: &str) -> io::Error {
    let message = format!("{} already holds {found}; remove that first if it is not needed", path.display());
    io::Error::new(io::ErrorKind::AlreadyExists, message)
}

/// Whether there can be a volume of so many blocks, with the journal that is asked for.
fn check_size(blocks: u64, options: &MkfsOptions) -> io::Result<()> {
    let journal_blocks = options.journal_bytes.map(|bytes| bytes / BLOCK_BYTES as u64);
    let sentence = "a volume has 4 MiB to 4 PiB, and a journal of 256 KiB to 16 GiB and at most half of it";
    Layout::new(blocks, journal_blocks).map(drop).map_err(|_| Error::Invalid(sentence).into())
}
