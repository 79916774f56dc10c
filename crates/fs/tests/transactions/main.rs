//! Transactions: invisible before the commit, whole after it and after any crash, refused when others were in between
//! (C4).

#[path = "../common/mod.rs"]
mod common;

#[path = "../model/device.rs"]
#[allow(dead_code)] // Other tests use more of it.
mod device;
#[path = "../gate/mod.rs"]
mod gate;

mod crash;
mod data;
mod large;
mod names;
mod others;
mod threads;
