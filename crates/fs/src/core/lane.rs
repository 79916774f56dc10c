//! [`Lane`]: the one place that decides how much bulk data is at the device.
//!
//! Bulk data is what no small sync waits for: rounds of large files and of the background, and what transactions
//! spill. A device serves a small write, a flush or a read behind what it was given before. So no more of all bulk data
//! together is in flight than keeps the device busy ([`Device::bulk_bytes_max`]): the first small sync after a pause
//! waits behind that, however much was written before it. While small syncs and reads come in, the lane is *narrow*: at
//! most [`NARROW_BYTES`] are in flight, and no more than that is submitted before a group commit under way has ended,
//! nothing at all if it is the first one. The lane stays wide while even light writers have to wait for memory: nothing
//! helps them but speed.
//!
//! Whoever waits here may hold turns and permits, which no group commit needs, but no inode's lock. Lock: `state` is
//! held while something is submitted, and nothing is taken inside it but the device's.
//!
//! [`Device::bulk_bytes_max`]: syncline_device::Device::bulk_bytes_max

use crate::core::account::PageAccount;
use crate::core::levels::Lock;
use crate::limits::{HEEDED_BYTES, LANE_LEAST_BYTES, NARROW_BYTES, NARROW_PAGES, WRITE_PAGES_MAX};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{Buffer, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_store::Store;
use syncline_store::lock_order::Mutex;

#[derive(Default)]
struct State {
    /// Writes that are not known to be complete, and what they count.
    in_flight: VecDeque<(Ticket, u64)>,
    /// Submitted narrowly since a group commit was last given way to; as much as may be, if the lane was wide.
    ahead: u64,
}

pub(crate) struct Lane {
    // Constant.
    account: Arc<PageAccount>,
    /// Pages that cannot be dropped, with which light writers wait.
    pinned_max: u64,
    /// In flight while the lane is wide.
    wide_bytes: u64,
    /// How much of [`HEEDED_BYTES`] is left; zero: nobody is heeded.
    heeded: AtomicU64,
    state: Mutex<State>,
}

impl Lane {
    /// `bulk_bytes_max` is the device's.
    pub(crate) fn new(account: &Arc<PageAccount>, pinned_max: u64, bulk_bytes_max: u64) -> Lane {
        Lane {
            account: account.clone(),
            pinned_max,
            wide_bytes: bulk_bytes_max.max(NARROW_BYTES),
            heeded: AtomicU64::new(0),
            state: Mutex::new(Lock::Lane, State::default()),
        }
    }

    /// Somebody syncs little, or reads little from the device.
    pub(crate) fn note_small_request(&self) {
        self.heeded.store(HEEDED_BYTES, Ordering::Relaxed);
    }

    pub(crate) fn is_narrow(&self) -> bool {
        self.heeded.load(Ordering::Relaxed) > 0 && self.account.pinned() <= self.pinned_max
    }

    /// Pages that the next bulk write may have: two of them keep the device busy.
    pub(crate) fn write_pages_max(&self) -> usize {
        match self.is_narrow() {
            true => NARROW_PAGES,
            false => (self.wide_bytes as usize / 2 / BLOCK_BYTES).clamp(NARROW_PAGES, WRITE_PAGES_MAX),
        }
    }

    /// Pages that a round of files others may sync should have: when the lane is narrow no more than go at once.
    pub(crate) fn round_pages_max(&self) -> u64 {
        if self.is_narrow() { NARROW_PAGES as u64 } else { u64::MAX }
    }

    /// Starts a bulk write, as soon as there is room for it.
    pub(crate) fn submit(&self, store: &Store, at: BlockNo, buffers: Vec<Arc<Buffer>>) -> Ticket {
        let device = store.device();
        let bytes = buffers.iter().map(|buffer| buffer.blocks()).sum::<u64>() * BLOCK_BYTES as u64;
        let counts = bytes.max(LANE_LEAST_BYTES);
        let narrow = self.is_narrow();
        let most = if narrow { NARROW_BYTES } else { self.wide_bytes };
        let less = |left: u64| Some(left.saturating_sub(counts));
        let _ = self.heeded.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        loop {
            let mut state = self.state.lock();
            state.in_flight.retain(|(ticket, _)| !ticket.is_complete());
            let others = state.in_flight.iter().map(|(_, counts)| counts).sum::<u64>();
            match state.in_flight.front() {
                Some((oldest, _)) if others + counts > most => {
                    let oldest = oldest.clone();
                    drop(state);
                    // Its result is for those who need that write.
                    let _ = device.wait(&oldest);
                }
                _ if narrow && state.ahead > 0 && state.ahead + counts > NARROW_BYTES => {
                    state.ahead = 0;
                    drop(state);
                    store.give_way();
                }
                _ => {
                    state.ahead = if narrow { state.ahead + counts } else { NARROW_BYTES };
                    let ticket = device.submit_write(at, buffers);
                    state.in_flight.push_back((ticket.clone(), counts));
                    return ticket;
                }
            }
        }
    }
}
