//! Files that are changed atomically through the mount: which open files' writes go into which transaction.
//!
//! A *group* is a transaction of the engine and the open files that have joined it: one for the f2fs interface, any number for
//! multi-file commits. It belongs to one open file and is given up when that is released, so also when its process dies.
//!
//! The kernel's page cache and its cache of names take part in writes and renames before the engine has committed them. So
//! that they hold one state and no mixture, while a group is open everybody who reads through them is answered as the group
//! sees its files: content, attributes and names (the latter two not to be remembered). When it is given up, what the kernel
//! has cached of it is invalidated. Reads past the page cache get what is committed.
//!
//! What was asked of a group before its end is never done outside of it: it waits for the end, and then a write, a truncation
//! or a change of names is EBUSY, a read gets what is committed. Only pages of a mapping, which come at any time and would be
//! lost, are then written like others.
//!
//! Locks: `state`, for a few instructions; `Group::transaction` before it, for as long as staging, committing and giving up
//! take (not the flush).

use crate::convert::errno;
use fusering::Errno;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use syncline::{Attr, Entropy, Error, Fs, HandleId, ObjectNo, SystemEntropy, Transaction};

/// Beyond so many pages staged, staging more may have to wait for the device, and so may the commit.
const LIGHT_PAGES_MAX: usize = 64;

/// Groups that one open file may have begun.
const GROUPS_MAX: usize = 64;

/// Names that one group may change: each takes memory, also one that is changed back.
const NAMES_MAX: usize = 65536;

/// A name of a directory.
pub(crate) type Name = (ObjectNo, Vec<u8>);

/// A transaction that open files have joined.
pub(crate) struct Group {
    // Constant.
    owner: HandleId,
    /// Who may join.
    uid: u32,
    /// `None` for the f2fs interface.
    token: Option<u64>,
    /// Gone when it is over; locked as long as it is being committed or given up.
    transaction: Mutex<Option<Transaction>>,
    /// Changes under `transaction`. Relaxed: a wrong guess makes somebody wait a little.
    staged_pages: AtomicUsize,
    /// Names that it has changed, some maybe back again.
    names: AtomicUsize,
    /// Its owner was closed, which who has joined cannot know: their open files stay members of it, and what is written through
    /// them fails. Changes under `State`.
    is_lost: AtomicBool,
}

impl Group {
    /// Errors: E2BIG, no record holds as many names.
    fn check_names(&self) -> syncline::Result<()> {
        match self.names.load(Ordering::Relaxed) {
            names if names >= NAMES_MAX => Err(Error::TooBig),
            _ => Ok(()),
        }
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Whether staging something or committing may take long, as far as the group goes.
    pub(crate) fn may_wait(&self) -> bool {
        self.staged_pages.load(Ordering::Relaxed) > LIGHT_PAGES_MAX || self.transaction.is_locked()
    }
}

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
}

/// Who has a name as a group sees it.
struct StagedName {
    group: Arc<Group>,
    now: Option<ObjectNo>,
}

/// What the kernel may have cached of a group that is over.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    pub(crate) files: Vec<ObjectNo>,
    pub(crate) names: Vec<Name>,
}

#[derive(Default)]
struct State {
    members: HashMap<HandleId, Member>,
    files: HashMap<ObjectNo, Staged>,
    /// Who has a name as a group sees it, by directory.
    names: HashMap<ObjectNo, HashMap<Vec<u8>, StagedName>>,
    tokens: HashMap<u64, Arc<Group>>,
}

impl State {
    fn name(&self, parent: ObjectNo, name: &[u8]) -> Option<&StagedName> {
        self.names.get(&parent)?.get(name)
    }

    fn set_name(&mut self, (parent, name): &Name, group: &Arc<Group>, now: Option<ObjectNo>) {
        let staged = StagedName { group: group.clone(), now };
        if self.names.entry(*parent).or_default().insert(name.clone(), staged).is_none() {
            group.names.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// All groups of a mount.
pub(crate) struct Atomics {
    // Constant.
    fs: Arc<Fs>,
    entropy: SystemEntropy,
    /// Groups, so that without any nothing has to be looked up. Set before a group's first call is answered.
    open: AtomicUsize,
    state: Mutex<State>,
}

impl Atomics {
    pub(crate) fn new(fs: Arc<Fs>) -> Atomics {
        Atomics { fs, entropy: SystemEntropy::default(), open: AtomicUsize::new(0), state: Mutex::default() }
    }

    fn is_idle(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    fn new_group(&self, owner: HandleId, uid: u32, token: Option<u64>) -> Result<Arc<Group>, Errno> {
        let transaction = self.fs.begin().map_err(errno)?;
        let transaction = Mutex::new(Some(transaction));
        let (staged_pages, names) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let is_lost = AtomicBool::new(false);
        Ok(Arc::new(Group { owner, uid, token, transaction, staged_pages, names, is_lost }))
    }

    /// Begins a group of one open file. Nothing happens if it is in one already. Errors: EBUSY, the file is part of another.
    pub(crate) fn start(&self, handle: HandleId, uid: u32) -> Result<(), Errno> {
        while let Some(member) = self.member(handle) {
            // One that is just being committed is over, and not found again, once this has the lock.
            if member.group.transaction.lock().is_some() {
                return Ok(());
            }
            if member.group.is_lost() {
                break;
            }
        }
        let group = self.new_group(handle, uid, None)?;
        self.open.fetch_add(1, Ordering::AcqRel);
        let joined = self.add(handle, &group);
        if joined.is_err() {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
        joined
    }

    /// Begins a group that belongs to an open file, which is not in it yet; returns its token. Errors: EAGAIN, it has begun too
    /// many.
    pub(crate) fn begin(&self, owner: HandleId, uid: u32) -> Result<u64, Errno> {
        // The handle is known, or nobody would ever release it.
        self.fs.handle_inode(owner).map_err(errno)?;
        // Not to be guessed by others; 0 is no token.
        let token = self.entropy.number().max(1);
        let group = self.new_group(owner, uid, Some(token))?;
        let mut state = self.state.lock();
        if state.tokens.values().filter(|other| other.owner == owner).count() >= GROUPS_MAX {
            return Err(Errno::EAGAIN);
        }
        self.open.fetch_add(1, Ordering::AcqRel);
        state.tokens.insert(token, group);
        Ok(token)
    }

    /// An open file joins a group. Errors: EINVAL, there is no such token for this user; EBUSY, the file is part of another group.
    pub(crate) fn join(&self, handle: HandleId, token: u64, uid: u32) -> Result<(), Errno> {
        let group = self.state.lock().tokens.get(&token).cloned();
        let group = group.filter(|group| group.uid == uid).ok_or(Errno::EINVAL)?;
        self.add(handle, &group)
    }

    /// Errors: EBADF if the file is not open for writing: who may only read it is not to get hold of its names.
    fn add(&self, handle: HandleId, group: &Arc<Group>) -> Result<(), Errno> {
        if !self.fs.handle_is_writable(handle).map_err(errno)? {
            return Err(Errno::EBADF);
        }
        let object = self.fs.handle_inode(handle).map_err(errno)?;
        let mut transaction = group.transaction.lock();
        let transaction = transaction.as_mut().ok_or(Errno::EINVAL)?;
        let elsewhere = |other: &Arc<Group>| !Arc::ptr_eq(other, group);
        let is_free = |state: &State| {
            let member = state.members.get(&handle).filter(|member| !member.group.is_lost());
            !member.is_some_and(|member| elsewhere(&member.group))
                && !state.files.get(&object).is_some_and(|file| elsewhere(&file.group))
        };
        if !is_free(&self.state.lock()) {
            return Err(Errno::EBUSY);
        }
        let size = transaction.size(object).map_err(errno)?;
        let mut state = self.state.lock();
        if !is_free(&state) {
            return Err(Errno::EBUSY);
        }
        state.files.entry(object).or_insert_with(|| Staged { group: group.clone(), size });
        let before = state.members.insert(handle, Member { object, group: group.clone() });
        self.leave_lost(&state, before.map(|member| member.group));
        Ok(())
    }

    /// The group that an open file's writes go to.
    pub(crate) fn member(&self, handle: HandleId) -> Option<Member> {
        match self.is_idle() {
            true => None,
            false => self.state.lock().members.get(&handle).cloned(),
        }
    }

    /// The group that a file is part of.
    pub(crate) fn group_of(&self, object: ObjectNo) -> Option<Arc<Group>> {
        match self.is_idle() {
            true => None,
            false => self.state.lock().files.get(&object).map(|file| file.group.clone()),
        }
    }

    /// Stages something, and notes it before the group can end; `None` if it has ended meanwhile, which this waits for.
    fn stage<T>(
        &self,
        group: &Group,
        work: impl FnOnce(&mut Transaction) -> syncline::Result<T>,
        note: impl FnOnce(&mut State, &T),
    ) -> Option<Result<T, Errno>> {
        let mut transaction = group.transaction.lock();
        let staged = work(transaction.as_mut()?);
        if let Ok(done) = &staged {
            note(&mut self.state.lock(), done);
        }
        Some(staged.map_err(errno))
    }

    fn stage_content(
        &self,
        member: &Member,
        work: impl FnOnce(&mut Transaction) -> syncline::Result<()>,
    ) -> Option<Result<(), Errno>> {
        let Member { object, group } = member;
        let work = |transaction: &mut Transaction| {
            let before = transaction.staged_pages(*object);
            let result = work(transaction);
            let (staged, after) = (&group.staged_pages, transaction.staged_pages(*object));
            staged.store(staged.load(Ordering::Relaxed) + after - before, Ordering::Relaxed);
            result?;
            transaction.size(*object)
        };
        let staged = self.stage(group, work, |state, size| {
            if let Some(file) = state.files.get_mut(object) {
                file.size = *size;
            }
        })?;
        Some(staged.map(drop))
    }

    pub(crate) fn write(&self, member: &Member, offset: u64, data: &[u8]) -> Option<Result<(), Errno>> {
        self.stage_content(member, |transaction| transaction.write(member.object, offset, data))
    }

    pub(crate) fn truncate(&self, member: &Member, size: u64) -> Option<Result<(), Errno>> {
        self.stage_content(member, |transaction| transaction.truncate(member.object, size))
    }

    /// Reads a file as its group sees it; `None`: it has none.
    pub(crate) fn read(
        &self,
        object: ObjectNo,
        offset: u64,
        into: &mut [u8],
    ) -> Option<Result<usize, Errno>> {
        let group = self.group_of(object)?;
        self.stage(&group, |transaction| transaction.read(object, offset, into), |_, _| {})
    }

    /// Renames a file of a group of this user's, or one that it has renamed before; `None`: that is nobody's, or another user's,
    /// who is not to decide whether it happens.
    pub(crate) fn rename(
        &self,
        uid: u32,
        from: &Name,
        to: &Name,
        no_replace: bool,
    ) -> Option<Result<(), Errno>> {
        let (object, group) = self.named(from).filter(|(_, group)| group.uid == uid)?;
        let (parent, name) = (from.0, &from.1[..]);
        let rename = |transaction: &mut Transaction| {
            group.check_names()?;
            transaction.rename(parent, name, to.0, &to.1, no_replace)
        };
        let staged = self.stage(&group, rename, |state, ()| {
            state.set_name(from, &group, None);
            state.set_name(to, &group, Some(object));
        });
        Some(staged.unwrap_or(Err(Errno::EBUSY)))
    }

    /// Takes away a name that a group of this user's has given.
    pub(crate) fn unlink(&self, uid: u32, from: &Name) -> Option<Result<(), Errno>> {
        let group = self.group_of_name(uid, from, |now| now.is_some())?;
        let staged = self.stage(
            &group,
            |transaction| transaction.unlink(from.0, &from.1),
            |state, ()| {
                state.set_name(from, &group, None);
            },
        );
        Some(staged.unwrap_or(Err(Errno::EBUSY)))
    }

    /// The group of this user's that has taken a name away: a file that is made there is made for the group.
    pub(crate) fn vacated(&self, uid: u32, name: &Name) -> Option<Arc<Group>> {
        self.group_of_name(uid, name, |now| now.is_none())
    }

    fn group_of_name(
        &self,
        uid: u32,
        name: &Name,
        is_wanted: impl FnOnce(Option<ObjectNo>) -> bool,
    ) -> Option<Arc<Group>> {
        if self.is_idle() {
            return None;
        }
        let state = self.state.lock();
        let staged = state.name(name.0, &name.1).filter(|staged| is_wanted(staged.now))?;
        Some(staged.group.clone()).filter(|group| group.uid == uid)
    }

    /// Gives a file without a name, which was just made and opened, a name in a group, and makes it part of the group.
    pub(crate) fn adopt(
        &self,
        group: &Arc<Group>,
        handle: HandleId,
        object: ObjectNo,
        name: &Name,
    ) -> Result<(), Errno> {
        let is_writable = self.fs.handle_is_writable(handle).map_err(errno)?;
        let link = |transaction: &mut Transaction| {
            group.check_names()?;
            transaction.link(object, name.0, &name.1)?;
            transaction.size(object)
        };
        let staged = self.stage(group, link, |state, size| {
            state.set_name(name, group, Some(object));
            state.files.insert(object, Staged { group: group.clone(), size: *size });
            if is_writable {
                state.members.insert(handle, Member { object, group: group.clone() });
            }
        });
        staged.unwrap_or(Err(Errno::EBUSY)).map(drop)
    }

    /// Gives a file of a group of this user's another name.
    pub(crate) fn link(&self, uid: u32, object: ObjectNo, to: &Name) -> Option<Result<(), Errno>> {
        let group = self.group_of(object).filter(|group| group.token.is_some() && group.uid == uid)?;
        let link = |transaction: &mut Transaction| {
            group.check_names()?;
            transaction.link(object, to.0, &to.1)
        };
        let staged = self.stage(&group, link, |state, ()| state.set_name(to, &group, Some(object)));
        Some(staged.unwrap_or(Err(Errno::EBUSY)))
    }

    /// A file of a multi-file group, by a name that it has or that the group has given it.
    fn named(&self, name: &Name) -> Option<(ObjectNo, Arc<Group>)> {
        if self.is_idle() {
            return None;
        }
        if let Some(staged) = self.state.lock().name(name.0, &name.1) {
            return staged.now.map(|object| (object, staged.group.clone()));
        }
        let object = self.fs.lookup(name.0, &name.1).ok()?.attr.inode;
        let group = self.group_of(object).filter(|group| group.token.is_some())?;
        Some((object, group))
    }

    /// Whether a change of names may have to wait for a group that is being committed, or stages much.
    pub(crate) fn names_may_wait(&self) -> bool {
        !self.is_idle() && self.state.lock().tokens.values().any(|group| group.may_wait())
    }

    /// Who has a name as a group sees it; `None`: no group has changed it.
    pub(crate) fn staged_name(&self, parent: ObjectNo, name: &[u8]) -> Option<Option<ObjectNo>> {
        if self.is_idle() {
            return None;
        }
        self.state.lock().name(parent, name).map(|staged| staged.now)
    }

    /// Puts in what a group sees of a file; true if it is part of one, or a directory that the commit is going to change, and
    /// nothing of it may be remembered.
    pub(crate) fn amend(&self, attr: &mut Attr) -> bool {
        if self.is_idle() {
            return false;
        }
        let state = self.state.lock();
        match state.files.get(&attr.inode) {
            Some(file) => {
                attr.size = file.size;
                let is_named = |names: &HashMap<Vec<u8>, StagedName>| {
                    names.values().any(|staged| staged.now == Some(attr.inode))
                };
                // The kernel is not to drop the pages of one that only the group has named.
                if attr.nlink == 0 && state.names.values().any(is_named) {
                    attr.nlink = 1;
                }
                true
            }
            None => state.names.contains_key(&attr.inode),
        }
    }

    /// The group of a token, if it belongs to this open file. Errors: EINVAL.
    pub(crate) fn of_token(&self, owner: HandleId, token: u64) -> Result<Arc<Group>, Errno> {
        let group = self.state.lock().tokens.get(&token).cloned();
        group.filter(|group| group.owner == owner).ok_or(Errno::EINVAL)
    }

    /// The group of the f2fs interface that an open file has begun. Errors: EINVAL, it has joined one with a token.
    pub(crate) fn of_single(&self, handle: HandleId) -> Result<Option<Arc<Group>>, Errno> {
        match self.member(handle) {
            None => Ok(None),
            Some(member) if member.group.token.is_none() => Ok(Some(member.group)),
            Some(_) => Err(Errno::EINVAL),
        }
    }

    /// An open file is gone; what it leaves if that ends a group.
    pub(crate) fn release(&self, handle: HandleId) -> Option<Leftovers> {
        if self.is_idle() {
            return None;
        }
        let owned: Vec<Arc<Group>> = {
            let mut state = self.state.lock();
            let single = state.members.remove(&handle).map(|member| member.group);
            self.leave_lost(&state, single.clone());
            let groups = single.iter().chain(state.tokens.values());
            groups.filter(|group| group.owner == handle).cloned().collect()
        };
        let mut all = Leftovers::default();
        for group in owned {
            let Some(((), left)) = self.finish_as(&group, true, drop) else { continue };
            all.files.extend(left.files);
            all.names.extend(left.names);
        }
        Some(all).filter(|all| *all != Leftovers::default())
    }

    /// Commits or drops a group's transaction and ends the group; whoever stages or reads something meanwhile waits. What
    /// comes of it, and what the kernel must not go on believing unless it was committed; `None` if it is over already.
    pub(crate) fn finish<T>(
        &self,
        group: &Arc<Group>,
        work: impl FnOnce(Transaction) -> T,
    ) -> Option<(T, Leftovers)> {
        self.finish_as(group, false, work)
    }

    fn finish_as<T>(
        &self,
        group: &Arc<Group>,
        is_lost: bool,
        work: impl FnOnce(Transaction) -> T,
    ) -> Option<(T, Leftovers)> {
        let mut transaction = group.transaction.lock();
        let result = work(transaction.take()?);
        Some((result, self.end(group, is_lost)))
    }

    /// An open file was the last of a group that is lost.
    fn leave_lost(&self, state: &State, group: Option<Arc<Group>>) {
        let Some(group) = group.filter(|group| group.is_lost()) else { return };
        if !state.members.values().any(|member| Arc::ptr_eq(&member.group, &group)) {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn end(&self, group: &Arc<Group>, is_lost: bool) -> Leftovers {
        let ours = |other: &Arc<Group>| Arc::ptr_eq(other, group);
        let mut left = Leftovers::default();
        let mut state = self.state.lock();
        let has_members = state.members.values().any(|member| ours(&member.group));
        let was_open = has_members
            || state.files.values().any(|file| ours(&file.group))
            || state.tokens.values().any(ours);
        let keeps_members = is_lost && has_members;
        group.is_lost.store(keeps_members, Ordering::Relaxed);
        if !keeps_members {
            state.members.retain(|_, member| !ours(&member.group));
        }
        state.tokens.retain(|_, other| !ours(other));
        state.files.retain(|object, file| {
            let ours = ours(&file.group);
            if ours {
                left.files.push(*object);
            }
            !ours
        });
        state.names.retain(|parent, names| {
            let gone = names.extract_if(|_, staged| ours(&staged.group));
            left.names.extend(gone.map(|(name, _)| (*parent, name)));
            !names.is_empty()
        });
        if was_open && !keeps_members {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use syncline::{Context, OpenFlags, Volume};

    /// A file `f` of a new volume, open for reading and writing.
    fn opened() -> (Volume, Arc<Fs>, HandleId) {
        let volume = Volume::create_in_memory(16 << 20).expect("a volume");
        let fs = volume.inner().clone();
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let made = fs.create(&Context::root(), ObjectNo::ROOT_DIR, b"f", 0o600, flags);
        let handle = made.expect("a file").1;
        (volume, fs, handle)
    }

    #[test]
    fn a_page_that_is_staged_again_and_again_makes_a_group_no_heavier() {
        let (_volume, fs, handle) = opened();
        let atomics = Atomics::new(fs.clone());
        atomics.start(handle, 0).expect("a group");
        let member = atomics.member(handle).expect("is in it");
        let write = |page: usize, bytes: usize| {
            let written = atomics.write(&member, (page * 4096) as u64, &vec![1; bytes]);
            written.expect("a group").expect("is staged");
        };
        for _ in 0..4 * LIGHT_PAGES_MAX {
            write(0, 4096);
        }
        write(1, LIGHT_PAGES_MAX * 4096 - 4096);
        assert!(!member.group.may_wait());
        write(LIGHT_PAGES_MAX - 1, 4097);
        assert!(member.group.may_wait());
        atomics.truncate(&member, 4096).expect("a group").expect("is staged");
        assert!(!member.group.may_wait(), "what was cut off is staged no more");
        atomics.finish(&atomics.of_single(handle).expect("is its own").expect("a group"), drop);
        fs.release(handle).expect("is closed");
    }

    #[test]
    fn what_came_before_the_end_of_a_group_waits_for_it_and_is_not_done_outside_of_it() {
        let (volume, fs, handle) = opened();
        let atomics = Atomics::new(fs.clone());
        for (is_committed, content) in [(true, b"one"), (false, b"two")] {
            let token = atomics.begin(handle, 0).expect("a group");
            atomics.join(handle, token, 0).expect("is in it");
            let member = atomics.member(handle).expect("is in it");
            atomics.write(&member, 0, content).expect("a group").expect("is staged");
            let group = atomics.of_token(handle, token).expect("a group");
            let gate = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let end = |transaction: Transaction| {
                        gate.wait();
                        gate.wait();
                        if is_committed { transaction.commit().map(drop) } else { Ok(()) }
                    };
                    atomics.finish(&group, end).expect("nobody else ends it").0.expect("is committed");
                });
                // The group is ending.
                gate.wait();
                let late = scope.spawn(|| atomics.write(&member, 0, b"late"));
                let seen = scope.spawn(|| {
                    let mut seen = [0; 4];
                    // It has looked the group up before its end, or comes behind it.
                    atomics
                        .read(member.object, 0, &mut seen)
                        .map(|read| seen[..read.expect("is read")].to_vec())
                });
                assert!(group.may_wait(), "so it is not done on a queue's thread");
                gate.wait();
                assert!(late.join().expect("ends").is_none(), "neither staged nor written");
                assert_eq!(seen.join().expect("ends"), None, "to be read as committed");
            });
            assert_eq!(volume.read("f").expect("is read"), b"one", "of the first round");
            assert!(atomics.member(handle).is_none());
            assert!(atomics.is_idle());
        }
        fs.release(handle).expect("is closed");
    }
}
