//! Changes of what holds the items: the log, the superblocks, the bitmaps, the shape of the trees.

use super::aim::{edge, object, place};
use super::log::LogRecord;
use super::model::{BitRun, Model, Patch};
use super::mutate::Change;
use super::tree::{TreeChange, key};
use crate::hostile::input::Input;
use syncline_format::batch::{BatchBuf, Op};
use syncline_format::range::{self, Field, Structure};
use syncline_format::{Key, TreeId};

/// Changes; inputs name them by their place here.
pub const CHANGES: &[Change] =
    &[operations, operations, odd_record, repeated, superblock, superblock, bits, bitmap, shape, shape, root];

const OPS_MAX: u8 = 12;

fn fields_of(structure: Structure) -> Vec<&'static Field> {
    range::ALL.iter().filter(|field| field.structure == structure).collect()
}

fn field_of(structure: Structure, input: &mut Input<'_>) -> &'static Field {
    let fields = fields_of(structure);
    fields[usize::from(input.byte()) % fields.len()]
}

/// A record of any operations.
fn operations(model: &mut Model, input: &mut Input<'_>) {
    let mut batch = BatchBuf::new();
    for _ in 0..input.byte() % OPS_MAX + 1 {
        operation(&mut batch, model, input);
    }
    model.log.push(LogRecord::of(batch));
}

fn operation(batch: &mut BatchBuf, model: &Model, input: &mut Input<'_>) {
    let tree = if input.byte() < 240 { TreeId::MAIN } else { TreeId(input.number() as u32) };
    let of = object(model, input);
    match input.byte() % 8 {
        0 | 1 => {
            let near = u64::from(input.byte());
            let page = edge(model, input, &range::OPERATION_IMAGE_PAGE, near);
            batch.push(Op::Image { tree, object: of, page, bytes: &[b'i'; 300] });
        }
        2 => {
            let page = u64::from(input.byte());
            batch.push(Op::Image { tree, object: of, page, bytes: b"an image" });
        }
        3 => {
            let (first, end) = (input.number(), edge(model, input, &range::OPERATION_IMAGE_PAGE, 9));
            batch.push(Op::Drop { tree, object: of, first, end });
        }
        4 | 5 => {
            let start = place(model, input);
            let len = match input.byte() % 3 {
                0 => edge(model, input, &range::OPERATION_LENGTH, 1) as u32,
                _ => u32::from(input.byte() % 40) + 1,
            };
            batch.push(if input.byte() & 1 == 0 {
                Op::Allocate { start, len }
            } else {
                Op::Free { start, len }
            });
        }
        6 => {
            let field = field_of(Structure::Key, input);
            let offset = edge(model, input, field, 0);
            batch.push(Op::Delete { tree, key: key(of.0, input.byte(), offset) });
        }
        _ => {
            let field = field_of(Structure::Key, input);
            let offset = edge(model, input, field, 0);
            let key = match input.byte() & 1 {
                0 => key(of.0, input.byte(), offset),
                _ => Key::inode(of),
            };
            let len = usize::from(input.byte());
            let fresh = input.byte() & 7 == 0;
            batch.push(Op::Put { tree, key, value: input.take(len), fresh });
        }
    }
}

/// A record that says something else than its place.
fn odd_record(model: &mut Model, input: &mut Input<'_>) {
    let (which, field, choice) =
        (usize::from(input.byte()), input.byte(), field_of(Structure::Record, input));
    let near = input.number();
    let value = edge(model, input, choice, near);
    let count = model.log.len().max(1);
    let Some(record) = model.log.get_mut(which % count) else { return };
    let odd = &mut record.odd;
    match field % 7 {
        0 => odd.sequence = Some(value),
        1 => odd.predecessor = Some(value),
        2 => odd.known_flushed = Some(value),
        3 => odd.first_lsn = Some(value),
        4 => odd.generation = Some(value),
        5 => odd.epoch = Some(value),
        _ => odd.batches = Some(value as u32),
    }
}

/// A record once more.
fn repeated(model: &mut Model, input: &mut Input<'_>) {
    let count = model.log.len().max(1);
    if let Some(record) = model.log.get(usize::from(input.byte()) % count).cloned() {
        model.log.push(record);
    }
}

fn superblock(model: &mut Model, input: &mut Input<'_>) {
    let field = field_of(Structure::Superblock, input);
    let now = model.superblock.encode(syncline_format::BlockNo(1));
    let value = edge(model, input, field, super::aim::number_of(&now, field));
    let slot = input.byte() % 3;
    model.superblock_patches.push(Patch { slot, at: field.at, bytes: field.bytes, value });
}

fn bits(model: &mut Model, input: &mut Input<'_>) {
    let run = BitRun {
        first: u32::from(input.u16()) % 2048,
        len: u32::from(input.byte()) + 1,
        used: input.byte() & 1 != 0,
    };
    model.bit_runs.push(run);
}

fn bitmap(model: &mut Model, input: &mut Input<'_>) {
    let field = field_of(Structure::Bitmap, input);
    let value = edge(model, input, field, model.superblock.generation.0);
    let slot = input.byte() & 1;
    model.bitmap_patches.push(Patch { slot, at: field.at, bytes: field.bytes, value });
}

fn shape(model: &mut Model, input: &mut Input<'_>) {
    let node = usize::from(input.byte());
    let separator = key(object(model, input).0, input.byte(), input.number());
    let change = match input.byte() % 8 {
        0 | 1 => {
            let field = field_of(Structure::Node, input);
            TreeChange::Field { node, at: field.at, bytes: field.bytes, value: edge(model, input, field, 1) }
        }
        2 => {
            let field = field_of(Structure::NodePointer, input);
            TreeChange::Pointer {
                node,
                at: field.at,
                bytes: field.bytes,
                value: edge(model, input, field, 1),
            }
        }
        3 => TreeChange::Shared { node, key: separator },
        4 => TreeChange::Missing { node },
        5 => TreeChange::Swapped { node },
        6 => TreeChange::Empty { key: separator },
        _ => TreeChange::Higher { levels: u16::from(input.byte()) },
    };
    model.tree_changes.push(change);
}

/// The root tree: other trees, other items, no tree.
fn root(model: &mut Model, input: &mut Input<'_>) {
    let change = match input.byte() % 4 {
        0 => TreeChange::RootAsMain,
        1 => TreeChange::RootItem { key: Key::tree(TreeId::MAIN), value: input.take(32).to_vec() },
        2 => TreeChange::RootItem { key: Key::tree(TreeId(input.number() as u32)), value: vec![1; 32] },
        _ => {
            let of = object(model, input).0;
            TreeChange::RootItem {
                key: key(of, input.byte(), input.number()),
                value: input.take(20).to_vec(),
            }
        }
    };
    model.tree_changes.push(change);
}
