//! What changes aim at: items that exist, numbers at the edges, places on the device that matter.

use super::model::Model;
use crate::hostile::input::Input;
use syncline_format::range::Field;
use syncline_format::{BlockNo, GroupNo, Key, Kind, ObjectNo};

/// One of the items that fit.
pub fn pick(model: &Model, input: &mut Input<'_>, fits: impl Fn(&Key) -> bool) -> Option<(Key, Vec<u8>)> {
    let fitting: Vec<&Key> = model.items.keys().filter(|key| fits(key)).collect();
    let key = **fitting.get(usize::from(input.u16()) % fitting.len().max(1))?;
    Some((key, model.items[&key].clone()))
}

/// Mostly the number of an inode that exists.
pub fn object(model: &Model, input: &mut Input<'_>) -> ObjectNo {
    let objects = model.objects();
    match input.byte() {
        0 => ObjectNo::ROOT_DIR,
        1 => ObjectNo(input.number()),
        2 => model.superblock.next_object,
        _ => objects.get(usize::from(input.u16()) % objects.len().max(1)).copied().unwrap_or(ObjectNo(1)),
    }
}

/// The number in a field.
pub fn number_of(value: &[u8], field: &Field) -> u64 {
    let mut bytes = [0; 8];
    let len = field.bytes.min(8);
    bytes[..len].copy_from_slice(&value[field.at..field.at + len]);
    u64::from_le_bytes(bytes)
}

/// A number at the edges of a field's range, near the one that is there, or any.
pub fn edge(model: &Model, input: &mut Input<'_>, field: &Field, now: u64) -> u64 {
    match input.byte() % 16 {
        0 => field.least,
        1 | 2 => field.most,
        3 => field.most.wrapping_add(1),
        4 => field.least.wrapping_sub(1),
        5 => u64::MAX,
        6 => i64::MAX as u64,
        7 => i64::MIN as u64,
        8 => now.wrapping_add(1),
        9 => now.wrapping_sub(1),
        10 => object(model, input).0,
        11 => field.most / 2,
        12 => 0,
        13 => now.wrapping_mul(2),
        14 => field.most.wrapping_sub(input.number()),
        _ => input.number(),
    }
}

/// A block: of the superblocks, the journal, bitmaps, nodes, data, or beyond all of them.
pub fn place(model: &Model, input: &mut Input<'_>) -> BlockNo {
    let layout = model.superblock.layout;
    let group = layout.group_start(GroupNo(0));
    match input.byte() % 10 {
        0 => BlockNo(u64::from(input.byte()) % 16),
        1 => layout.journal_start.plus(u64::from(input.byte()) % layout.journal_blocks),
        2 => group.plus(u64::from(input.byte()) % 2),
        3 => group.plus(4 + u64::from(input.byte()) % 64),
        4 => BlockNo(layout.backup_start().0.saturating_sub(u64::from(input.byte()) % 4)),
        5 => BlockNo(input.number()),
        6 | 7 => {
            let extents = pick(model, input, |key| key.kind == Kind::Extent);
            let start = extents.and_then(|(_, value)| value.first_chunk::<8>().copied());
            BlockNo(start.map_or(group.0 + 200, u64::from_le_bytes))
        }
        _ => group.plus(2 + u64::from(input.u16()) % layout.blocks),
    }
}
