//! What a copier needs of either side.

use super::data::CopiedData;
use std::ffi::{OsStr, OsString};
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

/// Tells the inodes of a side apart.
pub(crate) type Identity = (u64, u64);

/// Extended attributes: names and values.
pub(crate) type Xattrs = Vec<(OsString, Vec<u8>)>;

/// One inode of a side.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) identity: Identity,
    /// As in `st_mode`.
    pub(crate) mode: u32,
    pub(crate) links: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// What it takes of its device, in units of the side.
    pub(crate) blocks: u64,
    /// `major << 32 | minor` of a device node.
    pub(crate) rdev: u64,
    pub(crate) accessed: Timestamp,
    pub(crate) modified: Timestamp,
    /// Last change of content or attributes.
    pub(crate) changed: Timestamp,
}

impl Node {
    pub(crate) fn kind(&self) -> Kind {
        Kind::of(self.mode)
    }

    /// Its owner's alone: what has lost the attributes that say who else may use it.
    pub(crate) fn private(mut self) -> Node {
        self.mode &= !0o7077;
        self
    }

    /// Whether somebody has written it between two looks at it, of which a copy took over `copied` bytes, holes
    /// included.
    pub(crate) fn has_changed_to(&self, later: &Node, copied: u64) -> bool {
        // What the kernel makes up as it is read has no true size, and times of now.
        let is_made_up = copied != self.size && later.size == self.size && later.blocks == 0;
        let seen = |node: &Node| (node.size, node.modified, node.changed);
        !is_made_up && seen(self) != seen(later)
    }
}

/// A file being read.
pub(crate) trait Reading {
    /// The file that was opened, as it is now. It need not be the one that its name led to a moment ago.
    fn node(&self) -> io::Result<Node>;

    fn xattrs(&self) -> io::Result<Xattrs>;

    /// The first run of data that ends behind `offset`, cut to the first `size` bytes.
    fn next_data(&mut self, offset: u64, size: u64) -> io::Result<Option<Range<u64>>>;

    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// What a directory holds, as far as it could be read.
pub(crate) struct Names {
    /// Sorted.
    pub(crate) names: Vec<OsString>,
    pub(crate) failed: Option<io::Error>,
}

impl Names {
    /// Collects what a directory gives until it fails.
    pub(crate) fn collect(entries: impl Iterator<Item = io::Result<OsString>>) -> Names {
        let mut found = Names { names: Vec::new(), failed: None };
        for entry in entries {
            match entry {
                Ok(name) => found.names.push(name),
                Err(error) => {
                    found.failed = Some(error);
                    break;
                }
            }
        }
        found.names.sort();
        found
    }
}

/// Files as a copier sees them: the host's, or a volume's.
///
/// Only the path that people name ([`Side::open`], [`Side::is_directory`]) is followed through symbolic links.
/// Everything below goes from directory to directory, each held open, by one name, and no link is followed: who may
/// change names there meanwhile, or has left a link there, leads nobody out of the tree.
///
/// What is new is made in a place of its own in the directory that it goes to ("staged"), gets its attributes there,
/// and is given its name when it is whole. Nobody else may use that place, so that nobody is given what is somebody
/// else's.
pub(crate) trait Side {
    /// A directory held open, with the place where what is new in it is made. That place is removed with it.
    type Directory;

    /// How to name a path to people.
    fn show(&self, path: &Path) -> String;

    /// Whether the path leads to a directory.
    fn is_directory(&self, path: &Path) -> io::Result<bool>;

    /// Opens the directory that the path leads to.
    fn open(&self, path: &Path) -> io::Result<Self::Directory>;

    /// Opens the same directory again.
    fn same(&self, directory: &Self::Directory) -> io::Result<Self::Directory>;

    /// Opens a directory in a directory.
    fn enter(&self, at: &Self::Directory, name: &OsStr) -> io::Result<Self::Directory>;

    /// What has the name, if anything.
    fn node(&self, at: &Self::Directory, name: &OsStr) -> io::Result<Option<Node>>;

    fn node_of(&self, directory: &Self::Directory) -> io::Result<Node>;

    fn names(&self, directory: &Self::Directory) -> io::Result<Names>;

    fn xattrs_of(&self, directory: &Self::Directory) -> io::Result<Xattrs>;

    /// Extended attributes of what is neither file nor directory.
    fn xattrs(&self, at: &Self::Directory, name: &OsStr) -> io::Result<Xattrs>;

    /// Target of a symbolic link.
    fn target(&self, at: &Self::Directory, name: &OsStr) -> io::Result<PathBuf>;

    /// Opens a regular file. Waits for nobody, whatever has the name by now.
    fn read(&self, at: &Self::Directory, name: &OsStr) -> io::Result<Box<dyn Reading>>;

    /// Whether a directory has one name at most here, so that a second one is damage. (Of the host's, a mount may
    /// show one twice.)
    fn names_directories_once(&self) -> bool {
        false
    }

    /// Whether this is the image of the volume that takes part in the copy.
    fn is_the_volume(&self, node: &Node) -> bool;

    /// Makes a directory, which is its maker's alone, under a name that is free.
    fn make_directory(&self, at: &mut Self::Directory, name: &OsStr) -> io::Result<Self::Directory>;

    /// Stages a file with the content of another of `size` bytes.
    fn make_file(
        &self,
        at: &mut Self::Directory,
        size: u64,
        content: &mut dyn Reading,
    ) -> io::Result<CopiedData>;

    fn make_symlink(&self, at: &mut Self::Directory, target: &Path) -> io::Result<()>;

    fn make_special(&self, at: &mut Self::Directory, node: &Node) -> io::Result<()>;

    /// Stages another name of a file that [`Side::place`] told the identity of. `original` leads to it from `base`.
    fn make_hard_link(
        &self,
        at: &mut Self::Directory,
        base: &Self::Directory,
        original: &Path,
        identity: Identity,
    ) -> io::Result<()>;

    /// Gives what is staged its owner (where allowed), extended attributes, permissions and times, in this order: a
    /// change of owner takes away capabilities, and a write the time. Returns the attributes that this side cannot
    /// have.
    fn dress(&self, at: &Self::Directory, node: &Node, xattrs: &Xattrs) -> io::Result<Vec<OsString>>;

    /// Gives what is staged its name, an error if that is taken and not to be replaced, and tells its identity.
    fn place(&self, at: &Self::Directory, name: &OsStr, replace: bool) -> io::Result<Identity>;

    /// Removes what is staged.
    fn discard(&self, at: &Self::Directory);

    /// As [`Side::dress`], of a directory in which everything is.
    fn dress_directory(
        &self,
        directory: &mut Self::Directory,
        node: &Node,
        xattrs: &Xattrs,
    ) -> io::Result<Vec<OsString>>;

    /// Makes what was copied below the directory durable, unless closing the side does that.
    fn settle(&self, directory: &Self::Directory) -> io::Result<()>;
}
