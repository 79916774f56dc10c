//! Formatting a device.
//!
//! Order: the old superblocks are wiped and flushed, everything else is written and flushed, then the new superblock:
//! an interrupted `mkfs` leaves no volume rather than half of one.
//!
//! On a huge device what is known to be a hole is left alone: a bitmap of zeros is that of a group that nothing uses.
//! Such a volume has a feature bit, because a reader that does not know of it would call the bitmaps lost. The journal
//! is written once, so that on a host file no later flush has to convert unwritten extents; of a long one
//! only the beginning, the rest follows when the ring gets there ([`crate::journal`]).

use crate::journal::first_tail;
use crate::limits::{MKFS_GROUPS_MAX, MKFS_JOURNAL_BLOCKS, MKFS_ZERO_BLOCKS};
use crate::tree::page::Page;
use crate::{FormatOptions, Store, StoreError};
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Buffer, Device};
use syncline_format::bitmap::{self, empty_bits};
use syncline_format::layout::{GROUP_HEAD_BLOCKS, Layout};
use syncline_format::node::{self, NodePointer};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock, TreesState, VolumeState};
use syncline_format::tree_item::TreeItem;
use syncline_format::{
    BLOCK_BYTES, BlockNo, Era, Generation, GroupNo, Key, Kind, Lsn, NODE_BLOCKS, ObjectNo, TreeId, VolumeId,
};

const FIRST: Generation = Generation(1);

impl Store {
    /// Formats the device. `progress` is told (done, of) bytes.
    ///
    /// Errors: `Layout` when the size or the journal's size is impossible; device errors.
    pub fn format(
        device: &dyn Device,
        options: &FormatOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), StoreError> {
        format(device, options, None, progress)
    }

    /// As [`Store::format`], of version 2.
    pub fn format_with_trees(
        device: &dyn Device,
        options: &FormatOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), StoreError> {
        let trees = TreesState { name_key: options.name_key, ..TreesState::FIRST };
        format(device, options, Some(trees), progress)
    }
}

fn format(
    device: &dyn Device,
    options: &FormatOptions,
    trees: Option<TreesState>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), StoreError> {
    let blocks = options.blocks.unwrap_or(device.blocks());
    let layout = Layout::new(blocks, options.journal_blocks)
        .and_then(|layout| layout.validate(device.blocks()).map(|()| layout))
        .map_err(StoreError::Layout)?;
    wipe(device, &layout)?;
    let volume = volume_id(options);
    let main = layout.groups_start.plus(u64::from(NODE_BLOCKS));
    let root = main.plus(u64::from(NODE_BLOCKS));
    zero_journal(device, &layout, progress)?;
    let leaves = if trees.is_some() { 3 } else { 2 };
    let unwritten_bitmaps = write_bitmaps(device, &layout, volume, leaves)?;
    let birth = trees.map_or(Era(0), |trees| trees.era);
    let leaf = |tree: TreeId, at: BlockNo, items: &[(Key, Vec<u8>)]| {
        write_leaf(device, tree, at, FIRST, volume, items).map(|pointer| NodePointer { birth, ..pointer })
    };
    let mut root_items =
        vec![(Key::tree(TreeId::MAIN), leaf(TreeId::MAIN, main, &options.items)?.encode().to_vec())];
    if trees.is_some() {
        let first_head = [(Key::tree_info(TreeId::MAIN), TreeItem::first_head().encode())];
        let at = root.plus(u64::from(NODE_BLOCKS));
        let pointer = leaf(TreeId::VOLUME, at, &first_head)?;
        root_items.push((Key::tree(TreeId::VOLUME), pointer.encode().to_vec()));
    }
    let root_pointer = leaf(TreeId::ROOT, root, &root_items)?;
    device.flush()?;
    let free_blocks = layout.data_blocks() - u64::from(leaves * NODE_BLOCKS);
    let superblock =
        Superblock { unwritten_bitmaps, free_blocks, trees, ..superblock(options, layout, root_pointer) };
    for block in [SUPERBLOCK_SLOTS[0], layout.backup_start(), layout.backup_start().plus(1)] {
        device.write(block, vec![Arc::new(Buffer::from_bytes(&superblock.encode(block)))])?;
    }
    device.flush()?;
    Ok(())
}

fn volume_id(options: &FormatOptions) -> VolumeId {
    let mut first = [0; 8];
    first.copy_from_slice(&options.uuid[..8]);
    VolumeId(u64::from_le_bytes(first))
}

fn superblock(options: &FormatOptions, layout: Layout, root: NodePointer) -> Superblock {
    let objects = options.items.iter().filter(|(key, _)| key.kind == Kind::Inode);
    let next_object = objects.map(|(key, _)| key.object.0 + 1).max().unwrap_or(1);
    Superblock {
        uuid: options.uuid,
        label: options.label.clone(),
        generation: FIRST,
        state: VolumeState::Clean,
        layout,
        unwritten_bitmaps: false,
        checkpoint_lsn: Lsn(0),
        epoch: options.epoch,
        tail: first_tail(options.epoch),
        root,
        hash_seed: options.hash_seed,
        next_object: ObjectNo(next_object),
        free_blocks: layout.data_blocks() - 2 * u64::from(NODE_BLOCKS),
        created_seconds: options.created_seconds,
        created_nanoseconds: options.created_nanoseconds,
        cut: None,
        trees: None,
    }
}

fn wipe(device: &dyn Device, layout: &Layout) -> Result<(), StoreError> {
    let head = layout.journal_start.0;
    device.write(BlockNo(0), vec![Arc::new(Buffer::zeroed(head as usize))])?;
    device.write(layout.backup_start(), vec![Arc::new(Buffer::zeroed(2))])?;
    device.flush()?;
    Ok(())
}

fn zero_journal(
    device: &dyn Device,
    layout: &Layout,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), StoreError> {
    let zeros = Arc::new(Buffer::zeroed(MKFS_ZERO_BLOCKS as usize));
    let total = layout.journal_blocks * BLOCK_BYTES as u64;
    let mut done = 0;
    let mut holes = Holes::of(device);
    while done < layout.journal_blocks {
        let blocks = MKFS_ZERO_BLOCKS.min(layout.journal_blocks - done);
        let at = layout.journal_start.plus(done);
        if done < MKFS_JOURNAL_BLOCKS || !holes.cover(at, blocks) {
            let buffer = match blocks {
                MKFS_ZERO_BLOCKS => Arc::clone(&zeros),
                rest => Arc::new(Buffer::zeroed(rest as usize)),
            };
            device.write(at, vec![buffer])?;
        }
        done += blocks;
        progress(done * BLOCK_BYTES as u64, total);
    }
    Ok(())
}

/// The device's holes, asked for from its beginning to its end.
struct Holes<'a> {
    device: &'a dyn Device,
    /// The first one that does not end before the last place asked for.
    next: Option<Range<BlockNo>>,
}

impl<'a> Holes<'a> {
    fn of(device: &'a dyn Device) -> Holes<'a> {
        Holes { device, next: device.hole(BlockNo(0)) }
    }

    /// Whether the blocks lie in a hole. Places are asked for in ascending order.
    fn cover(&mut self, at: BlockNo, blocks: u64) -> bool {
        if self.next.as_ref().is_some_and(|hole| hole.end <= at) {
            self.next = self.device.hole(at);
        }
        self.next.as_ref().is_some_and(|hole| hole.start <= at && at.plus(blocks) <= hole.end)
    }
}

/// Returns whether some were left out.
fn write_bitmaps(
    device: &dyn Device,
    layout: &Layout,
    volume: VolumeId,
    leaves: u32,
) -> Result<bool, StoreError> {
    let mut in_flight = std::collections::VecDeque::new();
    let is_huge = layout.group_count() > MKFS_GROUPS_MAX;
    let mut left_out = false;
    let mut holes = Holes::of(device);
    for number in 0..layout.group_count() {
        let group = GroupNo(number);
        let at = layout.bitmap_slot(group, 0);
        if is_huge && number > 0 && holes.cover(at, GROUP_HEAD_BLOCKS) {
            left_out = true;
            continue;
        }
        let mut bits = empty_bits(layout, group);
        if number == 0 {
            // The trees' leaves.
            for index in NODE_BLOCKS..(leaves + 1) * NODE_BLOCKS {
                bits[index as usize / 64] |= 1 << (index % 64);
            }
        }
        let mut buffer = Buffer::zeroed(2);
        buffer[..BLOCK_BYTES].copy_from_slice(&bitmap::encode(&bits, group, at, FIRST, volume));
        in_flight.push_back(device.submit_write(at, vec![Arc::new(buffer)]));
        if in_flight.len() >= 64
            && let Some(ticket) = in_flight.pop_front()
        {
            device.wait(&ticket)?;
        }
    }
    for ticket in in_flight {
        device.wait(&ticket)?;
    }
    Ok(left_out)
}

/// Writes a node of some items.
pub(crate) fn write_leaf(
    device: &dyn Device,
    tree: TreeId,
    at: BlockNo,
    generation: Generation,
    volume: VolumeId,
    items: &[(Key, Vec<u8>)],
) -> Result<NodePointer, StoreError> {
    let mut page = Page::empty(tree, 0);
    for (key, value) in items {
        page.put(*key, value).map_err(|_| StoreError::NoSpace)?;
    }
    let mut bytes = (**page.bytes()).clone();
    let pointer = node::seal(&mut bytes, at, generation, volume);
    device.write(at, vec![Arc::new(bytes)])?;
    Ok(pointer)
}
