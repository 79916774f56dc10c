//! Mount options: what `-o` accepts, and what becomes of it.

use crate::MountError;
use crate::metrics::Address;
use crate::replica::{OnLag, Replication};
use fusering::TransportChoice;
use std::path::PathBuf;
use std::time::Duration;
use syncline_fs::{AccessTimes, FsOptions};

/// Threads that may serve requests at once: one reads, the others stand in for it when it has to wait.
const THREADS_DEFAULT: usize = 8;
const THREADS_MAX: usize = 64;
/// Oldest age of what is not shipped, unless another one is asked for.
const REPLICA_INTERVAL: Duration = Duration::from_secs(1);
/// Smallest bound on memory that leaves the engine room to work.
const MEMORY_BYTES_MIN: usize = 16 << 20;

/// Options that mean something to mount(8) or to init systems only.
const FOREIGN: [&str; 26] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "rw",
    "async",
    "suid",
    "dev",
    "exec",
    "default_permissions",
    // Of mount(8), for all filesystems; access times are collected in memory in any case.
    "silent",
    "loud",
    "lazytime",
    "nolazytime",
    "nomand",
    "noiversion",
    "norelatime",
    "nostrictatime",
    // What is said of files' access times holds for directories.
    "diratime",
    "nodiratime",
];

/// What the kernel shows of a mount that nobody asked for; mount(8) hands it on when it remounts.
const KERNELS: [&str; 5] = ["user_id", "group_id", "rootmode", "max_read", "blksize"];

const MEMORY_EXPECTED: &str = "auto, or a size of at least 16M, like 256M or 1G";

const METRICS_EXPECTED: &str =
    "a port, an address with a port, or unix: and an absolute path, like 127.0.0.1:9464";

/// How a volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Nothing is written to the device, not even recovery.
    pub read_only: bool,
    /// Show this snapshot instead of the head; read-only.
    pub snapshot: Option<String>,
    /// Show this head instead of the one that is shown when nobody names one.
    pub head: Option<String>,
    /// Change what is mounted already: `read_only`, and nothing else.
    pub remount: bool,
    /// Break the lock of whoever has the volume on another machine.
    pub take_over: bool,
    /// As they were given: a change has to know what was asked for and what was not.
    pub(crate) words: Vec<String>,
    pub access_times: AccessTimes,
    /// Every write and every change of names and attributes is durable when it returns.
    pub sync: bool,
    /// Every change of names and attributes is durable when it returns.
    pub dirsync: bool,
    /// Un-synced data is durable after at most this long.
    pub commit_interval: Duration,
    /// Bound on the daemon's cached data, in bytes; `None` follows the machine.
    pub memory_bytes_max: Option<usize>,
    /// Other users may use the mount; permissions are checked by the kernel in any case. On when root mounts.
    pub allow_other: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    /// The kernel collects writes in its page cache: faster without syncs, more messages with them.
    pub writeback_cache: bool,
    /// What is opened for writing only goes past the kernel's page cache: a message less for each new file, and what
    /// is read afterwards is asked of the daemon.
    pub direct_writes: bool,
    /// Pin the daemon to this CPU.
    pub cpu: Option<usize>,
    /// Threads that serve requests, or over io_uring those that wait in place of the queues.
    pub threads: usize,
    /// How requests arrive.
    pub transport: TransportChoice,
    /// Switch FUSE over io_uring on for the moment of the mount, where the kernel has it off and lets root do so.
    pub switch_uring: bool,
    /// Threads that answer belong to the scheduler's class SCHED_IDLE while they get a CPU when they want one.
    pub idle_class: bool,
    /// Where the daemon's log goes; `None` is the system log (in the foreground: standard error).
    pub log: Option<PathBuf>,
    /// Where metrics are told to Prometheus.
    pub(crate) metrics: Option<Address>,
    /// Where the volume is shipped to.
    pub(crate) replica: Option<String>,
    pub(crate) ack_remote: Option<bool>,
    pub(crate) replica_interval: Option<Duration>,
    pub(crate) on_lag: Option<OnLag>,
    pub(crate) max_lag: Option<Duration>,
    /// The image of a volume that is fetched from a replica while it is used.
    pub(crate) local: Option<PathBuf>,
    /// UUID of the volume, where a replica's place holds several.
    pub(crate) volume: Option<String>,
    /// How often to look for newer states of a replica that is read.
    pub(crate) follow: Option<Duration>,
    /// The source is a replica, which is read.
    pub(crate) remote: bool,
    /// Keep unflushed writes in memory only, so that killing the daemon is a power cut. For tests and demonstrations.
    #[cfg(feature = "volatile")]
    pub volatile: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        let engine = FsOptions::default();
        MountOptions {
            read_only: engine.read_only,
            snapshot: None,
            head: None,
            remount: false,
            take_over: false,
            words: Vec::new(),
            access_times: engine.access_times,
            sync: false,
            dirsync: false,
            commit_interval: engine.commit_interval,
            memory_bytes_max: None,
            // SAFETY: geteuid has no preconditions and cannot fail.
            allow_other: unsafe { libc::geteuid() } == 0,
            nosuid: false,
            nodev: false,
            noexec: false,
            writeback_cache: false,
            direct_writes: false,
            cpu: None,
            threads: THREADS_DEFAULT,
            transport: TransportChoice::Auto,
            switch_uring: true,
            idle_class: true,
            log: None,
            metrics: None,
            replica: None,
            ack_remote: None,
            replica_interval: None,
            on_lag: None,
            max_lag: None,
            local: None,
            volume: None,
            follow: None,
            remote: false,
            #[cfg(feature = "volatile")]
            volatile: false,
        }
    }
}

impl MountOptions {
    /// Reads a comma-separated list as it stands after `-o` or in /etc/fstab. Later options win.
    pub fn parse(list: &str) -> Result<MountOptions, MountError> {
        let mut options = MountOptions::default();
        options.apply(list)?;
        Ok(options)
    }

    /// Applies a further list.
    pub fn apply(&mut self, list: &str) -> Result<(), MountError> {
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            self.apply_one(option)?;
        }
        match (&self.head, &self.snapshot) {
            (Some(head), Some(snapshot)) => Err(MountError::BadOption {
                option: format!("head={head},snapshot={snapshot}"),
                expected: "one of them",
            }),
            _ => Ok(()),
        }
    }

    fn apply_one(&mut self, option: &str) -> Result<(), MountError> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let bad = |expected| MountError::BadOption { option: option.to_owned(), expected };
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("snapshot", Some(name)) if !name.is_empty() => self.snapshot = Some(name.to_owned()),
            ("snapshot", _) => return Err(bad("the name of a snapshot")),
            ("head", Some(name)) if !name.is_empty() => self.head = Some(name.to_owned()),
            ("head", _) => return Err(bad("the name of a head")),
            ("noatime", None) => self.access_times = AccessTimes::Never,
            ("relatime" | "atime", None) => self.access_times = AccessTimes::Relative,
            ("strictatime", None) => self.access_times = AccessTimes::Always,
            ("sync", None) => self.sync = true,
            ("dirsync", None) => self.dirsync = true,
            ("commit", Some(value)) => {
                let seconds =
                    value.parse::<f64>().ok().filter(|s| s.is_finite() && (0.01..=3600.0).contains(s));
                let seconds = seconds.ok_or_else(|| bad("a number of seconds from 0.01 to 3600"))?;
                self.commit_interval = Duration::from_secs_f64(seconds);
            }
            ("commit", None) => return Err(bad("a number of seconds from 0.01 to 3600")),
            ("memory", Some("auto")) => self.memory_bytes_max = None,
            ("memory", Some(value)) => {
                let bytes = parse_bytes(value).filter(|bytes| *bytes >= MEMORY_BYTES_MIN);
                self.memory_bytes_max = Some(bytes.ok_or_else(|| bad(MEMORY_EXPECTED))?);
            }
            ("allow_other", None) => self.allow_other = true,
            ("noallow_other", None) => self.allow_other = false,
            ("nosuid", None) => self.nosuid = true,
            ("suid", None) => self.nosuid = false,
            ("nodev", None) => self.nodev = true,
            ("dev", None) => self.nodev = false,
            ("noexec", None) => self.noexec = true,
            ("exec", None) => self.noexec = false,
            ("writeback_cache", None) => self.writeback_cache = true,
            ("direct_writes", None) => self.direct_writes = true,
            ("cpu", Some(value)) => {
                self.cpu = Some(value.parse().map_err(|_| bad("the number of a CPU"))?);
            }
            ("threads", Some(value)) => {
                let threads = value.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
                self.threads = threads.ok_or_else(|| bad("a number from 1 to 64"))?;
            }
            ("memory", None) => return Err(bad(MEMORY_EXPECTED)),
            ("cpu", None) => return Err(bad("the number of a CPU")),
            ("threads", None) => return Err(bad("a number from 1 to 64")),
            ("log", None) => return Err(bad("a file, like log=/var/log/syncline")),
            ("transport", Some("auto")) => self.transport = TransportChoice::Auto,
            ("transport", Some("dev")) => self.transport = TransportChoice::Dev,
            ("transport", Some("uring")) => self.transport = TransportChoice::Uring,
            ("uring", Some("auto")) => self.switch_uring = true,
            ("uring", Some("keep")) => self.switch_uring = false,
            ("uring", _) => return Err(bad("auto or keep")),
            ("scheduling", Some("auto")) => self.idle_class = true,
            ("scheduling", Some("usual")) => self.idle_class = false,
            ("scheduling", _) => return Err(bad("auto or usual")),
            ("transport", _) => return Err(bad("auto, dev or uring")),
            ("metrics", value) => {
                let address = value.and_then(Address::parse);
                self.metrics = Some(address.ok_or_else(|| bad(METRICS_EXPECTED))?);
            }
            ("log", Some(value)) => self.log = Some(PathBuf::from(value)),
            ("replica" | "ack" | "replica_interval" | "on_lag" | "max_lag", value) => {
                self.apply_replica(name, value, &bad)?
            }
            ("local" | "volume" | "follow", value) => self.apply_remote(name, value, &bad)?,
            #[cfg(feature = "volatile")]
            ("volatile", None) => self.volatile = true,
            #[cfg(not(feature = "volatile"))]
            ("volatile", None) => return Err(MountError::Volatile),
            ("remount", None) => self.remount = true,
            ("take_over", None) => self.take_over = true,
            (_, Some(_)) if self.remount && KERNELS.contains(&name) => {}
            ("comment", Some(_)) => {}
            _ if name.starts_with("x-") || name.starts_with("X-") => {}
            (_, None) if FOREIGN.contains(&name) => {}
            _ => return Err(MountError::UnknownOption(option.to_owned())),
        }
        self.words.push(option.to_owned());
        Ok(())
    }

    fn apply_replica(
        &mut self,
        name: &str,
        value: Option<&str>,
        bad: &dyn Fn(&'static str) -> MountError,
    ) -> Result<(), MountError> {
        match (name, value) {
            ("replica", Some(url)) if !url.is_empty() => self.replica = Some(url.to_owned()),
            ("replica", _) => {
                return Err(bad("where to ship the volume to, like s3://bucket/prefix or file:///folder"));
            }
            ("ack", Some("local")) => self.ack_remote = Some(false),
            ("ack", Some("remote")) => self.ack_remote = Some(true),
            ("ack", _) => return Err(bad("local or remote")),
            ("on_lag", Some("continue")) => self.on_lag = Some(OnLag::Continue),
            ("on_lag", Some("slow")) => self.on_lag = Some(OnLag::Slow),
            ("on_lag", Some("stop")) => self.on_lag = Some(OnLag::Stop),
            ("on_lag", _) => return Err(bad("continue, slow or stop")),
            ("max_lag", value) => {
                let seconds = value.and_then(|value| value.parse().ok());
                let seconds = seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds));
                let seconds = seconds.ok_or_else(|| bad("a number of seconds from 0.1 to 86400"))?;
                self.max_lag = Some(Duration::from_secs_f64(seconds));
            }
            (_, value) => {
                let seconds = value.and_then(|value| value.parse().ok());
                let seconds = seconds.filter(|seconds| (0.05..=3600.0).contains(seconds));
                let seconds = seconds.ok_or_else(|| bad("a number of seconds from 0.05 to 3600"))?;
                self.replica_interval = Some(Duration::from_secs_f64(seconds));
            }
        }
        Ok(())
    }

    /// As option local= does.
    pub fn set_local(&mut self, image: &std::path::Path) {
        self.local = Some(image.to_owned());
    }

    fn apply_remote(
        &mut self,
        name: &str,
        value: Option<&str>,
        bad: &dyn Fn(&'static str) -> MountError,
    ) -> Result<(), MountError> {
        let value = value.filter(|value| !value.is_empty());
        match (name, value) {
            ("local", Some(path)) => self.local = Some(PathBuf::from(path)),
            ("local", None) => return Err(bad("an image file, like local=/var/lib/notes.img")),
            ("volume", Some(uuid)) => self.volume = Some(uuid.to_owned()),
            ("volume", None) => return Err(bad("the UUID of a volume")),
            (_, value) => {
                let seconds = value.and_then(|value| value.parse().ok());
                let seconds = seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds));
                let seconds = seconds.ok_or_else(|| bad("a number of seconds from 0.1 to 86400"))?;
                self.follow = Some(Duration::from_secs_f64(seconds));
            }
        }
        Ok(())
    }

    /// Where the volume is shipped to, and how.
    ///
    /// # Errors
    /// What is said about it goes with no `replica=`, or with a mount that writes nothing.
    pub fn replication(&self) -> Result<Option<Replication>, MountError> {
        let Some(url) = self.replica.clone() else {
            let given = [
                ("ack", self.ack_remote.is_some()),
                ("replica_interval", self.replica_interval.is_some()),
                ("on_lag", self.on_lag.is_some()),
                ("max_lag", self.max_lag.is_some()),
            ];
            return match given.iter().find(|(_, is_given)| *is_given) {
                Some((option, _)) => Err(MountError::NoReplica { option }),
                None => Ok(None),
            };
        };
        if self.is_read_only() {
            return Err(MountError::ReplicaOfReadOnly);
        }
        let interval = self.replica_interval.unwrap_or(REPLICA_INTERVAL);
        let remote = self.ack_remote.unwrap_or(false);
        let on_lag = self.on_lag.unwrap_or_default();
        if self.max_lag.is_some() && on_lag == OnLag::Continue {
            return Err(MountError::MaxLagAlone);
        }
        if self.max_lag.is_some_and(|lag| lag <= interval) {
            return Err(MountError::MaxLagShort);
        }
        Ok(Some(Replication { url, remote, interval, on_lag, max_lag: self.max_lag }))
    }

    /// Nothing is written: it was asked for, or the mount shows a snapshot.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.snapshot.is_some()
    }

    /// What the engine needs to know.
    #[allow(clippy::needless_update, reason = "a build for benchmarks has more options")]
    pub fn engine(&self) -> FsOptions {
        let engine = FsOptions::default();
        let memory_bytes_max = self.memory_bytes_max.unwrap_or(engine.memory_bytes_max);
        engine
            .read_only(self.is_read_only())
            .commit_interval(self.commit_interval)
            .memory_bytes_max(memory_bytes_max)
            .access_times(self.access_times)
            .readers_keep(true)
            .head(self.head.clone())
    }
}

/// `4096`, `64k`, `256M`, `1G`.
fn parse_bytes(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_the_manual_are_understood() {
        let options = MountOptions::parse("ro,noatime,sync,dirsync,commit=5,memory=64M,nosuid,nodev,noexec")
            .expect("ok");
        assert!(options.read_only && options.sync && options.dirsync);
        assert!(options.nosuid && options.nodev && options.noexec);
        assert_eq!(options.access_times, AccessTimes::Never);
        assert_eq!(options.commit_interval, Duration::from_secs(5));
        assert_eq!(options.memory_bytes_max, Some(64 << 20));
        let memory = |list: &str| MountOptions::parse(list).map(|options| options.memory_bytes_max);
        assert_eq!(memory("").unwrap(), None);
        assert_eq!(memory("memory=64M,memory=auto").unwrap(), None);
        assert!(memory("memory=15M").is_err() && memory("memory=much").is_err() && memory("memory").is_err());
    }

    #[test]
    fn a_head_and_a_snapshot_are_not_shown_at_once() {
        assert!(MountOptions::parse("head=a,ro,snapshot=b").is_err());
        assert!(MountOptions::parse("head=a").is_ok_and(|options| options.snapshot.is_none()));
    }

    #[test]
    fn the_transport_is_chosen_by_the_kernel_unless_it_is_named() {
        let transport = |list: &str| MountOptions::parse(list).expect("ok").transport;
        assert_eq!(transport(""), TransportChoice::Auto);
        assert_eq!(transport("transport=dev"), TransportChoice::Dev);
        assert_eq!(transport("transport=dev,transport=uring"), TransportChoice::Uring);
        assert_eq!(transport("transport=uring,transport=auto"), TransportChoice::Auto);
    }

    #[test]
    fn the_kernels_switch_is_left_alone_if_that_is_asked_for() {
        let switch = |list: &str| MountOptions::parse(list).expect("ok").switch_uring;
        assert!(switch("") && switch("uring=keep,uring=auto"));
        assert!(!switch("uring=keep"));
        assert!(MountOptions::parse("uring=no").is_err() && MountOptions::parse("uring").is_err());
    }

    #[test]
    fn the_class_of_threads_is_chosen_by_how_they_wait_unless_the_usual_one_is_asked_for() {
        let idle_class = |list: &str| MountOptions::parse(list).expect("ok").idle_class;
        assert!(idle_class("") && idle_class("scheduling=usual,scheduling=auto"));
        assert!(!idle_class("scheduling=usual"));
        assert!(
            MountOptions::parse("scheduling=fifo").is_err() && MountOptions::parse("scheduling").is_err()
        );
    }

    #[test]
    fn a_replica_is_named_with_how_it_is_shipped_in_any_order() {
        let replication = |list: &str| MountOptions::parse(list).and_then(|options| options.replication());
        let how = replication("ack=remote,replica=s3://bucket/prefix,replica_interval=0.5").unwrap().unwrap();
        assert_eq!((how.url.as_str(), how.remote), ("s3://bucket/prefix", true));
        assert_eq!(how.interval, Duration::from_millis(500));
        let usual = replication("replica=file:///folder").unwrap().unwrap();
        assert_eq!((usual.remote, usual.interval), (false, REPLICA_INTERVAL));
        assert!(replication("").unwrap().is_none());
        let told = |list: &str| replication(list).unwrap_err().to_string();
        assert!(told("ack=remote").contains("there is no replica="));
        assert!(told("replica_interval=1").contains("there is no replica="));
        let late = replication("replica=file:///f,on_lag=stop,max_lag=30").unwrap().unwrap();
        assert_eq!((late.on_lag, late.max_lag), (OnLag::Stop, Some(Duration::from_secs(30))));
        assert!(told("on_lag=stop").contains("there is no replica="));
        assert!(told("replica=file:///f,max_lag=30").contains("on_lag="));
        assert!(told("replica=file:///f,on_lag=slow,max_lag=1").contains("replica_interval="));
        assert!(told("replica=file:///f,ro").contains("this mount writes nothing"));
        for wrong in ["replica", "replica=", "ack", "ack=both", "replica_interval=0", "replica_interval=x"] {
            assert!(MountOptions::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn later_options_win_and_fstab_words_are_ignored() {
        let options =
            MountOptions::parse("defaults,ro,rw,nofail,x-systemd.automount,noatime,nodiratime,strictatime")
                .expect("ok");
        assert!(!options.read_only);
        assert_eq!(options.access_times, AccessTimes::Always);
    }

    #[test]
    fn wrong_options_are_named() {
        let message = |list: &str| MountOptions::parse(list).expect_err("refused").to_string();
        assert!(message("ro,frobnicate").contains("'frobnicate'"));
        assert!(message("commit=never").contains("seconds"));
        assert!(message("commit").contains("'commit' needs a number of seconds"));
        for option in ["memory", "cpu", "threads", "log", "metrics", "metrics=unix:x", "metrics=host:1"] {
            assert!(message(option).contains(&format!("'{option}' needs")), "{option}");
        }
        assert!(message("memory=1k").contains("16M"));
        assert!(message("memory=99999999999999999999").contains("size"));
        assert!(message("cpu=x").contains("CPU"));
        assert!(message("user_id=0").contains("'user_id=0'"), "only mount(8) says so, of a mount");
        assert!(message("transport=pigeon").contains("uring") && message("transport").contains("dev"));
    }
}
