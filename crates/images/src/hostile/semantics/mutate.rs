//! Changes of what a volume means: any field of any structure to the edges of its range, names, directories, extents,
//! counts, orphans. Each takes what it does from the input.

use super::aim::{edge, number_of, object, pick, place};
use super::model::Model;
use crate::hostile::input::Input;
use syncline_format::item::{
    DirentItem, EXTENT_PAGES_MAX, ExtentItem, INODE_BYTES, InodeItem, MODE_DIRECTORY, MODE_REGULAR,
    MODE_SYMLINK, MODE_TYPE_MASK, OrphanReason, Shift, Timestamp, XattrItem, XattrValue,
};
use syncline_format::range::{self, Field, Structure};
use syncline_format::{BLOCK_BYTES, ITEM_VALUE_BYTES_MAX, Key, Kind, ObjectNo, checksum};

/// A change.
pub type Change = fn(&mut Model, &mut Input<'_>);

/// Changes of items; inputs name them by their place here.
pub const CHANGES: &[Change] = &[
    field,
    field,
    field,
    field,
    item_key,
    redirect,
    redirect,
    second_name,
    doubled_chain,
    cycle,
    full_hash,
    extreme_slot,
    extent,
    extent,
    extent_again,
    other_type,
    target,
    xattr,
    orphan,
    orphan,
    delete,
    many,
    huge_file,
    swap,
    length,
    new_inode,
];

/// Directories below one another that one change makes, and items.
const CHAIN_MAX: u64 = 48;
const MANY_MAX: u64 = 400;
/// Types as `mode >> 12`.
const TYPES: [u32; 7] = [1, 2, 4, 6, 8, 10, 12];

fn structure_of(kind: Kind) -> Option<Structure> {
    Some(match kind {
        Kind::Inode => Structure::Inode,
        Kind::Dirent => Structure::Dirent,
        Kind::Xattr => Structure::Xattr,
        Kind::Extent => Structure::Extent,
        Kind::Orphan => Structure::Orphan,
        _ => return None,
    })
}

/// A field of an item, to the edges of its range.
fn field(model: &mut Model, input: &mut Input<'_>) {
    let Some((key, mut value)) = pick(model, input, |key| structure_of(key.kind).is_some()) else { return };
    let fields: Vec<&Field> = range::ALL
        .iter()
        .filter(|field| {
            Some(field.structure) == structure_of(key.kind) && field.at + field.bytes <= value.len()
        })
        .collect();
    if fields.is_empty() {
        return;
    }
    let field = fields[usize::from(input.byte()) % fields.len()];
    let number = edge(model, input, field, number_of(&value, field));
    value[field.at..field.at + field.bytes].copy_from_slice(&number.to_le_bytes()[..field.bytes]);
    if field.structure == Structure::Inode && input.byte() & 3 == 0 {
        make_legal(&mut value);
    }
    model.edit(key, Some(value));
}

/// What depends on a changed type follows it, so that the item can be decoded.
fn make_legal(value: &mut [u8]) {
    if value.len() < INODE_BYTES {
        return;
    }
    let mode = number_of(value, &range::INODE_MODE) as u32 & MODE_TYPE_MASK;
    let mut fix = |field: &Field, wanted: Option<&Field>| {
        let number = wanted.map_or(0, |wanted| wanted.clamp(number_of(value, field)));
        value[field.at..field.at + field.bytes].copy_from_slice(&number.to_le_bytes()[..field.bytes]);
    };
    let (is_file, is_directory) = (mode == MODE_REGULAR, mode == MODE_DIRECTORY);
    fix(&range::INODE_BLOCKS, is_file.then_some(&range::INODE_BLOCKS));
    fix(&range::INODE_PARENT, is_directory.then_some(&range::INODE_PARENT));
    fix(&range::INODE_ENTRIES, is_directory.then_some(&range::INODE_ENTRIES));
    fix(
        &range::INODE_SIZE,
        match mode {
            MODE_REGULAR => Some(&range::INODE_SIZE),
            MODE_SYMLINK => Some(&range::INODE_TARGET_SIZE),
            _ => None,
        },
    );
}

fn item_key(model: &mut Model, input: &mut Input<'_>) {
    let Some((key, value)) = pick(model, input, |_| true) else { return };
    let which = input.byte();
    let offset = range::ALL.iter().filter(|field| field.structure == Structure::Key);
    let fields: Vec<&Field> = offset.collect();
    let field = fields[usize::from(input.byte()) % fields.len()];
    let new = match which % 3 {
        0 => Key { object: object(model, input), ..key },
        1 => Key { kind: Kind::try_from(input.byte() % 10 + 1).unwrap_or(key.kind), ..key },
        _ => Key { offset: edge(model, input, field, key.offset), ..key },
    };
    if input.byte() & 1 == 0 {
        model.edit(key, None);
    }
    model.edit(new, Some(value));
}

/// A name leads to another inode: an ancestor, itself, one with names enough.
fn redirect(model: &mut Model, input: &mut Input<'_>) {
    let Some((key, value)) = pick(model, input, |key| key.kind == Kind::Dirent) else { return };
    let Ok(mut dirent) = DirentItem::decode(&value) else { return };
    dirent.inode = match input.byte() % 4 {
        0 => key.object,
        1 => ObjectNo::ROOT_DIR,
        _ => object(model, input),
    };
    if input.byte() & 3 != 0 {
        dirent.file_type = type_of(model, dirent.inode).unwrap_or(dirent.file_type);
    }
    model.edit(key, Some(dirent.encode()));
}

fn inode_of(model: &Model, object: ObjectNo) -> Option<InodeItem> {
    model.items.get(&Key::inode(object)).and_then(|value| InodeItem::decode(value).ok())
}

fn type_of(model: &Model, object: ObjectNo) -> Option<u8> {
    inode_of(model, object).map(|inode| (inode.mode >> 12) as u8)
}

/// A directory, mostly an existing one.
fn directory(model: &Model, input: &mut Input<'_>) -> ObjectNo {
    let found = pick(model, input, |key| key.kind == Kind::Dirent);
    found.map_or(ObjectNo::ROOT_DIR, |(key, _)| key.object)
}

/// Another name of something, with or without the counts that belong to it.
fn second_name(model: &mut Model, input: &mut Input<'_>) {
    let (directory, to) = (directory(model, input), object(model, input));
    let name = format!("second-{}", input.byte());
    let Some(file_type) = type_of(model, to) else { return };
    model.name(directory, name.as_bytes(), to, file_type);
    let how = input.byte();
    if how & 1 != 0 {
        count(model, directory, |inode| inode.entries += 1);
    }
    if how & 2 != 0 {
        count(model, to, |inode| inode.nlink = inode.nlink.saturating_add(1));
    }
    if how & 4 != 0 && file_type == 4 {
        count(model, to, |inode| inode.parent = directory);
    }
}

fn count(model: &mut Model, object: ObjectNo, change: impl FnOnce(&mut InodeItem)) {
    if let Some(mut inode) = inode_of(model, object) {
        change(&mut inode);
        model.edit(Key::inode(object), Some(inode.encode().to_vec()));
    }
}

fn plain(mode: u32, parent: ObjectNo) -> InodeItem {
    let since = Timestamp::default();
    InodeItem {
        mode: mode | 0o755,
        nlink: if mode == MODE_DIRECTORY { 2 } else { 1 },
        uid: 0,
        gid: 0,
        size: 0,
        blocks: 0,
        accessed: since,
        modified: since,
        changed: since,
        created: since,
        rdev: 0,
        parent: if mode == MODE_DIRECTORY { parent } else { ObjectNo(0) },
        entries: 0,
        flags: 0,
        project: 0,
    }
}

/// A number that no object has; the superblock knows of it.
fn new_object(model: &mut Model) -> ObjectNo {
    let object = model.superblock.next_object;
    model.superblock.next_object = ObjectNo(object.0 + 1);
    object
}

/// Directories below one another, each with two names: 2^n ways to the last one.
fn doubled_chain(model: &mut Model, input: &mut Input<'_>) {
    let depth = u64::from(input.byte()) % CHAIN_MAX + 2;
    let elsewhere = input.byte() & 1 != 0;
    let mut parent = ObjectNo::ROOT_DIR;
    for level in 0..depth {
        let child = new_object(model);
        let inode = InodeItem { entries: 2, nlink: 4, ..plain(MODE_DIRECTORY, parent) };
        model.edit(Key::inode(child), Some(inode.encode().to_vec()));
        let other = if elsewhere { ObjectNo::ROOT_DIR } else { parent };
        model.name(parent, format!("a{level}").as_bytes(), child, 4);
        model.name(other, format!("b{level}").as_bytes(), child, 4);
        parent = child;
    }
}

/// Two directories in each other, reached from the root or not.
fn cycle(model: &mut Model, input: &mut Input<'_>) {
    let (one, other) = (new_object(model), new_object(model));
    let reached = input.byte();
    for (directory, parent) in [(one, other), (other, one)] {
        let parent = if reached & 2 != 0 { ObjectNo::ROOT_DIR } else { parent };
        let inode = InodeItem { entries: 1, nlink: 3, ..plain(MODE_DIRECTORY, parent) };
        model.edit(Key::inode(directory), Some(inode.encode().to_vec()));
    }
    model.name(one, b"down", other, 4);
    model.name(other, b"up", one, 4);
    if reached & 1 != 0 {
        model.name(ObjectNo::ROOT_DIR, b"into-the-cycle", one, 4);
    }
}

/// Other names in all slots of a name that somebody may want.
fn full_hash(model: &mut Model, input: &mut Input<'_>) {
    let names: [&[u8]; 6] =
        [b"zz-new", b"zz-new-d", b"zz-inner", b"lost+found", b"user.new", b"system.posix_acl_access"];
    let name = names[usize::from(input.byte()) % names.len()];
    let hash = model.superblock.name_hash().first(name);
    let to = object(model, input);
    let file_type = type_of(model, to).unwrap_or(8);
    for probe in 0..8 {
        let name = format!("other-{probe}").into_bytes();
        if name.starts_with(b"user") || input.byte() & 1 != 0 {
            let xattr = XattrItem { name: [b"user.", &name[..]].concat(), value: XattrValue::Inline(name) };
            model.edit(Key::xattr(to, hash + probe), Some(xattr.encode()));
        } else {
            let dirent = DirentItem { inode: to, file_type, name };
            model.edit(Key::dirent(ObjectNo::ROOT_DIR, hash + probe), Some(dirent.encode()));
        }
    }
}

/// An entry, or an attribute, moves to the ends of what a slot may be.
fn extreme_slot(model: &mut Model, input: &mut Input<'_>) {
    let Some((key, value)) = pick(model, input, |key| matches!(key.kind, Kind::Dirent | Kind::Xattr)) else {
        return;
    };
    let field = if key.kind == Kind::Dirent { range::KEY_DIRENT_OFFSET } else { range::KEY_XATTR_OFFSET };
    let offset = edge(model, input, &field, key.offset);
    if input.byte() & 1 != 0 {
        model.edit(key, None);
    }
    model.edit(Key { offset, ..key }, Some(value));
}

/// A new extent of a file, anywhere on the volume and in the file.
fn extent(model: &mut Model, input: &mut Input<'_>) {
    let of = match pick(model, input, |key| key.kind == Kind::Extent) {
        Some((key, _)) if input.byte() & 3 != 0 => key.object,
        _ => object(model, input),
    };
    let start = place(model, input);
    let pages = (input.number() as u32 % EXTENT_PAGES_MAX + 1).max(1);
    let page = match input.byte() % 4 {
        0 => input.number() % 64,
        1 => edge(model, input, &range::KEY_EXTENT_OFFSET, 0),
        2 => inode_of(model, of).map_or(0, |inode| inode.size / BLOCK_BYTES as u64),
        _ => input.number(),
    };
    let item = match input.byte() % 3 {
        0 => ExtentItem::unwritten(start, pages),
        1 => ExtentItem::written(start, vec![checksum(&[0; BLOCK_BYTES]); pages as usize]),
        _ => {
            let at = |index: u64| {
                let block = start.0.saturating_add(index).min(model.superblock.layout.blocks);
                checksum(&model.image.bytes(block * BLOCK_BYTES as u64, BLOCK_BYTES))
            };
            ExtentItem::written(start, (0..u64::from(pages)).map(at).collect())
        }
    };
    model.edit(Key::extent(of, page), Some(item.encode()));
    let how = input.byte();
    if how & 1 != 0 {
        let end = page.saturating_add(u64::from(pages)).min(range::FILE_PAGES_MAX);
        let bytes = (end * BLOCK_BYTES as u64).min(range::INODE_SIZE.most);
        count(model, of, |inode| inode.size = inode.size.max(bytes));
    }
    if how & 2 != 0 {
        count(model, of, |inode| inode.blocks = inode.blocks.saturating_add(u64::from(pages)));
    }
}

/// An extent once more: elsewhere in its file, or in another.
fn extent_again(model: &mut Model, input: &mut Input<'_>) {
    let Some((key, value)) = pick(model, input, |key| key.kind == Kind::Extent) else { return };
    let of = if input.byte() & 1 != 0 { key.object } else { object(model, input) };
    let page = key.offset.saturating_add(input.number() % 200);
    model.edit(Key::extent(of, page), Some(value));
}

fn other_type(model: &mut Model, input: &mut Input<'_>) {
    let of = object(model, input);
    let Some(mut value) = model.items.get(&Key::inode(of)).cloned() else { return };
    let mode = TYPES[usize::from(input.byte()) % TYPES.len()] << 12 | 0o644;
    if value.len() > 4 {
        value[..4].copy_from_slice(&mode.to_le_bytes());
        make_legal(&mut value);
        model.edit(Key::inode(of), Some(value));
    }
}

/// The target of a symbolic link.
fn target(model: &mut Model, input: &mut Input<'_>) {
    let of = match pick(model, input, |key| key.kind == Kind::Symlink) {
        Some((key, _)) if input.byte() & 3 != 0 => key.object,
        _ => object(model, input),
    };
    let text: Vec<u8> = match input.byte() % 6 {
        0 => Vec::new(),
        1 => b"nul\0inside".to_vec(),
        2 => vec![b'/'; ITEM_VALUE_BYTES_MAX],
        3 => b"../../../../a/b/link".to_vec(),
        4 => b".".to_vec(),
        _ => vec![b'x'; usize::from(input.u16()) % ITEM_VALUE_BYTES_MAX],
    };
    let len = text.len() as u64;
    model.edit(Key::symlink(of), Some(text));
    if input.byte() & 1 != 0 {
        count(model, of, |inode| (inode.mode, inode.size) = (MODE_SYMLINK | 0o777, len));
    }
}

fn xattr(model: &mut Model, input: &mut Input<'_>) {
    let of = object(model, input);
    let names: [&[u8]; 8] = [
        b"user.new",
        b"user.small",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
        b"security.capability",
        b"nothing",
        b"user.\0",
        b"user.",
    ];
    let name = names[usize::from(input.byte()) % names.len()].to_vec();
    let value = match input.byte() % 4 {
        0 => XattrValue::Inline(input.take(64).to_vec()),
        1 => XattrValue::Inline([2u32.to_le_bytes().to_vec(), input.take(40).to_vec()].concat()),
        2 => XattrValue::Pieces { number: input.number(), len: input.number() as u32 },
        _ => XattrValue::Pieces {
            number: edge(model, input, &range::XATTR_VALUE_NUMBER, 1),
            len: edge(model, input, &range::XATTR_VALUE_LENGTH, 4096) as u32,
        },
    };
    let slot = model.superblock.name_hash().first(&name) + u64::from(input.byte() % 3);
    if let XattrValue::Pieces { number, .. } = value {
        for piece in 0..u64::from(input.byte() % 20) {
            let offset = number.wrapping_mul(32).wrapping_add(piece);
            let bytes = if input.byte() & 7 == 0 { 17 } else { 4096 };
            model.edit(Key::new(of, Kind::XattrPiece, offset), Some(vec![b'p'; bytes]));
        }
    }
    model.edit(Key::xattr(of, slot), Some(XattrItem { name, value }.encode()));
}

fn orphan(model: &mut Model, input: &mut Input<'_>) {
    let of = object(model, input);
    let reason = match input.byte() % 4 {
        0 => OrphanReason::Unlinked,
        1 => OrphanReason::Truncated,
        _ => {
            let size = inode_of(model, of).map_or(0, |inode| inode.size.div_ceil(BLOCK_BYTES as u64));
            let near = |input: &mut Input<'_>, model: &Model, field: &Field| match input.byte() % 3 {
                0 => edge(model, input, field, size),
                _ => input.number() % (size + 2),
            };
            let first = near(input, model, &range::ORPHAN_FIRST);
            let count = near(input, model, &range::ORPHAN_COUNT).max(u64::from(input.byte() & 1));
            let next = first.saturating_add(near(input, model, &range::ORPHAN_NEXT));
            OrphanReason::Shifting(Shift { first, count, inserts: input.byte() & 1 != 0, next })
        }
    };
    model.edit(Key::orphan(of), Some(reason.encode()));
    let how = input.byte();
    if how & 1 != 0 {
        count(model, of, |inode| inode.nlink = 0);
    }
    if how & 2 != 0 {
        count(model, of, |inode| inode.size /= 2);
    }
}

fn delete(model: &mut Model, input: &mut Input<'_>) {
    if let Some((key, _)) = pick(model, input, |_| true) {
        model.edit(key, None);
    }
}

/// Very many of one kind.
fn many(model: &mut Model, input: &mut Input<'_>) {
    let (kind, amount) = (input.byte(), u64::from(input.u16()) % MANY_MAX);
    let of = object(model, input);
    let directory = directory(model, input);
    for index in 0..amount {
        let name = format!("many-{index}");
        match kind % 5 {
            0 => model.name(directory, name.as_bytes(), of, type_of(model, of).unwrap_or(8)),
            1 => {
                let new = new_object(model);
                model.edit(Key::inode(new), Some(plain(MODE_REGULAR, directory).encode().to_vec()));
                if input.byte() & 1 == 0 {
                    model.name(directory, name.as_bytes(), new, 8);
                }
            }
            2 => {
                let name = format!("user.{name}").into_bytes();
                let slot = model.superblock.name_hash().first(&name);
                let value = XattrValue::Inline(vec![b'v'; 20]);
                model.edit(Key::xattr(of, slot), Some(XattrItem { name, value }.encode()));
            }
            3 => model.edit(Key::orphan(ObjectNo(index + 1)), Some(OrphanReason::Truncated.encode())),
            _ => {
                let start = place(model, input);
                let page = index.wrapping_mul(input.number().max(1));
                model.edit(Key::extent(of, page), Some(ExtentItem::unwritten(start, 1).encode()));
            }
        }
    }
}

/// A file of the largest sizes.
fn huge_file(model: &mut Model, input: &mut Input<'_>) {
    let of = object(model, input);
    let size = edge(model, input, &range::INODE_SIZE, 1 << 40).min(range::INODE_SIZE.most);
    let blocks = edge(model, input, &range::INODE_BLOCKS, 7).min(range::INODE_BLOCKS.most);
    count(model, of, |inode| {
        if inode.is_regular() {
            (inode.size, inode.blocks) = (size, blocks);
        }
    });
}

/// Two items of a kind change places.
fn swap(model: &mut Model, input: &mut Input<'_>) {
    let Some((one, first)) = pick(model, input, |_| true) else { return };
    let Some((other, second)) = pick(model, input, |key| key.kind == one.kind) else { return };
    model.edit(one, Some(second));
    model.edit(other, Some(first));
}

/// An item's value is cut off or grows.
fn length(model: &mut Model, input: &mut Input<'_>) {
    let Some((key, mut value)) = pick(model, input, |_| true) else { return };
    let len = usize::from(input.u16()) % (ITEM_VALUE_BYTES_MAX + 1);
    value.resize(if input.byte() & 1 == 0 { len % (value.len() + 1) } else { len }, 0x41);
    model.edit(key, Some(value));
}

/// An inode of any type and with any numbers, named or not.
fn new_inode(model: &mut Model, input: &mut Input<'_>) {
    let (new, directory) = (new_object(model), directory(model, input));
    let file_type = TYPES[usize::from(input.byte()) % TYPES.len()];
    let mut value = plain(file_type << 12, directory).encode().to_vec();
    let fields: Vec<&Field> =
        range::ALL.iter().filter(|field| field.structure == Structure::Inode && field.at > 3).collect();
    for _ in 0..input.byte() % 4 {
        let field = fields[usize::from(input.byte()) % fields.len()];
        let number = edge(model, input, field, 0);
        value[field.at..field.at + field.bytes].copy_from_slice(&number.to_le_bytes()[..field.bytes]);
    }
    if input.byte() & 1 == 0 {
        make_legal(&mut value);
    }
    model.edit(Key::inode(new), Some(value));
    if input.byte() & 7 != 0 {
        let name = format!("new-{}", new.0);
        model.name(directory, name.as_bytes(), new, file_type as u8);
        if input.byte() & 1 == 0 {
            count(model, directory, |inode| {
                inode.entries += 1;
                inode.nlink = inode.nlink.saturating_add(u32::from(file_type == 4));
            });
        }
    }
}
