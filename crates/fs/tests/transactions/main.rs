//! Transactions: invisible before the commit, whole after it and after any crash, refused when others were in between (C4).

#[path = "../common/mod.rs"]
mod common;

mod data;
mod names;
