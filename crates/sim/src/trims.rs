//! Trims: what is discarded reads as zeros or garbage, so whoever refers to it, now or after a crash, is found.
//!
//! Every other workload is one of `reuse`: files that get and lose their blocks on a volume with room for one and a
//! half, with a trim behind one of three operations. So trims come while blocks are freed but pinned, written but in
//! no batch, named by records whose superblock is to come. The others are those of `between` that interrupt a trim at
//! each of its discards, with writes, syncs and checkpoints.
//!
//! Behind each trim of the former kind either slot of the superblock is lost in turn. The other one and the log have
//! to lead to everything that was durable: a trim must not make the loss of one block a greater loss than it was.

use crate::between;
use crate::device::SimDevice;
use crate::driver::{self, SimClock, Told};
use crate::lab::{Start, Tally, examine, guarded, recover};
use crate::operation::Op;
use crate::oracle::Model;
use crate::random::{Random, derive};
use crate::reuse;
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::BLOCK_BYTES;
use syncline_format::superblock::SUPERBLOCK_SLOTS;

/// One of so many workloads of `reuse`.
const REUSE_EVERY: u64 = 53;

/// One run from a seed.
pub fn run(number: u64, seed: u64) -> Tally {
    if number % 2 == 1 {
        return between::run_trims(seed);
    }
    guarded(|tally| {
        let work = reuse::workload(number / 2 * REUSE_EVERY % reuse::COUNT, seed);
        let start = reuse::start(work.free).expect("the workloads name volumes that there are");
        let mut random = Random::new(derive(seed, 7));
        let mut ops = Vec::new();
        for op in work.ops {
            ops.push(op);
            if random.one_in(3) {
                ops.push(Op::Trim);
            }
        }
        lose_slots(start, &ops, seed, tally);
        tally.add(examine(start, &ops, seed, work.depth));
    })
}

fn lose_slots(start: &Start, ops: &[Op], seed: u64, tally: &mut Tally) {
    let device = SimDevice::new(start.disk.clone(), derive(seed, 11));
    let clock = SimClock::behind(&start.view);
    let opened = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 12));
    let fs = match opened {
        Ok(fs) => fs,
        Err(error) => return tally.violation(format!("the volume does not open: {error}")),
    };
    let mut model = Model::new(&start.view);
    for op in ops {
        match driver::step(&fs, &clock, &mut model, op) {
            Ok(Told::Failed(errno)) => {
                return tally.violation(format!("{op} fails with errno {errno} on a sound device"));
            }
            Ok(_) => {}
            Err(wrong) => {
                return tally.violation(format!("{op} answers {:?}, want {:?}", wrong.got, wrong.want));
            }
        }
        if *op != Op::Trim {
            continue;
        }
        for slot in SUPERBLOCK_SLOTS {
            let mut disk = device.settled();
            disk.put(slot.0, Arc::new([0; BLOCK_BYTES]));
            tally.states += 1;
            let judged =
                recover(&SimDevice::new(disk, derive(seed, 13)), derive(seed, 14)).and_then(|view| {
                    model.judge(&view, model.syncs()).map_err(|violation| format!("{violation:?}"))
                });
            if let Err(what) = judged {
                tally.violation(format!("behind a trim, without the superblock of block {}: {what}", slot.0));
            }
        }
    }
}
