//! Chores of the project: `tidy` checks what compilers and linters do not, `man` and `completions` generate what
//! `make install` puts beside the command.
#![forbid(unsafe_code)]

mod book;
#[cfg(feature = "pages")]
mod generate;
mod links;
mod promises;
mod rooms;
mod sbom;
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
    /// Check lengths, words, arrows of crates and rooms, headers, links, the table of tests, and the features of what
    /// ships.
    Tidy,
    /// Write the manual pages into a directory.
    #[cfg(feature = "pages")]
    Man { directory: PathBuf },
    /// Write the table of which test shows which promise into docs/testing.md.
    Tests,
    /// Write completions for bash, zsh and fish into a directory.
    #[cfg(feature = "pages")]
    Completions { directory: PathBuf },
    /// Write the bill of materials of what ships (SPDX 2.3) into a file.
    Sbom { file: PathBuf },
    /// Lay the book out below a directory, for mdBook.
    Book { directory: PathBuf },
    /// Check the links of the book that mdBook has built in a directory.
    BookLinks { directory: PathBuf },
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let result = match Arguments::parse().chore {
        Chore::Tidy => tidy::run(root),
        Chore::Tests => promises::write(root),
        #[cfg(feature = "pages")]
        Chore::Man { directory } => generate::man(&directory).map_err(|error| error.to_string()),
        #[cfg(feature = "pages")]
        Chore::Completions { directory } => {
            generate::completions(&directory).map_err(|error| error.to_string())
        }
        Chore::Sbom { file } => sbom::write(root, &file),
        Chore::Book { directory } => book::lay_out(root, &directory),
        Chore::BookLinks { directory } => book::check_built(&directory),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
