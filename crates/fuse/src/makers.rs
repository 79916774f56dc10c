//! Who makes many small files: unpacks an archive, checks out or copies a tree.
//!
//! What such a program writes into a new file goes past the kernel's page cache. The kernel then asks for no
//! `security.capability` before the first write, and a write that begins within a page is one message instead of two.
//! Whoever reads the file afterwards needs no message more: behind a write through the page cache the file's last page
//! is not up to date, so the first read is a message anyway, and one message reads all of a small file.
//!
//! A large file is another matter: the page cache would keep it for those who read it. How large a new file becomes
//! nobody says, so a program's last files stand for its next one. A wrong guess costs messages and nothing else.
//!
//! Relaxed atomics, and one place for several threads: see the last sentence.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Largest small file in bytes: what the kernel reads ahead at once when a file is read from its beginning.
pub(crate) const SMALL_BYTES_MAX: u64 = 128 << 10;
/// A thread makes small files when it has made so many in a row.
const IN_A_ROW: u32 = 8;
const PLACES: usize = 64;

#[derive(Debug)]
pub(crate) struct Makers {
    /// Each a thread, in the upper half, and how many small files it has made in a row.
    places: [AtomicU64; PLACES],
    /// Somebody was taken for a maker since all were forgotten.
    guessed: AtomicBool,
}

impl Makers {
    pub(crate) fn new() -> Makers {
        Makers { places: std::array::from_fn(|_| AtomicU64::new(0)), guessed: AtomicBool::new(false) }
    }

    fn place(&self, thread: u32) -> &AtomicU64 {
        &self.places[thread as usize % PLACES]
    }

    /// Thread `thread` makes a file (0: the kernel of its own accord); whether it is going to be a small one.
    pub(crate) fn will_be_small(&self, thread: u32) -> bool {
        let place = self.place(thread);
        let known = place.load(Relaxed);
        let before = if (known >> 32) as u32 == thread { known as u32 } else { 0 };
        let made = before.saturating_add(1).min(IN_A_ROW + 1);
        place.store(u64::from(thread) << 32 | u64::from(made), Relaxed);
        let is_maker = thread != 0 && made > IN_A_ROW;
        if is_maker {
            self.guessed.store(true, Relaxed);
        }
        is_maker
    }

    /// Thread `thread` writes to a file up to `end`. `is_direct`: past the page cache.
    pub(crate) fn wrote(&self, thread: u32, end: u64, is_direct: impl FnOnce() -> bool) {
        if end <= SMALL_BYTES_MAX {
            return;
        }
        let place = self.place(thread);
        let known = place.load(Relaxed);
        if (known >> 32) as u32 == thread {
            if known as u32 > 0 {
                place.store(u64::from(thread) << 32, Relaxed);
            }
        } else if self.guessed.load(Relaxed) && is_direct() {
            // Another thread has made it, and nobody says which.
            self.places.iter().for_each(|place| place.store(0, Relaxed));
            self.guessed.store(false, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(makers: &Makers, thread: u32, files: usize) -> usize {
        (0..files).filter(|_| makers.will_be_small(thread)).count()
    }

    #[test]
    fn small_files_in_a_row_announce_a_small_one_and_a_large_one_ends_the_row() {
        let makers = Makers::new();
        assert_eq!(make(&makers, 7, 8), 0);
        assert_eq!(make(&makers, 7, 5), 5);
        makers.wrote(7, SMALL_BYTES_MAX, || unreachable!());
        assert_eq!(make(&makers, 7, 1), 1);
        makers.wrote(7, SMALL_BYTES_MAX + 1, || unreachable!());
        assert_eq!(make(&makers, 7, 10), 2);
        assert_eq!(make(&makers, 0, 100), 0, "nobody's");
    }

    #[test]
    fn what_another_thread_makes_large_forgets_all_rows() {
        let makers = Makers::new();
        assert_eq!(make(&makers, 7, 9), 1);
        makers.wrote(8, SMALL_BYTES_MAX + 1, || false);
        assert_eq!(make(&makers, 7, 1), 1, "a file of others");
        makers.wrote(8, SMALL_BYTES_MAX + 1, || true);
        assert_eq!(make(&makers, 7, 9), 1);
        // Threads that share a place push each other out.
        assert_eq!(make(&makers, 7 + PLACES as u32, 8), 0);
        assert_eq!(make(&makers, 7, 8), 0);
    }
}
