//! The workloads, each defined once.

use crate::backend::Backend;
use crate::floor::Floor;
use crate::report::{Latencies, Measurement};
use std::io;
use std::time::{Duration, Instant};

/// Sizes of a run.
#[derive(Clone, Copy)]
pub(crate) struct Scale<'a> {
    pub(crate) operations: u64,
    pub(crate) sequential_bytes: u64,
    /// Measured between the operations.
    pub(crate) floor: &'a Floor,
}

/// A named workload.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    run: fn(&dyn Backend, Scale<'_>, u64) -> io::Result<Measurement>,
}

impl Workload {
    /// Runs it on fresh names of `round`.
    pub(crate) fn run(&self, backend: &dyn Backend, scale: Scale<'_>, round: u64) -> io::Result<Measurement> {
        (self.run)(backend, scale, round)
    }
}

const PAGE: usize = 4096;
const STREAM: usize = 1 << 20;
/// Dirty data of the neighbour in `small-beside-large`.
const NEIGHBOUR_BYTES: u64 = 256 << 20;

pub(crate) const ALL: &[Workload] = &[
    Workload { name: "overwrite", about: "overwrite 4 KiB + fsync", run: overwrite },
    Workload { name: "append", about: "append 4 KiB + fsync", run: append },
    Workload { name: "create", about: "create + 4 KiB + fsync", run: create },
    Workload { name: "replace", about: "write temp, fsync, rename over, fsync directory", run: replace },
    Workload {
        name: "small-beside-large",
        about: "4 KiB fsync while a neighbour has 256 MiB dirty",
        run: small_beside_large,
    },
    Workload { name: "sequential-write", about: "sequential write, one fsync", run: sequential_write },
    Workload { name: "sequential-read-cold", about: "sequential read, cold", run: sequential_read_cold },
    Workload { name: "sequential-read-warm", about: "sequential read, warm", run: sequential_read_warm },
];

fn page(index: u64) -> Vec<u8> {
    let mut page = vec![0x5A; PAGE];
    page[..8].copy_from_slice(&index.to_le_bytes());
    page
}

/// Times each call of `operation`, with slices of the floor in between.
fn timed(
    operations: u64,
    floor: &Floor,
    mut operation: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<Measurement> {
    let (mut latencies, mut floor_latencies) = (Latencies::default(), Latencies::default());
    let start = Instant::now();
    let mut apart = Duration::ZERO;
    for index in 0..operations {
        let begin = Instant::now();
        operation(index)?;
        latencies.push(begin.elapsed());
        apart += floor.slice(index, &mut floor_latencies)?;
    }
    Ok(Measurement::operations(operations, start.elapsed() - apart, latencies, floor_latencies))
}

fn overwrite(backend: &dyn Backend, scale: Scale<'_>, round: u64) -> io::Result<Measurement> {
    let file = backend.create(&format!("overwrite-{round}"))?;
    file.write_at(0, &vec![1; 256 * PAGE])?;
    file.sync()?;
    timed(scale.operations, scale.floor, |index| {
        file.write_at(index * 7919 % 256 * PAGE as u64, &page(index))?;
        file.sync()
    })
}

fn append(backend: &dyn Backend, scale: Scale<'_>, round: u64) -> io::Result<Measurement> {
    let file = backend.create(&format!("append-{round}"))?;
    file.sync()?;
    timed(scale.operations, scale.floor, |index| {
        file.write_at(index * PAGE as u64, &page(index))?;
        file.sync()
    })
}

fn create(backend: &dyn Backend, scale: Scale<'_>, round: u64) -> io::Result<Measurement> {
    backend.make_directory(&format!("create-{round}"))?;
    backend.sync_directory(&format!("create-{round}"))?;
    timed(scale.operations, scale.floor, |index| {
        let file = backend.create(&format!("create-{round}/{index}"))?;
        file.write_at(0, &page(index))?;
        file.sync()
    })
}

fn replace(backend: &dyn Backend, scale: Scale<'_>, round: u64) -> io::Result<Measurement> {
    let directory = format!("replace-{round}");
    backend.make_directory(&directory)?;
    backend.sync_directory(&directory)?;
    let (temporary, name) = (format!("{directory}/temporary"), format!("{directory}/name"));
    timed(scale.operations / 2, scale.floor, |index| {
        let file = backend.create(&temporary)?;
        file.write_at(0, &page(index))?;
        file.sync()?;
        backend.rename(&temporary, &name)?;
        backend.sync_directory(&directory)
    })
}

fn small_beside_large(backend: &dyn Backend, scale: Scale<'_>, round: u64) -> io::Result<Measurement> {
    let large = backend.create(&format!("large-{round}"))?;
    let small = backend.create(&format!("small-{round}"))?;
    small.sync()?;
    let chunk = vec![7; STREAM];
    for offset in (0..NEIGHBOUR_BYTES).step_by(STREAM) {
        large.write_at(offset, &chunk)?;
    }
    let measured = timed(scale.operations.min(200), scale.floor, |index| {
        small.write_at(index * PAGE as u64, &page(index))?;
        small.sync()
    })?;
    large.sync()?;
    Ok(measured)
}

fn sequential_write(backend: &dyn Backend, scale: Scale<'_>, round: u64) -> io::Result<Measurement> {
    let file = backend.create(&format!("sequential-{round}"))?;
    let chunk = vec![9; STREAM];
    let start = Instant::now();
    for offset in (0..scale.sequential_bytes).step_by(STREAM) {
        file.write_at(offset, &chunk)?;
    }
    file.sync()?;
    Ok(Measurement::bytes(scale.sequential_bytes, start.elapsed()))
}

fn read_all(backend: &dyn Backend, scale: Scale<'_>, round: u64) -> io::Result<Measurement> {
    let file = backend.open(&format!("sequential-{round}"))?;
    let mut chunk = vec![0; STREAM];
    // Comparing slices costs little beside the copies of a read.
    let written = vec![9; STREAM];
    let start = Instant::now();
    for offset in (0..scale.sequential_bytes).step_by(STREAM) {
        let mut done = 0;
        while done < STREAM {
            let read = file.read_at(offset + done as u64, &mut chunk[done..])?;
            if read == 0 {
                return Err(io::Error::other("the file is shorter than what was written"));
            }
            done += read;
        }
        if chunk != written {
            return Err(io::Error::other("the file does not hold what was written"));
        }
    }
    Ok(Measurement::bytes(scale.sequential_bytes, start.elapsed()))
}

fn sequential_read_cold(backend: &dyn Backend, scale: Scale<'_>, round: u64) -> io::Result<Measurement> {
    backend.drop_caches()?;
    read_all(backend, scale, round)
}

fn sequential_read_warm(backend: &dyn Backend, scale: Scale<'_>, round: u64) -> io::Result<Measurement> {
    read_all(backend, scale, round)?;
    read_all(backend, scale, round)
}
