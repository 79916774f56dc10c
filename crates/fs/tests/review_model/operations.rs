//! One random operation, on the volume and on the model.

use crate::Run;
use crate::device::Random;
use crate::model::{Cause, File, Kind, Node, Number, PAGE};
use std::collections::BTreeMap;
use syncline::{
    Clock, Context, Error, FallocateMode, HandleId, ObjectNo, OpenFlags, RenameFlags, SetAttr, SetXattr,
    SyncScope,
};

const NAMES: [&str; 8] =
    ["a", "b", "c", "d", "e", "f", "g", "a-name-that-is-a-little-longer-than-the-others"];
const NO_SPACE: i32 = 28;

fn file_node(mode: u32) -> Node {
    Node { mode, nlink: 1, xattrs: BTreeMap::new(), kind: Kind::File }
}

fn errno<T>(result: Result<T, Error>) -> Result<T, i32> {
    result.map_err(|error| {
        if error.errno() == 5 {
            eprintln!("{error:?}");
        }
        error.errno()
    })
}

impl Run {
    fn say(&mut self, what: String) {
        self.log.push(format!("{:4} {what}", self.step));
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.random.below(NAMES.len() as u64) as usize]
    }

    fn directory(&mut self) -> Number {
        let all: Vec<Number> =
            self.names.nodes.keys().copied().filter(|&number| self.names.is_directory(number)).collect();
        if self.random.one_in(2) { self.root } else { all[self.random.below(all.len() as u64) as usize] }
    }

    /// A random entry.
    fn entry(&mut self) -> Option<(Number, String, Number)> {
        let all: Vec<(Number, String, Number)> = self
            .names
            .nodes
            .keys()
            .filter(|&&number| self.names.is_directory(number))
            .flat_map(|&number| {
                self.names.entries(number).iter().map(move |(name, &to)| (number, name.clone(), to))
            })
            .collect();
        if all.is_empty() { None } else { Some(all[self.random.below(all.len() as u64) as usize].clone()) }
    }

    fn file(&mut self) -> Option<Number> {
        let all = self.live_files();
        if all.is_empty() { None } else { Some(all[self.random.below(all.len() as u64) as usize]) }
    }

    /// A change of names that says how far the log got.
    pub fn mark(&mut self) {
        let value = self.step.to_string().into_bytes();
        match self.fs.set_xattr(&Context::root(), ObjectNo(self.root), b"user.step", &value, SetXattr::Any) {
            Ok(()) => {
                let node = self.names.nodes.get_mut(&self.root).expect("root");
                node.xattrs.insert("user.step".into(), value);
            }
            Err(error) => assert_eq!(error.errno(), NO_SPACE),
        }
        self.history.insert(self.step, self.names.clone());
        self.step += 1;
    }

    pub fn operation(&mut self) {
        match self.random.below(40) {
            0..4 => self.create(),
            4 | 5 => self.make_other(),
            6 | 7 => self.unlink(),
            8 => self.rmdir(),
            9 => self.link(),
            10..13 => self.rename(),
            13 => self.attributes(),
            14 => self.temporary(),
            15..22 => self.write(),
            22 | 23 => self.append(),
            24..26 => self.truncate(),
            26..29 => self.allocate(),
            29..33 => self.sync(),
            33 => self.sync_all(),
            34 | 35 => self.maintain(),
            36 => self.checkpoint(),
            37 => self.handle(),
            38 => self.copy(),
            _ => self.other_change(),
        }
    }

    fn create(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        self.say(format!("create {parent}/{name}"));
        let result =
            self.fs.create(&Context::root(), ObjectNo(parent), name.as_bytes(), 0o644, OpenFlags::READ_WRITE);
        if self.names.entries(parent).contains_key(name) {
            assert_eq!(errno(result), Err(17));
            return;
        }
        match errno(result) {
            Ok((entry, handle)) => {
                let number = entry.attr.inode.0;
                self.names.add(parent, name, number, file_node(0o100644));
                self.files.insert(number, File::new(self.step));
                if self.random.one_in(2) {
                    self.write_at(handle, number, None);
                }
                self.fs.release(handle).expect("release");
            }
            Err(error) => assert_eq!(error, NO_SPACE),
        }
    }

    fn make_other(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        let root = Context::root();
        let directory = ObjectNo(parent);
        let which = self.random.below(5);
        self.say(format!("make other {which} {parent}/{name}"));
        let (result, mode, nlink, kind) = match which {
            0 => {
                let target = vec![b'x'; 1 + self.random.below(3000) as usize];
                let result = self.fs.symlink(&root, directory, name.as_bytes(), &target);
                (result, 0o120777, 1, Kind::Symlink(target))
            }
            1 => {
                let result = self.fs.mknod(&root, directory, name.as_bytes(), 0o010600, 0);
                (result, 0o010600, 1, Kind::Other)
            }
            _ => {
                let result = self.fs.mkdir(&root, directory, name.as_bytes(), 0o755);
                (result, 0o040755, 2, Kind::Directory { parent, entries: BTreeMap::new() })
            }
        };
        if self.names.entries(parent).contains_key(name) {
            assert_eq!(errno(result), Err(17));
            return;
        }
        match errno(result) {
            Ok(entry) => {
                let node = Node { mode, nlink, xattrs: BTreeMap::new(), kind };
                self.names.add(parent, name, entry.attr.inode.0, node);
            }
            Err(error) => assert_eq!(error, NO_SPACE),
        }
    }

    fn unlink(&mut self) {
        let Some((parent, name, number)) = self.entry() else { return };
        self.say(format!("unlink {parent}/{name} ({number})"));
        let result = errno(self.fs.unlink(ObjectNo(parent), name.as_bytes()));
        if self.names.is_directory(number) {
            assert_eq!(result, Err(21));
            return;
        }
        // Removing must be possible on a full volume.
        assert_eq!(result, Ok(()));
        self.names.entries_mut(parent).remove(&name);
        self.names.unlink(number);
    }

    fn rmdir(&mut self) {
        let Some((parent, name, number)) = self.entry() else { return };
        self.say(format!("rmdir {parent}/{name} ({number})"));
        let result = errno(self.fs.rmdir(ObjectNo(parent), name.as_bytes()));
        if !self.names.is_directory(number) {
            assert_eq!(result, Err(20));
        } else if !self.names.entries(number).is_empty() {
            assert_eq!(result, Err(39));
        } else {
            assert_eq!(result, Ok(()));
            self.names.entries_mut(parent).remove(&name);
            self.names.unlink(number);
        }
    }

    fn link(&mut self) {
        let Some((_, _, number)) = self.entry() else { return };
        let (parent, name) = (self.directory(), self.name());
        self.say(format!("link {number} {parent}/{name}"));
        let result = errno(self.fs.link(ObjectNo(number), ObjectNo(parent), name.as_bytes()));
        if self.names.entries(parent).contains_key(name) {
            assert!(matches!(result, Err(17 | 1)), "{result:?}");
        } else if self.names.is_directory(number) {
            assert_eq!(result.map(drop), Err(1));
        } else if result.is_ok() {
            self.names.nodes.get_mut(&number).expect("a node").nlink += 1;
            self.names.entries_mut(parent).insert(name.to_owned(), number);
        } else {
            assert_eq!(result.map(drop), Err(NO_SPACE));
        }
    }

    fn rename(&mut self) {
        let Some((parent, name, number)) = self.entry() else { return };
        let (new_parent, new_name) = match self.random.below(2) {
            0 => self.entry().map(|(parent, name, _)| (parent, name)).expect("there is one"),
            _ => (self.directory(), self.name().to_owned()),
        };
        let which = self.random.below(8);
        let flags =
            RenameFlags { no_replace: which == 0, exchange: which == 1 || which == 2, whiteout: which == 3 };
        self.say(format!("rename {parent}/{name} ({number}) {new_parent}/{new_name} {flags:?}"));
        let mut names = self.names.clone();
        let target = names.entries(new_parent).get(&new_name).copied();
        let want = names.rename((parent, &name), (new_parent, &new_name), flags.no_replace, flags.exchange);
        let result = errno(self.fs.rename(
            &Context::root(),
            ObjectNo(parent),
            name.as_bytes(),
            ObjectNo(new_parent),
            new_name.as_bytes(),
            flags,
        ));
        if result == Err(NO_SPACE) && want.is_ok() {
            return;
        }
        assert_eq!(result, want);
        if result.is_err() || target == Some(number) {
            return;
        }
        if flags.whiteout {
            let entry = self.fs.lookup(ObjectNo(parent), name.as_bytes()).expect("a whiteout");
            let node = Node { mode: 0o020000, nlink: 1, xattrs: BTreeMap::new(), kind: Kind::Other };
            names.add(parent, &name, entry.attr.inode.0, node);
        }
        self.names = names;
        let step = self.step;
        // What replaces something has its data logged before (C3).
        for replaced in
            target.map(|target| [number, if flags.exchange { target } else { number }]).iter().flatten()
        {
            if let Some(file) = self.files.get_mut(replaced) {
                file.change(step, Cause::Logged, |_| ());
            }
        }
    }

    fn attributes(&mut self) {
        let Some((_, _, number)) = self.entry() else { return };
        let mode = self.random.below(0o1000) as u32;
        self.say(format!("chmod {number} {mode:o}"));
        let set = SetAttr { mode: Some(mode), uid: Some(7), ..SetAttr::default() };
        let result = errno(self.fs.setattr(&Context::root(), ObjectNo(number), &set, None));
        let node = self.names.nodes.get_mut(&number).expect("a node");
        match (&node.kind, result) {
            (Kind::Symlink(_), result) => assert_eq!(result.map(drop), Err(95)),
            (_, Ok(_)) => node.mode = node.mode & !0o7777 | mode,
            (_, Err(error)) => assert_eq!(error, NO_SPACE),
        }
    }

    fn other_change(&mut self) {
        let Some((_, _, number)) = self.entry() else { return };
        if !matches!(self.names.nodes[&number].kind, Kind::File | Kind::Directory { .. }) {
            return;
        }
        let value = vec![self.random.next() as u8; self.random.below(9000) as usize];
        let remove = self.random.one_in(3);
        self.say(format!("xattr {number} {} {remove}", value.len()));
        let root = Context::root();
        let result = match remove {
            true => self.fs.remove_xattr(&root, ObjectNo(number), b"user.x"),
            false => self.fs.set_xattr(&root, ObjectNo(number), b"user.x", &value, SetXattr::Any),
        };
        let xattrs = &mut self.names.nodes.get_mut(&number).expect("a node").xattrs;
        match (errno(result), remove) {
            (Ok(()), false) => drop(xattrs.insert("user.x".into(), value)),
            (Ok(()), true) => assert!(xattrs.remove("user.x").is_some()),
            (Err(61), true) => assert!(!xattrs.contains_key("user.x")),
            (Err(error), _) => assert_eq!(error, NO_SPACE),
        }
    }

    fn temporary(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        self.say(format!("tmpfile {parent}/{name}"));
        let directory = ObjectNo(parent);
        let made = self.fs.tmpfile(&Context::root(), directory, 0o600, OpenFlags::READ_WRITE, false);
        let Ok((entry, handle)) = made else {
            return assert_eq!(errno(made).map(drop), Err(NO_SPACE));
        };
        let number = entry.attr.inode.0;
        self.files.insert(number, File::new(self.step));
        self.write_at(handle, number, None);
        if self.random.one_in(3) {
            let size = self.random.below(10_000);
            self.set_size(handle, number, size);
        }
        if self.random.one_in(2) && !self.names.entries(parent).contains_key(name) {
            // Linking is a change of its own.
            self.history.insert(self.step, self.names.clone());
            self.step += 1;
            match errno(self.fs.link(ObjectNo(number), directory, name.as_bytes())) {
                Ok(_) => self.names.add(parent, name, number, file_node(0o100600)),
                Err(error) => assert_eq!(error, NO_SPACE),
            }
        }
        if self.random.one_in(2) {
            self.handles.push((handle, number));
        } else {
            self.fs.release(handle).expect("release");
        }
    }

    /// A handle for one operation, and the file: one that is kept open, or a new one.
    fn opened(&mut self) -> Option<(HandleId, Number, bool)> {
        if !self.handles.is_empty() && self.random.one_in(3) {
            let (handle, number) = self.handles[self.random.below(self.handles.len() as u64) as usize];
            return Some((handle, number, false));
        }
        let number = self.file()?;
        let flags = OpenFlags { dsync: self.random.one_in(8), ..OpenFlags::READ_WRITE };
        let handle = self.fs.open_handle(&Context::root(), ObjectNo(number), flags).expect("open");
        Some((handle, number, true))
    }

    fn done_with(&mut self, handle: HandleId, own: bool) {
        if own {
            self.fs.release(handle).expect("release");
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.random.below(if self.tight { 30 } else { 60 }) {
            0 => 1_300_000,
            1..20 => 20_000 + self.random.below(60_000),
            _ => 1 + self.random.below(7000),
        };
        let mut random = Random(self.random.next());
        let mut word = random.next() | 1;
        (0..len)
            .map(|at| {
                if at % 256 == 0 {
                    word = random.next() | 1;
                }
                (word.rotate_left(at as u32 % 64)) as u8 | 1
            })
            .collect()
    }

    fn offset(&mut self, number: Number) -> u64 {
        let size = self.files[&number].now().size;
        match self.random.below(4) {
            0 => size,
            1 => self.random.below(20) * PAGE,
            2 => self.random.below(120_000),
            _ => self.random.below(size + 1),
        }
    }

    /// Writes; `None` picks the place.
    fn write_at(&mut self, handle: HandleId, number: Number, at: Option<u64>) {
        let bytes = self.bytes();
        let offset = match at {
            Some(at) => at,
            None => self.offset(number),
        };
        self.say(format!("write {number} at {offset} len {}", bytes.len()));
        match errno(self.fs.write(&Context::root(), handle, offset, &bytes)) {
            Ok((at, count)) => {
                assert_eq!(at, offset);
                if count < bytes.len() {
                    self.say(format!("     only {count}"));
                }
                let step = self.step;
                let file = self.files.get_mut(&number).expect("a file");
                file.change(step, Cause::Data, |version| version.write(at, &bytes[..count]));
            }
            Err(error) => assert_eq!(error, NO_SPACE),
        }
    }

    fn write(&mut self) {
        let Some((handle, number, own)) = self.opened() else { return };
        self.write_at(handle, number, None);
        self.done_with(handle, own);
    }

    fn append(&mut self) {
        let Some(number) = self.file() else { return };
        let flags = OpenFlags { append: true, dsync: self.random.one_in(2), ..OpenFlags::READ_WRITE };
        let handle = self.fs.open_handle(&Context::root(), ObjectNo(number), flags).expect("open");
        let size = self.files[&number].now().size;
        self.write_at(handle, number, Some(size));
        if flags.dsync {
            self.synced(number);
        }
        self.fs.release(handle).expect("release");
    }

    fn set_size(&mut self, handle: HandleId, number: Number, size: u64) {
        self.say(format!("truncate {number} to {size}"));
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        match errno(self.fs.setattr(&Context::root(), ObjectNo(number), &set, Some(handle))) {
            Ok(_) => {
                let step = self.step;
                let file = self.files.get_mut(&number).expect("a file");
                let first = if size < file.now().size { size / PAGE } else { file.now().size.div_ceil(PAGE) };
                file.change(step, Cause::Resize { first }, |version| version.resize(size));
            }
            Err(error) => assert_eq!(error, NO_SPACE),
        }
    }

    fn truncate(&mut self) {
        let Some((handle, number, own)) = self.opened() else { return };
        let size = match self.random.below(3) {
            0 => self.offset(number),
            1 => self.random.below(10) * PAGE,
            _ => 0,
        };
        self.set_size(handle, number, size);
        self.done_with(handle, own);
    }

    /// Grows a file: what was beyond its end must not show.
    pub fn extend(&mut self, number: Number) {
        let handle = self.fs.open_handle(&Context::root(), ObjectNo(number), OpenFlags::READ_WRITE);
        let handle = handle.expect("open");
        let size = self.files[&number].now().size + 1 + self.random.below(40_000);
        self.set_size(handle, number, size);
        self.fs.release(handle).expect("release");
    }

    fn allocate(&mut self) {
        let Some((handle, number, own)) = self.opened() else { return };
        let size = self.files[&number].now().size;
        let mut offset = self.offset(number);
        let mut len = 1 + self.random.below(60_000);
        let keep_size = self.random.one_in(2);
        let (mode, valid) = match self.random.below(6) {
            0 => (FallocateMode::Allocate { keep_size }, true),
            1 | 2 => (FallocateMode::PunchHole, true),
            3 => (FallocateMode::ZeroRange { keep_size }, true),
            4 => {
                (offset, len) = (offset / PAGE * PAGE, len / PAGE * PAGE + PAGE);
                (FallocateMode::CollapseRange, offset + len < size)
            }
            _ => {
                (offset, len) = (offset / PAGE * PAGE, len / PAGE * PAGE + PAGE);
                (FallocateMode::InsertRange, offset < size)
            }
        };
        let end = offset + len;
        self.say(format!("fallocate {number} {mode:?} {offset}..{end}, size {size}"));
        let result = errno(self.fs.fallocate(&Context::root(), handle, mode, offset, len));
        let step = self.step;
        let file = self.files.get_mut(&number).expect("a file");
        match result {
            Err(NO_SPACE) => {
                // Some of it may be done.
                let mut found = vec![0; size as usize];
                assert_eq!(self.fs.read(handle, 0, &mut found), Ok(found.len()));
                file.change(step, Cause::Data, |version| version.write(0, &found));
            }
            Err(error) => assert!(!valid && error == 22, "{error}"),
            Ok(()) => {
                assert!(valid);
                let pages = (offset.div_ceil(PAGE), (end / PAGE).max(offset.div_ceil(PAGE)));
                let grows = !keep_size && end > size;
                match mode {
                    FallocateMode::Allocate { .. } => {
                        let cause = Cause::Pages { first: 0, end: 0, sets_size: grows };
                        file.change(step, cause, |version| {
                            if grows {
                                version.resize(end)
                            }
                        });
                    }
                    FallocateMode::PunchHole | FallocateMode::ZeroRange { .. } => {
                        let grows = grows && mode != FallocateMode::PunchHole;
                        let cause = Cause::Pages { first: pages.0, end: pages.1, sets_size: grows };
                        file.change(step, cause, |version| {
                            if offset < size {
                                version.write(offset, &vec![0; (end.min(size) - offset) as usize]);
                            }
                            if grows {
                                version.resize(end);
                            }
                        });
                    }
                    FallocateMode::CollapseRange | FallocateMode::InsertRange => {
                        file.change(step, Cause::Resize { first: 0 }, |version| {
                            let (first, count) = ((offset / PAGE) as usize, (len / PAGE) as usize);
                            if mode == FallocateMode::CollapseRange {
                                version.pages.drain(first..first + count);
                                version.size -= len;
                            } else {
                                let zeros = std::iter::repeat_n(vec![0; PAGE as usize].into(), count);
                                version.pages.splice(first..first, zeros);
                                version.size += len;
                            }
                        });
                    }
                }
            }
        }
        self.done_with(handle, own);
    }

    /// A sync that returned: not to be believed if the power went off during it.
    fn synced(&mut self, number: Number) {
        if !self.device.is_off() {
            let file = self.files.get_mut(&number).expect("a file");
            file.synced = file.versions.len() - 1;
            // The names of this step are complete before the sync is.
            self.history.insert(self.step, self.names.clone());
            self.durable = self.step;
        }
    }

    fn sync(&mut self) {
        if self.random.one_in(5) {
            let directory = self.directory();
            self.say(format!("fsync directory {directory}"));
            self.fs.sync_inode(ObjectNo(directory), SyncScope::All).expect("fsync");
            if !self.device.is_off() {
                self.durable = self.step;
            }
            return;
        }
        let Some((handle, number, own)) = self.opened() else { return };
        let scope = if self.random.one_in(2) { SyncScope::All } else { SyncScope::Data };
        self.say(format!("fsync {number} {scope:?}"));
        self.fs.sync_handle(handle, scope).expect("fsync");
        self.synced(number);
        self.done_with(handle, own);
    }

    fn sync_all(&mut self) {
        self.say("sync".into());
        self.fs.sync_all().expect("sync");
        let numbers: Vec<Number> = self.files.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.synced(number));
        if !self.device.is_off() {
            self.durable = self.step;
        }
    }

    fn maintain(&mut self) {
        let mut now = self.clock.now();
        now.seconds += [0, 2, 7, 40][self.random.below(4) as usize];
        let budget = 1 + self.random.below(3) as usize;
        self.say(format!("maintain {now:?} {budget}"));
        self.fs.maintain(now, budget).expect("maintain");
    }

    fn checkpoint(&mut self) {
        self.say("checkpoint".into());
        self.fs.checkpoint().expect("checkpoint");
    }

    /// Opens one more handle to keep, or closes one.
    fn handle(&mut self) {
        if self.handles.len() > 3 || !self.handles.is_empty() && self.random.one_in(2) {
            let position = self.random.below(self.handles.len() as u64) as usize;
            let (handle, number) = self.handles.swap_remove(position);
            self.say(format!("close {number}"));
            self.fs.release(handle).expect("release");
        } else if let Some(number) = self.file() {
            self.say(format!("open {number}"));
            let opened = self.fs.open_handle(&Context::root(), ObjectNo(number), OpenFlags::READ_WRITE);
            self.handles.push((opened.expect("open"), number));
        }
    }

    fn copy(&mut self) {
        let Some((handle, number, own)) = self.opened() else { return };
        let Some((target, to, own_target)) = self.opened() else { return self.done_with(handle, own) };
        let (from_at, to_at) = (self.offset(number), self.offset(to));
        let len = 1 + self.random.below(30_000);
        self.say(format!("copy {number}@{from_at} to {to}@{to_at} len {len}"));
        let source = self.files[&number].now().clone();
        let overlaps = number == to && from_at < to_at + len && to_at < from_at + len;
        let result =
            errno(self.fs.copy_file_range(&Context::root(), (handle, from_at), (target, to_at), len));
        match result {
            Ok(count) => {
                assert!(!overlaps);
                let bytes = source.bytes(from_at, from_at + count);
                assert!(count <= source.size.saturating_sub(from_at));
                let step = self.step;
                if count > 0 {
                    let file = self.files.get_mut(&to).expect("a file");
                    file.change(step, Cause::Data, |version| version.write(to_at, &bytes));
                }
            }
            Err(22) => assert!(overlaps),
            Err(error) => assert_eq!(error, NO_SPACE),
        }
        self.done_with(handle, own);
        self.done_with(target, own_target);
    }
}
