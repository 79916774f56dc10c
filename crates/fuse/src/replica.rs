//! A mounted volume that is shipped to an object store.
//!
//! A build without the feature `replica` refuses the option; everything else of it is the same.

use crate::{MountError, MountOptions};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::Device;

/// How a volume is shipped, as the mount's options say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replication {
    pub url: String,
    /// Syncs are answered when they count in the replica.
    pub remote: bool,
    /// Oldest age of what is not shipped.
    pub interval: Duration,
}

#[cfg(feature = "replica")]
mod shipped {
    use super::*;
    use parking_lot::Mutex;
    use serde_json::json;
    use syncline_replica_store::{Acknowledge, Address, Error, Options, Phase, Session, Status};

    /// A volume that is shipped.
    pub(crate) struct Replica {
        url: String,
        session: Mutex<Option<Session>>,
        /// What it told last.
        last: Mutex<Status>,
        remote: bool,
    }

    impl Replica {
        /// Claims the replica, and begins to ship.
        pub(crate) fn open(device: Arc<dyn Device>, how: &Replication) -> Result<Replica, MountError> {
            let refused = |error: Error| MountError::Replica(error.to_string());
            let address = Address::make(&how.url).map_err(refused)?;
            let acknowledge = if how.remote { Acknowledge::Remote } else { Acknowledge::Local };
            let options = Options { acknowledge, interval: how.interval, ..Options::default() };
            let session = Session::open(device, &address, &options).map_err(refused)?;
            let last = session.status();
            tracing::info!(url = how.url, claim = last.claim, to_read = last.dirty, "the volume is shipped");
            Ok(Replica {
                url: how.url.clone(),
                session: Mutex::new(Some(session)),
                last: Mutex::new(last),
                remote: how.remote,
            })
        }

        /// What the engine is to use; none any more when it is closed.
        pub(crate) fn device(&self) -> Option<Arc<dyn Device>> {
            self.session.lock().as_ref().map(Session::device)
        }

        fn status(&self) -> Status {
            let now = self.session.lock().as_ref().map(Session::status);
            let mut last = self.last.lock();
            if let Some(now) = now {
                *last = now;
            }
            last.clone()
        }

        /// For the statistics.
        pub(crate) fn describe(&self, cut: impl Fn(&str) -> String) -> Value {
            let status = self.status();
            let failure = match &status.phase {
                Phase::Failed(error) => Some(cut(&error.to_string())),
                _ => status.trouble.as_ref().map(|trouble| cut(&trouble.to_string())),
            };
            json!({
                "url": cut(&self.url),
                "state": match status.phase {
                    Phase::Streaming => "streaming",
                    Phase::CatchingUp => "catching up",
                    Phase::Closed => "closed",
                    Phase::Failed(_) => "stopped",
                },
                "acknowledges": if self.remote { "remote" } else { "local" },
                "trouble": failure,
                "lag_ms": status.lag / 1_000_000,
                "claim": status.claim,
                "units": status.units,
                "flushes_counted": status.flush,
                "uploaded_bytes": status.bytes,
                "requests": status.requests,
                "blocks_to_read": status.dirty,
            })
        }

        /// Behind the volume's close: ships the rest. What cannot be shipped is on this machine only, which the log
        /// says; the volume is closed all the same.
        pub(crate) fn close(&self) {
            let Some(session) = self.session.lock().take() else { return };
            let status = match session.close() {
                Ok(status) => {
                    tracing::info!(units = status.units, "everything is in the replica");
                    status
                }
                Err(unshipped) => {
                    let (error, status) = *unshipped;
                    tracing::error!(lag_s = status.lag / 1_000_000_000, "{error}");
                    status
                }
            };
            *self.last.lock() = status;
        }
    }
}

#[cfg(feature = "replica")]
pub(crate) use shipped::Replica;

/// There is none in this build.
#[cfg(not(feature = "replica"))]
pub(crate) enum Replica {}

#[cfg(not(feature = "replica"))]
impl Replica {
    pub(crate) fn open(_device: Arc<dyn Device>, how: &Replication) -> Result<Replica, MountError> {
        Err(MountError::Replica(format!(
            "{} needs a syncline with the feature replica, which this one was built without",
            how.url
        )))
    }

    pub(crate) fn device(&self) -> Option<Arc<dyn Device>> {
        match *self {}
    }

    pub(crate) fn describe(&self, _cut: impl Fn(&str) -> String) -> Value {
        match *self {}
    }

    pub(crate) fn close(&self) {
        match *self {}
    }
}

/// Opens what the options name.
pub(crate) fn open(
    device: &Arc<dyn Device>,
    options: &MountOptions,
) -> Result<Option<Arc<Replica>>, MountError> {
    let Some(how) = options.replication()? else { return Ok(None) };
    Replica::open(Arc::clone(device), &how).map(|replica| Some(Arc::new(replica)))
}
