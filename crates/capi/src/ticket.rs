//! Syncs that were started: by file and by transaction, with a ticket, a callback or an eventfd.

use crate::abi::{many, out_handle, syncline_callback, syncline_file, syncline_sync_ticket};
use crate::error::{Failure, Result, call};
use crate::file::range_of;
use crate::handles::{self, Object};
use crate::notifier::{Context, Target};
use crate::opened::OpenVolume;
use crate::volume::descriptor_of;
use libc::c_int;
use std::borrow::Borrow;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;
use syncline::{File, SyncTicket};

/// A sync that a caller has a handle of.
pub(crate) struct Started(SyncTicket);

/// Who is told: nobody, by the callback, or the eventfd.
pub(crate) fn target_of(callback: syncline_callback, context: *mut c_void) -> Option<Target> {
    callback.map(|function| Target::Call(function, Context(context)))
}

/// The eventfd is the library's own copy, so that the caller may close his. Errors: EBADF, EINVAL for one that is no
/// eventfd.
pub(crate) fn event_of(descriptor: c_int) -> Result<Option<Target>> {
    let copy = descriptor_of(descriptor)?.try_clone_to_owned()?;
    let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
    // Where /proc is not there nobody can tell.
    if link.is_ok_and(|link| !link.as_os_str().to_string_lossy().contains("eventfd")) {
        return Err(Failure::invalid(format!("descriptor {descriptor} is no eventfd")));
    }
    Ok(Some(Target::Event(copy)))
}

/// Errors: nobody would know when the sync has ended.
pub(crate) fn somebody_knows(target: &Option<Target>, ticket: *mut *mut syncline_sync_ticket) -> Result<()> {
    match ticket.is_null() && target.is_none() {
        true => Err(Failure::fault("where the ticket goes, with nobody else to be told,")),
        false => Ok(()),
    }
}

/// Starts a sync, makes a ticket for it if one is wanted, and has the target told.
///
/// # Safety
/// As for [`out_handle`].
pub(crate) unsafe fn start(
    volume: &Arc<OpenVolume>,
    target: Option<Target>,
    ticket: *mut *mut syncline_sync_ticket,
    begin: impl FnOnce() -> SyncTicket,
) -> Result<()> {
    let notifier = volume.notifier();
    let out = match ticket.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => Some(unsafe { out_handle(ticket, "where the ticket goes")? }),
    };
    let number = target.map(|target| notifier.expect(target)).transpose()?;
    let started = begin();
    let Some(out) = out else {
        number.into_iter().for_each(|number| notifier.attach(number, &started));
        return Ok(());
    };
    let handle = match handles::insert::<Started, _>(volume, Object::Ticket(Started(started))) {
        Ok(handle) => handle,
        Err(failure) => {
            number.into_iter().for_each(|number| notifier.forget(number));
            return Err(failure);
        }
    };
    // SAFETY: the caller's promise; before anybody is told, who may look for it there.
    unsafe { out.put(handle) };
    if let Some(number) = number {
        // A ticket that is gone already went with its volume, which tells who has not been told.
        let _ = handles::with(handle.cast_const(), |_, started: &Started| {
            notifier.attach(number, &started.0);
            Ok(())
        });
    }
    Ok(())
}

/// # Safety
/// As for [`start`].
unsafe fn start_of_file(
    file: *mut syncline_file,
    (at, length, flags): (i64, i64, u32),
    target: Option<Target>,
    ticket: *mut *mut syncline_sync_ticket,
) -> Result<c_int> {
    somebody_knows(&target, ticket)?;
    let (range, scope) = range_of(at, length, flags)?;
    let whole = (at, length) == (0, 0);
    handles::with(file.cast_const(), |volume, file: &File| {
        let begin = || match whole {
            true => file.sync_async(scope),
            false => file.sync_range_async(range, scope),
        };
        // SAFETY: the caller's promise.
        unsafe { start(volume, target, ticket, begin) }
    })?;
    Ok(0)
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_sync_start(
    file: *mut syncline_file,
    at: i64,
    length: i64,
    flags: u32,
    callback: syncline_callback,
    context: *mut c_void,
    ticket: *mut *mut syncline_sync_ticket,
) -> c_int {
    call("syncline_file_sync_start", || {
        let target = target_of(callback, context);
        // SAFETY: the caller's promise.
        unsafe { start_of_file(file, (at, length, flags), target, ticket) }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_sync_start_eventfd(
    file: *mut syncline_file,
    at: i64,
    length: i64,
    flags: u32,
    eventfd: c_int,
    ticket: *mut *mut syncline_sync_ticket,
) -> c_int {
    call("syncline_file_sync_start_eventfd", || {
        let target = event_of(eventfd)?;
        // SAFETY: the caller's promise.
        unsafe { start_of_file(file, (at, length, flags), target, ticket) }
    })
}

/// A negative number of milliseconds is for ever.
fn timeout_of(timeout_ms: i64) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

fn timed_out() -> Failure {
    Failure::new(libc::ETIMEDOUT, "the sync has not ended yet; it goes on")
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_ticket_poll(ticket: *mut syncline_sync_ticket) -> c_int {
    call("syncline_ticket_poll", || {
        handles::with(ticket.cast_const(), |_, started: &Started| match started.0.is_complete() {
            true => started.0.wait().map(|()| 1).map_err(Failure::from),
            false => Ok(0),
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_ticket_wait(ticket: *mut syncline_sync_ticket, timeout_ms: i64) -> c_int {
    call("syncline_ticket_wait", || {
        handles::with(ticket.cast_const(), |_, started: &Started| match timeout_of(timeout_ms) {
            None => Ok(started.0.wait()?),
            Some(timeout) => Ok(started.0.wait_timeout(timeout).ok_or_else(timed_out)??),
        })?;
        Ok(0)
    })
}

/// For [`SyncTicket::wait_any`].
struct Held(handles::Guard<Started>);

impl Borrow<SyncTicket> for Held {
    fn borrow(&self) -> &SyncTicket {
        &self.0.object().0
    }
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_ticket_wait_any(
    tickets: *const *mut syncline_sync_ticket,
    count: usize,
    timeout_ms: i64,
    index: *mut usize,
) -> c_int {
    call("syncline_ticket_wait_any", || {
        let out = crate::abi::Out::new(index, "where the index goes")?;
        // SAFETY: the caller's promise.
        let tickets = unsafe { many(tickets, count)? };
        if tickets.is_empty() {
            return Err(Failure::invalid("there is no ticket to wait for"));
        }
        let held = handles::hold::<Started, _>(tickets)?;
        let volume = held[0].1.volume().clone();
        let (places, held): (Vec<usize>, Vec<Held>) =
            held.into_iter().map(|(place, guard)| (place, Held(guard))).unzip();
        let ended = volume.guard(|| Ok(SyncTicket::wait_any(&held, timeout_of(timeout_ms))))?;
        let first = ended.into_iter().map(|ended| places[ended]).min().ok_or_else(timed_out)?;
        // SAFETY: the caller's promise.
        unsafe { out.put(first) };
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_ticket_free(ticket: *mut syncline_sync_ticket) -> c_int {
    call("syncline_ticket_free", || {
        handles::end(ticket.cast_const(), |_, started: Started| {
            drop(started);
            Ok(())
        })?;
        Ok(0)
    })
}
