//! Who runs beside whom on a volume with snapshots.

use crate::explore;
use crate::forest::Forest;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle};
use std::sync::Arc;
use syncline_format::TreeId;

type Task = Box<dyn FnOnce(Arc<Forest>) + Send>;

fn task(body: impl FnOnce(Arc<Forest>) + Send + 'static) -> Task {
    Box::new(body)
}

/// Runs the tasks on threads of their own beside the device's, then judges.
fn run(forest: Forest, tasks: Vec<Task>) {
    let forest = Arc::new(forest);
    let device = forest.device.start();
    let spawn = |task: Task| {
        let forest = Arc::clone(&forest);
        thread::spawn(move || task(forest))
    };
    let threads: Vec<JoinHandle<()>> = tasks.into_iter().map(spawn).collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    forest.finish();
    device.join().expect("no panic");
}

/// Changes files of a head and syncs now and then; each sync covers everything before it.
fn writer(head: TreeId, times: u32) -> Task {
    task(move |forest| {
        for _ in 0..times {
            if let Some(lsn) = forest.change(head).filter(|_| thread_rng().gen_bool(0.6)) {
                forest.force(lsn);
            }
        }
    })
}

fn snapshots(of: TreeId, times: u32) -> Task {
    task(move |forest| {
        for _ in 0..times {
            let made = forest.snapshot(of);
            if let Some(tree) = made.filter(|_| thread_rng().gen_bool(0.5)) {
                forest.read(tree);
            }
        }
    })
}

fn checkpoints(times: u32) -> Task {
    task(move |forest| (0..times).for_each(|_| forest.checkpoint()))
}

fn reaper(times: u32) -> Task {
    task(move |forest| {
        for _ in 0..times {
            if !forest.reap() {
                thread::yield_now();
            }
        }
    })
}

/// A volume on which each file was written, a snapshot was made of it, and half of the files were written again;
/// `times` over. The snapshots, oldest first.
fn grown(files: usize, times: u32) -> (Forest, Vec<TreeId>) {
    let forest = Forest::new(files);
    let mut made = Vec::new();
    for _ in 0..times {
        for file in 0..files {
            match file % 2 {
                0 => forest.write_extent(TreeId::MAIN, file),
                _ => forest.write_image(TreeId::MAIN, file),
            };
        }
        made.extend(forest.snapshot(TreeId::MAIN));
        for file in (0..files).step_by(2) {
            forest.write_extent(TreeId::MAIN, file);
        }
    }
    (forest, made)
}

// Shows: C10, R22, R23, R24.
#[test]
fn a_snapshot_is_one_moment_beside_syncs_and_a_checkpoint() {
    explore("a_snapshot_is_one_moment_beside_syncs_and_a_checkpoint", || {
        let main = TreeId::MAIN;
        let tasks = vec![writer(main, 4), writer(main, 4), snapshots(main, 2), checkpoints(2)];
        run(Forest::new(3), tasks);
    });
}

// Shows: C10, R22, R26.
#[test]
fn inherited_images_are_settled_beside_the_head_that_drops_its_own() {
    explore("inherited_images_are_settled_beside_the_head_that_drops_its_own", || {
        let images = || {
            task(|forest| {
                for _ in 0..4 {
                    let file = thread_rng().gen_range(0..forest.files());
                    if let Some(lsn) = forest.write_image(TreeId::MAIN, file) {
                        forest.force(lsn);
                    }
                }
            })
        };
        run(Forest::new(3), vec![images(), images(), snapshots(TreeId::MAIN, 2), reaper(4), checkpoints(1)]);
    });
}

// Shows: C11, R25, R27, R29.
#[test]
fn a_deletion_takes_nothing_from_whoever_opens_a_view() {
    explore("a_deletion_takes_nothing_from_whoever_opens_a_view", || {
        let (forest, made) = grown(3, 2);
        let views = {
            let made = made.clone();
            task(move |forest| {
                for _ in 0..4 {
                    forest.read(made[thread_rng().gen_range(0..made.len())]);
                }
            })
        };
        let deletions = task(move |forest| {
            let first = thread_rng().gen_range(0..made.len());
            forest.delete(made[first]);
            forest.delete(made[1 - first]);
        });
        run(forest, vec![views, deletions, reaper(10), writer(TreeId::MAIN, 3)]);
    });
}

// Shows: C12, R25, R27.
#[test]
fn a_clone_is_made_beside_the_deletion_of_its_snapshot() {
    explore("a_clone_is_made_beside_the_deletion_of_its_snapshot", || {
        let (forest, made) = grown(2, 2);
        let of = made[thread_rng().gen_range(0..made.len())];
        let clones = || {
            task(move |forest| {
                let Some(head) = forest.clone_of(of) else { return };
                for _ in 0..2 {
                    if let Some(lsn) = forest.change(head) {
                        forest.force(lsn);
                    }
                }
            })
        };
        let deletion = task(move |forest| forest.delete(of));
        run(forest, vec![clones(), clones(), deletion, reaper(8), writer(TreeId::MAIN, 2)]);
    });
}

// Shows: C12, R25.
#[test]
fn two_heads_share_groups_and_each_keeps_what_was_synced_in_it() {
    explore("two_heads_share_groups_and_each_keeps_what_was_synced_in_it", || {
        let (forest, made) = grown(2, 1);
        let head = forest.clone_of(made[0]).expect("there is space");
        let tasks = vec![
            writer(TreeId::MAIN, 4),
            writer(head, 4),
            writer(head, 2),
            snapshots(head, 1),
            checkpoints(2),
        ];
        run(forest, tasks);
    });
}

// Shows: C11, R33.
#[test]
fn whoever_finds_no_space_takes_deleted_snapshots_apart_beside_others() {
    explore("whoever_finds_no_space_takes_deleted_snapshots_apart_beside_others", || {
        let (forest, made) = grown(4, 3);
        forest.fill(2);
        let full = || {
            task(|forest| {
                for file in 0..forest.files() {
                    // As a filesystem does it: what was deleted comes back first.
                    for _ in 0..4 {
                        if let Some(lsn) = forest.write_extent(TreeId::MAIN, file) {
                            forest.force(lsn);
                            break;
                        }
                        while forest.reap() {}
                        forest.checkpoint();
                    }
                }
            })
        };
        let deletions = task(move |forest| made.iter().for_each(|tree| forest.delete(*tree)));
        run(forest, vec![full(), full(), deletions, reaper(4)]);
    });
}
