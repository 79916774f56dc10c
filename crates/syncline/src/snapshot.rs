//! Snapshots of a volume.

use crate::{Error, Timestamp, Volume};
use std::io;
use std::time::{Duration, SystemTime};
use syncline_fs::{SnapshotData, SnapshotKind};

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
    /// The schedule has made it, and deletes it ([`Volume::set_schedule`]).
    pub scheduled: bool,
    /// From then on it is deleted in the background.
    pub expires: Option<SystemTime>,
}

impl From<syncline_fs::SnapshotInfo> for Snapshot {
    fn from(info: syncline_fs::SnapshotInfo) -> Snapshot {
        let syncline_fs::SnapshotInfo { name, uuid, made, tree, is_held, is_scheduled, expires, .. } = info;
        let expires = i64::try_from(expires).ok().filter(|seconds| *seconds != 0);
        let expires = expires.map(|seconds| system_time(Timestamp { seconds, nanoseconds: 0 }));
        Snapshot {
            name,
            uuid,
            made: system_time(made),
            number: tree,
            held: is_held,
            scheduled: is_scheduled,
            expires,
        }
    }
}

/// How a snapshot is made ([`Volume::snapshot_with`]).
#[derive(Debug, Clone, Default)]
pub struct SnapshotOptions {
    committed: bool,
    held: bool,
    expires: Option<SystemTime>,
}

impl SnapshotOptions {
    /// As [`Volume::snapshot`] makes it.
    pub fn new() -> SnapshotOptions {
        SnapshotOptions::default()
    }

    /// Of what is committed, as [`Volume::snapshot_committed`] makes it.
    pub fn committed(mut self, committed: bool) -> SnapshotOptions {
        self.committed = committed;
        self
    }

    /// Held from the beginning ([`Volume::hold_snapshot`]).
    pub fn held(mut self, held: bool) -> SnapshotOptions {
        self.held = held;
        self
    }

    /// From then on it is deleted in the background, to the second, while the volume is open for writing. One that is
    /// held, or from which several trees descend, stays until that has ended.
    pub fn expires(mut self, expires: SystemTime) -> SnapshotOptions {
        self.expires = Some(expires);
        self
    }

    fn kind(&self) -> io::Result<SnapshotKind> {
        let seconds = |expires: SystemTime| {
            let since = expires.duration_since(SystemTime::UNIX_EPOCH).ok();
            let seconds = since.map(|since| since.as_secs()).filter(|seconds| *seconds > 0);
            seconds.filter(|seconds| i64::try_from(*seconds).is_ok()).ok_or_else(|| {
                io::Error::from(Error::Invalid("a snapshot expires between 1970 and the end of time"))
            })
        };
        let data = if self.committed { SnapshotData::Committed } else { SnapshotData::Written };
        let expires = self.expires.map(seconds).transpose()?.unwrap_or(0);
        Ok(SnapshotKind { data, expires, is_held: self.held })
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
    /// let options = MkfsOptions::default();
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

    /// Makes a snapshot as the options say. Errors: as [`Volume::snapshot`].
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use syncline::{MkfsOptions, SnapshotOptions, VolumeOptions};
    ///
    /// let options = MkfsOptions::default();
    /// let volume = VolumeOptions::new().create_in_memory(64 << 20, &options)?;
    /// let in_an_hour = SystemTime::now() + Duration::from_secs(3600);
    /// let made = volume.snapshot_with("before", &SnapshotOptions::new().expires(in_an_hour))?;
    /// assert!(made.expires.is_some() && !made.held);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn snapshot_with(&self, name: &str, options: &SnapshotOptions) -> io::Result<Snapshot> {
        let shared = self.shared();
        Ok(shared.fs()?.snapshot(name, options.kind()?, &*shared.entropy)?.into())
    }

    /// The snapshots, in the order in which they were made; none on a volume of version 1.
    pub fn snapshots(&self) -> io::Result<Vec<Snapshot>> {
        Ok(self.shared().fs()?.snapshots().into_iter().map(Snapshot::from).collect())
    }

    /// The snapshot that was made next behind a number ([`Snapshot::number`]); behind 0 the first.
    pub fn snapshot_behind(&self, number: u32) -> io::Result<Option<Snapshot>> {
        Ok(self.shared().fs()?.snapshot_names().behind(number).map(Snapshot::from))
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
    /// let options = MkfsOptions::default();
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
    /// let options = MkfsOptions::default();
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

    /// Waits until all space of deleted snapshots that nobody reads is free. What the volume's own changes have freed
    /// meanwhile is not waited for: [`Volume::checkpoint`] brings that.
    pub fn reclaim(&self) -> io::Result<()> {
        Ok(self.shared().fs()?.reclaim()?)
    }
}
