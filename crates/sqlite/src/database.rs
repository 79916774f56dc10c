//! [`Database`]: what the connections of this process share of one database file, and [`Connection`], one of them.
//!
//! Every write between a lock and the end of a transaction goes into a [`Staged`] transaction, so that the file never
//! shows half of one. Where the transaction ends SQLite tells in one of these ways:
//! - `xSync` of the database: the commit of one database. It is durable and atomic before the call returns;
//! - `FCNTL_SYNC` with a super-journal's name, then `xSync`: one of several databases. What is staged is set aside
//!   under that name; deleting the super-journal commits all that was set aside under it in one record
//!   ([`crate::together`]);
//! - `FCNTL_COMMIT_ATOMIC_WRITE`: a commit by a SQLite that knows batch atomic writes;
//! - `FCNTL_COMMIT_PHASETWO` with something still staged: no sync came before it, so synchronous is OFF. Atomic,
//!   durable later;
//! - an unlock with something still staged: the transaction was given up, and what is staged is discarded.
//!
//! A rollback is SQLite writing the old pages back, from its journal. Pages that equal what is committed are not
//! staged then, and if in the end nothing differs there is nothing to commit: so a rollback needs no space and no
//! flush, also on a full volume.
//!
//! A transaction that is too large for one record of the volume falls back to what SQLite does everywhere: its
//! journal is kept in the volume ([`crate::journal`]), and the database is written to directly. Its end is then the
//! end of the journal.
//!
//! In WAL mode the database is written by checkpoints only, which SQLite makes crash-safe by itself, and which others
//! may read before they are synced: those writes go straight to the file. Whether it is WAL mode is whether a WAL is
//! open.
//!
//! Locks: `state`, above everything of the engine.

use crate::error::{Result, VfsError};
use crate::journal::VirtualFile;
use crate::locks::{ConnectionId, Level, Locks};
use crate::shm::{Held, Shm};
use crate::staged::Staged;
use crate::volumes::{self, VolumeRef};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use syncline::{Error, File, OpenOptions, SyncScope};
use syncline_fs::ObjectNo;

/// Permissions of a new database, before the umask.
const NEW_MODE: u32 = 0o644;

/// One database file with connections.
pub(crate) struct Database {
    // Constant.
    path: PathBuf,
    object: ObjectNo,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    locks: Locks,
    staged: Option<(ConnectionId, Staged)>,
    /// The super-journal under whose name `staged`, or what was written directly, was synced.
    set_aside: Option<SetAside>,
    /// The journal was read: writes may bring back what is committed.
    playing_back: bool,
    /// Written directly since the last sync.
    written: bool,
    /// Too large to be staged: a kept journal protects what is written directly.
    direct: bool,
    /// Between BEGIN_ATOMIC_WRITE and its end: SQLite holds the journal in its memory.
    batch: bool,
    /// Open handles of the database's WAL.
    wals: u32,
    shm: Shm,
}

/// A database's part of a transaction over several ones.
struct SetAside {
    super_journal: PathBuf,
    file: Arc<File>,
}

/// What a database has set aside, taken from it: the staged changes, unless they were written directly.
pub(crate) struct Part {
    pub(crate) database: Arc<Database>,
    pub(crate) staged: Option<Staged>,
    file: Arc<File>,
}

/// Names connections, process-wide.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// One connection to a database.
pub(crate) struct Connection {
    file: Arc<File>,
    writable: bool,
    id: ConnectionId,
    level: Level,
    /// The super-journal that SQLite has named for the sync that follows.
    super_journal: Option<PathBuf>,
    mapped: bool,
    held: Held,
    pub(crate) persist_wal: bool,
    database: Arc<Database>,
    volume: VolumeRef,
}

impl Database {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn name(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    /// The journal of this database was read.
    pub(crate) fn note_playback(&self) {
        self.state.lock().playing_back = true;
    }

    #[cfg(test)]
    pub(crate) fn is_playing_back(&self) -> bool {
        self.state.lock().playing_back
    }

    /// Holds the database as it is: nothing is staged, committed or written directly until this is dropped.
    ///
    /// Errors: `UnderWay` amid a transaction that is being written directly.
    pub(crate) fn hold(&self) -> Result<impl Drop> {
        let state = self.state.lock();
        match state.direct {
            true => Err(VfsError::UnderWay(self.path.display().to_string())),
            false => Ok(state),
        }
    }

    /// Makes what was written directly durable.
    pub(crate) fn sync(&self, volume: &VolumeRef) -> Result<()> {
        self.state.lock().written = false;
        volume.fs().files().sync_inode(self.object, SyncScope::Data).map_err(VfsError::engine(self.name()))
    }

    /// The kept journal is gone: writes are staged again.
    pub(crate) fn end_direct(&self) {
        let mut state = self.state.lock();
        state.direct = false;
        state.set_aside = None;
    }

    /// Takes what was set aside under the name of a super-journal.
    pub(crate) fn take_part(self: &Arc<Database>, super_journal: &Path) -> Option<Part> {
        let mut state = self.state.lock();
        let set_aside = state.set_aside.take_if(|set_aside| set_aside.super_journal == super_journal)?;
        state.playing_back = false;
        let staged = state.staged.take().map(|(_, staged)| staged);
        Some(Part { database: self.clone(), staged, file: set_aside.file })
    }

    /// A WAL of this database was opened.
    pub(crate) fn add_wal(&self) {
        self.state.lock().wals += 1;
    }

    /// A WAL of this database was closed.
    pub(crate) fn remove_wal(&self) {
        self.state.lock().wals -= 1;
    }

    /// The database's journal, if it could undo something.
    pub(crate) fn armed_journal(&self, volume: &VolumeRef) -> Result<Option<Arc<VirtualFile>>> {
        match volume.virtual_files.get(&self.journal()) {
            Some(journal) if journal.is_armed()? => Ok(Some(journal)),
            _ => Ok(None),
        }
    }

    /// The path of the journal that SQLite gives to a database.
    pub(crate) fn journal(&self) -> PathBuf {
        let mut journal = self.path.clone().into_os_string();
        journal.push("-journal");
        journal.into()
    }
}

/// The open database that a name with a suffix belongs to: that of a journal or a WAL.
pub(crate) fn of_companion(volume: &VolumeRef, path: &Path, suffix: &[u8]) -> Option<Arc<Database>> {
    let name = path.as_os_str().as_bytes().strip_suffix(suffix)?;
    volume.database(Path::new(std::ffi::OsStr::from_bytes(name)))
}

impl Part {
    /// Whether the database was written directly.
    pub(crate) fn is_direct(&self) -> bool {
        self.database.state.lock().direct
    }

    /// Begins to stage something for the database.
    pub(crate) fn begin(&self, volume: &VolumeRef) -> Result<Staged> {
        Staged::begin(volume.fs(), self.database.object, self.database.name())
    }

    /// Writes what is staged to the database itself, durably, protected by a journal that is kept.
    ///
    /// Errors: `TooLargeTogether` if SQLite has no journal. What is staged is given up in any case.
    pub(crate) fn write_directly(&mut self, volume: &VolumeRef) -> Result<()> {
        let Some(mut staged) = self.staged.take() else { return Ok(()) };
        let Some(journal) = self.database.armed_journal(volume)? else {
            return Err(VfsError::TooLargeTogether(self.database.path.display().to_string()));
        };
        journal.keep(volume)?;
        self.database.state.lock().direct = true;
        staged.write_to(&self.file)?;
        drop(staged);
        self.database.sync(volume)
    }
}

impl Connection {
    /// Opens a database; creates it if that is asked for and there is none.
    pub(crate) fn open(
        volume: VolumeRef,
        path: PathBuf,
        writable: bool,
        create: bool,
        exclusive: bool,
    ) -> Result<Connection> {
        let name = path.as_os_str().as_bytes();
        let found = volume.volume().symlink_metadata(&path);
        if found.is_ok_and(|metadata| metadata.is_symlink()) {
            return Err(VfsError::Symlink(path.display().to_string()));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(writable).follow_symlink(false).mode(NEW_MODE);
        options.create(create && writable).create_new(exclusive && create && writable);
        let file = options.open(volume.volume(), &path);
        if create {
            volume.absent.note_made();
        }
        let file = file.map_err(VfsError::io(name))?;
        let object = file.metadata().map_err(VfsError::io(name))?.attr().inode;
        let database = {
            let mut databases = volume.databases.lock();
            match databases.get(&object).and_then(Weak::upgrade) {
                Some(database) => database,
                None => {
                    let state = Mutex::default();
                    let database = Arc::new(Database { path, object, state });
                    databases.insert(object, Arc::downgrade(&database));
                    database
                }
            }
        };
        Ok(Connection {
            file: Arc::new(file),
            writable,
            id: ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed)),
            level: Level::None,
            super_journal: None,
            mapped: false,
            held: Held::default(),
            persist_wal: false,
            database,
            volume,
        })
    }

    pub(crate) fn volume(&self) -> &VolumeRef {
        &self.volume
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Whether the file has lost its name.
    pub(crate) fn has_moved(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.attr().nlink == 0)
    }

    fn io<T>(&self, result: std::io::Result<T>) -> Result<T> {
        result.map_err(VfsError::io(self.database.name()))
    }

    /// Reads; fewer bytes than asked for only at the end.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut state = self.database.state.lock();
        if let Some((owner, staged)) = &mut state.staged
            && *owner == self.id
        {
            // What the transaction reads through itself it has to remember; SQLite's locks keep the rest as it is.
            if staged.is_untouched(offset, into.len())
                && self.io(self.file.read_at(into, offset))? == into.len()
            {
                return Ok(into.len());
            }
            return staged.read(offset, into);
        }
        drop(state);
        self.io(self.file.read_at(into, offset))
    }

    pub(crate) fn size(&self) -> Result<u64> {
        let mut state = self.database.state.lock();
        if let Some((owner, staged)) = &mut state.staged
            && *owner == self.id
        {
            return staged.size();
        }
        drop(state);
        Ok(self.io(self.file.metadata())?.len())
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        let mut state = self.database.state.lock();
        if state.wals == 0 && state.playing_back && self.is_committed(state.staged.as_ref(), offset, data)? {
            return Ok(());
        }
        if state.wals == 0 && !state.direct {
            match self.staged(&mut state)?.write(offset, data) {
                Err(error) if is_too_large(&error) => self.fall_back(&mut state, error)?,
                result => return result,
            }
        }
        let protected = state.direct;
        state.written = true;
        drop(state);
        if protected && let Some(journal) = self.volume.virtual_files.get(&self.database.journal()) {
            // Nothing to do but with synchronous OFF.
            journal.sync()?;
        }
        self.io(self.file.write_all_at(data, offset))
    }

    /// Goes on directly with a transaction that has become too large: keeps the journal, and writes what is staged to
    /// the file.
    ///
    /// Errors: the one given if SQLite has no journal (journal mode MEMORY or OFF, or a batch).
    fn fall_back(&self, state: &mut State, too_large: VfsError) -> Result<()> {
        if state.batch {
            return Err(VfsError::Batch(Box::new(too_large)));
        }
        let Some(journal) = self.database.armed_journal(&self.volume)? else { return Err(too_large) };
        journal.keep(&self.volume)?;
        // From here on only the journal tells what the database was.
        state.direct = true;
        state.written = true;
        state.set_aside = None;
        let Some((_, mut staged)) = state.staged.take() else { return Ok(()) };
        staged.write_to(&self.file)
    }

    /// Whether writing this would change nothing.
    fn is_committed(
        &self,
        staged: Option<&(ConnectionId, Staged)>,
        offset: u64,
        data: &[u8],
    ) -> Result<bool> {
        if staged.is_some_and(|(_, staged)| !staged.is_untouched(offset, data.len())) {
            return Ok(false);
        }
        let mut committed = vec![0; data.len()];
        let count = self.io(self.file.read_at(&mut committed, offset))?;
        Ok(count == data.len() && committed == data)
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<()> {
        self.check_writable()?;
        let mut state = self.database.state.lock();
        if state.wals > 0 || state.direct {
            state.written = true;
            drop(state);
            return self.io(self.file.set_len(size));
        }
        if state.staged.is_none() && size == self.io(self.file.metadata())?.len() {
            return Ok(());
        }
        match self.staged(&mut state)?.truncate(size) {
            Err(error) if is_too_large(&error) => self.fall_back(&mut state, error)?,
            result => return result,
        }
        drop(state);
        self.io(self.file.set_len(size))
    }

    fn check_writable(&self) -> Result<()> {
        match self.writable {
            true => Ok(()),
            false => Err(VfsError::NotWritable(self.database.path.display().to_string())),
        }
    }

    /// What this connection has staged; begins it if there is nothing.
    fn staged<'a>(&self, state: &'a mut State) -> Result<&'a mut Staged> {
        if state.staged.as_ref().is_none_or(|(owner, _)| *owner != self.id) {
            // What somebody else has left is void: two writers are possible only without locks.
            let staged = Staged::begin(self.volume.fs(), self.database.object, self.database.name())?;
            state.staged = Some((self.id, staged));
            state.set_aside = None;
        }
        let (_, staged) = state.staged.as_mut().expect("it has just been put there");
        Ok(staged)
    }

    /// SQLite names the super-journal, if any, for the sync that follows.
    pub(crate) fn name_super_journal(&mut self, path: Option<PathBuf>) {
        self.super_journal = path;
    }

    /// The end of a transaction, or of a checkpoint or a rollback.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let super_journal = self.super_journal.take();
        let mut state = self.database.state.lock();
        match state.staged.take() {
            Some((owner, staged)) if owner == self.id => {
                if let Some(path) = super_journal
                    && self.volume.virtual_files.get(&path).is_some()
                {
                    state.staged = Some((owner, staged));
                    state.set_aside = Some(SetAside { super_journal: path, file: self.file.clone() });
                    return Ok(());
                }
                self.finish(&mut state, staged, Staged::commit)
            }
            others => {
                state.staged = others;
                if state.direct {
                    // Its journal ends together with the others' commit.
                    let virtual_files = &self.volume.virtual_files;
                    let super_journal = super_journal.filter(|path| virtual_files.get(path).is_some());
                    state.set_aside = super_journal
                        .map(|super_journal| SetAside { super_journal, file: self.file.clone() });
                }
                let written = std::mem::take(&mut state.written);
                drop(state);
                if written { self.io(self.file.sync_data()) } else { Ok(()) }
            }
        }
    }

    fn finish(
        &self,
        state: &mut State,
        mut staged: Staged,
        commit: impl FnOnce(Staged) -> Result<()>,
    ) -> Result<()> {
        state.set_aside = None;
        let played_back = std::mem::take(&mut state.playing_back);
        if played_back && staged.equals(&self.file)? {
            return Ok(());
        }
        commit(staged)
    }

    /// A batch of atomic writes begins. Errors if something was written before: then SQLite commits with its journal.
    pub(crate) fn begin_batch(&self) -> bool {
        let mut state = self.database.state.lock();
        state.batch = state.staged.is_none() && !state.direct;
        state.batch
    }

    /// Commits a batch of atomic writes.
    pub(crate) fn commit_batch(&mut self) -> Result<()> {
        self.super_journal = None;
        self.database.state.lock().batch = false;
        self.sync().map_err(|error| VfsError::Batch(Box::new(error)))
    }

    /// Gives up what was written since the last commit.
    pub(crate) fn discard(&self) {
        let mut state = self.database.state.lock();
        if state.staged.as_ref().is_some_and(|(owner, _)| *owner == self.id) {
            state.staged = None;
            state.set_aside = None;
        }
        if state.direct {
            state.set_aside = None;
        }
        // A journal that is still kept is hot now, and is played back like any other.
        state.direct = false;
        state.batch = false;
        state.playing_back = false;
    }

    /// The transaction has ended for SQLite. What is staged now was not synced: synchronous is OFF; or it is the cut of
    /// pages that the transaction has freed, which need not be atomic with it.
    pub(crate) fn commit_phase_two(&mut self) -> Result<()> {
        self.super_journal = None;
        let mut state = self.database.state.lock();
        match state.staged.take() {
            Some((owner, mut staged)) if owner == self.id => {
                if staged.only_truncates() {
                    let size = staged.size()?;
                    drop(staged);
                    state.set_aside = None;
                    state.playing_back = false;
                    return self.io(self.file.set_len(size));
                }
                self.finish(&mut state, staged, Staged::commit_soon)
            }
            others => {
                state.staged = others;
                state.playing_back = false;
                Ok(())
            }
        }
    }

    /// Raises the lock; false if somebody else's is in the way.
    pub(crate) fn lock(&mut self, to: Level) -> bool {
        volumes::note_used(&self.volume);
        let mut state = self.database.state.lock();
        self.level = state.locks.raise(self.id, self.level, to);
        self.level >= to
    }

    /// Lowers the lock. What is staged and was not committed is given up.
    pub(crate) fn unlock(&mut self, to: Level) {
        if to < Level::Reserved && self.level >= Level::Reserved {
            self.discard();
        }
        let mut state = self.database.state.lock();
        state.locks.lower(self.id, self.level, to);
        self.level = self.level.min(to);
    }

    pub(crate) fn is_reserved(&self) -> bool {
        self.database.state.lock().locks.is_reserved()
    }

    /// Address of a region of the WAL index.
    pub(crate) fn shm_region(&mut self, index: usize, bytes: usize, extend: bool) -> Option<*mut c_void> {
        let mut state = self.database.state.lock();
        if !self.mapped {
            state.shm.attach();
            self.mapped = true;
        }
        state.shm.region(index, bytes, extend)
    }

    pub(crate) fn shm_lock(&mut self, first: usize, count: usize, exclusive: bool) -> bool {
        let mut state = self.database.state.lock();
        match exclusive {
            true => state.shm.lock_exclusive(&mut self.held, first, count),
            false => state.shm.lock_shared(&mut self.held, first, count),
        }
    }

    pub(crate) fn shm_unlock(&mut self, first: usize, count: usize) {
        self.database.state.lock().shm.unlock(&mut self.held, first, count);
    }

    pub(crate) fn shm_unmap(&mut self) {
        if std::mem::take(&mut self.mapped) {
            self.database.state.lock().shm.detach(&mut self.held);
        }
    }
}

fn is_too_large(error: &VfsError) -> bool {
    matches!(error, VfsError::Engine { source: Error::TransactionTooLarge { .. }, .. })
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shm_unmap();
        self.discard();
        self.unlock(Level::None);
        let mut databases = self.volume.databases.lock();
        // This connection's reference is the last one: nobody gets another while the table is locked.
        if Arc::strong_count(&self.database) == 1 {
            databases.remove(&self.database.object);
            // What is committed counts, as after a crash.
            self.volume.virtual_files.forget(&self.database.journal());
        }
    }
}
