//! A small writer of volume images, for tests of the check only: it knows the format and nothing of the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_check::{CheckOptions, Code, Report, check};
use syncline_device::{Buffer, Device, MemoryDevice};
use syncline_format::batch::{BatchBuf, Op};
use syncline_format::bitmap::{self, BITMAP_WORDS};
use syncline_format::header::{self, BlockHeader, MAGIC_NODE};
use syncline_format::item::*;
use syncline_format::layout::Layout;
use syncline_format::node::{NODE_HEADER_BYTES, NodeHeader, NodePointer, SLOT_BYTES, Slot};
use syncline_format::record::{self, RECORD_HEADER_BYTES, RecordInfo, record_blocks};
use syncline_format::superblock::{JournalTail, Superblock, VolumeState};
use syncline_format::*;
use zerocopy::IntoBytes;

/// Two groups, the second one short.
pub const VOLUME_BLOCKS: u64 = 40_000;
pub const GENERATION: Generation = Generation(5);

pub type Slots = Vec<(Key, Vec<u8>)>;
type LeafHook = Box<dyn Fn(usize, &mut Slots)>;
type PointerHook = Box<dyn Fn(&mut Vec<(Key, NodePointer)>)>;

/// A volume to be written.
pub struct Image {
    pub superblock: Superblock,
    pub items: BTreeMap<Key, Vec<u8>>,
    /// File data by block.
    pub data: BTreeMap<u64, Vec<u8>>,
    /// Bits that differ from what the items say.
    pub bits: BTreeMap<u64, bool>,
    /// Changes a leaf after its parent was told of it.
    pub leaf_hook: LeafHook,
    /// Changes the slots of the main tree's root.
    pub pointer_hook: PointerHook,
    /// Changes the items of the root tree.
    pub root_hook: LeafHook,
    pub node_generation: Generation,
    leaf_items: usize,
    next_data: u64,
    next_object: u64,
    next_node: u64,
}

impl Image {
    /// An empty volume with a root directory.
    pub fn new() -> Image {
        let layout = Layout::new(VOLUME_BLOCKS, Some(64)).expect("valid geometry");
        let start = layout.group_start(GroupNo(0)).0;
        let superblock = Superblock {
            uuid: *b"0123456789abcdef",
            label: "test".into(),
            generation: GENERATION,
            state: VolumeState::Clean,
            layout,
            unwritten_bitmaps: false,
            checkpoint_lsn: Lsn(100),
            epoch: 0xfeed,
            tail: JournalTail { block: 0, sequence: Sequence(1), predecessor: 0xfeed },
            root: NodePointer {
                block: BlockNo(0),
                checksum: 0,
                generation: GENERATION,
                level: 0,
                birth: Era(0),
            },
            hash_seed: 42,
            next_object: ObjectNo(1000),
            free_blocks: 0,
            created_seconds: 0,
            created_nanoseconds: 0,
            cut: None,
            trees: None,
        };
        let mut image = Image {
            superblock,
            items: BTreeMap::new(),
            data: BTreeMap::new(),
            bits: BTreeMap::new(),
            leaf_hook: Box::new(|_, _| {}),
            pointer_hook: Box::new(|_| {}),
            root_hook: Box::new(|_, _| {}),
            node_generation: GENERATION,
            leaf_items: 7,
            next_data: start + 1000,
            next_object: 10,
            next_node: start + 4,
        };
        let mut root = inode(MODE_DIRECTORY | 0o755);
        root.parent = ObjectNo::ROOT_DIR;
        image.put_inode(ObjectNo::ROOT_DIR, &root);
        image
    }

    /// A root directory with a directory, a file of three pages in it, a link to it, and a symlink.
    pub fn populated() -> Image {
        let mut image = Image::new();
        let directory = image.add_directory(ObjectNo::ROOT_DIR, "dir");
        let file = image.add_file(directory, "file", 3);
        image.add_name(ObjectNo::ROOT_DIR, "link", file, 8);
        image.change_inode(file, |inode| inode.nlink = 2);
        image.add_symlink(directory, "symlink", b"target");
        for index in 0..20 {
            image.add_file(ObjectNo::ROOT_DIR, &format!("small-{index}"), 1);
        }
        image
    }

    /// Items per leaf; few by default, so that small volumes have several leaves.
    pub fn leaf_items(&mut self, items: usize) {
        self.leaf_items = items;
    }

    pub fn items_per_leaf(&self) -> usize {
        self.leaf_items
    }

    pub fn put(&mut self, key: Key, value: Vec<u8>) {
        self.items.insert(key, value);
    }

    pub fn put_inode(&mut self, object: ObjectNo, inode: &InodeItem) {
        self.put(Key::inode(object), inode.encode().to_vec());
    }

    pub fn inode(&self, object: ObjectNo) -> InodeItem {
        InodeItem::decode(&self.items[&Key::inode(object)]).expect("a valid inode")
    }

    pub fn change_inode(&mut self, object: ObjectNo, change: impl FnOnce(&mut InodeItem)) {
        let mut inode = self.inode(object);
        change(&mut inode);
        self.put_inode(object, &inode);
    }

    pub fn new_object(&mut self) -> ObjectNo {
        self.next_object += 1;
        ObjectNo(self.next_object)
    }

    pub fn name_key(&self, directory: ObjectNo, name: &str) -> Key {
        Key::dirent(directory, self.superblock.name_hash().first(name.as_bytes()))
    }

    pub fn xattr_key(&self, object: ObjectNo, name: &str) -> Key {
        Key::xattr(object, self.superblock.name_hash().first(name.as_bytes()))
    }

    pub fn add_name(&mut self, directory: ObjectNo, name: &str, inode: ObjectNo, file_type: u8) -> Key {
        let key = self.name_key(directory, name);
        self.put(key, DirentItem { inode, file_type, name: name.into() }.encode());
        self.change_inode(directory, |inode| inode.entries += 1);
        key
    }

    pub fn add_directory(&mut self, parent: ObjectNo, name: &str) -> ObjectNo {
        let object = self.new_object();
        let mut directory = inode(MODE_DIRECTORY | 0o755);
        directory.parent = parent;
        self.put_inode(object, &directory);
        self.add_name(parent, name, object, 4);
        self.change_inode(parent, |inode| inode.nlink += 1);
        object
    }

    pub fn add_file(&mut self, parent: ObjectNo, name: &str, pages: u64) -> ObjectNo {
        let object = self.new_object();
        let mut file = inode(MODE_REGULAR | 0o644);
        file.size = pages * BLOCK_BYTES as u64 - 100;
        file.blocks = pages;
        self.put_inode(object, &file);
        self.add_name(parent, name, object, 8);
        let extent = self.new_extent(pages);
        self.put(Key::extent(object, 0), extent.encode());
        object
    }

    pub fn add_symlink(&mut self, parent: ObjectNo, name: &str, target: &[u8]) -> ObjectNo {
        let object = self.new_object();
        let mut symlink = inode(MODE_SYMLINK | 0o777);
        symlink.size = target.len() as u64;
        self.put_inode(object, &symlink);
        self.put(Key::symlink(object), target.to_vec());
        self.add_name(parent, name, object, 10);
        object
    }

    /// New blocks with data in them.
    pub fn new_extent(&mut self, pages: u64) -> ExtentItem {
        let start = self.next_data;
        self.next_data += pages;
        let mut sums = Vec::new();
        for block in start..self.next_data {
            let page: Vec<u8> = (0..BLOCK_BYTES).map(|i| (i as u64 * 31 + block) as u8).collect();
            sums.push(checksum(&page));
            self.data.insert(block, page);
        }
        ExtentItem::written(BlockNo(start), sums)
    }

    /// Writes the volume.
    pub fn build(&mut self) -> MemoryDevice {
        let device = MemoryDevice::new(VOLUME_BLOCKS);
        let mut used: BTreeSet<u64> = BTreeSet::new();
        for value in self.items.iter().filter(|(key, _)| key.kind == Kind::Extent).map(|(_, value)| value) {
            if let Ok(extent) = ExtentItem::decode(value) {
                used.extend((0..u64::from(extent.pages())).map(|page| extent.start.0 + page));
            }
        }
        for (block, page) in &self.data {
            write(&device, BlockNo(*block), page);
        }
        let main = self.write_main(&device, &mut used);
        let mut slots = vec![(Key::tree(TreeId::MAIN), main.encode().to_vec())];
        (self.root_hook)(0, &mut slots);
        let mut superblock = self.superblock.clone();
        superblock.root = self.write_node(&device, TreeId::ROOT, 0, &slots, &mut used);
        for (&block, &bit) in &self.bits {
            if bit {
                used.insert(block)
            } else {
                used.remove(&block)
            };
        }
        for group in (0..superblock.layout.group_count()).map(GroupNo) {
            write_bitmap(&device, &superblock, group, 0, GENERATION, &used);
        }
        superblock.free_blocks = free_blocks(&superblock.layout, &used);
        self.superblock = superblock;
        self.write_superblocks(&device);
        device
    }

    /// The newer superblock in slot 1, an older one in slot 0, and the backups.
    pub fn write_superblocks(&self, device: &MemoryDevice) {
        let mut older = self.superblock.clone();
        older.generation = Generation(self.superblock.generation.0 - 1);
        write(device, BlockNo(1), &older.encode(BlockNo(1)));
        let backup = self.superblock.layout.backup_start();
        for at in [BlockNo(2), backup, backup.plus(1)] {
            write(device, at, &self.superblock.encode(at));
        }
    }

    fn write_main(&mut self, device: &MemoryDevice, used: &mut BTreeSet<u64>) -> NodePointer {
        let items: Slots = self.items.iter().map(|(key, value)| (*key, value.clone())).collect();
        let mut pointers = Vec::new();
        for (index, chunk) in items.chunks(self.leaf_items).enumerate() {
            let first = chunk[0].0;
            let mut slots = chunk.to_vec();
            (self.leaf_hook)(index, &mut slots);
            pointers.push((first, self.write_node(device, TreeId::MAIN, 0, &slots, used)));
        }
        (self.pointer_hook)(&mut pointers);
        let slots: Slots = pointers.iter().map(|(key, child)| (*key, child.encode().to_vec())).collect();
        self.write_node(device, TreeId::MAIN, 1, &slots, used)
    }

    fn write_node(
        &mut self,
        device: &MemoryDevice,
        tree: TreeId,
        level: u16,
        slots: &Slots,
        used: &mut BTreeSet<u64>,
    ) -> NodePointer {
        let block = BlockNo(self.next_node);
        self.next_node += 4;
        used.extend(block.0..block.0 + 4);
        let generation = if tree == TreeId::MAIN && level == 0 { self.node_generation } else { GENERATION };
        let bytes = encode_node(block, generation, &self.superblock, tree, level, slots);
        write(device, block, &bytes);
        let checksum = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        NodePointer { block, checksum, generation, level, birth: Era(0) }
    }
}

pub fn encode_node(
    block: BlockNo,
    generation: Generation,
    superblock: &Superblock,
    tree: TreeId,
    level: u16,
    slots: &Slots,
) -> Vec<u8> {
    let mut bytes = vec![0; NODE_BYTES];
    let mut heap = NODE_BYTES;
    for (index, (key, value)) in slots.iter().enumerate() {
        heap -= value.len();
        bytes[heap..heap + value.len()].copy_from_slice(value);
        let slot = Slot {
            object: key.object.0.into(),
            offset: key.offset.into(),
            value_at: (heap as u16).into(),
            value_len: (value.len() as u16).into(),
            kind: key.kind as u8,
            reserved: [0; 3],
        };
        bytes[NODE_HEADER_BYTES + index * SLOT_BYTES..][..SLOT_BYTES].copy_from_slice(slot.as_bytes());
    }
    let head = NodeHeader {
        header: BlockHeader::new(MAGIC_NODE, block, generation, superblock.volume_id()),
        level: level.into(),
        count: (slots.len() as u16).into(),
        heap: (heap as u16).into(),
        reserved: 0.into(),
        tree: tree.0.into(),
        reserved2: 0.into(),
        reserved3: 0.into(),
    };
    bytes[..NODE_HEADER_BYTES].copy_from_slice(head.as_bytes());
    header::seal(&mut bytes);
    bytes
}

/// Clear bits of all bitmaps that have these blocks in use.
pub fn free_blocks(layout: &Layout, used: &BTreeSet<u64>) -> u64 {
    let is_free = |block: &u64| !used.contains(block);
    let in_group = |group| {
        let start = layout.group_start(group).0;
        (start + 2..start + u64::from(layout.group_len(group))).filter(is_free).count() as u64
    };
    (0..layout.group_count()).map(GroupNo).map(in_group).sum()
}

/// Writes one bitmap slot with the given blocks in use.
pub fn write_bitmap(
    device: &MemoryDevice,
    superblock: &Superblock,
    group: GroupNo,
    slot: u8,
    generation: Generation,
    used: &BTreeSet<u64>,
) {
    let layout = &superblock.layout;
    let mut bits = [0u64; BITMAP_WORDS];
    let len = layout.group_len(group);
    for index in (0..2).chain(len..(BITMAP_WORDS * 64) as u32) {
        bits[index as usize / 64] |= 1 << (index % 64);
    }
    for index in 0..len {
        let block = layout.group_start(group).0 + u64::from(index);
        if used.contains(&block) {
            bits[index as usize / 64] |= 1 << (index % 64);
        }
    }
    let at = layout.bitmap_slot(group, slot);
    write(device, at, &bitmap::encode(&bits, group, at, generation, superblock.volume_id()));
}

/// An inode without names, links as a new one has.
pub fn inode(mode: u32) -> InodeItem {
    let time = Timestamp { seconds: 1, nanoseconds: 2 };
    InodeItem {
        mode,
        nlink: if mode & MODE_TYPE_MASK == MODE_DIRECTORY { 2 } else { 1 },
        uid: 0,
        gid: 0,
        size: 0,
        blocks: 0,
        accessed: time,
        modified: time,
        changed: time,
        created: time,
        rdev: 0,
        parent: ObjectNo(0),
        entries: 0,
        flags: 0,
        project: 0,
    }
}

/// Appends records to a volume's journal.
pub struct Log {
    pub superblock: Superblock,
    pub position: u64,
    pub sequence: Sequence,
    pub predecessor: u64,
    pub lsn: Lsn,
    /// What the next record says was flushed.
    pub known_flushed: Sequence,
}

impl Log {
    pub fn new(image: &Image) -> Log {
        let superblock = image.superblock.clone();
        let tail = superblock.tail;
        Log {
            position: tail.block,
            sequence: tail.sequence,
            predecessor: tail.predecessor,
            lsn: superblock.checkpoint_lsn.next(),
            known_flushed: Sequence(0),
            superblock,
        }
    }

    /// Writes one record of one batch; returns its position in the ring.
    pub fn write(&mut self, device: &MemoryDevice, ops: &[Op<'_>]) -> u64 {
        let mut batch = BatchBuf::new();
        ops.iter().for_each(|op| batch.push(*op));
        self.write_payload(device, &batch.into_encoded(), 1)
    }

    pub fn write_payload(&mut self, device: &MemoryDevice, payload: &[u8], batches: u32) -> u64 {
        let blocks = record_blocks(payload.len());
        if self.position + blocks > self.superblock.layout.journal_blocks {
            self.position = 0;
        }
        let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
        bytes[RECORD_HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
        let info = RecordInfo {
            epoch: self.superblock.epoch,
            sequence: self.sequence,
            predecessor: self.predecessor,
            known_flushed: self.known_flushed,
            generation: self.superblock.generation,
            first_lsn: self.lsn,
            batches,
            payload_bytes: payload.len() as u32,
        };
        let at = self.superblock.layout.journal_start.plus(self.position);
        self.predecessor = record::seal(&mut bytes, at, &info, self.superblock.volume_id());
        write(device, at, &bytes);
        let position = self.position;
        self.position = (self.position + blocks) % self.superblock.layout.journal_blocks;
        self.sequence = self.sequence.next();
        self.lsn = Lsn(self.lsn.0 + u64::from(batches));
        position
    }
}

pub fn put(key: Key, value: &[u8]) -> Op<'_> {
    Op::Put { tree: TreeId::MAIN, key, value, fresh: false }
}

pub fn write(device: &MemoryDevice, at: BlockNo, bytes: &[u8]) {
    device.write(at, vec![Arc::new(Buffer::from_bytes(bytes))]).expect("memory does not fail");
}

pub fn read(device: &MemoryDevice, at: BlockNo, blocks: usize) -> Vec<u8> {
    let mut bytes = Buffer::zeroed(blocks);
    device.read(at, &mut bytes).expect("memory does not fail");
    bytes.to_vec()
}

/// Changes one block in place.
pub fn patch(device: &MemoryDevice, at: BlockNo, change: impl FnOnce(&mut [u8])) {
    let mut bytes = read(device, at, 1);
    change(&mut bytes);
    write(device, at, &bytes);
}

pub fn look(device: &MemoryDevice) -> Report {
    check(device, CheckOptions::default().data(true)).expect("a volume")
}

pub fn repair(device: &MemoryDevice) -> Report {
    check(device, CheckOptions::default().repair(true).data(true)).expect("a volume")
}

/// The codes found, each once.
pub fn codes(report: &Report) -> Vec<Code> {
    report.counts.keys().copied().collect()
}

/// Asserts that exactly these codes are found, and that looking changed nothing.
#[track_caller]
pub fn expect(device: &MemoryDevice, want: &[Code]) -> Report {
    let written = device.counters().writes;
    let report = look(device);
    assert_eq!(codes(&report), want, "{:#?}", report.findings);
    assert_eq!(device.counters().writes, written, "a check without repair writes nothing");
    report
}

/// Asserts that repair leaves only `left`.
#[track_caller]
pub fn expect_repaired(device: &MemoryDevice, left: &[Code]) -> Report {
    let report = repair(device);
    assert!(report.repaired, "{:#?}", report.findings);
    assert_eq!(report.left.keys().copied().collect::<Vec<_>>(), left, "{:#?}", report.findings);
    report
}
