//! The fair device: a loop device with direct I/O over a fully written file, and its own statistics.
//!
//! Without root it is the file itself, which has no statistics.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the engine and the file systems lie. A loop device is detached when dropped.
pub(crate) struct Medium {
    pub(crate) path: PathBuf,
    statistics: Option<PathBuf>,
}

/// What a block device has counted since it appeared (`/sys/block/*/stat`).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Statistics {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) sectors_written: u64,
    pub(crate) flushes: u64,
}

/// Whether loop devices, mkfs and mount may be used.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Medium {
    /// Attaches `backing`, created and fully written first if it is missing or of another size.
    pub(crate) fn attach(backing: &Path, mib: u64) -> io::Result<Medium> {
        fill(backing, mib)?;
        if !is_root() {
            return Ok(Medium { path: backing.to_owned(), statistics: None });
        }
        detach_all(backing)?;
        let output =
            Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(backing).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!(
                "losetup failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )));
        }
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        let name = path.file_name().ok_or_else(|| io::Error::other("losetup named no device"))?;
        let statistics = Path::new("/sys/block").join(name).join("stat");
        Ok(Medium { path, statistics: Some(statistics) })
    }

    pub(crate) fn statistics(&self) -> io::Result<Option<Statistics>> {
        self.statistics.as_deref().map(read_statistics).transpose()
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        if self.statistics.is_some() {
            // Nothing to be done about a failure here; the next run detaches what is left.
            drop(Command::new("losetup").arg("--detach").arg(&self.path).status());
        }
    }
}

/// The devices of a run, each attached when it is first needed.
pub(crate) struct Media<'a> {
    work: &'a Path,
    usual_mib: u64,
    attached: BTreeMap<u64, Medium>,
}

impl<'a> Media<'a> {
    /// Detaches what an interrupted run has left in `work`.
    pub(crate) fn new(work: &'a Path, usual_mib: u64) -> io::Result<Media<'a>> {
        for entry in fs::read_dir(work)? {
            let path = entry?.path();
            if is_root() && path.extension().is_some_and(|extension| extension == "img") {
                detach_all(&path)?;
            }
        }
        Ok(Media { work, usual_mib, attached: BTreeMap::new() })
    }

    /// Of this size.
    pub(crate) fn of(&mut self, mib: u64) -> io::Result<&Medium> {
        let name = match mib == self.usual_mib {
            true => "device.img".to_owned(),
            false => format!("device-{mib}.img"),
        };
        match self.attached.entry(mib) {
            Entry::Occupied(attached) => Ok(attached.into_mut()),
            Entry::Vacant(none) => Ok(none.insert(Medium::attach(&self.work.join(name), mib)?)),
        }
    }
}

/// Detaches what an interrupted run left attached to `backing`.
fn detach_all(backing: &Path) -> io::Result<()> {
    let output =
        Command::new("losetup").args(["--noheadings", "--output=NAME", "-j"]).arg(backing).output()?;
    for name in String::from_utf8_lossy(&output.stdout).split_whitespace() {
        Command::new("losetup").args(["--detach", name]).status()?;
    }
    Ok(())
}

/// Of a `stat` file of the block layer.
pub(crate) fn read_statistics(path: &Path) -> io::Result<Statistics> {
    let text = fs::read_to_string(path)?;
    let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    let field = |index: usize| fields.get(index).copied().unwrap_or(0);
    Ok(Statistics { reads: field(0), writes: field(4), sectors_written: field(6), flushes: field(15) })
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
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() == bytes) {
        return Ok(());
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    crate::output::tell(&format!("writing {mib} MiB of {} (once)", path.display()));
    // Under its own name only when it is whole: an interrupted run would leave holes.
    let partial = path.with_extension("partial");
    let mut file: File = OpenOptions::new().create(true).truncate(true).write(true).open(&partial)?;
    let chunk = vec![0xA5; 1 << 20];
    for _ in 0..mib {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    fs::rename(&partial, path)
}
