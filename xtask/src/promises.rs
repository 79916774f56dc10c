//! The table of `docs/testing.md` that tells which test shows which promise or rule.
//!
//! A test names what it shows in a comment above its attribute: `// Shows: C1, R19.` (`# Shows:` in Python). The
//! planted faults name their rule themselves. Each promise of `docs/contract.md` and each rule of `docs/design.md` and
//! `docs/snapshots.md` must be shown by one test or fault at least.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The document, and the marks between which the table stands.
const DOCUMENT: &str = "docs/testing.md";
const BEGIN: &str = "<!-- tests: begin -->";
const END: &str = "<!-- tests: end -->";
/// Words of the comment above a test.
const TAG: &str = "Shows: ";
/// Lines between the comment and the name of its test.
const REACH: usize = 8;
/// Tests of one row; further ones are counted.
const TESTS_MAX: usize = 5;

/// What is shown, for the first column: number and title.
type Titles = Vec<(String, String)>;
/// Tests of each number.
type Shown = BTreeMap<String, Vec<String>>;

/// Writes the table into the document.
pub fn write(root: &Path) -> Result<(), String> {
    let (before, _, after) = parts(root)?;
    let text = format!("{before}{}{after}", table(root)?);
    let path = root.join(DOCUMENT);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Whether the table of the document is the one that the sources give, and each number is shown.
pub fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let (_, current, _) = parts(root)?;
    if current != table(root)? {
        findings
            .push(format!("{DOCUMENT}:1: the table of tests is old; run \"cargo run -p xtask -- tests\""));
    }
    let (shown, faults) = (shown(root)?, faults(root)?);
    for (number, title) in titles(root)? {
        if !shown.contains_key(&number) && !faults.contains_key(&number) {
            findings.push(format!("{DOCUMENT}:1: no test says that it shows {number} ({title})"));
        }
    }
    Ok(())
}

/// The document before the table, the table, and the document behind it.
fn parts(root: &Path) -> Result<(String, String, String), String> {
    let text = read(&root.join(DOCUMENT))?;
    let missing = || format!("{DOCUMENT}: the marks of the table of tests are missing");
    let (before, rest) = text.split_once(BEGIN).ok_or_else(missing)?;
    let (table, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok((format!("{before}{BEGIN}"), table.to_owned(), format!("{END}{after}")))
}

fn table(root: &Path) -> Result<String, String> {
    let (shown, faults) = (shown(root)?, faults(root)?);
    let mut text = "\n\n| promise or rule | planted faults | tests |\n|---|---|---|\n".to_owned();
    for (number, title) in titles(root)? {
        let tests = shown.get(&number).map_or(&[][..], Vec::as_slice);
        let mut named: Vec<String> = tests.iter().take(TESTS_MAX).map(|test| format!("`{test}`")).collect();
        if tests.len() > TESTS_MAX {
            named.push(format!("{} more", tests.len() - TESTS_MAX));
        }
        let faults = faults.get(&number).copied().unwrap_or(0);
        text += &format!("| {number} {title} | {faults} | {} |\n", named.join(", "));
    }
    Ok(text + "\n")
}

/// The promises from the headings of the contract, the rules from the tables of the design.
fn titles(root: &Path) -> Result<Titles, String> {
    let contract = read(&root.join("docs/contract.md"))?;
    let design = read(&root.join("docs/design.md"))? + &read(&root.join("docs/snapshots.md"))?;
    let promises = contract.lines().filter_map(|line| line.strip_prefix("## "));
    let promises = promises.filter_map(|line| line.split_once(". "));
    let rules = design.lines().filter_map(|line| line.strip_prefix("| "));
    let rules = rules.filter_map(|line| line.split_once(" | "));
    let rule = |(number, rest): (&str, &str)| {
        let title = rest.split(['.', ';', '|']).next().unwrap_or(rest).trim();
        (number.to_owned(), title.to_owned())
    };
    let mut titles: Titles = Vec::new();
    let promises = promises.map(|(number, title)| (number.to_owned(), title.to_owned()));
    for (number, title) in promises.chain(rules.map(rule)) {
        // The design's second table repeats the rules.
        if is_number(&number) && !titles.iter().any(|(known, _)| *known == number) {
            titles.push((number, title));
        }
    }
    titles.sort_by_key(|(number, _)| order(number));
    Ok(titles)
}

/// `C7a` or `R19`.
fn is_number(word: &str) -> bool {
    let digits = word.trim_start_matches(['C', 'R']).trim_end_matches(|c: char| c.is_ascii_lowercase());
    word.starts_with(['C', 'R']) && !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
}

/// Promises before rules, by number.
fn order(number: &str) -> (char, u32, String) {
    let digits: String = number.chars().filter(char::is_ascii_digit).collect();
    (number.chars().next().unwrap_or(' '), digits.parse().unwrap_or(0), number.to_owned())
}

/// The tests that say what they show.
fn shown(root: &Path) -> Result<Shown, String> {
    let mut shown = Shown::new();
    for path in files(root, &["crates", "tests"], &["rs", "py"])? {
        let text = read(&path)?;
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(numbers) = tag(line) else { continue };
            let name = lines[at + 1..].iter().take(REACH).find_map(|line| defined(line));
            let place = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let Some(name) = name else {
                return Err(format!("{place}:{}: no test stands below this comment", at + 1));
            };
            for number in numbers {
                shown.entry(number).or_default().push(format!("{} {name}", room(&place)));
            }
        }
    }
    shown.values_mut().for_each(|tests| tests.sort());
    Ok(shown)
}

/// The numbers of a comment that says what a test shows.
fn tag(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start();
    let rest = ["/// ", "// ", "# "].iter().find_map(|mark| line.strip_prefix(mark))?;
    let numbers = rest.strip_prefix(TAG)?.trim_end_matches('.').split(", ");
    Some(numbers.map(str::to_owned).collect())
}

/// The name of the function that a line defines.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = ["fn ", "pub fn ", "def "].iter().find_map(|mark| line.strip_prefix(mark))?;
    rest.split(['(', '<']).next()
}

/// `crates/fs/tests/sync.rs` is `fs sync`.
fn room(path: &str) -> String {
    let inside = path.trim_start_matches("crates/").trim_end_matches(".rs").trim_end_matches(".py");
    let (first, rest) = inside.split_once('/').unwrap_or((inside, ""));
    let last = rest.trim_end_matches("/tests").rsplit('/').next().unwrap_or("");
    format!("{first} {last}").trim().to_owned()
}

/// How many planted faults there are of each rule.
fn faults(root: &Path) -> Result<BTreeMap<String, usize>, String> {
    let mut faults = BTreeMap::new();
    for path in files(root, &["crates/sim/faults"], &["faults"])? {
        let text = read(&path)?;
        for rule in text.lines().filter_map(|line| line.strip_prefix("rule: ")) {
            *faults.entry(rule.trim().to_owned()).or_default() += 1;
        }
    }
    Ok(faults)
}

fn files(root: &Path, folders: &[&str], extensions: &[&str]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut pending: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(directory) = pending.pop() {
        let entries =
            fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        for entry in entries {
            let path = entry.map_err(|error| error.to_string())?.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if path.is_dir() {
                pending.push(path);
            } else if extension.is_some_and(|extension| extensions.contains(&extension)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_above_a_test_names_what_it_shows() {
        assert_eq!(tag("    // Shows: C1, R19."), Some(vec!["C1".to_owned(), "R19".to_owned()]));
        assert_eq!(tag("# Shows: C3."), Some(vec!["C3".to_owned()]));
        assert_eq!(tag("// It shows: C3."), None);
        assert_eq!(defined("    fn a_name() {"), Some("a_name"));
        assert_eq!(defined("def a_case(volume):"), Some("a_case"));
        assert_eq!(defined("#[test]"), None);
    }

    #[test]
    fn numbers_of_promises_and_rules_are_told_from_other_words() {
        assert!(is_number("C7a") && is_number("R19"));
        assert!(!is_number("Crash") && !is_number("R") && !is_number("without") && !is_number("C8, flush"));
        assert!(order("C9") < order("R1") && order("R2") < order("R10") && order("C7") < order("C7a"));
    }

    #[test]
    fn a_test_is_named_by_crate_and_file() {
        assert_eq!(room("crates/fs/tests/sync.rs"), "fs sync");
        assert_eq!(room("crates/fs/src/data/admit/tests.rs"), "fs admit");
        assert_eq!(room("tests/crash/scenarios.py"), "tests scenarios");
    }
}
