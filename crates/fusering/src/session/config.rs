//! What a filesystem wants of its connection, and what it got.

use crate::abi::InitFlags;
use crate::transport::{TransportKind, UringUnavailable};
use std::fmt;

/// What to ask of the kernel. The default asks for what is harmless to any filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
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
            dev: DevSettings::default(),
            uring: UringSettings::default(),
        }
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

/// Of the transport over io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UringSettings {
    /// Requests that one CPU's queue can have open at once. Each takes memory for one message.
    pub depth: u16,
    /// Whether each queue's thread runs on its own CPU only.
    pub pin: bool,
    /// Whether each queue has a second thread, which serves a caller that is alone and may wait
    /// ([`RequestContext::may_wait`](crate::RequestContext::may_wait)): what has to be waited for needs no hand-over
    /// then. It serves large reads as well, on any CPU, so that they take none of the reader's. Where it cannot be
    /// made, a queue goes without.
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

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
