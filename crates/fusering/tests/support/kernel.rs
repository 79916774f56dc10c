//! What tests need of the machine: root, /dev/fuse, and the kernel's leave to use FUSE over io_uring.
//!
//! Leave is a parameter of the whole machine. It is looked at only when a filesystem is mounted, so a test holds it
//! just for that: a lock keeps tests of other processes from turning it while one mounts, and it is put back
//! afterwards.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The parameter as it was asked for, until this is dropped.
pub struct UringSwitch {
    _lock: File,
    before: String,
}

impl UringSwitch {
    /// Sets the parameter for a moment. Errors: why this machine cannot.
    pub fn set(allowed: bool) -> Result<UringSwitch, String> {
        // SAFETY: takes no arguments.
        if unsafe { libc::geteuid() } != 0 {
            return Err("mounting and turning io_uring on need root".to_owned());
        }
        if !Path::new(PARAMETER).exists() {
            return Err(format!("the kernel has no {PARAMETER}"));
        }
        let lock = File::open(PARAMETER).map_err(|error| format!("{PARAMETER}: {error}"))?;
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(format!("{PARAMETER} cannot be locked: {}", std::io::Error::last_os_error()));
        }
        let before = std::fs::read_to_string(PARAMETER).map_err(|error| format!("{PARAMETER}: {error}"))?;
        let switch = UringSwitch { _lock: lock, before };
        let wanted = if allowed { "Y" } else { "N" };
        std::fs::write(PARAMETER, wanted).map_err(|error| format!("{PARAMETER} cannot be set: {error}"))?;
        Ok(switch)
    }
}

impl Drop for UringSwitch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(PARAMETER, &self.before) {
            eprintln!("{PARAMETER} could not be set back to {}: {error}", self.before.trim());
        }
    }
}

/// Says that a test did not run. The words are those of the project's other tests.
pub fn skipped(test: &str, why: &str) {
    writeln!(std::io::stderr(), "skipped: {test}: {why}").expect("standard error is open");
}
