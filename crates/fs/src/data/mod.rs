//! File content: page cache, extents, writeback. (Skeleton of the seam; owned by the data side.)

use crate::inode::Inode;
use crate::{Fs, FsOptions, Result, Timestamp};
use std::sync::Arc;
use syncline_format::item::InodeItem;
use syncline_store::{Batch, Class, Estimate, PageImage, Permit, Reservation};

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteAt {
    Offset(u64),
    /// At the end of the file, decided under the inode's lock (O_APPEND).
    End,
}

/// What `fallocate` is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    Allocate { keep_size: bool },
    PunchHole,
    ZeroRange { keep_size: bool },
    CollapseRange,
    InsertRange,
}

/// What `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekWhat {
    Data,
    Hole,
}

/// How much of a file a sync covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncScope {
    /// Data and what is needed to read it back.
    Data,
    /// Data and all attributes.
    All,
}

/// Content of a file, in memory.
pub(crate) struct FileData {}

impl FileData {
    pub(crate) fn new(_item: &InodeItem) -> FileData {
        FileData {}
    }

    pub(crate) fn logged_size(&self, logical: u64) -> u64 {
        logical
    }

    pub(crate) fn has_dirty(&self) -> bool {
        false
    }
}

/// Account of dirty and logged pages of the volume.
pub(crate) struct Writeback {}

impl Writeback {
    pub(crate) fn new(_options: &FsOptions) -> Writeback {
        Writeback {}
    }
}

#[allow(unused_variables)]
impl Fs {
    pub(crate) fn admit(&self, class: Class, estimate: Estimate) -> Result<Permit> {
        panic!("under construction")
    }

    pub(crate) fn reserve(&self, blocks: u64) -> Result<Reservation> {
        panic!("under construction")
    }

    pub(crate) fn file_read(&self, inode: &Arc<Inode>, offset: u64, into: &mut [u8]) -> Result<usize> {
        panic!("under construction")
    }

    pub(crate) fn file_write(
        &self,
        inode: &Arc<Inode>,
        at: WriteAt,
        data: &[u8],
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<(u64, usize)> {
        panic!("under construction")
    }

    pub(crate) fn file_truncate(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<()> {
        panic!("under construction")
    }

    pub(crate) fn file_allocate(
        &self,
        inode: &Arc<Inode>,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<()> {
        panic!("under construction")
    }

    pub(crate) fn file_seek(&self, inode: &Arc<Inode>, offset: u64, what: SeekWhat) -> Result<u64> {
        panic!("under construction")
    }

    pub(crate) fn file_copy_range(
        &self,
        source: &Arc<Inode>,
        source_offset: u64,
        target: &Arc<Inode>,
        target_offset: u64,
        len: u64,
    ) -> Result<u64> {
        panic!("under construction")
    }

    pub(crate) fn file_sync(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<()> {
        panic!("under construction")
    }

    pub(crate) fn start_file_sync(
        &self,
        inode: &Arc<Inode>,
        scope: SyncScope,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) {
        panic!("under construction")
    }

    pub fn sync_all(&self) -> Result<()> {
        panic!("under construction")
    }

    pub(crate) fn write_back_file(&self, inode: &Arc<Inode>) -> Result<()> {
        panic!("under construction")
    }

    pub(crate) fn remove_file_content(
        &self,
        inode: &Arc<Inode>,
        last: &mut dyn FnMut(&mut Batch),
    ) -> Result<()> {
        panic!("under construction")
    }

    pub fn maintain(&self, now: Timestamp, budget: usize) -> Result<bool> {
        panic!("under construction")
    }

    pub(crate) fn recover_images(&self, images: Vec<PageImage>) -> Result<()> {
        panic!("under construction")
    }
}
