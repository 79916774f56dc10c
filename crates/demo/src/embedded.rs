//! The demo without a mount: a child process embeds the engine over a device that forgets, and is killed.

use super::files::{self, Place};
use super::ledger::{Acknowledged, Ledger};
use super::{Cost, ROUND, Stage};
use crate::error::Failure;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use syncline::{Volume, VolumeOptions};
use syncline_device::{Device, FileDevice, OpenOptions, Volatile};

/// Syncs between two reports of what they cost.
const SYNCS_PER_REPORT: u64 = 64;

/// Starts the child, lets it work, kills it, and records what it had acknowledged.
pub(super) fn work(stage: &Stage, ledger: &mut Ledger) -> Result<Cost, Failure> {
    let program = std::env::current_exe().map_err(Failure::io("cannot find this program"))?;
    let start = format!("{}:{}", ledger.rows, ledger.next_file());
    let mut child = Command::new(program)
        .args(["--child", &start])
        .arg(&stage.image)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Failure::io("cannot start the engine's process"))?;
    let Some(pipe) = child.stdout.take() else {
        return Err(Failure::Demo("no pipe to the engine's process".to_owned()));
    };
    let reader = std::thread::spawn(move || -> (Vec<Acknowledged>, Cost) {
        let (mut acknowledged, mut cost) = (Vec::new(), Cost::default());
        // The last line may have been cut by the kill; then it was not acknowledged.
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            match Acknowledged::parse(&line) {
                Some(change) => acknowledged.push(change),
                None => cost = parse_cost(&line).unwrap_or(cost),
            }
        }
        (acknowledged, cost)
    });
    std::thread::sleep(ROUND);
    let early = child.try_wait().map_err(Failure::io("cannot wait for the engine's process"))?;
    child.kill().map_err(Failure::io("cannot kill the engine's process"))?;
    child.wait().map_err(Failure::io("cannot wait for the engine's process"))?;
    let (acknowledged, cost) = reader.join().expect("the reader of the pipe does not panic");
    acknowledged.into_iter().for_each(|change| ledger.add(change));
    match early {
        Some(status) => Err(Failure::Demo(format!("the engine's process ended by itself: {status}"))),
        None => Ok(cost),
    }
}

/// Opens the volume again in this process and compares.
pub(super) fn verify(
    stage: &Stage,
    ledger: &mut Ledger,
    started: Instant,
) -> Result<(Duration, Vec<String>), Failure> {
    let device =
        FileDevice::open(&stage.image, &OpenOptions::default().wait_for_lock(Duration::from_secs(10)))?;
    let place = Embedded(open(Arc::new(device), &stage.image)?);
    let ready_after = started.elapsed();
    let mut wrong = files::verify(&place, ledger);
    wrong.extend(files::verify_rows(&place, ledger));
    place.0.clone().close().map_err(failed(&stage.image))?;
    Ok((ready_after, wrong))
}

/// The child: works until it is killed. `start` is the first row and the first file.
pub(super) fn serve(image: &Path, start: &str) -> Result<ExitCode, Failure> {
    let numbers = start.split_once(':').and_then(|(row, file)| Some((row.parse().ok()?, file.parse().ok()?)));
    let Some((first_row, first_file)) = numbers else {
        return Err(Failure::Demo("the demo's child is started by the demo".to_owned()));
    };
    let device = Arc::new(Volatile::new(Arc::new(FileDevice::open(image, &OpenOptions::default())?)));
    let place = Embedded(open(device.clone(), image)?);
    let before = device.counters();
    let syncs = AtomicU64::new(0);
    let acknowledge = |acknowledged: Acknowledged| -> io::Result<()> {
        let count = syncs.fetch_add(1, Relaxed) + 1;
        let mut line = acknowledged.line();
        if count.is_multiple_of(SYNCS_PER_REPORT) {
            let now = device.counters();
            line +=
                &format!("\ncost {count} {} {}", now.writes - before.writes, now.flushes - before.flushes);
        }
        writeln!(io::stdout().lock(), "{line}")
    };
    let failure = std::thread::scope(|scope| {
        let rows = scope.spawn(|| files::append_rows(&place, first_row, &mut acknowledge.clone()));
        let files = files::work(&place, first_file, &mut acknowledge.clone());
        files.and(rows.join().expect("no workload panics"))
    });
    failure.map_err(Failure::io("the workload stopped"))?;
    Ok(ExitCode::SUCCESS)
}

fn open(device: Arc<dyn Device>, image: &Path) -> Result<Volume, Failure> {
    VolumeOptions::new().open_device(device).map_err(failed(image))
}

fn failed(image: &Path) -> impl Fn(io::Error) -> Failure {
    let doing = format!("demo: {}", image.display());
    move |source| Failure::Io { doing: doing.clone(), source }
}

fn parse_cost(line: &str) -> Option<Cost> {
    let mut numbers = line.strip_prefix("cost ")?.split(' ').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(Cost { syncs: next()?, writes: next()?, flushes: next()? })
}

/// A volume in this process.
struct Embedded(Volume);

impl Place for Embedded {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        self.0.create_dir(path)
    }

    fn put(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let mut file = self.0.create_file(path)?;
        file.write_all(content)?;
        file.sync_all()
    }

    fn append(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let mut file = syncline::OpenOptions::new().append(true).create(true).open(&self.0, path)?;
        file.write_all(content)?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)?;
        self.0.open_file(to)?.sync_all()
    }

    fn get(&self, path: &str) -> io::Result<Vec<u8>> {
        self.0.read(path)
    }
}
