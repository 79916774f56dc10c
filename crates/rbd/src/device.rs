//! [`RbdDevice`].
#![allow(unsafe_code)]

use crate::api::Handle;
use crate::image::Image;
use crate::{Address, RbdError};
use parking_lot::{Condvar, Mutex};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};
use syncline_device::{
    Buffer, Counters, DISTANT_BULK_BYTES, Device, DeviceCounters, DeviceError, InUse, OpenOptions, Operation,
    ProcessBound, Reading, Ticket, Waiters, check_range, check_read, check_write,
};
use syncline_format::{BLOCK_BYTES, BlockNo};

/// What only the process may touch that opened the device. Fields end in this order.
struct Opened {
    requests: Arc<Requests>,
    image: Image,
    _in_use: InUse,
}

/// What the library's threads complete.
#[derive(Default)]
struct Requests {
    waiters: Waiters,
    on_their_way: Mutex<usize>,
    none_left: Condvar,
    /// Why nothing is sent any more: the image is another machine's, or was released.
    fenced: OnceLock<DeviceError>,
}

/// A device on an image of Ceph.
pub struct RbdDevice {
    // Constant after opening.
    opened: ProcessBound<Opened>,
    address: Address,
    blocks: u64,
    object_blocks: u64,
    read_only: bool,

    counters: Counters,
    /// The error of the first flush that failed. Held while a flush is under way: none succeeds after it.
    failed_flush: Mutex<Option<DeviceError>>,
}

/// A request on its way, and what the library reads or fills meanwhile.
struct Request {
    ticket: Ticket,
    operation: Operation,
    block: BlockNo,
    requests: Arc<Requests>,
    url: String,
    /// Not read, but kept: the library reads it until the end.
    _data: Vec<Arc<Buffer>>,
    parts: Vec<libc::iovec>,
    into: Option<Buffer>,
    memory: Arc<OnceLock<Vec<Arc<Buffer>>>>,
}

// SAFETY: the pointers of `parts` lead into `_data`, which is shared and does not change.
unsafe impl Send for Request {}

impl RbdDevice {
    /// Opens an image. Of the options `read_only`, `wait_for_lock` and `take_over` count.
    pub fn open(address: &Address, options: &OpenOptions) -> Result<RbdDevice, RbdError> {
        let in_use = InUse::begin()?;
        let image = Image::open(address, options)?;
        let (blocks, object_blocks) =
            (image.bytes / BLOCK_BYTES as u64, image.object_bytes / BLOCK_BYTES as u64);
        Ok(RbdDevice {
            opened: ProcessBound::new(Opened { requests: Arc::default(), image, _in_use: in_use }),
            address: address.clone(),
            blocks,
            object_blocks: object_blocks.max(1),
            read_only: options.read_only,
            counters: Counters::default(),
            failed_flush: Mutex::new(None),
        })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Gives the lock back when nothing more will be written, for a process that ends without dropping the device: its
    /// lock would end half a minute later. Every request fails from then on.
    pub fn release(&self) {
        let Ok(opened) = self.opened.get() else { return };
        // Whatever it is already: nothing is sent any more.
        let _ = opened.requests.fenced.set(DeviceError::ShutDown);
        opened.requests.wait_for_all();
        if self.read_only {
            return;
        }
        if let Err(errno) = opened.image.unlock() {
            tracing::warn!(errno, "the image's lock could not be given back; it ends within half a minute");
        }
    }

    fn refuse_if_read_only(&self, operation: Operation, block: BlockNo) -> Result<(), DeviceError> {
        match self.read_only {
            true => Err(DeviceError::Io { operation, block, errno: libc::EROFS }),
            false => Ok(()),
        }
    }

    /// A request of this kind, or why there can be none.
    fn request(
        &self,
        opened: &Opened,
        operation: Operation,
        block: BlockNo,
    ) -> Result<Box<Request>, DeviceError> {
        if let Some(fenced) = opened.requests.fenced.get() {
            return Err(fenced.clone());
        }
        Ok(Box::new(Request {
            ticket: Ticket::pending(),
            operation,
            block,
            requests: opened.requests.clone(),
            // Read-only there is no lock to lose.
            url: if self.read_only { String::new() } else { self.address.to_string() },
            _data: Vec::new(),
            parts: Vec::new(),
            into: None,
            memory: Arc::default(),
        }))
    }

    /// One request without data, waited for.
    fn ask(
        &self,
        operation: Operation,
        block: BlockNo,
        ask: impl FnOnce(&Image, Handle) -> c_int,
    ) -> Result<(), DeviceError> {
        let opened = self.opened.get()?;
        let request = self.request(opened, operation, block)?;
        let ticket = opened.start(request, |image, _, completion| ask(image, completion));
        opened.requests.waiters.wait(&ticket)
    }
}

impl Opened {
    /// Hands a request to the library, which completes it on a thread of its own.
    fn start(
        &self,
        request: Box<Request>,
        hand_over: impl FnOnce(&Image, *mut Request, Handle) -> c_int,
    ) -> Ticket {
        let ticket = request.ticket.clone();
        *self.requests.on_their_way.lock() += 1;
        let request = Box::into_raw(request);
        let api = self.image.api;
        let mut completion = std::ptr::null_mut();
        // SAFETY: the request is the library's from here on, until it is given back by `complete`, once.
        let made = unsafe { (api.rbd_aio_create_completion)(request.cast(), complete, &mut completion) };
        let failed = if made < 0 { made } else { hand_over(&self.image, request, completion).min(0) };
        if failed < 0 {
            // SAFETY: the library has refused it, and does not call back.
            let request = unsafe {
                if made >= 0 {
                    (api.rbd_aio_release)(completion);
                }
                Box::from_raw(request)
            };
            request.end(Err(-failed));
        }
        ticket
    }
}

impl Request {
    /// Errors: an errno.
    fn end(self, result: Result<usize, i32>) {
        let Request { ticket, operation, block, requests, url, _data, parts, into, memory } = self;
        // Before the ticket is complete: whoever waits may change them in place.
        drop((_data, parts));
        let result = match result {
            Ok(count) => match into {
                Some(buffer) if count != buffer.len() => {
                    Err(DeviceError::Io { operation, block, errno: libc::EIO })
                }
                Some(buffer) => {
                    // Set once, here.
                    let _ = memory.set(vec![Arc::new(buffer)]);
                    Ok(())
                }
                None => Ok(()),
            },
            Err(errno) => Err(requests.failed(operation, block, errno, &url)),
        };
        requests.waiters.complete(&ticket, result);
        let mut left = requests.on_their_way.lock();
        *left -= 1;
        if *left == 0 {
            requests.none_left.notify_all();
        }
    }
}

impl Requests {
    fn wait_for_all(&self) {
        let mut left = self.on_their_way.lock();
        while *left > 0 {
            self.none_left.wait(&mut left);
        }
    }

    /// What an errno of the cluster means. One that is shut out, or has lost the lock under which it was opened, was
    /// taken over from.
    fn failed(&self, operation: Operation, block: BlockNo, errno: i32, url: &str) -> DeviceError {
        let is_lost = errno == libc::ESHUTDOWN || (errno == libc::EROFS && operation != Operation::Read);
        let is_fenced = is_lost && !url.is_empty();
        if !is_fenced {
            return DeviceError::Io { operation, block, errno };
        }
        let told =
            || format!("another machine has taken over {url}: nothing is written to it from here any more");
        self.fenced.get_or_init(|| DeviceError::Fenced(told().into())).clone()
    }
}

/// Called by the library on a thread of its own.
extern "C" fn complete(completion: Handle, request: *mut c_void) {
    // SAFETY: the box that was handed over, given back once.
    let request = unsafe { Box::from_raw(request.cast::<Request>()) };
    let Ok(api) = crate::api::api() else { unreachable!("whoever calls was loaded") };
    // SAFETY: the completion is this request's, and is used for the last time.
    let result = unsafe {
        let result = (api.rbd_aio_get_return_value)(completion);
        (api.rbd_aio_release)(completion);
        result
    };
    request.end(usize::try_from(result).map_err(|_| i32::try_from(-result).unwrap_or(libc::EIO)));
}

impl Drop for Opened {
    /// Whoever has the image next does not meet what is on its way.
    fn drop(&mut self) {
        self.requests.wait_for_all();
    }
}

impl Device for RbdDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        check_read(at, into, self.blocks)?;
        let reading = self.submit_read(at, into.len() / BLOCK_BYTES);
        self.wait(reading.ticket())?;
        for (part, block) in into.chunks_mut(BLOCK_BYTES).zip(reading.into_blocks()?) {
            part.copy_from_slice(&block);
        }
        Ok(())
    }

    fn submit_read(&self, at: BlockNo, blocks: usize) -> Reading {
        if let Err(error) = check_range(Operation::Read, at, blocks as u64, self.blocks) {
            return Reading::failed(error);
        }
        let (opened, mut request) = match self
            .opened
            .get()
            .map_err(DeviceError::from)
            .and_then(|opened| self.request(opened, Operation::Read, at).map(|request| (opened, request)))
        {
            Ok(both) => both,
            Err(error) => return Reading::failed(error),
        };
        self.counters.count_read(blocks as u64);
        if blocks == 0 {
            return Reading::new(Ticket::completed(Ok(())), 0, Vec::new());
        }
        request.into = Some(Buffer::for_overwrite(blocks));
        let memory = request.memory.clone();
        let ticket = opened.start(request, |image, request, completion| {
            // SAFETY: nobody else has the request yet, and its buffer stays where it is until the request has ended.
            unsafe {
                let Some(buffer) = &mut (*request).into else { return -libc::EINVAL };
                let (start, length) = (buffer.as_mut_ptr().cast(), buffer.len());
                (image.api.rbd_aio_read)(image.image, at.0 * BLOCK_BYTES as u64, length, start, completion)
            }
        });
        Reading::later(ticket, blocks, memory)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let count = match check_write(at, &data, self.blocks) {
            Ok(count) => count,
            Err(error) => return Ticket::completed(Err(error)),
        };
        let request = self.refuse_if_read_only(Operation::Write, at).and_then(|()| {
            let opened = self.opened.get()?;
            Ok((opened, self.request(opened, Operation::Write, at)?))
        });
        let (opened, mut request) = match request {
            Ok(both) => both,
            Err(error) => return Ticket::completed(Err(error)),
        };
        self.counters.count_write(count);
        if count == 0 {
            return Ticket::completed(Ok(()));
        }
        let part = |buffer: &Arc<Buffer>| libc::iovec {
            iov_base: buffer.as_ptr().cast_mut().cast(),
            iov_len: buffer.len(),
        };
        request.parts = data.iter().map(part).collect();
        request._data = data;
        opened.start(request, |image, request, completion| {
            // SAFETY: nobody else has the request yet, and what it points to stays where it is until it has ended. The
            // library only reads it.
            unsafe {
                let parts = &(*request).parts;
                let count = parts.len() as c_int;
                (image.api.rbd_aio_writev)(
                    image.image,
                    parts.as_ptr(),
                    count,
                    at.0 * BLOCK_BYTES as u64,
                    completion,
                )
            }
        })
    }

    /// Waited for, as on a file.
    fn submit_flush(&self) -> Ticket {
        Ticket::completed(self.flush())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // First of all: another thread of a parent may have held the lock when this process was forked.
        self.opened.get()?;
        let mut failed = self.failed_flush.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        self.counters.count_flush();
        let flushed = self.ask(Operation::Flush, BlockNo(0), |image, completion| {
            // SAFETY: the image is open.
            unsafe { (image.api.rbd_aio_flush)(image.image, completion) }
        });
        if let Err(error) = &flushed {
            *failed = Some(error.clone());
        }
        flushed
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.opened.get()?.requests.waiters.wait(ticket)
    }

    fn poll(&self) {}

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        check_range(Operation::Discard, at, blocks, self.blocks)?;
        self.refuse_if_read_only(Operation::Discard, at)?;
        self.opened.get()?;
        if blocks == 0 {
            return Ok(());
        }
        self.counters.count_discard();
        let (offset, length) = (at.0 * BLOCK_BYTES as u64, blocks * BLOCK_BYTES as u64);
        self.ask(Operation::Discard, at, |image, completion| {
            // SAFETY: the image is open.
            unsafe { (image.api.rbd_aio_discard)(image.image, offset, length, completion) }
        })
    }

    /// An object of the image: less frees nothing.
    fn discard_blocks_min(&self) -> Option<u64> {
        (!self.read_only).then_some(self.object_blocks)
    }

    fn bulk_bytes_max(&self) -> u64 {
        DISTANT_BULK_BYTES
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }
}
