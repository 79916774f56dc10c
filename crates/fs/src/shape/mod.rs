//! [`Shape`]: which blocks a file has and where it ends: allocation, truncation, zeroing, shifting, holes.

use crate::content::Content;
use crate::core::Core;
use crate::read::Reader;
use crate::writeback::Writeback;
use std::sync::Arc;

pub(crate) mod allocate;
pub(crate) mod clear;
pub(crate) mod own;
pub(crate) mod seek;
pub(crate) mod settled;
pub(crate) mod shift;
pub(crate) mod truncate;

/// What `fallocate` is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocate blocks where there are none; the size grows unless it is kept.
    Allocate {
        /// Leave the file's size alone.
        keep_size: bool,
    },
    /// The range becomes a hole and reads as zeros; the size stays.
    PunchHole,
    /// The range becomes zeros that have blocks.
    ZeroRange {
        /// Leave the file's size alone.
        keep_size: bool,
    },
    /// Takes the range out; what follows moves down. Whole pages only.
    CollapseRange,
    /// Puts a hole in; what follows moves up. Whole pages only.
    InsertRange,
}

/// What `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekWhat {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte that is in one; the end of the file is.
    Hole,
}

/// Changes which blocks files have.
pub(crate) struct Shape {
    pub(crate) core: Arc<Core>,
    pub(crate) content: Arc<Content>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) writeback: Arc<Writeback>,
}

impl Shape {
    pub(crate) fn new(reader: &Arc<Reader>, writeback: &Arc<Writeback>) -> Shape {
        Shape {
            core: writeback.core.clone(),
            content: writeback.content.clone(),
            reader: reader.clone(),
            writeback: writeback.clone(),
        }
    }
}
