//! What a round trip costs over each transport: `roundtrip [SECONDS]`, as root, on a machine with nothing else to do.
//!
//! A filesystem that answers at once, in a process of its own, is asked by 1 and by 8 threads: `fsync` of a file with
//! nothing new, the same answered in batches by another thread, 4 KiB written and synced, a file made, written,
//! synced and closed, `stat`, and a directory of 10,000 names. Each measurement takes SECONDS (2); one line each:
//! calls per second, and half and 99 of 100 calls took no longer than what is shown.
//!
//! `roundtrip SECONDS PROGRAM` also measures the same filesystem served by another program, which is called with the
//! directory, prints a line when it is mounted and serves until it is unmounted: `compare/` beside this is one.

mod nothing;

#[path = "../../tests/support/kernel.rs"]
mod kernel;

use fusering::{Config, MountOptions, Session, TransportChoice};
use nothing::{ENTRIES, Nothing};
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const JOBS: [usize; 2] = [1, 8];
/// Calls so far, for names that were never used.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// What is measured, on one open file.
#[derive(Clone, Copy)]
enum Call {
    Fsync,
    /// Answered from a thread of the filesystem's own.
    Fdatasync,
    WriteFsync,
    /// A new file.
    Create,
    Stat,
    ReadDir,
}

impl Call {
    const ALL: [Call; 6] =
        [Call::Fsync, Call::Fdatasync, Call::WriteFsync, Call::Create, Call::Stat, Call::ReadDir];

    fn name(self) -> &'static str {
        match self {
            Call::Fsync => "fsync, nothing new",
            Call::Fdatasync => "fsync, by a group",
            Call::WriteFsync => "write 4 KiB + fsync",
            Call::Create => "create, 4 KiB, fsync",
            Call::Stat => "stat",
            Call::ReadDir => "readdir of 10,000",
        }
    }

    /// `index` is another one each time.
    fn run(self, file: &File, path: &Path, index: u64) -> std::io::Result<()> {
        match self {
            Call::Fsync => file.sync_all(),
            Call::Fdatasync => file.sync_data(),
            Call::WriteFsync => file.write_all_at(&[7; 4096], 0).and_then(|()| file.sync_all()),
            Call::Create => {
                let file = File::create(path.with_extension(index.to_string()))?;
                file.write_all_at(&[7; 4096], 0)?;
                file.sync_all()
            }
            Call::Stat => path.symlink_metadata().map(drop),
            Call::ReadDir => {
                let directory = path.parent().expect("the file is in a directory");
                let names = std::fs::read_dir(directory)?.count();
                if names as u64 == ENTRIES { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [serve, directory, transport] if serve == "serve" => serve_until_unmounted(directory, transport),
        [] => measure_all(Duration::from_secs(2), None),
        [seconds] => measure_all(Duration::from_secs_f64(seconds.parse()?), None),
        [seconds, other] => measure_all(Duration::from_secs_f64(seconds.parse()?), Some(other)),
        _ => Err("usage: roundtrip [SECONDS [PROGRAM]]".into()),
    }
}

/// The filesystem's process. Apart from the callers', so that these can be killed whatever happens.
fn serve_until_unmounted(directory: &str, transport: &str) -> Result<(), Box<dyn Error>> {
    let transport = if transport == "uring" { TransportChoice::Uring } else { TransportChoice::Dev };
    let config = Config::default().transport(transport);
    let options = MountOptions::default().subtype("roundtrip");
    let session = Session::mount(Arc::new(Nothing::new()), Path::new(directory), &options, &config)?;
    println!("{}", session.transport().kind);
    session.run()?;
    Ok(())
}

/// A mounted filesystem in a child process.
struct Mounted {
    directory: tempfile::TempDir,
    daemon: Child,
    transport: String,
}

impl Mounted {
    fn own(transport: &str) -> Result<Mounted, Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        let mut daemon = Command::new(std::env::current_exe()?);
        daemon.args(["serve".as_ref(), directory.path().as_os_str(), transport.as_ref()]);
        Mounted::start(directory, daemon)
    }

    fn of(program: &str) -> Result<Mounted, Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        let mut daemon = Command::new(program);
        daemon.arg(directory.path());
        Mounted::start(directory, daemon)
    }

    fn start(directory: tempfile::TempDir, mut daemon: Command) -> Result<Mounted, Box<dyn Error>> {
        let mut daemon = daemon.stdout(Stdio::piped()).spawn()?;
        let output = daemon.stdout.take().ok_or("the daemon's output is piped")?;
        let mut mounted = Mounted { directory, daemon, transport: String::new() };
        BufReader::new(output).read_line(&mut mounted.transport)?;
        if mounted.transport.is_empty() {
            return Err("the filesystem could not be mounted".into());
        }
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.directory.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            // It may have failed to mount; its end takes a mount with it.
            let _ = self.daemon.kill();
        }
        let _ = self.daemon.wait();
    }
}

fn measure_all(each: Duration, other: Option<&str>) -> Result<(), Box<dyn Error>> {
    println!(
        "{:<11}{:<22}{:>5}{:>12}{:>11}{:>11}",
        "transport", "call", "jobs", "calls/s", "p50 us", "p99 us"
    );
    if let Some(other) = other {
        measure_calls(&Mounted::of(other)?, each)?;
    }
    for transport in ["dev", "uring"] {
        let switch = match kernel::UringSwitch::set(transport == "uring") {
            Ok(switch) => Some(switch),
            Err(why) if transport == "uring" => {
                kernel::skipped("io_uring", &why);
                continue;
            }
            Err(_) => None,
        };
        let mounted = Mounted::own(transport)?;
        drop(switch);
        measure_calls(&mounted, each)?;
    }
    Ok(())
}

fn measure_calls(mounted: &Mounted, each: Duration) -> Result<(), Box<dyn Error>> {
    for call in Call::ALL {
        for jobs in JOBS {
            measure(mounted, call, jobs, each)?;
        }
    }
    Ok(())
}

fn measure(mounted: &Mounted, call: Call, jobs: usize, each: Duration) -> Result<(), Box<dyn Error>> {
    let barrier = Barrier::new(jobs);
    let mut latencies = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|job| {
                let path = mounted.directory.path().join(job.to_string());
                let barrier = &barrier;
                scope.spawn(move || measure_one(call, &path, barrier, each))
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("jobs do not panic"));
        joined.collect::<std::io::Result<Vec<Vec<u32>>>>()
    })?
    .concat();
    latencies.sort_unstable();
    let at = |part: f64| f64::from(latencies[((latencies.len() - 1) as f64 * part) as usize]) / 1e3;
    let rate = latencies.len() as f64 / each.as_secs_f64();
    println!(
        "{:<11}{:<22}{jobs:>5}{rate:>12.0}{:>11.1}{:>11.1}",
        mounted.transport.trim(),
        call.name(),
        at(0.5),
        at(0.99)
    );
    std::io::stdout().flush()?;
    Ok(())
}

/// Nanoseconds of each call for as long as `each`, after a tenth of it to warm up.
fn measure_one(call: Call, path: &Path, start: &Barrier, each: Duration) -> std::io::Result<Vec<u32>> {
    let opened = File::options().read(true).write(true).open(path);
    start.wait();
    let file = opened?;
    let run = || call.run(&file, path, CALLS.fetch_add(1, Ordering::Relaxed));
    let warm = Instant::now();
    while warm.elapsed() < each / 10 {
        run()?;
    }
    let mut latencies = Vec::with_capacity(1 << 20);
    let begin = Instant::now();
    while begin.elapsed() < each {
        let before = Instant::now();
        run()?;
        latencies.push(before.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
    }
    Ok(latencies)
}
