//! A [`Device`](syncline_device::Device) on an image of Ceph, by librbd.
//!
//! `librados.so.2` and `librbd.so.1` are loaded when the first image is opened, so nothing depends on Ceph that does
//! not use it. A write is durable on the pool's replicas when it is complete; the caches of librbd are off, and a flush
//! is sent all the same.
//!
//! Rules:
//! - who writes holds the image's exclusive lock; a second one is told who has it;
//! - who takes over breaks the lock, which puts the address of the old owner on the cluster's blocklist, so that no
//!   storage daemon carries out what it still sends (contract C15);
//! - the first answer that says so is latched: the device answers from then on that another machine has taken over;
//! - a request that no daemon answers is no error, and is waited for: Ceph finds another daemon, or the old one.
#![deny(unsafe_code)]

mod address;
mod api;
mod device;
mod error;
mod image;

pub use address::Address;
pub use device::RbdDevice;
pub use error::RbdError;
