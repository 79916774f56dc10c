//! Replication of a volume to an object store, without a thread, a clock or a network.
//!
//! `docs/replication-format.md` tells what a replica is: cuts, units, claims, manifests, the protocol P1 - P9.
//!
//! | module | what |
//! |---|---|
//! | [`tap`] | [`TapDevice`]: the layer between engine and device that sees cuts |
//! | [`merge`] | cuts become the content of a unit: the last content of each block wins |
//! | [`unit`] | a unit's bytes: frames, index, checksums |
//! | [`request`] | what is asked of a store, and what it answers |
//! | [`exchange`] | requests under way, and their repetition |
//! | [`opening`] | a claim, the ends of the claims before, the first manifest (P1, P2, P5, P6) |
//! | [`opened`] | an owner of a replica, before its first unit |
//! | [`shipping`] | units under way, and which of them count (P3, P4) |
//! | [`replicator`] | what is shipped when: cuts, or blocks of the live device where cuts are missing |
//! | [`chain`] | which objects there are, and which of them a position needs |
//! | [`outlines`] | headers and indexes of objects, as they are read |
//! | [`newest`] | in which object the newest content of each block is |
//! | [`keep`] | what is kept, and what is packed for that |
//! | [`compact`] | units become packs, and packs larger ones |
//! | [`prune`] | what nobody needs any more is deleted (P7) |
//! | [`source`] | where blocks come from that are not here |
//! | [`lazy`] | a volume that is used while it is fetched, with a map of what is absent |
//! | [`remote`] | a volume that is read from its replica |
//! | [`changed`] | what of a volume may differ from what its replica holds |
//! | [`restore`] | which frames hold the newest content, and their way back into an image |
//!
//! The state machines have one form: `poll` says what to ask the store for, `answer` takes what it said. Whoever
//! drives them owns the thread and brings the time. So a test decides when each answer arrives, or never.
//!
//! The tap is in the path of every write. It adds no write, no flush and no wait to a sync: a write is noted, a flush
//! marks what had completed, and the uploader takes from there. With [`Acknowledge::Remote`] a flush ends when it
//! counts.
#![forbid(unsafe_code)]

pub mod chain;
pub mod changed;
pub mod compact;
pub mod exchange;
pub mod keep;
pub mod lazy;
pub mod merge;
pub mod names;
pub mod newest;
pub mod opened;
pub mod opening;
pub mod outlines;
pub mod prune;
pub mod remote;
pub mod replicator;
pub mod request;
pub mod restore;
pub mod runs;
pub mod search;
pub mod shipping;
pub mod source;
pub mod tap;
pub mod unit;

mod absence;
mod answers;
mod clock;
mod error;
mod looks;

pub use compact::{Compacted, Compaction, How};
pub use error::ReplicaError;
pub use lazy::{LazyDevice, LazyError};
pub use names::Names;
pub use opened::Opened;
pub use opening::{Opener, Opening};
pub use prune::{Pruned, Pruner, Pruning};
pub use remote::RemoteDevice;
pub use replicator::{Phase, Replicator, Settings, Status};
pub use request::{Answer, Operation, Part, Request, RequestId, StoreError};
pub use restore::{Plan, Restore, Target};
pub use shipping::Unit;
pub use source::Source;
pub use tap::{Acknowledge, TapDevice, TapState};
