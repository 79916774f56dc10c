//! Changes of what the trees of a volume of version 2 say of each other: parents, eras, births, names, roots, overlays.

use super::aim::{edge, number_of, place};
use super::model::Model;
use super::mutate::Change;
use crate::hostile::input::Input;
use crate::hostile::patch::tree_item;
use syncline_format::item::{EXTENT_BIRTH_AT, ExtentItem};
use syncline_format::range::{self, Field, Structure};
use syncline_format::tree_item::{OverlayItem, Role, TreeItem, TreeState};
use syncline_format::{BLOCK_BYTES, Era, Key, Kind, ObjectNo, TreeId, checksum};

/// Changes; inputs name them by their place here.
pub const CHANGES: &[Change] = &[
    field,
    field,
    parent,
    parent,
    cursor,
    name,
    role,
    extra,
    overlay,
    overlay,
    birth,
    birth,
    other_item,
    roots,
    roots,
    volume_item,
];

/// A tree that there is, mostly.
fn tree(model: &Model, input: &mut Input<'_>) -> TreeId {
    let infos: Vec<TreeId> = model.forest.iter().flat_map(|forest| forest.infos().into_keys()).collect();
    match input.byte() {
        0..8 => TreeId(input.number() as u32),
        _ => infos.get(usize::from(input.byte()) % infos.len().max(1)).copied().unwrap_or(TreeId::MAIN),
    }
}

fn change_item(model: &mut Model, tree: TreeId, change: impl FnOnce(&mut TreeItem)) {
    let key = Key::tree_info(tree);
    let value = model.forest.as_ref().and_then(|forest| forest.volume.get(&key));
    if let Some(mut item) = value.and_then(|value| TreeItem::decode(value).ok()) {
        change(&mut item);
        model.edit_volume(key, Some(item.encode()));
    }
}

/// A field of a tree item, to the edges of its range.
fn field(model: &mut Model, input: &mut Input<'_>) {
    let key = Key::tree_info(tree(model, input));
    let value = model.forest.as_ref().and_then(|forest| forest.volume.get(&key).cloned());
    let Some(mut value) = value else { return };
    let fits =
        |field: &&Field| field.structure == Structure::TreeItem && field.at + field.bytes <= value.len();
    let fields: Vec<&Field> = range::ALL.iter().filter(fits).collect();
    if fields.is_empty() {
        return;
    }
    let field = fields[usize::from(input.byte()) % fields.len()];
    let number = edge(model, input, field, number_of(&value, field));
    value[field.at..field.at + field.bytes].copy_from_slice(&number.to_le_bytes()[..field.bytes]);
    model.edit_volume(key, Some(value));
}

fn parent(model: &mut Model, input: &mut Input<'_>) {
    let (of, to) = (tree(model, input), tree(model, input));
    let how = input.byte();
    change_item(model, of, |item| item.parent = Some(to).filter(|_| how & 7 != 0));
    if how & 8 != 0 {
        change_item(model, to, |item| item.parent = Some(of));
    }
}

/// A tree goes away, or does not any more.
fn cursor(model: &mut Model, input: &mut Input<'_>) {
    let of = tree(model, input);
    let extents: Vec<Key> = model.items.keys().filter(|key| key.kind == Kind::Extent).copied().collect();
    let near = extents.get(usize::from(input.u16()) % extents.len().max(1)).copied().unwrap_or(Key::MIN);
    let how = input.byte();
    let cursor = match how % 5 {
        0 => Key::MIN,
        1 => Key::MAX,
        2 => near,
        3 => Key { offset: near.offset + 1, ..near },
        _ => Key::inode(near.object),
    };
    change_item(model, of, |item| {
        item.state = if how & 0x80 == 0 { TreeState::Deleting { cursor } } else { TreeState::Live };
        item.name = if how & 0x40 == 0 { String::new() } else { item.name.clone() };
        item.is_hidden ^= how & 0x20 != 0;
    });
}

/// Of two trees the same.
fn name(model: &mut Model, input: &mut Input<'_>) {
    let (of, other) = (tree(model, input), tree(model, input));
    let names = model.forest.iter().flat_map(|forest| forest.infos());
    let name = names.into_iter().find(|(tree, _)| *tree == other).map(|(_, item)| item.name);
    change_item(model, of, |item| item.name = name.unwrap_or_default());
}

fn role(model: &mut Model, input: &mut Input<'_>) {
    let of = tree(model, input);
    let (era, how) = (Era(u32::from(input.byte() % 8)), input.byte());
    change_item(model, of, |item| {
        (item.role, item.era, item.known) = match item.role {
            Role::Head => (Role::Snapshot, Era(era.0.max(1)), Era(0)),
            Role::Snapshot => (Role::Head, Era(0), era),
        };
        item.is_default ^= how & 1 != 0;
    });
}

/// An item for a tree that there is, or is not.
fn extra(model: &mut Model, input: &mut Input<'_>) {
    let (of, parent) = (tree(model, input), tree(model, input));
    let item = tree_item(input, parent);
    model.edit_volume(Key::tree_info(of), Some(item.encode()));
}

fn overlay(model: &mut Model, input: &mut Input<'_>) {
    let key = Key::overlay(tree(model, input), u64::from(input.byte() % 4));
    let files: Vec<ObjectNo> = model.objects();
    let object = files.get(usize::from(input.byte()) % files.len().max(1)).copied().unwrap_or(ObjectNo(1));
    let page = match input.byte() {
        0..200 => u64::from(input.byte() % 8),
        _ => input.number(),
    };
    let extent = ExtentItem::written(place(model, input), vec![checksum(&[0; BLOCK_BYTES]); 1]);
    let extent = extent.born(Era(u32::from(input.byte() % 8)));
    let item = OverlayItem { object, page, extent };
    model.edit_volume(key, Some(item.encode()));
}

/// An extent of some tree has another birth.
fn birth(model: &mut Model, input: &mut Input<'_>) {
    let (of, index) = (tree(model, input), usize::from(input.u16()));
    let era = match input.byte() {
        0..220 => u32::from(input.byte() % 8),
        _ => input.number() as u32,
    };
    let items = match &mut model.forest {
        Some(forest) if of != model.head => forest.others.get_mut(&of),
        _ => Some(&mut model.items),
    };
    let Some(items) = items else { return };
    let mut extents: Vec<&mut Vec<u8>> =
        items.iter_mut().filter(|(key, _)| key.kind == Kind::Extent).map(|(_, value)| value).collect();
    let count = extents.len().max(1);
    if let Some(value) = extents.get_mut(index % count) {
        value[EXTENT_BIRTH_AT..EXTENT_BIRTH_AT + 4].copy_from_slice(&era.to_le_bytes());
    }
}

/// An item of another tree than the default head goes, or becomes one of the head's.
fn other_item(model: &mut Model, input: &mut Input<'_>) {
    let (of, index, how) = (tree(model, input), usize::from(input.u16()), input.byte());
    let Some(items) = model.forest.as_mut().and_then(|forest| forest.others.get_mut(&of)) else { return };
    let Some(key) = items.keys().nth(index % items.len().max(1)).copied() else { return };
    match (how & 1, model.items.get(&key)) {
        (1, Some(value)) => drop(items.insert(key, value.clone())),
        _ => drop(items.remove(&key)),
    }
}

/// Two trees have each other's roots, or one has a root under a number that nobody knows.
fn roots(model: &mut Model, input: &mut Input<'_>) {
    let (one, other) = (tree(model, input), tree(model, input));
    if let Some(forest) = &mut model.forest {
        forest.roots.push((one, other));
    }
}

/// An item of the volume tree goes away, or is cut off.
fn volume_item(model: &mut Model, input: &mut Input<'_>) {
    let (index, how) = (usize::from(input.byte()), input.byte());
    let Some(forest) = &model.forest else { return };
    let found = forest.volume.iter().nth(index % forest.volume.len().max(1));
    let Some((key, value)) = found.map(|(key, value)| (*key, value.clone())) else { return };
    let cut = value[..usize::from(how) % (value.len() + 1)].to_vec();
    model.edit_volume(key, Some(cut).filter(|_| how & 1 == 0));
}
