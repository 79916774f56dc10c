//! What one daemon has mounted of its volume: the head or snapshot it was started for, and those that joined it
//! ([`crate::join`]). Each mount is a connection to the kernel of its own. The volume is closed with the last one.

use crate::differences::Differences;
use crate::memory::AutoMemory;
use crate::mount_point::is_ours;
use crate::replica::Replica;
use crate::volume::OpenVolume;
use crate::{MountError, MountOptions};
use parking_lot::{Condvar, Mutex};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use syncline_fs::{Error, Fs, Head};

/// How long a daemon that ends waits for its last answers to be sent.
const ANSWERS_PATIENCE: Duration = Duration::from_millis(500);

/// The mounts of a volume.
pub(crate) struct Mounts {
    // Constant.
    source: PathBuf,
    fs: Arc<Fs>,
    memory: Option<Arc<AutoMemory>>,
    replica: Option<Arc<Replica>>,
    is_read_only: bool,
    /// The volume was opened to show one snapshot.
    is_snapshot: bool,
    /// What keeps snapshots open that nobody reads.
    keepers: Mutex<Vec<Weak<dyn KeepsOpen>>>,
    /// What differs between snapshots, while it is fetched.
    differences: Differences,
    state: Mutex<State>,
    /// A mount is gone.
    changed: Condvar,
}

/// Keeps snapshots open that were read, in case they are read again.
pub(crate) trait KeepsOpen: Send + Sync {
    /// Closes those that nobody reads: one of them was deleted, and its space does not come back before.
    fn close_idle(&self);
}

struct State {
    /// Gone once the last mount ends.
    volume: Option<OpenVolume>,
    mounted: Vec<Mounted>,
    /// Number of the next mount.
    next: u64,
    /// Why the volume could not be closed.
    failure: Option<String>,
    /// Those who wait for a mount and have no answer yet.
    unanswered: usize,
}

impl State {
    /// All mounts are being ended, and the volume with them.
    fn is_ending(&self) -> bool {
        !self.mounted.is_empty() && self.mounted.iter().all(|mounted| mounted.is_ending)
    }

    /// The volume, for the last mount.
    fn take_from_last(&mut self) -> Option<OpenVolume> {
        if self.mounted.len() == 1 { self.volume.take() } else { None }
    }
}

/// One mount, from before the kernel knows of it until all of it is written.
struct Mounted {
    number: u64,
    directory: PathBuf,
    /// The tree of the head that it shows; a snapshot may be shown by several.
    head: Option<u32>,
    /// It counts no more: it is being ended.
    is_ending: bool,
}

/// What a mount has of the volume.
pub(crate) struct Share {
    mounts: Arc<Mounts>,
    number: u64,
    fs: Arc<Fs>,
    /// One that is open beside the head that the volume was opened with.
    head: Option<Head>,
    /// What is shown is a snapshot.
    is_snapshot: bool,
    is_ending: AtomicBool,
}

impl Mounts {
    /// Over a volume that was opened as the options say.
    pub(crate) fn new(source: &Path, volume: OpenVolume, options: &MountOptions) -> Arc<Mounts> {
        let mounts = Arc::new(Mounts {
            source: source.to_owned(),
            fs: volume.fs().clone(),
            memory: volume.memory().cloned(),
            replica: volume.replica().cloned(),
            is_read_only: options.is_read_only(),
            is_snapshot: options.snapshot.is_some(),
            keepers: Mutex::default(),
            differences: Differences::default(),
            state: Mutex::new(State {
                volume: Some(volume),
                mounted: Vec::new(),
                next: 0,
                failure: None,
                unanswered: 0,
            }),
            changed: Condvar::new(),
        });
        let told = Arc::downgrade(&mounts);
        mounts.fs.schedules().on_deletion(Box::new(move || {
            if let Some(mounts) = told.upgrade() {
                mounts.snapshot_deleted();
            }
        }));
        mounts
    }

    /// What differs between snapshots, while it is fetched.
    pub(crate) fn differences(&self) -> &Differences {
        &self.differences
    }

    /// The share of a mount that shows what the volume was opened with.
    pub(crate) fn first(self: &Arc<Self>, directory: &Path) -> Result<Share, MountError> {
        let head = self.first_head();
        let number = self.enter(directory, head)?;
        Ok(self.share(number, self.fs.clone(), None, self.is_snapshot))
    }

    /// The share of a mount that joins, of the head or snapshot that its options name.
    ///
    /// Errors: there is none of that name, or it is mounted already; the volume is being closed, or was opened with
    /// less than is asked for.
    pub(crate) fn join(
        self: &Arc<Self>,
        options: &MountOptions,
        directory: &Path,
    ) -> Result<Share, MountError> {
        if self.is_snapshot {
            return Err(MountError::ShowsSnapshot);
        }
        if self.is_read_only && !options.is_read_only() {
            return Err(MountError::JoinsReadOnly);
        }
        let failed = |source| MountError::Joined { source };
        if let Some(name) = &options.snapshot {
            let number = self.enter(directory, None)?;
            let view = self.fs.at(name).map_err(|error| match error {
                Error::NotFound => {
                    MountError::NoSnapshot { source_path: self.source.clone(), name: name.clone() }
                }
                error => failed(error),
            });
            let view = view.inspect_err(|_| self.remove(number))?;
            return Ok(self.share(number, view, None, true));
        }
        let heads = self.fs.heads().list();
        let meant = heads.iter().find(|head| match &options.head {
            Some(name) => head.name == *name,
            None => head.is_default,
        });
        let tree = match (meant, &options.head) {
            (Some(head), _) => Some(head.tree),
            // Of version 1 of the format.
            (None, None) => None,
            (None, Some(name)) => return Err(failed(Error::NoHead { name: name.clone() })),
        };
        let number = self.enter(directory, tree)?;
        let (Some(head), true) = (meant, tree != self.first_head()) else {
            return Ok(self.share(number, self.fs.clone(), None, false));
        };
        let opened = self.fs.heads().open(&head.name).map_err(failed);
        let opened = opened.inspect_err(|_| self.remove(number))?;
        Ok(self.share(number, opened.fs().clone(), Some(opened), false))
    }

    /// The head that the volume was opened with, which knows the others.
    pub(crate) fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    /// Has a mount told when a snapshot was deleted, by whichever mount.
    pub(crate) fn tell_of_deletions(&self, keeper: Weak<dyn KeepsOpen>) {
        self.keepers.lock().push(keeper);
    }

    /// A snapshot was deleted.
    pub(crate) fn snapshot_deleted(&self) {
        let mut keepers = self.keepers.lock();
        keepers.retain(|keeper| keeper.strong_count() > 0);
        keepers.iter().filter_map(Weak::upgrade).for_each(|keeper| keeper.close_idle());
    }

    /// The tree of the head that the volume was opened with.
    fn first_head(&self) -> Option<u32> {
        let wanted = self.fs.options().head.as_deref();
        let is_first = |head: &&syncline_fs::HeadInfo| match wanted {
            Some(name) => head.name == name,
            None => head.is_default,
        };
        match self.is_snapshot {
            true => None,
            false => self.fs.heads().list().iter().find(is_first).map(|head| head.tree),
        }
    }

    fn share(self: &Arc<Self>, number: u64, fs: Arc<Fs>, head: Option<Head>, is_snapshot: bool) -> Share {
        let mounts = self.clone();
        Share { mounts, number, fs, head, is_snapshot, is_ending: AtomicBool::new(false) }
    }

    /// Errors: the volume is being closed; the head is mounted, or something else of the volume in this directory.
    fn enter(&self, directory: &Path, head: Option<u32>) -> Result<u64, MountError> {
        let is_seen = self.is_seen_at(directory);
        let state = &mut *self.state.lock();
        if state.volume.is_none() || state.is_ending() {
            return Err(MountError::Closing);
        }
        // Two mounts of one head would not know of each other's changes: each has its own cache in the kernel.
        let is_head = |mounted: &&Mounted| mounted.head == head && (head.is_some() || !self.has_heads());
        if let Some(mounted) = state.mounted.iter().find(is_head) {
            return Err(MountError::HeadMounted {
                source_path: self.source.clone(),
                on: mounted.directory.clone(),
            });
        }
        // Who unmounts it could not say which of them is meant, nor who looks into it which is seen.
        if is_seen && state.mounted.iter().any(|mounted| mounted.directory == directory) {
            return Err(MountError::Stacked { source_path: self.source.clone(), on: directory.to_owned() });
        }
        let number = state.next;
        state.next += 1;
        state.mounted.push(Mounted { number, directory: directory.to_owned(), head, is_ending: false });
        Ok(number)
    }

    /// Whether something of the volume is mounted there, and was not taken away lazily.
    fn is_seen_at(&self, directory: &Path) -> bool {
        let entry = fusering::mounted_at(directory).ok().flatten();
        entry.is_some_and(|entry| is_ours(&entry) && entry.source == self.source)
    }

    fn has_heads(&self) -> bool {
        self.fs.can_have_snapshots()
    }

    fn remove(&self, number: u64) {
        self.state.lock().mounted.retain(|mounted| mounted.number != number);
        self.changed.notify_all();
    }

    /// Where mounts are.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        self.state.lock().mounted.iter().map(|mounted| mounted.directory.clone()).collect()
    }

    /// Waits until nothing is mounted any more.
    pub(crate) fn wait_for_all(&self) {
        let mut state = self.state.lock();
        while !state.mounted.is_empty() {
            self.changed.wait(&mut state);
        }
    }

    /// Waits until what was mounted last at a directory is written, and tells `answer` then; `None`: it is not, after
    /// so long. Otherwise why the volume could not be closed, if it could not. What was taken away lazily before may be
    /// in use for ever.
    pub(crate) fn wait_for<T>(
        &self,
        directory: &Path,
        patience: Duration,
        answer: impl FnOnce(Option<Option<&str>>) -> T,
    ) -> T {
        self.state.lock().unanswered += 1;
        let is_written = self.is_written_within(directory, patience);
        let failure = self.state.lock().failure.clone();
        let answered = answer(is_written.then_some(failure.as_deref()));
        self.state.lock().unanswered -= 1;
        self.changed.notify_all();
        answered
    }

    /// Waits until whoever waited for a mount has an answer: the process ends then. Those who do not listen are not
    /// waited for.
    pub(crate) fn wait_for_answers(&self) {
        let deadline = Instant::now() + ANSWERS_PATIENCE;
        let mut state = self.state.lock();
        while state.unanswered > 0 && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }

    fn is_written_within(&self, directory: &Path, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.state.lock();
        let at_directory = |mounted: &&Mounted| mounted.directory == directory;
        let Some(number) = state.mounted.iter().rfind(at_directory).map(|mounted| mounted.number) else {
            return true;
        };
        while state.mounted.iter().any(|mounted| mounted.number == number) {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
        true
    }
}

impl Share {
    pub(crate) fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    pub(crate) fn mounts(&self) -> &Arc<Mounts> {
        &self.mounts
    }

    /// Where the bound on memory follows the machine.
    pub(crate) fn memory(&self) -> Option<&Arc<AutoMemory>> {
        self.mounts.memory.as_ref()
    }

    /// Where the volume is shipped to.
    pub(crate) fn replica(&self) -> Option<&Arc<Replica>> {
        self.mounts.replica.as_ref()
    }

    /// Says that the mount is about to end. If it is the last one the volume will be closed, nobody joins any more, and
    /// trims that are under way end: they may have minutes to go, and nobody waits for them.
    pub(crate) fn begin_to_end(&self) {
        if self.is_ending.swap(true, Ordering::Relaxed) {
            return;
        }
        let state = &mut *self.mounts.state.lock();
        for mounted in &mut state.mounted {
            mounted.is_ending |= mounted.number == self.number;
        }
        if state.is_ending() {
            self.mounts.fs.end_trims();
        }
    }

    /// Writes what the mount's files have; the last mount closes the volume. That it cannot be closed is no news to
    /// whoever shut it down (`is_expected`), and told to others who wait for it.
    pub(crate) fn close(&self, is_expected: bool) -> Result<(), MountError> {
        self.begin_to_end();
        let alone = self.mounts.state.lock().take_from_last();
        let closed = match alone {
            Some(volume) => volume.close(),
            None => {
                let written = self.write_out();
                // The others may have ended meanwhile. Whoever comes last closes the volume.
                match self.leave() {
                    Some(volume) => volume.close().and(written),
                    None => return written,
                }
            }
        };
        if let Err(error) = &closed
            && !is_expected
        {
            let why = match error {
                MountError::Close(source) => source.to_string(),
                error => error.to_string(),
            };
            self.mounts.state.lock().failure = Some(why);
        }
        self.mounts.remove(self.number);
        closed
    }
}

impl Share {
    /// Takes the mount from the list; the last one stays in it, and gets the volume.
    fn leave(&self) -> Option<OpenVolume> {
        let state = &mut *self.mounts.state.lock();
        let volume = state.take_from_last();
        if volume.is_none() {
            state.mounted.retain(|mounted| mounted.number != self.number);
            self.mounts.changed.notify_all();
        }
        volume
    }

    fn write_out(&self) -> Result<(), MountError> {
        let written = match &self.head {
            Some(head) => self.mounts.fs.heads().close(head),
            None if self.is_snapshot => Ok(()),
            None => self.fs.sync_all(),
        };
        written.map_err(MountError::Close)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // One that never came to be mounted.
        let is_there = self.mounts.state.lock().mounted.iter().any(|mounted| mounted.number == self.number);
        if is_there && let Err(error) = self.close(false) {
            tracing::error!(%error, "what was mounted could not be closed");
        }
    }
}
