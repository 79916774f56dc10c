//! Many requests in flight on one file through one io_uring, shared by all threads.
//!
//! Whoever submits enters the kernel at once; whoever waits reaps. There is no thread of our own: a lone
//! caller submits, waits and reaps on its own thread without a hand-over. With several waiters one of them is
//! the *reaper*: it alone touches the completion queue and sleeps in the kernel; the others are *followers*
//! and sleep in user space until the reaper wakes them, because their request completed or because it retires
//! and hands the role on.
//!
//! Invariants:
//! - every submitted request is in `requests` until its completion was taken off the queue; at most
//!   [`IN_FLIGHT_MAX`] are, which is the length of the completion queue, so that it cannot overflow;
//! - only the holder of [`Reaper`] touches the completion queue, only the holder of `submission` the other
//!   one;
//! - while there are followers there is a reaper, or a follower was just told to take the role (no lost
//!   wakeup);
//! - the memory of a request is released before its ticket completes, so that a waiter may change it in
//!   place;
//! - a request's memory is never freed while the kernel may use it: a ring that can no longer be driven ends
//!   the process.
//!
//! The kernel runs a part of each completion on the thread that submitted the request, so a submitter that
//! sits in an uninterruptible system call delays its other requests' completions until that call returns.
//!
//! A forked child has no ring: its memory is not mapped there (the child would take the parent's completions), and
//! its descriptor is closed.
//!
//! Lock order: `submission`, then `requests`; `reaping` is held alone.
#![allow(unsafe_code)]

use super::transfer::{Progress, Transfer};
use crate::process::Private;
use crate::{DeviceError, Ticket};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::Thread;
use std::time::Duration;

/// Requests in flight at most; a submitter beyond it waits for one of them. Far beyond any device's queue.
const IN_FLIGHT_MAX: u32 = 1024;
/// Entries of the submission queue. It is emptied by each submitter, so it only has to hold what several
/// threads push while the kernel is short of memory.
const SUBMISSION_ENTRIES: u32 = 64;
/// Completions taken off the queue at a time.
const REAP_BATCH: usize = 64;
/// Pause before the kernel is asked again after it refused a submission for lack of memory.
const BACKOFF: Duration = Duration::from_micros(50);

struct Request {
    work: Transfer,
    ticket: Ticket,
}

/// A follower's place in the queue of those that sleep until the reaper wakes them.
struct Follower {
    number: u64,
    ticket: Ticket,
    thread: Thread,
}

#[derive(Default)]
struct Reaping {
    /// Somebody holds the role.
    active: bool,
    followers: Vec<Follower>,
    next_number: u64,
}

/// The requests in flight, by the number that the kernel hands back.
#[derive(Default)]
struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<usize>,
}

/// What a waiting thread is to do.
enum Turn<'a> {
    Reap(Reaper<'a>),
    Sleep,
    Return,
}

pub(super) struct Ring {
    // Constant after creation.
    file: Arc<Private<File>>,
    in_flight_max: u32,
    /// Its queues are guarded by `submission` and by the role of the reaper.
    ring: Private<IoUring>,
    submission: Mutex<()>,
    requests: Mutex<Requests>,
    reaping: Mutex<Reaping>,
}

impl Ring {
    /// Errors: the kernel's, when it has no io_uring or forbids it.
    pub(super) fn new(file: Arc<Private<File>>) -> io::Result<Ring> {
        Ring::with_limits(file, SUBMISSION_ENTRIES, IN_FLIGHT_MAX)
    }

    fn with_limits(
        file: Arc<Private<File>>,
        submission_entries: u32,
        in_flight_max: u32,
    ) -> io::Result<Ring> {
        let ring = Private::open(|| {
            IoUring::builder().setup_cqsize(in_flight_max).dontfork().build(submission_entries)
        })?;
        assert!(
            ring.params().cq_entries() >= in_flight_max,
            "the completion queue holds every request in flight"
        );
        Ok(Ring {
            file,
            in_flight_max,
            ring,
            submission: Mutex::default(),
            requests: Mutex::default(),
            reaping: Mutex::default(),
        })
    }

    /// Starts the work and returns its ticket. Waits only when [`IN_FLIGHT_MAX`] requests are in flight.
    pub(super) fn submit(&self, work: Transfer) -> Ticket {
        let ticket = Ticket::pending();
        let mut request = Request { work, ticket: ticket.clone() };
        let slot = loop {
            match self.admit(request) {
                Ok(slot) => break slot,
                Err((refused, other)) => {
                    request = refused;
                    // The other request's result is for those who hold its ticket.
                    let _ = self.wait(&other);
                }
            }
        };
        self.start(slot);
        ticket
    }

    /// Blocks until the ticket is complete.
    pub(super) fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        let mut place = None;
        loop {
            if let Some(result) = ticket.result() {
                return result;
            }
            match self.turn(ticket, &mut place) {
                Turn::Reap(mut reaper) => reaper.reap_until_complete(ticket),
                Turn::Sleep => std::thread::park(),
                Turn::Return => {}
            }
        }
    }

    /// Completes what can be completed without blocking. When another thread is the reaper, it does so
    /// already.
    pub(super) fn poll(&self) {
        if let Some(mut reaper) = self.try_reaper() {
            reaper.reap();
        }
    }

    /// Waits for every request in flight.
    pub(super) fn drain(&self) {
        while let Some(ticket) = self.any_in_flight() {
            // The result is for those who hold the ticket.
            let _ = self.wait(&ticket);
        }
    }

    fn any_in_flight(&self) -> Option<Ticket> {
        self.requests.lock().slots.iter().flatten().next().map(|request| request.ticket.clone())
    }

    /// Gives the request a slot, or hands it back with the ticket of a request in flight when there are too
    /// many.
    fn admit(&self, request: Request) -> Result<usize, (Request, Ticket)> {
        let requests = &mut *self.requests.lock();
        if let Some(slot) = requests.free.pop() {
            requests.slots[slot] = Some(request);
            return Ok(slot);
        }
        if requests.slots.len() < self.in_flight_max as usize {
            requests.slots.push(Some(request));
            return Ok(requests.slots.len() - 1);
        }
        let oldest = requests.slots.iter().flatten().next().expect("without a free slot every slot is taken");
        let ticket = oldest.ticket.clone();
        Err((request, ticket))
    }

    /// Hands the slot's request to the kernel.
    fn start(&self, slot: usize) {
        let _turn = self.submission.lock();
        let entry = {
            let requests = self.requests.lock();
            let request = requests.slots[slot].as_ref().expect("a request is in its slot while in flight");
            self.entry(&request.work).user_data(slot as u64)
        };
        // SAFETY: `submission` is held, so nobody else touches the queue; the request's memory and its
        // segments stay in place in `requests` until the completion was taken off the queue.
        unsafe { self.ring.submission_shared().push(&entry) }.expect("every submitter empties the queue");
        self.enter_queued();
    }

    /// Enters the kernel until it has taken everything queued; `submission` must be held. When the kernel is
    /// short of memory it waits: requests in flight end, and give theirs back, without being reaped.
    fn enter_queued(&self) {
        loop {
            // SAFETY: the caller holds `submission`.
            let queued = unsafe { self.ring.submission_shared() }.len() as u32;
            if queued == 0 {
                return;
            }
            // SAFETY: no argument is passed, and the queued entries are valid (see `start`).
            match unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, 0, 0, None) } {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => std::thread::sleep(BACKOFF),
                    _ => undrivable(&error),
                },
            }
        }
    }

    fn entry(&self, transfer: &Transfer) -> squeue::Entry {
        let fd = types::Fd(self.file.as_raw_fd());
        let segments = transfer.segments();
        let (pointer, count) = (segments.as_ptr(), segments.len() as u32);
        if transfer.is_write() {
            opcode::Writev::new(fd, pointer, count).offset(transfer.position()).build()
        } else {
            opcode::Readv::new(fd, pointer, count).offset(transfer.position()).build()
        }
    }

    fn try_reaper(&self) -> Option<Reaper<'_>> {
        let mut reaping = self.reaping.lock();
        if reaping.active {
            return None;
        }
        reaping.active = true;
        Some(Reaper { ring: self })
    }

    /// Takes the role if it is free, else a place among the followers; `place` is the one taken in an earlier
    /// round.
    fn turn(&self, ticket: &Ticket, place: &mut Option<u64>) -> Turn<'_> {
        let mut reaping = self.reaping.lock();
        // A reaper completes tickets first and looks for their followers after, under this lock: whoever
        // finds its ticket pending here is found.
        if ticket.is_complete() {
            return Turn::Return;
        }
        if !reaping.active {
            reaping.active = true;
            reaping.followers.retain(|follower| Some(follower.number) != *place);
            return Turn::Reap(Reaper { ring: self });
        }
        if !reaping.followers.iter().any(|follower| Some(follower.number) == *place) {
            let number = reaping.next_number;
            reaping.next_number += 1;
            *place = Some(number);
            let thread = std::thread::current();
            reaping.followers.push(Follower { number, ticket: ticket.clone(), thread });
        }
        Turn::Sleep
    }
}

/// The role of the one who takes completions off the queue. Dropping it hands it on.
struct Reaper<'a> {
    ring: &'a Ring,
}

impl Reaper<'_> {
    fn reap_until_complete(&mut self, ticket: &Ticket) {
        self.reap();
        while !ticket.is_complete() {
            self.sleep();
            self.reap();
        }
    }

    /// Takes every completion off the queue, completes the tickets, submits again what is not done, wakes
    /// followers.
    fn reap(&mut self) {
        let mut completed = false;
        loop {
            let mut batch = [const { MaybeUninit::<cqueue::Entry>::uninit() }; REAP_BATCH];
            // SAFETY: the reaper alone touches the completion queue. The queue's head moves when the guard is
            // dropped, before the requests are released, so the kernel never posts more than the queue holds.
            let taken = unsafe { self.ring.ring.completion_shared() }.fill(&mut batch);
            if taken.is_empty() {
                break;
            }
            for entry in taken {
                completed |= self.settle(entry.user_data() as usize, entry.result());
            }
        }
        if completed {
            self.wake_followers();
        }
    }

    /// Settles one completion; true if the request is done.
    fn settle(&mut self, slot: usize, answer: i32) -> bool {
        let mut requests = self.ring.requests.lock();
        let request = requests.slots[slot].as_mut().expect("a completion belongs to a request in flight");
        let outcome = request.work.settle(i64::from(answer));
        let result = match outcome {
            Ok(Progress::Again) => {
                drop(requests);
                self.ring.start(slot);
                return false;
            }
            Ok(Progress::Done) => Ok(()),
            Err(error) => Err(error),
        };
        let Request { work, ticket } = requests.slots[slot].take().expect("looked at above");
        requests.free.push(slot);
        drop(requests);
        drop(work);
        ticket.complete(result);
        true
    }

    fn wake_followers(&mut self) {
        let mut reaping = self.ring.reaping.lock();
        let complete = reaping.followers.extract_if(.., |follower| follower.ticket.is_complete());
        complete.for_each(|follower| follower.thread.unpark());
    }

    /// Sleeps in the kernel until the queue holds a completion.
    fn sleep(&mut self) {
        {
            let requests = self.ring.requests.lock();
            assert!(
                requests.free.len() < requests.slots.len(),
                "a ticket waited for is of a request of this device"
            );
        }
        let getevents = io_uring::EnterFlags::GETEVENTS.bits();
        // SAFETY: nothing is submitted and no argument is passed.
        match unsafe { self.ring.ring.submitter().enter::<libc::sigset_t>(0, 1, getevents, None) } {
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                _ => undrivable(&error),
            },
        }
    }
}

impl Drop for Reaper<'_> {
    fn drop(&mut self) {
        let mut reaping = self.ring.reaping.lock();
        reaping.active = false;
        if let Some(heir) = reaping.followers.pop() {
            heir.thread.unpark();
        }
    }
}

/// The kernel refuses to drive the ring at all. Requests may be in flight on memory that is about to be given
/// up, so the only safe end is the process's; what was synced is on the device.
fn undrivable(error: &io::Error) -> ! {
    tracing::error!(%error, "the kernel refuses the io_uring it granted; stopping");
    std::process::abort()
}

#[cfg(test)]
mod tests;
