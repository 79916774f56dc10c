//! The nodes of the filesystem, and what can be done to them; no request is seen here.

use crate::content::Content;
use fusering::abi::AttrFlags;
use fusering::{Attributes, DeviceNumber, Errno, ExtendedAttributes, NodeId, Time};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

pub enum Kind {
    File(Content),
    Directory(Directory),
    Link(PathBuf),
    Special(DeviceNumber),
}

/// Names in the order of their making; a name's number is where a reader of the directory goes on after it.
pub struct Directory {
    pub parent: NodeId,
    pub by_name: HashMap<OsString, u64>,
    pub by_number: BTreeMap<u64, (OsString, NodeId)>,
    next: u64,
}

/// Numbers of the names `.` and `..`.
pub const DOT: u64 = 1;
pub const DOT_DOT: u64 = 2;

impl Directory {
    fn new(parent: NodeId) -> Directory {
        Directory { parent, by_name: HashMap::new(), by_number: BTreeMap::new(), next: DOT_DOT + 1 }
    }

    pub fn get(&self, name: &OsStr) -> Option<NodeId> {
        self.by_name.get(name).map(|number| self.by_number[number].1)
    }

    fn put(&mut self, name: &OsStr, node: NodeId) {
        let number = *self.by_name.entry(name.to_owned()).or_insert(self.next);
        self.next = self.next.max(number + 1);
        self.by_number.insert(number, (name.to_owned(), node));
    }

    fn take(&mut self, name: &OsStr) {
        if let Some(number) = self.by_name.remove(name) {
            self.by_number.remove(&number);
        }
    }
}

pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub size: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub born: Time,
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
    /// References: the kernel's, one for each open handle, and one while the node has a name.
    pub lookups: u64,
    pub opened: u64,
}

impl Node {
    pub fn touch(&mut self) {
        self.modified = Time::now();
        self.changed = self.modified;
    }

    /// What a write by somebody without privileges does to a file that runs with its owner's rights.
    pub fn clear_set_id(&mut self) {
        self.mode &= !libc::S_ISUID;
        if self.mode & libc::S_IXGRP != 0 {
            self.mode &= !libc::S_ISGID;
        }
    }

    pub fn file(&mut self) -> Result<&mut Content, Errno> {
        match &mut self.kind {
            Kind::File(content) => Ok(content),
            Kind::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    pub fn directory(&self) -> Result<&Directory, Errno> {
        match &self.kind {
            Kind::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn directory_mut(&mut self) -> Result<&mut Directory, Errno> {
        match &mut self.kind {
            Kind::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub fn attributes(&self, node: NodeId) -> Attributes {
        let allocated = match &self.kind {
            Kind::File(content) => content.allocated(),
            _ => 0,
        };
        Attributes {
            ino: node.0,
            size: self.size,
            blocks: allocated / 512,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            device: if let Kind::Special(device) = self.kind { device } else { DeviceNumber::default() },
            block_bytes: 4096,
            flags: AttrFlags::empty(),
        }
    }

    pub fn extended(&self, node: NodeId) -> ExtendedAttributes {
        ExtendedAttributes {
            attributes: self.attributes(node),
            born: Some(self.born),
            attribute_bits: 0,
            attribute_bits_known: 0,
        }
    }
}

pub struct Tree {
    nodes: HashMap<NodeId, Node>,
    next: u64,
}

/// How a new node begins.
pub struct New {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl New {
    pub fn of_mode(mode: u32, uid: u32, gid: u32, device: DeviceNumber) -> New {
        let kind = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => Kind::File(Content::default()),
            libc::S_IFDIR => Kind::Directory(Directory::new(NodeId::ROOT)),
            _ => Kind::Special(device),
        };
        let mode = if mode & libc::S_IFMT == 0 { mode | libc::S_IFREG } else { mode };
        New { kind, mode, uid, gid }
    }

    pub fn link(target: &Path, uid: u32, gid: u32) -> New {
        New { kind: Kind::Link(target.to_owned()), mode: libc::S_IFLNK | 0o777, uid, gid }
    }
}

impl Tree {
    pub fn new(uid: u32, gid: u32) -> Tree {
        let mut tree = Tree { nodes: HashMap::new(), next: NodeId::ROOT.0 };
        let root = tree.insert(New::of_mode(libc::S_IFDIR | 0o755, uid, gid, DeviceNumber::default()));
        let node = tree.nodes.get_mut(&root).expect("just made");
        (node.links, node.lookups) = (2, 1);
        tree
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn get(&self, node: NodeId) -> Result<&Node, Errno> {
        self.nodes.get(&node).ok_or(Errno::ESTALE)
    }

    pub fn get_mut(&mut self, node: NodeId) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&node).ok_or(Errno::ESTALE)
    }

    pub fn allocated(&self) -> u64 {
        let bytes = |node: &Node| if let Kind::File(content) = &node.kind { content.allocated() } else { 0 };
        self.nodes.values().map(bytes).sum()
    }

    /// `.` and `..` are names too: a server of the tree over the network asks for them.
    pub fn lookup(&self, parent: NodeId, name: &OsStr) -> Result<NodeId, Errno> {
        let directory = self.get(parent)?.directory()?;
        match name {
            _ if name == "." => Ok(parent),
            _ if name == ".." => Ok(directory.parent),
            _ => directory.get(name).ok_or(Errno::ENOENT),
        }
    }

    /// A new node without a name.
    pub fn insert(&mut self, new: New) -> NodeId {
        let number = NodeId(self.next);
        self.next += 1;
        let now = Time::now();
        let size = if let Kind::Link(target) = &new.kind { target.as_os_str().len() as u64 } else { 0 };
        self.nodes.insert(
            number,
            Node {
                kind: new.kind,
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                links: 0,
                size,
                accessed: now,
                modified: now,
                changed: now,
                born: now,
                xattrs: BTreeMap::new(),
                lookups: 0,
                opened: 0,
            },
        );
        number
    }

    /// A new node with a name. In a set-group-id directory it gets the directory's group.
    pub fn make(&mut self, parent: NodeId, name: &OsStr, mut new: New) -> Result<NodeId, Errno> {
        check_name(name)?;
        let above = self.get(parent)?;
        if above.directory()?.get(name).is_some() {
            return Err(Errno::EEXIST);
        }
        if above.links == 0 {
            return Err(Errno::ENOENT);
        }
        let is_directory = matches!(new.kind, Kind::Directory(_));
        if above.mode & libc::S_ISGID != 0 {
            new.gid = above.gid;
            new.mode |= if is_directory { libc::S_ISGID } else { 0 };
        }
        if let Kind::Directory(directory) = &mut new.kind {
            directory.parent = parent;
        }
        let node = self.insert(new);
        self.get_mut(node)?.links = if is_directory { 2 } else { 1 };
        self.add_name(parent, name, node)?;
        Ok(node)
    }

    pub fn link(&mut self, node: NodeId, parent: NodeId, name: &OsStr) -> Result<(), Errno> {
        check_name(name)?;
        if self.get(parent)?.directory()?.get(name).is_some() {
            return Err(Errno::EEXIST);
        }
        let linked = self.get_mut(node)?;
        if linked.directory().is_ok() {
            return Err(Errno::EPERM);
        }
        linked.links += 1;
        linked.changed = Time::now();
        self.add_name(parent, name, node)
    }

    /// Removes a name; `directory`: of a directory, which must be empty, or of something else.
    pub fn remove(&mut self, parent: NodeId, name: &OsStr, directory: bool) -> Result<(), Errno> {
        let node = self.lookup(parent, name)?;
        match self.get(node)?.directory() {
            Ok(_) if !directory => return Err(Errno::EISDIR),
            Ok(removed) if !removed.by_name.is_empty() => return Err(Errno::ENOTEMPTY),
            Err(_) if directory => return Err(Errno::ENOTDIR),
            _ => {}
        }
        self.take_name(parent, name, node)?;
        let removed = self.get_mut(node)?;
        removed.links = if directory { 0 } else { removed.links - 1 };
        removed.changed = Time::now();
        self.release_if_unused(node);
        Ok(())
    }

    pub fn rename(&mut self, from: (NodeId, &OsStr), to: (NodeId, &OsStr), flags: u32) -> Result<(), Errno> {
        check_name(to.1)?;
        let node = self.lookup(from.0, from.1)?;
        let target = self.get(to.0)?.directory()?.get(to.1);
        match (flags, target) {
            (0 | libc::RENAME_NOREPLACE, None) => {}
            (libc::RENAME_NOREPLACE, Some(_)) => return Err(Errno::EEXIST),
            (libc::RENAME_EXCHANGE, Some(other)) => return self.exchange(from, node, to, other),
            (libc::RENAME_EXCHANGE, None) => return Err(Errno::ENOENT),
            (0, Some(other)) if other == node => return Ok(()),
            (0, Some(other)) => {
                let is_directory = self.get(node)?.directory().is_ok();
                match (is_directory, self.get(other)?.directory().is_ok()) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    _ => self.remove(to.0, to.1, is_directory)?,
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        self.take_name(from.0, from.1, node)?;
        self.add_name(to.0, to.1, node)?;
        self.get_mut(node)?.changed = Time::now();
        Ok(())
    }

    fn exchange(
        &mut self,
        from: (NodeId, &OsStr),
        node: NodeId,
        to: (NodeId, &OsStr),
        other: NodeId,
    ) -> Result<(), Errno> {
        self.take_name(from.0, from.1, node)?;
        self.take_name(to.0, to.1, other)?;
        self.add_name(from.0, from.1, other)?;
        self.add_name(to.0, to.1, node)
    }

    fn add_name(&mut self, parent: NodeId, name: &OsStr, node: NodeId) -> Result<(), Errno> {
        let is_directory = match &mut self.get_mut(node)?.kind {
            Kind::Directory(directory) => {
                directory.parent = parent;
                true
            }
            _ => false,
        };
        let above = self.get_mut(parent)?;
        above.directory_mut()?.put(name, node);
        above.links += u32::from(is_directory);
        above.touch();
        Ok(())
    }

    fn take_name(&mut self, parent: NodeId, name: &OsStr, node: NodeId) -> Result<(), Errno> {
        let is_directory = self.get(node)?.directory().is_ok();
        let above = self.get_mut(parent)?;
        above.directory_mut()?.take(name);
        above.links -= u32::from(is_directory);
        above.touch();
        Ok(())
    }

    pub fn forget(&mut self, node: NodeId, lookups: u64) {
        if let Ok(forgotten) = self.get_mut(node) {
            forgotten.lookups = forgotten.lookups.saturating_sub(lookups);
            self.release_if_unused(node);
        }
    }

    pub fn close(&mut self, node: NodeId) {
        if let Ok(closed) = self.get_mut(node) {
            closed.opened = closed.opened.saturating_sub(1);
            self.release_if_unused(node);
        }
    }

    fn release_if_unused(&mut self, node: NodeId) {
        let unused = |node: &Node| node.links == 0 && node.lookups == 0 && node.opened == 0;
        if self.nodes.get(&node).is_some_and(unused) {
            self.nodes.remove(&node);
        }
    }
}

fn check_name(name: &OsStr) -> Result<(), Errno> {
    if name.len() > 255 { Err(Errno::ENAMETOOLONG) } else { Ok(()) }
}
