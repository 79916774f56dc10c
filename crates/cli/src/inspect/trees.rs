//! What the volume tree says of heads and snapshots, as the last checkpoint wrote it, and what each of them holds.

use super::journal::{key_text, row};
use super::tree::{Step, Walk};
use super::{Inspection, printing};
use crate::error::Failure;
use crate::list::date;
use crate::output::{Form, Table, printable};
use crate::volume::uuid_text;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use syncline_device::Device;
use syncline_format::item::{ExtentItem, Timestamp};
use syncline_format::node::{self, NodePointer};
use syncline_format::superblock::Superblock;
use syncline_format::tree_item::{OverlayItem, Role, TreeItem, TreeState};
use syncline_format::{BlockNo, Key, Kind, NODE_BYTES, TreeId};

const COLUMNS: &[(&str, usize)] = &[
    ("tree", 8),
    ("role", 8),
    ("state", 8),
    ("era", 6),
    ("parent", 8),
    ("made", 19),
    ("pages", 12),
    ("name", 1),
];

/// What the root tree and the volume tree say.
#[derive(Default)]
struct Trees {
    roots: BTreeMap<TreeId, NodePointer>,
    items: BTreeMap<TreeId, Result<TreeItem, String>>,
    /// Pages of each snapshot that its tree has otherwise.
    overlays: BTreeMap<TreeId, u64>,
    damage: Vec<(BlockNo, String)>,
}

/// Counts pages of extents. Trees share nodes, so each node is read once.
struct Pages<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    known: HashMap<BlockNo, Option<u64>>,
}

/// Lists the trees. True if nothing is damaged.
pub(super) fn show(inspection: &Inspection<'_>) -> Result<bool, Failure> {
    let superblock = inspection.superblocks.require(&inspection.arguments.path)?;
    let device = inspection.device();
    let trees = read(device, superblock).map_err(printing)?;
    let mut pages = Pages { device, superblock, known: HashMap::new() };
    let mut is_whole = trees.damage.is_empty();
    let mut print = || {
        let mut table = Table::new(inspection.form, COLUMNS)?;
        for (tree, item) in &trees.items {
            let root = trees.roots.get(tree);
            let held = root.map_or(Some(0), |root| pages.below(root));
            is_whole &= held.is_some() && item.is_ok();
            let overlay = trees.overlays.get(tree).copied().unwrap_or(0);
            let shown = match item {
                Ok(item) => describe(*tree, item, (root, held, overlay), inspection.form),
                Err(error) => json!({ "tree": tree.0, "role": "damaged", "damage": error, "name": error }),
            };
            table.row(&row(shown))?;
        }
        for (block, error) in &trees.damage {
            let name = format!("damaged node at block {block}: {error}");
            table.row(&row(json!({ "block": block.0, "damage": error, "name": name })))?;
        }
        table.finish()
    };
    print().map_err(printing)?;
    Ok(is_whole)
}

fn read(device: &dyn Device, superblock: &Superblock) -> std::io::Result<Trees> {
    let mut trees = Trees::default();
    let mut walk = Walk::new(device, superblock, Key::MIN, Key::MAX);
    walk.tree(TreeId::ROOT, superblock.root, &mut |step: Step<'_>| {
        trees.take(step);
        Ok(())
    })?;
    match trees.roots.get(&TreeId::VOLUME).copied() {
        Some(root) => walk.tree(TreeId::VOLUME, root, &mut |step: Step<'_>| {
            trees.take(step);
            Ok(())
        })?,
        // Version 1 has no tables: its main tree is the first head.
        None if superblock.trees.is_none() => {
            trees.items.insert(TreeId::MAIN, Ok(TreeItem::first_head()));
        }
        None => {
            let error = "the root tree does not lead to the volume tree".to_owned();
            trees.damage.push((superblock.root.block, error));
        }
    }
    Ok(trees)
}

impl Trees {
    fn take(&mut self, step: Step<'_>) {
        match step {
            Step::Item { key, value, .. } => {
                let tree = TreeId(u32::try_from(key.object.0).unwrap_or(u32::MAX));
                match key.kind {
                    Kind::Tree => self.roots.extend(NodePointer::decode(value).ok().map(|root| (tree, root))),
                    Kind::TreeInfo => {
                        let item = TreeItem::decode(value).map_err(|error| error.to_string());
                        self.items.insert(tree, item);
                    }
                    Kind::Overlay => {
                        let item = OverlayItem::decode(value);
                        let pages = item.map_or(0, |item| u64::from(item.extent.pages()));
                        *self.overlays.entry(tree).or_default() += pages;
                    }
                    _ => {}
                }
            }
            Step::Damage { pointer, error, .. } => self.damage.push((pointer.block, error)),
            Step::Node { .. } => {}
        }
    }
}

impl Pages<'_> {
    /// Pages of the extents below a node; `None` if some of them cannot be read.
    fn below(&mut self, pointer: &NodePointer) -> Option<u64> {
        if let Some(known) = self.known.get(&pointer.block) {
            return *known;
        }
        // Until all below is counted: levels fall, so nothing there leads back to it on a sound volume.
        self.known.insert(pointer.block, None);
        let pages = self.read(pointer).and_then(|bytes| {
            let count = usize::from(node::head(&bytes).count.get());
            let mut slots =
                (0..count).map(|index| (node::slot_key(&bytes, index), node::slot_value(&bytes, index)));
            slots.try_fold(0u64, |pages, (key, value)| {
                let more = match key.kind {
                    _ if pointer.level > 0 => self.below(&NodePointer::decode(value).ok()?)?,
                    Kind::Extent => u64::from(ExtentItem::decode(value).ok()?.pages()),
                    _ => 0,
                };
                pages.checked_add(more)
            })
        });
        self.known.insert(pointer.block, pages);
        pages
    }

    fn read(&self, pointer: &NodePointer) -> Option<Vec<u8>> {
        self.superblock.layout.holds_node(pointer.block).then_some(())?;
        let mut bytes = vec![0; NODE_BYTES];
        self.device.read(pointer.block, &mut bytes).ok()?;
        node::verify(&bytes, pointer, TreeId::MAIN, self.superblock.volume_id()).ok()?;
        Some(bytes)
    }
}

fn describe(
    tree: TreeId,
    item: &TreeItem,
    (root, pages, overlay): (Option<&NodePointer>, Option<u64>, u64),
    form: Form,
) -> Value {
    let (state, cursor) = match item.state {
        TreeState::Deleting { cursor } => ("deleting", Some(key_text(cursor))),
        TreeState::Live if item.is_hidden => ("hidden", None),
        TreeState::Live if item.is_default => ("default", None),
        TreeState::Live => ("live", None),
    };
    let name = if form == Form::Json { item.name.clone() } else { printable(&item.name) };
    json!({
        "tree": tree.0,
        "role": match item.role {
            Role::Head => "head",
            Role::Snapshot => "snapshot",
        },
        "state": state,
        "era": item.era.0,
        "parent": item.parent.map(|parent| parent.0),
        "made": (item.made != Timestamp::default()).then(|| date(item.made)),
        "pages": pages,
        "overlay_pages": overlay,
        "name": name,
        "uuid": uuid_text(&item.uuid),
        "known": item.known.0,
        "lsn": item.lsn.0,
        "cursor": cursor,
        "held": item.stay.is_held,
        "root_block": root.map(|root| root.block.0),
        "root_birth": root.map(|root| root.birth.0),
    })
}
