//! `syncline bench`: what a sync costs, counted by the device itself, beside the floor of the same run.
//!
//! Workloads are defined once (`workload`, and `tools` for other programs' benchmarks) and run on the embedded
//! engine, on a Syncline mount, on any directory and on fresh file systems of the kernel. The device is one loop
//! device over a fully written file; writes and flushes come from its own statistics. Each (round, workload, system)
//! starts with a fresh file system, systems innermost, so that what is compared was measured close together. A result
//! is a row of named figures (`row`), kept in a JSON file as soon as it is there (`record`), and shown as a table
//! (`report`) or a page (`page`).

mod ablation;
mod aims;
mod arguments;
mod backend;
mod device;
mod error;
mod floor;
mod growth;
mod measure;
mod memory;
mod operations;
mod output;
mod page;
mod pages;
mod plan;
mod plot;
mod record;
mod report;
mod row;
mod runner;
mod scale;
mod system;
mod table;
mod tools;
mod transport;
mod waiting;
mod workload;

pub use arguments::Arguments;
pub use error::BenchError;
pub use pages::{PAGE, command};

use output::Output;
use std::io::Write;

/// Runs what the arguments ask for and prints it to `out`.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), BenchError> {
    let mut out = Output(out);
    match &arguments.recover {
        Some(path) => scale::recover(path, &mut out),
        None if arguments.open => scale::run(arguments, &mut out),
        None if arguments.growth => growth::run(arguments, &mut out),
        None if arguments.creates.is_some() => scale::creates(arguments, &mut out),
        None if arguments.list => out.print(&report::list(&workload::all())),
        None if !arguments.table.is_empty() => table::run(arguments, &mut out),
        None => runner::run(&arguments.settled(), &mut out),
    }
}
