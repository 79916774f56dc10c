//! What a filesystem wants of its connection, and what it got.

use crate::abi::InitFlags;
use crate::transport::{TransportKind, UringUnavailable};
use std::fmt;

/// What to ask of the kernel. The default asks for what is harmless to any filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Asked for, but done without if the kernel does not offer it.
    pub wanted: InitFlags,
    /// Without these there is no session.
    pub required: InitFlags,
    /// Most data in one WRITE, in bytes; rounded up to whole pages. The kernel does not let go of its CPU while it
    /// fills and copies one, so whoever waits for that CPU waits for all of it.
    pub write_bytes_max: u32,
    /// Most data in one READ, in bytes; rounded up to whole pages, and no less than a WRITE has.
    pub read_bytes_max: u32,
    /// How far the kernel reads ahead, in bytes.
    pub readahead_bytes_max: u32,
    /// Background requests (read-ahead, writeback, asynchronous direct I/O) that may be open at once; at least 1.
    pub background_max: u16,
    /// Background requests from which on the mount counts as congested; `None`: three quarters of the above.
    pub congestion_threshold: Option<u16>,
    /// Granularity of times in nanoseconds: a power of ten up to 10^9.
    pub time_granularity_ns: u32,
    /// The kernel ends the connection when a request stays unanswered for so many seconds (since 6.16).
    pub request_timeout_seconds: Option<u16>,
    pub transport: TransportChoice,
    /// Whether threads that answer belong to the scheduler's class SCHED_IDLE as long as they get a CPU when they want
    /// one: a caller then stays on its CPU ([`Classes`](crate::Classes)).
    pub idle_class: bool,
    pub dev: DevSettings,
    pub uring: UringSettings,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            wanted: InitFlags::ASYNC_READ
                | InitFlags::ATOMIC_O_TRUNC
                | InitFlags::BIG_WRITES
                | InitFlags::ASYNC_DIO
                | InitFlags::PARALLEL_DIROPS
                | InitFlags::DO_READDIRPLUS
                | InitFlags::READDIRPLUS_AUTO
                | InitFlags::HAS_IOCTL_DIR
                | InitFlags::AUTO_INVAL_DATA,
            required: InitFlags::empty(),
            write_bytes_max: 1 << 20,
            read_bytes_max: 1 << 20,
            readahead_bytes_max: 1 << 20,
            background_max: 64,
            congestion_threshold: None,
            time_granularity_ns: 1,
            request_timeout_seconds: None,
            transport: TransportChoice::Auto,
            idle_class: false,
            dev: DevSettings::default(),
            uring: UringSettings::default(),
        }
    }
}

impl Config {
    /// Asked for, but done without if the kernel does not offer it.
    #[must_use]
    pub fn wanted(mut self, wanted: InitFlags) -> Config {
        self.wanted = wanted;
        self
    }

    /// Without these there is no session.
    #[must_use]
    pub fn required(mut self, required: InitFlags) -> Config {
        self.required = required;
        self
    }

    /// Most data in one WRITE, in bytes; rounded up to whole pages. The kernel does not let go of its CPU while it
    /// fills and copies one, so whoever waits for that CPU waits for all of it.
    #[must_use]
    pub fn write_bytes_max(mut self, write_bytes_max: u32) -> Config {
        self.write_bytes_max = write_bytes_max;
        self
    }

    /// Most data in one READ, in bytes; rounded up to whole pages, and no less than a WRITE has.
    #[must_use]
    pub fn read_bytes_max(mut self, read_bytes_max: u32) -> Config {
        self.read_bytes_max = read_bytes_max;
        self
    }

    /// How far the kernel reads ahead, in bytes.
    #[must_use]
    pub fn readahead_bytes_max(mut self, readahead_bytes_max: u32) -> Config {
        self.readahead_bytes_max = readahead_bytes_max;
        self
    }

    /// Background requests (read-ahead, writeback, asynchronous direct I/O) that may be open at once; at least 1.
    #[must_use]
    pub fn background_max(mut self, background_max: u16) -> Config {
        self.background_max = background_max;
        self
    }

    /// Background requests from which on the mount counts as congested; `None`: three quarters of the above.
    #[must_use]
    pub fn congestion_threshold(mut self, congestion_threshold: impl Into<Option<u16>>) -> Config {
        self.congestion_threshold = congestion_threshold.into();
        self
    }

    /// Granularity of times in nanoseconds: a power of ten up to 10^9.
    #[must_use]
    pub fn time_granularity_ns(mut self, time_granularity_ns: u32) -> Config {
        self.time_granularity_ns = time_granularity_ns;
        self
    }

    /// The kernel ends the connection when a request stays unanswered for so many seconds (since 6.16).
    #[must_use]
    pub fn request_timeout_seconds(mut self, request_timeout_seconds: impl Into<Option<u16>>) -> Config {
        self.request_timeout_seconds = request_timeout_seconds.into();
        self
    }

    /// Which transport to use.
    #[must_use]
    pub fn transport(mut self, transport: TransportChoice) -> Config {
        self.transport = transport;
        self
    }

    /// Whether threads that answer belong to the scheduler's class SCHED_IDLE as long as they get a CPU when they want
    /// one: a caller then stays on its CPU ([`Classes`](crate::Classes)).
    #[must_use]
    pub fn idle_class(mut self, idle_class: bool) -> Config {
        self.idle_class = idle_class;
        self
    }

    /// Of the transport over /dev/fuse.
    #[must_use]
    pub fn dev(mut self, dev: DevSettings) -> Config {
        self.dev = dev;
        self
    }

    /// Of the transport over io_uring.
    #[must_use]
    pub fn uring(mut self, uring: UringSettings) -> Config {
        self.uring = uring;
        self
    }
}

/// Which transport to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportChoice {
    /// io_uring if the kernel lets us, else /dev/fuse.
    Auto,
    /// /dev/fuse.
    Dev,
    /// io_uring, or no session.
    Uring,
}

/// Of the transport over /dev/fuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevSettings {
    /// Threads. Mostly one of them reads and the others take over while it waits (`spread` false).
    pub threads: usize,
    /// All threads read at once: better with slow methods and many callers, worse for a single caller, who is then
    /// served from another CPU than its own.
    pub spread: bool,
    /// Each thread gets a descriptor of its own with its own list of open requests.
    pub clone_descriptors: bool,
    /// A thread that has read nothing but one caller's requests for a while is tied to that caller's CPU until others
    /// ask (`spread` false): to wake it there costs a tenth of what it costs elsewhere.
    pub follow_lone_caller: bool,
}

impl Default for DevSettings {
    fn default() -> DevSettings {
        DevSettings { threads: 8, spread: false, clone_descriptors: false, follow_lone_caller: true }
    }
}

impl DevSettings {
    /// Threads. Mostly one of them reads and the others take over while it waits (`spread` false).
    #[must_use]
    pub fn threads(mut self, threads: usize) -> DevSettings {
        self.threads = threads;
        self
    }

    /// All threads read at once: better with slow methods and many callers, worse for a single caller, who is then
    /// served from another CPU than its own.
    #[must_use]
    pub fn spread(mut self, spread: bool) -> DevSettings {
        self.spread = spread;
        self
    }

    /// Each thread gets a descriptor of its own with its own list of open requests.
    #[must_use]
    pub fn clone_descriptors(mut self, clone_descriptors: bool) -> DevSettings {
        self.clone_descriptors = clone_descriptors;
        self
    }

    /// A thread that has read nothing but one caller's requests for a while is tied to that caller's CPU until others
    /// ask (`spread` false): to wake it there costs a tenth of what it costs elsewhere.
    #[must_use]
    pub fn follow_lone_caller(mut self, follow_lone_caller: bool) -> DevSettings {
        self.follow_lone_caller = follow_lone_caller;
        self
    }
}

/// Of the transport over io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UringSettings {
    /// Requests that one CPU's queue can have open at once. Each takes memory for one message.
    pub depth: u16,
    /// Whether each queue's thread runs on its own CPU only.
    pub pin: bool,
    /// Whether each queue has two more threads, which serve a caller that is alone and may wait
    /// ([`RequestContext::may_wait`](crate::RequestContext::may_wait)): what has to be waited for needs no hand-over
    /// then. One of them serves large reads as well, on any CPU, so that they take none of the reader's. Where they
    /// cannot be made, a queue goes without.
    pub deputy: bool,
    /// Above this many bytes of payloads in use, a queue gives back what no open request uses when it has nothing to
    /// do.
    pub resident_bytes_max: usize,
}

impl Default for UringSettings {
    fn default() -> UringSettings {
        UringSettings { depth: 64, pin: true, deputy: false, resident_bytes_max: 8 << 20 }
    }
}

impl UringSettings {
    /// Requests that one CPU's queue can have open at once. Each takes memory for one message.
    #[must_use]
    pub fn depth(mut self, depth: u16) -> UringSettings {
        self.depth = depth;
        self
    }

    /// Whether each queue's thread runs on its own CPU only.
    #[must_use]
    pub fn pin(mut self, pin: bool) -> UringSettings {
        self.pin = pin;
        self
    }

    /// Whether each queue has two more threads, which serve a caller that is alone and may wait
    /// ([`RequestContext::may_wait`](crate::RequestContext::may_wait)): what has to be waited for needs no hand-over
    /// then. One of them serves large reads as well, on any CPU, so that they take none of the reader's. Where they
    /// cannot be made, a queue goes without.
    #[must_use]
    pub fn deputy(mut self, deputy: bool) -> UringSettings {
        self.deputy = deputy;
        self
    }

    /// Above this many bytes of payloads in use, a queue gives back what no open request uses when it has nothing to
    /// do.
    #[must_use]
    pub fn resident_bytes_max(mut self, resident_bytes_max: usize) -> UringSettings {
        self.resident_bytes_max = resident_bytes_max;
        self
    }
}

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// Minor version of the protocol: the lower one of the kernel's and ours.
    pub minor: u32,
    /// What the kernel offered.
    pub offered: InitFlags,
    /// What both sides hold to.
    pub flags: InitFlags,
    pub write_bytes_max: u32,
    pub read_bytes_max: u32,
    pub readahead_bytes_max: u32,
}

/// Which transport brings requests, and why it is not io_uring if it is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveTransport {
    pub kind: TransportKind,
    pub uring_unavailable: Option<UringUnavailable>,
}

impl fmt::Display for ActiveTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.uring_unavailable {
            Some(reason) => write!(f, "{} (not io_uring: {reason})", self.kind),
            None => write!(f, "{}", self.kind),
        }
    }
}
