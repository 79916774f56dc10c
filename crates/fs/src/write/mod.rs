//! [`Writer`]: writing into the page cache.

use crate::content::Content;
use crate::core::Core;
use crate::read::Reader;
use crate::shape::Shape;
use crate::writeback::Writeback;
use std::sync::Arc;

pub(crate) mod copy;
pub(crate) mod pages;

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteAt {
    Offset(u64),
    /// At the end of the file, atomically with its growth (`O_APPEND`).
    End,
}

/// Writes into files.
pub(crate) struct Writer {
    pub(crate) core: Arc<Core>,
    pub(crate) content: Arc<Content>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) shape: Arc<Shape>,
}

impl Writer {
    pub(crate) fn new(shape: &Arc<Shape>) -> Writer {
        Writer {
            core: shape.core.clone(),
            content: shape.content.clone(),
            reader: shape.reader.clone(),
            writeback: shape.writeback.clone(),
            shape: shape.clone(),
        }
    }
}
