//! Drives replication (`syncline-replica`) over the object stores that the `object_store` crate knows: local folders
//! always, S3 and what speaks it with the feature `aws`.
//!
//! | module | what |
//! |---|---|
//! | [`address`] | a replica's URL, and the store behind it |
//! | [`client`] | carries out what the state machines ask for |
//! | [`probe`] | P9: refuses a store that cannot do what the protocol needs |
//! | [`mark`] | what a volume says about its replica, on its device |
//! | [`session`] | [`Session`]: a volume's device with its uploader, on a thread of its own |
//! | [`housekeeping`] | packs units, and deletes what is not kept |
//! | [`remote`] | volumes that are read from their replica, or begun from there |
//! | [`fetcher`], [`filler`] | what such a volume asks for; the rest of it, in the background |
//! | [`unfinished`] | an image that is being made |
//! | [`image`] | a replica's way back into an image |
//! | [`overview`] | what is in a place: volumes, claims, units |
//! | [`verify`] | reads all units, and holds them against their checksums |
//!
//! One thread of its own drives a session, with a runtime for that thread alone. Nothing of the engine waits for it.
#![forbid(unsafe_code)]

pub mod address;
pub mod client;
pub mod fetcher;
pub mod filler;
pub mod housekeeping;
pub mod image;
pub mod mark;
pub mod overview;
pub mod probe;
pub mod remote;
pub mod session;
pub mod unfinished;
pub mod verify;

mod claim;
mod error;

pub use address::Address;
pub use client::Client;
pub use error::Error;
pub use filler::Filler;
pub use housekeeping::{Housekeeping, Kept, keep_house};
pub use image::{Seen, fence, restore};
pub use overview::{Gap, Overview};
pub use remote::{Lazy, Local, Reading, Watch};
pub use session::{OnLag, Options, Session};
pub use syncline_format::replica::Keep;
pub use syncline_replica::keep;
pub use syncline_replica::replicator::Status;
pub use syncline_replica::{Acknowledge, LazyDevice, Phase, Pruned, ReplicaError, Target};
pub use unfinished::Unfinished;
pub use verify::{Lost, Verified, verify};
