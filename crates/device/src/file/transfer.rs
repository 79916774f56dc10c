//! One read or write of consecutive blocks, as the kernel sees it: a list of memory segments, of which a
//! prefix may already be done.
//!
//! Both engines work it off in the same way: hand the kernel the next segments (at most [`SEGMENTS_MAX`]),
//! advance by what it did, repeat. Short transfers and lists longer than the kernel takes are thereby the
//! same case.
#![allow(unsafe_code)]

use crate::{Buffer, DeviceError, Operation};
use std::os::fd::RawFd;
use std::sync::Arc;
use syncline_format::BlockNo;

/// Segments the kernel takes at once (its `IOV_MAX`).
pub(super) const SEGMENTS_MAX: usize = 1024;
/// Shorter reads (256 KiB) go into blocks directly: they are not worth a copy.
const RUN_BLOCKS_MIN: usize = 64;

pub(super) struct Transfer {
    operation: Operation,
    at: BlockNo,
    /// Byte position of the first byte that is not yet done.
    position: u64,
    segments: Vec<libc::iovec>,
    /// First segment that is not yet done.
    next: usize,
    /// Keeps the memory alive, but for a read into lent memory.
    _data: Vec<Arc<Buffer>>,
}

// SAFETY: the segments point into `_data`, which is `Send + Sync` (and which nobody looks at while a read fills it),
// or into memory that the creator of the transfer lends exclusively (see `Transfer::read`); neither is tied to a
// thread.
unsafe impl Send for Transfer {}

/// What is left to do after the kernel answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    /// More segments, or the same again after an interruption.
    Again,
}

impl Transfer {
    pub(super) fn write(at: BlockNo, data: Vec<Arc<Buffer>>) -> Transfer {
        let mut segments = Vec::with_capacity(data.len());
        for buffer in &data {
            // The kernel only reads from the segments of a write.
            push_segment(&mut segments, buffer.as_ptr().cast_mut(), buffer.len());
        }
        Transfer {
            operation: Operation::Write,
            at,
            position: at.byte_offset(),
            segments,
            next: 0,
            _data: data,
        }
    }

    /// A read of `len` bytes into the memory at `into`.
    ///
    /// # Safety
    /// The memory must be valid for writes, and nobody else may touch it, until the transfer is done or
    /// dropped and no request for it is in flight.
    pub(super) unsafe fn read(at: BlockNo, into: *mut u8, len: usize) -> Transfer {
        let segments = vec![libc::iovec { iov_base: into.cast(), iov_len: len }];
        Transfer {
            operation: Operation::Read,
            at,
            position: at.byte_offset(),
            segments,
            next: 0,
            _data: Vec::new(),
        }
    }

    /// A read of `count` blocks into memory of its own, which is returned as well: nobody may look at it before the
    /// transfer is done.
    pub(super) fn read_blocks(at: BlockNo, count: usize) -> (Transfer, Vec<Arc<Buffer>>) {
        let run = (count >= RUN_BLOCKS_MIN).then(|| Buffer::run(count)).flatten();
        let memory = match run {
            Some(run) => vec![run],
            None => (0..count).map(|_| Buffer::for_overwrite(1)).collect(),
        };
        let mut segments = Vec::with_capacity(memory.len());
        let fill = |mut buffer: Buffer| {
            push_segment(&mut segments, buffer.as_mut_ptr(), buffer.len());
            Arc::new(buffer)
        };
        let memory: Vec<_> = memory.into_iter().map(fill).collect();
        let transfer = Transfer {
            operation: Operation::Read,
            at,
            position: at.byte_offset(),
            segments,
            next: 0,
            _data: memory.clone(),
        };
        (transfer, memory)
    }

    pub(super) fn is_write(&self) -> bool {
        self.operation == Operation::Write
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The segments to hand to the kernel now.
    pub(super) fn segments(&self) -> &[libc::iovec] {
        let rest = &self.segments[self.next..];
        &rest[..rest.len().min(SEGMENTS_MAX)]
    }

    /// Takes the kernel's answer: bytes done, or a negative errno.
    pub(super) fn settle(&mut self, answer: i64) -> Result<Progress, DeviceError> {
        match answer {
            // Cancelled happens when the submitting thread exits.
            interrupted
                if [libc::EINTR, libc::EAGAIN, libc::ECANCELED]
                    .map(|e| -i64::from(e))
                    .contains(&interrupted) =>
            {
                Ok(Progress::Again)
            }
            1.. => Ok(self.advance(answer as usize)),
            // The range was checked, so the end of the file means that it was cut under our feet.
            0 if self.segments().is_empty() => Ok(Progress::Done),
            0 => Err(self.error(libc::EIO)),
            _ => Err(self.error(-answer as i32)),
        }
    }

    fn error(&self, errno: i32) -> DeviceError {
        DeviceError::Io { operation: self.operation, block: self.at, errno }
    }

    fn advance(&mut self, bytes: usize) -> Progress {
        self.position += bytes as u64;
        let mut left = bytes;
        while left > 0 {
            let segment = &mut self.segments[self.next];
            let done = left.min(segment.iov_len);
            segment.iov_len -= done;
            // SAFETY: `done` bytes lie within the segment.
            segment.iov_base = unsafe { segment.iov_base.add(done) };
            left -= done;
            if segment.iov_len == 0 {
                self.next += 1;
            }
        }
        if self.next == self.segments.len() { Progress::Done } else { Progress::Again }
    }

    /// Works the whole transfer off on the calling thread.
    pub(super) fn run(mut self, fd: RawFd) -> Result<(), DeviceError> {
        loop {
            let segments = self.segments();
            let (pointer, count) = (segments.as_ptr(), segments.len() as i32);
            let position = self.position as libc::off64_t;
            // SAFETY: the segments are valid memory: shared buffers owned by `self` for a write, exclusively
            // lent memory for a read.
            let answer = unsafe {
                match self.operation {
                    Operation::Write => libc::pwritev64(fd, pointer, count, position),
                    _ => libc::preadv64(fd, pointer, count, position),
                }
            };
            let answer = match answer {
                -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
                bytes => bytes as i64,
            };
            if self.settle(answer)? == Progress::Done {
                return Ok(());
            }
        }
    }
}

/// Adds memory to the list. Buffers that were allocated one after another mostly lie one behind the other; as one
/// segment they cost the kernel one look-up instead of one each.
fn push_segment(segments: &mut Vec<libc::iovec>, start: *mut u8, len: usize) {
    match segments.last_mut() {
        Some(last) if last.iov_base.addr() + last.iov_len == start.addr() => last.iov_len += len,
        _ => segments.push(libc::iovec { iov_base: start.cast(), iov_len: len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_format::BLOCK_BYTES;

    /// Of buffers that do not lie one behind the other.
    fn transfer(buffers: usize) -> Transfer {
        let all: Vec<_> = (0..2 * buffers).map(|_| Arc::new(Buffer::zeroed(1))).collect();
        let mut sorted = all;
        sorted.sort_by_key(|buffer| buffer.as_ptr().addr());
        Transfer::write(BlockNo(2), sorted.into_iter().step_by(2).collect())
    }

    #[test]
    fn buffers_that_lie_one_behind_the_other_are_one_segment() {
        let long = Buffer::zeroed(8);
        let mut segments = Vec::new();
        for part in long.chunks(BLOCK_BYTES).chain(long.chunks(2 * BLOCK_BYTES).skip(1)) {
            push_segment(&mut segments, part.as_ptr().cast_mut(), part.len());
        }
        let lengths: Vec<_> = segments.iter().map(|segment| segment.iov_len / BLOCK_BYTES).collect();
        assert_eq!(lengths, [8, 6]);
    }

    #[test]
    fn short_answers_resume_where_the_kernel_stopped() {
        let mut transfer = transfer(3);
        let second = transfer.segments()[1].iov_base as usize;
        assert_eq!(transfer.settle(BLOCK_BYTES as i64 + 512), Ok(Progress::Again));
        assert_eq!(transfer.position(), 3 * BLOCK_BYTES as u64 + 512);
        assert_eq!(transfer.segments().len(), 2);
        assert_eq!(transfer.segments()[0].iov_base as usize, second + 512);
        assert_eq!(transfer.segments()[0].iov_len, BLOCK_BYTES - 512);
        assert_eq!(transfer.settle(-i64::from(libc::EINTR)), Ok(Progress::Again));
        assert_eq!(transfer.settle(2 * BLOCK_BYTES as i64 - 512), Ok(Progress::Done));
    }

    #[test]
    fn long_lists_go_to_the_kernel_in_parts() {
        let mut transfer = transfer(SEGMENTS_MAX + 5);
        assert_eq!(transfer.segments().len(), SEGMENTS_MAX);
        assert_eq!(transfer.settle((SEGMENTS_MAX * BLOCK_BYTES) as i64), Ok(Progress::Again));
        assert_eq!(transfer.segments().len(), 5);
        assert_eq!(transfer.settle(5 * BLOCK_BYTES as i64), Ok(Progress::Done));
    }

    #[test]
    fn errors_and_a_vanished_end_are_reported_with_the_block() {
        let error = |errno| Err(DeviceError::Io { operation: Operation::Write, block: BlockNo(2), errno });
        assert_eq!(transfer(1).settle(-i64::from(libc::ENOSPC)), error(libc::ENOSPC));
        assert_eq!(transfer(1).settle(0), error(libc::EIO));
    }
}
