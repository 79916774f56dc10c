//! The fair device: a loop device with direct I/O over a fully written file, and its own statistics.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device; detached when dropped.
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
    statistics: PathBuf,
}

/// What a block device has counted since it appeared (`/sys/block/*/stat`).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Statistics {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) sectors_written: u64,
    pub(crate) flushes: u64,
}

impl LoopDevice {
    /// Attaches `backing`, created and fully written first if it is missing or too short.
    pub(crate) fn attach(backing: &Path, mib: u64) -> io::Result<LoopDevice> {
        fill(backing, mib)?;
        let output =
            Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(backing).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!(
                "losetup failed (root is needed): {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )));
        }
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        let name = path.file_name().ok_or_else(|| io::Error::other("losetup named no device"))?;
        let statistics = Path::new("/sys/block").join(name).join("stat");
        Ok(LoopDevice { path, statistics })
    }

    pub(crate) fn statistics(&self) -> io::Result<Statistics> {
        let text = fs::read_to_string(&self.statistics)?;
        let fields: Vec<u64> = text.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or(0);
        Ok(Statistics { reads: field(0), writes: field(4), sectors_written: field(6), flushes: field(15) })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Nothing to be done about a failure here; the next run finds the device busy and says so.
        drop(Command::new("losetup").arg("--detach").arg(&self.path).status());
    }
}

impl Statistics {
    pub(crate) fn since(self, before: Statistics) -> Statistics {
        Statistics {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            sectors_written: self.sectors_written - before.sectors_written,
            flushes: self.flushes - before.flushes,
        }
    }
}

/// Writes the whole file once: unwritten extents of the host would turn flushes into host journal commits.
fn fill(path: &Path, mib: u64) -> io::Result<()> {
    let bytes = mib << 20;
    if fs::metadata(path).is_ok_and(|m| m.len() == bytes) {
        return Ok(());
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    eprintln!("writing {mib} MiB of {} (once)", path.display());
    let mut file: File = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    let chunk = vec![0xA5; 1 << 20];
    for _ in 0..mib {
        file.write_all(&chunk)?;
    }
    file.sync_all()
}
