//! Replicas in stores.

mod common;
mod lazy;
mod probe;
mod resume;
mod session;
mod trouble;
