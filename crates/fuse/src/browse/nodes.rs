//! Numbers of nodes in `.snapshots`.
//!
//! The highest bit is set, which no object's number of the volume has. Below are 43 bits for the object, and 20 for the
//! snapshot, as a number that this mount gives it ([`super::views`]): 0 and 0 is `.snapshots` itself. The snapshot is
//! in the lowest bits, because the kernel's hash of inodes does not see the high ones: all roots would be in one chain.

use fusering::{Errno, NodeId};
use syncline_fs::ObjectNo;

const OWN: u64 = 1 << 63;
const SLOT_BITS: u32 = 20;
const OBJECT_BITS: u32 = 63 - SLOT_BITS;
/// Most snapshots that one mount can show in its life.
pub(super) const SLOTS_MAX: usize = (1 << SLOT_BITS) - 1;

/// What a node of `.snapshots` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    /// The directory itself.
    Directory,
    /// An object of a snapshot.
    Object(Slot, ObjectNo),
}

/// A snapshot as this mount counts them, from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(pub(super) usize);

impl Own {
    /// `None`: the node is the volume's.
    pub(super) fn of(node: NodeId) -> Option<Own> {
        if node.0 & OWN == 0 {
            return None;
        }
        let (slot, object) = (node.0 & ((1 << SLOT_BITS) - 1), (node.0 & !OWN) >> SLOT_BITS);
        Some(match slot.checked_sub(1) {
            Some(slot) => Own::Object(Slot(slot as usize), ObjectNo(object)),
            None => Own::Directory,
        })
    }

    /// Errors: EOVERFLOW for an object's number of more than 43 bits.
    pub(super) fn node(self) -> Result<NodeId, Errno> {
        match self {
            Own::Directory => Ok(NodeId(OWN)),
            Own::Object(slot, object) if object.0 >> OBJECT_BITS == 0 && slot.0 < SLOTS_MAX => {
                Ok(NodeId(OWN | object.0 << SLOT_BITS | (slot.0 as u64 + 1)))
            }
            Own::Object(..) => Err(Errno::from_number(libc::EOVERFLOW)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_one_number_and_none_of_the_volume() {
        let last = ObjectNo((1 << OBJECT_BITS) - 1);
        let nodes = [
            Own::Directory,
            Own::Object(Slot(0), ObjectNo::ROOT_DIR),
            Own::Object(Slot(0), last),
            Own::Object(Slot(1), ObjectNo::ROOT_DIR),
            Own::Object(Slot(SLOTS_MAX - 1), last),
        ];
        for node in nodes {
            let number = node.node().expect("it has a number");
            assert_eq!(Own::of(number), Some(node));
        }
        assert_eq!(Own::of(NodeId::ROOT), None);
        assert_eq!(Own::of(NodeId(u64::MAX >> 1)), None);
        assert!(Own::Object(Slot(0), ObjectNo(last.0 + 1)).node().is_err());
        assert!(Own::Object(Slot(SLOTS_MAX), ObjectNo::ROOT_DIR).node().is_err());
    }
}
