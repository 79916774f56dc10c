//! The rooms of `crates/fs`: each may import only those below it, none may be a hall, and [`Fs`] stays a small type.
//!
//! [`Fs`]: ../../crates/fs/src/engine.rs

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where the rooms are.
const SOURCES: &str = "crates/fs/src";

/// Rooms (folders, and files beside them) from the ground up. A room may import those before it.
const ROOMS: &[&str] = &[
    "error",
    "clock",
    "context",
    "histogram",
    "limits",
    "options",
    "ablation",
    "acl",
    "core",
    "content",
    "read",
    "writeback",
    "shape",
    "removal",
    "sync",
    "write",
    "attributes",
    "names",
    "files",
    "engine",
    "statistics",
    "transaction",
    "trim",
    "session",
    "snapshots",
    "difference",
    "heads",
    "schedule",
];

/// Largest share of all lines that a room may have, in percent.
const ROOM_PERCENT_MAX: usize = 20;

/// Methods that the type of a filesystem may have.
const FS_METHODS_MAX: usize = 60;

/// A source file: its path below [`SOURCES`], and its text without tests.
type Source = (String, String);

/// Appends what is wrong with the rooms of the workspace at `root`.
pub fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let mut sources = Vec::new();
    collect(&root.join(SOURCES), "", &mut sources)?;
    check_sources(&sources, findings);
    Ok(())
}

fn collect(directory: &Path, below: &str, sources: &mut Vec<Source>) -> Result<(), String> {
    let entries = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let name = format!("{below}{name}");
        if path.is_dir() {
            collect(&path, &format!("{name}/"), sources)?;
        } else if name.ends_with(".rs") && !name.starts_with("tests/") && !name.ends_with("/tests.rs") {
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
            sources.push((name, code.to_owned()));
        }
    }
    sources.sort();
    Ok(())
}

fn check_sources(sources: &[Source], findings: &mut Vec<String>) {
    let exported = sources.iter().find(|(name, _)| name == "lib.rs").map(|(_, text)| exports(text));
    let exported = exported.unwrap_or_default();
    let level = |room: &str| ROOMS.iter().position(|known| *known == room);
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    let mut methods = 0;
    for (name, text) in sources {
        methods += methods_of_fs(text);
        let room = room_of(name);
        if room == "lib" {
            continue;
        }
        *lines.entry(room).or_default() += text.lines().count();
        let Some(own) = level(room) else {
            findings.push(format!("{SOURCES}/{name}:1: the room is not in the list of xtask/src/rooms.rs"));
            continue;
        };
        for (line, import) in imports(text) {
            let target = exported.get(&import).unwrap_or(&import);
            if level(target).is_some_and(|target| target > own) {
                findings.push(format!("{SOURCES}/{name}:{line}: {room} imports {target}, which is above it"));
            }
        }
    }
    let all: usize = lines.values().sum();
    for (room, lines) in lines {
        if lines * 100 > all * ROOM_PERCENT_MAX && all > FS_METHODS_MAX * 100 {
            findings.push(format!(
                "{SOURCES}/{room}: more than {ROOM_PERCENT_MAX} % of the crate; make two rooms of it"
            ));
        }
    }
    if methods > FS_METHODS_MAX {
        findings.push(format!(
            "{SOURCES}/engine.rs: Fs has {methods} methods, more than {FS_METHODS_MAX}; give rooms their own"
        ));
    }
}

/// The folder, or the file's own name.
fn room_of(name: &str) -> &str {
    name.split_once('/').map_or_else(|| name.trim_end_matches(".rs"), |(room, _)| room)
}

/// What the code names right behind `crate::`, and in which line.
fn imports(text: &str) -> Vec<(usize, String)> {
    let without_comment = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    let code = text.lines().map(without_comment).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (at, prefix) in code.match_indices("crate::") {
        let line = code[..at].matches('\n').count() + 1;
        let rest = &code[at + prefix.len()..];
        let names = rest.strip_prefix('{').map_or(rest, |list| list.split('}').next().unwrap_or_default());
        let many = if rest.starts_with('{') { usize::MAX } else { 1 };
        let first_word = |item: &str| {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            item.trim_start().chars().take_while(|c| is_word(*c)).collect::<String>()
        };
        found.extend(names.split(',').take(many).map(|item| (line, first_word(item))));
    }
    found
}

/// The names that the crate's root exports, and their rooms.
fn exports(root: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for item in root.split(';').map(|item| item.split_whitespace().collect::<Vec<_>>().join(" ")) {
        let Some(at) = item.find("pub use ") else { continue };
        let path = item[at + "pub use ".len()..].trim_start_matches("crate::");
        let Some((room, names)) = path.split_once("::") else { continue };
        for name in names.trim_matches(|c| c == '{' || c == '}').split(',').map(str::trim) {
            exports.insert(name.to_owned(), room.to_owned());
        }
    }
    exports
}

/// Methods in the blocks `impl Fs`.
fn methods_of_fs(text: &str) -> usize {
    let mut inside = false;
    let mut methods = 0;
    for line in text.lines() {
        match line {
            "impl Fs {" => inside = true,
            "}" => inside = false,
            _ => {}
        }
        let is_method = ["    fn ", "    pub fn ", "    pub(crate) fn ", "    pub const fn "];
        methods += usize::from(inside && is_method.iter().any(|start| line.starts_with(start)));
    }
    methods
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(sources: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            sources.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let mut findings = Vec::new();
        check_sources(&sources, &mut findings);
        findings
    }

    #[test]
    fn an_import_of_a_room_above_is_found_also_by_its_exported_name() {
        let lib = ("lib.rs", "pub use sync::{SyncPlan, Syncs};\n");
        assert_eq!(findings(&[lib, ("sync/plan.rs", "use crate::content::pages::PAGE_BYTES;\n")]), [""; 0]);
        let up = findings(&[lib, ("content/pages.rs", "use crate::{Result, Syncs};\n")]);
        assert_eq!(up, ["crates/fs/src/content/pages.rs:1: content imports sync, which is above it"]);
        let up = findings(&[lib, ("read/flight.rs", "\nlet way = crate::sync::plan::Way::Images;\n")]);
        assert_eq!(up, ["crates/fs/src/read/flight.rs:2: read imports sync, which is above it"]);
        let up = findings(&[lib, ("write/pages.rs", "use crate::{\n    Result,\n    files::Files,\n};\n")]);
        assert_eq!(up, ["crates/fs/src/write/pages.rs:1: write imports files, which is above it"]);
        assert_eq!(findings(&[lib, ("attic/mod.rs", "")]).len(), 1, "a room that nobody has placed");
    }

    #[test]
    fn a_filesystem_with_too_many_methods_is_found() {
        let many = "    fn some(&self) {}\n".repeat(FS_METHODS_MAX + 1);
        assert_eq!(findings(&[("engine.rs", &format!("impl Fs {{\n{many}}}\n"))]).len(), 1);
        assert_eq!(findings(&[("engine.rs", &format!("impl Core {{\n{many}}}\n"))]), [""; 0]);
    }
}
