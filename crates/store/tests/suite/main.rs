//! The store from outside, at a device that can be crashed.

mod ablation;
mod at_commit;
mod crash;
mod deep_trees;
mod deletion;
mod epochs;
mod flushes;
mod force;
mod forged;
mod full;
mod large;
mod late_writes;
mod lone;
mod lost;
mod read_ahead;
mod snapshot_cost;
mod snapshots;
mod snapshots_beside;
mod support;
mod trees;
mod trim;
