//! Workloads on the device that forgets what was not flushed (`Volatile`): what is acknowledged above it has to be
//! durable on the device below.

use crate::crash::Lie;
use crate::device::SimDevice;
use crate::driver::{self, SimClock, Told};
use crate::lab::{Depth, Recorded, Start, Tally, guarded, judge_states};
use crate::operation::Op;
use crate::oracle::Model;
use crate::random::derive;
use std::sync::Arc;
use syncline_device::{Device, Volatile};

const DEPTH: Depth = Depth { states_max: 200, check_every: 64, recovery_every: 1 << 40, ..Depth::FULL };

/// Runs a workload above, and judges the crash states below.
pub fn run(start: &Start, ops: &[Op], seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let below = SimDevice::new(start.disk.clone(), derive(seed, 1));
        let above: Arc<dyn Device> = Arc::new(Volatile::new(Arc::clone(&below) as Arc<dyn Device>));
        let clock = SimClock::new();
        let fs = match driver::open(above, &clock, derive(seed, 2)) {
            Ok(fs) => fs,
            Err(error) => return tally.violation(format!("the volume does not open: {error}")),
        };
        let opened = below.position();
        let mut model = Model::new(&start.view);
        for op in ops {
            match driver::step(&fs, &clock, &mut model, op) {
                Ok(told @ (Told::Done | Told::Refused(_))) => tally.count(op, told),
                told => return tally.violation(format!("{op} answers {told:?} on a sound device")),
            }
            below.acknowledge(model.syncs());
        }
        let (base, trace) = below.recorded();
        judge_states(&Recorded { base, trace, model, opened }, seed, DEPTH, Lie::None, tally);
    })
}
