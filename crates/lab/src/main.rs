//! The `syncline` command as tests of power cuts need it: mounts take the option `volatile`, under which nothing but a
//! flush reaches the image, so that `kill -9` of the daemon is a power cut. Nothing ships this program.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    syncline_cli::run(std::env::args_os().collect())
}
