//! Who runs beside whom.

use crate::device::Fault;
use crate::explore;
use crate::workload::World;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle};
use std::sync::{Arc, Weak};
use store_under_shuttle::{Piggyback, StoreOptions};

type Task = Box<dyn FnOnce(Arc<World>) + Send>;

fn task(body: impl FnOnce(Arc<World>) + Send + 'static) -> Task {
    Box::new(body)
}

/// Runs the tasks on threads of their own beside the device's, then judges.
fn run(world: World, tasks: Vec<Task>) {
    run_shared(Arc::new(world), tasks);
}

fn run_shared(world: Arc<World>, tasks: Vec<Task>) {
    let device = world.device.start();
    let spawn = |task: Task| {
        let world = Arc::clone(&world);
        thread::spawn(move || task(world))
    };
    let threads: Vec<JoinHandle<()>> = tasks.into_iter().map(spawn).collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    world.finish();
    device.join().expect("no panic");
}

/// Changes files and syncs, `times` times; each sync covers everything before it.
fn writer(files: std::ops::Range<usize>, times: u32) -> Task {
    task(move |world| {
        for _ in 0..times {
            let file = thread_rng().gen_range(files.clone());
            let Some(lsn) = world.change(file) else { return };
            if thread_rng().gen_bool(0.7) && world.force(lsn).is_none() {
                return;
            }
        }
    })
}

fn checkpointer(times: u32) -> Task {
    task(move |world| {
        for _ in 0..times {
            if world.checkpoint().is_none() {
                return;
            }
        }
    })
}

/// Starts forces without waiting; polls now and then, and to the end.
fn starter(files: std::ops::Range<usize>, times: u32) -> Task {
    task(move |world| {
        for _ in 0..times {
            let file = thread_rng().gen_range(files.clone());
            let Some(lsn) = world.change(file) else { break };
            world.start_force(lsn);
            if thread_rng().gen_bool(0.3) {
                world.store.drive();
            }
        }
        world.drive();
    })
}

fn reader(files: usize) -> Task {
    task(move |world| {
        for file in 0..files {
            world.read(file, 3);
        }
    })
}

#[test]
fn committers_share_groups_and_none_is_forgotten() {
    explore("committers_share_groups_and_none_is_forgotten", || {
        run(World::new(4, false), vec![writer(0..4, 3), writer(0..4, 3), writer(0..4, 3), reader(2)]);
    });
}

#[test]
fn a_checkpoint_runs_beside_commits_and_forces() {
    explore("a_checkpoint_runs_beside_commits_and_forces", || {
        run(World::new(3, false), vec![writer(0..3, 5), writer(0..3, 5), checkpointer(3), reader(1)]);
    });
}

#[test]
fn two_checkpoints_at_once_and_a_close_while_syncs_are_under_way() {
    explore("two_checkpoints_at_once_and_a_close_while_syncs_are_under_way", || {
        let close = task(|world| {
            world.close();
        });
        run(World::new(3, false), vec![writer(0..3, 4), writer(0..3, 4), checkpointer(2), close]);
    });
}

#[test]
fn started_forces_are_answered_beside_blocking_ones() {
    explore("started_forces_are_answered_beside_blocking_ones", || {
        let tasks = vec![starter(0..2, 4), starter(0..2, 3), writer(0..2, 3), checkpointer(1)];
        run(World::new(2, false), tasks);
    });
}

#[test]
fn a_poller_that_stops_looking_leaves_nobody_waiting() {
    explore("a_poller_that_stops_looking_leaves_nobody_waiting", || {
        let glance = || {
            task(|world| {
                let Some(lsn) = world.change(0) else { return };
                world.start_force(lsn);
                world.store.drive();
            })
        };
        run(World::new(2, false), vec![glance(), glance(), writer(0..2, 2), writer(0..2, 2)]);
    });
}

#[test]
fn the_ring_wraps_and_whoever_meets_pressure_relieves_it() {
    explore("the_ring_wraps_and_whoever_meets_pressure_relieves_it", || {
        let images = |files: std::ops::Range<usize>| {
            task(move |world| {
                for round in 0..16 {
                    let file = thread_rng().gen_range(files.clone());
                    let Some(lsn) = world.write_image(file) else { return };
                    if round % 2 == 0 && world.force(lsn).is_none() {
                        return;
                    }
                }
            })
        };
        run(World::new(6, false), vec![images(0..6), images(0..6), images(0..6)]);
    });
}

#[test]
fn freed_blocks_are_reused_only_when_no_durable_state_names_them() {
    explore("freed_blocks_are_reused_only_when_no_durable_state_names_them", || {
        let extents = || {
            task(|world| {
                for _ in 0..6 {
                    let file = thread_rng().gen_range(0..2);
                    let Some(lsn) = world.write_extent(file) else { return };
                    if thread_rng().gen_bool(0.3) && world.force(lsn).is_none() {
                        return;
                    }
                }
            })
        };
        run(World::new(2, false), vec![extents(), extents(), checkpointer(4)]);
    });
}

/// Commits a small batch into every group.
struct Filler(Weak<World>);

impl Piggyback for Filler {
    fn has_any(&self) -> bool {
        true
    }

    fn fill(&self, _room: usize) {
        if let Some(world) = self.0.upgrade() {
            world.write_piggyback();
        }
    }
}

#[test]
fn groups_are_filled_up_while_others_wait_for_them() {
    explore("groups_are_filled_up_while_others_wait_for_them", || {
        let options = StoreOptions::new(7).stream_bytes(12000);
        let world = Arc::new(World::with(3, false, options));
        let filler: Arc<dyn Piggyback> = Arc::new(Filler(Arc::downgrade(&world)));
        world.store.set_piggyback(Arc::downgrade(&filler));
        run_shared(world, vec![writer(0..2, 4), starter(0..2, 3), checkpointer(2)]);
        drop(filler);
    });
}

/// A write or a flush fails somewhere: whoever waits is told, nobody hangs, and what was acknowledged stays.
fn with_fault(fault: impl Fn() -> Fault, tasks: Vec<Task>) {
    let world = World::new(3, true);
    world.device.plant(fault());
    run(world, tasks);
}

#[test]
fn a_failed_write_is_told_to_all_and_stays() {
    explore("a_failed_write_is_told_to_all_and_stays", || {
        let fault = || Fault::Write(thread_rng().gen_range(0..14));
        let tasks = vec![writer(0..3, 4), writer(0..3, 4), starter(0..3, 3), checkpointer(2)];
        with_fault(fault, tasks);
    });
}

#[test]
fn a_failed_flush_is_told_to_all_and_stays() {
    explore("a_failed_flush_is_told_to_all_and_stays", || {
        let fault = || Fault::Flush(thread_rng().gen_range(0..7));
        let tasks = vec![writer(0..3, 4), writer(0..3, 4), starter(0..3, 3), checkpointer(2)];
        with_fault(fault, tasks);
    });
}

#[test]
fn a_shut_down_ends_every_wait() {
    explore("a_shut_down_ends_every_wait", || {
        let stop = task(|world| {
            for _ in 0..thread_rng().gen_range(0..30) {
                thread::yield_now();
            }
            world.store.shut_down();
        });
        let tasks = vec![writer(0..3, 4), starter(0..3, 3), checkpointer(2), stop];
        run(World::new(3, true), tasks);
    });
}
