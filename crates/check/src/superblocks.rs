//! Reads the two superblock slots and the backup pair, and chooses as a mount would.

use crate::report::Findings;
use crate::{CheckError, Code};
use syncline_device::Device;
use syncline_format::layout::{BACKUP_BLOCKS, VOLUME_BLOCKS_MIN};
use syncline_format::superblock::{SUPERBLOCK_MAGIC, SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, BlockNo, FormatError};

/// The superblock that counts, and where it is.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) superblock: Superblock,
    /// 0 or 1.
    pub(crate) slot: usize,
}

/// One slot as read.
enum Slot {
    Valid(Box<Superblock>),
    Zero,
    /// Whole, but of another version or with unknown features.
    Foreign(FormatError),
    Damaged(FormatError),
    Unreadable(String),
}

/// Chooses the superblock; `None` when there is none, which is then among the findings.
///
/// Errors: the device holds nothing that looks like a volume, or one of another version.
pub(crate) fn choose(device: &dyn Device, findings: &mut Findings) -> Result<Option<Chosen>, CheckError> {
    if device.blocks() < VOLUME_BLOCKS_MIN {
        return Err(CheckError::TooSmall { blocks: device.blocks() });
    }
    let slots = SUPERBLOCK_SLOTS.map(|block| read_slot(device, block));
    for slot in &slots {
        if let Slot::Foreign(error) = slot {
            return Err(CheckError::Unsupported(error.clone()));
        }
    }
    let chosen = match &slots {
        [Slot::Valid(a), Slot::Valid(b)] => {
            compare(a, b, findings);
            let slot = usize::from(b.rank() > a.rank());
            let winner = if slot == 0 { a } else { b };
            Chosen { superblock: (**winner).clone(), slot }
        }
        [Slot::Valid(a), other] => {
            report_other(other, a, SUPERBLOCK_SLOTS[1], findings);
            Chosen { superblock: (**a).clone(), slot: 0 }
        }
        [other, Slot::Valid(b)] => {
            report_other(other, b, SUPERBLOCK_SLOTS[0], findings);
            Chosen { superblock: (**b).clone(), slot: 1 }
        }
        _ => return none_valid(device, &slots, findings),
    };
    check_backups(device, &chosen.superblock, findings);
    if chosen.superblock.counters().iter().any(|(field, value)| !field.holds(*value)) {
        findings.at(Code::SuperblockExhausted, SUPERBLOCK_SLOTS[chosen.slot], "a counter is impossibly high");
        return Ok(None);
    }
    Ok(Some(chosen))
}

fn read_slot(device: &dyn Device, block: BlockNo) -> Slot {
    let mut bytes = syncline_device::Buffer::zeroed(1);
    if let Err(error) = device.read(block, &mut bytes) {
        return Slot::Unreadable(error.to_string());
    }
    if bytes.iter().all(|&b| b == 0) {
        return Slot::Zero;
    }
    match Superblock::decode(&bytes, block, device.blocks()) {
        Ok(superblock) => Slot::Valid(Box::new(superblock)),
        Err(error @ (FormatError::Version { .. } | FormatError::Features { .. })) => Slot::Foreign(error),
        Err(error) => Slot::Damaged(error),
    }
}

/// Two valid slots: they must be two generations of one volume.
fn compare(a: &Superblock, b: &Superblock, findings: &mut Findings) {
    let older = if a.generation > b.generation { SUPERBLOCK_SLOTS[1] } else { SUPERBLOCK_SLOTS[0] };
    if a.uuid != b.uuid || a.layout != b.layout {
        findings.at(
            Code::SuperblockDisagrees,
            older,
            "the older slot has another UUID or geometry than the newer one",
        );
    } else if a.generation == b.generation && !is_cut_of(a, b) && !is_cut_of(b, a) {
        let message = format!("both slots have generation {}", a.generation);
        findings.at(Code::SuperblockTwins, SUPERBLOCK_SLOTS[1], message);
    }
}

/// Whether `cut` is what a recovery writes to say where it cut the log that `old` describes: the same but for that.
fn is_cut_of(cut: &Superblock, old: &Superblock) -> bool {
    cut.cut.is_some() && old.cut.is_none() && *old == Superblock { cut: None, ..cut.clone() }
}

fn report_other(other: &Slot, winner: &Superblock, at: BlockNo, findings: &mut Findings) {
    match other {
        Slot::Zero if winner.generation.0 <= 1 => {}
        Slot::Zero => findings.at(
            Code::SuperblockSlot,
            at,
            format!("the slot is empty although generation {} exists", winner.generation),
        ),
        Slot::Damaged(error) => findings.at(Code::SuperblockSlot, at, error.to_string()),
        Slot::Unreadable(why) => findings.at(Code::SuperblockSlot, at, why.clone()),
        Slot::Valid(_) | Slot::Foreign(_) => {}
    }
}

/// Neither slot is valid: say what this may be.
fn none_valid(
    device: &dyn Device,
    slots: &[Slot; 2],
    findings: &mut Findings,
) -> Result<Option<Chosen>, CheckError> {
    let mut looks_like_one = false;
    for (slot, at) in slots.iter().zip(SUPERBLOCK_SLOTS) {
        let why = match slot {
            Slot::Damaged(FormatError::Magic { .. }) | Slot::Zero | Slot::Valid(_) | Slot::Foreign(_) => {
                continue;
            }
            Slot::Damaged(FormatError::Field { what: "layout", field: "blocks", value })
                if *value > device.blocks() =>
            {
                let has = device.blocks();
                format!(
                    "the volume has {value} blocks of 4 KiB, the device or image only {has}: it was cut off"
                )
            }
            Slot::Damaged(error) => error.to_string(),
            Slot::Unreadable(why) => why.clone(),
        };
        looks_like_one = true;
        findings.at(Code::NoSuperblock, at, why);
    }
    let backup = (1..=BACKUP_BLOCKS).map(|back| BlockNo(device.blocks() - back)).find(|&block| {
        let mut bytes = vec![0; BLOCK_BYTES];
        device.read(block, &mut bytes).is_ok() && bytes.starts_with(&SUPERBLOCK_MAGIC)
    });
    match backup {
        Some(block) => {
            findings.at(
                Code::NoSuperblock,
                block,
                "both superblock slots are lost; a backup with the geometry is here",
            );
            Ok(None)
        }
        None if looks_like_one => Ok(None),
        None => Err(CheckError::NotAVolume),
    }
}

fn check_backups(device: &dyn Device, chosen: &Superblock, findings: &mut Findings) {
    for index in 0..BACKUP_BLOCKS {
        let at = chosen.layout.backup_start().plus(index);
        match read_slot(device, at) {
            Slot::Valid(backup) if backup.uuid == chosen.uuid && backup.layout == chosen.layout => {}
            Slot::Valid(_) => {
                findings.at(Code::BackupSuperblock, at, "the backup describes another volume or geometry");
            }
            Slot::Zero => findings.at(Code::BackupSuperblock, at, "the backup is missing"),
            Slot::Damaged(error) | Slot::Foreign(error) => {
                findings.at(Code::BackupSuperblock, at, error.to_string());
            }
            Slot::Unreadable(why) => findings.at(Code::BackupSuperblock, at, why),
        }
    }
}
