//! How requests arrive and answers leave.
//!
//! Two transports, one [`Handler`] behind them:
//! - [`dev`]: threads that read /dev/fuse. Always there: INIT, FORGET, INTERRUPT and what was queued before the other
//!   one was ready arrive only here, and notifications leave only here;
//! - [`uring`]: a pinned thread and a queue for each CPU. Started beside the first one when the kernel allows it.
//!
//! A transport splits each message into header, operation header and payload ([`RawRequest`]) and hands it over with
//! the [`ReplySlot`](crate::reply::slot::ReplySlot) for its answer. It interprets nothing else.

mod beside;
mod class;
pub(crate) mod connection;
pub(crate) mod cpus;
pub(crate) mod dev;
mod parameter;
mod readers;
mod streams;
pub(crate) mod uring;

pub use class::{Classes, raise_nice_limit};
pub use parameter::UringParameter;

use crate::abi::{InHeader, Opcode};
use crate::reply::slot::ReplySlot;
use std::fmt;
use std::io;

/// One message of the kernel. Both transports deliver these three parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRequest<'a> {
    pub(crate) header: &'a InHeader,
    /// Begins with the operation's fixed header; may be longer (io_uring has an area of fixed size for it).
    pub(crate) op: &'a [u8],
    /// The rest: names, data, extensions. Exact.
    pub(crate) payload: &'a [u8],
}

/// Takes requests. Called on a transport's threads; returns when the request was answered or its slot is kept.
pub(crate) trait Handler: Send + Sync {
    fn handle(&self, source: &dyn Source, request: RawRequest<'_>, slot: ReplySlot);

    /// Where the operation's header ends and the payload begins in a message that has both in one piece.
    fn header_bytes(&self, opcode: Opcode) -> Option<usize>;
}

/// What the thread that delivers a request can tell about its queue. Used while a handler runs.
pub(crate) trait Source {
    fn transport(&self) -> TransportKind;

    /// Whether further requests wait to be read behind this one.
    fn others_wait(&self) -> bool;

    /// Whether a wait of the calling thread keeps no other request waiting.
    fn may_wait(&self) -> bool {
        false
    }

    /// The calling thread may have to wait for I/O: the transport may let another one read in its place. True if
    /// [`Source::end_wait`] is to be called when the wait is over.
    fn begin_wait(&self) -> bool {
        false
    }

    fn end_wait(&self) {}
}

/// A transport that is running.
pub(crate) trait Transport: Send {
    fn kind(&self) -> TransportKind;

    /// Requests come by another transport from now on; nobody waits for what still comes by this one.
    fn step_back(&self) {}

    /// Waits until the connection has ended and no thread delivers requests any more. Answers that are still owed stay
    /// valid (and are lost). Errors: why requests could not be received any longer, if not because of an unmount.
    fn join(self: Box<Self>) -> io::Result<()>;
}

/// Which transport requests come through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// Threads that read /dev/fuse.
    Dev,
    /// A queue per CPU over io_uring.
    Uring,
}

impl TransportKind {
    pub const fn name(self) -> &'static str {
        match self {
            TransportKind::Dev => "/dev/fuse",
            TransportKind::Uring => "io_uring",
        }
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why io_uring is not in use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UringUnavailable {
    /// The caller asked for /dev/fuse.
    NotAsked,
    /// The kernel did not offer it; what its switch said then.
    NotOffered(UringParameter),
    /// A ring could not be made.
    Ring { step: &'static str, errno: crate::Errno },
    /// The kernel refused to register a queue's entries.
    Register { queue: u16, errno: crate::Errno },
}

impl UringUnavailable {
    /// Whether root could allow it with the kernel's switch.
    pub fn is_switched_off(&self) -> bool {
        matches!(self, UringUnavailable::NotOffered(UringParameter::Off))
    }
}

impl fmt::Display for UringUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UringUnavailable::NotAsked => f.write_str("/dev/fuse was asked for"),
            UringUnavailable::NotOffered(switch) => write!(f, "the kernel does not offer it: {switch}"),
            UringUnavailable::Ring { step, errno } => write!(f, "{step} failed: {errno}"),
            UringUnavailable::Register { queue, errno } => {
                write!(f, "the kernel refused to register queue {queue}: {errno}")
            }
        }
    }
}
