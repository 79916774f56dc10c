//! Links of the documents: each leads to a file of the sources, or to a heading of one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// A link of a page: its line, and what stands in its parentheses.
#[derive(Debug, PartialEq, Eq)]
pub struct Link {
    pub line: usize,
    pub target: String,
}

/// Adds a finding for each link of a document that leads nowhere.
pub fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    for page in pages(root)? {
        let text = read(&page)?;
        let name = page.strip_prefix(root).unwrap_or(&page).display().to_string();
        for link in links(&text) {
            if let Err(why) = leads(&page, &link.target) {
                findings.push(format!("{name}:{}: {} {why}", link.line, link.target));
            }
        }
    }
    Ok(())
}

/// The documents: all Markdown, what builds have made excepted.
pub fn pages(root: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut found, mut pending) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = pending.pop() {
        let entries =
            fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        for entry in entries {
            let path = entry.map_err(|error| error.to_string())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_made = name.starts_with('.') || name == "target" || name == "dist";
            if path.is_dir() && !path.is_symlink() && !is_made {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Whether somebody else's page is meant.
pub fn is_elsewhere(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// Whether a link of a page leads somewhere. Errors: why not.
fn leads(page: &Path, target: &str) -> Result<(), String> {
    if is_elsewhere(target) {
        return Ok(());
    }
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, at)| (file, Some(at)));
    let to = if file.is_empty() { page.to_owned() } else { page.with_file_name(file) };
    if !to.exists() {
        return Err("leads to no file".to_owned());
    }
    match heading {
        Some(heading) if !headings(&read(&to)?).iter().any(|one| one == heading) => {
            Err("leads to no heading".to_owned())
        }
        _ => Ok(()),
    }
}

/// A path without `.` and `..`.
pub fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// Text with blocks of code and pieces of code blanked out, so that the places of all else stay.
pub fn without_code(text: &str) -> String {
    let (mut blanked, mut fenced) = (String::with_capacity(text.len()), false);
    for line in text.split_inclusive('\n') {
        let is_fence = line.trim_start().starts_with("```");
        if is_fence || fenced || line.starts_with("    ") {
            blanked.extend(line.chars().map(|c| if c == '\n' { '\n' } else { '\0' }));
        } else {
            blanked += line;
        }
        fenced ^= is_fence;
    }
    let mut characters: Vec<char> = blanked.chars().collect();
    let mut begun = None;
    for at in 0..characters.len() {
        match (characters[at], begun) {
            ('`', None) => begun = Some(at),
            ('`', Some(from)) => {
                characters[from..=at].iter_mut().filter(|c| **c != '\n').for_each(|c| *c = '\0');
                begun = None;
            }
            // A piece of code ends with its paragraph at the latest.
            ('\n', Some(_)) if characters.get(at + 1) == Some(&'\n') => begun = None,
            _ => {}
        }
    }
    characters.into_iter().collect()
}

/// The links of a page, code left out.
pub fn links(text: &str) -> Vec<Link> {
    let text = without_code(text);
    let mut found = Vec::new();
    for (at, _) in text.match_indices("](") {
        let rest = &text[at + 2..];
        let Some(end) = rest.find([')', '\n']).filter(|end| rest[*end..].starts_with(')')) else { continue };
        let line = text[..at].matches('\n').count() + 1;
        found.push(Link { line, target: rest[..end].to_owned() });
    }
    found
}

/// The names under which the headings of a page can be linked to.
pub fn headings(text: &str) -> Vec<String> {
    let (mut found, mut counts, mut fenced) = (Vec::new(), BTreeMap::new(), false);
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let name: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = counts.entry(name.clone()).or_insert(0);
        found.push(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_with_their_lines_and_code_has_none() {
        let text =
            "# A\n\n[one](a.md) `[no](b.md)`\n\n    [no](c.md)\n\n```\n[no](d.md)\n```\n[two](e.md#f) [x]\n";
        let found: Vec<(usize, String)> =
            links(text).into_iter().map(|link| (link.line, link.target)).collect();
        assert_eq!(found, [(3, "a.md".to_owned()), (10, "e.md#f".to_owned())]);
    }

    #[test]
    fn a_link_to_what_is_not_there_is_found() {
        let directory = std::env::temp_dir().join(format!("xtask-links-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("mkdir");
        fs::write(directory.join("a.md"), "# One two\n[x](b.md) [y](#one-two) [z](#three) [w](https://x)\n")
            .expect("write");
        let mut findings = Vec::new();
        check(&directory, &mut findings).expect("read");
        fs::remove_dir_all(&directory).expect("removed");
        assert_eq!(findings, ["a.md:2: b.md leads to no file", "a.md:2: #three leads to no heading"]);
    }

    #[test]
    fn headings_are_named_as_readers_of_markdown_name_them() {
        let text = "# C4. A `transaction`, whole\n```\n# no\n```\n## Same\n## Same\n#no\n";
        assert_eq!(headings(text), ["c4-a-transaction-whole", "same", "same-1"]);
    }

    #[test]
    fn a_path_is_followed_upwards() {
        assert_eq!(normal(Path::new("docs/book/../c.md")), Path::new("docs/c.md"));
    }
}
