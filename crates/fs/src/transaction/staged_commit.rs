//! From staged content to a batch, and from the batch to the page cache.
//!
//! A few pages that are in memory travel as images; everything else is at home by then and becomes fresh extents
//! (R4). The files' turns are held while extents are looked up and until the batch is committed, as for any other
//! change of extents. A file of which only images are logged needs no turn while others destage it, like a sync
//! (module `data`).
//!
//! What becomes part of the file first loses its images (R5): extents that are put, and everything that is cut off.
//! Pages whose images are in the same batch are left out of that.

use crate::acl::strip_set_id;
use crate::content::estimate::image_estimate;
use crate::content::extents::{Cost, DROP_COST, ExtentMap, put_cost};
use crate::content::inode::InodeState;
use crate::content::pages::{PAGE_BYTES, pages_of};
use crate::content::turn::Turn;
use crate::limits::{FREED_EXTENTS_MAX, PIECE_EXTENTS, PIECE_PAGES, STAGED_IMAGE_PAGES_MAX};
use crate::transaction::staged::{StagedFile, StagedPage, Staging};
use crate::{Context, Error, Fs, Result, Timestamp};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::batch::{DELETE_BYTES, RELEASE_BYTES, SPACE_OP_BYTES};
use syncline_format::item::{EXTENT_PAGES_MAX, ExtentItem, InodeItem, OrphanReason};
use syncline_format::{BlockNo, Key, ObjectNo};
use syncline_store::{Batch, Estimate};

/// Called after each of the things that work goes through: between two pieces of it those who sync are let in.
fn breathe(fs: &Fs, index: usize, piece: usize) {
    if index % piece == piece - 1 {
        let_in(fs);
    }
}

/// Lets those who sync go first. A group commit is several threads, the kernel's among them, that wake one another,
/// and where processors are few each of them would be kept from running for as long as the scheduler lets this one go
/// on. So it waits for the group that is under way, and then for those that its end has set free.
fn let_in(fs: &Fs) {
    fs.core.store.give_way();
    std::thread::yield_now();
}

/// Consecutive pages at consecutive blocks.
struct HomeRun {
    first: u64,
    start: BlockNo,
    checksums: Vec<u64>,
}

impl HomeRun {
    fn pages(&self) -> Range<u64> {
        self.first..self.first + self.checksums.len() as u64
    }
}

/// Pages at home, as runs that are an extent each, and the other ones; both ascending.
type Sorted = (Arc<Vec<HomeRun>>, Arc<Vec<u64>>);

/// A file's staged pages as its commit needs them; nothing is staged any more once a commit has begun.
#[derive(Default)]
pub(crate) struct Prepared {
    sorted: Option<Sorted>,
    /// Pages that were brought home last and are in memory too, ascending: only these can be in flight.
    kept: Vec<u64>,
}

impl Prepared {
    /// Whether committing it takes long.
    fn is_large(&self) -> bool {
        self.sorted.as_ref().is_some_and(|(runs, _)| runs.len() >= PIECE_EXTENTS)
    }
}

/// What a commit does to one file's content.
pub(crate) struct FilePlan {
    pub(crate) number: ObjectNo,
    map: ExtentMap,
    runs: Arc<Vec<HomeRun>>,
    /// Pages, ascending.
    images: Arc<Vec<u64>>,
    /// Committed content from this page on is removed.
    cut: Option<u64>,
    /// Extents are left to be freed later.
    leaves_some: bool,
    blocks_cut: u64,
    blocks_put: u64,
    /// What was staged and is committed, to be dropped without locks.
    spent: Cell<BTreeMap<u64, StagedPage>>,
}

/// Turns of the files of a transaction, for those that have to wait for one.
pub(crate) struct Turns {
    _held: Vec<Turn>,
    /// Files whose turn somebody else has.
    beside: Vec<ObjectNo>,
}

impl Staging {
    /// Decides which pages travel as images, and brings the others home.
    pub(crate) fn prepare(&mut self, fs: &Fs, images: bool) -> Result<()> {
        if !images || self.newer.len() > STAGED_IMAGE_PAGES_MAX {
            for (number, page) in self.bring_home(fs)? {
                self.files.get_mut(&number).expect("the file was joined").prepared.kept.push(page);
            }
        } else {
            // Nobody may read a block before it is written, and none may be given back (R8).
            self.finish_flights(fs)?;
        }
        for file in self.files.values_mut().filter(|file| file.is_changed()) {
            fs.shape.finish_truncation(&file.inode)?;
            file.prepared.sorted = Some(file.sort(fs));
        }
        Ok(())
    }

    /// Works out what the commit does to the files' content. To last, it needs the files' turns.
    ///
    /// Errors: `TransactionTooLarge`.
    pub(crate) fn plan(&self, fs: &Fs) -> Result<Vec<FilePlan>> {
        self.files.values().filter(|file| file.is_changed()).map(|file| file.plan(fs)).collect()
    }

    /// Takes the turns of all files whose content changes, ascending; with `beside`, only those that can be had at
    /// once, which will do for files of which images only are logged.
    pub(crate) fn take_turns(&self, beside: bool) -> Turns {
        let mut turns = Turns { _held: Vec::new(), beside: Vec::new() };
        for (number, file) in self.files.iter().filter(|(_, file)| file.is_changed()) {
            if !(beside && file.is_images_only()) {
                turns._held.push(file.inode.lock_turn());
                continue;
            }
            match file.inode.turn.try_lock() {
                Some(turn) => turns._held.push(turn),
                None => turns.beside.push(*number),
            }
        }
        turns
    }

    /// The data writes that are still in flight become a condition of the batch if the store grants that; otherwise
    /// they are waited for.
    pub(crate) fn attach_flights(&mut self, fs: &Fs, batch: &mut Batch) -> Result<()> {
        self.flights.retain(|(ticket, _)| !matches!(ticket.result(), Some(Ok(()))));
        // What comes next is one piece.
        if self.files.values().any(|file| file.prepared.is_large()) {
            let_in(fs);
        }
        let slots: Option<Vec<_>> =
            self.flights.iter().map(|(_, bytes)| fs.core.store.data_slot(*bytes)).collect();
        let Some(slots) = slots else { return self.finish_flights(fs) };
        for ((ticket, _), slot) in self.flights.iter().zip(slots) {
            batch.depends_on(ticket.clone(), slot);
        }
        Ok(())
    }

    /// Whether the transaction can be committed as far as this file is concerned; false if it has to be tried again
    /// with all turns and a finished truncation.
    ///
    /// Errors: `Conflict`, `NotPermitted`.
    pub(crate) fn verify(&self, number: ObjectNo, state: &InodeState, turns: &Turns) -> Result<bool> {
        let file = &self.files[&number];
        if file.is_conflicted() || state.is_gone() {
            return Err(Error::Conflict);
        }
        if !file.is_changed() {
            return Ok(true);
        }
        crate::attributes::flags::forbid_change(&state.item)?;
        state.data.check_not_aside()?;
        let data = &state.data;
        let untouched = |page: &u64| data.get(*page).is_none_or(|slot| !slot.state.is_writing());
        let apart =
            !turns.beside.contains(&number) || data.stored.destaging > 0 && file.pages.keys().all(untouched);
        Ok(apart && data.stored.truncating_from.is_none())
    }

    /// Writes a file's content into the batch, and its changes into the inode's item.
    pub(crate) fn emit(&self, plan: &FilePlan, item: &mut InodeItem, now: Timestamp, batch: &mut Batch) {
        let file = &self.files[&plan.number];
        plan.emit(file, batch);
        item.size = match file.size.exact {
            Some(size) => size,
            None => item.size.max(file.size.grown_to),
        };
        item.blocks = (item.blocks + plan.blocks_put).saturating_sub(plan.blocks_cut);
        (item.modified, item.changed) = (now, now);
        // Nobody knows any more who has staged it.
        strip_set_id(&Context::root(), item);
        if plan.leaves_some && item.nlink > 0 {
            batch.put(Key::orphan(plan.number), &OrphanReason::Truncated.encode());
        }
    }

    /// The size on record covers this much of the file once the batch is committed.
    pub(crate) fn covers(&self, number: ObjectNo, state: &InodeState) -> u64 {
        let covered = state.data.stored.covered;
        let Some(file) = self.files.get(&number) else { return covered };
        // A staged page is logged whole, with what others have written behind the staged bytes and not synced: were
        // that beyond the size on record, the file would show it again when it grows after a crash.
        let staged = file.pages.last_key_value().map_or(0, |(page, _)| (page + 1) * PAGE_BYTES);
        let staged = staged.min(state.item.size);
        file.size.exact.unwrap_or_else(|| covered.max(file.size.grown_to).max(staged))
    }

    /// The batch is committed: what was staged becomes the file's content in memory.
    pub(crate) fn apply(&mut self, fs: &Fs, plan: &FilePlan, state: &mut InodeState) {
        // For those who have waited while the batch was entered.
        if plan.runs.len() >= PIECE_EXTENTS {
            std::thread::yield_now();
        }
        // Whoever needs the data keeps its ticket: the batch and the pages.
        self.flights.clear();
        let covered = self.covers(plan.number, state);
        let file = self.files.get_mut(&plan.number).expect("the file was joined");
        file.tell(state, plan);
        let data = &mut state.data;
        if let Some(cut) = plan.cut {
            data.discard_range(cut..u64::MAX);
            data.stored.truncating_from = plan.leaves_some.then_some(cut);
        }
        for run in plan.runs.iter() {
            data.discard_range(run.pages());
        }
        let mut pages = std::mem::take(&mut file.pages);
        for page in std::mem::take(&mut file.prepared.kept) {
            let Some(staged) = pages.get_mut(&page).filter(|staged| !staged.newer) else { continue };
            let Some(buffer) = staged.buffer.take() else { continue };
            let in_flight = staged.ticket.take().filter(|ticket| !ticket.is_complete());
            data.insert_clean(&fs.core.account, page, buffer);
            if let Some(ticket) = in_flight {
                data.update(page, |slot| slot.in_flight = Some(ticket.clone()));
                fs.content.hold_in_flight([ticket], &file.inode);
            }
        }
        for page in plan.images.iter() {
            let staged = pages.get_mut(page).expect("the page is staged");
            self.newer.remove((plan.number, *page));
            let buffer = staged.buffer.take().expect("images are in memory");
            if let Some(home) = staged.home.take() {
                self.abandon(fs, home);
            }
            if data.get(*page).is_none() {
                data.insert_clean(&fs.core.account, *page, buffer.clone());
            }
            data.update(*page, |slot| {
                slot.page = buffer;
                slot.state.log();
                slot.in_flight = None;
                slot.used.store(true, Ordering::Relaxed);
            });
            let pool = self.pool.as_mut().expect("pages without a home have blocks reserved");
            data.give_block(*page, pool);
        }
        if !plan.runs.is_empty() || plan.cut.is_some() {
            data.stored.changes += 1;
        }
        data.stored.covered = covered;
        if data.dirty_pages() == 0 {
            data.listed.recent_at = None;
        }
        plan.spent.set(pages);
    }

    /// Drops what is committed, and frees what truncations have left over. Called without locks.
    pub(crate) fn finish_truncations(&self, fs: &Fs, plans: &[FilePlan]) -> Result<()> {
        for plan in plans {
            for (index, spent) in plan.spent.take().into_iter().enumerate() {
                drop(spent);
                breathe(fs, index, PIECE_PAGES);
            }
        }
        for plan in plans.iter().filter(|plan| plan.leaves_some) {
            fs.shape.finish_truncation(&self.files[&plan.number].inode)?;
        }
        Ok(())
    }
}

impl StagedFile {
    fn plan(&self, fs: &Fs) -> Result<FilePlan> {
        let (runs, images) = self.prepared.sorted.clone().unwrap_or_else(|| self.sort(fs));
        let cut = (self.base_end < u64::MAX).then(|| pages_of(self.base_end));
        let mut map = ExtentMap::empty(self.inode.number);
        let mut cut_off = None;
        for (index, run) in runs.iter().enumerate() {
            breathe(fs, index, PIECE_EXTENTS);
            if cut.is_none_or(|cut| run.pages().end <= cut) {
                map.load_more(&fs.content, run.pages())?;
            }
        }
        if let Some(cut) = cut {
            let behind = runs.iter().map(HomeRun::pages).filter(|pages| pages.end > cut);
            let first = behind.map(|pages| pages.start).min();
            // What is left to be freed later is not to be seen, nor in the way of anything.
            let is_last = self.pages.range(cut..).next().is_none()
                && self.size.exact.is_some_and(|size| size <= cut * PAGE_BYTES);
            let bytes_max = fs.core.store.batch_bytes_max();
            let limit = match is_last {
                true => FREED_EXTENTS_MAX.min(bytes_max / 2 / (DELETE_BYTES + RELEASE_BYTES)),
                false => bytes_max / (DELETE_BYTES + RELEASE_BYTES),
            };
            cut_off = map.load_rest(&fs.content, first.unwrap_or(cut).min(cut), limit)?;
            if cut_off.is_some() && !is_last {
                return Err(Error::TransactionTooLarge { bytes: bytes_max + 1, bytes_max });
            }
        }
        let mut blocks_cut = cut.map_or(0, |cut| map.cut(cut..u64::MAX, true));
        let mut blocks_put = 0;
        for (index, run) in runs.iter().enumerate() {
            breathe(fs, index, PIECE_EXTENTS);
            blocks_cut += map.cut(run.pages(), true);
            blocks_put += run.checksums.len() as u64;
            map.put(run.first, ExtentItem::written(run.start, run.checksums.clone()), true);
        }
        let leaves_some = cut_off.is_some();
        let number = self.inode.number;
        let spent = Cell::default();
        Ok(FilePlan { number, map, runs, images, cut, leaves_some, blocks_cut, blocks_put, spent })
    }

    /// Whether the commit logs nothing of the file but images, and its inode.
    fn is_images_only(&self) -> bool {
        self.base_end == u64::MAX && self.pages.values().all(|page| page.newer)
    }

    fn sort(&self, fs: &Fs) -> Sorted {
        let mut runs: Vec<HomeRun> = Vec::new();
        let mut images = Vec::new();
        for (index, (&page, staged)) in self.pages.iter().enumerate() {
            breathe(fs, index, PIECE_PAGES);
            let Some(home) = staged.home.filter(|_| !staged.newer) else {
                images.push(page);
                continue;
            };
            match runs.last_mut() {
                Some(run)
                    if run.pages().end == page
                        && run.start.plus(run.checksums.len() as u64) == home.block
                        && run.checksums.len() < EXTENT_PAGES_MAX as usize =>
                {
                    run.checksums.push(home.checksum);
                }
                _ => runs.push(HomeRun { first: page, start: home.block, checksums: vec![home.checksum] }),
            }
        }
        (Arc::new(runs), Arc::new(images))
    }

    /// Tells other transactions what changes.
    fn tell(&self, state: &InodeState, plan: &FilePlan) {
        let resized = match self.size.exact {
            Some(size) => size != state.item.size,
            None => self.size.grown_to > state.item.size,
        };
        let data = &state.data;
        data.note_change_by(Some(&self.watch), 0..0, resized);
        if plan.cut.is_some() {
            data.note_change_by(Some(&self.watch), self.base_end / PAGE_BYTES..u64::MAX, false);
        }
        for run in plan.runs.iter() {
            data.note_change_by(Some(&self.watch), run.pages(), false);
        }
        for &page in plan.images.iter() {
            data.note_change_by(Some(&self.watch), page..page + 1, false);
        }
    }
}

impl FilePlan {
    /// Bound of what the file adds to the batch besides its inode.
    pub(crate) fn bound(&self) -> Estimate {
        let drops = self.runs.len() + self.images.len() + 1;
        let images = image_estimate(self.images.len() as u64);
        let extents = self.map.emit_cost();
        let orphan = put_cost(0);
        let Cost { bytes, items } = extents.plus(orphan);
        Estimate {
            bytes: bytes + images.bytes + drops * DROP_COST.bytes + self.runs.len() * SPACE_OP_BYTES,
            items,
            images: self.images.len(),
        }
    }

    fn emit(&self, file: &StagedFile, batch: &mut Batch) {
        for run in self.runs.iter() {
            batch.allocate(run.start, run.checksums.len() as u32);
        }
        self.map.emit(batch);
        for run in self.runs.iter() {
            batch.drop_images(self.number, run.pages().start, run.pages().end);
        }
        if let Some(cut) = self.cut {
            let mut from = cut;
            for &page in self.images.iter().filter(|page| **page >= cut) {
                if from < page {
                    batch.drop_images(self.number, from, page);
                }
                from = page + 1;
            }
            batch.drop_images(self.number, from, u64::MAX);
        }
        for page in self.images.iter() {
            let buffer = file.pages[page].buffer.as_ref().expect("images are in memory");
            batch.page_image(self.number, *page, buffer);
        }
    }
}
