//! A mounted filesystem: handshake, dispatch, end.

pub(crate) mod config;

pub use config::UringSettings;
