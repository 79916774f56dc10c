//! PostgreSQL with pgbench: transactions a second, their latencies, and how those move while checkpoints run.
//!
//! The server runs as the user `postgres` (it refuses root) with its data on the system under test and its socket
//! beside the benchmark's files. Checkpoints are made frequent, so that even a short run has some.

use super::{place, postgresql, run};
use crate::device::is_root;
use crate::measure::{Latencies, Outcome};
use crate::workload::Context;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Whom and what pgbench connects to.
const DATABASE: [&str; 2] = ["--username=bench", "postgres"];
/// Of pgbench's table of accounts.
const ROWS_OF_A_SCALE: u64 = 100_000;

pub(crate) fn with_flush(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    measure(context, None)
}

pub(crate) fn without_flush(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    measure(context, Some("0"))
}

/// A server that is stopped when dropped.
struct Server {
    programs: PathBuf,
    data: PathBuf,
    /// For the socket and the logs.
    beside: PathBuf,
}

impl Server {
    /// A program of the server's, as its user.
    fn program(&self, name: &str) -> Command {
        let program = self.programs.join(name);
        let mut command = match is_root() {
            true => Command::new("setpriv"),
            false => Command::new(&program),
        };
        if is_root() {
            command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--inh-caps=-all"]);
            command.arg(&program);
        }
        command.current_dir(&self.beside).env("LC_ALL", "C.UTF-8").env("PGHOST", &self.beside);
        command
    }

    fn start(&self, flush_after: Option<&str>) -> io::Result<()> {
        run(self.program("initdb").args(["--no-sync", "--username=bench", "--pgdata"]).arg(&self.data))?;
        let mut settings = format!(
            "listen_addresses = ''\nunix_socket_directories = '{}'\ncheckpoint_timeout = '30s'\nmax_wal_size = '256MB'\n",
            self.beside.display()
        );
        if let Some(bytes) = flush_after {
            settings.push_str(&format!("checkpoint_flush_after = {bytes}\n"));
        }
        let path = self.data.join("postgresql.conf");
        let given = fs::read_to_string(&path)?;
        fs::write(&path, given + &settings)?;
        run(self
            .program("pg_ctl")
            .args(["start", "--silent", "--wait", "--timeout=60", "--pgdata"])
            .arg(&self.data)
            .arg("--log")
            .arg(self.beside.join("server.log")))?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut stop = self.program("pg_ctl");
        stop.args(["stop", "--silent", "--wait", "--mode=immediate", "--pgdata"]).arg(&self.data);
        // Where it never started there is nothing to stop.
        drop(run(&mut stop));
    }
}

/// Stops the server that an interrupted run has left on a mount.
pub(crate) fn stop_left(mount: &Path) {
    let number = fs::read_to_string(mount.join("postgresql/postmaster.pid"));
    let number = number.ok().and_then(|text| text.lines().next()?.trim().parse::<libc::pid_t>().ok());
    let Some(number) = number else { return };
    let process = PathBuf::from(format!("/proc/{number}"));
    // The number may be another process's by now.
    if !fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "postgres") {
        return;
    }
    // SAFETY: a signal, to a server that this tool has started; SIGQUIT is its immediate shutdown.
    unsafe { libc::kill(number, libc::SIGQUIT) };
    for _ in 0..100 {
        if !process.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// pgbench's own tables, filled: bulk work of a database, with few syncs.
pub(crate) fn initialize(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    with_server(context, None, |server| {
        context.meter.begin()?;
        let start = Instant::now();
        fill(context, server)?;
        let elapsed = start.elapsed();
        context.meter.end()?;
        Ok(Outcome {
            operations: context.arguments.pgbench_scale * ROWS_OF_A_SCALE,
            elapsed,
            ..Outcome::default()
        })
    })
}

fn measure(context: &Context<'_>, flush_after: Option<&str>) -> io::Result<Outcome> {
    with_server(context, flush_after, |server| {
        fill(context, server)?;
        let seconds = context.arguments.pgbench_seconds;
        context.meter.begin()?;
        run(server
            .program("pgbench")
            .args(["--client=4", "--jobs=2", "--no-vacuum", "--log", "--log-prefix=transactions"])
            .args(["--time", &seconds.to_string()])
            .args(DATABASE))?;
        context.meter.end()?;
        outcome(&server.beside, seconds)
    })
}

fn fill(context: &Context<'_>, server: &Server) -> io::Result<()> {
    let scale = context.arguments.pgbench_scale.to_string();
    let mut fill = server.program("pgbench");
    run(fill.args(["--initialize", "--quiet", "--scale", &scale]).args(DATABASE)).map(drop)
}

/// Has `work` done with a new server on the system under test.
fn with_server(
    context: &Context<'_>,
    flush_after: Option<&str>,
    work: impl FnOnce(&Server) -> io::Result<Outcome>,
) -> io::Result<Outcome> {
    let directory = match place(context, "", "") {
        Ok(directory) => directory,
        Err(why) => return Ok(Outcome::skipped(why)),
    };
    let Some(programs) = postgresql() else {
        return Ok(Outcome::skipped("there is no PostgreSQL server; install the package postgresql"));
    };
    let (data, beside) = (directory.join("postgresql"), context.arguments.work.join("postgresql"));
    if beside.exists() {
        fs::remove_dir_all(&beside)?;
    }
    for path in [&data, &beside] {
        fs::create_dir(path)?;
        if is_root() {
            run(Command::new("chown").arg("postgres:postgres").arg(path))?;
        }
    }
    let server = Server { programs, data, beside: beside.canonicalize()? };
    server.start(flush_after)?;
    let outcome = work(&server)?;
    drop(server);
    fs::remove_dir_all(&beside)?;
    Ok(outcome)
}

/// Reads the log of every transaction: the third word is its latency, the fifth the second it ended in.
fn outcome(logs: &Path, seconds: u64) -> io::Result<Outcome> {
    let mut latencies = Latencies::default();
    let mut over_time: BTreeMap<u64, Latencies> = BTreeMap::new();
    for entry in fs::read_dir(logs)? {
        let path = entry?.path();
        let is_log = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("transactions"));
        if !is_log {
            continue;
        }
        for line in fs::read_to_string(path)?.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
            let (Some(us), Some(second)) = (number(2), number(4)) else {
                return Err(io::Error::other(format!("pgbench logged a strange line: {line}")));
            };
            latencies.push(Duration::from_micros(us));
            over_time.entry(second).or_default().push(Duration::from_micros(us));
        }
    }
    let first = over_time.keys().next().copied().unwrap_or(0);
    // A second without a single transaction is one in which everybody waited: as slow as can be told.
    let p99 = (0..seconds).map(|second| match over_time.get(&(first + second)) {
        Some(latencies) => latencies.quantile_us(0.99).unwrap_or(0.0) / 1000.0,
        None => 1000.0,
    });
    let series = [("p99_ms".to_owned(), p99.collect())].into();
    let operations = over_time.values().map(Latencies::count).sum();
    let elapsed = Duration::from_secs(seconds);
    Ok(Outcome { operations, elapsed, latencies, series, ..Outcome::default() })
}
