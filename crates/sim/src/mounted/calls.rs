//! Operations as system calls, and what a mounted volume shows.

use super::control;
use crate::content::Content;
use crate::operation::{AllocateKind, Op, WriteKind, acl, pattern};
use crate::oracle::{Kind, Node, View};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags, chmod,
    copy_file_range, fallocate, fdatasync, fsync, ftruncate, ioctl_getflags, ioctl_setflags, lgetxattr,
    linkat, llistxattr, lremovexattr, lsetxattr, open, renameat_with, utimensat,
};
use rustix::io::{Errno, pread, pwrite};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const ENOTSUP: i32 = 95;
/// Background work is given so long.
const WAIT: Duration = Duration::from_millis(15);
const ACL_NAME: &str = "system.posix_acl_access";
const DEFAULT_ACL_NAME: &str = "system.posix_acl_default";

/// What an operation did.
#[derive(Debug, Default)]
pub struct Effect {
    /// Inode that was made.
    pub made: u64,
    /// Bytes that were written.
    pub written: u64,
}

/// Carries out an operation below `top`; `program` is this one, for what needs another process.
///
/// Errors: the errno.
pub fn carry_out(program: &Path, top: &Path, op: &Op) -> Result<Effect, i32> {
    let place = |path: &String| top.join(path);
    match op {
        Op::Creat(path) => {
            let file = opened(&place(path), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR)?;
            Ok(Effect { made: number_of(&file)?, written: 0 })
        }
        Op::Mkdir(path) => {
            fs::create_dir(place(path)).map_err(code)?;
            made(&place(path))
        }
        Op::Symlink(target, path) => {
            symlink(target, place(path)).map_err(code)?;
            made(&place(path))
        }
        Op::Whiteout(old, new) => {
            renamed(&place(old), &place(new), RenameFlags::WHITEOUT)?;
            made(&place(old))
        }
        Op::Transaction { ops, end, .. } => control::transact(top, ops, *end),
        Op::Write { path, kind: WriteKind::Mapped, offset, len, fill } => {
            let written = control::mapped(program, &place(path), *offset, *len, *fill)?;
            Ok(Effect { made: 0, written })
        }
        Op::Write { path, kind, offset, len, fill } => write(&place(path), *kind, *offset, *len, *fill),
        Op::Rewrite { path, len, fill } => {
            let file = opened(&place(path), OFlags::RDWR | OFlags::TRUNC)?;
            Ok(Effect { made: 0, written: written(&file, 0, &pattern(*fill, 0, *len))? })
        }
        Op::TmpLink { path, len, fill, sync } => link_nameless(top, &place(path), *len, *fill, *sync),
        Op::UnlinkOpen { path, len, fill } => unlink_open(&place(path), *len, *fill),
        Op::CopyRange { from, to, at, to_at, len } => {
            let source = opened(&place(from), OFlags::RDONLY)?;
            let target = opened(&place(to), OFlags::RDWR)?;
            let (mut from, mut to, mut done) = (*at, *to_at, 0);
            while done < *len {
                let left = (*len - done) as usize;
                match copy_file_range(&source, Some(&mut from), &target, Some(&mut to), left).map_err(raw)? {
                    0 => break,
                    count => done += count as u64,
                }
            }
            Ok(Effect { made: 0, written: done })
        }
        Op::WriteBack { path, offset, len } => {
            control::write_back(&opened(&place(path), OFlags::RDWR)?, *offset, *len)?;
            Ok(Effect::default())
        }
        Op::SyncRange { path, offset, len } => {
            control::sync_range(&opened(&place(path), OFlags::RDWR)?, *offset, *len)?;
            Ok(Effect::default())
        }
        Op::Maintain { .. } | Op::Checkpoint | Op::Trim => {
            std::thread::sleep(WAIT);
            Ok(Effect::default())
        }
        Op::Fsync(path) => synced(top, path, false),
        Op::Fdatasync(path) => synced(top, path, true),
        // What the mount of an image file offers for sync(2).
        Op::Sync => synced(top, "", false),
        _ => change(top, op).map(|()| Effect::default()),
    }
}

pub(super) fn code(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn raw(error: Errno) -> i32 {
    error.raw_os_error()
}

pub(super) fn opened(path: &Path, flags: OFlags) -> Result<OwnedFd, i32> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(path, flags, Mode::from_raw_mode(0o644)).map_err(raw)
}

fn number_of(file: &OwnedFd) -> Result<u64, i32> {
    Ok(rustix::fs::fstat(file).map_err(raw)?.st_ino)
}

fn made(path: &Path) -> Result<Effect, i32> {
    Ok(Effect { made: fs::symlink_metadata(path).map_err(code)?.ino(), written: 0 })
}

fn renamed(old: &Path, new: &Path, flags: RenameFlags) -> Result<(), i32> {
    renameat_with(CWD, old, CWD, new, flags).map_err(raw)
}

pub(super) fn written(file: &OwnedFd, offset: u64, bytes: &[u8]) -> Result<u64, i32> {
    let mut done = 0;
    while done < bytes.len() {
        done += pwrite(file, &bytes[done..], offset + done as u64).map_err(raw)?;
    }
    Ok(done as u64)
}

fn write(path: &Path, kind: WriteKind, offset: u64, len: u64, fill: u8) -> Result<Effect, i32> {
    let more = match kind {
        WriteKind::Direct => OFlags::DIRECT,
        WriteKind::Dsync => OFlags::DSYNC,
        WriteKind::Buffered | WriteKind::Mapped => OFlags::empty(),
    };
    let file = opened(path, OFlags::RDWR | more)?;
    Ok(Effect { made: 0, written: written(&file, offset, &pattern(fill, offset, len))? })
}

fn link_nameless(top: &Path, path: &Path, len: u64, fill: u8, sync: bool) -> Result<Effect, i32> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = open(path.parent().unwrap_or(top), flags, Mode::from_raw_mode(0o600)).map_err(raw)?;
    let written = written(&file, 0, &pattern(fill, 0, len))?;
    if sync {
        fsync(&file).map_err(raw)?;
    }
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, name, CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(raw)?;
    Ok(Effect { made: number_of(&file)?, written })
}

fn unlink_open(path: &Path, len: u64, fill: u8) -> Result<Effect, i32> {
    let file = opened(path, OFlags::RDWR)?;
    let made = number_of(&file)?;
    fs::remove_file(path).map_err(code)?;
    let bytes = pattern(fill, 0, len);
    let written = written(&file, 0, &bytes)?;
    fsync(&file).map_err(raw)?;
    let mut got = vec![0; bytes.len()];
    let count = pread(&file, &mut got[..], 0).map_err(raw)?;
    assert!(got[..count] == bytes[..count], "an open file without a name reads other bytes");
    Ok(Effect { made, written })
}

/// A sync of what can be opened; of anything else by its directory, which holds the same promise (C1).
fn synced(top: &Path, path: &str, data: bool) -> Result<Effect, i32> {
    let place: PathBuf = top.join(path);
    let kind = fs::symlink_metadata(&place).map_err(code)?.file_type();
    let opens = kind.is_file() || kind.is_dir();
    let file = opened(if opens { &place } else { place.parent().unwrap_or(top) }, OFlags::RDONLY)?;
    match data {
        true => fdatasync(&file),
        false => fsync(&file),
    }
    .map_err(raw)?;
    Ok(Effect::default())
}

pub(super) fn change(top: &Path, op: &Op) -> Result<(), i32> {
    let place = |path: &String| top.join(path);
    match op {
        Op::Link(old, new) => fs::hard_link(place(old), place(new)).map_err(code),
        Op::Unlink(path) => fs::remove_file(place(path)).map_err(code),
        Op::Rmdir(path) => fs::remove_dir(place(path)).map_err(code),
        Op::Remove(path) => match fs::symlink_metadata(place(path)).map_err(code)?.is_dir() {
            true => fs::remove_dir(place(path)).map_err(code),
            false => fs::remove_file(place(path)).map_err(code),
        },
        Op::Rename(old, new) => renamed(&place(old), &place(new), RenameFlags::empty()),
        Op::Exchange(old, new) => renamed(&place(old), &place(new), RenameFlags::EXCHANGE),
        Op::Falloc { path, kind, offset, len } => {
            let file = opened(&place(path), OFlags::RDWR)?;
            let flags = match kind {
                AllocateKind::Grow => FallocateFlags::empty(),
                AllocateKind::KeepSize => FallocateFlags::KEEP_SIZE,
                AllocateKind::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                AllocateKind::Zero => FallocateFlags::ZERO_RANGE,
                AllocateKind::Collapse => FallocateFlags::COLLAPSE_RANGE,
                AllocateKind::Insert => FallocateFlags::INSERT_RANGE,
            };
            fallocate(&file, flags, *offset, *len).map_err(raw)
        }
        Op::Truncate { path, size } => ftruncate(opened(&place(path), OFlags::RDWR)?, *size).map_err(raw),
        Op::SetXattr { path, name, len, fill } => {
            lsetxattr(place(path), name.as_str(), &pattern(*fill, 0, *len), XattrFlags::empty()).map_err(raw)
        }
        Op::SetAcl { path, bits } => {
            lsetxattr(place(path), ACL_NAME, &acl(*bits), XattrFlags::empty()).map_err(raw)
        }
        Op::SetDefaultAcl { path, bits } => {
            lsetxattr(place(path), DEFAULT_ACL_NAME, &acl(*bits), XattrFlags::empty()).map_err(raw)
        }
        Op::SetFlags { path, flags } => {
            let file = opened(&place(path), OFlags::RDONLY)?;
            ioctl_setflags(&file, IFlags::from_bits_retain(*flags)).map_err(raw)
        }
        Op::RemoveXattr { path, name } => lremovexattr(place(path), name.as_str()).map_err(raw),
        Op::Chmod { path, mode } => match fs::symlink_metadata(place(path)).map_err(code)?.is_symlink() {
            true => Err(ENOTSUP),
            false => chmod(place(path), Mode::from_raw_mode(*mode)).map_err(raw),
        },
        Op::Chown { path, uid, gid } => lchown(place(path), Some(*uid), Some(*gid)).map_err(code),
        Op::Utimes { path, seconds } => {
            let at = Timespec { tv_sec: i64::from(*seconds), tv_nsec: 5 };
            let times = Timestamps { last_access: at, last_modification: at };
            utimensat(CWD, place(path), &times, AtFlags::SYMLINK_NOFOLLOW).map_err(raw)
        }
        _ => unreachable!("carried out above"),
    }
}

/// Everything that the mounted volume shows; times apart.
pub fn view(top: &Path) -> io::Result<View> {
    let mut view = View::default();
    let mut stack = vec![top.to_owned()];
    while let Some(path) = stack.pop() {
        let metadata = fs::symlink_metadata(&path)?;
        if view.names.contains_key(&metadata.ino()) {
            continue;
        }
        let file_type = metadata.file_type();
        let kind = if file_type.is_dir() {
            let mut children = BTreeMap::new();
            for entry in fs::read_dir(&path)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                children.insert(name, fs::symlink_metadata(entry.path())?.ino());
                stack.push(entry.path());
            }
            Kind::Directory(children)
        } else if file_type.is_symlink() {
            Kind::Symlink(fs::read_link(&path)?.as_os_str().as_bytes().to_vec())
        } else if file_type.is_char_device() {
            Kind::Special
        } else {
            view.contents.insert(metadata.ino(), Content::new(&fs::read(&path)?));
            Kind::File
        };
        let node = Node {
            kind,
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            nlink: metadata.nlink() as u32,
            flags: flags(&path, file_type)?,
            xattrs: xattrs(&path)?,
        };
        view.names.insert(metadata.ino(), Arc::new(node));
    }
    Ok(view)
}

/// Only files and directories have any.
fn flags(path: &Path, file_type: fs::FileType) -> io::Result<u32> {
    if !file_type.is_file() && !file_type.is_dir() {
        return Ok(0);
    }
    Ok(ioctl_getflags(fs::File::open(path)?)?.bits())
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut names = vec![0; 1 << 12];
    let count = llistxattr(path, &mut names[..])?;
    let names = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let count = lgetxattr(path, name, &mut value[..])?;
            value.truncate(count);
            Ok((String::from_utf8_lossy(name).into_owned(), value))
        })
        .collect()
}
