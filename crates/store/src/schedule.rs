//! The schedule of snapshots: what the volume tree says of it, and what whoever follows it asks of the trees.

use crate::deletion::{delete, is_needed, item_of, next_task};
use crate::difference::Known;
use crate::{Class, Estimate, Store, StoreError};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_format::batch::{BATCH_HEADER_BYTES, DELETE_BYTES, PUT_OVERHEAD_BYTES};
use syncline_format::range::POLICY_BYTES_MAX;
use syncline_format::schedule::Schedule;
use syncline_format::tree_item::{TreeItem, TreeState};
use syncline_format::{Key, Lsn, TreeId};

impl Store {
    /// The schedule of snapshots; of a volume of version 1, or without one, none.
    pub fn schedule(&self) -> Option<Arc<Schedule>> {
        self.shared.trees.read().branches.as_ref()?.schedule.clone()
    }

    /// Gives the volume a schedule, or takes it away; durable once `force` has returned for the LSN. Panics if
    /// something is wrong with it ([`Schedule::fault`]). Errors: among others `NeedsUpgrade`, `NoSpace`, `Pressure`.
    pub fn set_schedule(&self, schedule: Option<&Schedule>) -> Result<Lsn, StoreError> {
        let bytes = BATCH_HEADER_BYTES + PUT_OVERHEAD_BYTES + DELETE_BYTES + POLICY_BYTES_MAX;
        let estimate = Estimate { bytes, items: 1, images: 0 };
        // A full volume is emptied by deletions, and the schedule may have to end before.
        let class = if schedule.is_some() { Class::Normal } else { Class::Deletion };
        self.change_trees(class, estimate, |trees, batch| {
            let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
            match (schedule, branches.schedule.as_deref()) {
                (wanted, known) if wanted == known => {}
                (Some(wanted), _) => batch.put(Key::policy(), &wanted.encode()),
                (None, _) => batch.delete(Key::policy()),
            }
            Ok(())
        })
    }

    /// Lets `look` see what the trees are, of version 2; the trees' lock is held meanwhile.
    pub fn look_at_trees<T>(&self, look: impl FnOnce(&BTreeMap<TreeId, TreeItem>) -> T) -> Option<T> {
        let trees = self.shared.trees.read();
        trees.branches.as_ref().map(|branches| look(&branches.items))
    }

    /// Whether a head is what a snapshot of it shows, as far as that can be told by looking at their roots and at the
    /// head's images.
    pub fn is_unchanged(&self, head: TreeId, since: TreeId) -> bool {
        let trees = self.shared.trees.read();
        let (Ok(now), Ok(then), Ok(item)) = (trees.tree(head), trees.tree(since), item_of(&trees, since))
        else {
            return false;
        };
        let is_same = Known::of_root(now).is_same(&Known::of_root(then));
        is_same && trees.images.of(head).all(|(.., lsn)| lsn < item.lsn)
    }

    /// Whether nothing hinders that a snapshot's space comes back once it is deleted: nobody reads it, and at most one
    /// tree descends from it.
    pub fn is_free_to_go(&self, tree: TreeId) -> bool {
        !is_needed(&self.shared.trees.read(), tree)
    }

    /// Whether [`Store::reap`] has something to do now.
    pub fn can_reap(&self) -> bool {
        next_task(&self.shared.trees.read()).is_some()
    }

    /// As [`Store::delete_tree`], of a snapshot whose time has come: one that is not held and from which at most one
    /// tree descends, which the schedule has made (`is_scheduled`) or which has expired at `now`, in seconds since
    /// 1970. On another one it does nothing.
    pub fn delete_due(&self, tree: TreeId, is_scheduled: bool, now: u64) -> Result<Lsn, StoreError> {
        self.change_trees(Class::Deletion, self.beginning_of(tree), |trees, batch| {
            let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
            let Some(item) = branches.items.get(&tree) else { return Ok(()) };
            let is_expired = item.stay.expires != 0 && item.stay.expires <= now;
            let is_due = is_scheduled && item.stay.is_scheduled || is_expired;
            let is_branch_point = branches.children(tree).nth(1).is_some();
            let is_there = item.state == TreeState::Live && !item.is_hidden;
            if is_due && is_there && !item.stay.is_held && !is_branch_point {
                delete(trees, tree, item, batch);
            }
            Ok(())
        })
    }
}
