//! Systems under test: fresh, mounted, measured, removed.

use crate::ablation::{COMPLETE, MECHANISMS, Mechanism};
use crate::arguments::Arguments;
use crate::backend::{Backend, Directory, Engine};
use crate::device::{Medium, Statistics, is_root, read_statistics};
use crate::error::BenchError;
use crate::tools::pgbench::stop_left;
use crate::transport::Transport;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use syncline::{MkfsOptions, SystemClock, SystemEntropy, Volume, VolumeOptions};
use syncline_device::FileDevice;
use syncline_fs::Fs;
use syncline_sqlite::Lent;

/// What can be measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum System {
    /// In this process.
    Engine,
    /// The same with one mechanism replaced by what was done before it.
    Without(&'static Mechanism),
    Mount(Transport),
    Ext4,
    Xfs,
    Btrfs,
    /// A directory of whatever is mounted there.
    Directory(PathBuf),
}

impl System {
    pub(crate) fn parse(name: &str) -> Result<System, BenchError> {
        let system = match name {
            "engine" => System::Engine,
            "syncline" | "mount" => System::Mount(Transport::Best),
            "syncline-dev" => System::Mount(Transport::Dev),
            "ext4" => System::Ext4,
            "xfs" => System::Xfs,
            "btrfs" => System::Btrfs,
            _ => match (name.strip_prefix("dir:"), name.strip_prefix("engine:")) {
                (Some(path), _) => System::Directory(path.into()),
                (None, Some(without)) => MECHANISMS
                    .iter()
                    .chain([&COMPLETE])
                    .find(|known| known.name == without)
                    .map(System::Without)
                    .ok_or_else(|| BenchError::UnknownMechanism(without.to_owned()))?,
                (None, None) => return Err(BenchError::UnknownSystem(name.to_owned())),
            },
        };
        match &system {
            System::Directory(path) if !path.is_dir() => Err(BenchError::NoDirectory(path.clone())),
            System::Mount(_) | System::Ext4 | System::Xfs | System::Btrfs if !is_root() => {
                Err(BenchError::NeedsRoot(name.to_owned()))
            }
            _ => Ok(system),
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            System::Engine => "engine".to_owned(),
            System::Without(mechanism) => mechanism.system_name(),
            System::Mount(Transport::Best) => "syncline".to_owned(),
            System::Mount(Transport::Dev) => "syncline-dev".to_owned(),
            System::Ext4 => "ext4".to_owned(),
            System::Xfs => "xfs".to_owned(),
            System::Btrfs => "btrfs".to_owned(),
            System::Directory(path) => format!("dir:{}", path.display()),
        }
    }

    /// The commands that format it, mount it and unmount it.
    fn commands(&self, syncline: &str, device: &str, at: &str) -> [Vec<String>; 3] {
        let (format, mount, unmount) = match self {
            System::Mount(transport) => (
                vec![syncline, "mkfs", "-f", "-q", device],
                vec![syncline, "mount", "-o", options(*transport), device, at],
                vec![syncline, "umount", at],
            ),
            System::Xfs => {
                (vec!["mkfs.xfs", "-q", "-f", "-K", device], vec!["mount", device, at], vec!["umount", at])
            }
            System::Btrfs => (
                vec!["mkfs.btrfs", "-q", "-f", "-K", device],
                vec!["mount", "-o", "ssd", device, at],
                vec!["umount", at],
            ),
            System::Ext4 | System::Engine | System::Without(_) | System::Directory(_) => {
                let complete = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                (
                    vec!["mkfs.ext4", "-q", "-F", "-E", complete, device],
                    vec!["mount", device, at],
                    vec!["umount", at],
                )
            }
        };
        [format, mount, unmount].map(|words| words.into_iter().map(str::to_owned).collect())
    }
}

/// Of `syncline mount`.
fn options(transport: Transport) -> &'static str {
    match transport {
        Transport::Best => "allow_other,transport=auto",
        Transport::Dev => "allow_other,transport=dev",
    }
}

/// SQLite in this process knows the engine's volume by this name.
const LENT_NAME: &str = "bench";

enum State {
    Engine(Engine),
    /// The same; the loan closes the volume when it ends.
    Lent(Engine, Lent),
    /// The engine's volume, closed. No file is below its device: nothing but a program that is given its path works
    /// with it.
    Released(Directory),
    Mounted {
        directory: Directory,
        unmount: Vec<String>,
        syncline: Option<String>,
    },
    Inside {
        directory: Directory,
        statistics: Option<PathBuf>,
    },
    /// Only between taking it down and the end of its life.
    Removed,
}

/// With the library's bound on memory, unless another one was asked for.
fn engine_options(arguments: &Arguments) -> VolumeOptions {
    let options = VolumeOptions::new();
    match arguments.memory_mib {
        Some(mib) => options.memory_bytes_max(mib << 20),
        None => options,
    }
}

/// A fresh system on the medium, or a fresh directory; taken down when dropped.
pub(crate) struct Mounted<'a> {
    state: State,
    medium: &'a Medium,
}

impl<'a> Mounted<'a> {
    pub(crate) fn fresh(
        system: &System,
        medium: &'a Medium,
        arguments: &Arguments,
    ) -> io::Result<Mounted<'a>> {
        let made = MkfsOptions::default();
        let state = match system {
            System::Engine => {
                State::Engine(Engine(fresh_volume(&medium.path, &made, &engine_options(arguments))?))
            }
            System::Without(mechanism) => State::Engine(Engine(fresh_volume(
                &medium.path,
                &made,
                &engine_options(arguments).ablation(mechanism.ablation),
            )?)),
            System::Directory(path) => inside(path)?,
            kernel => {
                let point = mount_point(arguments)?;
                let syncline = syncline(arguments)?;
                let at = point.display().to_string();
                let [format, mount, unmount] =
                    kernel.commands(&syncline, &medium.path.display().to_string(), &at);
                command(&format)?;
                command(&mount)?;
                let syncline = matches!(kernel, System::Mount(_)).then_some(syncline);
                State::Mounted { directory: Directory::new(point), unmount, syncline }
            }
        };
        Ok(Mounted { state, medium })
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        match &self.state {
            State::Engine(engine) | State::Lent(engine, _) => engine,
            State::Mounted { directory, .. }
            | State::Inside { directory, .. }
            | State::Released(directory) => directory,
            State::Removed => unreachable!("a system is taken down last"),
        }
    }

    /// Where other programs find it; `None` for the engine in this process.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.state {
            State::Mounted { directory, .. } | State::Inside { directory, .. } => Some(&directory.path),
            State::Engine(_) | State::Lent(..) | State::Released(_) | State::Removed => None,
        }
    }

    /// Has the engine close its volume; other systems stay as they are.
    pub(crate) fn release(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.state, State::Removed) {
            State::Engine(engine) => {
                engine.0.close()?;
                self.state = State::Released(Directory::new(self.medium.path.clone()));
            }
            other => self.state = other,
        }
        Ok(())
    }

    /// Has SQLite in this process find the engine's volume; other systems stay as they are.
    pub(crate) fn lend(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.state, State::Removed) {
            State::Engine(engine) => {
                let lent = Lent::new(LENT_NAME, engine.0.clone());
                let lent = lent.map_err(|_| io::Error::other("a volume is lent to SQLite already"))?;
                self.state = State::Lent(engine, lent);
            }
            other => self.state = other,
        }
        Ok(())
    }

    /// What SQLite in this process calls the engine's volume, if it is lent.
    pub(crate) fn lent(&self) -> Option<&'static str> {
        matches!(self.state, State::Lent(..)).then_some(LENT_NAME)
    }

    /// The device with the volume that was closed.
    pub(crate) fn released(&self) -> Option<&Path> {
        match &self.state {
            State::Released(directory) => Some(&directory.path),
            _ => None,
        }
    }

    /// Whether its flushes are requests of their own, which the block layer counts as writes as well.
    pub(crate) fn flushes_alone(&self) -> bool {
        matches!(
            &self.state,
            State::Engine(_)
                | State::Lent(..)
                | State::Released(_)
                | State::Mounted { syncline: Some(_), .. }
        )
    }

    /// Of the device below, where one is known.
    pub(crate) fn statistics(&self) -> io::Result<Option<Statistics>> {
        match &self.state {
            State::Inside { statistics, .. } => statistics.as_deref().map(read_statistics).transpose(),
            _ => self.medium.statistics(),
        }
    }

    /// Journal records written since the volume was opened: the writes that syncs waited for, where their data lies in
    /// the record. `None` if it is not Syncline.
    pub(crate) fn records(&self) -> io::Result<Option<u64>> {
        if let State::Engine(engine) | State::Lent(engine, _) = &self.state {
            return Ok(Some(engine.0.stats().engine.store.groups));
        }
        let Some(told) = self.told()? else { return Ok(None) };
        let groups = told["store"]["groups"].as_u64();
        Ok(Some(groups.ok_or_else(|| io::Error::other("the mount does not tell its records"))?))
    }

    /// How requests reach the daemon, as the mount itself tells it. `None` if it is no mount of Syncline.
    pub(crate) fn transport(&self) -> io::Result<Option<String>> {
        let Some(told) = self.told()? else { return Ok(None) };
        let transport = told["transport"].as_str();
        Ok(Some(
            transport.ok_or_else(|| io::Error::other("the mount does not tell its transport"))?.to_owned(),
        ))
    }

    /// A mount's statistics.
    fn told(&self) -> io::Result<Option<serde_json::Value>> {
        let State::Mounted { directory, syncline: Some(syncline), .. } = &self.state else { return Ok(None) };
        let at = directory.path.display().to_string();
        let told = command(&[syncline.clone(), "stats".to_owned(), at, "--json".to_owned()])?;
        Ok(Some(serde_json::from_slice(&told)?))
    }

    pub(crate) fn remove(mut self) -> io::Result<()> {
        self.take_down()
    }

    fn take_down(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.state, State::Removed) {
            State::Engine(engine) => engine.0.close(),
            State::Mounted { unmount, .. } => command(&unmount).map(drop),
            State::Inside { directory, .. } => fs::remove_dir_all(&directory.path),
            State::Lent(_, lent) => {
                drop(lent);
                Ok(())
            }
            State::Released(_) | State::Removed => Ok(()),
        }
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Only after another failure, which is told; the next run unmounts what is left.
        drop(self.take_down());
    }
}

/// Takes down what an interrupted run has left mounted in `work`, before its device is used again.
pub(crate) fn take_down_left(work: &Path) -> io::Result<()> {
    // Without a daemon behind it, even looking at the mount point fails, but not at the directory it is in.
    let at = work.canonicalize()?.join("mount").display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    match mounts.lines().any(|line| line.split(' ').nth(1) == Some(&at)) {
        true => {
            stop_left(Path::new(&at));
            command(&["umount".to_owned(), at]).map(drop)
        }
        false => Ok(()),
    }
}

/// The command to format, mount and check with.
pub(crate) fn syncline(arguments: &Arguments) -> io::Result<String> {
    match &arguments.syncline {
        Some(path) => Ok(path.display().to_string()),
        None => syncline_cli::find("syncline").map_or_else(
            || Err(io::Error::other("no syncline here or in PATH; give --syncline FILE")),
            |path| Ok(path.display().to_string()),
        ),
    }
}

/// The directory to mount on.
fn mount_point(arguments: &Arguments) -> io::Result<PathBuf> {
    let point = arguments.work.join("mount");
    fs::create_dir_all(&point)?;
    point.canonicalize()
}

/// A fresh directory in `path`.
fn inside(path: &Path) -> io::Result<State> {
    let path = path.canonicalize()?;
    let directory = path.join(format!("syncline-bench-{}", std::process::id()));
    fs::create_dir(&directory)?;
    let device = fs::metadata(&path)?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let statistics = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    let statistics = statistics.exists().then_some(statistics);
    Ok(State::Inside { directory: Directory::new(directory), statistics })
}

/// Formats a device or an existing image file, whatever is on it, and opens the volume.
pub(crate) fn fresh_volume(path: &Path, options: &MkfsOptions, opened: &VolumeOptions) -> io::Result<Volume> {
    let device = FileDevice::open(path, &syncline_device::OpenOptions::default())
        .map_err(|error| io::Error::other(error.to_string()))?;
    let device = Arc::new(device);
    Fs::format(&*device, options, &SystemClock, &SystemEntropy::default(), &mut |_, _| {})?;
    Volume::on_device(device, opened)
}

/// Runs a command and returns its output; its failure is an error that shows what it printed.
pub(crate) fn command(words: &[String]) -> io::Result<Vec<u8>> {
    let (program, arguments) = words.split_first().ok_or_else(|| io::Error::other("no command"))?;
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return Err(io::Error::other(format!("{} failed: {said}", words.join(" "))));
    }
    Ok(output.stdout)
}
