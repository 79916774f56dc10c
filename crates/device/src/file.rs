//! An image file or a block device.
//!
//! I/O bypasses the host's page cache (O_DIRECT) where the host allows it; where it does not (tmpfs, sectors
//! larger than a block) the device falls back to the page cache and says so, by [`FileDevice::direct`] and a
//! warning. Submitted requests go through one io_uring; where the kernel refuses one, `submit_write` writes
//! on the caller's thread ([`FileDevice::engine`] tells which). Blocking calls (`read`, `write`, `flush`) are
//! plain system calls on the caller's thread, which is cheaper than the ring for a lone request.
//!
//! Lock: one of the open file description on the bytes in use (and a `flock` of a block device), exclusive, shared
//! when read-only, so that a second opener, in this process or another, by another name or through a loop device, is
//! refused (see `lock.rs` for what it does not cover). It is released when the device is dropped, after all I/O in
//! flight has ended. When the process dies instead, the kernel releases it with the last reference to the open file,
//! and requests in flight hold one: the next opener never overlaps with old writes.
//!
//! Errors: the kernel reports a failed writeback once per open file. The first flush that fails is latched here,
//! so that no later one pretends that all is well (contract C8).
//!
//! Fork: the device belongs to the process that opened it. In a forked child every request is refused
//! ([`DeviceError::Forked`]), dropping the device does nothing, and the copies of its descriptors are closed (see
//! [`crate::Process`]).
#![allow(unsafe_code)]

mod discard;
mod holes;
mod lock;
mod loops;
mod open;
mod ring;
mod transfer;

pub use lock::{in_use_by_kernel, is_held, is_mounted, is_mounted_as};
pub use open::OpenOptions;

use crate::counters::Counters;
use crate::process::{Private, ProcessBound};
use crate::range::{check_range, check_read, check_write};
use crate::{
    Buffer, Device, DeviceCounters, DeviceError, Forked, InUse, Operation, ReadRequest, Reading, Ticket,
};
use parking_lot::Mutex;
use ring::Ring;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use syncline_format::{BLOCK_BYTES, BlockNo};
use transfer::Transfer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Image,
    BlockDevice,
}

enum Engine {
    Ring(Box<Ring>),
    Synchronous,
}

/// What only the process may touch that opened the device.
struct Opened {
    file: Arc<Private<File>>,
    /// Taken when it is given back.
    below: Option<lock::Below>,
    engine: Engine,
    _in_use: InUse,
}

/// A device on an image file or a block device.
pub struct FileDevice {
    // Constant after opening.
    opened: ProcessBound<Opened>,
    path: PathBuf,
    blocks: u64,
    kind: Kind,
    read_only: bool,
    direct: bool,
    engine: &'static str,

    counters: Counters,
    /// The error of the first flush that failed. Held while a flush is under way.
    failed_flush: Mutex<Option<DeviceError>>,
    /// Cleared when the host says that it cannot discard.
    discards: AtomicBool,
    /// Shortest discard that is worth it, asked for once.
    least_discard: OnceLock<Option<u64>>,
}

impl FileDevice {
    /// Whether I/O bypasses the host's page cache.
    pub fn direct(&self) -> bool {
        self.direct
    }

    /// How submitted requests are carried out: `io_uring` or `synchronous`.
    pub fn engine(&self) -> &'static str {
        self.engine
    }

    pub fn is_block_device(&self) -> bool {
        self.kind == Kind::BlockDevice
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Cuts an image behind so many blocks, which nobody uses any more. The device stays as long as it was: what is
    /// behind must not be asked for.
    ///
    /// # Errors
    /// The host refuses.
    pub fn shorten(&self, blocks: u64) -> std::io::Result<()> {
        let file = &self.opened.get().map_err(std::io::Error::other)?.file;
        rustix::fs::ftruncate(&***file, blocks * BLOCK_BYTES as u64)?;
        Ok(rustix::fs::fsync(&***file)?)
    }

    fn admit_write(&self, at: BlockNo, data: &[Arc<Buffer>]) -> Result<(), DeviceError> {
        let count = check_write(at, data, self.blocks)?;
        self.refuse_if_read_only(Operation::Write, at)?;
        self.counters.count_write(count);
        Ok(())
    }

    fn refuse_if_read_only(&self, operation: Operation, block: BlockNo) -> Result<(), DeviceError> {
        match self.read_only {
            true => Err(DeviceError::Io { operation, block, errno: libc::EROFS }),
            false => Ok(()),
        }
    }

    /// Whether the memory can be handed to the kernel as it is. O_DIRECT wants it aligned to the sector; a
    /// block is never smaller.
    fn takes(&self, memory: &[u8]) -> bool {
        !self.direct || (memory.as_ptr() as usize).is_multiple_of(BLOCK_BYTES)
    }

    fn fd(&self) -> Result<RawFd, Forked> {
        Ok(self.opened.get()?.file.as_raw_fd())
    }

    /// Reads into aligned memory (see [`FileDevice::takes`]) on the caller's thread.
    fn read_here(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let fd = self.fd()?;
        // SAFETY: `into` is borrowed exclusively until `run` returns, and then nothing is in flight.
        unsafe { Transfer::read(at, into.as_mut_ptr(), into.len()) }.run(fd)
    }

    /// Reads through the ring, all requests in flight together. The memory must be aligned.
    fn read_through(ring: &Ring, requests: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        // The kernel writes into borrowed memory until the last request is complete, so this function must
        // not be left before, not even by a panic.
        let in_flight = AbortOnUnwind;
        let submit = |request: &mut ReadRequest<'_>| {
            let into = &mut *request.into;
            // SAFETY: `into` stays exclusively borrowed by the caller until every ticket below is complete.
            let transfer = unsafe { Transfer::read(request.at, into.as_mut_ptr(), into.len()) };
            ring.submit(transfer)
        };
        let tickets: Vec<Ticket> = requests.iter_mut().map(submit).collect();
        let mut result = Ok(());
        for ticket in tickets {
            result = result.and(ring.wait(&ticket));
        }
        std::mem::forget(in_flight);
        result
    }
}

impl Device for FileDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let count = check_read(at, into, self.blocks)?;
        self.counters.count_read(count);
        if count == 0 || self.takes(into) {
            return self.read_here(at, into);
        }
        let mut aligned = Buffer::for_overwrite(count as usize);
        self.read_here(at, &mut aligned)?;
        into.copy_from_slice(&aligned);
        Ok(())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        let aligned = requests.iter().all(|request| self.takes(request.into));
        let ring = match &self.opened.get()?.engine {
            Engine::Ring(ring) if aligned && requests.len() > 1 => ring,
            _ => return requests.iter_mut().try_for_each(|request| self.read(request.at, request.into)),
        };
        for request in requests.iter() {
            let count = check_read(request.at, request.into, self.blocks)?;
            self.counters.count_read(count);
        }
        Self::read_through(ring, requests)
    }

    fn submit_read(&self, at: BlockNo, blocks: usize) -> Reading {
        if let Err(error) = check_range(Operation::Read, at, blocks as u64, self.blocks) {
            return Reading::failed(error);
        }
        self.counters.count_read(blocks as u64);
        let opened = match self.opened.get() {
            Ok(opened) => opened,
            Err(forked) => return Reading::failed(forked.into()),
        };
        let (transfer, memory) = Transfer::read_blocks(at, blocks);
        Reading::new(opened.start(transfer), blocks, memory)
    }

    fn read_blocks(&self, at: BlockNo, blocks: usize) -> Reading {
        if let Err(error) = check_range(Operation::Read, at, blocks as u64, self.blocks) {
            return Reading::failed(error);
        }
        self.counters.count_read(blocks as u64);
        let fd = match self.fd() {
            Ok(fd) => fd,
            Err(forked) => return Reading::failed(forked.into()),
        };
        let (transfer, memory) = Transfer::read_blocks(at, blocks);
        Reading::new(Ticket::completed(transfer.run(fd)), blocks, memory)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        if let Err(error) = self.admit_write(at, &data) {
            return Ticket::completed(Err(error));
        }
        match self.opened.get() {
            Ok(opened) => opened.start(Transfer::write(at, data)),
            Err(forked) => Ticket::completed(Err(forked.into())),
        }
    }

    /// Done on the caller's thread: the kernel would hand a submitted one to a worker, which is slower, and see
    /// [`FileDevice::flush`] for why two must not overlap.
    fn submit_flush(&self) -> Ticket {
        Ticket::completed(self.flush())
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        match &self.opened.get()?.engine {
            Engine::Ring(ring) => ring.wait(ticket),
            Engine::Synchronous => {
                ticket.result().expect("a synchronous request is complete when it returns")
            }
        }
    }

    fn poll(&self) {
        if let Ok(Opened { engine: Engine::Ring(ring), .. }) = self.opened.get() {
            ring.poll();
        }
    }

    fn write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Result<(), DeviceError> {
        self.admit_write(at, &data)?;
        let fd = self.fd()?;
        Transfer::write(at, data).run(fd)
    }

    /// `fdatasync` on the caller's thread: the ring would hand it to a worker thread, which costs more.
    /// One flush at a time, and none succeeds after one that failed: the kernel reports a failed writeback once per
    /// open file, so of two overlapping flushes one could take the error and the other acknowledge what was lost.
    fn flush(&self) -> Result<(), DeviceError> {
        // First of all: another thread of the parent may have held the lock when this process was forked.
        let file = &self.opened.get()?.file;
        let mut failed = self.failed_flush.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        self.counters.count_flush();
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&***file)).map_err(|error| {
            let error = DeviceError::Io {
                operation: Operation::Flush,
                block: BlockNo(0),
                errno: error.raw_os_error(),
            };
            *failed = Some(error.clone());
            error
        })
    }

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.give_back(at, blocks)
    }

    fn discard_blocks_min(&self) -> Option<u64> {
        self.least_discard()
    }

    fn hole(&self, at: BlockNo) -> Option<Range<BlockNo>> {
        self.first_hole(at)
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }
}

impl Opened {
    fn start(&self, transfer: Transfer) -> Ticket {
        match &self.engine {
            Engine::Ring(ring) => ring.submit(transfer),
            Engine::Synchronous => Ticket::completed(transfer.run(self.file.as_raw_fd())),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Engine::Ring(ring) = &self.engine {
            ring.drain();
        }
        // Closing is not enough: between the fork and the exec of a child that is being spawned, the child
        // holds the open file as well. An unlock that fails leaves it to the close. Others wait for the lock on the
        // bytes of an image and for the flock of a block device (`is_held`).
        drop(self.below.take());
        lock::unlock_bytes(&self.file);
        let _ = rustix::fs::flock(&**self.file, rustix::fs::FlockOperation::Unlock);
    }
}

/// Ends the process when dropped, that is, when its scope is left by a panic.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

#[cfg(test)]
mod tests;
