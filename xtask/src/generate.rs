//! Manual pages and shell completions, generated from the same definitions that parse the command line.

use clap::{Arg, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use syncline_cli::{PAGES, Page};

/// Longest line of a page's source.
const COLUMNS: usize = 78;

/// One page per command and subcommand: `syncline.8`, `syncline-mkfs.8`, ... and `mkfs.syncline.8`, ...; a name that
/// means the same as another one leads to its page.
pub fn man(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (name, text) in pages()? {
        fs::write(directory.join(format!("{name}.8")), text)?;
    }
    for word in ["mount", "umount"] {
        for kind in ["fuse", "fuseblk"] {
            let link = directory.join(format!("{word}.{kind}.syncline.8"));
            match fs::remove_file(&link) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => std::os::unix::fs::symlink(format!("{word}.syncline.8"), link)?,
            }
        }
    }
    Ok(())
}

/// Names and texts of all pages.
fn pages() -> io::Result<Vec<(String, String)>> {
    // The word help has no page of its own.
    let mut main = syncline_cli::command().disable_help_subcommand(true);
    main.build();
    let mut commands = vec![("syncline".to_owned(), main.clone())];
    // The companions tell their options themselves.
    let is_own = |name: &str| !["help", "demo", "bench"].contains(&name);
    for subcommand in main.get_subcommands().filter(|sub| !sub.is_hide_set() && is_own(sub.get_name())) {
        commands.push((format!("syncline-{}", subcommand.get_name()), subcommand.clone()));
    }
    for (name, mut command) in syncline_cli::named_commands().into_iter().chain(companions()) {
        command.build();
        commands.push((name.to_owned(), command));
    }
    let names: Vec<String> = commands.iter().map(|(name, _)| name.clone()).collect();
    commands.into_iter().map(|(name, command)| Ok((name.clone(), page(command, &name, &names)?))).collect()
}

fn page(command: Command, name: &str, all: &[String]) -> io::Result<String> {
    // The page's title carries the name; clap wants it to live as long as the program.
    let leaked: &'static str = Box::leak(name.to_owned().into_boxed_str());
    let command = command.name(leaked).display_name(leaked).bin_name(leaked);
    let synopsis = synopsis(&command, name);
    let is_main = command.has_subcommands();
    let version = env!("CARGO_PKG_VERSION");
    let mut text = Vec::new();
    let title = escaped(&name.to_uppercase());
    writeln!(text, ".TH \"{title}\" 8 \"{}\" \"Syncline {version}\" \"System Administration\"", date())?;
    let man = Man::new(command);
    man.render_name_section(&mut text)?;
    text.extend(synopsis.bytes());
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if is_main {
        man.render_subcommands_section(&mut text)?;
    }
    let mut text = String::from_utf8(text).map_err(io::Error::other)?;
    match name {
        "syncline-mount" | "mount.syncline" => text += &mount_options(),
        "syncline-check" | "fsck.syncline" => text += &findings(),
        _ => {}
    }
    let page = page_of(name);
    text += &terms(
        "EXIT STATUS",
        None,
        page.exit_codes.iter().map(|(code, meaning)| (code.to_string(), (*meaning).to_owned())),
    );
    text += &examples(page);
    text += &see_also(page, all);
    Ok(wrapped(&text))
}

/// Of the last commit; where the sources have no history, of the last release.
fn date() -> String {
    let told = std::process::Command::new("git").args(["log", "-1", "--format=%cs"]).output();
    let told = told.ok().filter(|output| output.status.success());
    let committed = told.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    committed.or_else(|| released(CHANGELOG)).unwrap_or_default()
}

/// The packages' changelog.
const CHANGELOG: &str = include_str!("../../packaging/debian/changelog");

/// The date of a changelog's first entry, which ends in " -- NAME  Mon, 23 Nov 2026 12:00:00 +0000".
fn released(changelog: &str) -> Option<String> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let signed = changelog.lines().find(|line| line.starts_with(" -- "))?;
    let mut words = signed.rsplit_once(", ")?.1.split_whitespace();
    let (day, month, year) = (words.next()?, words.next()?, words.next()?);
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    Some(format!("{year}-{month:02}-{day:0>2}"))
}

/// With the words of long lines on several, but for requests and what is shown as it stands.
fn wrapped(page: &str) -> String {
    let (mut text, mut as_it_stands) = (String::new(), false);
    // An empty line is a paragraph of its own, and two breaks around it break nothing.
    for line in page.replace(".br\n\n.br\n", ".sp\n").lines() {
        match line {
            ".nf" => as_it_stands = true,
            ".fi" => as_it_stands = false,
            _ => {}
        }
        if as_it_stands || line.starts_with('.') || line.len() <= COLUMNS {
            text += &format!("{line}\n");
            continue;
        }
        let mut column = 0;
        for word in line.split(' ') {
            // A word that would be a request at the beginning of a line stays where it is.
            let may_begin = !word.starts_with(['.', '\'']) && !word.is_empty();
            if column > 0 {
                let breaks = column + 1 + word.len() > COLUMNS && may_begin;
                text.push(if breaks { '\n' } else { ' ' });
                column = if breaks { 0 } else { column + 1 };
            }
            text += word;
            column += word.len();
        }
        text.push('\n');
    }
    text
}

/// The programs that `syncline` starts.
fn companions() -> [(&'static str, Command); 2] {
    [("syncline-bench", syncline_bench::command()), ("syncline-demo", syncline_demo::command())]
}

fn page_of(name: &str) -> &'static Page {
    let mut pages = PAGES.iter().chain([&syncline_bench::PAGE, &syncline_demo::PAGE]);
    pages.find(|page| page.name == name).unwrap_or_else(|| panic!("{name} has no page"))
}

/// Options with what they take, then what they are about.
fn synopsis(command: &Command, name: &str) -> String {
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let mut text = format!(".SH SYNOPSIS\n.B {}\n", escaped(name));
    let options = command.get_arguments().filter(|arg| !arg.is_positional());
    for option in options.filter(is_shown) {
        let flag = match (option.get_long(), option.get_short()) {
            (Some(long), _) => format!("--{long}"),
            (None, Some(short)) => format!("-{short}"),
            (None, None) => continue,
        };
        let value = match option.get_action().takes_values() {
            true => format!(" \\fI{}\\fR", escaped(&value_name(option))),
            false => String::new(),
        };
        text += &format!("[\\fB{}\\fR{value}]\n", escaped(&flag));
    }
    for positional in command.get_positionals().filter(is_shown) {
        let name = format!("\\fI{}\\fR", escaped(&value_name(positional)));
        let many = match positional.get_num_args().is_some_and(|range| range.max_values() > 1) {
            true => "...",
            false => "",
        };
        text += &match positional.is_required_set() {
            true => format!("{name}{many}\n"),
            false => format!("[{name}{many}]\n"),
        };
    }
    if command.has_subcommands() {
        text += "\\fICOMMAND\\fR\n[\\fIARGUMENTS\\fR...]\n";
    }
    text
}

fn value_name(arg: &Arg) -> String {
    match arg.get_value_names() {
        Some(names) => names.join(" "),
        None => arg.get_id().as_str().to_uppercase(),
    }
}

/// The section about what stands behind `-o`, as a list of terms.
fn mount_options() -> String {
    let introduction = "Behind \\fB\\-o\\fR, separated by commas; later ones win.";
    let options = syncline_cli::MOUNT_OPTIONS
        .iter()
        .map(|(option, meaning)| ((*option).to_owned(), (*meaning).to_owned()));
    terms("MOUNT OPTIONS", Some(introduction), options)
}

/// The section about the codes of what a check finds.
fn findings() -> String {
    let introduction = "Codes never change their meaning. \\fIwarning\\fR: redundancy is lost; \\fIerror\\fR: the volume contradicts \
        itself; \\fIfatal\\fR: so much that nothing may be repaired.";
    let codes = syncline_cli::findings()
        .map(|(code, severity, title)| (code.to_owned(), format!("{severity}: {title}")));
    terms("FINDINGS", Some(introduction), codes)
}

fn terms(title: &str, introduction: Option<&str>, terms: impl Iterator<Item = (String, String)>) -> String {
    let mut section = format!(".SH \"{title}\"\n");
    if let Some(introduction) = introduction {
        section += &format!("{introduction}\n");
    }
    for (term, meaning) in terms {
        section += &format!(".TP\n\\fB{}\\fR\n{}\n", escaped(&term), escaped(&meaning));
    }
    section
}

fn examples(page: &Page) -> String {
    let mut section = ".SH EXAMPLES\n".to_owned();
    for (index, (what, line)) in page.examples.iter().enumerate() {
        if !what.is_empty() {
            section += if index == 0 { "" } else { ".PP\n" };
            section += &format!("{}\n", escaped(what));
        }
        section += &format!(".PP\n.nf\n.RS 4\n{}\n.RE\n.fi\n", escaped(line));
    }
    section
}

/// The other pages of the project, then those of others.
fn see_also(page: &Page, all: &[String]) -> String {
    let own = all.iter().filter(|name| *name != page.name).map(|name| format!("{name}(8)"));
    let mut names: Vec<String> = own.chain(page.see_also.iter().map(|&name| name.to_owned())).collect();
    names.sort();
    let shown: Vec<String> = names
        .iter()
        .filter_map(|name| name.split_once('('))
        .map(|(name, section)| format!(".BR {} ({section}", escaped(name)))
        .collect();
    format!(".SH \"SEE ALSO\"\n{}\n", shown.join(",\n"))
}

/// As roff wants it; a dot or quote at the beginning of a line would be a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('~', "\\(ti");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Completions of the programs for the three common shells.
pub fn completions(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        for (name, mut command) in [("syncline", syncline_cli::command())].into_iter().chain(companions()) {
            clap_complete::generate_to(shell, &mut command, name, directory)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_a_date_without_a_history_too() {
        let entry = "syncline (1) x; urgency=low\n\n  * y\n\n -- N <n@x>  Mon, 3 Nov 2026 12:00:00 +0000\n";
        assert_eq!(released(entry).as_deref(), Some("2026-11-03"));
        assert!(released(CHANGELOG).is_some());
    }

    #[test]
    fn every_page_has_its_sections_and_every_option_its_value() {
        let pages = pages().expect("made");
        assert_eq!(pages.len(), 23);
        for (name, text) in pages {
            let sections: Vec<&str> = text
                .lines()
                .filter_map(|line| line.strip_prefix(".SH "))
                .map(|title| title.trim_matches('"'))
                .collect();
            assert_eq!(sections[..3], ["NAME", "SYNOPSIS", "DESCRIPTION"], "{name}");
            assert_eq!(sections[sections.len() - 3..], ["EXIT STATUS", "EXAMPLES", "SEE ALSO"], "{name}");
            assert!(!sections.contains(&"EXTRA"), "{name}");
            assert!(text.contains(".TP\n\\fB0\\fR\n"), "{name}: success has a code");
            assert!(!text.contains("syncline\\-help(8)"), "{name}: leads to a page that is not there");
        }
    }

    #[test]
    fn lines_are_wrapped_and_no_word_becomes_a_request() {
        let long = format!("{}longer .so it goes", "word ".repeat(14));
        let text = wrapped(&format!(".B {long}\n{long}\n.nf\n{long}\n.fi\n"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert!(lines[1].ends_with(" .so") && lines[2] == "it goes", "{text}");
        assert_eq!([lines[1], lines[2]].join(" "), long);
        assert_eq!((lines[0], lines[4]), (format!(".B {long}").as_str(), long.as_str()));
    }

    #[test]
    fn options_are_shown_with_what_they_take() {
        let of = |wanted: &str| {
            let pages = pages().expect("made");
            pages.into_iter().find(|(name, _)| name == wanted).expect("there").1
        };
        assert!(of("mount.syncline").contains("[\\fB\\-o\\fR \\fIOPTIONS\\fR]"));
        assert!(of("syncline-mkfs").contains("[\\fB\\-\\-size\\fR \\fISIZE\\fR]\n"));
        assert!(of("syncline-cat").contains("\n\\fIFILES\\fR...\n"));
        assert!(of("syncline-ls").contains("\n[\\fIDIRECTORY\\fR]\n"));
    }
}
