//! Flags of requests, answers and of the handshake.

use super::bits::bits;

bits! {
    /// What is agreed on in INIT. The upper half travels in `flags2`.
    pub struct InitFlags: u64 {
        /// Several reads of a file at once.
        ASYNC_READ = 1 << 0;
        /// POSIX locks are the filesystem's.
        POSIX_LOCKS = 1 << 1;
        FILE_OPS = 1 << 2;
        /// `O_TRUNC` arrives with `open`.
        ATOMIC_O_TRUNC = 1 << 3;
        /// "." and ".." are looked up by node: NFS export.
        EXPORT_SUPPORT = 1 << 4;
        BIG_WRITES = 1 << 5;
        /// The umask is applied by the filesystem.
        DONT_MASK = 1 << 6;
        SPLICE_WRITE = 1 << 7;
        SPLICE_MOVE = 1 << 8;
        SPLICE_READ = 1 << 9;
        /// `flock` locks are the filesystem's.
        FLOCK_LOCKS = 1 << 10;
        /// `ioctl` on directories.
        HAS_IOCTL_DIR = 1 << 11;
        /// Cached data is dropped when size or mtime changed.
        AUTO_INVAL_DATA = 1 << 12;
        DO_READDIRPLUS = 1 << 13;
        READDIRPLUS_AUTO = 1 << 14;
        ASYNC_DIO = 1 << 15;
        WRITEBACK_CACHE = 1 << 16;
        /// `open` may be answered with ENOSYS.
        NO_OPEN_SUPPORT = 1 << 17;
        PARALLEL_DIROPS = 1 << 18;
        HANDLE_KILLPRIV = 1 << 19;
        POSIX_ACL = 1 << 20;
        /// Reading after an abort gives ECONNABORTED.
        ABORT_ERROR = 1 << 21;
        /// `max_pages` counts.
        MAX_PAGES = 1 << 22;
        CACHE_SYMLINKS = 1 << 23;
        /// `opendir` may be answered with ENOSYS.
        NO_OPENDIR_SUPPORT = 1 << 24;
        EXPLICIT_INVAL_DATA = 1 << 25;
        MAP_ALIGNMENT = 1 << 26;
        SUBMOUNTS = 1 << 27;
        /// The filesystem clears set-id bits where it is told to.
        HANDLE_KILLPRIV_V2 = 1 << 28;
        SETXATTR_EXT = 1 << 29;
        /// `flags2` counts.
        INIT_EXT = 1 << 30;
        SECURITY_CTX = 1 << 32;
        HAS_INODE_DAX = 1 << 33;
        CREATE_SUPP_GROUP = 1 << 34;
        HAS_EXPIRE_ONLY = 1 << 35;
        DIRECT_IO_ALLOW_MMAP = 1 << 36;
        PASSTHROUGH = 1 << 37;
        NO_EXPORT_SUPPORT = 1 << 38;
        HAS_RESEND = 1 << 39;
        ALLOW_IDMAP = 1 << 40;
        OVER_IO_URING = 1 << 41;
        REQUEST_TIMEOUT = 1 << 42;
    }
}

impl InitFlags {
    pub(crate) const fn from_halves(low: u32, high: u32) -> InitFlags {
        InitFlags(low as u64 | (high as u64) << 32)
    }

    pub(crate) const fn halves(self) -> (u32, u32) {
        (self.0 as u32, (self.0 >> 32) as u32)
    }
}

bits! {
    /// How the kernel treats a file that was opened.
    pub struct OpenFlags: u32 {
        /// Reads and writes bypass the page cache.
        DIRECT_IO = 1 << 0;
        /// What is cached of the file stays valid.
        KEEP_CACHE = 1 << 1;
        NONSEEKABLE = 1 << 2;
        /// The entries of this directory may be cached.
        CACHE_DIR = 1 << 3;
        STREAM = 1 << 4;
        /// No FLUSH on close (unless the writeback cache is on).
        NOFLUSH = 1 << 5;
        PARALLEL_DIRECT_WRITES = 1 << 6;
        PASSTHROUGH = 1 << 7;
    }
}

bits! {
    /// Which attributes SETATTR changes.
    pub struct SetattrValid: u32 {
        MODE = 1 << 0;
        UID = 1 << 1;
        GID = 1 << 2;
        SIZE = 1 << 3;
        ATIME = 1 << 4;
        MTIME = 1 << 5;
        FH = 1 << 6;
        ATIME_NOW = 1 << 7;
        MTIME_NOW = 1 << 8;
        LOCKOWNER = 1 << 9;
        CTIME = 1 << 10;
        KILL_SUIDGID = 1 << 11;
    }
}

bits! {
    /// Of GETATTR and STATX.
    pub struct GetattrFlags: u32 {
        /// `fh` is valid.
        FH = 1 << 0;
    }
}

bits! {
    /// Of OPEN and CREATE requests.
    pub struct OpenInFlags: u32 {
        /// Set-id bits are to be cleared (with `O_TRUNC`).
        KILL_SUIDGID = 1 << 0;
    }
}

bits! {
    /// Of READ.
    pub struct ReadFlags: u32 {
        LOCKOWNER = 1 << 1;
    }
}

bits! {
    /// Of WRITE.
    pub struct WriteFlags: u32 {
        /// From the page cache; the handle is a guess, the caller unknown.
        CACHE = 1 << 0;
        LOCKOWNER = 1 << 1;
        /// Set-id bits are to be cleared.
        KILL_SUIDGID = 1 << 2;
    }
}

bits! {
    /// Of RELEASE.
    pub struct ReleaseFlags: u32 {
        FLUSH = 1 << 0;
        FLOCK_UNLOCK = 1 << 1;
    }
}

bits! {
    /// Of FSYNC and FSYNCDIR.
    pub struct FsyncFlags: u32 {
        /// As `fdatasync`.
        FDATASYNC = 1 << 0;
    }
}

bits! {
    /// Of SETXATTR with SETXATTR_EXT.
    pub struct SetxattrFlags: u32 {
        /// The set-group-id bit is to be cleared along with setting the access ACL.
        ACL_KILL_SGID = 1 << 0;
    }
}

bits! {
    /// Of GETLK, SETLK and SETLKW.
    pub struct LkFlags: u32 {
        /// An `flock` lock.
        FLOCK = 1 << 0;
    }
}

bits! {
    /// Of IOCTL.
    pub struct IoctlFlags: u32 {
        COMPAT = 1 << 0;
        UNRESTRICTED = 1 << 1;
        RETRY = 1 << 2;
        BITS_32 = 1 << 3;
        DIR = 1 << 4;
        COMPAT_X32 = 1 << 5;
    }
}

bits! {
    /// Of POLL.
    pub struct PollFlags: u32 {
        /// A notification is wanted when the file becomes ready.
        SCHEDULE_NOTIFY = 1 << 0;
    }
}

bits! {
    /// Of a node's attributes.
    pub struct AttrFlags: u32 {
        SUBMOUNT = 1 << 0;
        DAX = 1 << 1;
    }
}

bits! {
    /// Of the notification INVAL_ENTRY.
    pub struct InvalEntryFlags: u32 {
        /// The entry is looked up again, but not dropped.
        EXPIRE_ONLY = 1 << 0;
    }
}
