//! Writing out whole files, many of them, several small ones to a round.

use crate::Result;
use crate::content::inode::Inode;
use crate::content::pages::pages_of;
use crate::content::select::{Select, gauge};
use crate::limits::STREAM_PAGES_MIN;
use crate::writeback::Writeback;
use crate::writeback::choice::Purpose;
use crate::writeback::stream::Pace;
use std::sync::Arc;
use syncline_store::Class;

impl Writeback {
    /// Writes back everything that is dirty at the call, several small files to a batch. Not forced.
    pub(crate) fn write_back_everything(&self) -> Result<()> {
        let files: Vec<Arc<Inode>> = {
            let lists = self.content.lists.lock();
            lists.dirty.values().cloned().collect()
        };
        self.write_out_all(Class::Normal, files, false)
    }

    /// Writes all pages out whose image is in the journal at the call, so that the journal's tail can move.
    pub(crate) fn destage_everything(&self) -> Result<()> {
        let files: Vec<Arc<Inode>> = {
            let lists = self.content.lists.lock();
            lists.logged.values().cloned().collect()
        };
        self.write_out_all(Class::Destage, files, true)
    }

    /// Whether there is nothing that the two above would write, nor anything set aside.
    pub(crate) fn is_all_written(&self) -> bool {
        let is_written = {
            let lists = self.content.lists.lock();
            lists.dirty.is_empty() && lists.logged.is_empty()
        };
        is_written && self.content.aside.files.lock().is_empty()
    }

    /// One pass over each of the files. One that is damaged is set aside.
    pub(crate) fn write_out_all(&self, class: Class, files: Vec<Arc<Inode>>, logged: bool) -> Result<()> {
        let whole = Some(self.core.clock.now());
        let mut queue: std::collections::VecDeque<(Arc<Inode>, Select)> = files
            .into_iter()
            .map(|inode| {
                let end = pages_of(inode.state.read().item.size);
                (inode, Select { pages: 0..end, whole, logged })
            })
            .collect();
        while !queue.is_empty() {
            let count = pack(queue.iter());
            let group: Vec<_> = queue.drain(..count).collect();
            let rests = self.write_group_apart(class, &group, Pace::FULL)?;
            for ((inode, select), rest) in group.into_iter().zip(rests).rev() {
                if let Some(rest) = rest {
                    queue.push_front((inode, Select { pages: rest..select.pages.end, ..select }));
                }
            }
        }
        Ok(())
    }

    /// Writes out a group of files that was packed, or as much of it as the pace allows; returns what is left of each.
    pub(crate) fn write_group(
        &self,
        class: Class,
        group: &[(Arc<Inode>, Select)],
        pace: Pace,
    ) -> Result<Vec<Option<u64>>> {
        match group {
            [(inode, select)] if gauge(&inode.state.read().data, select).pages >= STREAM_PAGES_MIN => {
                Ok(vec![self.stream_out(class, inode, select.clone(), pace)?])
            }
            group => {
                let result = self.write_out(class, group, Purpose::Background);
                self.note_progress();
                Ok(result?.rest)
            }
        }
    }
}

/// How many of the files, from the first on, make a round together: enough small ones to share a batch and a data
/// write.
pub(crate) fn pack<'a>(files: impl Iterator<Item = &'a (Arc<Inode>, Select)>) -> usize {
    /// Files of a round: their batch stays below 32 KiB.
    const FILES_MAX: usize = 64;
    /// A round with this many pages is worth a batch of its own.
    const PAGES: u64 = 256;
    let mut pages = 0;
    let mut count = 0;
    for (inode, select) in files.take(FILES_MAX) {
        let gauge = gauge(&inode.state.read().data, select);
        if count > 0 && pages + gauge.pages > PAGES {
            break;
        }
        pages += gauge.pages;
        count += 1;
    }
    count
}
