//! What the volume has to look like: names and attributes after every step, and every version of every file.

use std::collections::BTreeMap;
use std::sync::Arc;

pub type Number = u64;
pub const PAGE: u64 = 4096;

/// A name space at one moment; what `fsync` of anything makes durable up to a moment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Names {
    pub nodes: BTreeMap<Number, Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub mode: u32,
    pub nlink: u32,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Other,
    Symlink(Vec<u8>),
    Directory { parent: Number, entries: BTreeMap<String, Number> },
}

impl Names {
    pub fn entries(&self, directory: Number) -> &BTreeMap<String, Number> {
        match &self.nodes[&directory].kind {
            Kind::Directory { entries, .. } => entries,
            _ => panic!("{directory} is no directory"),
        }
    }

    pub fn entries_mut(&mut self, directory: Number) -> &mut BTreeMap<String, Number> {
        match &mut self.nodes.get_mut(&directory).expect("a node").kind {
            Kind::Directory { entries, .. } => entries,
            _ => panic!("{directory} is no directory"),
        }
    }

    pub fn is_directory(&self, number: Number) -> bool {
        matches!(self.nodes[&number].kind, Kind::Directory { .. })
    }

    pub fn parent(&self, number: Number) -> Number {
        match self.nodes[&number].kind {
            Kind::Directory { parent, .. } => parent,
            _ => panic!("{number} is no directory"),
        }
    }

    fn set_parent(&mut self, number: Number, to: Number) {
        if let Kind::Directory { parent, .. } = &mut self.nodes.get_mut(&number).expect("a node").kind {
            let from = std::mem::replace(parent, to);
            self.nodes.get_mut(&from).expect("a parent").nlink -= 1;
            self.nodes.get_mut(&to).expect("a parent").nlink += 1;
        }
    }

    pub fn has_ancestor(&self, directory: Number, ancestor: Number) -> bool {
        let mut at = directory;
        loop {
            if at == ancestor {
                return true;
            }
            let parent = self.parent(at);
            if parent == at {
                return false;
            }
            at = parent;
        }
    }

    pub fn add(&mut self, parent: Number, name: &str, number: Number, node: Node) {
        if matches!(node.kind, Kind::Directory { .. }) {
            self.nodes.get_mut(&parent).expect("a parent").nlink += 1;
        }
        self.nodes.insert(number, node);
        self.entries_mut(parent).insert(name.to_owned(), number);
    }

    /// Takes a name off a node; one without names is no longer part of the name space.
    pub fn unlink(&mut self, number: Number) {
        let node = self.nodes.get_mut(&number).expect("a node");
        if let Kind::Directory { parent, .. } = node.kind {
            self.nodes.get_mut(&parent).expect("a parent").nlink -= 1;
            self.nodes.remove(&number);
        } else {
            node.nlink -= 1;
            if node.nlink == 0 {
                self.nodes.remove(&number);
            }
        }
    }

    /// `rename(2)`; the errno it must fail with. A whiteout's number is not known here: the caller enters it.
    pub fn rename(
        &mut self,
        (parent, name): (Number, &str),
        (new_parent, new_name): (Number, &str),
        no_replace: bool,
        exchange: bool,
    ) -> Result<(), i32> {
        let source = *self.entries(parent).get(name).ok_or(2)?;
        let target = self.entries(new_parent).get(new_name).copied();
        if target == Some(source) {
            return if no_replace { Err(17) } else { Ok(()) };
        }
        // Linux looks at the names before it looks for a cycle.
        match target {
            None if exchange => return Err(2),
            Some(_) if no_replace => return Err(17),
            _ => {}
        }
        let source_is_directory = self.is_directory(source);
        if source_is_directory && self.has_ancestor(new_parent, source) {
            return Err(22);
        }
        if let Some(target) = target.filter(|&target| self.is_directory(target)) {
            // Linux says that the directory is not empty even when a file is to replace it; EISDIR is as true.
            if self.has_ancestor(parent, target) && (source_is_directory || exchange) {
                return Err(if exchange { 22 } else { 39 });
            }
        }
        match target {
            Some(target) if !exchange => match (source_is_directory, self.is_directory(target)) {
                (true, false) => return Err(20),
                (false, true) => return Err(21),
                (true, true) if !self.entries(target).is_empty() => return Err(39),
                _ => {}
            },
            _ => {}
        }
        self.entries_mut(parent).remove(name);
        if let (Some(target), true) = (target, exchange) {
            self.entries_mut(parent).insert(name.to_owned(), target);
            self.set_parent(target, parent);
        } else if let Some(target) = target {
            self.unlink(target);
        }
        self.entries_mut(new_parent).insert(new_name.to_owned(), source);
        self.set_parent(source, new_parent);
        Ok(())
    }
}

/// How a version came about, and so what a crash may show of earlier ones once it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Reaches the device some time or other, page by page.
    Data,
    /// These whole pages are changed in the log, the size as well if it grew.
    Pages { first: u64, end: u64, sets_size: bool },
    /// The size is set in the log, the pages from this one on are as they are now; at once or not at all.
    Resize { first: u64 },
    /// All is logged.
    Logged,
}

#[derive(Clone, Debug)]
pub struct Version {
    pub step: usize,
    pub size: u64,
    pub pages: Vec<Arc<[u8]>>,
    pub cause: Cause,
}

impl Version {
    pub fn bytes(&self, from: u64, end: u64) -> Vec<u8> {
        (from..end.max(from)).map(|at| self.byte(at)).collect()
    }

    fn byte(&self, at: u64) -> u8 {
        self.pages.get((at / PAGE) as usize).map_or(0, |page| page[(at % PAGE) as usize])
    }

    /// The page's first `len` bytes are these.
    fn has(&self, page: u64, bytes: &[u8]) -> bool {
        match self.pages.get(page as usize) {
            Some(own) => own[..bytes.len()] == *bytes,
            None => bytes.iter().all(|&byte| byte == 0),
        }
    }

    pub fn content(&self) -> Vec<u8> {
        let mut content: Vec<u8> = self.pages.iter().flat_map(|page| page.iter().copied()).collect();
        content.resize(self.size as usize, 0);
        content
    }

    pub fn of_content(step: usize, content: &[u8], cause: Cause) -> Version {
        let pages = content.chunks(PAGE as usize).map(|chunk| {
            let mut page = chunk.to_vec();
            page.resize(PAGE as usize, 0);
            page.into()
        });
        Version { step, size: content.len() as u64, pages: pages.collect(), cause }
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        self.size = self.size.max(end);
        self.fit();
        let mut done = 0;
        while done < bytes.len() {
            let position = at + done as u64;
            let skip = (position % PAGE) as usize;
            let len = (bytes.len() - done).min(PAGE as usize - skip);
            let page = &mut self.pages[(position / PAGE) as usize];
            let mut new = page.to_vec();
            new[skip..skip + len].copy_from_slice(&bytes[done..done + len]);
            *page = new.into();
            done += len;
        }
    }

    pub fn resize(&mut self, size: u64) {
        let old = self.size;
        self.size = size;
        self.fit();
        if size < old && !size.is_multiple_of(PAGE) {
            let tail = self.pages.last_mut().expect("a page holds the end");
            let mut new = tail.to_vec();
            new[(size % PAGE) as usize..].fill(0);
            *tail = new.into();
        }
    }

    fn fit(&mut self) {
        let zeros: Arc<[u8]> = vec![0; PAGE as usize].into();
        self.pages.resize(self.size.div_ceil(PAGE) as usize, zeros);
    }
}

#[derive(Clone, Debug)]
pub struct File {
    pub versions: Vec<Version>,
    /// Index of the version that the last sync made durable.
    pub synced: usize,
}

impl File {
    pub fn new(step: usize) -> File {
        File { versions: vec![Version::of_content(step, &[], Cause::Logged)], synced: 0 }
    }

    pub fn now(&self) -> &Version {
        self.versions.last().expect("a file has a version")
    }

    pub fn change(&mut self, step: usize, cause: Cause, change: impl FnOnce(&mut Version)) {
        let mut version = self.now().clone();
        version.step = step;
        version.cause = cause;
        change(&mut version);
        self.versions.push(version);
    }

    /// Whether a crash may show `found` when everything up to step `last` is durable and nothing that began after the
    /// next step; says why not.
    pub fn explain(&self, last: usize, found: &[u8]) -> Result<(), String> {
        let logged = self.versions.iter().rposition(|version| version.step <= last).unwrap_or(0);
        // Of a step in progress, data may be there already.
        let newest = (logged + 1..self.versions.len())
            .take_while(|&index| {
                let version = &self.versions[index];
                version.step <= last + 1 && !matches!(version.cause, Cause::Resize { .. })
            })
            .last()
            .unwrap_or(logged);
        let sets_size = |cause: &Cause| match cause {
            Cause::Resize { .. } | Cause::Logged => true,
            Cause::Pages { sets_size, .. } => *sets_size,
            Cause::Data => false,
        };
        let newest_setting = self.versions[..=logged].iter().rposition(|version| sets_size(&version.cause));
        let base = self.synced.max(newest_setting.unwrap_or(0));
        let size = found.len() as u64;
        let base_size = self.versions[base].size;
        let most = self.versions[base..=newest].iter().map(|version| version.size).max().unwrap_or(0);
        if size < base_size || size > most {
            return Err(format!("size {size} is not in {base_size}..={most} (synced {})", self.synced));
        }
        for (page, bytes) in found.chunks(PAGE as usize).enumerate() {
            let page = page as u64;
            let end = page * PAGE + bytes.len() as u64;
            let covers = |version: &Version| match version.cause {
                Cause::Resize { first } => page >= first,
                Cause::Logged => true,
                Cause::Pages { first, end, .. } => (first..end).contains(&page),
                Cause::Data => false,
            };
            let least = self.versions[..=logged].iter().rposition(covers).unwrap_or(0).max(self.synced);
            let allowed = self.versions[least..=newest].iter();
            let fits = allowed
                .filter(|version| end <= base_size || version.size >= end)
                .any(|version| version.has(page, bytes));
            if !fits {
                let sample: Vec<u8> = bytes.iter().copied().step_by(512).collect();
                return Err(format!(
                    "page {page} is none of versions {least}..={newest} (size {size}, base {base} of size {base_size}, \
                     sample {sample:?})"
                ));
            }
        }
        Ok(())
    }
}
