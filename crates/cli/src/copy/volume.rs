//! The files of a volume that is opened in this process.

use super::copy_data;
use super::side::{Kind, Node, Reading, Side};
use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use syncline::{
    Attr, Context, Error, File, ObjectNo, OpenOptions, RenameFlags, SetAttr, SetTime, SetXattr, Volume,
};

/// A volume's side of a copy. It belongs to whoever may open the image, so owners are given as they come.
pub(crate) struct Inside {
    image: PathBuf,
    volume: Volume,
    context: Context,
}

impl Inside {
    pub(crate) fn new(image: &Path, volume: Volume) -> Inside {
        Inside { image: image.to_owned(), volume, context: Context::root() }
    }

    fn inode(&self, path: &Path) -> io::Result<ObjectNo> {
        Ok(self.volume.symlink_metadata(path)?.attr().inode)
    }

    /// The directory and the name in it that a path to something new means.
    fn place<'a>(&self, path: &'a Path) -> io::Result<(ObjectNo, &'a [u8])> {
        let name = path.file_name().ok_or(Error::Exists)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = self.volume.metadata(parent.unwrap_or(Path::new("/")))?;
        Ok((parent.attr().inode, name.as_bytes()))
    }
}

impl From<&Attr> for Node {
    fn from(attr: &Attr) -> Node {
        Node {
            identity: (0, attr.inode.0),
            mode: attr.mode,
            links: u64::from(attr.nlink),
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            rdev: attr.rdev,
            accessed: attr.accessed,
            modified: attr.modified,
        }
    }
}

/// A file of the volume being read.
struct Open(File);

impl Reading for Open {
    fn next_data(&mut self, offset: u64, size: u64) -> io::Result<Option<Range<u64>>> {
        if offset >= size {
            return Ok(None);
        }
        let Some(start) = self.0.seek_data(offset)? else { return Ok(None) };
        let end = self.0.seek_hole(start)?.unwrap_or(size).min(size);
        Ok((start < end).then_some(start..end))
    }

    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(into, offset)
    }
}

impl Side for Inside {
    fn show(&self, path: &Path) -> String {
        format!("{}:{}", self.image.display(), Path::new("/").join(path).display())
    }

    fn node(&self, path: &Path) -> io::Result<Option<Node>> {
        match self.volume.symlink_metadata(path) {
            Ok(found) => Ok(Some(Node::from(found.attr()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_directory(&self, path: &Path) -> io::Result<bool> {
        match self.volume.metadata(path) {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let names: io::Result<Vec<_>> = self
            .volume
            .read_dir(path)?
            .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
            .collect();
        let mut names = names?;
        names.sort();
        Ok(names)
    }

    fn target(&self, path: &Path) -> io::Result<PathBuf> {
        self.volume.read_link(path)
    }

    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let (fs, number) = (self.volume.inner(), self.inode(path)?);
        let names = fs.list_xattrs(&self.context, number)?;
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        names
            .map(|name| Ok((OsString::from_vec(name.to_vec()), fs.xattr(&self.context, number, name)?)))
            .collect()
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Reading>> {
        let file = OpenOptions::new().read(true).follow_symlink(false).open(&self.volume, path)?;
        Ok(Box::new(Open(file)))
    }

    /// An image inside of a volume is a file like any other.
    fn is_the_volume(&self, _node: &Node) -> bool {
        false
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.volume.create_dir(path)
    }

    fn make_file(&self, path: &Path, size: u64, content: &mut dyn Reading) -> io::Result<u64> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.volume, path)?;
        let copied = copy_data(size, content, &mut |data, at| file.write_all_at(data, at))?;
        if file.metadata()?.len() != size {
            file.set_len(size)?;
        }
        Ok(copied)
    }

    fn make_symlink(&self, path: &Path, target: &Path) -> io::Result<()> {
        self.volume.symlink(target, path)
    }

    fn make_special(&self, path: &Path, node: &Node) -> io::Result<()> {
        let (parent, name) = self.place(path)?;
        self.volume.inner().mknod(&self.context, parent, name, node.mode, node.rdev)?;
        Ok(())
    }

    fn make_hard_link(&self, original: &Path, path: &Path) -> io::Result<()> {
        self.volume.hard_link(original, path)
    }

    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        self.volume.rename_with(from, to, RenameFlags { no_replace: !replace, ..RenameFlags::default() })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.volume.remove_file(path)
    }

    fn set_xattr(&self, path: &Path, name: &OsString, value: &[u8]) -> io::Result<bool> {
        let set = self.volume.inner().set_xattr(
            &self.context,
            self.inode(path)?,
            name.as_bytes(),
            value,
            SetXattr::Any,
        );
        match set {
            Ok(()) => Ok(true),
            Err(Error::NotSupported | Error::TooBig | Error::NotPermitted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn set_attributes(&self, path: &Path, node: &Node) -> io::Result<()> {
        let set = SetAttr {
            mode: (node.kind() != Kind::Symlink).then_some(node.mode & 0o7777),
            uid: Some(node.uid),
            gid: Some(node.gid),
            accessed: Some(SetTime::At(node.accessed)),
            modified: Some(SetTime::At(node.modified)),
            ..SetAttr::default()
        };
        self.volume.inner().setattr(&self.context, self.inode(path)?, &set, None)?;
        Ok(())
    }

    /// Closing the volume does it.
    fn settle(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}
