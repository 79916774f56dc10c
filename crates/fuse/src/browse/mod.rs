//! `.snapshots` in the root of a mount: each snapshot as a directory of its own, to be read.
//!
//! The directory is in no listing, so whatever copies or removes a whole tree does not meet it; its name leads there.
//! `mkdir` in it makes a snapshot, `rmdir` deletes one with all it shows, `mv` renames one. These are for
//! administrators, as the ioctl is. A volume that cannot have snapshots has no such directory, nor has one that has a
//! name `.snapshots` of its own when it is mounted: that one is shown then.
//!
//! [`Browsed`] stands before the mounted volume and takes the requests on nodes of its own; all others go on as they
//! are. Of a node number the highest bit says whose it is ([`nodes`]). A snapshot is opened when something in it is
//! looked at, and kept open while files in it are open and for a while longer ([`views`]).
//!
//! What a snapshot shows never changes, so the kernel may keep all of it. Names in `.snapshots` themselves it asks for
//! each time: the command makes and deletes snapshots as well.

mod answers;
mod nodes;
mod requests;
mod views;

use crate::filesystem::Filesystem;
use nodes::Own;
use std::ffi::OsStr;
use std::sync::Arc;
use syncline_fs::{Error, Fs, ObjectNo};
use views::Views;

/// What the root's own directory is called.
const NAME: &str = ".snapshots";

/// A mounted volume with its snapshots.
pub(crate) struct Browsed {
    // Constant.
    volume: Arc<Filesystem>,
    /// None where there is nothing to browse.
    snapshots: Option<Arc<Views>>,
}

impl Browsed {
    /// `fs`: what is mounted, and `shows_snapshots` whether that is a volume and not a snapshot by itself.
    pub(crate) fn new(volume: Arc<Filesystem>, fs: &Arc<Fs>, shows_snapshots: bool) -> Browsed {
        let is_free =
            || matches!(fs.names().lookup(ObjectNo::ROOT_DIR, NAME.as_bytes()), Err(Error::NotFound));
        let is_there = shows_snapshots && fs.can_have_snapshots() && is_free();
        let snapshots = is_there.then(|| Arc::new(Views::new(fs.clone(), volume.mounts().clone())));
        if let Some(views) = &snapshots {
            let keeper = Arc::downgrade(views);
            volume.mounts().tell_of_deletions(keeper);
        }
        Browsed { volume, snapshots }
    }

    /// The snapshots and what is meant, if the node is one of theirs.
    fn own(&self, node: fusering::NodeId) -> Option<(&Arc<Views>, Own)> {
        self.snapshots.as_ref().zip(Own::of(node))
    }

    /// Whether a name leads to the snapshots.
    fn is_entrance(&self, parent: fusering::NodeId, name: &OsStr) -> bool {
        self.snapshots.is_some() && parent == fusering::NodeId::ROOT && name == NAME
    }
}
