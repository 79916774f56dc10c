//! What a round takes: the pages it chooses, the size they cover, and how much of them one extent can hold.

use crate::content::extents::{Cost, DROP_COST, ExtentMap, is_unwritten, put_cost};
use crate::content::inode::InodeState;
use crate::content::pages::{FileData, PAGE_BYTES};
use crate::content::select::Select;
use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::batch::SPACE_OP_BYTES;
use syncline_format::item::{EXTENT_PAGES_MAX, ExtentItem};
use syncline_format::{BlockNo, Era};
use syncline_store::Reservation;

pub(crate) type Pages = Vec<(u64, Arc<Buffer>)>;

/// What a round is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A sync, for which the first file's turn is waited for.
    Sync,
    /// Syncs of several files, none of which waits for another's turn.
    Syncs,
    /// Nobody waits for it: the data is complete before it is logged, so that the window for data in flight is left
    /// to syncs.
    Background,
}

/// The selected pages, and the first one that is more than `pages_max`.
pub(crate) fn select_pages(data: &FileData, select: &Select, pages_max: u64) -> (Pages, Option<u64>) {
    let most = if select.logged { 0 } else { data.dirty_pages().min(pages_max) };
    let mut pages = Vec::with_capacity(most as usize);
    for (page, slot) in select.of(data) {
        if pages.len() as u64 == pages_max {
            return (pages, Some(page));
        }
        pages.push((page, slot.page.clone()));
    }
    (pages, None)
}

/// The size that is covered once `chosen` is logged: it grows up to the first page that stays unlogged behind what is
/// covered already, but never ends before a chosen page. So a page that was written to after a pass over the file
/// went by does not leave what the pass writes beyond the end.
pub(crate) fn covered_by(state: &InodeState, chosen: &Pages) -> u64 {
    let covered = state.data.stored.covered;
    let first = covered / PAGE_BYTES;
    // Both ascend.
    let behind = chosen.partition_point(|&(page, _)| page < first);
    let mut left = chosen[behind..].iter().map(|&(page, _)| page).peekable();
    let unlogged = state.data.dirty_numbers(first..u64::MAX).find(|&page| {
        while left.next_if(|&chosen| chosen < page).is_some() {}
        left.peek() != Some(&page)
    });
    let chosen_end = chosen.last().map_or(0, |&(page, _)| page + 1);
    let limit = unlogged.map_or(u64::MAX, |page| page.max(chosen_end).saturating_mul(PAGE_BYTES));
    covered.max(state.item.size.min(limit))
}

/// Makes a chosen page what it was; one block of the pool goes back to it.
pub(crate) fn unchoose(data: &mut FileData, page: u64, pool: &mut Option<Reservation>) {
    if let Some(pool) = pool.as_mut().filter(|pool| pool.blocks() > 0) {
        data.give_block(page, pool);
    }
    data.update(page, |slot| slot.state.put_back());
}

/// Blocks that were allocated for pages, and never written.
pub(crate) struct InPlace {
    pub(crate) start: BlockNo,
    /// Since when the file has them.
    pub(crate) birth: Era,
}

/// How many of the `pages` pages from `page` on can be one extent whose cost is within `left`, and, if they are to be
/// written in place because their extent was never written, where that is. A snapshot must not have it as well: `owns`
/// tells by the birth (R25).
pub(crate) fn fit(
    map: &ExtentMap,
    page: u64,
    pages: u64,
    left: Cost,
    owns: &dyn Fn(Era) -> bool,
) -> Option<(u64, Cost, Option<InPlace>)> {
    let mut len = pages.min(u64::from(EXTENT_PAGES_MAX));
    let mut in_place = None;
    let may_take = |item: &ExtentItem| is_unwritten(item) && owns(item.birth);
    match map.find(page).filter(|(_, item)| may_take(item)) {
        Some((first, item)) => {
            len = len.min(first + u64::from(item.pages()) - page);
            in_place = Some(InPlace { start: item.block_of(page - first), birth: item.birth });
        }
        None => {
            let unwritten = map.overlapping(page..page + len).find(|(_, item)| may_take(item));
            if let Some((first, _)) = unwritten {
                len = len.min(first - page);
            }
        }
    }
    while len > 0 {
        let space = Cost { bytes: SPACE_OP_BYTES, items: 0 };
        let cost = put_cost(len).plus(map.cut_cost(page..page + len)).plus(space).plus(DROP_COST);
        if cost.fits(left) {
            return Some((len, cost, in_place));
        }
        len /= 2;
    }
    None
}
