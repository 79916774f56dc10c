//! Filling the record of a force with small files that were just written.
//!
//! A program that syncs many small files one after another finds most of them durable already. Candidates are files of at
//! most four pages, so that a database's main file never travels with every sync of its log; a file that was taken along
//! and not synced since is not taken along again.

use super::pages::PAGE_BYTES;
use super::sync::image_estimate;
use crate::Fs;
use crate::inode::Inode;
use std::sync::Arc;
use syncline_store::{Class, Piggyback};

/// Files looked at per force.
const LOOKS_MAX: usize = 32;

/// What came of one candidate.
enum Taken {
    Bytes(usize),
    /// Clean, removed or grown meanwhile.
    Skipped,
    /// In use, or too large for what room is left.
    Later,
    /// The journal has no room for anything that need not be logged now.
    Stop,
}

impl Piggyback for Fs {
    fn fill(&self, room: usize) {
        let mut room = room;
        let mut later = Vec::new();
        for _ in 0..LOOKS_MAX {
            let Some(candidate) = self.writeback.lists.lock().recent.pop_back() else { break };
            let Some(inode) = candidate.upgrade() else { continue };
            match self.take_along(&inode, room) {
                Taken::Bytes(bytes) => room = room.saturating_sub(bytes),
                Taken::Skipped => {}
                Taken::Later => later.push(candidate),
                Taken::Stop => {
                    later.push(candidate);
                    break;
                }
            }
        }
        if !later.is_empty() {
            self.writeback.lists.lock().recent.extend(later.into_iter().rev());
        }
    }
}

impl Fs {
    /// Logs a file's dirty pages as images, if that is possible without waiting and fits into `room`.
    fn take_along(&self, inode: &Arc<Inode>, room: usize) -> Taken {
        let Some(turn) = inode.state.try_read().map(|state| state.data.turn()) else { return Taken::Later };
        let Some(_turn) = turn.try_lock_arc() else { return Taken::Later };
        let Some(mut state) = inode.state.try_write() else { return Taken::Later };
        let dirty = state.data.dirty_pages();
        let small = state.item.size <= self.image_pages_max() * PAGE_BYTES;
        if state.gone || dirty == 0 || !small || state.data.piggybacked {
            state.data.in_recent = false;
            return Taken::Skipped;
        }
        let bytes: usize = image_estimate(dirty).bytes;
        if bytes > room {
            return Taken::Later;
        }
        let Ok(permit) = self.store.admit(Class::Normal, image_estimate(dirty)) else { return Taken::Stop };
        match self.commit_images(inode, &mut state, permit, 0..u64::MAX, u64::MAX) {
            Ok(bytes) => {
                state.data.piggybacked = true;
                Taken::Bytes(bytes)
            }
            // The file stays dirty; whoever syncs it meets the error.
            Err(_) => Taken::Stop,
        }
    }
}
