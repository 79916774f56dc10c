//! The WAL index: memory shared by the connections of this process, and the eight locks that protect it.
//!
//! Regions are zeroed when they are made, never move, and go when the last connection has unmapped them; the next one
//! then rebuilds the index from the WAL, as after a crash. What is in them is SQLite's alone: this module hands out
//! addresses and reads nothing. See <https://sqlite.org/walformat.html#the_wal_index_file_format>.

use std::ffi::c_void;

/// Locks of a WAL index.
const LOCKS: usize = 8;

/// What one connection holds, a bit for each lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    shared: u8,
    exclusive: u8,
}

/// The index of one database.
#[derive(Default)]
pub(crate) struct Shm {
    /// Whole words, so that every counter in a region is aligned.
    regions: Vec<Box<[u64]>>,
    shared: [u32; LOCKS],
    exclusive: u8,
    mapped: u32,
}

impl Shm {
    /// A connection begins to use the index.
    pub(crate) fn attach(&mut self) {
        self.mapped += 1;
    }

    /// A connection has no more use for the index; the last one takes the regions with it.
    pub(crate) fn detach(&mut self, held: &mut Held) {
        for lock in 0..LOCKS {
            self.unlock(held, lock, 1);
        }
        self.mapped -= 1;
        if self.mapped == 0 {
            self.regions.clear();
        }
    }

    /// Address of a region; `None` if there is none and none is to be made.
    pub(crate) fn region(&mut self, index: usize, bytes: usize, extend: bool) -> Option<*mut c_void> {
        while extend && self.regions.len() <= index {
            self.regions.push(vec![0; bytes.div_ceil(size_of::<u64>())].into_boxed_slice());
        }
        self.regions.get_mut(index).map(|region| region.as_mut_ptr().cast())
    }

    fn mask(first: usize, count: usize) -> Option<u8> {
        (count > 0 && first + count <= LOCKS).then(|| (((1_u16 << count) - 1) << first) as u8)
    }

    /// Takes locks for reading, all or none.
    pub(crate) fn lock_shared(&mut self, held: &mut Held, first: usize, count: usize) -> bool {
        let Some(mask) = Shm::mask(first, count) else { return false };
        if held.shared & mask == mask {
            return true;
        }
        if self.exclusive & mask & !held.exclusive != 0 {
            return false;
        }
        for lock in first..first + count {
            if held.shared & 1 << lock == 0 {
                self.shared[lock] += 1;
            }
        }
        held.shared |= mask;
        true
    }

    /// Takes locks for writing, all or none.
    pub(crate) fn lock_exclusive(&mut self, held: &mut Held, first: usize, count: usize) -> bool {
        let Some(mask) = Shm::mask(first, count) else { return false };
        if self.exclusive & mask & !held.exclusive != 0 {
            return false;
        }
        let by_others = |lock: usize| self.shared[lock] > u32::from(held.shared >> lock & 1);
        if (first..first + count).any(by_others) {
            return false;
        }
        self.exclusive |= mask;
        held.exclusive |= mask;
        true
    }

    /// Gives locks back, of whichever kind they are.
    pub(crate) fn unlock(&mut self, held: &mut Held, first: usize, count: usize) {
        let Some(mask) = Shm::mask(first, count) else { return };
        for lock in first..first + count {
            if held.shared & 1 << lock != 0 {
                self.shared[lock] -= 1;
            }
        }
        self.exclusive &= !(held.exclusive & mask);
        held.shared &= !mask;
        held.exclusive &= !mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_a_lock_and_keep_a_writer_out() {
        let (mut shm, mut one, mut other) = (Shm::default(), Held::default(), Held::default());
        assert!(shm.lock_shared(&mut one, 3, 1));
        assert!(shm.lock_shared(&mut other, 3, 1));
        assert!(!shm.lock_exclusive(&mut one, 3, 1));
        shm.unlock(&mut other, 3, 1);
        assert!(shm.lock_exclusive(&mut one, 0, 8));
        assert!(!shm.lock_shared(&mut other, 5, 1));
        shm.unlock(&mut one, 0, 8);
        assert!(shm.lock_exclusive(&mut other, 3, 1));
    }

    #[test]
    fn several_locks_are_taken_together_or_not_at_all() {
        let (mut shm, mut one, mut other) = (Shm::default(), Held::default(), Held::default());
        assert!(shm.lock_exclusive(&mut one, 4, 1));
        assert!(!shm.lock_exclusive(&mut other, 2, 4));
        assert!(shm.lock_exclusive(&mut other, 2, 2));
        assert!(!shm.lock_exclusive(&mut other, 7, 2), "there are eight");
    }

    #[test]
    fn regions_stay_where_they_are_and_go_with_their_last_user() {
        let mut shm = Shm::default();
        let mut held = Held::default();
        shm.attach();
        shm.attach();
        assert!(shm.region(0, 32768, false).is_none());
        let first = shm.region(0, 32768, true);
        assert!(shm.region(5, 32768, true).is_some());
        assert_eq!(shm.region(0, 32768, false), first);
        shm.lock_shared(&mut held, 0, 1);
        shm.detach(&mut held);
        assert_eq!(held, Held::default());
        assert_eq!(shm.region(0, 32768, false), first);
        shm.detach(&mut Held::default());
        assert!(shm.region(0, 32768, false).is_none());
    }
}
