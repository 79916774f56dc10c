//! What a replica is made of, without a store.

mod lazy;
mod objects;
mod replicator;
mod slow;
mod tap;
