//! Reading by callers without the turn: a move of extents that was begun is ended before.

use crate::Result;
use crate::content::inode::Inode;
use crate::read::pages::{Access, Fetched};
use crate::shape::Shape;
use std::ops::Range;
use std::sync::Arc;

impl Shape {
    /// Reads from `offset` on; returns less than asked for only at the end of the file.
    pub(crate) fn file_read(&self, inode: &Arc<Inode>, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.reader.file_read(inode, offset, into, &|inode| self.finish_truncation(inode))
    }

    /// Brings pages into the cache that are not there; holes are not cached. Errors: as [`Reader::fetch`].
    pub(crate) fn fetch(&self, inode: &Arc<Inode>, pages: Range<u64>) -> Result<Fetched> {
        let settle = |inode: &Arc<Inode>| self.finish_truncation(inode);
        self.reader.fetch(inode, pages, Access::Settling(&settle))
    }
}
