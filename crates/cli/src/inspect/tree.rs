//! The trees of the last checkpoint: nodes, items, one inode, extents.
//!
//! The walk verifies every node against the pointer that led to it. A damaged node is shown and passed over. No node
//! is visited twice, so a hostile image cannot make the walk longer than the device.

use super::journal::{key_text, row};
use super::path::Paths;
use super::{Inspection, printing};
use crate::error::Failure;
use crate::output::{self, Table};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::io;
use syncline_device::Device;
use syncline_format::item::{
    DirentItem, ExtentContent, ExtentItem, InodeItem, MODE_BLOCK, MODE_CHARACTER, MODE_DIRECTORY, MODE_FIFO,
    MODE_REGULAR, MODE_SOCKET, MODE_SYMLINK, MODE_TYPE_MASK, OrphanReason, Timestamp, XattrItem, XattrValue,
};
use syncline_format::node::{self, NodePointer};
use syncline_format::schedule::Schedule;
use syncline_format::superblock::Superblock;
use syncline_format::tree_item::{OverlayItem, TreeItem};
use syncline_format::{BlockNo, FormatError, Key, Kind, NODE_BYTES, ObjectNo, TreeId};

const NODE_COLUMNS: &[(&str, usize)] = &[
    ("tree", 4),
    ("level", 5),
    ("block", 10),
    ("generation", 10),
    ("slots", 5),
    ("used_percent", 12),
    ("first_key", 30),
];
const ITEM_COLUMNS: &[(&str, usize)] =
    &[("tree", 4), ("object", 10), ("kind", 10), ("offset", 20), ("bytes", 5), ("value", 40), ("path", 0)];
const EXTENT_COLUMNS: &[(&str, usize)] =
    &[("inode", 10), ("page", 12), ("pages", 5), ("block", 12), ("state", 9), ("path", 0)];

/// What the walk meets.
pub(super) enum Step<'a> {
    Node { pointer: NodePointer, tree: TreeId, bytes: &'a [u8] },
    Item { tree: TreeId, key: Key, value: &'a [u8] },
    Damage { pointer: NodePointer, tree: TreeId, error: String },
}

pub(super) type Visit<'v> = &'v mut dyn FnMut(Step<'_>) -> io::Result<()>;

/// A walk over nodes whose keys may lie in `first..=last`.
pub(super) struct Walk<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    first: Key,
    last: Key,
    seen: HashSet<BlockNo>,
    pub(super) damaged: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(device: &'a dyn Device, superblock: &'a Superblock, first: Key, last: Key) -> Walk<'a> {
        Walk { device, superblock, first, last, seen: HashSet::new(), damaged: false }
    }

    /// Walks the main tree, found through the root tree. Another head that is shown when nobody names one stands for
    /// it.
    pub(super) fn main_tree(&mut self, visit: Visit<'_>) -> io::Result<()> {
        let mut roots = BTreeMap::new();
        let mut find = |step: Step<'_>| {
            if let Step::Item { key, value, .. } = step
                && key.kind == Kind::Tree
            {
                roots.insert(key.object.0, NodePointer::decode(value));
            }
            Ok(())
        };
        let mut walk = Walk::new(self.device, self.superblock, Key::MIN, Key::MAX);
        walk.tree(TreeId::ROOT, self.superblock.root, &mut find)?;
        let mut default = u64::from(TreeId::MAIN.0);
        if let Some(Ok(volume)) = roots.get(&u64::from(TreeId::VOLUME.0)) {
            walk.tree(TreeId::VOLUME, *volume, &mut |step: Step<'_>| {
                if let Step::Item { key, value, .. } = step
                    && key.kind == Kind::TreeInfo
                    && TreeItem::decode(value).is_ok_and(|item| item.is_default)
                {
                    default = key.object.0;
                }
                Ok(())
            })?;
        }
        match roots.remove(&default) {
            Some(Ok(pointer)) => self.tree(TreeId::MAIN, pointer, visit),
            other => {
                self.damaged = true;
                let error = match other {
                    Some(Err(error)) => error.to_string(),
                    _ => "the root tree does not lead to the main tree".to_owned(),
                };
                visit(Step::Damage { pointer: self.superblock.root, tree: TreeId::ROOT, error })
            }
        }
    }

    /// Walks the tree below this root.
    pub(super) fn tree(&mut self, tree: TreeId, root: NodePointer, visit: Visit<'_>) -> io::Result<()> {
        let mut pending = vec![root];
        while let Some(pointer) = pending.pop() {
            match self.read(tree, pointer) {
                Ok(bytes) => self.node(tree, pointer, &bytes, &mut pending, visit)?,
                Err(error) => {
                    self.damaged = true;
                    visit(Step::Damage { pointer, tree, error })?;
                }
            }
        }
        Ok(())
    }

    fn node(
        &mut self,
        tree: TreeId,
        pointer: NodePointer,
        bytes: &[u8],
        pending: &mut Vec<NodePointer>,
        visit: Visit<'_>,
    ) -> io::Result<()> {
        visit(Step::Node { pointer, tree, bytes })?;
        let count = usize::from(node::head(bytes).count.get());
        if pointer.level == 0 {
            let items =
                (0..count).map(|index| (node::slot_key(bytes, index), node::slot_value(bytes, index)));
            for (key, value) in items.filter(|(key, _)| (self.first..=self.last).contains(key)) {
                visit(Step::Item { tree, key, value })?;
            }
            return Ok(());
        }
        // Reversed, so that the smallest keys come off the stack first.
        for index in (0..count).rev() {
            let below_last = index == 0 || node::slot_key(bytes, index) <= self.last;
            let above_first = index + 1 == count || node::slot_key(bytes, index + 1) > self.first;
            if below_last && above_first {
                let child = NodePointer::decode(node::slot_value(bytes, index));
                pending.push(child.expect("a verified node holds decodable pointers"));
            }
        }
        Ok(())
    }

    fn read(&mut self, tree: TreeId, pointer: NodePointer) -> Result<Vec<u8>, String> {
        if !self.superblock.layout.holds_node(pointer.block) {
            return Err("no node may lie there".to_owned());
        }
        if !self.seen.insert(pointer.block) {
            return Err("the node is referenced twice".to_owned());
        }
        let mut bytes = vec![0; NODE_BYTES];
        self.device.read(pointer.block, &mut bytes).map_err(|error| error.to_string())?;
        let verified = node::verify(&bytes, &pointer, tree, self.superblock.volume_id());
        verified.map_err(|error: FormatError| error.to_string())?;
        Ok(bytes)
    }
}

/// Shows all nodes of both trees, or with `--items` all items. True if nothing is damaged.
pub(super) fn show_nodes(inspection: &Inspection<'_>) -> Result<bool, Failure> {
    let superblock = inspection.superblocks.require(&inspection.arguments.path)?;
    let items = inspection.arguments.items;
    let columns = if items { ITEM_COLUMNS } else { NODE_COLUMNS };
    let mut table = Table::new(inspection.form, columns).map_err(printing)?;
    let only = inspection.inode()?;
    let paths = if items { Paths::read(inspection)? } else { Paths::default() };
    let is_shown =
        |tree: TreeId, key: Key| only.is_none_or(|only| tree == TreeId::MAIN && key.object == only);
    let mut walk = Walk::new(inspection.device(), superblock, Key::MIN, Key::MAX);
    let mut visit = |step: Step<'_>| {
        match step {
        Step::Node { pointer, tree, bytes } if !items => table.row(&row(describe_node(pointer, tree, bytes))),
        Step::Item { tree, key, value } if items && is_shown(tree, key) => {
            let mut shown = row(describe_item(tree, key, value));
            shown.insert("path".to_owned(), paths.path_in(tree, key.object).into());
            table.row(&shown)
        }
        Step::Damage { pointer, tree, error } => table.row(&row(json!({
            "tree": tree.0, "level": pointer.level, "block": pointer.block.0, "damage": error,
            "first_key": format!("damaged: {error}"), "kind": "damaged", "value": format!("block {}: {error}", pointer.block),
        }))),
        _ => Ok(()),
    }
    };
    let result = walk.tree(TreeId::ROOT, superblock.root, &mut visit).and_then(|()| {
        // A tree of its own: the blocks of the root tree have been seen already, but only there.
        walk.main_tree(&mut visit)
    });
    result.and_then(|()| table.finish()).map_err(printing)?;
    Ok(!walk.damaged)
}

fn describe_node(pointer: NodePointer, tree: TreeId, bytes: &[u8]) -> Value {
    let head = node::head(bytes);
    let slots = usize::from(head.count.get());
    // Deleted values leave gaps in the heap, so the values themselves are counted.
    let values: usize = (0..slots).map(|index| node::slot_value(bytes, index).len()).sum();
    let used = slots * node::SLOT_BYTES + values;
    json!({
        "tree": tree.0,
        "level": pointer.level,
        "block": pointer.block.0,
        "generation": pointer.generation.0,
        "slots": slots,
        "used_percent": 100 * used / node::NODE_SPACE_BYTES,
        "first_key": if slots == 0 { "(empty)".to_owned() } else { key_text(node::slot_key(bytes, 0)) },
    })
}

fn describe_item(tree: TreeId, key: Key, value: &[u8]) -> Value {
    json!({
        "tree": tree.0,
        "object": key.object.0,
        "kind": format!("{:?}", key.kind),
        "offset": key.offset,
        "bytes": value.len(),
        "value": summary(key, value),
    })
}

/// An item's value in a few words.
fn summary(key: Key, value: &[u8]) -> String {
    let text = match key.kind {
        Kind::Inode => InodeItem::decode(value).map(|inode| {
            format!(
                "{} mode {:o} nlink {} size {}",
                type_name(inode.mode),
                inode.mode,
                inode.nlink,
                inode.size
            )
        }),
        Kind::Symlink => Ok(String::from_utf8_lossy(value).into_owned()),
        Kind::Dirent => DirentItem::decode(value)
            .map(|dirent| format!("{} -> inode {}", String::from_utf8_lossy(&dirent.name), dirent.inode)),
        Kind::Xattr => {
            XattrItem::decode(value).map(|xattr| String::from_utf8_lossy(&xattr.name).into_owned())
        }
        Kind::Extent => ExtentItem::decode(value)
            .map(|extent| format!("block {} +{} {}", extent.start, extent.pages(), state(&extent))),
        Kind::Orphan => OrphanReason::decode(value).map(|reason| format!("{reason:?}").to_lowercase()),
        Kind::Tree => NodePointer::decode(value).map(|pointer| format!("node at block {}", pointer.block)),
        Kind::TreeInfo => {
            TreeItem::decode(value).map(|tree| format!("{:?} {}", tree.role, tree.name).to_lowercase())
        }
        Kind::Overlay => OverlayItem::decode(value)
            .map(|item| format!("object {} page {} block {}", item.object, item.page, item.extent.start)),
        Kind::Policy => Schedule::decode(value).map(|schedule| schedule.to_string()),
        Kind::XattrPiece | Kind::Shared => Ok(String::new()),
    };
    text.unwrap_or_else(|error| format!("undecodable: {error}"))
}

/// Shows one inode with everything it holds.
pub(super) fn show_inode(inspection: &Inspection<'_>) -> Result<bool, Failure> {
    let number = inspection.inode()?.ok_or(Failure::InodeNeeded)?;
    let path = &inspection.arguments.path;
    let superblock = inspection.superblocks.require(path)?;
    let mut inode = None;
    let mut parts = InodeParts::default();
    let mut walk =
        Walk::new(inspection.device(), superblock, Key::new(number, Kind::Inode, 0), last_of(number));
    let mut visit = |step: Step<'_>| {
        match step {
            Step::Item { key, value, .. } if key.kind == Kind::Inode => {
                inode = Some(describe_inode(number, value))
            }
            Step::Item { key, value, .. } => parts.add(key, value),
            Step::Damage { pointer, error, .. } => {
                parts.damage.push(format!("node at block {}: {error}", pointer.block).into())
            }
            Step::Node { .. } => {}
        }
        Ok(())
    };
    walk.main_tree(&mut visit).map_err(printing)?;
    if inode.is_none() && parts.is_empty() {
        return Err(Failure::NoInode { path: path.clone(), number: number.0 });
    }
    let mut shown =
        inode.unwrap_or_else(|| json!({ "inode": number.0, "error": "the inode item is missing" }));
    if let Value::Object(shown) = &mut shown {
        let paths = Paths::read(inspection)?.paths(number);
        shown.insert("paths".to_owned(), paths.into());
        parts.put_into(shown);
    }
    output::object(inspection.form, &shown).map_err(printing)?;
    Ok(!walk.damaged)
}

/// Lists that belong to an inode.
#[derive(Default)]
struct InodeParts {
    target: Option<Value>,
    entries: Vec<Value>,
    xattrs: Vec<Value>,
    extents: Vec<Value>,
    damage: Vec<Value>,
}

impl InodeParts {
    fn add(&mut self, key: Key, value: &[u8]) {
        match key.kind {
            Kind::Symlink => self.target = Some(String::from_utf8_lossy(value).into()),
            Kind::Dirent => match DirentItem::decode(value) {
                Ok(dirent) => self.entries.push(json!({
                    "name": String::from_utf8_lossy(&dirent.name), "inode": dirent.inode.0,
                    "type": type_name(u32::from(dirent.file_type) << 12), "cookie": key.offset,
                })),
                Err(error) => self.damage.push(format!("entry {}: {error}", key.offset).into()),
            },
            Kind::Xattr => match XattrItem::decode(value) {
                Ok(xattr) => {
                    let bytes = match &xattr.value {
                        XattrValue::Inline(value) => value.len() as u64,
                        XattrValue::Pieces { len, .. } => u64::from(*len),
                    };
                    self.xattrs.push(json!({ "name": String::from_utf8_lossy(&xattr.name), "bytes": bytes }));
                }
                Err(error) => self.damage.push(format!("attribute {}: {error}", key.offset).into()),
            },
            Kind::Extent => match ExtentItem::decode(value) {
                Ok(extent) => self.extents.push(json!({
                    "page": key.offset, "pages": extent.pages(), "block": extent.start.0, "state": state(&extent),
                })),
                Err(error) => self.damage.push(format!("extent at page {}: {error}", key.offset).into()),
            },
            _ => {}
        }
    }

    fn is_empty(&self) -> bool {
        let lists = [&self.entries, &self.xattrs, &self.extents, &self.damage];
        self.target.is_none() && lists.iter().all(|list| list.is_empty())
    }

    fn put_into(self, shown: &mut serde_json::Map<String, Value>) {
        let named = [
            ("directory_entries", self.entries),
            ("xattrs", self.xattrs),
            ("extents", self.extents),
            ("damage", self.damage),
        ];
        shown.extend(self.target.map(|target| ("target".to_owned(), target)));
        for (name, list) in named.into_iter().filter(|(_, list)| !list.is_empty()) {
            shown.insert(name.to_owned(), list.into());
        }
    }
}

fn describe_inode(number: ObjectNo, value: &[u8]) -> Value {
    let inode = match InodeItem::decode(value) {
        Ok(inode) => inode,
        Err(error) => return json!({ "inode": number.0, "error": error.to_string() }),
    };
    let time = |time: Timestamp| format!("{}.{:09}", time.seconds, time.nanoseconds);
    json!({
        "inode": number.0,
        "type": type_name(inode.mode),
        "mode": format!("{:06o}", inode.mode),
        "nlink": inode.nlink,
        "uid": inode.uid,
        "gid": inode.gid,
        "size": inode.size,
        "blocks": inode.blocks,
        "accessed": time(inode.accessed),
        "modified": time(inode.modified),
        "changed": time(inode.changed),
        "created": time(inode.created),
        "device": format!("{}:{}", inode.rdev >> 32, inode.rdev & 0xffff_ffff),
        "parent": inode.parent.0,
        "entries": inode.entries,
        "flags": inode.flags,
    })
}

/// Shows the extents of one inode, or of all.
pub(super) fn show_extents(inspection: &Inspection<'_>) -> Result<bool, Failure> {
    let superblock = inspection.superblocks.require(&inspection.arguments.path)?;
    let paths = Paths::read(inspection)?;
    let (first, last) = match inspection.inode()? {
        Some(number) => (Key::extent(number, 0), Key::extent(number, u64::MAX)),
        None => (Key::MIN, Key::MAX),
    };
    let mut table = Table::new(inspection.form, EXTENT_COLUMNS).map_err(printing)?;
    let mut walk = Walk::new(inspection.device(), superblock, first, last);
    let mut visit = |step: Step<'_>| match step {
        Step::Item { key, value, .. } if key.kind == Kind::Extent => {
            let inode = key.object.0;
            let shown = match ExtentItem::decode(value) {
                Ok(extent) => json!({
                    "inode": inode, "page": key.offset, "pages": extent.pages(), "block": extent.start.0, "state": state(&extent),
                }),
                Err(error) => {
                    json!({ "inode": inode, "page": key.offset, "state": format!("undecodable: {error}") })
                }
            };
            let mut shown = row(shown);
            shown.insert("path".to_owned(), paths.path(key.object).into());
            table.row(&shown)
        }
        Step::Damage { pointer, error, .. } => table.row(&row(json!({
            "block": pointer.block.0, "state": format!("damaged node: {error}"), "damage": error,
        }))),
        _ => Ok(()),
    };
    let result = walk.main_tree(&mut visit);
    result.and_then(|()| table.finish()).map_err(printing)?;
    Ok(!walk.damaged)
}

/// The largest key of an object.
fn last_of(number: ObjectNo) -> Key {
    Key::new(number, Kind::Shared, u64::MAX)
}

fn state(extent: &ExtentItem) -> &'static str {
    match extent.content {
        ExtentContent::Written(_) => "written",
        ExtentContent::Unwritten { .. } => "unwritten",
    }
}

fn type_name(mode: u32) -> &'static str {
    match mode & MODE_TYPE_MASK {
        MODE_REGULAR => "file",
        MODE_DIRECTORY => "directory",
        MODE_SYMLINK => "symlink",
        MODE_FIFO => "fifo",
        MODE_SOCKET => "socket",
        MODE_BLOCK => "block device",
        MODE_CHARACTER => "character device",
        _ => "unknown",
    }
}
