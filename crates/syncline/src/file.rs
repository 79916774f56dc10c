//! [`File`].

use crate::metadata::{Metadata, from_system_time};
use crate::ticket::SyncTicket;
use crate::volume::Shared;
use crate::{Error, FallocateMode, SetAttr, SetTime, Started, SyncScope};
use parking_lot::Mutex;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use syncline_fs::{HandleId, OpenFlags, Opened, Reach, SeekWhat};

/// An open file of a [`Volume`](crate::Volume).
///
/// Reading, writing and seeking work on `File` and on `&File`; all threads share one position, as with
/// [`std::fs::File`]. [`File::read_at`] and [`File::write_at`] do not use it. Dropping a file does not sync it, and
/// errors of closing are lost: call [`File::sync_all`] first.
///
/// ```
/// use std::io::{Read, Seek, SeekFrom, Write};
/// use syncline::{OpenOptions, Volume};
///
/// let volume = Volume::create_in_memory(64 << 20)?;
/// let mut file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "greeting")?;
/// file.write_all(b"hello")?;
/// file.write_at(b"J", 0)?;
/// file.sync_all()?;
/// file.seek(SeekFrom::Start(0))?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "Jello");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct File {
    shared: Arc<Shared>,
    handle: HandleId,
    /// What the handle names: reading, writing and syncing look nothing up.
    opened: Opened,
    flags: OpenFlags,
    position: Mutex<u64>,
    behind: Option<WriteBehind>,
    released: bool,
}

/// What was written since the last writeback hint that the handle gave by itself.
pub(crate) struct WriteBehind {
    every: u64,
    written: Mutex<(u64, Range<u64>)>,
}

impl WriteBehind {
    pub(crate) fn new(every: u64) -> WriteBehind {
        WriteBehind { every, written: Mutex::new((0, 0..0)) }
    }

    /// Notes a write; the range to hint at, if that is due.
    fn note(&self, at: u64, count: u64) -> Option<Range<u64>> {
        let mut written = self.written.lock();
        let (bytes, range) = &mut *written;
        *range = if *bytes == 0 { at..at + count } else { range.start.min(at)..range.end.max(at + count) };
        *bytes += count;
        (*bytes >= self.every).then(|| std::mem::replace(&mut *written, (0, 0..0)).1)
    }
}

impl File {
    pub(crate) fn new(
        shared: Arc<Shared>,
        (handle, opened): (HandleId, Opened),
        flags: OpenFlags,
        behind: Option<WriteBehind>,
    ) -> File {
        File { shared, handle, opened, flags, position: Mutex::new(0), behind, released: false }
    }

    /// The engine's handle, for adapters.
    pub fn handle(&self) -> HandleId {
        self.handle
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.shared.fs()?.files().read(&self.opened, offset, into)?)
    }

    /// Fills `into` from an offset. Errors: `UnexpectedEof`.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_at(into, offset)? < into.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Writes at an offset (at the end if the file was opened for appending); returns how much was written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        Ok(self.put(data, offset)?.1)
    }

    /// Writes all of `data` at an offset. Errors: `StorageFull` among others; part of it may be written then.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            done += self.write_at(&data[done..], offset + done as u64)?;
        }
        Ok(())
    }

    /// Writes at the end; returns where the data begins, and how much was written. Errors: `InvalidInput` if the file
    /// was not opened for appending.
    ///
    /// ```
    /// use syncline::{OpenOptions, Volume};
    ///
    /// let volume = Volume::create_in_memory(64 << 20)?;
    /// let log = OpenOptions::new().append(true).create(true).open(&volume, "log")?;
    /// assert_eq!(log.append(b"one")?, (0, 3));
    /// assert_eq!(log.append(b"four")?, (3, 4));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn append(&self, data: &[u8]) -> io::Result<(u64, usize)> {
        match self.flags.append {
            true => Ok(self.put(data, 0)?),
            false => Err(Error::Invalid("the file was not opened for appending").into()),
        }
    }

    fn put(&self, data: &[u8], offset: u64) -> crate::Result<(u64, usize)> {
        let shared = &self.shared;
        let (at, count, scope) =
            shared.fs()?.files().write_unsynced(&shared.context, &self.opened, offset, data)?;
        if let Some(scope) = scope {
            self.sync(scope)?;
        } else if let Some(behind) = &self.behind
            && let Some(range) = behind.note(at, count as u64)
        {
            // What it could not start is left to later hints, the background, or the sync.
            shared.fs()?.files().write_back_handle(self.handle, range)?;
        }
        Ok((at, count))
    }

    /// Makes content and attributes durable, and with them every earlier change of names on the volume (C1).
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(self.sync(SyncScope::All)?)
    }

    /// Makes the content durable, with what is needed to read it back.
    pub fn sync_data(&self) -> io::Result<()> {
        Ok(self.sync(SyncScope::Data)?)
    }

    /// Starts a sync and returns at once; the ticket tells when everything is durable that the file is at the call,
    /// or why it cannot be (C5). Dropping the ticket or the file does not cancel it, nor does dropping the volume.
    ///
    /// A few dirty pages are committed by this call; more are written by the volume's thread, or by whoever waits for
    /// the ticket. Any number of tickets may be outstanding; they take no threads and share group commits. A volume
    /// opened with [`VolumeOptions::background`](crate::VolumeOptions::background) off has nobody to go on for it:
    /// there this call writes what is dirty itself, and the sync ends when its ticket is polled or waited for, or
    /// with a later sync.
    pub fn sync_async(&self, scope: SyncScope) -> SyncTicket {
        SyncTicket::start(
            &self.shared,
            self.shared.fs().and_then(|fs| fs.syncs().plan(&self.opened, scope, Reach::Whole)),
        )
    }

    /// Makes a range of the content durable, with what is needed to read it back, and every earlier change of names
    /// (C5).
    ///
    /// Data is written in pages of 4 KiB: those that the range touches, and no other of the file. If the file grew
    /// without a sync before, its size after a crash covers the range, and what lies in front of it reads as zeros or
    /// as it was.
    pub fn sync_range(&self, range: impl RangeBounds<u64>, scope: SyncScope) -> io::Result<()> {
        let (fs, start) = (self.shared.fs()?, Instant::now());
        let result = fs.syncs().sync(&self.opened, scope, Reach::Range(bytes_of(range)));
        self.shared.sync_latency.record(start.elapsed());
        Ok(result?)
    }

    /// Starts what [`File::sync_range`] does, in the way of [`File::sync_async`].
    pub fn sync_range_async(&self, range: impl RangeBounds<u64>, scope: SyncScope) -> SyncTicket {
        let reach = Reach::Range(bytes_of(range));
        SyncTicket::start(
            &self.shared,
            self.shared.fs().and_then(|fs| fs.syncs().plan(&self.opened, scope, reach)),
        )
    }

    /// Starts writing the dirty pages that a range touches, so that a later sync has less to do; tells how much it
    /// started (C6). It waits for no I/O and makes nothing durable. Others' syncs go before it. If much is on its way
    /// already it starts less, or nothing.
    ///
    /// Without a thread ([`VolumeOptions::background`](crate::VolumeOptions::background) off) the next call of
    /// [`Fs::maintain`](syncline_fs::Fs::maintain) writes.
    pub fn write_back(&self, range: impl RangeBounds<u64>) -> io::Result<Started> {
        Ok(self.shared.fs()?.files().write_back_handle(self.handle, bytes_of(range))?)
    }

    /// The handle, if it belongs to that volume.
    pub(crate) fn handle_in(&self, shared: &Arc<Shared>) -> crate::Result<HandleId> {
        match Arc::ptr_eq(&self.shared, shared) {
            true => Ok(self.handle),
            false => Err(Error::Invalid("a file of another volume")),
        }
    }

    fn sync(&self, scope: SyncScope) -> crate::Result<()> {
        let (fs, start) = (self.shared.fs()?, Instant::now());
        let result = fs.files().sync_handle(&self.opened, scope);
        self.shared.sync_latency.record(start.elapsed());
        result
    }

    /// Truncates or extends (with a hole).
    pub fn set_len(&self, size: u64) -> io::Result<()> {
        self.set_attributes(&SetAttr { size: Some(size), ..SetAttr::default() })
    }

    /// Attributes.
    pub fn metadata(&self) -> io::Result<Metadata> {
        Ok(Metadata::new(self.shared.fs()?.files().handle_attr(self.handle)?))
    }

    /// Sets the permission bits.
    pub fn set_permissions(&self, mode: u32) -> io::Result<()> {
        self.set_attributes(&SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    /// Sets the times that are given.
    pub fn set_times(&self, accessed: Option<SystemTime>, modified: Option<SystemTime>) -> io::Result<()> {
        let at = |time: Option<SystemTime>| time.map(|time| SetTime::At(from_system_time(time)));
        self.set_attributes(&SetAttr { accessed: at(accessed), modified: at(modified), ..SetAttr::default() })
    }

    /// Changes attributes.
    pub fn set_attributes(&self, set: &SetAttr) -> io::Result<()> {
        let shared = &self.shared;
        let number = shared.fs()?.files().handle_inode(self.handle)?;
        shared.fs()?.attributes().setattr(&shared.context, number, set, Some(self.handle))?;
        Ok(())
    }

    /// Closes the file and tells what dropping it would not: an error of writing back content that replaces what was
    /// truncated (C3), or of removing a file without a name. It is closed all the same. It makes nothing durable.
    ///
    /// ```
    /// let volume = syncline::Volume::create_in_memory(64 << 20)?;
    /// let file = volume.create_file("file")?;
    /// volume.remove_file("file")?;
    /// file.close()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn close(mut self) -> io::Result<()> {
        let released = self.shared.fs()?.files().release(self.handle);
        self.released = true;
        Ok(released?)
    }

    /// Allocates space for a range, so that writes to it do not run out of space; the file grows if need be.
    pub fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fallocate(FallocateMode::Allocate { keep_size: false }, offset, len)
    }

    /// Gives a range's space back; it reads as zeros. The size stays.
    pub fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fallocate(FallocateMode::PunchHole, offset, len)
    }

    /// Any form of `fallocate`.
    pub fn fallocate(&self, mode: FallocateMode, offset: u64, len: u64) -> io::Result<()> {
        let shared = &self.shared;
        Ok(shared.fs()?.files().fallocate(&shared.context, self.handle, mode, offset, len)?)
    }

    /// Offset of the next data at or behind `offset`; `None` if only a hole follows.
    pub fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.seek_what(offset, SeekWhat::Data)
    }

    /// Offset of the next hole at or behind `offset` (the end of the file is one); `None` beyond the end.
    pub fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.seek_what(offset, SeekWhat::Hole)
    }

    fn seek_what(&self, offset: u64, what: SeekWhat) -> io::Result<Option<u64>> {
        match self.shared.fs()?.files().seek(self.handle, offset, what) {
            Ok(offset) => Ok(Some(offset)),
            Err(Error::NoSuchDevice) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// A range without an end reaches to the end of the file.
fn bytes_of(range: impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

impl Read for &File {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.shared.fs()?;
        let mut position = self.position.lock();
        let count = self.read_at(into, *position)?;
        *position += count as u64;
        Ok(count)
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.shared.fs()?;
        let mut position = self.position.lock();
        let (at, count) = self.put(data, *position)?;
        *position = at + count as u64;
        Ok(count)
    }

    /// Nothing is buffered in the handle: returns at once. Use [`File::sync_data`] for durability.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.shared.fs()?;
        let mut position = self.position.lock();
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.len().checked_add_signed(by),
        };
        let target = target.filter(|&target| target <= i64::MAX as u64);
        *position = target.ok_or(Error::Invalid("a position before the start or beyond the largest file"))?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A forked child has nothing to release: the file is its parent's.
        let Ok(fs) = self.shared.fs() else { return };
        if self.released {
            return;
        }
        match fs.files().release(self.handle) {
            // After `Volume::close` there is nothing left to release.
            Ok(()) | Err(Error::BadHandle) => {}
            Err(error) => tracing::warn!(%error, "closing a file failed"),
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("handle", &self.handle).field("flags", &self.flags).finish()
    }
}
