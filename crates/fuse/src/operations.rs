//! What the kernel may ask of a mounted volume, in types of our own.
//!
//! [`Operations`] is the seam between a transport (how requests arrive and replies leave) and the volume behind it.
//! A transport translates wire messages into these calls and the answers back; it knows nothing of the engine, and
//! the implementation knows nothing of the wire. Replacing the transport touches no other module.
//!
//! Calls return their answer, except syncs: these take a [`SyncReply`], which may be kept and answered from another
//! thread once a group commit is done, so that a waiting sync holds no thread that reads requests.
//!
//! Names arrive as the kernel checked them: 1 to 255 bytes without `/` and NUL. Permissions have been checked by the
//! kernel (the mount always has `default_permissions`); a [`Caller`] is needed for ownership and set-id bits.

use syncline::{ObjectNo, Timestamp};

/// A Linux error number, positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// The answer to a request.
pub(crate) type Answer<T> = Result<T, Errno>;

/// Number of an open file, given out by `open` and `create`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Handle(pub(crate) u64);

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The calling thread; 0 for requests the kernel makes of its own accord.
    pub(crate) pid: u32,
}

/// Attributes of an inode, as `stat` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) node: ObjectNo,
    /// Type and permission bits.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// In units of 512 bytes.
    pub(crate) sectors: u64,
    pub(crate) accessed: Timestamp,
    pub(crate) modified: Timestamp,
    pub(crate) changed: Timestamp,
    pub(crate) device: DeviceNumber,
}

/// Major and minor number of a special file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DeviceNumber {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl DeviceNumber {
    /// The 32-bit encoding that the kernel and FUSE use: 12 bits of major between 8 and 12 bits of minor.
    pub(crate) fn from_kernel(encoded: u32) -> DeviceNumber {
        DeviceNumber { major: (encoded >> 8) & 0xfff, minor: (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00) }
    }

    pub(crate) fn to_kernel(self) -> u32 {
        (self.minor & 0xff) | ((self.major & 0xfff) << 8) | ((self.minor & 0xf_ff00) << 12)
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewTime {
    Now,
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AttributeChange {
    /// Permission bits (type bits, if any, are ignored).
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) accessed: Option<NewTime>,
    pub(crate) modified: Option<NewTime>,
    pub(crate) changed: Option<Timestamp>,
}

/// A file that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) handle: Handle,
    /// Reads and writes bypass the kernel's page cache.
    pub(crate) direct_io: bool,
}

/// How one name is to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RenameHow {
    pub(crate) no_replace: bool,
    pub(crate) exchange: bool,
    pub(crate) whiteout: bool,
}

/// One write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteRequest<'a> {
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    /// The writer may not keep set-id bits.
    pub(crate) clear_set_id: bool,
    /// `O_DSYNC` or `O_SYNC` holds for this write.
    pub(crate) durable: bool,
}

/// Where `copy_file_range` reads or writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub(crate) handle: Handle,
    pub(crate) offset: u64,
}

/// One entry of a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectoryEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) node: ObjectNo,
    /// `d_type`: the mode's type bits shifted right by 12.
    pub(crate) file_type: u8,
    /// Where a later read of the directory goes on after this entry.
    pub(crate) next: u64,
}

/// Takes the entries of a directory.
pub(crate) trait DirectorySink {
    /// Whether entries are to come with their attributes.
    fn wants_attributes(&self) -> bool;

    /// False when there was no room left for this entry: no further ones are taken.
    fn add(&mut self, entry: &DirectoryEntry<'_>, attributes: Option<&Attributes>) -> bool;
}

/// Totals of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct VolumeTotals {
    pub(crate) block_bytes: u32,
    pub(crate) blocks: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_available: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
    pub(crate) name_bytes_max: u32,
}

/// Answers a sync; may be kept.
pub(crate) type SyncReply = Box<dyn FnOnce(Answer<()>) + Send>;

/// What the kernel may ask.
pub(crate) trait Operations: Send + Sync + 'static {
    /// `None`: there is no such name, and the kernel may remember that.
    fn lookup(&self, parent: ObjectNo, name: &[u8]) -> Answer<Option<Attributes>>;
    fn getattr(&self, node: ObjectNo) -> Answer<Attributes>;
    fn setattr(&self, caller: &Caller, node: ObjectNo, change: &AttributeChange) -> Answer<Attributes>;
    fn readlink(&self, node: ObjectNo) -> Answer<Vec<u8>>;
    fn mknod(
        &self,
        caller: &Caller,
        parent: ObjectNo,
        name: &[u8],
        mode: Mode,
        device: DeviceNumber,
    ) -> Answer<Attributes>;
    fn mkdir(&self, caller: &Caller, parent: ObjectNo, name: &[u8], mode: Mode) -> Answer<Attributes>;
    fn symlink(&self, caller: &Caller, parent: ObjectNo, name: &[u8], target: &[u8]) -> Answer<Attributes>;
    fn link(&self, caller: &Caller, node: ObjectNo, parent: ObjectNo, name: &[u8]) -> Answer<Attributes>;
    fn unlink(&self, caller: &Caller, parent: ObjectNo, name: &[u8]) -> Answer<()>;
    fn rmdir(&self, caller: &Caller, parent: ObjectNo, name: &[u8]) -> Answer<()>;
    fn rename(
        &self,
        caller: &Caller,
        from: (ObjectNo, &[u8]),
        to: (ObjectNo, &[u8]),
        how: RenameHow,
    ) -> Answer<()>;
    /// `flags` are those of `open(2)`; `O_CREAT` and `O_EXCL` are dealt with by the kernel, `O_TRUNC` is not.
    fn open(&self, caller: &Caller, node: ObjectNo, flags: i32) -> Answer<Opened>;
    fn create(
        &self,
        caller: &Caller,
        parent: ObjectNo,
        name: &[u8],
        mode: Mode,
        flags: i32,
    ) -> Answer<(Attributes, Opened)>;
    /// Fills `into` from its start; fewer bytes only at the end of the file.
    fn read(&self, caller: &Caller, handle: Handle, offset: u64, into: &mut [u8]) -> Answer<usize>;
    fn write(&self, caller: &Caller, handle: Handle, request: WriteRequest<'_>) -> Answer<usize>;
    fn release(&self, handle: Handle);
    fn fsync(&self, caller: &Caller, node: ObjectNo, handle: Handle, data_only: bool, reply: SyncReply);
    fn fsyncdir(&self, caller: &Caller, node: ObjectNo, reply: SyncReply);
    /// Entries from `from` on; 0 is the beginning. `.` and `..` are among them.
    fn readdir(&self, caller: &Caller, node: ObjectNo, from: u64, sink: &mut dyn DirectorySink)
    -> Answer<()>;
    fn statfs(&self) -> Answer<VolumeTotals>;
    /// `flags` are those of `setxattr(2)`.
    fn setxattr(&self, caller: &Caller, node: ObjectNo, name: &[u8], value: &[u8], flags: i32) -> Answer<()>;
    fn getxattr(&self, caller: &Caller, node: ObjectNo, name: &[u8]) -> Answer<Vec<u8>>;
    /// The names, each followed by a NUL.
    fn listxattr(&self, caller: &Caller, node: ObjectNo) -> Answer<Vec<u8>>;
    fn removexattr(&self, caller: &Caller, node: ObjectNo, name: &[u8]) -> Answer<()>;
    /// `mode` are the flags of `fallocate(2)`.
    fn fallocate(&self, caller: &Caller, handle: Handle, mode: i32, offset: u64, len: u64) -> Answer<()>;
    /// `SEEK_DATA` and `SEEK_HOLE` only.
    fn lseek(&self, caller: &Caller, handle: Handle, offset: u64, whence: i32) -> Answer<u64>;
    fn copy_file_range(&self, caller: &Caller, from: Position, to: Position, len: u64) -> Answer<u64>;
    /// At most `out_bytes_max` bytes of output.
    fn ioctl(
        &self,
        caller: &Caller,
        node: ObjectNo,
        command: u32,
        input: &[u8],
        out_bytes_max: usize,
    ) -> Answer<Vec<u8>>;
}

/// Mode of a new file: type and permission bits as asked for, and the caller's umask, which counts only if the directory
/// has no default ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mode {
    pub(crate) bits: u32,
    pub(crate) umask: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_kernels_encoding() {
        for (major, minor) in [(0, 0), (1, 3), (8, 17), (259, 70_000), (0xfff, 0xf_ffff)] {
            let number = DeviceNumber { major, minor };
            assert_eq!(DeviceNumber::from_kernel(number.to_kernel()), number);
        }
        assert_eq!(DeviceNumber { major: 1, minor: 3 }.to_kernel(), 0x103);
    }
}
