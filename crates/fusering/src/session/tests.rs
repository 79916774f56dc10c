//! The way from a message to its answer without a kernel: whatever arrives, exactly one answer leaves.

use super::dispatch::Dispatcher;
use crate::abi::{InHeader, Opcode};
use crate::memory::{PageBuffer, ReplyMemory};
use crate::reply::slot::{Answer, ReplySink, ReplySlot, ShortAnswer, Ticket};
use crate::request::*;
use crate::transport::{Handler, RawRequest, Source, TransportKind};
use crate::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const AGREED: Agreed = Agreed { setxattr_ext: false, data_bytes_max: 1 << 16 };

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Given {
    Error(Errno),
    Data(Vec<u8>),
    Unwanted,
}

/// Takes answers down.
#[derive(Default)]
struct Ledger {
    given: Mutex<Vec<(u64, Given)>>,
    batches: AtomicU32,
}

impl ReplySink for Ledger {
    fn send(&self, ticket: Ticket, answer: Answer<'_>) {
        let given = match answer {
            Answer::Error(errno) => Given::Error(errno),
            Answer::Data(parts) => Given::Data(parts.iter().flat_map(|part| part.to_vec()).collect()),
            Answer::Unwanted => Given::Unwanted,
        };
        self.given.lock().push((ticket.unique, given));
    }

    fn send_many(&self, answers: &mut Vec<(Ticket, ShortAnswer)>) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        for (ticket, answer) in answers.drain(..) {
            let given = answer.get().map_or_else(Given::Error, |data| Given::Data(data.to_vec()));
            self.given.lock().push((ticket.unique, given));
        }
    }

    fn memory(&self, _: Ticket, bytes: usize) -> ReplyMemory {
        ReplyMemory::Own(PageBuffer::new(bytes))
    }

    fn send_memory(&self, ticket: Ticket, memory: ReplyMemory, bytes: usize) {
        self.given.lock().push((ticket.unique, Given::Data(memory.as_slice()[..bytes].to_vec())));
    }
}

struct Quiet;

impl Source for Quiet {
    fn transport(&self) -> TransportKind {
        TransportKind::Dev
    }

    fn others_wait(&self) -> bool {
        false
    }
}

/// Hands a message to `filesystem` and returns the answers.
fn answers<F: Filesystem>(filesystem: F, header: InHeader, op: &[u8], payload: &[u8]) -> Vec<(u64, Given)> {
    let ledger = Arc::new(Ledger::default());
    let dispatcher = Dispatcher::new(Arc::new(filesystem), Agreed { setxattr_ext: true, ..AGREED });
    deliver(&dispatcher, &ledger, header, op, payload);
    drop(dispatcher);
    let given = ledger.given.lock();
    given.clone()
}

fn deliver<F: Filesystem>(
    dispatcher: &Dispatcher<F>,
    ledger: &Arc<Ledger>,
    header: InHeader,
    op: &[u8],
    payload: &[u8],
) {
    let slot = ReplySlot::new(ledger.clone(), Ticket { unique: header.unique, entry: 0 }, header.opcode);
    dispatcher.handle(&Quiet, RawRequest { header: &header, op, payload }, slot);
}

fn header(opcode: Opcode) -> InHeader {
    InHeader { opcode, unique: 7, nodeid: 1, ..InHeader::default() }
}

/// Implements nothing.
struct Nothing;
impl Filesystem for Nothing {}

/// Drops every reply, or panics.
struct Careless {
    panics: bool,
}

impl Filesystem for Careless {
    fn getattr(&self, _: &RequestContext<'_>, _: &GetAttr, reply: ReplyAttributes) {
        assert!(!self.panics, "as the test wants it");
        drop(reply);
    }

    fn read(&self, _: &RequestContext<'_>, _: &Read, reply: ReplyData) {
        let buffer = reply.buffer(100);
        assert!(!self.panics, "as the test wants it");
        drop(buffer);
    }

    fn readdir(&self, _: &RequestContext<'_>, request: &ReadDir, mut reply: ReplyDirectory) {
        let entry = DirectoryEntry { node: request.node, next: 1, file_type: 4, name: OsStr::new("a") };
        assert!(!reply.add(&entry) || !self.panics, "as the test wants it");
    }
}

#[test]
fn a_dropped_reply_answers_eio() {
    for opcode in [Opcode::GETATTR, Opcode::READ, Opcode::READDIR] {
        for panics in [false, true] {
            let mut op = [0; 128];
            op[16..20].copy_from_slice(&4096_u32.to_ne_bytes());
            let given = answers(Careless { panics }, header(opcode), &op, &[]);
            assert_eq!(given, [(7, Given::Error(Errno::EIO))], "{opcode} panics: {panics}");
        }
    }
}

#[test]
fn what_is_not_implemented_says_so() {
    for opcode in Opcode::ALL {
        let given = answers(Nothing, header(*opcode), &[0; 128], b"a\0b\0");
        let expected = match *opcode {
            Opcode::FORGET | Opcode::BATCH_FORGET | Opcode::NOTIFY_REPLY => Given::Unwanted,
            Opcode::RELEASE | Opcode::RELEASEDIR | Opcode::DESTROY => Given::Data(Vec::new()),
            Opcode::IOCTL => Given::Error(Errno::ENOTTY),
            _ => Given::Error(Errno::ENOSYS),
        };
        assert_eq!(given, [(7, expected)], "{opcode}");
    }
}

#[test]
fn damaged_messages_that_want_no_answer_get_none() {
    for opcode in [Opcode::FORGET, Opcode::BATCH_FORGET, Opcode::INTERRUPT, Opcode::NOTIFY_REPLY] {
        assert_eq!(answers(Nothing, header(opcode), &[], &[]), [(7, Given::Unwanted)], "{opcode}");
    }
    assert_eq!(answers(Nothing, header(Opcode::READ), &[], &[]), [(7, Given::Error(Errno::EINVAL))]);
}

/// Notes what it is told.
#[derive(Default)]
struct Listener {
    forgotten: Mutex<Vec<(u64, u64)>>,
    interrupted: Mutex<Vec<u64>>,
    destroyed: AtomicU32,
    replies: Mutex<Vec<ReplyEmpty>>,
}

impl Filesystem for Listener {
    fn forget(&self, forget: &Forget) {
        self.forgotten.lock().push((forget.node.0, forget.lookups));
    }

    fn interrupt(&self, request: RequestId) -> Interruption {
        self.interrupted.lock().push(request.0);
        if request.0 == 1 { Interruption::Again } else { Interruption::Heard }
    }

    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::Relaxed);
    }

    fn fsync(&self, _: &RequestContext<'_>, _: &Fsync, reply: ReplyEmpty) {
        self.replies.lock().push(reply);
    }
}

#[test]
fn forgetting_arrives_one_by_one() {
    let filesystem = Arc::new(Listener::default());
    let ledger = Arc::new(Ledger::default());
    let dispatcher = Dispatcher::new(filesystem.clone(), AGREED);
    let pairs: Vec<u8> = [5_u64, 1, 6, 2].iter().flat_map(|number| number.to_ne_bytes()).collect();
    deliver(&dispatcher, &ledger, header(Opcode::BATCH_FORGET), &2_u64.to_ne_bytes(), &pairs);
    deliver(&dispatcher, &ledger, header(Opcode::FORGET), &3_u64.to_ne_bytes(), &[]);
    assert_eq!(*filesystem.forgotten.lock(), [(5, 1), (6, 2), (1, 3)]);
}

#[test]
fn interruptions_are_repeated_when_asked_for() {
    let filesystem = Arc::new(Listener::default());
    let ledger = Arc::new(Ledger::default());
    let dispatcher = Dispatcher::new(filesystem.clone(), AGREED);
    for target in [1_u64, 2] {
        deliver(&dispatcher, &ledger, header(Opcode::INTERRUPT), &target.to_ne_bytes(), &[]);
    }
    assert_eq!(*filesystem.interrupted.lock(), [1, 2]);
    assert_eq!(*ledger.given.lock(), [(7, Given::Error(Errno::EAGAIN)), (7, Given::Unwanted)]);
}

#[test]
fn destroy_is_called_once() {
    let filesystem = Arc::new(Listener::default());
    let ledger = Arc::new(Ledger::default());
    let dispatcher = Dispatcher::new(filesystem.clone(), AGREED);
    deliver(&dispatcher, &ledger, header(Opcode::DESTROY), &[], &[]);
    assert_eq!(*ledger.given.lock(), [(7, Given::Data(Vec::new()))]);
    dispatcher.destroy();
    assert_eq!(filesystem.destroyed.load(Ordering::Relaxed), 1);
}

#[test]
fn a_batch_is_sent_as_one_and_when_it_is_dropped() {
    let filesystem = Arc::new(Listener::default());
    let ledger = Arc::new(Ledger::default());
    let dispatcher = Dispatcher::new(filesystem.clone(), AGREED);
    for unique in 1..=5 {
        let header = InHeader { unique, ..header(Opcode::FSYNC) };
        deliver(&dispatcher, &ledger, header, &[0; 16], &[]);
    }
    let mut replies = std::mem::take(&mut *filesystem.replies.lock());
    let mut batch = ReplyBatch::new();
    batch.error(replies.remove(0), Errno::ENOSPC);
    replies.drain(..).for_each(|reply| batch.ok(reply));
    assert_eq!(batch.len(), 5);
    assert!(ledger.given.lock().is_empty());
    batch.send();
    assert!(batch.is_empty());
    drop(batch);
    assert_eq!(ledger.batches.load(Ordering::Relaxed), 1);
    let given = ledger.given.lock();
    assert_eq!(given[0], (1, Given::Error(Errno::ENOSPC)));
    assert_eq!(given[1..].iter().map(|(unique, _)| *unique).collect::<Vec<_>>(), [2, 3, 4, 5]);
}

/// Answers with more than was asked for.
struct Generous;

impl Filesystem for Generous {
    fn read(&self, _: &RequestContext<'_>, request: &Read, reply: ReplyData) {
        match request.offset {
            0 => reply.data(&[1; 100]),
            1 => reply.pieces(&[std::io::IoSlice::new(&[1; 7]), std::io::IoSlice::new(&[2; 50])]),
            2 => reply.fill(1000, |buffer| Ok(buffer.len() + 5)),
            _ => reply.buffer(1000).send(2000),
        }
    }

    fn ioctl(&self, _: &RequestContext<'_>, _: &Ioctl<'_>, reply: ReplyIoctl) {
        reply.output(3, &[9; 100]);
    }

    fn getxattr(&self, _: &RequestContext<'_>, _: &GetXattr<'_>, reply: ReplyXattr) {
        reply.value(b"12345");
    }

    fn lookup(&self, _: &RequestContext<'_>, _: &Lookup<'_>, reply: ReplyEntry) {
        reply.absent(Duration::new(5, 6));
    }

    fn readdir(&self, _: &RequestContext<'_>, request: &ReadDir, mut reply: ReplyDirectory) {
        let entry = DirectoryEntry { node: request.node, next: 3, file_type: 8, name: OsStr::new("abc") };
        while reply.add(&entry) {}
        reply.ok();
    }
}

fn read_op(offset: u64, size: u32) -> Vec<u8> {
    [&[0; 8][..], &offset.to_ne_bytes(), &size.to_ne_bytes(), &[0; 20]].concat()
}

#[test]
fn answers_are_cut_to_what_was_asked_for() {
    for offset in 0..4 {
        let given = answers(Generous, header(Opcode::READ), &read_op(offset, 10), &[]);
        let [(7, Given::Data(data))] = &given[..] else { panic!("{given:?}") };
        assert_eq!(data.len(), 10, "{offset}");
    }
    let op = [&[0; 24][..], &0_u32.to_ne_bytes(), &8_u32.to_ne_bytes()].concat();
    let given = answers(Generous, header(Opcode::IOCTL), &op, &[]);
    let expected = [&3_i32.to_ne_bytes()[..], &[0; 12], &[9; 8]].concat();
    assert_eq!(given, [(7, Given::Data(expected))]);
}

#[test]
fn attributes_tell_their_size_and_whether_they_fit() {
    let ask = |size: u32| {
        let op = [size.to_ne_bytes(), [0; 4]].concat();
        answers(Generous, header(Opcode::GETXATTR), &op, b"user.a\0")[0].1.clone()
    };
    assert_eq!(ask(0), Given::Data([5_u32.to_ne_bytes(), [0; 4]].concat()));
    assert_eq!(ask(4), Given::Error(Errno::ERANGE));
    assert_eq!(ask(5), Given::Data(b"12345".to_vec()));
}

#[test]
fn an_absent_name_is_an_entry_without_a_node() {
    let given = answers(Generous, header(Opcode::LOOKUP), &[], b"a\0");
    let [(7, Given::Data(data))] = &given[..] else { panic!("{given:?}") };
    assert_eq!(data.len(), 128);
    assert_eq!(data[..8], [0; 8]);
    assert_eq!(data[16..24], 5_u64.to_ne_bytes());
    assert_eq!(data[32..36], 6_u32.to_ne_bytes());
}

#[test]
fn directory_records_are_padded_and_end_where_there_is_no_room() {
    let given = answers(Generous, header(Opcode::READDIR), &read_op(0, 100), &[]);
    let [(7, Given::Data(data))] = &given[..] else { panic!("{given:?}") };
    // 24 bytes and 3 of name make 32.
    assert_eq!(data.len(), 96);
    let record = [
        &1_u64.to_ne_bytes()[..],
        &3_u64.to_ne_bytes(),
        &3_u32.to_ne_bytes(),
        &8_u32.to_ne_bytes(),
        b"abc\0\0\0\0\0",
    ];
    assert_eq!(data[32..64], record.concat());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_messages_get_exactly_one_answer(
        opcode in prop_oneof![0_u32..60, any::<u32>()],
        extensions in prop_oneof![Just(0_u16), any::<u16>()],
        op in proptest::collection::vec(any::<u8>(), 0..130),
        payload in proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..64),
        generous in any::<bool>(),
    ) {
        let header = InHeader { total_extlen: extensions, ..header(Opcode(opcode)) };
        let given = if generous {
            answers(Generous, header, &op, &payload)
        } else {
            answers(Nothing, header, &op, &payload)
        };
        prop_assert_eq!(given.len(), 1);
        prop_assert_eq!(given[0].0, 7);
    }

    #[test]
    fn sound_messages_with_some_bytes_changed_get_exactly_one_answer(
        index in 0..Opcode::ALL.len(),
        changes in proptest::collection::vec((0_usize..160, any::<u8>()), 0..6),
        cut in 0_usize..32,
    ) {
        let opcode = Opcode::ALL[index];
        let mut message = vec![0; opcode.header_bytes(true).unwrap_or(0)];
        let op_bytes = message.len();
        message.extend_from_slice(b"name\0other\0data and more data");
        for (at, byte) in changes {
            if let Some(target) = message.get_mut(at) {
                *target = byte;
            }
        }
        let (op, payload) = message.split_at(op_bytes);
        let payload = &payload[..payload.len() - cut.min(payload.len())];
        let given = answers(Generous, header(opcode), op, payload);
        prop_assert_eq!(given.len(), 1);
    }
}
