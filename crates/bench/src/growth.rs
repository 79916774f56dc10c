//! `syncline bench --growth`: what an operation costs as what it works on grows by decades.
//!
//! Costs are counts of this process: keys compared in tree nodes, nodes read from the device, device writes; and
//! processor time, which other work on the machine moves a little. Nothing is synced but where syncs are what is
//! counted.

use crate::arguments::Arguments;
use crate::error::BenchError;
use crate::output::Output;
use crate::system::fresh_volume;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use syncline::{MkfsOptions, OpenOptions, Volume, VolumeOptions};
use syncline_device::{Device, FileDevice};
use syncline_fs::{Fs, SystemClock, SystemEntropy};

/// Operations that stand for all others of a decade.
const SAMPLES: u64 = 1000;
/// Files of a directory of the tree; its directories lie two deep.
const FILES_OF_A_DIRECTORY: u64 = 100;
const DIRECTORIES_OF_A_DIRECTORY: u64 = 100;
/// Least decade.
const FIRST: u64 = 1000;
/// Syncs of all callers together.
const SYNCS: u64 = 4000;
const CALLERS: &[u64] = &[1, 10, 100, 1000];
/// Volumes that are made, by powers of two.
const VOLUME_SHIFTS: &[u32] = &[30, 34, 37, 40, 44];
/// Room for ten million files.
const VOLUME_BYTES: u64 = 64 << 30;

/// What was spent up to a moment.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    processor: Duration,
    compared: u64,
    nodes_read: u64,
    writes: u64,
    flushes: u64,
}

impl Spent {
    /// By this thread; nodes and writes are those of all.
    fn now(volume: &Volume) -> Spent {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let stats = volume.stats().engine;
        Spent {
            processor: Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
            compared: syncline_fs::comparisons(),
            nodes_read: stats.store.node_cache_misses,
            writes: stats.device.writes,
            flushes: stats.device.flushes,
        }
    }
}

/// Writes a table as it goes.
struct Table<'a, 'b> {
    out: &'a mut Output<'b>,
}

impl<'a, 'b> Table<'a, 'b> {
    fn begin(out: &'a mut Output<'b>, what: &str) -> Result<Table<'a, 'b>, BenchError> {
        out.print(&format!(
            "\n| {what} | operation | comparisons | nodes read | processor us | anonymous memory MiB |\n|---|---|---|---|---|---|\n"
        ))?;
        Ok(Table { out })
    }

    /// Does `work`, and tells what each of its `operations` cost.
    fn row(
        &mut self,
        volume: &Volume,
        size: u64,
        operation: &str,
        operations: u64,
        work: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), BenchError> {
        let before = Spent::now(volume);
        work()?;
        let after = Spent::now(volume);
        let each = |before: u64, after: u64| (after - before) as f64 / operations as f64;
        self.out.print(&format!(
            "| {size} | {operation} | {:.1} | {:.3} | {:.1} | {:.0} |\n",
            each(before.compared, after.compared),
            each(before.nodes_read, after.nodes_read),
            (after.processor - before.processor).as_secs_f64() * 1e6 / operations as f64,
            anonymous_mib()
        ))?;
        Ok(())
    }
}

/// Measures and prints all of it.
pub(crate) fn run(arguments: &Arguments, out: &mut Output<'_>) -> Result<(), BenchError> {
    std::fs::create_dir_all(&arguments.work).map_err(BenchError::of(&arguments.work))?;
    let path = arguments.work.join("growth.img");
    let measured = volumes(&path, out)
        .and_then(|()| directory(&path, arguments.largest, out))
        .and_then(|()| tree(&path, arguments.largest.saturating_mul(10), out))
        .and_then(|()| open_files(&path, arguments.largest / 10, out))
        .and_then(|()| callers(&path, out));
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => measured.and(Err(error.into())),
        _ => measured,
    }
}

/// Decades up to `largest`.
fn decades(largest: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(FIRST.min(largest)), |&size| size.checked_mul(10))
        .take_while(move |&size| size <= largest)
}

/// Numbers below `size` that a program would call random.
fn samples(size: u64) -> impl Iterator<Item = u64> {
    (1..=SAMPLES).map(move |index| index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % size)
}

fn fresh(path: &Path, bytes: u64) -> Result<Volume, BenchError> {
    let file = std::fs::File::create(path).map_err(BenchError::of(path))?;
    file.set_len(bytes).map_err(BenchError::of(path))?;
    Ok(fresh_volume(path, &MkfsOptions::default(), &VolumeOptions::new())?)
}

fn volumes(path: &Path, out: &mut Output<'_>) -> Result<(), BenchError> {
    out.print(
        "\n| volume GiB | written by mkfs MiB | writes | of the host MiB | processor s | peak memory MiB to open |\n|---|---|---|---|---|---|\n",
    )?;
    for shift in VOLUME_SHIFTS {
        let gib = (1u64 << shift) >> 30;
        // A host's file may end a block earlier.
        let bytes = (1u64 << shift) - (1 << 20);
        std::fs::File::create(path).map_err(BenchError::of(path))?;
        if let Err(error) = std::fs::OpenOptions::new().write(true).open(path)?.set_len(bytes) {
            out.print(&format!("| {gib} | not possible on this host's file system: {error} | | | | |\n"))?;
            continue;
        }
        let began = clock_gettime(ClockId::ProcessCPUTime);
        let device = FileDevice::open(path, &syncline_device::OpenOptions::default())
            .map_err(|error| io::Error::other(error.to_string()))?;
        Fs::format(&device, &MkfsOptions::default(), &SystemClock, &SystemEntropy::default(), &mut |_, _| {})
            .map_err(|error| io::Error::other(error.to_string()))?;
        let ended = clock_gettime(ClockId::ProcessCPUTime);
        let counted = device.counters();
        drop(device);
        let host = std::fs::metadata(path)?.blocks() * 512;
        let before = anonymous_mib();
        let volume = Volume::open(path)?;
        let opened = anonymous_mib() - before;
        volume.close()?;
        let seconds = |time: rustix::time::Timespec| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        out.print(&format!(
            "| {gib} | {:.1} | {} | {:.1} | {:.3} | {opened:.1} |\n",
            mib(counted.written_bytes),
            counted.writes,
            mib(host),
            seconds(ended) - seconds(began)
        ))?;
    }
    Ok(())
}

/// One directory that grows.
fn directory(path: &Path, largest: u64, out: &mut Output<'_>) -> Result<(), BenchError> {
    let volume = fresh(path, VOLUME_BYTES)?;
    volume.create_dir("all")?;
    let name = |number: u64| format!("all/{number:08}");
    let mut table = Table::begin(out, "entries of a directory")?;
    let mut made = 0;
    for size in decades(largest) {
        let more = size - made;
        table.row(&volume, size, "create", more, || {
            (made..size).try_for_each(|number| volume.create_file(name(number)).map(drop))
        })?;
        made = size;
        look_at(&mut table, &volume, size, &name)?;
        table.row(&volume, size, "list, for each entry", size, || {
            volume.read_dir("all")?.try_for_each(|entry| entry.map(drop))
        })?;
    }
    Ok(volume.close()?)
}

/// A tree that grows.
fn tree(path: &Path, largest: u64, out: &mut Output<'_>) -> Result<(), BenchError> {
    let volume = fresh(path, VOLUME_BYTES)?;
    let place = |number: u64| {
        let directory = number / FILES_OF_A_DIRECTORY;
        (directory / DIRECTORIES_OF_A_DIRECTORY, directory)
    };
    let name = |number: u64| {
        let (upper, lower) = place(number);
        format!("{upper}/{lower}/{number}")
    };
    let mut table = Table::begin(out, "files of a tree")?;
    let mut made = 0;
    for size in decades(largest) {
        let more = size - made;
        table.row(&volume, size, "create", more, || {
            for number in made..size {
                let (upper, lower) = place(number);
                if number % FILES_OF_A_DIRECTORY == 0 {
                    volume.create_dir_all(format!("{upper}/{lower}"))?;
                }
                volume.create_file(name(number))?;
            }
            Ok(())
        })?;
        made = size;
        look_at(&mut table, &volume, size, &name)?;
    }
    Ok(volume.close()?)
}

/// Samples of what there is: looked up, changed, removed and made again.
fn look_at(
    table: &mut Table<'_, '_>,
    volume: &Volume,
    size: u64,
    name: &dyn Fn(u64) -> String,
) -> Result<(), BenchError> {
    table.row(volume, size, "lookup", SAMPLES, || {
        samples(size).try_for_each(|number| volume.metadata(name(number)).map(drop))
    })?;
    table.row(volume, size, "lookup of the same again", SAMPLES, || {
        samples(size).try_for_each(|number| volume.metadata(name(number)).map(drop))
    })?;
    table.row(volume, size, "mode", SAMPLES, || {
        samples(size).try_for_each(|number| volume.set_permissions(name(number), 0o600))
    })?;
    table.row(volume, size, "remove and create", SAMPLES, || {
        samples(size).try_for_each(|number| {
            volume.remove_file(name(number))?;
            volume.create_file(name(number)).map(drop)
        })
    })
}

/// Files that are open at the same time, each with a page that is not synced yet.
fn open_files(path: &Path, largest: u64, out: &mut Output<'_>) -> Result<(), BenchError> {
    let volume = fresh(path, VOLUME_BYTES)?;
    volume.create_dir("open")?;
    let mut table = Table::begin(out, "open files")?;
    let mut open = Vec::new();
    for size in decades(largest.max(FIRST)) {
        let more = size - open.len() as u64;
        table.row(&volume, size, "create and open", more, || {
            while (open.len() as u64) < size {
                let mut options = OpenOptions::new();
                let options = options.read(true).write(true).create_new(true);
                open.push(options.open(&volume, format!("open/{}", open.len()))?);
            }
            Ok(())
        })?;
        table.row(&volume, size, "write", SAMPLES, || {
            samples(size).try_for_each(|number| open[number as usize].write_all_at(&[7; 100], 0))
        })?;
        table.row(&volume, size, "read", SAMPLES, || {
            samples(size).try_for_each(|number| open[number as usize].read_at(&mut [0; 100], 0).map(drop))
        })?;
        table.row(&volume, size, "sync", SAMPLES, || {
            samples(size).try_for_each(|number| open[number as usize].sync_all())
        })?;
    }
    let (all, count) = (std::mem::take(&mut open), largest.max(FIRST));
    table.row(&volume, count, "close", count, || {
        drop(all);
        Ok(())
    })?;
    Ok(volume.close()?)
}

/// Threads that append to a file each and sync.
fn callers(path: &Path, out: &mut Output<'_>) -> Result<(), BenchError> {
    out.print(
        "\n| callers | writes for each sync | flushes for each sync | syncs for each flush | anonymous memory MiB |\n|---|---|---|---|---|\n",
    )?;
    for &callers in CALLERS {
        let volume = fresh(path, VOLUME_BYTES)?;
        let each = (SYNCS / callers).max(4);
        let (ready, done) =
            (Arc::new(Barrier::new(callers as usize + 1)), Arc::new(Barrier::new(callers as usize + 1)));
        let (before, after) = std::thread::scope(|scope| {
            for caller in 0..callers {
                let (volume, ready, done) = (&volume, ready.clone(), done.clone());
                scope.spawn(move || {
                    let file = OpenOptions::new().write(true).create(true).open(volume, format!("{caller}"));
                    ready.wait();
                    let synced = file.and_then(|file| {
                        (0..each).try_for_each(|index| {
                            file.write_all_at(&[index as u8; 4096], index * 4096)?;
                            file.sync_all()
                        })
                    });
                    done.wait();
                    synced.expect("a sync on a volume of its own");
                });
            }
            ready.wait();
            let before = Spent::now(&volume);
            done.wait();
            (before, Spent::now(&volume))
        });
        let syncs = (callers * each) as f64;
        let flushes = (after.flushes - before.flushes) as f64;
        out.print(&format!(
            "| {callers} | {:.3} | {:.3} | {:.1} | {:.0} |\n",
            (after.writes - before.writes) as f64 / syncs,
            flushes / syncs,
            syncs / flushes.max(1.0),
            anonymous_mib()
        ))?;
        volume.close()?;
    }
    Ok(())
}

/// Of this process, in MiB: what no file backs.
fn anonymous_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decades_end_at_the_largest() {
        assert_eq!(decades(1_000_000).collect::<Vec<_>>(), [1000, 10_000, 100_000, 1_000_000]);
        assert_eq!(decades(100).collect::<Vec<_>>(), [100]);
    }
}
