//! What the manual says of the benchmark beyond its options.

use crate::Arguments;
use clap::CommandFactory;
use syncline_cli::{PLAIN, Page};

/// The manual page of `syncline-bench`.
pub const PAGE: Page = Page {
    name: "syncline-bench",
    exit_codes: PLAIN,
    examples: &[
        ("What a sync costs here, in ten minutes:", "syncline bench --short"),
        (
            "Two workloads in this process, kept in a file:",
            "syncline bench --systems engine --workloads append,create --json results.json",
        ),
        (
            "Go on with them, and make a page:",
            "syncline bench --systems engine --workloads append,create --json results.json --resume --html results.html",
        ),
    ],
    see_also: &["fio(1)"],
};

/// The definition of `syncline-bench`'s command line.
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
