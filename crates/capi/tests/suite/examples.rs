//! Examples in C++ and Go, and the program of the documentation: each is compiled and run as it stands there.

use crate::built::{compile, has, include, libraries, root, shared, skip, succeeded};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What follows a line in a document up to the end of its block of code.
fn block<'a>(text: &'a str, fence: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("```{fence}\n")).expect("the document has such a block");
    rest.split_once("```").expect("the block ends").0
}

/// Runs a program with an image of its own, twice: it makes the image, and then finds it.
#[track_caller]
fn run_twice(program: &Path, libraries: &Path, directory: &Path) {
    for round in 1..=2 {
        let output = Command::new(program)
            .arg(directory.join("example.img"))
            .env("LD_LIBRARY_PATH", libraries)
            .output()
            .expect("it runs");
        succeeded(&output);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, format!("entries: {round}\n"));
    }
}

#[test]
fn the_program_of_the_documentation_is_compiled_and_runs() {
    let Some(libraries) = libraries("the_program_of_the_documentation_is_compiled_and_runs") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let page = std::fs::read_to_string(root().join("docs/c.md")).expect("the page is there");
    let source: PathBuf = directory.path().join("ledger.c");
    std::fs::write(&source, block(&page, "c")).expect("write");
    let program = directory.path().join("ledger");
    let linked = shared(libraries);
    compile(&[source], &program, &linked.each_ref().map(String::as_str));
    run_twice(&program, libraries, directory.path());
}

#[test]
fn the_example_in_cpp_is_compiled_and_runs() {
    let name = "the_example_in_cpp_is_compiled_and_runs";
    let Some(libraries) = libraries(name) else { return };
    if !has("c++", "--version") {
        return skip(name, "there is no C++ compiler");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("ledger");
    let output = Command::new("c++")
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include())
        .arg(include().join("examples/ledger.cpp"))
        .arg("-o")
        .arg(&program)
        .args(shared(libraries))
        .output()
        .expect("it runs");
    succeeded(&output);
    run_twice(&program, libraries, directory.path());
}

#[test]
fn the_example_in_go_is_compiled_and_runs() {
    let name = "the_example_in_go_is_compiled_and_runs";
    let Some(libraries) = libraries(name) else { return };
    if !has("go", "version") {
        return skip(name, "there is no Go compiler (package golang-go)");
    }
    if !has("pkg-config", "--version") {
        return skip(name, "pkg-config is not installed");
    }
    let directory = tempfile::tempdir().expect("a directory");
    // As `make install` writes it, in the same place every time.
    let template = std::fs::read_to_string(root().join("crates/capi/syncline.pc.in")).expect("it is read");
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prefix");
    let _ = std::fs::remove_dir_all(&prefix);
    std::fs::create_dir_all(&prefix).expect("mkdir");
    for (from, to) in [(libraries, "lib"), (&include(), "include")] {
        std::os::unix::fs::symlink(from, prefix.join(to)).expect("symlink");
    }
    let filled = template
        .replace("@PREFIX@", &prefix.display().to_string())
        .replace("@LIBDIR@", "${prefix}/lib")
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    std::fs::write(directory.path().join("syncline.pc"), filled).expect("write");
    let program = directory.path().join("ledger");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(include().join("examples/go"));
    build.env("PKG_CONFIG_PATH", directory.path()).env("GOFLAGS", "-mod=mod").env("GOPROXY", "off");
    build.env("CGO_ENABLED", "1");
    // A cache of its own, since the flags that it keeps are not a part of its keys.
    let tests = Path::new(env!("CARGO_TARGET_TMPDIR"));
    build.env("GOCACHE", tests.join("go-cache")).env("GOPATH", tests.join("go"));
    succeeded(&build.output().expect("it runs"));
    run_twice(&program, libraries, directory.path());
}
