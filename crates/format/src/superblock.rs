//! The superblock: root pointer, checkpoint position, journal position, geometry.

use crate::header::VolumeId;
use crate::layout::Layout;
use crate::node::{NodePointer, NodePointerRaw};
use crate::replica::PARTIAL_MAGIC;
use crate::{
    BLOCK_BYTES, BlockNo, Era, FORMAT_VERSION, FormatError, Generation, Lsn, NameHash, NameKey, ObjectNo,
    Sequence, TREES_VERSION, TreeId, checksum, range,
};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a superblock, at a fixed place (byte 4096 of the device) so that other tools can recognise a volume.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"SYNCLINE";
/// The two superblock slots, written in turn.
pub const SUPERBLOCK_SLOTS: [BlockNo; 2] = [BlockNo(1), BlockNo(2)];

/// Incompatible feature: a bitmap slot of zeros is that of a group which nothing uses.
pub const UNWRITTEN_BITMAPS: u64 = 1;
/// Incompatible feature of version 2: births, operations 8 to 12 of a batch, more than one tree, the volume tree.
pub const TREES: u64 = 1 << 5;
/// Incompatible feature of version 2: names are found by a keyed hash.
pub const KEYED_NAMES: u64 = 1 << 6;

/// The superblock as stored.
#[repr(C)]
#[derive(Debug, Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct SuperblockRaw {
    magic: [u8; 8],
    checksum: U64,
    version: U16,
    block_bytes_log2: U16,
    state: U32,
    uuid: [u8; 16],
    label: [u8; 64],
    block: U64,
    generation: U64,
    features_incompatible: U64,
    features_read_only: U64,
    features_compatible: U64,
    blocks: U64,
    journal_start: U64,
    journal_blocks: U64,
    groups_start: U64,
    group_blocks: U64,
    checkpoint_lsn: U64,
    epoch: U64,
    tail_block: U64,
    tail_sequence: U64,
    tail_predecessor: U64,
    root: NodePointerRaw,
    hash_seed: U64,
    next_object: U64,
    free_blocks: U64,
    created_seconds: I64,
    created_nanoseconds: U32,
    cut_lsn: U64,
    era: U32,
    next_tree: U32,
    reserved_shared: [u8; 8],
    name_bits: u8,
    reserved_name: [u8; 3],
    name_key: [U64; 2],
    reserved: [u8; 3760],
}

const _: () = assert!(size_of::<SuperblockRaw>() == BLOCK_BYTES);
const _: () = assert!(std::mem::offset_of!(SuperblockRaw, uuid) == 24);
const _: () = assert!(std::mem::offset_of!(SuperblockRaw, label) == 40);
const _: () = assert!(std::mem::offset_of!(SuperblockRaw, root) == 224);
const _: () = assert!(std::mem::offset_of!(SuperblockRaw, era) == 300);
const _: () = assert!(std::mem::offset_of!(SuperblockRaw, name_key) == 320);

impl SuperblockRaw {
    /// Of a superblock of version 2, whose features hold [`TREES`].
    fn trees_state(&self) -> Result<TreesState, FormatError> {
        let features = self.features_incompatible.get();
        if features & TREES == 0 {
            return Err(FormatError::Field { what: "superblock", field: "features", value: features });
        }
        let era = range::SUPERBLOCK_ERA.check(u64::from(self.era.get()))? as u32;
        let next_tree = range::SUPERBLOCK_NEXT_TREE.check(u64::from(self.next_tree.get()))? as u32;
        let has_key = features & KEYED_NAMES != 0;
        let key = || NameKey::checked(self.name_key.map(U64::get), self.name_bits);
        let name_key = has_key.then(key).transpose()?;
        Ok(TreesState { era: Era(era), next_tree: TreeId(next_tree), name_key })
    }
}

/// Where replay starts in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalTail {
    /// Block within the ring (0 = the ring's first block).
    pub block: u64,
    /// Sequence number expected there.
    pub sequence: Sequence,
    /// Checksum of the record before it (R14: an old lap never matches).
    pub predecessor: u64,
}

/// Whether the volume was closed after its last change. A hint for people and tools: recovery never relies on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum VolumeState {
    /// The journal may hold batches newer than the checkpoint.
    InUse = 1,
    /// Closed: the checkpoint holds everything.
    Clean = 2,
}

/// What a superblock of version 2 says about the trees, as of its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreesState {
    /// What is made from here on is born in this era.
    pub era: Era,
    /// Lowest number that was never given out to a tree.
    pub next_tree: TreeId,
    /// The feature [`KEYED_NAMES`]; `None`: names are hashed as in version 1, from which the volume was upgraded.
    pub name_key: Option<NameKey>,
}

impl TreesState {
    /// Of a volume that has had no snapshot and no head but the first one.
    pub const FIRST: TreesState = TreesState { era: Era(1), next_tree: TreeId::FIRST_MADE, name_key: None };
}

/// The superblock, decoded and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    pub uuid: [u8; 16],
    /// UTF-8, at most 64 bytes.
    pub label: String,
    pub generation: Generation,
    pub state: VolumeState,
    pub layout: Layout,
    /// The feature [`UNWRITTEN_BITMAPS`].
    pub unwritten_bitmaps: bool,
    pub checkpoint_lsn: Lsn,
    /// Random number of the session that writes the journal; records of other epochs are not part of the log.
    pub epoch: u64,
    pub tail: JournalTail,
    pub root: NodePointer,
    /// Of the names' hash in version 1, and in what was upgraded from it ([`Superblock::name_hash`]).
    pub hash_seed: u64,
    /// Lowest object number that was never given out as of the checkpoint.
    pub next_object: ObjectNo,
    /// Free blocks as of the checkpoint: clear bits of all bitmaps.
    pub free_blocks: u64,
    pub created_seconds: i64,
    pub created_nanoseconds: u32,
    /// The first batch of the log that a recovery has found not to be whole, and has cut off with all behind it: it
    /// stays cut off even if it should verify later (R12).
    pub cut: Option<Lsn>,
    /// The feature [`TREES`], and with it version 2; `None`: version 1.
    pub trees: Option<TreesState>,
}

impl Superblock {
    /// What decides between the two slots: the newer one counts; of one generation the one that a recovery wrote to say
    /// where the log is cut.
    pub fn rank(&self) -> (Generation, bool) {
        (self.generation, self.cut.is_some())
    }

    /// The counters that only grow, each with its range. On every volume that was ever written they are far from
    /// their end; counting on from a forged one would overflow. Only those of the newest superblock matter.
    pub fn counters(&self) -> [(range::Field, u64); 4] {
        [
            (range::SUPERBLOCK_GENERATION, self.generation.0),
            (range::SUPERBLOCK_CHECKPOINT_LSN, self.checkpoint_lsn.0),
            (range::SUPERBLOCK_TAIL_SEQUENCE, self.tail.sequence.0),
            (range::SUPERBLOCK_NEXT_OBJECT, self.next_object.0),
        ]
    }

    pub fn volume_id(&self) -> VolumeId {
        let mut first = [0; 8];
        first.copy_from_slice(&self.uuid[..8]);
        VolumeId(u64::from_le_bytes(first))
    }

    /// How names become keys.
    pub fn name_hash(&self) -> NameHash {
        let key = self.trees.and_then(|trees| trees.name_key);
        key.map_or(NameHash::Seeded(self.hash_seed), NameHash::Keyed)
    }

    fn version(&self) -> u16 {
        if self.trees.is_some() { TREES_VERSION } else { FORMAT_VERSION }
    }

    fn features(&self) -> u64 {
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        let has_key = self.trees.is_some_and(|trees| trees.name_key.is_some());
        bit(self.unwritten_bitmaps, UNWRITTEN_BITMAPS)
            | bit(self.trees.is_some(), TREES)
            | bit(has_key, KEYED_NAMES)
    }

    /// The superblock's bytes for the slot at `block`.
    pub fn encode(&self, block: BlockNo) -> Vec<u8> {
        let mut raw = SuperblockRaw::new_zeroed();
        raw.magic = SUPERBLOCK_MAGIC;
        raw.version = U16::new(self.version());
        raw.block_bytes_log2 = U16::new(BLOCK_BYTES.trailing_zeros() as u16);
        raw.state = U32::new(self.state as u32);
        raw.uuid = self.uuid;
        let label = self.label.as_bytes();
        let label_bytes = label.len().min(raw.label.len());
        raw.label[..label_bytes].copy_from_slice(&label[..label_bytes]);
        raw.block = U64::new(block.0);
        raw.generation = U64::new(self.generation.0);
        raw.features_incompatible = U64::new(self.features());
        raw.blocks = U64::new(self.layout.blocks);
        raw.journal_start = U64::new(self.layout.journal_start.0);
        raw.journal_blocks = U64::new(self.layout.journal_blocks);
        raw.groups_start = U64::new(self.layout.groups_start.0);
        raw.group_blocks = U64::new(self.layout.group_blocks);
        raw.checkpoint_lsn = U64::new(self.checkpoint_lsn.0);
        raw.epoch = U64::new(self.epoch);
        raw.tail_block = U64::new(self.tail.block);
        raw.tail_sequence = U64::new(self.tail.sequence.0);
        raw.tail_predecessor = U64::new(self.tail.predecessor);
        raw.root = self.root.into();
        raw.hash_seed = U64::new(self.hash_seed);
        raw.next_object = U64::new(self.next_object.0);
        raw.free_blocks = U64::new(self.free_blocks);
        raw.created_seconds = I64::new(self.created_seconds);
        raw.created_nanoseconds = U32::new(self.created_nanoseconds);
        raw.cut_lsn = U64::new(self.cut.map_or(0, |lsn| lsn.0));
        if let Some(trees) = self.trees {
            raw.era = U32::new(trees.era.0);
            raw.next_tree = U32::new(trees.next_tree.0);
            if let Some(NameKey { key, bits }) = trees.name_key {
                raw.name_bits = bits;
                raw.name_key = key.map(U64::new);
            }
        }
        let mut bytes = raw.as_bytes().to_vec();
        crate::header::seal(&mut bytes);
        bytes
    }

    /// Checks one block as a superblock read from `block` of a device of `device_blocks` blocks.
    ///
    /// Errors: `Magic` when it is none, `Version`/`Features` when another version wrote it, otherwise what is wrong.
    pub fn decode(bytes: &[u8], block: BlockNo, device_blocks: u64) -> Result<Superblock, FormatError> {
        const WHAT: &str = "superblock";
        let Ok((raw, _)) = SuperblockRaw::ref_from_prefix(bytes) else {
            return Err(FormatError::Truncated { what: WHAT, want: BLOCK_BYTES, got: bytes.len() });
        };
        if raw.magic[..4] == PARTIAL_MAGIC {
            return Err(FormatError::Partial);
        }
        if raw.magic != SUPERBLOCK_MAGIC {
            return Err(FormatError::Magic { what: WHAT, got: u64::from_le_bytes(raw.magic) });
        }
        // In front of the version: a slot whose version has rotted is damaged, and the other one serves.
        let got = checksum(&raw.as_bytes()[16..]);
        if raw.checksum.get() != got {
            return Err(FormatError::Checksum { what: WHAT, want: raw.checksum.get(), got });
        }
        let version = raw.version.get();
        if !(FORMAT_VERSION..=TREES_VERSION).contains(&version) {
            return Err(FormatError::Version { what: WHAT, got: version });
        }
        if raw.block.get() != block.0 {
            return Err(FormatError::Address { what: WHAT, want: block, got: BlockNo(raw.block.get()) });
        }
        let field = |field, value| FormatError::Field { what: WHAT, field, value };
        if raw.block_bytes_log2.get() != BLOCK_BYTES.trailing_zeros() as u16 {
            return Err(field("block_bytes_log2", u64::from(raw.block_bytes_log2.get())));
        }
        let incompatible = raw.features_incompatible.get();
        let known = if version == TREES_VERSION {
            UNWRITTEN_BITMAPS | TREES | KEYED_NAMES
        } else {
            UNWRITTEN_BITMAPS
        };
        let unknown = incompatible & !known | raw.features_read_only.get();
        if unknown != 0 {
            return Err(FormatError::Features { unknown });
        }
        let trees = match version == TREES_VERSION {
            true => Some(raw.trees_state()?),
            false => None,
        };
        let layout = Layout {
            blocks: raw.blocks.get(),
            journal_start: BlockNo(raw.journal_start.get()),
            journal_blocks: raw.journal_blocks.get(),
            groups_start: BlockNo(raw.groups_start.get()),
            group_blocks: raw.group_blocks.get(),
        };
        layout.validate(device_blocks)?;
        let state = match raw.state.get() {
            1 => VolumeState::InUse,
            2 => VolumeState::Clean,
            other => return Err(field("state", u64::from(other))),
        };
        let tail = JournalTail {
            block: raw.tail_block.get(),
            sequence: Sequence(raw.tail_sequence.get()),
            predecessor: raw.tail_predecessor.get(),
        };
        if tail.block >= layout.journal_blocks {
            return Err(field("tail_block", tail.block));
        }
        let root = NodePointer::try_from(raw.root)?;
        if !layout.holds_node(root.block) {
            return Err(field("root.block", root.block.0));
        }
        let label_bytes = raw.label.iter().position(|&b| b == 0).unwrap_or(raw.label.len());
        Ok(Superblock {
            uuid: raw.uuid,
            label: String::from_utf8_lossy(&raw.label[..label_bytes]).into_owned(),
            generation: Generation(raw.generation.get()),
            state,
            layout,
            unwritten_bitmaps: incompatible & UNWRITTEN_BITMAPS != 0,
            checkpoint_lsn: Lsn(raw.checkpoint_lsn.get()),
            epoch: raw.epoch.get(),
            tail,
            root,
            hash_seed: raw.hash_seed.get(),
            next_object: ObjectNo(raw.next_object.get()),
            free_blocks: raw.free_blocks.get(),
            created_seconds: raw.created_seconds.get(),
            created_nanoseconds: raw.created_nanoseconds.get(),
            cut: Some(Lsn(raw.cut_lsn.get())).filter(|lsn| lsn.0 != 0),
            trees,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 4096;
    const AT: BlockNo = SUPERBLOCK_SLOTS[0];

    fn superblock(trees: Option<TreesState>) -> Superblock {
        let layout = Layout::new(BLOCKS, None).expect("16 MiB is allowed");
        Superblock {
            uuid: [7; 16],
            label: "label".to_owned(),
            generation: Generation(5),
            state: VolumeState::Clean,
            layout,
            unwritten_bitmaps: true,
            checkpoint_lsn: Lsn(9),
            epoch: 3,
            tail: JournalTail { block: 4, sequence: Sequence(2), predecessor: 8 },
            root: NodePointer {
                block: layout.groups_start.plus(4),
                checksum: 6,
                generation: Generation(5),
                level: 1,
                birth: Era(2),
            },
            hash_seed: 11,
            next_object: ObjectNo(12),
            free_blocks: 13,
            created_seconds: -14,
            created_nanoseconds: 15,
            cut: None,
            trees,
        }
    }

    fn decode_sealed(mut bytes: Vec<u8>) -> Result<Superblock, FormatError> {
        crate::header::seal(&mut bytes);
        Superblock::decode(&bytes, AT, BLOCKS)
    }

    #[test]
    fn both_versions_survive_encoding_and_tell_themselves_apart() {
        let old_names = TreesState { era: Era(80), next_tree: TreeId(77), name_key: None };
        let keyed = TreesState { name_key: Some(NameKey { key: [1, 2], bits: 46 }), ..old_names };
        for (trees, version, features) in
            [(None, 1, 1), (Some(old_names), 2, 1 | 32), (Some(keyed), 2, 1 | 32 | 64)]
        {
            let bytes = superblock(trees).encode(AT);
            assert_eq!(Superblock::decode(&bytes, AT, BLOCKS), Ok(superblock(trees)));
            assert_eq!(bytes[16..18], u16::to_le_bytes(version));
            assert_eq!(bytes[120..128], u64::to_le_bytes(features));
            let behind = &bytes[300..308];
            assert_eq!(behind == [0; 8], trees.is_none(), "version 1 has no trees' fields");
            assert_eq!(bytes[308..336] == [0; 28], features & 64 == 0, "the key belongs to its feature");
        }
    }

    #[test]
    fn a_version_refuses_what_only_another_has() {
        let of = |at: usize, value: u8, trees: Option<TreesState>| {
            let mut bytes = superblock(trees).encode(AT);
            bytes[at] = value;
            decode_sealed(bytes)
        };
        let refused = of(16, 3, None).expect_err("version 3").to_string();
        let told =
            "format version 3 of the superblock is not supported (this software reads versions 1 and 2)";
        assert_eq!(refused, told);
        assert_eq!(of(120, 32, None), Err(FormatError::Features { unknown: 32 }), "trees in version 1");
        assert!(matches!(of(120, 1, Some(TreesState::FIRST)), Err(FormatError::Field { .. })), "none in 2");
        let future = Err(FormatError::Features { unknown: 2 });
        assert_eq!(of(120, 34, Some(TreesState::FIRST)), future, "a feature to come");
    }

    #[test]
    fn eras_and_tree_numbers_end_where_their_ranges_do() {
        for field in [range::SUPERBLOCK_ERA, range::SUPERBLOCK_NEXT_TREE] {
            let decodes = |number: u64| {
                let mut bytes = superblock(Some(TreesState::FIRST)).encode(AT);
                bytes[field.at..field.at + 4].copy_from_slice(&(number as u32).to_le_bytes());
                decode_sealed(bytes).is_ok()
            };
            assert!(decodes(field.least) && decodes(field.most), "{field:?}");
            assert!(!decodes(field.least - 1) && !decodes(field.most + 1), "{field:?}");
        }
    }
}
