//! Editing of one node's bytes: a sorted slot array growing up, a value heap growing down (`format::node`).
//!
//! Invariant: every byte string handled here was either built by this module or verified by `format::node::verify`,
//! so slots are in bounds and ascending. Values of removed slots stay behind as garbage until the page is compacted.

use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::node::{
    self, NODE_HEADER_BYTES, NODE_SPACE_BYTES, NodeHeader, SLOT_BYTES, Slot, slot_key, slot_value,
};
use syncline_format::{Key, NODE_BLOCKS, NODE_BYTES, TreeId};

/// One node's bytes, shared until edited.
#[derive(Clone)]
pub(crate) struct Page {
    bytes: Arc<Buffer>,
    /// Bytes in use by slots and live values.
    used: usize,
}

/// The page has no room for the item.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Keys that the calling thread has compared with slots of nodes, for curves of growth.
#[cfg(feature = "ablation")]
pub fn comparisons() -> u64 {
    COMPARISONS.get()
}

#[cfg(feature = "ablation")]
thread_local! {
    static COMPARISONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Nothing in what is shipped.
#[inline]
fn count_comparison() {
    #[cfg(feature = "ablation")]
    COMPARISONS.set(COMPARISONS.get() + 1);
}

impl Page {
    /// An empty node.
    pub(crate) fn empty(tree: TreeId, level: u16) -> Page {
        let mut buffer = Buffer::zeroed(NODE_BLOCKS as usize);
        let head = head_mut(&mut buffer);
        head.level.set(level);
        head.tree.set(tree.0);
        head.heap.set(NODE_BYTES as u16);
        Page { bytes: Arc::new(buffer), used: 0 }
    }

    /// Takes over verified bytes.
    pub(crate) fn from_verified(buffer: Arc<Buffer>) -> Page {
        let slots = node::slots(&buffer).iter();
        let used = slots.map(|slot| SLOT_BYTES + usize::from(slot.value_len.get())).sum();
        Page { bytes: buffer, used }
    }

    pub(crate) fn bytes(&self) -> &Arc<Buffer> {
        &self.bytes
    }

    pub(crate) fn level(&self) -> u16 {
        node::head(&self.bytes).level.get()
    }

    pub(crate) fn tree(&self) -> TreeId {
        TreeId(node::head(&self.bytes).tree.get())
    }

    pub(crate) fn count(&self) -> usize {
        usize::from(node::head(&self.bytes).count.get())
    }

    pub(crate) fn key(&self, index: usize) -> Key {
        slot_key(&self.bytes, index)
    }

    pub(crate) fn value(&self, index: usize) -> &[u8] {
        slot_value(&self.bytes, index)
    }

    /// `Ok(index)` of the key, or `Err(index)` where it would be inserted.
    pub(crate) fn search(&self, key: Key) -> Result<usize, usize> {
        node::slots(&self.bytes).binary_search_by(|slot| {
            count_comparison();
            slot.compare(&key)
        })
    }

    /// Index of the child that covers `key` (interior nodes; the first slot covers everything below the second).
    pub(crate) fn child_index(&self, key: Key) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }

    /// Bytes in use by slots and live values.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used
    }

    /// Bytes that are not free at once: garbage counts, and nothing has to be added up.
    pub(crate) fn occupied_bytes(&self) -> usize {
        NODE_SPACE_BYTES - self.gap()
    }

    /// Sets the value of `key`.
    pub(crate) fn put(&mut self, key: Key, value: &[u8]) -> Result<(), Full> {
        match self.search(key) {
            Ok(index) if self.value(index).len() == value.len() => {
                let at = usize::from(node::slot(&self.bytes, index).value_at.get());
                self.edit()[at..at + value.len()].copy_from_slice(value);
                Ok(())
            }
            Ok(index) => {
                let old = SLOT_BYTES + self.value(index).len();
                if self.used_bytes() - old + SLOT_BYTES + value.len() > NODE_SPACE_BYTES {
                    return Err(Full);
                }
                self.remove(index);
                self.insert(index, key, value)
            }
            Err(index) => self.insert(index, key, value),
        }
    }

    /// Inserts a slot at `index`, which the caller found by `search`.
    pub(crate) fn insert(&mut self, index: usize, key: Key, value: &[u8]) -> Result<(), Full> {
        let need = SLOT_BYTES + value.len();
        if self.gap() < need {
            if self.used_bytes() + need > NODE_SPACE_BYTES {
                return Err(Full);
            }
            self.compact();
        }
        let count = self.count();
        let buffer = self.edit();
        let heap = usize::from(node::head(buffer).heap.get()) - value.len();
        buffer[heap..heap + value.len()].copy_from_slice(value);
        let at = NODE_HEADER_BYTES + index * SLOT_BYTES;
        let end = NODE_HEADER_BYTES + count * SLOT_BYTES;
        buffer.copy_within(at..end, at + SLOT_BYTES);
        write_slot(buffer, index, key, heap, value.len());
        let head = head_mut(buffer);
        head.heap.set(heap as u16);
        head.count.set((count + 1) as u16);
        self.used += need;
        Ok(())
    }

    /// Removes slot `index`; its value becomes garbage.
    pub(crate) fn remove(&mut self, index: usize) {
        let count = self.count();
        assert!(index < count, "removed slot exists");
        self.used -= SLOT_BYTES + self.value(index).len();
        let buffer = self.edit();
        let at = NODE_HEADER_BYTES + index * SLOT_BYTES;
        let end = NODE_HEADER_BYTES + count * SLOT_BYTES;
        buffer.copy_within(at + SLOT_BYTES..end, at);
        head_mut(buffer).count.set((count - 1) as u16);
    }

    /// Moves the slots from `index` on into a new page.
    pub(crate) fn split_off(&mut self, index: usize) -> Page {
        let mut right = Page::empty(self.tree(), self.level());
        for i in index..self.count() {
            right.insert(i - index, self.key(i), self.value(i)).expect("part of a page fits a page");
        }
        head_mut(self.edit()).count.set(index as u16);
        self.used -= right.used;
        self.compact();
        right
    }

    /// Appends all slots of `right`, whose keys are all greater.
    pub(crate) fn append(&mut self, right: &Page) -> Result<(), Full> {
        if self.used_bytes() + right.used_bytes() > NODE_SPACE_BYTES {
            return Err(Full);
        }
        for i in 0..right.count() {
            let end = self.count();
            self.insert(end, right.key(i), right.value(i))?;
        }
        Ok(())
    }

    /// Index that splits the page in two halves by bytes, such that an item of `need` bytes at `index` fits into its
    /// half. At the right edge the new item goes alone into the right page: ascending inserts leave full pages.
    pub(crate) fn split_point(&self, index: usize, need: usize) -> usize {
        let count = self.count();
        if index == count {
            return count;
        }
        let half = (self.used_bytes() + need) / 2;
        let mut left = 0;
        for i in 0..count {
            if i == index {
                left += need;
            }
            if left >= half && i > 0 {
                return i;
            }
            left += SLOT_BYTES + self.value(i).len();
        }
        count - 1
    }

    /// Changes the key of slot `index`; the caller keeps the order.
    pub(crate) fn set_key(&mut self, index: usize, key: Key) {
        let slot = node::slot(&self.bytes, index);
        let (at, len) = (slot.value_at.get(), slot.value_len.get());
        *node::slot_mut(self.edit(), index) = Slot::new(key, at, len);
    }

    /// Overwrites the value of slot `index` by one of the same length.
    pub(crate) fn set_value(&mut self, index: usize, value: &[u8]) {
        let slot = node::slot(&self.bytes, index);
        assert_eq!(usize::from(slot.value_len.get()), value.len(), "value keeps its length");
        let at = usize::from(slot.value_at.get());
        self.edit()[at..at + value.len()].copy_from_slice(value);
    }

    fn gap(&self) -> usize {
        usize::from(node::head(&self.bytes).heap.get()) - (NODE_HEADER_BYTES + self.count() * SLOT_BYTES)
    }

    /// Rebuilds the page without garbage.
    pub(crate) fn compact(&mut self) {
        let mut fresh = Page::empty(self.tree(), self.level());
        let count = self.count();
        let out = fresh.edit();
        let mut heap = NODE_BYTES;
        for i in 0..count {
            let value = self.value(i);
            heap -= value.len();
            out[heap..heap + value.len()].copy_from_slice(value);
            write_slot(out, i, self.key(i), heap, value.len());
        }
        let head = head_mut(out);
        head.heap.set(heap as u16);
        head.count.set(count as u16);
        *self = Page { used: self.used, ..fresh };
    }

    fn edit(&mut self) -> &mut Buffer {
        Arc::make_mut(&mut self.bytes)
    }
}

fn head_mut(bytes: &mut [u8]) -> &mut NodeHeader {
    node::head_mut(bytes)
}

fn write_slot(bytes: &mut [u8], index: usize, key: Key, at: usize, len: usize) {
    *node::slot_mut(bytes, index) = Slot::new(key, at as u16, len as u16);
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_format::ObjectNo;

    fn key(n: u64) -> Key {
        Key::extent(ObjectNo(7), n)
    }

    #[test]
    fn a_page_behaves_like_a_sorted_map_until_it_is_full() {
        let mut page = Page::empty(TreeId::MAIN, 0);
        let mut model = std::collections::BTreeMap::new();
        let mut seed = 1u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let k = (seed >> 33) % 60;
            let len = (seed >> 20) as usize % 500;
            if (seed >> 50).is_multiple_of(3) {
                if let Ok(i) = page.search(key(k)) {
                    page.remove(i);
                    model.remove(&k);
                }
            } else {
                let value = vec![seed as u8; len];
                if page.put(key(k), &value).is_ok() {
                    model.insert(k, value);
                }
            }
            assert!(page.count() == model.len());
            assert_eq!(
                page.used_bytes(),
                model.values().map(|value| SLOT_BYTES + value.len()).sum::<usize>()
            );
        }
        for (i, (k, v)) in model.iter().enumerate() {
            assert_eq!((page.key(i), page.value(i)), (key(*k), v.as_slice()));
        }
    }

    #[test]
    fn any_full_page_splits_so_that_the_largest_item_fits() {
        for largest in [1usize, 500, 4096] {
            let mut page = Page::empty(TreeId::MAIN, 0);
            let mut n = 0;
            while page.put(key(n * 2), &vec![1; 1 + (n as usize * 37) % largest]).is_ok() {
                n += 1;
            }
            for index in 0..=page.count() {
                let need = SLOT_BYTES + 4096;
                let mut left = page.clone();
                let at = left.split_point(index, need);
                let mut right = left.split_off(at);
                let k = key((index as u64 * 2).wrapping_sub(1).min(1 << 40));
                let target = if index < at || (index == at && at < page.count() && index != page.count()) {
                    let fits_left = left.insert(index.min(left.count()), k, &[2; 4096]).is_ok();
                    fits_left || right.insert(0, k, &[2; 4096]).is_ok()
                } else {
                    right.insert(index - at, k, &[2; 4096]).is_ok()
                };
                assert!(target, "item at {index} of {}, split at {at}", page.count());
            }
        }
    }
}
