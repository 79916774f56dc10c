//! The connection in use: requests on their way, and the thread that receives what becomes of them.
//!
//! A request is in the table before it is sent, and is taken out by its reply, or by the end of the connection. So each
//! ends once. The receiver never sends, and whoever sends never receives: a server that waits until its replies are
//! read is never waited for.
//!
//! Locks: `sending` alone, or before `state`.

use crate::stream::Stream;
use crate::wire::{self, Command};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io::{self, IoSlice, Read};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use syncline_device::{Buffer, DeviceError, Operation, Private, Ticket, Waiters};
use syncline_format::BlockNo;

/// Requests on their way at most; who comes then waits for one of them.
const IN_FLIGHT_MAX: usize = 1024;

/// What the parts of one request of the engine have in common.
pub(crate) struct Group {
    ticket: Ticket,
    operation: Operation,
    block: BlockNo,
    state: Mutex<GroupState>,
    /// What was read, in the end.
    pub(crate) memory: Arc<OnceLock<Vec<Arc<Buffer>>>>,
}

struct GroupState {
    left: usize,
    error: Option<DeviceError>,
    read: Vec<Option<Arc<Buffer>>>,
}

impl Group {
    /// Of `parts` parts, at least one.
    pub(crate) fn new(operation: Operation, block: BlockNo, parts: usize) -> Arc<Group> {
        let read = if operation == Operation::Read { vec![None; parts] } else { Vec::new() };
        let state = Mutex::new(GroupState { left: parts, error: None, read });
        Arc::new(Group { ticket: Ticket::pending(), operation, block, state, memory: Arc::default() })
    }

    pub(crate) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    fn failed(&self, errno: i32) -> DeviceError {
        DeviceError::Io { operation: self.operation, block: self.block, errno }
    }

    /// One part has ended; what has become of the whole, if it was the last one.
    fn part_ended(
        &self,
        part: usize,
        result: Result<Option<Buffer>, i32>,
    ) -> Option<Result<(), DeviceError>> {
        let mut state = self.state.lock();
        match result {
            Ok(Some(buffer)) => state.read[part] = Some(Arc::new(buffer)),
            Ok(None) => {}
            Err(errno) => drop(state.error.get_or_insert_with(|| self.failed(errno))),
        }
        state.left -= 1;
        if state.left > 0 {
            return None;
        }
        let result = state.error.take().map_or(Ok(()), Err);
        if result.is_ok() && self.operation == Operation::Read {
            // Set once, here.
            let _ = self.memory.set(state.read.drain(..).flatten().collect());
        }
        Some(result)
    }
}

/// A part on its way.
struct Request {
    group: Arc<Group>,
    part: usize,
    /// To be filled, by a read.
    into: Option<Buffer>,
}

#[derive(Default)]
struct State {
    in_flight: HashMap<u64, Request>,
    next_cookie: u64,
    /// The receiver has taken a request out, and is at it.
    receiving: bool,
    /// Why nothing goes on any more.
    broken: Option<i32>,
    /// Who waits for room.
    crowd: usize,
}

pub(crate) struct Shared {
    stream: Private<Stream>,
    sending: Mutex<()>,
    state: Mutex<State>,
    /// There is room, or nothing is on its way.
    changed: Condvar,
    waiters: Waiters,
}

pub(crate) struct Link {
    shared: Arc<Shared>,
    receiver: Mutex<Option<JoinHandle<()>>>,
}

/// What is sent of a part.
pub(crate) struct Part<'a> {
    pub(crate) command: Command,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) data: &'a [&'a [u8]],
    pub(crate) into: Option<Buffer>,
}

impl Link {
    pub(crate) fn new(stream: Private<Stream>) -> Link {
        let (sending, state, changed, waiters) = Default::default();
        let shared = Arc::new(Shared { stream, sending, state, changed, waiters });
        Link { shared, receiver: Mutex::new(None) }
    }

    /// Starts the receiver, if it has not begun.
    fn receive(&self) -> io::Result<()> {
        let mut receiver = self.receiver.lock();
        if receiver.is_none() {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("syncline-nbd".to_owned());
            *receiver = Some(thread.spawn(move || shared.receive_all())?);
        }
        Ok(())
    }

    /// Sends part number `part` of a group. What becomes of it, an error included, the group's ticket tells.
    pub(crate) fn send(&self, group: &Arc<Group>, part: usize, what: Part<'_>) {
        if let Err(error) = self.receive() {
            return self.shared.refuse(group, part, errno_of(&error));
        }
        let sending = self.shared.sending.lock();
        let request = Request { group: group.clone(), part, into: what.into };
        let Some(cookie) = self.shared.enter(request) else { return };
        let header = wire::request(what.command, cookie, what.offset, what.length);
        let mut parts = Vec::with_capacity(1 + what.data.len());
        parts.push(IoSlice::new(&header));
        parts.extend(what.data.iter().map(|bytes| IoSlice::new(bytes)));
        if let Err(error) = self.shared.stream.send(&mut parts) {
            self.shared.break_off(errno_of(&error));
        }
        drop(sending);
    }

    pub(crate) fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.shared.waiters.wait(ticket)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.shared.state.lock().broken.is_some()
    }
}

impl Drop for Link {
    /// Waits for what is on its way: whoever has the export next does not meet it.
    fn drop(&mut self) {
        let shared = &self.shared;
        {
            let mut state = shared.state.lock();
            state.crowd += 1;
            while !state.in_flight.is_empty() || state.receiving {
                shared.changed.wait(&mut state);
            }
        }
        let goodbye = wire::request(Command::Disconnect, 0, 0, 0);
        // A server that is gone need not be told.
        let _ = shared.stream.send(&mut [IoSlice::new(&goodbye)]);
        shared.stream.end();
        if let Some(receiver) = self.receiver.lock().take() {
            // It has told whatever there was to tell.
            let _ = receiver.join();
        }
    }
}

impl Shared {
    /// Enters a request, when there is room. `None`: the connection is broken, and the request has failed.
    fn enter(&self, request: Request) -> Option<u64> {
        let mut state = self.state.lock();
        while state.in_flight.len() >= IN_FLIGHT_MAX && state.broken.is_none() {
            state.crowd += 1;
            self.changed.wait(&mut state);
            state.crowd -= 1;
        }
        if let Some(errno) = state.broken {
            self.end(&mut state, &request.group, request.part, Err(errno));
            return None;
        }
        let cookie = state.next_cookie;
        state.next_cookie += 1;
        state.in_flight.insert(cookie, request);
        Some(cookie)
    }

    fn refuse(&self, group: &Group, part: usize, errno: i32) {
        self.end(&mut self.state.lock(), group, part, Err(errno));
    }

    /// Ends a part, and wakes who waits for the whole.
    fn end(&self, state: &mut State, group: &Group, part: usize, result: Result<Option<Buffer>, i32>) {
        if let Some(result) = group.part_ended(part, result) {
            self.waiters.complete(group.ticket(), result);
        }
        if state.crowd > 0 {
            self.changed.notify_all();
        }
    }

    /// From here on everything fails, and what is on its way does at once.
    fn break_off(&self, errno: i32) {
        let mut state = self.state.lock();
        if state.broken.is_none() {
            state.broken = Some(errno);
        }
        let left: Vec<Request> = state.in_flight.drain().map(|(_, request)| request).collect();
        for request in left {
            self.end(&mut state, &request.group, request.part, Err(errno));
        }
        self.changed.notify_all();
        drop(state);
        self.stream.end();
    }

    fn receive_all(&self) {
        let errno = loop {
            match self.receive_one() {
                Ok(()) => {}
                Err(errno) => break errno,
            }
        };
        self.break_off(errno);
    }

    /// Receives one reply. Errors: the connection's, as an errno.
    fn receive_one(&self) -> Result<(), i32> {
        let mut stream: &Stream = &self.stream;
        let mut header = [0; wire::REPLY_BYTES];
        stream.read_exact(&mut header).map_err(|error| errno_of(&error))?;
        let Some((error, cookie)) = wire::reply(&header) else { return Err(self.protocol("no reply")) };
        let Some(mut request) = self.take_out(cookie) else {
            return Err(self.protocol("a reply to what was not asked"));
        };
        let result = match (error, request.into.take()) {
            (0, None) => Ok(None),
            (0, Some(mut buffer)) => match stream.read_exact(&mut buffer) {
                Ok(()) => Ok(Some(buffer)),
                Err(error) => Err(errno_of(&error)),
            },
            (error, _) => {
                self.received(&request, Err(wire::errno(error)));
                return Ok(());
            }
        };
        let connection = result.as_ref().map(drop).map_err(|errno| *errno);
        self.received(&request, result);
        connection
    }

    fn take_out(&self, cookie: u64) -> Option<Request> {
        let mut state = self.state.lock();
        let request = state.in_flight.remove(&cookie);
        state.receiving = request.is_some();
        request
    }

    fn received(&self, request: &Request, result: Result<Option<Buffer>, i32>) {
        let mut state = self.state.lock();
        state.receiving = false;
        self.end(&mut state, &request.group, request.part, result);
    }

    fn protocol(&self, what: &'static str) -> i32 {
        tracing::error!(what, "the NBD server breaks the protocol; the connection is ended");
        libc::EPROTO
    }
}

/// The end of a connection has no number of its own.
fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::ECONNRESET)
}
