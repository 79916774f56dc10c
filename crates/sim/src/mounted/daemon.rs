//! The mounted volume: image, daemon, and the power cut.

use super::Plan;
use crate::device::Disk;
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use syncline_format::BLOCK_BYTES;

const MOUNT_TIME_MAX: Duration = Duration::from_secs(60);
/// Whether the kernel offers FUSE over io_uring.
const URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// A directory with the image and the mount point, removed at the end.
pub struct Scratch {
    place: PathBuf,
    top: PathBuf,
}

impl Scratch {
    pub fn new(within: &Path) -> io::Result<Scratch> {
        let place = within.join(format!("syncline-ace.{}", std::process::id()));
        let top = place.join("mnt");
        fs::create_dir_all(&top)?;
        Ok(Scratch { place, top })
    }

    pub fn top(&self) -> &Path {
        &self.top
    }

    fn image(&self) -> PathBuf {
        self.place.join("image")
    }

    pub fn write_image(&self, disk: &Disk) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(disk.blocks() as usize * BLOCK_BYTES);
        for block in 0..disk.blocks() {
            match disk.get(block) {
                Some(page) => bytes.extend_from_slice(&page[..]),
                None => bytes.resize(bytes.len() + BLOCK_BYTES, 0),
            }
        }
        fs::write(self.image(), bytes)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.join("log")).unwrap_or_default()
    }

    fn detach(&self) {
        while unmount(&self.top, UnmountFlags::DETACH).is_ok() {}
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.detach();
        let _ = fs::remove_dir_all(&self.place);
    }
}

/// A daemon that serves the image. Dropped, it is killed.
pub struct Mount {
    daemon: Child,
    top: PathBuf,
}

impl Mount {
    /// Mounts and waits until the volume is there.
    pub fn new(plan: &Plan, scratch: &Scratch, options: &str) -> Result<Mount, String> {
        let allowed = Allowed::new(&plan.transport)?;
        let mut mount = Mount::begin_allowed(plan, scratch, options)?;
        let outside = fs::metadata(&scratch.place).map_err(|error| error.to_string())?.dev();
        let end = Instant::now() + MOUNT_TIME_MAX;
        loop {
            if let Ok(Some(status)) = mount.daemon.try_wait() {
                return Err(format!("mount failed, {status}: {}", scratch.log()));
            }
            // An error: attached, but the handshake is not over.
            if fs::metadata(&scratch.top).is_ok_and(|top| top.dev() != outside) {
                drop(allowed);
                return Ok(mount);
            }
            if Instant::now() > end {
                return Err(format!("no mount within {MOUNT_TIME_MAX:?}: {}", scratch.log()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn begin_allowed(plan: &Plan, scratch: &Scratch, options: &str) -> Result<Mount, String> {
        let log = File::create(scratch.place.join("log")).map_err(|error| error.to_string())?;
        let error = log.try_clone().map_err(|error| error.to_string())?;
        let daemon = Command::new(&plan.command)
            .args(["mount", "--foreground", "-o"])
            .arg(format!("volatile,transport={},{options}", plan.transport))
            .args([&scratch.image(), &scratch.top])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(error)
            .spawn()
            .map_err(|error| format!("{}: {error}", plan.command.display()))?;
        Ok(Mount { daemon, top: scratch.top.clone() })
    }

    /// Begins to mount, and kills the daemon after this time, wherever it is then.
    pub fn killed_after(
        plan: &Plan,
        scratch: &Scratch,
        options: &str,
        delay: Duration,
    ) -> Result<(), String> {
        let _allowed = Allowed::new(&plan.transport)?;
        let _mount = Mount::begin_allowed(plan, scratch, options)?;
        std::thread::sleep(delay);
        Ok(())
    }

    /// The power cut. The mount stays until this is dropped, so that nobody takes what is below for the volume.
    pub fn kill(&mut self) {
        if matches!(self.daemon.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.daemon), Signal::KILL);
        }
        let _ = self.daemon.wait();
    }

    /// Unmounts in good order.
    pub fn unmount(mut self, plan: &Plan, scratch: &Scratch) -> Result<(), String> {
        succeeds(Command::new(&plan.command).arg("umount").arg(&scratch.top))?;
        match self.daemon.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("the daemon ended with {status}: {}", scratch.log())),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.kill();
        while unmount(&self.top, UnmountFlags::DETACH).is_ok() {}
    }
}

/// The image must be sound.
pub fn check(plan: &Plan, scratch: &Scratch) -> Result<(), String> {
    succeeds(Command::new(&plan.command).arg("check").arg(scratch.image()))
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = [output.stdout, output.stderr].concat();
            Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&said)))
        }
    }
}

/// Lets the kernel have io_uring while something is being mounted, if the transport needs it.
struct Allowed(Option<(File, String)>);

impl Allowed {
    fn new(transport: &str) -> Result<Allowed, String> {
        if transport != "uring" {
            return Ok(Allowed(None));
        }
        let told = |error: &dyn std::fmt::Display| format!("{URING}: {error}");
        let lock = File::open(URING).map_err(|error| told(&error))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| told(&error))?;
        let before = fs::read_to_string(URING).map_err(|error| told(&error))?;
        fs::write(URING, "Y").map_err(|error| told(&error))?;
        Ok(Allowed(Some((lock, before))))
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        if let Some((_lock, before)) = &self.0 {
            let _ = fs::write(URING, before.trim());
        }
    }
}
