//! What snapshots cost: `cargo run --release -p syncline --example snapshots -- IMAGE [FILES]`.
//!
//! Makes a volume of version 2 in a new image and prints, as medians in microseconds with the device's writes and
//! flushes: making a snapshot of a clean volume; an append of 100 bytes with its sync, beside 0, 1 and 1,000 snapshots,
//! in turn with a write and a flush of 4 KiB to a file of the host (the floor); and in seconds how long what deleted
//! snapshots had takes to come back, of a tree of so many files (default 100,000) of which nothing, one in a hundred,
//! and everything has changed.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use syncline::{MkfsOptions, OpenOptions, Volume, VolumeOptions};

const ROUNDS: usize = 300;
const FILES_IN_A_DIRECTORY: u64 = 500;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args_os().skip(1);
    let image = PathBuf::from(arguments.next().ok_or("usage: snapshots IMAGE [FILES]")?);
    let files = arguments.next().map_or(Ok(100_000), |count| count.to_string_lossy().parse())?;
    if image.exists() {
        return Err(format!("{} exists; name an image that is to be made", image.display()).into());
    }
    let measured = measure(&image, files);
    std::fs::remove_file(&image)?;
    measured
}

fn measure(image: &Path, files: u64) -> Result<(), Failure> {
    let size = (4 << 30) + files * 4096;
    let options = MkfsOptions::default().size_bytes(size);
    let volume = VolumeOptions::new().create(image, &options)?;
    small(&volume, &image.with_extension("floor"))?;
    large(&volume, files)?;
    volume.close()?;
    Ok(())
}

/// Medians of rounds that take turns.
fn small(volume: &Volume, floor: &Path) -> Result<(), Failure> {
    let host = File::create(floor)?;
    host.set_len(1 << 20)?;
    host.sync_all()?;
    volume.write("log", b"begun")?;
    volume.sync_all()?;
    let file = OpenOptions::new().append(true).open(volume, "log")?;
    let mut made = 0;
    for snapshots in [0, 1, 1000] {
        let (mut floors, mut appends, mut creates) = (Vec::new(), Vec::new(), Vec::new());
        while made < snapshots {
            volume.snapshot(&format!("s{made}"))?;
            made += 1;
        }
        let mut device = (0, 0);
        for round in 0..ROUNDS {
            let began = Instant::now();
            host.write_all_at(&[round as u8; 4096], 0)?;
            host.sync_data()?;
            floors.push(began.elapsed());
            let before = volume.stats().engine.device;
            let began = Instant::now();
            (&file).write_all(&[round as u8; 100])?;
            file.sync_data()?;
            appends.push(began.elapsed());
            let after = volume.stats().engine.device;
            device = (device.0 + after.writes - before.writes, device.1 + after.flushes - before.flushes);
        }
        // What the syncs have logged goes home before, so that the snapshot finds the volume clean.
        volume.snapshot("clean")?;
        volume.delete_snapshot("clean")?;
        for round in 0..ROUNDS / 10 {
            let before = volume.stats().engine.device;
            let began = Instant::now();
            volume.snapshot(&format!("c{round}"))?;
            creates.push(began.elapsed());
            let after = volume.stats().engine.device;
            if round == 5 {
                let (writes, flushes) = (after.writes - before.writes, after.flushes - before.flushes);
                println!(
                    "beside {snapshots:4} snapshots: one more takes {writes} writes and {flushes} flushes"
                );
            }
        }
        for round in 0..ROUNDS / 10 {
            volume.delete_snapshot(&format!("c{round}"))?;
        }
        volume.reclaim()?;
        let (floor, append, create) = (median(&mut floors), median(&mut appends), median(&mut creates));
        let rounds = ROUNDS as f64;
        println!(
            "beside {snapshots:4} snapshots: floor {floor} us, append and sync {append} us ({:.2} writes, {:.2} flushes), \
             snapshot {create} us",
            device.0 as f64 / rounds,
            device.1 as f64 / rounds
        );
    }
    for number in 0..made {
        volume.delete_snapshot(&format!("s{number}"))?;
    }
    let began = Instant::now();
    volume.reclaim()?;
    println!("{made} snapshots were given back in {:.2} s", began.elapsed().as_secs_f64());
    std::fs::remove_file(floor)?;
    Ok(())
}

fn median(times: &mut [Duration]) -> u128 {
    times.sort();
    times.get(times.len() / 2).map_or(0, Duration::as_micros)
}

fn path(file: u64) -> String {
    format!("tree/{}/{file}", file / FILES_IN_A_DIRECTORY)
}

/// Deletions of snapshots of a large tree.
fn large(volume: &Volume, files: u64) -> Result<(), Failure> {
    volume.create_dir("tree")?;
    for file in 0..files {
        if file % FILES_IN_A_DIRECTORY == 0 {
            volume.create_dir(format!("tree/{}", file / FILES_IN_A_DIRECTORY))?;
        }
        volume.write(path(file), format!("file {file}"))?;
    }
    volume.sync_all()?;
    for (what, every) in [("nothing", 0), ("one in a hundred", 100), ("everything", 1)] {
        let began = Instant::now();
        volume.snapshot("large")?;
        let made = began.elapsed();
        for file in (0..files).filter(|file| every > 0 && file % every == 0) {
            volume.write(path(file), format!("changed {file}"))?;
        }
        volume.sync_all()?;
        volume.checkpoint()?;
        let began = Instant::now();
        volume.delete_snapshot("large")?;
        let deleted = began.elapsed();
        volume.reclaim()?;
        println!(
            "{files} files, {what} changed: made in {:.1} ms, deleted in {:.1} ms, space back in {:.2} s",
            made.as_secs_f64() * 1e3,
            deleted.as_secs_f64() * 1e3,
            began.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
