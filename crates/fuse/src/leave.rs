//! The kernel's leave for FUSE over io_uring, for the moment of a mount.
//!
//! Leave is a parameter of the whole machine and off by default. The kernel looks at it when it offers io_uring to a
//! mount and when that answers; a mount that has it keeps it. So root's mount switches it on until the handshake is
//! over, and the machine is then as it was before.
//!
//! Mounts of the same moment share a lock on the parameter. The first leaves a note that it was off; the last
//! switches it off and removes the note. A mount that is killed in between lets go of the lock and leaves the note:
//! the next mount, if it is the last of its moment, switches off. `/run`, where the note lies, and the parameter
//! begin anew together.
//!
//! Whoever holds the lock alone has decided on the parameter for that time (the project's tests do): it is taken as
//! it is.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
const NOTE: &str = "/run/syncline.enable_uring";
/// The device whose first use loads the module, and with it the parameter.
const DEVICE: &str = "/dev/fuse";
/// How long to wait for somebody who holds the lock alone, which the last of others does for a moment.
const PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(2);

/// The leave, until this is dropped.
#[derive(Debug)]
pub(crate) struct Leave {
    parameter: PathBuf,
    note: PathBuf,
    lock: File,
    switched: bool,
}

impl Leave {
    /// `None` where it is there in any case, and where it cannot be had: no such parameter, or no right to set it. What
    /// is mounted then tells its transport itself.
    pub(crate) fn take() -> Option<Leave> {
        let parameter = Path::new(PARAMETER);
        if !parameter.exists() {
            // What fails here fails again in the mount, which tells it.
            let _ = File::options().read(true).write(true).open(DEVICE);
        }
        match Leave::of(parameter, Path::new(NOTE)) {
            Ok(leave) => leave,
            Err(error) => {
                tracing::debug!(%error, parameter = PARAMETER, "FUSE over io_uring stays as the kernel has it");
                None
            }
        }
    }

    fn of(parameter: &Path, note: &Path) -> io::Result<Option<Leave>> {
        // The right to set it, first: who has none leaves no trace.
        drop(File::options().write(true).open(parameter)?);
        let Some(lock) = shared(parameter, note)? else { return Ok(None) };
        let mut leave = Leave { parameter: parameter.into(), note: note.into(), lock, switched: false };
        if is_on(parameter)? {
            // With a note it is so for a moment only, perhaps one that has ended by a kill: this one may be the last.
            return Ok(note.exists().then_some(leave));
        }
        let noted = File::options().write(true).create_new(true).open(note);
        match noted.and_then(|mut note| note.write_all(b"enable_uring was N\n")) {
            // Another mount of this moment was here between the two looks.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result?,
        }
        // From here on dropping it puts everything back.
        leave.switched = true;
        set(parameter, b'Y')?;
        Ok(Some(leave))
    }

    /// Whether it was off and this one has switched it on.
    pub(crate) fn has_switched(&self) -> bool {
        self.switched
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        // Gives the share back before it asks for all: of two that do so at once the later one gets it.
        if !flock(&self.lock, libc::LOCK_EX | libc::LOCK_NB).is_ok_and(|taken| taken) {
            return;
        }
        if let Err(error) = put_back(&self.parameter, &self.note) {
            tracing::warn!(%error, parameter = %self.parameter.display(), "FUSE over io_uring could not be switched off again");
        }
    }
}

/// Off, if there is a note. The lock is held alone.
fn put_back(parameter: &Path, note: &Path) -> io::Result<()> {
    if !note.try_exists()? {
        return Ok(());
    }
    set(parameter, b'N')?;
    // Behind the parameter: without the note nobody puts it back.
    fs::remove_file(note)
}

/// In one write and without emptying it first: others read it meanwhile.
fn set(parameter: &Path, value: u8) -> io::Result<()> {
    File::options().write(true).open(parameter)?.write_all(&[value])
}

fn is_on(parameter: &Path) -> io::Result<bool> {
    Ok(matches!(fs::read_to_string(parameter)?.trim(), "Y" | "1"))
}

/// The lock with others, `None` where somebody has it alone for longer than the last of a moment does, or has
/// switched on what the last of a moment only switches off.
fn shared(parameter: &Path, note: &Path) -> io::Result<Option<File>> {
    let lock = File::open(parameter)?;
    let deadline = Instant::now() + PATIENCE;
    while !flock(&lock, libc::LOCK_SH | libc::LOCK_NB)? {
        if (is_on(parameter)? && !note.exists()) || Instant::now() > deadline {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(Some(lock))
}

/// False if others are in the way.
fn flock(file: &File, how: libc::c_int) -> io::Result<bool> {
    // SAFETY: the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parameter of this value and the place of a note.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new(value: &str) -> Place {
            let place = Place(tempfile::tempdir().expect("a directory"));
            fs::write(place.parameter(), value).expect("written");
            place
        }

        fn parameter(&self) -> PathBuf {
            self.0.path().join("parameter")
        }

        fn note(&self) -> PathBuf {
            self.0.path().join("note")
        }

        fn take(&self) -> Option<Leave> {
            Leave::of(&self.parameter(), &self.note()).expect("no failure")
        }

        fn value(&self) -> String {
            fs::read_to_string(self.parameter()).expect("readable").trim().to_owned()
        }
    }

    #[test]
    fn the_parameter_is_on_for_the_moment_and_then_as_before() {
        let place = Place::new("N\n");
        let leave = place.take().expect("given");
        assert!(leave.has_switched() && place.value() == "Y" && place.note().exists());
        drop(leave);
        assert!(place.value() == "N" && !place.note().exists());
    }

    #[test]
    fn a_parameter_that_is_on_stays_on() {
        let place = Place::new("Y\n");
        assert!(place.take().is_none());
        assert!(place.value() == "Y" && !place.note().exists());
    }

    #[test]
    fn the_last_of_several_moments_puts_it_back_in_whatever_order_they_end() {
        for first in [0, 1, 2] {
            let place = Place::new("N\n");
            let mut leaves: Vec<Leave> = (0..3).map(|_| place.take().expect("given")).collect();
            assert_eq!(leaves.iter().filter(|leave| leave.has_switched()).count(), 1);
            drop(leaves.remove(first));
            assert!(place.value() == "Y" && place.note().exists(), "two mount still");
            drop(leaves.pop());
            assert_eq!(place.value(), "Y");
            drop(leaves);
            assert!(place.value() == "N" && !place.note().exists());
        }
    }

    #[test]
    fn many_threads_at_once_leave_it_as_it_was_and_have_it_meanwhile() {
        let place = Place::new("N\n");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let leave = place.take();
                        // None is possible only where others hold up the last one for longer than the patience.
                        if leave.is_some() {
                            assert_eq!(place.value(), "Y");
                        }
                    }
                });
            }
        });
        assert!(place.value() == "N" && !place.note().exists());
    }

    #[test]
    fn what_a_killed_mount_has_left_is_put_back_by_the_next() {
        // Killed behind the note, and behind the parameter.
        for value in ["N", "Y"] {
            let place = Place::new(value);
            fs::write(place.note(), "").expect("written");
            let leave = place.take().expect("given");
            assert_eq!(place.value(), "Y");
            drop(leave);
            assert!(place.value() == "N" && !place.note().exists(), "{value}");
        }
    }

    #[test]
    fn who_holds_the_lock_alone_decides() {
        for value in ["N", "Y"] {
            let place = Place::new(value);
            let lock = File::open(place.parameter()).expect("opened");
            assert!(flock(&lock, libc::LOCK_EX).expect("locked"));
            assert!(place.take().is_none());
            assert!(place.value() == value && !place.note().exists());
        }
    }

    #[test]
    fn a_kernel_without_the_parameter_gives_none_and_keeps_no_note() {
        let place = Place::new("N");
        fs::remove_file(place.parameter()).expect("removed");
        assert!(Leave::of(&place.parameter(), &place.note()).is_err());
        assert!(!place.note().exists());
    }
}
