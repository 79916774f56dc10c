//! Who tells the metrics: a few lines of HTTP on one thread, for clients that may be slow, hostile or gone.
//!
//! Bounds: [`CLIENTS_MAX`] connections, [`PATIENCE`] for each from its beginning to its end, [`REQUEST_BYTES_MAX`] of
//! request. The oldest client makes room for a further one. Every connection is answered once and closed. The thread
//! only waits in poll(2), which sees all of them. It ends with the process.

use super::Address;
use crate::MountError;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Connections at once.
const CLIENTS_MAX: usize = 8;
/// From the beginning of a connection to its end.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest request, headers included.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Pause when a connection cannot be taken: without descriptors poll(2) would return at once, again and again.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// What a client takes to be told about.
type Render = dyn Fn() -> Option<String> + Send;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Endpoint {
    listener: Listener,
    address: Address,
}

#[derive(Debug)]
enum Listener {
    Internet(TcpListener),
    Unix(UnixListener),
}

/// Metrics are told. Dropped, its socket has no name any more.
#[derive(Debug)]
pub(crate) struct Served {
    /// The socket's path and number, if it has any.
    socket: Option<(PathBuf, u64)>,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some((path, number)) = &self.socket
            && std::fs::symlink_metadata(path).is_ok_and(|found| found.ino() == *number)
        {
            // It may lie in a directory of somebody else; the next mount takes its place.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Endpoint {
    /// Listens. Nobody is answered yet.
    pub(crate) fn bind(address: &Address) -> Result<Endpoint, MountError> {
        let failed = |source| MountError::Metrics { address: address.to_string(), source };
        let listener = match address {
            Address::Internet(internet) => {
                TcpListener::bind(internet).map(Listener::Internet).map_err(failed)?
            }
            Address::Unix(path) => bind_privately(path).map(Listener::Unix).map_err(failed)?,
        };
        let (nonblocking, address) = match &listener {
            Listener::Internet(listener) => {
                // Port 0 has become another one.
                let bound = listener.local_addr().map_or_else(|_| address.clone(), Address::Internet);
                (listener.set_nonblocking(true), bound)
            }
            Listener::Unix(listener) => (listener.set_nonblocking(true), address.clone()),
        };
        nonblocking.map_err(failed)?;
        Ok(Endpoint { listener, address })
    }

    /// Answers from a thread of its own. `render`: the metrics; `None` when the volume is closed.
    pub(crate) fn serve(self, render: impl Fn() -> Option<String> + Send + 'static) -> io::Result<Served> {
        let socket = match &self.address {
            Address::Internet(_) => None,
            Address::Unix(path) => Some((path.clone(), std::fs::symlink_metadata(path)?.ino())),
        };
        let listener = self.listener;
        let body = move || serve(&listener, &render);
        std::thread::Builder::new().name("syncline-metrics".to_owned()).spawn(body)?;
        Ok(Served { socket })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(formatter)
    }
}

impl Listener {
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Listener::Internet(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
        })
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Listener::Internet(listener) => listener.as_raw_fd(),
            Listener::Unix(listener) => listener.as_raw_fd(),
        }
    }
}

/// A socket that its owner alone may open from the first moment on. One that nobody listens on any more makes room.
fn bind_privately(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    let checked = |result: libc::c_int| match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    };
    // SAFETY: takes numbers only.
    let fd = checked(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open. The name is made with this mode.
    checked(unsafe { libc::fchmod(fd, 0o600) })?;
    // SAFETY: all zeros are a valid address.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= name.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket's path has at most 107 bytes"));
    }
    for (to, from) in name.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is initialised and as long as told.
    checked(unsafe { libc::bind(fd, (&raw const name).cast(), length) })?;
    // SAFETY: the descriptor is open.
    checked(unsafe { libc::listen(fd, CLIENTS_MAX as libc::c_int) })?;
    Ok(UnixListener::from(socket))
}

trait Stream: Read + Write + AsRawFd + Send {}

impl<T: Read + Write + AsRawFd + Send> Stream for T {}

struct Client {
    stream: Box<dyn Stream>,
    deadline: Instant,
    request: Vec<u8>,
    /// Not empty once the request is there.
    answer: Vec<u8>,
    sent: usize,
}

fn serve(listener: &Listener, render: &Render) {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let ready = wait(listener, &clients);
        let mut index = 0;
        clients.retain_mut(|client| {
            index += 1;
            let stays = !ready[index] || client.go_on(render);
            stays && Instant::now() < client.deadline
        });
        if ready[0] {
            match listener.accept() {
                Ok(stream) => {
                    if clients.len() == CLIENTS_MAX {
                        // They are in the order of their coming.
                        clients.remove(0);
                    }
                    clients.push(Client::new(stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::debug!(%error, "a client of the metrics was not taken");
                    std::thread::sleep(REFUSED_PAUSE);
                }
            }
        }
    }
}

/// Waits until something can be done; tells of the listener and of each client whether it is ready.
fn wait(listener: &Listener, clients: &[Client]) -> Vec<bool> {
    let poll = |fd: RawFd, events| libc::pollfd { fd, events, revents: 0 };
    let mut polled = vec![poll(listener.as_raw_fd(), libc::POLLIN)];
    for client in clients {
        let events = if client.answer.is_empty() { libc::POLLIN } else { libc::POLLOUT };
        polled.push(poll(client.stream.as_raw_fd(), events));
    }
    let next = clients.iter().map(|client| client.deadline).min();
    let milliseconds = next.map_or(-1, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that the deadline has passed when it returns.
        i32::try_from(left.as_millis()).unwrap_or(i32::MAX - 1) + 1
    });
    // SAFETY: the pointer and the length are those of the vector.
    let result = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, milliseconds) };
    polled.iter().map(|polled| result > 0 && polled.revents != 0).collect()
}

impl Client {
    fn new(stream: Box<dyn Stream>) -> Client {
        let deadline = Instant::now() + PATIENCE;
        Client { stream, deadline, request: Vec::new(), answer: Vec::new(), sent: 0 }
    }

    /// Reads or writes what can be read or written without waiting; false when the connection is over.
    fn go_on(&mut self, render: &Render) -> bool {
        let done = match self.answer.is_empty() {
            true => self.read(render),
            false => self.write(),
        };
        match done {
            Ok(goes_on) => goes_on,
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    fn read(&mut self, render: &Render) -> io::Result<bool> {
        let mut bytes = [0; 1024];
        let count = self.stream.read(&mut bytes)?;
        self.request.extend_from_slice(&bytes[..count]);
        let is_whole = self.request.windows(4).any(|end| end == b"\r\n\r\n");
        if is_whole || self.request.len() > REQUEST_BYTES_MAX {
            self.answer = answer(&self.request, is_whole, render);
            return self.write();
        }
        Ok(count > 0)
    }

    fn write(&mut self) -> io::Result<bool> {
        self.sent += self.stream.write(&self.answer[self.sent..])?;
        Ok(self.sent < self.answer.len())
    }
}

/// The answer to a request; `is_whole`: its headers have come to an end.
fn answer(request: &[u8], is_whole: bool, render: &Render) -> Vec<u8> {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let (status, text) = match (method, path) {
        _ if !is_whole || !is_http => ("400 Bad Request", None),
        ("GET" | "HEAD", "/metrics") => match render() {
            Some(text) => ("200 OK", Some(text)),
            None => ("503 Service Unavailable", None),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", None),
        _ => ("405 Method Not Allowed", None),
    };
    let text = text.unwrap_or_else(|| format!("{status}: GET /metrics tells the metrics\n"));
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nAllow: GET, \
         HEAD\r\nConnection: close\r\n\r\n",
        text.len()
    );
    let body = if method == "HEAD" { "" } else { &text };
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests;
