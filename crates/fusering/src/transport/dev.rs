//! The transport over /dev/fuse: threads that read a request, hand it on, and read the next one.
//!
//! Each read goes to such a place in a page-aligned buffer that the data of a WRITE begins on a page boundary and can
//! go to O_DIRECT from where it lies. Answers are written with `writev` from where their parts lie.
//!
//! Invariant: an answer goes to the descriptor its request was read from (with `clone_descriptors` they differ, and the
//! kernel keeps a list of open requests for each).

use super::beside::Beside;
use super::class::{Class, Classes};
use super::connection::Connection;
use super::readers::Readers;
use super::streams::is_streaming;
use super::{Handler, RawRequest, Source, Transport, TransportKind};
use crate::abi::{InHeader, Opcode, OutHeader, WriteIn};
use crate::error::Error;
use crate::memory::{PAGE_BYTES, PageBuffer, ReplyMemory};
use crate::reply::slot::{Answer, ReplySink, ReplySlot, ShortAnswer, Ticket};
use crate::session::DevSettings;
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Before a WRITE's data.
const HEADERS_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();
const _: () = assert!(HEADERS_BYTES == 80);
/// Buffers for answers that are kept for the next one, for each descriptor.
const SPARE_BUFFERS_MAX: usize = 8;
/// A message that takes this long to be read was waited for, unless it is one whose data has to be copied.
const AWAITED: Duration = Duration::from_micros(15);
const COPIED_BYTES_MIN: usize = 16 << 10;
/// Parts of an answer that need no allocation.
const PARTS_INLINE: usize = 7;

/// Starts the threads. `message_bytes`: most data that a message has (WRITE's, or a long attribute's).
pub(crate) fn start(
    connection: Arc<Connection>,
    handler: Arc<dyn Handler>,
    settings: &DevSettings,
    message_bytes: usize,
    classes: Arc<Classes>,
) -> Result<Box<dyn Transport>, Error> {
    let count = settings.threads.max(1);
    let readers = Arc::new(Readers::new(connection.clone(), count, settings.spread));
    let mut transport = DevTransport { readers: readers.clone(), threads: Vec::new(), watch: None };
    let shared = Arc::new(DevSink::new(connection.clone()));
    for number in 0..count {
        let sink = match settings.clone_descriptors && number > 0 {
            true => Arc::new(DevSink::new(Arc::new(connection.clone_device().map_err(Error::Thread)?))),
            false => shared.clone(),
        };
        let reader = Reader {
            sink,
            handler: handler.clone(),
            readers: readers.clone(),
            beside: Beside::new(settings.follow_lone_caller && !settings.spread),
            buffer: PageBuffer::new(PAGE_BYTES + message_bytes),
            classes: classes.clone(),
        };
        let thread = std::thread::Builder::new().name(format!("fuse-dev-{number}"));
        transport.threads.push(thread.spawn(move || reader.run()).map_err(Error::Thread)?);
    }
    if count > 1 && !settings.spread {
        let watch = std::thread::Builder::new().name("fuse-dev-watch".to_owned());
        transport.watch = Some(watch.spawn(move || readers.watch(&classes)).map_err(Error::Thread)?);
    }
    Ok(Box::new(transport))
}

struct DevTransport {
    readers: Arc<Readers>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    watch: Option<JoinHandle<()>>,
}

impl Transport for DevTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::Dev
    }

    fn step_back(&self) {
        self.readers.step_back();
    }

    fn join(self: Box<Self>) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => result = Err(error),
                Err(_) => result = Err(io::Error::other("a thread that reads requests panicked")),
            }
        }
        self.readers.end_all();
        if let Some(watch) = self.watch
            && watch.join().is_err()
        {
            result = Err(io::Error::other("the watch of the reading threads panicked"));
        }
        result
    }
}

/// One thread.
struct Reader {
    sink: Arc<DevSink>,
    handler: Arc<dyn Handler>,
    readers: Arc<Readers>,
    beside: Beside,
    buffer: PageBuffer,
    classes: Arc<Classes>,
}

/// Lets the parked threads go when the first one ends, for whatever reason.
struct EndOfThread(Arc<Readers>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        self.0.end_all();
    }
}

impl Reader {
    /// Until the connection ends.
    fn run(mut self) -> io::Result<()> {
        let _end = EndOfThread(self.readers.clone());
        let mut class = Class::of_this_thread(self.classes.clone());
        loop {
            class.round();
            self.readers.begin_reading();
            let began = Instant::now();
            let read =
                self.sink.connection.read(&mut self.buffer.as_mut_slice()[PAGE_BYTES - HEADERS_BYTES..]);
            let took = began.elapsed();
            self.readers.end_reading(read.is_ok());
            match read {
                Ok(bytes) => {
                    let nobody_waits = self.handle(bytes, took, &mut class);
                    self.readers.end_request();
                    if nobody_waits {
                        self.readers.rest();
                    }
                }
                Err(error) => match error.raw_os_error() {
                    // ENOENT: the request was interrupted before it could be read.
                    Some(libc::EINTR | libc::ENOENT) => {}
                    Some(libc::EAGAIN) => self.sink.connection.wait_readable(),
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
    }

    /// `took`: how long the message was read. Returns whether it was one that is not answered.
    fn handle(&mut self, bytes: usize, took: Duration, class: &mut Class) -> bool {
        let start = PAGE_BYTES - HEADERS_BYTES;
        let message = &self.buffer.as_slice()[start..start + bytes];
        let Some((request, header)) = split(message, &*self.handler) else {
            tracing::error!(bytes, "the kernel sent a message without a header");
            return false;
        };
        class.takes(&header, request.0);
        if let Some(cpus) =
            self.beside.note(header.pid, is_streaming(&header, request.0), was_awaited(bytes, took))
        {
            self.readers.reads_on(&cpus);
        }
        let ticket = Ticket { unique: header.unique, entry: 0 };
        let slot = ReplySlot::new(self.sink.clone(), ticket, header.opcode);
        let request = RawRequest { header: &header, op: request.0, payload: request.1 };
        self.handler.handle(&*self.readers, request, slot);
        matches!(header.opcode, Opcode::FORGET | Opcode::BATCH_FORGET)
    }
}

/// Whether the thread slept until a message of so many bytes came, which it had read after so long.
fn was_awaited(bytes: usize, took: Duration) -> bool {
    bytes < COPIED_BYTES_MIN && took >= AWAITED
}

/// Operation header, payload, and the header of a message.
type Split<'a> = ((&'a [u8], &'a [u8]), InHeader);

/// Parts of a message; `None` if it has no header.
fn split<'a>(message: &'a [u8], handler: &dyn Handler) -> Option<Split<'a>> {
    let (header, rest) = InHeader::read_from_prefix(message).ok()?;
    let header_bytes = handler.header_bytes(header.opcode).unwrap_or(0).min(rest.len());
    Some((rest.split_at(header_bytes), header))
}

impl Source for Readers {
    fn transport(&self) -> TransportKind {
        TransportKind::Dev
    }

    fn others_wait(&self) -> bool {
        Readers::others_wait(self)
    }

    /// Others read in its place.
    fn may_wait(&self) -> bool {
        true
    }

    fn begin_wait(&self) -> bool {
        Readers::begin_wait(self)
    }

    fn end_wait(&self) {
        Readers::end_wait(self);
    }
}

/// Answers over one descriptor.
struct DevSink {
    connection: Arc<Connection>,
    spare: Mutex<Vec<PageBuffer>>,
}

impl DevSink {
    fn new(connection: Arc<Connection>) -> DevSink {
        DevSink { connection, spare: Mutex::new(Vec::new()) }
    }

    fn write(&self, ticket: Ticket, error: i32, parts: &[IoSlice<'_>]) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let header = OutHeader {
            len: u32::try_from(size_of::<OutHeader>() + bytes).unwrap_or(u32::MAX),
            error,
            unique: ticket.unique,
        };
        let written = if parts.len() <= PARTS_INLINE {
            let mut all = [IoSlice::new(&[]); PARTS_INLINE + 1];
            all[0] = IoSlice::new(header.as_bytes());
            all[1..=parts.len()].copy_from_slice(parts);
            self.connection.write(&all[..=parts.len()])
        } else {
            // The kernel takes at most 1024 parts: many small ones are put together.
            let mut whole = Vec::with_capacity(bytes);
            parts.iter().for_each(|part| whole.extend_from_slice(part));
            self.connection.write(&[IoSlice::new(header.as_bytes()), IoSlice::new(&whole)])
        };
        match written.as_ref().map_err(io::Error::raw_os_error) {
            // ENOENT: the request was interrupted or aborted. ENODEV: the connection has ended.
            Ok(()) | Err(Some(libc::ENOENT | libc::ENODEV)) => {}
            Err(errno) => {
                // The kernel has failed the request if it knew it; it waits for no other answer.
                tracing::warn!(unique = ticket.unique, ?errno, bytes, "the kernel refused an answer");
            }
        }
    }
}

impl ReplySink for DevSink {
    fn send(&self, ticket: Ticket, answer: Answer<'_>) {
        match answer {
            Answer::Error(errno) => self.write(ticket, -errno.number(), &[]),
            Answer::Data(parts) => self.write(ticket, 0, parts),
            Answer::Unwanted => {}
        }
    }

    fn send_many(&self, answers: &mut Vec<(Ticket, ShortAnswer)>) {
        for (ticket, answer) in answers.drain(..) {
            match answer.get() {
                Ok(data) => self.write(ticket, 0, &[IoSlice::new(data)]),
                Err(errno) => self.write(ticket, -errno.number(), &[]),
            }
        }
    }

    fn memory(&self, _ticket: Ticket, bytes: usize) -> ReplyMemory {
        let mut spare = self.spare.lock();
        // The smallest that is large enough, so that a small answer does not take a large one's.
        let fitting = spare.iter().enumerate().filter(|(_, buffer)| buffer.len() >= bytes);
        let best = fitting.min_by_key(|(_, buffer)| buffer.len()).map(|(index, _)| index);
        let taken = best.map(|index| spare.swap_remove(index));
        drop(spare);
        ReplyMemory::Own(taken.unwrap_or_else(|| PageBuffer::new(bytes)))
    }

    fn send_memory(&self, ticket: Ticket, memory: ReplyMemory, bytes: usize) {
        self.write(ticket, 0, &[IoSlice::new(&memory.as_slice()[..bytes])]);
        self.return_memory(ticket, memory);
    }

    fn return_memory(&self, _ticket: Ticket, memory: ReplyMemory) {
        let ReplyMemory::Own(buffer) = memory else { return };
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_BUFFERS_MAX {
            spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::GetAttrIn;

    struct Sizes;

    impl Handler for Sizes {
        fn handle(&self, _: &dyn Source, _: RawRequest<'_>, _: ReplySlot) {}

        fn header_bytes(&self, opcode: Opcode) -> Option<usize> {
            opcode.header_bytes(false)
        }
    }

    #[test]
    fn messages_of_any_length_are_split_without_panic() {
        let header = InHeader { opcode: Opcode::GETATTR, unique: 5, ..InHeader::default() };
        let mut message = header.as_bytes().to_vec();
        message.extend_from_slice(GetAttrIn::default().as_bytes());
        message.extend_from_slice(b"rest");
        for bytes in 0..=message.len() {
            let parts = split(&message[..bytes], &Sizes);
            assert_eq!(parts.is_some(), bytes >= 40);
            if let Some(((op, payload), got)) = parts {
                assert_eq!((got, op.len() + payload.len()), (header, bytes - 40));
                assert!(op.len() <= 16);
            }
        }
        let ((op, payload), _) = split(&message, &Sizes).expect("whole");
        assert_eq!((op.len(), payload), (16, &b"rest"[..]));
    }
}
