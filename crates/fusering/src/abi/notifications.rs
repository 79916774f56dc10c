//! Messages that the filesystem sends unasked.

use super::flags::InvalEntryFlags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Kind of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotifyCode(pub i32);

impl NotifyCode {
    pub const POLL: NotifyCode = NotifyCode(1);
    pub const INVAL_INODE: NotifyCode = NotifyCode(2);
    pub const INVAL_ENTRY: NotifyCode = NotifyCode(3);
    pub const STORE: NotifyCode = NotifyCode(4);
    pub const RETRIEVE: NotifyCode = NotifyCode(5);
    pub const DELETE: NotifyCode = NotifyCode(6);
    pub const RESEND: NotifyCode = NotifyCode(7);
    pub const INC_EPOCH: NotifyCode = NotifyCode(8);
    pub const PRUNE: NotifyCode = NotifyCode(9);
}

/// POLL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NotifyPollWakeup {
    pub kh: u64,
}
const _: () = assert!(size_of::<NotifyPollWakeup>() == 8);

/// INVAL_INODE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NotifyInvalInode {
    pub ino: u64,
    pub off: i64,
    pub len: i64,
}
const _: () = assert!(size_of::<NotifyInvalInode>() == 24);

/// INVAL_ENTRY; the name and a NUL follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NotifyInvalEntry {
    pub parent: u64,
    pub namelen: u32,
    pub flags: InvalEntryFlags,
}
const _: () = assert!(size_of::<NotifyInvalEntry>() == 16);

/// DELETE; the name and a NUL follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NotifyDelete {
    pub parent: u64,
    pub child: u64,
    pub namelen: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<NotifyDelete>() == 24);

/// STORE; the data follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NotifyStore {
    pub nodeid: u64,
    pub offset: u64,
    pub size: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<NotifyStore>() == 24);

/// RETRIEVE; NOTIFY_REPLY brings the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NotifyRetrieve {
    pub notify_unique: u64,
    pub nodeid: u64,
    pub offset: u64,
    pub size: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<NotifyRetrieve>() == 32);

/// PRUNE; `count` node numbers follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NotifyPrune {
    pub count: u32,
    pub padding: u32,
    pub spare: u64,
}
const _: () = assert!(size_of::<NotifyPrune>() == 16);
