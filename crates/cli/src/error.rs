//! Failures: what went wrong, as data, worded in one place as one sentence that says what to do.

use crate::size::Size;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline_check::CheckError;
use syncline_device::{DeviceError, OpenError};
use syncline_format::FormatError;
use syncline_format::layout::{JOURNAL_BLOCKS_MAX, JOURNAL_BLOCKS_MIN, VOLUME_BLOCKS_MAX, VOLUME_BLOCKS_MIN};

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Open(OpenError),
    #[error("{}: {source}; see the kernel's log for the device", .path.display())]
    Device { path: PathBuf, source: DeviceError },
    #[error("{}: {source}", .path.display())]
    Check { path: PathBuf, source: CheckError },
    #[error("{}: {source}; {advice}", .path.display())]
    Volume { path: PathBuf, source: syncline::Error, advice: &'static str },
    #[error("{} holds no Syncline volume ({source}); check the path, or make a volume with \"syncline mkfs\"", .path.display())]
    NoVolume { path: PathBuf, source: FormatError },
    #[error(
        "{} is shorter ({has:#}) than its volume ({wanted:#}): it was cut off; restore the whole image",
        .path.display()
    )]
    CutOff { path: PathBuf, has: Size, wanted: Size },
    #[error(
        "{}: both superblocks of this volume were overwritten, only their backups at its end are left; write nothing to it, and \
         restore it from a copy",
        .path.display()
    )]
    SlotsLost { path: PathBuf },
    #[error("{}: no superblock is readable ({source}); \"syncline check\" tells more", .path.display())]
    Superblock { path: PathBuf, source: FormatError },
    #[error("{}: {source}; use a newer version of syncline", .path.display())]
    Version { path: PathBuf, source: FormatError },
    #[error("{} holds {found}; to overwrite it, give -f", .path.display())]
    Foreign { path: PathBuf, found: String },
    #[error("{} is on no mounted Syncline volume; name an image, a device, or a directory of a mounted volume", .path.display())]
    NoVolumeThere { path: PathBuf },
    #[error("{} has no snapshot \"{name}\"; \"syncline snapshot list\" shows them, with --heads the heads", .path.display())]
    NoSnapshot { path: PathBuf, name: String },
    #[error("{} is a mounted volume, and only one that nobody has open can be rolled back; unmount it first", .path.display())]
    RollbackOfMounted { path: PathBuf },
    #[error("{why}")]
    Schedule { why: &'static str },
    #[error("{}: the schedule of snapshots: {source}", .path.display())]
    ScheduleOf { path: PathBuf, source: io::Error },
    #[error(
        "{} has no room for version 2 of the format, which keeps about 2 MiB free; remove something, then upgrade it",
        .path.display()
    )]
    NoRoomToUpgrade { path: PathBuf },
    #[error("{} has a snapshot or head \"{name}\" already; choose another name, or delete it first", .path.display())]
    SnapshotExists { path: PathBuf, name: String },
    #[error(
        "{} has version 1 of the format, which has no snapshots; \"syncline upgrade\" gives it version 2",
        .path.display()
    )]
    NoSnapshots { path: PathBuf },
    #[error(
        "{}: the snapshot \"{name}\" is held; \"syncline snapshot release\" lets it be deleted", .path.display()
    )]
    SnapshotHeld { path: PathBuf, name: String },
    #[error(
        "{}: {name:?} is no name for a snapshot: it is empty, longer than 255 bytes, \".\" or \"..\", or has a \"/\" or a NUL",
        .path.display()
    )]
    SnapshotName { path: PathBuf, name: String },
    #[error("{}: there is no room for \"{name}\"; remove something, or delete snapshots", .path.display())]
    NoRoomForSnapshot { path: PathBuf, name: String },
    #[error("{}: snapshots are changed and compared by root, or by the user whose mount it is", .path.display())]
    SnapshotsOfOthers { path: PathBuf },
    #[error("{}: snapshot \"{name}\": {source}", .path.display())]
    Snapshot { path: PathBuf, name: String, source: io::Error },
    #[error("{} does not exist; give --size to create it", .path.display())]
    Missing { path: PathBuf },
    #[error(
        "{}: its file system takes no file of {size:#} ({source}); give a smaller --size, or a path elsewhere",
        .path.display()
    )]
    ImageSize { path: PathBuf, size: Size, source: io::Error },
    #[error(
        "{} has {has:#}, less than the {wanted:#} asked for, and cannot grow; leave --size away or give less",
        .path.display()
    )]
    DeviceSmaller { path: PathBuf, has: Size, wanted: Size },
    #[error(
        "{}: a volume has at least {} and at most {}, not {size:#}; give another --size",
        .path.display(), Size::of_blocks(VOLUME_BLOCKS_MIN), Size::of_blocks(VOLUME_BLOCKS_MAX)
    )]
    VolumeSize { path: PathBuf, size: Size },
    #[error(
        "{}: a journal has at least {}, at most {}, and at most half of the volume ({:#}), not {size:#}; give another --journal-size",
        .path.display(), Size::of_blocks(JOURNAL_BLOCKS_MIN), Size::of_blocks(JOURNAL_BLOCKS_MAX), Size(.volume.0 / 2)
    )]
    JournalSize { path: PathBuf, size: Size, volume: Size },
    #[error("the label has {bytes} bytes; give one of at most 64")]
    Label { bytes: usize },
    #[error("\"{text}\" is no UUID; write it like 2f6c1e0a-5d0b-4c43-9a53-7d3f0c1b2a99")]
    Uuid { text: String },
    /// So are those of replicas.
    #[cfg(feature = "replica")]
    #[error(transparent)]
    Replica(#[from] syncline_replica_store::Error),
    #[cfg(feature = "replica")]
    #[error(
        "\"{text}\" says no moment; write it like 2026-11-23T20:15:00Z, or give a position CLAIM/UNIT, or lsn:NUMBER"
    )]
    Moment { text: String },
    #[cfg(feature = "replica")]
    #[error("{why}")]
    Keep { why: String },
    #[cfg(feature = "replica")]
    #[error("{} exists, and a restore makes a new image; give another path, or remove it if it is not needed", .path.display())]
    RestoreOver { path: PathBuf },
    #[cfg(feature = "replica")]
    #[error(
        "{damaged} of the units in {url} are damaged, as told above; \"syncline replica restore --at\" reaches what lies before them"
    )]
    ReplicaDamaged { url: String, damaged: usize },
    /// The mount's errors are sentences already.
    #[error(transparent)]
    Mount(syncline_fuse::MountError),
    #[error(
        "{} is unmounted, but its volume in {} could not be closed: what was not synced may be lost, the next mount recovers \
         what was; the daemon's log says why",
        .directory.display(), .image.display()
    )]
    LeftOpen { directory: PathBuf, image: PathBuf },
    #[error(
        "inode needs the path of a file in the volume behind the image, or --inode NUMBER; 1 is the root directory"
    )]
    InodeNeeded,
    #[error(
        "of one file inode and extents are shown, and with --items tree and journal; leave it away, or inspect one of these"
    )]
    InodeUnused,
    #[error(
        "{what}: {why} in the last checkpoint; what is younger is in the journal, and \"syncline ls\" shows it"
    )]
    NoSuchFile { what: String, why: &'static str },
    #[error("{} has no inode {number} in its last checkpoint; younger ones are in the journal", .path.display())]
    NoInode { path: PathBuf, number: u64 },
    #[error(
        "{} is in use{}; while a volume is mounted, copy through the mount, or unmount it first",
        .path.display(), mounted_on(.on.as_deref())
    )]
    InUse { path: PathBuf, on: Option<PathBuf> },
    /// A step of a copy; `what` names the file, and the volume if it is in one.
    #[error("{what}: {source}")]
    Copy { what: String, source: io::Error },
    /// Something that was to be copied and could not be read.
    #[error("{what}: {source}")]
    Unreadable { what: String, source: io::Error },
    #[error("of what was to be copied, {}, as told above; all the rest is there", left_out(*.unreadable, *.damaged, *.changed))]
    LeftOut { unreadable: u64, damaged: u64, changed: u64 },
    /// Of a volume whose journal is broken.
    #[error("what was copied is older than what the volume held last, as told above")]
    Older,
    #[error("ended by a signal; what was copied until then is there, each file whole")]
    Ended { signal: i32 },
    #[error("{what} exists; give --force to replace it")]
    Occupied { what: String },
    #[error(
        "{} is on no mounted Syncline volume, which --range and --async need; without them any file can be synced",
        .path.display()
    )]
    NotOnSyncline { path: PathBuf },
    #[error("{} is a directory; sync it without --range and --async", .path.display())]
    SyncOfDirectory { path: PathBuf },
    #[cfg(feature = "top")]
    #[error("the output is no terminal; give --once for one screen as text")]
    NoTerminal,
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
    #[error(
        "{name} is a program of its own, and it is neither beside this one nor in PATH; install the package syncline-bench, or, \
         from the sources, \"make tools install-tools\""
    )]
    NoCompanion { name: &'static str },
}

impl Failure {
    /// Wrong usage, in contrast to something that failed.
    fn is_usage(&self) -> bool {
        use syncline_fuse::MountError::{BadOption, NoReplica, ReplicaOfReadOnly, UnknownOption, Volatile};
        #[cfg(feature = "replica")]
        if matches!(self, Failure::Moment { .. } | Failure::Keep { .. }) {
            return true;
        }
        matches!(
            self,
            Failure::Label { .. }
                | Failure::Schedule { .. }
                | Failure::Uuid { .. }
                | Failure::InodeNeeded
                | Failure::InodeUnused
                | Failure::Mount(
                    UnknownOption(_) | BadOption { .. } | Volatile | NoReplica { .. } | ReplicaOfReadOnly
                )
        )
    }

    /// Whether nothing failed but that somebody stopped reading the output.
    pub(crate) fn is_of_a_reader_that_left(&self) -> bool {
        matches!(self, Failure::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    pub(crate) fn exit_code(&self, tool: Tool) -> ExitCode {
        if let Failure::Ended { signal } = self {
            // As a shell tells it of a command that the signal has killed.
            return ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX));
        }
        ExitCode::from(if self.is_usage() { tool.usage_code() } else { tool.failure_code() })
    }

    /// Why a volume could not be opened or closed in this process.
    pub(crate) fn of_volume(path: &Path, source: io::Error) -> Failure {
        use syncline::Error::Open;
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref::<syncline::Error>());
        let path = path.to_owned();
        match inner {
            Some(Open(OpenError::Locked { .. })) => {
                let on = syncline_source::is_mounted(&path);
                Failure::InUse { path, on }
            }
            Some(Open(OpenError::Mounted { on, .. })) => Failure::InUse { path, on: Some(on.clone()) },
            Some(Open(error)) => Failure::Open(error.clone()),
            _ => Failure::Copy { what: path.display().to_string(), source },
        }
    }

    /// What went wrong with a path of a volume.
    pub(crate) fn inside(image: &Path, path: &Path, source: io::Error) -> Failure {
        let what = format!("{}:{}", image.display(), Path::new("/").join(path).display());
        Failure::Copy { what, source }
    }

    /// For `map_err`: wraps an I/O error with what was being done.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
        let doing = doing.into();
        move |source| Failure::Io { doing, source }
    }
}

impl From<OpenError> for Failure {
    /// A lock does not tell whose it is; the table of mounts may.
    fn from(error: OpenError) -> Failure {
        Failure::Open(match error {
            OpenError::Locked { path } => match syncline_source::is_mounted(&path) {
                Some(on) => OpenError::Mounted { path, on },
                None => OpenError::Locked { path },
            },
            error => error,
        })
    }
}

fn left_out(unreadable: u64, damaged: u64, changed: u64) -> String {
    let parts = [
        (unreadable, "could not be read"),
        (damaged, "could be read only in part"),
        (changed, "changed while being copied"),
    ];
    let told = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    told.collect::<Vec<_>>().join(", ")
}

fn mounted_on(directory: Option<&Path>) -> String {
    directory.map_or_else(String::new, |directory| format!(" (mounted on {})", directory.display()))
}

/// A sentence without the numbers that the standard library puts behind the names of errors of the system.
pub(crate) fn without_numbers(sentence: &str) -> String {
    const NUMBER: &str = " (os error ";
    let mut parts = sentence.split(NUMBER);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => text.push_str(rest),
            _ => text.extend([NUMBER, part]),
        }
    }
    text
}

/// Whose conventions for exit codes hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    /// What has no convention of its own.
    Plain,
    /// mkfs(8), for the name that it calls.
    Mkfs,
    /// fsck(8).
    Check,
    /// mount(8).
    Mount,
}

impl Tool {
    /// The tool that the first word of a command line of `syncline` means.
    pub(crate) fn of_subcommand(word: Option<&OsString>) -> Tool {
        match word.and_then(|word| word.to_str()) {
            Some("check") => Tool::Check,
            Some("mount") => Tool::Mount,
            _ => Tool::Plain,
        }
    }

    pub(crate) fn usage_code(self) -> u8 {
        match self {
            Tool::Plain => 2,
            Tool::Check => 16,
            Tool::Mkfs | Tool::Mount => 1,
        }
    }

    pub(crate) fn failure_code(self) -> u8 {
        match self {
            Tool::Plain | Tool::Mkfs => 1,
            Tool::Check => 8,
            Tool::Mount => 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_system_errors_are_left_out_and_nothing_else() {
        let sentence = "x: cannot open (No such file or directory (os error 2)); y (os error 5)";
        assert_eq!(without_numbers(sentence), "x: cannot open (No such file or directory); y");
        for same in ["a (b)", "c (os error d)", "e (os error 7", ""] {
            assert_eq!(without_numbers(same), same);
        }
    }
}
