//! Crashes of an upgrade from version 1 of the format to version 2.
//!
//! Whatever the upgrade's writes come to, there is a volume of version 1 or one of version 2 with the same content, and
//! the offline check finds nothing wrong with it. Behind the end there is one of version 2, also where the newest
//! superblock is lost.

use crate::ace;
use crate::crash::{Builder, Effort, Lie, states};
use crate::device::{Disk, SimDevice};
use crate::driver::{SimClock, SimEntropy};
use crate::lab::{Tally, complaints, guarded, recover};
use crate::oracle::{View, difference};
use crate::random::{Random, derive};
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_fs::{Clock, Error, Fs, FsOptions};

/// The superblocks that can be read.
fn superblocks(disk: &Disk) -> impl Iterator<Item = Superblock> {
    SUPERBLOCK_SLOTS.into_iter().filter_map(|block| {
        let page = disk.get(block.0)?;
        Superblock::decode(&page[..], block, disk.blocks()).ok()
    })
}

/// Whether the superblock that counts is of version 2.
fn is_upgraded(disk: &Disk) -> bool {
    superblocks(disk).max_by_key(Superblock::rank).is_some_and(|newest| newest.trees.is_some())
}

fn upgrade(device: &Arc<SimDevice>, seed: u64) -> Result<bool, Error> {
    let device = Arc::clone(device) as Arc<dyn Device>;
    let clock = SimClock::new() as Arc<dyn Clock>;
    let options = FsOptions::default().memory_bytes_max(8 << 20);
    Fs::upgrade(&device, &options, &clock, &SimEntropy::new(seed))
}

/// Upgrades a volume, and crashes at each write.
pub fn run(seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let start = ace::start();
        let device = SimDevice::new(start.disk.clone(), derive(seed, 1));
        match upgrade(&device, derive(seed, 2)) {
            Ok(true) => {}
            other => return tally.violation(format!("an upgrade of a sound volume comes to {other:?}")),
        }
        device.acknowledge(1);
        if !superblocks(&device.settled()).all(|superblock| superblock.trees.is_some()) {
            return tally.violation("a superblock of version 1 is left".to_owned());
        }
        let (base, trace) = device.recorded();
        let mut random = Random::new(derive(seed, 3));
        let all = states(&trace, 0, Effort { subsets: 4, torn: 2 }, Lie::None, &mut random);
        let mut builder = Builder::new(base, &trace, Lie::None);
        for state in &all {
            let disk = builder.build(state);
            tally.states += 1;
            let done = state.acknowledged > 0;
            if let Some(what) = fault(&disk, &start.view, done, derive(seed, 4)) {
                let (event, survivors) = (state.event, &state.survivors);
                return tally.violation(format!(
                    "{what} [crash of an upgrade behind event {event} with survivors {survivors:?}]"
                ));
            }
        }
    })
}

/// What is wrong with what a crash has left.
fn fault(disk: &Disk, wanted: &View, done: bool, seed: u64) -> Option<String> {
    if done && !is_upgraded(disk) {
        return Some("the upgrade has ended, and the volume has version 1".to_owned());
    }
    let device = SimDevice::new(disk.clone(), derive(seed, 5));
    match recover(&device, derive(seed, 6)) {
        Ok(view) if view == *wanted => {}
        Ok(view) => return Some(format!("the content differs: {}", difference(wanted, &view))),
        Err(what) => return Some(what),
    }
    // Once more, as people do.
    let again = SimDevice::new(disk.clone(), derive(seed, 7));
    let upgraded = match upgrade(&again, derive(seed, 8)) {
        Ok(upgraded) => upgraded,
        Err(error) => return Some(format!("a second upgrade fails: {error}")),
    };
    if upgraded == is_upgraded(disk) {
        return Some(format!("a second upgrade says {upgraded}"));
    }
    let settled = again.settled();
    if !superblocks(&settled).all(|superblock| superblock.trees.is_some()) {
        return Some("a second upgrade leaves a superblock of version 1".to_owned());
    }
    complaints(&*SimDevice::new(settled, 0)).into_iter().next()
}
