//! The library's errors as Python's.
//!
//! Every failure is an `OSError` with the library's error number and sentence. Python itself chooses the subclass by
//! the number (`FileNotFoundError`, `FileExistsError` ...). A transaction's conflict has a subclass of its own, because
//! programs answer it by beginning again.

use pyo3::exceptions::{PyBlockingIOError, PyOSError, PyValueError};
use pyo3::prelude::*;
use std::io;
use std::path::Path;

pyo3::create_exception!(
    syncline,
    ConflictError,
    PyBlockingIOError,
    "Somebody else has changed what a transaction depends on; nothing of it was applied. Begin it again."
);

/// What the system says of an error number ends in this.
const OS_ERROR: &str = " (os error ";

/// The Linux error number of a failure of the library.
pub(crate) fn errno_of(error: &io::Error) -> i32 {
    if let Some(errno) = error.raw_os_error() {
        return errno;
    }
    if let Some(inner) = engine_error(error) {
        return inner.errno();
    }
    match error.kind() {
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::AlreadyExists => libc::EEXIST,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::InvalidData => libc::EILSEQ,
        io::ErrorKind::StorageFull => libc::ENOSPC,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

fn engine_error(error: &io::Error) -> Option<&syncline::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// The sentence without the number, which Python adds itself.
fn sentence_of(error: &io::Error) -> String {
    let mut sentence = error.to_string();
    let number = sentence.rfind(OS_ERROR).filter(|_| sentence.ends_with(')'));
    sentence.truncate(number.unwrap_or(sentence.len()));
    sentence
}

/// A failure that is about no name.
pub(crate) fn of(error: io::Error) -> PyErr {
    let arguments = (errno_of(&error), sentence_of(&error));
    match engine_error(&error) {
        Some(syncline::Error::Conflict) => ConflictError::new_err(arguments),
        _ => PyOSError::new_err(arguments),
    }
}

/// A failure that is about a name, which Python adds itself.
pub(crate) fn of_path(error: io::Error, path: &Path) -> PyErr {
    let sentence = sentence_of(&error);
    let sentence = sentence.strip_prefix(&format!("cannot open {}: ", path.display())).unwrap_or(&sentence);
    PyOSError::new_err((errno_of(&error), sentence.to_owned(), path.as_os_str().to_owned()))
}

/// A failure that is about two names.
pub(crate) fn of_paths(error: io::Error, from: &Path, to: &Path) -> PyErr {
    PyOSError::new_err((
        errno_of(&error),
        sentence_of(&error),
        from.as_os_str().to_owned(),
        None::<i32>,
        to.as_os_str().to_owned(),
    ))
}

/// As Python says it of its own files.
pub(crate) fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("I/O operation on closed {what}"))
}

/// Whether a forked child was refused.
pub(crate) fn is_forked(error: &io::Error) -> bool {
    matches!(engine_error(error), Some(syncline::Error::Forked(_)))
}
