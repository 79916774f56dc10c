//! The host's files.

use super::data::{CopiedData, copy_data};
use super::place::Place;
use super::side::{Identity, Kind, Names, Node, Reading, Side, Xattrs};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use syncline::Timestamp;

/// Who has a lease on a file is asked to give it up when the file is opened, and is given this long.
const LEASE_ATTEMPTS: u32 = 50;
const LEASE_PAUSE: Duration = Duration::from_millis(100);

/// The host, as the user who runs the program may use it.
pub(crate) struct Host {
    /// The image of the volume that takes part in the copy.
    volume: Option<Identity>,
    /// Owners can be given away.
    privileged: bool,
}

impl Host {
    /// The host's files without a volume's image.
    pub(crate) fn without(image: &Path) -> Host {
        let volume = fs::metadata(image).ok().filter(fs::Metadata::is_file);
        allow_open_files();
        Host {
            volume: volume.map(|metadata| (metadata.dev(), metadata.ino())),
            privileged: rustix::process::geteuid().is_root(),
        }
    }
}

/// Two directories of each level of a tree are open at once.
fn allow_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without it, deep trees end in a sentence.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// A directory held open, and the place in it where what is new is made.
pub(crate) struct Directory {
    fd: OwnedFd,
    place: Option<Place>,
}

impl Directory {
    fn open(at: impl AsFd, name: impl rustix::path::Arg + Copy, follow: bool) -> io::Result<Directory> {
        let no_follow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | no_follow;
        let open = |flags| rustix::fs::openat(&at, name, flags, Mode::empty());
        // One that may not be listed may still be gone through.
        let fd = match open(flags | OFlags::RDONLY) {
            Err(Errno::ACCESS) => open(flags | OFlags::PATH),
            // What O_DIRECTORY says of a symbolic link.
            Err(Errno::LOOP) => Err(Errno::NOTDIR),
            result => result,
        };
        Ok(Directory { fd: fd?, place: None })
    }

    /// Where what is new is made; made itself when it is first needed.
    fn place(&mut self) -> io::Result<&Place> {
        let place = match self.place.take() {
            Some(place) => place,
            None => Place::new(&self.fd)?,
        };
        Ok(self.place.insert(place))
    }

    fn made(&self) -> io::Result<&Place> {
        self.place.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// A directory that may only be gone through has a descriptor for no more than that.
fn may_not_be_listed(error: Errno) -> Errno {
    if error == Errno::BADF { Errno::ACCESS } else { error }
}

fn node_of(found: &fs::Metadata) -> Node {
    let time = |seconds, nanoseconds: i64| Timestamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    Node {
        identity: (found.dev(), found.ino()),
        mode: found.mode(),
        links: found.nlink(),
        uid: found.uid(),
        gid: found.gid(),
        size: found.size(),
        blocks: found.blocks(),
        rdev: u64::from(major) << 32 | u64::from(minor),
        accessed: time(found.atime(), found.atime_nsec()),
        modified: time(found.mtime(), found.mtime_nsec()),
        changed: time(found.ctime(), found.ctime_nsec()),
    }
}

/// What a name leads to, opened without having any effect on it.
fn look(at: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(at, name, flags, Mode::empty())?))
}

/// The name under which calls that take only paths find an open file.
fn path_of(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// A file of the host being read.
struct Open(File);

impl Reading for Open {
    fn node(&self) -> io::Result<Node> {
        Ok(node_of(&self.0.metadata()?))
    }

    fn xattrs(&self) -> io::Result<Xattrs> {
        xattrs_with(&mut |buffer| rustix::fs::flistxattr(&self.0, buffer), &mut |name, buffer| {
            rustix::fs::fgetxattr(&self.0, name, buffer)
        })
    }

    fn next_data(&mut self, offset: u64, size: u64) -> io::Result<Option<Range<u64>>> {
        if offset >= size {
            return Ok(None);
        }
        let start = match rustix::fs::seek(&self.0, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // A filesystem that knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => offset,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&self.0, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        Ok((start < end).then_some(start..end))
    }

    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(&self.0, into, offset)
    }
}

impl Side for Host {
    type Directory = Directory;

    fn show(&self, path: &Path) -> String {
        path.display().to_string()
    }

    fn is_directory(&self, path: &Path) -> io::Result<bool> {
        match fs::metadata(path) {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn open(&self, path: &Path) -> io::Result<Directory> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Directory::open(CWD, path, true)
    }

    fn same(&self, directory: &Directory) -> io::Result<Directory> {
        Directory::open(&directory.fd, ".", false)
    }

    fn enter(&self, at: &Directory, name: &OsStr) -> io::Result<Directory> {
        Directory::open(&at.fd, name, false)
    }

    fn node(&self, at: &Directory, name: &OsStr) -> io::Result<Option<Node>> {
        match look(&at.fd, name) {
            Ok(found) => Ok(Some(node_of(&found.metadata()?))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn node_of(&self, directory: &Directory) -> io::Result<Node> {
        Ok(node_of(&File::from(directory.fd.try_clone()?).metadata()?))
    }

    fn names(&self, directory: &Directory) -> io::Result<Names> {
        let entries = rustix::fs::Dir::read_from(&directory.fd).map_err(may_not_be_listed)?;
        let names = entries.map(|entry| Ok(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned()));
        Ok(Names::collect(names.filter(|name| !name.as_ref().is_ok_and(|name| name == "." || name == ".."))))
    }

    fn xattrs_of(&self, directory: &Directory) -> io::Result<Xattrs> {
        let list =
            &mut |buffer: &mut [u8]| rustix::fs::flistxattr(&directory.fd, buffer).map_err(may_not_be_listed);
        xattrs_with(list, &mut |name, buffer| rustix::fs::fgetxattr(&directory.fd, name, buffer))
    }

    fn xattrs(&self, at: &Directory, name: &OsStr) -> io::Result<Xattrs> {
        let found = look(&at.fd, name)?;
        let path = path_of(&found);
        xattrs_with(&mut |buffer| rustix::fs::listxattr(&path, buffer), &mut |name, buffer| {
            rustix::fs::getxattr(&path, name, buffer)
        })
    }

    fn target(&self, at: &Directory, name: &OsStr) -> io::Result<PathBuf> {
        let target = rustix::fs::readlinkat(&at.fd, name, Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    fn read(&self, at: &Directory, name: &OsStr) -> io::Result<Box<dyn Reading>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut attempt = 1;
        let file = loop {
            match rustix::fs::openat(&at.fd, name, flags, Mode::empty()) {
                Err(Errno::WOULDBLOCK) if attempt < LEASE_ATTEMPTS => attempt += 1,
                result => break File::from(result?),
            }
            std::thread::sleep(LEASE_PAUSE);
        };
        match file.metadata()?.is_file() {
            true => Ok(Box::new(Open(file))),
            false => Err(io::Error::other("it was replaced by something else while it was copied")),
        }
    }

    fn is_the_volume(&self, node: &Node) -> bool {
        self.volume == Some(node.identity)
    }

    fn make_directory(&self, at: &mut Directory, name: &OsStr) -> io::Result<Directory> {
        let place = at.place()?;
        let made = place.make(&mut |fd, name| rustix::fs::mkdirat(fd, name, Mode::RWXU));
        made?;
        let made = Directory::open(place, Place::NEW, false);
        let made = made.and_then(|made| self.place(at, name, false).map(|_| made));
        if made.is_err() {
            let _ = rustix::fs::unlinkat(at.made()?, Place::NEW, AtFlags::REMOVEDIR);
        }
        made
    }

    fn make_file(&self, at: &mut Directory, size: u64, content: &mut dyn Reading) -> io::Result<CopiedData> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = at.place()?;
        let file = File::from(rustix::fs::openat(place, Place::NEW, flags, Mode::RUSR | Mode::WUSR)?);
        let copied = copy_data(size, content, &mut |data, at| file.write_all_at(data, at))?;
        file.set_len(copied.size)?;
        Ok(copied)
    }

    fn make_symlink(&self, at: &mut Directory, target: &Path) -> io::Result<()> {
        at.place()?.make(&mut |fd, name| rustix::fs::symlinkat(target, fd, name))
    }

    fn make_special(&self, at: &mut Directory, node: &Node) -> io::Result<()> {
        let kind = rustix::fs::FileType::from_raw_mode(node.mode);
        let device = rustix::fs::makedev((node.rdev >> 32) as u32, node.rdev as u32);
        at.place()?.make(&mut |fd, name| rustix::fs::mknodat(fd, name, kind, Mode::RUSR | Mode::WUSR, device))
    }

    fn make_hard_link(
        &self,
        at: &mut Directory,
        base: &Directory,
        original: &Path,
        identity: Identity,
    ) -> io::Result<()> {
        let (Some(parent), Some(name)) = (original.parent(), original.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut from = base.fd.try_clone()?;
        for component in parent.components().filter(|component| matches!(component, Component::Normal(_))) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            from = rustix::fs::openat(&from, component.as_os_str(), flags, Mode::empty())?;
        }
        at.place()?.make(&mut |fd, new| rustix::fs::linkat(&from, name, fd, new, AtFlags::empty()))?;
        // Here nobody can change it any more.
        let linked = look(at.made()?.fd(), OsStr::new(Place::NEW))?.metadata()?;
        match (linked.dev(), linked.ino()) == identity {
            true => Ok(()),
            false => Err(io::Error::other("its other name was given to another file meanwhile")),
        }
    }

    fn dress(&self, at: &Directory, node: &Node, xattrs: &Xattrs) -> io::Result<Vec<OsString>> {
        let place = at.made()?;
        if node.kind() == Kind::File {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(place, Place::NEW, flags, Mode::empty())?;
            return self.dress_open(&file, node, xattrs);
        }
        // Nobody but us can change what has this name.
        if self.privileged {
            let (uid, gid) = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
            rustix::fs::chownat(place, Place::NEW, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let path = path_of(place).join(Place::NEW);
        let refused = set_xattrs(xattrs, &mut |name, value| {
            rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty())
        })?;
        if node.kind() != Kind::Symlink {
            rustix::fs::chmodat(place, Place::NEW, self.permissions(node), AtFlags::empty())?;
        }
        rustix::fs::utimensat(place, Place::NEW, &times(node), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(refused)
    }

    fn place(&self, at: &Directory, name: &OsStr, replace: bool) -> io::Result<Identity> {
        let place = at.made()?;
        let new = look(place.fd(), OsStr::new(Place::NEW))?.metadata()?;
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(place, Place::NEW, &at.fd, name, flags) {
            // A filesystem that cannot tell; the name was free a moment ago.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(place, Place::NEW, &at.fd, name)?,
            result => result?,
        }
        Ok((new.dev(), new.ino()))
    }

    fn discard(&self, at: &Directory) {
        if let Some(place) = &at.place {
            // What is left here the next copy removes.
            let _ = rustix::fs::unlinkat(place, Place::NEW, AtFlags::empty());
        }
    }

    fn dress_directory(
        &self,
        directory: &mut Directory,
        node: &Node,
        xattrs: &Xattrs,
    ) -> io::Result<Vec<OsString>> {
        // Removing it changes the directory's times.
        drop(directory.place.take());
        self.dress_open(&directory.fd, node, xattrs)
    }

    fn settle(&self, directory: &Directory) -> io::Result<()> {
        let readable =
            rustix::fs::openat(&directory.fd, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(rustix::fs::syncfs(readable)?)
    }
}

impl Host {
    fn dress_open(&self, file: &OwnedFd, node: &Node, xattrs: &Xattrs) -> io::Result<Vec<OsString>> {
        if self.privileged {
            let (uid, gid) = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
            rustix::fs::fchown(file, Some(uid), Some(gid)).map_err(may_not_be_listed)?;
        }
        let refused = set_xattrs(xattrs, &mut |name, value| {
            rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())
        })?;
        rustix::fs::fchmod(file, self.permissions(node)).map_err(may_not_be_listed)?;
        rustix::fs::futimens(file, &times(node))?;
        Ok(refused)
    }

    fn permissions(&self, node: &Node) -> Mode {
        // Somebody else's set-id bits are not for a file of ours.
        let bits = if self.privileged { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode(node.mode & bits)
    }
}

fn times(node: &Node) -> Timestamps {
    let time = |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: time(node.accessed), last_modification: time(node.modified) }
}

/// Sets attributes; returns those that cannot be had here.
fn set_xattrs(
    xattrs: &Xattrs,
    set: &mut dyn FnMut(&OsStr, &[u8]) -> rustix::io::Result<()>,
) -> io::Result<Vec<OsString>> {
    let mut refused = Vec::new();
    for (name, value) in xattrs {
        match set(name, value) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS | Errno::INVAL) => refused.push(name.clone()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(refused)
}

fn xattrs_with(
    list: &mut dyn FnMut(&mut [u8]) -> rustix::io::Result<usize>,
    get: &mut dyn FnMut(&OsStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Xattrs> {
    let names = match with_room(list) {
        Ok(names) => names,
        // A filesystem without them.
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        match with_room(&mut |buffer| get(OsStr::from_bytes(name), buffer)) {
            Ok(value) => found.push((OsString::from_vec(name.to_vec()), value)),
            // Removed meanwhile, or listed without being readable.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Calls with a buffer that is made larger until it is large enough.
fn with_room(call: &mut dyn FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 4096];
    loop {
        match call(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}
