//! How long opening takes: a clean volume of 1 TiB, and a volume whose journal is full.

use crate::Arguments;
use crate::system::fresh_volume;
use std::io;
use std::time::{Duration, Instant};
use syncline::{MkfsOptions, OpenOptions, Volume, VolumeOptions};

const TIB: u64 = 1 << 40;
/// A volume whose default journal is the largest default, 1 GiB, would be 64 GiB; a smaller one asks for it.
const RECOVERY_BYTES: u64 = 12 << 30;
const JOURNAL_BYTES: u64 = 1 << 30;

/// Measures and prints both.
pub(crate) fn run(arguments: &Arguments) -> io::Result<()> {
    std::fs::create_dir_all(&arguments.work)?;
    let mut clean = Vec::new();
    let path = arguments.work.join("1tib.img");
    std::fs::File::create(&path)?.set_len(TIB)?;
    fresh_volume(&path, &MkfsOptions::default())?.close()?;
    for _ in 0..arguments.rounds {
        drop_caches()?;
        let start = Instant::now();
        let volume = Volume::open(&path)?;
        clean.push(start.elapsed());
        volume.close()?;
    }
    std::fs::remove_file(&path)?;
    println!("open of a clean 1 TiB volume: median {:.3} s", median(clean).as_secs_f64());

    let path = arguments.work.join("full-journal.img");
    let mut recoveries = Vec::new();
    let mut filled = 0;
    for _ in 0..arguments.rounds {
        std::fs::File::create(&path)?.set_len(RECOVERY_BYTES)?;
        filled = fill_journal(&path)?;
        drop_caches()?;
        let start = Instant::now();
        let volume = Volume::open(&path)?;
        recoveries.push(start.elapsed());
        volume.close()?;
    }
    std::fs::remove_file(&path)?;
    println!(
        "recovery with {:.0} MiB of records in a 1 GiB journal: median {:.3} s",
        filled as f64 / (1 << 20) as f64,
        median(recoveries).as_secs_f64()
    );
    Ok(())
}

/// Fills the journal until maintenance would have to relieve it, then drops the volume without closing it.
fn fill_journal(path: &std::path::Path) -> io::Result<u64> {
    let options = MkfsOptions { journal_bytes: Some(JOURNAL_BYTES), ..MkfsOptions::default() };
    fresh_volume(path, &options)?.close()?;
    // Without background maintenance nothing checkpoints before the journal demands it.
    let volume = VolumeOptions::new().background(false).open(path)?;
    let mut index = 0u64;
    loop {
        let file = OpenOptions::new().write(true).create(true).open(&volume, format!("file-{index}"))?;
        file.write_all_at(&index.to_le_bytes().repeat(128), 0)?;
        index += 1;
        if index.is_multiple_of(64) {
            volume.sync_all()?;
            let load = volume.stats().engine.load;
            if load.ring_bytes * 10 > load.ring_bytes_max * 9 || index > 400_000 {
                return Ok(load.ring_bytes);
            }
        }
    }
}

fn drop_caches() -> io::Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values[values.len() / 2]
}
