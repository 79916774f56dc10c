//! Block devices under a volume.
//!
//! [`Device`] is the seam between the engine and whatever stores its blocks: an image file or block device
//! (`FileDevice`), memory (`MemoryDevice`), a wrapper that forgets what was not flushed (`Volatile`), the crash
//! simulator's device, and those of other crates (an NBD export, an image of Ceph).
//!
//! Contract of every device:
//! - a write becomes durable only by a flush *issued after the write completed*; until then it may be lost,
//!   torn at 512-byte granularity, or reordered with other unflushed writes;
//! - a read returns the latest completed write to the block, durable or not;
//! - writes that overlap are never in flight together (the engine sees to that);
//! - an error is reported once, by the ticket of the request that failed.
#![deny(unsafe_code)]

mod buffer;
mod counters;
mod error;
mod file;
mod layer;
mod links;
mod memory;
mod page_pool;
mod percent;
mod process;
mod random;
mod range;
mod reading;
mod run_pool;
mod signature;
#[cfg(feature = "suite")]
pub mod suite;
mod ticket;
#[cfg(feature = "volatile")]
mod volatile;
mod waiters;

pub use buffer::Buffer;
pub use counters::Counters;
pub use error::{DeviceError, OpenError, OpenStep, Operation};
pub use file::{FileDevice, OpenOptions, in_use_by_kernel, is_held, is_mounted, is_mounted_as};
pub use layer::Layer;
pub use links::follow_own_links;
pub use memory::MemoryDevice;
pub use page_pool::{BufferMemory, buffer_memory, give_back_unused_buffers};
pub use percent::{percent_decoded, percent_encoded};
pub use process::{Forked, InUse, PerProcess, Private, Process, ProcessBound};
pub use random::random_number;
pub use range::{check_range, check_read, check_write};
pub use reading::{Block, Reading};
pub use signature::{Signature, device_holds_unknown_data, holds_unknown_data, probe, probe_device};
pub use ticket::Ticket;
#[cfg(feature = "volatile")]
pub use volatile::Volatile;
pub use waiters::Waiters;

use std::ops::Range;
use std::sync::Arc;
use syncline_format::{BLOCK_BYTES, BlockNo};

/// [`Device::bulk_bytes_max`] of a device that is reached by a network.
pub const DISTANT_BULK_BYTES: u64 = 16 << 20;

/// One part of [`Device::read_many`].
pub struct ReadRequest<'a> {
    pub at: BlockNo,
    /// A whole number of blocks.
    pub into: &'a mut [u8],
}

/// Counters of what a device was asked to do, since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DeviceCounters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
}

/// A device of 4 KiB blocks with a volatile write cache.
pub trait Device: Send + Sync + 'static {
    /// Length in blocks.
    fn blocks(&self) -> u64;

    /// Reads whole blocks, blocking.
    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Reads several runs of blocks, with as many in flight as the device likes; the first error wins.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        for request in requests {
            self.read(request.at, request.into)?;
        }
        Ok(())
    }

    /// Starts reading `blocks` consecutive blocks into memory of its own. Devices that can read without blocking
    /// override this; here it blocks.
    fn submit_read(&self, at: BlockNo, blocks: usize) -> Reading {
        let mut together = Buffer::for_overwrite(blocks.max(1));
        let result = self.read(at, &mut together[..blocks * BLOCK_BYTES]);
        Reading::new(Ticket::completed(result), blocks, vec![Arc::new(together)])
    }

    /// Like [`Device::submit_read`], and waits. Devices override this where a synchronous read is cheaper than a
    /// submitted one.
    fn read_blocks(&self, at: BlockNo, blocks: usize) -> Reading {
        let reading = self.submit_read(at, blocks);
        // The result is in the reading.
        let _ = self.wait(reading.ticket());
        reading
    }

    /// Starts writing the buffers one after another from `at` on, as one write; returns without waiting for
    /// it. The buffers are shared and never change while the ticket is pending.
    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket;

    /// Starts a flush. It covers every write that completed before this call, and no other.
    fn submit_flush(&self) -> Ticket;

    /// Blocks until the ticket is complete and returns its result; drives the device on the caller's own
    /// thread.
    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError>;

    /// Completes what can be completed without blocking.
    fn poll(&self);

    /// Writes and waits.
    fn write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Result<(), DeviceError> {
        let ticket = self.submit_write(at, data);
        self.wait(&ticket)
    }

    /// Flushes and waits: everything whose write completed before the call is durable afterwards. Devices
    /// override this where a synchronous flush is cheaper than a submitted one.
    fn flush(&self) -> Result<(), DeviceError> {
        let ticket = self.submit_flush();
        self.wait(&ticket)
    }

    /// Tells the device that the blocks' content is no longer needed; afterwards they read as anything.
    /// Advisory: a device that cannot do it returns `Ok`.
    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError>;

    /// Shortest run of blocks that is worth a discard, at least 1; `None` if the device cannot discard, or may not.
    fn discard_blocks_min(&self) -> Option<u64> {
        Some(1)
    }

    /// The first run of whole blocks at or behind `at` of which the device knows that nobody has written them: they
    /// read as zeros, after a crash as well, and writing them takes new space. `None` if it knows of none.
    fn hole(&self, _at: BlockNo) -> Option<Range<BlockNo>> {
        None
    }

    /// Bytes of bulk writes that may be in flight together: enough to keep the device busy, and little for a small
    /// request to be served behind. Where most of a request's time is a way that many go at once, as through a
    /// network, devices override this.
    fn bulk_bytes_max(&self) -> u64 {
        2 << 20
    }

    fn counters(&self) -> DeviceCounters;
}
