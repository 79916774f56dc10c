//! The transport against the kernel, with requests answered as raw bytes. They are all `statfs`, which needs no node.

use super::abort::abort_connection;
use super::*;
use crate::abi::{InHeader, InitFlags, InitIn, InitOut, Opcode, OutHeader};
use crate::reply::slot::{ReplySlot, ShortAnswer, Ticket};
use crate::transport::connection::{ConnectionState, open_device};
use crate::transport::{RawRequest, Source};
use kernel::{UringSwitch, skipped};
use parking_lot::{Condvar, Mutex};
use std::ffi::CString;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

mod deputies;
#[path = "../../../tests/support/kernel.rs"]
mod kernel;

const PAYLOAD_BYTES: usize = 128 << 10;

/// STATFS: what is in it does not matter here.
const TOTALS: [u8; 80] = [0; 80];

/// Far longer than anything here takes, so that a hang becomes a failure.
const PATIENCE: Duration = Duration::from_secs(20);

/// A mount that the kernel has been told io_uring will be used for.
struct Mounted {
    at: TempDir,
    connection: Arc<Connection>,
    /// Ends the connection, and with it every hang, if this is not dropped in time.
    _watchdog: mpsc::Sender<()>,
}

impl Mounted {
    /// `None`, with the reason said, if this machine cannot.
    fn new(test: &str) -> Option<Mounted> {
        if !may_use_all_cpus() {
            skipped(test, "this process may not run on every CPU");
            return None;
        }
        let switch = match UringSwitch::set(true) {
            Ok(switch) => switch,
            Err(why) => {
                skipped(test, &why);
                return None;
            }
        };
        let at = tempfile::tempdir().expect("there is room for a directory");
        let device = open_device().expect("root may open /dev/fuse");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let (target, options) = (c_string(at.path()), CString::new(options).expect("no NUL in it"));
        // SAFETY: all strings are NUL-terminated and live until the call returns.
        let mounted = unsafe {
            libc::mount(c"test".as_ptr(), target.as_ptr(), c"fuse.test".as_ptr(), 0, options.as_ptr().cast())
        };
        assert_eq!(mounted, 0, "mounting: {}", io::Error::last_os_error());
        let connection = Arc::new(Connection::new(device));
        let mounted = Mounted { at, _watchdog: watch(Arc::clone(&connection)), connection };
        mounted.shake_hands();
        drop(switch);
        Some(mounted)
    }

    fn shake_hands(&self) {
        let mut buffer = vec![0; 8192];
        self.connection.read(&mut buffer).expect("INIT is there after mounting");
        let (header, rest) = InHeader::read_from_prefix(&buffer).expect("long enough");
        let (init, _) = InitIn::read_from_prefix(rest).expect("long enough");
        let flags = InitFlags::OVER_IO_URING | InitFlags::INIT_EXT | InitFlags::MAX_PAGES;
        assert!(
            InitFlags::from_halves(init.flags, init.flags2).contains(flags),
            "the parameter allows io_uring"
        );
        let (low, high) = flags.halves();
        let init = InitOut {
            major: 7,
            minor: init.minor,
            flags: low,
            flags2: high,
            max_background: 16,
            max_write: PAYLOAD_BYTES as u32,
            max_pages: (PAYLOAD_BYTES / 4096) as u16,
            time_gran: 1,
            ..InitOut::new_zeroed()
        };
        let out = OutHeader { len: 80, error: 0, unique: header.unique };
        let parts = [IoSlice::new(out.as_bytes()), IoSlice::new(init.as_bytes())];
        self.connection.write(&parts).expect("the kernel takes the answer");
    }

    fn start(&self, settings: &UringSettings, handler: &Arc<Keeper>) -> Box<dyn Transport> {
        let prepared = prepare(settings, PAYLOAD_BYTES).expect("rings are to be had");
        let handler = Arc::clone(handler) as Arc<dyn Handler>;
        prepared
            .start(Arc::clone(&self.connection), handler, &Arc::default())
            .expect("the kernel takes the entries")
    }

    /// Starts `count` threads, spread over the CPUs or all on `cpu`, that call statfs once; 0 or the error number.
    fn callers(&self, count: usize, cpu: Option<u16>) -> Vec<JoinHandle<i32>> {
        let target = Arc::new(c_string(self.at.path()));
        (0..count)
            .map(|_| {
                let target = Arc::clone(&target);
                std::thread::spawn(move || {
                    assert!(cpu.is_none_or(cpus::pin_to), "tests run on any CPU");
                    totals(&target).err().unwrap_or(0)
                })
            })
            .collect()
    }

    fn unmount(&self) {
        // SAFETY: the path is NUL-terminated.
        unsafe { libc::umount2(c_string(self.at.path()).as_ptr(), libc::MNT_DETACH) };
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // If a test failed, callers may still wait.
        if self.connection.state() != ConnectionState::Ended {
            abort_connection(&self.connection).expect("root may abort connections");
        }
        self.unmount();
    }
}

/// Tests call from the CPU whose queue they look at.
fn may_use_all_cpus() -> bool {
    let Some(count) = cpus::possible_count() else { return false };
    (0..count).all(|cpu| std::thread::spawn(move || cpus::pin_to(cpu)).join().expect("no panic"))
}

/// Callers of a connection that is served by their own process cannot be killed, so nothing may wait for ever.
fn watch(connection: Arc<Connection>) -> mpsc::Sender<()> {
    let (alive, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if ended.recv_timeout(2 * PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            abort_connection(&connection).expect("root may abort connections");
        }
    });
    alive
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL in a path")
}

fn totals(target: &CString) -> Result<libc::statfs, i32> {
    // SAFETY: all zeros is a valid statfs, and the path is NUL-terminated.
    let (result, totals) = unsafe {
        let mut totals: libc::statfs = std::mem::zeroed();
        (libc::statfs(target.as_ptr(), &raw mut totals), totals)
    };
    let failed = || io::Error::last_os_error().raw_os_error().expect("a system call failed");
    if result == 0 { Ok(totals) } else { Err(failed()) }
}

/// Keeps what is owed until it is asked for.
#[derive(Default)]
struct Keeper {
    slots: Mutex<Vec<ReplySlot>>,
    came: Condvar,
    /// Panic instead.
    panics: bool,
}

impl Keeper {
    /// Waits until `count` requests are owed an answer, and takes them.
    fn take(&self, count: usize) -> Vec<ReplySlot> {
        let mut slots = self.slots.lock();
        while slots.len() < count {
            assert!(!self.came.wait_for(&mut slots, PATIENCE).timed_out(), "{} of {count} came", slots.len());
        }
        std::mem::take(&mut *slots)
    }
}

impl Handler for Keeper {
    fn header_bytes(&self, opcode: Opcode) -> Option<usize> {
        opcode.header_bytes(false)
    }

    fn handle(&self, source: &dyn Source, request: RawRequest<'_>, slot: ReplySlot) {
        assert_eq!(source.transport(), TransportKind::Uring);
        assert_eq!(request.header.opcode, Opcode::STATFS);
        assert!(request.payload.is_empty());
        assert!(!self.panics, "as asked");
        self.slots.lock().push(slot);
        self.came.notify_all();
    }
}

fn answer_one_by_one(slots: Vec<ReplySlot>) {
    for slot in slots {
        slot.bytes(&TOTALS);
    }
}

fn results(callers: Vec<JoinHandle<i32>>) -> Vec<i32> {
    callers.into_iter().map(|caller| caller.join().expect("callers do not panic")).collect()
}

fn settings(depth: u16) -> UringSettings {
    UringSettings { depth, deputy: true, ..UringSettings::default() }
}

#[test]
fn a_batch_of_64_answers_from_another_thread_wakes_the_queue_once() {
    let Some(mounted) = Mounted::new("a_batch_of_64_answers_from_another_thread_wakes_the_queue_once") else {
        return;
    };
    let keeper = Arc::new(Keeper::default());
    let prepared = prepare(&settings(64), PAYLOAD_BYTES).expect("rings are to be had");
    let queue = Arc::clone(&prepared.workers[0].queue);
    let handler = Arc::clone(&keeper) as Arc<dyn Handler>;
    let transport = prepared
        .start(Arc::clone(&mounted.connection), handler, &Arc::default())
        .expect("the kernel takes the entries");

    let callers = mounted.callers(64, Some(0));
    let owed = keeper.take(64);
    let before = queue.inbox.rings();
    let mut answers: Vec<(Ticket, ShortAnswer)> = Vec::new();
    let mut sink = None;
    for slot in owed {
        let (its_sink, ticket) = slot.into_parts();
        answers.push((ticket, ShortAnswer::data(&TOTALS)));
        sink = Some(its_sink);
    }
    sink.expect("64 requests came").send_many(&mut answers);
    assert_eq!(results(callers), [0; 64]);
    assert!(queue.inbox.rings() - before <= 1, "{} wake-ups", queue.inbox.rings() - before);

    mounted.unmount();
    transport.join().expect("unmounting is no error");
}

#[test]
fn callers_beyond_the_depth_wait_and_are_served() {
    let Some(mounted) = Mounted::new("callers_beyond_the_depth_wait_and_are_served") else { return };
    let keeper = Arc::new(Keeper::default());
    let transport = mounted.start(&settings(4), &keeper);
    let callers = mounted.callers(32, Some(0));
    let mut served = 0;
    while served < 32 {
        let owed = keeper.take(4);
        assert_eq!(owed.len(), 4, "no more than the depth are open at once");
        served += owed.len();
        answer_one_by_one(owed);
    }
    assert_eq!(results(callers), [0; 32]);
    mounted.unmount();
    transport.join().expect("unmounting is no error");
}

#[test]
fn an_abort_frees_callers_and_threads_although_all_entries_are_owed() {
    let Some(mounted) = Mounted::new("an_abort_frees_callers_and_threads_although_all_entries_are_owed")
    else {
        return;
    };
    let keeper = Arc::new(Keeper::default());
    let transport = mounted.start(&settings(2), &keeper);
    let queues = usize::from(cpus::possible_count().expect("this machine says"));
    let callers: Vec<_> = (0..queues).flat_map(|cpu| mounted.callers(3, Some(cpu as u16))).collect();
    let owed = keeper.take(2 * queues);
    abort_connection(&mounted.connection).expect("the connection's number is known");
    let failed = results(callers);
    assert!(failed.iter().all(|&error| matches!(error, libc::ECONNABORTED | libc::ENOTCONN)), "{failed:?}");
    transport.join().expect("an abort is no error of the transport");
    // Nobody listens any more, and nothing breaks.
    answer_one_by_one(owed);
}

#[test]
fn an_unanswered_and_a_panicking_request_fail_and_the_queue_goes_on() {
    let Some(mounted) = Mounted::new("an_unanswered_and_a_panicking_request_fail_and_the_queue_goes_on")
    else {
        return;
    };
    let keeper = Arc::new(Keeper { panics: true, ..Keeper::default() });
    let transport = mounted.start(&settings(1), &keeper);
    for _ in 0..3 {
        assert_eq!(results(mounted.callers(2, Some(0))), [libc::EIO; 2]);
    }
    mounted.unmount();
    transport.join().expect("unmounting is no error");
}

#[test]
fn a_refused_registration_gives_the_requests_to_dev_fuse() {
    let Some(mounted) = Mounted::new("a_refused_registration_gives_the_requests_to_dev_fuse") else { return };
    let keeper = Arc::new(Keeper::default());
    // The kernel wants room for the largest write.
    let prepared = prepare(&settings(4), PAYLOAD_BYTES / 2).expect("rings are to be had");
    let handler = Arc::clone(&keeper) as Arc<dyn Handler>;
    let refused = prepared.start(Arc::clone(&mounted.connection), handler, &Arc::default());
    let Err(UringUnavailable::Register { errno, .. }) = refused else { panic!("payloads are too small") };
    assert_eq!(errno, Errno::EINVAL);

    let callers = mounted.callers(1, None);
    let mut buffer = vec![0; PAYLOAD_BYTES + 4096];
    mounted.connection.read(&mut buffer).expect("the request comes here");
    let (header, _) = InHeader::read_from_prefix(&buffer).expect("long enough");
    assert_eq!(header.opcode, Opcode::STATFS);
    let out = OutHeader { len: 16, error: -libc::EPERM, unique: header.unique };
    mounted.connection.write(&[IoSlice::new(out.as_bytes())]).expect("the kernel takes the answer");
    assert_eq!(results(callers), [libc::EPERM]);
}

#[test]
fn every_cpu_is_served_when_the_threads_may_use_one_only() {
    let Some(mounted) = Mounted::new("every_cpu_is_served_when_the_threads_may_use_one_only") else { return };
    let keeper = Arc::new(Keeper::default());
    let transport = std::thread::scope(|scope| {
        let restricted = scope.spawn(|| {
            assert!(cpus::pin_to(0));
            mounted.start(&settings(4), &keeper)
        });
        restricted.join().expect("starting does not panic")
    });
    for cpu in 0..cpus::possible_count().expect("this machine says") {
        let callers = mounted.callers(2, Some(cpu));
        answer_one_by_one(keeper.take(2));
        assert_eq!(results(callers), [0; 2]);
    }
    mounted.unmount();
    transport.join().expect("unmounting is no error");
}

/// Pages of an entry's payload that are in memory.
fn resident_pages(queue: &Queue, entry: u16) -> usize {
    let bytes = queue.memory.payload_bytes();
    let mut pages = vec![0u8; bytes / 4096];
    let start = queue.memory.payload(memory::EntryIndex(entry)).as_ptr();
    // SAFETY: the range is mapped, and `pages` has a byte for each of its pages.
    let result = unsafe { libc::mincore(start.cast(), bytes, pages.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    pages.iter().filter(|&&page| page & 1 == 1).count()
}

#[test]
fn pages_that_a_peak_needed_are_given_back_above_the_bound_only() {
    for (resident_bytes_max, stay) in [(0, false), (1 << 20, true)] {
        let Some(mounted) = Mounted::new("pages_that_a_peak_needed_are_given_back_above_the_bound_only")
        else {
            return;
        };
        let keeper = Arc::new(Keeper::default());
        let settings = UringSettings { resident_bytes_max, ..settings(1) };
        let prepared = prepare(&settings, PAYLOAD_BYTES).expect("rings are to be had");
        let queue = Arc::clone(&prepared.workers[0].queue);
        let handler = Arc::clone(&keeper) as Arc<dyn Handler>;
        let transport = prepared
            .start(Arc::clone(&mounted.connection), handler, &Arc::default())
            .expect("the kernel takes the entries");

        let target = c_string(mounted.at.path());
        let caller = std::thread::spawn(move || {
            assert!(cpus::pin_to(0));
            totals(&target).expect("it is answered").f_blocks
        });
        let slot = keeper.take(1).remove(0);
        let mut memory = slot.memory(PAYLOAD_BYTES);
        memory.as_mut_slice().fill(1);
        assert_eq!(resident_pages(&queue, 0), PAYLOAD_BYTES / 4096);
        slot.send_memory(memory, TOTALS.len());
        assert_eq!(
            caller.join().expect("no panic"),
            0x0101_0101_0101_0101,
            "the answer is what was put there"
        );
        // Three times as long as it takes the thread to find that it has nothing to do; longer on a busy machine.
        let mut patience = PATIENCE;
        while !stay && resident_pages(&queue, 0) > 0 {
            patience = patience.checked_sub(Duration::from_millis(50)).expect("the pages are given back");
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(resident_pages(&queue, 0), if stay { PAYLOAD_BYTES / 4096 } else { 0 });

        mounted.unmount();
        transport.join().expect("unmounting is no error");
    }
}

#[test]
fn what_a_deputy_has_counts_against_the_bound_of_its_queue() {
    let Some(mounted) = Mounted::new("what_a_deputy_has_counts_against_the_bound_of_its_queue") else {
        return;
    };
    let keeper = Arc::new(Keeper::default());
    let settings = UringSettings { resident_bytes_max: PAYLOAD_BYTES, ..settings(2) };
    let prepared = prepare(&settings, PAYLOAD_BYTES).expect("rings are to be had");
    let queue = Arc::clone(&prepared.workers[0].queue);
    let handler = Arc::clone(&keeper) as Arc<dyn Handler>;
    let transport = prepared
        .start(Arc::clone(&mounted.connection), handler, &Arc::default())
        .expect("the kernel takes the entries");

    let callers = mounted.callers(2, Some(0));
    for slot in keeper.take(2) {
        let mut memory = slot.memory(PAYLOAD_BYTES);
        memory.as_mut_slice().fill(1);
        slot.return_memory(memory);
        let (sink, ticket) = slot.into_parts();
        let entry = memory::EntryIndex(ticket.entry as u16);
        while queue.handler_of(entry).is_some() {
            std::thread::yield_now();
        }
        // The first one alone, which brings it to the deputy.
        sink.send_many(&mut vec![(ticket, ShortAnswer::data(&TOTALS))]);
    }
    assert_eq!(results(callers), [0; 2]);
    let resident = || resident_pages(&queue, 0) + resident_pages(&queue, 1);
    let mut patience = PATIENCE;
    while resident() > PAYLOAD_BYTES / 4096 {
        patience = patience.checked_sub(Duration::from_millis(50)).expect("pages are given back");
        std::thread::sleep(Duration::from_millis(50));
    }
    mounted.unmount();
    transport.join().expect("unmounting is no error");
}
