//! Planted faults: the laboratory has to find mistakes of the engine, so it is given some.
//!
//! The faults are data (`crates/sim/faults/*.faults`); the engine's own sources know nothing of them. `plant` copies
//! the workspace and puts all faults into the copy, each behind a switch of its own; the laboratory is built there
//! once; `report` runs it once per fault with that switch on, and once with all off. `hunt` is what each run does:
//! all parts of the laboratory in turn, until something is found.
//!
//! # The list
//!
//! ```text
//! [name]
//! rule: R11
//! first: reuse
//! what: a freed block is handed out at once
//! file: crates/store/src/space.rs
//! find:
//!     text of the original
//! with:
//!     text instead of it
//! ```
//!
//! `file`, `find` and `with` may come several times. The text has to occur exactly once in the file; white space does
//! not matter. `first` may be left out: it names the part of the laboratory that the hunt begins with, for what only
//! a late part can find. In the new text, `PLANTED` is the switch and `ORIGINAL` the text that was found. A line that
//! begins with `#` is a comment.

pub mod hunt;
pub mod plant;
pub mod report;

use std::fmt;

/// The lists, by name.
pub const LISTS: &[(&str, &str)] = &[
    ("flushes.faults", include_str!("../faults/flushes.faults")),
    ("store.faults", include_str!("../faults/store.faults")),
    ("fs.faults", include_str!("../faults/fs.faults")),
    ("replica.faults", include_str!("../faults/replica.faults")),
    ("transactions.faults", include_str!("../faults/transactions.faults")),
    ("trees.faults", include_str!("../faults/trees.faults")),
];

/// One change of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Edit {
    pub file: String,
    pub find: String,
    pub with: String,
}

/// A mistake.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fault {
    pub name: String,
    /// The rule of the design or the promise of the contract that it breaks.
    pub rule: String,
    pub what: String,
    /// The part of the laboratory that the hunt begins with; if empty, the parts come in their order.
    pub first: String,
    pub edits: Vec<Edit>,
}

/// What is wrong with a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadList {
    pub list: String,
    pub line: usize,
    pub what: &'static str,
}

impl fmt::Display for BadList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crates/sim/faults/{}:{}: {}", self.list, self.line, self.what)
    }
}

/// All faults of all lists.
pub fn all() -> Result<Vec<Fault>, BadList> {
    let mut faults: Vec<Fault> = Vec::new();
    for (list, text) in LISTS {
        faults.extend(parse(list, text)?);
    }
    Ok(faults)
}

/// Where the indented lines that follow belong.
#[derive(Clone, Copy, PartialEq)]
enum Block {
    None,
    Find,
    With,
}

/// Reads one list.
pub fn parse(list: &str, text: &str) -> Result<Vec<Fault>, BadList> {
    let mut faults: Vec<Fault> = Vec::new();
    let mut block = Block::None;
    for (index, line) in text.lines().enumerate() {
        let bad = |what| BadList { list: list.to_owned(), line: index + 1, what };
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            faults.push(Fault { name: name.to_owned(), ..Fault::default() });
            block = Block::None;
            continue;
        }
        let fault = faults.last_mut().ok_or(bad("a fault begins with its name in brackets"))?;
        if line.starts_with(' ') {
            let edit = fault.edits.last_mut().ok_or(bad("an edit begins with its file"))?;
            let into = match block {
                Block::Find => &mut edit.find,
                Block::With => &mut edit.with,
                Block::None => return Err(bad("an indented line belongs to 'find:' or 'with:'")),
            };
            into.push_str(line);
            into.push('\n');
            continue;
        }
        let (key, value) = line.split_once(':').ok_or(bad("neither 'key: value' nor indented"))?;
        let value = value.trim().to_owned();
        block = Block::None;
        match key {
            "rule" => fault.rule = value,
            "what" => fault.what = value,
            "first" => fault.first = value,
            "file" => fault.edits.push(Edit { file: value, ..Edit::default() }),
            "find" => block = Block::Find,
            "with" => block = Block::With,
            _ => return Err(bad("the keys are rule, what, first, file, find and with")),
        }
        if block == Block::Find && fault.edits.last().is_some_and(|edit| !edit.find.is_empty()) {
            // Another change of the same file.
            let file = fault.edits.last().map(|edit| edit.file.clone()).unwrap_or_default();
            fault.edits.push(Edit { file, ..Edit::default() });
        }
    }
    check(list, faults)
}

fn check(list: &str, faults: Vec<Fault>) -> Result<Vec<Fault>, BadList> {
    let bad = |what| BadList { list: list.to_owned(), line: 0, what };
    for (index, fault) in faults.iter().enumerate() {
        if fault.rule.is_empty() || fault.what.is_empty() || fault.edits.is_empty() {
            return Err(bad("every fault has rule, what and an edit"));
        }
        if fault.edits.iter().any(|edit| edit.find.trim().is_empty() || !edit.with.contains("PLANTED")) {
            return Err(bad("every edit finds a text, and what replaces it names PLANTED"));
        }
        if !fault.first.is_empty() && !hunt::is_part(&fault.first) {
            return Err(bad("'first' names a part of the laboratory"));
        }
        if faults[..index].iter().any(|other| other.name == fault.name) {
            return Err(bad("two faults have the same name"));
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_planted_fault_still_finds_its_place_in_the_engine() {
        let faults = all().expect("the lists are well-formed");
        assert!(faults.len() >= 28, "flushes and at least 20 logic faults: {}", faults.len());
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
        if let Err(error) = plant::planted(root, &faults) {
            panic!("{error}");
        }
    }

    #[test]
    fn a_fault_that_finds_nothing_is_told_by_its_name() {
        let text =
            "[gone]\nrule: R1\nwhat: x\nfile: Cargo.toml\nfind:\n    no such text\nwith:\n    PLANTED\n";
        let faults = parse("test", text).expect("a list");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
        let error = plant::planted(root, &faults).expect_err("nothing is found").to_string();
        assert!(error.contains("gone") && error.contains("Cargo.toml"), "{error}");
    }

    #[test]
    fn a_list_that_makes_no_sense_is_told_by_its_line() {
        assert_eq!(parse("x", "[a]\n    code\n").expect_err("no file").line, 2);
        assert_eq!(parse("x", "rule: R1\n").expect_err("no name").line, 1);
        assert!(
            parse("x", "[a]\nrule: R1\nwhat: b\nfile: f\nfind:\n  c\nwith:\n  d\n").is_err(),
            "no switch"
        );
        let first = |part: &str| {
            format!("[a]\nrule: R1\nwhat: b\nfirst: {part}\nfile: f\nfind:\n  c\nwith:\n  PLANTED\n")
        };
        assert_eq!(parse("x", &first("beside")).expect("a list")[0].first, "beside");
        assert!(parse("x", &first("besides")).is_err(), "no such part");
    }
}
