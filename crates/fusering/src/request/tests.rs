//! Each decoder against messages put together by hand, and all of them against damage.

use super::*;
use crate::abi::{InHeader, Opcode};
use crate::errno::Errno;
use crate::transport::RawRequest;

const NODE: NodeId = NodeId(42);

/// Little-endian numbers and strings one after the other, as they lie in a message on the machines that run the tests.
#[derive(Default, Clone)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(mut self, value: u16) -> Bytes {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Bytes {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Bytes {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }
}

fn bytes() -> Bytes {
    Bytes::default()
}

fn header(opcode: u32, extension_units: u16) -> InHeader {
    let message =
        bytes().u32(999).u32(opcode).u64(77).u64(42).u32(1).u32(2).u32(3).u16(extension_units).u16(0);
    zerocopy::FromBytes::read_from_bytes(&message.0).expect("40 bytes")
}

fn agreed(setxattr_ext: bool) -> Agreed {
    Agreed { setxattr_ext, data_bytes_max: 4096 }
}

/// Decodes what is expected to be right, shows that each shorter operation header is refused, and that neither a longer
/// one nor extensions change anything.
#[track_caller]
fn check(opcode: u32, op: Bytes, payload: &[u8], expected: Operation<'_>) {
    check_with(opcode, op, payload, false, expected);
}

#[track_caller]
fn check_with(opcode: u32, op: Bytes, payload: &[u8], setxattr_ext: bool, expected: Operation<'_>) {
    let plain = header(opcode, 0);
    let request = RawRequest { header: &plain, op: &op.0, payload };
    assert_eq!(decode(&request, agreed(setxattr_ext)), Ok(expected));
    assert_eq!(Opcode(opcode).header_bytes(setxattr_ext), Some(op.0.len()), "bytes of the fixed header");
    for length in 0..op.0.len() {
        let short = RawRequest { header: &plain, op: &op.0[..length], payload };
        assert_eq!(decode(&short, agreed(setxattr_ext)), Err(Errno::EINVAL), "{length} bytes of header");
    }
    // io_uring has an area of 128 bytes for it.
    let mut area = op.0.clone();
    area.resize(128, 0xee);
    assert_eq!(
        decode(&RawRequest { header: &plain, op: &area, payload }, agreed(setxattr_ext)),
        Ok(expected)
    );
    let extended = header(opcode, 2);
    let longer = [payload, &[0xdd; 16]].concat();
    assert_eq!(
        decode(&RawRequest { header: &extended, op: &op.0, payload: &longer }, agreed(setxattr_ext)),
        Ok(expected)
    );
    if payload.len() < 16 {
        let request = RawRequest { header: &extended, op: &op.0, payload };
        assert_eq!(decode(&request, agreed(setxattr_ext)), Err(Errno::EINVAL), "less than the extensions");
    }
}

#[track_caller]
fn refused(opcode: u32, op: &Bytes, payload: &[u8], errno: Errno) {
    let header = header(opcode, 0);
    assert_eq!(decode(&RawRequest { header: &header, op: &op.0, payload }, agreed(false)), Err(errno));
}

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

#[test]
fn lookups_may_name_the_directory_and_its_parent() {
    for text in ["a", ".", "..", "...", "with blank"] {
        let payload = format!("{text}\0");
        check(1, bytes(), payload.as_bytes(), Operation::Lookup(Lookup { parent: NODE, name: name(text) }));
    }
}

#[test]
fn names_that_are_none_are_refused() {
    for payload in [&b""[..], b"\0", b"no end", b"a/b\0", b"/\0"] {
        refused(1, &bytes(), payload, Errno::EINVAL);
        refused(10, &bytes(), payload, Errno::EINVAL);
        refused(9, &bytes().u64(0), payload, Errno::EINVAL);
    }
    for payload in [&b".\0"[..], b"..\0"] {
        refused(10, &bytes(), payload, Errno::EINVAL);
        refused(35, &bytes().u64(0).u64(0), payload, Errno::EINVAL);
    }
    refused(1, &bytes(), &[&[b'x'; 4096][..], b"\0"].concat(), Errno::ENAMETOOLONG);
}

#[test]
fn operations_on_names() {
    check(10, bytes(), b"a\0", Operation::Unlink(Remove { parent: NODE, name: name("a") }));
    check(11, bytes(), b"a\0", Operation::Rmdir(Remove { parent: NODE, name: name("a") }));
    let target = Path::new("../t/x");
    check(6, bytes(), b"a\0../t/x\0", Operation::SymLink(SymLink { parent: NODE, name: name("a"), target }));
    refused(6, &bytes(), b"a\0no end", Errno::EINVAL);
    let mode = NewMode { bits: 0o20644, umask: 0o22 };
    let device = DeviceNumber { major: 1, minor: 3 };
    check(
        8,
        bytes().u32(0o20644).u32(0x103).u32(0o22).u32(0),
        b"a\0",
        Operation::Mknod(Mknod { parent: NODE, name: name("a"), mode, device }),
    );
    check(
        9,
        bytes().u32(0o20644).u32(0o22),
        b"a\0",
        Operation::Mkdir(Mkdir { parent: NODE, name: name("a"), mode }),
    );
    let link = Link { node: NodeId(7), new_parent: NODE, new_name: name("b") };
    check(13, bytes().u64(7), b"b\0", Operation::Link(link));
}

#[test]
fn renames_with_and_without_flags() {
    let (old, new) = (name("old"), name("new"));
    let rename = |flags| Rename { parent: NODE, name: old, new_parent: NodeId(5), new_name: new, flags };
    check(12, bytes().u64(5), b"old\0new\0", Operation::Rename(rename(0)));
    check(45, bytes().u64(5).u32(2).u32(0), b"old\0new\0", Operation::Rename(rename(2)));
    refused(45, &bytes().u64(5).u64(0), b"old\0new", Errno::EINVAL);
    refused(45, &bytes().u64(5).u64(0), b"old\0..\0", Errno::EINVAL);
}

#[test]
fn creation_and_files_without_a_name() {
    let op = || bytes().u32(0o102).u32(0o100600).u32(0o77).u32(1);
    let create = |text| Create {
        parent: NODE,
        name: name(text),
        mode: NewMode { bits: 0o100600, umask: 0o77 },
        flags: 0o102,
        open_flags: OpenInFlags::KILL_SUIDGID,
    };
    check(35, op(), b"a\0", Operation::Create(create("a")));
    check(51, op(), b"/\0", Operation::TmpFile(create("")));
}

#[test]
fn attributes_are_asked_for() {
    let getattr = |handle| Operation::GetAttr(GetAttr { node: NODE, handle });
    check(3, bytes().u32(0).u32(0).u64(9), b"", getattr(None));
    check(3, bytes().u32(1).u32(0).u64(9), b"", getattr(Some(Handle(9))));
    let statx = Statx { node: NODE, handle: Some(Handle(9)), flags: 0x2000, mask: 0x800 };
    check(52, bytes().u32(1).u32(0).u64(9).u32(0x2000).u32(0x800), b"", Operation::Statx(statx));
}

fn setattr_op(valid: u32) -> Bytes {
    let op = bytes().u32(valid).u32(0).u64(9).u64(1000).u64(0xabc);
    op.u64(-5_i64 as u64).u64(6).u64(7).u32(50).u32(60).u32(70).u32(0o640).u32(0).u32(11).u32(12).u32(0)
}

#[test]
fn attributes_are_set_only_where_they_are_valid() {
    let nothing = SetAttr {
        node: NODE,
        handle: None,
        mode: None,
        uid: None,
        gid: None,
        size: None,
        accessed: None,
        modified: None,
        changed: None,
        lock_owner: None,
        kill_set_id: false,
    };
    check(4, setattr_op(0), b"", Operation::SetAttr(nothing));
    let at = |seconds, nanoseconds| Time { seconds, nanoseconds };
    let all = SetAttr {
        node: NODE,
        handle: Some(Handle(9)),
        mode: Some(0o640),
        uid: Some(11),
        gid: Some(12),
        size: Some(1000),
        accessed: Some(SetTime::At(at(-5, 50))),
        modified: Some(SetTime::At(at(6, 60))),
        changed: Some(at(7, 70)),
        lock_owner: Some(LockOwner(0xabc)),
        kill_set_id: true,
    };
    check(4, setattr_op(0xe7f), b"", Operation::SetAttr(all));
    let now = SetAttr { accessed: Some(SetTime::Now), modified: Some(SetTime::Now), ..all };
    check(4, setattr_op(0xfff), b"", Operation::SetAttr(now));
}

#[test]
fn operations_on_nodes() {
    check(5, bytes(), b"", Operation::ReadLink(ReadLink { node: NODE }));
    check(17, bytes(), b"", Operation::StatFs(StatFs { node: NODE }));
    check(38, bytes(), b"", Operation::Destroy);
    check(50, bytes().u64(0), b"", Operation::SyncFs(SyncFs { node: NODE }));
    check(34, bytes().u32(5).u32(0), b"", Operation::Access(Access { node: NODE, mask: 5 }));
    let bmap = Bmap { node: NODE, block: 88, block_bytes: 512 };
    check(37, bytes().u64(88).u32(512).u32(0), b"", Operation::Bmap(bmap));
}

#[test]
fn files_are_opened_read_and_written() {
    let open = Open { node: NODE, flags: 0o1001, open_flags: OpenInFlags::KILL_SUIDGID };
    check(14, bytes().u32(0o1001).u32(1), b"", Operation::Open(open));
    check(27, bytes().u32(0o1001).u32(1), b"", Operation::OpenDir(open));
    let read = |flags: u32| bytes().u64(9).u64(4096).u32(512).u32(flags).u64(0xabc).u32(0o40000).u32(0);
    let mut expected = Read {
        node: NODE,
        handle: Handle(9),
        offset: 4096,
        size: 512,
        read_flags: ReadFlags::empty(),
        lock_owner: None,
        flags: 0o40000,
    };
    check(15, read(0), b"", Operation::Read(expected));
    expected.read_flags = ReadFlags::LOCKOWNER;
    expected.lock_owner = Some(LockOwner(0xabc));
    check(15, read(2), b"", Operation::Read(expected));
    let list = ReadDir { node: NODE, handle: Handle(9), offset: 4096, size: 512, flags: 0o40000 };
    check(28, read(0), b"", Operation::ReadDir(list));
    check(44, read(0), b"", Operation::ReadDirPlus(list));
}

#[test]
fn no_more_is_read_than_was_agreed_on() {
    for opcode in [15, 28, 44] {
        refused(opcode, &bytes().u64(9).u64(0).u32(4097).u32(0).u64(0).u64(0), b"", Errno::EINVAL);
    }
}

#[test]
fn writes_have_all_their_data() {
    let op = |size: u32| bytes().u64(9).u64(4096).u32(size).u32(6).u64(0xabc).u32(1).u32(0);
    let write = Write {
        node: NODE,
        handle: Handle(9),
        offset: 4096,
        data: b"data!",
        write_flags: WriteFlags::LOCKOWNER | WriteFlags::KILL_SUIDGID,
        lock_owner: Some(LockOwner(0xabc)),
        flags: 1,
    };
    check(16, op(5), b"data!", Operation::Write(write));
    refused(16, &op(6), b"data!", Errno::EINVAL);
    refused(16, &op(u32::MAX), b"data!", Errno::EINVAL);
}

#[test]
fn files_are_closed_and_synced() {
    let release = Release {
        node: NODE,
        handle: Handle(9),
        flags: 2,
        release_flags: ReleaseFlags::FLOCK_UNLOCK,
        lock_owner: LockOwner(0xabc),
    };
    let op = || bytes().u64(9).u32(2).u32(2).u64(0xabc);
    check(18, op(), b"", Operation::Release(release));
    check(29, op(), b"", Operation::ReleaseDir(release));
    let flush = Flush { node: NODE, handle: Handle(9), lock_owner: LockOwner(0xabc) };
    check(25, bytes().u64(9).u64(0).u64(0xabc), b"", Operation::Flush(flush));
    let fsync = Fsync { node: NODE, handle: Handle(9), flags: FsyncFlags::FDATASYNC };
    check(20, bytes().u64(9).u32(1).u32(0), b"", Operation::Fsync(fsync));
    check(30, bytes().u64(9).u32(1).u32(0), b"", Operation::FsyncDir(fsync));
}

#[test]
fn extended_attributes() {
    let mut set = SetXattr {
        node: NODE,
        name: name("user.a"),
        value: b"v\0w",
        flags: 2,
        setxattr_flags: SetxattrFlags::empty(),
    };
    check(21, bytes().u32(3).u32(2), b"user.a\0v\0w", Operation::SetXattr(set));
    set.setxattr_flags = SetxattrFlags::ACL_KILL_SGID;
    let long = bytes().u32(3).u32(2).u32(1).u32(0);
    check_with(21, long, b"user.a\0v\0w", true, Operation::SetXattr(set));
    refused(21, &bytes().u32(4).u32(2), b"user.a\0v\0w", Errno::EINVAL);
    let get = GetXattr { node: NODE, name: name("user.a") };
    check(22, bytes().u32(100).u32(0), b"user.a\0", Operation::GetXattr(get, 100));
    refused(22, &bytes().u64(0), b"\0", Errno::EINVAL);
    check(23, bytes().u32(100).u32(0), b"", Operation::ListXattr(ListXattr { node: NODE }, 100));
    let remove = RemoveXattr { node: NODE, name: name("user.a") };
    check(24, bytes(), b"user.a\0", Operation::RemoveXattr(remove));
}

#[test]
fn locks_of_known_kinds() {
    let op = |kind: u32| bytes().u64(9).u64(0xabc).u64(10).u64(20).u32(kind).u32(3).u32(1).u32(0);
    let request = LockRequest {
        node: NODE,
        handle: Handle(9),
        owner: LockOwner(0xabc),
        lock: Lock { start: 10, end: 20, kind: crate::LockKind::Write, pid: 3 },
        flock: true,
    };
    check(31, op(1), b"", Operation::GetLk(request));
    check(32, op(1), b"", Operation::SetLk(request));
    check(33, op(1), b"", Operation::SetLkw(request));
    refused(32, &op(9), b"", Errno::EINVAL);
    refused(32, &op(u32::MAX), b"", Errno::EINVAL);
}

#[test]
fn ranges_ioctl_and_poll() {
    let ioctl = Ioctl {
        node: NODE,
        handle: Handle(9),
        flags: IoctlFlags::DIR,
        command: 0xf501,
        argument: 0xdead,
        input: b"in",
        output_bytes_max: 64,
    };
    let op = |bytes_in: u32| bytes().u64(9).u32(16).u32(0xf501).u64(0xdead).u32(bytes_in).u32(64);
    check(39, op(2), b"in", Operation::Ioctl(ioctl));
    refused(39, &op(3), b"in", Errno::EINVAL);
    let poll = Poll {
        node: NODE,
        handle: Handle(9),
        wakeup: PollHandle(8),
        flags: PollFlags::SCHEDULE_NOTIFY,
        events: 5,
    };
    check(40, bytes().u64(9).u64(8).u32(1).u32(5), b"", Operation::Poll(poll));
    let fallocate = Fallocate { node: NODE, handle: Handle(9), offset: 1, length: 2, mode: 3 };
    check(43, bytes().u64(9).u64(1).u64(2).u32(3).u32(0), b"", Operation::Fallocate(fallocate));
    let lseek = Lseek { node: NODE, handle: Handle(9), offset: -1, whence: 4 };
    check(46, bytes().u64(9).u64(u64::MAX).u32(4).u32(0), b"", Operation::Lseek(lseek));
}

#[test]
fn copies_ask_for_no_more_than_their_answer_can_tell() {
    let op = |length: u64| bytes().u64(9).u64(1).u64(7).u64(8).u64(2).u64(length).u64(0);
    let copy = |length| CopyFileRange {
        node: NODE,
        handle: Handle(9),
        offset: 1,
        to_node: NodeId(7),
        to_handle: Handle(8),
        to_offset: 2,
        length,
        flags: 0,
    };
    check(47, op(5), b"", Operation::CopyFileRange(copy(5)));
    check(47, op(1 << 40), b"", Operation::CopyFileRange(copy(1 << 31)));
    check(53, op(1 << 40), b"", Operation::CopyFileRange64(copy(1 << 40)));
}

#[test]
fn messages_without_an_answer() {
    check(2, bytes().u64(3), b"", Operation::Forget(Forget { node: NODE, lookups: 3 }));
    let pairs = bytes().u64(1).u64(2).u64(3).u64(4).0;
    check(42, bytes().u32(2).u32(0), &pairs, Operation::BatchForget(&pairs));
    refused(42, &bytes().u32(3).u32(0), &pairs, Errno::EINVAL);
    refused(42, &bytes().u32(u32::MAX).u32(0), &pairs, Errno::EINVAL);
    check(36, bytes().u64(77), b"", Operation::Interrupt(RequestId(77)));
    let data = Retrieved { node: NODE, offset: 5, data: b"abc" };
    check(41, bytes().u64(0).u64(5).u32(3).u32(0).u64(0).u64(0), b"abc", Operation::NotifyReply(data));
}

#[test]
fn unknown_operations_are_not_implemented() {
    for opcode in [0, 7, 19, 26, 48, 49, 54, 4096, u32::MAX] {
        refused(opcode, &bytes().u64(0).u64(0).u64(0).u64(0).u64(0), b"x\0", Errno::ENOSYS);
    }
}

#[test]
fn every_known_operation_but_the_handshake_is_decoded_or_refused_on_purpose() {
    let zeros = [0; 256];
    for opcode in Opcode::ALL {
        let header = header(opcode.0, 0);
        let decoded =
            decode(&RawRequest { header: &header, op: &zeros[..128], payload: b"a\0b\0" }, agreed(true));
        let left_out = [Opcode::INIT, Opcode::SETUPMAPPING, Opcode::REMOVEMAPPING];
        assert_eq!(decoded == Err(Errno::ENOSYS), left_out.contains(opcode), "{opcode}: {decoded:?}");
    }
}
