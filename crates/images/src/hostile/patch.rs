//! Changes of a golden image, read from an input: raw bytes anywhere, fields of items and keys, superblock fields,
//! bits, and batches appended to the log (by which any item at all can be put in place).

use super::input::Input;
use super::seal;
use crate::golden::RECIPES;
use crate::packed::SparseImage;
use std::sync::OnceLock;
use syncline_format::batch::{BatchBuf, Op, Outcome};
use syncline_format::item::{
    DirentItem, EXTENT_PAGES_MAX, ExtentItem, InodeItem, OrphanReason, Shift, Timestamp, XattrItem,
    XattrValue,
};
use syncline_format::node::{NODE_HEADER_BYTES, SLOT_BYTES};
use syncline_format::superblock::SUPERBLOCK_SLOTS;
use syncline_format::tree_item::{OverlayItem, Role, TreeItem, TreeState};
use syncline_format::{
    BLOCK_BYTES, BlockNo, Era, GroupNo, Key, Kind, NODE_BYTES, NameHash, ObjectNo, TreeId, checksum,
};

const CHANGES_MAX: usize = 48;
const OPS_MAX: u8 = 16;

/// The golden images that inputs start from; inputs name them by their place here, so the order stays. The one of
/// many nodes is left out: it is slow, and shows nothing more.
pub const BASES: [&str; 16] = [
    "v1-empty",
    "v1-clean",
    "v1-smallest",
    "v1-attributes",
    "v1-journal",
    "v1-page-images",
    "v1-ring-wrapped",
    "v1-torn-record",
    "v1-orphans",
    "v1-truncating",
    "v1-nearly-full",
    "v1-both-bitmap-slots",
    "v1-two-groups",
    "v1-recovery-cut",
    "v1-journal",
    "v1-page-images",
];

/// Those of version 2. The one of very many trees is left out for the same reason.
pub const FORESTS: [&str; 11] = [
    "v2-empty",
    "v2-clean",
    "v2-snapshots",
    "v2-journal-snapshot",
    "v2-inherited-images",
    "v2-overlay",
    "v2-deleting",
    "v2-hidden-branch",
    "v2-heads",
    "v2-recovery-cut-snapshot",
    "v2-upgraded",
];

fn bases() -> &'static [(&'static str, SparseImage)] {
    static LOADED: OnceLock<Vec<(&'static str, SparseImage)>> = OnceLock::new();
    LOADED.get_or_init(|| {
        let recipe = |name| RECIPES.iter().find(|recipe| recipe.name == name).expect("a recipe of this name");
        let load = |name| recipe(name).load().expect("golden images are in the tree").image;
        BASES.into_iter().chain(FORESTS).map(|name| (name, load(name))).collect()
    })
}

/// The base of this name.
pub fn base(name: &str) -> &'static SparseImage {
    let found = bases().iter().find(|(candidate, _)| *candidate == name);
    &found.expect("a base of this name").1
}

/// The image that an input describes: number of the base, whether to seal (even) or not (odd), changes.
pub fn build(input: &mut Input<'_>) -> SparseImage {
    changed(&bases()[..BASES.len()], input)
}

/// The same of a volume of version 2.
pub fn build_forest(input: &mut Input<'_>) -> SparseImage {
    changed(&bases()[BASES.len()..], input)
}

fn changed(bases: &[(&'static str, SparseImage)], input: &mut Input<'_>) -> SparseImage {
    let mut image = bases[usize::from(input.byte()) % bases.len()].1.clone();
    let unsealed = input.byte() & 1 != 0;
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        change(&mut image, input);
    }
    if !unsealed {
        seal::seal(&mut image);
    }
    image
}

fn change(image: &mut SparseImage, input: &mut Input<'_>) {
    match input.byte() % 8 {
        0 => raw(image, input),
        1 => item_value(image, input),
        2 => item_key(image, input),
        3 => superblock_field(image, input),
        4 => bits(image, input),
        5 => append_batch(image, input),
        6 => record_bytes(image, input),
        _ => node_bytes(image, input),
    }
}

fn short<'a>(input: &mut Input<'a>) -> &'a [u8] {
    let len = usize::from(input.byte() % 32) + 1;
    input.take(len)
}

/// Bytes within a block that holds something.
fn raw(image: &mut SparseImage, input: &mut Input<'_>) {
    let index = usize::from(input.u16()) % image.content.len().max(1);
    let at = u64::from(input.u16()) % BLOCK_BYTES as u64;
    let bytes = short(input);
    if let Some(&block) = image.content.keys().nth(index) {
        image.patch(block * BLOCK_BYTES as u64 + at, bytes);
    }
}

/// Place of an item in its node: the node's block, the slot's offset, the value's offset and length.
struct Place {
    node: BlockNo,
    slot: usize,
    value: (usize, usize),
}

fn item(image: &SparseImage, index: u16) -> Option<Place> {
    let mut places = Vec::new();
    for met in seal::nodes(image).iter().filter(|met| met.level == 0) {
        let node = image.bytes(met.block.byte_offset(), NODE_BYTES);
        for (slot, value) in seal::values(&node).into_iter().enumerate() {
            places.push(Place { node: met.block, slot: NODE_HEADER_BYTES + slot * SLOT_BYTES, value });
        }
    }
    let count = places.len().max(1);
    places.into_iter().nth(usize::from(index) % count)
}

fn item_value(image: &mut SparseImage, input: &mut Input<'_>) {
    let (index, at, bytes) = (input.u16(), usize::from(input.byte()), short(input));
    if let Some(Place { node, value: (start, len), .. }) = item(image, index)
        && len > 0
    {
        let at = at % len;
        let fits = bytes.len().min(len - at);
        image.patch(node.byte_offset() + (start + at) as u64, &bytes[..fits]);
    }
}

fn item_key(image: &mut SparseImage, input: &mut Input<'_>) {
    let (index, field, value) = (input.u16(), input.byte(), input.number());
    let Some(Place { node, slot, .. }) = item(image, index) else { return };
    let at = node.byte_offset() + slot as u64;
    match field % 4 {
        0 => image.patch(at, &value.to_le_bytes()),
        1 => image.patch(at + 8, &value.to_le_bytes()),
        2 => image.patch(at + 16, &(value as u32).to_le_bytes()),
        _ => image.patch(at + 20, &[value as u8]),
    }
}

/// A field behind the label, in one slot or both.
fn superblock_field(image: &mut SparseImage, input: &mut Input<'_>) {
    let (which, field, value) = (input.byte(), u64::from(input.byte() % 24), input.number());
    for (slot, at) in SUPERBLOCK_SLOTS.into_iter().enumerate() {
        if which % 3 != slot as u8 {
            image.patch(at.byte_offset() + 104 + 8 * field, &value.to_le_bytes());
        }
    }
}

fn bits(image: &mut SparseImage, input: &mut Input<'_>) {
    let (slot, from, len, value) = (input.byte(), input.u16(), input.byte(), input.byte());
    let Some(superblock) = seal::superblock(image) else { return };
    let block = superblock.layout.bitmap_slot(GroupNo(0), slot & 1);
    let len = usize::from(len % 64) + 1;
    let at = 40 + u64::from(from) % (BLOCK_BYTES as u64 - 40);
    image.patch(block.byte_offset() + at, &vec![value; len.min(BLOCK_BYTES - at as usize)]);
}

fn append_batch(image: &mut SparseImage, input: &mut Input<'_>) {
    let mut batch = BatchBuf::new();
    for _ in 0..input.byte() % OPS_MAX + 1 {
        operation(&mut batch, input, image);
    }
    let bytes = batch.into_encoded();
    seal::append(image, &bytes, 1);
}

fn record_bytes(image: &mut SparseImage, input: &mut Input<'_>) {
    let (index, at, bytes) = (usize::from(input.byte()), u64::from(input.u16()), short(input));
    let Some(superblock) = seal::superblock(image) else { return };
    let records = seal::journal_end(image, &superblock).records;
    if let Some(&(block, blocks)) = records.get(index % records.len().max(1)) {
        let start = superblock.layout.journal_start.plus(block).byte_offset();
        image.patch(start + at % (blocks * BLOCK_BYTES as u64), bytes);
    }
}

fn node_bytes(image: &mut SparseImage, input: &mut Input<'_>) {
    let (index, at, bytes) = (usize::from(input.u16()), u64::from(input.u16()), short(input));
    let nodes = seal::nodes(image);
    if let Some(met) = nodes.get(index % nodes.len().max(1)) {
        image.patch(met.block.byte_offset() + at % NODE_BYTES as u64, bytes);
    }
}

/// Appends one operation to a batch.
pub fn operation(batch: &mut BatchBuf, input: &mut Input<'_>, image: &SparseImage) {
    let superblock = seal::superblock(image);
    let has_trees = superblock.as_ref().is_some_and(|found| found.trees.is_some());
    let tree = match input.byte() {
        200.. if has_trees => {
            return tree_operation(batch, input, superblock.map_or(0, |s| s.layout.groups_start.0));
        }
        180..200 if has_trees => TreeId::VOLUME,
        0..250 => TreeId::MAIN,
        _ => TreeId(input.number() as u32),
    };
    let (hash, groups_start) =
        superblock.map_or((NameHash::Seeded(0), 0), |found| (found.name_hash(), found.layout.groups_start.0));
    match input.byte() % 8 {
        0..3 => {
            let (key, value) = any_item(input, hash, groups_start);
            let fresh = key.kind == Kind::Extent && input.byte() & 1 != 0;
            batch.push(Op::Put { tree, key, value: &value, fresh });
        }
        3 => {
            let key = any_key(input, hash);
            batch.push(Op::Delete { tree, key });
        }
        4 | 5 => {
            let start = block(input, groups_start);
            let len = input.number() as u32;
            let allocate = input.byte() & 1 != 0;
            batch.push(if allocate { Op::Allocate { start, len } } else { Op::Free { start, len } });
        }
        6 => {
            let (object, page) = (ObjectNo(input.number()), input.number());
            let bytes = short(input);
            batch.push(Op::Image { tree, object, page, bytes });
        }
        _ => {
            let (object, first, end) = (ObjectNo(input.number()), input.number(), input.number());
            batch.push(Op::Drop { tree, object, first, end });
        }
    }
}

/// A tree by a number that there is, mostly.
fn any_tree(input: &mut Input<'_>) -> TreeId {
    match input.byte() {
        small @ 0..200 => TreeId(u32::from(small % 8) + 16),
        200..240 => TreeId::MAIN,
        _ => TreeId(input.number() as u32),
    }
}

/// What makes, changes and ends trees.
fn tree_operation(batch: &mut BatchBuf, input: &mut Input<'_>, groups_start: u64) {
    let (tree, other) = (any_tree(input), any_tree(input));
    match input.byte() % 6 {
        0 => {
            let source = Some(other).filter(|other| other.0 != 0);
            let role = if input.byte() & 1 == 0 { Role::Snapshot } else { Role::Head };
            batch.push(Op::MakeTree { tree, source, role, era: Era(input.number() as u32) });
        }
        1 => batch.push(Op::TreeGone { tree }),
        2 => {
            let outcome = [Outcome::Free, Outcome::Left, Outcome::Shared][usize::from(input.byte() % 3)];
            let (start, len, birth) =
                (block(input, groups_start), input.number() as u32, Era(input.number() as u32));
            batch.push(Op::Release { outcome, start, len, birth });
        }
        3 => {
            let extent = ExtentItem::written(block(input, groups_start), vec![checksum(&[0; BLOCK_BYTES])]);
            let birth = Era(input.number() as u32);
            let item = OverlayItem {
                object: ObjectNo(input.number()),
                page: input.number(),
                extent: extent.born(birth),
            };
            let key = Key::overlay(tree, u64::from(input.byte()));
            batch.push(Op::Put {
                tree: TreeId::VOLUME,
                key,
                value: &item.encode(),
                fresh: input.byte() & 1 == 0,
            });
        }
        4 => batch.push(Op::Delete { tree: TreeId::VOLUME, key: Key::tree_info(tree) }),
        _ => {
            let item = tree_item(input, other);
            let key = Key::tree_info(tree);
            batch.push(Op::Put { tree: TreeId::VOLUME, key, value: &item.encode(), fresh: false });
        }
    }
}

/// What a tree may be said to be.
pub fn tree_item(input: &mut Input<'_>, parent: TreeId) -> TreeItem {
    let how = input.byte();
    let (kind, cursor) = (input.byte() % 7 + 1, (ObjectNo(input.number()), input.number()));
    let kind = Kind::try_from(kind).expect("one of the known kinds");
    let cursors = [Key::MIN, Key::MAX, Key::new(cursor.0, kind, cursor.1)];
    let era = Era(input.number() as u32);
    let is_snapshot = how & 1 == 0;
    let name: String = short(input).iter().map(|byte| char::from(b'a' + byte % 26)).collect();
    TreeItem {
        role: if is_snapshot { Role::Snapshot } else { Role::Head },
        state: match how & 6 {
            0 => TreeState::Deleting { cursor: cursors[usize::from(how / 8 % 3)] },
            _ => TreeState::Live,
        },
        is_default: how & 0x20 != 0,
        is_hidden: how & 0x40 != 0,
        era: if is_snapshot { era } else { Era(0) },
        parent: Some(parent).filter(|parent| parent.0 != 0 && how & 0x80 == 0),
        known: if is_snapshot { Era(0) } else { era },
        name,
        ..TreeItem::first_head()
    }
}

/// Relative to the first group, or anywhere.
fn block(input: &mut Input<'_>, groups_start: u64) -> BlockNo {
    match input.byte() {
        0..0xf0 => BlockNo(groups_start + u64::from(input.u16() % 2048)),
        _ => BlockNo(input.number()),
    }
}

fn any_key(input: &mut Input<'_>, hash: NameHash) -> Key {
    let object = ObjectNo(input.number());
    let kind = Kind::try_from(input.byte() % 10 + 1).expect("one of the known kinds");
    let offset = match input.byte() {
        0 => 0,
        1 => hash.first(short(input)),
        _ => input.number(),
    };
    Key::new(object, kind, offset)
}

/// A key with a value of its kind, or with any bytes.
fn any_item(input: &mut Input<'_>, hash: NameHash, groups_start: u64) -> (Key, Vec<u8>) {
    let key = any_key(input, hash);
    if input.byte() >= 0xe0 {
        return (key, short(input).to_vec());
    }
    match key.kind {
        Kind::Inode => (Key::inode(key.object), inode(input).encode().to_vec()),
        Kind::Dirent => {
            let (inode, file_type, name) = (ObjectNo(input.number()), input.byte(), short(input).to_vec());
            let slot = hash.first(&name).wrapping_add(u64::from(input.byte() % 9));
            (Key::dirent(key.object, slot), DirentItem { inode, file_type, name }.encode())
        }
        Kind::Xattr => {
            let name = [b"user.", short(input)].concat();
            let value = match input.byte() & 1 {
                0 => XattrValue::Inline(short(input).to_vec()),
                _ => XattrValue::Pieces { number: input.number(), len: input.number() as u32 },
            };
            (Key::xattr(key.object, hash.first(&name)), XattrItem { name, value }.encode())
        }
        Kind::Extent => {
            let (start, pages) = (block(input, groups_start), input.number() as u32 % EXTENT_PAGES_MAX + 1);
            let extent = match input.byte() & 1 {
                0 => ExtentItem::unwritten(start, pages),
                _ => ExtentItem::written(start, vec![checksum(&[0; BLOCK_BYTES]); pages as usize]),
            };
            (key, extent.encode())
        }
        Kind::Orphan => (Key::orphan(ObjectNo(key.offset)), orphan(input)),
        _ => (key, short(input).to_vec()),
    }
}

fn orphan(input: &mut Input<'_>) -> Vec<u8> {
    let reason = input.byte() % 6;
    if reason < 4 {
        return vec![reason];
    }
    let (first, count, next) = (input.number(), input.number(), input.number());
    OrphanReason::Shifting(Shift { first, count, inserts: reason == 4, next }).encode()
}

fn inode(input: &mut Input<'_>) -> InodeItem {
    let time = |seconds: u64| Timestamp { seconds: seconds as i64, nanoseconds: 0 };
    let types = [1, 2, 4, 6, 8, 10, 12];
    InodeItem {
        mode: types[usize::from(input.byte()) % types.len()] << 12 | 0o644,
        nlink: input.number() as u32,
        uid: 0,
        gid: 0,
        size: input.number(),
        blocks: input.number(),
        accessed: time(input.number()),
        modified: time(0),
        changed: time(0),
        created: time(0),
        rdev: input.number(),
        parent: ObjectNo(input.number()),
        entries: input.number(),
        flags: input.number() as u32,
        project: 0,
    }
}
