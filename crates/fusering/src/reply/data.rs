//! Answers of variable length: file data, link targets, extended attributes, ioctl output.

use super::reply_common;
use super::slot::ReplySlot;
use crate::abi::{self, IoctlFlags};
use crate::errno::Errno;
use crate::memory::ReplyMemory;
use std::io::IoSlice;
use zerocopy::IntoBytes;

/// Data, at most as much as was asked for; what is longer is cut off.
#[must_use = "dropped, it answers EIO"]
pub struct ReplyData {
    slot: ReplySlot,
    bytes_max: usize,
}

reply_common!(ReplyData);

impl ReplyData {
    pub(crate) fn new(slot: ReplySlot, bytes_max: usize) -> ReplyData {
        ReplyData { slot, bytes_max }
    }

    /// Most bytes that the answer can have.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    pub fn data(self, data: &[u8]) {
        let bytes = data.len().min(self.bytes_max);
        self.slot.bytes(&data[..bytes]);
    }

    /// Data that lies in several pieces; over /dev/fuse the kernel collects them.
    pub fn pieces(self, pieces: &[IoSlice<'_>]) {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if bytes <= self.bytes_max {
            return self.slot.data(pieces);
        }
        let mut left = self.bytes_max;
        let mut cut = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let bytes = piece.len().min(left);
            left -= bytes;
            cut.push(IoSlice::new(&piece[..bytes]));
        }
        self.slot.data(&cut);
    }

    /// Lets `fill` write the data where it is sent from: over io_uring that is the kernel's buffer. It gets at most
    /// `bytes` bytes on a page boundary, whose content means nothing, and says how many of them count.
    pub fn fill(self, bytes: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        let mut buffer = self.buffer(bytes);
        match fill(&mut buffer) {
            Ok(filled) => buffer.send(filled),
            Err(errno) => buffer.error(errno),
        }
    }

    /// The same to be filled later: by asynchronous I/O, from another thread.
    pub fn buffer(self, bytes: usize) -> ReplyBuffer {
        let bytes = bytes.min(self.bytes_max);
        let memory = self.slot.memory(bytes);
        ReplyBuffer { inner: Some((self.slot, memory)), bytes }
    }
}

/// Memory for an answer, on a page boundary; dereferences to it. Dropped without [`send`](ReplyBuffer::send) it answers
/// EIO.
pub struct ReplyBuffer {
    /// Gone once sent.
    inner: Option<(ReplySlot, ReplyMemory)>,
    bytes: usize,
}

impl ReplyBuffer {
    /// Answers with the first `bytes` bytes, or with all there are if that is less.
    pub fn send(mut self, bytes: usize) {
        if let Some((slot, memory)) = self.inner.take() {
            slot.send_memory(memory, bytes.min(self.bytes));
        }
    }

    /// Answers with an error.
    pub fn error(mut self, errno: Errno) {
        if let Some((slot, memory)) = self.inner.take() {
            slot.return_memory(memory);
            slot.error(errno);
        }
    }
}

impl std::ops::Deref for ReplyBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.inner.as_ref().map_or(&[], |(_, memory)| &memory.as_slice()[..self.bytes])
    }
}

impl std::ops::DerefMut for ReplyBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        self.inner.as_mut().map_or(&mut [], |(_, memory)| &mut memory.as_mut_slice()[..bytes])
    }
}

/// The value of an extended attribute, or the list of their names (each followed by a NUL). Callers may ask for the
/// size only; this reply answers that from the same value.
#[must_use = "dropped, it answers EIO"]
pub struct ReplyXattr {
    slot: ReplySlot,
    /// Size of the caller's buffer; 0 if only the size is asked for.
    bytes_max: u32,
}

reply_common!(ReplyXattr);

impl ReplyXattr {
    pub(crate) fn new(slot: ReplySlot, bytes_max: u32) -> ReplyXattr {
        ReplyXattr { slot, bytes_max }
    }

    /// Whether only the size is asked for: [`ReplyXattr::size`] is enough then.
    pub fn wants_size(&self) -> bool {
        self.bytes_max == 0
    }

    /// The size where only that is asked for; ERANGE for a value that does not fit.
    pub fn value(self, value: &[u8]) {
        if self.wants_size() {
            self.size(value.len());
        } else if value.len() > self.bytes_max as usize {
            self.slot.error(Errno::ERANGE);
        } else {
            self.slot.bytes(value);
        }
    }

    /// Answers only the size; to a caller that wants the value this is ERANGE if it does not fit, else EIO.
    pub fn size(self, bytes: usize) {
        match u32::try_from(bytes) {
            Ok(size) if self.wants_size() => {
                self.slot.bytes(abi::GetXattrOut { size, padding: 0 }.as_bytes());
            }
            Ok(size) if size <= self.bytes_max => self.slot.error(Errno::EIO),
            _ => self.slot.error(Errno::ERANGE),
        }
    }
}

/// The result of an ioctl.
#[must_use = "dropped, it answers EIO"]
pub struct ReplyIoctl {
    slot: ReplySlot,
    bytes_max: usize,
}

reply_common!(ReplyIoctl);

impl ReplyIoctl {
    pub(crate) fn new(slot: ReplySlot, bytes_max: u32) -> ReplyIoctl {
        ReplyIoctl { slot, bytes_max: bytes_max as usize }
    }

    /// `result` is what `ioctl` returns; output beyond what the caller has room for is cut off.
    pub fn output(self, result: i32, output: &[u8]) {
        let header = abi::IoctlOut { result, flags: IoctlFlags::empty(), in_iovs: 0, out_iovs: 0 };
        let output = &output[..output.len().min(self.bytes_max)];
        match output {
            [] => self.slot.bytes(header.as_bytes()),
            _ => self.slot.data(&[IoSlice::new(header.as_bytes()), IoSlice::new(output)]),
        }
    }

    /// For unrestricted ioctls: asks the kernel to send the request again with the memory at `input`, and room for
    /// `output` (together at most 256 pieces).
    pub fn retry(self, input: &[abi::IoctlIovec], output: &[abi::IoctlIovec]) {
        if input.len() + output.len() > abi::IOCTL_IOVECS_MAX {
            return self.slot.error(Errno::EINVAL);
        }
        let header = abi::IoctlOut {
            result: 0,
            flags: IoctlFlags::RETRY,
            in_iovs: input.len() as u32,
            out_iovs: output.len() as u32,
        };
        self.slot.data(&[
            IoSlice::new(header.as_bytes()),
            IoSlice::new(input.as_bytes()),
            IoSlice::new(output.as_bytes()),
        ]);
    }
}
