//! Chores of the project: `tidy` checks what compilers and linters do not, `man` and `completions` generate what
//! `make install` puts beside the command.
#![forbid(unsafe_code)]

mod generate;
mod promises;
mod rooms;
mod shipped;
mod tidy;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "xtask", about = "Chores of the project")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check lengths, words, arrows of crates and rooms, headers, the table of tests, and the features of what ships.
    Tidy,
    /// Write the manual pages into a directory.
    Man { directory: PathBuf },
    /// Write the table of which test shows which promise into docs/testing.md.
    Tests,
    /// Write completions for bash, zsh and fish into a directory.
    Completions { directory: PathBuf },
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let result = match Arguments::parse().chore {
        Chore::Tidy => tidy::run(root),
        Chore::Tests => promises::write(root),
        Chore::Man { directory } => generate::man(&directory).map_err(|error| error.to_string()),
        Chore::Completions { directory } => {
            generate::completions(&directory).map_err(|error| error.to_string())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
