//! The other names of the program, under which mkfs(8), fsck(8), mount(8) and umount(8) call it, with their
//! conventions.

use crate::arguments::{
    Action, CheckArguments, MkfsArguments, MountArguments, Syncline, UmountArguments, mount_options_help,
};
use crate::error::{Failure, Tool};
use crate::pages::exit_codes;
#[cfg(feature = "replica")]
use crate::replica;
#[cfg(feature = "top")]
use crate::top;
use crate::{
    check, companion, copy, fail, inspect, list, mkfs, mount, probe, snapshot, stats, sync, umount, upgrade,
};
use clap::{CommandFactory, FromArgMatches, Parser};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// `mkfs -t syncline` calls this name and passes its options through.
#[derive(Debug, Parser)]
#[command(
    name = "mkfs.syncline",
    version,
    about = "Make a Syncline volume",
    after_help = exit_codes("mkfs.syncline")
)]
struct MkfsSyncline {
    #[command(flatten)]
    arguments: MkfsArguments,
    /// More words (mkfs(8) passes it through).
    #[arg(short = 'v', long)]
    verbose: bool,
}

/// `fsck -t syncline` and the boot sequence call this name.
#[derive(Debug, Parser)]
#[command(
    name = "fsck.syncline",
    version,
    about = "Check and repair a Syncline volume",
    after_help = exit_codes("fsck.syncline")
)]
struct FsckSyncline {
    /// Repair what is safe to repair; return at once if the volume was closed properly.
    #[arg(short = 'a', short_alias = 'p')]
    automatic: bool,
    /// Repair what is safe to repair, without asking (nothing ever asks).
    #[arg(short = 'y', conflicts_with = "no_change")]
    yes: bool,
    /// Change nothing.
    #[arg(short = 'n', conflicts_with = "automatic")]
    no_change: bool,
    /// Check even if the volume was closed properly.
    #[arg(short = 'f')]
    force: bool,
    /// More words.
    #[arg(short = 'v')]
    verbose: bool,
    /// Show progress (on a descriptor for fsck(8); here on the terminal).
    #[arg(short = 'C', value_name = "FD", num_args = 0..=1)]
    progress: Option<Option<i32>>,
    /// Image file or block device.
    #[arg(value_name = "IMAGE")]
    path: PathBuf,
}

/// `mount -t syncline` and /etc/fstab call this name: source and directory first, options behind them.
#[derive(Debug, Parser)]
#[command(
    name = "mount.syncline",
    version,
    about = "Mount a Syncline volume",
    after_help = exit_codes("mount.syncline"),
    after_long_help = mount_options_help()
)]
struct MountSyncline {
    /// Image file or block device.
    #[arg(value_name = "IMAGE")]
    path: PathBuf,
    /// Where to mount it.
    directory: PathBuf,
    /// Ignore options that are not known.
    #[arg(short = 's')]
    sloppy: bool,
    /// Do everything but mount.
    #[arg(short = 'f')]
    fake: bool,
    /// Write no mtab (none is ever written).
    #[arg(short = 'n')]
    no_mtab: bool,
    /// More words.
    #[arg(short = 'v')]
    verbose: bool,
    /// Mount namespace (mount(8) enters it before it calls this).
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,
    /// Type with subtype (mount(8) passes it).
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// Options, separated by commas; --help and the manual page explain them.
    #[arg(short = 'o', value_name = "OPTIONS", allow_hyphen_values = true)]
    options: Vec<String>,
}

/// umount(8) calls this name, and so do init systems: directory first, options behind it.
#[derive(Debug, Parser)]
#[command(
    name = "umount.syncline",
    version,
    about = "Unmount a Syncline volume; returns when its daemon has closed it",
    after_help = exit_codes("umount.syncline")
)]
struct UmountSyncline {
    /// The directory the volume is mounted on.
    directory: PathBuf,
    /// Take a volume that is in use out of the tree now; it is closed when its last user is gone.
    #[arg(short = 'l')]
    lazy: bool,
    /// End the mount of a daemon that does not answer; what was not synced is lost.
    #[arg(short = 'f')]
    force: bool,
    /// If the volume is in use, make it read-only, with everything durable.
    #[arg(short = 'r')]
    read_only: bool,
    /// Write no mtab (none is ever written).
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Ignore options that are not known (there are none).
    #[arg(short = 's')]
    sloppy: bool,
    /// More words.
    #[arg(short = 'v')]
    verbose: bool,
    /// Mount namespace (umount(8) enters it before it calls this).
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,
    /// Type with subtype (umount(8) passes it).
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// What a command line asks for.
#[derive(Debug)]
pub(crate) enum Request {
    Action(Action),
    Mkfs(MkfsArguments),
    Fsck { check: CheckArguments, skip_if_clean: bool },
    Mount { arguments: MountArguments, sloppy: bool, fake: bool },
    Umount { arguments: UmountArguments, manner: umount::Manner },
}

impl Request {
    /// Whose conventions for exit codes hold.
    pub(crate) fn tool(&self) -> Tool {
        match self {
            Request::Action(Action::Check(_)) | Request::Fsck { .. } => Tool::Check,
            Request::Action(Action::Mount(_)) | Request::Mount { .. } | Request::Umount { .. } => Tool::Mount,
            Request::Mkfs(_) => Tool::Mkfs,
            Request::Action(_) => Tool::Plain,
        }
    }

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Request::Action(Action::Mkfs(arguments)) | Request::Mkfs(arguments) => mkfs::run(&arguments),
            Request::Action(Action::Mount(arguments)) => mount::run(&arguments, mount::Manner::default()),
            Request::Action(Action::Umount(arguments)) => umount::run(&arguments, umount::Manner::default()),
            Request::Action(Action::Check(arguments)) => check::run(&arguments, false),
            Request::Action(Action::Upgrade(arguments)) => upgrade::run(&arguments),
            Request::Action(Action::Inspect(arguments)) => inspect::run(&arguments),
            Request::Action(Action::Probe(arguments)) => probe::run(&arguments),
            Request::Action(Action::Import(arguments)) => copy::import(&arguments),
            Request::Action(Action::Export(arguments)) => copy::export(&arguments),
            Request::Action(Action::Ls(arguments)) => list::ls(&arguments),
            Request::Action(Action::Cat(arguments)) => list::cat(&arguments),
            Request::Action(Action::Snapshot(arguments)) => snapshot::run(&arguments),
            #[cfg(feature = "replica")]
            Request::Action(Action::Replica(arguments)) => replica::run(&arguments),
            Request::Action(Action::Sync(arguments)) => sync::run(&arguments),
            Request::Action(Action::Stats(arguments)) => stats::run(&arguments),
            #[cfg(feature = "top")]
            Request::Action(Action::Top(arguments)) => top::run(&arguments),
            Request::Action(Action::Demo(line)) => companion::start("syncline-demo", &line.arguments),
            Request::Action(Action::Bench(line)) => companion::start("syncline-bench", &line.arguments),
            Request::Fsck { check, skip_if_clean } => check::run(&check, skip_if_clean),
            Request::Mount { arguments, sloppy, fake } => {
                mount::run(&arguments, mount::Manner { sloppy, fake })
            }
            Request::Umount { arguments, manner } => umount::run(&arguments, manner),
        }
    }
}

/// The definitions of the other names, for manual pages.
pub fn named_commands() -> Vec<(&'static str, clap::Command)> {
    vec![
        ("mkfs.syncline", MkfsSyncline::command()),
        ("fsck.syncline", FsckSyncline::command()),
        ("mount.syncline", MountSyncline::command()),
        ("umount.syncline", UmountSyncline::command()),
    ]
}

/// Parses a command line by the name it was called with. Errors, help and versions are printed here; the exit code of
/// wrong usage is the called tool's own.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<(String, Request), ExitCode> {
    let name = arguments.first().map(|first| {
        Path::new(first).file_name().unwrap_or(first.as_os_str()).to_string_lossy().into_owned()
    });
    let name = name.unwrap_or_else(|| "syncline".to_owned());
    let (tool, parsed) = match name.as_str() {
        "mkfs.syncline" => (Tool::Mkfs, MkfsSyncline::try_parse_from(arguments).map(from_mkfs)),
        "fsck.syncline" => (Tool::Check, FsckSyncline::try_parse_from(arguments).map(from_fsck)),
        "mount.syncline" => (Tool::Mount, MountSyncline::try_parse_from(arguments).map(from_mount)),
        "mount.fuse.syncline" => (Tool::Mount, parse_mount("mount.fuse.syncline", arguments)),
        // So mount(8) calls it for what it finds in the table of mounts, when it remounts a block device.
        "mount.fuseblk.syncline" => (Tool::Mount, parse_mount("mount.fuseblk.syncline", arguments)),
        // What the table of mounts says, which is all that umount(8) asks; of a block device the second.
        "umount.syncline" | "umount.fuse.syncline" | "umount.fuseblk.syncline" => {
            (Tool::Mount, UmountSyncline::try_parse_from(arguments).map(from_umount))
        }
        // So mount.fuse of fuse3 calls a program that it finds in the path, where the names above are not installed.
        _ if is_call_of_mount_fuse(&arguments) => (Tool::Mount, parse_mount("syncline", arguments)),
        _ => {
            let tool = Tool::of_subcommand(arguments.get(1));
            let parsed = Syncline::try_parse_from(arguments);
            return match parsed {
                Ok(syncline) => Ok(("syncline".to_owned(), Request::Action(syncline.action))),
                Err(error) => Err(usage("syncline", tool, &error)),
            };
        }
    };
    match parsed {
        Ok(request) => Ok((name, request)),
        Err(error) => Err(usage(&name, tool, &error)),
    }
}

/// `syncline SOURCE DIRECTORY -o OPTIONS`: the source is a path with a slash in it, which no subcommand has.
fn is_call_of_mount_fuse(arguments: &[OsString]) -> bool {
    let [_, source, _, option, ..] = arguments else { return false };
    source.as_encoded_bytes().contains(&b'/') && source.as_encoded_bytes()[0] != b'-' && option == "-o"
}

fn parse_mount(name: &'static str, arguments: Vec<OsString>) -> Result<Request, clap::Error> {
    let matches = MountSyncline::command().name(name).try_get_matches_from(arguments)?;
    MountSyncline::from_arg_matches(&matches).map(from_mount)
}

/// Help and version are no errors, unless they do not arrive.
pub(crate) fn usage(name: &str, tool: Tool, error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    match printed {
        // Nothing sensible can be done if the complaint does not arrive.
        _ if error.use_stderr() => ExitCode::from(tool.usage_code()),
        Err(error) => fail(name, tool, &Failure::io("cannot print")(error)),
        Ok(()) => ExitCode::SUCCESS,
    }
}

fn from_mkfs(parsed: MkfsSyncline) -> Request {
    Request::Mkfs(parsed.arguments)
}

fn from_fsck(parsed: FsckSyncline) -> Request {
    Request::Fsck {
        check: CheckArguments {
            take_over: false,
            all: false,
            repair: (parsed.automatic || parsed.yes) && !parsed.no_change,
            skip_data: false,
            quiet: false,
            json: false,
            path: parsed.path,
            only: Vec::new(),
        },
        skip_if_clean: parsed.automatic && !parsed.force,
    }
}

fn from_mount(parsed: MountSyncline) -> Request {
    Request::Mount {
        arguments: MountArguments {
            options: parsed.options,
            foreground: false,
            local: None,
            take_over: false,
            path: parsed.path,
            directory: parsed.directory,
        },
        sloppy: parsed.sloppy,
        fake: parsed.fake,
    }
}

fn from_umount(parsed: UmountSyncline) -> Request {
    Request::Umount {
        arguments: UmountArguments { lazy: parsed.lazy, directory: parsed.directory },
        manner: umount::Manner { by_force: parsed.force, or_read_only: parsed.read_only },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &[&str]) -> Request {
        parse(line.iter().map(OsString::from).collect()).expect("parses").1
    }

    #[test]
    fn definitions_of_all_names_are_consistent() {
        crate::command().debug_assert();
        for (_, command) in named_commands() {
            command.debug_assert();
        }
    }

    #[test]
    fn fsck_at_boot_repairs_and_skips_clean_volumes() {
        for letter in ["-a", "-p"] {
            match request(&["/sbin/fsck.syncline", letter, "/dev/x"]) {
                Request::Fsck { check, skip_if_clean } => assert!(check.repair && skip_if_clean),
                other => panic!("{other:?}"),
            }
        }
        match request(&["fsck.syncline", "-n", "-f", "/dev/x"]) {
            Request::Fsck { check, skip_if_clean } => assert!(!check.repair && !skip_if_clean),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn mount_takes_options_behind_the_directory() {
        match request(&[
            "/sbin/mount.syncline",
            "/dev/x",
            "/mnt",
            "-s",
            "-n",
            "-o",
            "rw,noatime",
            "-t",
            "syncline",
        ]) {
            Request::Mount { arguments, sloppy, fake } => {
                assert_eq!(arguments.options, ["rw,noatime"]);
                assert!(sloppy && !fake && !arguments.foreground);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn umount_takes_options_behind_the_directory() {
        for name in ["umount.syncline", "/sbin/umount.fuse.syncline", "umount.fuseblk.syncline"] {
            match request(&[name, "/mnt", "-n", "-v", "-f", "-t", "fuse.syncline"]) {
                Request::Umount { arguments, manner } => {
                    assert_eq!(arguments.directory, Path::new("/mnt"));
                    assert!(!arguments.lazy && manner.by_force && !manner.or_read_only);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn without_a_subcommand_it_mounts_as_mount_fuse_calls_it() {
        match request(&["syncline", "/var/disk.img", "/mnt", "-o", "ro,remount,dev,suid"]) {
            Request::Mount { arguments, sloppy, fake } => {
                assert_eq!(arguments.options, ["ro,remount,dev,suid"]);
                assert_eq!(arguments.directory, Path::new("/mnt"));
                assert!(!sloppy && !fake);
            }
            other => panic!("{other:?}"),
        }
        for line in
            [&["syncline", "disk.img", "/mnt", "-o", "ro"][..], &["syncline", "/var/disk.img", "/mnt"]]
        {
            assert!(parse(line.iter().map(OsString::from).collect()).is_err(), "{line:?}");
        }
    }

    #[test]
    fn sizes_on_the_command_line_take_units() {
        match request(&["mkfs.syncline", "--size", "64M", "--journal-size=1M", "-f", "a.img"]) {
            Request::Mkfs(mkfs) => {
                assert_eq!(mkfs.size.map(|size| size.0), Some(64 << 20));
                assert!(mkfs.force);
            }
            other => panic!("{other:?}"),
        }
    }
}
