//! What an operation would have to wait for, so that a caller who must not wait long can have somebody else do it.
//!
//! A transport that serves requests on a thread per queue asks here before it calls the engine. The answers hold for
//! the moment and promise nothing: an operation that "does not wait" may still read a node of the tree that is not
//! cached, or meet a lock that is held for a short time. What they exclude is what takes long: room in the journal
//! that only destaging and a checkpoint bring, file data that has to be read, much dirty data, content that is
//! removed piece by piece.

use crate::content::inode::InodeState;
use crate::content::pages::{PAGE_BYTES, pages_of, pages_touched};
use crate::limits::{IMAGE_PAGES_MAX, LIGHT_BLOCKS_MAX};
use crate::read::pages::copy_cached;
use crate::{Error, FallocateMode, Files, HandleId, Result};
use std::sync::atomic::Ordering;
use syncline_format::ObjectNo;
use syncline_store::Estimate;

/// Room in the journal with which an operation on names or attributes is admitted at once, and so is a small sync.
const USUAL: Estimate = Estimate { bytes: 64 << 10, items: 16, images: IMAGE_PAGES_MAX as usize };
/// A write is not sure to find its blocks if no more than these are left besides.
const SPARE_BLOCKS: u64 = 64;
/// A copy of so many bytes takes no longer than the largest write over FUSE.
const SMALL_COPY_BYTES: u64 = 256 << 10;

impl Files {
    /// Whether a change may have to wait until the journal has room.
    pub fn change_may_wait(&self) -> bool {
        !self.core.store.has_room(USUAL)
    }

    /// Reads like `Files::read` if everything is in memory; else nothing is read, and the answer is `None`.
    pub fn read_cached(&self, handle: HandleId, offset: u64, into: &mut [u8]) -> Result<Option<usize>> {
        let open = self.regular(handle)?;
        if !open.flags.read {
            return Err(Error::BadHandle);
        }
        let (copied, miss) = copy_cached(&open.inode, offset, into);
        if miss.is_some() {
            return Ok(None);
        }
        self.core.account.hit(pages_touched(offset, copied));
        if !into.is_empty() {
            self.attributes.touch_accessed(&open.inode, open.flags.no_atime);
        }
        Ok(Some(copied))
    }

    /// Whether a write may have to wait: for room, until dirty pages have been written, or for the rest of a page
    /// that it changes in part.
    pub fn write_may_wait(&self, handle: HandleId, offset: u64, len: usize) -> bool {
        let Ok(open) = self.content.open_file(handle) else { return false };
        // Nothing is logged for a write; where blocks are short, a checkpoint may have to bring some back.
        let blocks = pages_touched(offset, len) + SPARE_BLOCKS;
        if !self.core.store.has_available(blocks) || self.writeback.must_slow_down(&open.inode, len) {
            return true;
        }
        let state = open.inode.state.read();
        let end = offset.saturating_add(len as u64);
        let size = state.item.size;
        (lacks_part_at(&state, offset) && offset - offset % PAGE_BYTES < size)
            || (lacks_part_at(&state, end) && end < size)
            || state.data.is_truncating()
    }

    /// Whether copying a range between two open files may have to wait: it is long, not all of its source is in
    /// memory, or a write to its target would.
    pub fn copy_may_wait(&self, source: (HandleId, u64), target: (HandleId, u64), len: u64) -> bool {
        let Ok(from) = self.content.open_file(source.0) else { return false };
        let state = from.inode.state.read();
        let len = len.min(state.item.size.saturating_sub(source.1));
        if len == 0 {
            return false;
        }
        let end = source.1.saturating_add(len);
        if len > SMALL_COPY_BYTES
            || (source.1 / PAGE_BYTES..pages_of(end)).any(|page| state.data.get(page).is_none())
        {
            return true;
        }
        drop(state);
        self.change_may_wait() || self.write_may_wait(target.0, target.1, len as usize)
    }

    /// Whether `fallocate` may have to wait: only where it gives few blocks, or nothing but a size, it does not.
    pub fn fallocate_may_wait(&self, handle: HandleId, mode: FallocateMode, offset: u64, len: u64) -> bool {
        let Ok(open) = self.content.open_file(handle) else { return false };
        let blocks = pages_of(offset.saturating_add(len)) - offset / PAGE_BYTES;
        !matches!(mode, FallocateMode::Allocate { .. })
            || blocks > LIGHT_BLOCKS_MAX
            || self.change_may_wait()
            || !self.core.store.has_available(blocks + SPARE_BLOCKS)
            || is_in_work(&open.inode.state.read())
    }

    /// Whether setting a file's size may have to wait: much content is removed, or the rest of a page has to be read.
    pub fn resize_may_wait(&self, number: ObjectNo, size: u64) -> bool {
        if self.change_may_wait() || !self.core.store.has_available(SPARE_BLOCKS) {
            return true;
        }
        let Ok(inode) = self.content.inode(number) else { return false };
        let state = inode.state.read();
        let shrinks = size < state.item.size;
        is_in_work(&state) || (shrinks && (state.is_heavy() || lacks_part_at(&state, size)))
    }

    /// Whether truncating or removing the inode's content may take long.
    pub fn content_may_wait(&self, number: ObjectNo) -> bool {
        self.change_may_wait() || self.content.inode(number).is_ok_and(|inode| inode.state.read().is_heavy())
    }

    /// Whether ending a handle may take long: content that was rewritten is written back, or that of an unlinked file
    /// is removed.
    pub fn release_may_wait(&self, handle: HandleId) -> bool {
        let Ok(open) = self.content.open_file(handle) else { return false };
        let state = open.inode.state.read();
        let writes_back = open.flags.write && open.inode.truncated_to_zero.load(Ordering::Relaxed);
        (writes_back && (state.data.dirty_pages() > IMAGE_PAGES_MAX || self.change_may_wait()))
            || (state.item.nlink == 0 && (state.is_heavy() || self.change_may_wait()))
    }
}

/// Whether somebody writes the content out or removes some of it.
fn is_in_work(state: &InodeState) -> bool {
    state.data.is_taken() || state.data.is_truncating()
}

/// Whether an offset cuts a page that is not in memory.
fn lacks_part_at(state: &InodeState, offset: u64) -> bool {
    !offset.is_multiple_of(PAGE_BYTES) && state.data.get(offset / PAGE_BYTES).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Fs, MkfsOptions, OpenFlags, SystemClock, SystemEntropy};
    use std::sync::Arc;
    use syncline_device::MemoryDevice;

    fn opened(device: &Arc<MemoryDevice>) -> Arc<Fs> {
        Fs::open(
            device.clone(),
            crate::FsOptions::default(),
            Arc::new(SystemClock),
            &SystemEntropy::default(),
        )
        .expect("open")
    }

    #[test]
    fn what_is_in_memory_is_read_and_written_without_waiting_and_what_is_not_is_told() {
        let device = Arc::new(MemoryDevice::new(16384));
        let entropy = SystemEntropy::default();
        Fs::format(&*device, &MkfsOptions::default(), &SystemClock, &entropy, &mut |_, _| {}).expect("mkfs");
        let root = Context::root();
        let fs = opened(&device);
        let (entry, handle) =
            fs.names.create(&root, ObjectNo::ROOT_DIR, b"f", 0o644, OpenFlags::READ_WRITE).expect("create");
        assert!(!fs.files.change_may_wait() && !fs.files.write_may_wait(handle, 10, 20_000));
        fs.files.write(&root, handle, 0, &[7; 20_000]).expect("write");
        let plan = || fs.syncs.plan(handle, crate::SyncScope::All, crate::Reach::Whole).expect("plan");
        assert!(fs.syncs.try_commit(&plan()).expect("commit").is_none(), "five dirty pages are written out");
        assert!(!fs.files.content_may_wait(entry.attr.inode));
        let mut buffer = [0; 20_000];
        assert_eq!(fs.files.read_cached(handle, 0, &mut buffer).expect("read"), Some(20_000));
        assert_eq!(buffer, [7; 20_000]);
        fs.close().expect("close");
        drop(fs);

        let fs = opened(&device);
        let handle = fs.files.open_handle(&root, entry.attr.inode, OpenFlags::READ_WRITE).expect("open");
        assert_eq!(fs.files.read_cached(handle, 0, &mut buffer).expect("read"), None);
        assert!(fs.files.write_may_wait(handle, 10, 100), "the rest of the page has to be read");
        assert!(
            !fs.files.write_may_wait(handle, 4096, 4096) && !fs.files.write_may_wait(handle, 20_480, 100)
        );
        fs.files.read(handle, 0, &mut buffer).expect("read");
        assert_eq!(fs.files.read_cached(handle, 19_000, &mut buffer).expect("read"), Some(1000));
        assert!(!fs.files.write_may_wait(handle, 10, 100));

        fs.files.write(&root, handle, 0, &vec![1; 2 << 20]).expect("write");
        assert!(
            fs.files.content_may_wait(entry.attr.inode)
                && fs.names.plan_removal(ObjectNo::ROOT_DIR, b"f").expect("look").is_heavy()
        );
        assert!(
            fs.names.plan_removal(ObjectNo::ROOT_DIR, b"none").is_err() && !fs.files.release_may_wait(handle)
        );
        fs.names.unlink(ObjectNo::ROOT_DIR, b"f").expect("unlink");
        assert!(fs.files.release_may_wait(handle));
    }

    #[test]
    fn small_copies_allocations_and_sizes_need_no_waiting_and_others_do() {
        const ALLOCATE: FallocateMode = FallocateMode::Allocate { keep_size: false };
        let device = Arc::new(MemoryDevice::new(16384));
        let entropy = SystemEntropy::default();
        Fs::format(&*device, &MkfsOptions::default(), &SystemClock, &entropy, &mut |_, _| {}).expect("mkfs");
        let root = Context::root();
        let fs = opened(&device);
        let make = |name: &[u8]| {
            fs.names.create(&root, ObjectNo::ROOT_DIR, name, 0o644, OpenFlags::READ_WRITE).expect("create")
        };
        let ((source, from), (target, to)) = (make(b"source"), make(b"target"));
        fs.files.write(&root, from, 0, &vec![7; 600_000]).expect("write");
        assert!(!fs.files.copy_may_wait((from, 500_000), (to, 0), u64::MAX), "its source ends soon");
        assert!(!fs.files.copy_may_wait((from, 700_000), (to, 0), 10), "there is nothing to copy");
        assert!(fs.files.copy_may_wait((from, 0), (to, 0), u64::MAX), "that is long");
        assert!(!fs.files.fallocate_may_wait(to, ALLOCATE, 0, 1 << 20));
        assert!(fs.files.fallocate_may_wait(to, ALLOCATE, 0, (1 << 20) + 1));
        assert!(!fs.files.fallocate_may_wait(to, ALLOCATE, u64::MAX, u64::MAX), "that is refused at once");
        assert!(fs.files.fallocate_may_wait(to, FallocateMode::PunchHole, 0, 10));
        assert!(!fs.files.resize_may_wait(source.attr.inode, 5000));
        assert!(!fs.files.resize_may_wait(target.attr.inode, 1 << 40), "a hole");
        fs.close().expect("close");
        drop(fs);

        let fs = opened(&device);
        let open = |number| fs.files.open_handle(&root, number, OpenFlags::READ_WRITE).expect("open");
        let (from, to) = (open(source.attr.inode), open(target.attr.inode));
        assert!(fs.files.copy_may_wait((from, 0), (to, 0), 10), "its source has to be read");
        assert!(fs.files.resize_may_wait(source.attr.inode, 5000), "so has the page that is cut");
        assert!(!fs.files.resize_may_wait(source.attr.inode, 8192));
        assert!(!fs.files.resize_may_wait(source.attr.inode, 700_001));
        fs.files.read(from, 0, &mut [0; 600_000]).expect("read");
        assert!(!fs.files.copy_may_wait((from, 0), (to, 0), 10));
        assert!(!fs.files.resize_may_wait(source.attr.inode, 5000));
    }
}
