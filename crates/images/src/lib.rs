//! Volume images as test material: golden ones, which every later version has to read, and hostile ones, which no
//! version may panic, hang or run out of memory on.
//!
//! - [`golden`]: recipes of small volumes in the states that matter. Their packed images lie in `tests/golden`, each
//!   beside a manifest of what a reader must find on it.
//! - [`hostile`]: the bodies of the fuzz targets in `fuzz/`. They are plain functions of bytes, so that the tests of
//!   this crate replay the kept inputs, and mutations of them, without a fuzzer.
//!
//! Nothing that ships depends on this crate.

pub mod allocation;
pub mod golden;
pub mod hostile;
pub mod manifest;
pub mod packed;
pub mod session;

use std::path::PathBuf;

/// The root of the source tree.
pub fn source_root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
