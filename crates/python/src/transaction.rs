//! Transactions.
//!
//! A transaction is used by one thread at a time. A call takes it away, works without the interpreter's lock and puts
//! it back. Whoever finds it away is refused instead of waiting, so that nothing is ever locked across a fork.

use crate::buffer::{Buffer, new_bytes};
use crate::error;
use crate::file::File;
use crate::ticket::SyncTicket;
use crate::volume::OpenVolume;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use syncline::{TransactionFile, VolumeTransaction};

/// With the volume that it keeps open.
struct Begun {
    /// Dropped first.
    transaction: VolumeTransaction,
    _volume: Arc<OpenVolume>,
}

enum State {
    Idle(Box<Begun>),
    /// A thread works on it.
    Away,
    /// A thread works on it, and it was aborted meanwhile.
    AwayAborted,
    Ended,
}

/// A transaction; `syncline.Transaction` is what programs use.
#[pyclass(frozen, module = "syncline._native")]
pub(crate) struct Transaction {
    state: Mutex<State>,
}

/// A file of a transaction.
#[pyclass(frozen, module = "syncline._native")]
pub(crate) struct StagedFile(TransactionFile);

impl Transaction {
    pub(crate) fn new(transaction: VolumeTransaction, volume: Arc<OpenVolume>) -> Transaction {
        let begun = Box::new(Begun { transaction, _volume: volume });
        Transaction { state: Mutex::new(State::Idle(begun)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves `rest` in its place. Errors: `ValueError` once it has ended, `RuntimeError` while another thread has it.
    fn take(&self, rest: State) -> PyResult<Box<Begun>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, rest) {
            State::Idle(begun) => Ok(begun),
            State::Ended => {
                *state = State::Ended;
                Err(PyValueError::new_err("the transaction has ended: it was committed or aborted"))
            }
            away => {
                *state = away;
                Err(PyRuntimeError::new_err("another thread works on the transaction"))
            }
        }
    }

    /// Puts it back, unless it was aborted meanwhile.
    fn put_back(&self, py: Python<'_>, begun: Box<Begun>) {
        let mut state = self.lock();
        if let State::AwayAborted = *state {
            *state = State::Ended;
            drop(state);
            py.detach(move || drop(begun));
        } else {
            *state = State::Idle(begun);
        }
    }

    fn run<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut VolumeTransaction) -> io::Result<T> + Send,
    ) -> PyResult<io::Result<T>> {
        let mut begun = self.take(State::Away)?;
        let result = py.detach(|| act(&mut begun.transaction));
        self.put_back(py, begun);
        Ok(result)
    }

    fn at<T: Send>(
        &self,
        py: Python<'_>,
        path: &Path,
        act: impl FnOnce(&mut VolumeTransaction) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        self.run(py, act)?.map_err(|failure| match failure.kind() {
            // A conflict is about the transaction.
            io::ErrorKind::WouldBlock => error::of(failure),
            _ => error::of_path(failure, path),
        })
    }

    fn on<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut VolumeTransaction) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        self.run(py, act)?.map_err(error::of)
    }
}

#[pymethods]
impl Transaction {
    #[getter]
    fn ended(&self) -> bool {
        matches!(*self.lock(), State::Ended | State::AwayAborted)
    }

    #[getter]
    fn is_empty(&self, py: Python<'_>) -> PyResult<bool> {
        self.on(py, |transaction| Ok(transaction.is_empty()))
    }

    fn exists(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        self.at(py, &path, |transaction| transaction.try_exists(&path))
    }

    fn open(&self, py: Python<'_>, path: PathBuf) -> PyResult<StagedFile> {
        self.at(py, &path, |transaction| transaction.open(&path)).map(StagedFile)
    }

    fn create(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<StagedFile> {
        self.at(py, &path, |transaction| transaction.create_with_mode(&path, mode)).map(StagedFile)
    }

    /// Works on an open file of the volume.
    fn join(&self, py: Python<'_>, file: &Bound<'_, File>) -> PyResult<StagedFile> {
        let share = file.get().share()?;
        self.on(py, move |transaction| transaction.join(&share.file)).map(StagedFile)
    }

    fn preadinto(
        &self,
        py: Python<'_>,
        file: &Bound<'_, StagedFile>,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
    ) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        let (file, into) = (file.get().0, buffer.bytes_mut());
        self.on(py, |transaction| transaction.read_at(file, into, offset))
    }

    fn pwrite(
        &self,
        py: Python<'_>,
        file: &Bound<'_, StagedFile>,
        data: &Bound<'_, PyAny>,
        offset: u64,
    ) -> PyResult<usize> {
        let data = Buffer::of(data)?;
        let (file, bytes) = (file.get().0, data.bytes());
        self.on(py, |transaction| transaction.write_at(file, bytes, offset))?;
        Ok(bytes.len())
    }

    fn truncate(&self, py: Python<'_>, file: &Bound<'_, StagedFile>, size: u64) -> PyResult<()> {
        let file = file.get().0;
        self.on(py, |transaction| transaction.set_len(file, size))
    }

    fn size(&self, py: Python<'_>, file: &Bound<'_, StagedFile>) -> PyResult<u64> {
        let file = file.get().0;
        self.on(py, |transaction| transaction.len(file))
    }

    fn read<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
        let (file, length) = self.at(py, &path, |transaction| {
            let file = transaction.open(&path)?;
            Ok((file, transaction.len(file)?))
        })?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        new_bytes(py, length, |into| self.at(py, &path, |transaction| transaction.read_at(file, into, 0)))
    }

    fn write(&self, py: Python<'_>, path: PathBuf, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let data = Buffer::of(data)?;
        let bytes = data.bytes();
        self.at(py, &path, |transaction| transaction.write(&path, bytes))?;
        Ok(bytes.len())
    }

    fn rename(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        self.at(py, &from, |transaction| transaction.rename(&from, &to))
    }

    fn link(&self, py: Python<'_>, original: PathBuf, link: PathBuf) -> PyResult<()> {
        self.at(py, &original, |transaction| transaction.hard_link(&original, &link))
    }

    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.at(py, &path, |transaction| transaction.remove_file(&path))
    }

    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathBuf,
        name: OsString,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let value = Buffer::of(value)?;
        let bytes = value.bytes();
        self.at(py, &path, |transaction| transaction.set_xattr(&path, &name, bytes))
    }

    fn removexattr(&self, py: Python<'_>, path: PathBuf, name: OsString) -> PyResult<()> {
        self.at(py, &path, |transaction| transaction.remove_xattr(&path, &name))
    }

    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let begun = self.take(State::Ended)?;
        py.detach(move || begun.transaction.commit()).map_err(error::of)
    }

    fn commit_async(&self, py: Python<'_>) -> PyResult<SyncTicket> {
        let begun = self.take(State::Ended)?;
        Ok(SyncTicket::new(py.detach(move || begun.transaction.commit_async())))
    }

    /// Leaves everything as it was; does nothing if it has ended.
    fn abort(&self, py: Python<'_>) {
        let begun = {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, State::Ended) {
                State::Idle(begun) => Some(begun),
                State::Away | State::AwayAborted => {
                    *state = State::AwayAborted;
                    None
                }
                State::Ended => None,
            }
        };
        py.detach(move || drop(begun));
    }
}
