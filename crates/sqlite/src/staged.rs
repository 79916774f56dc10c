//! What a connection has written to its database and not yet committed: a transaction of the volume.

use crate::error::{Result, VfsError};
use std::collections::BTreeSet;
use std::sync::Arc;
use syncline::File;
use syncline_fs::{Fs, ObjectNo, Transaction};

/// The unit in which the volume compares and stores.
const PAGE_BYTES: u64 = 4096;
/// Bytes compared at a time.
const COMPARE_BYTES: usize = 64 << 10;

/// Writes and truncations of one database since its last commit.
pub(crate) struct Staged {
    transaction: Transaction,
    object: ObjectNo,
    name: Vec<u8>,
    /// Pages that were written.
    pages: BTreeSet<u64>,
    /// Nothing at or behind this offset is known to be as it was committed.
    untouched_below: u64,
}

impl Staged {
    pub(crate) fn begin(fs: &Arc<Fs>, object: ObjectNo, name: &[u8]) -> Result<Staged> {
        let transaction = fs.begin().map_err(VfsError::engine(name))?;
        let (pages, name) = (BTreeSet::new(), name.to_vec());
        Ok(Staged { transaction, object, name, pages, untouched_below: u64::MAX })
    }

    fn engine<T>(&self, result: syncline::Result<T>) -> Result<T> {
        result.map_err(VfsError::engine(&self.name))
    }

    /// Reads what was written, over what is committed; fewer bytes than asked for only at the end.
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let read = self.transaction.read(self.object, offset, into);
        self.engine(read)
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.transaction.write(self.object, offset, data);
        self.engine(written)?;
        self.pages.extend(pages(offset, data.len()));
        Ok(())
    }

    pub(crate) fn truncate(&mut self, size: u64) -> Result<()> {
        self.untouched_below = self.untouched_below.min(size);
        let truncated = self.transaction.truncate(self.object, size);
        self.engine(truncated)
    }

    pub(crate) fn size(&mut self) -> Result<u64> {
        let size = self.transaction.size(self.object);
        self.engine(size)
    }

    /// Whether only the size was changed.
    pub(crate) fn only_truncates(&self) -> bool {
        self.pages.is_empty()
    }

    /// Whether this range is still what is committed.
    pub(crate) fn is_untouched(&self, offset: u64, bytes: usize) -> bool {
        offset + bytes as u64 <= self.untouched_below
            && pages(offset, bytes).all(|page| !self.pages.contains(&page))
    }

    /// Whether committing would change nothing: the same size, and the same bytes in every page that was written. Size
    /// and content are compared only where they can differ.
    pub(crate) fn equals(&mut self, committed: &File) -> Result<bool> {
        let size = self.size()?;
        let committed_size = committed.metadata().map_err(VfsError::io(&self.name))?.len();
        if size != committed_size || self.untouched_below < size && !self.covers(self.untouched_below..size) {
            return Ok(false);
        }
        let (mut mine, mut theirs) = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
        for run in self.runs() {
            let mut at = run.start * PAGE_BYTES;
            let end = (run.end * PAGE_BYTES).min(size);
            while at < end {
                let part = COMPARE_BYTES.min((end - at) as usize);
                let count = self.read(at, &mut mine[..part])?;
                let other = committed.read_at(&mut theirs[..part], at).map_err(VfsError::io(&self.name))?;
                if count != other || mine[..count] != theirs[..count] {
                    return Ok(false);
                }
                at += part as u64;
            }
        }
        Ok(true)
    }

    /// Whether every page of a range was written.
    fn covers(&self, range: std::ops::Range<u64>) -> bool {
        let first = range.start / PAGE_BYTES;
        let end = range.end.div_ceil(PAGE_BYTES);
        self.pages.range(first..end).count() as u64 == end - first
    }

    /// The pages written, as runs.
    fn runs(&self) -> Vec<std::ops::Range<u64>> {
        let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
        for &page in &self.pages {
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        runs
    }

    /// Writes everything to the file itself, page by page and not atomically, and gives the transaction up.
    pub(crate) fn write_to(&mut self, file: &File) -> Result<()> {
        let size = self.size()?;
        let mut buffer = vec![0; COMPARE_BYTES];
        for run in self.runs() {
            let mut at = run.start * PAGE_BYTES;
            let end = (run.end * PAGE_BYTES).min(size);
            while at < end {
                let part = COMPARE_BYTES.min((end - at) as usize);
                let count = self.read(at, &mut buffer[..part])?;
                file.write_all_at(&buffer[..count], at).map_err(VfsError::io(&self.name))?;
                at += part as u64;
            }
        }
        let length = file.metadata().map_err(VfsError::io(&self.name))?.len();
        if length == size { Ok(()) } else { file.set_len(size).map_err(VfsError::io(&self.name)) }
    }

    /// Makes it durable.
    pub(crate) fn commit(self) -> Result<()> {
        self.transaction.commit().map_err(VfsError::engine(&self.name))
    }

    /// Makes it visible, atomically, and durable at some later time.
    pub(crate) fn commit_soon(self) -> Result<()> {
        let name = String::from_utf8_lossy(&self.name).into_owned();
        let started = self.transaction.commit_start(Box::new(move |result| {
            if let Err(source) = result {
                crate::tell(&VfsError::Engine { name, source });
            }
        }));
        started.map_err(VfsError::engine(&self.name))
    }

    /// Bytes that it takes of a record, and those of a record; see [`Transaction::record_bytes`].
    pub(crate) fn record_bytes(&mut self, worked_out: bool) -> Result<(usize, usize)> {
        let bytes = self.transaction.record_bytes(worked_out);
        self.engine(bytes)
    }

    /// Takes over what is staged of another database: both are committed together.
    pub(crate) fn absorb(&mut self, other: Staged) -> Result<()> {
        self.transaction.absorb(other.transaction).map_err(VfsError::engine(&other.name))
    }

    /// Removes a file when it is committed.
    pub(crate) fn unlink(&mut self, directory: ObjectNo, name: &[u8]) -> Result<()> {
        let unlinked = self.transaction.unlink(directory, name);
        self.engine(unlinked)
    }
}

/// The pages that a range touches.
fn pages(offset: u64, bytes: usize) -> std::ops::Range<u64> {
    offset / PAGE_BYTES..(offset + bytes as u64).div_ceil(PAGE_BYTES)
}
