//! Puts faults into a copy of the workspace, each behind its switch.

use super::{Edit, Fault};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The number of the fault that is switched on; none is, without it.
pub const SWITCH: &str = "SYNCLINE_PLANTED_FAULT";

/// Where the switches live in the copy: every crate of the engine uses this one.
const SWITCHES: &str = "crates/format/src/lib.rs";
/// What is copied.
const COPIED: &[&str] = &["Cargo.toml", "Cargo.lock", "crates", "xtask"];

/// Why faults cannot be planted.
#[derive(Debug)]
pub enum PlantError {
    /// The text of a fault does not occur exactly once in its file.
    Place {
        fault: String,
        file: String,
        find: String,
        found: usize,
    },
    /// Two faults change the same text.
    Overlap {
        fault: String,
        file: String,
        other: String,
    },
    Io {
        path: PathBuf,
        source: io::Error,
    },
}

impl fmt::Display for PlantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlantError::Place { fault, file, find, found } => write!(
                f,
                "fault '{fault}': its text is found {found} times in {file}, want once; bring crates/sim/faults up to date:\n{find}"
            ),
            PlantError::Overlap { fault, file, other } => {
                write!(f, "faults '{fault}' and '{other}' change the same text of {file}")
            }
            PlantError::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> PlantError {
    let path = path.to_owned();
    move |source| PlantError::Io { path, source }
}

/// The files that change, with all faults in them. The fault at index `i` has the number `i + 1`.
pub fn planted(root: &Path, faults: &[Fault]) -> Result<BTreeMap<String, String>, PlantError> {
    let mut by_file: BTreeMap<&str, Vec<(usize, &Edit)>> = BTreeMap::new();
    for (index, fault) in faults.iter().enumerate() {
        for edit in &fault.edits {
            by_file.entry(&edit.file).or_default().push((index, edit));
        }
    }
    let mut files = BTreeMap::new();
    for (file, edits) in by_file {
        let path = root.join(file);
        let text = fs::read_to_string(&path).map_err(io_error(&path))?;
        files.insert(file.to_owned(), edited(file, &text, &edits, faults)?);
    }
    let path = root.join(SWITCHES);
    if !files.contains_key(SWITCHES) {
        files.insert(SWITCHES.to_owned(), fs::read_to_string(&path).map_err(io_error(&path))?);
    }
    files.entry(SWITCHES.to_owned()).or_default().push_str(&switches());
    Ok(files)
}

fn switches() -> String {
    format!(
        "\n/// Which fault is switched on.\npub mod planted {{\n    pub fn on(number: usize) -> bool {{\n        \
         static ON: std::sync::OnceLock<usize> = std::sync::OnceLock::new();\n        \
         *ON.get_or_init(|| std::env::var(\"{SWITCH}\").ok().and_then(|on| on.parse().ok()).unwrap_or(0)) == number\n    \
         }}\n}}\n"
    )
}

fn edited(file: &str, text: &str, edits: &[(usize, &Edit)], faults: &[Fault]) -> Result<String, PlantError> {
    let mut places: Vec<(Range<usize>, usize, &Edit)> = Vec::new();
    for (index, edit) in edits {
        let found = places_of(&edit.find, text);
        let [place] = &found[..] else {
            return Err(PlantError::Place {
                fault: faults[*index].name.clone(),
                file: file.to_owned(),
                find: edit.find.clone(),
                found: found.len(),
            });
        };
        places.push((place.clone(), *index, edit));
    }
    places.sort_by_key(|(place, ..)| place.start);
    for pair in places.windows(2) {
        if pair[0].0.end > pair[1].0.start {
            return Err(PlantError::Overlap {
                fault: faults[pair[0].1].name.clone(),
                file: file.to_owned(),
                other: faults[pair[1].1].name.clone(),
            });
        }
    }
    let krate = if file.starts_with("crates/format/") { "crate" } else { "syncline_format" };
    let mut result = String::new();
    let mut end = 0;
    for (place, index, edit) in places {
        result.push_str(&text[end..place.start]);
        let switch = format!("{krate}::planted::on({})", index + 1);
        let new = edit.with.replace("ORIGINAL", &text[place.clone()]);
        result.push_str(new.trim().replace("PLANTED", &switch).as_str());
        end = place.end;
    }
    result.push_str(&text[end..]);
    Ok(result)
}

/// Where `find` occurs in `text`, white space apart.
fn places_of(find: &str, text: &str) -> Vec<Range<usize>> {
    let find: String = find.chars().filter(|c| !c.is_whitespace()).collect();
    let kept: Vec<(usize, char)> = text.char_indices().filter(|(_, c)| !c.is_whitespace()).collect();
    let dense: String = kept.iter().map(|(_, c)| *c).collect();
    // Byte offset within the dense text, for each of its characters.
    let starts: Vec<usize> = dense.char_indices().map(|(at, _)| at).collect();
    let count = find.chars().count();
    dense
        .match_indices(&find)
        .map(|(at, _)| {
            let first = starts.binary_search(&at).expect("a match begins with a character");
            let (last, c) = kept[first + count - 1];
            kept[first].0..last + c.len_utf8()
        })
        .collect()
}

/// Copies the workspace to `copy` with the faults in it. Files that are as they should be are left alone, so that a
/// second build is short.
pub fn plant(root: &Path, copy: &Path, faults: &[Fault]) -> Result<(), PlantError> {
    let changed = planted(root, faults)?;
    let mut wanted = BTreeSet::new();
    for name in COPIED {
        collect(&root.join(name), Path::new(name), &mut wanted)?;
    }
    let mut there = BTreeSet::new();
    if copy.exists() {
        for name in COPIED.iter().filter(|name| copy.join(name).exists()) {
            collect(&copy.join(name), Path::new(name), &mut there)?;
        }
    }
    for stale in there.difference(&wanted) {
        let path = copy.join(stale);
        fs::remove_file(&path).map_err(io_error(&path))?;
    }
    for name in &wanted {
        let (from, to) = (root.join(name), copy.join(name));
        let content = match changed.get(&name.to_string_lossy().into_owned()) {
            Some(text) => text.clone().into_bytes(),
            None => fs::read(&from).map_err(io_error(&from))?,
        };
        if fs::read(&to).is_ok_and(|old| old == content) {
            continue;
        }
        if let Some(directory) = to.parent() {
            fs::create_dir_all(directory).map_err(io_error(directory))?;
        }
        fs::write(&to, content).map_err(io_error(&to))?;
    }
    Ok(())
}

/// All files below `path`, named relative to the workspace.
fn collect(path: &Path, name: &Path, into: &mut BTreeSet<PathBuf>) -> Result<(), PlantError> {
    if !path.is_dir() {
        into.insert(name.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(io_error(path))? {
        let entry = entry.map_err(io_error(path))?;
        if entry.file_name() != "target" {
            collect(&entry.path(), &name.join(entry.file_name()), into)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_does_not_hide_a_place() {
        let text = "fn a() {\n    let x =\n        1;\n}\nlet x = 2;";
        assert_eq!(places_of("let x = 1;", text).len(), 1);
        assert_eq!(&text[places_of("let x = 1;", text)[0].clone()], "let x =\n        1;");
        assert_eq!(places_of("let x", text).len(), 2);
    }
}
