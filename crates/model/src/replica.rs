//! A model of replication to an object store (docs/replication-format.md, section 4): claims, units, manifests,
//! deletion, branches, and machines that stand still between any two steps.
//!
//! The model is apart from that of the engine, because nothing of the engine's state matters here: a volume is the
//! list of the writes that made it ([`world::Stamp`]), a unit ships some of them. The store is linearizable by name;
//! what is sent may arrive late, and twice. A machine that stalls is one of which no step is taken for a while, so
//! every place for a stall is explored by itself.
//!
//! | module | what |
//! |---|---|
//! | [`protocol`] | the rules P1 - P8 as switches, and scopes |
//! | [`world`] | the store's objects, machines, whoever reads and branches |
//! | [`writer`] | the steps of whoever writes: claim, probe, ship, count, compact, delete |
//! | [`bystander`] | the steps of readers, branchers and the network, and time |
//! | [`judge`] | what has to hold after each step |
//! | [`search`] | breadth first, so that the first violation has a shortest trace |
//!
//! What is smaller than the real thing: a look at several objects (a listing, a probe) is one step, because nothing
//! that it finds is ever taken away while it matters, except by deletion, which steps of others are there to show.

pub mod bystander;
pub mod judge;
pub mod protocol;
pub mod search;
pub mod world;
pub mod writer;
