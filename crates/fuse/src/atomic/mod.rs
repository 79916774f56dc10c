//! Files that are changed atomically through the mount: which open files' writes go into which transaction.
//!
//! A *group* is a transaction of the engine and the open files that have joined it: one for the f2fs interface, any
//! number for multi-file commits. It belongs to one open file and is given up when that is released, so also when its
//! process dies.
//!
//! The kernel's page cache and its cache of names take part in writes and renames before the engine has committed
//! them. So that they hold one state and no mixture, while a group is open everybody who reads through them is
//! answered as the group sees its files: content, attributes and names (the latter two not to be remembered). When it
//! is given up, what the kernel has cached of it is invalidated. Reads past the page cache get what is committed.
//!
//! A name that a group has changed is the group's until the end: the kernel has judged by the group's view who may
//! take, give or replace it, so no other change of it is made, by whomever ([`Atomics::check_names`]).
//!
//! What was asked of a group before its end is never done outside of it: it waits for the end, and then a write, a
//! truncation or a change of names is EBUSY, a read gets what is committed. Only pages of a mapping, which come at
//! any time and would be lost, are then written like others.
//!
//! Locks: `state`, for a few instructions (at the end of a group for as long as it has names and files);
//! `Group::transaction` before it, for as long as staging, committing and giving up take (not the flush).

mod state;

pub(crate) use state::{Member, Name};

use crate::convert::errno;
use crate::ledger::Ledger;
use fusering::Errno;
use parking_lot::Mutex;
use state::State;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use syncline_fs::{Attr, Entropy, Error, Footprint, Fs, HandleId, ObjectNo, SystemEntropy, Transaction};

/// Beyond so many pages staged, staging more may have to wait for the device, and so may the commit.
const LIGHT_PAGES_MAX: usize = 64;

/// Groups that one open file may have begun.
const GROUPS_MAX: usize = 64;

/// Names that one group may change: each takes memory, also one that is changed back.
const NAMES_MAX: usize = 65536;

/// What a name of a group that is over takes until the kernel has forgotten it.
const NAME_BYTES: u64 = 512;

const PAGE_BYTES: u64 = 4096;

/// A transaction that open files have joined.
pub(crate) struct Group {
    // Constant.
    /// Of this group alone.
    number: u64,
    owner: HandleId,
    /// Who may join, and whose account it is on.
    uid: u32,
    /// `None` for the f2fs interface.
    token: Option<u64>,
    /// Gone when it is over; locked as long as it is being committed or given up.
    transaction: Mutex<Option<Transaction>>,
    /// As it is booked. Innermost; changes under `transaction`.
    footprint: Mutex<Footprint>,
    /// Changes under `transaction`. Relaxed: a wrong guess makes somebody wait a little.
    staged_pages: AtomicUsize,
    /// Names that it has changed, some maybe back again.
    names: AtomicUsize,
    /// The transaction is gone. Changes under `State`.
    is_over: AtomicBool,
    /// Its owner was closed, which who has joined cannot know: their open files stay members of it, and what is
    /// written through them fails. Changes under `State`.
    is_lost: AtomicBool,
}

impl Group {
    /// Errors: E2BIG, no record holds as many names.
    fn check_names(&self) -> syncline_fs::Result<()> {
        match self.names.load(Ordering::Relaxed) {
            names if names >= NAMES_MAX => Err(Error::TooBig),
            _ => Ok(()),
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Whether staging something or committing may take long, as far as the group goes.
    pub(crate) fn may_wait(&self) -> bool {
        self.staged_pages.load(Ordering::Relaxed) > LIGHT_PAGES_MAX || self.transaction.is_locked()
    }
}

/// A group that is over, and what the kernel may have cached of it. Its names are nobody's before [`Atomics::settle`].
#[must_use = "its names are held until the group is settled"]
pub(crate) struct Leftovers {
    pub(crate) group: Arc<Group>,
    pub(crate) files: Vec<ObjectNo>,
    pub(crate) names: Vec<Name>,
}

impl Leftovers {
    pub(crate) fn uid(&self) -> u32 {
        self.group.uid
    }

    /// Whether the kernel cannot know anything of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.names.is_empty()
    }
}

/// All groups of a mount.
pub(crate) struct Atomics {
    // Constant.
    fs: Arc<Fs>,
    ledger: Arc<Ledger>,
    entropy: SystemEntropy,
    next: AtomicU64,
    /// Groups in `state`, so that without any nothing has to be looked up. Set before a group's first call is answered.
    open: AtomicUsize,
    state: Mutex<State>,
}

impl Atomics {
    pub(crate) fn new(fs: Arc<Fs>, ledger: Arc<Ledger>) -> Atomics {
        Atomics {
            fs,
            ledger,
            entropy: SystemEntropy::default(),
            next: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            state: Mutex::default(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    /// Changes the state.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.open.store(state.len(), Ordering::Release);
        result
    }

    /// Groups that are open or not settled, and how many entries of groups were gone through one by one so far.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.len(), state.visited())
    }

    /// Errors: EAGAIN, the user has too many groups.
    fn new_group(&self, owner: HandleId, uid: u32, token: Option<u64>) -> Result<Arc<Group>, Errno> {
        let transaction = self.fs.begin().map_err(errno)?;
        self.ledger.open_group(uid)?;
        Ok(Arc::new(Group {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            owner,
            uid,
            token,
            transaction: Mutex::new(Some(transaction)),
            footprint: Mutex::default(),
            staged_pages: AtomicUsize::new(0),
            names: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
        }))
    }

    /// Begins a group of one open file. Nothing happens if it is in one already. Errors: EBUSY, the file is part of
    /// another; EAGAIN, the user has too many.
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
        self.check_writable(handle)?;
        let group = self.new_group(handle, uid, None)?;
        self.change(|state| state.enter(&group));
        self.add(handle, &group).inspect_err(|_| {
            if let Some(((), left)) = self.finish(&group, drop) {
                self.settle(&left.group);
            }
        })
    }

    /// Begins a group that belongs to an open file, which is not in it yet; returns its token. Errors: EBADF, the
    /// file is not open for writing; EAGAIN, it or the user has begun too many.
    pub(crate) fn begin(&self, owner: HandleId, uid: u32) -> Result<u64, Errno> {
        // The handle is known, or nobody would ever release it.
        self.check_writable(owner)?;
        // Not to be guessed by others; 0 is no token.
        let token = self.entropy.number().max(1);
        let group = self.new_group(owner, uid, Some(token))?;
        let is_one_too_many = self.change(|state| {
            let is_full = state.token_count(owner) >= GROUPS_MAX;
            if !is_full {
                state.enter(&group);
            }
            is_full
        });
        if is_one_too_many {
            self.ledger.close_group(uid);
            return Err(Errno::EAGAIN);
        }
        Ok(token)
    }

    /// An open file joins a group. Errors: EINVAL, there is no such token for this user; EBUSY, the file is part of
    /// another group.
    pub(crate) fn join(&self, handle: HandleId, token: u64, uid: u32) -> Result<(), Errno> {
        let group = self.state.lock().of_token(token).cloned();
        let group = group.filter(|group| group.uid == uid).ok_or(Errno::EINVAL)?;
        self.add(handle, &group)
    }

    /// Whether [`Atomics::join`] may have to wait.
    pub(crate) fn join_may_wait(&self, token: u64) -> bool {
        self.state.lock().of_token(token).is_some_and(|group| group.may_wait())
    }

    /// Errors: EBADF. Who may only read a file is not to get hold of it, or of what a group takes.
    fn check_writable(&self, handle: HandleId) -> Result<(), Errno> {
        match self.fs.files().handle_is_writable(handle).map_err(errno)? {
            true => Ok(()),
            false => Err(Errno::EBADF),
        }
    }

    fn add(&self, handle: HandleId, group: &Arc<Group>) -> Result<(), Errno> {
        self.check_writable(handle)?;
        let object = self.fs.files().handle_inode(handle).map_err(errno)?;
        self.ledger.check(group.uid, 0)?;
        let mut transaction = group.transaction.lock();
        let transaction = transaction.as_mut().ok_or(Errno::EINVAL)?;
        if !self.state.lock().may_join(handle, object, group) {
            return Err(Errno::EBUSY);
        }
        let size = transaction.size(object).map_err(errno);
        self.book(group, transaction.footprint());
        let size = size?;
        self.change(|state| {
            if !state.may_join(handle, object, group) {
                return Err(Errno::EBUSY);
            }
            state.add_file(object, size, group);
            state.add_member(handle, object, group);
            Ok(())
        })
    }

    /// The group that an open file's writes go to.
    pub(crate) fn member(&self, handle: HandleId) -> Option<Member> {
        match self.is_idle() {
            true => None,
            false => self.state.lock().member(handle).cloned(),
        }
    }

    /// The group that a file is part of.
    pub(crate) fn group_of(&self, object: ObjectNo) -> Option<Arc<Group>> {
        match self.is_idle() {
            true => None,
            false => self.state.lock().group_of(object).cloned(),
        }
    }

    /// Notes what a group takes. Called under its lock.
    fn book(&self, group: &Group, now: Footprint) {
        let before = std::mem::replace(&mut *group.footprint.lock(), now);
        self.ledger.rebook(group.uid, before, now);
    }

    /// Stages something, and notes it before the group can end; `None` if it has ended meanwhile, which this waits for.
    fn stage<T>(
        &self,
        group: &Group,
        work: impl FnOnce(&mut Transaction) -> syncline_fs::Result<T>,
        note: impl FnOnce(&mut State, &T),
    ) -> Option<Result<T, Errno>> {
        let mut transaction = group.transaction.lock();
        let transaction = transaction.as_mut()?;
        let staged = work(transaction);
        self.book(group, transaction.footprint());
        if let Ok(done) = &staged {
            self.change(|state| note(state, done));
        }
        Some(staged.map_err(errno))
    }

    fn stage_content(
        &self,
        member: &Member,
        blocks: u64,
        work: impl FnOnce(&mut Transaction) -> syncline_fs::Result<()>,
    ) -> Option<Result<(), Errno>> {
        let Member { object, group } = member;
        if let Err(errno) = self.ledger.check(group.uid, blocks) {
            return Some(Err(errno));
        }
        let work = |transaction: &mut Transaction| {
            let before = transaction.staged_pages(*object);
            let result = work(transaction);
            let (staged, after) = (&group.staged_pages, transaction.staged_pages(*object));
            staged.store(staged.load(Ordering::Relaxed) + after - before, Ordering::Relaxed);
            result?;
            transaction.size(*object)
        };
        let staged = self.stage(group, work, |state, size| state.set_size(*object, *size))?;
        Some(staged.map(drop))
    }

    pub(crate) fn write(&self, member: &Member, offset: u64, data: &[u8]) -> Option<Result<(), Errno>> {
        let blocks = (data.len() as u64).div_ceil(PAGE_BYTES);
        self.stage_content(member, blocks, |transaction| transaction.write(member.object, offset, data))
    }

    pub(crate) fn truncate(&self, member: &Member, size: u64) -> Option<Result<(), Errno>> {
        self.stage_content(member, 0, |transaction| transaction.truncate(member.object, size))
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

    /// Whether names may be changed by what is no part of a group, or as part of `group`. Errors: EBUSY, another
    /// group has changed one of them: what the kernel knows of it, and has judged the caller's rights by, is that
    /// group's view.
    pub(crate) fn check_names(
        &self,
        group: Option<&Arc<Group>>,
        names: &[(ObjectNo, &[u8])],
    ) -> Result<(), Errno> {
        if self.is_idle() {
            return Ok(());
        }
        let state = self.state.lock();
        let elsewhere = |holder: &Arc<Group>| !group.is_some_and(|group| Arc::ptr_eq(group, holder));
        match names.iter().any(|(parent, name)| state.holder(*parent, name).is_some_and(elsewhere)) {
            true => Err(Errno::EBUSY),
            false => Ok(()),
        }
    }

    /// Stages a change of names, which no other group has changed.
    fn stage_names<T>(
        &self,
        group: &Arc<Group>,
        names: &[&Name],
        work: impl FnOnce(&mut Transaction) -> syncline_fs::Result<T>,
        note: impl FnOnce(&mut State, &T),
    ) -> Result<T, Errno> {
        let names: Vec<_> = names.iter().map(|(parent, name)| (*parent, &name[..])).collect();
        self.check_names(Some(group), &names)?;
        self.ledger.check(group.uid, 0)?;
        let work = |transaction: &mut Transaction| {
            group.check_names()?;
            work(transaction)
        };
        self.stage(group, work, note).unwrap_or(Err(Errno::EBUSY))
    }

    /// Renames a file of a group of this user's, or one that it has renamed before; `None`: that is nobody's, or
    /// another user's, who is not to decide whether it happens.
    pub(crate) fn rename(
        &self,
        uid: u32,
        from: &Name,
        to: &Name,
        no_replace: bool,
    ) -> Option<Result<(), Errno>> {
        let (object, group) = self.named(from).filter(|(_, group)| group.uid == uid)?;
        let rename =
            |transaction: &mut Transaction| transaction.rename(from.0, &from.1, to.0, &to.1, no_replace);
        Some(self.stage_names(&group, &[from, to], rename, |state, ()| {
            state.set_name(from, &group, None);
            state.set_name(to, &group, Some(object));
        }))
    }

    /// Takes away a name that a group of this user's has given.
    pub(crate) fn unlink(&self, uid: u32, from: &Name) -> Option<Result<(), Errno>> {
        let group = self.group_of_name(uid, from, |now| now.is_some())?;
        let unlink = |transaction: &mut Transaction| transaction.unlink(from.0, &from.1);
        Some(self.stage_names(&group, &[from], unlink, |state, ()| state.set_name(from, &group, None)))
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
        let (now, group) = state.staged_name(name.0, &name.1)?;
        Some(group.clone()).filter(|group| is_wanted(now) && group.uid == uid)
    }

    /// Gives a file without a name, which was just made and opened, a name in a group, and makes it part of the group.
    pub(crate) fn adopt(
        &self,
        group: &Arc<Group>,
        handle: HandleId,
        object: ObjectNo,
        name: &Name,
    ) -> Result<(), Errno> {
        let is_writable = self.fs.files().handle_is_writable(handle).map_err(errno)?;
        let link = |transaction: &mut Transaction| {
            transaction.link(object, name.0, &name.1)?;
            transaction.size(object)
        };
        let staged = self.stage_names(group, &[name], link, |state, size| {
            state.add_file(object, *size, group);
            state.set_name(name, group, Some(object));
            if is_writable {
                state.add_member(handle, object, group);
            }
        });
        staged.map(drop)
    }

    /// Gives a file of a group of this user's another name.
    pub(crate) fn link(&self, uid: u32, object: ObjectNo, to: &Name) -> Option<Result<(), Errno>> {
        let group = self.group_of(object).filter(|group| group.token.is_some() && group.uid == uid)?;
        let link = |transaction: &mut Transaction| transaction.link(object, to.0, &to.1);
        Some(self.stage_names(&group, &[to], link, |state, ()| state.set_name(to, &group, Some(object))))
    }

    /// A file of a multi-file group, by a name that it has or that the group has given it.
    fn named(&self, name: &Name) -> Option<(ObjectNo, Arc<Group>)> {
        if self.is_idle() {
            return None;
        }
        if let Some((now, group)) = self.state.lock().staged_name(name.0, &name.1) {
            return now.map(|object| (object, group.clone()));
        }
        let object = self.fs.names().lookup(name.0, &name.1).ok()?.attr.inode;
        let group = self.group_of(object).filter(|group| group.token.is_some())?;
        Some((object, group))
    }

    /// Whether a change of a name may have to wait for the group that has it, which is being committed or stages much.
    pub(crate) fn name_may_wait(&self, parent: ObjectNo, name: &[u8]) -> bool {
        !self.is_idle() && self.state.lock().holder(parent, name).is_some_and(|group| group.may_wait())
    }

    /// The same for the group of a file.
    pub(crate) fn object_may_wait(&self, object: ObjectNo) -> bool {
        self.group_of(object).is_some_and(|group| group.may_wait())
    }

    /// The same for the group of a file that has a name, staged or committed.
    pub(crate) fn rename_may_wait(&self, parent: ObjectNo, name: &[u8]) -> bool {
        !self.is_idle() && self.named(&(parent, name.to_vec())).is_some_and(|(_, group)| group.may_wait())
    }

    /// Who has a name as a group sees it; `None`: no group has changed it.
    pub(crate) fn staged_name(&self, parent: ObjectNo, name: &[u8]) -> Option<Option<ObjectNo>> {
        if self.is_idle() {
            return None;
        }
        self.state.lock().staged_name(parent, name).map(|(now, _)| now)
    }

    /// Puts in what a group sees of a file; true if it is part of one, or a directory that the commit is going to
    /// change, and nothing of it may be remembered.
    pub(crate) fn amend(&self, attr: &mut Attr) -> bool {
        !self.is_idle() && self.state.lock().amend(attr)
    }

    /// The group of a token, if it belongs to this open file. Errors: EINVAL.
    pub(crate) fn of_token(&self, owner: HandleId, token: u64) -> Result<Arc<Group>, Errno> {
        let group = self.state.lock().of_token(token).cloned();
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

    /// Whether [`Atomics::release`] gives something up.
    pub(crate) fn owns_groups(&self, handle: HandleId) -> bool {
        !self.is_idle() && self.state.lock().owns(handle)
    }

    /// An open file is gone; what the groups that end with it leave.
    pub(crate) fn release(&self, handle: HandleId) -> Vec<Leftovers> {
        if self.is_idle() {
            return Vec::new();
        }
        let owned = self.change(|state| {
            state.remove_member(handle);
            state.owned(handle)
        });
        owned.iter().filter_map(|group| self.finish_as(group, true, drop)).map(|((), left)| left).collect()
    }

    /// Commits or drops a group's transaction and ends the group; whoever stages or reads something meanwhile waits.
    /// What comes of it, and what the kernel must not go on believing unless it was committed, which is to be settled
    /// in any case; `None` if it is over already.
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
        let (files, names) = self.change(|state| state.end(group, is_lost));
        self.book(group, Footprint { bytes: names.len() as u64 * NAME_BYTES, blocks: 0 });
        Some((result, Leftovers { group: group.clone(), files, names }))
    }

    /// The kernel believes nothing of a group any more that is not so: its names are free again.
    pub(crate) fn settle(&self, group: &Arc<Group>) {
        self.change(|state| state.settle(group));
        self.book(group, Footprint::default());
        self.ledger.close_group(group.uid);
    }
}

#[cfg(test)]
mod tests;
