//! Bytes that need not survive: rollback journals, super-journals, temporary databases.
//!
//! Held in memory up to a bound, then in a file of the volume that has no name, so that neither memory nor a crash has
//! anything left of it. It is never synced. Without a volume (a temporary database of a process that has none open) it stays
//! in memory.

use crate::error::{Result, VfsError};
use crate::volumes::OpenVolume;
use std::sync::{Arc, Weak};
use syncline::{Context, HandleId, ObjectNo, OpenFlags, SetAttr};

/// Bytes held in memory.
const MEMORY_BYTES_MAX: u64 = 1 << 20;
/// Bytes allocated at a time.
const CHUNK_BYTES: usize = 64 << 10;

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
            open.fs().tmpfile(&Context::root(), root, 0o600, OpenFlags::READ_WRITE, true)?;
        Ok(Nameless { volume: volume.clone(), handle, object: entry.attr.inode })
    }

    fn open_volume(&self) -> syncline::Result<Arc<OpenVolume>> {
        self.volume.upgrade().ok_or(syncline::Error::BadHandle)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> syncline::Result<usize> {
        self.open_volume()?.fs().read(self.handle, offset, into)
    }

    fn write(&self, mut offset: u64, mut data: &[u8]) -> syncline::Result<()> {
        let volume = self.open_volume()?;
        while !data.is_empty() {
            let (_, count) = volume.fs().write(&Context::root(), self.handle, offset, data)?;
            offset += count as u64;
            data = &data[count..];
        }
        Ok(())
    }

    fn truncate(&self, size: u64) -> syncline::Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.open_volume()?.fs().setattr(&Context::root(), self.object, &set, Some(self.handle))?;
        Ok(())
    }
}

impl Drop for Nameless {
    fn drop(&mut self) {
        if let Some(volume) = self.volume.upgrade()
            && let Err(error) = volume.fs().release(self.handle)
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
    memory: Vec<Box<[u8]>>,
    spilled: Option<Nameless>,
    size: u64,
}

impl Scratch {
    pub(crate) fn new(volume: Option<Weak<OpenVolume>>) -> Scratch {
        Scratch { volume, memory: Vec::new(), spilled: None, size: 0 }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
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
        let mut done = 0;
        while done < count {
            let at = offset as usize + done;
            let (chunk, within) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
            let part = (count - done).min(CHUNK_BYTES - within);
            into[done..done + part].copy_from_slice(&self.memory[chunk][within..within + part]);
            done += part;
        }
        Ok(count)
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        if self.spilled.is_none() && end > MEMORY_BYTES_MAX && self.volume.is_some() {
            self.spill()?;
        }
        if let Some(file) = &self.spilled {
            file.write(offset, data).map_err(VfsError::engine(b"a temporary file"))?;
            self.size = self.size.max(end);
            return Ok(());
        }
        while (self.memory.len() * CHUNK_BYTES) < end as usize {
            self.memory.push(vec![0; CHUNK_BYTES].into_boxed_slice());
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset as usize + done;
            let (chunk, within) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
            let part = (data.len() - done).min(CHUNK_BYTES - within);
            self.memory[chunk][within..within + part].copy_from_slice(&data[done..done + part]);
            done += part;
        }
        self.size = self.size.max(end);
        Ok(())
    }

    pub(crate) fn truncate(&mut self, size: u64) -> Result<()> {
        if size == 0 {
            self.spilled = None;
            self.memory.clear();
        } else if let Some(file) = &self.spilled {
            file.truncate(size).map_err(VfsError::engine(b"a temporary file"))?;
        } else if size > self.size {
            let zeros = vec![0; usize::try_from(size - self.size).unwrap_or(usize::MAX)];
            return self.write(self.size, &zeros);
        } else {
            self.memory.truncate((size as usize).div_ceil(CHUNK_BYTES));
            if let Some(last) = self.memory.last_mut() {
                // What lies behind the end reads as zeros when the file grows again.
                let used = (size as usize - 1) % CHUNK_BYTES + 1;
                last[used..].fill(0);
            }
        }
        self.size = size;
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        let Some(volume) = &self.volume else { return Ok(()) };
        let file = Nameless::create(volume).map_err(VfsError::engine(b"a temporary file"))?;
        for (index, chunk) in self.memory.iter().enumerate() {
            let offset = (index * CHUNK_BYTES) as u64;
            let used =
                usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            file.write(offset, &chunk[..used]).map_err(VfsError::engine(b"a temporary file"))?;
        }
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
}
