//! Which way a mount's requests take, and the kernel's leave for FUSE over io_uring.
//!
//! Leave is a parameter of the whole machine and off by default. The kernel looks at it only when a file system is
//! mounted, so it is switched on just for that, under the lock that the project's tests take too, and put back as it
//! was. Signals that would end this process wait meanwhile; a run that was killed nevertheless leaves a note with the
//! value to put back, which the next one heeds.

use crate::output::tell;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// Where the value to put back stands meanwhile; as the parameter it does not outlive the machine's run.
const NOTE: &str = "/run/syncline-bench.enable_uring";

/// How a mount is asked to talk to the kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Transport {
    /// As the project means it: io_uring, /dev/fuse where the kernel has no other.
    Best,
    /// Threads that read /dev/fuse.
    Dev,
}

/// The kernel's leave, as long as this lives.
pub(crate) struct Leave {
    before: String,
    parameter: PathBuf,
    note: PathBuf,
    // Dropped in this order: the lock first, then signals are delivered.
    _lock: File,
    _signals: DeferredSignals,
}

impl Leave {
    /// `None` where the kernel has no such thing or does not let it be changed: what is mounted then tells its
    /// transport itself.
    pub(crate) fn take() -> io::Result<Option<Leave>> {
        Leave::of(Path::new(PARAMETER), Path::new(NOTE))
    }

    fn of(parameter: &Path, note: &Path) -> io::Result<Option<Leave>> {
        let Some(lock) = locked(parameter)? else { return Ok(None) };
        let signals = DeferredSignals::begin();
        put_back(parameter, note)?;
        let before = fs::read_to_string(parameter)?;
        fs::write(note, &before)?;
        // From here on dropping it puts everything back.
        let leave =
            Leave { before, parameter: parameter.into(), note: note.into(), _lock: lock, _signals: signals };
        match fs::write(parameter, "Y") {
            Ok(()) => Ok(Some(leave)),
            Err(error) => {
                tell(&format!("{} cannot be set: {error}", parameter.display()));
                Ok(None)
            }
        }
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        match fs::write(&self.parameter, self.before.trim()) {
            // Without the note nobody puts it back again.
            Ok(()) => drop(fs::remove_file(&self.note)),
            Err(error) => tell(&format!(
                "{} could not be set back to {}: {error}",
                self.parameter.display(),
                self.before.trim()
            )),
        }
    }
}

/// Puts back what a run has left that was killed while it mounted.
pub(crate) fn put_right() -> io::Result<()> {
    match locked(Path::new(PARAMETER))? {
        Some(_lock) => put_back(Path::new(PARAMETER), Path::new(NOTE)),
        None => Ok(()),
    }
}

fn locked(parameter: &Path) -> io::Result<Option<File>> {
    let lock = match File::open(parameter) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(Some(lock))
}

/// The lock is held by the caller, so a note is not of a run that goes on.
fn put_back(parameter: &Path, note: &Path) -> io::Result<()> {
    match fs::read_to_string(note) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(before) => {
            if !before.trim().is_empty() {
                fs::write(parameter, before.trim())?;
            }
            fs::remove_file(note)
        }
    }
}

/// Keeps the signals that end a program from this thread, and delivers those that came when dropped.
struct DeferredSignals {
    before: libc::sigset_t,
}

impl DeferredSignals {
    fn begin() -> DeferredSignals {
        // SAFETY: a set of signals is plain data, and each call is given sets that live here.
        unsafe {
            let mut before: libc::sigset_t = std::mem::zeroed();
            let mut deferred: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut deferred);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut deferred, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &deferred, &mut before);
            DeferredSignals { before }
        }
    }
}

impl Drop for DeferredSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the call that began.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parameter of this value and the place of a note, in a directory of the test's own.
    fn place(test: &str, value: &str) -> (PathBuf, PathBuf) {
        let directory = std::env::temp_dir().join(format!("syncline-leave-{test}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join("parameter"), value).expect("written");
        (directory.join("parameter"), directory.join("note"))
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).expect("readable").trim().to_owned()
    }

    #[test]
    fn parameter_is_as_before_when_the_mount_is_made() {
        let (parameter, note) = place("before", "N\n");
        let leave = Leave::of(&parameter, &note).expect("taken").expect("there");
        assert_eq!((read(&parameter), read(&note)), ("Y".to_owned(), "N".to_owned()));
        drop(leave);
        assert_eq!(read(&parameter), "N");
        assert!(!note.exists());
        fs::remove_dir_all(parameter.parent().expect("a parent")).expect("removed");
    }

    #[test]
    fn what_a_killed_run_has_left_is_put_back_by_the_next() {
        let (parameter, note) = place("killed", "Y\n");
        fs::write(&note, "N\n").expect("written");
        drop(Leave::of(&parameter, &note).expect("taken"));
        assert_eq!(read(&parameter), "N");
        assert!(!note.exists());
        fs::remove_dir_all(parameter.parent().expect("a parent")).expect("removed");
    }

    #[test]
    fn kernel_without_the_parameter_gives_no_leave_and_leaves_no_note() {
        let (parameter, note) = place("without", "N");
        fs::remove_file(&parameter).expect("removed");
        assert!(Leave::of(&parameter, &note).expect("no failure").is_none());
        assert!(!note.exists());
        fs::remove_dir_all(parameter.parent().expect("a parent")).expect("removed");
    }
}
