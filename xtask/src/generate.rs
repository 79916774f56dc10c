//! Manual pages and shell completions, generated from the same definitions that parse the command line.

use clap::Command;
use clap::builder::Resettable;
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::Path;

/// One page per command and subcommand: `syncline.8`, `syncline-mkfs.8`, ... and `mkfs.syncline.8`, ...; a name that means the
/// same as another one leads to its page.
pub fn man(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut main = syncline_cli::command();
    main.build();
    page(directory, main.clone(), "syncline")?;
    for subcommand in main.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        page(directory, subcommand.clone(), &format!("syncline-{}", subcommand.get_name()))?;
    }
    for (name, command) in syncline_cli::named_commands() {
        page(directory, command, name)?;
    }
    for name in ["mount.fuse.syncline", "mount.fuseblk.syncline"] {
        fs::write(directory.join(format!("{name}.8")), ".so man8/mount.syncline.8\n")?;
    }
    Ok(())
}

fn page(directory: &Path, command: Command, name: &str) -> io::Result<()> {
    // The page's title and its synopsis carry the name; clap wants it to live as long as the program.
    let leaked: &'static str = Box::leak(name.to_owned().into_boxed_str());
    let mut text = Vec::new();
    // What the long help says more than the short one is a section of its own here.
    let command =
        command.name(leaked).display_name(leaked).bin_name(leaked).after_long_help(Resettable::Reset);
    clap_mangen::Man::new(command).section("8").render(&mut text)?;
    match name {
        "syncline-mount" | "mount.syncline" => text.extend(mount_options().bytes()),
        "syncline-check" | "fsck.syncline" => text.extend(findings().bytes()),
        _ => {}
    }
    fs::write(directory.join(format!("{name}.8")), text)
}

/// The section about what stands behind `-o`, as a list of terms.
fn mount_options() -> String {
    let introduction = "Behind \\fB\\-o\\fR, separated by commas; later ones win.";
    let options =
        syncline_cli::MOUNT_OPTIONS.iter().map(|(option, meaning)| (*option, (*meaning).to_owned()));
    terms("MOUNT OPTIONS", introduction, options)
}

/// The section about the codes of what a check finds.
fn findings() -> String {
    let introduction = "Codes never change their meaning. \\fIwarning\\fR: redundancy is lost; \\fIerror\\fR: the volume contradicts \
        itself; \\fIfatal\\fR: so much that nothing may be repaired.";
    let codes =
        syncline_cli::findings().map(|(code, severity, title)| (code, format!("{severity}: {title}")));
    terms("FINDINGS", introduction, codes)
}

fn terms<'a>(title: &str, introduction: &str, terms: impl Iterator<Item = (&'a str, String)>) -> String {
    let escaped = |text: &str| text.replace('\\', "\\e").replace('-', "\\-");
    let mut section = format!(".SH \"{title}\"\n{introduction}\n");
    for (term, meaning) in terms {
        section += &format!(".TP\n\\fB{}\\fR\n{}\n", escaped(term), escaped(&meaning));
    }
    section
}

/// Completions of `syncline` for the three common shells.
pub fn completions(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut syncline_cli::command(), "syncline", directory)?;
    }
    Ok(())
}
