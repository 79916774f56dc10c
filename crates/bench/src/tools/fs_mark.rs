//! fs_mark: new files of 4 KiB, synced one by one, or in a pass of open, fsync, close after all are written. On the
//! engine, the same in this process.

use super::{place, run, strange};
use crate::measure::Outcome;
use crate::workload::{Context, jobs};
use std::io;
use std::process::Command;
use std::time::Duration;

pub(crate) fn each(context: &Context<'_>, threads: usize) -> io::Result<Outcome> {
    match context.directory {
        Some(_) => mark(context, threads, "1"),
        None => jobs::new_files(context, threads),
    }
}

pub(crate) fn pass(context: &Context<'_>, threads: usize) -> io::Result<Outcome> {
    match context.directory {
        Some(_) => mark(context, threads, "5"),
        None => jobs::files_then_pass(context, threads),
    }
}

fn mark(context: &Context<'_>, threads: usize, method: &str) -> io::Result<Outcome> {
    let directory = match place(context, "fs_mark", "fsmark") {
        Ok(directory) => directory,
        Err(why) => return Ok(Outcome::skipped(why)),
    };
    let each = context.arguments.operations.div_ceil(threads as u64);
    let log = context.arguments.work.join("fs_mark.log");
    let output = run(Command::new("fs_mark")
        .args(["-k", "-s", "4096", "-L", "1", "-S", method])
        .args(["-n", &each.to_string(), "-t", &threads.to_string()])
        .arg("-d")
        .arg(directory.join("fs_mark"))
        .arg("-l")
        .arg(log)
        .current_dir(&context.arguments.work))?;
    context.meter.end()?;
    let per_second = files_per_second(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| strange("fs_mark", &output.stdout))?;
    let operations = each * threads as u64;
    let elapsed = Duration::from_secs_f64(operations as f64 / per_second.max(1e-3));
    Ok(Outcome { operations, elapsed, ..Outcome::default() })
}

/// The fourth column of the last row.
fn files_per_second(output: &str) -> Option<f64> {
    let row = output.lines().rfind(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()))?;
    row.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_per_second_are_read_from_the_last_row() {
        let text = "#\tx\n\nFSUse%        Count         Size    Files/sec     App Overhead\n    75          100         4096       1824.5              454\n";
        assert_eq!(files_per_second(text), Some(1824.5));
        assert_eq!(files_per_second("# nothing"), None);
    }
}
