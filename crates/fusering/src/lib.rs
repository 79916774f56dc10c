//! FUSE filesystems in Rust, over /dev/fuse and over io_uring.
//!
//! A filesystem implements [`Filesystem`]; [`Session::mount`] mounts it and serves the kernel's requests until it is
//! unmounted. Each request comes with a reply object that may be answered at once, or later from any thread.
//!
//! - The kernel's interface is that of Linux 6.18 (7.45), negotiated down to 7.31 (Linux 5.4): [`abi`].
//! - Two transports: threads that read /dev/fuse, and a queue with a pinned thread for each CPU over io_uring (Linux
//!   6.14 and newer, where the administrator enabled it). The second is used when it can be; [`Session::transport`]
//!   tells.
//! - Data goes to and from the kernel without a copy of ours: a [`request::Write`]'s data lies on a page boundary in
//!   the message, and [`ReplyData::fill`] hands out the memory that is sent.
//!
//! Invariants: every request is answered exactly once, whatever the filesystem does; a message that does not decode
//! gets an error and never ends the process; `destroy` is the last method that is called.
//!
//! `examples/memory` is a filesystem in memory that uses most of it.

pub mod abi;
mod batch;
mod errno;
mod error;
mod filesystem;
mod memory;
mod mount;
mod notifier;
mod pool;
mod reply;
pub mod request;
pub mod scheduling;
mod session;
mod transport;
mod types;

pub use batch::ReplyBatch;
pub use errno::Errno;
pub use error::Error;
pub use filesystem::{Filesystem, Interruption};
pub use mount::{
    AccessTimes, Attachment, MountEntry, MountOptions, Unmounter, attach, may_mount, mounted_as, mounted_at,
};
pub use notifier::Notifier;
pub use pool::WorkPool;
pub use reply::{
    DirectoryEntry, Reply, ReplyAttributes, ReplyBmap, ReplyBuffer, ReplyCopy, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatx, ReplyTotals, ReplyWrite, ReplyXattr,
};
pub use request::{RequestContext, Waiting};
pub use session::{
    ActiveTransport, BackgroundSession, Config, DevSettings, Negotiated, Session, TransportChoice,
    UringSettings,
};
pub use transport::{Classes, TransportKind, UringParameter, UringUnavailable, raise_nice_limit};
pub use types::{
    Attributes, DeviceNumber, Entry, ExtendedAttributes, Handle, Lock, LockKind, LockOwner, NodeId, Opened,
    PollHandle, RequestId, SetTime, Time, Totals,
};

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
