//! [`Select`]: which pages of a file are meant.

use crate::Timestamp;
use crate::content::pages::{FileData, PageSlot};
use crate::limits::ROUND_PAGES_MAX;
use std::ops::Range;

/// Which pages of a file a round takes.
#[derive(Debug, Clone)]
pub(crate) struct Select {
    pub(crate) pages: Range<u64>,
    /// When this began, if it takes all of the file as it was then: what is dirty behind it is no older (C9). If not,
    /// that stays as old as it is.
    pub(crate) whole: Option<Timestamp>,
    /// Takes pages that are only logged as well (destaging).
    pub(crate) logged: bool,
}

impl Select {
    pub(crate) fn dirty(now: Timestamp) -> Select {
        Select { pages: 0..u64::MAX, whole: Some(now), logged: false }
    }

    pub(crate) fn logged(now: Timestamp) -> Select {
        Select { pages: 0..u64::MAX, whole: Some(now), logged: true }
    }

    /// The pages it takes, ascending.
    fn numbers<'a>(&self, data: &'a FileData) -> Box<dyn Iterator<Item = u64> + 'a> {
        if self.logged {
            Box::new(data.destage_numbers(self.pages.clone()))
        } else {
            Box::new(data.dirty_numbers(self.pages.clone()))
        }
    }

    /// As [`Select::numbers`], with what is known of each page.
    pub(crate) fn of<'a>(&self, data: &'a FileData) -> Box<dyn Iterator<Item = (u64, &'a PageSlot)> + 'a> {
        if self.logged {
            Box::new(data.destage_range(self.pages.clone()))
        } else {
            Box::new(data.dirty_range(self.pages.clone()))
        }
    }
}

/// How much there is to do for a selection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gauge {
    pub(crate) pages: u64,
    /// Pieces of consecutive pages.
    pub(crate) pieces: u64,
}

pub(crate) fn gauge(data: &FileData, select: &Select) -> Gauge {
    let mut gauge = Gauge::default();
    let mut next = None;
    for page in select.numbers(data) {
        gauge.pages += 1;
        gauge.pieces += u64::from(next != Some(page));
        next = Some(page + 1);
        if gauge.pages == ROUND_PAGES_MAX {
            break;
        }
    }
    gauge
}
