//! Bytes that need not survive: rollback journals, super-journals, temporary databases.
//!
//! Held in memory up to a bound, then in a file of the volume that has no name, so that neither memory nor a crash
//! has anything left of it. It is never synced. Without a volume (a temporary database of a process that has none
//! open) it stays in memory. SQLite does not say which database a temporary file serves, so that it may be on another
//! one's volume (`volumes::for_temporary`): where that does not take it any more (it has failed, or is full), it goes
//! on in memory.

use crate::error::{Result, VfsError};
use crate::volumes::OpenVolume;
use std::sync::{Arc, Weak};
use syncline::{Context, Error, SetAttr};
use syncline_fs::{HandleId, ObjectNo, OpenFlags};

/// Bytes held in memory.
const MEMORY_BYTES_MAX: u64 = 1 << 20;
/// Memory kept for the next content: a journal of a few pages comes with every commit.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// A file without a name on a volume. It does not keep the volume open: whoever needs it to outlive the volume's
/// databases does that.
struct Nameless {
    volume: Weak<OpenVolume>,
    handle: HandleId,
    object: ObjectNo,
}

impl Nameless {
    fn create(volume: &Weak<OpenVolume>) -> syncline::Result<Nameless> {
        let open = volume.upgrade().ok_or(syncline::Error::BadHandle)?;
        let root = ObjectNo::ROOT_DIR;
        let (entry, handle) =
            open.fs().names().tmpfile(&Context::root(), root, 0o600, OpenFlags::READ_WRITE, true)?;
        Ok(Nameless { volume: volume.clone(), handle, object: entry.attr.inode })
    }

    fn open_volume(&self) -> syncline::Result<Arc<OpenVolume>> {
        self.volume.upgrade().ok_or(syncline::Error::BadHandle)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> syncline::Result<usize> {
        self.open_volume()?.fs().files().read(self.handle, offset, into)
    }

    fn write(&self, mut offset: u64, mut data: &[u8]) -> syncline::Result<()> {
        let volume = self.open_volume()?;
        while !data.is_empty() {
            let (_, count) = volume.fs().files().write(&Context::root(), self.handle, offset, data)?;
            offset += count as u64;
            data = &data[count..];
        }
        Ok(())
    }

    fn truncate(&self, size: u64) -> syncline::Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.open_volume()?.fs().attributes().setattr(
            &Context::root(),
            self.object,
            &set,
            Some(self.handle),
        )?;
        Ok(())
    }
}

impl Drop for Nameless {
    fn drop(&mut self) {
        if let Some(volume) = self.volume.upgrade()
            && let Err(error) = volume.fs().files().release(self.handle)
            // That the volume has stopped is told by whoever needs it.
            && !matches!(error, Error::ReadOnly | Error::Store(_))
        {
            // The inode is an orphan then, and goes when the volume is opened the next time.
            crate::tell(&VfsError::Engine { name: "a temporary file".to_owned(), source: error });
        }
    }
}

/// A file that is not kept.
pub(crate) struct Scratch {
    /// Where to spill to.
    volume: Option<Weak<OpenVolume>>,
    /// Whether it goes on in memory where the volume does not take it.
    or_memory: bool,
    /// As long as `size` while nothing is spilled.
    memory: Vec<u8>,
    spilled: Option<Nameless>,
    size: u64,
}

impl Scratch {
    pub(crate) fn new(volume: Option<Weak<OpenVolume>>) -> Scratch {
        Scratch { volume, or_memory: false, memory: Vec::new(), spilled: None, size: 0 }
    }

    /// For what has nothing to do with the volume.
    pub(crate) fn anywhere(volume: Option<Weak<OpenVolume>>) -> Scratch {
        Scratch { or_memory: true, ..Scratch::new(volume) }
    }

    /// With the memory of one that was given up.
    pub(crate) fn reusing(volume: Option<Weak<OpenVolume>>, mut spare: Vec<u8>) -> Scratch {
        spare.clear();
        Scratch { memory: spare, ..Scratch::new(volume) }
    }

    /// Gives it up; what memory is worth keeping is left.
    pub(crate) fn into_spare(self) -> Vec<u8> {
        if self.memory.capacity() <= SPARE_BYTES_MAX { self.memory } else { Vec::new() }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Spills nowhere from here on; false if it has.
    pub(crate) fn stays_in_memory(&mut self) -> bool {
        self.volume = None;
        self.spilled.is_none()
    }

    /// Whether it has outgrown memory.
    #[cfg(test)]
    pub(crate) fn is_spilled(&self) -> bool {
        self.spilled.is_some()
    }

    /// Reads; fewer bytes than asked for only at the end.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let count = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let into = &mut into[..count];
        if let Some(file) = &self.spilled {
            return file.read(offset, into).map_err(VfsError::engine(b"a temporary file"));
        }
        if count > 0 {
            into.copy_from_slice(&self.memory[offset as usize..offset as usize + count]);
        }
        Ok(count)
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        if self.spilled.is_none() && end > MEMORY_BYTES_MAX && self.volume.is_some() {
            match self.spill() {
                Err(_) if self.or_memory => self.volume = None,
                result => result?,
            }
        }
        if let Some(file) = &self.spilled {
            match file.write(offset, data).map_err(VfsError::engine(b"a temporary file")) {
                Err(_) if self.or_memory => self.recall()?,
                result => {
                    self.size = self.size.max(end);
                    return result;
                }
            }
        }
        let at = offset as usize;
        if at > self.memory.len() {
            self.memory.resize(at, 0);
        }
        // Journals are appended to: what is new need not be zeroed first.
        let within = data.len().min(self.memory.len() - at);
        self.memory[at..at + within].copy_from_slice(&data[..within]);
        self.memory.extend_from_slice(&data[within..]);
        self.size = self.size.max(end);
        Ok(())
    }

    pub(crate) fn truncate(&mut self, size: u64) -> Result<()> {
        if size == 0 {
            self.spilled = None;
            self.memory.clear();
            self.memory.shrink_to(SPARE_BYTES_MAX);
        } else if let Some(file) = &self.spilled {
            match file.truncate(size).map_err(VfsError::engine(b"a temporary file")) {
                Err(_) if self.or_memory => {
                    self.recall()?;
                    return self.truncate(size);
                }
                result => result?,
            }
        } else if size > self.size {
            let zeros = vec![0; usize::try_from(size - self.size).unwrap_or(usize::MAX)];
            return self.write(self.size, &zeros);
        } else {
            self.memory.truncate(size as usize);
        }
        self.size = size;
        Ok(())
    }

    /// Back to memory, for good.
    fn recall(&mut self) -> Result<()> {
        let mut memory = vec![0; usize::try_from(self.size).unwrap_or(usize::MAX)];
        self.read(0, &mut memory)?;
        (self.memory, self.spilled, self.volume) = (memory, None, None);
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        let Some(volume) = &self.volume else { return Ok(()) };
        let file = Nameless::create(volume).map_err(VfsError::engine(b"a temporary file"))?;
        file.write(0, &self.memory).map_err(VfsError::engine(b"a temporary file"))?;
        self.memory = Vec::new();
        self.spilled = Some(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_spilled_content_read_the_same() {
        let volume = crate::volumes::tests::in_memory("scratch");
        for volume in [None, Some(volume.downgrade())] {
            let spills = volume.is_some();
            let mut scratch = Scratch::new(volume);
            let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
            for (index, part) in content.chunks(10_007).enumerate() {
                scratch.write(index as u64 * 10_007, part).expect("write");
            }
            assert_eq!(scratch.is_spilled(), spills);
            scratch.truncate(2_500_000).expect("truncate");
            scratch.write(2_600_000, b"end").expect("write");
            let mut read = vec![1; 2_600_100];
            assert_eq!(scratch.read(0, &mut read).expect("read"), 2_600_003);
            assert!(read[..2_500_000] == content[..2_500_000]);
            assert!(read[2_500_000..2_600_000].iter().all(|&byte| byte == 0), "grown parts are zeros");
            assert_eq!(&read[2_600_000..2_600_003], b"end");
            assert_eq!(scratch.read(9_000_000, &mut read).expect("read"), 0);
            scratch.truncate(0).expect("truncate");
            assert!(!scratch.is_spilled());
            assert_eq!(scratch.size(), 0);
        }
    }

    #[test]
    fn what_serves_another_database_goes_on_in_memory_when_the_volume_fails() {
        for (name, fails_first) in [("failing", true), ("failing later", false)] {
            let volume = crate::volumes::tests::in_memory(name);
            let mut scratch = Scratch::anywhere(Some(volume.downgrade()));
            let content: Vec<u8> = (0..1_500_000_u32).map(|at| (at / 11) as u8).collect();
            if fails_first {
                volume.fs().shut_down();
            }
            scratch.write(0, &content).expect("write");
            assert_ne!(scratch.is_spilled(), fails_first);
            volume.fs().shut_down();
            scratch.write(content.len() as u64, b"end").expect("write");
            scratch.truncate(content.len() as u64 + 2).expect("truncate");
            assert!(!scratch.is_spilled());
            let mut read = vec![0; content.len() + 100];
            assert_eq!(scratch.read(0, &mut read).expect("read"), content.len() + 2);
            assert!(read[..content.len()] == content[..]);
            assert_eq!(&read[content.len()..content.len() + 3], b"en\0");
            // Closing it fails, and there is no SQLite here to be told.
            std::mem::forget(volume);
        }
    }
}
