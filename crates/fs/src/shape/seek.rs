//! Finding data and holes, and copying ranges between files.

use crate::content::extents::{ExtentMap, is_unwritten};
use crate::content::inode::Inode;
use crate::content::pages::{PAGE_BYTES, pages_of};
use crate::limits::{SEEK_PAGES_FIRST, SEEK_PAGES_MAX};
use crate::shape::Shape;
use crate::{Error, Result, SeekWhat};
use std::ops::ControlFlow;
use std::sync::Arc;
use syncline_format::Key;
use syncline_format::item::{EXTENT_PAGES_MAX, ExtentItem};

impl Shape {
    /// `SEEK_DATA` and `SEEK_HOLE`. Preallocated blocks that were never written count as a hole; the end of the file is
    /// one as well.
    ///
    /// Errors: `NoSuchDevice` (ENXIO) at or beyond the end of the file, or if no data follows.
    pub(crate) fn file_seek(&self, inode: &Arc<Inode>, offset: u64, what: SeekWhat) -> Result<u64> {
        let size = inode.state.read().item.size;
        if offset >= size {
            return Err(Error::NoSuchDevice);
        }
        if inode.state.read().data.is_shifting(&(0..u64::MAX)) {
            self.finish_truncation(inode)?;
        }
        let (page, end) = (offset / PAGE_BYTES, pages_of(size));
        let found = match what {
            SeekWhat::Data => self.next_data(inode, page, end)?.ok_or(Error::NoSuchDevice)?,
            SeekWhat::Hole => self.next_hole(inode, page, end)?,
        };
        Ok((found * PAGE_BYTES).clamp(offset, size))
    }

    fn next_data(&self, inode: &Arc<Inode>, page: u64, end: u64) -> Result<Option<u64>> {
        // A page is cached only if there is data in it.
        let cached = inode.state.read().data.range(page..end).next().map(|(page, _)| page);
        let from = Key::extent(inode.number, page.saturating_sub(u64::from(EXTENT_PAGES_MAX)));
        let mut stored = Ok(None);
        self.core.store.scan(
            self.content.tree,
            from,
            Key::extent(inode.number, end),
            &mut |key, value| {
                match ExtentItem::decode(value) {
                    Ok(item) if is_unwritten(&item) || key.offset + u64::from(item.pages()) <= page => {
                        return ControlFlow::Continue(());
                    }
                    Ok(_) => stored = Ok(Some(key.offset.max(page))),
                    Err(error) => stored = Err(error),
                }
                ControlFlow::Break(())
            },
        )?;
        let stored = stored?;
        Ok(cached.into_iter().chain(stored).min())
    }

    fn next_hole(&self, inode: &Arc<Inode>, page: u64, end: u64) -> Result<u64> {
        let mut next = page;
        let mut window_pages = SEEK_PAGES_FIRST;
        while next < end {
            let window = next..end.min(next + window_pages);
            window_pages = SEEK_PAGES_MAX.min(window_pages * 4);
            let map = ExtentMap::load(&self.content, inode.number, window.clone())?;
            let state = inode.state.read();
            while next < window.end {
                match map.find(next).filter(|(_, item)| !is_unwritten(item)) {
                    Some((first, item)) => next = first + u64::from(item.pages()),
                    None if state.data.get(next).is_some() => next += 1,
                    None => return Ok(next),
                }
            }
        }
        Ok(end)
    }
}
