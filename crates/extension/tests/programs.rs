//! The extension in programs that know nothing of it: the stock shell, Python, Node, and Go with its own SQLite.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use syncline::{MkfsOptions, Volume};

/// Says that a test could not do its work here, past the harness's capture.
fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// The library, where the build has put it beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let beside = test.parent().expect("in a directory").join("libsyncline_sqlite.so");
    if beside.exists() {
        return beside;
    }
    let above = test.ancestors().nth(2).expect("in a target directory").join("libsyncline_sqlite.so");
    assert!(above.exists(), "the build leaves the library in {}", above.display());
    above
}

/// The archive, which has the build's hash in its name: the newest one.
fn archive() -> PathBuf {
    let directory = library().parent().expect("in a directory").to_owned();
    let entries =
        [directory.join("deps"), directory].into_iter().filter_map(|place| std::fs::read_dir(place).ok());
    let paths = entries.flatten().map(|entry| entry.expect("an entry").path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libsyncline_sqlite") && name.ends_with(".a")
    });
    let written = |path: &PathBuf| path.metadata().and_then(|metadata| metadata.modified()).ok();
    paths.max_by_key(written).expect("the build leaves the archive beside the library")
}

fn image(directory: &Path) -> PathBuf {
    let image = directory.join("v.img");
    let options = MkfsOptions::default().size_bytes(64 << 20);
    Volume::create(&image, &options).expect("mkfs").close().expect("close");
    image
}

/// Runs the stock shell; `None` if there is none.
fn shell(test: &str, image: &Path, sql: &str) -> Option<Output> {
    shell_telling(Stdio::piped(), test, image, sql)
}

/// The same, with this as its standard error.
fn shell_telling(errors: Stdio, test: &str, image: &Path, sql: &str) -> Option<Output> {
    let started = Command::new("sqlite3")
        .args(["-batch", "-bail"])
        .env_remove("SYNCLINE_SQLITE_QUIET")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn();
    let Ok(mut child) = started else {
        skip(test, "sqlite3 is not installed");
        return None;
    };
    let input = format!(
        ".load {}\n.open 'file:/db?vfs=syncline&volume={}'\n{sql}\n",
        library().with_extension("").display(),
        image.display()
    );
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("the shell reads");
    Some(child.wait_with_output().expect("the shell ends"))
}

fn text(output: &[u8]) -> &str {
    std::str::from_utf8(output).expect("UTF-8")
}

#[test]
fn an_error_that_nobody_can_read_is_the_same_error() {
    let test = "an_error_that_nobody_can_read_is_the_same_error";
    let missing = Path::new("/there/is/no/such/volume");
    let sql = "SELECT 41 + 1;\n";
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device that is full");
    let Some(unread) = shell_telling(full.into(), test, missing, sql) else { return };
    let Some(read) = shell(test, missing, sql) else { return };
    assert!(text(&read.stderr).contains("there is no such file"), "{}", text(&read.stderr));
    assert_eq!((unread.status, text(&unread.stdout)), (read.status, "42\n"));
}

#[test]
fn the_stock_shell_loads_it_and_finds_its_rows_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let name = "the_stock_shell_loads_it_and_finds_its_rows_again";
    let sql =
        "CREATE TABLE t(a, b); INSERT INTO t VALUES(1,'one'),(2,'two'); PRAGMA journal_mode;\n.vfsname\n";
    let Some(output) = shell(name, &image, sql) else { return };
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "delete\nsyncline\n");
    let output =
        shell(name, &image, "UPDATE t SET b='three' WHERE a=2; SELECT * FROM t; PRAGMA integrity_check;");
    assert_eq!(text(&output.expect("it ran before").stdout), "1|one\n2|three\nok\n");
    let volume = Volume::open(&image).expect("the shell has closed the volume");
    assert!(volume.try_exists("/db").expect("look"));
    volume.close().expect("close");
}

/// Runs the stock shell as a program that knows no URI; `None` if there is none.
fn plain_shell(test: &str, default: &str, entry_point: &str, database: &str, sql: &str) -> Option<Output> {
    let started = Command::new("sqlite3")
        .args(["-batch", "-bail"])
        .env("SYNCLINE_VFS_DEFAULT", default)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        skip(test, "sqlite3 is not installed");
        return None;
    };
    let load = format!(".load {} {entry_point}", library().with_extension("").display());
    let input = format!("{load}\n.open {database}\n{sql}\n");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("the shell reads");
    Some(child.wait_with_output().expect("the shell ends"))
}

#[test]
fn programs_without_uris_get_it_as_the_default_vfs() {
    let test = "programs_without_uris_get_it_as_the_default_vfs";
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let image_text = image.display().to_string();
    let full = format!("{image_text}:/full");
    let sql = "CREATE TABLE t(a); INSERT INTO t VALUES(7); SELECT a FROM t;\n.vfsname\n";
    for (default, entry_point, database) in [
        // The environment names the volume, or only that the VFS is the default; or the entry point says so.
        (image_text.as_str(), "", "/plain"),
        ("1", "", full.as_str()),
        (image_text.as_str(), "sqlite3_synclinedefault_init", "relative"),
        ("0", "sqlite3_synclinedefault_init", &format!("{image_text}:/entry")),
    ] {
        let Some(output) = plain_shell(test, default, entry_point, database, sql) else { return };
        assert_eq!(text(&output.stderr), "", "{database}");
        assert_eq!(text(&output.stdout), "7\nsyncline\n", "{database}");
    }
    let memory = plain_shell(test, &image_text, "", ":memory:", "SELECT 1;\n").expect("it ran before");
    assert_eq!((text(&memory.stdout), text(&memory.stderr)), ("1\n", ""));
    let volume = Volume::open(&image).expect("the shells have closed the volume");
    for name in ["/plain", "/full", "/relative", "/entry"] {
        assert!(volume.try_exists(name).expect("look"), "{name}");
    }
    volume.close().expect("close");
    let on_host = directory.path().join("host");
    let output = plain_shell(test, "", "", &on_host.display().to_string(), sql).expect("it ran before");
    assert!(text(&output.stdout).starts_with("7\nunix"), "{}", text(&output.stdout));
    assert!(on_host.exists(), "without the word everything is as it was");
}

#[test]
fn better_sqlite3_of_node_opens_it_by_a_plain_path() {
    let test = "better_sqlite3_of_node_opens_it_by_a_plain_path";
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/better_sqlite3.js");
    let run = Command::new("node").arg(script).arg(library()).env("SYNCLINE_VFS_DEFAULT", &image).output();
    let Ok(output) = run else { return skip(test, "node is not installed") };
    if output.status.code() == Some(77) {
        return skip(test, "node has no module better-sqlite3 (NODE_PATH names where it is)");
    }
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(text(&output.stdout), "one two\n");
    let volume = Volume::open(&image).expect("node has closed the volume");
    assert!(volume.try_exists("/node.db").expect("look"));
    volume.close().expect("close");
}

#[test]
fn go_links_it_statically_with_the_sqlite_of_its_driver() {
    let test = "go_links_it_statically_with_the_sqlite_of_its_driver";
    let tests = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/examples/go-sqlite");
    let go = |arguments: &[&str]| {
        let mut command = Command::new("go");
        command.args(arguments).current_dir(&example).env("CGO_ENABLED", "1").env("GOTOOLCHAIN", "local");
        // What is fetched and compiled lies below the target directory, and goes with it.
        command.env("GOFLAGS", "-mod=readonly -modcacherw").env("GOPATH", tests.join("go"));
        command.env("GOCACHE", tests.join("go-cache")).env("CGO_CFLAGS", "-O0");
        command.env("CGO_LDFLAGS", archive());
        command.output()
    };
    let Ok(fetched) = go(&["mod", "download"]) else { return skip(test, "go is not installed") };
    if !fetched.status.success() {
        return skip(test, "the module github.com/mattn/go-sqlite3 cannot be had");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let program = directory.path().join("ledger");
    let built = go(&["build", "-o", &program.display().to_string(), "."]).expect("it ran before");
    assert!(built.status.success(), "{}", text(&built.stderr));
    for round in 1..=2 {
        let output = Command::new(&program).arg(&image).output().expect("it runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), format!("entries: {round}\n"));
    }
    let volume = Volume::open(&image).expect("the program has closed the volume");
    assert!(volume.try_exists("/ledger").expect("look"));
    volume.close().expect("close");
}

#[test]
fn a_second_process_is_told_to_use_the_mount() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let volume = Volume::open(&image).expect("open");
    let sql = "CREATE TABLE t(a);";
    let output = shell("a_second_process_is_told_to_use_the_mount", &image, sql);
    volume.close().expect("close");
    let Some(output) = output else { return };
    let told = text(&output.stderr);
    assert!(told.contains("use the mount") && told.contains(&image.display().to_string()), "{told}");
}

/// Runs a script of this crate's tests on an image, with the library, the image and a directory as its arguments.
fn python(test: &str, script: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script);
    // Not every Python may load extensions; the distribution's may.
    let run = |python: &str| {
        Command::new(python).arg(&script).arg(library()).arg(&image).arg(directory.path()).output().ok()
    };
    let able = |output: &Output| output.status.code() != Some(77);
    let output = ["python3", "/usr/bin/python3"].into_iter().filter_map(run).find(able);
    let Some(output) = output else {
        return skip(test, "no Python here loads extensions into SQLite");
    };
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn python_uses_it_for_what_touches_files() {
    python("python_uses_it_for_what_touches_files", "files.py");
}

#[test]
fn a_pool_of_python_processes_loses_no_commit() {
    python("a_pool_of_python_processes_loses_no_commit", "pool.py");
}

#[test]
fn what_cannot_be_opened_is_told_in_a_sentence_that_says_what_to_do() {
    let directory = tempfile::tempdir().expect("a directory");
    let good = image(directory.path());
    let (missing, no_volume) = (directory.path().join("missing.img"), directory.path().join("letter.txt"));
    std::fs::write(&no_volume, "dear reader\n".repeat(1 << 20)).expect("write");
    for (image, told) in [
        (missing.as_path(), "there is no such file; 'syncline mkfs"),
        (directory.path(), "is a directory; name the image file or block device"),
        (no_volume.as_path(), "is not a Syncline volume"),
        (good.join("within").as_path(), "Not a directory"),
    ] {
        let name = "what_cannot_be_opened_is_told_in_a_sentence_that_says_what_to_do";
        let Some(output) = shell(name, image, "CREATE TABLE t(a);") else { return };
        let all = text(&output.stderr);
        let sentence = all.lines().next().unwrap_or_default();
        assert!(sentence.contains(told), "{all}");
        assert_eq!(sentence.matches(&*image.display().to_string()).count(), 1, "{all}");
    }
}
