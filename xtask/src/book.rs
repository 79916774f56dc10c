//! The book: `docs/book/SUMMARY.md` says which pages it has and in which order, those of `docs` among them.
//!
//! mdBook takes pages below one directory only, and leaves links to what is no page of the book as they are. So the
//! pages are laid out anew, `docs` as the root, and a link that leads out of the book becomes its own text.

use crate::links::{self, is_elsewhere, links, normal, read};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const SUMMARY: &str = "docs/book/SUMMARY.md";
const SETTINGS: &str = "docs/book/book.toml";
/// Pages that are of no use to who reads the book.
const LEFT_OUT: &[&str] = &["docs/book/SUMMARY.md"];

/// The pages of the book, from the root of the sources, in their order.
fn pages(root: &Path) -> Result<Vec<PathBuf>, String> {
    let text = read(&root.join(SUMMARY))?;
    let beside = |target: &str| normal(&Path::new(SUMMARY).with_file_name(target));
    Ok(links(&text).into_iter().map(|link| beside(&link.target)).collect())
}

/// Adds a finding for each page of `docs` that the book has not, or has twice.
pub fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let pages = pages(root)?;
    let known: BTreeSet<&PathBuf> = pages.iter().collect();
    if known.len() != pages.len() {
        findings.push(format!("{SUMMARY}:1: a page stands in it twice"));
    }
    for page in links::pages(&root.join("docs"))? {
        let page = page.strip_prefix(root).unwrap_or(&page).to_owned();
        let is_left_out = LEFT_OUT.iter().any(|left_out| page == Path::new(left_out));
        if !known.contains(&page) && !is_left_out {
            findings.push(format!("{SUMMARY}:1: {} is not in the book", page.display()));
        }
    }
    Ok(())
}

/// Lays the book out for mdBook below a directory.
pub fn lay_out(root: &Path, into: &Path) -> Result<(), String> {
    let pages = pages(root)?;
    let known: BTreeSet<PathBuf> = pages.iter().cloned().collect();
    let source = into.join("src");
    if source.exists() {
        fs::remove_dir_all(&source).map_err(|error| format!("{}: {error}", source.display()))?;
    }
    for page in &pages {
        let text = read(&root.join(page))?;
        put(&source.join(page.strip_prefix("docs").unwrap_or(page)), &inside(&text, page, &known))?;
    }
    let summary = read(&root.join(SUMMARY))?;
    // From the root of the book instead of from beside the summary.
    let summary = with_links(&summary, |target| {
        let page = normal(&Path::new(SUMMARY).with_file_name(target));
        page.strip_prefix("docs").ok().map(|page| page.display().to_string())
    });
    put(&source.join("SUMMARY.md"), &summary)?;
    put(&into.join("book.toml"), &read(&root.join(SETTINGS))?)
}

fn put(path: &Path, text: &str) -> Result<(), String> {
    let parent = path.parent().expect("a file lies in a directory");
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// A page with links to pages of the book only.
fn inside(text: &str, page: &Path, known: &BTreeSet<PathBuf>) -> String {
    with_links(text, |target| {
        let file = target.split('#').next().unwrap_or_default();
        let is_kept = is_elsewhere(target) || file.is_empty();
        (is_kept || known.contains(&normal(&page.with_file_name(file)))).then(|| target.to_owned())
    })
}

/// Text with other targets of its links; a link without a target becomes its text.
fn with_links(text: &str, target_of: impl Fn(&str) -> Option<String>) -> String {
    // Places are those of the text itself: what is blanked out has as many characters, each of one byte or more.
    let blanked: Vec<char> = links::without_code(text).chars().collect();
    let characters: Vec<char> = text.chars().collect();
    let (mut made, mut begun) = (String::with_capacity(text.len()), None);
    let mut at = 0;
    while at < characters.len() {
        match (blanked[at], blanked.get(at + 1)) {
            ('[', _) => {
                begun = Some(made.len());
                made.push('[');
                at += 1;
            }
            (']', Some('(')) if let Some(from) = begun.take() => {
                let Some(length) = blanked[at..].iter().position(|c| *c == ')') else { break };
                let target: String = characters[at + 2..at + length].iter().collect();
                match target_of(&target) {
                    Some(target) => made += &format!("]({target})"),
                    None => {
                        made.remove(from);
                    }
                }
                at += length + 1;
            }
            _ => {
                made.push(characters[at]);
                at += 1;
            }
        }
    }
    made.extend(&characters[at..]);
    made
}

/// Fails if a link of the built book leads to no file of it, or to no place in one.
pub fn check_built(built: &Path) -> Result<(), String> {
    let mut findings = Vec::new();
    let pages = files(built)?;
    for page in &pages {
        let text = read(page)?;
        for target in attributes(&text, "href").into_iter().chain(attributes(&text, "src")) {
            let (file, place) = target.split_once('#').map_or((target, ""), |(file, place)| (file, place));
            if is_elsewhere(target) || target.starts_with("data:") || target.starts_with("javascript:") {
                continue;
            }
            let to = if file.is_empty() { page.clone() } else { normal(&page.with_file_name(file)) };
            let is_page = to.extension().is_some_and(|extension| extension == "html");
            let is_there = match is_page && to.is_file() && !place.is_empty() {
                true => attributes(&read(&to)?, "id").contains(&place),
                false => to.exists(),
            };
            if !is_there {
                findings.push(format!("{}: {target} leads nowhere", page.display()));
            }
        }
    }
    for finding in &findings {
        println!("{finding}");
    }
    match (pages.len(), findings.len()) {
        (0, _) => Err(format!("{} has no page", built.display())),
        (pages, 0) => {
            println!("book: {pages} pages, every link leads somewhere");
            Ok(())
        }
        (_, many) => Err(format!("{many} links of the book lead nowhere")),
    }
}

fn files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut found, mut pending) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = pending.pop() {
        let entries =
            fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The values of an attribute in a page.
fn attributes<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!(" {name}=\"");
    let values = html.match_indices(&begin).map(|(at, found)| &html[at + found.len()..]);
    values.filter_map(|rest| rest.split_once('"').map(|(value, _)| value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_become_text_and_others_stay() {
        let known = BTreeSet::from([PathBuf::from("docs/c.md")]);
        let text = "[a](../c.md#x) [`b`](../../src/b.rs) `[n](../no.md)` [w](https://x) [h](#h) a[0](b)\n";
        let made = inside(text, Path::new("docs/book/a.md"), &known);
        assert_eq!(made, "[a](../c.md#x) `b` `[n](../no.md)` [w](https://x) [h](#h) a0\n");
    }

    #[test]
    fn a_page_that_the_book_lacks_is_found() {
        let root = std::env::temp_dir().join(format!("xtask-book-{}", std::process::id()));
        put(&root.join(SUMMARY), "- [A](a.md)\n- [C](../c.md)\n").expect("written");
        put(&root.join(SETTINGS), "").expect("written");
        for page in ["docs/book/a.md", "docs/c.md", "docs/d.md"] {
            put(&root.join(page), "[d](../d.md)\n").expect("written");
        }
        let mut findings = Vec::new();
        check(&root, &mut findings).expect("read");
        lay_out(&root, &root.join("made")).expect("laid out");
        let summary = read(&root.join("made/src/SUMMARY.md")).expect("there");
        let page = read(&root.join("made/src/book/a.md")).expect("there");
        fs::remove_dir_all(&root).expect("removed");
        assert_eq!(findings, [format!("{SUMMARY}:1: docs/d.md is not in the book")]);
        assert_eq!((summary.as_str(), page.as_str()), ("- [A](book/a.md)\n- [C](c.md)\n", "d\n"));
    }

    #[test]
    fn a_link_of_the_built_book_that_leads_nowhere_is_found() {
        let built = std::env::temp_dir().join(format!("xtask-built-{}", std::process::id()));
        put(&built.join("a.html"), "<a href=\"b.html#x\">b</a> <h1 id=\"y\">y</h1>").expect("written");
        put(&built.join("b.html"), "<p id=\"x\"></p> <a href=\"a.html#y\">a</a>").expect("written");
        let sound = check_built(&built);
        put(&built.join("b.html"), "<a href=\"a.html#z\">a</a> <a href=\"c.html\">c</a>").expect("written");
        let broken = check_built(&built);
        fs::remove_dir_all(&built).expect("removed");
        assert_eq!(sound, Ok(()));
        assert_eq!(broken, Err("3 links of the book lead nowhere".to_owned()));
    }
}
