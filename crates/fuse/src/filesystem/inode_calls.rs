//! The ioctls on files and directories alike: flags, statistics, the shutdown.

use super::Caller;
use super::operations::Operations;
use crate::convert::{errno, object};
use crate::privilege::may_administer;
use crate::statistics::{Sources, Staged};
use crate::{ioctl, statistics};
use fusering::{Errno, NodeId};
use std::sync::atomic::Ordering;
use syncline_fs::{ExtendedFlags, ObjectNo};

impl Operations {
    pub(super) fn ioctl(
        &self,
        caller: &Caller,
        node: NodeId,
        command: u32,
        input: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let node = object(node);
        match command {
            ioctl::GET_FLAGS => {
                Ok(self.fs.attributes().inode_flags(node).map_err(errno)?.to_le_bytes().to_vec())
            }
            ioctl::SET_FLAGS => {
                let flags = input.first_chunk().ok_or(Errno::EINVAL)?;
                let flags = u32::from_le_bytes(*flags);
                self.settle(self.fs.attributes().set_inode_flags(&caller.context(), node, flags))?;
                self.tell_attributes(node);
                Ok(Vec::new())
            }
            ioctl::GET_EXTENDED_FLAGS => {
                let flags = self.fs.attributes().extended_flags(node).map_err(errno)?;
                let mut out = Vec::with_capacity(ioctl::FSXATTR_BYTES);
                for field in [flags.xflags, 0, flags.extents, flags.project, 0] {
                    out.extend_from_slice(&field.to_le_bytes());
                }
                out.resize(ioctl::FSXATTR_BYTES, 0);
                Ok(out)
            }
            ioctl::SET_EXTENDED_FLAGS => self.set_extended_flags(caller, node, input),
            ioctl::SHUT_DOWN if !may_administer(caller) => Err(Errno::EPERM),
            ioctl::SHUT_DOWN => {
                tracing::warn!(pid = caller.pid, "shut down on request: nothing is written any more");
                self.was_shut_down.store(true, Ordering::Relaxed);
                self.fs.shut_down();
                Ok(Vec::new())
            }
            ioctl::STATISTICS => Ok(ioctl::encode_statistics(&statistics::describe(&self.sources()))),
            _ => Err(Errno::ENOTTY),
        }
    }

    /// What statistics and metrics are made from.
    pub(super) fn sources(&self) -> Sources<'_> {
        Sources {
            fs: &self.fs,
            syncs: &self.syncs,
            messages: &self.messages,
            staged: Staged { open: self.atomics.counts(), totals: self.ledger.totals() },
            transport: self.transport.get(),
            memory: self.memory.as_deref(),
            replica: self.replica.as_deref(),
        }
    }

    fn set_extended_flags(&self, caller: &Caller, node: ObjectNo, input: &[u8]) -> Result<Vec<u8>, Errno> {
        let field = |at: usize| -> Result<u32, Errno> {
            let bytes = input.get(at..at + 4).ok_or(Errno::EINVAL)?;
            Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let (xflags, extent_hint, project, cow_hint) = (field(0)?, field(4)?, field(12)?, field(16)?);
        if extent_hint != 0 || cow_hint != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let wanted = ExtendedFlags { xflags, project, ..ExtendedFlags::default() };
        self.settle(self.fs.attributes().set_extended_flags(&caller.context(), node, wanted))?;
        self.tell_attributes(node);
        Ok(Vec::new())
    }
}
