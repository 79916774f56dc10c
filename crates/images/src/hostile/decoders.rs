//! Targets of single structures. Each input is the structure's bytes; it is tried as it is and once more sealed, so
//! that what lies behind the checksum is reached.

use super::input::Input;
use super::seal::volume_of;
use syncline_format::batch::{BatchBuf, decode_batches};
use syncline_format::header::{self, BlockHeader, MAGIC_BITMAP};
use syncline_format::item::{DirentItem, ExtentItem, InodeItem, OrphanReason, XattrItem};
use syncline_format::node::{self, NodePointer};
use syncline_format::record::{self, RECORD_HEADER_BYTES};
use syncline_format::superblock::{SUPERBLOCK_MAGIC, SUPERBLOCK_SLOTS, Superblock};
use syncline_format::tree_item::{OverlayItem, TreeItem};
use syncline_format::{BLOCK_BYTES, BlockNo, Era, GroupNo, NODE_BYTES, TreeId, VolumeId, bitmap};

const VOLUME: VolumeId = VolumeId(0x0123_4567_89ab_cdef);
const AT: BlockNo = BlockNo(100);

/// The input, cut or padded with zeros to a structure's length.
fn sized(input: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = input[..input.len().min(len)].to_vec();
    bytes.resize(len, 0);
    bytes
}

pub fn superblock(input: &[u8]) {
    let block = SUPERBLOCK_SLOTS[0];
    let mut bytes = sized(input, BLOCK_BYTES);
    for device_blocks in [1024, 1 << 20, u64::MAX] {
        let _ = Superblock::decode(input, block, device_blocks);
        bytes[..8].copy_from_slice(&SUPERBLOCK_MAGIC);
        header::seal(&mut bytes);
        let Ok(decoded) = Superblock::decode(&bytes, block, device_blocks) else { continue };
        assert_eq!(decoded.volume_id(), volume_of(&bytes));
        let layout = decoded.layout;
        assert!(layout.group_count() > 0 && layout.data_blocks() < device_blocks);
        for probe in [0, decoded.root.block.0, layout.blocks - 1, layout.blocks, u64::MAX] {
            if let Some((group, index)) = layout.locate(BlockNo(probe)) {
                assert_eq!(layout.group_start(group).0 + u64::from(index), probe);
            }
        }
        let again = Superblock::decode(&decoded.encode(block), block, device_blocks);
        // A label that was not UTF-8 may grow when it is made so, and is cut then.
        if decoded.label.is_ascii() {
            assert_eq!(again.as_ref(), Ok(&decoded), "what was decoded is encoded alike");
        }
    }
}

pub fn node(input: &[u8]) {
    let mut bytes = sized(input, NODE_BYTES);
    let generation = node::head(&bytes).header.generation();
    let tree = TreeId(node::head(&bytes).tree.get());
    let level = node::head(&bytes).level.get();
    let pointer = NodePointer { block: AT, checksum: 0, generation, level, birth: Era(0) };
    let _ = node::verify(input, &pointer, tree, VOLUME);
    let pointer = node::seal(&mut bytes, AT, generation, VOLUME);
    if node::verify(&bytes, &pointer, tree, VOLUME).is_err() {
        return;
    }
    let count = usize::from(node::head(&bytes).count.get());
    for index in 0..count {
        let (key, value) = (node::slot_key(&bytes, index), node::slot_value(&bytes, index));
        assert!(index == 0 || node::slot_key(&bytes, index - 1) < key);
        match pointer.level {
            0 => decode_item(key.kind as u8, value),
            _ => assert!(NodePointer::decode(value).is_ok()),
        }
    }
}

pub fn bitmap(input: &[u8]) {
    let mut bytes = sized(input, BLOCK_BYTES);
    let generation = match header::peek("bitmap", &bytes) {
        Ok(head) => head.generation(),
        Err(_) => return,
    };
    let group = GroupNo(u32::from(bytes[40]));
    let _ = bitmap::decode(input, group, AT, VOLUME);
    let head = BlockHeader::new(MAGIC_BITMAP, AT, generation, VOLUME);
    bytes[..40].copy_from_slice(zerocopy::IntoBytes::as_bytes(&head));
    header::seal(&mut bytes);
    if let Ok((generation, bits)) = bitmap::decode(&bytes, group, AT, VOLUME) {
        let again = bitmap::encode(&bits, group, AT, generation, VOLUME);
        assert_eq!(bitmap::decode(&again, group, AT, VOLUME), Ok((generation, bits)));
    }
}

/// First byte: the kind. The rest: an item's value.
pub fn item(input: &[u8]) {
    if let Some((&kind, value)) = input.split_first() {
        decode_item(kind, value);
    }
}

fn decode_item(kind: u8, value: &[u8]) {
    match kind {
        1 => {
            if let Ok(inode) = InodeItem::decode(value) {
                assert_eq!(InodeItem::decode(&inode.encode()), Ok(inode));
            }
        }
        3 => {
            if let Ok(dirent) = DirentItem::decode(value) {
                assert_eq!(dirent.encode(), value);
            }
        }
        4 => {
            if let Ok(xattr) = XattrItem::decode(value) {
                assert_eq!(XattrItem::decode(&xattr.encode()), Ok(xattr));
            }
        }
        6 => {
            if let Ok(extent) = ExtentItem::decode(value) {
                assert_eq!(ExtentItem::decode(&extent.encode()).as_ref(), Ok(&extent));
                let pages = extent.pages();
                assert_eq!(extent.slice(0, pages), extent);
                let rest = extent.slice(pages - 1, 1);
                assert_eq!(rest.start.0, extent.start.0 + u64::from(pages) - 1);
            }
        }
        7 => {
            let _ = OrphanReason::decode(value);
        }
        8 => {
            if let Ok(pointer) = NodePointer::decode(value) {
                assert_eq!(NodePointer::decode(&pointer.encode()), Ok(pointer));
            }
        }
        9 => {
            if let Ok(tree) = TreeItem::decode(value) {
                assert_eq!(TreeItem::decode(&tree.encode()), Ok(tree));
            }
        }
        13 => {
            if let Ok(item) = OverlayItem::decode(value) {
                assert_eq!(OverlayItem::decode(&item.encode()), Ok(item));
            }
        }
        _ => {}
    }
}

/// First byte: batches announced; the rest: a record's payload, and as it is a record.
pub fn record(input: &[u8]) {
    let _ = record::peek(input, AT, VOLUME);
    let _ = record::verify(input, AT, VOLUME);
    let mut source = Input::new(input);
    let batches = u32::from(source.byte()).max(1);
    let payload = source.take(usize::MAX);
    let info = record::RecordInfo {
        epoch: 1,
        sequence: syncline_format::Sequence(1),
        predecessor: 0,
        known_flushed: syncline_format::Sequence(0),
        generation: syncline_format::Generation(1),
        first_lsn: syncline_format::Lsn(1),
        batches,
        payload_bytes: payload.len() as u32,
    };
    let mut bytes = vec![0; info.blocks() as usize * BLOCK_BYTES];
    bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload.len()].copy_from_slice(payload);
    let sum = record::seal(&mut bytes, AT, &info, VOLUME);
    let (read, read_sum, read_payload) = record::verify(&bytes, AT, VOLUME).expect("just sealed");
    assert_eq!((read, read_sum, read_payload), (info, sum, payload));
    let Ok(decoded) = decode_batches(payload, batches) else { return };
    for ops in decoded {
        let mut batch = BatchBuf::new();
        for op in &ops {
            batch.push(*op);
        }
        assert!(batch.iter().eq(ops));
    }
}
