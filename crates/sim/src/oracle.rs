//! The oracle: what the contract allows to be there after a crash. It uses no product crate.
//!
//! [`Model`] is the namespace in memory, as the operations leave it, one snapshot per metadata operation, and for each
//! file the history of its content (`history.rs`). [`Model::judge`] compares what a recovered volume shows:
//!
//! - **C1** the state holds every metadata operation that had returned before the last acknowledged sync, and every
//!   synced file its data;
//! - **C2** names, link counts, owners, modes, extended attributes, ACLs and link targets are exactly those after
//!   some prefix of the metadata operations, and times are those of the prefix or of writes after it (`times.rs`);
//! - **C9** the same for what was older than the commit interval when background work began;
//! - **C3** a prefix with a rename over an existing file holds the whole content that the source had then;
//! - file content is, page by page, one that the file had at some moment since it was last made durable, and a size is
//!   never beyond data: no stale, foreign or half-written bytes.
//!
//! Inodes are told apart by the number that the volume gave them; nothing else is taken over from it.

use crate::content::Content;
use crate::history::{FileEvent, History, Wrong};
use crate::operation::{Op, pattern};
use crate::times::{Stamp, StampHistory};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::Arc;

mod changes;
mod moments;
mod together;

/// Number of the root directory.
pub const ROOT: u64 = 1;
/// Bytes of a page of file content.
pub const PAGE: u64 = 4096;

pub const ENOENT: i32 = 2;
/// What opening a special file answers.
pub const ENXIO: i32 = 6;
pub const EACCES: i32 = 13;
pub const EEXIST: i32 = 17;
pub const ENOTDIR: i32 = 20;
pub const EISDIR: i32 = 21;
pub const EINVAL: i32 = 22;
pub const EPERM: i32 = 1;
pub const ENOTEMPTY: i32 = 39;
pub const ELOOP: i32 = 40;
pub const ENODATA: i32 = 61;
pub const ENOTSUP: i32 = 95;

/// What an inode is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kind {
    File,
    Directory(BTreeMap<String, u64>),
    Symlink(Vec<u8>),
    /// A device node: what whiteouts are.
    Special,
}

/// An inode without the content of a file.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    pub owner: (u32, u32),
    pub nlink: u32,
    /// Those of `chattr`.
    pub flags: u32,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

impl fmt::Debug for Node {
    /// Values of attributes by their length and first byte: they may be long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let xattrs: Vec<_> = self.xattrs.iter().map(|(name, v)| (name, v.len(), v.first())).collect();
        let Node { kind, mode, owner, nlink, flags, .. } = self;
        write!(f, "{kind:?} mode {mode:o} owner {owner:?} nlink {nlink} flags {flags:x} xattrs {xattrs:?}")
    }
}

/// A whole namespace.
pub type Names = BTreeMap<u64, Arc<Node>>;

/// What a volume shows: the oracle's view of it, taken by the simulator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    pub names: Names,
    pub contents: BTreeMap<u64, Content>,
    pub stamps: BTreeMap<u64, Stamp>,
}

/// A state after some metadata operation.
#[derive(Clone)]
struct Snapshot {
    names: Names,
    hash: u64,
}

/// Why a recovered volume breaks the contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// C1, C2: no prefix of the operations looks like this. The difference is to the nearest allowed prefix.
    NoPrefix { must: usize, may: usize, difference: String },
    /// Prefixes fit by their names, but each has something else against it.
    NotInAny(Vec<(usize, Violation)>),
    /// A prefix fits, but the content of a file is not allowed in it.
    Content { file: u64, wrong: Wrong },
    /// A prefix fits, but the times of an inode are not allowed in it.
    Times { ino: u64, got: Stamp, newest: Stamp },
}

/// The model of one run.
#[derive(Clone)]
pub struct Model {
    names: Names,
    snapshots: Vec<Snapshot>,
    files: BTreeMap<u64, History>,
    /// For each sync, how many metadata operations had returned before it.
    syncs: Vec<usize>,
    /// When somebody looked at the clock, and how many metadata operations had returned by then.
    moments: Vec<(i64, usize)>,
    /// The last of them that is known to be durable.
    aged: Option<usize>,
    /// Only inodes whose times were noted.
    stamps: BTreeMap<u64, StampHistory>,
    /// Metadata operations when the times were noted last.
    noted: usize,
    /// A transaction is being applied.
    together: Option<together::Together>,
    /// A commit that failed, and may have been made visible all the same: its operations, and the inodes they made.
    unsettled: Option<(Vec<Op>, Vec<u64>)>,
    /// Operations overlap: what one thread writes may miss what another one brings to the log meanwhile.
    overlaps: bool,
}

fn hash_of(names: &Names) -> u64 {
    let mut hasher = DefaultHasher::new();
    names.hash(&mut hasher);
    hasher.finish()
}

impl Model {
    /// Starts from what a volume holds durably.
    pub fn new(start: &View) -> Model {
        let files = start.contents.iter().map(|(ino, content)| (*ino, History::new(content.clone())));
        let mut model = Model {
            names: start.names.clone(),
            snapshots: Vec::new(),
            files: files.collect(),
            syncs: Vec::new(),
            moments: Vec::new(),
            aged: None,
            stamps: BTreeMap::new(),
            noted: 0,
            together: None,
            unsettled: None,
            overlaps: false,
        };
        model.snapshot();
        model
    }

    /// Like [`Model::new`], for operations of threads that overlap.
    pub fn with_overlaps(start: &View) -> Model {
        Model { overlaps: true, ..Model::new(start) }
    }

    /// Like [`Model::new`], for a run whose times are noted after each operation ([`Model::note_times`]) and judged.
    pub fn with_times(start: &View) -> Model {
        let stamps = start.stamps.iter().map(|(ino, stamp)| (*ino, StampHistory::new(*stamp)));
        Model { stamps: stamps.collect(), ..Model::new(start) }
    }

    fn snapshot(&mut self) {
        self.snapshots.push(Snapshot { names: self.names.clone(), hash: hash_of(&self.names) });
    }

    /// Metadata operations so far.
    pub fn metas(&self) -> usize {
        self.snapshots.len() - 1
    }

    /// Syncs so far.
    pub fn syncs(&self) -> usize {
        self.syncs.len()
    }

    /// What the running volume shows.
    pub fn live(&self) -> View {
        let alive = |ino: &u64| self.names.contains_key(ino);
        let contents = self.files.iter().filter(|(ino, _)| alive(ino));
        View {
            names: self.names.clone(),
            contents: contents.map(|(ino, history)| (*ino, history.current().clone())).collect(),
            stamps: self
                .names
                .keys()
                .filter_map(|ino| Some((*ino, self.stamps.get(ino)?.current())))
                .collect(),
        }
    }

    /// Pages of a file of the running volume.
    pub fn pages_of(&self, ino: u64) -> u64 {
        self.files.get(&ino).map_or(0, |history| history.current().size().div_ceil(PAGE))
    }

    /// Paths of all directories (the root is the empty one), files, and symbolic links.
    pub fn paths(&self) -> [Vec<String>; 3] {
        let mut paths = [vec![String::new()], Vec::new(), Vec::new()];
        let mut next = 0;
        while let Some(directory) = paths[0].get(next).cloned() {
            next += 1;
            let ino = self.resolve(&directory).expect("the path was just made");
            let Kind::Directory(children) = &self.node(ino).kind else { continue };
            for (name, child) in children {
                let path = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
                let list = match self.node(*child).kind {
                    Kind::Directory(_) => 0,
                    Kind::File => 1,
                    Kind::Symlink(_) | Kind::Special => 2,
                };
                paths[list].push(path);
            }
        }
        paths
    }

    /// The inode that a path names.
    pub fn resolve(&self, path: &str) -> Result<u64, i32> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(ROOT, |at, part| self.child(at, part)?.ok_or(ENOENT))
    }

    fn node(&self, ino: u64) -> &Node {
        &self.names[&ino]
    }

    fn node_mut(&mut self, ino: u64) -> &mut Node {
        Arc::make_mut(self.names.get_mut(&ino).expect("a node that was just found"))
    }

    fn child(&self, directory: u64, name: &str) -> Result<Option<u64>, i32> {
        match &self.node(directory).kind {
            Kind::Directory(children) => Ok(children.get(name).copied()),
            _ => Err(ENOTDIR),
        }
    }

    fn is_directory(&self, ino: u64) -> bool {
        matches!(self.node(ino).kind, Kind::Directory(_))
    }

    fn place(&self, path: &str) -> Result<(u64, String), i32> {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let directory = self.resolve(directory)?;
        self.child(directory, name)?;
        Ok((directory, name.to_owned()))
    }

    fn entries(&mut self, directory: u64) -> &mut BTreeMap<String, u64> {
        match &mut self.node_mut(directory).kind {
            Kind::Directory(children) => children,
            _ => unreachable!("a place was found in it"),
        }
    }

    fn file(&self, path: &str) -> Result<u64, i32> {
        let ino = self.resolve(path)?;
        match self.node(ino).kind {
            Kind::File => Ok(ino),
            Kind::Directory(_) => Err(EISDIR),
            Kind::Symlink(_) => Err(ELOOP),
            Kind::Special => Err(ENXIO),
        }
    }

    /// Ends a metadata operation.
    fn meta(&mut self) {
        if self.together.is_none() {
            self.snapshot();
        }
    }

    fn record(&mut self, ino: u64, event: FileEvent) {
        if let Some(together) = &mut self.together {
            return together.note(ino, event);
        }
        let metas = self.metas();
        self.files.get_mut(&ino).expect("every file has a history").record(metas, event);
    }

    /// An operation is about to begin whose part may survive a crash even if it never ends: a ranged sync or a hint,
    /// which may grow the size on record over what is not logged in front of the range (C5, C6).
    pub fn begin(&mut self, op: &Op) {
        let (path, event) = match op {
            Op::SyncRange { path, offset, len: len @ 1.. } => (path, FileEvent::Reaching(*offset, *len)),
            Op::WriteBack { path, offset, len: len @ 1.. } => (path, FileEvent::Hinted(*offset, *len)),
            _ => return,
        };
        if let Ok(ino) = self.file(path) {
            self.record(ino, event);
        }
    }

    /// A sync of a range that has succeeded; the number that its acknowledgement names.
    pub fn sync_range(&mut self, ino: u64, offset: u64, len: u64) -> usize {
        self.syncs.push(self.metas());
        let sync = self.syncs.len();
        let metas = self.metas();
        if self.files.contains_key(&ino) {
            self.record(ino, FileEvent::RangeSynced { sync, offset, len });
        }
        if let Some(history) = self.stamps.get_mut(&ino) {
            history.sync(metas, sync);
        }
        sync
    }

    /// A sync that has succeeded; the number that its acknowledgement names. `ino`: the file that is synced, `None`
    /// for all.
    pub fn sync(&mut self, ino: Option<u64>) -> usize {
        self.syncs.push(self.metas());
        let id = self.syncs.len();
        let metas = self.metas();
        for (number, history) in &mut self.files {
            if ino.is_none_or(|ino| ino == *number) {
                history.record(metas, FileEvent::Synced(id));
            }
        }
        for (number, history) in &mut self.stamps {
            if ino.is_none_or(|ino| ino == *number) {
                history.sync(metas, id);
            }
        }
        id
    }

    /// Applies an operation that the volume carried out. `made` is the inode number it gave, `written` how many bytes
    /// of a write it took.
    ///
    /// Errors: the errno that the volume should have answered with; nothing is changed then.
    pub fn apply(&mut self, op: &Op, made: u64, written: u64) -> Result<(), i32> {
        match op {
            Op::Creat(path) => self.create(path, made, Kind::File, 0o100644),
            Op::Mkdir(path) => self.create(path, made, Kind::Directory(BTreeMap::new()), 0o040755),
            Op::Symlink(target, path) => {
                self.create(path, made, Kind::Symlink(target.clone().into_bytes()), 0o120777)
            }
            Op::Link(old, new) => self.link(old, new),
            Op::Unlink(path) => self.remove(path, Some(false)),
            Op::Rmdir(path) => self.remove(path, Some(true)),
            Op::Remove(path) => self.remove(path, None),
            Op::Rename(old, new) => self.rename(old, new, None),
            Op::Exchange(old, new) => self.exchange(old, new),
            Op::Whiteout(old, new) => self.rename(old, new, Some(made)),
            Op::SetXattr { .. } | Op::RemoveXattr { .. } | Op::Chmod { .. } => self.change_attributes(op),
            Op::Chown { .. } | Op::Utimes { .. } | Op::SetAcl { .. } => self.change_attributes(op),
            Op::SetDefaultAcl { .. } | Op::SetFlags { .. } => self.change_attributes(op),
            Op::TmpLink { path, fill, sync, .. } => self.link_nameless(path, made, written, *fill, *sync),
            Op::UnlinkOpen { path, fill, .. } => {
                let ino = self.file(path)?;
                self.remove(path, Some(false))?;
                if written > 0 {
                    self.record(ino, FileEvent::Write(0, pattern(*fill, 0, written)));
                }
                Ok(())
            }
            Op::CopyRange { .. } => self.change_content(op, written),
            Op::Falloc { .. } | Op::Write { .. } | Op::Rewrite { .. } | Op::Truncate { .. } => {
                self.change_content(op, written)
            }
            Op::Fsync(path) | Op::Fdatasync(path) => self.resolve(path).map(drop),
            Op::SyncRange { path, .. } | Op::WriteBack { path, .. } => self.file(path).map(drop),
            Op::Transaction { ops, between, end } => self.apply_dry(ops, between, *end, made),
            Op::Absorb | Op::Sync | Op::Maintain { .. } | Op::Checkpoint | Op::Trim => Ok(()),
            Op::Snap { .. } | Op::SnapDelete(_) | Op::Clone { .. } | Op::Head(_) => Ok(()),
            Op::Rollback { .. } | Op::Reap => Ok(()),
        }
    }

    fn create(&mut self, path: &str, made: u64, kind: Kind, mode: u32) -> Result<(), i32> {
        let (directory, name) = self.place(path)?;
        if self.child(directory, &name)?.is_some() {
            return Err(EEXIST);
        }
        let is_directory = matches!(kind, Kind::Directory(_));
        if kind == Kind::File {
            self.files.insert(made, History::new(Content::default()));
            if let Some(together) = &mut self.together {
                together.note_made(made);
            }
        }
        self.names.insert(made, Arc::new(self.new_node(directory, kind, mode)));
        self.entries(directory).insert(name, made);
        self.node_mut(directory).nlink += u32::from(is_directory);
        self.meta();
        Ok(())
    }

    fn link(&mut self, old: &str, new: &str) -> Result<(), i32> {
        let ino = self.resolve(old)?;
        let (directory, name) = self.place(new)?;
        if ino == directory {
            return Err(EPERM);
        }
        if self.child(directory, &name)?.is_some() {
            return Err(EEXIST);
        }
        if self.is_directory(ino) {
            return Err(EPERM);
        }
        self.entries(directory).insert(name, ino);
        self.node_mut(ino).nlink += 1;
        self.meta();
        Ok(())
    }

    fn remove(&mut self, path: &str, want_directory: Option<bool>) -> Result<(), i32> {
        let (directory, name) = self.place(path)?;
        let ino = self.child(directory, &name)?.ok_or(ENOENT)?;
        match (want_directory, self.is_directory(ino)) {
            (Some(false), true) => return Err(EISDIR),
            (Some(true), false) => return Err(ENOTDIR),
            _ => {}
        }
        if matches!(&self.node(ino).kind, Kind::Directory(children) if !children.is_empty()) {
            return Err(ENOTEMPTY);
        }
        self.entries(directory).remove(&name);
        self.drop_link(directory, ino);
        self.meta();
        Ok(())
    }

    /// One name less for an inode in a directory.
    fn drop_link(&mut self, directory: u64, ino: u64) {
        if self.is_directory(ino) {
            self.node_mut(directory).nlink -= 1;
            self.names.remove(&ino);
            return;
        }
        self.node_mut(ino).nlink -= 1;
        if self.node(ino).nlink == 0 {
            self.names.remove(&ino);
        }
    }

    fn contains(&self, ancestor: u64, ino: u64) -> bool {
        ancestor == ino
            || match &self.node(ancestor).kind {
                Kind::Directory(children) => children.values().any(|child| self.contains(*child, ino)),
                _ => false,
            }
    }

    fn rename(&mut self, old: &str, new: &str, whiteout: Option<u64>) -> Result<(), i32> {
        let (from, name) = self.place(old)?;
        let (to, new_name) = self.place(new)?;
        let source = self.child(from, &name)?.ok_or(ENOENT)?;
        let target = self.child(to, &new_name)?;
        if target == Some(source) {
            return Ok(());
        }
        if from != to && self.is_directory(source) && self.contains(source, to) {
            return Err(EINVAL);
        }
        if let Some(target) = target {
            if from != to && self.is_directory(source) && self.contains(target, from) {
                return Err(ENOTEMPTY);
            }
            match (self.is_directory(source), self.is_directory(target)) {
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                _ => {}
            }
            if matches!(&self.node(target).kind, Kind::Directory(children) if !children.is_empty()) {
                return Err(ENOTEMPTY);
            }
            self.drop_link(to, target);
        }
        self.entries(from).remove(&name);
        self.entries(to).insert(new_name, source);
        if self.is_directory(source) {
            self.node_mut(from).nlink -= 1;
            self.node_mut(to).nlink += 1;
        }
        if let Some(made) = whiteout {
            self.names.insert(made, Arc::new(self.new_node(from, Kind::Special, 0o20000)));
            self.entries(from).insert(name, made);
        }
        self.meta();
        if target.is_some() && self.node(source).kind == Kind::File {
            self.record(source, FileEvent::Barrier);
        }
        Ok(())
    }

    fn exchange(&mut self, old: &str, new: &str) -> Result<(), i32> {
        let (from, name) = self.place(old)?;
        let (to, new_name) = self.place(new)?;
        let source = self.child(from, &name)?.ok_or(ENOENT)?;
        let target = self.child(to, &new_name)?.ok_or(ENOENT)?;
        if source == target {
            return Ok(());
        }
        let cycle = self.is_directory(source) && self.contains(source, to)
            || self.is_directory(target) && self.contains(target, from);
        if from != to && cycle {
            return Err(EINVAL);
        }
        self.entries(from).insert(name, target);
        self.entries(to).insert(new_name, source);
        for (ino, leaves, enters) in [(source, from, to), (target, to, from)] {
            if self.is_directory(ino) {
                self.node_mut(leaves).nlink -= 1;
                self.node_mut(enters).nlink += 1;
            }
        }
        self.meta();
        Ok(())
    }

    /// Whether the contract allows a volume that looks like this after a crash by which `acknowledged` syncs had
    /// returned 0.
    pub fn judge(&self, view: &View, acknowledged: usize) -> Result<(), Violation> {
        self.judge_up_to(view, acknowledged, self.metas())
    }

    /// The same, if nothing behind the first `may` metadata operations can be there.
    pub fn judge_up_to(&self, view: &View, acknowledged: usize, may: usize) -> Result<(), Violation> {
        let must = if acknowledged == 0 { 0 } else { self.syncs[acknowledged - 1] };
        self.judge_in(view, acknowledged, must..=may)
    }

    /// Whether a crash at this moment could have left a volume like this, if all metadata operations are there and all
    /// syncs were acknowledged.
    pub fn judge_now(&self, view: &View) -> Result<(), Violation> {
        self.judge_in(view, self.syncs(), self.metas()..=self.metas())
    }

    fn judge_in(
        &self,
        view: &View,
        acknowledged: usize,
        prefixes: RangeInclusive<usize>,
    ) -> Result<(), Violation> {
        let (must, may) = prefixes.into_inner();
        let hash = hash_of(&view.names);
        let mut wrong = Vec::new();
        assert!(must <= may, "what must be there may be there");
        for prefix in must..=may {
            let snapshot = &self.snapshots[prefix];
            if snapshot.hash != hash || snapshot.names != view.names {
                continue;
            }
            match self.judge_contents(view, prefix, acknowledged) {
                Ok(()) => return Ok(()),
                Err(violation) => wrong.push((prefix, violation)),
            }
        }
        if !wrong.is_empty() {
            return Err(Violation::NotInAny(wrong));
        }
        let distances = (must..=may).map(|prefix| {
            let lines = differences(&self.snapshots[prefix].names, &view.names);
            (lines.len(), prefix, lines)
        });
        let (_, prefix, lines) = distances.min().expect("at least one prefix is allowed");
        let difference = format!("nearest is prefix {prefix}: {}", lines.join(", "));
        Err(Violation::NoPrefix { must, may, difference })
    }

    fn judge_contents(&self, view: &View, prefix: usize, acknowledged: usize) -> Result<(), Violation> {
        for (file, bytes) in &view.contents {
            let history = self.files.get(file).expect("the names are those of a snapshot");
            history
                .judge(bytes, prefix, acknowledged)
                .map_err(|wrong| Violation::Content { file: *file, wrong })?;
        }
        for (ino, got) in &view.stamps {
            if let Some(history) =
                self.stamps.get(ino).filter(|known| !known.allows(got, prefix, acknowledged))
            {
                return Err(Violation::Times { ino: *ino, got: *got, newest: history.current() });
            }
        }
        Ok(())
    }
}

/// How one volume differs from another, in words.
pub fn difference(want: &View, got: &View) -> String {
    let mut lines = differences(&want.names, &got.names);
    for (file, content) in &want.contents {
        let Some(other) = got.contents.get(file) else { continue };
        if let Some(at) = content.difference(other) {
            let (want, got) = (content.size(), other.size());
            lines.push(format!("file {file} has size {got}, not {want}, and differs first at {at}"));
        }
    }
    for (ino, stamp) in &want.stamps {
        if let Some(other) = got.stamps.get(ino).filter(|other| *other != stamp) {
            lines.push(format!("times of inode {ino} are {other:?}, not {stamp:?}"));
        }
    }
    lines.join(", ")
}

fn differences(want: &Names, got: &Names) -> Vec<String> {
    let mut lines = Vec::new();
    for (ino, node) in want {
        match got.get(ino) {
            None => lines.push(format!("inode {ino} is missing ({node:?})")),
            Some(other) if other != node => lines.push(format!("inode {ino} is {other:?}, not {node:?}")),
            Some(_) => {}
        }
    }
    let extra = got.iter().filter(|(ino, _)| !want.contains_key(ino));
    lines.extend(extra.map(|(ino, node)| format!("inode {ino} should not be ({node:?})")));
    lines
}
