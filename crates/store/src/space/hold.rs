//! Free blocks held while they are discarded.
//!
//! A hold is an allocation that is given back as it was taken: it takes nothing that data could not have, so
//! reservations, claims and the chunks kept for nodes stay good for what they promise (R18), and nothing that a
//! checkpoint has yet to release (R11). In the bitmaps that are stored it never shows. Nor does it take what the last
//! checkpoint has released: the other slot of the superblock refers to that, and is all there is if the newest one is
//! lost.

use super::SpaceMap;
use super::bits::{free_end, next_free, run_length};
use crate::limits::HOLD_BLOCKS_MAX;
use crate::store::Run;
use syncline_format::bitmap::Bits;
use syncline_format::layout::GROUP_HEAD_BLOCKS;
use syncline_format::{BlockNo, GroupNo, NODE_BLOCKS};

/// Where a walk over the free runs of a group is.
#[derive(Debug)]
pub(crate) struct Cursor {
    group: GroupNo,
    /// Indices within the group.
    at: usize,
    end: usize,
    /// Shorter runs are left alone.
    blocks_min: u64,
    /// Up to here the blocks belong to a run that is long enough, of which a part has been held already.
    accepted: usize,
}

impl SpaceMap {
    /// A walk over what lies of a group in `from..end`; `None` if nothing does.
    pub(crate) fn cursor(
        &self,
        group: GroupNo,
        (from, end): (BlockNo, BlockNo),
        blocks_min: u64,
    ) -> Option<Cursor> {
        let start = self.layout.group_start(group).0;
        let first = from.0.max(start + GROUP_HEAD_BLOCKS);
        let end = end.0.min(start + u64::from(self.layout.group_len(group)));
        (first < end).then(|| {
            let (at, end) = ((first - start) as usize, (end - start) as usize);
            Cursor { group, at, end, blocks_min, accepted: at }
        })
    }

    /// Holds the next run, or a part of it: at most half of what data could have, so that who wants some mostly finds
    /// it.
    pub(crate) fn hold(&mut self, cursor: &mut Cursor) -> Option<Run> {
        self.recall();
        let most = (self.unpromised() / 2).min(HOLD_BLOCKS_MAX) as u32;
        if most == 0 {
            return None;
        }
        let spare_chunks = self.free_chunks.saturating_sub(self.node_claims + self.kept_chunks());
        let group = &self.groups[cursor.group.0 as usize];
        let used = &group.used;
        let kept = group.released.as_ref().map(|released| both(used, released));
        let kept = kept.as_deref().unwrap_or(used);
        while cursor.at < cursor.end {
            let start = next_free(kept, cursor.at, cursor.end, false)?;
            let end = free_end(kept, start, cursor.end);
            if start >= cursor.accepted && ((end - start) as u64) < cursor.blocks_min {
                cursor.at = end;
                continue;
            }
            cursor.accepted = cursor.accepted.max(end);
            let len = run_length(used, start, end, most, spare_chunks);
            if len > 0 {
                cursor.at = start + len as usize;
                let run = Run { start: self.layout.group_start(cursor.group).plus(start as u64), len };
                self.set_used(run, true);
                self.held += u64::from(len);
                return Some(run);
            }
            // A whole chunk that nodes may need.
            let chunk = NODE_BLOCKS as usize;
            cursor.at = (start / chunk + 1) * chunk;
        }
        None
    }

    /// Gives back what was held.
    pub(crate) fn let_go(&mut self, run: Run) {
        self.set_used(run, false);
        self.held -= u64::from(run.len);
    }

    pub(crate) fn held_blocks(&self) -> u64 {
        self.held
    }
}

fn both(used: &Bits, released: &Bits) -> Box<Bits> {
    let mut both = Box::new(*used);
    both.iter_mut().zip(released).for_each(|(word, released)| *word |= released);
    both
}

#[cfg(test)]
mod tests {
    use super::super::tests::map;
    use super::*;

    const ALL: (BlockNo, BlockNo) = (BlockNo(0), BlockNo(u64::MAX));

    /// What a walk visits, each run held on its own.
    fn walk(map: &mut SpaceMap, range: (BlockNo, BlockNo), blocks_min: u64) -> Vec<u64> {
        let mut visited = Vec::new();
        let Some(mut cursor) = map.cursor(GroupNo(0), range, blocks_min) else { return visited };
        while let Some(run) = map.hold(&mut cursor) {
            visited.extend(run.start.0..run.start.0 + u64::from(run.len));
            map.let_go(run);
        }
        visited
    }

    #[test]
    fn a_walk_visits_every_free_block_once_and_no_other() {
        let mut map = map();
        map.reserve(7).expect("space");
        let taken: Vec<Run> = (0..7).map(|_| map.allocate(1, None)).collect();
        for run in &taken[1..4] {
            map.commit_allocate(*run);
        }
        map.commit_free(taken[1]);
        // 0: written, but in no batch yet; 1: pinned; 2, 3: in use; 4: given back. The others are as 0.
        map.abandon(taken[4]);
        map.unreserve(1);
        let (free, available) = (map.free, map.available());
        let visited = walk(&mut map, ALL, 1);
        assert_eq!(visited.len() as u64, free);
        assert!(visited.is_sorted());
        let is_visited = |run: &Run| visited.contains(&run.start.0);
        assert_eq!(
            taken.iter().map(is_visited).collect::<Vec<_>>(),
            [false, false, false, false, true, false, false]
        );
        assert_eq!((map.free, map.available(), map.held), (free, available, 0));
        let first = map.layout.group_start(GroupNo(0)).0 + GROUP_HEAD_BLOCKS;
        let end = map.layout.backup_start().0;
        assert!(visited.iter().all(|block| (first..end).contains(block)));
    }

    #[test]
    fn a_freed_block_is_visited_when_both_superblocks_hold_the_free() {
        let mut map = map();
        map.reserve(1).expect("space");
        let run = map.allocate(1, None);
        map.commit_allocate(run);
        map.commit_free(run);
        assert!(!walk(&mut map, ALL, 1).contains(&run.start.0));
        map.freeze();
        assert!(!walk(&mut map, ALL, 1).contains(&run.start.0), "the superblock is not durable yet");
        map.thaw();
        let (free, available) = (map.free, map.available());
        let visited = walk(&mut map, ALL, 1);
        assert!(!visited.contains(&run.start.0), "the superblock before does not hold it");
        assert_eq!(visited.len() as u64, free - 1);
        assert!(map.has_released());
        map.freeze();
        map.thaw();
        assert!(!map.has_released());
        assert!(walk(&mut map, ALL, 1).contains(&run.start.0));
        assert_eq!((map.free, map.available()), (free, available));
    }

    #[test]
    fn short_runs_and_what_lies_outside_are_left_alone() {
        let mut map = map();
        map.reserve(9).expect("space");
        let taken: Vec<Run> = (0..9).map(|_| map.allocate(1, None)).collect();
        let [first, second] = [taken[2], taken[4]];
        map.abandon(first);
        map.abandon(second);
        map.abandon(taken[5]);
        map.unreserve(3);
        let rest = taken[8].start.0 + 1;
        let all = walk(&mut map, ALL, 1);
        assert_eq!(all[..4], [first.start.0, second.start.0, second.start.0 + 1, rest]);
        assert_eq!(walk(&mut map, ALL, 2)[..2], [second.start.0, second.start.0 + 1]);
        let long = walk(&mut map, ALL, 3);
        assert_eq!((long[0], long.len()), (rest, all.len() - 3), "its parts are not judged by their length");
        assert_eq!(walk(&mut map, (second.start, BlockNo(rest + 2)), 1), all[1..5]);
        assert!(walk(&mut map, (second.start, BlockNo(second.start.0 + 1)), 2).is_empty());
        let in_front = (BlockNo(0), map.layout.group_start(GroupNo(0)));
        assert!(walk(&mut map, in_front, 1).is_empty());
    }

    #[test]
    fn a_hold_leaves_what_was_promised() {
        let mut map = map();
        assert!(map.claim_nodes(5, crate::Class::Normal));
        map.reserve(map.available() - 10).expect("space");
        let mut cursor = map.cursor(GroupNo(0), ALL, 1).expect("a group");
        let run = map.hold(&mut cursor).expect("free blocks");
        assert!(run.len <= 5, "half of what is left: {run:?}");
        let mut left = map.reserved;
        while left > 0 {
            let taken = map.allocate(left as u32, None);
            assert!(
                taken.start.0 >= run.start.0 + u64::from(run.len)
                    || taken.start.0 + u64::from(taken.len) <= run.start.0
            );
            left -= u64::from(taken.len);
        }
        map.freeze();
        for _ in 0..5 {
            assert!(map.allocate_node().is_some(), "claimed chunks are there");
        }
        map.let_go(run);
        let rest = map.available();
        assert!(map.reserve(rest).is_ok());
        assert!(map.hold(&mut cursor).is_none(), "nothing that data could have is left");
    }
}
