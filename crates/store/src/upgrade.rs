//! From version 1 of the format to version 2, of a volume that nobody has open.
//!
//! A volume that was closed is one checkpoint, and nothing in its log counts. The upgrade is another checkpoint behind
//! it (R21): two leaves in free blocks, the volume tree's with the item of the first head and the root tree's, and the
//! bitmaps of their groups in the slots that do not count; then a flush, the superblock of version 2, a flush. Until
//! that superblock is whole the old one counts, and what it names is as it was. All nodes and extents stay where they
//! are, with birth 0.

use crate::limits::{DELETION_CHUNKS, UPGRADE_CHUNKS};
use crate::mkfs::write_leaf;
use crate::open::{choose_superblock, load_bitmaps};
use crate::root_tree::RootTree;
use crate::space::SpaceMap;
use crate::tree::cache::NodeCache;
use crate::{Store, StoreError};
use std::sync::Arc;
use syncline_device::{Buffer, Device};
use syncline_format::node::NodePointer;
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock, TreesState, VolumeState};
use syncline_format::tree_item::TreeItem;
use syncline_format::{Key, TreeId, bitmap};

impl Store {
    /// Makes a volume of version 2 of one of version 1 that was closed; `false` if it has version 2 already. The other
    /// superblock slot still names the volume of version 1: opening the volume replaces it.
    ///
    /// Errors: `NotClosed`; `NoSpace`, where version 2 would have no room for what it keeps free; damage.
    pub fn upgrade(device: &dyn Device) -> Result<bool, StoreError> {
        let (superblock, slot) = choose_superblock(device)?;
        if superblock.trees.is_some() {
            return Ok(false);
        }
        if superblock.state != VolumeState::Clean {
            return Err(StoreError::NotClosed);
        }
        let (bitmaps, newer) = load_bitmaps(device, &superblock)?;
        let mut space = SpaceMap::new(superblock.layout, bitmaps);
        for group in &newer {
            space.mark_dirty(*group);
        }
        if space.free_chunks() < DELETION_CHUNKS + UPGRADE_CHUNKS {
            return Err(StoreError::NoSpace);
        }
        let upgraded = write_upgraded(device, &superblock, &mut space)?;
        device.flush()?;
        let block = SUPERBLOCK_SLOTS[1 - slot];
        device.write(block, vec![Arc::new(Buffer::from_bytes(&upgraded.encode(block)))])?;
        device.flush()?;
        let backups = superblock.layout.backup_start();
        for block in [backups, backups.plus(1)] {
            device.write(block, vec![Arc::new(Buffer::from_bytes(&upgraded.encode(block)))])?;
        }
        device.flush()?;
        Ok(true)
    }
}

/// Writes what the new superblock names, which it returns.
fn write_upgraded(
    device: &dyn Device,
    old: &Superblock,
    space: &mut SpaceMap,
) -> Result<Superblock, StoreError> {
    let volume = old.volume_id();
    let generation = old.generation.next();
    let main = {
        let cache = NodeCache::new(0, volume, old.layout);
        let main = RootTree::read(device, &cache, old)?.root_of(TreeId::MAIN);
        main.ok_or(StoreError::Inconsistent { block: old.root.block, what: "the root tree names no tree" })?
    };
    space.free_node(old.root.block)?;
    space.freeze();
    let trees = TreesState::FIRST;
    let mut leaf = |tree: TreeId, items: &[(Key, Vec<u8>)]| {
        let at = space.allocate_node().ok_or(StoreError::NoSpace)?;
        let pointer = write_leaf(device, tree, at, generation, volume, items)?;
        Ok::<_, StoreError>(NodePointer { birth: trees.era, ..pointer })
    };
    let head = leaf(TreeId::VOLUME, &[(Key::tree_info(TreeId::MAIN), TreeItem::first_head().encode())])?;
    let roots = [(TreeId::MAIN, main), (TreeId::VOLUME, head)];
    let roots = roots.map(|(tree, root)| (Key::tree(tree), root.encode().to_vec()));
    let root = leaf(TreeId::ROOT, &roots)?;
    for (group, slot, bits) in space.frozen_groups() {
        let at = old.layout.bitmap_slot(group, slot);
        let bytes = bitmap::encode(&bits, group, at, generation, volume);
        device.write(at, vec![Arc::new(Buffer::from_bytes(&bytes))])?;
    }
    let free_blocks = space.frozen_free();
    Ok(Superblock { generation, root, free_blocks, trees: Some(trees), cut: None, ..old.clone() })
}
