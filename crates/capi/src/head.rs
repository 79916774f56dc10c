//! Heads of a volume.

use crate::abi::{Out, out_handle, syncline_head_info, syncline_volume};
use crate::error::{Failure, call};
use crate::handles::{self, Object, WholeVolume};
use crate::opened::OpenVolume;
use crate::snapshot::{fill_name, name, time_of};
use crate::volume::on_volume;
use libc::c_int;
use std::ffi::c_char;
use syncline::{HeadInfo, Volume};

/// The head is shown when nobody names one.
const DEFAULT: u32 = 1;

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_head_create(
    volume: *mut syncline_volume,
    snapshot: *const c_char,
    called: *const c_char,
) -> c_int {
    call("syncline_head_create", || {
        // SAFETY: the caller's promise.
        let (snapshot, called) = unsafe { (name(snapshot)?, name(called)?) };
        on_volume(volume, |volume| Ok(volume.clone_snapshot(snapshot, called)?))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_head_delete(volume: *mut syncline_volume, called: *const c_char) -> c_int {
    call("syncline_head_delete", || {
        // SAFETY: the caller's promise.
        let called = unsafe { name(called)? };
        on_volume(volume, |volume| Ok(volume.delete_head(called)?))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_head_next(
    volume: *mut syncline_volume,
    head: *mut syncline_head_info,
) -> c_int {
    call("syncline_head_next", || {
        let out = Out::new(head, "where the head goes")?;
        // SAFETY: the caller's promise: it is filled, by zeros or by the last call.
        let after = unsafe { head.read_unaligned() }.number;
        let next = on_volume(volume, |volume| {
            let heads = volume.heads()?;
            Ok(heads.into_iter().find(|head| head.number > after))
        })?;
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
pub unsafe extern "C" fn syncline_head_open(
    volume: *mut syncline_volume,
    called: *const c_char,
    head: *mut *mut syncline_volume,
) -> c_int {
    call("syncline_head_open", || {
        // SAFETY: the caller's promise.
        let (out, called) = unsafe { (out_handle(head, "where the head's volume goes")?, name(called)?) };
        let opened: Volume = on_volume(volume, |volume| Ok(volume.head(called)?))?;
        let handle = handles::insert::<WholeVolume, _>(&OpenVolume::new(opened), Object::Volume)?;
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
pub unsafe extern "C" fn syncline_snapshot_rollback(
    volume: *mut syncline_volume,
    to: *const c_char,
    keep: *const c_char,
) -> c_int {
    call("syncline_snapshot_rollback", || {
        // SAFETY: the caller's promise.
        let (to, keep) = unsafe { (name(to)?, if keep.is_null() { None } else { Some(name(keep)?) }) };
        let opened =
            handles::take_volume(volume.cast_const(), |opened| match opened.notifier().is_current() {
                true => Err(Failure::new(libc::EDEADLK, "a callback cannot close the volume that called it")),
                false => Ok(()),
            })?;
        handles::take_all_of(&opened);
        opened.end(|volume| Ok(volume.rollback(to, keep)?))?;
        Ok(0)
    })
}

fn told(head: &HeadInfo) -> syncline_head_info {
    let mut told = syncline_head_info {
        number: head.number,
        flags: if head.is_default { DEFAULT } else { 0 },
        made: time_of(head.made),
        uuid: head.uuid,
        name: [0; 256],
        parent: [0; 256],
    };
    fill_name(&mut told.name, &head.name);
    fill_name(&mut told.parent, head.parent.as_deref().unwrap_or_default());
    told
}
