//! The results of a run in its JSON file: the machine, the settings, and the rows so far.
//!
//! The file is replaced as a whole after each row (temporary, sync, rename), so an interrupted run leaves a whole file.

use crate::ablation;
use crate::arguments::Arguments;
use crate::error::BenchError;
use crate::row::Row;
use crate::workload;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Rows with what they were measured on.
#[derive(Debug)]
pub(crate) struct Record {
    path: Option<PathBuf>,
    /// Where and with what it was measured.
    pub(crate) about: Value,
    pub(crate) rows: Vec<Row>,
}

impl Record {
    /// Begins a new record, or takes up the one in the file if that was asked for.
    pub(crate) fn open(arguments: &Arguments) -> Result<Record, BenchError> {
        let Some(path) = &arguments.json else {
            return match arguments.resume {
                true => Err(BenchError::ResumeWithoutFile),
                false => Ok(Record { path: None, about: about(arguments), rows: Vec::new() }),
            };
        };
        match (fs::read(path), arguments.resume) {
            (Ok(bytes), true) => Record::read(path, &bytes, arguments),
            (Ok(_), false) => Err(BenchError::ResultsExist(path.clone())),
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Record { path: Some(path.clone()), about: about(arguments), rows: Vec::new() })
            }
            (Err(error), _) => Err(BenchError::of(path)(error)),
        }
    }

    fn read(path: &Path, bytes: &[u8], arguments: &Arguments) -> Result<Record, BenchError> {
        let record = Record::parsed(path, bytes)?;
        let settings = arguments.settings();
        for (name, now) in settings.as_object().into_iter().flatten() {
            if record.about["settings"][name] != *now {
                return Err(BenchError::OtherSettings { path: path.to_owned(), setting: name.clone() });
            }
        }
        Ok(record)
    }

    fn parsed(path: &Path, bytes: &[u8]) -> Result<Record, BenchError> {
        let bad = |reason: &str| BenchError::BadResults { path: path.to_owned(), reason: reason.to_owned() };
        let value: Value = serde_json::from_slice(bytes).map_err(|error| bad(&error.to_string()))?;
        let rows = value["rows"].as_array().ok_or_else(|| bad("no list of rows"))?;
        let rows = rows.iter().map(Row::from_json).collect::<Option<Vec<_>>>();
        let rows = rows.ok_or_else(|| bad("a row is not whole"))?;
        Ok(Record { path: Some(path.to_owned()), about: value["about"].clone(), rows })
    }

    /// The results of several files, as those of one run: machine and settings are the first one's.
    pub(crate) fn merged(paths: &[PathBuf]) -> Result<Record, BenchError> {
        let mut merged: Option<Record> = None;
        for path in paths {
            let read = Record::parsed(path, &fs::read(path).map_err(BenchError::of(path))?)?;
            match &mut merged {
                None => merged = Some(Record { path: None, ..read }),
                Some(merged) => merged.rows.extend(read.rows),
            }
        }
        merged.ok_or(BenchError::ResumeWithoutFile)
    }

    #[cfg(test)]
    pub(crate) fn of_rows(rows: Vec<Row>) -> Record {
        Record { path: None, about: Value::Null, rows }
    }

    pub(crate) fn holds(&self, round: usize, workload: &str, system: &str) -> bool {
        self.rows.iter().any(|row| row.round == round && row.workload == workload && row.system == system)
    }

    /// Adds a row and writes the file.
    pub(crate) fn add(&mut self, row: Row) -> io::Result<()> {
        self.rows.push(row);
        let Some(path) = &self.path else { return Ok(()) };
        let rows: Vec<_> = self.rows.iter().map(Row::json).collect();
        let text = serde_json::to_string_pretty(&json!({
            "about": self.about,
            "rows": rows,
            "ablation": ablation::json(self, &workload::all()),
        }))?;
        let mut temporary = path.clone().into_os_string();
        temporary.push(".new");
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    }
}

/// Machine, kernel, version and settings.
fn about(arguments: &Arguments) -> Value {
    let first = |path: &str, start: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
        line.split_once(':').map_or(line, |(_, value)| value).trim().to_owned()
    };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    json!({
        "processor": first("/proc/cpuinfo", "model name"),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": first("/proc/meminfo", "MemTotal"),
        "kernel": first("/proc/sys/kernel/osrelease", ""),
        // Of the minute before: more than nearly nothing, and the figures are not of a quiet machine.
        "load": fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').next(),
        "version": env!("CARGO_PKG_VERSION"),
        "commit": commit(),
        "started_unix_seconds": seconds,
        "settings": arguments.settings(),
    })
}

/// The commit of the checkout that the command is run in, if it is one of this project.
fn commit() -> Option<String> {
    if !Path::new("crates/bench/src/record.rs").exists() {
        return None;
    }
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests;
