//! [`errno`].

use crate::Error;
use std::io;

/// EIO, for an error that comes from neither the engine nor the system.
const EIO: i32 = 5;

/// The Linux error number of an error of this library: `raw_os_error` where there is one, and otherwise that of the
/// [`Error`] inside.
///
/// ```
/// let volume = syncline::Volume::create_in_memory(64 << 20)?;
/// assert_eq!(syncline::errno(&volume.read("missing").unwrap_err()), 2);
/// assert_eq!(syncline::errno(&volume.write("a".repeat(256), "").unwrap_err()), 36);
/// assert_eq!(syncline::errno(&volume.trim(1..2, 0).unwrap_err()), 22);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn errno(error: &io::Error) -> i32 {
    let inner = || error.get_ref()?.downcast_ref::<Error>().map(Error::errno);
    error.raw_os_error().or_else(inner).unwrap_or(match error.kind() {
        io::ErrorKind::AlreadyExists => 17,
        io::ErrorKind::InvalidInput => 22,
        _ => EIO,
    })
}
