//! [`Reader`]: content into memory, and to whoever reads.

use crate::content::Content;
use crate::core::Core;
use std::sync::Arc;

pub(crate) mod flight;
pub(crate) mod pages;

/// Reads files.
pub(crate) struct Reader {
    core: Arc<Core>,
    content: Arc<Content>,
}

impl Reader {
    pub(crate) fn new(content: &Arc<Content>) -> Reader {
        Reader { core: content.core.clone(), content: content.clone() }
    }
}
