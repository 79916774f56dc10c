//! Snapshots of a volume.

use crate::{Error, Timestamp, Volume};
use std::io;
use std::time::{Duration, SystemTime};
use syncline_fs::SnapshotData;

/// A snapshot of a volume: what it is, not what is in it ([`Volume::at`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// 1 to 255 bytes, without `/` and NUL.
    pub name: String,
    /// Of this snapshot alone.
    pub uuid: [u8; 16],
    /// When it was made.
    pub made: SystemTime,
    /// Of a snapshot that was made later it is greater.
    pub number: u32,
    /// It is not deleted before it is released ([`Volume::hold_snapshot`]).
    pub held: bool,
}

impl From<syncline_fs::SnapshotInfo> for Snapshot {
    fn from(info: syncline_fs::SnapshotInfo) -> Snapshot {
        let syncline_fs::SnapshotInfo { name, uuid, made, tree, is_held, .. } = info;
        Snapshot { name, uuid, made: system_time(made), number: tree, held: is_held }
    }
}

pub(crate) fn system_time(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds {
        0.. => SystemTime::UNIX_EPOCH.checked_add(seconds),
        _ => SystemTime::UNIX_EPOCH.checked_sub(seconds),
    };
    whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Snapshots: the whole volume as it was at one moment, for good (C10, C11). The volume has version 2 of the format
/// ([`MkfsOptions::format`](crate::MkfsOptions::format)).
impl Volume {
    /// Makes a snapshot of the volume as it is now: data of all writes that have returned is in it. It is durable when
    /// this has returned. Beyond the data that was dirty it costs one write and one flush.
    ///
    /// Errors: `AlreadyExists`; `InvalidInput` for what is no name; `Unsupported` on a volume of version 1;
    /// `StorageFull` if too little would be left for the volume to go on.
    ///
    /// ```
    /// use syncline::{MkfsOptions, Volume, VolumeOptions};
    ///
    /// let options = MkfsOptions::default().format(2);
    /// let volume = VolumeOptions::new().create_in_memory(64 << 20, &options)?;
    /// volume.write("notes", "first")?;
    /// volume.snapshot("before")?;
    /// volume.write("notes", "second")?;
    /// assert_eq!(volume.at("before")?.read("notes")?, b"first");
    /// volume.delete_snapshot("before")?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn snapshot(&self, name: &str) -> io::Result<Snapshot> {
        let shared = self.shared();
        Ok(shared.fs()?.snapshot(name, SnapshotData::Written, &*shared.entropy)?.into())
    }

    /// As [`Volume::snapshot`], of what is committed: every change of names and attributes, and of each file nothing
    /// older than its last sync; of other data what the background has committed. One write and one flush, whatever is
    /// dirty.
    pub fn snapshot_committed(&self, name: &str) -> io::Result<Snapshot> {
        let shared = self.shared();
        Ok(shared.fs()?.snapshot(name, SnapshotData::Committed, &*shared.entropy)?.into())
    }

    /// The snapshots, in the order in which they were made; none on a volume of version 1.
    pub fn snapshots(&self) -> io::Result<Vec<Snapshot>> {
        Ok(self.shared().fs()?.snapshots().into_iter().map(Snapshot::from).collect())
    }

    /// The snapshot that was made next behind a number ([`Snapshot::number`]); behind 0 the first.
    pub fn snapshot_behind(&self, number: u32) -> io::Result<Option<Snapshot>> {
        Ok(self.shared().fs()?.snapshot_behind(number).map(Snapshot::from))
    }

    /// A snapshot as a volume of its own that cannot be changed. While it or a file of it is open, the snapshot's space
    /// does not come back, even if it is deleted.
    ///
    /// Errors: `NotFound`.
    pub fn at(&self, name: &str) -> io::Result<Volume> {
        let view = self.shared().fs()?.at(name)?;
        Ok(Volume::over(view, self.shared()).map_err(Error::from)?)
    }

    /// Deletes a snapshot, for good when this has returned. Its space comes back in the background, what other
    /// snapshots have excepted.
    ///
    /// Errors: `NotFound`; `ResourceBusy` for one that is held.
    pub fn delete_snapshot(&self, name: &str) -> io::Result<()> {
        Ok(self.shared().fs()?.delete_snapshot(name)?)
    }

    /// Gives a snapshot another name, for good when this has returned. Errors: `NotFound`, `AlreadyExists`,
    /// `InvalidInput`.
    pub fn rename_snapshot(&self, name: &str, to: &str) -> io::Result<()> {
        Ok(self.shared().fs()?.rename_snapshot(name, to)?)
    }

    /// Holds a snapshot: to delete it is refused until it is released, also in later sessions. For good when this has
    /// returned; on one that is held already it does nothing. Errors: `NotFound`.
    ///
    /// ```
    /// use syncline::{MkfsOptions, Volume, VolumeOptions};
    ///
    /// let options = MkfsOptions::default().format(2);
    /// let volume = VolumeOptions::new().create_in_memory(64 << 20, &options)?;
    /// volume.snapshot("before")?;
    /// volume.hold_snapshot("before")?;
    /// let refused = volume.delete_snapshot("before").unwrap_err();
    /// assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy);
    /// volume.release_snapshot("before")?;
    /// volume.delete_snapshot("before")?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn hold_snapshot(&self, name: &str) -> io::Result<()> {
        Ok(self.shared().fs()?.hold_snapshot(name)?)
    }

    /// Lets a snapshot be deleted again, for good when this has returned. Errors: `NotFound`.
    pub fn release_snapshot(&self, name: &str) -> io::Result<()> {
        Ok(self.shared().fs()?.release_snapshot(name)?)
    }

    /// Bytes that would become free if these snapshots were deleted together and nobody read them. It is found by
    /// reading the nodes in which they differ from what stays, and is exact, but for the few blocks of the tables in
    /// which snapshots are named. Of a volume that others change meanwhile it is what they leave of it.
    ///
    /// Errors: `NotFound`; `ReadOnlyFilesystem` on a volume that is opened read-only and was not closed cleanly.
    ///
    /// ```
    /// use syncline::{MkfsOptions, Volume, VolumeOptions};
    ///
    /// let options = MkfsOptions::default().format(2);
    /// let volume = VolumeOptions::new().create_in_memory(64 << 20, &options)?;
    /// volume.write("notes", vec![7; 1 << 20])?;
    /// volume.snapshot("one")?;
    /// volume.snapshot("two")?;
    /// volume.remove_file("notes")?;
    /// // Either has what the other has.
    /// assert!(volume.snapshot_usage(&["one"])? < 1 << 20);
    /// assert!(volume.snapshot_usage(&["one", "two"])? >= 1 << 20);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn snapshot_usage<N: AsRef<str>>(&self, names: &[N]) -> io::Result<u64> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        Ok(self.shared().fs()?.usage(&names)?)
    }

    /// Waits until all space of deleted snapshots that nobody reads is free.
    pub fn reclaim(&self) -> io::Result<()> {
        Ok(self.shared().fs()?.reclaim()?)
    }
}
