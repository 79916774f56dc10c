//! Replicas in stores.

mod common;
mod gone;
mod lazy;
mod probe;
mod resume;
mod session;
mod trouble;
