//! [`VolumeOptions`].

use crate::volume::Volume;
use crate::{AccessTimes, Clock, Context, Entropy, SystemClock, SystemEntropy};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Device, FileDevice, Process};
use syncline_fs::FsOptions;

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
        }
    }

    /// Writes nothing, not even recovery.
    pub fn read_only(mut self, read_only: bool) -> VolumeOptions {
        self.fs.read_only = read_only;
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

    /// Opens the volume in an image file or on a block device.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<Volume> {
        Process::may_open().map_err(crate::Error::from)?;
        let options = syncline_device::OpenOptions::default()
            .read_only(self.fs.read_only)
            .wait_for_lock(self.wait_for_lock);
        let device = FileDevice::open(path, &options).map_err(crate::Error::from)?;
        self.open_device(Arc::new(device))
    }

    /// Opens the volume on any device.
    pub fn open_device(&self, device: Arc<dyn Device>) -> io::Result<Volume> {
        Volume::on_device(device, self)
    }
}
