//! Syncline's copy-on-write item store: space, tree, node cache, journal, checkpoint, recovery.
//!
//! The store keeps *items* (key to value) in copy-on-write trees and makes changes to them durable through a journal
//! of batches. It knows no name and no permission; of values it understands only extents, because recovery proves
//! freshly written data by its checksums. `docs/design.md` argues the rules that this crate cites by number.
//!
//! Life of a change: [`Store::admit`] (may have to wait for space in the ring; no lock of the caller's is held),
//! [`Store::commit`] (applies the batch to the tree and appends the same bytes to the journal buffer under one short
//! lock; never blocks, writes nothing), [`Store::force`] (one write and one flush per group of waiters).
//!
//! The store starts no threads and reads no clock. Whoever finds the ring or the node budget full is told
//! ([`StoreError::Pressure`]) and relieves it by destaging images and calling [`Store::checkpoint`].

#![forbid(unsafe_code)]
// No thread, no clock (clippy.toml).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod ablation;
mod admission;
mod batch;
mod carry;
mod checkpoint;
mod clones;
mod deletion;
mod difference;
mod error;
mod images;
mod journal;
mod limits;
pub mod lock_order;
mod locks;
mod mkfs;
mod open;
mod options;
mod primitives;
mod replay;
mod reservation;
mod ring_scan;
mod root_tree;
mod scan;
mod schedule;
mod shared;
mod snapshot;
mod space;
mod store;
mod tree;
mod trees;
mod trim;
mod upgrade;

#[cfg(feature = "ablation")]
pub use ablation::Ablation;
pub use batch::{Batch, Birth, Class, DataSlot, Estimate, Permit};
pub use deletion::TreeReader;
pub use error::{Pressure, StoreError};
pub use open::{PageImage, Recovery, RecoverySummary};
pub use options::{FormatOptions, StoreOptions};
pub use reservation::Reservation;
pub use snapshot::SnapshotLabel;
pub use store::{Counters, Load, Piggyback, Run, Space, Store, ValueAndNext, VolumeInfo};
#[cfg(feature = "ablation")]
pub use tree::page::comparisons;
