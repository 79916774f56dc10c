//! The io_uring of a queue's thread and the entries that go through it; used by that thread only. An entry comes back
//! through the ring that its last answer went through.
//!
//! Each entry is *lent* to the kernel, which completes its command when it has put a request there; *owed*, from then
//! until the answer is submitted; or *retired*, once the kernel has ended a command with an error and will use it no
//! more. The counts of the first and the last decide when the thread may end.
//!
//! Invariant: there is at most one submission per entry that the thread may have and one for the bell, so the
//! submission queue cannot be full; there are at most as many completions, so the completion queue cannot overflow.

use super::command::{self, FILE_BELL, FILE_DEVICE};
use super::inbox::{Content, Outgoing};
use super::memory::EntryIndex;
use super::queue::{Queue, Role};
use crate::abi::OutHeader;
use crate::abi::uring::UringReqHeader;
use crate::errno::Errno;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Completions with this number are of the bell's poll.
const USER_DATA_BELL: u64 = u64::MAX;

/// Completions with this number concern nobody.
const USER_DATA_NOBODY: u64 = u64::MAX - 1;

/// A queue for which nothing has come for so long has nothing to do: a tenth of a second.
const IDLE: types::Timespec = types::Timespec::new().nsec(100_000_000);

/// A completion that concerns an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub entry: EntryIndex,
    /// Why the entry is retired; `None`: a request is in it.
    pub ended: Option<Errno>,
}

/// The ring of one queue.
pub(super) struct Ring {
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
    queue: Arc<Queue>,
    role: Role,
    /// Which entries are lent to the kernel through this ring,
    is_lent: Vec<bool>,
    /// and how many.
    lent: usize,
    /// If the queue uses more, the pages of those entries are given back when there is nothing to do.
    resident_bytes_max: usize,
    bell_armed: bool,
    /// Reused by `commit_own`.
    own: Vec<Outgoing>,
}

impl Ring {
    /// Makes the ring; nothing is submitted. The calling thread is the one that will submit; `bell` is its inbox's.
    pub fn new(
        queue: Arc<Queue>,
        role: Role,
        bell: BorrowedFd<'_>,
        resident_bytes_max: usize,
    ) -> io::Result<Ring> {
        let depth = queue.memory.depth();
        let submissions = match role {
            Role::Main => u32::from(depth) + 1,
            Role::Deputy | Role::SecondDeputy => 2,
        };
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        // One thread submits and reaps, and the kernel delivers requests only while it is in a system call: no
        // interruptions between processors, and nobody touches an entry's memory while this process does.
        builder.setup_single_issuer().setup_defer_taskrun().setup_submit_all();
        builder.setup_cqsize(submissions.next_power_of_two() * 2);
        let uring = builder.build(submissions)?;
        uring.submitter().register_files(&[-1, bell.as_raw_fd()])?;
        Ok(Ring {
            uring,
            is_lent: vec![false; usize::from(depth)],
            queue,
            role,
            lent: 0,
            resident_bytes_max,
            bell_armed: false,
            own: Vec::new(),
        })
    }

    /// Lends all entries to the kernel, and tells how many it took.
    ///
    /// Requests may arrive at once: they are in `arrivals`. The error is the kernel's word on the first entry that it
    /// refused if it took none.
    pub fn register(&mut self, device: BorrowedFd<'_>, arrivals: &mut Vec<Arrival>) -> Result<usize, Errno> {
        self.attach(device)?;
        let depth = self.queue.memory.depth();
        let areas: Vec<_> = (0..depth).map(|index| self.queue.memory.areas(EntryIndex(index))).collect();
        for (index, areas) in (0..depth).zip(&areas) {
            let entry = EntryIndex(index);
            self.push(command::register(self.queue.id, areas, user_data(entry)));
            self.is_lent[usize::from(index)] = true;
            self.lent += 1;
        }
        self.arm_bell();
        // The kernel has read `areas` when this returns.
        self.submit()?;
        self.collect(arrivals);
        let refusal = arrivals.iter().find_map(|arrival| arrival.ended);
        arrivals.retain(|arrival| arrival.ended.is_none());
        match refusal {
            Some(errno) if self.lent == 0 && arrivals.is_empty() => Err(errno),
            _ => Ok(self.lent + arrivals.len()),
        }
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's own descriptor, which is open as long as the ring is there.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }

    /// Commands go to this device from now on.
    pub fn attach(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        self.uring.submitter().register_files_update(FILE_DEVICE.0, &[device.as_raw_fd()]).map(drop)
    }

    /// Makes the kernel stop holding requests back for this connection's queues: an entry that it must refuse.
    pub fn refuse(&mut self, device: BorrowedFd<'_>) {
        let areas = self.queue.memory.areas(EntryIndex(0));
        // Here the table of files may be what failed.
        let entry = command::register_impossible(device, &areas, USER_DATA_NOBODY);
        self.push(entry);
        if let Err(error) = self.submit() {
            tracing::error!(%error, "the kernel could not be told that io_uring will not be used; requests will hang");
        }
    }

    /// Entries lent to the kernel.
    pub fn lent(&self) -> usize {
        self.lent
    }

    /// Writes the answers that this thread gave itself into their entries and queues the submissions; those that are
    /// not to go through this ring, or not yet, are left to the queue's main thread.
    pub fn commit_own(&mut self, goes_here: impl Fn(EntryIndex) -> bool) {
        let mut own = std::mem::take(&mut self.own);
        Queue::take_own_answers(&mut own);
        for outgoing in own.drain(..) {
            if self.role == Role::Main && outgoing.streams() {
                self.queue.leave_for_deputy(outgoing);
            } else if goes_here(outgoing.entry) {
                self.commit(outgoing);
            } else {
                self.queue.inbox.leave([outgoing]);
            }
        }
        self.own = own;
    }

    /// The same for answers that others gave.
    ///
    /// One for a deputy whose handler was found running may come when that has returned, and when another answer has
    /// brought the deputy an entry already. With two it would wait for the device in the one while the other one's
    /// caller waits for it.
    pub fn commit_incoming(&mut self, incoming: &mut Vec<Outgoing>) {
        for outgoing in incoming.drain(..) {
            if self.role.is_deputy() && self.lent > 0 {
                self.queue.inbox.leave([outgoing]);
            } else {
                self.commit(outgoing);
            }
        }
    }

    /// Writes an answer into its entry and queues the submission that lends it to the kernel again.
    fn commit(&mut self, outgoing: Outgoing) {
        let Outgoing { entry, unique, content } = outgoing;
        let queue = Arc::clone(&self.queue);
        let payload = queue.memory.payload(entry);
        let (error, bytes) = match &content {
            Content::Short(answer) => match answer.get() {
                Ok(data) => (0, self.put(payload, data)),
                Err(errno) => (-errno.number(), 0),
            },
            Content::InPlace(bytes) => (0, *bytes),
            Content::Copied(data) => (0, self.put(payload, data)),
            Content::Buffer(buffer, bytes) => (0, self.put(payload, &buffer.as_slice()[..*bytes])),
        };
        queue.note_touched(entry, bytes.max(queue.lent_bytes(entry)));
        self.put_header(queue.memory.header(entry), unique, error, bytes);
        let was_lent = std::mem::replace(&mut self.is_lent[usize::from(entry.0)], true);
        assert!(!was_lent, "entry {} is answered twice", entry.0);
        self.lent += 1;
        self.push(command::commit_and_fetch(queue.id, queue.commit_id(entry), user_data(entry)));
    }

    fn put(&self, payload: NonNull<u8>, data: &[u8]) -> usize {
        assert!(
            data.len() <= self.queue.memory.payload_bytes(),
            "answers were measured when they were given"
        );
        // SAFETY: the payload has room; its entry was answered and its handler has returned, so it is this thread's
        // now.
        unsafe { payload.copy_from_nonoverlapping(NonNull::from(data).cast(), data.len()) };
        data.len()
    }

    fn put_header(&self, header: NonNull<UringReqHeader>, unique: u64, error: i32, bytes: usize) {
        let out = OutHeader { len: (size_of::<OutHeader>() + bytes) as u32, error, unique };
        let header = header.as_ptr();
        // SAFETY: the header area belongs to this thread, as the payload does in `put`.
        unsafe {
            (&raw mut (*header).in_out).cast::<OutHeader>().write_unaligned(out);
            (*header).ring_ent_in_out.payload_sz = bytes as u32;
        }
    }

    /// Submits what is queued and takes completions once there are any.
    ///
    /// If more pages than the bound are in use and nothing comes for [`IDLE`], those of lent entries are given back
    /// first: under load they would be needed again at once. Who brings the queue above the bound sees that here
    /// before it sleeps, so a queue that has nothing to do stays above it only for requests that are owed an answer.
    pub fn wait(&mut self, arrivals: &mut Vec<Arrival>) -> io::Result<()> {
        if self.queue.resident_bytes() > self.resident_bytes_max {
            self.enter(1, Some(&IDLE))?;
            // The bell counts: it does not ring again for what is in the inbox already.
            if self.collect(arrivals) > 0 {
                return Ok(());
            }
            self.trim();
        }
        self.enter(1, None)?;
        self.collect(arrivals);
        Ok(())
    }

    /// Gives pages of lent entries back. Only when the kernel has taken all submissions and no completion is there:
    /// then an entry that is lent holds neither an answer nor a request.
    fn trim(&mut self) {
        if !self.uring.submission().is_empty() || !self.uring.completion().is_empty() {
            return;
        }
        for (index, _) in (0..).zip(&self.is_lent).filter(|&(_, &is_lent)| is_lent) {
            self.queue.release_pages(EntryIndex(index));
        }
    }

    /// Submits what is queued without waiting.
    pub fn submit(&mut self) -> io::Result<()> {
        self.enter(0, None)
    }

    /// Submits what is queued and waits until `want` completions are there or `timeout` has passed.
    fn enter(&mut self, want: usize, timeout: Option<&types::Timespec>) -> io::Result<()> {
        if !self.bell_armed && want > 0 {
            self.arm_bell();
        }
        loop {
            let submitter = self.uring.submitter();
            let entered = match timeout {
                Some(timeout) => {
                    submitter.submit_with_args(want, &types::SubmitArgs::new().timespec(timeout))
                }
                None => submitter.submit_and_wait(want),
            };
            match entered.map_err(|error| (error.raw_os_error(), error)) {
                // Short of memory for a moment, or completions must be taken first.
                Ok(_) | Err((Some(libc::ETIME | libc::EAGAIN | libc::EBUSY), _)) => return Ok(()),
                Err((Some(libc::EINTR), _)) => {}
                Err((_, error)) => return Err(error),
            }
        }
    }

    /// Takes the completions that are there, and tells how many they were, the bell's among them; `arrivals` is added
    /// to.
    pub fn collect(&mut self, arrivals: &mut Vec<Arrival>) -> usize {
        let mut taken = 0;
        for completion in self.uring.completion() {
            taken += 1;
            match completion.user_data() {
                USER_DATA_BELL => {
                    self.bell_armed &= cqueue::more(completion.flags());
                    continue;
                }
                USER_DATA_NOBODY => continue,
                _ => {}
            }
            let entry = EntryIndex(completion.user_data() as u16);
            let was_lent = std::mem::take(&mut self.is_lent[usize::from(entry.0)]);
            assert!(was_lent, "entry {} came back twice", entry.0);
            self.lent -= 1;
            let result = completion.result();
            let ended = (result < 0).then(|| Errno::from_number(-result));
            arrivals.push(Arrival { entry, ended });
        }
        taken
    }

    /// Completions that have not been taken.
    pub fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    fn arm_bell(&mut self) {
        // Edge-triggered as all polls that stay: the eventfd need never be read.
        let entry = opcode::PollAdd::new(FILE_BELL, libc::POLLIN as u32).multi(true).build();
        self.push(squeue::Entry128::from(entry).user_data(USER_DATA_BELL));
        self.bell_armed = true;
    }

    fn push(&mut self, entry: squeue::Entry128) {
        // SAFETY: commands name memory of `queue.memory`, which outlives the ring; registrations also name `areas`,
        // which lives until they are submitted.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        pushed.expect("there is room for one submission of every entry and the bell");
    }
}

fn user_data(entry: EntryIndex) -> u64 {
    u64::from(entry.0)
}

#[cfg(test)]
mod tests {
    use super::super::command::QueueId;
    use super::super::inbox::{Ending, Inbox, Look};
    use super::*;
    use crate::reply::slot::ShortAnswer;

    #[test]
    fn the_bell_ends_the_wait_also_while_pages_are_to_be_given_back() {
        let queue = Arc::new(Queue::new(QueueId(0), 1, 8192).expect("small mappings succeed"));
        queue.note_touched(EntryIndex(0), 4096);
        assert_eq!(queue.inbox.look_before_sleep(Ending::No), Look::MaySleep);
        queue.inbox.end(Ending::Ended);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let ring = Ring::new(Arc::clone(&queue), Role::Main, queue.inbox.bell(), 0);
            let waited = ring.ok().map(|mut ring| {
                let mut arrivals = Vec::new();
                ring.wait(&mut arrivals).expect("the bell can be waited for");
                arrivals.len()
            });
            tell.send(waited).expect("the test waits");
        });
        // Longer than any machine needs.
        let waited = told.recv_timeout(std::time::Duration::from_secs(20)).expect("it sleeps on");
        assert!(matches!(waited, Some(0) | None), "None: there is no io_uring here");
    }

    #[test]
    fn a_deputy_has_one_entry_at_most_whatever_is_left_for_it() {
        for (role, lent) in [(Role::Deputy, 1), (Role::SecondDeputy, 1), (Role::Main, 2)] {
            let queue = Arc::new(Queue::new(QueueId(0), 2, 8192).expect("small mappings succeed"));
            if role.is_deputy() {
                queue.set_deputy(role, Inbox::new().expect("eventfds are to be had"));
            }
            let inbox = queue.inbox_of(role);
            let Ok(mut ring) = Ring::new(Arc::clone(&queue), role, inbox.bell(), 0) else { return };
            let answer = |entry| Outgoing {
                entry: EntryIndex(entry),
                unique: 9,
                content: Content::Short(ShortAnswer::data(&[])),
            };
            assert!(inbox.leave_if_free(answer(0)).is_none());
            inbox.leave([answer(1)]);
            let mut incoming = Vec::new();
            inbox.take(&mut incoming);
            ring.commit_incoming(&mut incoming);
            queue.inbox.take(&mut incoming);
            assert_eq!((ring.lent(), incoming.len()), (lent, 2 - lent), "{role:?}");
        }
    }
}
