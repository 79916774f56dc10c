//! FUSE over io_uring: a pinned thread and a queue for each possible CPU.
//!
//! The kernel puts a request on the queue of the CPU that its caller runs on. With the queue's thread on the same CPU
//! a round trip is two switches on one core, whatever the scheduler thinks of it. Each queue has many *entries*:
//! memory for one request and its answer, lent to the kernel and taken back by the commands of [`command`].
//!
//! Two steps, because the kernel holds all requests back from the moment INIT's answer agrees on io_uring until every
//! queue has an entry: what can fail is done in [`prepare`], before INIT is answered. Should registration fail after
//! all, it fails for the whole connection: the kernel then sends everything to /dev/fuse, for good.
//!
//! FORGET, INTERRUPT and what the kernel sent before the queues were ready come by /dev/fuse in any case, notifications
//! leave by it.
//!
//! With [`UringSettings::deputy`] each queue has two more threads that serve a caller that is alone, and may wait
//! (module [`thread`]).
//!
//! Code map: [`command`] submissions; [`memory`] entries' memory; [`inbox`] answers of other threads; [`queue`] what
//! all threads see of a queue; [`ring`] what only its own thread sees; [`thread`] that thread's loop; [`place`] where
//! a deputy runs; [`descriptors`] how many there may be; [`abort`] the way out when a queue cannot be served any
//! more.
//!
//! Memory: address space for `depth` payloads per queue, pages as they are used. The kernel reuses the entry that came
//! back last, so what is used follows the requests that were open at once; above
//! [`UringSettings::resident_bytes_max`] a queue gives pages back when it has had
//! nothing to do for a moment.

mod abort;
mod command;
mod descriptors;
mod inbox;
mod memory;
mod place;
mod queue;
mod ring;
#[cfg(test)]
mod tests;
mod thread;

use super::class::{Class, Classes};
use super::connection::Connection;
use super::{Handler, Transport, TransportKind, UringUnavailable, cpus};
use crate::errno::Errno;
use crate::session::UringSettings;
use command::QueueId;
use inbox::{Ending, Inbox};
use place::Place;
use queue::{Queue, Role};
use ring::{Arrival, Ring};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use thread::Runner;

/// More entries than this in a queue are not made, whatever is asked for: the kernel has few enough callers per CPU.
const DEPTH_MAX: u16 = 1024;

/// Rings, buffers and threads that wait for a connection.
pub(crate) struct Prepared {
    workers: Vec<Worker>,
}

/// The thread of a queue, seen from outside.
struct Worker {
    queue: Arc<Queue>,
    /// Dropped without a word if the ring is not to be used.
    begin: mpsc::SyncSender<Begin>,
    thread: JoinHandle<io::Result<()>>,
    deputies: Vec<Deputy>,
}

/// One of a queue's further threads, seen from outside.
struct Deputy {
    begin: mpsc::SyncSender<Begin>,
    thread: JoinHandle<io::Result<()>>,
}

/// What a queue's thread is told once INIT has been answered.
struct Begin {
    connection: Arc<Connection>,
    handler: Arc<dyn Handler>,
    classes: Arc<Classes>,
    all: Arc<[Arc<Queue>]>,
    registered: mpsc::Sender<(QueueId, Result<usize, Errno>)>,
}

/// What a queue's thread says once it has made its ring.
struct Made {
    queue: Arc<Queue>,
    pinned: bool,
}

/// A step that failed.
type Failed = (&'static str, io::Error);

/// Makes rings and buffers. `payload_bytes`: what one request or answer takes at most (a whole number of pages).
pub(crate) fn prepare(settings: &UringSettings, payload_bytes: usize) -> Result<Prepared, UringUnavailable> {
    let unavailable = |(step, error): Failed| UringUnavailable::Ring { step, errno: Errno::from(error) };
    let count = cpus::possible_count()
        .ok_or_else(|| unavailable(("counting the possible CPUs", io::ErrorKind::Unsupported.into())))?;
    descriptors::make_room(usize::from(count), settings.deputy);
    let mut workers = Vec::with_capacity(usize::from(count));
    let mut unpinned = 0usize;
    for id in 0..count {
        let (worker, pinned) = make_worker(QueueId(id), *settings, payload_bytes).map_err(unavailable)?;
        unpinned += usize::from(!pinned);
        workers.push(worker);
    }
    if unpinned > 0 && settings.pin {
        tracing::warn!(
            unpinned,
            queues = count,
            "some queues' threads run on any CPU, because theirs is offline or not in this process's affinity mask"
        );
    }
    if settings.deputy {
        add_deputies(&mut workers, *settings);
    }
    Ok(Prepared { workers })
}

/// Gives the queues their deputies, once all of them have what they cannot do without; each has its first one before
/// any has two. One that cannot be made is gone without, and so are those behind it: what is missing is most likely
/// missing for them as well. One entry stays with the queue's own thread, which waits for nothing.
fn add_deputies(workers: &mut [Worker], settings: UringSettings) {
    let wanted = Role::DEPUTIES.len() * workers.len();
    let mut made = 0;
    for role in Role::DEPUTIES {
        for worker in &mut *workers {
            if usize::from(worker.queue.memory.depth()) <= worker.deputies.len() + 1 {
                continue;
            }
            match make_deputy(&worker.queue, role, settings) {
                Ok(deputy) => worker.deputies.push(deputy),
                Err((step, error)) => {
                    return tracing::warn!(
                        made,
                        wanted,
                        step,
                        %error,
                        "queues lack deputies: what a lone caller waits for is handed to other threads more often"
                    );
                }
            }
            made += 1;
        }
    }
}

/// Starts a queue's thread and waits until it has made its ring.
fn make_worker(id: QueueId, settings: UringSettings, payload_bytes: usize) -> Result<(Worker, bool), Failed> {
    let (begin, begins) = mpsc::sync_channel(1);
    let (made, is_made) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name(format!("fuse-ring-{}", id.0))
        .spawn(move || run_thread(id, settings, payload_bytes, &made, &begins))
        .map_err(|error| ("starting a queue's thread", error))?;
    let Made { queue, pinned } = is_made.recv().expect("the thread reports before anything else it does")?;
    Ok((Worker { queue, begin, thread, deputies: Vec::new() }, pinned))
}

/// Starts a deputy's thread and waits until it has made its ring.
fn make_deputy(queue: &Arc<Queue>, role: Role, settings: UringSettings) -> Result<Deputy, Failed> {
    let (begin, begins) = mpsc::sync_channel::<Begin>(1);
    let (made, is_made) = mpsc::channel();
    let its_queue = Arc::clone(queue);
    let work = move || {
        let place = Place::beside(its_queue.id.0, settings.pin);
        let (ring, failed) = match make_deputys_ring(&its_queue, role, settings.resident_bytes_max) {
            Ok(ring) => (Some(ring), Ok(())),
            Err(failed) => (None, Err(failed)),
        };
        // The receiver waits for this message.
        let _ = made.send(failed);
        match (ring, begins.recv()) {
            (Some(ring), Ok(begin)) => serve_deputy(role, &its_queue, ring, place, begin),
            _ => Ok(()),
        }
    };
    let name = match role {
        Role::SecondDeputy => format!("fuse-deputy2-{}", queue.id.0),
        _ => format!("fuse-deputy-{}", queue.id.0),
    };
    let thread = std::thread::Builder::new()
        .name(name)
        .spawn(work)
        .map_err(|error| ("starting a deputy's thread", error))?;
    is_made.recv().expect("the thread reports before anything else it does")?;
    Ok(Deputy { begin, thread })
}

/// Makes a deputy's inbox and ring. The queue has that deputy when this succeeds.
fn make_deputys_ring(queue: &Arc<Queue>, role: Role, resident_bytes_max: usize) -> Result<Ring, Failed> {
    let inbox = Inbox::new().map_err(|error| ("making a deputy's eventfd", error))?;
    let ring = Ring::new(Arc::clone(queue), role, inbox.bell(), resident_bytes_max)
        .map_err(|error| ("making a deputy's ring", error))?;
    descriptors::leave_some(&[inbox.bell(), ring.descriptor()])
        .map_err(|error| ("leaving descriptors for others", error))?;
    queue.set_deputy(role, inbox);
    Ok(ring)
}

/// A queue's thread, from beginning to end.
fn run_thread(
    id: QueueId,
    settings: UringSettings,
    payload_bytes: usize,
    made: &mpsc::Sender<Result<Made, Failed>>,
    begins: &mpsc::Receiver<Begin>,
) -> io::Result<()> {
    let pinned = settings.pin && cpus::pin_to(id.0);
    let (queue, ring) = match make_ring(id, &settings, payload_bytes) {
        Ok(pair) => pair,
        Err(failed) => {
            // The receiver waits for this message.
            let _ = made.send(Err(failed));
            return Ok(());
        }
    };
    let _ = made.send(Ok(Made { queue: Arc::clone(&queue), pinned }));
    let Ok(begin) = begins.recv() else { return Ok(()) };
    serve(&queue, ring, begin)
}

/// Makes a queue's memory and ring, with fewer entries if there is no room for all.
fn make_ring(
    id: QueueId,
    settings: &UringSettings,
    payload_bytes: usize,
) -> Result<(Arc<Queue>, Ring), Failed> {
    let mut depth = settings.depth.clamp(1, DEPTH_MAX);
    let queue = loop {
        match Queue::new(id, depth, payload_bytes) {
            Ok(queue) => break Arc::new(queue),
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && depth > 1 => depth /= 2,
            Err(error) => return Err(("mapping a queue's buffers", error)),
        }
    };
    let ring = Ring::new(Arc::clone(&queue), Role::Main, queue.inbox.bell(), settings.resident_bytes_max)
        .map_err(|error| ("making a ring", error))?;
    Ok((queue, ring))
}

/// Serves a queue until the connection has ended.
fn serve(queue: &Arc<Queue>, mut ring: Ring, begin: Begin) -> io::Result<()> {
    let mut arrivals = Vec::new();
    let taken = ring.register(begin.connection.as_fd(), &mut arrivals);
    let refused = taken.is_err();
    if refused {
        ring.refuse(begin.connection.as_fd());
    }
    // The receiver waits for one message of each queue.
    let _ = begin.registered.send((queue.id, taken));
    match refused {
        true => Ok(()),
        false => serve_as(Role::Main, None, queue, ring, begin, arrivals),
    }
}

/// The same for a queue's deputy, which is brought what it gets.
fn serve_deputy(role: Role, queue: &Arc<Queue>, ring: Ring, place: Place, begin: Begin) -> io::Result<()> {
    if let Err(error) = ring.attach(begin.connection.as_fd()) {
        queue.inbox_of(role).close();
        tracing::warn!(queue = queue.id.0, ?role, %error, "a queue lacks a deputy");
        return Ok(());
    }
    serve_as(role, Some(place), queue, ring, begin, Vec::new())
}

/// `place`: of a deputy.
fn serve_as(
    role: Role,
    place: Option<Place>,
    queue: &Arc<Queue>,
    ring: Ring,
    begin: Begin,
    arrivals: Vec<Arrival>,
) -> io::Result<()> {
    let Begin { connection, handler, classes, all, registered } = begin;
    drop(registered);
    queue.own_by_this_thread(role);
    let mut class = Class::of_this_thread(classes);
    let runner = Runner::new(Arc::clone(queue), all, handler, ring, role, place);
    let served = catch_unwind(AssertUnwindSafe(|| runner.run(arrivals, &mut class)))
        .unwrap_or_else(|_| Err(io::Error::other("the thread of a queue panicked")));
    let inbox = queue.inbox_of(role);
    inbox.close();
    tracing::debug!(queue = queue.id.0, ?role, wakes_by_others = inbox.rings(), "a queue's thread has ended");
    if let Err(error) = &served {
        tracing::error!(queue = queue.id.0, %error, "a queue cannot be served any longer; the connection is aborted");
        if let Err(error) = abort::abort_connection(&connection) {
            tracing::error!(%error, "the connection could not be aborted: unmount it with umount -f");
        }
    }
    served
}

impl Prepared {
    /// Registers all entries; INIT has been answered. On an error nothing of it runs any more, and the kernel sends
    /// everything to /dev/fuse.
    pub(crate) fn start(
        self,
        connection: Arc<Connection>,
        handler: Arc<dyn Handler>,
        classes: &Arc<Classes>,
    ) -> Result<Box<dyn Transport>, UringUnavailable> {
        let workers = self.workers;
        let all: Arc<[Arc<Queue>]> = workers.iter().map(|worker| Arc::clone(&worker.queue)).collect();
        let (registered, registrations) = mpsc::channel();
        for worker in &workers {
            for begin in worker.deputies.iter().map(|deputy| &deputy.begin).chain([&worker.begin]) {
                let told = Begin {
                    connection: Arc::clone(&connection),
                    handler: Arc::clone(&handler),
                    classes: Arc::clone(classes),
                    all: Arc::clone(&all),
                    registered: registered.clone(),
                };
                begin.send(told).expect("a queue's thread waits until it is told to begin");
            }
        }
        drop(registered);
        let mut refusal: Option<(QueueId, Errno)> = None;
        for (queue, taken) in registrations {
            match taken {
                Ok(entries) => tracing::debug!(queue = queue.0, entries, "registered over io_uring"),
                // Once it has refused one queue, the kernel refuses the others with this.
                Err(Errno::EOPNOTSUPP) => refusal = refusal.or(Some((queue, Errno::EOPNOTSUPP))),
                Err(errno) => refusal = Some((queue, errno)),
            }
        }
        let running = Running { connection, workers, all };
        match refusal {
            None => Ok(Box::new(running)),
            Some((QueueId(queue), errno)) => {
                running.end(Ending::Abandoned);
                if let Err(error) = running.join_threads() {
                    tracing::warn!(%error, "a queue that is not used failed");
                }
                Err(UringUnavailable::Register { queue, errno })
            }
        }
    }
}

/// Queues that requests come through.
struct Running {
    connection: Arc<Connection>,
    workers: Vec<Worker>,
    all: Arc<[Arc<Queue>]>,
}

impl Running {
    fn end(&self, why: Ending) {
        for queue in &*self.all {
            queue.end(why);
        }
    }

    /// The first error, once all threads have ended.
    fn join_threads(self) -> io::Result<()> {
        let mut result = Ok(());
        for worker in self.workers {
            for thread in
                [worker.thread].into_iter().chain(worker.deputies.into_iter().map(|deputy| deputy.thread))
            {
                let ended = thread.join();
                result = result
                    .and(ended.unwrap_or_else(|_| Err(io::Error::other("the thread of a queue panicked"))));
            }
        }
        result
    }
}

impl Transport for Running {
    fn kind(&self) -> TransportKind {
        TransportKind::Uring
    }

    fn join(self: Box<Self>) -> io::Result<()> {
        // A queue whose entries are all with the filesystem gets no completion that would tell it.
        wait_until_ended(&self.connection);
        self.end(Ending::Ended);
        self.join_threads()
    }
}

/// Returns when the connection has ended.
fn wait_until_ended(connection: &Connection) {
    // No events asked for: only errors are reported, and the end of a connection is one.
    let mut poll = libc::pollfd { fd: connection.as_fd().as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: `poll` is one valid pollfd.
    while unsafe { libc::poll(&raw mut poll, 1, -1) } < 0 {}
}
