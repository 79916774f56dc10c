//! What the compiler and clippy do not check: lengths of files and comments, words that must not stay in the tree,
//! which crate and which room may depend on which, that every crate says in its header what it is, that every promise
//! has its test, that what ships has no feature of tests and benchmarks, that every link of a document leads somewhere,
//! and that the book has every page.
//!
//! A finding is one line `path:line: sentence`; the run fails if there is any.

use crate::{book, links, promises, rooms, shipped};
use std::fs;
use std::path::{Path, PathBuf};

/// Longest file without its tests, in lines. A file split late has grown two purposes.
const FILE_LINES_MAX: usize = 600;

/// Longest line of a comment, and of a paragraph in a document.
const COMMENT_COLUMNS_MAX: usize = 120;

/// Where documents and comments of other languages are.
const PROSE: &[&str] = &["docs", "crates", "tests", "include", "scripts", "packaging"];

/// Files that may be longer. Each must say why, in a header line that contains [`LONG_FILE_REASON`].
const LONG_FILES: &[&str] = &[];
const LONG_FILE_REASON: &str = "Longer than the limit because";

/// Words that mean unfinished work. They are written in two halves, so that this file does not find itself.
///
/// Code that tests share may be unused in some of them: the last one holds outside of tests only.
const FORBIDDEN: &[[&str; 2]] = &[
    ["todo", "!("],
    ["unimple", "mented!("],
    ["dbg", "!("],
    ["#[ign", "ore"],
    ["TO", "DO"],
    ["FIX", "ME"],
    ["under con", "struction"],
    ["allow(dead", "_code)"],
];

/// Which crates of the workspace each crate may use (tests may use more). Arrows point down only.
const ARROWS: &[(&str, &[&str])] = &[
    ("crates/probes", &[]),
    ("crates/format", &[]),
    ("crates/device", &["syncline-format"]),
    ("crates/nbd", &["syncline-format", "syncline-device"]),
    ("crates/rbd", &["syncline-format", "syncline-device"]),
    ("crates/source", &["syncline-device", "syncline-nbd", "syncline-rbd"]),
    ("crates/store", &["syncline-probes", "syncline-format", "syncline-device"]),
    ("crates/fs", &["syncline-format", "syncline-device", "syncline-store"]),
    (
        "crates/syncline",
        &["syncline-format", "syncline-device", "syncline-source", "syncline-fs", "syncline-replica-store"],
    ),
    ("crates/capi", &["syncline"]),
    ("crates/check", &["syncline-format", "syncline-device"]),
    ("crates/replica", &["syncline-format", "syncline-device"]),
    ("crates/replica-store", &["syncline-format", "syncline-device", "syncline-replica"]),
    (
        "crates/fuse",
        &[
            "syncline-probes",
            "syncline-format",
            "syncline-device",
            "syncline-source",
            "syncline-fs",
            "syncline-replica-store",
        ],
    ),
    ("crates/fusering", &[]),
    (
        "crates/cli",
        &[
            "syncline-format",
            "syncline-device",
            "syncline-source",
            "syncline-fs",
            "syncline",
            "syncline-check",
            "syncline-fuse",
            "syncline-replica-store",
        ],
    ),
    ("crates/sqlite", &["syncline-device", "syncline-source", "syncline-fs", "syncline"]),
    ("crates/extension", &["syncline-sqlite"]),
    ("crates/python", &["syncline", "syncline-sqlite"]),
    (
        "crates/sim",
        &[
            "syncline-format",
            "syncline-device",
            "syncline-store",
            "syncline-fs",
            "syncline-check",
            "syncline-replica",
        ],
    ),
    (
        "crates/images",
        &[
            "syncline-format",
            "syncline-device",
            "syncline-store",
            "syncline-fs",
            "syncline",
            "syncline-check",
        ],
    ),
    ("crates/threads", &["syncline-probes", "syncline-format", "syncline-device"]),
    ("crates/threads/loom", &["syncline-probes", "syncline-format", "syncline-device"]),
    ("crates/model", &[]),
    (
        "crates/bench",
        &["syncline-format", "syncline-device", "syncline-fs", "syncline", "syncline-sqlite", "syncline-cli"],
    ),
    (
        "crates/demo",
        &["syncline-device", "syncline-fs", "syncline", "syncline-check", "syncline-fuse", "syncline-cli"],
    ),
    ("crates/lab", &["syncline-cli", "syncline-fuse"]),
    ("xtask", &["syncline-cli", "syncline-bench", "syncline-demo"]),
];

/// What the sources of a crate do not name, and why. Written in two halves where this file would find itself.
const ABSENT: &[(&str, &[&str], &str)] = &[
    (
        "crates/store/src/",
        &["InodeItem", "DirentItem", "XattrItem", "OrphanReason"],
        "the store knows no name, no inode and no permission",
    ),
    (
        "crates/",
        &["derive(FromBytes", "derive(IntoBytes", "FromBytes, ", "IntoBytes, ", "TryFromBytes, "],
        "layouts are described in crates/format, and those of the kernel's messages in crates/fusering",
    ),
];

/// Where layouts are described.
const LAYOUTS: &[&str] = &["crates/format/", "crates/fusering/"];

/// Runs every check over the workspace at `root`.
pub fn run(root: &Path) -> Result<(), String> {
    let mut findings = Vec::new();
    check_arrows(root, &mut findings)?;
    rooms::check(root, &mut findings)?;
    promises::check(root, &mut findings)?;
    shipped::check(root, &mut findings)?;
    links::check(root, &mut findings)?;
    book::check(root, &mut findings)?;
    for path in sources(root)? {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        check_length(&name, &text, &mut findings);
        check_words(&name, &text, &mut findings);
        check_absent(&name, &text, &mut findings);
        check_comments(&name, &text, &mut findings);
        check_header(&name, &text, &mut findings);
    }
    check_prose(root, &mut findings)?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => Err("tidy found one thing to put right".to_owned()),
        many => Err(format!("tidy found {many} things to put right")),
    }
}

/// All Rust sources of the workspace, sorted.
fn sources(root: &Path) -> Result<Vec<PathBuf>, String> {
    let is_source = |path: &Path| path.extension().is_some_and(|extension| extension == "rs");
    files(&[root.join("crates"), root.join("xtask")], &is_source)
}

/// All files of these directories that are accepted, sorted.
fn files(directories: &[PathBuf], accept: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut pending = directories.to_vec();
    while let Some(directory) = pending.pop() {
        let entries =
            fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        for entry in entries {
            let path = entry.map_err(|error| error.to_string())?.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                pending.push(path);
            } else if path.is_file() && accept(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// An absence of ARCHITECTURE.md that is one of words.
fn check_absent(name: &str, text: &str, findings: &mut Vec<String>) {
    for (prefix, words, why) in ABSENT {
        let is_layout = prefix == &"crates/" && LAYOUTS.iter().any(|layout| name.starts_with(layout));
        if !name.starts_with(prefix) || is_layout || is_test(name) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let derives = prefix != &"crates/" || line.trim_start().starts_with("#[derive");
            let found = words.iter().find(|word| derives && line.contains(**word));
            if let Some(word) = found {
                findings.push(format!("{name}:{}: names {word}, but {why}", number + 1));
            }
        }
    }
}

/// Test code may be as long as it likes.
fn is_test(name: &str) -> bool {
    name.ends_with("/tests.rs") || name.contains("/tests/") || name.starts_with("crates/sim/")
}

fn check_length(name: &str, text: &str, findings: &mut Vec<String>) {
    if is_test(name) {
        return;
    }
    let lines = text.lines().take_while(|line| *line != "mod tests {").count();
    let reason =
        text.lines().take_while(|line| line.starts_with("//!")).any(|l| l.contains(LONG_FILE_REASON));
    match (lines > FILE_LINES_MAX, LONG_FILES.contains(&name)) {
        (true, false) => {
            findings.push(format!("{name}:{lines}: longer than {FILE_LINES_MAX} lines; split it"))
        }
        (true, true) if !reason => {
            findings.push(format!("{name}:1: the header does not say \"{LONG_FILE_REASON} ...\""));
        }
        (false, true) => findings.push(format!("{name}:1: short again; take it off the list of long files")),
        _ => {}
    }
}

fn check_words(name: &str, text: &str, findings: &mut Vec<String>) {
    let words = if is_test(name) { &FORBIDDEN[..FORBIDDEN.len() - 1] } else { FORBIDDEN };
    for (number, line) in text.lines().enumerate() {
        for word in words.iter().map(|halves| halves.concat()) {
            if line.contains(&word) {
                findings.push(format!("{name}:{}: \"{word}\" must not stay in the tree", number + 1));
            }
        }
    }
}

/// Rustfmt leaves comments alone. A row of a table stays one line.
fn check_comments(name: &str, text: &str, findings: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        let comment = line.trim_start();
        let is_row = comment.trim_start_matches(['/', '!']).trim_start().starts_with('|');
        if comment.starts_with("//") && !is_row && line.chars().count() > COMMENT_COLUMNS_MAX {
            findings.push(format!(
                "{name}:{}: a comment of more than {COMMENT_COLUMNS_MAX} columns; wrap it",
                number + 1
            ));
        }
    }
}

/// What lies beside the sources: documents, and the comments of scripts and of C.
fn check_prose(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let is_prose = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("md" | "sh" | "py" | "c" | "cpp" | "h"))
    };
    let directories: Vec<_> = PROSE.iter().map(|name| root.join(name)).collect();
    let mut paths = files(&directories, &is_prose)?;
    paths.extend(
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile"]
            .map(|name| root.join(name)),
    );
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        match path.extension().is_some_and(|extension| extension == "md") {
            true => check_paragraphs(&name, &text, findings),
            false => check_script(&name, &text, findings),
        }
    }
    Ok(())
}

/// A row of a table, and a line of a program or of its output, stay one line.
fn check_paragraphs(name: &str, text: &str, findings: &mut Vec<String>) {
    let mut is_program = false;
    for (number, line) in text.lines().enumerate() {
        is_program ^= line.trim_start().starts_with("```");
        let is_whole = is_program || line.starts_with('|') || line.starts_with("    ");
        if !is_whole && line.chars().count() > COMMENT_COLUMNS_MAX {
            findings.push(format!("{name}:{}: more than {COMMENT_COLUMNS_MAX} columns; wrap it", number + 1));
        }
    }
}

fn check_script(name: &str, text: &str, findings: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        let is_comment = ["# ", "* ", "/* ", "// "].iter().any(|mark| line.trim_start().starts_with(mark));
        if is_comment && line.chars().count() > COMMENT_COLUMNS_MAX {
            findings.push(format!(
                "{name}:{}: a comment of more than {COMMENT_COLUMNS_MAX} columns; wrap it",
                number + 1
            ));
        }
    }
}

fn check_header(name: &str, text: &str, findings: &mut Vec<String>) {
    let is_root = name.ends_with("src/lib.rs") || name.ends_with("src/main.rs");
    if is_root && !text.starts_with("//!") {
        findings.push(format!("{name}:1: a crate begins with a header that says what it is"));
    }
}

fn check_arrows(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let manifest =
        fs::read_to_string(root.join("Cargo.toml")).map_err(|error| format!("Cargo.toml: {error}"))?;
    for member in members(&manifest) {
        if !ARROWS.iter().any(|(directory, _)| *directory == member) {
            findings.push(format!("Cargo.toml:1: {member} is not in the table of crate arrows"));
        }
    }
    for (directory, allowed) in ARROWS {
        let path = root.join(directory).join("Cargo.toml");
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for (line, name) in own_dependencies(&text) {
            if !allowed.contains(&name.as_str()) {
                findings.push(format!("{directory}/Cargo.toml:{line}: must not depend on {name}"));
            }
        }
    }
    Ok(())
}

/// The quoted paths of the workspace's member list.
fn members(manifest: &str) -> Vec<&str> {
    let list = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let quoted = |line: &'_ str| line.trim().trim_end_matches(',').len() > 2;
    list.map_or(Vec::new(), |(list, _)| {
        list.lines()
            .filter(|line| quoted(line))
            .map(|line| line.trim().trim_matches(&['"', ','][..]))
            .collect()
    })
}

/// Line and name of each dependency on a crate of this workspace, those for tests left out.
fn own_dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut section = "";
    let mut found = Vec::new();
    for (number, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line;
        }
        let key: String = line.chars().take_while(|c| c.is_alphanumeric() || *c == '-').collect();
        // One that has another name here.
        let renamed = line.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
        let name = renamed.map_or(key, str::to_owned);
        let counts = section.ends_with("dependencies]") && !section.contains("dev-dependencies");
        if counts && (name == "syncline" || name.starts_with("syncline-")) {
            found.push((number + 1, name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_arrow_is_found_and_test_dependencies_are_not() {
        let manifest = "[dependencies]\nsyncline-store.workspace = true\nx = { package = \"syncline\", path = \"x\" }\n\
             [dev-dependencies]\nsyncline = \"1\"\n";
        let found = [(2, "syncline-store".to_owned()), (3, "syncline".to_owned())];
        assert_eq!(own_dependencies(manifest), found);
    }

    #[test]
    fn long_file_is_found_unless_its_length_is_tests() {
        let mut findings = Vec::new();
        let code = "//! x\n".to_owned() + &"let a = 1;\n".repeat(FILE_LINES_MAX);
        check_length("crates/x/src/a.rs", &code, &mut findings);
        assert_eq!(findings.len(), 1);
        let tests = "//! x\nmod tests {\n".to_owned() + &"let a = 1;\n".repeat(FILE_LINES_MAX);
        check_length("crates/x/src/a.rs", &tests, &mut findings);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn unfinished_work_is_found_with_its_line() {
        let mut findings = Vec::new();
        check_words("a.rs", &format!("fn f() {{\n{}{}\n}}", FORBIDDEN[0][0], FORBIDDEN[0][1]), &mut findings);
        assert!(findings[0].starts_with("a.rs:2: "), "{findings:?}");
    }

    #[test]
    fn a_long_comment_is_found_and_a_row_of_a_table_is_not() {
        let mut findings = Vec::new();
        let words = "word ".repeat(COMMENT_COLUMNS_MAX / 5 + 1);
        check_comments(
            "a.rs",
            &format!("let a = 1;\n    /// {words}\n//! | {words} |\n// word\n"),
            &mut findings,
        );
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("a.rs:2: "), "{findings:?}");
    }

    #[test]
    fn a_long_paragraph_is_found_and_a_program_is_not() {
        let mut findings = Vec::new();
        let words = "word ".repeat(COMMENT_COLUMNS_MAX / 5 + 1);
        let text = format!("{words}\n\n    {words}\n```\n{words}\n```\n| {words} |\n- {words}\n");
        check_paragraphs("a.md", &text, &mut findings);
        check_script("a.sh", &format!("echo {words}\n# {words}\n"), &mut findings);
        let places: Vec<_> = findings.iter().filter_map(|finding| finding.split(": ").next()).collect();
        assert_eq!(places, ["a.md:1", "a.md:8", "a.sh:2"]);
    }

    #[test]
    fn every_member_of_the_workspace_is_read() {
        assert_eq!(members("x\nmembers = [\n    \"a/b\",\n    \"c\",\n]\n"), ["a/b", "c"]);
    }
}
