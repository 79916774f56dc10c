//! [`Views`]: snapshots that are open, and those that were looked at.
//!
//! An open snapshot costs memory, and keeps its space even if it is deleted. So at most [`VIEWS_MAX`] stay open beyond
//! those that have open files; what was looked at longest ago is closed first, and opened again when it is asked for.

use super::nodes::{SLOTS_MAX, Slot};
use crate::convert::errno;
use crate::mounts::{KeepsOpen, Mounts};
use fusering::Errno;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use syncline_fs::{Clock, Fs, SnapshotInfo, SystemClock, Timestamp};

/// Snapshots that stay open with nobody who has a file in them open. Each may use 32 MiB.
const VIEWS_MAX: usize = 4;

pub(super) struct Views {
    // Constant.
    pub(super) fs: Arc<Fs>,
    pub(super) mounts: Arc<Mounts>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By slot.
    seen: Vec<Seen>,
    /// By number of the tree.
    slots: HashMap<u32, Slot>,
    /// Moments at which one was used.
    now: u64,
    /// How often [`Views::close_idle`] was called.
    closings: u64,
    /// What was listed last (`SnapshotNames::version`), and since when that is listed.
    listed: Option<(u64, Timestamp)>,
}

/// A snapshot that has a slot.
struct Seen {
    tree: u32,
    view: Option<Arc<Fs>>,
    /// Open files in it.
    files: u64,
    /// Its last open file takes the view with it: the snapshot may have been deleted meanwhile.
    ends_with_files: bool,
    used: u64,
}

impl Views {
    pub(super) fn new(fs: Arc<Fs>, mounts: Arc<Mounts>) -> Views {
        Views { fs, mounts, state: Mutex::default() }
    }

    /// The snapshot's slot, for the life of this mount. Errors: ENFILE when there is none left.
    pub(super) fn slot(&self, snapshot: &SnapshotInfo) -> Result<Slot, Errno> {
        let state = &mut *self.state.lock();
        if let Some(slot) = state.slots.get(&snapshot.tree) {
            return Ok(*slot);
        }
        if state.seen.len() == SLOTS_MAX {
            return Err(Errno::from_number(libc::ENFILE));
        }
        let slot = Slot(state.seen.len());
        state.seen.push(Seen { tree: snapshot.tree, view: None, files: 0, ends_with_files: false, used: 0 });
        state.slots.insert(snapshot.tree, slot);
        Ok(slot)
    }

    /// Whether [`Views::view`] has nothing to wait for.
    pub(super) fn is_open(&self, slot: Slot) -> bool {
        self.state.lock().seen.get(slot.0).is_some_and(|seen| seen.view.is_some())
    }

    /// The snapshot as a file system; reads it from the device if it is not open.
    ///
    /// Errors: ESTALE if it was deleted; what opening it says.
    pub(super) fn view(&self, slot: Slot) -> Result<Arc<Fs>, Errno> {
        let (tree, closings) = {
            let state = &mut *self.state.lock();
            let seen = state.seen.get_mut(slot.0).ok_or(Errno::ESTALE)?;
            if let Some(view) = &seen.view {
                state.now += 1;
                seen.used = state.now;
                return Ok(view.clone());
            }
            (seen.tree, state.closings)
        };
        let view = self.open(tree)?;
        let state = &mut *self.state.lock();
        state.now += 1;
        let seen = state.seen.get_mut(slot.0).ok_or(Errno::ESTALE)?;
        seen.used = state.now;
        if closings != state.closings {
            // It may have been deleted since it was opened.
            if seen.files == 0 && seen.view.is_none() {
                return Ok(view);
            }
            seen.ends_with_files = true;
        }
        let view = seen.view.get_or_insert(view).clone();
        state.close_oldest();
        Ok(view)
    }

    fn open(&self, tree: u32) -> Result<Arc<Fs>, Errno> {
        let name = || self.fs.snapshots().into_iter().find(|it| it.tree == tree).map(|it| it.name);
        loop {
            let before = name().ok_or(Errno::ESTALE)?;
            let opened = self.fs.at(&before);
            // Names may have changed hands meanwhile.
            if name().is_none_or(|after| after == before) {
                return opened.map_err(errno);
            }
        }
    }

    /// Since when the snapshots are those that there are now; `before` if that is not known. The kernel keeps a listing
    /// for as long as this stays the same.
    pub(super) fn listed_since(&self, before: Timestamp) -> Timestamp {
        let now = self.fs.snapshot_names().version();
        let state = &mut *self.state.lock();
        let since = match state.listed {
            None => before,
            Some((listed, since)) if listed == now => since,
            Some(_) => SystemClock.now(),
        };
        state.listed = Some((now, since));
        since
    }

    /// A file in it is open from now on, or no more.
    pub(super) fn count_file(&self, slot: Slot, is_open: bool) {
        if let Some(seen) = self.state.lock().seen.get_mut(slot.0) {
            seen.files = if is_open { seen.files + 1 } else { seen.files.saturating_sub(1) };
            if seen.files == 0 && seen.ends_with_files {
                (seen.view, seen.ends_with_files) = (None, false);
            }
        }
    }
}

impl KeepsOpen for Views {
    /// What somebody has a file open in is closed with the last one.
    fn close_idle(&self) {
        let state = &mut *self.state.lock();
        state.closings += 1;
        for seen in &mut state.seen {
            seen.ends_with_files = seen.files > 0;
            if seen.files == 0 {
                seen.view = None;
            }
        }
    }
}

impl State {
    fn close_oldest(&mut self) {
        let is_idle = |seen: &&mut Seen| seen.view.is_some() && seen.files == 0;
        while self.seen.iter_mut().filter(is_idle).count() > VIEWS_MAX {
            let oldest = self.seen.iter_mut().filter(is_idle).min_by_key(|seen| seen.used);
            if let Some(seen) = oldest {
                seen.view = None;
            }
        }
    }
}
