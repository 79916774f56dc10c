//! How long opening takes: a clean volume of 1 TiB, and volumes whose journal is as full as admission lets it become.
//!
//! A journal is filled in a session without background work, so that nothing checkpoints before the ring or the bound
//! on dirty tree nodes demands it: with the default memory bound creations meet the latter first, so they are also
//! made with so much memory that the ring becomes full. The volume is then dropped without being closed. Each
//! recovery runs in a process of its own with the default memory bound (`syncline bench --recover`), so that its peak
//! memory and processor time are its own.

use crate::arguments::Arguments;
use crate::error::BenchError;
use crate::output::Output;
use crate::system::fresh_volume;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use syncline::{MkfsOptions, OpenOptions, Volume, VolumeOptions};

const TIB: u64 = 1 << 40;
/// A volume whose default journal is the largest default, 1 GiB, would be 64 GiB; a smaller one asks for it.
const RECOVERY_BYTES: u64 = 24 << 30;
const JOURNAL_BYTES: u64 = 1 << 30;
/// Memory of the session that fills the journal: dirty nodes and logged pages must not make it checkpoint.
const FILLING_MEMORY_BYTES: usize = 12 << 30;
/// Dirty nodes that are left below their bound: 64 creations dirty fewer.
const NODES_MARGIN_BYTES: u64 = 8 << 20;
/// Longest record of any journal, which may have to skip the end of the lap; admission leaves as much free, and some
/// more.
const RECORD_BYTES_MAX: u64 = 64 << 20;
const MARGIN_BYTES: u64 = 8 << 20;
/// Pages that the overwriting program syncs in turn: 32 MiB, as many as a session leaves undestaged.
const OVERWRITTEN_PAGES: u64 = 8192;
/// Of the files created, one in so many has content.
const FILES_PER_IMAGE: u64 = 256;

/// What a journal is full of.
#[derive(Debug, Clone, Copy)]
enum Filling {
    /// New files, synced 64 at a time; some have 1 KiB of content. As many as the default memory bound takes.
    Creates,
    /// The same, as many as the ring takes.
    UnboundedCreates,
    /// 4 KiB overwrites, each synced.
    Overwrites,
}

/// Measures and prints all of it.
pub(crate) fn run(arguments: &Arguments, out: &mut Output<'_>) -> Result<(), BenchError> {
    std::fs::create_dir_all(&arguments.work)?;
    if arguments.fill_only {
        let path = arguments.work.join("full-journal.img");
        std::fs::File::create(&path)?.set_len(RECOVERY_BYTES)?;
        fill_journal(&path, Filling::UnboundedCreates, arguments.journal_mib << 20)?;
        return Ok(());
    }
    measure_clean(arguments, out)?;
    for filling in [Filling::Creates, Filling::UnboundedCreates, Filling::Overwrites] {
        measure_recovery(arguments, filling, out)?;
    }
    Ok(())
}

fn measure_clean(arguments: &Arguments, out: &mut Output<'_>) -> Result<(), BenchError> {
    let mut clean = Vec::new();
    let path = arguments.work.join("1tib.img");
    std::fs::File::create(&path)?.set_len(TIB)?;
    fresh_volume(&path, &MkfsOptions::default(), &VolumeOptions::new())?.close()?;
    for _ in 0..arguments.rounds {
        drop_caches()?;
        let start = Instant::now();
        let volume = Volume::open(&path)?;
        clean.push(start.elapsed());
        volume.close()?;
    }
    std::fs::remove_file(&path)?;
    out.print(&format!("open of a clean 1 TiB volume: median {:.3} s\n", median(clean).as_secs_f64()))
}

/// The volume is filled once; its recoveries write to copies that share what they do not change, if the host can.
fn measure_recovery(arguments: &Arguments, filling: Filling, out: &mut Output<'_>) -> Result<(), BenchError> {
    let path = arguments.work.join("full-journal.img");
    let copy = arguments.work.join("full-journal-copy.img");
    std::fs::File::create(&path)?.set_len(RECOVERY_BYTES)?;
    let (bytes, operations) = fill_journal(&path, filling, arguments.journal_mib << 20)?;
    let journal_mib = arguments.journal_mib;
    out.print(&format!(
        "journal of {journal_mib} MiB with {:.0} MiB of records, {operations} {filling:?}:\n",
        mib(bytes)
    ))?;
    for _ in 0..arguments.rounds {
        let sparse_copy =
            Command::new("cp").args(["--sparse=always", "--reflink=auto"]).args([&path, &copy]).status()?;
        if !sparse_copy.success() {
            return Err(io::Error::other("the filled volume could not be copied").into());
        }
        drop_caches()?;
        let recovery = Command::new(std::env::current_exe()?).arg("--recover").arg(&copy).status()?;
        if !recovery.success() {
            return Err(io::Error::other("the recovery failed").into());
        }
    }
    std::fs::remove_file(&copy)?;
    Ok(std::fs::remove_file(&path)?)
}

/// Creates many files in one directory, with the background at work and without a sync, and prints how fast it went.
pub(crate) fn creates(arguments: &Arguments, out: &mut Output<'_>) -> Result<(), BenchError> {
    std::fs::create_dir_all(&arguments.work)?;
    let path = arguments.work.join("creates.img");
    std::fs::File::create(&path)?.set_len(RECOVERY_BYTES)?;
    let options = MkfsOptions::default().journal_bytes(JOURNAL_BYTES);
    let volume = fresh_volume(&path, &options, &VolumeOptions::new())?;
    let files = arguments.creates.unwrap_or(0);
    let part = (files / 10).max(1);
    let mut start = Instant::now();
    for index in 0..files {
        OpenOptions::new().write(true).create(true).open(&volume, format!("file-{index}"))?;
        if (index + 1).is_multiple_of(part) {
            let stats = volume.stats().engine;
            out.print(&format!(
                "{} files: {:.0}/s; so far {} checkpoints, {:.0} MiB written, {} nodes read, {:.1} s of processor time\n",
                index + 1,
                part as f64 / start.elapsed().as_secs_f64(),
                stats.store.checkpoints,
                mib(stats.device.written_bytes),
                stats.store.node_cache_misses,
                own_usage().0.as_secs_f64(),
            ))?;
            start = Instant::now();
        }
    }
    volume.close()?;
    Ok(std::fs::remove_file(&path)?)
}

/// Opens a volume and prints what that took.
pub(crate) fn recover(path: &Path, out: &mut Output<'_>) -> Result<(), BenchError> {
    let start = Instant::now();
    let volume = Volume::open(path)?;
    let elapsed = start.elapsed();
    let usage = own_usage();
    let load = volume.stats().engine.load;
    let told = format!(
        "recovered in {:.3} s, {:.3} s of processor time, peak memory {:.0} MiB, {} images left\n",
        elapsed.as_secs_f64(),
        usage.0.as_secs_f64(),
        mib(usage.1),
        load.images
    );
    volume.close()?;
    out.print(&told)
}

/// Processor time of this process and its peak memory in bytes.
fn own_usage() -> (Duration, u64) {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    (Duration::new(time.tv_sec as u64, time.tv_nsec as u32), kib.unwrap_or(0) * 1024)
}

/// Fills the journal until an operation would have to relieve it, then drops the volume without closing it. Returns the
/// bytes of the ring in use and the operations done.
fn fill_journal(path: &Path, filling: Filling, journal_bytes: u64) -> io::Result<(u64, u64)> {
    let format = MkfsOptions::default().journal_bytes(journal_bytes);
    fresh_volume(path, &format, &VolumeOptions::new())?.close()?;
    let options = match filling {
        Filling::Creates => VolumeOptions::new(),
        _ => VolumeOptions::new().memory_bytes_max(FILLING_MEMORY_BYTES),
    };
    let volume = options.background(false).open(path)?;
    let mut overwritten = OpenOptions::new();
    let overwritten = overwritten.write(true).create(true).open(&volume, "overwritten")?;
    let mut index = 0u64;
    loop {
        match filling {
            Filling::Creates | Filling::UnboundedCreates => {
                let file =
                    OpenOptions::new().write(true).create(true).open(&volume, format!("file-{index}"))?;
                // Each live image keeps a block of the ring free: too many, and the ring is full of nothing.
                if index.is_multiple_of(FILES_PER_IMAGE) {
                    file.write_all_at(&index.to_le_bytes().repeat(128), 0)?;
                }
            }
            Filling::Overwrites => {
                let page = index.wrapping_mul(2_654_435_761) % OVERWRITTEN_PAGES;
                overwritten.write_all_at(&index.to_le_bytes().repeat(512), page * 4096)?;
                overwritten.sync_data()?;
            }
        }
        index += 1;
        if index.is_multiple_of(64) {
            volume.sync_all()?;
            let load = volume.stats().engine.load;
            let margin = (load.ring_bytes_max / 8).min(RECORD_BYTES_MAX) + MARGIN_BYTES;
            if load.ring_bytes + load.images * 4096 + margin > load.ring_bytes_max
                || load.dirty_node_bytes + NODES_MARGIN_BYTES > load.dirty_node_bytes_max
            {
                return Ok((load.ring_bytes, index));
            }
        }
    }
}

fn drop_caches() -> io::Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values[values.len() / 2]
}
