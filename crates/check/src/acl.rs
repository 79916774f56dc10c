//! Stored access control lists: extended attributes with a value of their own form, the kernel's, which the engine
//! reads whenever it judges or changes permissions. Repair leaves damaged ones alone: nobody can tell whom they were
//! to let in.

use syncline_format::item::XattrValue;

const NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const HEADER: [u8; 4] = 2u32.to_le_bytes();
const ENTRY_BYTES: usize = 8;
const PERMISSIONS_MAX: u16 = 7;

/// The kinds of entries, in the order in which a list holds them: owner, named users, group, named groups, mask,
/// others.
const TAGS: [u16; 6] = [0x01, 0x02, 0x04, 0x08, 0x10, 0x20];

/// Whether an attribute of this name holds an access control list.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    NAMES.contains(&name)
}

/// Whether a value is a list that the engine can have stored: empty, or complete and in order. A list always fits its
/// item.
pub(crate) fn is_valid(value: &XattrValue) -> bool {
    let XattrValue::Inline(bytes) = value else { return false };
    if bytes.is_empty() {
        return true;
    }
    let Some(entries) = bytes.strip_prefix(&HEADER) else { return false };
    let entries = entries.chunks(ENTRY_BYTES);
    if entries.len() == 0 {
        return true;
    }
    let mut counts = [0u32; TAGS.len()];
    let mut last = 0;
    for entry in entries {
        let &[a, b, c, d, _, _, _, _] = entry else { return false };
        let (tag, permissions) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let Some(place) = TAGS.iter().position(|&known| known == tag) else { return false };
        if place < last || permissions > PERMISSIONS_MAX {
            return false;
        }
        last = place;
        counts[place] += 1;
    }
    let [owner, users, group, groups, mask, others] = counts;
    (owner, group, others) == (1, 1, 1) && mask <= 1 && (mask == 1 || users + groups == 0)
}
