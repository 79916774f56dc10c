//! Volumes, their replicas, and what comes back from them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline::{MkfsOptions, SystemClock, SystemEntropy, Volume, VolumeOptions};
use syncline_device::{Device, FileDevice, MemoryDevice, OpenOptions};
use syncline_fs::Fs;
use syncline_replica::{Phase, Target};
use syncline_replica_store::{Address, Client, Error, Options, Session, image};

/// A folder with images and a replica.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder for temporary files") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn address(&self) -> Address {
        let folder = self.path("replica");
        Address::make(folder.to_str().expect("UTF-8")).expect("a folder")
    }

    /// Makes a volume.
    pub fn made(&self, name: &str, bytes: u64, options: &MkfsOptions) -> Arc<dyn Device> {
        formatted(FileDevice::create(self.path(name), bytes).expect("an image"), options)
    }

    pub fn opened(&self, name: &str) -> Arc<dyn Device> {
        Arc::new(FileDevice::open(self.path(name), &OpenOptions::default()).expect("the image"))
    }

    /// Restores the volume into memory.
    pub fn restored(&self, target: Target) -> Result<Volume, Error> {
        restored(&self.address(), target)
    }
}

pub fn formatted(device: impl Device + 'static, options: &MkfsOptions) -> Arc<dyn Device> {
    Fs::format(&device, options, &SystemClock, &SystemEntropy::default(), &mut |_, _| {}).expect("mkfs");
    Arc::new(device)
}

/// Restores a replica's only volume into memory.
pub fn restored(address: &Address, target: Target) -> Result<Volume, Error> {
    let mut client = Client::new(address)?;
    let uuid = image::volume(&client, None)?;
    let mut made = None;
    image::restore(&mut client, uuid, target, |blocks| {
        let device = Arc::new(MemoryDevice::new(blocks));
        made = Some(Arc::clone(&device));
        Ok(device)
    })?;
    Ok(volume(made.expect("a restore that succeeds makes the device")))
}

/// What is shipped soon, by a session that keeps no house.
pub fn options() -> Options {
    Options { interval: Duration::from_millis(20), housekeeping: None, ..Options::default() }
}

pub fn volume(device: Arc<dyn Device>) -> Volume {
    Volume::on_device(device, &VolumeOptions::new()).expect("the volume opens")
}

pub fn until(session: &Session, what: &str, mut done: impl FnMut(&Session) -> bool) {
    let start = Instant::now();
    while !done(session) {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}: {:?}", session.status());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Everything that was written by now counts.
pub fn settle(session: &Session) {
    until(session, "shipping", |session| {
        let status = session.status();
        status.phase == Phase::Streaming && status.flush >= session.flushes() && status.lag == 0
    });
}
