//! [`Volume::upgrade`].

use crate::{Error, Volume, VolumeOptions};
use std::io;
use std::path::Path;
use std::time::Duration;
use syncline_device::{InUse, Process};
use syncline_fs::Fs;

/// How long to wait for whoever has the volume: the kernel may give up what a killed process had 100 ms behind its end.
const LOCK_PATIENCE: Duration = Duration::from_millis(250);

impl Volume {
    /// Makes a volume of version 2 of the format, which can have snapshots, of one of version 1. `false`: it has
    /// version 2 already. Its content stays where it is, so this takes no longer than opening and closing it. There is
    /// no way back. Interrupted at any moment, it leaves a volume of either version, with the same content.
    ///
    /// Errors: `StorageFull` if version 2 would have no room for what it keeps free (about 2 MiB), and the volume is as
    /// it was; otherwise those of [`Volume::open`], so `ResourceBusy` if it is in use for more than 250 ms.
    ///
    /// ```
    /// use syncline::{MkfsOptions, Volume};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let path = directory.path().join("image");
    /// Volume::create(&path, &MkfsOptions::default().format(1).size_bytes(16 << 20))?.close()?;
    /// assert!(Volume::upgrade(&path)?);
    /// let volume = Volume::open(&path)?;
    /// volume.snapshot("first")?;
    /// volume.close()?;
    /// assert!(!Volume::upgrade(&path)?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn upgrade(path: impl AsRef<Path>) -> io::Result<bool> {
        let options = VolumeOptions::new().wait_for_lock(LOCK_PATIENCE);
        Process::may_open().map_err(Error::from)?;
        let opened = syncline_source::open(path, &options.device_options()).map_err(Error::from)?;
        let device = opened.into_device();
        let _in_use = InUse::begin().map_err(Error::from)?;
        Ok(Fs::upgrade(&device, &options.fs, &options.clock, &*options.entropy)?)
    }
}
