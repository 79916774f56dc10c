//! [`Place`].

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// Names of such places: this, and the number of the process that has it.
pub(crate) const PLACE_PREFIX: &str = ".syncline-";
/// Attempts to find a name that nobody has.
const ATTEMPTS_MAX: u32 = 100;

/// Where what is new in a directory of the host is made: a directory in it that is its maker's alone, so that whoever
/// may change names in the outer one cannot put something else in place of what is being given an owner and
/// permissions. It holds one thing at a time, [`Place::NEW`].
///
/// A process holds a lock on its place, and removes it when it is done. What one has left that was killed, the next
/// one to work in the same directory removes.
pub(crate) struct Place {
    fd: OwnedFd,
    outer: OwnedFd,
    name: String,
}

impl Place {
    /// What is being made.
    pub(crate) const NEW: &str = "new";

    pub(crate) fn new(outer: &OwnedFd) -> io::Result<Place> {
        remove_left(outer);
        for attempt in 0..ATTEMPTS_MAX {
            let name = name_of(std::process::id(), attempt);
            match rustix::fs::mkdirat(outer, &name, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(error.into()),
            }
            let fd = open_own(outer, name.as_ref())?;
            // What is made here must not take over what the outer directory hands down.
            let _ = rustix::fs::fremovexattr(&fd, "system.posix_acl_default");
            // Without the lock it is the number of the process that tells.
            let _ = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive);
            return Ok(Place { fd, outer: outer.try_clone()?, name });
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Makes something in it. What is there already is ours, and of no use any more.
    pub(crate) fn make(
        &self,
        make: &mut dyn FnMut(BorrowedFd<'_>, &str) -> rustix::io::Result<()>,
    ) -> io::Result<()> {
        Ok(make(self.fd.as_fd(), Place::NEW)?)
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

impl AsFd for &Place {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What cannot be removed now the next copy finds.
        let _ = rustix::fs::unlinkat(&self.fd, Place::NEW, AtFlags::empty());
        let _ = rustix::fs::unlinkat(&self.outer, &self.name, AtFlags::REMOVEDIR);
    }
}

/// Name of a process's place.
pub(crate) fn name_of(process: u32, attempt: u32) -> String {
    match attempt {
        0 => format!("{PLACE_PREFIX}{process}"),
        attempt => format!("{PLACE_PREFIX}{process}-{attempt}"),
    }
}

/// The process whose place it is, by the name.
pub(crate) fn process_of(name: &OsStr) -> Option<u32> {
    let rest = name.to_str()?.strip_prefix(PLACE_PREFIX)?;
    let (process, attempt) = rest.split_once('-').unwrap_or((rest, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number(attempt) && is_number(process) { process.parse().ok() } else { None }
}

/// Opens a place that must be ours alone, or else something has been put there instead of it.
fn open_own(outer: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(outer, name, flags, Mode::empty())?);
    let found = file.metadata()?;
    let ours = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    match ours {
        true => Ok(file.into()),
        false => Err(io::Error::other("somebody else changes names in this directory meanwhile")),
    }
}

/// Removes what copies have left in this directory whose process is dead. Nothing depends on it.
fn remove_left(outer: &OwnedFd) {
    let Ok(entries) = rustix::fs::Dir::read_from(outer) else { return };
    let names = entries.filter_map(|entry| entry.ok().map(|entry| entry.file_name().to_owned()));
    let left: Vec<_> = names.filter(|name: &std::ffi::CString| is_left(outer, name)).collect();
    for name in left {
        let Ok(fd) = open_own(outer, OsStr::from_bytes(name.to_bytes())) else { continue };
        // One whose number this machine does not know may still be at work, in a container.
        if rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            continue;
        }
        let _ = rustix::fs::unlinkat(&fd, Place::NEW, AtFlags::empty())
            .or_else(|_| rustix::fs::unlinkat(&fd, Place::NEW, AtFlags::REMOVEDIR));
        let _ = rustix::fs::unlinkat(outer, &name, AtFlags::REMOVEDIR);
    }
}

fn is_left(outer: &OwnedFd, name: &CStr) -> bool {
    let Some(process) = process_of(OsStr::from_bytes(name.to_bytes())) else { return false };
    if process == std::process::id() || open_own(outer, OsStr::from_bytes(name.to_bytes())).is_err() {
        return false;
    }
    let Some(process) = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw) else {
        return false;
    };
    rustix::process::test_kill_process(process) == Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_by_their_names() {
        for (name, process) in [
            (".syncline-12", Some(12)),
            (".syncline-12-3", Some(12)),
            (".syncline-", None),
            (".syncline-12-", None),
            (".syncline-+1", None),
            (".syncline-12-0-file", None),
            ("syncline-12", None),
        ] {
            assert_eq!(process_of(name.as_ref()), process, "{name}");
        }
        assert_eq!(process_of(name_of(7, 0).as_ref()), Some(7));
        assert_eq!(process_of(name_of(7, 9).as_ref()), Some(7));
    }
}
