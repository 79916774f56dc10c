//! From messages to calls of the filesystem.
//!
//! Every message leads to exactly one answer: by the filesystem, by the slot that it drops, or here if the message does
//! not decode or needs no answer.

use crate::abi::Opcode;
use crate::errno::Errno;
use crate::filesystem::{Filesystem, Interruption};
use crate::reply::slot::ReplySlot;
use crate::reply::{
    ReplyAttributes, ReplyBmap, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatx, ReplyTotals,
    ReplyWrite, ReplyXattr,
};
use crate::request::{Agreed, Forget, Operation, RequestContext, decode};
use crate::transport::{Handler, RawRequest, Source};
use crate::types::{NodeId, RequestId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

/// Longest link target that the kernel takes, in bytes.
const LINK_BYTES_MAX: usize = 4095;

/// Calls a filesystem.
pub(crate) struct Dispatcher<F> {
    filesystem: Arc<F>,
    agreed: Agreed,
    destroyed: Once,
}

impl<F: Filesystem> Dispatcher<F> {
    pub(crate) fn new(filesystem: Arc<F>, agreed: Agreed) -> Dispatcher<F> {
        Dispatcher { filesystem, agreed, destroyed: Once::new() }
    }

    /// Calls the filesystem's `destroy`, once; returns when it has returned.
    pub(crate) fn destroy(&self) {
        self.destroyed.call_once(|| guarded(Opcode::DESTROY, || self.filesystem.destroy()));
    }

    fn interrupt(&self, request: RequestId, slot: ReplySlot) {
        let mut outcome = Interruption::Heard;
        guarded(Opcode::INTERRUPT, || outcome = self.filesystem.interrupt(request));
        match outcome {
            Interruption::Heard => slot.unwanted(),
            Interruption::Again => slot.error(Errno::EAGAIN),
            Interruption::Ignored => slot.error(Errno::ENOSYS),
        }
    }

    fn forget_many(&self, pairs: &[u8]) {
        for pair in pairs.chunks_exact(16) {
            let (node, lookups) = pair.split_at(8);
            let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
            self.filesystem.forget(&Forget { node: NodeId(number(node)), lookups: number(lookups) });
        }
    }

    fn call(&self, context: &RequestContext<'_>, operation: &Operation<'_>, slot: ReplySlot) {
        let fs = &*self.filesystem;
        match operation {
            Operation::Lookup(op) => fs.lookup(context, op, ReplyEntry::new(slot)),
            Operation::GetAttr(op) => fs.getattr(context, op, ReplyAttributes::new(slot)),
            Operation::SetAttr(op) => fs.setattr(context, op, ReplyAttributes::new(slot)),
            Operation::Statx(op) => fs.statx(context, op, ReplyStatx::new(slot)),
            Operation::ReadLink(op) => fs.readlink(context, op, ReplyData::new(slot, LINK_BYTES_MAX)),
            Operation::SymLink(op) => fs.symlink(context, op, ReplyEntry::new(slot)),
            Operation::Mknod(op) => fs.mknod(context, op, ReplyEntry::new(slot)),
            Operation::Mkdir(op) => fs.mkdir(context, op, ReplyEntry::new(slot)),
            Operation::Unlink(op) => fs.unlink(context, op, ReplyEmpty::new(slot)),
            Operation::Rmdir(op) => fs.rmdir(context, op, ReplyEmpty::new(slot)),
            Operation::Rename(op) => fs.rename(context, op, ReplyEmpty::new(slot)),
            Operation::Link(op) => fs.link(context, op, ReplyEntry::new(slot)),
            Operation::Open(op) => fs.open(context, op, ReplyOpen::new(slot)),
            Operation::Create(op) => fs.create(context, op, ReplyCreate::new(slot)),
            Operation::TmpFile(op) => fs.tmpfile(context, op, ReplyCreate::new(slot)),
            Operation::Read(op) => fs.read(context, op, ReplyData::new(slot, op.size as usize)),
            Operation::Write(op) => fs.write(context, op, ReplyWrite::new(slot)),
            Operation::Flush(op) => fs.flush(context, op, ReplyEmpty::new(slot)),
            Operation::Release(op) => fs.release(context, op, ReplyEmpty::new(slot)),
            Operation::Fsync(op) => fs.fsync(context, op, ReplyEmpty::new(slot)),
            Operation::OpenDir(op) => fs.opendir(context, op, ReplyOpen::new(slot)),
            Operation::ReadDir(op) => fs.readdir(context, op, ReplyDirectory::new(slot, op.size)),
            Operation::ReadDirPlus(op) => fs.readdirplus(context, op, ReplyDirectoryPlus::new(slot, op.size)),
            Operation::ReleaseDir(op) => fs.releasedir(context, op, ReplyEmpty::new(slot)),
            Operation::FsyncDir(op) => fs.fsyncdir(context, op, ReplyEmpty::new(slot)),
            Operation::StatFs(op) => fs.statfs(context, op, ReplyTotals::new(slot)),
            Operation::SyncFs(op) => fs.syncfs(context, op, ReplyEmpty::new(slot)),
            Operation::SetXattr(op) => fs.setxattr(context, op, ReplyEmpty::new(slot)),
            Operation::GetXattr(op, size) => fs.getxattr(context, op, ReplyXattr::new(slot, *size)),
            Operation::ListXattr(op, size) => fs.listxattr(context, op, ReplyXattr::new(slot, *size)),
            Operation::RemoveXattr(op) => fs.removexattr(context, op, ReplyEmpty::new(slot)),
            Operation::Access(op) => fs.access(context, op, ReplyEmpty::new(slot)),
            Operation::GetLk(op) => fs.getlk(context, op, ReplyLock::new(slot)),
            Operation::SetLk(op) => fs.setlk(context, op, ReplyEmpty::new(slot)),
            Operation::SetLkw(op) => fs.setlkw(context, op, ReplyEmpty::new(slot)),
            Operation::Bmap(op) => fs.bmap(context, op, ReplyBmap::new(slot)),
            Operation::Ioctl(op) => fs.ioctl(context, op, ReplyIoctl::new(slot, op.output_bytes_max)),
            Operation::Poll(op) => fs.poll(context, op, ReplyPoll::new(slot)),
            Operation::Fallocate(op) => fs.fallocate(context, op, ReplyEmpty::new(slot)),
            Operation::Lseek(op) => fs.lseek(context, op, ReplyLseek::new(slot)),
            Operation::CopyFileRange(op) => fs.copy_file_range(context, op, ReplyCopy::new(slot, false)),
            Operation::CopyFileRange64(op) => fs.copy_file_range(context, op, ReplyCopy::new(slot, true)),
            Operation::Destroy => {
                self.destroy();
                slot.bytes(&[]);
            }
            Operation::Interrupt(request) => self.interrupt(*request, slot),
            Operation::Forget(op) => {
                slot.unwanted();
                fs.forget(op);
            }
            Operation::BatchForget(pairs) => {
                slot.unwanted();
                self.forget_many(pairs);
            }
            Operation::NotifyReply(data) => {
                fs.retrieved(context.id.0, data);
                slot.unwanted();
            }
        }
    }
}

impl<F: Filesystem> Handler for Dispatcher<F> {
    fn handle(&self, source: &dyn Source, request: RawRequest<'_>, slot: ReplySlot) {
        let header = request.header;
        let operation = match decode(&request, self.agreed) {
            Ok(operation) => operation,
            Err(errno) => {
                tracing::debug!(opcode = %header.opcode, unique = header.unique, %errno, "not understood");
                return if wants_answer(header.opcode) { slot.error(errno) } else { slot.unwanted() };
            }
        };
        let context = RequestContext {
            id: RequestId(header.unique),
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
            source,
        };
        guarded(header.opcode, || self.call(&context, &operation, slot));
    }

    fn header_bytes(&self, opcode: Opcode) -> Option<usize> {
        opcode.header_bytes(self.agreed.setxattr_ext)
    }
}

fn wants_answer(opcode: Opcode) -> bool {
    !matches!(opcode, Opcode::FORGET | Opcode::BATCH_FORGET | Opcode::INTERRUPT | Opcode::NOTIFY_REPLY)
}

/// A panic ends neither the transport's thread nor the session; the dropped slot answers.
fn guarded(opcode: Opcode, call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!(%opcode, "the filesystem panicked; the request fails and the session goes on");
    }
}
