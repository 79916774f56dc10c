//! Operations of workloads, and their text, by which any workload can be written down and replayed.
//!
//! A workload is operations joined by `;`, an operation is words joined by `:`, the first is its name. Those of a
//! transaction are joined by `+`, their words by `,`; behind `!` is what others do before it ends:
//! `txn:creat,x+write,x,0,5000,1!fsync,f`.

use std::fmt;
use std::str::FromStr;

/// What writes data in which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    Buffered,
    /// On a handle opened `O_DIRECT`.
    Direct,
    /// Whole pages, as the kernel brings pages that were changed through a mapping.
    Mapped,
    /// On a handle opened `O_DSYNC`: acknowledged is durable.
    Dsync,
}

/// How `fallocate` is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateKind {
    Grow,
    KeepSize,
    Punch,
    Zero,
    Collapse,
    Insert,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    /// The commit is started, and its force is driven as by a transport that polls.
    Start,
    Abort,
}

/// One step of a workload. Paths are relative to the root, without a leading slash; the empty path is the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Creat(String),
    Mkdir(String),
    Falloc {
        path: String,
        kind: AllocateKind,
        offset: u64,
        len: u64,
    },
    Write {
        path: String,
        kind: WriteKind,
        offset: u64,
        len: u64,
        fill: u8,
    },
    /// Opens truncating to zero, writes, closes.
    Rewrite {
        path: String,
        len: u64,
        fill: u8,
    },
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    /// Whichever of the two fits.
    Remove(String),
    Rename(String, String),
    Exchange(String, String),
    /// Renames and leaves a whiteout, a character device 0:0, at the old name.
    Whiteout(String, String),
    Symlink(String, String),
    SetXattr {
        path: String,
        name: String,
        len: u64,
        fill: u8,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        uid: u32,
        gid: u32,
    },
    /// Sets the times of last access and modification.
    Utimes {
        path: String,
        seconds: u32,
    },
    /// Sets an access control list with a named user; the mode shows `bits`.
    SetAcl {
        path: String,
        bits: u32,
    },
    /// Sets the access control list that what is made in a directory takes over.
    SetDefaultAcl {
        path: String,
        bits: u32,
    },
    /// Sets the flags of an inode (`chattr`): no-dump and no-atime, which forbid nothing.
    SetFlags {
        path: String,
        flags: u32,
    },
    /// `copy_file_range`.
    CopyRange {
        from: String,
        to: String,
        at: u64,
        to_at: u64,
        len: u64,
    },
    /// Makes a file without a name, writes it, syncs it perhaps, and links it.
    TmpLink {
        path: String,
        len: u64,
        fill: u8,
        sync: bool,
    },
    /// Opens a file, removes its name, writes to it, syncs it, has a checkpoint written, reads it, closes it.
    UnlinkOpen {
        path: String,
        len: u64,
        fill: u8,
    },
    Fsync(String),
    Fdatasync(String),
    /// Makes a range of a file durable.
    SyncRange {
        path: String,
        offset: u64,
        len: u64,
    },
    /// A writeback hint on a range of a file.
    WriteBack {
        path: String,
        offset: u64,
        len: u64,
    },
    /// Operations are staged; then others, ordinary ones, come in between; then it ends.
    Transaction {
        ops: Vec<Op>,
        between: Vec<Op>,
        end: End,
    },
    /// Among the operations of a transaction: what follows is staged in one of its own, which the first one absorbs
    /// before it ends.
    Absorb,
    Sync,
    /// Time passes, then background work is done.
    Maintain {
        milliseconds: u64,
    },
    Checkpoint,
    /// All that is free is discarded.
    Trim,
    /// Makes a snapshot of the present head: of all that was written or, `now`, of what is committed.
    Snap {
        name: String,
        now: bool,
    },
    /// Deletes a snapshot.
    SnapDelete(String),
    /// Makes a head of a snapshot, and opens it.
    Clone {
        of: String,
        name: String,
    },
    /// What follows is done in that head.
    Head(String),
    /// Takes the first head back to a snapshot; what it shows may stay as another one. The volume is opened again, and
    /// what follows is done in the first head.
    Rollback {
        to: String,
        keep: Option<String>,
    },
    /// One step of what snapshots have left to be done in the background: of a deletion, say.
    Reap,
}

impl Op {
    /// The name by which the statistics count it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Creat(_) => "creat",
            Op::Mkdir(_) => "mkdir",
            Op::Falloc { kind: AllocateKind::Grow, .. } => "falloc",
            Op::Falloc { kind: AllocateKind::KeepSize, .. } => "fallockeep",
            Op::Falloc { kind: AllocateKind::Punch, .. } => "punch",
            Op::Falloc { kind: AllocateKind::Zero, .. } => "zero",
            Op::Falloc { kind: AllocateKind::Collapse, .. } => "collapse",
            Op::Falloc { kind: AllocateKind::Insert, .. } => "insert",
            Op::Write { kind: WriteKind::Buffered, .. } => "write",
            Op::Write { kind: WriteKind::Direct, .. } => "dwrite",
            Op::Write { kind: WriteKind::Mapped, .. } => "mwrite",
            Op::Write { kind: WriteKind::Dsync, .. } => "dsyncwrite",
            Op::Rewrite { .. } => "rewrite",
            Op::Link(..) => "link",
            Op::Unlink(_) => "unlink",
            Op::Rmdir(_) => "rmdir",
            Op::Remove(_) => "remove",
            Op::Rename(..) => "rename",
            Op::Exchange(..) => "exchange",
            Op::Whiteout(..) => "whiteout",
            Op::Symlink(..) => "symlink",
            Op::SetXattr { .. } => "setxattr",
            Op::RemoveXattr { .. } => "removexattr",
            Op::Truncate { .. } => "truncate",
            Op::Chmod { .. } => "chmod",
            Op::Chown { .. } => "chown",
            Op::Utimes { .. } => "utimes",
            Op::SetAcl { .. } => "setacl",
            Op::SetDefaultAcl { .. } => "setdefaultacl",
            Op::SetFlags { .. } => "setflags",
            Op::CopyRange { .. } => "copyrange",
            Op::TmpLink { sync: false, .. } => "tmplink",
            Op::TmpLink { sync: true, .. } => "tmpsynclink",
            Op::UnlinkOpen { .. } => "unlinkopen",
            Op::Fsync(_) => "fsync",
            Op::Fdatasync(_) => "fdatasync",
            Op::SyncRange { .. } => "syncrange",
            Op::WriteBack { .. } => "writeback",
            Op::Transaction { end: End::Commit, .. } => "txn",
            Op::Transaction { end: End::Start, .. } => "txnstart",
            Op::Transaction { end: End::Abort, .. } => "txnabort",
            Op::Absorb => "absorb",
            Op::Sync => "sync",
            Op::Maintain { .. } => "maintain",
            Op::Checkpoint => "checkpoint",
            Op::Trim => "trim",
            Op::Snap { now: false, .. } => "snap",
            Op::Snap { now: true, .. } => "snap-now",
            Op::SnapDelete(_) => "snapdel",
            Op::Clone { .. } => "clone",
            Op::Head(_) => "head",
            Op::Rollback { .. } => "rollback",
            Op::Reap => "reap",
        }
    }
}

impl Op {
    /// The paths that a staged operation names.
    pub fn paths(&self) -> Vec<String> {
        match self {
            Op::Creat(path) | Op::Unlink(path) => vec![path.clone()],
            Op::Write { path, .. } | Op::Truncate { path, .. } => vec![path.clone()],
            Op::SetXattr { path, .. } | Op::RemoveXattr { path, .. } => vec![path.clone()],
            Op::Link(old, new) | Op::Rename(old, new) => vec![old.clone(), new.clone()],
            _ => Vec::new(),
        }
    }

    /// Whether a staged operation changes who has which name.
    pub fn renames(&self) -> bool {
        matches!(self, Op::Creat(_) | Op::Unlink(_) | Op::Link(..) | Op::Rename(..))
    }

    /// Whether it has to do with the trees of a volume, and not with the files of one.
    pub fn is_of_trees(&self) -> bool {
        matches!(self, Op::Snap { .. } | Op::SnapDelete(_) | Op::Clone { .. } | Op::Head(_))
            || matches!(self, Op::Rollback { .. } | Op::Reap)
    }

    /// Whether the operation gets by without new space: syncs have had theirs set aside by the writes, removal gives
    /// some back (C8).
    pub fn needs_no_space(&self) -> bool {
        matches!(self, Op::Fsync(_) | Op::Fdatasync(_) | Op::SyncRange { .. } | Op::Sync)
            || matches!(self, Op::WriteBack { .. } | Op::Maintain { .. } | Op::Checkpoint | Op::Trim)
            || matches!(self, Op::Unlink(_) | Op::Rmdir(_) | Op::Remove(_) | Op::Truncate { size: 0, .. })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Op::Creat(path) | Op::Mkdir(path) | Op::Unlink(path) | Op::Rmdir(path) | Op::Remove(path) => {
                write!(f, ":{path}")
            }
            Op::Fsync(path) | Op::Fdatasync(path) => write!(f, ":{path}"),
            Op::Falloc { path, offset, len, .. }
            | Op::SyncRange { path, offset, len }
            | Op::WriteBack { path, offset, len } => {
                write!(f, ":{path}:{offset}:{len}")
            }
            Op::Write { path, offset, len, fill, .. } => write!(f, ":{path}:{offset}:{len}:{fill}"),
            Op::Rewrite { path, len, fill } => write!(f, ":{path}:{len}:{fill}"),
            Op::Link(a, b) | Op::Rename(a, b) | Op::Exchange(a, b) => write!(f, ":{a}:{b}"),
            Op::Whiteout(a, b) | Op::Symlink(a, b) => write!(f, ":{a}:{b}"),
            Op::SetXattr { path, name, len, fill } => write!(f, ":{path}:{name}:{len}:{fill}"),
            Op::RemoveXattr { path, name } => write!(f, ":{path}:{name}"),
            Op::Truncate { path, size } => write!(f, ":{path}:{size}"),
            Op::Chmod { path, mode } => write!(f, ":{path}:{mode}"),
            Op::Chown { path, uid, gid } => write!(f, ":{path}:{uid}:{gid}"),
            Op::Utimes { path, seconds } => write!(f, ":{path}:{seconds}"),
            Op::SetAcl { path, bits } | Op::SetDefaultAcl { path, bits } => write!(f, ":{path}:{bits}"),
            Op::SetFlags { path, flags } => write!(f, ":{path}:{flags}"),
            Op::CopyRange { from, to, at, to_at, len } => write!(f, ":{from}:{to}:{at}:{to_at}:{len}"),
            Op::TmpLink { path, len, fill, .. } | Op::UnlinkOpen { path, len, fill } => {
                write!(f, ":{path}:{len}:{fill}")
            }
            Op::Transaction { ops, between, .. } => {
                write!(f, ":{}", staged_text(ops))?;
                if between.is_empty() { Ok(()) } else { write!(f, "!{}", staged_text(between)) }
            }
            Op::Maintain { milliseconds } => write!(f, ":{milliseconds}"),
            Op::Absorb | Op::Sync | Op::Checkpoint | Op::Trim | Op::Reap => Ok(()),
            Op::Snap { name, .. } | Op::SnapDelete(name) | Op::Head(name) => write!(f, ":{name}"),
            Op::Clone { of, name } => write!(f, ":{of}:{name}"),
            Op::Rollback { to, keep: None } => write!(f, ":{to}"),
            Op::Rollback { to, keep: Some(keep) } => write!(f, ":{to}:{keep}"),
        }
    }
}

/// Operations inside of one: joined by `+`, their words by `,`.
fn staged_text(ops: &[Op]) -> String {
    ops.iter().map(|op| op.to_string().replace(':', ",")).collect::<Vec<_>>().join("+")
}

fn parse_staged(text: &str) -> Option<Vec<Op>> {
    text.split('+').filter(|part| !part.is_empty()).map(|part| parse(&part.replace(',', ":"))).collect()
}

fn parse_transaction(text: &str, end: End) -> Option<Op> {
    let (ops, between) = text.split_once('!').unwrap_or((text, ""));
    Some(Op::Transaction { ops: parse_staged(ops)?, between: parse_staged(between)?, end })
}

/// The text is no operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAnOperation(pub String);

impl fmt::Display for NotAnOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is no operation; see crates/sim/src/operation.rs for what is", self.0)
    }
}

impl FromStr for Op {
    type Err = NotAnOperation;

    fn from_str(text: &str) -> Result<Op, NotAnOperation> {
        parse(text).ok_or_else(|| NotAnOperation(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Op> {
    let mut words = text.split(':');
    let name = words.next()?;
    let words: Vec<&str> = words.collect();
    let path = |index: usize| words.get(index).map(|word| (*word).to_owned());
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    let fill = |index: usize| words.get(index)?.parse::<u8>().ok();
    let write = |kind| {
        let (path, offset, len, fill) = (path(0)?, number(1)?, number(2)?, fill(3)?);
        Some(Op::Write { path, kind, offset, len, fill })
    };
    let allocate = |kind| Some(Op::Falloc { path: path(0)?, kind, offset: number(1)?, len: number(2)? });
    Some(match name {
        "creat" => Op::Creat(path(0)?),
        "mkdir" => Op::Mkdir(path(0)?),
        "falloc" => allocate(AllocateKind::Grow)?,
        "fallockeep" => allocate(AllocateKind::KeepSize)?,
        "punch" => allocate(AllocateKind::Punch)?,
        "zero" => allocate(AllocateKind::Zero)?,
        "collapse" => allocate(AllocateKind::Collapse)?,
        "insert" => allocate(AllocateKind::Insert)?,
        "write" => write(WriteKind::Buffered)?,
        "dwrite" => write(WriteKind::Direct)?,
        "mwrite" => write(WriteKind::Mapped)?,
        "dsyncwrite" => write(WriteKind::Dsync)?,
        "rewrite" => Op::Rewrite { path: path(0)?, len: number(1)?, fill: fill(2)? },
        "link" => Op::Link(path(0)?, path(1)?),
        "unlink" => Op::Unlink(path(0)?),
        "rmdir" => Op::Rmdir(path(0)?),
        "remove" => Op::Remove(path(0)?),
        "rename" => Op::Rename(path(0)?, path(1)?),
        "exchange" => Op::Exchange(path(0)?, path(1)?),
        "whiteout" => Op::Whiteout(path(0)?, path(1)?),
        "symlink" => Op::Symlink(path(0)?, path(1)?),
        "setxattr" => Op::SetXattr { path: path(0)?, name: path(1)?, len: number(2)?, fill: fill(3)? },
        "removexattr" => Op::RemoveXattr { path: path(0)?, name: path(1)? },
        "truncate" => Op::Truncate { path: path(0)?, size: number(1)? },
        "chmod" => Op::Chmod { path: path(0)?, mode: number(1)? as u32 },
        "chown" => Op::Chown { path: path(0)?, uid: number(1)? as u32, gid: number(2)? as u32 },
        "utimes" => Op::Utimes { path: path(0)?, seconds: number(1)? as u32 },
        "setacl" => Op::SetAcl { path: path(0)?, bits: number(1)? as u32 },
        "setdefaultacl" => Op::SetDefaultAcl { path: path(0)?, bits: number(1)? as u32 },
        "setflags" => Op::SetFlags { path: path(0)?, flags: number(1)? as u32 },
        "copyrange" => {
            Op::CopyRange { from: path(0)?, to: path(1)?, at: number(2)?, to_at: number(3)?, len: number(4)? }
        }
        "tmplink" => Op::TmpLink { path: path(0)?, len: number(1)?, fill: fill(2)?, sync: false },
        "tmpsynclink" => Op::TmpLink { path: path(0)?, len: number(1)?, fill: fill(2)?, sync: true },
        "unlinkopen" => Op::UnlinkOpen { path: path(0)?, len: number(1)?, fill: fill(2)? },
        "fsync" => Op::Fsync(path(0)?),
        "fdatasync" => Op::Fdatasync(path(0)?),
        "syncrange" => Op::SyncRange { path: path(0)?, offset: number(1)?, len: number(2)? },
        "writeback" => Op::WriteBack { path: path(0)?, offset: number(1)?, len: number(2)? },
        "txn" => parse_transaction(words.first()?, End::Commit)?,
        "txnstart" => parse_transaction(words.first()?, End::Start)?,
        "txnabort" => parse_transaction(words.first()?, End::Abort)?,
        "absorb" => Op::Absorb,
        "sync" => Op::Sync,
        "maintain" => Op::Maintain { milliseconds: number(0)? },
        "checkpoint" => Op::Checkpoint,
        "trim" => Op::Trim,
        "snap" => Op::Snap { name: path(0)?, now: false },
        "snap-now" => Op::Snap { name: path(0)?, now: true },
        "snapdel" => Op::SnapDelete(path(0)?),
        "clone" => Op::Clone { of: path(0)?, name: path(1)? },
        "head" => Op::Head(path(0)?),
        "rollback" => Op::Rollback { to: path(0)?, keep: path(1) },
        "reap" => Op::Reap,
        _ => return None,
    })
}

/// A workload as text.
pub fn to_text(ops: &[Op]) -> String {
    ops.iter().map(Op::to_string).collect::<Vec<_>>().join(";")
}

/// A workload from text.
pub fn from_text(text: &str) -> Result<Vec<Op>, NotAnOperation> {
    text.split(';').filter(|part| !part.is_empty()).map(str::parse).collect()
}

/// An access control list as the kernel passes it: the owner, a named user, the group, the mask, the others.
pub fn acl(bits: u32) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries = [
        (0x01, bits >> 6 & 7, NONE),
        (0x02, 6, 1000),
        (0x04, 5, NONE),
        (0x10, bits >> 3 & 7, NONE),
        (0x20, bits & 7, NONE),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&(tag as u16).to_le_bytes());
        bytes.extend_from_slice(&(permissions as u16).to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// The mode bits that such a list shows.
pub fn acl_bits(value: &[u8]) -> u32 {
    let permissions = |entry: usize| value.get(4 + 8 * entry + 2).map_or(0, |byte| u32::from(*byte) & 7);
    permissions(0) << 6 | permissions(3) << 3 | permissions(4)
}

/// The bytes that a write of `fill` puts at `offset`: every byte tells the write and its own place, so that bytes of
/// another write, file or position are seen for what they are.
pub fn pattern(fill: u8, offset: u64, len: u64) -> Vec<u8> {
    let byte = |at: u64| {
        let place = (at ^ at >> 8 ^ at >> 12) as u8;
        match at % 2 {
            0 => fill | 1,
            _ => place.wrapping_mul(31).wrapping_add(fill),
        }
    };
    (offset..offset + len).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_survives_being_written_down() {
        let text = "creat:A/x;mkdir:B/d;falloc:f:0:4096;fallockeep:f:1:2;punch:f:0:1;zero:f:3:4;write:f:0:9:1;\
                    dwrite:f:1:2:3;mwrite:f:1:2:3;dsyncwrite:f:1:2:3;rewrite:f:1:2;link:a:b;unlink:a;rmdir:d;remove:e;\
                    rename:a:b;exchange:a:b;symlink:t:a;setxattr:a:user.x:4:5;removexattr:a:user.x;truncate:a:77;\
                    chmod:a:420;chown:a:5:6;utimes:a:7;setacl:a:416;setdefaultacl:a:416;setflags:a:64;copyrange:a:b:1:2:3;tmplink:t:5:6;tmpsynclink:t:5:6;\
                    unlinkopen:a:5:6;collapse:f:0:4096;insert:f:0:4096;whiteout:a:b;fsync:;fdatasync:a;syncrange:a:1:2;writeback:a:1:2;\
                    txn:creat,x+write,x,0,5,1+absorb+write,y,0,5,1;txnstart:unlink,a;txnabort:unlink,a!fsync,b+sync;sync;maintain:5;checkpoint;trim;\
                    snap:s;snap-now:s;snapdel:s;clone:s:h;head:h;rollback:s;rollback:s:k;reap";
        let ops = from_text(text).expect("text of every operation");
        assert_eq!(to_text(&ops), text.replace(' ', ""));
        assert!(from_text("writ:f").is_err());
    }
}
