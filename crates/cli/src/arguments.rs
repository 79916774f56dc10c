//! The command line, defined once: parsing, help, manual pages and completions come from here.

#[cfg(feature = "replica")]
mod age;
mod replica;
mod snapshot;

use crate::pages::exit_codes;
use crate::size::Size;
use crate::sync::FileRange;
use crate::watch::interval::Interval;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

pub(crate) use age::Age;
#[cfg(feature = "replica")]
pub(crate) use replica::{ReplicaAction, ReplicaArguments, ReplicaPlace};
pub(crate) use snapshot::{ScheduleAction, SnapshotAction, SnapshotArguments};

/// What `-o` of the mounts takes, and what it means; in the long help and in the manual pages.
pub const MOUNT_OPTIONS: &[(&str, &str)] = &[
    ("ro, rw", "Write nothing to the volume, not even a recovery; or read and write, which is the default."),
    (
        "noatime, relatime, strictatime",
        "Never change access times; only when they are older than the last change or than a day \
      (the default); or at each read that the kernel's page cache cannot answer.",
    ),
    ("snapshot=NAME", "Show this snapshot of the volume instead of the volume as it is. Read-only."),
    (
        "head=NAME",
        "Show this head of the volume, a writable branch, instead of the one that is shown when nobody names one. Heads, and \
         snapshots, can be mounted beside each other.",
    ),
    ("sync", "Every write, and every change of names and attributes, is durable when it returns."),
    ("dirsync", "Every change of names and attributes is durable when it returns."),
    ("commit=SECONDS", "What nobody syncs is durable after at most this long, 0.01 to 3600 (default 1)."),
    (
        "memory=auto|SIZE",
        "Bound on the daemon's memory: auto (default) follows the machine, from 64M to a quarter of it; or a size of at least 16M.",
    ),
    (
        "allow_other, noallow_other",
        "Whether other users may use the mount; the default is yes if root mounts. Without root \
      /etc/fuse.conf has to say user_allow_other.",
    ),
    ("default_permissions", "The kernel checks permissions. Always on."),
    (
        "remount",
        "With ro or rw: makes a mount read-only, with everything durable when the command returns, or writable \
      again. Nothing else of a mount can be changed. (mount(8) needs this program installed for it; \"syncline mount -o \
      remount,ro IMAGE DIRECTORY\" does the same without.)",
    ),
    ("nosuid, nodev, noexec", "As for every filesystem, see mount(8)."),
    (
        "writeback_cache",
        "The kernel collects writes: faster without syncs, slower with them, and without atomic writes. It alone \
      has what was written and neither synced nor closed: a rename over another file and commit= do not cover \
      that (C3 and C9 of the contract).",
    ),
    (
        "direct_writes",
        "What is opened for writing only goes past the kernel's page cache: cheaper new files, later reads cost more.",
    ),
    (
        "transport=auto|dev|uring",
        "How the kernel hands requests over: io_uring where it may (auto, the default), /dev/fuse, or \
      io_uring or not at all.",
    ),
    (
        "uring=auto|keep",
        "Root's mount switches FUSE over io_uring on for its own moment where the kernel has it off (auto, the \
      default), or leaves the kernel's parameter enable_uring alone.",
    ),
    (
        "scheduling=auto|usual",
        "Threads that answer leave each CPU to the programs that they answer, in the scheduler's class SCHED_IDLE, \
      until they have to wait for one (auto, the default); or have the usual class always.",
    ),
    ("cpu=NUMBER", "Run the daemon on this CPU only."),
    ("threads=NUMBER", "Requests served at once, 1 to 64 (default 8)."),
    (
        "log=FILE",
        "Where the daemon's log goes. Default: the system log; where there is none, the kernel's. SYNCLINE_LOG in the \
      environment is what it tells: error, warn, info (the default), debug or trace, for modules apart like \
      warn,syncline_fuse=debug.",
    ),
    (
        "metrics=[ADDRESS:]PORT|unix:PATH",
        "Tell metrics to Prometheus by HTTP, under /metrics: on the loopback's address, unless another one is named, or \
      on a socket of this absolute path, which is its owner's alone.",
    ),
    (
        "take_over",
        "Of an image of Ceph (rbd:POOL/IMAGE): break the lock of the machine that has it, and shut that machine out of \
      the cluster. What was synced there is here; from then on its syncs fail.",
    ),
    (
        "replica=URL",
        "Ship the volume to an object store while it is used: s3://BUCKET/PREFIX (credentials and endpoint as the AWS \
      tools take them from the environment) or file:///FOLDER. See syncline-replica(1).",
    ),
    (
        "ack=local|remote",
        "With replica=: a sync is answered when it is durable here (local, the default), or when it is in the replica \
      as well, so that it survives the loss of the machine.",
    ),
    (
        "replica_interval=SECONDS",
        "With replica=: what is shipped is at most this old, 0.05 to 3600 (default 1), while the store keeps up.",
    ),
    (
        "on_lag=continue|slow|stop",
        "With replica=, while what is shipped is later than max_lag=: nothing waits (continue, the default); each sync waits up \
      to 20 ms, so that less is written; or the volume stops, so that a lost machine never costs more.",
    ),
    (
        "max_lag=SECONDS",
        "With on_lag=: 0.1 to 86400; by default ten times replica_interval=, and at least 5.",
    ),
    (
        "local=IMAGE",
        "With a replica's URL as what is mounted: go on with its volume here, at once. What is touched is fetched, the rest \
      behind it, into this image, which is made; whoever wrote to the replica until now is told. An image of which a part \
      is here is gone on with. As --local.",
    ),
    (
        "follow=SECONDS",
        "With a replica's URL and ro: look for newer states so often, 0.1 to 86400. Paths lead to the newest one; what is open \
      keeps what it had. For root.",
    ),
    ("volume=UUID", "With a replica's URL: which volume, where the place holds several."),
    (
        "defaults, nofail, noauto, user, _netdev, x-...",
        "Words of /etc/fstab; accepted, and of no meaning here.",
    ),
];

/// [`MOUNT_OPTIONS`] as text.
pub(crate) fn mount_options_help() -> String {
    let explained =
        MOUNT_OPTIONS.iter().map(|(option, meaning)| format!("  {option}\n          {meaning}\n"));
    let codes = exit_codes("syncline-mount");
    format!("Options behind -o, of which later ones win:\n{}\n{codes}", explained.collect::<String>())
}

#[derive(Debug, Parser)]
#[command(
    name = "syncline",
    version,
    about = "A filesystem whose fsync is one write and one flush",
    long_about = "Makes, mounts, checks, fills and shows Syncline volumes. A volume lies in an image file, on a block device, on an export of an NBD server or on an image of Ceph.",
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage. check exits like fsck(8): 1 repaired, 4 damage left, \
                  8 could not check, 16 wrong usage. mount exits like mount(8): 1 wrong usage, 32 failed."
)]
pub(crate) struct Syncline {
    #[command(subcommand)]
    pub(crate) action: Action,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Make a volume in an image file or on a block device.
    Mkfs(MkfsArguments),
    /// Mount a volume on a directory.
    #[command(after_help = exit_codes("syncline-mount"), after_long_help = mount_options_help())]
    Mount(MountArguments),
    /// Unmount a volume; returns when its last checkpoint is durable.
    Umount(UmountArguments),
    /// Check an unmounted volume, and repair it if asked to.
    #[command(after_help = exit_codes("syncline-check"))]
    Check(CheckArguments),
    /// Make a volume of version 2 of the format, which can have snapshots, of one of version 1.
    ///
    /// The volume is not mounted. Files stay where they are, so it takes no longer than to open the volume. There is no
    /// way back. An upgrade that is interrupted leaves a volume of either version, with the same content; repeat it.
    Upgrade(UpgradeArguments),
    /// Show what a volume stores, damaged ones included; changes nothing.
    Inspect(InspectArguments),
    /// Tell what a device is, in the words of udev: ID_FS_TYPE, ID_FS_UUID, ID_FS_LABEL ...
    ///
    /// The rule of the packages asks it, so that a volume on a block device has its links in /dev/disk/by-uuid and
    /// by-label, and UUID= and LABEL= of mount(8) and fstab(5) find it.
    #[command(after_help = exit_codes("syncline-probe"))]
    Probe(ProbeArguments),
    /// Copy a file or directory of the host into an unmounted volume.
    Import(ImportArguments),
    /// Copy a file or directory out of an unmounted volume.
    ///
    /// Each file gets its name when it is whole, with its mode, times and extended attributes. Of a directory, what
    /// cannot be read whole is told and left out, and the exit code is 1; of a file that has lost only its
    /// attributes, "syncline cat" prints the data. With --partial such files come out as far as they can be read.
    Export(ExportArguments),
    /// List a directory of an unmounted volume.
    Ls(LsArguments),
    /// Print files of an unmounted volume.
    Cat(CatArguments),
    /// Make, list, rename and delete snapshots of a volume, mounted or not; make heads of them, and go back to one.
    ///
    /// A snapshot is the whole volume as it was at one moment. "ls", "cat" and "export" take --snapshot, and mount
    /// -o snapshot=NAME shows one. A volume of version 1 of the format has none before "syncline upgrade".
    /// A head is a writable branch, made of a snapshot by "clone"; mount -o head=NAME mounts one.
    Snapshot(SnapshotArguments),
    /// Ship a volume to an object store, look at what is there, and bring it back.
    ///
    /// A URL is s3://BUCKET/PREFIX or file:///FOLDER. Of S3, credentials, region and endpoint come from the
    /// environment, as the AWS tools take them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
    /// AWS_ENDPOINT_URL. A mounted volume is shipped by "syncline mount -o replica=URL".
    #[cfg(feature = "replica")]
    Replica(ReplicaArguments),
    /// Make files durable; parts of them, or many at once, on a mounted volume.
    Sync(SyncArguments),
    /// Show counters and latencies of a mounted volume.
    Stats(StatsArguments),
    /// Watch mounted volumes: syncs, latencies, what a sync costs, caches, and who asks for them.
    ///
    /// Keys: q ends it, tab or an arrow shows the next mount.
    #[cfg(feature = "top")]
    Top(TopArguments),
    /// Cut the power under a database and many small files, and see what is left (starts syncline-demo).
    #[command(disable_help_flag = true)]
    Demo(CompanionArguments),
    /// Measure what a sync costs, beside ext4, xfs and btrfs (starts syncline-bench).
    #[command(disable_help_flag = true)]
    Bench(CompanionArguments),
}

#[derive(Debug, Args)]
pub(crate) struct MkfsArguments {
    /// Name of the volume, up to 64 bytes. Default: none.
    #[arg(long, short = 'L', default_value = "", hide_default_value = true)]
    pub(crate) label: String,
    /// Size of the volume (like 512M, 10G); creates the image file if there is none. Default: all there is.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) size: Option<Size>,
    /// Size of the journal, 256K to 16G. Default: 1/64 of the volume, 16M to 1G; at most 1/8 of a small one.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) journal_size: Option<Size>,
    /// UUID of the volume. Default: a random one.
    #[arg(long, short = 'U', value_name = "UUID")]
    pub(crate) uuid: Option<String>,
    /// Version of the format: 2, or 1 for software that does not know of snapshots.
    #[arg(long, value_name = "VERSION", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub(crate) format: u32,
    /// Overwrite what is there, even if it looks like somebody's data.
    #[arg(long, short = 'f', short_alias = 'F')]
    pub(crate) force: bool,
    /// Print nothing but errors.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Image file, block device, or an address (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE).
    #[arg(value_name = "IMAGE")]
    pub(crate) path: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct MountArguments {
    /// Options, separated by commas; --help and the manual page explain them.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", allow_hyphen_values = true)]
    pub(crate) options: Vec<String>,
    /// Stay in the foreground and serve from this process.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// The image on this machine of a volume that is fetched from the replica at URL while it is used, and shipped
    /// there. It is made, gone on with, or used as it is.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) local: Option<PathBuf>,
    /// Break the lock of the machine that has this image of Ceph, and shut that machine out (as -o take_over).
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Image file, block device, an address (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE), or the
    /// URL of a replica.
    #[arg(value_name = "IMAGE|URL")]
    pub(crate) path: PathBuf,
    /// Where to mount it.
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct UmountArguments {
    /// Take a volume that is in use out of the tree now; it is closed when its last user is gone.
    #[arg(long, short = 'l')]
    pub(crate) lazy: bool,
    /// The directory the volume is mounted on.
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// Repair what can be repaired without guessing: orphans, leaked blocks, counts.
    #[arg(long)]
    pub(crate) repair: bool,
    /// With --repair: break the lock of the machine that has this image of Ceph, and shut that machine out.
    #[arg(long, requires = "repair")]
    pub(crate) take_over: bool,
    /// Judge names, links and sizes in all snapshots too, not only in the volume itself.
    #[arg(long)]
    pub(crate) all: bool,
    /// Do not read and verify files' data, only the structure.
    #[arg(long, conflicts_with = "only")]
    pub(crate) skip_data: bool,
    /// Show no progress; print what is found, and the verdict.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
    /// Print the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Image file, block device, or an address (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE).
    #[arg(value_name = "IMAGE")]
    pub(crate) path: PathBuf,
    /// Read and verify the data of these files alone, and of those below these directories. The structure is judged as
    /// a whole.
    #[arg(value_name = "PATH", conflicts_with = "repair")]
    pub(crate) only: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    /// Superblock slots and backups.
    Super,
    /// Records and batches of the journal's chain.
    Journal,
    /// Nodes of the trees, with --items every item.
    Tree,
    /// Heads and snapshots: what they are and how many pages each holds.
    Trees,
    /// One inode with its entries, attributes and extents.
    Inode,
    /// The extents of one file, or of all.
    Extents,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// What to show.
    pub(crate) subject: Subject,
    /// Image file, block device, or an address (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE).
    #[arg(value_name = "IMAGE")]
    pub(crate) path: PathBuf,
    /// For inode and extents, and with --items for tree and journal: file or directory in the volume. Symbolic links
    /// are not followed.
    #[arg(conflicts_with = "inode")]
    pub(crate) file: Option<PathBuf>,
    /// The number of the inode instead of its path (1 is the root directory).
    #[arg(long, short = 'i', value_name = "NUMBER")]
    pub(crate) inode: Option<u64>,
    /// Show every item, not only nodes; every operation, not only batches.
    #[arg(long)]
    pub(crate) items: bool,
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProbeArguments {
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Image file, block device, or an address (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE).
    #[arg(value_name = "IMAGE")]
    pub(crate) path: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    /// Replace files that exist, each by a rename.
    #[arg(long, short = 'f')]
    pub(crate) force: bool,
    /// Print nothing but errors.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
    /// Print what was copied as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Image file, block device, or an address (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE).
    #[arg(value_name = "IMAGE")]
    pub(crate) path: PathBuf,
    /// File or directory of the host; a directory with "/." behind it means what is in it.
    pub(crate) source: PathBuf,
    /// Where it goes in the volume: into a directory that exists, or to this name.
    #[arg(default_value = "/")]
    pub(crate) target: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    /// Of this snapshot, instead of the volume as it is.
    #[arg(long, value_name = "NAME")]
    pub(crate) snapshot: Option<String>,
    /// Replace files that exist, each by a rename.
    #[arg(long, short = 'f')]
    pub(crate) force: bool,
    /// Copy damaged files as far as they can be read: zeros where they cannot, each such range told, the exit code
    /// still 1. They replace nothing, and without its attributes a file is its owner's alone. A volume with a damaged
    /// journal is copied as it was before the damage.
    #[arg(long)]
    pub(crate) partial: bool,
    /// Print nothing but errors.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
    /// Print what was copied as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Image file, block device, or an address (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE).
    #[arg(value_name = "IMAGE")]
    pub(crate) path: PathBuf,
    /// File or directory in the volume; "/" and a directory with "/." behind it mean what is in them.
    pub(crate) source: PathBuf,
    /// Where it goes on the host: into a directory that exists, or to this name.
    #[arg(default_value = ".")]
    pub(crate) target: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct LsArguments {
    /// Of this snapshot, instead of the volume as it is.
    #[arg(long, value_name = "NAME")]
    pub(crate) snapshot: Option<String>,
    /// Type, permissions, links, owner, size and time of each.
    #[arg(long, short = 'l')]
    pub(crate) long: bool,
    /// The number of each one's inode in front of it.
    #[arg(long, short = 'i')]
    pub(crate) inode: bool,
    /// Everything below as well.
    #[arg(long, short = 'R')]
    pub(crate) recursive: bool,
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Image file, block device, or an address (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE).
    #[arg(value_name = "IMAGE")]
    pub(crate) path: PathBuf,
    /// Directory or file in the volume.
    #[arg(default_value = "/")]
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CatArguments {
    /// Of this snapshot, instead of the volume as it is.
    #[arg(long, value_name = "NAME")]
    pub(crate) snapshot: Option<String>,
    /// Image file, block device, or an address (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE).
    #[arg(value_name = "IMAGE")]
    pub(crate) path: PathBuf,
    /// Files in the volume.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct UpgradeArguments {
    /// Image file or block device; not mounted.
    #[arg(value_name = "VOLUME")]
    pub(crate) target: PathBuf,
    /// Do not say what was done.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArguments {
    /// The data and what is needed to read it, as fdatasync(2), instead of everything.
    #[arg(long, short = 'd')]
    pub(crate) data: bool,
    /// This part of each file; OFFSET: without a length means up to its end. Sizes may have K, M, G.
    #[arg(long, short = 'r', value_name = "OFFSET:LENGTH")]
    pub(crate) range: Option<FileRange>,
    /// Start all syncs before waiting for any, so that they share writes and flushes.
    #[arg(long = "async", short = 'a')]
    pub(crate) start_all: bool,
    /// Files; without --range and --async also directories, and on any filesystem.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a line for what happens in each interval, until interrupted; with --json all figures in each line.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub(crate) watch: Option<Interval>,
    /// The directory the volume is mounted on.
    pub(crate) directory: PathBuf,
}

#[cfg(feature = "top")]
#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// Time between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1")]
    pub(crate) interval: Interval,
    /// Print one screen as text, after one interval.
    #[arg(long)]
    pub(crate) once: bool,
    /// The directories the volumes are mounted on.
    #[arg(required = true, value_name = "MOUNT")]
    pub(crate) directories: Vec<PathBuf>,
}

/// For another program, as it stands.
#[derive(Debug, Args)]
pub(crate) struct CompanionArguments {
    /// What the program is told; --help shows what it takes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<OsString>,
}

/// The definition of `syncline`'s command line.
pub fn command() -> clap::Command {
    Syncline::command()
}
