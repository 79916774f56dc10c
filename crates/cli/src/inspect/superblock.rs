//! The four copies of the superblock.

use super::{Inspection, printing};
use crate::error::Failure;
use crate::output;
use crate::size::Size;
use crate::volume::{Copy, uuid_text};
use serde_json::{Value, json};
use syncline_format::superblock::{Superblock, VolumeState};

/// Shows all copies; true if a slot is valid.
pub(super) fn show(inspection: &Inspection<'_>) -> Result<bool, Failure> {
    let current = inspection.superblocks.current();
    let mut shown = serde_json::Map::new();
    for copy in &inspection.superblocks.copies {
        // A backup of a new volume says the same, but is never chosen.
        let is_chosen =
            |current: &Superblock| copy.content.as_ref().is_ok_and(|one| std::ptr::eq(one, current));
        let counts = current.is_some_and(is_chosen);
        shown.insert(copy.name.replace(' ', "_"), describe(copy, counts));
    }
    output::object(inspection.form, &Value::Object(shown)).map_err(printing)?;
    if current.is_none() {
        inspection.superblocks.require(&inspection.arguments.path)?;
    }
    Ok(true)
}

fn describe(copy: &Copy, counts: bool) -> Value {
    match &copy.content {
        Ok(superblock) => fields(superblock, copy.block.0, counts),
        Err(error) => json!({ "block": copy.block.0, "valid": false, "error": error.to_string() }),
    }
}

fn fields(superblock: &Superblock, block: u64, counts: bool) -> Value {
    let layout = &superblock.layout;
    json!({
        "block": block,
        "valid": true,
        "counts": counts,
        "generation": superblock.generation.0,
        "state": match superblock.state {
            VolumeState::InUse => "in use",
            VolumeState::Clean => "clean",
        },
        "uuid": uuid_text(&superblock.uuid),
        "label": superblock.label,
        "size": Size::of_blocks(layout.blocks).to_string(),
        "blocks": layout.blocks,
        "free_blocks": superblock.free_blocks,
        "journal_start": layout.journal_start.0,
        "journal_blocks": layout.journal_blocks,
        "groups_start": layout.groups_start.0,
        "groups": layout.group_count(),
        "checkpoint_lsn": superblock.checkpoint_lsn.0,
        "epoch": format!("{:#018x}", superblock.epoch),
        "tail_block": superblock.tail.block,
        "tail_sequence": superblock.tail.sequence.0,
        "tail_predecessor": format!("{:#018x}", superblock.tail.predecessor),
        "root_block": superblock.root.block.0,
        "root_level": superblock.root.level,
        "root_generation": superblock.root.generation.0,
        "next_object": superblock.next_object.0,
        "cut_lsn": superblock.cut.map(|lsn| lsn.0),
        "created": superblock.created_seconds,
        "version": if superblock.trees.is_some() { 2 } else { 1 },
        "era": superblock.trees.map(|trees| trees.era.0),
        "next_tree": superblock.trees.map(|trees| trees.next_tree.0),
    })
}
