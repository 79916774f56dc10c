//! [`NbdDevice`].

use crate::handshake::{Export, shake};
use crate::link::{Group, Link, Part};
use crate::lock::Lock;
use crate::stream::{PATIENCE, Stream};
use crate::wire::Command;
use crate::{Address, NbdError};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use syncline_device::{
    Buffer, Counters, DISTANT_BULK_BYTES, Device, DeviceCounters, DeviceError, InUse, OpenOptions, Operation,
    Private, ProcessBound, Reading, Ticket, check_range, check_read, check_write,
};
use syncline_format::{BLOCK_BYTES, BlockNo};

/// Bytes of one read or write of the protocol at most, whatever more the server takes: others get in between.
const PART_BYTES_MAX: u32 = 4 << 20;
/// From so many zeros on the server is asked to write zeros.
const ZEROES_BYTES_MIN: usize = 64 << 10;
/// Bytes of one trim at most. Its length has 32 bits.
const TRIM_BYTES_MAX: u64 = 1 << 30;

/// What only the process may touch that opened the device. Fields end in this order.
struct Opened {
    link: Link,
    _lock: Option<Lock>,
    _in_use: InUse,
}

/// A device on an export of an NBD server.
pub struct NbdDevice {
    // Constant after opening.
    opened: ProcessBound<Opened>,
    address: Address,
    export: Export,
    read_only: bool,

    counters: Counters,
    /// The error of the first flush that failed. Held while a flush is under way: a server tells of a lost write once,
    /// so of two flushes that overlap one could take the error and the other acknowledge what was lost.
    failed_flush: Mutex<Option<DeviceError>>,
}

impl NbdDevice {
    /// Connects, and agrees on the export. Of the options `read_only` and `wait_for_lock` count.
    pub fn open(address: &Address, options: &OpenOptions) -> Result<NbdDevice, NbdError> {
        let in_use = InUse::begin()?;
        let url = address.to_string();
        let closed = |source| NbdError::Closed { url: url.clone(), source };
        let stream = Private::open(|| Stream::connect(address))?;
        let identity = stream.identity(address).map_err(closed)?;
        let patience = options.wait_for_lock;
        // Before the handshake, which a server that has a client already may leave unanswered.
        let lock = Lock::take(&identity, Path::new(&url), patience)?;
        stream.set_patience(Some(PATIENCE)).map_err(closed)?;
        let export = shake(&*stream, address, !options.read_only)?;
        stream.set_patience(None).map_err(closed)?;
        let lock = if options.read_only { None } else { Some(lock) };
        Ok(NbdDevice {
            opened: ProcessBound::new(Opened { link: Link::new(stream), _lock: lock, _in_use: in_use }),
            address: address.clone(),
            export,
            read_only: options.read_only,
            counters: Counters::default(),
            failed_flush: Mutex::new(None),
        })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether the connection has ended, and with it the device.
    pub fn is_broken(&self) -> bool {
        self.opened.get().is_ok_and(|opened| opened.link.is_broken())
    }

    fn link(&self) -> Result<&Link, DeviceError> {
        Ok(&self.opened.get()?.link)
    }

    fn part_bytes(&self) -> usize {
        self.export.payload_max.min(PART_BYTES_MAX) as usize
    }

    fn refuse_if_read_only(&self, operation: Operation, block: BlockNo) -> Result<(), DeviceError> {
        match self.read_only {
            true => Err(DeviceError::Io { operation, block, errno: libc::EROFS }),
            false => Ok(()),
        }
    }

    /// Starts a read of at least one block that was checked and counted.
    fn start_read(&self, link: &Link, at: BlockNo, blocks: usize) -> Arc<Group> {
        let blocks_of_part = self.part_bytes() / BLOCK_BYTES;
        let group = Group::new(Operation::Read, at, blocks.div_ceil(blocks_of_part));
        for (part, start) in (0..blocks).step_by(blocks_of_part).enumerate() {
            let length = blocks_of_part.min(blocks - start);
            let what = Part {
                command: Command::Read,
                offset: (at.0 + start as u64) * BLOCK_BYTES as u64,
                length: (length * BLOCK_BYTES) as u32,
                data: &[],
                into: Some(Buffer::for_overwrite(length)),
            };
            link.send(&group, part, what);
        }
        group
    }

    fn start_write(&self, link: &Link, at: BlockNo, data: &[Arc<Buffer>]) -> Ticket {
        let parts = parts_of(data, self.part_bytes());
        let group = Group::new(Operation::Write, at, parts.len());
        let mut offset = at.0 * BLOCK_BYTES as u64;
        for (number, data) in parts.iter().enumerate() {
            let length: usize = data.iter().map(|bytes| bytes.len()).sum();
            let zeroes = self.export.can_write_zeroes() && length >= ZEROES_BYTES_MIN && are_zeros(data);
            let (command, data) = match zeroes {
                true => (Command::WriteZeroes, &[][..]),
                false => (Command::Write, &data[..]),
            };
            link.send(&group, number, Part { command, offset, length: length as u32, data, into: None });
            offset += length as u64;
        }
        group.ticket().clone()
    }

    /// One request without data, waited for.
    fn ask(
        &self,
        command: Command,
        operation: Operation,
        at: BlockNo,
        blocks: u64,
    ) -> Result<(), DeviceError> {
        let link = self.link()?;
        let group = Group::new(operation, at, 1);
        let (offset, length) = (at.0 * BLOCK_BYTES as u64, (blocks * BLOCK_BYTES as u64) as u32);
        link.send(&group, 0, Part { command, offset, length, data: &[], into: None });
        link.wait(group.ticket())
    }
}

/// Cuts what is to be written into parts of at most so many bytes, without copying it.
fn parts_of(data: &[Arc<Buffer>], bytes_max: usize) -> Vec<Vec<&[u8]>> {
    let mut parts = vec![Vec::new()];
    let mut room = bytes_max;
    for buffer in data {
        let mut rest: &[u8] = buffer;
        while !rest.is_empty() {
            if room == 0 {
                parts.push(Vec::new());
                room = bytes_max;
            }
            let (some, left) = rest.split_at(rest.len().min(room));
            parts.last_mut().expect("there is one from the beginning").push(some);
            room -= some.len();
            rest = left;
        }
    }
    parts
}

fn are_zeros(parts: &[&[u8]]) -> bool {
    // Words at a time: what is not zero mostly shows at once.
    parts.iter().all(|bytes| {
        let (words, rest) = bytes.as_chunks::<16>();
        words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
    })
}

impl Device for NbdDevice {
    fn blocks(&self) -> u64 {
        self.export.bytes / BLOCK_BYTES as u64
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let count = check_read(at, into, self.blocks())?;
        let link = self.link()?;
        self.counters.count_read(count);
        if count == 0 {
            return Ok(());
        }
        let group = self.start_read(link, at, count as usize);
        link.wait(group.ticket())?;
        let memory = group.memory.get().expect("a read that succeeded has brought its blocks");
        let mut rest = into;
        for buffer in memory {
            let (part, left) = rest.split_at_mut(buffer.len());
            part.copy_from_slice(buffer);
            rest = left;
        }
        Ok(())
    }

    fn submit_read(&self, at: BlockNo, blocks: usize) -> Reading {
        if let Err(error) = check_range(Operation::Read, at, blocks as u64, self.blocks()) {
            return Reading::failed(error);
        }
        let link = match self.link() {
            Ok(link) => link,
            Err(error) => return Reading::failed(error),
        };
        self.counters.count_read(blocks as u64);
        if blocks == 0 {
            return Reading::new(Ticket::completed(Ok(())), 0, Vec::new());
        }
        let group = self.start_read(link, at, blocks);
        Reading::later(group.ticket().clone(), blocks, group.memory.clone())
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let count = match check_write(at, &data, self.blocks()) {
            Ok(count) => count,
            Err(error) => return Ticket::completed(Err(error)),
        };
        let link = match self.refuse_if_read_only(Operation::Write, at).and_then(|()| self.link()) {
            Ok(link) => link,
            Err(error) => return Ticket::completed(Err(error)),
        };
        self.counters.count_write(count);
        match count {
            0 => Ticket::completed(Ok(())),
            _ => self.start_write(link, at, &data),
        }
    }

    /// Waited for, as on a file ([`NbdDevice::failed_flush`] tells why one at a time).
    fn submit_flush(&self) -> Ticket {
        Ticket::completed(self.flush())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // First of all: another thread of a parent may have held the lock when this process was forked.
        self.link()?;
        let mut failed = self.failed_flush.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        self.counters.count_flush();
        if self.read_only && !self.export.can_flush() {
            return Ok(());
        }
        let flushed = self.ask(Command::Flush, Operation::Flush, BlockNo(0), 0);
        if let Err(error) = &flushed {
            *failed = Some(error.clone());
        }
        flushed
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.link()?.wait(ticket)
    }

    fn poll(&self) {}

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        check_range(Operation::Discard, at, blocks, self.blocks())?;
        self.refuse_if_read_only(Operation::Discard, at)?;
        self.link()?;
        if !self.export.can_trim() || blocks == 0 {
            return Ok(());
        }
        self.counters.count_discard();
        let step = TRIM_BYTES_MAX / BLOCK_BYTES as u64;
        for start in (0..blocks).step_by(step as usize) {
            match self.ask(Command::Trim, Operation::Discard, at.plus(start), step.min(blocks - start)) {
                // A server that cannot here is asked again elsewhere: it is advice.
                Err(DeviceError::Io { errno: libc::EOPNOTSUPP | libc::EINVAL, .. }) => return Ok(()),
                result => result?,
            }
        }
        Ok(())
    }

    fn discard_blocks_min(&self) -> Option<u64> {
        (!self.read_only && self.export.can_trim()).then(|| self.export.least_trim())
    }

    fn bulk_bytes_max(&self) -> u64 {
        DISTANT_BULK_BYTES
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }
}
