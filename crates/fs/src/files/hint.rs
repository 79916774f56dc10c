//! Writeback hints (C6) for open files.

use crate::content::pages::{PAGE_BYTES, pages_of};
use crate::{Files, HandleId, Result, Started};
use std::ops::Range;

impl Files {
    /// Starts writing the dirty pages that a range touches; waits for no I/O, flushes nothing, and makes nothing
    /// durable (C6).
    ///
    /// Errors: `BadHandle`, and once the volume failed always its cause.
    pub fn write_back_handle(&self, handle: HandleId, range: Range<u64>) -> Result<Started> {
        let inode = self.content.open_file(handle)?.inode.clone();
        self.core.check_failure()?;
        if self.core.store.is_read_only() || range.is_empty() {
            return Ok(Started { bytes: 0 });
        }
        let pages = range.start / PAGE_BYTES..pages_of(range.end);
        let dirty = self.writeback.queue_hint(&inode, pages);
        if dirty > 0 {
            self.writeback.wake_background();
        }
        Ok(Started { bytes: dirty * PAGE_BYTES })
    }
}
