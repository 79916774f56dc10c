//! A mounted filesystem: handshake, transports, end.
//!
//! Order of things: the kernel's INIT is read, what can fail of io_uring is prepared, the filesystem hears what was
//! agreed on, INIT is answered, and requests flow. At the end the kernel sends DESTROY (to `fuseblk` mounts) or just
//! ends the connection; either way the filesystem's `destroy` has returned when [`Session::run`] returns, and it is
//! the last of its methods that is called.

pub(crate) mod config;
pub(crate) mod dispatch;
mod handshake;
#[cfg(test)]
mod tests;

pub use config::{ActiveTransport, Config, DevSettings, Negotiated, TransportChoice, UringSettings};

use crate::abi::InitFlags;
use crate::error::Error;
use crate::filesystem::Filesystem;
use crate::mount::{Mount, MountOptions, Unmounter};
use crate::notifier::Notifier;
use crate::request::Agreed;
use crate::transport::connection::Connection;
use crate::transport::{
    Classes, Handler, Transport, TransportKind, UringParameter, UringUnavailable, dev, uring,
};
use dispatch::Dispatcher;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Smallest memory for a message's data: the longest extended attribute and two names fit.
const MESSAGE_BYTES_MIN: usize = 128 << 10;

/// A connection that is being served.
pub struct Session<F: Filesystem> {
    // Constant.
    filesystem: Arc<F>,
    dispatcher: Arc<Dispatcher<F>>,
    connection: Arc<Connection>,
    notifier: Notifier,
    negotiated: Negotiated,
    transport: ActiveTransport,
    classes: Arc<Classes>,
    // Taken when it ends.
    mount: Option<Mount>,
    transports: Vec<Box<dyn Transport>>,
}

impl<F: Filesystem> Session<F> {
    /// Mounts on `at` and serves. When this returns the mount can be used.
    pub fn mount(
        filesystem: Arc<F>,
        at: &Path,
        options: &MountOptions,
        config: &Config,
    ) -> Result<Session<F>, Error> {
        let (mount, fd) = Mount::attach(at, options)?;
        // If the handshake fails, the mount is detached when it is dropped.
        let mut session = Session::serve(filesystem, fd, config)?;
        session.mount = Some(mount);
        Ok(session)
    }

    /// Serves a connection that somebody else has mounted or is about to mount: `fd` is an open /dev/fuse that mount(2)
    /// was given. Waits for the kernel's first message.
    pub fn from_fd(filesystem: Arc<F>, fd: OwnedFd, config: &Config) -> Result<Session<F>, Error> {
        Session::serve(filesystem, fd, config)
    }

    fn serve(filesystem: Arc<F>, fd: OwnedFd, config: &Config) -> Result<Session<F>, Error> {
        let connection = Arc::new(Connection::new(fd));
        let notifier = Notifier::new(connection.clone());
        let received = handshake::receive(&connection)?;
        let begun = Session::begin(&filesystem, &notifier, &received, config);
        let (agreement, prepared, mut unavailable) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                handshake::refuse(&connection, &received);
                return Err(error);
            }
        };
        let negotiated = agreement.negotiated;
        let message_bytes = message_bytes(&negotiated);
        let agreed = Agreed {
            setxattr_ext: negotiated.flags.contains(InitFlags::SETXATTR_EXT),
            data_bytes_max: u32::try_from(message_bytes).unwrap_or(u32::MAX),
        };
        let dispatcher = Arc::new(Dispatcher::new(filesystem.clone(), agreed));
        let handler: Arc<dyn Handler> = dispatcher.clone();
        handshake::accept(&connection, &received, &agreement.out)?;
        let mut transports: Vec<Box<dyn Transport>> = Vec::new();
        let classes = Arc::new(Classes::new(config.idle_class));
        let (dev_handler, of_dev) = (handler.clone(), classes.clone());
        transports.push(dev::start(connection.clone(), dev_handler, &config.dev, message_bytes, of_dev)?);
        if let Some(prepared) = prepared {
            match prepared.start(connection.clone(), handler, &classes) {
                Ok(transport) => {
                    transports.iter().for_each(|dev| dev.step_back());
                    transports.push(transport);
                }
                Err(reason) => unavailable = Some(reason),
            }
        }
        let kind = if transports.len() > 1 { TransportKind::Uring } else { TransportKind::Dev };
        let session = Session {
            filesystem,
            dispatcher,
            connection,
            notifier,
            negotiated,
            transport: ActiveTransport { kind, uring_unavailable: unavailable },
            classes,
            mount: None,
            transports,
        };
        tracing::debug!(transport = %session.transport, minor = negotiated.minor, "serving");
        match (config.transport, &session.transport.uring_unavailable) {
            (TransportChoice::Uring, Some(reason)) => Err(Error::NoUring(reason.clone())),
            _ => Ok(session),
        }
    }

    /// Everything before INIT is answered.
    #[allow(clippy::type_complexity, reason = "the three results are used once, by the caller above")]
    fn begin(
        filesystem: &Arc<F>,
        notifier: &Notifier,
        received: &handshake::Received,
        config: &Config,
    ) -> Result<(handshake::Agreement, Option<uring::Prepared>, Option<UringUnavailable>), Error> {
        let asked = config.transport != TransportChoice::Dev;
        let mut agreement = handshake::agree(&received.init, config, asked)?;
        let offered = agreement.negotiated.offered.contains(InitFlags::OVER_IO_URING);
        let prepared = match (asked, offered) {
            (false, _) => Err(UringUnavailable::NotAsked),
            (true, false) => Err(UringUnavailable::NotOffered(UringParameter::read())),
            (true, true) => uring::prepare(&config.uring, message_bytes(&agreement.negotiated)),
        };
        let (prepared, unavailable) = match prepared {
            Ok(prepared) => (Some(prepared), None),
            Err(reason) => {
                if config.transport == TransportChoice::Uring {
                    return Err(Error::NoUring(reason));
                }
                agreement = handshake::agree(&received.init, config, false)?;
                (None, Some(reason))
            }
        };
        filesystem.init(&agreement.negotiated, notifier).map_err(Error::Init)?;
        Ok((agreement, prepared, unavailable))
    }

    pub fn filesystem(&self) -> &Arc<F> {
        &self.filesystem
    }

    /// Which transport brings requests, and why it is not io_uring if it is not.
    pub fn transport(&self) -> &ActiveTransport {
        &self.transport
    }

    /// Under which classes of the scheduler its threads answer.
    pub fn classes(&self) -> &Arc<Classes> {
        &self.classes
    }

    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Unmounts from another thread while [`Session::run`] waits. `None` for connections that were handed in.
    pub fn unmounter(&self) -> Option<Unmounter> {
        self.mount.as_ref().map(Mount::unmounter)
    }

    /// Whether requests wait to be read from /dev/fuse.
    pub fn requests_wait(&self) -> bool {
        self.connection.state() == crate::transport::connection::ConnectionState::Waiting
    }

    /// Waits until the connection has ended and the filesystem's `destroy` has returned.
    pub fn run(mut self) -> Result<(), Error> {
        let ended = self.join();
        // Whoever ended the connection took the mount away as well.
        if let Some(mount) = self.mount.take() {
            mount.forget();
        }
        ended
    }

    /// The same on a thread of its own.
    pub fn spawn(self) -> Result<BackgroundSession, Error> {
        let unmounter = self.unmounter();
        let transport = self.transport.clone();
        let notifier = self.notifier.clone();
        let thread = std::thread::Builder::new()
            .name("fuse-session".to_owned())
            .spawn(move || self.run())
            .map_err(Error::Thread)?;
        Ok(BackgroundSession { thread: Some(thread), unmounter, transport, notifier })
    }

    fn join(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for transport in self.transports.drain(..) {
            let kind = transport.kind();
            if let Err(source) = transport.join() {
                tracing::error!(%kind, error = %source, "the transport ended");
                result = Err(Error::Receive(source));
            }
        }
        self.dispatcher.destroy();
        result
    }
}

impl<F: Filesystem> Drop for Session<F> {
    fn drop(&mut self) {
        // Without the mount the connection ends, and with it the transports.
        if let Some(mount) = self.mount.take() {
            drop(mount);
            let _ = self.join();
        }
    }
}

/// A session that runs on its own thread; unmounts when dropped.
pub struct BackgroundSession {
    /// Gone once joined.
    thread: Option<JoinHandle<Result<(), Error>>>,
    unmounter: Option<Unmounter>,
    transport: ActiveTransport,
    notifier: Notifier,
}

impl BackgroundSession {
    pub fn transport(&self) -> &ActiveTransport {
        &self.transport
    }

    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Unmounts and waits for the end. Errors: the mount is in use (EBUSY) and stays; or what [`Session::run`] says.
    pub fn unmount(&mut self) -> Result<(), Error> {
        if let Some(unmounter) = &self.unmounter {
            unmounter.unmount()?;
        }
        self.join()
    }

    pub fn unmounter(&self) -> Option<Unmounter> {
        self.unmounter.clone()
    }

    /// Waits for the end.
    pub fn wait(mut self) -> Result<(), Error> {
        self.join()
    }

    fn join(&mut self) -> Result<(), Error> {
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for BackgroundSession {
    fn drop(&mut self) {
        if self.thread.is_none() {
            return;
        }
        let Some(unmounter) = &self.unmounter else { return };
        if unmounter.unmount().is_ok() {
            if self.join().is_err() {
                tracing::warn!("the session did not end well");
            }
        } else if let Err(error) = unmounter.unmount_lazily() {
            tracing::warn!(%error, "the mount stays");
        }
    }
}

/// Memory for one message's data.
fn message_bytes(negotiated: &Negotiated) -> usize {
    (negotiated.read_bytes_max as usize).max(MESSAGE_BYTES_MIN)
}
