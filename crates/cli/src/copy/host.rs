//! The host's files.

use super::copy_data;
use super::side::{Node, Reading, Side};
use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use syncline::Timestamp;

/// The host, as the user who runs the program may use it.
pub(crate) struct Host {
    /// The image of the volume that takes part in the copy.
    volume: Option<(u64, u64)>,
    /// Owners can be given away.
    privileged: bool,
}

impl Host {
    /// The host's files without a volume's image.
    pub(crate) fn without(image: &Path) -> Host {
        let volume = fs::metadata(image).ok().filter(fs::Metadata::is_file);
        Host {
            volume: volume.map(|metadata| (metadata.dev(), metadata.ino())),
            privileged: rustix::process::geteuid().is_root(),
        }
    }
}

/// A file of the host being read.
struct Open(File);

impl Reading for Open {
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
    fn show(&self, path: &Path) -> String {
        path.display().to_string()
    }

    fn node(&self, path: &Path) -> io::Result<Option<Node>> {
        let found = match fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let time = |seconds, nanoseconds: i64| Timestamp {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
        };
        let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
        Ok(Some(Node {
            identity: (found.dev(), found.ino()),
            mode: found.mode(),
            links: found.nlink(),
            uid: found.uid(),
            gid: found.gid(),
            size: found.size(),
            rdev: u64::from(major) << 32 | u64::from(minor),
            accessed: time(found.atime(), found.atime_nsec()),
            modified: time(found.mtime(), found.mtime_nsec()),
        }))
    }

    fn is_directory(&self, path: &Path) -> io::Result<bool> {
        match fs::metadata(path) {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let names: io::Result<Vec<_>> =
            fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name())).collect();
        let mut names = names?;
        names.sort();
        Ok(names)
    }

    fn target(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let names = match with_room(&mut |buffer| rustix::fs::llistxattr(path, buffer)) {
            Ok(names) => names,
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            match with_room(&mut |buffer| rustix::fs::lgetxattr(path, OsStr::from_bytes(name), buffer)) {
                Ok(value) => found.push((OsString::from_vec(name.to_vec()), value)),
                // Removed meanwhile, or listed without being readable.
                Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Reading>> {
        let no_follow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        Ok(Box::new(Open(File::options().read(true).custom_flags(no_follow).open(path)?)))
    }

    fn is_the_volume(&self, node: &Node) -> bool {
        self.volume == Some(node.identity)
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        // Ours alone until it has its attributes.
        fs::DirBuilder::new().mode(0o700).create(path)
    }

    fn make_file(&self, path: &Path, size: u64, content: &mut dyn Reading) -> io::Result<u64> {
        let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        let copied = copy_data(size, content, &mut |data, at| file.write_all_at(data, at))?;
        file.set_len(size)?;
        Ok(copied)
    }

    fn make_symlink(&self, path: &Path, target: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, path)
    }

    fn make_special(&self, path: &Path, node: &Node) -> io::Result<()> {
        let kind = rustix::fs::FileType::from_raw_mode(node.mode);
        let device = rustix::fs::makedev((node.rdev >> 32) as u32, node.rdev as u32);
        Ok(rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device)?)
    }

    fn make_hard_link(&self, original: &Path, path: &Path) -> io::Result<()> {
        fs::hard_link(original, path)
    }

    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        if replace {
            return fs::rename(from, to);
        }
        match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // A filesystem that cannot tell; the name was free a moment ago.
            Err(Errno::INVAL | Errno::NOSYS) => fs::rename(from, to),
            result => Ok(result?),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn set_xattr(&self, path: &Path, name: &OsString, value: &[u8]) -> io::Result<bool> {
        match rustix::fs::lsetxattr(path, name.as_os_str(), value, XattrFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS | Errno::INVAL) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn set_attributes(&self, path: &Path, node: &Node) -> io::Result<()> {
        if self.privileged {
            std::os::unix::fs::lchown(path, Some(node.uid), Some(node.gid))?;
        }
        if node.kind() != super::side::Kind::Symlink {
            // Somebody else's set-id bits are not for a file of ours.
            let bits = if self.privileged { 0o7777 } else { 0o1777 };
            fs::set_permissions(path, fs::Permissions::from_mode(node.mode & bits))?;
        }
        let time = |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) };
        let times = Timestamps { last_access: time(node.accessed), last_modification: time(node.modified) };
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn settle(&self, path: &Path) -> io::Result<()> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Ok(rustix::fs::syncfs(File::open(directory)?)?)
    }
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
