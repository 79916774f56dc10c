//! Replicas in stores.

mod common;
mod probe;
mod resume;
mod session;
mod trouble;
