//! The side that has the volume: lets others join, and serves what they have mounted.

use super::wire::Wire;
use super::{DAEMONS_MAX, FAILED, GONE, HERE, LIVE, MOUNT, NO, READY, VERSION, WAIT, address, is_trusted};
use crate::browse::Browsed;
use crate::filesystem::{Filesystem, config};
use crate::mounts::Mounts;
use crate::{MountError, MountOptions};
use fusering::Session;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long an unmount is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Options that say something of the daemon, not of a mount.
const OF_DAEMON: [&str; 12] = [
    "ack",
    "commit",
    "cpu",
    "log",
    "memory",
    "metrics",
    "noatime",
    "replica",
    "replica_interval",
    "strictatime",
    "take_over",
    "volatile",
];

/// Lets others join the daemon until the process ends. Not being able to is told, and no more.
pub(crate) fn listen(source: &Path, mounts: &Arc<Mounts>) {
    let mounts = Arc::downgrade(mounts);
    let listening = bind(source).and_then(|listener| {
        let listening = std::thread::Builder::new().name("syncline-join".to_owned());
        listening.spawn(move || accept(&listener, &mounts))
    });
    if let Err(error) = listening {
        tracing::warn!(%error, "no other head of the volume can be mounted while this mount lasts");
    }
}

/// Takes the name behind the last one that is in use: by a daemon that leaves, or was taken over from.
pub(super) fn bind(source: &Path) -> io::Result<UnixListener> {
    let mut next = 0;
    for number in 0..DAEMONS_MAX {
        if UnixStream::connect_addr(&address(source, number)?).is_ok() {
            next = number + 1;
        }
    }
    // Beyond the last name nobody would look.
    UnixListener::bind_addr(&address(source, next.min(DAEMONS_MAX - 1))?)
}

fn accept(listener: &UnixListener, mounts: &Weak<Mounts>) {
    // What is lacking for one lacks for the next try as well, ten times a second.
    let mut told = false;
    for stream in listener.incoming() {
        let Some(mounts) = mounts.upgrade() else { return };
        let begun = stream.and_then(|stream| {
            let wire = Wire::new(stream)?;
            // Nobody else gets a thread, or an answer.
            if is_trusted(wire.peer()?.user) {
                let answering = std::thread::Builder::new().name("syncline-joined".to_owned());
                answering.spawn(move || answer(wire, &mounts))?;
            }
            Ok(())
        });
        let Err(error) = begun else {
            told = false;
            continue;
        };
        if !told {
            told = true;
            tracing::warn!(%error, "somebody could not join this daemon, and is tried again");
        }
        // Whatever there is too little of, there is no hurry.
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Answers what one peer asks.
fn answer(mut wire: Wire, mounts: &Arc<Mounts>) {
    let conversation = wire.receive().and_then(|asked| {
        let refused = match asked.as_slice() {
            [word, version] if word == HERE && version == VERSION => return wire.send(&[HERE]),
            [word, version, directory, words] if word == MOUNT && version == VERSION => {
                serve(&mut wire, mounts, Path::new(OsStr::from_bytes(directory)), words).err()
            }
            [word, version, directory] if word == WAIT && version == VERSION => {
                let directory = Path::new(OsStr::from_bytes(directory));
                return mounts.wait_for(directory, PATIENCE, |written| match written {
                    Some(None) => wire.send(&[GONE]),
                    Some(Some(failure)) => wire.send(&[FAILED, failure.replace('\0', " ").as_bytes()]),
                    None => {
                        let (path, seconds) = (directory.to_owned(), PATIENCE.as_secs());
                        wire.send(&[NO, MountError::StillWriting { path, seconds }.to_string().as_bytes()])
                    }
                });
            }
            _ => Some(MountError::Unanswered),
        };
        match refused {
            // Whoever joins opens the volume itself.
            None | Some(MountError::Closing) => Ok(()),
            Some(error) => wire.send(&[NO, error.to_string().replace('\0', " ").as_bytes()]),
        }
    });
    if let Err(error) = conversation {
        tracing::debug!(%error, "whoever wanted to join is gone");
    }
}

/// Serves a mount that the peer makes, until it has ended. An error is for the peer: the mount is not there.
fn serve(wire: &mut Wire, mounts: &Arc<Mounts>, directory: &Path, words: &[u8]) -> Result<(), MountError> {
    let options = MountOptions::parse(&String::from_utf8_lossy(words))?;
    let share = mounts.join(&options, directory)?;
    let name_of = |word: &String| word.split('=').next().unwrap_or_default().to_owned();
    if let Some(option) = options.words.iter().map(name_of).find(|name| OF_DAEMON.contains(&name.as_str())) {
        return Err(MountError::OfDaemon { option });
    }
    let fs = share.fs().clone();
    let gone = |source: io::Error| MountError::System { what: "being handed the mount", source };
    wire.send(&[READY]).map_err(gone)?;
    let connection = wire.receive_descriptor().map_err(gone)?;
    let filesystem = Arc::new(Filesystem::new(share, &options)?);
    let browsed = Browsed::new(filesystem.clone(), &fs, options.snapshot.is_none());
    drop(fs);
    let session = match Session::from_fd(Arc::new(browsed), connection, &config(&options)) {
        Ok(session) => session,
        Err(error) => {
            // What went wrong first is what the user needs to know.
            let _ = filesystem.close();
            return Err(MountError::Session(error));
        }
    };
    filesystem.set_transport(session.transport(), session.classes());
    let transport = session.transport().to_string();
    // Whoever is gone by now has a mount all the same.
    let _ = wire.send(&[LIVE, transport.as_bytes()]);
    tracing::info!(directory = %directory.display(), options = %options.words.join(","), transport, "mounted beside");
    if let Err(error) = session.run() {
        tracing::error!(%error, directory = %directory.display(), "a mount ended");
    }
    match filesystem.close() {
        Ok(()) => tracing::info!(directory = %directory.display(), "unmounted"),
        Err(error) => tracing::error!(%error, directory = %directory.display(), "unmounted"),
    }
    Ok(())
}
