//! The journal's chain of records, from the superblock's tail to where it ends.

use super::path::Paths;
use super::{Inspection, printing};
use crate::error::Failure;
use crate::output::{self, Form, Table};
use serde_json::{Map, Value, json};
use syncline_device::Device;
use syncline_format::batch::{Op, Outcome, decode_batches};
use syncline_format::record::{self, RecordInfo};
use syncline_format::superblock::{JournalTail, Superblock};
use syncline_format::{BLOCK_BYTES, BlockNo, FormatError, Key, ObjectNo, TreeId};

const RECORD_COLUMNS: &[(&str, usize)] = &[
    ("ring_block", 10),
    ("sequence", 9),
    ("blocks", 6),
    ("batches", 7),
    ("first_lsn", 10),
    ("last_lsn", 10),
    ("known_flushed", 13),
    ("generation", 10),
    ("in_checkpoint", 13),
];
const OPERATION_COLUMNS: &[(&str, usize)] =
    &[("sequence", 9), ("lsn", 10), ("operation", 9), ("tree", 4), ("what", 30), ("bytes", 6), ("path", 0)];

/// A record of the chain, as read.
struct Record {
    ring_block: u64,
    info: RecordInfo,
    checksum: u64,
    bytes: Vec<u8>,
}

/// Shows the chain; true, since a chain always ends somewhere: whether it ends too early is for the check to say.
pub(super) fn show(inspection: &Inspection<'_>) -> Result<bool, Failure> {
    let superblock = inspection.superblocks.require(&inspection.arguments.path)?;
    let columns = if inspection.arguments.items { OPERATION_COLUMNS } else { RECORD_COLUMNS };
    let mut table = Table::new(inspection.form, columns).map_err(printing)?;
    let mut at = superblock.tail;
    let mut ring_left = superblock.layout.journal_blocks;
    let only = inspection.inode()?;
    let mut paths = if inspection.arguments.items { Paths::read(inspection)? } else { Paths::default() };
    let end = loop {
        let record = match next(inspection.device(), superblock, at) {
            Ok(record) => record,
            Err(end) => break end,
        };
        let blocks = record.info.blocks();
        if blocks > ring_left {
            break "the chain is longer than the ring".to_owned();
        }
        ring_left -= blocks;
        match inspection.arguments.items {
            true => show_operations(&mut table, &record, only, &mut paths),
            false => show_record(&mut table, superblock, &record),
        }
        .map_err(printing)?;
        at = JournalTail {
            block: (record.ring_block + blocks) % superblock.layout.journal_blocks,
            sequence: record.info.sequence.next(),
            predecessor: record.checksum,
        };
    };
    table.finish().map_err(printing)?;
    if inspection.form == Form::Text {
        output::line(&format!("the chain ends before sequence {}: {end}", at.sequence))?;
    }
    Ok(true)
}

/// The record expected at a position, there or at the ring's start; or the sentence why there is none.
fn next(device: &dyn Device, superblock: &Superblock, at: JournalTail) -> Result<Record, String> {
    let first = expect(device, superblock, at, at.block);
    match first {
        Err(_) if at.block != 0 => expect(device, superblock, at, 0).or(first),
        _ => first,
    }
}

fn expect(
    device: &dyn Device,
    superblock: &Superblock,
    at: JournalTail,
    ring_block: u64,
) -> Result<Record, String> {
    let volume = superblock.volume_id();
    let block = superblock.layout.journal_start.plus(ring_block);
    let mut bytes = read(device, block, 1)?;
    let text = |error: FormatError| error.to_string();
    let info = record::peek(&bytes, block, volume).map_err(text)?;
    if info.epoch != superblock.epoch {
        return Err("the record there is of another epoch".to_owned());
    }
    if info.sequence != at.sequence || info.predecessor != at.predecessor {
        return Err(format!(
            "the record there has sequence {} and does not continue the chain",
            info.sequence
        ));
    }
    if ring_block + info.blocks() > superblock.layout.journal_blocks {
        return Err("the record there is longer than the rest of the ring".to_owned());
    }
    bytes = read(device, block, info.blocks())?;
    let (info, checksum, _) = record::verify(&bytes, block, volume).map_err(text)?;
    Ok(Record { ring_block, info, checksum, bytes })
}

fn read(device: &dyn Device, at: BlockNo, blocks: u64) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
    device.read(at, &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn show_record(table: &mut Table, superblock: &Superblock, record: &Record) -> std::io::Result<()> {
    let info = &record.info;
    table.row(&row(json!({
        "ring_block": record.ring_block,
        "sequence": info.sequence.0,
        "blocks": info.blocks(),
        "batches": info.batches,
        "first_lsn": info.first_lsn.0,
        "last_lsn": info.last_lsn().0,
        "known_flushed": info.known_flushed.0,
        "generation": info.generation.0,
        "in_checkpoint": info.last_lsn() <= superblock.checkpoint_lsn,
    })))
}

/// Shows the operations of a record, or those on one inode. Names that it gives are added to `paths`.
fn show_operations(
    table: &mut Table,
    record: &Record,
    only: Option<ObjectNo>,
    paths: &mut Paths,
) -> std::io::Result<()> {
    let info = &record.info;
    let payload = &record.bytes[record::RECORD_HEADER_BYTES..][..info.payload_bytes as usize];
    let batches = match decode_batches(payload, info.batches) {
        Ok(batches) => batches,
        Err(error) => {
            return table.row(&row(
                json!({ "sequence": info.sequence.0, "operation": "damaged", "what": error.to_string() }),
            ));
        }
    };
    for (lsn, batch) in (info.first_lsn.0..).zip(&batches) {
        for op in batch {
            if let Op::Put { tree: TreeId::MAIN, key, value, .. } = op {
                paths.add(*key, value);
            }
        }
        let is_shown = |op: &&Op<'_>| only.is_none_or(|only| object_of(op) == Some(only));
        for op in batch.iter().filter(is_shown) {
            let mut shown = row(describe(op));
            shown.insert("sequence".to_owned(), info.sequence.0.into());
            shown.insert("lsn".to_owned(), lsn.into());
            let path = object_of(op).and_then(|object| paths.path(object));
            shown.insert("path".to_owned(), path.into());
            table.row(&shown)?;
        }
    }
    Ok(())
}

/// The inode that an operation is about.
fn object_of(op: &Op<'_>) -> Option<ObjectNo> {
    let (tree, object) = match op {
        Op::Put { tree, key, .. } | Op::Delete { tree, key } => (tree, key.object),
        Op::Image { tree, object, .. } | Op::Drop { tree, object, .. } => (tree, *object),
        _ => return None,
    };
    (*tree == TreeId::MAIN).then_some(object)
}

fn describe(op: &Op<'_>) -> Value {
    match op {
        Op::Put { tree, key, value, fresh } => json!({
            "operation": if *fresh { "put fresh" } else { "put" },
            "tree": tree.0,
            "what": key_text(*key),
            "bytes": value.len(),
        }),
        Op::Delete { tree, key } => json!({ "operation": "delete", "tree": tree.0, "what": key_text(*key) }),
        Op::Allocate { start, len } => {
            json!({ "operation": "allocate", "what": format!("blocks {start} +{len}") })
        }
        Op::MakeTree { tree, source, role, era } => json!({
            "operation": "make tree",
            "tree": tree.0,
            "what": format!("{role:?} of tree {}, era {era}", source.map_or(0, |source| source.0)).to_lowercase(),
        }),
        Op::Release { outcome, start, len, birth } => json!({
            "operation": match outcome {
                Outcome::Free => "free",
                Outcome::Left => "leave to snapshots",
                Outcome::Shared => "let go of",
            },
            "what": format!("blocks {start} +{len}, born in {birth}"),
        }),
        Op::TreeGone { tree } => json!({ "operation": "end of a tree", "tree": tree.0 }),
        Op::Free { start, len } => json!({ "operation": "free", "what": format!("blocks {start} +{len}") }),
        Op::Image { tree, object, page, bytes } => json!({
            "operation": "image",
            "tree": tree.0,
            "what": format!("object {object} page {page}"),
            "bytes": bytes.len(),
        }),
        Op::Drop { tree, object, first, end } => json!({
            "operation": "drop",
            "tree": tree.0,
            "what": format!("object {object} pages {first}..{end}"),
        }),
    }
}

/// A key in one word group: object, kind, offset.
pub(super) fn key_text(key: Key) -> String {
    format!("object {} {:?} {}", key.object, key.kind, key.offset)
}

/// The fields of an object made by `json!`.
pub(super) fn row(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
