//! [`Files`]: open files, and what may have to wait.

use crate::content::Content;
use crate::core::Core;
use crate::removal::Removal;
use crate::shape::Shape;
use crate::write::Writer;
use crate::writeback::Writeback;
use crate::{Attributes, Names, Syncs};
use std::sync::Arc;

pub(crate) mod handle;
pub(crate) mod hint;
pub(crate) mod would_wait;

/// Operations on open files.
pub struct Files {
    core: Arc<Core>,
    content: Arc<Content>,
    writeback: Arc<Writeback>,
    shape: Arc<Shape>,
    removal: Arc<Removal>,
    syncs: Arc<Syncs>,
    pub(crate) writer: Arc<Writer>,
    attributes: Arc<Attributes>,
}

impl Files {
    pub(crate) fn new(names: &Arc<Names>, writer: &Arc<Writer>) -> Files {
        Files {
            core: names.core.clone(),
            content: names.content.clone(),
            writeback: names.writeback.clone(),
            shape: writer.shape.clone(),
            removal: names.removal.clone(),
            syncs: names.syncs.clone(),
            writer: writer.clone(),
            attributes: names.attributes.clone(),
        }
    }
}
