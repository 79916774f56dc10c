//! Uses a volume in every way, whatever is on it: walks and reads it, then changes, syncs and closes it.

use crate::session::SeededEntropy;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use syncline::{Context, Error, FallocateMode, RenameFlags, SetAttr, SyncScope, Timestamp};
use syncline_format::checksum;
use syncline_format::item::{MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK, MODE_TYPE_MASK};
use syncline_fs::{Fs, ObjectNo, OpenFlags, SeekWhat, SetXattr, SnapshotData};
use syncline_store::StoreError;

/// What a walk looks at, at most.
const INODES_MAX: usize = 256;
const ENTRIES_MAX: usize = 1024;
const READS_PER_FILE_MAX: usize = 24;
const READ_BYTES: usize = 64 << 10;
/// Names that the changes are tried on.
const VICTIMS_MAX: usize = 12;
/// Snapshots and heads that are looked at.
const TREES_MAX: usize = 8;
const MAINTAIN_ROUNDS_MAX: usize = 8;

/// Whether a volume could be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Used {
    /// Without an error that tells of damage.
    Well,
    /// It is damaged, says the engine.
    Damaged(String),
}

/// Whether an error tells of damage.
pub fn judge(error: &Error) -> Used {
    match error {
        Error::Checksum { .. } | Error::Inconsistent { .. } | Error::Format(_) => {
            Used::Damaged(error.to_string())
        }
        Error::Store(StoreError::Failed { .. } | StoreError::ShutDown | StoreError::Pressure(_)) => {
            Used::Well
        }
        Error::Store(_) | Error::Device(_) | Error::Stale => Used::Damaged(error.to_string()),
        _ => Used::Well,
    }
}

/// A name that was found.
#[derive(Debug, Clone)]
struct Found {
    parent: ObjectNo,
    name: Vec<u8>,
    inode: ObjectNo,
    mode: u32,
    size: u64,
}

struct Walker<'a> {
    fs: &'a Fs,
    context: Context,
    used: Used,
    /// Things are being removed, and numbers of what is gone are stale as they should be.
    removing: bool,
    /// Of all that was read of files.
    sum: u64,
}

/// Walks the volume and, if it is writable, changes and closes it.
pub fn exercise(fs: &Fs, read_only: bool) -> Used {
    let mut walker = Walker::of(fs);
    let found = walker.walk();
    let before = walker.snapshots();
    walker.differences();
    if !read_only {
        walker.removing = true;
        walker.change(&found);
        walker.removing = false;
        walker.walk();
        walker.maintain();
        walker.branch(&before);
        walker.delete_trees();
        walker.note(fs.sync_all());
        walker.note(fs.checkpoint());
    }
    let closed = fs.close();
    walker.note(closed);
    let _ = fs.stats();
    walker.used
}

impl<'a> Walker<'a> {
    fn of(fs: &'a Fs) -> Walker<'a> {
        Walker { fs, context: Context::root(), used: Used::Well, removing: false, sum: 0 }
    }

    /// What each snapshot shows, by a sum; of those that cannot be read nothing.
    fn snapshots(&mut self) -> BTreeMap<String, u64> {
        let mut shown = BTreeMap::new();
        for snapshot in self.fs.snapshots().into_iter().take(TREES_MAX) {
            let Some(view) = self.note(self.fs.at(&snapshot.name)) else { continue };
            let mut walker = Walker::of(&view);
            walker.walk();
            match walker.used {
                Used::Well => drop(shown.insert(snapshot.name, walker.sum)),
                damaged if self.used == Used::Well => self.used = damaged,
                Used::Damaged(_) => {}
            }
        }
        shown
    }

    fn differences(&mut self) {
        let names: Vec<String> = self.fs.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
        for pair in names.windows(2).take(TREES_MAX) {
            let entropy = SeededEntropy::new(1);
            self.note(self.fs.difference(&pair[0], Some(&pair[1]), pair[0].len() % 2 == 0, &entropy));
            self.note(self.fs.difference(&pair[1], Some(&pair[0]), false, &entropy));
        }
    }

    /// Makes a snapshot and a head of an old one, changes that, and looks whether snapshots show what they did.
    fn branch(&mut self, before: &BTreeMap<String, u64>) {
        if !self.fs.can_have_snapshots() {
            return;
        }
        let entropy = SeededEntropy::new(2);
        self.note(self.fs.snapshot("zz-made", SnapshotData::Written, &entropy));
        for head in self.fs.heads().list().into_iter().filter(|head| !head.is_default).take(TREES_MAX) {
            let Some(head) = self.note(self.fs.heads().open(&head.name)) else { continue };
            self.alter_head(head.fs());
        }
        if let Some(of) = before.keys().next()
            && self.note(self.fs.heads().make(of, "zz-head", &entropy)).is_some()
            && let Some(head) = self.note(self.fs.heads().open("zz-head"))
        {
            self.alter_head(head.fs());
        }
        let after = self.snapshots();
        for (name, sum) in before {
            // One that cannot be read any more has told so.
            assert!(after.get(name).is_none_or(|now| now == sum), "snapshot {name} shows something else");
        }
    }

    fn alter_head(&mut self, fs: &Fs) {
        let mut walker = Walker::of(fs);
        let found = walker.walk();
        walker.removing = true;
        walker.change(&found);
        walker.note(fs.sync_all());
        if self.used == Used::Well {
            self.used = walker.used;
        }
    }

    /// Deletes heads and every other snapshot, and takes apart what is to go.
    fn delete_trees(&mut self) {
        for head in self.fs.heads().list().into_iter().filter(|head| !head.is_default).take(TREES_MAX) {
            self.note(self.fs.heads().delete(&head.name));
        }
        for snapshot in self.fs.snapshots().into_iter().step_by(2).take(TREES_MAX) {
            self.note(self.fs.delete_snapshot(&snapshot.name));
        }
        self.note(self.fs.reclaim());
    }

    /// Keeps the first error that tells of damage.
    #[track_caller]
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if self.used == Used::Well && !(self.removing && matches!(error, Error::Stale)) {
                    self.used = match judge(&error) {
                        Used::Well => Used::Well,
                        Used::Damaged(what) => {
                            Used::Damaged(format!("{what} (line {})", std::panic::Location::caller().line()))
                        }
                    };
                }
                None
            }
        }
    }

    fn walk(&mut self) -> Vec<Found> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::from([ObjectNo::ROOT_DIR]);
        let mut pending = vec![ObjectNo::ROOT_DIR];
        self.note(self.fs.attributes().getattr(ObjectNo::ROOT_DIR));
        while let Some(directory) = pending.pop() {
            for (name, inode) in self.list(directory) {
                let Some(entry) = self.note(self.fs.names().lookup(directory, &name)) else { continue };
                let (mode, size) = (entry.attr.mode, entry.attr.size);
                let is_new = seen.insert(inode);
                // Inodes that were looked at longer ago may have left the memory, and with them by which name they
                // were found.
                if mode & MODE_TYPE_MASK == MODE_DIRECTORY && seen.len() < INODES_MAX {
                    assert!(is_new, "a walk comes to directory {inode} by two ways");
                }
                found.push(Found { parent: directory, name, inode, mode, size });
                if !is_new || seen.len() > INODES_MAX {
                    continue;
                }
                self.attributes(inode);
                match mode & MODE_TYPE_MASK {
                    MODE_DIRECTORY => pending.push(inode),
                    MODE_REGULAR => self.read(inode, size),
                    MODE_SYMLINK => drop(self.note(self.fs.attributes().readlink(inode))),
                    _ => {}
                }
            }
        }
        found
    }

    fn list(&mut self, directory: ObjectNo) -> Vec<(Vec<u8>, ObjectNo)> {
        let mut entries = Vec::new();
        let Some(handle) = self.note(self.fs.files().opendir(directory)) else { return entries };
        let read = self.fs.names().readdir(handle, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push((entry.name.to_vec(), entry.inode));
            }
            if entries.len() == ENTRIES_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.note(read);
        let (mut count, mut last) = (0, 1);
        let read = self.fs.names().readdir_plus(handle, 1, &mut |entry, _| {
            count += 1;
            assert!(entry.cookie > last && entry.cookie < i64::MAX as u64, "cookie {}", entry.cookie);
            last = entry.cookie;
            if count < ENTRIES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        self.note(read);
        self.note(self.fs.files().release(handle));
        entries
    }

    fn attributes(&mut self, inode: ObjectNo) {
        self.note(self.fs.attributes().getattr(inode));
        self.note(self.fs.attributes().inode_flags(inode));
        let Some(names) = self.note(self.fs.attributes().list_xattrs(&self.context, inode)) else { return };
        for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            self.note(self.fs.attributes().xattr(&self.context, inode, name));
        }
        self.note(self.fs.attributes().xattr(&self.context, inode, b"system.posix_acl_access"));
    }

    fn read(&mut self, inode: ObjectNo, size: u64) {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let Some(handle) = self.note(self.fs.files().open_handle(&self.context, inode, flags)) else {
            return;
        };
        let mut buffer = vec![0; READ_BYTES];
        let mut at = 0;
        for _ in 0..READS_PER_FILE_MAX {
            let Some(data) = self.note(self.fs.files().seek(handle, at, SeekWhat::Data)) else { break };
            let Some(hole) = self.note(self.fs.files().seek(handle, data, SeekWhat::Hole)) else { break };
            assert!(data >= at && hole > data && hole <= size, "data {data} to {hole} behind {at} of {size}");
            let Some(count) = self.note(self.fs.files().read(handle, data, &mut buffer)) else { break };
            assert!(count > 0, "there is data at {data}");
            self.sum = self.sum.rotate_left(5) ^ checksum(&buffer[..count]) ^ data;
            at = data + count as u64;
        }
        for offset in [0, size / 2, size.saturating_sub(1), size, u64::MAX / 2, u64::MAX] {
            let count = self.note(self.fs.files().read(handle, offset, &mut buffer[..5000]));
            assert!(count.is_none_or(|count| count as u64 <= size.saturating_sub(offset)), "beyond the end");
        }
        self.note(self.fs.files().release(handle));
    }

    fn change(&mut self, found: &[Found]) {
        let step = (found.len() / VICTIMS_MAX).max(1);
        let victims: Vec<_> = found.iter().step_by(step).take(VICTIMS_MAX).cloned().collect();
        self.make(ObjectNo::ROOT_DIR, b"zz-new");
        for (number, victim) in victims.iter().enumerate() {
            self.alter_inode(victim, number);
            match victim.mode & MODE_TYPE_MASK {
                MODE_REGULAR => self.alter_content(victim, number),
                MODE_DIRECTORY => self.make(victim.inode, b"zz-inner"),
                _ => {}
            }
        }
        self.maintain();
        self.note(self.fs.sync_all());
        for (number, victim) in victims.iter().enumerate() {
            self.alter_names(victim, number);
        }
        self.note(self.fs.checkpoint());
        for victim in &victims {
            self.note(self.fs.names().unlink(victim.parent, &victim.name));
            self.note(self.fs.names().rmdir(victim.parent, &victim.name));
        }
    }

    fn maintain(&mut self) {
        for _ in 0..MAINTAIN_ROUNDS_MAX {
            let now = Timestamp { seconds: 4_000_000_000, nanoseconds: 0 };
            if self.note(self.fs.maintain(now, 1 << 20)) != Some(true) {
                break;
            }
        }
    }

    /// A directory, a file with content and a link to it.
    fn make(&mut self, parent: ObjectNo, name: &[u8]) {
        let (fs, context) = (self.fs, self.context.clone());
        self.note(fs.names().mkdir(&context, parent, &[name, b"-d"].concat(), 0o755));
        self.note(fs.names().symlink(&context, parent, &[name, b"-l"].concat(), b"target"));
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let Some((entry, handle)) = self.note(fs.names().create(&context, parent, name, 0o644, flags)) else {
            return;
        };
        self.note(fs.files().write(&context, handle, 0, &[b'z'; 10_000]));
        self.note(fs.files().sync_handle(handle, SyncScope::All));
        self.note(fs.files().write(&context, handle, 300_000, &[b'y'; 50_000]));
        self.note(fs.files().release(handle));
        self.note(fs.names().link(entry.attr.inode, parent, &[name, b"-2"].concat()));
    }

    fn alter_inode(&mut self, victim: &Found, number: usize) {
        let (fs, context) = (self.fs, self.context.clone());
        let size = number.is_multiple_of(3).then_some(victim.size / 2);
        let set = SetAttr { mode: Some(0o600), uid: Some(7), size, ..SetAttr::default() };
        self.note(fs.attributes().setattr(&context, victim.inode, &set, None));
        self.note(fs.attributes().set_xattr(
            &context,
            victim.inode,
            b"user.new",
            &[b'v'; 5000],
            SetXattr::Any,
        ));
        self.note(fs.attributes().set_xattr(&context, victim.inode, b"user.small", b"v", SetXattr::Any));
        self.note(fs.attributes().remove_xattr(&context, victim.inode, b"user.new"));
        self.note(fs.attributes().set_inode_flags(&context, victim.inode, 0));
        self.note(fs.files().sync_inode(victim.inode, SyncScope::Data));
    }

    fn alter_content(&mut self, victim: &Found, number: usize) {
        let (fs, context) = (self.fs, self.context.clone());
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let Some(handle) = self.note(fs.files().open_handle(&context, victim.inode, flags)) else { return };
        for at in [0, victim.size / 2, victim.size, victim.size.saturating_add(100_000)] {
            self.note(fs.files().write(&context, handle, at, &[b'w'; 9000]));
        }
        self.note(fs.files().sync_handle(handle, SyncScope::All));
        let modes = [
            FallocateMode::Allocate { keep_size: true },
            FallocateMode::PunchHole,
            FallocateMode::ZeroRange { keep_size: false },
            FallocateMode::CollapseRange,
            FallocateMode::InsertRange,
        ];
        for offset in [0, victim.size / 4096 / 2 * 4096] {
            self.note(fs.files().fallocate(&context, handle, modes[number % modes.len()], offset, 8192));
        }
        self.note(fs.files().copy_file_range(&context, (handle, 0), (handle, 1 << 20), 20_000));
        self.note(fs.files().sync_handle(handle, SyncScope::Data));
        self.note(fs.files().write(&context, handle, victim.size / 3, b"left dirty"));
        self.note(fs.files().release(handle));
    }

    fn alter_names(&mut self, victim: &Found, number: usize) {
        let (fs, context) = (self.fs, self.context.clone());
        let other = format!("zz-{number}");
        self.note(fs.names().link(victim.inode, ObjectNo::ROOT_DIR, other.as_bytes()));
        let flags =
            RenameFlags { exchange: number % 4 == 1, whiteout: number % 4 == 2, no_replace: number % 4 == 3 };
        let renamed = format!("zz-new{}", ["", "-l", "-d", "-9"][number % 4]);
        let target = renamed.as_bytes();
        self.note(fs.names().rename(
            &context,
            victim.parent,
            &victim.name,
            ObjectNo::ROOT_DIR,
            target,
            flags,
        ));
        self.note(fs.names().unlink(ObjectNo::ROOT_DIR, other.as_bytes()));
    }
}
