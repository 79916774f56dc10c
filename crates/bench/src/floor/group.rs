//! The group-commit floor: threads that share writes and flushes, and no file system.
//!
//! Each caller copies a page into the group that is being gathered. Who finds nobody leading leads: it writes the
//! pages of its group by one write, flushes once, hands the lead to one of those who have come meanwhile, and wakes
//! its group. So nobody waits for a timer, and who comes while a group is under way is in the next one. What remains
//! is what any file system pays that makes the appends of so many threads durable by one record at a time: the write,
//! the flush, and waking its callers.
//!
//! Locks: `gathering` alone. The word of a group goes from `GATHERS` to `LEADER_WANTED` to `LED`, or straight to
//! `LED`, and then to its end.

use super::{GROUP_PAGES_MAX, PLACES, write_and_flush};
use rustix::thread::futex;
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use syncline_device::Buffer;

const GATHERS: u32 = 0;
const LEADER_WANTED: u32 = 1;
const LED: u32 = 2;
const DURABLE: u32 = 3;
const FAILED: u32 = 4;

/// A device that threads append pages to.
pub(crate) struct GroupCommit<'a> {
    file: BorrowedFd<'a>,
    gathering: Mutex<Gathering>,
}

struct Gathering {
    /// What the members of the next group wait on.
    group: Arc<AtomicU32>,
    pages: usize,
    buffer: Buffer,
    /// The other buffer, while nobody writes it.
    spare: Option<Buffer>,
    is_led: bool,
    place: u64,
}

impl<'a> GroupCommit<'a> {
    pub(super) fn new(file: BorrowedFd<'a>) -> GroupCommit<'a> {
        let buffer = || Buffer::zeroed(GROUP_PAGES_MAX);
        let gathering = Gathering {
            group: Arc::new(AtomicU32::new(GATHERS)),
            pages: 0,
            buffer: buffer(),
            spare: Some(buffer()),
            is_led: false,
            place: 0,
        };
        GroupCommit { file, gathering: Mutex::new(gathering) }
    }

    /// Returns when the page is durable. No more than 64 threads may call it at once.
    pub(crate) fn append(&self, page: &[u8]) -> io::Result<()> {
        let (group, leads) = {
            let mut gathering = self.lock();
            let at = gathering.pages * page.len();
            assert!(at < gathering.buffer.len(), "more callers than a group holds");
            gathering.buffer[at..at + page.len()].copy_from_slice(page);
            gathering.pages += 1;
            (Arc::clone(&gathering.group), !mem::replace(&mut gathering.is_led, true))
        };
        if !leads {
            match self.wait(&group) {
                DURABLE => return Ok(()),
                FAILED => return Err(io::Error::other("the group was not written")),
                _ => {}
            }
        }
        self.lead(&group)
    }

    /// Until the group is durable, has failed, or wants this thread to lead it, which is told by `LEADER_WANTED`.
    fn wait(&self, group: &AtomicU32) -> u32 {
        loop {
            let seen = group.load(Ordering::Acquire);
            let claimed = || group.compare_exchange(LEADER_WANTED, LED, Ordering::AcqRel, Ordering::Relaxed);
            match seen {
                DURABLE | FAILED => return seen,
                LEADER_WANTED if claimed().is_ok() => return LEADER_WANTED,
                LEADER_WANTED => {}
                // Interrupted, or changed meanwhile: it is looked at again.
                _ => drop(futex::wait(group, futex::Flags::PRIVATE, seen, None)),
            }
        }
    }

    fn lead(&self, group: &AtomicU32) -> io::Result<()> {
        let (buffer, pages, place) = {
            let mut gathering = self.lock();
            let spare = gathering.spare.take().expect("one group is led at a time");
            let place = gathering.place;
            gathering.place = (place + gathering.pages as u64) % PLACES;
            gathering.group = Arc::new(AtomicU32::new(GATHERS));
            let pages = mem::take(&mut gathering.pages);
            (mem::replace(&mut gathering.buffer, spare), pages, place)
        };
        let written = write_and_flush(self.file, &buffer[..pages * 4096], place);
        let next = {
            let mut gathering = self.lock();
            gathering.spare = Some(buffer);
            gathering.is_led = gathering.pages > 0;
            gathering.is_led.then(|| Arc::clone(&gathering.group))
        };
        if let Some(next) = next {
            next.store(LEADER_WANTED, Ordering::Release);
            futex::wake(&next, futex::Flags::PRIVATE, 1)?;
        }
        group.store(if written.is_ok() { DURABLE } else { FAILED }, Ordering::Release);
        if pages > 1 {
            futex::wake(group, futex::Flags::PRIVATE, i32::MAX as u32)?;
        }
        written
    }

    fn lock(&self) -> MutexGuard<'_, Gathering> {
        self.gathering.lock().expect("nobody panics with it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn every_page_of_every_thread_is_written_once() {
        const THREADS: u32 = 8;
        const EACH: u32 = 50;
        let path = std::env::temp_dir().join(format!("syncline-group-{}", std::process::id()));
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("made");
        let commit = GroupCommit::new(file.as_fd());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let commit = &commit;
                scope.spawn(move || {
                    for index in 0..EACH {
                        let mut page = [0; 4096];
                        page[..4].copy_from_slice(&(thread * EACH + index + 1).to_le_bytes());
                        commit.append(&page).expect("durable");
                    }
                });
            }
        });
        let mut found = BTreeSet::new();
        for place in 0..u64::from(THREADS * EACH) {
            let mut page = [0; 4096];
            file.read_exact_at(&mut page, (1 << 20) + place * 4096).expect("written");
            found.insert(u32::from_le_bytes(page[..4].try_into().expect("four")));
        }
        assert_eq!(found, (1..=THREADS * EACH).collect());
        std::fs::remove_file(path).expect("removed");
    }
}
