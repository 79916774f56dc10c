//! The thread of a queue: takes what the kernel put into entries, hands it to the filesystem, submits what was
//! answered.
//!
//! One system call per round submits all answers of the round before and waits for more. While a handler runs the queue
//! stands still, so handlers must not wait for long; one that announces that it will ([`Source::begin_wait`]) at least
//! does not hold back the answers that other requests of its round already got.
//!
//! **The deputy.** The kernel gives a request to the entry that came back last, and takes commands for an entry from
//! any ring. So a second thread with a ring of its own, which is brought one entry, gets all requests of a caller
//! that is alone, while those that come beside them go to the main thread. It has no other entry, so it may wait for
//! the device within a request ([`Source::may_wait`]) and holds up nobody: a sync needs no hand-over to another
//! thread and back. It is brought an answer that came alone from another thread, and gives its entry back to the main
//! thread when another caller comes by it, or when a reply is kept.
//!
//! **The second deputy.** A lone caller's next request may be made before the deputy's entry is back: behind RELEASE,
//! which nobody waits for, and by a caller that takes the CPU in the middle of the system call that answers it. That
//! request comes by another entry, which comes back last and lies above the deputy's from then on. No command takes an
//! entry back from the kernel, and with two of them a deputy that waits in one would hold up who comes by the other.
//! So the upper one is brought to a second deputy, and it does not matter which of the two the kernel takes. It is not
//! brought answers to callers in turn: callers beside each other share a force better if the drivers make it.
//! Should both come to lie below a third one, they get nothing until requests overlap again.
//!
//! **Streams.** The kernel reads ahead while its caller goes on, and copies an answer into the page cache on the CPU
//! of the thread that submits it. The main thread's is the caller's own, where such a copy takes half as long as all
//! that the caller does. So an answer of a large read is brought to the deputy as well, whoever gave it, and the next
//! such read comes by the deputy, which may wait for the device. For these it runs on any CPU (module
//! [`place`](super::place)).

use super::inbox::{Ending, Look, Outgoing};
use super::memory::EntryIndex;
use super::place::Place;
use super::queue::{Queue, Role};
use super::ring::{Arrival, Ring};
use crate::abi::{InHeader, Opcode};
use crate::errno::Errno;
use crate::reply::slot::{ReplySink, ReplySlot, Ticket};
use crate::transport::class::Class;
use crate::transport::streams::is_streaming;
use crate::transport::{Handler, RawRequest, Source, TransportKind};
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a queue's thread works with. It stays on that thread.
pub(super) struct Runner {
    queue: Arc<Queue>,
    /// `queue`, as slots hold it.
    sink: Arc<dyn ReplySink>,
    /// All queues of the connection, to tell them of its end.
    all: Arc<[Arc<Queue>]>,
    handler: Arc<dyn Handler>,
    /// Not borrowed while a handler runs.
    ring: RefCell<Ring>,
    role: Role,
    /// Of a deputy: where it runs.
    place: Option<Place>,
    /// Of a deputy: whose requests come by it; 0 if nobody's have yet.
    caller: Cell<u32>,
}

impl Runner {
    pub fn new(
        queue: Arc<Queue>,
        all: Arc<[Arc<Queue>]>,
        handler: Arc<dyn Handler>,
        ring: Ring,
        role: Role,
        place: Option<Place>,
    ) -> Runner {
        Runner {
            sink: Arc::clone(&queue) as Arc<dyn ReplySink>,
            queue,
            all,
            handler,
            ring: RefCell::new(ring),
            role,
            place,
            caller: Cell::new(0),
        }
    }

    /// Serves requests until the connection has ended. `arrivals`: those that are there already.
    ///
    /// Errors: why the queue cannot be served any longer.
    pub fn run(&self, mut arrivals: Vec<Arrival>, class: &mut Class) -> io::Result<()> {
        let mut incoming: Vec<Outgoing> = Vec::new();
        let inbox = self.queue.inbox_of(self.role);
        loop {
            let mut kept = None;
            let behind = (0..arrivals.len()).rev();
            for (arrival, behind) in arrivals.drain(..).zip(behind) {
                match arrival.ended {
                    None => kept = self.deliver(arrival.entry, behind, class),
                    Some(errno) => self.entry_ended(errno)?,
                }
            }
            let mut ring = self.ring.borrow_mut();
            let ending = inbox.take(&mut incoming);
            // It runs there when the kernel copies the answer.
            if let (Some(place), Some(brought)) = (&self.place, incoming.first()) {
                if brought.streams() { place.roam() } else { place.stay() }
            }
            ring.commit_own(|entry| self.role == Role::Main || kept == Some(entry));
            ring.commit_incoming(&mut incoming);
            match ending {
                Ending::Abandoned => return Ok(()),
                Ending::Ended if ring.lent() == 0 => return Ok(()),
                Ending::Ended | Ending::No => {}
            }
            if self.role.is_deputy() && ring.lent() == 0 {
                self.caller.set(0);
                inbox.vacate();
            }
            if inbox.look_before_sleep(ending) == Look::MaySleep {
                class.round();
                ring.wait(&mut arrivals)?;
            }
        }
    }

    /// The kernel has retired an entry.
    fn entry_ended(&self, errno: Errno) -> io::Result<()> {
        match errno.number() {
            libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV => {
                // Queues whose entries are all with the filesystem hear of it only from here.
                for queue in &*self.all {
                    queue.end(Ending::Ended);
                }
                Ok(())
            }
            // The kernel was tearing the entry down while it was answered.
            libc::ENOENT => Ok(()),
            _ => Err(errno.into()),
        }
    }

    /// Hands the request in `entry` to the filesystem; returns the entry, unless a deputy is to give it back.
    fn deliver(&self, entry: EntryIndex, behind: usize, class: &mut Class) -> Option<EntryIndex> {
        let area = self.queue.memory.header(entry).as_ptr();
        // SAFETY: the kernel completed the entry, so its memory is this thread's until the request is answered; the
        // header area is a valid `UringReqHeader` for any bytes, and begins with an `InHeader`.
        let (header, state) = unsafe { (area.cast::<InHeader>().read_unaligned(), (*area).ring_ent_in_out) };
        let payload_bytes = state.payload_sz as usize;
        assert!(
            payload_bytes <= self.queue.memory.payload_bytes(),
            "the kernel keeps to the size of a payload"
        );
        self.queue.note_touched(entry, payload_bytes);
        self.queue.hand_over(entry, state.commit_id, header.pid, payload_bytes == 0, self.role);

        let payload = self.queue.memory.payload(entry).as_ptr();
        // SAFETY: as above; neither the area nor a payload that is not empty is written before this handler has
        // returned (`Queue::hand_over`, `Ring::commit_own`).
        let (op, payload): (&[u8], &[u8]) = unsafe {
            let op = &raw const (*area).op_in;
            (&*op, std::slice::from_raw_parts(payload, payload_bytes))
        };
        let (op, payload) = if has_header_in_payload(header.opcode) {
            payload.split_at(self.handler.header_bytes(header.opcode).unwrap_or(0).min(payload.len()))
        } else {
            (op, payload)
        };
        class.takes(&header, op);
        let streams = is_streaming(&header, op);
        if let Some(place) = &self.place {
            if streams { place.roam() } else { place.stay() }
        }
        let ticket = Ticket { unique: header.unique, entry: u32::from(entry.0) };
        let slot = ReplySlot::new(Arc::clone(&self.sink), ticket, header.opcode);
        let here = Here { runner: self, current: entry, behind };
        let request = RawRequest { header: &header, op, payload };
        let handled = catch_unwind(AssertUnwindSafe(|| self.handler.handle(&here, request, slot)));
        if handled.is_err() {
            // The slot was dropped on the way, and with that answered.
            tracing::error!(opcode = %header.opcode, unique = header.unique, "the filesystem panicked in a request");
        }
        self.queue.handled(entry);
        self.is_callers(header.pid, streams).then_some(entry)
    }

    /// Whether nobody but this caller comes by this thread, or a stream does, be it whose it may. The kernel's own
    /// requests (0) are nobody's.
    fn is_callers(&self, pid: u32, streams: bool) -> bool {
        let before = self.caller.get();
        if before == 0 || streams {
            self.caller.set(pid);
            return true;
        }
        pid == 0 || pid == before
    }
}

/// Whether the kernel (6.14 to 6.18 at least) leaves the area for an operation's header empty, and puts the header
/// before the data.
fn has_header_in_payload(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::NOTIFY_REPLY | Opcode::REMOVEMAPPING)
}

/// What a handler can ask about the queue while it runs.
struct Here<'a> {
    runner: &'a Runner,
    /// The request's entry, which must stay as it is.
    current: EntryIndex,
    /// Requests of the same round that have not been handed over.
    behind: usize,
}

impl Source for Here<'_> {
    fn transport(&self) -> TransportKind {
        TransportKind::Uring
    }

    fn others_wait(&self) -> bool {
        self.behind > 0 || self.runner.ring.borrow_mut().has_completions()
    }

    fn may_wait(&self) -> bool {
        self.runner.role.is_deputy()
    }

    /// Nobody can take this thread's place: the kernel delivers to the thread that lent it the entries.
    fn begin_wait(&self) -> bool {
        // A deputy has no other request whose answer could be held back.
        if self.runner.role.is_deputy() {
            return false;
        }
        let mut ring = self.runner.ring.borrow_mut();
        ring.commit_own(|entry| entry != self.current);
        if let Err(error) = ring.submit() {
            tracing::debug!(%error, "answers could not be submitted early");
        }
        false
    }
}
