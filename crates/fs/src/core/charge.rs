//! Memory beyond pages, nodes and inodes that counts against the volume's bound: what transactions and an adapter's
//! tables keep.
//!
//! Pages and nodes get what these leave (`balance`), and all of these together get a share of the bound.
//!
//! Relaxed atomics: who asks at the same moment may go beyond the share by what each of them adds.

use crate::core::Core;
use crate::limits::CHARGED_SHARE;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Memory that counts against a volume's bound until this is dropped.
#[derive(Debug)]
pub struct MemoryCharge {
    of_all: Arc<AtomicU64>,
    bytes: u64,
}

impl MemoryCharge {
    pub(crate) fn new(of_all: &Arc<AtomicU64>) -> MemoryCharge {
        MemoryCharge { of_all: of_all.clone(), bytes: 0 }
    }

    /// It is so much now.
    pub fn set(&mut self, bytes: u64) {
        if bytes >= self.bytes {
            self.of_all.fetch_add(bytes - self.bytes, Relaxed);
        } else {
            self.of_all.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Core {
    /// For memory that an adapter keeps beside the engine's: nothing yet.
    pub fn memory_charge(&self) -> MemoryCharge {
        MemoryCharge::new(&self.charged)
    }

    /// Memory that is charged, in bytes.
    pub fn charged_bytes(&self) -> u64 {
        self.charged.load(Relaxed)
    }

    /// Errors: `TransactionMemory`, there is no room for more.
    pub(crate) fn check_charged(&self) -> Result<()> {
        let bytes_max = self.memory_bytes_max() / CHARGED_SHARE as usize;
        match self.charged_bytes() < bytes_max as u64 {
            true => Ok(()),
            false => Err(Error::TransactionMemory { bytes_max }),
        }
    }
}
