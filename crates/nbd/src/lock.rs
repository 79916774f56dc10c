//! One process of this machine writes to an export.
//!
//! The protocol has no locks. Who writes takes a name in the abstract namespace of Unix sockets, which says which
//! server and export it is; the kernel gives it back when the process dies, whatever it has left. Who only reads tries
//! the name for a moment: readers are kept from an export that is written to, and not the other way round. Processes
//! in another network namespace, and on other machines, are not noticed (C9).

use crate::NbdError;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::{Duration, Instant};
use syncline_device::Private;
use syncline_format::checksum;

/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(10);
/// Another one's try, or the copy of a child that is just being forked, is soon over.
const PATIENCE_MIN: Duration = Duration::from_millis(200);

/// The name, until it is dropped.
pub(crate) struct Lock {
    _held: Private<UnixDatagram>,
}

impl Lock {
    /// Errors: `InUse`, somebody else still has it when the time is over.
    pub(crate) fn take(identity: &str, url: &Path, patience: Option<Duration>) -> Result<Lock, NbdError> {
        let deadline = Instant::now() + patience.unwrap_or_default().max(PATIENCE_MIN);
        let failed = |source| NbdError::Connect { url: url.display().to_string(), source };
        let name = address(identity).map_err(failed)?;
        loop {
            match Private::open(|| UnixDatagram::bind_addr(&name)) {
                Ok(held) => return Ok(Lock { _held: held }),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(failed(error)),
                Err(_) if Instant::now() >= deadline => return Err(NbdError::InUse { url: url.to_owned() }),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

/// Such names have some hundred bytes at most, so what is long is told by its checksums.
fn address(identity: &str) -> io::Result<SocketAddr> {
    let turned: Vec<u8> = identity.bytes().rev().collect();
    let name = format!("syncline/nbd/{:016x}{:016x}", checksum(identity.as_bytes()), checksum(&turned));
    SocketAddr::from_abstract_name(name)
}
