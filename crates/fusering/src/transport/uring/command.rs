//! The two commands of FUSE over io_uring, as submissions.
//!
//! An *entry* is one request's worth of memory that this process lends to the kernel: a header area and a payload. The
//! kernel copies a request into it and completes the command that lent it; the reply is written over the request and
//! lent back by the next command. Both copies run in the context of the thread that submits the commands, while it is
//! inside `io_uring_enter`: between two of its system calls nothing but this process touches an entry.

use crate::abi::uring::{CMD_COMMIT_AND_FETCH, CMD_REGISTER, UringCmdReq};
use io_uring::{opcode, squeue, types};
use std::os::fd::{AsRawFd, BorrowedFd};
use zerocopy::IntoBytes;

/// The index, in the ring's table of files, of the FUSE device.
pub(super) const FILE_DEVICE: types::Fixed = types::Fixed(0);

/// The index, in the ring's table of files, of the eventfd that wakes the queue's thread.
pub(super) const FILE_BELL: types::Fixed = types::Fixed(1);

/// The number of a queue: the number of the CPU whose requests it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueId(pub u16);

/// Lends the two areas (header, payload) to the kernel as a new entry of `queue`.
///
/// The kernel reads `areas` while it takes the submission, not later.
pub(super) fn register(queue: QueueId, areas: &[libc::iovec; 2], user_data: u64) -> squeue::Entry128 {
    registration(opcode::UringCmd80::new(FILE_DEVICE, CMD_REGISTER), queue, areas, user_data)
}

/// A registration that the kernel refuses, for a queue that cannot exist: it then gives up io_uring for the connection
/// unless all queues are ready, and lets the requests go that it held back until then.
pub(super) fn register_impossible(
    device: BorrowedFd<'_>,
    areas: &[libc::iovec; 2],
    user_data: u64,
) -> squeue::Entry128 {
    // The table of files may be what has failed.
    let command = opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), CMD_REGISTER);
    registration(command, QueueId(u16::MAX), areas, user_data)
}

fn registration(
    command: opcode::UringCmd80,
    queue: QueueId,
    areas: &[libc::iovec; 2],
    user_data: u64,
) -> squeue::Entry128 {
    let mut entry =
        command.cmd(arguments(queue, 0)).addr(Some(areas.as_ptr() as u64)).build().user_data(user_data);
    set_length(&mut entry, areas.len() as u32);
    entry
}

/// Answers the request that the kernel calls `commit_id` with what its entry holds now, and lends the entry again.
pub(super) fn commit_and_fetch(queue: QueueId, commit_id: u64, user_data: u64) -> squeue::Entry128 {
    opcode::UringCmd80::new(FILE_DEVICE, CMD_COMMIT_AND_FETCH)
        .cmd(arguments(queue, commit_id))
        .build()
        .user_data(user_data)
}

fn arguments(queue: QueueId, commit_id: u64) -> [u8; 80] {
    let request = UringCmdReq { commit_id, qid: queue.0, ..UringCmdReq::default() };
    let mut bytes = [0; 80];
    bytes[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
    bytes
}

/// Sets `len` of a submission, which the builder of commands has no word for.
fn set_length(entry: &mut squeue::Entry128, length: u32) {
    const OFFSET_OF_LEN: usize = 24;
    const _: () = assert!(size_of::<squeue::Entry128>() == 128);
    // SAFETY: an `Entry128` is `repr(C)` over the kernel's `struct io_uring_sqe` of 128 bytes; its `len` is the u32
    // at 24.
    unsafe {
        std::ptr::from_mut(entry).cast::<u8>().add(OFFSET_OF_LEN).cast::<u32>().write_unaligned(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_holds_the_commit_id_and_the_queue_where_the_kernel_reads_them() {
        let bytes = arguments(QueueId(0x0102), 0x1122_3344_5566_7788);
        assert_eq!(bytes[..8], [0; 8]);
        assert_eq!(bytes[8..16], 0x1122_3344_5566_7788u64.to_ne_bytes());
        assert_eq!(bytes[16..18], 0x0102u16.to_ne_bytes());
        assert_eq!(bytes[18..], [0; 62]);
    }

    #[test]
    fn a_registration_tells_the_kernel_of_two_areas() {
        let areas = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
        let entry = register(QueueId(0), &areas, 7);
        // SAFETY: the entry is 128 bytes of plain data.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(&entry).cast::<u8>(), 128) };
        assert_eq!(bytes[16..24], (areas.as_ptr() as u64).to_ne_bytes());
        assert_eq!(bytes[24..28], 2u32.to_ne_bytes());
    }
}
