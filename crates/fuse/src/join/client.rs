//! The side that joins: makes a mount, and hands it over.

use super::wire::Wire;
use super::{GONE, LIVE, MOUNT, NO, READY, VERSION, WAIT, address, is_trusted};
use crate::filesystem::MESSAGE_BYTES_MAX;
use crate::leave::Leave;
use crate::mount_point::{options_for, widen_read_ahead};
use crate::{MountError, MountOptions};
use fusering::TransportChoice;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A mount that another process serves.
pub(crate) struct Joined {
    wire: Wire,
}

impl Joined {
    /// Waits until the mount has ended.
    pub(crate) fn wait(mut self) {
        // Nothing is said any more: the conversation is closed, or the daemon has died.
        let _ = self.wire.receive_at_last();
    }
}

/// The daemon of a volume, if there is one that can be talked to and trusted.
fn daemon_of(source: &Path) -> io::Result<Option<Wire>> {
    let wire = match UnixStream::connect_addr(&address(source)?) {
        Ok(stream) => Wire::new(stream)?,
        Err(_) => return Ok(None),
    };
    Ok(is_trusted(wire.peer()?).then_some(wire))
}

/// Whether a daemon has the volume.
pub(crate) fn is_served(source: &Path) -> bool {
    matches!(daemon_of(source), Ok(Some(_)))
}

/// Mounts what the options name by the daemon that has the volume. `None`: there is no such daemon, or it leaves just
/// now.
pub(crate) fn join(
    source: &Path,
    directory: &Path,
    options: &MountOptions,
) -> Result<Option<Joined>, MountError> {
    let failed = |source| MountError::System { what: "talking to the daemon of the mounted volume", source };
    let Some(mut wire) = daemon_of(source).map_err(failed)? else { return Ok(None) };
    let words = options.words.join(",");
    wire.send(&[MOUNT, VERSION, directory.as_os_str().as_bytes(), words.as_bytes()]).map_err(failed)?;
    // A daemon that closes its volume closes the conversation.
    let Ok(answer) = wire.receive() else { return Ok(None) };
    expect(&answer, READY)?;
    // The kernel claims a device for one mount.
    let kernel = options_for(source, options).block_device(None);
    let wants_uring = options.switch_uring && options.transport != TransportChoice::Dev;
    let _leave = if wants_uring { Leave::take() } else { None };
    // Without `keep` it is unmounted again.
    let (attachment, connection) = fusering::attach(directory, &kernel).map_err(|error| match error {
        fusering::Error::NoDevice(source) => MountError::NoFuseDevice(source),
        fusering::Error::Refused { path, source: error } => {
            MountError::Refused { source_path: source.to_owned(), path, source: error }
        }
        error => MountError::Session(error),
    })?;
    wire.send_descriptor(connection.as_fd()).map_err(failed)?;
    drop(connection);
    expect(&wire.receive().map_err(failed)?, LIVE)?;
    attachment.keep();
    widen_read_ahead(directory, MESSAGE_BYTES_MAX);
    Ok(Some(Joined { wire }))
}

/// Waits until what was mounted at a directory is written, if the volume's daemon goes on.
pub(crate) fn wait_until_written(source: &Path, directory: &Path) -> Result<(), MountError> {
    let Ok(Some(mut wire)) = daemon_of(source) else { return Ok(()) };
    let asked = wire.send(&[WAIT, VERSION, directory.as_os_str().as_bytes()]);
    match asked.and_then(|()| wire.receive_at_last()) {
        Ok(answer) => expect(&answer, GONE),
        // It has ended, and closed the volume.
        Err(_) => Ok(()),
    }
}

fn expect(answer: &[Vec<u8>], wanted: &[u8]) -> Result<(), MountError> {
    match answer {
        [word, ..] if word == wanted => Ok(()),
        [word, sentence] if word == NO => {
            Err(MountError::Daemon(String::from_utf8_lossy(sentence).into_owned()))
        }
        _ => Err(MountError::Unanswered),
    }
}
