//! Copying a range from one file into another.

use crate::content::inode::Inode;
use crate::limits::COPY_BYTES;
use crate::write::{WriteAt, Writer};
use crate::{Error, Result};
use std::sync::Arc;

impl Writer {
    /// Copies up to `len` bytes; less only at the end of the source or when space runs out.
    ///
    /// Errors: `Invalid` if source and target overlap in one file.
    pub(crate) fn file_copy_range(
        &self,
        source: &Arc<Inode>,
        source_offset: u64,
        target: &Arc<Inode>,
        target_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let available = source.state.read().item.size.saturating_sub(source_offset);
        let len = len.min(available);
        let overlap = source_offset < target_offset.saturating_add(len)
            && target_offset < source_offset.saturating_add(len);
        if Arc::ptr_eq(source, target) && overlap {
            return Err(Error::Invalid("the ranges overlap"));
        }
        let mut buffer = vec![0; len.min(COPY_BYTES) as usize];
        let mut done = 0;
        while done < len {
            let want = (len - done).min(COPY_BYTES) as usize;
            let got = self.shape.file_read(source, source_offset + done, &mut buffer[..want])?;
            if got == 0 {
                break;
            }
            let at = WriteAt::Offset(target_offset + done);
            match self.file_write(target, at, &buffer[..got], &mut |_| {}) {
                Ok((_, written)) => {
                    done += written as u64;
                    if written < got {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
