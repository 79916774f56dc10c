//! What a copier needs of either side.

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use syncline::Timestamp;

/// Types of inodes that matter to a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    /// FIFO, socket, or device node.
    Special,
}

impl Kind {
    /// Of an `st_mode`.
    pub(crate) fn of(mode: u32) -> Kind {
        use syncline_format::item::{MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK, MODE_TYPE_MASK};
        match mode & MODE_TYPE_MASK {
            MODE_REGULAR => Kind::File,
            MODE_DIRECTORY => Kind::Directory,
            MODE_SYMLINK => Kind::Symlink,
            _ => Kind::Special,
        }
    }
}

/// One inode of a side.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Tells the inodes of a side apart.
    pub(crate) identity: (u64, u64),
    /// As in `st_mode`.
    pub(crate) mode: u32,
    pub(crate) links: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// `major << 32 | minor` of a device node.
    pub(crate) rdev: u64,
    pub(crate) accessed: Timestamp,
    pub(crate) modified: Timestamp,
}

impl Node {
    pub(crate) fn kind(&self) -> Kind {
        Kind::of(self.mode)
    }
}

/// A file being read.
pub(crate) trait Reading {
    /// The first run of data that ends behind `offset`, cut to the first `size` bytes.
    fn next_data(&mut self, offset: u64, size: u64) -> io::Result<Option<Range<u64>>>;

    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// Files as a copier sees them: the host's, or a volume's. No method follows a symbolic link in the last place, but
/// [`Side::is_directory`].
pub(crate) trait Side {
    /// How to name a path to people.
    fn show(&self, path: &Path) -> String;

    /// What is there, if anything.
    fn node(&self, path: &Path) -> io::Result<Option<Node>>;

    /// Whether the path leads to a directory.
    fn is_directory(&self, path: &Path) -> io::Result<bool>;

    /// Names in a directory, sorted.
    fn names(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Target of a symbolic link.
    fn target(&self, path: &Path) -> io::Result<PathBuf>;

    /// Extended attributes: names and values.
    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>>;

    fn read(&self, path: &Path) -> io::Result<Box<dyn Reading>>;

    /// Whether this is the image of the volume that takes part in the copy.
    fn is_the_volume(&self, node: &Node) -> bool;

    fn make_directory(&self, path: &Path) -> io::Result<()>;

    /// Makes a file that must not exist; returns the bytes copied into it.
    fn make_file(&self, path: &Path, size: u64, content: &mut dyn Reading) -> io::Result<u64>;

    fn make_symlink(&self, path: &Path, target: &Path) -> io::Result<()>;

    fn make_special(&self, path: &Path, node: &Node) -> io::Result<()>;

    fn make_hard_link(&self, original: &Path, path: &Path) -> io::Result<()>;

    /// Gives something its name; an error if it is taken and not to be replaced.
    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Sets an extended attribute; false if this side cannot have it.
    fn set_xattr(&self, path: &Path, name: &OsString, value: &[u8]) -> io::Result<bool>;

    /// Gives owner (where allowed), permissions and times.
    fn set_attributes(&self, path: &Path, node: &Node) -> io::Result<()>;

    /// Makes what was copied below `path` durable, unless closing the side does that.
    fn settle(&self, path: &Path) -> io::Result<()>;
}
