//! A device that can be held back: the volume's image lies on a small ext4 of its own, which is frozen for as long as
//! nothing is to be written.

use crate::harness::{Volume, can_mount, check, detach, skipped};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const FREEZE: libc::c_ulong = 0xc004_5877;
const THAW: libc::c_ulong = 0xc004_5878;
const HOST_BYTES: u64 = 160 << 20;

pub struct Gate {
    dir: TempDir,
}

/// Until this is dropped no write to the image begins.
pub struct Closed(File);

impl Gate {
    /// `None`, and says so, if this machine cannot.
    pub fn new(test: &str) -> Option<Gate> {
        if !can_mount() {
            return None;
        }
        let gate = Gate { dir: tempfile::tempdir().expect("temporary directory") };
        let disk = gate.dir.path().join("disk");
        File::create(&disk).and_then(|disk| disk.set_len(HOST_BYTES)).expect("a file");
        fs::create_dir(gate.host()).expect("mkdir");
        let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk).status();
        let made = made.is_ok_and(|status| status.success());
        let mount = || Command::new("mount").args(["-o", "loop"]).arg(&disk).arg(gate.host()).status();
        if !made || !mount().is_ok_and(|status| status.success()) {
            skipped(test, "no ext4 on a loop device to be had");
            return None;
        }
        Some(gate)
    }

    fn host(&self) -> PathBuf {
        self.dir.path().join("host")
    }

    /// A mounted volume behind the gate, which has to be dropped before it.
    pub fn mounted(&self, options: &str) -> Volume {
        let mut volume = Volume::format_at(crate::harness::VOLUME_BYTES, &self.host().join("image"));
        volume.mount(options).unwrap_or_else(|error| panic!("mount failed: {error}"));
        volume
    }

    /// Returns when what was being written is written.
    pub fn close(&self) -> Closed {
        close(&self.host())
    }

    /// The same on another thread.
    pub fn closing(&self) -> impl FnOnce() -> Closed + Send + 'static {
        let host = self.host();
        move || close(&host)
    }
}

fn close(host: &Path) -> Closed {
    let host = File::open(host).expect("the host's root");
    // SAFETY: the descriptor is open; the argument is not used.
    check(i64::from(unsafe { libc::ioctl(host.as_raw_fd(), FREEZE, 0) })).expect("freeze");
    Closed(host)
}

impl Drop for Closed {
    fn drop(&mut self) {
        // SAFETY: as above.
        let thawed = unsafe { libc::ioctl(self.0.as_raw_fd(), THAW, 0) };
        assert!(std::thread::panicking() || thawed == 0, "thaw");
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        detach(&self.host());
    }
}
