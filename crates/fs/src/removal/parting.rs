//! [`Parting`]: a small file's content, which goes in the batch that removes the file's last name.
//!
//! One batch instead of two: the inode is not put once more, and no orphan item is put and deleted. A crash shows the
//! file with its name, or neither (C2).
//!
//! Whoever writes the file's pages out has its turn for as long as they are in flight, so with the turn held no block
//! is freed under a write (R8). Handles are counted under the inode's lock, so that nobody opens what goes here.

use crate::Result;
use crate::content::change::{Change, Locked};
use crate::content::extents::ExtentMap;
use crate::content::inode::{Inode, InodeState};
use crate::content::turn::Turn;
use crate::limits::FEW_EXTENTS;
use crate::removal::{Removal, has_content};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The extents of a file that may go with its name, and its turn, so that they stay as they are.
pub(crate) struct Parting {
    map: ExtentMap,
    _turn: Turn,
}

/// Whether it is a file with content that only its one name keeps, and that nothing is unfinished of.
fn may_part(inode: &Inode, state: &InodeState) -> bool {
    has_content(state)
        && state.item.nlink == 1
        && inode.handles.load(Ordering::SeqCst) == 0
        && !state.is_gone()
        && !state.data.is_truncating()
}

impl Removal {
    /// What may go with the last name of the file, as far as that can be told without its lock. Nothing may if somebody
    /// has the file's turn, which is not waited for, or if the extents cannot be read: then the name goes alone. To be
    /// called before inodes are locked.
    pub(crate) fn part(&self, inode: &Inode) -> Option<Parting> {
        {
            let state = inode.state.read();
            if !may_part(inode, &state) || state.is_heavy() {
                return None;
            }
        }
        let turn = inode.turn.try_lock()?;
        let all = 0..u64::MAX;
        let (map, rest) = ExtentMap::load_some(&self.content, inode.number, all, FEW_EXTENTS).ok()?;
        rest.is_none().then_some(Parting { map, _turn: turn })
    }

    /// Adds the content to the batch that removes the last name, and the inode with it; false if somebody has opened
    /// the file since, or has given it what goes in batches of its own.
    pub(crate) fn leave_with_name(
        &self,
        change: &mut Change<'_>,
        inode: &Inode,
        parting: &mut Parting,
    ) -> Result<bool> {
        let number = inode.number;
        let state = change.state(number);
        if !may_part(inode, state) || !self.has_no_xattrs(state, number)? {
            return Ok(false);
        }
        parting.map.cut(0..u64::MAX, true);
        parting.map.emit(&mut change.batch);
        change.batch.drop_images(number, 0, u64::MAX);
        change.remove_inode(number);
        Ok(true)
    }

    /// That batch is committed: drops what is in memory.
    pub(crate) fn note_parted(&self, locked: &mut Locked<'_>, inode: &Arc<Inode>) {
        let state = locked.state_mut(inode.number);
        state.data.discard_range(0..u64::MAX);
        state.data.stored.changes += 1;
        self.content.relist(inode, state, self.core.clock.now());
    }
}
