//! Other programs' benchmarks, used as the distribution ships them. One that is missing is skipped with a sentence.

use crate::workload::Context;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub(crate) mod dbench;
pub(crate) mod fio;
pub(crate) mod fs_mark;
pub(crate) mod pgbench;
pub(crate) mod sqlite;
pub(crate) mod tree;

/// The directory to work in, or why a program's workload is skipped.
fn place<'a>(context: &Context<'a>, program: &str, package: &str) -> Result<&'a Path, String> {
    let Some(directory) = context.directory else {
        return Err("other programs need a directory; the engine in this process has none".to_owned());
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    if program.is_empty() || std::env::split_paths(&path).any(|bin| bin.join(program).is_file()) {
        return Ok(directory);
    }
    Err(format!("{program} is missing; install the package {package}"))
}

/// Runs a program to its end; its failure shows the end of what it printed.
fn run(command: &mut Command) -> io::Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    check(&program, output)
}

fn check(program: &str, output: Output) -> io::Result<Output> {
    if output.status.success() {
        return Ok(output);
    }
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    let lines: Vec<_> = said.lines().collect();
    let last = lines[lines.len().saturating_sub(5)..].join("; ");
    Err(io::Error::other(format!("{program} failed: {last}")))
}

/// Something a program printed that was not understood.
fn strange(program: &str, output: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(output);
    let last = text.trim_end().lines().last().unwrap_or_default().to_owned();
    io::Error::other(format!("{program} printed what this benchmark does not understand: {last}"))
}

/// The newest PostgreSQL server's programs.
fn postgresql() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).max_by_key(number)?;
    newest.join("bin/postgres").exists().then(|| newest.join("bin"))
}
