//! The libraries, and compilers.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a workspace").to_owned()
}

pub fn include() -> PathBuf {
    root().join("include")
}

/// Says that a test could not do its work here, past the harness's capture.
pub fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

pub fn has(program: &str, version: &str) -> bool {
    Command::new(program).arg(version).output().is_ok_and(|output| output.status.success())
}

/// The directory with `libsyncline.so.1`, `libsyncline.so` and `libsyncline.a`; `None` without a C compiler.
pub fn libraries(test: &str) -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let tools = [("cc", "--version"), ("ld", "--version"), ("objcopy", "--version"), ("ar", "--version")];
        if tools.iter().any(|(tool, version)| !has(tool, version)) {
            return None;
        }
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libsyncline");
        let script = root().join("scripts/libsyncline.sh");
        let output = Command::new(script).arg(archive()).arg(&directory).output().expect("sh");
        succeeded(&output);
        Some(directory)
    });
    if built.is_none() {
        skip(test, "cc, ld, objcopy or ar is not installed");
    }
    built.as_deref()
}

/// What cargo has built for this run: the newest one, since a change of the sources makes a new one.
fn archive() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let beside = test.parent().expect("in a directory");
    let directories = [beside, beside.parent().expect("in a target directory")];
    let files = directories.iter().flat_map(|directory| std::fs::read_dir(directory).expect("it is listed"));
    let paths = files.map(|entry| entry.expect("an entry").path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libsyncline_capi") && name.ends_with(".a")
    });
    let written = |path: &PathBuf| {
        path.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    paths.max_by_key(written).expect("cargo builds the archive with the tests")
}

#[track_caller]
pub fn succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Compiles a C program of these files against the library, with the warnings of a careful program.
#[track_caller]
pub fn compile(sources: &[PathBuf], program: &Path, arguments: &[&str]) {
    let output = Command::new("cc")
        .args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include())
        .args(sources)
        .arg("-o")
        .arg(program)
        .args(arguments)
        .output()
        .expect("cc runs");
    succeeded(&output);
}

/// Arguments that link the shared library, found where it is at run time as well.
pub fn shared(libraries: &Path) -> [String; 4] {
    let directory = libraries.display();
    [
        format!("-L{directory}"),
        "-lsyncline".to_owned(),
        "-lpthread".to_owned(),
        format!("-Wl,-rpath,{directory}"),
    ]
}

/// Arguments that link the static library.
pub fn static_(libraries: &Path) -> [String; 5] {
    let archive = libraries.join("libsyncline.a").display().to_string();
    [archive, "-lgcc_s".to_owned(), "-lpthread".to_owned(), "-lm".to_owned(), "-ldl".to_owned()]
}
