//! [`State`]: which open files, files and names belong to which group.
//!
//! Everything is found by what it is asked for: by open file, file, name, token, owner. What a group has is listed
//! with the group, so that its end costs what it has, and nobody pays for the groups of others. `visited` counts the
//! entries that were gone through one by one.
//!
//! A group that is over keeps its names until the kernel has forgotten what it knew of them ([`State::settle`]): a
//! change of names that the kernel has judged by what the group showed is not to meet what is committed.

use super::Group;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_fs::{Attr, HandleId, ObjectNo};

/// A name of a directory.
pub(crate) type Name = (ObjectNo, Vec<u8>);

/// An open file of a group.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) object: ObjectNo,
    pub(crate) group: Arc<Group>,
}

/// A file of a group.
struct Staged {
    group: Arc<Group>,
    /// As the group sees it.
    size: u64,
    /// Names that the group has given it.
    names: usize,
}

/// Who has a name as a group sees it.
struct StagedName {
    group: Arc<Group>,
    now: Option<ObjectNo>,
}

/// What one group has in the tables of [`State`].
struct Parts {
    group: Arc<Group>,
    members: HashSet<HandleId>,
    files: Vec<ObjectNo>,
    names: Vec<Name>,
}

impl Parts {
    fn is_empty(&self) -> bool {
        self.members.is_empty() && self.files.is_empty() && self.names.is_empty()
    }
}

#[derive(Default)]
pub(super) struct State {
    members: HashMap<HandleId, Member>,
    files: HashMap<ObjectNo, Staged>,
    /// By directory.
    names: HashMap<ObjectNo, HashMap<Vec<u8>, StagedName>>,
    tokens: HashMap<u64, Arc<Group>>,
    /// Numbers of the groups that an open file has begun.
    owned: HashMap<HandleId, Vec<u64>>,
    /// By the groups' numbers: all that are open, or have something left here.
    parts: HashMap<u64, Parts>,
    visited: u64,
}

impl State {
    /// Groups that are open, or have something left here.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn visited(&self) -> u64 {
        self.visited
    }

    /// Whether an open file has begun a group that is not over.
    pub(super) fn owns(&self, owner: HandleId) -> bool {
        self.owned.contains_key(&owner)
    }

    /// Groups with a token that an open file has begun.
    pub(super) fn token_count(&self, owner: HandleId) -> usize {
        let has_token =
            |number: &&u64| self.parts.get(number).is_some_and(|parts| parts.group.token.is_some());
        self.owned.get(&owner).map_or(0, |numbers| numbers.iter().filter(has_token).count())
    }

    /// Groups that an open file has begun.
    pub(super) fn owned(&mut self, owner: HandleId) -> Vec<Arc<Group>> {
        let Some(numbers) = self.owned.get(&owner) else { return Vec::new() };
        self.visited += numbers.len() as u64;
        numbers.iter().filter_map(|number| Some(self.parts.get(number)?.group.clone())).collect()
    }

    /// Enters a group that was begun just now.
    pub(super) fn enter(&mut self, group: &Arc<Group>) {
        if let Some(token) = group.token {
            self.tokens.insert(token, group.clone());
        }
        self.owned.entry(group.owner).or_default().push(group.number);
        let (members, files, names) = (HashSet::new(), Vec::new(), Vec::new());
        self.parts.insert(group.number, Parts { group: group.clone(), members, files, names });
    }

    pub(super) fn of_token(&self, token: u64) -> Option<&Arc<Group>> {
        self.tokens.get(&token)
    }

    pub(super) fn member(&self, handle: HandleId) -> Option<&Member> {
        self.members.get(&handle)
    }

    pub(super) fn group_of(&self, object: ObjectNo) -> Option<&Arc<Group>> {
        self.files.get(&object).map(|file| &file.group)
    }

    /// Whether an open file, and what it is open on, may become part of the group: neither is part of another one.
    pub(super) fn may_join(&self, handle: HandleId, object: ObjectNo, group: &Arc<Group>) -> bool {
        let elsewhere = |other: &Arc<Group>| !Arc::ptr_eq(other, group);
        let member = self.members.get(&handle).filter(|member| !member.group.is_lost());
        !member.is_some_and(|member| elsewhere(&member.group))
            && !self.group_of(object).is_some_and(elsewhere)
    }

    /// A file becomes part of a group that has not ended.
    pub(super) fn add_file(&mut self, object: ObjectNo, size: u64, group: &Arc<Group>) {
        let Some(parts) = self.parts.get_mut(&group.number) else { return };
        self.files.entry(object).or_insert_with(|| {
            parts.files.push(object);
            Staged { group: group.clone(), size, names: 0 }
        });
    }

    /// An open file becomes a member of a group that has not ended, and of a lost one no more.
    pub(super) fn add_member(&mut self, handle: HandleId, object: ObjectNo, group: &Arc<Group>) {
        self.remove_member(handle);
        if let Some(parts) = self.parts.get_mut(&group.number) {
            parts.members.insert(handle);
            self.members.insert(handle, Member { object, group: group.clone() });
        }
    }

    pub(super) fn remove_member(&mut self, handle: HandleId) {
        let Some(Member { group, .. }) = self.members.remove(&handle) else { return };
        if let Some(parts) = self.parts.get_mut(&group.number) {
            parts.members.remove(&handle);
        }
        self.forget_if_done(&group);
    }

    pub(super) fn set_size(&mut self, object: ObjectNo, size: u64) {
        if let Some(file) = self.files.get_mut(&object) {
            file.size = size;
        }
    }

    fn name(&self, parent: ObjectNo, name: &[u8]) -> Option<&StagedName> {
        self.names.get(&parent)?.get(name)
    }

    /// Who has a name as an open group sees it, and the group.
    pub(super) fn staged_name(
        &self,
        parent: ObjectNo,
        name: &[u8],
    ) -> Option<(Option<ObjectNo>, &Arc<Group>)> {
        let staged = self.name(parent, name).filter(|staged| !staged.group.is_over())?;
        Some((staged.now, &staged.group))
    }

    /// The group that has changed a name, also one that is over.
    pub(super) fn holder(&self, parent: ObjectNo, name: &[u8]) -> Option<&Arc<Group>> {
        self.name(parent, name).map(|staged| &staged.group)
    }

    pub(super) fn has_names_in(&self, directory: ObjectNo) -> bool {
        self.names.contains_key(&directory)
    }

    /// Notes who has a name now. Nobody else holds it.
    pub(super) fn set_name(&mut self, (parent, name): &Name, group: &Arc<Group>, now: Option<ObjectNo>) {
        let Some(parts) = self.parts.get_mut(&group.number) else { return };
        let staged = StagedName { group: group.clone(), now };
        let before = self.names.entry(*parent).or_default().insert(name.clone(), staged);
        if before.is_none() {
            parts.names.push((*parent, name.clone()));
            group.names.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(file) = before.and_then(|staged| self.files.get_mut(&staged.now?)) {
            file.names -= 1;
        }
        if let Some(file) = now.and_then(|now| self.files.get_mut(&now)) {
            file.names += 1;
        }
    }

    /// Puts in what a group sees of a file; true if it is part of one, or a directory that the commit is going to
    /// change.
    pub(super) fn amend(&self, attr: &mut Attr) -> bool {
        let Some(file) = self.files.get(&attr.inode) else { return self.has_names_in(attr.inode) };
        attr.size = file.size;
        // The kernel is not to drop the pages of one that only the group has named.
        if attr.nlink == 0 && file.names > 0 {
            attr.nlink = 1;
        }
        true
    }

    /// The group's transaction is gone: its files are as they are committed, and nobody can join. Its names stay until
    /// [`State::settle`], and where it is lost its members. Returns its files and names.
    pub(super) fn end(&mut self, group: &Arc<Group>, is_lost: bool) -> (Vec<ObjectNo>, Vec<Name>) {
        group.is_over.store(true, Ordering::Relaxed);
        if let Some(token) = group.token {
            self.tokens.remove(&token);
        }
        if let Some(owned) = self.owned.get_mut(&group.owner) {
            owned.retain(|number| *number != group.number);
            if owned.is_empty() {
                self.owned.remove(&group.owner);
            }
        }
        let Some(parts) = self.parts.get_mut(&group.number) else { return (Vec::new(), Vec::new()) };
        self.visited += (parts.files.len() + parts.names.len()) as u64;
        let files = std::mem::take(&mut parts.files);
        for object in &files {
            self.files.remove(object);
        }
        group.is_lost.store(is_lost && !parts.members.is_empty(), Ordering::Relaxed);
        if !is_lost {
            self.visited += parts.members.len() as u64;
            for handle in parts.members.drain() {
                self.members.remove(&handle);
            }
        }
        let names = parts.names.clone();
        self.forget_if_done(group);
        (files, names)
    }

    /// The kernel knows nothing any more that only the group has told it.
    pub(super) fn settle(&mut self, group: &Arc<Group>) {
        let Some(parts) = self.parts.get_mut(&group.number) else { return };
        let names = std::mem::take(&mut parts.names);
        self.visited += names.len() as u64;
        for (parent, name) in names {
            let Some(of_directory) = self.names.get_mut(&parent) else { continue };
            of_directory.remove(&name);
            if of_directory.is_empty() {
                self.names.remove(&parent);
            }
        }
        self.forget_if_done(group);
    }

    /// A group that is over and has nothing left here is forgotten.
    fn forget_if_done(&mut self, group: &Arc<Group>) {
        if group.is_over() && self.parts.get(&group.number).is_some_and(Parts::is_empty) {
            self.parts.remove(&group.number);
        }
    }
}
