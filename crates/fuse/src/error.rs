use std::io;
use std::path::{Path, PathBuf};
use syncline_source::Source;

/// Why a volume could not be mounted, served or unmounted. Each message is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    #[error("mount option '{0}' is not known: see `syncline mount --help` for the list")]
    UnknownOption(String),
    #[error(
        "{} has no snapshot \"{name}\"; \"syncline snapshot list\" shows them, with --heads the heads",
        .source_path.display()
    )]
    NoSnapshot { source_path: PathBuf, name: String },
    #[error("mount option '{option}' needs {expected}")]
    BadOption { option: String, expected: &'static str },
    /// Of a build without the feature `volatile`.
    #[error(
        "mount option 'volatile' loses what is not flushed and is for tests: mount without it, or build syncline-lab, which has it"
    )]
    Volatile,
    #[error(
        "of a mounted volume only ro and rw can be changed ({0} is not so now): unmount it and mount it again"
    )]
    Remount(String),
    #[error(
        "{0} was mounted read-only, and its volume is open for reading only: unmount it and mount it again with rw"
    )]
    OpenedReadOnly(PathBuf),
    #[error(
        "{0} is busy: files are open for writing; end the programs (`fuser -vm {0}` lists them) and try again"
    )]
    Writers(PathBuf),
    #[error("/dev/fuse cannot be opened ({0}): load the fuse module, or give this container the device")]
    NoFuseDevice(io::Error),
    #[error("{path} is not a directory that can be mounted on: {source}")]
    MountPoint { path: PathBuf, source: io::Error },
    #[error(
        "{source_path} is a block device that is in use (mounted, or claimed by another program): unmount it first"
    )]
    DeviceBusy { source_path: PathBuf },
    /// What is shipped cannot be; its own sentence.
    #[error("{0}")]
    Replica(String),
    #[error(
        "option replica= ships what is written, and this mount writes nothing: leave it away, or mount with rw"
    )]
    ReplicaOfReadOnly,
    #[error(
        "option {option}= says how replica= ships, and there is no replica=: give both, or leave it away"
    )]
    NoReplica { option: &'static str },
    #[error(
        "{0} is a replica: add -o ro to read it as it is, or --local IMAGE to go on with its volume on this machine"
    )]
    ReplicaAsSource(String),
    #[error("option {option}= goes with a replica as the source, and {source_path} is none: leave it away")]
    NotFromReplica { option: &'static str, source_path: PathBuf },
    #[error("option follow= is for a replica that is read (-o ro, without local=): leave it away")]
    FollowsNothing,
    #[error("option follow= mounts anew for each state that it shows, which only root may: mount without it")]
    FollowNeedsRoot,
    #[error(
        "option replica= names where a volume is shipped to, and a volume that comes from a replica is shipped there: leave it away"
    )]
    TwoReplicas,
    #[error("option max_lag= says when on_lag= acts, which does nothing now: add on_lag=slow or on_lag=stop")]
    MaxLagAlone,
    #[error(
        "option max_lag= has to be longer than replica_interval=, which what is shipped always waits for"
    )]
    MaxLagShort,
    #[error("mounting {source_path} on {path} was refused by the kernel: {source}")]
    Refused { source_path: PathBuf, path: PathBuf, source: io::Error },
    #[error(
        "io_uring cannot be used ({}): {}mount with transport=auto", .0, how_to_switch_on(.0)
    )]
    NoUring(fusering::UringUnavailable),
    /// Mounting, the handshake or serving failed; its own sentence.
    #[error(transparent)]
    Session(fusering::Error),
    #[error(transparent)]
    Open(Box<dyn std::error::Error + Send + Sync>),
    #[error("{source_path} is in use by another process, which is no mount: wait for its end, or end it")]
    InUse { source_path: PathBuf },
    #[error("{source_path} cannot be opened as a volume: {source}")]
    Volume { source_path: PathBuf, source: syncline_fs::Error },
    #[error("closing the volume failed: {0}; the next mount will recover what was synced")]
    Close(syncline_fs::Error),
    #[error("{path}, the log file of option log=, cannot be opened: {source}")]
    Log { path: PathBuf, source: io::Error },
    #[error("the address of option metrics={address} cannot be listened on: {source}")]
    Metrics { address: String, source: io::Error },
    #[error("{path} cannot be opened: {source}")]
    Look { path: PathBuf, source: io::Error },
    #[error("{what} failed: {source}")]
    System { what: &'static str, source: io::Error },
    #[error(
        "{source_path} is mounted on {on}, and a head can be at one place: unmount it first, or name another head by head="
    )]
    HeadMounted { source_path: PathBuf, on: PathBuf },
    #[error(
        "{on} shows another head or snapshot of {source_path} already: mount this one in a directory of its own"
    )]
    Stacked { source_path: PathBuf, on: PathBuf },
    #[error("it cannot be mounted beside what is mounted of the volume: {source}")]
    Joined { source: syncline_fs::Error },
    #[error(
        "of this volume one snapshot is mounted, by a daemon that knows nothing else of it: unmount that first"
    )]
    ShowsSnapshot,
    #[error("the volume is mounted read-only: add ro, or unmount it first")]
    JoinsReadOnly,
    #[error(
        "option {option} is for the daemon of the volume, which is mounted already: leave it away, or unmount the volume first"
    )]
    OfDaemon { option: String },
    #[error("the volume is being closed: try again")]
    Closing,
    #[error(
        "the daemon of the mounted volume did not answer as expected: unmount the volume, and mount it again"
    )]
    Unanswered,
    #[error(
        "{source_path} is mounted by process {process}, which does not answer{}: continue it if it was stopped (`kill -CONT \
         {process}`) or end it (`kill -9 {process}`), and mount again{}",
        keeps_lock(.source_path), may_shut_out(.source_path)
    )]
    Silent { source_path: PathBuf, process: u32 },
    #[error(
        "{path} is served by process {process}, which does not answer: continue it if it was stopped (`kill -CONT \
         {process}`) or end it (`kill -9 {process}`), and try again"
    )]
    Standing { path: PathBuf, process: u32 },
    #[error(
        "{path} is unmounted, but its volume in {source_path} could not be closed: {why}; what was not synced may be lost, the \
         next mount recovers what was"
    )]
    NotClosed { path: PathBuf, source_path: PathBuf, why: String },
    #[error(
        "{on} is where process {process}, which does not answer, has {source_path} mounted: mount it in another directory"
    )]
    SilentBelow { on: PathBuf, source_path: PathBuf, process: u32 },
    #[error("{0} is not the root of a mounted Syncline volume")]
    NotMounted(PathBuf),
    #[error("{path} is mounted on {on}: give that directory")]
    Source { path: PathBuf, on: PathBuf },
    #[error("{0} does not exist: give the directory that the volume is mounted on")]
    Missing(PathBuf),
    #[error(
        "{path} was mounted by {}, and only the one who mounted it and root may unmount it: run `sudo syncline umount {path}`",
        named(*.owner)
    )]
    NotYours { path: PathBuf, owner: u32 },
    #[error(
        "{path} cannot be unmounted without root where there is no fusermount3: install the package fuse3, or run `sudo syncline \
         umount {path}`"
    )]
    NoUnmounter { path: PathBuf },
    #[error(
        "the daemon of {0} has died, its log says why: mount the volume again, which recovers what was synced, or unmount it"
    )]
    Dead(PathBuf),
    #[error("{path} is busy: end the programs that use it (`fuser -vm {path}` lists them) and unmount again")]
    Busy { path: PathBuf },
    #[error("unmounting {path} failed: {source}")]
    Unmount { path: PathBuf, source: io::Error },
    /// The daemon in the background failed; this is its own sentence.
    #[error("{0}")]
    Daemon(String),
    #[error(
        "{path} is unmounted, but its daemon still writes after {seconds} s: wait before removing the device"
    )]
    StillWriting { path: PathBuf, seconds: u64 },
}

/// With what separates it from other advice; empty where it would not help.
fn how_to_switch_on(reason: &fusering::UringUnavailable) -> &'static str {
    match reason.is_switched_off() {
        true => {
            "mount as root without uring=keep, or allow it with `echo Y > /sys/module/fuse/parameters/enable_uring` as root, or "
        }
        false => "",
    }
}

/// Locks of this machine's kernel go to nobody else while their holder lives; that of an image of Ceph can be broken.
fn keeps_lock(source: &Path) -> &'static str {
    match Source::parse(source) {
        Ok(Source::Rbd(_)) => "",
        _ => " and keeps its lock",
    }
}

/// Who has an image of Ceph can be shut out.
fn may_shut_out(source: &Path) -> &'static str {
    match Source::parse(source) {
        Ok(Source::Rbd(_)) => "; or shut it out with --take-over",
        _ => "",
    }
}

/// A user as a sentence names them.
fn named(user: u32) -> String {
    match user {
        0 => "root".to_owned(),
        user => format!("the user with number {user}"),
    }
}

impl MountError {
    pub(crate) fn last_os(what: &'static str) -> MountError {
        MountError::System { what, source: io::Error::last_os_error() }
    }
}
