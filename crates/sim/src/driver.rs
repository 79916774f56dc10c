//! Runs operations on the engine, and reads back what a volume shows.
//!
//! Time and chance are the simulator's: a clock that moves with every look and when an operation says so, and numbers
//! counted from the seed. So a run is the same every time.

use crate::operation::{AllocateKind, Op, WriteKind, acl, pattern};
use crate::oracle::{Model, PAGE, View};
use crate::random::mix;
use crate::transact::transact;
use crate::watchdog;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use syncline_device::Device;
use syncline_fs::{
    Clock, Context, Entropy, Error, FallocateMode, Fs, FsOptions, HandleId, MkfsOptions, ObjectNo, OpenFlags,
    Reach, RenameFlags, SetAttr, SetTime, SetXattr, SnapshotData, SyncScope, Timestamp,
};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const NANOSECONDS: i64 = 1_000_000_000;
/// Calls of the background that one `maintain` operation makes at most: as many as it asks for. Where free space is in
/// pieces and the journal is small, one writes a few pages only.
const MAINTAIN_ROUNDS: usize = 4096;

/// A clock that moves a microsecond with every look.
#[derive(Debug)]
pub struct SimClock(AtomicI64);

impl SimClock {
    pub fn new() -> Arc<SimClock> {
        Arc::new(SimClock(AtomicI64::new(1_000_000 * NANOSECONDS)))
    }

    /// One that shows later times than any change in the view: time goes on from one session to the next.
    pub fn behind(view: &View) -> Arc<SimClock> {
        let latest = view.stamps.values().map(|stamp| stamp.changed.0).max().unwrap_or(0);
        Arc::new(SimClock(AtomicI64::new((latest + 1).max(1_000_000) * NANOSECONDS)))
    }

    /// What the last look has shown, or a moment later.
    fn nanoseconds(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn advance(&self, milliseconds: u64) {
        self.0.fetch_add(milliseconds as i64 * 1_000_000, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let now = self.0.fetch_add(1000, Ordering::Relaxed);
        Timestamp { seconds: now / NANOSECONDS, nanoseconds: (now % NANOSECONDS) as u32 }
    }
}

/// Numbers from a seed.
pub struct SimEntropy(AtomicU64);

impl SimEntropy {
    pub fn new(seed: u64) -> SimEntropy {
        SimEntropy(AtomicU64::new(mix(seed)))
    }
}

impl Entropy for SimEntropy {
    fn number(&self) -> u64 {
        mix(self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed))
    }
}

/// Makes a volume of a version of the format, with a journal of so many blocks.
pub fn format(version: u32, device: &dyn Device, journal_blocks: u64, seed: u64) -> Result<(), Error> {
    let options = MkfsOptions::default().journal_bytes(journal_blocks * PAGE).format(version);
    Fs::format(device, &options, &*SimClock::new(), &SimEntropy::new(seed), &mut |_, _| {})
}

/// Makes a snapshot, and waits until it is durable. One of all that was written is made as a mount does it: without a
/// wait, and forced then, if nothing has to be written before.
pub(crate) fn make_snapshot(
    fs: &Fs,
    name: &str,
    data: SnapshotData,
    entropy: &SimEntropy,
) -> Result<(), Error> {
    if data == SnapshotData::Written
        && let Some((_, lsn)) = fs.try_snapshot(name, entropy)?
    {
        return fs.syncs().force(lsn);
    }
    fs.snapshot(name, data, entropy).map(drop)
}

/// Opens a volume; this is recovery. Deletions of snapshots go on leaf by leaf in half of the sessions: trees are small
/// here, and a deletion would be over in one step, with no moment in its midst.
pub fn open(device: Arc<dyn Device>, clock: &Arc<SimClock>, seed: u64) -> Result<Arc<Fs>, Error> {
    open_narrow(device, clock, seed, usize::MAX)
}

/// The same; nodes of the trees take so many items and no more, as they did when the volume was made.
pub(crate) fn open_narrow(
    device: Arc<dyn Device>,
    clock: &Arc<SimClock>,
    seed: u64,
    node_items_max: usize,
) -> Result<Arc<Fs>, Error> {
    let leaves_max = if mix(seed).is_multiple_of(2) { 1 } else { usize::MAX };
    let options = FsOptions::default().memory_bytes_max(8 << 20).reaped_leaves_max(leaves_max);
    let options = options.node_items_max(node_items_max);
    let clock: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
    Fs::open(device, options, clock, &SimEntropy::new(seed))
}

/// What became of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    Done,
    /// Refused, as the model says it must be.
    Refused(i32),
    /// No space; nothing was changed.
    NoSpace,
    /// An I/O error, or the volume is read-only after one.
    Failed(i32),
}

/// The engine answered otherwise than the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unexpected {
    pub op: Op,
    pub got: Option<i32>,
    pub want: Option<i32>,
}

/// Carries out one operation on volume and model.
pub fn step(fs: &Arc<Fs>, clock: &SimClock, model: &mut Model, op: &Op) -> Result<Told, Unexpected> {
    watchdog::progress();
    if matches!(op, Op::Transaction { .. }) {
        return transact(fs, clock, model, op);
    }
    model.begin(op);
    let aging = Aging::begin(clock, model, op);
    let done = carry_out(fs, clock, op);
    let unexpected = |got, want| Unexpected { op: op.clone(), got, want };
    match done {
        Err(errno @ (EIO | EROFS)) => Ok(Told::Failed(errno)),
        Err(ENOSPC) => Ok(Told::NoSpace),
        Err(errno) => match model.apply(op, 0, 0) {
            Err(want) if want == errno => Ok(Told::Refused(errno)),
            Err(want) => Err(unexpected(Some(errno), Some(want))),
            Ok(()) => Err(unexpected(Some(errno), None)),
        },
        Ok(Effect { made, written, failed }) => {
            model.apply(op, made, written).map_err(|want| unexpected(None, Some(want)))?;
            match failed {
                Some(ENOSPC) => return Ok(Told::NoSpace),
                Some(errno) => return Ok(Told::Failed(errno)),
                None => {}
            }
            match op {
                Op::Fsync(path) | Op::Fdatasync(path) => {
                    let ino = model.resolve(path).expect("the model has just accepted the path");
                    model.sync(Some(ino));
                }
                Op::SyncRange { path, offset, len } => {
                    let ino = model.resolve(path).expect("the model has just accepted the path");
                    model.sync_range(ino, *offset, *len);
                }
                Op::Write { path, kind: WriteKind::Dsync, .. } => {
                    let ino = model.resolve(path).expect("the model has just accepted the path");
                    model.sync(Some(ino));
                }
                Op::UnlinkOpen { .. } => drop(model.sync(Some(made))),
                Op::Sync => drop(model.sync(None)),
                _ => {}
            }
            aging.end(fs, model);
            Ok(Told::Done)
        }
    }
}

/// C9: what is older than the commit interval when background work begins is durable when it ends, unless the volume
/// has stopped.
pub struct Aging {
    /// The moment before which all is as old, in nanoseconds; absent for operations that are no background work.
    until: Option<i64>,
}

impl Aging {
    pub fn begin(clock: &SimClock, model: &mut Model, op: &Op) -> Aging {
        let Op::Maintain { milliseconds } = op else { return Aging { until: None } };
        let now = clock.nanoseconds();
        model.note_moment(now);
        let interval = FsOptions::default().commit_interval.as_nanos() as i64;
        Aging { until: Some(now + *milliseconds as i64 * 1_000_000 - interval) }
    }

    pub fn end(self, fs: &Fs, model: &mut Model) {
        if let Some(until) = self.until.filter(|_| fs.failure().is_none()) {
            model.age(until);
        }
    }
}

/// What an operation did.
#[derive(Default)]
pub(crate) struct Effect {
    /// Inode that was made.
    pub(crate) made: u64,
    /// Bytes that were written.
    pub(crate) written: u64,
    /// It was carried out in part, and then failed.
    pub(crate) failed: Option<i32>,
}

fn errno(error: Error) -> i32 {
    error.errno()
}

fn resolve(fs: &Fs, path: &str) -> Result<ObjectNo, Error> {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts
        .into_iter()
        .try_fold(ObjectNo::ROOT_DIR, |at, part| Ok(fs.names().lookup(at, part.as_bytes())?.attr.inode))
}

fn place<'a>(fs: &Fs, path: &'a str) -> Result<(ObjectNo, &'a [u8]), Error> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let directory = resolve(fs, directory)?;
    if fs.attributes().getattr(directory)?.mode & 0o170000 != 0o040000 {
        return Err(Error::NotDirectory);
    }
    Ok((directory, name.as_bytes()))
}

pub(crate) fn carry_out(fs: &Fs, clock: &SimClock, op: &Op) -> Result<Effect, i32> {
    match op {
        Op::Write { path, kind, offset, len, fill } => write(fs, path, *kind, *offset, *len, *fill),
        Op::Rewrite { path, len, fill } => rewrite(fs, path, *len, *fill),
        Op::TmpLink { path, len, fill, sync } => link_nameless(fs, path, *len, *fill, *sync).map_err(errno),
        Op::UnlinkOpen { path, len, fill } => unlink_open(fs, path, *len, *fill).map_err(errno),
        Op::CopyRange { from, to, at, to_at, len } => {
            copy_range(fs, (from, *at), (to, *to_at), *len).map_err(errno)
        }
        Op::Maintain { milliseconds } => {
            clock.advance(*milliseconds);
            for _ in 0..MAINTAIN_ROUNDS {
                if !fs.maintain(clock.now(), 4).map_err(errno)? {
                    break;
                }
            }
            Ok(Effect::default())
        }
        _ => change(fs, op).map(|made| Effect { made, ..Effect::default() }).map_err(errno),
    }
}

fn change(fs: &Fs, op: &Op) -> Result<u64, Error> {
    let root = Context::root();
    match op {
        Op::Creat(path) => {
            let (directory, name) = place(fs, path)?;
            let (entry, handle) = fs.names().create(&root, directory, name, 0o644, OpenFlags::READ_WRITE)?;
            fs.files().release(handle)?;
            return Ok(entry.attr.inode.0);
        }
        Op::Mkdir(path) => {
            let (directory, name) = place(fs, path)?;
            return Ok(fs.names().mkdir(&root, directory, name, 0o755)?.attr.inode.0);
        }
        Op::Symlink(target, path) => {
            let (directory, name) = place(fs, path)?;
            return Ok(fs.names().symlink(&root, directory, name, target.as_bytes())?.attr.inode.0);
        }
        Op::Falloc { path, kind, offset, len } => {
            let handle = fs.files().open_handle(&root, resolve(fs, path)?, OpenFlags::READ_WRITE)?;
            let mode = match kind {
                AllocateKind::Grow => FallocateMode::Allocate { keep_size: false },
                AllocateKind::KeepSize => FallocateMode::Allocate { keep_size: true },
                AllocateKind::Punch => FallocateMode::PunchHole,
                AllocateKind::Zero => FallocateMode::ZeroRange { keep_size: false },
                AllocateKind::Collapse => FallocateMode::CollapseRange,
                AllocateKind::Insert => FallocateMode::InsertRange,
            };
            let result = fs.files().fallocate(&root, handle, mode, *offset, *len);
            fs.files().release(handle)?;
            result?;
        }
        Op::Link(old, new) => {
            let inode = resolve(fs, old)?;
            let (directory, name) = place(fs, new)?;
            fs.names().link(inode, directory, name)?;
        }
        Op::Unlink(path) => {
            let (directory, name) = place(fs, path)?;
            fs.names().unlink(directory, name)?;
        }
        Op::Rmdir(path) => {
            let (directory, name) = place(fs, path)?;
            fs.names().rmdir(directory, name)?;
        }
        Op::Remove(path) => {
            let (directory, name) = place(fs, path)?;
            match fs.names().unlink(directory, name) {
                Err(Error::IsDirectory) => fs.names().rmdir(directory, name)?,
                other => other?,
            }
        }
        Op::Rename(old, new) | Op::Exchange(old, new) | Op::Whiteout(old, new) => {
            let (from, name) = place(fs, old)?;
            let (to, new_name) = place(fs, new)?;
            let whiteout = matches!(op, Op::Whiteout(..));
            let exchange = matches!(op, Op::Exchange(..));
            let flags = RenameFlags { exchange, whiteout, ..RenameFlags::default() };
            fs.names().rename(&root, from, name, to, new_name, flags)?;
            if whiteout {
                return Ok(fs.names().lookup(from, name)?.attr.inode.0);
            }
        }
        Op::SetXattr { path, name, len, fill } => {
            let value = pattern(*fill, 0, *len);
            fs.attributes().set_xattr(&root, resolve(fs, path)?, name.as_bytes(), &value, SetXattr::Any)?;
        }
        Op::RemoveXattr { path, name } => {
            fs.attributes().remove_xattr(&root, resolve(fs, path)?, name.as_bytes())?
        }
        Op::Truncate { path, size } => {
            let set = SetAttr { size: Some(*size), ..SetAttr::default() };
            fs.attributes().setattr(&root, resolve(fs, path)?, &set, None)?;
        }
        Op::Chmod { path, mode } => {
            let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
            fs.attributes().setattr(&root, resolve(fs, path)?, &set, None)?;
        }
        Op::Chown { path, uid, gid } => {
            let set = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
            fs.attributes().setattr(&root, resolve(fs, path)?, &set, None)?;
        }
        Op::Utimes { path, seconds } => {
            let at = SetTime::At(Timestamp { seconds: i64::from(*seconds), nanoseconds: 5 });
            let set = SetAttr { accessed: Some(at), modified: Some(at), ..SetAttr::default() };
            fs.attributes().setattr(&root, resolve(fs, path)?, &set, None)?;
        }
        Op::SetAcl { path, bits } => {
            let inode = resolve(fs, path)?;
            fs.attributes().set_xattr(
                &root,
                inode,
                b"system.posix_acl_access",
                &acl(*bits),
                SetXattr::Any,
            )?;
        }
        Op::SetDefaultAcl { path, bits } => {
            let inode = resolve(fs, path)?;
            fs.attributes().set_xattr(
                &root,
                inode,
                b"system.posix_acl_default",
                &acl(*bits),
                SetXattr::Any,
            )?;
        }
        Op::SetFlags { path, flags } => fs.attributes().set_inode_flags(&root, resolve(fs, path)?, *flags)?,
        Op::Fsync(path) => fs.files().sync_inode(resolve(fs, path)?, SyncScope::All)?,
        Op::Fdatasync(path) => fs.files().sync_inode(resolve(fs, path)?, SyncScope::Data)?,
        Op::SyncRange { path, offset, len } => {
            let handle = fs.files().open_handle(&root, resolve(fs, path)?, OpenFlags::READ_WRITE)?;
            let result = fs.syncs().sync(handle, SyncScope::All, Reach::Range(*offset..offset + len));
            fs.files().release(handle)?;
            result?;
        }
        Op::WriteBack { path, offset, len } => {
            let handle = fs.files().open_handle(&root, resolve(fs, path)?, OpenFlags::READ_WRITE)?;
            let result = fs.files().write_back_handle(handle, *offset..offset + len);
            fs.files().release(handle)?;
            result?;
        }
        Op::Sync => fs.sync_all()?,
        Op::Checkpoint => fs.checkpoint()?,
        Op::Trim => drop(fs.trim(0..u64::MAX, 0)?),
        Op::Write { .. } | Op::Rewrite { .. } | Op::Maintain { .. } => {
            unreachable!("carried out by their own functions")
        }
        Op::Transaction { .. } | Op::Absorb => unreachable!("carried out by a module of its own"),
        Op::TmpLink { .. } | Op::UnlinkOpen { .. } | Op::CopyRange { .. } => {
            unreachable!("carried out by their own functions")
        }
        Op::Snap { .. }
        | Op::SnapDelete(_)
        | Op::Clone { .. }
        | Op::Head(_)
        | Op::Rollback { .. }
        | Op::Reap => {
            unreachable!("carried out where all trees are known")
        }
    }
    Ok(0)
}

fn write(fs: &Fs, path: &str, kind: WriteKind, offset: u64, len: u64, fill: u8) -> Result<Effect, i32> {
    let root = Context::root();
    let flags = OpenFlags {
        direct: kind == WriteKind::Direct,
        dsync: kind == WriteKind::Dsync,
        ..OpenFlags::READ_WRITE
    };
    let inode = resolve(fs, path).map_err(errno)?;
    let handle = fs.files().open_handle(&root, inode, flags).map_err(errno)?;
    let (result, scope) = match kind {
        WriteKind::Mapped => (write_mapped(fs, handle, offset, len, fill), None),
        _ => match fs.files().write_unsynced(&root, handle, offset, &pattern(fill, offset, len)) {
            Ok((_, count, scope)) => (Ok(count as u64), scope),
            Err(error) => (Err(error), None),
        },
    };
    // What is written stays written when the sync behind it fails.
    let synced = scope.map_or(Ok(()), |scope| fs.files().sync_handle(handle, scope));
    let closed = fs.files().release(handle);
    let written = result.map_err(errno)?;
    Ok(Effect { written, failed: synced.and(closed).err().map(errno), ..Effect::default() })
}

/// What the kernel sends for pages that were changed through a mapping: whole pages, up to the end of the file.
fn write_mapped(fs: &Fs, handle: HandleId, offset: u64, len: u64, fill: u8) -> Result<u64, Error> {
    let size = fs.files().handle_attr(handle)?.size;
    let end = (offset + len).min(size);
    if offset >= end {
        return Ok(0);
    }
    let from = offset / PAGE * PAGE;
    let until = end.next_multiple_of(PAGE).min(size);
    let mut pages = vec![0; (until - from) as usize];
    let mut done = 0;
    while done < pages.len() {
        done += fs.files().read(handle, from + done as u64, &mut pages[done..])?;
    }
    pages[(offset - from) as usize..(end - from) as usize].copy_from_slice(&pattern(
        fill,
        offset,
        end - offset,
    ));
    let (_, count) = fs.files().write(&Context::root(), handle, from, &pages)?;
    Ok((from + count as u64).min(end).saturating_sub(offset))
}

fn rewrite(fs: &Fs, path: &str, len: u64, fill: u8) -> Result<Effect, i32> {
    let root = Context::root();
    let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let inode = resolve(fs, path).map_err(errno)?;
    let handle = fs.files().open_handle(&root, inode, flags).map_err(errno)?;
    let result = fs.files().write(&root, handle, 0, &pattern(fill, 0, len));
    let closed = fs.files().release(handle);
    let (written, failed) = match (result, closed) {
        (Ok((_, count)), Ok(())) => (count as u64, None),
        (Ok((_, count)), Err(error)) => (count as u64, Some(errno(error))),
        (Err(error), _) => (0, Some(errno(error))),
    };
    Ok(Effect { written, failed, ..Effect::default() })
}

fn link_nameless(fs: &Fs, path: &str, len: u64, fill: u8, sync: bool) -> Result<Effect, Error> {
    let root = Context::root();
    let (directory, name) = place(fs, path)?;
    let (entry, handle) = fs.names().tmpfile(&root, directory, 0o600, OpenFlags::READ_WRITE, false)?;
    let made = entry.attr.inode;
    let linked = fs.files().write(&root, handle, 0, &pattern(fill, 0, len)).and_then(|(_, written)| {
        if sync {
            fs.files().sync_handle(handle, SyncScope::All)?;
        }
        fs.names().link(made, directory, name)?;
        Ok(written as u64)
    });
    let closed = fs.files().release(handle);
    let written = linked?;
    Ok(Effect { made: made.0, written, failed: closed.err().map(errno) })
}

fn unlink_open(fs: &Fs, path: &str, len: u64, fill: u8) -> Result<Effect, Error> {
    let root = Context::root();
    let inode = resolve(fs, path)?;
    let handle = fs.files().open_handle(&root, inode, OpenFlags::READ_WRITE)?;
    let (directory, name) = place(fs, path)?;
    if let Err(error) = fs.names().unlink(directory, name) {
        fs.files().release(handle)?;
        return Err(error);
    }
    let mut effect = Effect { made: inode.0, ..Effect::default() };
    let mut work = || {
        effect.written = fs.files().write(&root, handle, 0, &pattern(fill, 0, len))?.1 as u64;
        fs.files().sync_handle(handle, SyncScope::All)?;
        fs.checkpoint()?;
        let mut bytes = vec![0; effect.written as usize];
        let read = fs.files().read(handle, 0, &mut bytes)?;
        assert!(read == bytes.len(), "an open file without a name reads short");
        assert!(bytes == pattern(fill, 0, read as u64), "an open file without a name reads other bytes");
        Ok(())
    };
    let done: Result<(), Error> = work();
    effect.failed = done.and(fs.files().release(handle)).err().map(errno);
    Ok(effect)
}

fn copy_range(fs: &Fs, from: (&str, u64), to: (&str, u64), len: u64) -> Result<Effect, Error> {
    let copied = with_source(fs, from.0, |source| {
        let target = fs.files().open_handle(&Context::root(), resolve(fs, to.0)?, OpenFlags::READ_WRITE)?;
        let copied = fs.files().copy_file_range(&Context::root(), (source, from.1), (target, to.1), len);
        fs.files().release(target)?;
        copied
    });
    Ok(Effect { written: copied?, ..Effect::default() })
}

/// Copies to an open file; returns how much.
pub fn copy_to_handle(fs: &Fs, from: (&str, u64), to: (HandleId, u64), len: u64) -> Result<u64, Error> {
    let copy = |source| fs.files().copy_file_range(&Context::root(), (source, from.1), to, len);
    with_source(fs, from.0, copy)
}

fn with_source(fs: &Fs, path: &str, copy: impl FnOnce(HandleId) -> Result<u64, Error>) -> Result<u64, Error> {
    let source = fs.files().open_handle(&Context::root(), resolve(fs, path)?, OpenFlags::READ)?;
    let copied = copy(source);
    fs.files().release(source)?;
    copied
}
