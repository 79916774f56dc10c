//! What differs between two snapshots, in files and paths.
//!
//! The trees are walked side by side, and what they share is not read. Names come from the entries that differ, and
//! for directories from their parents. Of a file that was changed and kept its name only its inode differs: for such
//! files the directories of the newer tree are looked through, until all are found.

use crate::snapshots::passing_snapshot;
use crate::{Entropy, Error, Fs, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use syncline_format::item::{DirentItem, ExtentContent, ExtentItem, InodeItem};
use syncline_format::{Key, Kind, ObjectNo, TreeId, checksum};

/// Deeper paths are a damaged volume's.
const DEPTH_MAX: usize = 4096;

/// What has happened to a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ChangeKind {
    /// It is in the older snapshot only.
    Removed,
    /// It is in the newer one only.
    Added,
    /// The same file or directory had another path in the older one.
    Renamed {
        /// That path.
        from: PathBuf,
    },
    /// It has another content, or other attributes: owner, mode, flags, extended attributes, or, with the same content,
    /// another time of modification. Directories do not count for what is in them.
    Modified {
        /// The content.
        content: bool,
        /// The attributes.
        attributes: bool,
    },
}

/// A path that differs between two snapshots.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Change {
    /// From the root, without a leading slash; empty for the root itself.
    pub path: PathBuf,
    /// What has happened to it.
    pub kind: ChangeKind,
}

impl Change {
    /// For whoever is told of it by another process.
    pub fn new(path: PathBuf, kind: ChangeKind) -> Change {
        Change { path, kind }
    }
}

/// A name in a directory.
type Place = (ObjectNo, Vec<u8>);
/// Pages with the sums of what they hold; those that hold nothing are left out.
type Sums = BTreeMap<u64, u64>;

/// What differs, as the items tell it.
#[derive(Default)]
struct Items {
    inodes: BTreeMap<ObjectNo, (Option<InodeItem>, Option<InodeItem>)>,
    /// Of these the content may differ.
    content: BTreeSet<ObjectNo>,
    /// Of these extended attributes do.
    attributes: BTreeSet<ObjectNo>,
    removed: BTreeMap<Place, ObjectNo>,
    added: BTreeMap<Place, ObjectNo>,
}

impl Items {
    fn note(&mut self, key: Key, older: Option<&[u8]>, newer: Option<&[u8]>) -> Result<()> {
        match key.kind {
            Kind::Inode => {
                let decode = |value: Option<&[u8]>| value.map(InodeItem::decode).transpose();
                self.inodes.insert(key.object, (decode(older)?, decode(newer)?));
            }
            Kind::Extent | Kind::Symlink => drop(self.content.insert(key.object)),
            Kind::Xattr | Kind::XattrPiece => drop(self.attributes.insert(key.object)),
            Kind::Dirent => {
                for (value, places) in [(older, &mut self.removed), (newer, &mut self.added)] {
                    let Some(entry) = value.map(DirentItem::decode).transpose()? else { continue };
                    places.insert((key.object, entry.name), entry.inode);
                }
            }
            Kind::Orphan | Kind::Tree | Kind::TreeInfo | Kind::Shared | Kind::Overlay | Kind::Policy => {}
        }
        Ok(())
    }
}

impl Fs {
    /// What differs between a snapshot and a later one, or the volume as it is now: sorted by path. With `content`,
    /// files whose pages were written with what they held before do not count; it reads sums, and no data. The volume
    /// as it is now is a snapshot without a name, which goes away with this call, or with the power.
    ///
    /// Errors: `NotFound`, there is no such snapshot; those of [`Fs::snapshot`] without a newer one; damage.
    pub fn difference(
        &self,
        older: &str,
        newer: Option<&str>,
        content: bool,
        entropy: &dyn Entropy,
    ) -> Result<Vec<Change>> {
        if self.core.is_view() {
            // What others inherited is settled by the head that the volume was opened with.
            return Err(Error::ReadOnly);
        }
        let older = self.snapshot_named(older)?;
        let _older = self.core.store.reader(older).map_err(|_| Error::NotFound)?;
        let (newer, reader) = match newer {
            Some(newer) => {
                let newer = self.snapshot_named(newer)?;
                (newer, self.core.store.reader(newer).map_err(|_| Error::NotFound)?)
            }
            None => {
                let reader = passing_snapshot(self, entropy)?;
                (reader.tree(), reader)
            }
        };
        // The pages beside a tree are all there only then. Opened read-only, those that are not settled are in memory.
        while !self.core.options.read_only
            && [older, newer].iter().any(|tree| self.core.store.is_settling(*tree))
        {
            self.relieved(|store| store.settle())?;
        }
        let changes = Comparison { fs: self, older, newer, names: BTreeMap::new() }.changes(content);
        drop(reader);
        self.writeback.wake_background();
        changes
    }
}

struct Comparison<'a> {
    fs: &'a Fs,
    older: TreeId,
    newer: TreeId,
    /// Names of directories, each in the entries of its parent.
    names: BTreeMap<(TreeId, ObjectNo), BTreeMap<ObjectNo, Vec<u8>>>,
}

impl Comparison<'_> {
    fn changes(mut self, content: bool) -> Result<Vec<Change>> {
        let mut items = self.items()?;
        let mut changes = Vec::new();
        let replaced = self.replaced(&mut items)?;
        for place in replaced {
            let kind = ChangeKind::Modified { content: true, attributes: true };
            changes.push(Change { path: self.path(self.newer, &place)?, kind });
        }
        let mut sources: BTreeMap<ObjectNo, Vec<Place>> = BTreeMap::new();
        for (place, object) in std::mem::take(&mut items.removed) {
            sources.entry(object).or_default().push(place);
        }
        for (place, object) in &items.added {
            let path = self.path(self.newer, place)?;
            let kind = match sources.get_mut(object).and_then(Vec::pop) {
                Some(source) => ChangeKind::Renamed { from: self.path(self.older, &source)? },
                None => ChangeKind::Added,
            };
            changes.push(Change { path, kind });
        }
        for place in sources.into_values().flatten() {
            changes.push(Change { path: self.path(self.older, &place)?, kind: ChangeKind::Removed });
        }
        let modified = self.modified(&items, content)?;
        let mut places = self.places_of(&modified, &items)?;
        for (object, _, kind) in modified {
            for place in places.remove(&object).unwrap_or_default() {
                changes.push(Change { path: self.path(self.newer, &place)?, kind: kind.clone() });
            }
        }
        changes.sort();
        changes.dedup();
        Ok(changes)
    }

    /// Takes out the names that lead to another file, if both have that name alone: what programs do that replace one.
    fn replaced(&self, items: &mut Items) -> Result<Vec<Place>> {
        let have_come: BTreeSet<ObjectNo> = items.added.values().copied().collect();
        let have_gone: BTreeSet<ObjectNo> = items.removed.values().copied().collect();
        let mut replaced = Vec::new();
        for (place, old) in &items.removed {
            let Some(new) = items.added.get(place) else { continue };
            let is_directory = |inode: Option<InodeItem>| inode.is_none_or(|inode| inode.is_directory());
            let alone = !have_come.contains(old) && !have_gone.contains(new);
            if alone
                && !is_directory(self.inode(self.older, *old)?)
                && !is_directory(self.inode(self.newer, *new)?)
            {
                replaced.push(place.clone());
            }
        }
        for place in &replaced {
            items.removed.remove(place);
            items.added.remove(place);
        }
        Ok(replaced)
    }

    fn items(&self) -> Result<Items> {
        let store = &self.fs.core.store;
        let mut items = Items::default();
        let mut failed = None;
        store.difference(
            self.older,
            self.newer,
            &mut |key, older, newer| match items.note(key, older, newer) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            },
        )?;
        if let Some(error) = failed {
            return Err(error);
        }
        let (older, newer) = (self.overlay(self.older)?, self.overlay(self.newer)?);
        items.content.extend(older.symmetric_difference(&newer).map(|(object, _, _)| object));
        Ok(items)
    }

    /// The pages that stand for what a tree has, with the sums of what they hold.
    fn overlay(&self, tree: TreeId) -> Result<BTreeSet<(ObjectNo, u64, u64)>> {
        let store = &self.fs.core.store;
        let mut pages = BTreeSet::new();
        for item in store.overlay(tree)? {
            if let ExtentContent::Written(sums) = &item.extent.content {
                pages.extend((item.page..).zip(sums).map(|(page, sum)| (item.object, page, *sum)));
            }
        }
        let unsettled = store.unsettled(tree);
        pages.extend(unsettled.map(|(object, page, content)| (object, page, checksum(content))));
        Ok(pages)
    }

    /// Files and directories that both have and that are not the same.
    fn modified(&self, items: &Items, content: bool) -> Result<Vec<(ObjectNo, InodeItem, ChangeKind)>> {
        let mut modified = Vec::new();
        let touched = items.inodes.keys().chain(&items.content).chain(&items.attributes);
        for object in touched.copied().collect::<BTreeSet<_>>() {
            let (older, newer) = match items.inodes.get(&object) {
                Some((Some(older), Some(newer))) => (older.clone(), newer.clone()),
                Some(_) => continue,
                None => match (self.inode(self.older, object)?, self.inode(self.newer, object)?) {
                    (Some(older), Some(newer)) => (older, newer),
                    _ => continue,
                },
            };
            let differs = items.content.contains(&object) || older.size != newer.size;
            let content = differs
                && !newer.is_directory()
                && (!content
                    || older.size != newer.size
                    || self.sums(self.older, object)? != self.sums(self.newer, object)?);
            let facts = |inode: &InodeItem| (inode.mode, inode.uid, inode.gid, inode.flags, inode.project);
            let is_touched = !newer.is_directory() && !differs && older.modified != newer.modified;
            let attributes =
                facts(&older) != facts(&newer) || is_touched || items.attributes.contains(&object);
            if content || attributes {
                modified.push((object, newer, ChangeKind::Modified { content, attributes }));
            }
        }
        Ok(modified)
    }

    fn inode(&self, tree: TreeId, object: ObjectNo) -> Result<Option<InodeItem>> {
        let value = self.fs.core.store.get(tree, Key::inode(object))?;
        Ok(value.map(|value| InodeItem::decode(&value)).transpose()?)
    }

    fn sums(&self, tree: TreeId, object: ObjectNo) -> Result<Sums> {
        let store = &self.fs.core.store;
        let mut sums = Sums::new();
        let mut add = |first: u64, extent: &ExtentItem| {
            if let ExtentContent::Written(of_pages) = &extent.content {
                sums.extend((first..).zip(of_pages.iter().copied()));
            }
        };
        let mut failed = None;
        let end = Key::extent(object, u64::MAX);
        store.scan(tree, Key::extent(object, 0), end, &mut |key, value| match ExtentItem::decode(value) {
            Ok(extent) => {
                add(key.offset, &extent);
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let overlay = self.overlay(tree)?;
        sums.extend(
            overlay.range((object, 0, 0)..=(object, u64::MAX, u64::MAX)).map(|(_, page, sum)| (*page, *sum)),
        );
        Ok(sums)
    }

    /// The names in the newer tree of what was modified.
    fn places_of(
        &mut self,
        modified: &[(ObjectNo, InodeItem, ChangeKind)],
        items: &Items,
    ) -> Result<BTreeMap<ObjectNo, Vec<Place>>> {
        let mut places: BTreeMap<ObjectNo, Vec<Place>> = BTreeMap::new();
        for (place, object) in &items.added {
            places.entry(*object).or_default().push(place.clone());
        }
        // How many names of each file are still to be found.
        let mut wanted: BTreeMap<ObjectNo, u32> = BTreeMap::new();
        for (object, inode, _) in modified {
            match () {
                () if *object == ObjectNo::ROOT_DIR => {
                    drop(places.insert(*object, vec![(*object, Vec::new())]))
                }
                () if inode.is_directory() => {
                    let name = self.name_in_parent(self.newer, *object, inode.parent)?;
                    places.insert(*object, vec![(inode.parent, name)]);
                }
                () if places.get(object).map_or(0, Vec::len) < inode.nlink as usize => {
                    places.remove(object);
                    wanted.insert(*object, inode.nlink);
                }
                () => {}
            }
        }
        if wanted.is_empty() {
            return Ok(places);
        }
        // From directory to directory: what lies between their entries is not read. A file mostly is in one that was
        // made a short while before.
        let mut failed = None;
        let mut directories = BTreeSet::from([ObjectNo::ROOT_DIR]);
        let mut seen = directories.clone();
        while failed.is_none()
            && let Some((first, _)) = wanted.first_key_value()
            && let Some(directory) =
                directories.range(..first).next_back().or_else(|| directories.first()).copied()
        {
            directories.remove(&directory);
            let (from, end) = (Key::dirent(directory, 0), Key::dirent(directory, u64::MAX));
            self.fs.core.store.scan(self.newer, from, end, &mut |key, value| {
                let entry = match DirentItem::decode(value) {
                    Ok(entry) => entry,
                    Err(error) => {
                        failed = Some(error);
                        return ControlFlow::Break(());
                    }
                };
                // In a damaged volume a directory may be in itself.
                if entry.file_type == DIRECTORY_TYPE && seen.insert(entry.inode) {
                    directories.insert(entry.inode);
                }
                if let Some(left) = wanted.get_mut(&entry.inode) {
                    places.entry(entry.inode).or_default().push((key.object, entry.name));
                    *left -= 1;
                    if *left == 0 {
                        wanted.remove(&entry.inode);
                    }
                }
                if wanted.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        failed.map_or(Ok(places), |error| Err(error.into()))
    }

    /// The path of a name.
    fn path(&mut self, tree: TreeId, place: &Place) -> Result<PathBuf> {
        let (mut directory, name) = place.clone();
        let mut names = vec![name];
        while directory != ObjectNo::ROOT_DIR {
            let what = "a directory is in none";
            let error = Error::Inconsistent { object: directory, what };
            let Some(inode) = self.inode(tree, directory)?.filter(|_| names.len() < DEPTH_MAX) else {
                return Err(error);
            };
            names.push(self.name_in_parent(tree, directory, inode.parent)?);
            directory = inode.parent;
        }
        names.reverse();
        Ok(PathBuf::from(OsString::from_vec(names.join(&b'/'))))
    }

    fn name_in_parent(&mut self, tree: TreeId, directory: ObjectNo, parent: ObjectNo) -> Result<Vec<u8>> {
        let names = match self.names.remove(&(tree, parent)) {
            Some(names) => names,
            None => self.directories_in(tree, parent)?,
        };
        let what = "a directory has no name where its parent is";
        let found = names.get(&directory).cloned().ok_or(Error::Inconsistent { object: directory, what });
        self.names.insert((tree, parent), names);
        found
    }

    fn directories_in(&self, tree: TreeId, parent: ObjectNo) -> Result<BTreeMap<ObjectNo, Vec<u8>>> {
        let mut names = BTreeMap::new();
        let mut failed = None;
        let (from, end) = (Key::dirent(parent, 0), Key::dirent(parent, u64::MAX));
        self.fs.core.store.scan(tree, from, end, &mut |_, value| match DirentItem::decode(value) {
            Ok(entry) => {
                if entry.file_type == DIRECTORY_TYPE {
                    names.insert(entry.inode, entry.name);
                }
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(names), |error| Err(error.into()))
    }
}

/// `mode >> 12` of a directory.
const DIRECTORY_TYPE: u8 = 4;
