//! The native part of the Python package `syncline`: the library's volumes, files, tickets and transactions as classes
//! of the module `syncline._native`.
//!
//! It translates and nothing more: arguments, buffers and errors. What a Python program sees (`open` with its modes,
//! paths, context managers, fsspec, SQLite) is written in Python over it, in `python/syncline`.
//!
//! Rules that hold for every class:
//!
//! - **The interpreter's lock is given up around every call of the library.** A thread that waits for a device holds
//!   nobody up, and no thread of the library ever needs the interpreter.
//! - **What a forked child may come to is locked for moments only, with the interpreter's lock held.** Whoever forks
//!   holds that lock, so that a child finds no mutex of these locked and is refused by the library, with its sentence.
//!   (The lists of who waits for tickets are locked by the library's threads as well. A child has no use for them.)
//! - **An object in use outlives its closing.** A call takes a share of the file or volume. Closing gives up the
//!   object's own share, and the last call to return ends it.
//! - **Buffers of the caller stay exported while the library works on them**, so that Python refuses to resize them.

#[deny(unsafe_code)]
mod arguments;
mod buffer;
#[deny(unsafe_code)]
mod error;
mod file;
#[deny(unsafe_code)]
mod snapshot;
mod sqlite;
#[deny(unsafe_code)]
mod statistics;
#[deny(unsafe_code)]
mod ticket;
mod transaction;
#[deny(unsafe_code)]
mod volume;
mod wakeups;

use pyo3::prelude::*;

/// The module that Python imports.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<volume::Volume>()?;
    module.add_class::<file::File>()?;
    module.add_class::<ticket::SyncTicket>()?;
    module.add_class::<wakeups::Wakeups>()?;
    module.add_class::<transaction::Transaction>()?;
    module.add_class::<transaction::StagedFile>()?;
    module.add("ConflictError", module.py().get_type::<error::ConflictError>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
