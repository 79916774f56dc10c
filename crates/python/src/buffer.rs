//! Memory of Python objects: what `readinto` fills and `write` takes, without a copy, and new `bytes`.
//!
//! The buffer protocol is part of the stable ABI from CPython 3.11 on only. Its functions and its structure are the
//! same in 3.9 and 3.10, which do not change any more; so they are declared here instead of asking for 3.11. The tests
//! run on the oldest and the newest version that there is.
//!
//! While a [`Buffer`] lives, the object keeps its memory where it is: `bytearray.append` and `ndarray.resize` are
//! refused. Other threads may change the bytes meanwhile, as with any I/O of Python's: then what is written, or what
//! they read, is a mixture, and nothing worse, because no decision is made by these bytes.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::{c_char, c_int, c_void};

/// `Py_buffer`.
#[repr(C)]
struct View {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<View>() == 80);

const SIMPLE: c_int = 0;
const WRITABLE: c_int = 1;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
    /// Part of the stable ABI from the start; the bindings leave it out because of its name.
    fn _PyBytes_Resize(object: *mut *mut ffi::PyObject, length: isize) -> c_int;
}

/// The memory of an object, held in place. It is made and dropped by threads that hold the interpreter's lock.
pub(crate) struct Buffer<'py> {
    /// Where it was made: exporters may point into it.
    view: Box<View>,
    _python: Python<'py>,
}

impl<'py> Buffer<'py> {
    /// Memory to read from. Errors: `TypeError` or `BufferError`, as the object says, if its bytes are not contiguous.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Buffer<'py>> {
        Buffer::export(object, SIMPLE)
    }

    /// Memory to write to. Errors: as above, and if it is read-only.
    pub(crate) fn writable(object: &Bound<'py, PyAny>) -> PyResult<Buffer<'py>> {
        Buffer::export(object, WRITABLE)
    }

    fn export(object: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Buffer<'py>> {
        // SAFETY: null pointers and zeros are what the structure holds before it is filled.
        let mut view: Box<View> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: a live object, a place of its own, and the interpreter's lock is held.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Buffer { view, _python: object.py() })
    }

    fn parts(&self) -> (*mut u8, usize) {
        let length = usize::try_from(self.view.len).unwrap_or(0);
        // An empty buffer may have no address, which a slice must have.
        let start = if length == 0 { std::ptr::NonNull::dangling().as_ptr() } else { self.view.buf.cast() };
        (start, length)
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        let (start, length) = self.parts();
        // SAFETY: the object keeps so many bytes there for as long as the view is not released.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// The bytes, to be filled. Only for a buffer that was asked for as writable.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.view.readonly == 0, "the buffer was asked for as writable");
        let (start, length) = self.parts();
        // SAFETY: as above, and the object has agreed that it is written to.
        unsafe { std::slice::from_raw_parts_mut(start, length) }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: it was filled by the interpreter and is released once; the lock is held, as `_python` says.
        unsafe { PyBuffer_Release(&mut *self.view) }
    }
}

/// New `bytes` of at most `length`, filled by `fill`, which says how many there are. It may give up the interpreter's
/// lock.
pub(crate) fn new_bytes<'py>(
    py: Python<'py>,
    length: usize,
    fill: impl FnOnce(&mut [u8]) -> PyResult<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let wanted =
        isize::try_from(length).map_err(|_| pyo3::exceptions::PyOverflowError::new_err("too long"))?;
    // SAFETY: without content the interpreter allocates, and returns a new object or null with an exception set.
    let object = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), wanted))
    }?;
    // SAFETY: a new object of this length that nobody else knows yet. Zeros first, because a slice holds no memory
    // without a value.
    let into = unsafe {
        let start = ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
        start.write_bytes(0, length);
        std::slice::from_raw_parts_mut(start, length)
    };
    let filled = fill(into)?.min(length);
    let mut pointer = object.into_ptr();
    if filled < length {
        // SAFETY: the only reference, which the call takes over and gives back, or null with an exception set.
        unsafe { _PyBytes_Resize(&mut pointer, filled as isize) };
    }
    // SAFETY: a `bytes` object that is owned here, or null with an exception set.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, pointer) }?;
    Ok(object.cast_into::<PyBytes>()?)
}
