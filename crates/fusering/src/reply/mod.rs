//! Answers: one type for each kind, owned, answerable once from any thread at any time.
//!
//! A reply that is dropped without an answer answers EIO and says so in the log. Answering cannot fail for the
//! filesystem: if the request was aborted or the mount is gone, nobody waits for the answer any more.

mod data;
mod directory;
pub(crate) mod slot;

pub use data::{ReplyBuffer, ReplyData, ReplyIoctl, ReplyXattr};
pub use directory::{DirectoryEntry, ReplyDirectory, ReplyDirectoryPlus};

use crate::abi;
use crate::errno::Errno;
use crate::types::{
    Attributes, Entry, ExtendedAttributes, Lock, LockKind, NodeId, Opened, RequestId, Totals,
};
use slot::ReplySlot;
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// What all replies can do.
pub trait Reply: Send + Sized + 'static {
    /// Answers with an error.
    fn error(self, errno: Errno);

    /// The request that is to be answered; [`interrupt`](crate::Filesystem::interrupt) names it.
    fn id(&self) -> RequestId;

    #[doc(hidden)]
    fn into_slot(self) -> PendingReply;
}

/// A reply on its way into a batch.
#[doc(hidden)]
pub struct PendingReply(pub(crate) ReplySlot);

macro_rules! reply_common {
    ($name:ident) => {
        impl $crate::reply::Reply for $name {
            fn error(self, errno: $crate::Errno) {
                self.slot.error(errno);
            }

            fn id(&self) -> $crate::RequestId {
                $crate::RequestId(self.slot.unique())
            }

            fn into_slot(self) -> $crate::reply::PendingReply {
                $crate::reply::PendingReply(self.slot)
            }
        }

        impl $name {
            /// Answers with an error.
            pub fn error(self, errno: $crate::Errno) {
                $crate::reply::Reply::error(self, errno);
            }

            /// The request that is to be answered.
            pub fn id(&self) -> $crate::RequestId {
                $crate::reply::Reply::id(self)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("id", &self.slot.unique()).finish()
            }
        }
    };
}

pub(crate) use reply_common;

/// Replies that need nothing but their slot.
macro_rules! plain_replies {
    ($($(#[$meta:meta])* $name:ident;)*) => {
        $(
            $(#[$meta])*
            #[must_use = "dropped, it answers EIO"]
            pub struct $name {
                pub(crate) slot: ReplySlot,
            }

            impl $name {
                pub(crate) fn new(slot: ReplySlot) -> $name {
                    $name { slot }
                }
            }

            reply_common!($name);
        )*
    };
}

plain_replies! {
    /// Success or an error, nothing else.
    ReplyEmpty;
    /// A name and its node.
    ReplyEntry;
    /// Attributes.
    ReplyAttributes;
    /// Attributes with the time of birth.
    ReplyStatx;
    /// An opened file or directory.
    ReplyOpen;
    /// A new, opened file.
    ReplyCreate;
    /// How much was written.
    ReplyWrite;
    /// Totals of the filesystem.
    ReplyTotals;
    /// The lock that is in the way.
    ReplyLock;
    /// A block of the device.
    ReplyBmap;
    /// Which events a file is ready for.
    ReplyPoll;
    /// A position in a file.
    ReplyLseek;
}

/// How much was copied.
#[must_use = "dropped, it answers EIO"]
pub struct ReplyCopy {
    slot: ReplySlot,
    /// COPY_FILE_RANGE_64.
    wide: bool,
}

reply_common!(ReplyCopy);

fn send(slot: ReplySlot, answer: &(impl IntoBytes + Immutable)) {
    slot.bytes(answer.as_bytes());
}

impl ReplyEmpty {
    pub fn ok(self) {
        self.slot.bytes(&[]);
    }
}

impl ReplyEntry {
    pub fn entry(self, entry: &Entry) {
        send(self.slot, &entry.to_wire());
    }

    /// There is no such name, and the kernel may remember that for `valid` (an ENOENT it would not remember).
    pub fn absent(self, valid: Duration) {
        let answer = abi::EntryOut {
            entry_valid: valid.as_secs(),
            entry_valid_nsec: valid.subsec_nanos(),
            ..abi::EntryOut::default()
        };
        send(self.slot, &answer);
    }
}

impl ReplyAttributes {
    pub fn attributes(self, attributes: &Attributes, valid: Duration) {
        let answer = abi::AttrOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            dummy: 0,
            attr: attributes.to_wire(),
        };
        send(self.slot, &answer);
    }
}

impl ReplyStatx {
    pub fn attributes(self, attributes: &ExtendedAttributes, valid: Duration) {
        let answer = abi::StatxOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            flags: 0,
            spare: [0; 2],
            stat: attributes.to_wire(),
        };
        send(self.slot, &answer);
    }
}

impl ReplyOpen {
    pub fn opened(self, opened: &Opened) {
        send(self.slot, &opened.to_wire());
    }
}

impl ReplyCreate {
    pub fn created(self, entry: &Entry, opened: &Opened) {
        let mut bytes = [0; size_of::<abi::EntryOut>() + size_of::<abi::OpenOut>()];
        let (first, second) = bytes.split_at_mut(size_of::<abi::EntryOut>());
        first.copy_from_slice(entry.to_wire().as_bytes());
        second.copy_from_slice(opened.to_wire().as_bytes());
        self.slot.bytes(&bytes);
    }
}

impl ReplyWrite {
    pub fn written(self, bytes: u32) {
        send(self.slot, &abi::WriteOut { size: bytes, padding: 0 });
    }
}

impl ReplyCopy {
    pub(crate) fn new(slot: ReplySlot, wide: bool) -> ReplyCopy {
        ReplyCopy { slot, wide }
    }

    /// At most what the request asked for.
    pub fn copied(self, bytes: u64) {
        if self.wide {
            send(self.slot, &abi::CopyFileRangeOut { bytes_copied: bytes });
        } else {
            let size = u32::try_from(bytes).unwrap_or(!0xfff);
            send(self.slot, &abi::WriteOut { size, padding: 0 });
        }
    }
}

impl ReplyTotals {
    pub fn totals(self, totals: &Totals) {
        let answer = abi::StatfsOut {
            blocks: totals.blocks,
            bfree: totals.blocks_free,
            bavail: totals.blocks_available,
            files: totals.files,
            ffree: totals.files_free,
            bsize: totals.block_bytes,
            namelen: totals.name_bytes_max,
            frsize: totals.fragment_bytes,
            padding: 0,
            spare: [0; 6],
        };
        send(self.slot, &answer);
    }
}

impl ReplyLock {
    /// A lock that is in the way.
    pub fn held(self, lock: &Lock) {
        send(self.slot, &abi::LkOut { lk: lock.to_wire() });
    }

    /// Nothing is in the way.
    pub fn free(self) {
        self.held(&Lock { start: 0, end: 0, kind: LockKind::Unlocked, pid: 0 });
    }
}

impl ReplyBmap {
    pub fn block(self, block: u64) {
        send(self.slot, &abi::BmapOut { block });
    }
}

impl ReplyPoll {
    /// `POLLIN` and so on.
    pub fn ready(self, events: u32) {
        send(self.slot, &abi::PollOut { revents: events, padding: 0 });
    }
}

impl ReplyLseek {
    pub fn offset(self, offset: u64) {
        send(self.slot, &abi::LseekOut { offset });
    }
}

/// The same node in directory records that carry no attributes.
pub(crate) fn dirent(node: NodeId, next: u64, name_bytes: usize, file_type: u8) -> abi::Dirent {
    abi::Dirent { ino: node.0, off: next, namelen: name_bytes as u32, type_: u32::from(file_type) }
}
