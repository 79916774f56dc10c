//! Space that is lost without being used: what failed or was taken back must not hold any.
//!
//! After a workload on a nearly full volume everything is brought to its place; then the running volume has to offer
//! the same space that it offers after it was closed and opened again.

use crate::device::SimDevice;
use crate::driver::{self, SimClock, Told};
use crate::lab::{Start, Tally, guarded};
use crate::operation::{Op, from_text};
use crate::oracle::Model;
use crate::random::derive;
use std::sync::Arc;
use syncline_device::Device;

/// After this nothing is dirty, logged or pinned.
const SETTLE: &str = "sync;maintain:40000;checkpoint;maintain:40000;checkpoint;checkpoint";
/// Writes that find no space, to bring out what each of them leaves behind.
const REFUSED: &str =
    "creat:greedy;falloc:greedy:0:8000000;write:greedy:0:900000:1;falloc:greedy:0:8000000;unlink:greedy";

/// Runs a workload and compares.
pub fn run(start: &Start, ops: &[Op], seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        if let Err(what) = compare(start, ops, seed, tally) {
            tally.violation(what);
        }
    })
}

fn compare(start: &Start, ops: &[Op], seed: u64, tally: &mut Tally) -> Result<(), String> {
    let device = SimDevice::new(start.disk.clone(), derive(seed, 1));
    let open = |salt: u64| {
        let device = Arc::clone(&device) as Arc<dyn Device>;
        driver::open(device, &SimClock::new(), derive(seed, salt))
            .map_err(|error| format!("the volume does not open: {error}"))
    };
    let fs = open(2)?;
    let clock = SimClock::new();
    let mut model = Model::new(&start.view);
    let refused = from_text(REFUSED).expect("operations of this list");
    let settle = from_text(SETTLE).expect("operations of this list");
    for op in ops.iter().chain(&refused).chain(&settle) {
        match driver::step(&fs, &clock, &mut model, op) {
            Ok(Told::Failed(errno)) => {
                return Err(format!("{op} fails with errno {errno} on a sound device"));
            }
            Ok(told) => tally.count(op, told),
            Err(wrong) => return Err(format!("{op} answers {:?}, want {:?}", wrong.got, wrong.want)),
        }
    }
    let running = fs.statfs();
    fs.close().map_err(|error| format!("the volume does not close: {error}"))?;
    drop(fs);
    let again = open(3)?.statfs();
    tally.states += 1;
    let space = |space: &syncline_fs::VolumeSpace| (space.blocks_free, space.blocks_available);
    match space(&running) == space(&again) {
        true => Ok(()),
        false => Err(format!(
            "space leaks: free and available are {:?} blocks in the running volume, {:?} after it was opened again",
            space(&running),
            space(&again)
        )),
    }
}
