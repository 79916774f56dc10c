//! Which of the two bitmaps of a group counts, where one of them is torn or has rotten.
//!
//! *Torn*: a cut leaves any part of the slot that a checkpoint was writing. That is no damage: the volume opens, shows
//! what it held, and so do the next recoveries, whose superblocks come to have the generation that the torn slot
//! claims. The volume has two groups, and nobody changes the second one, so that only recovery can write that slot
//! again.
//!
//! *Stale*: the slot that counts rots, and the one before it frees as many blocks, but others. The volume is refused,
//! and a repair makes it whole; if it opens, it is filled, and nothing may get lost by that. Rot of the slot that does
//! not count hurts nobody, as long as its header tells which it is.

use crate::crash::durable;
use crate::device::{Disk, Rot, SECTOR_BYTES, SimDevice};
use crate::driver::{self, SimClock, Told, step};
use crate::lab::{Start, Tally, complaints, guarded, prepare, recover};
use crate::operation::from_text;
use crate::oracle::{Model, PAGE, View, difference};
use crate::random::derive;
use crate::view;
use std::sync::{Arc, OnceLock};
use syncline_check::{CheckOptions, check};
use syncline_device::Device;
use syncline_format::bitmap::{self, Bits};
use syncline_format::header::HEADER_BYTES;
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, Generation, GroupNo};

/// More than one group has.
const TWO_GROUPS_BLOCKS: u64 = 32_768 + 1024;
const ONE_GROUP_BLOCKS: u64 = 1200;
const JOURNAL_BLOCKS: u64 = 64;
/// Checkpoints until two bitmaps in a row free as much, at most.
const ROUNDS_MAX: u64 = 60;
/// Recoveries behind a torn slot.
const RECOVERIES: u64 = 4;
const EIO: i32 = 5;
/// Workloads.
pub const COUNT: u64 = 8;

/// One workload, from a number below [`COUNT`].
pub fn run(number: u64, seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let done = if number < 2 { torn(number, seed, tally) } else { stale(number, seed, tally) };
        if let Err(what) = done {
            tally.violation(what);
        }
    })
}

/// A bitmap slot that is stored.
struct Slot {
    block: u64,
    generation: Generation,
    bits: Box<Bits>,
}

impl Slot {
    fn free(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_zeros())).sum()
    }
}

/// The newest superblock of a volume that has one.
pub(crate) fn superblock(disk: &Disk) -> Superblock {
    let decoded = SUPERBLOCK_SLOTS
        .iter()
        .filter_map(|at| Superblock::decode(&disk.get(at.0)?[..], *at, disk.blocks()).ok());
    decoded.max_by_key(Superblock::rank).expect("the volume has a superblock")
}

/// The slots of a group, those that hold a bitmap, the newest first.
fn slots(disk: &Disk, superblock: &Superblock, group: GroupNo) -> Vec<Slot> {
    let slot = |slot: u8| {
        let at = superblock.layout.bitmap_slot(group, slot);
        let decoded = bitmap::decode(&disk.get(at.0)?[..], group, at, superblock.volume_id());
        decoded.ok().map(|(generation, bits)| Slot { block: at.0, generation, bits })
    };
    let mut slots: Vec<Slot> = (0..2).filter_map(slot).collect();
    slots.sort_by_key(|slot| std::cmp::Reverse(slot.generation));
    slots
}

fn two_groups() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let setup = from_text("mkdir:d;creat:d/a;write:d/a:0:50000:3;sync").expect("operations");
        prepare(TWO_GROUPS_BLOCKS, JOURNAL_BLOCKS, &setup, 51)
    })
}

/// A checkpoint was cut off while it wrote the slot of a group that does not count: each part of that which can be
/// there.
fn torn(number: u64, seed: u64, tally: &mut Tally) -> Result<(), String> {
    let Start { disk, view, .. } = two_groups();
    let group = GroupNo(number as u32 % 2);
    let superblock = superblock(disk);
    let current = slots(disk, &superblock, group).remove(0);
    let place = (0..2).map(|slot| superblock.layout.bitmap_slot(group, slot));
    let place = place.into_iter().find(|at| at.0 != current.block).expect("two slots");
    // What the cut has taken back: blocks in use at the end of the group.
    let mut bits = current.bits.clone();
    bits[400] = u64::MAX;
    let generation = Generation(superblock.generation.0 + 1);
    let new = bitmap::encode(&bits, group, place, generation, superblock.volume_id());
    let sectors = BLOCK_BYTES / SECTOR_BYTES;
    for written in 1..1u64 << sectors {
        let is_edge = written.count_ones() as usize >= sectors - 1 || written.count_ones() == 1;
        let is_prefix = (written + 1).is_power_of_two();
        if !is_edge && !is_prefix {
            continue;
        }
        let mut page = disk.get(place.0).map_or([0; BLOCK_BYTES], |page| **page);
        for sector in (0..sectors).filter(|sector| written >> sector & 1 != 0) {
            let bytes = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
            page[bytes.clone()].copy_from_slice(&new[bytes]);
        }
        let mut cut = disk.clone();
        cut.put(place.0, Arc::new(page));
        for recovery in 0..RECOVERIES {
            tally.states += 1;
            let device = SimDevice::new(cut, derive(seed, written << 8 | recovery));
            let at = format!("sectors {written:b} of group {}'s other bitmap are written", group.0);
            let shown = recover(&device, derive(seed, recovery))
                .map_err(|what| format!("recovery {recovery}, {what} [{at}]"))?;
            same(view, &shown).map_err(|what| format!("recovery {recovery}: {what} [{at}]"))?;
            cut = durable(&device);
            let complaint = complaints(&*SimDevice::new(cut.clone(), 0));
            tally.checks += 1;
            if let Some(complaint) = complaint.first() {
                return Err(format!("check behind recovery {recovery}: {complaint} [{at}]"));
            }
        }
    }
    Ok(())
}

/// How the slot that counts rots.
fn rots() -> [(&'static str, Rot); 5] {
    let bit = |byte: usize| Rot::Flipped(8 * byte as u64 + 1);
    [
        ("cannot be read", Rot::Unreadable),
        ("has a bit of its magic changed", bit(1)),
        // Of the generation, which then is above the superblock's, or older.
        ("has a bit of its checksum changed", bit(9)),
        ("has a bit of its volume changed", bit(HEADER_BYTES - 3)),
        ("has a bit of its bits changed", bit(BLOCK_BYTES / 2)),
    ]
}

/// A volume whose bitmap of now frees as much as the one before it, and other blocks.
fn as_free_as_before(number: u64, seed: u64) -> Result<(Disk, View), String> {
    let device = SimDevice::new(Disk::new(ONE_GROUP_BLOCKS), derive(seed, 1));
    driver::format(1, &*device, JOURNAL_BLOCKS, derive(seed, 2)).map_err(|error| error.to_string())?;
    let clock = SimClock::new();
    let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 3))
        .map_err(|error| error.to_string())?;
    let mut model = Model::new(&view::view(&fs).map_err(|error| error.to_string())?);
    let mut work = |text: &str| -> Result<(), String> {
        for op in from_text(text).expect("operations") {
            match step(&fs, &clock, &mut model, &op) {
                Ok(Told::Done) => {}
                other => return Err(format!("{op} answers {other:?}")),
            }
        }
        Ok(())
    };
    work("creat:a;write:a:0:200000:1;creat:b;write:b:0:90000:2;sync")?;
    let mut found = 0;
    for round in 0..ROUNDS_MAX {
        let at = round * 7 % 20 * PAGE;
        work(&format!("write:a:{at}:32768:{};maintain:6000;sync;checkpoint", 3 + round % 200))?;
        let disk = durable(&device);
        let superblock = superblock(&disk);
        let slots = slots(&disk, &superblock, GroupNo(0));
        let [newest, before] = &slots[..] else { continue };
        if newest.generation <= superblock.generation
            && newest.free() == before.free()
            && newest.bits != before.bits
        {
            found += 1;
            if found > number {
                let held = recover(&SimDevice::new(disk.clone(), 5), derive(seed, 6))?;
                return Ok((disk, held));
            }
        }
    }
    Err(format!("in {ROUNDS_MAX} checkpoints only {found} bitmaps free as much as the one before"))
}

fn stale(number: u64, seed: u64, tally: &mut Tally) -> Result<(), String> {
    let (disk, held) = as_free_as_before(number - 2, seed)?;
    let superblock = superblock(&disk);
    let slots = slots(&disk, &superblock, GroupNo(0));
    for (place, slot) in slots.iter().enumerate() {
        for (what, rot) in rots() {
            tally.states += 1;
            let device = SimDevice::new(disk.clone(), derive(seed, 7));
            device.rot(slot.block, rot);
            let is_told = |error: &str| format!("the bitmap of rank {place} {what}: {error}");
            let other_is_newest = place == 1 && slots[0].generation == superblock.generation;
            rotten(&device, &held, other_is_newest, seed, tally).map_err(|error| is_told(&error))?;
        }
    }
    Ok(())
}

/// Opens the volume and fills it, or has it repaired. `must_open`: the slot does not count for certain.
fn rotten(
    device: &Arc<SimDevice>,
    held: &View,
    must_open: bool,
    seed: u64,
    tally: &mut Tally,
) -> Result<(), String> {
    let clock = SimClock::behind(held);
    let open = |salt| driver::open(Arc::clone(device) as Arc<dyn Device>, &clock, derive(seed, salt));
    let fs = match open(8) {
        Ok(fs) => fs,
        Err(error) if error.errno() == EIO && !must_open => {
            tally.refused += 1;
            let repair = CheckOptions::default().repair(true);
            let report = check(&**device, repair).map_err(|error| format!("repair: {error}"))?;
            if !report.is_sound() {
                return Err(format!("a repair leaves {:?}", report.findings));
            }
            open(9).map_err(|error| format!("repaired: {error}"))?
        }
        Err(error) => return Err(format!("the volume is refused: {error}")),
    };
    let mut model = Model::new(held);
    shows(&fs, &model)?;
    for number in 0..ONE_GROUP_BLOCKS {
        let text = format!("creat:new-{number};write:new-{number}:0:40960:{};sync;checkpoint", number % 250);
        for op in from_text(&text).expect("operations") {
            match step(&fs, &clock, &mut model, &op) {
                Ok(Told::Done) => {}
                Ok(Told::NoSpace) => return filled(device, fs, &model, seed),
                other => return Err(format!("{op} answers {other:?} ({:?})", fs.failure())),
            }
        }
    }
    Err("the volume takes more than it has room for".to_owned())
}

fn filled(device: &SimDevice, fs: Arc<syncline_fs::Fs>, model: &Model, seed: u64) -> Result<(), String> {
    shows(&fs, model)?;
    fs.close().map_err(|error| format!("a close: {error}"))?;
    drop(fs);
    let disk = device.settled();
    if let Some(complaint) = complaints(&*SimDevice::new(disk.clone(), 0)).first() {
        return Err(format!("check of the full volume: {complaint}"));
    }
    let shown = recover(&SimDevice::new(disk, derive(seed, 10)), derive(seed, 11))?;
    compare(&model.live(), &shown)
}

fn shows(fs: &syncline_fs::Fs, model: &Model) -> Result<(), String> {
    let shown = view::view(fs).map_err(|error| format!("the volume cannot be read: {error}"))?;
    compare(&model.live(), &shown)
}

/// Names and content; times are nobody's matter here.
fn compare(want: &View, got: &View) -> Result<(), String> {
    match want.names == got.names && want.contents == got.contents {
        true => Ok(()),
        false => Err(format!("the volume shows something else: {}", difference(want, got))),
    }
}

fn same(want: &View, got: &View) -> Result<(), String> {
    match want == got {
        true => Ok(()),
        false => Err(format!("the volume shows something else: {}", difference(want, got))),
    }
}
