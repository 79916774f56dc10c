//! The command line of the demo, and what the manual says of it.

use clap::{CommandFactory, Parser};
use std::path::PathBuf;
use syncline_cli::{PLAIN, Page};

/// Cut the power under a database and many small files, and see what is left.
#[derive(Debug, Parser)]
#[command(name = "syncline-demo", version)]
pub struct Arguments {
    /// Use the embedded engine even where a mount would be possible.
    #[arg(long)]
    pub(crate) embedded: bool,
    /// Where to put the image (default: a temporary directory, removed afterwards).
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) keep_in: Option<PathBuf>,
    /// Power cuts.
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub(crate) cuts: u32,
    /// Play the part of a workload (set by the demo for its children).
    #[arg(long, hide = true, num_args = 2, value_names = ["WORKLOAD", "PATH"])]
    pub(crate) child: Option<Vec<String>>,
    /// Serve a mount (set by the demo for its children).
    #[arg(long, hide = true, num_args = 2, value_names = ["IMAGE", "DIRECTORY"])]
    pub(crate) serve: Option<Vec<PathBuf>>,
    /// With --serve: on a device that forgets what was not flushed.
    #[arg(long, hide = true, requires = "serve")]
    pub(crate) volatile: bool,
    /// Print the figures as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The manual page of `syncline-demo`.
pub const PAGE: Page = Page {
    name: "syncline-demo",
    exit_codes: PLAIN,
    examples: &[("Five power cuts, without a mount:", "syncline demo --embedded --cuts 5")],
    see_also: &[],
};

/// The definition of `syncline-demo`'s command line.
pub fn command() -> clap::Command {
    Arguments::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_command_lines_that_are_understood() {
        command().debug_assert();
        for (_, line) in PAGE.examples {
            let words = line.split_whitespace().skip(1);
            assert!(command().try_get_matches_from(words).is_ok(), "{line}");
        }
    }
}
