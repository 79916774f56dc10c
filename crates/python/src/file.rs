//! Open files.

use crate::arguments::{self, Stat};
use crate::buffer::{Buffer, new_bytes};
use crate::error;
use crate::ticket::SyncTicket;
use crate::volume::OpenVolume;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, PoisonError};
use syncline::FallocateMode;

/// A file with the volume that it keeps open.
pub(crate) struct OpenFile {
    /// Dropped first.
    pub(crate) file: syncline::File,
    _volume: Arc<OpenVolume>,
}

/// An open file; `syncline.File` is what programs use.
#[pyclass(frozen, module = "syncline._native")]
pub(crate) struct File {
    open: Mutex<Option<Arc<OpenFile>>>,
}

impl File {
    pub(crate) fn new(file: syncline::File, volume: Arc<OpenVolume>) -> File {
        File { open: Mutex::new(Some(Arc::new(OpenFile { file, _volume: volume }))) }
    }

    /// A share of the file for one call. Errors: `ValueError` once it is closed.
    pub(crate) fn share(&self) -> PyResult<Arc<OpenFile>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| error::closed("file"))
    }

    /// Does something without the interpreter's lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&syncline::File) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        let open = self.share()?;
        py.detach(move || act(&open.file)).map_err(error::of)
    }
}

/// A number of bytes that Python may have as a negative one. Errors: `EINVAL`, as of the system's files.
fn from_start(number: i64) -> PyResult<u64> {
    u64::try_from(number).map_err(|_| error::of(io::Error::from_raw_os_error(libc::EINVAL)))
}

/// From the current position, as the library's own cursor has it.
fn read_all_of(mut file: &syncline::File, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read(&mut into[done..])? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

#[pymethods]
impl File {
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        let into = buffer.bytes_mut();
        self.run(py, |mut file| file.read(into))
    }

    /// At most `size` bytes from the position; all that is left if it is negative.
    fn read<'py>(&self, py: Python<'py>, size: isize) -> PyResult<Bound<'py, PyBytes>> {
        let open = self.share()?;
        let left = py.detach(|| {
            let position = (&open.file).stream_position()?;
            Ok(open.file.metadata()?.len().saturating_sub(position))
        });
        let left = usize::try_from(left.map_err(error::of)?).unwrap_or(usize::MAX);
        let length = usize::try_from(size).map_or(left, |size| size.min(left));
        new_bytes(py, length, |into| py.detach(move || read_all_of(&open.file, into)).map_err(error::of))
    }

    fn pread<'py>(&self, py: Python<'py>, size: i64, offset: i64) -> PyResult<Bound<'py, PyBytes>> {
        let open = self.share()?;
        let (size, offset) = (from_start(size)? as usize, from_start(offset)?);
        let left = py.detach(|| open.file.metadata().map(|metadata| metadata.len().saturating_sub(offset)));
        let length = size.min(usize::try_from(left.map_err(error::of)?).unwrap_or(usize::MAX));
        new_bytes(py, length, |into| py.detach(move || open.file.read_at(into, offset)).map_err(error::of))
    }

    fn preadinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let offset = from_start(offset)?;
        let mut buffer = Buffer::writable(buffer)?;
        let into = buffer.bytes_mut();
        self.run(py, |file| file.read_at(into, offset))
    }

    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let data = Buffer::of(data)?;
        let bytes = data.bytes();
        self.run(py, |mut file| file.write(bytes))
    }

    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let offset = from_start(offset)?;
        let data = Buffer::of(data)?;
        let bytes = data.bytes();
        self.run(py, |file| file.write_at(bytes, offset))
    }

    /// `whence` as in `lseek`, holes and data included.
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let from_start = u64::try_from(offset);
        let invalid = |what| io::Error::from(syncline::Error::Invalid(what));
        self.run(py, |mut file| {
            let start = from_start.map_err(|_| invalid("a position before the start"));
            let found = match whence {
                libc::SEEK_SET => Some(start?),
                libc::SEEK_CUR => return file.seek(SeekFrom::Current(offset)),
                libc::SEEK_END => return file.seek(SeekFrom::End(offset)),
                libc::SEEK_DATA => file.seek_data(start?)?,
                libc::SEEK_HOLE => file.seek_hole(start?)?,
                _ => return Err(invalid("no such way to seek")),
            };
            let found = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENXIO))?;
            file.seek(SeekFrom::Start(found))
        })
    }

    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |mut file| file.stream_position())
    }

    /// To `size` bytes, or to the position.
    #[pyo3(signature = (size = None))]
    fn truncate(&self, py: Python<'_>, size: Option<i64>) -> PyResult<u64> {
        let size = size.map(from_start).transpose()?;
        self.run(py, |mut file| {
            let size = match size {
                Some(size) => size,
                None => file.stream_position()?,
            };
            file.set_len(size).map(|()| size)
        })
    }

    fn allocate(&self, py: Python<'_>, offset: i64, length: i64, keep_size: bool) -> PyResult<()> {
        let (offset, length) = (from_start(offset)?, from_start(length)?);
        self.run(py, |file| file.fallocate(FallocateMode::Allocate { keep_size }, offset, length))
    }

    fn punch_hole(&self, py: Python<'_>, offset: i64, length: i64) -> PyResult<()> {
        let (offset, length) = (from_start(offset)?, from_start(length)?);
        self.run(py, |file| file.punch_hole(offset, length))
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.run(py, |file| file.metadata().map(|metadata| arguments::stat_of(metadata.attr())))
    }

    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        self.run(py, |file| if data_only { file.sync_data() } else { file.sync_all() })
    }

    fn sync_range(&self, py: Python<'_>, start: u64, end: u64, data_only: bool) -> PyResult<()> {
        self.run(py, |file| file.sync_range(start..end, arguments::scope(data_only)))
    }

    fn sync_async(&self, py: Python<'_>, start: u64, end: u64, data_only: bool) -> PyResult<SyncTicket> {
        let scope = arguments::scope(data_only);
        let ticket = self.run(py, |file| {
            Ok(match (start, end) {
                (0, u64::MAX) => file.sync_async(scope),
                _ => file.sync_range_async(start..end, scope),
            })
        })?;
        Ok(SyncTicket::new(ticket))
    }

    fn write_back(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<u64> {
        self.run(py, |file| file.write_back(start..end).map(|started| started.bytes))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.share().is_err()
    }

    /// Gives up the file. Calls of other threads that are under way go on to their end. Errors: content could not be
    /// written that replaces what was truncated.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let share = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let closed = py.detach(move || match share.map(Arc::try_unwrap) {
            Some(Ok(OpenFile { file, _volume })) => file.close(),
            _ => Ok(()),
        });
        match closed {
            // In a forked child it was never open.
            Err(failure) if !error::is_forked(&failure) => Err(error::of(failure)),
            _ => Ok(()),
        }
    }
}
