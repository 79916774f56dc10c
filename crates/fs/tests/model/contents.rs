//! Operations on the content of files, and syncs.

use crate::Run;
use crate::device::Random;
use crate::model::{Cause, Number, PAGE};
use crate::operations::{NO_SPACE, errno};
use syncline_fs::{Clock, Context, FallocateMode, HandleId, ObjectNo, OpenFlags, SetAttr, SyncScope};

impl Run {
    /// A handle for one operation, and the file: one that is kept open, or a new one.
    pub fn opened(&mut self) -> Option<(HandleId, Number, bool)> {
        if !self.handles.is_empty() && self.random.one_in(3) {
            let (handle, number) = self.handles[self.random.below(self.handles.len() as u64) as usize];
            return Some((handle, number, false));
        }
        let number = self.file()?;
        let flags = OpenFlags { dsync: self.random.one_in(8), ..OpenFlags::READ_WRITE };
        let handle = self.fs.files().open_handle(&Context::root(), ObjectNo(number), flags).expect("open");
        Some((handle, number, true))
    }

    pub fn done_with(&mut self, handle: HandleId, own: bool) {
        if own {
            self.fs.files().release(handle).expect("release");
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

    /// Writes; `None` picks the place. False if there was no space.
    pub fn write_at(&mut self, handle: HandleId, number: Number, at: Option<u64>) -> bool {
        let bytes = self.bytes();
        let offset = match at {
            Some(at) => at,
            None => self.offset(number),
        };
        self.say(format!("write {number} at {offset} len {}", bytes.len()));
        match errno(self.fs.files().write(&Context::root(), handle, offset, &bytes)) {
            Ok((at, count)) => {
                assert_eq!(at, offset);
                if count < bytes.len() {
                    self.say(format!("     only {count}"));
                }
                let step = self.step;
                let file = self.files.get_mut(&number).expect("a file");
                file.change(step, Cause::Data, |version| version.write(at, &bytes[..count]));
                true
            }
            Err(error) => {
                assert_eq!(error, NO_SPACE);
                false
            }
        }
    }

    pub fn write(&mut self) {
        let Some((handle, number, own)) = self.opened() else { return };
        self.write_at(handle, number, None);
        self.done_with(handle, own);
    }

    pub fn append(&mut self) {
        let Some(number) = self.file() else { return };
        let flags = OpenFlags { append: true, dsync: self.random.one_in(2), ..OpenFlags::READ_WRITE };
        let handle = self.fs.files().open_handle(&Context::root(), ObjectNo(number), flags).expect("open");
        let size = self.files[&number].now().size;
        if self.write_at(handle, number, Some(size)) && flags.dsync {
            self.synced(number);
        }
        self.fs.files().release(handle).expect("release");
    }

    pub fn set_size(&mut self, handle: HandleId, number: Number, size: u64) {
        self.say(format!("truncate {number} to {size}"));
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        match errno(self.fs.attributes().setattr(&Context::root(), ObjectNo(number), &set, Some(handle))) {
            Ok(_) => {
                let step = self.step;
                let file = self.files.get_mut(&number).expect("a file");
                let first = if size < file.now().size { size / PAGE } else { file.now().size.div_ceil(PAGE) };
                file.change(step, Cause::Resize { first }, |version| version.resize(size));
            }
            Err(error) => assert_eq!(error, NO_SPACE),
        }
    }

    pub fn truncate(&mut self) {
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
        let handle = self.fs.files().open_handle(&Context::root(), ObjectNo(number), OpenFlags::READ_WRITE);
        let handle = handle.expect("open");
        let size = self.files[&number].now().size + 1 + self.random.below(40_000);
        self.set_size(handle, number, size);
        self.fs.files().release(handle).expect("release");
    }

    pub fn allocate(&mut self) {
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
        let result = errno(self.fs.files().fallocate(&Context::root(), handle, mode, offset, len));
        let step = self.step;
        let file = self.files.get_mut(&number).expect("a file");
        match result {
            Err(NO_SPACE) => {
                // Some of it may be done.
                let mut found = vec![0; size as usize];
                assert_eq!(self.fs.files().read(handle, 0, &mut found), Ok(found.len()));
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

    pub fn sync(&mut self) {
        if self.random.one_in(5) {
            let directory = self.directory();
            self.say(format!("fsync directory {directory}"));
            self.fs.files().sync_inode(ObjectNo(directory), SyncScope::All).expect("fsync");
            if !self.device.is_off() {
                self.durable = self.step;
            }
            return;
        }
        let Some((handle, number, own)) = self.opened() else { return };
        let scope = if self.random.one_in(2) { SyncScope::All } else { SyncScope::Data };
        self.say(format!("fsync {number} {scope:?}"));
        self.fs.files().sync_handle(handle, scope).expect("fsync");
        self.synced(number);
        self.done_with(handle, own);
    }

    pub fn sync_all(&mut self) {
        self.say("sync".into());
        self.fs.sync_all().expect("sync");
        let numbers: Vec<Number> = self.files.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.synced(number));
        if !self.device.is_off() {
            self.durable = self.step;
        }
    }

    pub fn maintain(&mut self) {
        let mut now = self.clock.now();
        now.seconds += [0, 2, 7, 40][self.random.below(4) as usize];
        let budget = 1 + self.random.below(3) as usize;
        self.say(format!("maintain {now:?} {budget}"));
        self.fs.maintain(now, budget).expect("maintain");
    }

    pub fn checkpoint(&mut self) {
        self.say("checkpoint".into());
        self.fs.checkpoint().expect("checkpoint");
    }

    /// Opens one more handle to keep, or closes one.
    pub fn handle(&mut self) {
        if self.handles.len() > 3 || !self.handles.is_empty() && self.random.one_in(2) {
            let position = self.random.below(self.handles.len() as u64) as usize;
            let (handle, number) = self.handles.swap_remove(position);
            self.say(format!("close {number}"));
            self.fs.files().release(handle).expect("release");
        } else if let Some(number) = self.file() {
            self.say(format!("open {number}"));
            let opened =
                self.fs.files().open_handle(&Context::root(), ObjectNo(number), OpenFlags::READ_WRITE);
            self.handles.push((opened.expect("open"), number));
        }
    }

    pub fn copy(&mut self) {
        let Some((handle, number, own)) = self.opened() else { return };
        let Some((target, to, own_target)) = self.opened() else { return self.done_with(handle, own) };
        let (from_at, to_at) = (self.offset(number), self.offset(to));
        let len = 1 + self.random.below(30_000);
        self.say(format!("copy {number}@{from_at} to {to}@{to_at} len {len}"));
        let source = self.files[&number].now().clone();
        let overlaps = number == to && from_at < to_at + len && to_at < from_at + len;
        let result =
            errno(self.fs.files().copy_file_range(&Context::root(), (handle, from_at), (target, to_at), len));
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
