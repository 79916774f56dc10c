//! Inputs that mean harm: structures and whole volumes that are damaged on purpose and sealed again, so that no
//! checksum stops them at the door.
//!
//! Every target is a function of bytes that returns for whatever it is given; a panic, a hang or memory beyond
//! [`MEMORY_BYTES_MAX`] is a bug of the product. The fuzzers in `fuzz/` call these functions, and so do the tests of
//! this crate, with the inputs kept in `fuzz/seeds` and mutations of them.

mod decoders;
mod exercise;
mod image;
mod input;
mod journal;
mod patch;
pub mod seal;
pub mod seeded;
pub mod semantics;
mod steps;

use crate::allocation;

/// Most memory that one input may take at a time.
pub const MEMORY_BYTES_MAX: usize = 192 << 20;

/// A fuzz target.
pub struct Target {
    /// Its name: of the fuzzer and of the directory of its inputs.
    pub name: &'static str,
    run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "superblock", run: decoders::superblock },
    Target { name: "node", run: decoders::node },
    Target { name: "bitmap", run: decoders::bitmap },
    Target { name: "item", run: decoders::item },
    Target { name: "record", run: decoders::record },
    Target { name: "journal", run: journal::journal },
    Target { name: "image", run: image::image },
    Target { name: "semantics", run: semantics::semantics },
    Target { name: "trees", run: image::trees },
    Target { name: "forest", run: semantics::forest },
];

impl Target {
    /// Runs one input. Panics if memory grew beyond the bound, as far as [`allocation::Counting`] counts it.
    pub fn run(&self, input: &[u8]) {
        let before = allocation::live_bytes();
        allocation::forget_peak();
        (self.run)(input);
        let grown = allocation::peak_bytes().saturating_sub(before);
        assert!(grown <= MEMORY_BYTES_MAX, "{}: {grown} bytes of memory at a time", self.name);
    }
}

/// Runs an input of the target of this name.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    target.unwrap_or_else(|| panic!("there is no target {name}")).run(input);
}
