//! One queue as all threads see it: its memory, its inbox, and the answering side of its requests.
//!
//! Answers may come from any thread. Whoever holds a request's [`Ticket`] owns its entry, but writes at most its
//! payload, and that only if the request had none: a handler may still be reading the request while it is answered
//! elsewhere. Everything else (header areas, payloads that held something) is written by the queue's own thread, after
//! the handler has returned. An answer given on that thread itself, while it runs a handler, goes to a list of the
//! thread's own instead of the inbox and so takes neither lock nor bell.
//!
//! A queue may have two more threads, its *deputies* (module `thread`), each with an inbox and a ring of its own:
//! whoever of them answers a request has its entry from then on. So an answer goes to the thread whose handler still
//! runs, and may go to any once it has returned.

use super::command::QueueId;
use super::inbox::{Content, Ending, Inbox, Outgoing};
use super::memory::{EntryIndex, Memory};
use crate::errno::Errno;
use crate::memory::{PageBuffer, ReplyMemory, SharedMemory};
use crate::reply::slot::{Answer, ReplySink, SHORT_BYTES_MAX, ShortAnswer, Ticket};
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

thread_local! {
    /// Of a queue's own thread.
    static OWN: RefCell<OwnAnswers> =
        const { RefCell::new(OwnAnswers { queue: std::ptr::null(), role: Role::Main, answers: Vec::new() }) };
}

/// Which of a queue's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Has all entries but two at most.
    Main = 1,
    /// Has one entry at most.
    Deputy = 2,
    /// The same.
    SecondDeputy = 3,
}

impl Role {
    pub const DEPUTIES: [Role; 2] = [Role::Deputy, Role::SecondDeputy];

    pub fn is_deputy(self) -> bool {
        self != Role::Main
    }
}

/// Answers that a queue's thread gave to its own queue.
struct OwnAnswers {
    /// Compared only, never followed.
    queue: *const Queue,
    role: Role,
    answers: Vec<Outgoing>,
}

/// The shared part of a queue.
pub(super) struct Queue {
    pub id: QueueId,
    pub memory: Memory,
    pub inbox: Inbox,
    /// The deputies', once there are any; in the order of [`Role::DEPUTIES`].
    deputies: [OnceLock<Inbox>; 2],
    /// To whom the latest answer went that came alone, or who made the latest request of a deputy. A hint.
    alone: AtomicU32,
    entries: Box<[EntryState]>,
    /// Bytes of payloads whose pages may be in use: the sum of `touched`.
    resident_bytes: AtomicUsize,
}

/// What a ticket's holder may do with its entry's payload.
#[derive(Default)]
struct EntryState {
    /// The request had no payload and nobody uses the memory: the answer may be put there. Set by the queue's thread
    /// before it hands the request over, then the ticket's holder's; what orders the two is the handing over.
    payload_is_free: AtomicBool,
    /// Bytes of the payload that were given to the filesystem to write in.
    lent_bytes: AtomicUsize,
    /// Bytes of the payload whose pages may be in use. Belongs to the thread that has the entry, through whichever
    /// ring it goes.
    touched_bytes: AtomicUsize,
    /// Names the request in the command that answers it. Set and handed on as `payload_is_free`.
    commit_id: AtomicU64,
    /// The thread that made the request, as its header has it. Set and handed on as `payload_is_free`.
    caller: AtomicU32,
    /// The thread whose handler runs with the request, as a [`Role`]; 0 if none does. Only a thread that finds 0
    /// there, or itself, may write the entry's areas: Release when the handler has returned, Acquire where it is
    /// looked at.
    handled_by: AtomicU8,
}

impl Queue {
    pub fn new(id: QueueId, depth: u16, payload_bytes: usize) -> io::Result<Queue> {
        Ok(Queue {
            id,
            memory: Memory::map(depth, payload_bytes)?,
            inbox: Inbox::new()?,
            deputies: Default::default(),
            alone: AtomicU32::new(0),
            entries: (0..depth).map(|_| EntryState::default()).collect(),
            resident_bytes: AtomicUsize::new(0),
        })
    }

    /// There is this deputy from now on, which finds there what is left for it.
    pub fn set_deputy(&self, role: Role, inbox: Inbox) {
        assert!(self.deputy(role).set(inbox).is_ok(), "a deputy has one inbox");
    }

    fn deputy(&self, role: Role) -> &OnceLock<Inbox> {
        &self.deputies[role as usize - Role::Deputy as usize]
    }

    /// Declares the calling thread this queue's own.
    pub fn own_by_this_thread(&self, role: Role) {
        OWN.with_borrow_mut(|own| (own.queue, own.role) = (self, role));
    }

    /// Where answers for a thread are left. There is that deputy, if its inbox is asked for.
    pub fn inbox_of(&self, role: Role) -> &Inbox {
        match role {
            Role::Main => &self.inbox,
            role => self.deputy(role).get().expect("only a queue with a deputy has one to name"),
        }
    }

    /// Tells its threads to end.
    pub fn end(&self, why: Ending) {
        self.inbox.end(why);
        self.deputies.iter().filter_map(OnceLock::get).for_each(|deputy| deputy.end(why));
    }

    /// Takes the answers that the calling thread gave itself into `into`, which must be empty.
    pub fn take_own_answers(into: &mut Vec<Outgoing>) {
        debug_assert!(into.is_empty());
        OWN.with_borrow_mut(|own| std::mem::swap(&mut own.answers, into));
    }

    /// For the queue's thread `role`, before it hands over a request of `caller`, which the kernel calls `commit_id`.
    pub fn hand_over(
        &self,
        entry: EntryIndex,
        commit_id: u64,
        caller: u32,
        payload_is_empty: bool,
        role: Role,
    ) {
        let state = self.entry(entry);
        state.caller.store(caller, Ordering::Relaxed);
        state.commit_id.store(commit_id, Ordering::Relaxed);
        state.handled_by.store(role as u8, Ordering::Relaxed);
        state.payload_is_free.store(payload_is_empty, Ordering::Relaxed);
        state.lent_bytes.store(0, Ordering::Relaxed);
        if role.is_deputy() {
            self.note_alone(caller);
        }
    }

    /// This caller seems to be alone; returns whether it did before. The kernel's own requests (0) are nobody's.
    fn note_alone(&self, caller: u32) -> bool {
        let is_known = caller == 0 || self.alone.load(Ordering::Relaxed) == caller;
        if !is_known {
            self.alone.store(caller, Ordering::Relaxed);
        }
        is_known
    }

    /// The handler that was handed the request has returned.
    pub fn handled(&self, entry: EntryIndex) {
        self.entry(entry).handled_by.store(0, Ordering::Release);
    }

    /// Whose handler runs with the entry's request.
    pub fn handler_of(&self, entry: EntryIndex) -> Option<Role> {
        let by = self.entry(entry).handled_by.load(Ordering::Acquire);
        [Role::Main, Role::Deputy, Role::SecondDeputy].into_iter().find(|role| *role as u8 == by)
    }

    /// What the kernel calls the entry's request.
    pub fn commit_id(&self, entry: EntryIndex) -> u64 {
        self.entry(entry).commit_id.load(Ordering::Relaxed)
    }

    /// Bytes of the entry's payload that the filesystem may have written since it was handed over.
    pub fn lent_bytes(&self, entry: EntryIndex) -> usize {
        self.entry(entry).lent_bytes.load(Ordering::Relaxed)
    }

    /// So many bytes of the entry's payload are in use. For the thread that has the entry.
    pub fn note_touched(&self, entry: EntryIndex, bytes: usize) {
        let touched = &self.entry(entry).touched_bytes;
        let more = bytes.saturating_sub(touched.load(Ordering::Relaxed));
        if more > 0 {
            touched.fetch_add(more, Ordering::Relaxed);
            self.resident_bytes.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Bytes of payloads whose pages may be in use.
    pub fn resident_bytes(&self) -> usize {
        self.resident_bytes.load(Ordering::Relaxed)
    }

    /// Gives the pages of an entry's payload back to the system. For the thread that has lent it to the kernel.
    pub fn release_pages(&self, entry: EntryIndex) {
        let touched = self.entry(entry).touched_bytes.swap(0, Ordering::Relaxed);
        if touched > 0 {
            self.memory.release_pages(entry);
            self.resident_bytes.fetch_sub(touched, Ordering::Relaxed);
        }
    }

    fn entry(&self, entry: EntryIndex) -> &EntryState {
        &self.entries[usize::from(entry.0)]
    }

    /// Whether the caller, who holds the entry's ticket, may write its payload; it may be asked for once.
    fn claim_payload(&self, entry: EntryIndex) -> bool {
        self.entry(entry).payload_is_free.swap(false, Ordering::Relaxed)
    }

    fn give(&self, outgoing: Outgoing) {
        let handler = self.handler_of(outgoing.entry);
        let mut outgoing = Some(outgoing);
        // An error means that the calling thread is past its end: then it is not a queue's own.
        let _ = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            if std::ptr::eq(own.queue, self) && handler.is_none_or(|role| role == own.role) {
                own.answers.extend(outgoing.take());
            }
        });
        let Some(outgoing) = outgoing else { return };
        if outgoing.streams() {
            return self.leave_for_deputy(outgoing);
        }
        self.inbox_of(handler.unwrap_or(Role::Main)).leave([outgoing]);
    }

    /// Leaves an answer whose caller is likely to go on by itself: one that comes alone was waited for, a long one is
    /// part of a stream. A deputy takes it over if it is free; the second one only if nobody else came by a deputy
    /// since the same caller's last answer. What callers beside each other wait for is shared better by the drivers.
    pub fn leave_for_deputy(&self, outgoing: Outgoing) {
        if let Some(role) = self.handler_of(outgoing.entry) {
            return self.inbox_of(role).leave([outgoing]);
        }
        let is_alone =
            !outgoing.streams() && self.note_alone(self.entry(outgoing.entry).caller.load(Ordering::Relaxed));
        let may_take = if is_alone { self.deputies.len() } else { 1 };
        let mut left = Some(outgoing);
        for deputy in self.deputies.iter().take(may_take).filter_map(OnceLock::get) {
            left = left.and_then(|outgoing| deputy.leave_if_free(outgoing));
        }
        self.inbox.leave(left);
    }

    /// Data of an answer as it is sent.
    fn content_of(&self, entry: EntryIndex, parts: &[IoSlice<'_>]) -> Content {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > self.memory.payload_bytes() {
            return Content::Short(too_long(bytes, self.memory.payload_bytes()));
        }
        if bytes > 0 && self.claim_payload(entry) {
            let mut to = self.memory.payload(entry);
            for part in parts {
                // SAFETY: the payload is ours by `claim_payload` and has room for the sum of all parts.
                unsafe {
                    to.copy_from_nonoverlapping(NonNull::from(&**part).cast(), part.len());
                    to = to.add(part.len());
                }
            }
            return Content::InPlace(bytes);
        }
        if let [part] = parts
            && bytes <= SHORT_BYTES_MAX
        {
            return Content::Short(ShortAnswer::data(part));
        }
        let mut joined = Vec::with_capacity(bytes);
        for part in parts {
            joined.extend_from_slice(part);
        }
        if bytes <= SHORT_BYTES_MAX {
            Content::Short(ShortAnswer::data(&joined))
        } else {
            Content::Copied(joined)
        }
    }
}

impl ReplySink for Queue {
    fn send(&self, ticket: Ticket, answer: Answer<'_>) {
        let entry = entry_of(ticket);
        let content = match answer {
            Answer::Error(errno) => Content::Short(ShortAnswer::error(errno)),
            // The entry must be lent again all the same, and there is one command that does it.
            Answer::Unwanted | Answer::Data([]) => Content::InPlace(0),
            Answer::Data(parts) => self.content_of(entry, parts),
        };
        self.give(Outgoing { entry, unique: ticket.unique, content });
    }

    fn send_many(&self, answers: &mut Vec<(Ticket, ShortAnswer)>) {
        let outgoing = |(ticket, answer): (Ticket, ShortAnswer)| Outgoing {
            entry: entry_of(ticket),
            unique: ticket.unique,
            content: Content::Short(answer),
        };
        if answers.len() == 1 {
            return answers.drain(..).map(outgoing).for_each(|alone| self.leave_for_deputy(alone));
        }
        for role in Role::DEPUTIES {
            let is_its = |(ticket, _): &(Ticket, _)| self.handler_of(entry_of(*ticket)) == Some(role);
            // It has one entry at most.
            if let Some(at) = answers.iter().position(is_its) {
                self.inbox_of(role).leave([outgoing(answers.swap_remove(at))]);
            }
        }
        self.inbox.leave(answers.drain(..).map(outgoing));
    }

    fn memory(&self, ticket: Ticket, bytes: usize) -> ReplyMemory {
        let entry = entry_of(ticket);
        if bytes > self.memory.payload_bytes() || !self.claim_payload(entry) {
            return ReplyMemory::Own(PageBuffer::new(bytes));
        }
        self.entry(entry).lent_bytes.fetch_max(bytes, Ordering::Relaxed);
        let bytes = bytes.next_multiple_of(crate::memory::PAGE_BYTES);
        // SAFETY: the payload is initialised, a whole number of pages that is not less than `bytes`, and by
        // `claim_payload` this ticket's until it is answered; the ticket's holder keeps the queue, and with it the
        // mapping.
        ReplyMemory::Shared(unsafe { SharedMemory::new(self.memory.payload(entry), bytes) })
    }

    fn send_memory(&self, ticket: Ticket, memory: ReplyMemory, bytes: usize) {
        let entry = entry_of(ticket);
        let content = match memory {
            _ if bytes > self.memory.payload_bytes() => {
                Content::Short(too_long(bytes, self.memory.payload_bytes()))
            }
            ReplyMemory::Shared(_) => Content::InPlace(bytes),
            ReplyMemory::Own(buffer) => Content::Buffer(buffer, bytes),
        };
        self.give(Outgoing { entry, unique: ticket.unique, content });
    }

    fn return_memory(&self, ticket: Ticket, memory: ReplyMemory) {
        if let ReplyMemory::Shared(_) = memory {
            self.entry(entry_of(ticket)).payload_is_free.store(true, Ordering::Relaxed);
        }
    }
}

fn entry_of(ticket: Ticket) -> EntryIndex {
    EntryIndex(u16::try_from(ticket.entry).expect("this queue's tickets name its entries"))
}

fn too_long(bytes: usize, payload_bytes: usize) -> ShortAnswer {
    tracing::error!(
        bytes,
        payload_bytes,
        "an answer is longer than the kernel has room for; its caller gets EIO"
    );
    ShortAnswer::error(Errno::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::streams::STREAMING_BYTES_MIN;

    const CALLER: u32 = 77;
    const TICKET: Ticket = Ticket { unique: 9, entry: 1 };

    fn queue() -> Queue {
        queue_of(8192)
    }

    fn queue_of(payload_bytes: usize) -> Queue {
        let queue = Queue::new(QueueId(0), 2, payload_bytes).expect("small mappings succeed");
        queue.set_deputy(Role::Deputy, Inbox::new().expect("eventfds are to be had"));
        queue
    }

    /// A request that the queue's thread has handed over.
    fn handed_over(queue: &Queue, payload_is_empty: bool) {
        queue.hand_over(EntryIndex(1), 5, CALLER, payload_is_empty, Role::Main);
    }

    fn answers_left(queue: &Queue, role: Role) -> usize {
        let mut found = Vec::new();
        queue.inbox_of(role).take(&mut found);
        found.len()
    }

    fn sent(queue: &Queue) -> Content {
        let mut found = Vec::new();
        queue.inbox.take(&mut found);
        assert_eq!(found.len(), 1);
        let outgoing = found.remove(0);
        assert_eq!((outgoing.unique, outgoing.entry), (9, EntryIndex(1)));
        outgoing.content
    }

    #[test]
    fn memory_is_the_entrys_own_page_when_the_request_had_no_payload() {
        let queue = queue();
        handed_over(&queue, true);
        let mut memory = queue.memory(TICKET, 100);
        assert!(matches!(queue.memory(TICKET, 100), ReplyMemory::Own(_)), "it is given once");
        memory.as_mut_slice()[..3].copy_from_slice(b"abc");
        assert_eq!(memory.as_slice().as_ptr(), queue.memory.payload(EntryIndex(1)).as_ptr().cast_const());
        queue.send_memory(TICKET, memory, 3);
        assert!(matches!(sent(&queue), Content::InPlace(3)));
        assert_eq!(queue.lent_bytes(EntryIndex(1)), 100);
    }

    #[test]
    fn memory_that_was_returned_is_given_again() {
        let queue = queue();
        handed_over(&queue, true);
        let memory = queue.memory(TICKET, 8192);
        queue.return_memory(TICKET, memory);
        assert!(matches!(queue.memory(TICKET, 8192), ReplyMemory::Shared(_)));
    }

    #[test]
    fn a_payload_that_may_still_be_read_is_not_written() {
        let queue = queue();
        handed_over(&queue, false);
        assert!(matches!(queue.memory(TICKET, 100), ReplyMemory::Own(_)));
        queue.send(TICKET, Answer::Data(&[IoSlice::new(b"abc"), IoSlice::new(b"de")]));
        let Content::Short(answer) = sent(&queue) else { panic!("short answers are kept by value") };
        assert_eq!(answer.get(), Ok(&b"abcde"[..]));
        queue.send(TICKET, Answer::Data(&[IoSlice::new(&[7; 5000])]));
        assert!(matches!(sent(&queue), Content::Copied(bytes) if bytes == [7; 5000]));
        // SAFETY: the entry is this test's.
        assert_eq!(unsafe { queue.memory.payload(EntryIndex(1)).read() }, 0);
    }

    #[test]
    fn an_answer_that_does_not_fit_becomes_an_error() {
        let queue = queue();
        handed_over(&queue, true);
        queue.send(TICKET, Answer::Data(&[IoSlice::new(&[7; 8193])]));
        assert!(matches!(sent(&queue), Content::Short(answer) if answer.get() == Err(Errno::EIO)));
    }

    #[test]
    fn an_answer_goes_to_the_thread_whose_handler_may_still_read_the_request() {
        let queue = queue();
        let alone = || vec![(TICKET, ShortAnswer::data(&[]))];
        for role in [Role::Main, Role::Deputy] {
            let other = if role == Role::Main { Role::Deputy } else { Role::Main };
            queue.hand_over(EntryIndex(1), 5, CALLER, true, role);
            queue.send_many(&mut alone());
            assert_eq!((answers_left(&queue, role), answers_left(&queue, other)), (1, 0), "{role:?}");
            queue.send(TICKET, Answer::Error(Errno::EIO));
            assert_eq!((answers_left(&queue, role), answers_left(&queue, other)), (1, 0), "{role:?}");
            let mut two = alone();
            two.push((Ticket { unique: 8, entry: 0 }, ShortAnswer::data(&[])));
            queue.send_many(&mut two);
            let left = (answers_left(&queue, Role::Main), answers_left(&queue, Role::Deputy));
            assert_eq!(left, if role == Role::Main { (2, 0) } else { (1, 1) });
        }
        queue.handled(EntryIndex(1));
        queue.send_many(&mut alone());
        assert_eq!(
            answers_left(&queue, Role::Main),
            1,
            "what was left for the deputy has brought it an entry"
        );
        queue.inbox_of(Role::Deputy).vacate();
        queue.send(TICKET, Answer::Error(Errno::EIO));
        assert_eq!(
            answers_left(&queue, Role::Main),
            1,
            "the deputy takes what comes by one that collects answers"
        );
        queue.send_many(&mut alone());
        assert_eq!(answers_left(&queue, Role::Deputy), 1);
        queue.send_many(&mut alone());
        assert_eq!(answers_left(&queue, Role::Main), 1, "it has an entry");
    }

    #[test]
    fn the_second_deputy_takes_over_the_answers_to_one_caller_in_a_row() {
        let queue = queue_of(8192);
        queue.set_deputy(Role::SecondDeputy, Inbox::new().expect("eventfds are to be had"));
        let by_deputy = |caller| {
            queue.hand_over(EntryIndex(0), 4, caller, true, Role::Deputy);
            queue.handled(EntryIndex(0));
        };
        let answer_to = |caller| {
            queue.hand_over(EntryIndex(1), 5, caller, true, Role::Main);
            queue.handled(EntryIndex(1));
            queue.send_many(&mut vec![(TICKET, ShortAnswer::data(&[]))]);
            [Role::Main, Role::Deputy, Role::SecondDeputy].map(|role| answers_left(&queue, role))
        };
        assert_eq!(answer_to(CALLER), [0, 1, 0]);
        for _ in 0..3 {
            assert_eq!(answer_to(CALLER + 1), [1, 0, 0], "two callers in turn are not alone");
            by_deputy(CALLER);
        }
        assert_eq!(answer_to(CALLER), [0, 0, 1], "nobody else has called");
        assert_eq!(answer_to(CALLER), [1, 0, 0], "both have an entry");
        queue.inbox_of(Role::SecondDeputy).vacate();
        assert_eq!(answer_to(CALLER + 1), [1, 0, 0]);
        by_deputy(0);
        assert_eq!(answer_to(CALLER + 1), [0, 0, 1], "a request of the kernel's own is nobody's");
    }

    #[test]
    fn a_long_answer_goes_to_the_deputy_once_the_handler_has_returned_if_it_is_free() {
        let long = STREAMING_BYTES_MIN;
        let queue = queue_of(long);
        let send = |bytes: usize| {
            queue.send_memory(TICKET, ReplyMemory::Own(PageBuffer::new(bytes)), bytes);
            (answers_left(&queue, Role::Main), answers_left(&queue, Role::Deputy))
        };
        handed_over(&queue, true);
        assert_eq!(send(long), (1, 0), "the handler may still read the request");
        queue.handled(EntryIndex(1));
        assert_eq!(send(long - 1), (1, 0), "it is short");
        assert_eq!(send(long), (0, 1));
        assert_eq!(send(long), (1, 0), "the deputy has an entry");
    }

    #[test]
    fn what_either_thread_has_used_of_a_payload_counts_once() {
        let queue = queue();
        queue.note_touched(EntryIndex(0), 100);
        queue.note_touched(EntryIndex(1), 8192);
        queue.note_touched(EntryIndex(1), 4096);
        assert_eq!(queue.resident_bytes(), 8292);
        queue.release_pages(EntryIndex(1));
        queue.release_pages(EntryIndex(1));
        assert_eq!(queue.resident_bytes(), 100);
    }

    #[test]
    fn answers_of_the_queues_own_thread_take_no_inbox() {
        std::thread::spawn(|| {
            let queue = queue();
            queue.own_by_this_thread(Role::Main);
            queue.send(TICKET, Answer::Error(Errno::ENOENT));
            let mut found = Vec::new();
            queue.inbox.take(&mut found);
            assert!(found.is_empty());
            Queue::take_own_answers(&mut found);
            assert_eq!(found.len(), 1);
        })
        .join()
        .expect("the thread's own assertions hold");
    }
}
