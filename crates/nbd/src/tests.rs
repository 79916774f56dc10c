//! Against servers that were made for it: right ones that answer as one likes, and hostile ones.

use crate::wire::{self, Command};
use crate::{Address, NbdDevice, NbdError, Place};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use syncline_device::{Buffer, Device, DeviceError, OpenOptions, Operation};
use syncline_format::{BLOCK_BYTES, BlockNo};

const ALL: u16 = wire::HAS_FLAGS | wire::SEND_FLUSH | wire::SEND_TRIM | wire::SEND_WRITE_ZEROES;
const BYTES: u64 = 1 << 20;

/// A server for one client: what it does is a function of its connection.
struct Server {
    directory: tempfile::TempDir,
    /// Connections are made to it also when nobody serves any more.
    _listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn new(serve: impl FnOnce(&mut UnixStream) + Send + 'static) -> Server {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(directory.path().join("sock")).expect("a socket");
        let serving = listener.try_clone().expect("a socket");
        let thread = std::thread::spawn(move || {
            let listener = serving;
            let (mut stream, _) = listener.accept().expect("a client");
            serve(&mut stream);
        });
        Server { directory, _listener: listener, thread: Some(thread) }
    }

    /// Answers the handshake as a server of today, then requests by `answer`: `None` ends the connection.
    fn export(
        bytes: u64,
        flags: u16,
        mut answer: impl FnMut(Command, u64, u64, u32, &[u8]) -> Option<Vec<u8>> + Send + 'static,
    ) -> Server {
        Server::new(move |stream| {
            if !greet(stream) {
                return;
            }
            go(stream, bytes, flags);
            while let Some((command, cookie, offset, length, data)) = request(stream) {
                match answer(command, cookie, offset, length, &data) {
                    Some(reply) => {
                        if stream.write_all(&reply).is_err() {
                            return;
                        }
                    }
                    None => return,
                }
            }
        })
    }

    fn address(&self) -> Address {
        Address { place: Place::Unix(self.directory.path().join("sock")), export: "an export".to_owned() }
    }

    fn open(&self) -> Result<NbdDevice, NbdError> {
        NbdDevice::open(&self.address(), &OpenOptions::default())
    }

    fn open_to_read(&self) -> Result<NbdDevice, NbdError> {
        NbdDevice::open(&self.address(), &OpenOptions::default().read_only(true))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whoever was not asked for is let go.
        let _ = UnixStream::connect(self.directory.path().join("sock"));
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server");
        }
    }
}

fn greet(stream: &mut UnixStream) -> bool {
    stream.write_all(b"NBDMAGICIHAVEOPT").is_ok()
        && stream.write_all(&3_u16.to_be_bytes()).is_ok()
        && stream.read_exact(&mut [0; 4]).is_ok()
}

fn option(stream: &mut UnixStream) -> Option<(u32, Vec<u8>)> {
    let mut head = [0; 16];
    stream.read_exact(&mut head).ok()?;
    assert_eq!(head[..8], wire::NEWSTYLE);
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let mut data = vec![0; word(12) as usize];
    stream.read_exact(&mut data).ok()?;
    Some((word(8), data))
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let words = [option, kind, data.len() as u32].map(u32::to_be_bytes);
    [&wire::OPTION_REPLY.to_be_bytes()[..], &words.concat(), data].concat()
}

fn described(bytes: u64, flags: u16) -> Vec<u8> {
    let export = [&wire::INFO_EXPORT.to_be_bytes()[..], &bytes.to_be_bytes(), &flags.to_be_bytes()].concat();
    reply(wire::OPTION_GO, wire::INFO, &export)
}

fn block_size(min: u32, preferred: u32, max: u32) -> Vec<u8> {
    let sizes = [min, preferred, max].map(u32::to_be_bytes).concat();
    reply(wire::OPTION_GO, wire::INFO, &[&wire::INFO_BLOCK_SIZE.to_be_bytes()[..], &sizes].concat())
}

fn ack() -> Vec<u8> {
    reply(wire::OPTION_GO, wire::ACK, b"")
}

fn go(stream: &mut UnixStream, bytes: u64, flags: u16) {
    let Some((wire::OPTION_GO, data)) = option(stream) else { panic!("not GO") };
    assert_eq!(data[..4], 9_u32.to_be_bytes());
    assert_eq!(&data[4..13], b"an export");
    let _ = stream.write_all(&[described(bytes, flags), ack()].concat());
}

fn request(stream: &mut UnixStream) -> Option<(Command, u64, u64, u32, Vec<u8>)> {
    let mut head = [0; wire::REQUEST_BYTES];
    stream.read_exact(&mut head).ok()?;
    let long = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let length = u32::from_be_bytes(head[24..].try_into().expect("four bytes"));
    let command = match u16::from_be_bytes([head[6], head[7]]) {
        0 => Command::Read,
        1 => Command::Write,
        3 => Command::Flush,
        4 => Command::Trim,
        6 => Command::WriteZeroes,
        2 => return None,
        other => panic!("request {other}"),
    };
    let mut data = vec![0; if command == Command::Write { length as usize } else { 0 }];
    stream.read_exact(&mut data).ok()?;
    Some((command, long(8), long(16), length, data))
}

fn simple(error: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
    let words = [wire::SIMPLE_REPLY, error].map(u32::to_be_bytes).concat();
    [&words[..], &cookie.to_be_bytes(), data].concat()
}

fn page(byte: u8) -> Arc<Buffer> {
    Arc::new(Buffer::from_bytes(&[byte; BLOCK_BYTES]))
}

fn told(result: Result<NbdDevice, NbdError>) -> String {
    let error = result.map(drop).expect_err("refused");
    let sentence = error.to_string();
    assert!(!sentence.contains('\n'), "{sentence}");
    sentence
}

#[test]
fn a_server_of_old_is_spoken_to_by_the_option_of_old() {
    let server = Server::new(|stream| {
        // Without NO_ZEROES.
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x01").expect("greeting");
        let mut flags = [0; 4];
        stream.read_exact(&mut flags).expect("flags");
        assert_eq!(flags, [0, 0, 0, 1]);
        let (asked, _) = option(stream).expect("an option");
        stream.write_all(&reply(asked, wire::ERROR_UNSUPPORTED, b"what?")).expect("a reply");
        assert_eq!(option(stream), Some((wire::OPTION_EXPORT_NAME, b"an export".to_vec())));
        let export = [&BYTES.to_be_bytes()[..], &ALL.to_be_bytes(), &[0; 124]].concat();
        stream.write_all(&export).expect("the export");
        let (command, cookie, offset, length, _) = request(stream).expect("a request");
        assert_eq!((command, offset, length), (Command::Read, 8192, 4096));
        stream.write_all(&simple(0, cookie, &[7; BLOCK_BYTES])).expect("a reply");
        assert!(request(stream).is_none(), "the client says goodbye");
    });
    let device = server.open().expect("the export");
    assert_eq!(device.blocks(), BYTES / BLOCK_BYTES as u64);
    let mut block = [0; BLOCK_BYTES];
    device.read(BlockNo(2), &mut block).expect("a read");
    assert_eq!(block, [7; BLOCK_BYTES]);
}

#[test]
fn every_wrong_handshake_is_told_and_none_is_believed() {
    type Talk = Box<dyn FnOnce(&mut UnixStream) + Send>;
    fn answered(bytes: Vec<u8>) -> Talk {
        Box::new(move |stream| {
            if greet(stream) && option(stream).is_some() {
                let _ = stream.write_all(&bytes);
            }
        })
    }
    fn said(bytes: &'static [u8]) -> Talk {
        Box::new(move |stream| drop(stream.write_all(bytes)))
    }
    let go = wire::OPTION_GO;
    let endless = [described(BYTES, ALL)].concat().repeat(100);
    let mut huge = reply(go, wire::INFO, b"");
    huge[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    let cases: Vec<(Talk, &str)> = vec![
        (said(b""), "closed the connection"),
        (said(b"NBDMAGIC"), "closed the connection"),
        (said(b"SSH-2.0-OpenSSH_9.2p1 Debian"), "does not begin with NBDMAGIC"),
        (said(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "does not begin with NBDMAGIC"),
        (said(b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0\0\0\0\0\0\0"), "of before 2011"),
        (said(b"NBDMAGICWHATEVER"), "a handshake of its own"),
        (said(b"NBDMAGICIHAVEOPT\0\x02"), "of before 2012"),
        (answered(vec![]), "closed the connection"),
        (answered(vec![0xff; 64]), "no reply to what was asked"),
        (answered(reply(go + 1, wire::ACK, b"")), "no reply to what was asked"),
        (answered(huge), "more than 64 KiB"),
        (answered(endless), "replies without end"),
        (answered(ack()), "without a description"),
        (answered(reply(go, wire::INFO, b"")), "cut off"),
        (answered(reply(go, wire::INFO, b"\0\0\0\0\0\0\0\0\0\0\0")), "cut off"),
        (answered(reply(go, wire::INFO, b"\0\x03\0\0\0\x01\0\0\0\x01\0\0\0")), "cut off"),
        (answered(reply(go, 2, b"")), "not asked for"),
        (answered(reply(go, wire::ERROR_UNKNOWN, b"")), "no such export;"),
        (answered(reply(go, wire::ERROR_UNKNOWN, b"try\n\x1b[31m \xff")), "no such export (\"try"),
        (answered(reply(go, wire::ERROR_TLS, b"")), "TLS"),
        (answered(reply(go, wire::ERROR | 2, b"not you")), "refuses the export (\"not you\")"),
        (answered(reply(go, wire::ERROR | 2, &[b'x'; 60_000])), "refuses the export"),
        (answered([block_size(8192, 8192, 1 << 20), described(BYTES, ALL), ack()].concat()), "4 KiB"),
        (answered([block_size(1, 1, 4095), described(BYTES, ALL), ack()].concat()), "4 KiB"),
        (answered([block_size(1, 1, 0), described(BYTES, ALL), ack()].concat()), "4 KiB"),
        (answered([described(0, ALL), ack()].concat()), "0 bytes"),
        (answered([described(4097, ALL), ack()].concat()), "whole number of 4 KiB"),
        (answered([described(u64::MAX - 4095, ALL), ack()].concat()), "whole number of 4 KiB"),
        (answered([described(BYTES, 0), ack()].concat()), "without flags"),
        (answered([described(BYTES, ALL & !wire::SEND_FLUSH), ack()].concat()), "cannot flush"),
        (answered([described(BYTES, ALL | wire::READ_ONLY), ack()].concat()), "read-only"),
    ];
    for (talk, words) in cases {
        let server = Server::new(talk);
        let sentence = told(server.open());
        assert!(sentence.contains(words) && sentence.len() < 500, "{words}: {sentence}");
    }
}

#[test]
fn handshakes_of_random_bytes_are_errors() {
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for _ in 0..500 {
        // A right conversation with bytes of it changed, and cut off anywhere.
        let mut bytes =
            [b"NBDMAGICIHAVEOPT\0\x03".to_vec(), block_size(1, 4096, 1 << 25), described(BYTES, ALL)]
                .concat();
        bytes.extend(ack());
        for _ in 0..1 + random() % 4 {
            let at = random() as usize % bytes.len();
            bytes[at] ^= 1 << (random() % 8);
        }
        bytes.truncate(bytes.len() - random() as usize % 40);
        let conversation = Conversation { said: std::io::Cursor::new(bytes) };
        let address = Address { place: Place::Unix(PathBuf::from("/s")), export: String::new() };
        // Whatever comes of it, it ends, and holds what it says.
        if let Ok(export) = crate::handshake::shake(conversation, &address, true) {
            assert!(export.bytes > 0 && export.bytes.is_multiple_of(BLOCK_BYTES as u64));
            assert!(export.can_flush() && export.payload_max >= BLOCK_BYTES as u32);
            assert!(export.payload_max <= 32 << 20 && export.least_trim() <= 8192);
        }
    }
}

/// Says what it says, whatever it hears.
struct Conversation {
    said: std::io::Cursor<Vec<u8>>,
}

impl Read for Conversation {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.said.read(into)
    }
}

impl Write for Conversation {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_server_that_cannot_flush_may_be_read() {
    let server = Server::export(BYTES, wire::HAS_FLAGS | wire::READ_ONLY, |_, cookie, _, length, _| {
        Some(simple(0, cookie, &vec![3; length as usize]))
    });
    let device = server.open_to_read().expect("the export");
    let mut block = [0; BLOCK_BYTES];
    device.read(BlockNo(0), &mut block).expect("a read");
    assert_eq!(block, [3; BLOCK_BYTES]);
    let refused = |operation| Err(DeviceError::Io { operation, block: BlockNo(1), errno: libc::EROFS });
    assert_eq!(device.write(BlockNo(1), vec![page(1)]), refused(Operation::Write));
    assert_eq!(device.discard(BlockNo(1), 1), refused(Operation::Discard));
    assert_eq!(device.discard_blocks_min(), None);
    device.flush().expect("there is nothing to flush");
}

#[test]
fn replies_in_any_order_reach_their_requests() {
    let mut held: Vec<(u64, u64, u32)> = Vec::new();
    let server = Server::export(BYTES, ALL, move |command, cookie, offset, length, _| {
        if command != Command::Read {
            return Some(simple(0, cookie, b""));
        }
        held.push((cookie, offset, length));
        if held.len() < 8 {
            return Some(Vec::new());
        }
        let last_first = held.drain(..).rev();
        let data = |offset: u64, length: u32| vec![(offset >> 12) as u8; length as usize];
        Some(
            last_first
                .flat_map(|(cookie, offset, length)| simple(0, cookie, &data(offset, length)))
                .collect(),
        )
    });
    let device = server.open().expect("the export");
    let readings: Vec<_> = (0..8).map(|block| device.submit_read(BlockNo(block * 3), 2)).collect();
    for (reading, block) in readings.into_iter().zip(0_u8..) {
        device.wait(reading.ticket()).expect("a read");
        let read: Vec<_> = reading.into_blocks().expect("a read").collect();
        assert!(read.len() == 2 && read.iter().all(|bytes| bytes[..] == [block * 3; BLOCK_BYTES]));
    }
    assert!(!device.is_broken());
}

#[test]
fn errors_of_the_server_are_those_of_their_requests_alone() {
    let server = Server::export(BYTES, ALL, |command, cookie, offset, length, _| {
        let error = match offset >> 12 {
            1 => 5,
            2 => 28,
            3 => 108,
            4 => 0xffff_ffff,
            _ => 0,
        };
        let data = vec![1; if command == Command::Read && error == 0 { length as usize } else { 0 }];
        Some(simple(error, cookie, &data))
    });
    let device = server.open().expect("the export");
    for (block, errno) in [(1, libc::EIO), (2, libc::ENOSPC), (3, libc::ESHUTDOWN), (4, libc::EIO)] {
        let failed = |operation| Err(DeviceError::Io { operation, block: BlockNo(block), errno });
        assert_eq!(device.write(BlockNo(block), vec![page(1)]), failed(Operation::Write));
        assert_eq!(device.read(BlockNo(block), &mut [0; BLOCK_BYTES]), failed(Operation::Read));
    }
    device.write(BlockNo(5), vec![page(1)]).expect("the others go on");
    device.flush().expect("a flush");
    device.read(BlockNo(5), &mut [0; BLOCK_BYTES]).expect("a read");
}

#[test]
fn a_flush_that_failed_is_never_followed_by_one_that_succeeds() {
    let flushes = Arc::new(AtomicU64::new(0));
    let counted = flushes.clone();
    let server = Server::export(BYTES, ALL, move |command, cookie, _, _, _| {
        let first = command == Command::Flush && counted.fetch_add(1, Ordering::SeqCst) == 0;
        Some(simple(if first { 5 } else { 0 }, cookie, b""))
    });
    let device = server.open().expect("the export");
    let failed = Err(DeviceError::Io { operation: Operation::Flush, block: BlockNo(0), errno: libc::EIO });
    assert_eq!(device.flush(), failed);
    assert_eq!(device.flush(), failed);
    assert_eq!(device.wait(&device.submit_flush()), failed);
    assert_eq!(flushes.load(Ordering::SeqCst), 1, "the server is not asked again");
    device.write(BlockNo(5), vec![page(1)]).expect("that is for the store to refuse");
}

// Shows: C8.
#[test]
fn whatever_breaks_the_connection_fails_what_is_on_its_way_and_all_that_comes() {
    type Reply = Box<dyn FnMut(u64) -> Option<Vec<u8>> + Send>;
    let cases: Vec<(Reply, i32)> = vec![
        (Box::new(|_| None), libc::ECONNRESET),
        (Box::new(|_| Some(vec![0; 16])), libc::EPROTO),
        // A structured reply, which nobody has asked for.
        (
            Box::new(|cookie| {
                Some([&0x668e_33ef_u32.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes()].concat())
            }),
            libc::EPROTO,
        ),
        (Box::new(|cookie| Some(simple(0, cookie + 1000, b""))), libc::EPROTO),
        (Box::new(|cookie| Some(simple(0, !cookie, &[0; 5000]))), libc::EPROTO),
        (Box::new(|cookie| Some([simple(0, cookie, b""), simple(0, cookie, b"")].concat())), libc::EPROTO),
    ];
    for (mut answer, errno) in cases {
        let mut count = 0;
        let server = Server::export(BYTES, ALL, move |_, cookie, _, _, _| {
            count += 1;
            if count < 8 { Some(Vec::new()) } else { answer(cookie) }
        });
        let device = Arc::new(server.open().expect("the export"));
        let tickets: Vec<_> =
            (0..8).map(|block| device.submit_write(BlockNo(block), vec![page(1)])).collect();
        let results: Vec<_> = tickets.iter().map(|ticket| device.wait(ticket)).collect();
        let failed =
            |block| Err(DeviceError::Io { operation: Operation::Write, block: BlockNo(block), errno });
        // One of them may have been answered rightly before.
        assert!(results[..7].iter().zip(0..).all(|(result, block)| *result == failed(block)), "{results:?}");
        assert!(device.is_broken());
        let later = DeviceError::Io { operation: Operation::Flush, block: BlockNo(0), errno };
        assert_eq!(device.flush(), Err(later));
        assert!(device.read(BlockNo(0), &mut [0; BLOCK_BYTES]).is_err());
        assert_eq!(device.write(BlockNo(0), vec![page(1)]), failed(0));
        assert!(device.discard(BlockNo(0), 1).is_err());
    }
}

#[test]
fn a_read_that_is_cut_off_brings_nothing() {
    let server = Server::new(|stream| {
        greet(stream);
        go(stream, BYTES, ALL);
        let (_, cookie, _, _, _) = request(stream).expect("a request");
        stream.write_all(&simple(0, cookie, &[7; BLOCK_BYTES - 1])).expect("a part of it");
    });
    let device = server.open().expect("the export");
    let mut block = [9; BLOCK_BYTES];
    let errno = libc::ECONNRESET;
    let failed = DeviceError::Io { operation: Operation::Read, block: BlockNo(1), errno };
    assert_eq!(device.read(BlockNo(1), &mut block), Err(failed));
    assert_eq!(block, [9; BLOCK_BYTES]);
}

#[test]
fn a_server_that_reads_nothing_before_its_replies_are_read_is_not_waited_for() {
    // More replies than a socket holds, before more requests than it holds are read.
    let server = Server::export(64 << 20, ALL, |command, cookie, _, length, _| {
        let data = vec![1; if command == Command::Read { length as usize } else { 0 }];
        Some(simple(0, cookie, &data))
    });
    let device = server.open().expect("the export");
    let readings: Vec<_> = (0..64).map(|_| device.submit_read(BlockNo(0), 256)).collect();
    let long = |_| Arc::new(Buffer::from_bytes(&[5; 64 * BLOCK_BYTES]));
    let writes: Vec<_> =
        (0..16).map(|_| device.submit_write(BlockNo(0), (0..16).map(long).collect())).collect();
    readings.iter().for_each(|reading| device.wait(reading.ticket()).expect("a read"));
    writes.iter().for_each(|ticket| device.wait(ticket).expect("a write"));
}

#[test]
fn requests_are_as_long_as_the_server_takes_and_zeros_are_not_sent() {
    let (told, seen) = mpsc::channel();
    let server = Server::new(move |stream| {
        greet(stream);
        option(stream).expect("GO");
        let said = [block_size(512, 65536, 20_000), described(64 << 20, ALL), ack()].concat();
        stream.write_all(&said).expect("the export");
        while let Some((command, cookie, offset, length, data)) = request(stream) {
            told.send((command, offset, length)).expect("told");
            let data = if command == Command::Read {
                vec![1; length as usize]
            } else {
                drop(data);
                Vec::new()
            };
            stream.write_all(&simple(0, cookie, &data)).expect("a reply");
        }
    });
    let device = server.open().expect("the export");
    assert_eq!(device.discard_blocks_min(), Some(16));
    let block = BLOCK_BYTES as u64;
    device.write(BlockNo(1), (0..9).map(page).collect()).expect("a write");
    let parts: Vec<_> = seen.try_iter().collect();
    let write = |blocks: std::ops::Range<u64>| {
        (Command::Write, blocks.start * block, ((blocks.end - blocks.start) * block) as u32)
    };
    assert_eq!(parts, [write(1..5), write(5..9), write(9..10)]);
    device.read(BlockNo(2), &mut [0; 5 * BLOCK_BYTES]).expect("a read");
    let parts: Vec<_> = seen.try_iter().collect();
    assert_eq!(parts, [(Command::Read, 2 * block, 16384), (Command::Read, 6 * block, 4096)]);
    device.discard(BlockNo(0), 16384).expect("a trim");
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [(Command::Trim, 0, 64 << 20)]);
    drop(device);
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for_for_ever() {
    let (release, wait) = mpsc::channel::<()>();
    let server = Server::new(move |_| assert!(wait.recv().is_err()));
    let began = Instant::now();
    let sentence = told(server.open());
    assert!(sentence.contains("does not answer within 10 s"), "{sentence}");
    assert!(began.elapsed() < Duration::from_secs(60));
    drop(release);
}

// Shows: C9.
#[test]
fn one_process_of_a_machine_writes_to_an_export_and_others_are_told() {
    let server = Server::export(BYTES, ALL, |_, cookie, _, length, _| {
        Some(simple(0, cookie, &vec![0; length as usize]))
    });
    let device = server.open().expect("the export");
    for second in [server.open(), server.open_to_read()] {
        assert!(matches!(second, Err(NbdError::InUse { .. })), "{:?}", second.map(drop));
    }
    let other = Address { export: "another".to_owned(), ..server.address() };
    let lock = |address: &Address| {
        let identity = crate::stream::Stream::connect(address).expect("connected").identity(address);
        crate::lock::Lock::take(&identity.expect("known"), "nbd".as_ref(), None)
    };
    drop(lock(&other).expect("another export is another device"));
    drop(device);
    drop(lock(&server.address()).expect("it is free again"));
}
