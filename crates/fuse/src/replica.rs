//! A mounted volume that is shipped to an object store.
//!
//! A build without the feature `replica` refuses the option; everything else of it is the same.

use crate::MountError;
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
    pub on_lag: OnLag,
    pub max_lag: Option<Duration>,
}

/// What becomes of syncs while what is shipped is later than `max_lag`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLag {
    /// Nothing.
    #[default]
    Continue,
    /// Each waits a little, so that less is written.
    Slow,
    /// The volume stops.
    Stop,
}

#[cfg(feature = "replica")]
mod shipped {
    use super::*;
    use crate::origin::Fetched;
    use parking_lot::Mutex;
    use serde_json::json;
    use syncline_replica_store::{
        Acknowledge, Address, Error, Filler, LazyDevice, Options, Phase, Session, Status,
    };

    /// A volume that is shipped.
    pub(crate) struct Replica {
        url: String,
        session: Mutex<Option<Session>>,
        /// What it told last.
        last: Mutex<Status>,
        remote: bool,
        /// A part of it may be in the replica still.
        lazy: Option<Arc<LazyDevice>>,
        filler: Mutex<Option<Filler>>,
    }

    impl Replica {
        /// Claims the replica, and begins to ship.
        pub(crate) fn open(
            device: Arc<dyn Device>,
            how: &Replication,
            fetched: Option<&Fetched>,
        ) -> Result<Replica, MountError> {
            let refused = |error: Error| MountError::Replica(error.to_string());
            let address = Address::make(&how.url).map_err(refused)?;
            let acknowledge = if how.remote { Acknowledge::Remote } else { Acknowledge::Local };
            let lazy = fetched.and_then(|fetched| fetched.lazy.as_ref());
            let exact = lazy.and_then(|lazy| lazy.exact);
            let on_lag = match how.on_lag {
                OnLag::Continue => syncline_replica_store::OnLag::Continue,
                OnLag::Slow => syncline_replica_store::OnLag::Slow,
                OnLag::Stop => syncline_replica_store::OnLag::Stop,
            };
            let (interval, max_lag) = (how.interval, how.max_lag);
            let behind: Option<fn()> = Some(crate::scheduling::work_behind);
            let options =
                Options { acknowledge, interval, on_lag, max_lag, exact, behind, ..Options::default() };
            let claimed = lazy.and_then(|lazy| lazy.claimed.lock().take()).map(|claimed| *claimed);
            let session = Session::open_by(device, &address, &options, claimed).map_err(refused)?;
            let last = session.status();
            tracing::info!(url = how.url, claim = last.claim, to_read = last.dirty, "the volume is shipped");
            let filler = fetched.map(Fetched::fill).transpose()?.flatten();
            Ok(Replica {
                url: how.url.clone(),
                session: Mutex::new(Some(session)),
                last: Mutex::new(last),
                remote: how.remote,
                lazy: lazy.map(|lazy| Arc::clone(&lazy.device)),
                filler: Mutex::new(filler),
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
                "lag_ms": status.lag.div_ceil(1_000_000),
                "claim": status.claim,
                "units": status.units,
                "flushes_counted": status.flush,
                "uploaded_bytes": status.bytes,
                "requests": status.requests,
                "blocks_to_read": status.dirty,
                "blocks_to_fetch": self.lazy.as_ref().map_or(0, |lazy| lazy.absent()),
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
            // Behind the session, which reads what is absent.
            drop(self.filler.lock().take());
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

/// What a build without the feature says of any replica.
#[cfg(not(feature = "replica"))]
pub(crate) fn missing(url: &str) -> MountError {
    let what = "needs a syncline with the feature replica, which this one was built without";
    MountError::Replica(format!("{url} {what}"))
}
