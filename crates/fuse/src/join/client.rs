//! The side that joins: makes a mount, and hands it over.

use super::wire::{Peer, Wire};
use super::{DAEMONS_MAX, FAILED, GONE, HERE, LIVE, MOUNT, NO, READY, VERSION, WAIT, address, is_trusted};
use crate::filesystem::MESSAGE_BYTES_MAX;
use crate::leave::Leave;
use crate::mount_point::{options_for, widen_read_ahead};
use crate::{MountError, MountOptions};
use fusering::TransportChoice;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use syncline_source::Source;

/// Looks of a tenth of a second that a daemon has for saying that it is here, if it is stopped, or is to be taken over
/// from; and if it is neither.
const SILENT_LOOKS: u32 = 30;
const BUSY_LOOKS: u32 = 100;

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

/// The last one of a volume's daemons that can be talked to and trusted, and is meant. Those before it are left alone:
/// a process that stands still keeps each call in a queue that has an end.
fn find(source: &Path, is_meant: impl Fn(Peer) -> bool) -> io::Result<Option<(Wire, Peer)>> {
    for number in (0..DAEMONS_MAX).rev() {
        if let Ok(stream) = UnixStream::connect_addr(&address(source, number)?) {
            let wire = Wire::new(stream)?;
            let peer = wire.peer()?;
            if is_trusted(peer.user) && is_meant(peer) {
                return Ok(Some((wire, peer)));
            }
        }
    }
    Ok(None)
}

/// The daemon of a volume.
fn daemon_of(source: &Path) -> io::Result<Option<(Wire, Peer)>> {
    find(source, |_| true)
}

/// Whether this process is a daemon of the volume.
pub(crate) fn serves(source: &Path, process: u32) -> bool {
    find(source, |peer| peer.process == process).is_ok_and(|found| found.is_some())
}

/// Whether a process was stopped, by a signal or a debugger.
fn is_stopped(process: u32) -> bool {
    let told = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before it may hold anything.
    told.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Whether a daemon says that it is here, or has ended.
fn answers(wire: &mut Wire, process: u32, options: &MountOptions) -> bool {
    if wire.send(&[HERE, VERSION]).is_err() || wire.is_heard_within(SILENT_LOOKS) {
        return true;
    }
    !options.take_over && !is_stopped(process) && wire.is_heard_within(BUSY_LOOKS - SILENT_LOOKS)
}

/// The process that has a volume mounted, and does not say that it is here: it stands still, or is dying.
pub(crate) fn silent(source: &Path) -> Option<u32> {
    let (mut wire, peer) = daemon_of(source).ok().flatten()?;
    (!answers(&mut wire, peer.process, &MountOptions::default())).then_some(peer.process)
}

/// What becomes of a mount whose volume a silent process has: an error, unless that process can be shut out, and is to
/// be. Then it is not asked, and the lock decides.
fn shut_out(source: &Path, directory: &Path, process: u32, options: &MountOptions) -> Result<(), MountError> {
    let source_path = source.to_owned();
    if !options.take_over || !matches!(Source::parse(source), Ok(Source::Rbd(_))) {
        return Err(MountError::Silent { source_path, process });
    }
    // It cannot be looked at, but only be named.
    if fusering::mounted_at(directory).is_ok_and(|entry| entry.is_some_and(|entry| entry.source == source)) {
        return Err(MountError::SilentBelow { on: directory.to_owned(), source_path, process });
    }
    // A mount does not fail because nobody reads it.
    let source = source.display();
    let _ = writeln!(
        io::stderr(),
        "process {process}, which has {source} mounted, does not answer and is taken over from"
    );
    Ok(())
}

/// Mounts what the options name by the daemon that has the volume. `None`: there is no such daemon, it leaves just now,
/// or it does not answer and is to be taken over from. Nothing is done in `directory`, which is where `mount_point`
/// finds it, before a daemon has answered: it may be the mount of one that does not.
pub(crate) fn join(
    source: &Path,
    directory: &Path,
    mount_point: impl FnOnce() -> Result<PathBuf, MountError>,
    options: &MountOptions,
) -> Result<Option<Joined>, MountError> {
    let failed = |source| MountError::System { what: "talking to the daemon of the mounted volume", source };
    let Some((mut wire, peer)) = daemon_of(source).map_err(failed)? else { return Ok(None) };
    if !answers(&mut wire, peer.process, options) {
        return shut_out(source, directory, peer.process, options).map(|()| None);
    }
    let directory = &*mount_point()?;
    // One conversation is about one thing.
    let Some((mut wire, peer)) = daemon_of(source).map_err(failed)? else { return Ok(None) };
    let words = options.words.join(",");
    wire.send(&[MOUNT, VERSION, directory.as_os_str().as_bytes(), words.as_bytes()]).map_err(failed)?;
    let answer = match wire.receive() {
        Ok(answer) => answer,
        // It was stopped meanwhile, or this takes it too long.
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            return shut_out(source, directory, peer.process, options).map(|()| None);
        }
        // A daemon that closes its volume closes the conversation.
        Err(_) => return Ok(None),
    };
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

/// Somebody who waits for a mount that is about to end.
pub(crate) struct Waiting(Option<(Wire, Peer)>);

/// Asks the volume's daemon, if there is one, to tell when what is mounted at a directory is written. To be asked
/// before it is unmounted: a daemon that ends at once has nobody to tell why.
pub(crate) fn wait_for(source: &Path, directory: &Path) -> Waiting {
    let asked = daemon_of(source).ok().flatten().and_then(|(mut wire, peer)| {
        wire.send(&[WAIT, VERSION, directory.as_os_str().as_bytes()]).ok().map(|()| (wire, peer))
    });
    Waiting(asked)
}

impl Waiting {
    /// Waits until it is written, if the daemon goes on. The process of that daemon, if there is one.
    pub(crate) fn until_written(self, source: &Path, directory: &Path) -> Result<Option<u32>, MountError> {
        let Some((mut wire, peer)) = self.0 else { return Ok(None) };
        // Without an answer it has ended, and closed the volume.
        if let Ok(answer) = wire.receive_at_last() {
            match &answer[..] {
                [word, why] if word == FAILED => {
                    let why = String::from_utf8_lossy(why).into_owned();
                    return Err(MountError::NotClosed {
                        path: directory.to_owned(),
                        source_path: source.to_owned(),
                        why,
                    });
                }
                answer => expect(answer, GONE)?,
            }
        }
        Ok(Some(peer.process))
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

#[cfg(test)]
mod tests {
    use super::super::daemon::bind;
    use super::*;
    use std::time::{Duration, Instant};

    /// Of no cluster; tests run at the same time.
    fn image(name: &str) -> PathBuf {
        format!("rbd:test/{name}-{}", std::process::id()).into()
    }

    #[test]
    fn of_several_daemons_the_last_one_is_found() {
        let source = image("several");
        assert!(daemon_of(&source).expect("asked").is_none());
        let daemons: Vec<_> = (0..3).map(|_| bind(&source).expect("a name")).collect();
        let is_found = |number: usize| {
            for daemon in &daemons {
                daemon.set_nonblocking(true).expect("a listener");
                while daemon.accept().is_ok() {}
            }
            let _found = daemon_of(&source).expect("asked").expect("there is one");
            daemons[number].accept().is_ok()
        };
        assert!(is_found(2));
        assert!(serves(&source, std::process::id()) && !serves(&source, 1));
        let mut daemons = daemons;
        // The second one ends: nobody takes its name while a later one is in use.
        daemons.remove(1);
        daemons.push(bind(&source).expect("the fourth name"));
        let last = daemons.last().expect("pushed");
        while last.set_nonblocking(true).is_ok() && last.accept().is_ok() {}
        let _found = daemon_of(&source).expect("asked").expect("there is one");
        assert!(last.accept().is_ok());
        daemons.clear();
        assert!(daemon_of(&source).expect("asked").is_none());
    }

    #[test]
    fn a_daemon_that_says_nothing_is_taken_over_from_within_seconds() {
        let source = image("silent");
        let _silent = bind(&source).expect("a name");
        let options = MountOptions::parse("take_over").expect("options");
        let began = Instant::now();
        let asked = join(&source, Path::new("/"), || panic!("nothing is mounted"), &options);
        assert!(matches!(asked, Ok(None)), "{:?}", asked.err());
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }

    #[test]
    fn what_has_a_lock_that_cannot_be_broken_is_not_taken_over() {
        let options = MountOptions::parse("take_over").expect("options");
        let refused = |name: &str| {
            let refused = shut_out(Path::new(name), Path::new("/"), 7, &options).expect_err("refused");
            refused.to_string()
        };
        for name in ["/images/a", "nbd://127.0.0.1/"] {
            let told = refused(name);
            assert!(told.contains("kill -CONT 7") && told.contains("keeps its lock"), "{told}");
        }
    }
}
