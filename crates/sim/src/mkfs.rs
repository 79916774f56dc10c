//! Crashes of `mkfs`.
//!
//! `mkfs` replaces a volume that was there. After a crash during it there is the old volume untouched, or no volume, or
//! the new one; once anything but the superblocks was written, the old one is not there any more. When it has ended,
//! there is the new one.

use crate::ace;
use crate::crash::{Builder, Effort, Lie, states};
use crate::device::{Disk, SimDevice};
use crate::driver;
use crate::lab::{Tally, complaints, guarded, recover};
use crate::oracle::View;
use crate::random::{Random, derive};
use syncline_format::BlockNo;
use syncline_format::layout::JOURNAL_START;
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};

/// What a crash state of `mkfs` shows.
enum Shown {
    Volume(View),
    /// There is no superblock.
    Nothing,
    Damage(String),
}

fn show(disk: &Disk, seed: u64) -> Shown {
    let names_a_volume = |block: &BlockNo| {
        let page = disk.get(block.0);
        page.is_some_and(|page| Superblock::decode(&page[..], *block, disk.blocks()).is_ok())
    };
    if !SUPERBLOCK_SLOTS.iter().any(names_a_volume) {
        return Shown::Nothing;
    }
    match recover(&SimDevice::new(disk.clone(), derive(seed, 1)), derive(seed, 2)) {
        Ok(view) => Shown::Volume(view),
        Err(what) => Shown::Damage(what),
    }
}

/// Whether anything but superblocks differs.
fn is_begun(disk: &Disk, before: &Disk) -> bool {
    let backups = disk.blocks() - 2;
    (JOURNAL_START.0..backups).any(|block| {
        let (new, old) = (disk.get(block), before.get(block));
        new.map(|page| &page[..]) != old.map(|page| &page[..])
    })
}

/// Formats a device that holds a volume, and crashes at each write.
pub fn run(seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let start = ace::start();
        let device = SimDevice::new(start.disk.clone(), derive(seed, 3));
        if let Err(error) = driver::format(2, &*device, ace::JOURNAL_BLOCKS, derive(seed, 4)) {
            tally.violation(format!("mkfs fails on a sound device: {error}"));
            return;
        }
        device.acknowledge(1);
        let (base, trace) = device.recorded();
        let Shown::Volume(empty) = show(&device.settled(), seed) else {
            tally.violation("there is no volume after mkfs".to_owned());
            return;
        };
        let mut random = Random::new(derive(seed, 5));
        let all = states(&trace, 0, Effort { subsets: 4, torn: 4 }, Lie::None, &mut random);
        let mut builder = Builder::new(base, &trace, Lie::None);
        for state in &all {
            let disk = builder.build(state);
            tally.states += 1;
            let wrong = match show(&disk, seed) {
                Shown::Volume(view) if view == empty => complaint(&disk),
                _ if state.acknowledged > 0 => Some("mkfs has ended, and its volume is not there".to_owned()),
                Shown::Nothing => None,
                _ if is_begun(&disk, &start.disk) => {
                    Some("a superblock is there, and what it names is not".to_owned())
                }
                Shown::Volume(view) if view != start.view => {
                    Some("there is neither the old volume nor the new one".to_owned())
                }
                // The newer of the old superblocks was wiped, the older was not.
                Shown::Damage(what) if !what.contains("superblock") => Some(what),
                Shown::Volume(_) | Shown::Damage(_) => None,
            };
            if let Some(what) = wrong {
                let (event, survivors) = (state.event, &state.survivors);
                tally.violation(format!(
                    "{what} [crash of mkfs behind event {event} with survivors {survivors:?}]"
                ));
                return;
            }
        }
    })
}

fn complaint(disk: &Disk) -> Option<String> {
    let complaints = complaints(&*SimDevice::new(disk.clone(), 0));
    complaints.first().map(|what| format!("check of the new volume: {what}"))
}
