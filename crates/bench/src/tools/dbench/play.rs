//! dbench's load file played in this process, for the engine: each client does what the file says, in a directory of
//! its own, over and over until the time is up. Names are taken in lower case, as the load means them. Locks of
//! ranges are skipped: nobody else has the client's files.

use crate::backend::{Backend, BackendFile, Open};
use crate::measure::Outcome;
use crate::workload::{Context, jobs};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Share of the time that is played before it counts.
const WARM_UP_SHARE: u32 = 5;
/// The name in the load file that stands for the client's own.
const CLIENT: &str = "client1";
const CREATE: u32 = 2;
const OVERWRITE: u32 = 5;
const DIRECTORY: u32 = 1;

/// One line of the load.
#[derive(Debug, PartialEq)]
enum Step {
    Open { path: String, options: u32, disposition: u32, handle: u32, succeeds: bool },
    Close(u32),
    Write { handle: u32, offset: u64, bytes: usize },
    Read { handle: u32, offset: u64, bytes: usize },
    Flush(u32),
    LookUp { path: String, succeeds: bool },
    FileAttributes(u32),
    SetTimes(u32),
    FreeSpace,
    List(String),
    Remove(String),
    Rename { from: String, to: String },
    MakeDirectory(String),
    RemoveTree(String),
    Skip,
}

/// What one kind of step took.
#[derive(Default, Clone, Copy)]
struct Taken {
    count: u64,
    total: Duration,
    longest: Duration,
}

/// What a client has done since the warm-up.
#[derive(Default)]
struct Played {
    steps: BTreeMap<&'static str, Taken>,
    bytes: u64,
}

/// Plays the load with so many clients.
pub(super) fn play(context: &Context<'_>, load: &str, clients: usize) -> io::Result<Outcome> {
    let load = parse(load)?;
    let length = Duration::from_secs(context.arguments.seconds);
    let warm = Instant::now() + length / WARM_UP_SHARE;
    let end = warm + length;
    let backend = context.backend;
    backend.make_directory("clients")?;
    let all = Mutex::new(Played::default());
    jobs::together(context, clients, |client| {
        let played = Client::new(backend, client, warm, end).run(&load)?;
        let mut all = all.lock().expect("no client panics with it");
        all.bytes += played.bytes;
        for (name, taken) in played.steps {
            let sum = all.steps.entry(name).or_default();
            sum.count += taken.count;
            sum.total += taken.total;
            sum.longest = sum.longest.max(taken.longest);
        }
        Ok(Default::default())
    })?;
    let all = all.into_inner().expect("no client panics with it");
    let operations = all.steps.values().map(|taken| taken.count).sum();
    let longest = all.steps.values().map(|taken| taken.longest).max().unwrap_or_default();
    let mut outcome = Outcome { operations, bytes: all.bytes, elapsed: length, ..Outcome::default() }
        .with("max_us", longest.as_secs_f64() * 1e6);
    for (name, taken) in all.steps {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let average = ms(taken.total) / taken.count.max(1) as f64;
        for (what, figure) in
            [("count", taken.count as f64), ("avg_ms", average), ("max_ms", ms(taken.longest))]
        {
            outcome.figures.insert(format!("{name}_{what}"), figure);
        }
    }
    Ok(outcome)
}

struct Client<'a> {
    backend: &'a dyn Backend,
    name: String,
    warm: Instant,
    end: Instant,
    /// `None`: a directory.
    files: HashMap<u32, Option<Box<dyn BackendFile>>>,
    buffer: Vec<u8>,
    played: Played,
}

impl<'a> Client<'a> {
    fn new(backend: &'a dyn Backend, number: usize, warm: Instant, end: Instant) -> Client<'a> {
        let name = format!("client{}", number + 1);
        let (files, played) = (HashMap::new(), Played::default());
        Client { backend, name, warm, end, files, buffer: vec![0x5A; 64 << 10], played }
    }

    fn run(mut self, load: &[Step]) -> io::Result<Played> {
        loop {
            for step in load {
                let begin = Instant::now();
                if begin >= self.end {
                    return Ok(self.played);
                }
                let bytes = self.step(step)?;
                let name = step.name();
                if begin >= self.warm && !name.is_empty() {
                    let took = begin.elapsed();
                    let taken = self.played.steps.entry(name).or_default();
                    taken.count += 1;
                    taken.total += took;
                    taken.longest = taken.longest.max(took);
                    self.played.bytes += bytes as u64;
                }
            }
            self.files.clear();
        }
    }

    /// Returns the bytes read or written.
    fn step(&mut self, step: &Step) -> io::Result<usize> {
        match step {
            Step::Open { path, options, disposition, handle, succeeds } => {
                let opened = self.open(&self.at(path), *options, *disposition);
                match (opened, succeeds) {
                    (Ok(file), true) => drop(self.files.insert(*handle, file)),
                    (Err(error), true) => return Err(error),
                    (_, false) => {}
                }
            }
            Step::Close(handle) => drop(self.files.remove(handle)),
            Step::Write { handle, offset, bytes } => {
                if self.buffer.len() < *bytes {
                    self.buffer.resize(*bytes, 0x5A);
                }
                if let Some(Some(file)) = self.files.get(handle) {
                    file.write_at(*offset, &self.buffer[..*bytes])?;
                    return Ok(*bytes);
                }
            }
            Step::Read { handle, offset, bytes } => {
                if self.buffer.len() < *bytes {
                    self.buffer.resize(*bytes, 0x5A);
                }
                if let Some(Some(file)) = self.files.get(handle) {
                    return file.read_at(*offset, &mut self.buffer[..*bytes]);
                }
            }
            Step::Flush(handle) => self.with(*handle, |file| file.sync())?,
            Step::FileAttributes(handle) => self.with(*handle, |file| file.bytes().map(drop))?,
            Step::SetTimes(handle) => self.with(*handle, |file| file.touch())?,
            Step::LookUp { path, succeeds } => {
                let found = self.backend.look_up(&self.at(path));
                if *succeeds {
                    found?;
                }
            }
            Step::FreeSpace => self.backend.free_space()?,
            Step::List(path) => drop(self.backend.list(&self.at(path))?),
            Step::Remove(path) => self.backend.remove(&self.at(path))?,
            Step::Rename { from, to } => self.backend.rename(&self.at(from), &self.at(to))?,
            Step::MakeDirectory(path) => match self.backend.make_directory(&self.at(path)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            },
            Step::RemoveTree(path) => match self.backend.remove_tree(&self.at(path)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
            Step::Skip => {}
        }
        Ok(0)
    }

    fn at(&self, path: &str) -> String {
        path.replacen(CLIENT, &self.name, 1)
    }

    fn with(&self, handle: u32, what: impl Fn(&dyn BackendFile) -> io::Result<()>) -> io::Result<()> {
        match self.files.get(&handle) {
            Some(Some(file)) => what(file.as_ref()),
            _ => Ok(()),
        }
    }

    fn open(&self, path: &str, options: u32, disposition: u32) -> io::Result<Option<Box<dyn BackendFile>>> {
        if options & DIRECTORY != 0 {
            if disposition == CREATE {
                self.backend.make_directory(path)?;
            }
            return self.backend.look_up(path).map(|()| None);
        }
        let how = match disposition {
            CREATE => Open::Create,
            OVERWRITE => Open::Truncate,
            _ => Open::Existing,
        };
        match self.backend.open(path, how) {
            Ok(file) => Ok(Some(file)),
            // A directory opened without saying so.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Step {
    /// As dbench's own table calls it; empty for what is not done.
    fn name(&self) -> &'static str {
        match self {
            Step::Open { .. } => "ntcreatex",
            Step::Close(_) => "close",
            Step::Write { .. } => "writex",
            Step::Read { .. } => "readx",
            Step::Flush(_) => "flush",
            Step::LookUp { .. } => "qpathinfo",
            Step::FileAttributes(_) => "qfileinfo",
            Step::SetTimes(_) => "sfileinfo",
            Step::FreeSpace => "qfsinfo",
            Step::List(_) => "find",
            Step::Remove(_) => "unlink",
            Step::Rename { .. } => "rename",
            Step::MakeDirectory(_) => "mkdir",
            Step::RemoveTree(_) => "deltree",
            Step::Skip => "",
        }
    }
}

fn parse(load: &str) -> io::Result<Vec<Step>> {
    let strange = |line: &str| {
        io::Error::other(format!("the load file of dbench has a line that is not understood: {line}"))
    };
    load.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| step(line).ok_or_else(|| strange(line)))
        .collect()
}

fn step(line: &str) -> Option<Step> {
    let (operation, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    let succeeds = rest.ends_with("NT_STATUS_OK");
    let mut quoted = rest.split('"').skip(1).step_by(2).map(path);
    let behind = rest.rsplit_once('"').map_or(rest, |(_, behind)| behind);
    let numbers: Vec<u64> = behind.split_whitespace().map_while(number).collect();
    let of = |index: usize| numbers.get(index).copied();
    let handle = |index: usize| Some(of(index)? as u32);
    let step = match operation {
        "NTCreateX" => Step::Open {
            path: quoted.next()?,
            options: handle(0)?,
            disposition: handle(1)?,
            handle: handle(2)?,
            succeeds,
        },
        "Close" => Step::Close(handle(0)?),
        "WriteX" => Step::Write { handle: handle(0)?, offset: of(1)?, bytes: of(2)? as usize },
        "ReadX" => Step::Read { handle: handle(0)?, offset: of(1)?, bytes: of(2)? as usize },
        "Flush" => Step::Flush(handle(0)?),
        "QUERY_PATH_INFORMATION" => Step::LookUp { path: quoted.next()?, succeeds },
        "QUERY_FILE_INFORMATION" => Step::FileAttributes(handle(0)?),
        "SET_FILE_INFORMATION" => Step::SetTimes(handle(0)?),
        "QUERY_FS_INFORMATION" => Step::FreeSpace,
        "FIND_FIRST" => {
            let pattern = quoted.next()?;
            Step::List(pattern.rsplit_once('/').map_or(String::new(), |(directory, _)| directory.to_owned()))
        }
        "Unlink" => Step::Remove(quoted.next()?),
        "Rename" => Step::Rename { from: quoted.next()?, to: quoted.next()? },
        "Mkdir" => Step::MakeDirectory(quoted.next()?),
        "Deltree" => Step::RemoveTree(quoted.next()?),
        "LockX" | "UnlockX" => Step::Skip,
        _ => return None,
    };
    Some(step)
}

/// As it is named below the benchmark's directory.
fn path(quoted: &str) -> String {
    quoted.trim_start_matches('\\').replace('\\', "/").to_lowercase()
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Directory;

    const LOAD: &str = r#"
Mkdir "\clients" NT_STATUS_OK
NTCreateX "\clients\client1" 0x1 0x2 1 NT_STATUS_OK
NTCreateX "\clients\client1\A" 0x40 0x1 2 NT_STATUS_OBJECT_NAME_NOT_FOUND
NTCreateX "\clients\client1\A" 0x40 0x2 3 NT_STATUS_OK
WriteX 3 4096 100 100 NT_STATUS_OK
Flush 3 NT_STATUS_OK
ReadX 3 0 65536 4196 NT_STATUS_OK
Close 3 NT_STATUS_OK
FIND_FIRST "\clients\client1\*" 260 1366 1 NT_STATUS_OK
Rename "\clients\client1\A" "\clients\client1\B" NT_STATUS_OK
Unlink "\clients\client1\B" 0x6 NT_STATUS_OK
LockX 3 1 1 NT_STATUS_OK
Deltree "\clients\client1" NT_STATUS_OK
"#;

    #[test]
    fn lines_are_understood_and_strange_ones_refused() {
        let steps = parse(LOAD).expect("a load");
        assert_eq!(steps.len(), 13);
        assert_eq!(steps[4], Step::Write { handle: 3, offset: 4096, bytes: 100 });
        assert_eq!(steps[8], Step::List("clients/client1".to_owned()));
        assert!(matches!(&steps[2], Step::Open { path, succeeds: false, .. } if path == "clients/client1/a"));
        assert!(parse("Dance 1 2").is_err());
        assert!(parse("WriteX 1").is_err());
    }

    #[test]
    fn a_client_does_what_the_load_says_in_its_own_directory() {
        let directory = std::env::temp_dir().join(format!("syncline-play-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("a directory");
        std::fs::create_dir(directory.join("clients")).expect("a directory");
        let backend = Directory::new(directory.clone());
        let (now, steps) = (Instant::now(), parse(LOAD).expect("a load"));
        let mut client = Client::new(&backend, 6, now, now + Duration::from_secs(3600));
        let mut bytes = 0;
        for step in &steps[..8] {
            bytes += client.step(step).expect("done");
        }
        assert_eq!(bytes, 100 + 4196);
        assert_eq!(std::fs::metadata(directory.join("clients/client7/a")).expect("made").len(), 4196);
        for step in &steps[8..] {
            client.step(step).expect("done");
        }
        assert!(!directory.join("clients/client7").exists());
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
