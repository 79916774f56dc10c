//! From the three parts of a message to a typed request.
//!
//! Nothing here trusts the message: every length is checked, and what does not fit is an [`Errno`] for the answer
//! (EINVAL for damage, ENOSYS for operations this crate does not know). There is no panic in here.

use super::*;
use crate::abi::{self, GetattrFlags, LkFlags, Opcode, SetattrValid};
use crate::errno::Errno;
use crate::transport::RawRequest;
use std::os::unix::ffi::OsStrExt;
use zerocopy::FromBytes;

/// Longest name that the kernel may send (since 6.18; before, 1024 bytes).
const NAME_BYTES_MAX: usize = 4095;

/// A decoded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Lookup(Lookup<'a>),
    Forget(Forget),
    /// Pairs of node and count, 16 bytes each.
    BatchForget(&'a [u8]),
    GetAttr(GetAttr),
    SetAttr(SetAttr),
    ReadLink(ReadLink),
    SymLink(SymLink<'a>),
    Mknod(Mknod<'a>),
    Mkdir(Mkdir<'a>),
    Unlink(Remove<'a>),
    Rmdir(Remove<'a>),
    Rename(Rename<'a>),
    Link(Link<'a>),
    Open(Open),
    Read(Read),
    Write(Write<'a>),
    StatFs(StatFs),
    Release(Release),
    Fsync(Fsync),
    SetXattr(SetXattr<'a>),
    GetXattr(GetXattr<'a>, u32),
    ListXattr(ListXattr, u32),
    RemoveXattr(RemoveXattr<'a>),
    Flush(Flush),
    OpenDir(Open),
    ReadDir(ReadDir),
    ReadDirPlus(ReadDir),
    ReleaseDir(Release),
    FsyncDir(Fsync),
    GetLk(LockRequest),
    SetLk(LockRequest),
    SetLkw(LockRequest),
    Access(Access),
    Create(Create<'a>),
    TmpFile(Create<'a>),
    Interrupt(RequestId),
    Bmap(Bmap),
    Destroy,
    Ioctl(Ioctl<'a>),
    Poll(Poll),
    NotifyReply(Retrieved<'a>),
    Fallocate(Fallocate),
    Lseek(Lseek),
    CopyFileRange(CopyFileRange),
    CopyFileRange64(CopyFileRange),
    SyncFs(SyncFs),
    Statx(Statx),
}

/// What is left of a message.
struct Parts<'a> {
    op: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Parts<'a> {
    fn fixed<T: FromBytes>(&self) -> Result<T, Errno> {
        T::read_from_prefix(self.op).map(|(value, _)| value).map_err(|_| Errno::EINVAL)
    }

    /// Bytes up to the next NUL.
    fn string(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.payload.iter().position(|byte| *byte == 0).ok_or(Errno::EINVAL)?;
        let (string, rest) = self.payload.split_at(end);
        self.payload = &rest[1..];
        Ok(string)
    }

    /// A component that may be `.` or `..`.
    fn any_name(&mut self) -> Result<&'a OsStr, Errno> {
        let name = self.string()?;
        match name {
            [] => Err(Errno::EINVAL),
            _ if name.contains(&b'/') => Err(Errno::EINVAL),
            _ if name.len() > NAME_BYTES_MAX => Err(Errno::ENAMETOOLONG),
            _ => Ok(OsStr::from_bytes(name)),
        }
    }

    fn name(&mut self) -> Result<&'a OsStr, Errno> {
        let name = self.any_name()?;
        if name == "." || name == ".." { Err(Errno::EINVAL) } else { Ok(name) }
    }

    /// The name of an extended attribute, which may contain anything.
    fn xattr_name(&mut self) -> Result<&'a OsStr, Errno> {
        match self.string()? {
            [] => Err(Errno::EINVAL),
            name => Ok(OsStr::from_bytes(name)),
        }
    }

    fn data(&self, bytes: u32) -> Result<&'a [u8], Errno> {
        self.payload.get(..bytes as usize).ok_or(Errno::EINVAL)
    }
}

/// What was agreed on, as far as it concerns decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// SETXATTR's header is the longer one.
    pub(crate) setxattr_ext: bool,
    /// Most bytes of data that the kernel may ask for: nobody makes us allocate more.
    pub(crate) data_bytes_max: u32,
}

/// Decodes `request`.
pub(crate) fn decode<'a>(request: &RawRequest<'a>, agreed: Agreed) -> Result<Operation<'a>, Errno> {
    let header = request.header;
    let node = NodeId(header.nodeid);
    // Security contexts and supplementary groups come last; they are not asked for and not understood.
    let extension_bytes = usize::from(header.total_extlen) * 8;
    let payload_bytes = request.payload.len().checked_sub(extension_bytes).ok_or(Errno::EINVAL)?;
    let parts = Parts { op: request.op, payload: &request.payload[..payload_bytes] };
    match header.opcode {
        Opcode::LOOKUP
        | Opcode::SYMLINK
        | Opcode::MKNOD
        | Opcode::MKDIR
        | Opcode::UNLINK
        | Opcode::RMDIR
        | Opcode::RENAME
        | Opcode::RENAME2
        | Opcode::LINK
        | Opcode::CREATE
        | Opcode::TMPFILE => of_names(header.opcode, node, parts),
        Opcode::SETXATTR | Opcode::GETXATTR | Opcode::LISTXATTR | Opcode::REMOVEXATTR => {
            of_xattrs(header.opcode, node, parts, agreed.setxattr_ext)
        }
        Opcode::OPEN
        | Opcode::OPENDIR
        | Opcode::READ
        | Opcode::WRITE
        | Opcode::READDIR
        | Opcode::READDIRPLUS
        | Opcode::RELEASE
        | Opcode::RELEASEDIR
        | Opcode::FLUSH
        | Opcode::FSYNC
        | Opcode::FSYNCDIR => of_open_files(header.opcode, node, parts, agreed.data_bytes_max),
        Opcode::IOCTL | Opcode::POLL | Opcode::FALLOCATE | Opcode::LSEEK => {
            of_ranges(header.opcode, node, parts)
        }
        Opcode::COPY_FILE_RANGE | Opcode::COPY_FILE_RANGE_64 => copy(header.opcode, node, parts),
        Opcode::GETLK | Opcode::SETLK | Opcode::SETLKW => locks(header.opcode, node, parts),
        Opcode::INTERRUPT | Opcode::FORGET | Opcode::BATCH_FORGET | Opcode::NOTIFY_REPLY => {
            unanswered(header.opcode, node, parts)
        }
        _ => of_nodes(header.opcode, node, parts),
    }
}

fn of_names<'a>(opcode: Opcode, parent: NodeId, mut parts: Parts<'a>) -> Result<Operation<'a>, Errno> {
    Ok(match opcode {
        Opcode::LOOKUP => Operation::Lookup(Lookup { parent, name: parts.any_name()? }),
        Opcode::UNLINK => Operation::Unlink(Remove { parent, name: parts.name()? }),
        Opcode::RMDIR => Operation::Rmdir(Remove { parent, name: parts.name()? }),
        Opcode::SYMLINK => {
            let name = parts.name()?;
            let target = Path::new(OsStr::from_bytes(parts.string()?));
            Operation::SymLink(SymLink { parent, name, target })
        }
        Opcode::MKNOD => {
            let op: abi::MknodIn = parts.fixed()?;
            Operation::Mknod(Mknod {
                parent,
                name: parts.name()?,
                mode: NewMode { bits: op.mode, umask: op.umask },
                device: DeviceNumber::from_kernel(op.rdev),
            })
        }
        Opcode::MKDIR => {
            let op: abi::MkdirIn = parts.fixed()?;
            let mode = NewMode { bits: op.mode, umask: op.umask };
            Operation::Mkdir(Mkdir { parent, name: parts.name()?, mode })
        }
        Opcode::RENAME => {
            let op: abi::RenameIn = parts.fixed()?;
            rename(parent, NodeId(op.newdir), 0, parts)?
        }
        Opcode::RENAME2 => {
            let op: abi::Rename2In = parts.fixed()?;
            rename(parent, NodeId(op.newdir), op.flags, parts)?
        }
        Opcode::LINK => {
            let op: abi::LinkIn = parts.fixed()?;
            let new_name = parts.name()?;
            Operation::Link(Link { node: NodeId(op.oldnodeid), new_parent: parent, new_name })
        }
        Opcode::CREATE | Opcode::TMPFILE => {
            let op: abi::CreateIn = parts.fixed()?;
            let is_tmpfile = opcode == Opcode::TMPFILE;
            let name = if is_tmpfile { OsStr::new("") } else { parts.name()? };
            let mode = NewMode { bits: op.mode, umask: op.umask };
            let create = Create { parent, name, mode, flags: op.flags as i32, open_flags: op.open_flags };
            if is_tmpfile { Operation::TmpFile(create) } else { Operation::Create(create) }
        }
        _ => return Err(Errno::ENOSYS),
    })
}

fn rename<'a>(
    parent: NodeId,
    new_parent: NodeId,
    flags: u32,
    mut parts: Parts<'a>,
) -> Result<Operation<'a>, Errno> {
    let name = parts.name()?;
    let new_name = parts.name()?;
    Ok(Operation::Rename(Rename { parent, name, new_parent, new_name, flags }))
}

fn of_xattrs<'a>(
    opcode: Opcode,
    node: NodeId,
    mut parts: Parts<'a>,
    setxattr_ext: bool,
) -> Result<Operation<'a>, Errno> {
    Ok(match opcode {
        Opcode::SETXATTR => {
            let [size, flags, setxattr_flags] = if setxattr_ext {
                let op: abi::SetXattrIn = parts.fixed()?;
                [op.size, op.flags, op.setxattr_flags.bits()]
            } else {
                let [size, flags]: [u32; 2] = parts.fixed()?;
                [size, flags, 0]
            };
            let name = parts.xattr_name()?;
            let value = parts.data(size)?;
            let setxattr_flags = SetxattrFlags(setxattr_flags);
            Operation::SetXattr(SetXattr { node, name, value, flags: flags as i32, setxattr_flags })
        }
        Opcode::GETXATTR => {
            let op: abi::GetXattrIn = parts.fixed()?;
            Operation::GetXattr(GetXattr { node, name: parts.xattr_name()? }, op.size)
        }
        Opcode::LISTXATTR => {
            let op: abi::GetXattrIn = parts.fixed()?;
            Operation::ListXattr(ListXattr { node }, op.size)
        }
        _ => Operation::RemoveXattr(RemoveXattr { node, name: parts.xattr_name()? }),
    })
}

fn of_open_files<'a>(
    opcode: Opcode,
    node: NodeId,
    parts: Parts<'a>,
    data_bytes_max: u32,
) -> Result<Operation<'a>, Errno> {
    let within = |bytes: u32| if bytes <= data_bytes_max { Ok(bytes) } else { Err(Errno::EINVAL) };
    Ok(match opcode {
        Opcode::OPEN | Opcode::OPENDIR => {
            let op: abi::OpenIn = parts.fixed()?;
            let open = Open { node, flags: op.flags as i32, open_flags: op.open_flags };
            if opcode == Opcode::OPEN { Operation::Open(open) } else { Operation::OpenDir(open) }
        }
        Opcode::READ => {
            let op: abi::ReadIn = parts.fixed()?;
            Operation::Read(Read {
                node,
                handle: Handle(op.fh),
                offset: op.offset,
                size: within(op.size)?,
                read_flags: op.read_flags,
                lock_owner: op.read_flags.contains(ReadFlags::LOCKOWNER).then_some(LockOwner(op.lock_owner)),
                flags: op.flags as i32,
            })
        }
        Opcode::READDIR | Opcode::READDIRPLUS => {
            let op: abi::ReadIn = parts.fixed()?;
            let handle = Handle(op.fh);
            let (size, flags) = (within(op.size)?, op.flags as i32);
            let read = ReadDir { node, handle, offset: op.offset, size, flags };
            if opcode == Opcode::READDIR { Operation::ReadDir(read) } else { Operation::ReadDirPlus(read) }
        }
        Opcode::WRITE => {
            let op: abi::WriteIn = parts.fixed()?;
            let owner = op.write_flags.contains(WriteFlags::LOCKOWNER);
            Operation::Write(Write {
                node,
                handle: Handle(op.fh),
                offset: op.offset,
                data: parts.data(op.size)?,
                write_flags: op.write_flags,
                lock_owner: owner.then_some(LockOwner(op.lock_owner)),
                flags: op.flags as i32,
            })
        }
        Opcode::RELEASE | Opcode::RELEASEDIR => {
            let op: abi::ReleaseIn = parts.fixed()?;
            let release = Release {
                node,
                handle: Handle(op.fh),
                flags: op.flags as i32,
                release_flags: op.release_flags,
                lock_owner: LockOwner(op.lock_owner),
            };
            let is_file = opcode == Opcode::RELEASE;
            if is_file { Operation::Release(release) } else { Operation::ReleaseDir(release) }
        }
        Opcode::FLUSH => {
            let op: abi::FlushIn = parts.fixed()?;
            let lock_owner = LockOwner(op.lock_owner);
            Operation::Flush(Flush { node, handle: Handle(op.fh), lock_owner })
        }
        _ => {
            let op: abi::FsyncIn = parts.fixed()?;
            let fsync = Fsync { node, handle: Handle(op.fh), flags: op.fsync_flags };
            if opcode == Opcode::FSYNC { Operation::Fsync(fsync) } else { Operation::FsyncDir(fsync) }
        }
    })
}

fn of_ranges<'a>(opcode: Opcode, node: NodeId, parts: Parts<'a>) -> Result<Operation<'a>, Errno> {
    Ok(match opcode {
        Opcode::IOCTL => {
            let op: abi::IoctlIn = parts.fixed()?;
            Operation::Ioctl(Ioctl {
                node,
                handle: Handle(op.fh),
                flags: op.flags,
                command: op.cmd,
                argument: op.arg,
                input: parts.data(op.in_size)?,
                output_bytes_max: op.out_size,
            })
        }
        Opcode::POLL => {
            let op: abi::PollIn = parts.fixed()?;
            let (handle, wakeup) = (Handle(op.fh), PollHandle(op.kh));
            Operation::Poll(Poll { node, handle, wakeup, flags: op.flags, events: op.events })
        }
        Opcode::FALLOCATE => {
            let op: abi::FallocateIn = parts.fixed()?;
            let (handle, mode) = (Handle(op.fh), op.mode as i32);
            Operation::Fallocate(Fallocate { node, handle, offset: op.offset, length: op.length, mode })
        }
        _ => {
            let op: abi::LseekIn = parts.fixed()?;
            let (offset, whence) = (op.offset as i64, op.whence as i32);
            Operation::Lseek(Lseek { node, handle: Handle(op.fh), offset, whence })
        }
    })
}

fn copy<'a>(opcode: Opcode, node: NodeId, parts: Parts<'a>) -> Result<Operation<'a>, Errno> {
    let op: abi::CopyFileRangeIn = parts.fixed()?;
    let is_64 = opcode == Opcode::COPY_FILE_RANGE_64;
    // The older answer has 32 bits, of which the kernel takes whole pages; callers go on where a copy ended.
    let length_max = if is_64 { i64::MAX as u64 } else { 1 << 31 };
    let copy = CopyFileRange {
        node,
        handle: Handle(op.fh_in),
        offset: op.off_in,
        to_node: NodeId(op.nodeid_out),
        to_handle: Handle(op.fh_out),
        to_offset: op.off_out,
        length: op.len.min(length_max),
        flags: op.flags,
    };
    Ok(if is_64 { Operation::CopyFileRange64(copy) } else { Operation::CopyFileRange(copy) })
}

fn locks<'a>(opcode: Opcode, node: NodeId, parts: Parts<'a>) -> Result<Operation<'a>, Errno> {
    let op: abi::LkIn = parts.fixed()?;
    let lock = Lock::from_wire(&op.lk).ok_or(Errno::EINVAL)?;
    let flock = op.lk_flags.contains(LkFlags::FLOCK);
    let request = LockRequest { node, handle: Handle(op.fh), owner: LockOwner(op.owner), lock, flock };
    Ok(match opcode {
        Opcode::GETLK => Operation::GetLk(request),
        Opcode::SETLK => Operation::SetLk(request),
        _ => Operation::SetLkw(request),
    })
}

fn unanswered<'a>(opcode: Opcode, node: NodeId, parts: Parts<'a>) -> Result<Operation<'a>, Errno> {
    Ok(match opcode {
        Opcode::INTERRUPT => {
            let op: abi::InterruptIn = parts.fixed()?;
            Operation::Interrupt(RequestId(op.unique))
        }
        Opcode::FORGET => {
            let op: abi::ForgetIn = parts.fixed()?;
            Operation::Forget(Forget { node, lookups: op.nlookup })
        }
        Opcode::BATCH_FORGET => {
            let op: abi::BatchForgetIn = parts.fixed()?;
            let bytes = (op.count as usize).checked_mul(size_of::<abi::ForgetOne>()).ok_or(Errno::EINVAL)?;
            Operation::BatchForget(parts.payload.get(..bytes).ok_or(Errno::EINVAL)?)
        }
        _ => {
            let op: abi::NotifyRetrieveIn = parts.fixed()?;
            Operation::NotifyReply(Retrieved { node, offset: op.offset, data: parts.data(op.size)? })
        }
    })
}

fn of_nodes<'a>(opcode: Opcode, node: NodeId, parts: Parts<'a>) -> Result<Operation<'a>, Errno> {
    Ok(match opcode {
        Opcode::GETATTR => {
            let op: abi::GetAttrIn = parts.fixed()?;
            let handle = op.getattr_flags.contains(GetattrFlags::FH).then_some(Handle(op.fh));
            Operation::GetAttr(GetAttr { node, handle })
        }
        Opcode::STATX => {
            let op: abi::StatxIn = parts.fixed()?;
            let handle = op.getattr_flags.contains(GetattrFlags::FH).then_some(Handle(op.fh));
            Operation::Statx(Statx { node, handle, flags: op.sx_flags, mask: op.sx_mask })
        }
        Opcode::SETATTR => Operation::SetAttr(setattr(node, &parts.fixed()?)),
        Opcode::READLINK => Operation::ReadLink(ReadLink { node }),
        Opcode::STATFS => Operation::StatFs(StatFs { node }),
        Opcode::ACCESS => {
            let op: abi::AccessIn = parts.fixed()?;
            Operation::Access(Access { node, mask: op.mask })
        }
        Opcode::BMAP => {
            let op: abi::BmapIn = parts.fixed()?;
            Operation::Bmap(Bmap { node, block: op.block, block_bytes: op.blocksize })
        }
        Opcode::SYNCFS => {
            let _: abi::SyncfsIn = parts.fixed()?;
            Operation::SyncFs(SyncFs { node })
        }
        Opcode::DESTROY => Operation::Destroy,
        _ => return Err(Errno::ENOSYS),
    })
}

fn setattr(node: NodeId, op: &abi::SetAttrIn) -> SetAttr {
    let has = |flag| op.valid.contains(flag);
    let time = |flag, now, seconds, nanoseconds| match (has(now), has(flag)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::At(Time::from_wire(seconds, nanoseconds))),
        (false, false) => None,
    };
    SetAttr {
        node,
        handle: has(SetattrValid::FH).then_some(Handle(op.fh)),
        mode: has(SetattrValid::MODE).then_some(op.mode),
        uid: has(SetattrValid::UID).then_some(op.uid),
        gid: has(SetattrValid::GID).then_some(op.gid),
        size: has(SetattrValid::SIZE).then_some(op.size),
        accessed: time(SetattrValid::ATIME, SetattrValid::ATIME_NOW, op.atime, op.atimensec),
        modified: time(SetattrValid::MTIME, SetattrValid::MTIME_NOW, op.mtime, op.mtimensec),
        changed: has(SetattrValid::CTIME).then_some(Time::from_wire(op.ctime, op.ctimensec)),
        lock_owner: has(SetattrValid::LOCKOWNER).then_some(LockOwner(op.lock_owner)),
        kill_set_id: has(SetattrValid::KILL_SUIDGID),
    }
}
