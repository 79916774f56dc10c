//! Systems under test: fresh, mounted, measured, removed; in interleaved rounds.

use crate::Arguments;
use crate::backend::{Backend, Directory, Engine};
use crate::device::LoopDevice;
use crate::floor::Floor;
use crate::report::{self, Row};
use crate::workload::{self, Scale, Workload};
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use syncline::{Fs, MkfsOptions, SystemClock, SystemEntropy, Volume, VolumeOptions};
use syncline_device::FileDevice;

/// Runs everything the arguments ask for and prints it.
pub(crate) fn run(arguments: &Arguments) -> io::Result<()> {
    let workloads = chosen(&arguments.workloads)?;
    let device = LoopDevice::attach(&arguments.work.join("device.img"), arguments.device_mib)?;
    let floor = Floor::attach(&arguments.work)?;
    if let Some(cpu) = arguments.cpu {
        pin(cpu)?;
    }
    let scale = Scale {
        operations: arguments.operations,
        sequential_bytes: arguments.sequential_mib << 20,
        floor: &floor,
    };
    let mut rows = Vec::new();
    for round in 0..arguments.rounds {
        for system in &arguments.systems {
            eprintln!("round {}: {system}", round + 1);
            let mounted = Mounted::fresh(system, &device.path, arguments)?;
            for workload in &workloads {
                let (before, records) = (device.statistics()?, mounted.records()?);
                let measurement = workload.run(mounted.backend(), scale, round as u64)?;
                let statistics = device.statistics()?.since(before);
                let records = mounted.records()?.zip(records).map(|(after, before)| after - before);
                rows.push(Row {
                    system: system.clone(),
                    workload: workload.name,
                    about: workload.about,
                    round,
                    measurement,
                    device: statistics,
                    records,
                });
            }
            mounted.remove()?;
        }
    }
    report::print(&rows);
    if let Some(path) = &arguments.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        std::fs::write(path, serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

fn chosen(names: &[String]) -> io::Result<Vec<&'static Workload>> {
    if names.is_empty() {
        return Ok(workload::ALL.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            workload::ALL.iter().find(|workload| workload.name == name).ok_or_else(|| {
                let known: Vec<_> = workload::ALL.iter().map(|workload| workload.name).collect();
                io::Error::other(format!("there is no workload {name}; take one of {}", known.join(", ")))
            })
        })
        .collect()
}

fn pin(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// A system on the device.
enum Mounted {
    Engine(Engine),
    Kernel { directory: Directory, unmount: Vec<String> },
}

impl Mounted {
    fn fresh(system: &str, device: &Path, arguments: &Arguments) -> io::Result<Mounted> {
        let point = arguments.work.join("mount");
        std::fs::create_dir_all(&point)?;
        let path = device.display().to_string();
        let at = point.display().to_string();
        let syncline = arguments.syncline.display().to_string();
        let (format, mount, unmount): (Vec<&str>, Vec<&str>, Vec<&str>) = match system {
            "engine" => return Self::engine(device),
            "syncline" => (
                vec![&syncline, "mkfs", "-f", &path],
                vec![&syncline, "mount", &path, &at],
                vec![&syncline, "umount", &at],
            ),
            "ext4" => (
                vec![
                    "mkfs.ext4",
                    "-q",
                    "-F",
                    "-E",
                    "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
                    &path,
                ],
                vec!["mount", &path, &at],
                vec!["umount", &at],
            ),
            "xfs" => {
                (vec!["mkfs.xfs", "-q", "-f", "-K", &path], vec!["mount", &path, &at], vec!["umount", &at])
            }
            "btrfs" => (
                vec!["mkfs.btrfs", "-q", "-f", "-K", &path],
                vec!["mount", "-o", "ssd", &path, &at],
                vec!["umount", &at],
            ),
            other => {
                return Err(io::Error::other(format!(
                    "there is no system {other}; take engine, syncline, ext4, xfs or btrfs"
                )));
            }
        };
        command(&format)?;
        command(&mount)?;
        let unmount = unmount.into_iter().map(str::to_string).collect();
        Ok(Mounted::Kernel { directory: Directory(point), unmount })
    }

    fn engine(device: &Path) -> io::Result<Mounted> {
        let volume = fresh_volume(device, &MkfsOptions::default())?;
        Ok(Mounted::Engine(Engine(volume)))
    }

    fn backend(&self) -> &dyn Backend {
        match self {
            Mounted::Engine(engine) => engine,
            Mounted::Kernel { directory, .. } => directory,
        }
    }

    /// Journal records written since the volume was opened; `None` if it is not Syncline.
    fn records(&self) -> io::Result<Option<u64>> {
        match self {
            Mounted::Engine(engine) => Ok(Some(engine.0.stats().engine.store.groups)),
            Mounted::Kernel { directory, unmount } => match unmount.as_slice() {
                [syncline, _, _] => {
                    let at = directory.0.display().to_string();
                    let told = command(&[syncline, "stats", &at, "--json"])?;
                    let told: serde_json::Value = serde_json::from_slice(&told)?;
                    let groups = told["store"]["groups"].as_u64();
                    Ok(Some(groups.ok_or_else(|| io::Error::other("the mount does not tell its records"))?))
                }
                _ => Ok(None),
            },
        }
    }

    fn remove(self) -> io::Result<()> {
        match self {
            Mounted::Engine(engine) => engine.0.close(),
            Mounted::Kernel { unmount, .. } => {
                let words: Vec<&str> = unmount.iter().map(String::as_str).collect();
                command(&words).map(drop)
            }
        }
    }
}

/// Formats a device or an existing image file, whatever is on it, and opens the volume.
pub(crate) fn fresh_volume(path: &Path, options: &MkfsOptions) -> io::Result<Volume> {
    let device = FileDevice::open(path, &syncline_device::OpenOptions::default())
        .map_err(|error| io::Error::other(error.to_string()))?;
    let device = Arc::new(device);
    Fs::format(&*device, options, &SystemClock, &SystemEntropy::default(), &mut |_, _| {})?;
    Volume::on_device(device, &VolumeOptions::new())
}

/// Runs a command and returns its output; its failure is an error that shows what it printed.
pub(crate) fn command(words: &[&str]) -> io::Result<Vec<u8>> {
    let (program, arguments) = words.split_first().ok_or_else(|| io::Error::other("no command"))?;
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| io::Error::other(format!("{program}: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return Err(io::Error::other(format!("{} failed: {said}", words.join(" "))));
    }
    Ok(output.stdout)
}
