//! Snapshots of a volume.

use crate::abi::{Out, out_handle, syncline_snapshot_info, syncline_volume, text};
use crate::error::{Failure, Result, call};
use crate::handles::{self, Object, WholeVolume};
use crate::opened::OpenVolume;
use crate::volume::on_volume;
use libc::c_int;
use std::ffi::c_char;
use std::time::SystemTime;
use syncline::{Snapshot, Volume};

/// Longest name, and one byte more, for the engine to refuse it.
const NAME_BYTES_MAX: usize = 256;

/// `SYNCLINE_SNAPSHOT_HELD`.
const HELD: u32 = 1;
/// `SYNCLINE_SNAPSHOT_SCHEDULED`.
const SCHEDULED: u32 = 4;

/// # Safety
/// `name` is NULL or a string.
pub(crate) unsafe fn name<'a>(name: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name, NAME_BYTES_MAX, "the snapshot's name")? };
    std::str::from_utf8(name).map_err(|_| Failure::invalid("the snapshot's name is not UTF-8"))
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_create(
    volume: *mut syncline_volume,
    called: *const c_char,
) -> c_int {
    call("syncline_snapshot_create", || {
        // SAFETY: the caller's promise.
        let called = unsafe { name(called)? };
        on_volume(volume, |volume| Ok(volume.snapshot(called)?))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_delete(
    volume: *mut syncline_volume,
    called: *const c_char,
) -> c_int {
    call("syncline_snapshot_delete", || {
        // SAFETY: the caller's promise.
        let called = unsafe { name(called)? };
        on_volume(volume, |volume| Ok(volume.delete_snapshot(called)?))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_rename(
    volume: *mut syncline_volume,
    called: *const c_char,
    to: *const c_char,
) -> c_int {
    call("syncline_snapshot_rename", || {
        // SAFETY: the caller's promise.
        let (called, to) = unsafe { (name(called)?, name(to)?) };
        on_volume(volume, |volume| Ok(volume.rename_snapshot(called, to)?))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_next(
    volume: *mut syncline_volume,
    snapshot: *mut syncline_snapshot_info,
) -> c_int {
    call("syncline_snapshot_next", || {
        let out = Out::new(snapshot, "where the snapshot goes")?;
        // SAFETY: the caller's promise: it is filled, by zeros or by the last call.
        let after = unsafe { snapshot.read_unaligned() }.number;
        let next = on_volume(volume, |volume| Ok(volume.snapshot_behind(after)?))?;
        let Some(next) = next else { return Ok(0) };
        // SAFETY: as above.
        unsafe { out.put(told(&next)) };
        Ok(1)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_open(
    volume: *mut syncline_volume,
    called: *const c_char,
    snapshot: *mut *mut syncline_volume,
) -> c_int {
    call("syncline_snapshot_open", || {
        // SAFETY: the caller's promise.
        let (out, called) =
            unsafe { (out_handle(snapshot, "where the snapshot's volume goes")?, name(called)?) };
        let view: Volume = on_volume(volume, |volume| Ok(volume.at(called)?))?;
        let handle = handles::insert::<WholeVolume, _>(&OpenVolume::new(view), Object::Volume)?;
        // SAFETY: as above.
        unsafe { out.put(handle) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_hold(
    volume: *mut syncline_volume,
    called: *const c_char,
) -> c_int {
    call("syncline_snapshot_hold", || {
        // SAFETY: the caller's promise.
        let called = unsafe { name(called)? };
        on_volume(volume, |volume| Ok(volume.hold_snapshot(called)?))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_release(
    volume: *mut syncline_volume,
    called: *const c_char,
) -> c_int {
    call("syncline_snapshot_release", || {
        // SAFETY: the caller's promise.
        let called = unsafe { name(called)? };
        on_volume(volume, |volume| Ok(volume.release_snapshot(called)?))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_usage(
    volume: *mut syncline_volume,
    names: *const *const c_char,
    count: usize,
    bytes: *mut u64,
) -> c_int {
    call("syncline_snapshot_usage", || {
        let out = Out::new(bytes, "where the number of bytes goes")?;
        if count > 0 && names.is_null() {
            return Err(Failure::fault("the snapshots' names"));
        }
        // SAFETY: the caller's promise: so many strings.
        let called = (0..count).map(|index| unsafe { name(names.add(index).read_unaligned()) });
        let called = called.collect::<Result<Vec<&str>>>()?;
        let found = on_volume(volume, |volume| Ok(volume.snapshot_usage(&called)?))?;
        // SAFETY: as above.
        unsafe { out.put(found) };
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_snapshot_reclaim(volume: *mut syncline_volume) -> c_int {
    call("syncline_snapshot_reclaim", || {
        on_volume(volume, |volume| Ok(volume.reclaim()?))?;
        Ok(0)
    })
}

pub(crate) fn time_of(made: SystemTime) -> libc::timespec {
    let made = match made.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let borrowed = before.subsec_nanos() > 0;
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            let nanoseconds = if borrowed { 1_000_000_000 - before.subsec_nanos() } else { 0 };
            (-seconds.saturating_add(i64::from(borrowed)), nanoseconds)
        }
    };
    libc::timespec { tv_sec: made.0, tv_nsec: made.1.into() }
}

/// No name is longer than 255 bytes; the last place stays NUL.
pub(crate) fn fill_name(into: &mut [c_char; 256], name: &str) {
    for (to, from) in into[..255].iter_mut().zip(name.as_bytes()) {
        *to = *from as c_char;
    }
}

fn told(snapshot: &Snapshot) -> syncline_snapshot_info {
    let mut told = syncline_snapshot_info {
        number: snapshot.number,
        flags: (u32::from(snapshot.held) * HELD) | (u32::from(snapshot.scheduled) * SCHEDULED),
        made: time_of(snapshot.made),
        uuid: snapshot.uuid,
        name: [0; 256],
    };
    fill_name(&mut told.name, &snapshot.name);
    told
}
