//! What Python passes and gets, where it is not a plain number or text.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::Duration;
use syncline::{AccessTimes, Attr, MkfsOptions, SyncScope, Timestamp, VolumeOptions};

const NANOSECONDS: i128 = 1_000_000_000;

/// Attributes: mode, inode, links, owner, group, size, times of access, modification, change and creation in
/// nanoseconds since 1970, blocks of 512 bytes, device number.
pub(crate) type Stat = (u32, u64, u32, u32, u32, u64, i128, i128, i128, i128, u64, u64);

pub(crate) fn stat_of(attr: &Attr) -> Stat {
    let time = |at: Timestamp| i128::from(at.seconds) * NANOSECONDS + i128::from(at.nanoseconds);
    (
        attr.mode,
        attr.inode.0,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.size,
        time(attr.accessed),
        time(attr.modified),
        time(attr.changed),
        time(attr.created),
        attr.blocks,
        attr.rdev,
    )
}

/// A time from nanoseconds since 1970. Errors: `ValueError` beyond what 64 bits of seconds hold.
pub(crate) fn timestamp(nanoseconds: i128) -> PyResult<Timestamp> {
    let seconds = i64::try_from(nanoseconds.div_euclid(NANOSECONDS))
        .map_err(|_| PyValueError::new_err("the time is beyond what a volume can hold"))?;
    Ok(Timestamp { seconds, nanoseconds: nanoseconds.rem_euclid(NANOSECONDS) as u32 })
}

pub(crate) fn scope(data_only: bool) -> SyncScope {
    if data_only { SyncScope::Data } else { SyncScope::All }
}

/// A length of time in seconds. Errors: `ValueError` if it is negative, too long or no number.
pub(crate) fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{seconds} is no length of time in seconds")))
}

/// How a volume is opened; what is not given is as the library has it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct OpenArguments {
    read_only: bool,
    commit_interval: Option<f64>,
    memory_bytes_max: Option<usize>,
    access_times: Option<String>,
    wait: Option<f64>,
    head: Option<String>,
}

impl OpenArguments {
    /// Errors: `ValueError` for a time that is none, or a word that means nothing.
    pub(crate) fn options(&self) -> PyResult<VolumeOptions> {
        let mut options = VolumeOptions::new().read_only(self.read_only);
        if let Some(interval) = self.commit_interval {
            options = options.commit_interval(seconds(interval)?);
        }
        if let Some(bytes) = self.memory_bytes_max {
            options = options.memory_bytes_max(bytes);
        }
        if let Some(wait) = self.wait {
            options = options.wait_for_lock(seconds(wait)?);
        }
        if let Some(head) = &self.head {
            options = options.head(head);
        }
        match self.access_times.as_deref() {
            None => Ok(options),
            Some("never") => Ok(options.access_times(AccessTimes::Never)),
            Some("relative") => Ok(options.access_times(AccessTimes::Relative)),
            Some("always") => Ok(options.access_times(AccessTimes::Always)),
            Some(other) => Err(PyValueError::new_err(format!(
                "access_times is \"never\", \"relative\" or \"always\", not {other:?}"
            ))),
        }
    }
}

/// How a volume is made; what is not given is as the library has it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct MakeArguments {
    label: String,
    journal_size: Option<u64>,
    format: Option<u32>,
}

impl MakeArguments {
    pub(crate) fn options(self) -> MkfsOptions {
        let options = MkfsOptions::default().label(self.label).journal_bytes(self.journal_size);
        match self.format {
            Some(format) => options.format(format),
            None => options,
        }
    }
}
