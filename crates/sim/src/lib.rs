//! The crash laboratory: the engine, unchanged, on a simulated device; every state that a crash could leave is generated,
//! recovered and judged.
//!
//! - `device`, `crash`: the device with its fault model, and the crash states of a recorded run;
//! - `operation`, `oracle`, `history`: workloads, and what the contract allows after them, without any product crate;
//! - `driver`, `lab`: runs operations on engine and model, and judges the crash states of a run;
//! - `ace`, `workload`, `errors`, `controls`: which workloads, device errors and planted faults;
//! - `shrink`, `campaign`: smallest failing workload, many workloads on all cores.
//!
//! Nothing that ships depends on it. Everything is determined by a seed.
#![forbid(unsafe_code)]

pub mod ace;
pub mod campaign;
pub mod controls;
pub mod crash;
pub mod device;
pub mod driver;
pub mod errors;
pub mod history;
pub mod lab;
pub mod operation;
pub mod oracle;
pub mod random;
pub mod shrink;
pub mod workload;
