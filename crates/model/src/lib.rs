//! An explicit-state model of Syncline's design: docs/design.md, sections 3 and 4, in a form that can be executed.
//!
//! The world is small: two or three files of one or two pages, a handful of blocks, a ring of a few records. All
//! steps of the store and of its callers are transitions of one [`engine::State`], each of which names the rules that
//! it keeps. Every rule is a switch ([`rules::Rule`]). [`explore`] takes all steps in all orders, lets the power fail
//! everywhere in every way that the device allows, recovers, and asks the contract whether what is there may be
//! there. With all rules kept nothing is found; with any one switched off something is, and the shortest way to it is
//! told in words.
//!
//! | module | section of the design |
//! |---|---|
//! | [`device`] | the fault model: what a flush covers, what a power cut leaves |
//! | [`volume`] | what is stored: tree, batch, record, superblock |
//! | [`engine`] | a batch has two lives (3.1), space (3.6) |
//! | [`journal`] | force (3.2), the ring, admission (R17), what "stuck" means |
//! | [`data`] | images, destage, data outside of the record (3.3, 3.4) |
//! | [`checkpoint`] | checkpoints beside the logging (3.5) |
//! | [`namespace`] | names, truncation, shared blocks, transactions |
//! | [`forest`], [`trees`] | snapshots, heads, deletion, rollback (docs/snapshots.md) |
//! | [`recovery`] | recovery (3.7) |
//! | [`replica`] | a model of its own: the protocol of replication (docs/replication-format.md) |
//! | [`contract`] | C1 - C4, C7, C8, C10 - C12 as a judge, and that a recovery of a recovery shows the same |
//!
//! What is smaller than the real thing, and why nothing is lost by it: completions of writes are no steps of their
//! own (see [`device`]); a tree is one node, so that its checksum stands for those of all; a data write that fails is
//! a flush that fails, because a group learns of both when it waits. A page's content is a number that no other write
//! has, so that stale and foreign bytes are told apart from right ones.
//!
//! The model depends on no crate of the product. When the engine departs from the design, the model changes first.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod contract;
pub mod data;
pub mod device;
pub mod engine;
pub mod explore;
pub mod forest;
pub mod journal;
pub mod model;
pub mod namespace;
pub mod recovery;
pub mod replica;
pub mod rules;
pub mod scope;
pub mod scopes;
pub mod trees;
pub mod volume;
