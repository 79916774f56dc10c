//! Mounting without being root: fusermount3 mounts and passes the open device over a socket.

use super::MountOptions;
use crate::error::Error;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const HELPER: &str = "fusermount3";

pub(super) fn attach(at: &Path, options: &MountOptions) -> Result<OwnedFd, Error> {
    if options.block_device.is_some() {
        return Err(Error::BadOption {
            option: "block_device",
            value: String::from("set"),
            reason: "only root can mount block devices",
        });
    }
    let (ours, theirs) = UnixStream::pair().map_err(Error::NoHelper)?;
    let theirs_fd = theirs.as_raw_fd();
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(options.helper_list()).arg("--").arg(at);
    command.env("_FUSE_COMMFD", theirs_fd.to_string()).stdin(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: fcntl may be called between fork and exec; the descriptor is open in the child as well.
    unsafe {
        command.pre_exec(move || match libc::fcntl(theirs_fd, libc::F_SETFD, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut child = command.spawn().map_err(Error::NoHelper)?;
    drop(theirs);
    let received = receive_descriptor(&ours);
    let mut message = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // What it had to say is told if it failed.
        let _ = stderr.read_to_string(&mut message);
    }
    let status = child.wait().map_err(Error::NoHelper)?;
    match received {
        Ok(Some(fd)) if status.success() => Ok(fd),
        Ok(_) => {
            let text = message.trim();
            let message = if text.is_empty() { format!("it ended with {status}") } else { text.to_owned() };
            Err(Error::Helper { path: at.to_owned(), message })
        }
        Err(error) => Err(Error::Helper { path: at.to_owned(), message: error.to_string() }),
    }
}

pub(super) fn detach(at: &Path, lazily: bool) -> io::Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(at);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("busy") {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Err(io::Error::other(message))
}

/// One descriptor from the socket; `None` if it was closed without one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    // Room for one control message with one descriptor, aligned as its header asks.
    let mut control = [MaybeUninit::<u64>::zeroed(); 4];
    let mut byte = 0_u8;
    let mut data = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: a zeroed msghdr is valid; its pointers are set to memory that outlives the calls.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    loop {
        // SAFETY: `message` describes valid memory.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if received >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: `message` was filled in by recvmsg; the macros stay within its control memory.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null()
            || (*header).cmsg_level != libc::SOL_SOCKET
            || (*header).cmsg_type != libc::SCM_RIGHTS
        {
            return Ok(None);
        }
        let fd = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
        Ok(Some(OwnedFd::from_raw_fd(fd)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    fn send_descriptor(socket: &UnixStream, fd: libc::c_int) {
        let mut control = [0_u64; 4];
        let mut byte = 0_u8;
        let mut data = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: all memory that the message describes outlives the call.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut data;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as _;
            libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(fd);
            libc::sendmsg(socket.as_raw_fd(), &raw const message, 0)
        };
        assert_eq!(sent, 1);
    }

    #[test]
    fn a_descriptor_passes_the_socket_and_an_end_without_one_is_seen() {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let file = tempfile::tempfile().expect("file");
        send_descriptor(&theirs, file.as_raw_fd());
        let received = receive_descriptor(&ours).expect("receive").expect("descriptor");
        let same = File::from(received).metadata().expect("stat").ino();
        assert_eq!(same, file.metadata().expect("stat").ino());
        drop(theirs);
        assert!(receive_descriptor(&ours).expect("receive").is_none());
    }
}
