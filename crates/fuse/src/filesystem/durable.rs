//! Which durable writes are durable without being forced one by one: those that the kernel ends with an fsync.

use super::operations::Operations;
use fusering::abi::WriteFlags;
use std::sync::atomic::Ordering;
use syncline_fs::HandleId;

impl Operations {
    /// Whether the kernel sends an fsync behind a durable write, or behind the last message of one that takes several.
    ///
    /// It does where it copies the data into its page cache. What goes past that (the file was opened so by us, or
    /// was made so later, by fcntl) names the owner of its locks, and if nobody waits for it there is no fsync. What
    /// comes out of the page cache later is part of no call.
    pub(super) fn is_synced_behind(&self, file: HandleId, flags: WriteFlags) -> bool {
        self.writes_are_synced_behind.load(Ordering::Relaxed)
            && !flags.contains(WriteFlags::LOCKOWNER)
            && !flags.contains(WriteFlags::CACHE)
            && self.fs.files().handle_is_direct(file).is_ok_and(|direct| !direct)
    }
}
