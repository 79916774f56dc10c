//! Between fuser's types and ours: answers to replies, attributes, times, directory entries.

use super::{CACHE_TIME, GENERATION};
use crate::operations::{
    Answer, Attributes, DirectoryEntry, DirectorySink, Errno, NewTime, Opened, SyncReply,
};
use fuser::FopenFlags;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use syncline::{ObjectNo, Timestamp};

pub(super) fn node(number: fuser::INodeNo) -> ObjectNo {
    ObjectNo(number.0)
}

pub(super) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.0)
}

pub(super) fn reply_empty(reply: fuser::ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_entry(reply: fuser::ReplyEntry, answer: Answer<Attributes>) {
    match answer {
        Ok(attributes) => reply.entry(&CACHE_TIME, &to_file_attr(&attributes), GENERATION),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_attributes(reply: fuser::ReplyAttr, answer: Answer<Attributes>) {
    match answer {
        Ok(attributes) => reply.attr(&CACHE_TIME, &to_file_attr(&attributes)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_sized(reply: fuser::ReplyXattr, size: u32, answer: Answer<Vec<u8>>) {
    match answer {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(fuser::Errno::ERANGE),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn sync_reply(reply: fuser::ReplyEmpty) -> SyncReply {
    Box::new(move |answer| reply_empty(reply, answer))
}

pub(super) fn open_flags(opened: &Opened) -> FopenFlags {
    if opened.direct_io {
        FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else {
        FopenFlags::FOPEN_KEEP_CACHE
    }
}

pub(super) fn file_type(mode: u32) -> fuser::FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => fuser::FileType::Directory,
        libc::S_IFLNK => fuser::FileType::Symlink,
        libc::S_IFIFO => fuser::FileType::NamedPipe,
        libc::S_IFSOCK => fuser::FileType::Socket,
        libc::S_IFCHR => fuser::FileType::CharDevice,
        libc::S_IFBLK => fuser::FileType::BlockDevice,
        _ => fuser::FileType::RegularFile,
    }
}

pub(super) fn to_system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole =
        if time.seconds >= 0 { UNIX_EPOCH.checked_add(seconds) } else { UNIX_EPOCH.checked_sub(seconds) };
    whole
        .and_then(|at| at.checked_add(Duration::from_nanos(u64::from(time.nanoseconds))))
        .unwrap_or(UNIX_EPOCH)
}

/// A time as fuser hands it on: before 1970 both parts of the caller's timespec were subtracted from the epoch.
pub(super) fn from_request_time(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Timestamp {
                seconds: i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds),
                nanoseconds: before.subsec_nanos(),
            }
        }
    }
}

pub(super) fn new_time(time: fuser::TimeOrNow) -> NewTime {
    match time {
        fuser::TimeOrNow::Now => NewTime::Now,
        fuser::TimeOrNow::SpecificTime(time) => NewTime::At(from_request_time(time)),
    }
}

pub(super) fn to_file_attr(attributes: &Attributes) -> fuser::FileAttr {
    fuser::FileAttr {
        ino: fuser::INodeNo(attributes.node.0),
        size: attributes.size,
        blocks: attributes.sectors,
        atime: to_system_time(attributes.accessed),
        mtime: to_system_time(attributes.modified),
        ctime: to_system_time(attributes.changed),
        crtime: UNIX_EPOCH,
        kind: file_type(attributes.mode),
        perm: (attributes.mode & 0o7777) as u16,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.device.to_kernel(),
        blksize: 4096,
        flags: 0,
    }
}

/// What tells the kernel that a name does not exist: an entry without a node, which it may keep.
pub(super) fn absent() -> fuser::FileAttr {
    fuser::FileAttr {
        ino: fuser::INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

pub(super) struct PlainSink(pub(super) fuser::ReplyDirectory);

impl DirectorySink for PlainSink {
    fn wants_attributes(&self) -> bool {
        false
    }

    fn add(&mut self, entry: &DirectoryEntry<'_>, _: Option<&Attributes>) -> bool {
        let kind = file_type(u32::from(entry.file_type) << 12);
        !self.0.add(fuser::INodeNo(entry.node.0), entry.next, kind, OsStr::from_bytes(entry.name))
    }
}

pub(super) struct PlusSink(pub(super) fuser::ReplyDirectoryPlus);

impl DirectorySink for PlusSink {
    fn wants_attributes(&self) -> bool {
        true
    }

    fn add(&mut self, entry: &DirectoryEntry<'_>, attributes: Option<&Attributes>) -> bool {
        let number = fuser::INodeNo(entry.node.0);
        let name = OsStr::from_bytes(entry.name);
        match attributes {
            Some(attributes) => {
                let attr = to_file_attr(attributes);
                !self.0.add(number, entry.next, name, &CACHE_TIME, &attr, GENERATION)
            }
            None => {
                // The name is listed, the kernel looks it up when it needs to.
                let kind = file_type(u32::from(entry.file_type) << 12);
                !self.0.add(
                    number,
                    entry.next,
                    name,
                    &Duration::ZERO,
                    &fuser::FileAttr { kind, ..absent() },
                    GENERATION,
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_arrive_as_they_were_sent() {
        // What fuser makes of (-2 s, 250 ms): both parts subtracted.
        let handed_on = UNIX_EPOCH - Duration::new(2, 250_000_000);
        let time = from_request_time(handed_on);
        assert_eq!(time, Timestamp { seconds: -2, nanoseconds: 250_000_000 });
        // And back: a second that began two seconds before the epoch, and a quarter of it.
        assert_eq!(to_system_time(time), UNIX_EPOCH - Duration::new(1, 750_000_000));
    }

    #[test]
    fn times_at_the_ends_of_64_bits_do_not_overflow() {
        for seconds in [i64::MIN, i64::MIN + 1, i64::MAX] {
            let time = Timestamp { seconds, nanoseconds: 0 };
            assert_eq!(from_request_time(to_system_time(time)), time);
        }
        to_system_time(Timestamp { seconds: i64::MAX, nanoseconds: 999_999_999 });
    }
}
