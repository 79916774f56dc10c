//! [`Syncs`]: making files durable.

use crate::content::Content;
use crate::core::Core;
use crate::sync::piggyback::Along;
use crate::writeback::Writeback;
use std::sync::Arc;

pub(crate) mod at_once;
pub(crate) mod execute;
pub(crate) mod piggyback;
pub(crate) mod plan;
pub(crate) mod together;

pub use plan::{Reach, SyncPlan};
pub use together::{SyncStart, TOGETHER_PAGES_MAX};

/// What a sync of a file has to cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncScope {
    /// `fdatasync`: content, and the metadata needed to read it back.
    Data,
    /// `fsync`.
    All,
}

/// Makes files durable.
pub struct Syncs {
    pub(crate) core: Arc<Core>,
    pub(crate) content: Arc<Content>,
    pub(crate) writeback: Arc<Writeback>,
    along: Along,
}

impl Syncs {
    pub(crate) fn new(writeback: &Arc<Writeback>) -> Syncs {
        Syncs {
            core: writeback.core.clone(),
            content: writeback.content.clone(),
            writeback: writeback.clone(),
            along: Along::default(),
        }
    }
}
