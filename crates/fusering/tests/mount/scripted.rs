//! A filesystem that does what a test tells it: a root with a few fixed files, and requests that are kept.

use fusering::abi::{AttrFlags, OpenFlags};
use fusering::request::*;
use fusering::*;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Names in the root; their nodes follow the root's number.
const NAMES: [&str; 5] = ["held", "blocked", "polled", "cached", "dropped"];
/// `fsync` of it is answered when the test says so. The kernel lets one caller at a time sync a file, so there are more
/// of its kind: `held0`, `held1` and so on.
const HELD: NodeId = NodeId(2);
const HELD_MORE: u64 = 1000;
/// Reading it blocks the reading thread until the test opens the gate.
pub const BLOCKED: NodeId = NodeId(3);
pub const CACHED: NodeId = NodeId(5);
/// Replies to its reads are dropped.
pub const DROPPED: NodeId = NodeId(6);

#[derive(Default)]
pub struct State {
    pub kept: HashMap<RequestId, ReplyEmpty>,
    pub interrupted: Vec<RequestId>,
    pub gate_open: bool,
    pub blocked: usize,
    pub polls: Vec<PollHandle>,
    pub ready: bool,
    /// Content of `cached`.
    pub content: Vec<u8>,
    pub reads: usize,
    pub retrieved: Vec<(u64, Vec<u8>)>,
    pub lock: Option<Lock>,
    pub lock_waiters: Vec<ReplyEmpty>,
    pub synced: usize,
    /// What was called last, in order, by name.
    pub calls: Vec<&'static str>,
}

#[derive(Default)]
pub struct Scripted {
    pub state: Mutex<State>,
    pub changed: Condvar,
    /// What `destroy` waits before it returns.
    pub destroy_takes: Duration,
    /// Whether blocking is announced.
    pub announces: bool,
}

impl Scripted {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn open_gate(&self) {
        self.state().gate_open = true;
        self.changed.notify_all();
    }

    fn attributes(&self, node: NodeId) -> Attributes {
        let is_root = node == NodeId::ROOT;
        let time = Time { seconds: 1, nanoseconds: 0 };
        let size = if node == CACHED { self.state().content.len() as u64 } else { 4096 };
        Attributes {
            ino: node.0,
            size,
            blocks: 8,
            accessed: time,
            modified: time,
            changed: time,
            mode: if is_root { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 },
            links: 1,
            uid: 0,
            gid: 0,
            device: DeviceNumber::default(),
            block_bytes: 4096,
            flags: AttrFlags::empty(),
        }
    }
}

const VALID: Duration = Duration::from_secs(1000);

impl Filesystem for Scripted {
    fn destroy(&self) {
        std::thread::sleep(self.destroy_takes);
        self.state().calls.push("destroy");
    }

    fn interrupt(&self, request: RequestId) -> Interruption {
        let mut state = self.state();
        state.interrupted.push(request);
        match state.kept.remove(&request) {
            Some(reply) => {
                reply.error(Errno::EINTR);
                Interruption::Heard
            }
            None => Interruption::Again,
        }
    }

    fn retrieved(&self, id: u64, data: &Retrieved<'_>) {
        self.state().retrieved.push((id, data.data.to_vec()));
    }

    fn lookup(&self, _: &RequestContext<'_>, request: &Lookup<'_>, reply: ReplyEntry) {
        let found = NAMES.iter().position(|name| name.as_bytes() == request.name.as_bytes());
        let number = || request.name.to_str()?.strip_prefix("held")?.parse::<u64>().ok();
        let node = match (found, number()) {
            (Some(index), _) => NodeId(2 + index as u64),
            (None, Some(number)) => NodeId(HELD_MORE + number),
            (None, None) => return reply.error(Errno::ENOENT),
        };
        let attributes = self.attributes(node);
        reply.entry(&Entry { node, generation: 0, attributes, entry_valid: VALID, attributes_valid: VALID });
    }

    fn getattr(&self, _: &RequestContext<'_>, request: &GetAttr, reply: ReplyAttributes) {
        reply.attributes(&self.attributes(request.node), VALID);
    }

    fn open(&self, _: &RequestContext<'_>, request: &Open, reply: ReplyOpen) {
        let flags = match request.node {
            CACHED => OpenFlags::KEEP_CACHE,
            _ => OpenFlags::DIRECT_IO,
        };
        reply.opened(&Opened { handle: Handle(0), flags: flags | OpenFlags::NOFLUSH });
    }

    fn read(&self, context: &RequestContext<'_>, request: &Read, reply: ReplyData) {
        match request.node {
            DROPPED => drop(reply),
            BLOCKED => {
                let _waiting = self.announces.then(|| context.about_to_wait());
                let mut state = self.state();
                state.blocked += 1;
                while !state.gate_open {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                drop(state);
                reply.data(b"at last");
            }
            _ => {
                let mut state = self.state();
                state.reads += 1;
                let from = (request.offset as usize).min(state.content.len());
                let to = (from + request.size as usize).min(state.content.len());
                reply.data(&state.content[from..to]);
            }
        }
    }

    fn write(&self, _: &RequestContext<'_>, request: &Write<'_>, reply: ReplyWrite) {
        assert_eq!(request.data.as_ptr() as usize % 4096, 0, "data begins on a page boundary");
        reply.written(request.data.len() as u32);
    }

    fn fsync(&self, context: &RequestContext<'_>, request: &Fsync, reply: ReplyEmpty) {
        if request.node == HELD || request.node.0 >= HELD_MORE {
            self.state().kept.insert(context.id, reply);
        } else {
            reply.ok();
        }
    }

    fn syncfs(&self, _: &RequestContext<'_>, _: &SyncFs, reply: ReplyEmpty) {
        self.state().synced += 1;
        reply.ok();
    }

    fn release(&self, _: &RequestContext<'_>, _: &Release, reply: ReplyEmpty) {
        self.state().calls.push("release");
        reply.ok();
    }

    fn poll(&self, _: &RequestContext<'_>, request: &Poll, reply: ReplyPoll) {
        let mut state = self.state();
        if request.flags.contains(fusering::abi::PollFlags::SCHEDULE_NOTIFY) {
            state.polls.push(request.wakeup);
        }
        reply.ready(if state.ready { libc::POLLIN as u32 } else { 0 });
    }

    fn getlk(&self, _: &RequestContext<'_>, _: &LockRequest, reply: ReplyLock) {
        match &self.state().lock {
            Some(lock) => reply.held(lock),
            None => reply.free(),
        }
    }

    fn setlk(&self, context: &RequestContext<'_>, request: &LockRequest, reply: ReplyEmpty) {
        let mut state = self.state();
        match (request.lock.kind, state.lock.is_some()) {
            (LockKind::Unlocked, _) => {
                state.lock = None;
                if let Some(next) = state.lock_waiters.pop() {
                    state.lock = Some(Lock { pid: context.pid, ..request.lock });
                    next.ok();
                }
                reply.ok();
            }
            (_, true) => reply.error(Errno::EAGAIN),
            (_, false) => {
                state.lock = Some(request.lock);
                reply.ok();
            }
        }
    }

    fn setlkw(&self, context: &RequestContext<'_>, request: &LockRequest, reply: ReplyEmpty) {
        let mut state = self.state();
        if state.lock.is_some() {
            state.lock_waiters.push(reply);
        } else {
            drop(state);
            self.setlk(context, request, reply);
        }
    }
}
