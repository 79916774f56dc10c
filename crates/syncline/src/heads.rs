//! Heads of a volume: writable branches.

use crate::snapshot::system_time;
use crate::{Error, Volume};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// A head of a volume: what it is, not what is in it ([`Volume::head`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadInfo {
    /// 1 to 255 bytes, without `/` and NUL.
    pub name: String,
    /// Of this head alone; zeros of a volume's first.
    pub uuid: [u8; 16],
    /// When it was made; 1970 for a volume's first.
    pub made: SystemTime,
    /// Of a head that was made later it is greater.
    pub number: u32,
    /// It is what a volume shows when nobody names a head.
    pub is_default: bool,
    /// The newest snapshot of it, or the one that it was made of, if that has a name.
    pub parent: Option<String>,
}

impl From<syncline_fs::HeadInfo> for HeadInfo {
    fn from(info: syncline_fs::HeadInfo) -> HeadInfo {
        HeadInfo {
            name: info.name,
            uuid: info.uuid,
            made: system_time(info.made),
            number: info.tree,
            is_default: info.is_default,
            parent: info.parent,
        }
    }
}

/// Heads: branches of a snapshot that go on on their own, several of them open at the same time (C12). Each has syncs
/// and snapshots of its own. Heads and snapshots have different names. The volume has version 2 of the format.
impl Volume {
    /// Makes a head that begins as the snapshot is. It is durable when this has returned, and costs one write and one
    /// flush, whatever the snapshot holds. (Of a snapshot that was made with
    /// [`Volume::snapshot_committed`] it may be up to 1,024 pages more.)
    ///
    /// Errors: `NotFound`, there is no such snapshot; `AlreadyExists`; `InvalidInput` for what is no name;
    /// `StorageFull` if too little would be left for the volume to go on.
    ///
    /// ```
    /// use syncline::{MkfsOptions, Volume, VolumeOptions};
    ///
    /// let options = MkfsOptions::default();
    /// let volume = VolumeOptions::new().create_in_memory(64 << 20, &options)?;
    /// volume.write("notes", "first")?;
    /// volume.snapshot("before")?;
    /// volume.clone_snapshot("before", "attempt")?;
    /// let attempt = volume.head("attempt")?;
    /// attempt.write("notes", "an attempt")?;
    /// attempt.sync_all()?;
    /// assert_eq!(volume.read("notes")?, b"first");
    /// attempt.close()?;
    /// volume.delete_head("attempt")?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn clone_snapshot(&self, snapshot: &str, head: &str) -> io::Result<HeadInfo> {
        let shared = self.whole()?;
        Ok(shared.fs()?.heads().make(snapshot, head, &*shared.entropy)?.into())
    }

    /// The heads, in the order in which they were made; none on a volume of version 1.
    pub fn heads(&self) -> io::Result<Vec<HeadInfo>> {
        Ok(self.whole()?.fs()?.heads().list().into_iter().map(HeadInfo::from).collect())
    }

    /// A head as a volume of its own, beside this one. Whoever has it open already shares it. It is open until it is
    /// dropped with all its files, or closed; what is un-synced then is written in the background, as long as any
    /// volume of these is open.
    ///
    /// Errors: `NotFound`; `ResourceBusy` for the head that the volume was opened with.
    pub fn head(&self, name: &str) -> io::Result<Volume> {
        let whole = self.whole()?;
        Volume::beside(whole.fs()?.heads().open(name)?, whole)
    }

    /// Deletes a head that nobody has open, for good when this has returned. What is un-synced of it is gone. Its space
    /// comes back in the background.
    ///
    /// Errors: `NotFound`; `ResourceBusy` if it is open, or is the one that is shown when nobody names one.
    pub fn delete_head(&self, name: &str) -> io::Result<()> {
        Ok(self.whole()?.fs()?.heads().delete(name)?)
    }

    /// Takes the head that the volume was opened with back to a snapshot, and closes the volume. With `keep` what the
    /// head shows now, with all data of writes that have returned, stays as a snapshot of that name; otherwise it is
    /// gone. Snapshots and other heads stay as they are. It is one batch: after a crash the head is the old one or the
    /// new one, and it is the new one when this has returned `Ok`.
    ///
    /// Errors: `NotFound`, there is no such snapshot; `AlreadyExists`; `InvalidInput`; `StorageFull`; `ResourceBusy`
    /// while a file is open. The volume is closed then as well, and is as it was. `InvalidInput` also for a volume from
    /// [`Volume::head`]: open the volume with [`VolumeOptions::head`](crate::VolumeOptions::head) for that.
    pub fn rollback(self, to: &str, keep: Option<&str>) -> io::Result<()> {
        let shared = self.shared();
        if !Arc::ptr_eq(self.whole()?, shared) {
            return Err(
                Error::Invalid("only the head that a volume was opened with can be rolled back").into()
            );
        }
        let fs = self.stop_threads()?;
        let rolled = fs.heads().roll_back(to, keep, &*shared.entropy);
        let closed = fs.close();
        Ok(rolled.and(closed)?)
    }
}
