//! The schedule of a volume's snapshots.

use crate::abi::{Out, syncline_volume, text};
use crate::error::{Failure, Result, call};
use crate::volume::on_volume;
use libc::c_int;
use std::ffi::c_char;
use syncline::Schedule;

/// `SYNCLINE_SCHEDULE_BYTES`.
const TEXT_BYTES: usize = 384;

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_schedule(
    volume: *mut syncline_volume,
    into: *mut c_char,
) -> c_int {
    call("syncline_snapshot_schedule", || {
        let out = Out::new(into.cast::<[c_char; TEXT_BYTES]>(), "where the schedule goes")?;
        let Some(schedule) = on_volume(volume, |volume| Ok(volume.schedule()?))? else { return Ok(0) };
        let mut told = [0; TEXT_BYTES];
        // It has at most 320 bytes; the last place stays NUL.
        for (to, from) in told[..TEXT_BYTES - 1].iter_mut().zip(schedule.to_string().as_bytes()) {
            *to = *from as c_char;
        }
        // SAFETY: the caller's promise: there is room for as many bytes.
        unsafe { out.put(told) };
        Ok(1)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_set_schedule(
    volume: *mut syncline_volume,
    words: *const c_char,
) -> c_int {
    call("syncline_snapshot_set_schedule", || {
        let schedule = match words.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { read(words)? }),
        };
        on_volume(volume, |volume| Ok(volume.set_schedule(schedule.as_ref())?))?;
        Ok(0)
    })
}

/// # Safety
/// `words` is a string.
unsafe fn read(words: *const c_char) -> Result<Schedule> {
    // SAFETY: the caller's promise.
    let words = unsafe { text(words, TEXT_BYTES - 1, "the schedule")? };
    Schedule::decode(words)
        .map_err(|_| Failure::invalid("the text is no schedule; it is like \"hourly=24 daily=7\""))
}
