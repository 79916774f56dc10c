//! The files of a volume that is opened in this process.

use super::data::{CopiedData, copy_data};
use super::place::{Place, name_of, process_of};
use super::side::{Identity, Kind, Names, Node, Reading, Side, Xattrs};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use syncline::{Attr, Context, Error, File, OpenOptions, RenameFlags, SetAttr, SetTime, Volume};
use syncline_fs::{ObjectNo, SetXattr};

/// A volume's side of a copy. It belongs to whoever may open the image, so owners are given as they come. Nobody else
/// has it open, so a directory needs no more than its path to be held.
pub(crate) struct Inside {
    image: PathBuf,
    volume: Volume,
    context: Context,
}

/// A directory, and the one in it where what is new is made.
pub(crate) struct Directory {
    volume: Volume,
    path: PathBuf,
    place: Option<PathBuf>,
}

impl Directory {
    fn new(volume: &Volume, path: PathBuf) -> Directory {
        Directory { volume: volume.clone(), path, place: None }
    }

    /// What is being made.
    fn staged(&self) -> io::Result<PathBuf> {
        self.place.as_ref().map(|place| place.join(Place::NEW)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// As [`Directory::staged`], of something that is to be made.
    fn stage(&mut self) -> io::Result<PathBuf> {
        if self.place.is_none() {
            self.remove_left()?;
            let place = self.path.join(name_of(std::process::id(), 0));
            self.volume.create_dir(&place)?;
            let number = self.volume.symlink_metadata(&place)?.attr().inode;
            self.place = Some(place);
            let (fs, root) = (self.volume.inner(), Context::root());
            let private = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            fs.attributes().setattr(&root, number, &private, None)?;
            // What is made here must not take over what the outer directory hands down.
            match fs.attributes().remove_xattr(&root, number, b"system.posix_acl_default") {
                Ok(()) | Err(Error::NoAttribute) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.staged()
    }

    /// Removes what an import has left that was killed. Whoever could still be at it would have the volume.
    fn remove_left(&self) -> io::Result<()> {
        for entry in self.volume.read_dir(&self.path)? {
            let entry = entry?;
            if process_of(entry.file_name()).is_none() || !self.is_left(&entry.path())? {
                continue;
            }
            let new = entry.path().join(Place::NEW);
            match self.volume.symlink_metadata(&new) {
                Ok(found) if found.is_dir() => self.volume.remove_dir(&new)?,
                Ok(_) => self.volume.remove_file(&new)?,
                Err(_) => {}
            }
            self.volume.remove_dir(entry.path())?;
        }
        Ok(())
    }

    /// Whether it is one of ours: private, with nothing in it but what was being made.
    fn is_left(&self, path: &Path) -> io::Result<bool> {
        let found = self.volume.symlink_metadata(path)?;
        if !found.is_dir() || found.attr().mode & 0o7777 != 0o700 {
            return Ok(false);
        }
        for entry in self.volume.read_dir(path)? {
            let entry = entry?;
            let is_ours = entry.file_name() == Place::NEW;
            if !is_ours || (entry.is_dir() && self.volume.read_dir(entry.path())?.next().is_some()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            // What cannot be removed now the next import finds.
            let _ = self.volume.remove_file(place.join(Place::NEW));
            let _ = self.volume.remove_dir(place);
        }
    }
}

impl Inside {
    pub(crate) fn new(image: &Path, volume: Volume) -> Inside {
        Inside { image: image.to_owned(), volume, context: Context::root() }
    }

    fn inode(&self, path: &Path) -> io::Result<ObjectNo> {
        Ok(self.volume.symlink_metadata(path)?.attr().inode)
    }

    fn xattrs_at(&self, path: &Path) -> io::Result<Xattrs> {
        xattrs_of(&self.volume, self.inode(path)?)
    }

    fn dress_at(&self, path: &Path, node: &Node, xattrs: &Xattrs) -> io::Result<Vec<OsString>> {
        let (fs, number) = (self.volume.inner(), self.inode(path)?);
        let owner = SetAttr { uid: Some(node.uid), gid: Some(node.gid), ..SetAttr::default() };
        fs.attributes().setattr(&self.context, number, &owner, None)?;
        let mut refused = Vec::new();
        for (name, value) in xattrs {
            match fs.attributes().set_xattr(&self.context, number, name.as_bytes(), value, SetXattr::Any) {
                Ok(()) => {}
                Err(Error::NotSupported | Error::TooBig | Error::NotPermitted) => refused.push(name.clone()),
                Err(error) => return Err(error.into()),
            }
        }
        let rest = SetAttr {
            mode: (node.kind() != Kind::Symlink).then_some(node.mode & 0o7777),
            accessed: Some(SetTime::At(node.accessed)),
            modified: Some(SetTime::At(node.modified)),
            ..SetAttr::default()
        };
        fs.attributes().setattr(&self.context, number, &rest, None)?;
        Ok(refused)
    }
}

fn xattrs_of(volume: &Volume, number: ObjectNo) -> io::Result<Xattrs> {
    let (fs, context) = (volume.inner(), Context::root());
    let names = fs.attributes().list_xattrs(&context, number)?;
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| Ok((OsString::from_vec(name.to_vec()), fs.attributes().xattr(&context, number, name)?)))
        .collect()
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
            blocks: attr.blocks,
            rdev: attr.rdev,
            accessed: attr.accessed,
            modified: attr.modified,
            changed: attr.changed,
        }
    }
}

/// A file of the volume being read.
struct Open {
    volume: Volume,
    file: File,
}

impl Reading for Open {
    fn node(&self) -> io::Result<Node> {
        Ok(Node::from(self.file.metadata()?.attr()))
    }

    fn xattrs(&self) -> io::Result<Xattrs> {
        xattrs_of(&self.volume, self.file.metadata()?.attr().inode)
    }

    fn next_data(&mut self, offset: u64, size: u64) -> io::Result<Option<Range<u64>>> {
        if offset >= size {
            return Ok(None);
        }
        let Some(start) = self.file.seek_data(offset)? else { return Ok(None) };
        let end = self.file.seek_hole(start)?.unwrap_or(size).min(size);
        Ok((start < end).then_some(start..end))
    }

    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(into, offset)
    }
}

impl Side for Inside {
    type Directory = Directory;

    fn show(&self, path: &Path) -> String {
        format!("{}:{}", self.image.display(), Path::new("/").join(path).display())
    }

    fn is_directory(&self, path: &Path) -> io::Result<bool> {
        match self.volume.metadata(path) {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn open(&self, path: &Path) -> io::Result<Directory> {
        let path = if path.as_os_str().is_empty() { Path::new("/") } else { path };
        match self.volume.metadata(path)?.is_dir() {
            true => Ok(Directory::new(&self.volume, path.to_owned())),
            false => Err(Error::NotDirectory.into()),
        }
    }

    fn same(&self, directory: &Directory) -> io::Result<Directory> {
        Ok(Directory::new(&self.volume, directory.path.clone()))
    }

    fn enter(&self, at: &Directory, name: &OsStr) -> io::Result<Directory> {
        let path = at.path.join(name);
        match self.volume.symlink_metadata(&path)?.is_dir() {
            true => Ok(Directory::new(&self.volume, path)),
            false => Err(Error::NotDirectory.into()),
        }
    }

    fn node(&self, at: &Directory, name: &OsStr) -> io::Result<Option<Node>> {
        match self.volume.symlink_metadata(at.path.join(name)) {
            Ok(found) => Ok(Some(Node::from(found.attr()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn node_of(&self, directory: &Directory) -> io::Result<Node> {
        Ok(Node::from(self.volume.metadata(&directory.path)?.attr()))
    }

    fn names(&self, directory: &Directory) -> io::Result<Names> {
        let entries = self.volume.read_dir(&directory.path)?;
        Ok(Names::collect(entries.map(|entry| entry.map(|entry| entry.file_name().to_owned()))))
    }

    fn xattrs_of(&self, directory: &Directory) -> io::Result<Xattrs> {
        xattrs_of(&self.volume, self.volume.metadata(&directory.path)?.attr().inode)
    }

    fn xattrs(&self, at: &Directory, name: &OsStr) -> io::Result<Xattrs> {
        self.xattrs_at(&at.path.join(name))
    }

    fn target(&self, at: &Directory, name: &OsStr) -> io::Result<PathBuf> {
        self.volume.read_link(at.path.join(name))
    }

    fn read(&self, at: &Directory, name: &OsStr) -> io::Result<Box<dyn Reading>> {
        let path = at.path.join(name);
        let file = OpenOptions::new().read(true).follow_symlink(false).open(&self.volume, path)?;
        Ok(Box::new(Open { volume: self.volume.clone(), file }))
    }

    fn names_directories_once(&self) -> bool {
        true
    }

    /// An image inside of a volume is a file like any other.
    fn is_the_volume(&self, _node: &Node) -> bool {
        false
    }

    fn make_directory(&self, at: &mut Directory, name: &OsStr) -> io::Result<Directory> {
        let new = at.stage()?;
        self.volume.create_dir(&new)?;
        let private = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        self.volume.inner().attributes().setattr(&self.context, self.inode(&new)?, &private, None)?;
        match self.place(at, name, false) {
            Ok(_) => Ok(Directory::new(&self.volume, at.path.join(name))),
            Err(error) => {
                // The first failure is the one to tell.
                let _ = self.volume.remove_dir(&new);
                Err(error)
            }
        }
    }

    fn make_file(&self, at: &mut Directory, size: u64, content: &mut dyn Reading) -> io::Result<CopiedData> {
        let new = at.stage()?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.volume, new)?;
        let copied = copy_data(size, content, &mut |data, at| file.write_all_at(data, at))?;
        if file.metadata()?.len() != copied.size {
            file.set_len(copied.size)?;
        }
        Ok(copied)
    }

    fn make_symlink(&self, at: &mut Directory, target: &Path) -> io::Result<()> {
        self.volume.symlink(target, at.stage()?)
    }

    fn make_special(&self, at: &mut Directory, node: &Node) -> io::Result<()> {
        at.stage()?;
        let place = at.place.as_deref().unwrap_or(&at.path);
        let parent = self.inode(place)?;
        let fs = self.volume.inner();
        fs.names().mknod(&self.context, parent, Place::NEW.as_bytes(), node.mode, node.rdev)?;
        Ok(())
    }

    fn make_hard_link(
        &self,
        at: &mut Directory,
        base: &Directory,
        original: &Path,
        _identity: Identity,
    ) -> io::Result<()> {
        self.volume.hard_link(base.path.join(original), at.stage()?)
    }

    fn dress(&self, at: &Directory, node: &Node, xattrs: &Xattrs) -> io::Result<Vec<OsString>> {
        self.dress_at(&at.staged()?, node, xattrs)
    }

    fn place(&self, at: &Directory, name: &OsStr, replace: bool) -> io::Result<Identity> {
        let new = at.staged()?;
        let identity = (0, self.inode(&new)?.0);
        let flags = RenameFlags { no_replace: !replace, ..RenameFlags::default() };
        self.volume.rename_with(new, at.path.join(name), flags)?;
        Ok(identity)
    }

    fn discard(&self, at: &Directory) {
        if let Ok(new) = at.staged() {
            // What is left here the next import removes.
            let _ = self.volume.remove_file(new);
        }
    }

    fn dress_directory(
        &self,
        directory: &mut Directory,
        node: &Node,
        xattrs: &Xattrs,
    ) -> io::Result<Vec<OsString>> {
        // Removing it changes the directory's times.
        if let Some(place) = directory.place.take() {
            self.volume.remove_dir(place)?;
        }
        self.dress_at(&directory.path, node, xattrs)
    }

    /// Closing the volume does it.
    fn settle(&self, _directory: &Directory) -> io::Result<()> {
        Ok(())
    }
}
