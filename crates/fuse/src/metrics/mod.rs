//! Metrics for Prometheus: what they are called ([`text`]), where they are told ([`Address`]), and to whom
//! ([`Endpoint`]).

mod address;
mod families;
mod server;

pub(crate) use address::Address;
pub(crate) use families::text;
pub(crate) use server::{Endpoint, Served};
