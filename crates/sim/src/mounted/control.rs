//! What a mount offers beyond plain calls: transactions, ranged syncs and hints as ioctls (`include/syncline/ioctl.h`),
//! and writes through a mapping.
//!
//! A mapping of a file whose daemon has died answers with a signal. So the writing is done by a process of its own,
//! this program with another command ([`write_mapped`]), whose death is that of the daemon.
#![allow(unsafe_code)]

use super::calls::{self, Effect};
use crate::operation::{End, Op, pattern};
use crate::oracle::{ENOENT, PAGE};
use rustix::fs::{OFlags, ftruncate};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, Setter, Updater, ioctl};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

const ATOMIC_START: Opcode = 0xf501;
const ATOMIC_COMMIT: Opcode = 0xf502;
const ATOMIC_ABORT: Opcode = 0xf505;
const SYNC_RANGE: Opcode = 0x4020_e702;
const WRITE_BACK: Opcode = 0xc020_e706;
const GROUP_BEGIN: Opcode = 0x8008_e707;
const GROUP_JOIN: Opcode = 0x4008_e708;
const GROUP_COMMIT: Opcode = 0x4008_e709;
const GROUP_ABORT: Opcode = 0x4008_e70a;

const EIO: i32 = 5;
/// What a call answers whose daemon has died.
const ENOTCONN: i32 = 107;

/// `struct syncline_range`.
#[repr(C)]
#[derive(Default)]
struct Range {
    offset: u64,
    length: u64,
    flags: u32,
    reserved: u32,
    result: u64,
}

const _: () = assert!(size_of::<Range>() == 32);

fn raw(error: Errno) -> i32 {
    error.raw_os_error()
}

fn plain<const CODE: Opcode>(file: &OwnedFd) -> Result<(), i32> {
    // SAFETY: the calls that are made so take no argument.
    unsafe { ioctl(file.as_fd(), NoArg::<CODE>::new()) }.map_err(raw)
}

fn with<const CODE: Opcode, T>(file: &OwnedFd, argument: T) -> Result<(), i32> {
    // SAFETY: the kernel reads as many bytes as the code says, and the argument has.
    unsafe { ioctl(file.as_fd(), Setter::<CODE, T>::new(argument)) }.map_err(raw)
}

/// Makes a range of an open file durable; one of no bytes makes nothing durable but names.
pub fn sync_range(file: &OwnedFd, offset: u64, length: u64) -> Result<(), i32> {
    with::<SYNC_RANGE, Range>(file, Range { offset, length, ..Range::default() })
}

/// Has a range written.
pub fn write_back(file: &OwnedFd, offset: u64, length: u64) -> Result<(), i32> {
    let mut range = Range { offset, length, ..Range::default() };
    // SAFETY: the kernel reads and writes as many bytes as the code says, and the argument has.
    unsafe { ioctl(file.as_fd(), Updater::<WRITE_BACK, Range>::new(&mut range)) }.map_err(raw)
}

/// Whether a transaction can be carried out on a mount: only files that are open take part, and nobody else is told
/// to act.
pub fn is_possible(op: &Op) -> bool {
    let Op::Transaction { ops, between, .. } = op else { return true };
    let possible =
        |op: &Op| matches!(op, Op::Write { .. } | Op::Truncate { .. } | Op::Rename(..) | Op::Link(..));
    between.is_empty() && ops.iter().all(possible)
}

/// The files that take part, by the names that they have at the time.
type Files = BTreeMap<String, OwnedFd>;

/// Carries out a transaction: of one file by the ioctls of f2fs, of several and their names by those of groups.
pub fn transact(top: &Path, ops: &[Op], end: End) -> Result<Effect, i32> {
    let mut files = Files::new();
    let mut given = Vec::new();
    for op in ops {
        let path = op.paths().swap_remove(0);
        // A name that the transaction has given is one of a file that is open already.
        if !files.contains_key(&path) && !given.contains(&path) {
            files.insert(path.clone(), calls::opened(&top.join(&path), OFlags::RDWR)?);
        }
        if let Op::Rename(_, new) = op {
            given.push(new.clone());
        }
    }
    let content_only = ops.iter().all(|op| matches!(op, Op::Write { .. } | Op::Truncate { .. }));
    match files.first_key_value() {
        Some((path, _)) if content_only && files.len() == 1 => {
            let path = path.clone();
            plain::<ATOMIC_START>(&files[&path])?;
            stage(top, &mut files, ops)?;
            match end {
                End::Abort => plain::<ATOMIC_ABORT>(&files[&path])?,
                End::Commit | End::Start => plain::<ATOMIC_COMMIT>(&files[&path])?,
            }
        }
        _ => {
            let owner = calls::opened(&top.join(files.keys().next().ok_or(EIO)?), OFlags::RDWR)?;
            // SAFETY: the kernel writes as many bytes as the code says, and the result has.
            let token = unsafe { ioctl(owner.as_fd(), Getter::<GROUP_BEGIN, u64>::new()) }.map_err(raw)?;
            files.values().try_for_each(|file| with::<GROUP_JOIN, u64>(file, token))?;
            stage(top, &mut files, ops)?;
            match end {
                End::Abort => with::<GROUP_ABORT, u64>(&owner, token)?,
                End::Commit | End::Start => with::<GROUP_COMMIT, u64>(&owner, token)?,
            }
        }
    }
    Ok(Effect::default())
}

fn stage(top: &Path, files: &mut Files, ops: &[Op]) -> Result<(), i32> {
    let file = |files: &Files, path: &String| files.get(path).ok_or(ENOENT)?.try_clone().map_err(calls::code);
    for op in ops {
        match op {
            Op::Write { path, offset, len, fill, .. } => {
                calls::written(&file(files, path)?, *offset, &pattern(*fill, *offset, *len))?;
            }
            Op::Truncate { path, size } => ftruncate(file(files, path)?, *size).map_err(raw)?,
            Op::Rename(old, new) => {
                calls::change(top, op)?;
                if let Some(moved) = files.remove(old) {
                    files.insert(new.clone(), moved);
                }
            }
            _ => calls::change(top, op)?,
        }
    }
    Ok(())
}

/// Has a process of its own write through a mapping, as far as the file goes; returns how much.
pub fn mapped(program: &Path, path: &Path, offset: u64, len: u64, fill: u8) -> Result<u64, i32> {
    let size = std::fs::metadata(path).map_err(calls::code)?.len();
    let len = size.min(offset + len).saturating_sub(offset);
    if len == 0 {
        return Ok(0);
    }
    let status = Command::new(program)
        .args([COMMAND.as_ref(), path.as_os_str()])
        .args([offset.to_string(), len.to_string(), fill.to_string()])
        .stdin(Stdio::null())
        .status()
        .map_err(calls::code)?;
    match status.code() {
        Some(0) => Ok(len),
        Some(errno) => Err(errno),
        None => Err(ENOTCONN),
    }
}

/// The command by which this program is called for it.
pub const COMMAND: &str = "write-mapped";

/// Writes through a mapping. The file has the range.
///
/// Errors: the errno.
pub fn write_mapped(path: &Path, offset: u64, len: u64, fill: u8) -> Result<(), i32> {
    let file = calls::opened(path, OFlags::RDWR)?;
    let from = offset / PAGE * PAGE;
    let count = (offset + len - from) as usize;
    let bytes = pattern(fill, offset, len);
    // SAFETY: the mapping is new, `count` bytes long and not known to anybody else; the range that is written lies in
    // it.
    unsafe {
        let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let start = mmap(std::ptr::null_mut(), count, flags.0, flags.1, &file, from).map_err(raw)?;
        let place = start.cast::<u8>().add((offset - from) as usize);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        munmap(start, count).map_err(raw)
    }
}
