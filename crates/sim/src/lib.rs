//! The crash laboratory: the engine, unchanged, on a simulated device; every state that a crash could leave is
//! generated, recovered and judged.
//!
//! - `device`, `crash`: the device with its fault model, and the crash states of a recorded run;
//! - `operation`, `oracle`, `history`, `content`: workloads, and what the contract allows after them, without any
//!   product crate;
//! - `driver`, `transact`, `lab`: runs operations on engine and model, and judges the crash states of a run;
//! - `ace`, `workload`, `errors`, `controls`: which workloads, device errors and planted faults;
//! - `actors`, `between`, `frozen`, `killed`, `leaks`, `mkfs`, `pieces`, `polled`, `pressure`, `reuse`, `shapes`,
//!   `trims`, `volatile`: workloads that need something of their own around them;
//! - `storm`: real threads on few files, judged by whether some order of their acts explains what is there; `vast`: two
//!   of them on a file that is truncated in several batches; `beside`: threads beside snapshots;
//! - `snapshots`: workloads in which trees come and go; `emptied`: full volumes that deletions of snapshots empty;
//! - `damage`: rot that is met while others work; `carried`: page images that recovery cannot bring home because of it;
//!   `bitmaps`: slots of bitmaps that a cut tears, and that rot;
//! - `mounted`: the workloads of `ace` on a real mount whose daemon is killed;
//! - `objects`, `replicas`, `resumed`, `fencing`, `lazy`: an object store with a bad network, what is shipped to it
//!   judged as crash states, in one session and in several, writers that take over from each other, and a volume that
//!   is used while it is fetched;
//! - `faults`: mistakes of the engine that the laboratory has to find; `watchdog`: what hangs is found as well;
//! - `shrink`, `campaign`: smallest failing workload, many workloads on all cores.
//!
//! Nothing that ships depends on it. Everything is determined by a seed.
#![deny(unsafe_code)]

pub mod ace;
pub mod actors;
pub mod beside;
pub mod between;
pub mod bitmaps;
pub mod campaign;
pub mod carried;
pub mod content;
pub mod controls;
pub mod crash;
pub mod damage;
pub mod device;
pub mod driver;
pub mod emptied;
pub mod errors;
pub mod faults;
pub mod fencing;
pub mod frozen;
pub mod history;
pub mod keepers;
pub mod killed;
pub mod lab;
pub mod lazy;
pub mod leaks;
pub mod mkfs;
pub mod mounted;
pub mod objects;
pub mod operation;
pub mod oracle;
pub mod pieces;
pub mod polled;
pub mod pressure;
pub mod random;
pub mod replicas;
pub mod resumed;
pub mod retention;
pub mod reuse;
pub mod shapes;
pub mod shrink;
pub mod snapshots;
pub mod storm;
pub mod times;
pub mod transact;
pub mod trims;
pub mod upgrade;
pub mod usage;
pub mod vast;
pub mod view;
pub mod volatile;
pub mod watchdog;
pub mod workload;
