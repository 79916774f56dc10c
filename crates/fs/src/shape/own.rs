//! Blocks that a snapshot has as well become a file's own: their content is written once more, to other blocks.
//!
//! A move of extents needs that. What two trees have, both have at the same page; a deletion finds out by that who has
//! what. So blocks that a snapshot has cannot be named at another page.

use crate::content::inode::Inode;
use crate::content::pages::PAGE_BYTES;
use crate::content::steps;
use crate::content::steps::Step;
use crate::limits::OWNED_TOGETHER;
use crate::read::pages::{Access, Fetched};
use crate::shape::Shape;
use crate::{Error, Result};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use syncline_device::Block;
use syncline_format::item::{EXTENT_PAGES_MAX, ExtentContent, ExtentItem};
use syncline_format::{Era, Key};
use syncline_store::{Class, Reservation};

/// Pages of one extent that a snapshot has as well.
struct Shared {
    pages: Range<u64>,
    /// They hold something.
    is_written: bool,
}

impl Shape {
    /// Makes all blocks from page `first` on the file's own; true if there were others. What was set aside and not
    /// written becomes a hole. What is to be written is dirty then, or on its way: settle the file behind it.
    ///
    /// Errors: among others `NoSpace`; what the file shows is as it was.
    pub(crate) fn take_over(&self, inode: &Arc<Inode>, first: u64) -> Result<bool> {
        let (mut next, mut dirty) = (first, 0);
        while let Some(Shared { pages, is_written }) = self.shared_from(inode, next)? {
            if !is_written {
                self.clear(inode, pages.start * PAGE_BYTES..pages.end * PAGE_BYTES, 0, &mut |_| {})?;
            } else if !self.write_again(inode, pages.clone())? {
                continue;
            }
            steps::passed(Step::TakenOver);
            next = pages.end;
            dirty += pages.end - pages.start;
            if dirty >= OWNED_TOGETHER {
                self.writeback.write_out_all(Class::Normal, vec![inode.clone()], false)?;
                dirty = 0;
            }
        }
        Ok(next > first)
    }

    /// Whether a snapshot has blocks of the file from page `first` on. The answer lasts as long as nobody makes one.
    pub(crate) fn has_shared(&self, inode: &Inode, first: u64) -> Result<bool> {
        Ok(self.shared_from(inode, first)?.is_some())
    }

    /// The first pages from `first` on that a snapshot has as well.
    fn shared_from(&self, inode: &Inode, first: u64) -> Result<Option<Shared>> {
        if self.content.owns(Era(0)) {
            // The tree descends from no snapshot.
            return Ok(None);
        }
        let object = inode.number;
        let (store, mut found, mut failed) = (&self.core.store, None, None);
        let from = Key::extent(object, first.saturating_sub(u64::from(EXTENT_PAGES_MAX)));
        store.scan(self.content.tree, from, Key::extent(object, u64::MAX), &mut |key, value| {
            let item = match ExtentItem::decode(value) {
                Ok(item) => item,
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            };
            let pages = key.offset.max(first)..key.offset + u64::from(item.pages());
            if pages.is_empty() || self.content.owns(item.birth) {
                return ControlFlow::Continue(());
            }
            let is_written = matches!(item.content, ExtentContent::Written(_));
            found = Some(Shared { pages, is_written });
            ControlFlow::Break(())
        })?;
        failed.map_or(Ok(found), |error| Err(error.into()))
    }

    /// Makes pages dirty with what they hold; false if others were faster, and it has to be looked again.
    fn write_again(&self, inode: &Arc<Inode>, pages: Range<u64>) -> Result<bool> {
        self.finish_truncation(inode)?;
        self.writeback.throttle(inode, ((pages.end - pages.start) * PAGE_BYTES) as usize)?;
        let mut blocks = self.writeback.reserve(pages.end - pages.start)?;
        let turn = inode.lock_turn();
        if inode.state.read().data.is_truncating() {
            return Ok(false);
        }
        let Fetched { pages: stored, .. } = self.reader.fetch(inode, pages.clone(), Access::Turn(&turn))?;
        let mut state = inode.state.write();
        if state.gone {
            return Err(Error::NotFound);
        }
        // Writers do not need the turn: a page that was cached may have been dropped since it was fetched.
        let is_known =
            |(page, stored): &(u64, Option<Block>)| stored.is_some() || state.data.get(*page).is_some();
        let stored: Vec<_> = pages.zip(stored).collect();
        if !stored.iter().all(is_known) {
            return Ok(false);
        }
        for (page, stored) in stored {
            let data = &mut state.data;
            match stored {
                _ if data.get(page).is_some() => {
                    data.update(page, |slot| slot.state.write());
                    if blocks.blocks() > 0 {
                        data.give_block(page, &mut blocks);
                    }
                }
                Some(stored) => {
                    let buffer = stored.into_buffer();
                    data.insert_dirty(
                        &self.core.account,
                        page,
                        buffer,
                        Some::<&mut Reservation>(&mut blocks),
                    );
                }
                None => {}
            }
        }
        let now = self.core.clock.now();
        self.content.relist(inode, &mut state, now);
        Ok(true)
    }
}
