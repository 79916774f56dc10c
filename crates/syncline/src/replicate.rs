//! Volumes that are shipped to an object store while they are used.

use crate::{Volume, VolumeOptions};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::Device;
use syncline_replica_store::{Acknowledge, Address, Options, Phase, Session};

/// Where a volume is shipped to, and how: for [`VolumeOptions::replicate`].
#[derive(Debug, Clone)]
pub struct Replication {
    url: String,
    options: Options,
}

impl Replication {
    /// To `file:///FOLDER`, or with the feature `s3` to `s3://BUCKET/PREFIX`, whose credentials, region and endpoint
    /// come from the environment, as the AWS tools take them. At most a second behind, while the store keeps up.
    pub fn to(url: impl Into<String>) -> Replication {
        Replication { url: url.into(), options: Options::default() }
    }

    /// How old what is not shipped may become.
    pub fn interval(mut self, interval: Duration) -> Replication {
        self.options.interval = interval;
        self
    }

    /// A sync returns when it is in the replica as well, so that it survives the loss of the machine (C14).
    pub fn acknowledge_remotely(mut self, remotely: bool) -> Replication {
        self.options.acknowledge = if remotely { Acknowledge::Remote } else { Acknowledge::Local };
        self
    }

    /// How long opening and closing wait for the store; by default 10 s and 30 s.
    pub fn wait(mut self, open: Duration, close: Duration) -> Replication {
        (self.options.open_wait, self.options.close_wait) = (open, close);
        self
    }
}

/// How a volume's replica stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicaStatus {
    /// Age of the oldest change that is durable here and does not count there; zero if everything counts.
    pub lag: Duration,
    /// Number of the session in the replica.
    pub claim: u64,
    /// Units of this session that count.
    pub units: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Requests made.
    pub requests: u64,
    /// Blocks of 4 KiB that have to be read from the volume before the replica is complete.
    pub blocks_to_read: u64,
    /// Why nothing is shipped any more.
    pub stopped: Option<String>,
    /// What the store has answered instead of doing what it was asked; it is asked again.
    pub trouble: Option<String>,
}

impl VolumeOptions {
    /// Ships the volume to an object store for as long as it is open (C13 - C15). Opening claims the replica, and
    /// fails if somebody else has written to it since this volume last was. [`Volume::close`] waits until everything is
    /// shipped.
    ///
    /// ```
    /// use syncline::{MkfsOptions, Replication, VolumeOptions};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let image = directory.path().join("image");
    /// let replica = Replication::to(format!("file://{}", directory.path().join("replica").display()));
    /// let options = VolumeOptions::new().replicate(replica);
    /// let volume = options.create(&image, &MkfsOptions::default().size_bytes(16 << 20))?;
    /// volume.write("name", "content")?;
    /// volume.sync_all()?;
    /// assert_eq!(volume.replica().expect("it is shipped").claim, 1);
    /// volume.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn replicate(mut self, how: Replication) -> VolumeOptions {
        self.replication = Some(how);
        self
    }
}

/// What ships a volume, until it is closed.
#[derive(Default)]
pub(crate) struct Shipping(Mutex<Option<Session>>);

impl Shipping {
    /// Claims the replica; the device that the engine is to use.
    pub(crate) fn begin(
        device: Arc<dyn Device>,
        options: &VolumeOptions,
    ) -> io::Result<(Arc<dyn Device>, Shipping)> {
        let Some(how) = &options.replication else { return Ok((device, Shipping::default())) };
        if options.fs.read_only {
            let message = "a volume that is opened read-only writes nothing that could be shipped";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let address = Address::make(&how.url).map_err(io::Error::other)?;
        let session = Session::open(device, &address, &how.options).map_err(io::Error::other)?;
        Ok((session.device(), Shipping(Mutex::new(Some(session)))))
    }

    /// Behind the engine's close: waits until everything counts.
    pub(crate) fn end(&self) -> io::Result<()> {
        let Some(session) = self.0.lock().take() else { return Ok(()) };
        session.close().map(drop).map_err(|unshipped| io::Error::other(unshipped.0))
    }
}

impl Volume {
    /// How its replica stands; `None` if it is not shipped, or in a forked child.
    pub fn replica(&self) -> Option<ReplicaStatus> {
        let status = self.whole().ok()?.shipping()?.0.lock().as_ref()?.status();
        Some(ReplicaStatus {
            lag: Duration::from_nanos(status.lag),
            claim: status.claim,
            units: status.units,
            uploaded_bytes: status.bytes,
            requests: status.requests,
            blocks_to_read: status.dirty,
            stopped: match &status.phase {
                Phase::Failed(error) => Some(error.to_string()),
                _ => None,
            },
            trouble: status.trouble.as_ref().map(ToString::to_string),
        })
    }
}
