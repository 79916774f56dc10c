//! [`Tended`]: what each open head keeps that stands in the way of all. Its images keep the journal's tail where it is
//! (R2), its dirty pages hold blocks. So whoever relieves the volume asks all heads, not only its own.

use crate::Result;
use crate::core::Core;
use std::sync::{Arc, Weak};

/// The background's work of one head.
pub(crate) trait Tended: Send + Sync {
    /// Writes all dirty pages back.
    fn write_back(&self) -> Result<()>;

    /// Writes all pages out whose image is in the journal.
    fn destage(&self) -> Result<()>;

    /// Logs the images of damaged files once more.
    fn carry(&self) -> Result<()>;
}

impl Core {
    /// A head is open from here on, as long as it is in memory.
    pub(crate) fn tend(&self, head: Weak<dyn Tended>) {
        let mut heads = self.heads.lock();
        heads.retain(|head| head.strong_count() > 0);
        heads.push(head);
    }

    /// The heads that are open.
    fn tended(&self) -> Vec<Arc<dyn Tended>> {
        self.heads.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Writes the dirty pages of all heads back.
    pub(crate) fn write_back_heads(&self) -> Result<()> {
        self.tended().iter().try_for_each(|head| head.write_back())
    }

    /// Writes all pages out whose image is in the journal, whichever head they are of.
    pub(crate) fn destage_heads(&self) -> Result<()> {
        self.tended().iter().try_for_each(|head| head.destage())
    }

    /// Logs the images of damaged files of all heads once more, so that the journal's tail can pass where they are.
    pub(crate) fn carry_heads(&self) -> Result<()> {
        self.tended().iter().try_for_each(|head| head.carry())
    }
}
