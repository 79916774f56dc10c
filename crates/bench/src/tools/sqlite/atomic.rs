//! A SQLite that uses batch atomic writes, which no distribution ships: compiled from the source that cargo has of
//! the crate libsqlite3-sys, with a shell of a few lines.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHELL: &str = include_str!("shell.c");

/// The program, compiled into `work` if it is not there yet; `None` if there is no source or no compiler.
pub(super) fn program(work: &Path) -> io::Result<Option<PathBuf>> {
    let program = work.join("sqlite3-atomic");
    if program.exists() {
        return Ok(Some(program));
    }
    let Some(source) = source() else { return Ok(None) };
    let shell = work.join("sqlite3-shell.c");
    fs::write(&shell, SHELL)?;
    crate::output::tell("compiling SQLite with batch atomic writes (once)");
    let partial = program.with_extension("partial");
    let compiled = Command::new("cc")
        .args(["-O2", "-DSQLITE_ENABLE_BATCH_ATOMIC_WRITE", "-DSQLITE_OMIT_LOAD_EXTENSION", "-I"])
        .arg(&source)
        .arg(&shell)
        .arg(source.join("sqlite3.c"))
        .args(["-lpthread", "-lm", "-o"])
        .arg(&partial)
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        return Ok(None);
    }
    fs::rename(&partial, &program)?;
    Ok(Some(program))
}

/// The directory of the newest `sqlite3.c`.
fn source() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let registries = fs::read_dir(home.join("registry/src")).ok()?.flatten();
    let crates = registries.filter_map(|registry| fs::read_dir(registry.path()).ok()).flatten().flatten();
    let sources = crates.filter(|found| found.file_name().to_string_lossy().starts_with("libsqlite3-sys-"));
    sources.map(|found| found.path().join("sqlite3")).filter(|path| path.join("sqlite3.c").exists()).max()
}
