//! What a round trip costs over each transport: `roundtrip [SECONDS]`, as root, on a machine with nothing else to do.
//!
//! A filesystem that answers at once, in a process of its own, is asked by 1 and by 8 threads: `fsync` of a file with
//! nothing new, the same answered in batches by another thread, 4 KiB written and synced, `stat`. Each measurement takes SECONDS (2); one line each: calls per second,
//! and half and 99 of 100 calls took no longer than what is shown.

#[path = "../tests/support/kernel.rs"]
mod kernel;

use fusering::abi::{AttrFlags, FsyncFlags, OpenFlags};
use fusering::request::{Fsync, GetAttr, Lookup, Open, Write};
use fusering::{
    Attributes, Config, DeviceNumber, Entry, Errno, Filesystem, Handle, MountOptions, NodeId, Opened,
    ReplyAttributes, ReplyBatch, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, RequestContext, Session,
    Time, TransportChoice,
};
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const JOBS: [usize; 2] = [1, 8];

/// Names are kept, so that only what is measured is asked for.
const LONG: Duration = Duration::from_secs(3600);

/// Files `0` to `7`, which take all data and keep none.
struct Nothing {
    syncs: Sender<ReplyEmpty>,
}

impl Nothing {
    fn new() -> Nothing {
        let (syncs, requests) = channel();
        std::thread::spawn(move || answer_together(&requests));
        Nothing { syncs }
    }

    fn attributes(node: NodeId) -> Attributes {
        let root = node == NodeId::ROOT;
        Attributes {
            ino: node.0,
            mode: if root { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 },
            size: if root { 0 } else { 4096 },
            links: 1,
            blocks: 8,
            accessed: Time::default(),
            modified: Time::default(),
            changed: Time::default(),
            uid: 0,
            gid: 0,
            device: DeviceNumber::default(),
            block_bytes: 4096,
            flags: AttrFlags::empty(),
        }
    }
}

impl Filesystem for Nothing {
    fn lookup(&self, _: &RequestContext<'_>, request: &Lookup<'_>, reply: ReplyEntry) {
        match request.name.as_bytes() {
            [digit @ b'0'..=b'7'] => {
                let node = NodeId(u64::from(digit - b'0') + 2);
                let attributes = Nothing::attributes(node);
                // The attributes are never believed: `stat` is to ask.
                let attributes_valid = Duration::ZERO;
                reply.entry(&Entry { node, generation: 0, attributes, entry_valid: LONG, attributes_valid });
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &RequestContext<'_>, request: &GetAttr, reply: ReplyAttributes) {
        // Those of the directory are kept: a path through it is one request.
        let valid = if request.node == NodeId::ROOT { LONG } else { Duration::ZERO };
        reply.attributes(&Nothing::attributes(request.node), valid);
    }

    fn open(&self, _: &RequestContext<'_>, _: &Open, reply: ReplyOpen) {
        reply.opened(&Opened { handle: Handle(0), flags: OpenFlags::NOFLUSH });
    }

    fn write(&self, _: &RequestContext<'_>, request: &Write<'_>, reply: ReplyWrite) {
        reply.written(request.data.len() as u32);
    }

    fn fsync(&self, _: &RequestContext<'_>, request: &Fsync, reply: ReplyEmpty) {
        if request.flags.contains(FsyncFlags::FDATASYNC) {
            // The thread lives as long as this sender.
            let _ = self.syncs.send(reply);
        } else {
            reply.ok();
        }
    }
}

/// Answers what has come together in one batch, as a group commit does.
fn answer_together(requests: &Receiver<ReplyEmpty>) {
    let mut batch = ReplyBatch::new();
    while let Ok(first) = requests.recv() {
        batch.ok(first);
        requests.try_iter().for_each(|reply| batch.ok(reply));
        batch.send();
    }
}

/// What is measured, on one open file.
#[derive(Clone, Copy)]
enum Call {
    Fsync,
    /// Answered from a thread of the filesystem's own.
    Fdatasync,
    WriteFsync,
    Stat,
}

impl Call {
    const ALL: [Call; 4] = [Call::Fsync, Call::Fdatasync, Call::WriteFsync, Call::Stat];

    fn name(self) -> &'static str {
        match self {
            Call::Fsync => "fsync, nothing new",
            Call::Fdatasync => "fsync, by a group",
            Call::WriteFsync => "write 4 KiB + fsync",
            Call::Stat => "stat",
        }
    }

    fn run(self, file: &File, path: &Path) -> std::io::Result<()> {
        match self {
            Call::Fsync => file.sync_all(),
            Call::Fdatasync => file.sync_data(),
            Call::WriteFsync => file.write_all_at(&[7; 4096], 0).and_then(|()| file.sync_all()),
            Call::Stat => path.symlink_metadata().map(drop),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [serve, directory, transport] if serve == "serve" => serve_until_unmounted(directory, transport),
        [] => measure_all(Duration::from_secs(2)),
        [seconds] => measure_all(Duration::from_secs_f64(seconds.parse()?)),
        _ => Err("usage: roundtrip [SECONDS]".into()),
    }
}

/// The filesystem's process. Apart from the callers', so that these can be killed whatever happens.
fn serve_until_unmounted(directory: &str, transport: &str) -> Result<(), Box<dyn Error>> {
    let transport = if transport == "uring" { TransportChoice::Uring } else { TransportChoice::Dev };
    let config = Config { transport, ..Config::default() };
    let options = MountOptions { subtype: "roundtrip".to_owned(), ..MountOptions::default() };
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
    fn new(transport: &str) -> Result<Mounted, Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        let mut daemon = Command::new(std::env::current_exe()?)
            .args(["serve".as_ref(), directory.path().as_os_str(), transport.as_ref()])
            .stdout(Stdio::piped())
            .spawn()?;
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

fn measure_all(each: Duration) -> Result<(), Box<dyn Error>> {
    println!(
        "{:<11}{:<22}{:>5}{:>12}{:>11}{:>11}",
        "transport", "call", "jobs", "calls/s", "p50 us", "p99 us"
    );
    for transport in ["dev", "uring"] {
        let switch = match kernel::UringSwitch::set(transport == "uring") {
            Ok(switch) => Some(switch),
            Err(why) if transport == "uring" => {
                kernel::skipped("io_uring", &why);
                continue;
            }
            Err(_) => None,
        };
        let mounted = Mounted::new(transport)?;
        drop(switch);
        for call in Call::ALL {
            for jobs in JOBS {
                measure(&mounted, call, jobs, each)?;
            }
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
    let warm = Instant::now();
    while warm.elapsed() < each / 10 {
        call.run(&file, path)?;
    }
    let mut latencies = Vec::with_capacity(1 << 20);
    let begin = Instant::now();
    while begin.elapsed() < each {
        let before = Instant::now();
        call.run(&file, path)?;
        latencies.push(before.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
    }
    Ok(latencies)
}
