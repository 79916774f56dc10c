//! Programs of the project that this one starts and does not contain: what they can do is in no product.
//!
//! A companion lies beside the running program or in PATH. It takes over the process, so that its exit code, its
//! signals and its terminal are its own.

use crate::error::Failure;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Where a program of the project lies: beside the running one, else in PATH.
pub fn find(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = beside.into_iter().chain(std::env::split_paths(&path));
    directories.map(|directory| directory.join(name)).find(|program| is_program(program))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Becomes the companion. Returns only if there is none, or it cannot be started.
pub(crate) fn start(name: &'static str, arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let program = find(name).ok_or(Failure::NoCompanion { name })?;
    let source = Command::new(&program).args(arguments).exec();
    Err(Failure::Io { doing: format!("cannot start {}", program.display()), source })
}
