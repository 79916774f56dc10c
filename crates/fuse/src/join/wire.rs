//! Messages between a daemon and whoever joins it, with a descriptor where one is handed over.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest message: a path and the options.
const BYTES_MAX: usize = 64 << 10;
/// How long the other side may take for what it does at once.
const PATIENCE: Duration = Duration::from_secs(60);
/// One look whether something was said, in milliseconds.
const LOOK_MS: libc::c_int = 100;

/// One side of a conversation.
pub(super) struct Wire {
    stream: UnixStream,
}

/// The process at the other end, as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its number; 0 for one of another namespace.
    pub(super) process: u32,
    pub(super) user: u32,
}

/// The fields of a message.
pub(super) type Fields = Vec<Vec<u8>>;

impl Wire {
    pub(super) fn new(stream: UnixStream) -> io::Result<Wire> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Wire { stream })
    }

    /// The other end: the process that listens, or the one that has connected.
    pub(super) fn peer(&self) -> io::Result<Peer> {
        let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most as many bytes as the structure has.
        let result = unsafe {
            let at = (&raw mut peer).cast();
            libc::getsockopt(self.stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut bytes)
        };
        match result {
            0 => Ok(Peer { process: peer.pid.cast_unsigned(), user: peer.uid }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until something was said, or the conversation has ended. Looks are counted, and not the time: who stood
    /// still must not take that for the other side's silence.
    pub(super) fn is_heard_within(&self, looks: u32) -> bool {
        let mut looked = libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which is open, is looked at.
        (0..looks).any(|_| unsafe { libc::poll(&raw mut looked, 1, LOOK_MS) } > 0)
    }

    pub(super) fn send(&mut self, fields: &[&[u8]]) -> io::Result<()> {
        let message = fields.join(&0);
        let length = u32::try_from(message.len()).ok().filter(|_| message.len() <= BYTES_MAX);
        let length = length.ok_or(io::ErrorKind::InvalidInput)?;
        self.stream.write_all(&[&length.to_ne_bytes()[..], &message].concat())
    }

    /// Errors: among others `UnexpectedEof`, the other side has closed the conversation.
    pub(super) fn receive(&mut self) -> io::Result<Fields> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = u32::from_ne_bytes(length) as usize;
        if length > BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut message = vec![0; length];
        self.stream.read_exact(&mut message)?;
        Ok(message.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
    }

    /// The same, for as long as it takes.
    pub(super) fn receive_at_last(&mut self) -> io::Result<Fields> {
        self.stream.set_read_timeout(None)?;
        self.receive()
    }

    pub(super) fn send_descriptor(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut room = Room::new();
        let mut byte = [0_u8];
        let mut parts = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        // SAFETY: the header's pointers lead to what outlives the call, and the room has place for one descriptor.
        let sent = unsafe {
            let header = room.header(&mut parts);
            let control = libc::CMSG_FIRSTHDR(&raw const header);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as _;
            libc::CMSG_DATA(control).cast::<libc::c_int>().write_unaligned(fd.as_raw_fd());
            libc::sendmsg(self.stream.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)
        };
        if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Errors: among others `InvalidData`, something else was sent.
    pub(super) fn receive_descriptor(&mut self) -> io::Result<OwnedFd> {
        let mut room = Room::new();
        let mut byte = [0_u8];
        let mut parts = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        // SAFETY: the header's pointers lead to what outlives the call. What the kernel says is a descriptor is a new
        // one, of this process alone.
        unsafe {
            let mut header = room.header(&mut parts);
            match libc::recvmsg(self.stream.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) {
                1 => {}
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => return Err(io::Error::last_os_error()),
            }
            let control = libc::CMSG_FIRSTHDR(&raw const header);
            let length = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as usize;
            if control.is_null()
                || (*control).cmsg_level != libc::SOL_SOCKET
                || (*control).cmsg_type != libc::SCM_RIGHTS
                || (*control).cmsg_len as usize != length
            {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned()))
        }
    }
}

/// Place for a control message with one descriptor, where the kernel wants one to begin.
#[repr(C)]
struct Room {
    _aligned: [libc::cmsghdr; 0],
    bytes: [MaybeUninit<u8>; ROOM_BYTES],
}

// SAFETY: it computes, and reads nothing.
const ROOM_BYTES: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) as usize };

impl Room {
    fn new() -> Room {
        Room { _aligned: [], bytes: [MaybeUninit::zeroed(); ROOM_BYTES] }
    }

    fn header(&mut self, parts: &mut libc::iovec) -> libc::msghdr {
        // SAFETY: a zeroed header is a valid one, without anything.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = parts;
        header.msg_iovlen = 1;
        header.msg_control = self.bytes.as_mut_ptr().cast();
        header.msg_controllen = ROOM_BYTES as _;
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Seek;
    use std::os::fd::AsFd;

    fn pair() -> (Wire, Wire) {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        (Wire::new(one).expect("one"), Wire::new(other).expect("the other"))
    }

    #[test]
    fn fields_and_a_descriptor_arrive_as_they_were_sent() {
        let (mut one, mut other) = pair();
        one.send(&[b"mount", b"", b"ro"]).expect("send");
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"what it holds").expect("write");
        one.send_descriptor(file.as_fd()).expect("send a descriptor");
        drop(file);
        assert_eq!(other.receive().expect("receive"), [&b"mount"[..], b"", b"ro"]);
        let mut file = File::from(other.receive_descriptor().expect("receive a descriptor"));
        file.rewind().expect("rewind");
        let mut held = String::new();
        file.read_to_string(&mut held).expect("read");
        assert_eq!(held, "what it holds");
        // SAFETY: geteuid has no preconditions.
        let user = unsafe { libc::geteuid() };
        assert_eq!(other.peer().expect("peer"), Peer { process: std::process::id(), user });
    }

    #[test]
    fn silence_has_an_end_and_so_has_a_conversation() {
        let (mut one, other) = pair();
        assert!(!other.is_heard_within(1));
        one.send(&[b"word"]).expect("send");
        assert!(other.is_heard_within(1));
        assert!(!one.is_heard_within(1));
        drop(other);
        assert!(one.is_heard_within(1));
    }

    #[test]
    fn what_is_no_message_or_no_descriptor_is_an_error() {
        let (mut one, mut other) = pair();
        one.stream.write_all(b"x").expect("write");
        let error = other.receive_descriptor().expect_err("a byte without a descriptor");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        one.stream.write_all(&u32::MAX.to_ne_bytes()).expect("write");
        assert_eq!(other.receive().expect_err("too long").kind(), io::ErrorKind::InvalidData);
        assert_eq!(
            one.send(&[&[1; BYTES_MAX + 1]]).expect_err("too long").kind(),
            io::ErrorKind::InvalidInput
        );
        drop(one);
        assert_eq!(other.receive().expect_err("closed").kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(other.receive_descriptor().expect_err("closed").kind(), io::ErrorKind::UnexpectedEof);
    }
}
