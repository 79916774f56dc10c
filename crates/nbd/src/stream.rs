//! The connection: TCP or a Unix socket.

use crate::{Address, NbdError, Place};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::fmt::Write as _;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::linux::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a server may take to be reached, and for each answer of the handshake.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// A host that is gone says nothing. After this time without a sign of life of it the connection is broken; a server
/// that is only slow is waited for as long as it takes.
const SIGN_OF_LIFE_MAX: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
/// Pieces of memory that one call takes.
const PARTS_MAX: usize = 1024;

pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(crate) fn connect(address: &Address) -> Result<Stream, NbdError> {
        let failed = |source| NbdError::Connect { url: address.to_string(), source };
        match &address.place {
            Place::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Place::Tcp { host, port } => connect_tcp(host, *port).map(Stream::Tcp),
        }
        .map_err(failed)
    }

    /// Says which server this is, by whatever name it was reached on this machine.
    pub(crate) fn identity(&self, address: &Address) -> io::Result<String> {
        let mut text = match (self, &address.place) {
            (Stream::Tcp(stream), _) => stream.peer_addr()?.to_string(),
            (Stream::Unix(_), Place::Unix(path)) => {
                let socket = std::fs::metadata(path)?;
                format!("{}:{}", socket.st_dev(), socket.st_ino())
            }
            (Stream::Unix(_), Place::Tcp { .. }) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        // Writing to memory does not fail.
        let _ = write!(text, "/{}", address.export);
        Ok(text)
    }

    /// For the handshake, and `None` for whatever time it takes.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience))
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience))
            }
        }
    }

    /// Ends the connection, for whoever reads from it, too.
    pub(crate) fn end(&self) {
        // One that is ended already cannot be ended.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Sends all of it. A server that is gone is an error, and no signal, which would end a program that is not Rust's.
    pub(crate) fn send(&self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let some = &parts[..parts.len().min(PARTS_MAX)];
            match sendmsg(self, some, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => IoSlice::advance_slices(&mut parts, sent),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                // A request is sent in one piece, and nobody waits for more of it.
                stream.set_nodelay(true)?;
                watch(&stream)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Has a host that is gone noticed.
fn watch(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, (SIGN_OF_LIFE_MAX.as_secs() / PROBE_INTERVAL.as_secs() - 1) as u32)?;
    sockopt::set_tcp_user_timeout(stream, SIGN_OF_LIFE_MAX.as_millis() as u32)?;
    Ok(())
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&mut &*stream).read(into),
            Stream::Unix(stream) => (&mut &*stream).read(into),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(&mut [IoSlice::new(bytes)]).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
        }
    }
}
