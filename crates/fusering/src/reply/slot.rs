//! The answer that one request is owed: the seam between typed replies and transports.
//!
//! A transport hands a [`ReplySlot`] along with each request. Whoever holds it answers exactly once, at any time, from
//! any thread; if it is dropped instead, the caller gets EIO and the log says so. The slot keeps its transport's
//! [`ReplySink`] (and with it the memory shared with the kernel) alive for as long as the answer is outstanding, even
//! beyond the end of the connection; an answer given after that is lost without harm.

use crate::abi::Opcode;
use crate::errno::Errno;
use crate::memory::ReplyMemory;
use std::io::IoSlice;
use std::sync::Arc;

/// Longest answer that is kept by value: CREATE's.
pub(crate) const SHORT_BYTES_MAX: usize = 144;

/// Names a request to its sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The kernel's number of the request.
    pub(crate) unique: u64,
    /// The transport's own number for it (an entry of a queue).
    pub(crate) entry: u32,
}

/// What follows the header of an answer.
#[derive(Clone, Copy)]
pub(crate) enum Answer<'a> {
    Error(Errno),
    /// Success with these bytes, one after the other; there may be none.
    Data(&'a [IoSlice<'a>]),
    /// The kernel waits for no answer (FORGET and the like). The transport may take its entry back.
    Unwanted,
}

/// A short answer kept by value, for batches.
#[derive(Clone, Copy)]
pub(crate) struct ShortAnswer {
    error: Option<Errno>,
    bytes: u8,
    data: [u8; SHORT_BYTES_MAX],
}

impl ShortAnswer {
    pub(crate) fn error(errno: Errno) -> ShortAnswer {
        ShortAnswer { error: Some(errno), bytes: 0, data: [0; SHORT_BYTES_MAX] }
    }

    /// Panics if `data` is longer than [`SHORT_BYTES_MAX`].
    pub(crate) fn data(data: &[u8]) -> ShortAnswer {
        let mut answer = ShortAnswer { error: None, bytes: data.len() as u8, data: [0; SHORT_BYTES_MAX] };
        answer.data[..data.len()].copy_from_slice(data);
        answer
    }

    /// Error or data.
    pub(crate) fn get(&self) -> Result<&[u8], Errno> {
        match self.error {
            Some(errno) => Err(errno),
            None => Ok(&self.data[..usize::from(self.bytes)]),
        }
    }
}

/// A transport's side of replies: one per queue or descriptor, shared by all requests that came through it.
///
/// Each ticket is answered once, by one of the three sending calls; all of them may be called from any thread. None
/// reports errors: an answer can only fail because the request or the connection is gone.
///
/// A request's payload is borrowed while its handler runs, and the handler may go on reading it after it gave the
/// answer. So a transport that answers in the same memory must not write there, nor give it back to the kernel,
/// before the handler has returned, unless the payload was empty.
pub(crate) trait ReplySink: Send + Sync {
    fn send(&self, ticket: Ticket, answer: Answer<'_>);

    /// Answers several requests at once, with one wake-up where the transport needs one. Takes all of `answers`, which
    /// keeps its capacity.
    fn send_many(&self, answers: &mut Vec<(Ticket, ShortAnswer)>);

    /// Memory for an answer of up to `bytes` bytes.
    fn memory(&self, ticket: Ticket, bytes: usize) -> ReplyMemory;

    /// Answers with the first `bytes` bytes of memory that [`ReplySink::memory`] gave for this ticket.
    fn send_memory(&self, ticket: Ticket, memory: ReplyMemory, bytes: usize);

    /// Takes memory back unused; another answer follows.
    fn return_memory(&self, _ticket: Ticket, _memory: ReplyMemory) {}
}

/// The answer owed to one request.
pub(crate) struct ReplySlot {
    /// Gone once answered.
    sink: Option<Arc<dyn ReplySink>>,
    ticket: Ticket,
    opcode: Opcode,
}

impl ReplySlot {
    pub(crate) fn new(sink: Arc<dyn ReplySink>, ticket: Ticket, opcode: Opcode) -> ReplySlot {
        ReplySlot { sink: Some(sink), ticket, opcode }
    }

    pub(crate) fn unique(&self) -> u64 {
        self.ticket.unique
    }

    fn take(&mut self) -> (Arc<dyn ReplySink>, Ticket) {
        (self.sink.take().expect("a slot is consumed by its answer"), self.ticket)
    }

    pub(crate) fn error(mut self, errno: Errno) {
        let (sink, ticket) = self.take();
        sink.send(ticket, Answer::Error(errno));
    }

    pub(crate) fn data(mut self, parts: &[IoSlice<'_>]) {
        let (sink, ticket) = self.take();
        sink.send(ticket, Answer::Data(parts));
    }

    pub(crate) fn bytes(self, bytes: &[u8]) {
        if bytes.is_empty() { self.data(&[]) } else { self.data(&[IoSlice::new(bytes)]) }
    }

    /// The kernel waits for no answer to this request.
    pub(crate) fn unwanted(mut self) {
        let (sink, ticket) = self.take();
        sink.send(ticket, Answer::Unwanted);
    }

    pub(crate) fn memory(&self, bytes: usize) -> ReplyMemory {
        let sink = self.sink.as_ref().expect("a slot is consumed by its answer");
        sink.memory(self.ticket, bytes)
    }

    pub(crate) fn send_memory(mut self, memory: ReplyMemory, bytes: usize) {
        let (sink, ticket) = self.take();
        sink.send_memory(ticket, memory, bytes);
    }

    pub(crate) fn return_memory(&self, memory: ReplyMemory) {
        let sink = self.sink.as_ref().expect("a slot is consumed by its answer");
        sink.return_memory(self.ticket, memory);
    }

    /// For a batch: whoever takes these owes the answer.
    pub(crate) fn into_parts(mut self) -> (Arc<dyn ReplySink>, Ticket) {
        self.take()
    }
}

impl Drop for ReplySlot {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            tracing::warn!(
                opcode = %self.opcode,
                unique = self.ticket.unique,
                "the filesystem dropped a request without an answer; its caller gets EIO"
            );
            sink.send(self.ticket, Answer::Error(Errno::EIO));
        }
    }
}
