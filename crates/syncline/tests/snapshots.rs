//! Snapshots through the library: what they show, how long, and what their end gives back.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use syncline::{FallocateMode, MkfsOptions, OpenOptions, Schedule, Volume, VolumeOptions};
use syncline_check::{CheckOptions, check};
use syncline_device::{Buffer, Device, MemoryDevice};
use syncline_format::BlockNo;

const BYTES: u64 = 64 << 20;

fn format(device: &Arc<MemoryDevice>, options: &MkfsOptions) {
    let entropy = syncline::SystemEntropy::default();
    syncline_fs::Fs::format(&**device, options, &syncline::SystemClock, &entropy, &mut |_, _| {})
        .expect("format");
}

fn open(device: &Arc<MemoryDevice>, background: bool) -> Volume {
    let device: Arc<dyn Device> = device.clone();
    Volume::on_device(device, &VolumeOptions::new().background(background)).expect("open")
}

fn fresh() -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(BYTES / 4096));
    format(&device, &MkfsOptions::default());
    let volume = open(&device, false);
    (device, volume)
}

/// Files by path.
type View = BTreeMap<String, Vec<u8>>;

fn view(volume: &Volume) -> View {
    let mut files = View::new();
    for entry in volume.read_dir("/").expect("read_dir") {
        let name = entry.expect("entry").file_name().to_str().expect("a name").to_owned();
        files.insert(name.clone(), volume.read(&name).expect("read"));
    }
    files
}

/// The offline check finds nothing wrong with the volume, or with any snapshot of it.
fn judge(device: &Arc<MemoryDevice>, seed: u64) {
    let options = CheckOptions::default().data(true).all(true);
    let report = check(&**device, options).expect("a volume");
    assert!(report.is_sound(), "seed {seed}: {:#?}", report.findings);
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// One change of the volume, and of what it is held against.
fn step(volume: &Volume, files: &mut View, random: &mut Random) {
    let name = format!("f{}", random.below(12));
    let byte = random.below(255) as u8 + 1;
    let content = files.get(&name).cloned();
    match (random.below(11), content) {
        (0, _) => {
            let content = vec![byte; random.below(40_000) as usize];
            volume.write(&name, &content).expect("write");
            files.insert(name, content);
        }
        (1..=4, Some(mut content)) => {
            // In place: what a database does. Synced, so that pages live in the journal.
            let file = OpenOptions::new().write(true).open(volume, &name).expect("open");
            let (at, len) = (random.below(content.len() as u64 + 1) as usize, random.below(6000) as usize);
            file.write_all_at(&vec![byte; len], at as u64).expect("write");
            content.resize(content.len().max(at + len), 0);
            content[at..at + len].fill(byte);
            if random.below(2) == 0 {
                file.sync_data().expect("sync");
            }
            files.insert(name, content);
        }
        (5, Some(mut content)) => {
            let file = OpenOptions::new().write(true).open(volume, &name).expect("open");
            let len = random.below(content.len() as u64 + 3000) as usize;
            file.set_len(len as u64).expect("truncate");
            content.resize(len, 0);
            files.insert(name, content);
        }
        (6, Some(mut content)) if content.len() > 9000 => {
            let file = OpenOptions::new().write(true).open(volume, &name).expect("open");
            let (at, len) = (random.below(4000) as usize, 4500);
            file.fallocate(FallocateMode::PunchHole, at as u64, len as u64).expect("punch");
            content[at..at + len].fill(0);
            files.insert(name, content);
        }
        (7, Some(content)) => {
            let file = OpenOptions::new().write(true).open(volume, &name).expect("open");
            let len = content.len() as u64 + random.below(20_000) + 1;
            file.fallocate(FallocateMode::Allocate { keep_size: true }, 0, len).expect("allocate");
        }
        (8, Some(content)) => {
            let to = format!("f{}", random.below(12));
            volume.rename(&name, &to).expect("rename");
            files.remove(&name);
            files.insert(to, content);
        }
        (9, Some(_)) => {
            volume.remove_file(&name).expect("remove");
            files.remove(&name);
        }
        (10, _) => volume.sync_all().expect("sync"),
        _ => {}
    }
}

// Shows: C10, C11.
#[test]
fn snapshots_show_what_was_there_whatever_happens_to_the_volume() {
    for seed in 1..=8 {
        let (device, mut volume) = fresh();
        let mut random = Random(seed);
        let (mut files, mut snapshots) = (View::new(), BTreeMap::<String, View>::new());
        for round in 0..30 {
            (0..random.below(60)).for_each(|_| step(&volume, &mut files, &mut random));
            let name = format!("s{round}");
            volume.snapshot(&name).expect("snapshot");
            snapshots.insert(name, files.clone());
            if random.below(2) == 0
                && let Some(name) =
                    snapshots.keys().nth(random.below(snapshots.len() as u64) as usize).cloned()
            {
                volume.delete_snapshot(&name).expect("delete");
                snapshots.remove(&name);
            }
            match random.below(6) {
                0 => volume.reclaim().expect("reclaim"),
                1 => {
                    // As a power cut behind the last sync: a snapshot has forced all before it.
                    volume.sync_all().expect("sync");
                    volume.shut_down();
                    judge(&device, seed);
                    volume = open(&device, false);
                }
                2 => {
                    volume.close().expect("close");
                    judge(&device, seed);
                    volume = open(&device, false);
                }
                _ => {}
            }
            assert_eq!(volume.snapshots().expect("list").len(), snapshots.len());
            for (name, wanted) in &snapshots {
                assert!(view(&volume.at(name).expect("at")) == *wanted, "seed {seed}, round {round}: {name}");
            }
            assert!(view(&volume) == files, "seed {seed}, round {round}");
        }
        // Everything can be deleted, and all of it comes back.
        for name in snapshots.keys().chain([&"none".to_owned()]) {
            let deleted = volume.delete_snapshot(name);
            assert_eq!(deleted.is_ok(), name != "none");
        }
        for name in files.keys() {
            volume.remove_file(name).expect("remove");
        }
        volume.reclaim().expect("reclaim");
        volume.sync_all().expect("sync");
        volume.reclaim().expect("reclaim");
        let space = volume.statfs();
        let nodes = space.blocks - space.blocks_free;
        assert!(nodes <= 5 * 4, "{nodes} blocks are in use though nothing is left");
        volume.close().expect("close");
        judge(&device, seed);
    }
}

// Shows: C10.
#[test]
fn a_snapshot_of_a_clean_volume_is_one_write_and_one_flush_and_a_sync_beside_many_costs_the_same() {
    let (device, volume) = fresh();
    volume.write("f", vec![1; 10_000]).expect("write");
    volume.sync_all().expect("sync");
    let file = OpenOptions::new().append(true).open(&volume, "f").expect("open");
    let mut costs = Vec::new();
    for number in 0..200 {
        let before = device.counters();
        volume.snapshot(&number.to_string()).expect("snapshot");
        let made = device.counters();
        file.write_all_at(&[2; 100], 10_000 + number * 100).expect("write");
        file.sync_data().expect("sync");
        let synced = device.counters();
        costs.push([
            (made.writes - before.writes, made.flushes - before.flushes),
            (synced.writes - made.writes, synced.flushes - made.flushes),
        ]);
        // What the sync has logged goes home before the next one is made.
        volume.sync_all().expect("sync");
        volume.inner().maintain(syncline::Clock::now(&syncline::SystemClock), 64).expect("maintain");
    }
    let exact = costs.iter().filter(|cost| cost[1] == (1, 1)).count();
    assert!(exact >= 195, "a sync is one write and one flush, but beside a checkpoint: {costs:?}");
    let flushes = costs.iter().filter(|cost| cost[0].1 == 1).count();
    assert!(flushes >= 195, "a snapshot is one flush: {costs:?}");
}

// Shows: C11, R27.
#[test]
fn a_deleted_snapshot_is_read_to_the_end_by_whoever_has_it_open() {
    let (_device, volume) = fresh();
    let content: Vec<u8> = (0..3_000_000_u32).map(|index| (index / 7) as u8).collect();
    volume.write("large", &content).expect("write");
    volume.snapshot("s").expect("snapshot");
    volume.remove_file("large").expect("remove");
    let old = volume.at("s").expect("at");
    volume.delete_snapshot("s").expect("delete");
    assert_eq!(volume.at("s").expect_err("it is deleted").kind(), ErrorKind::NotFound);
    volume.reclaim().expect("reclaim");
    // Written over if it were free.
    volume.write("other", vec![9; 20 << 20]).expect("write");
    volume.sync_all().expect("sync");
    assert!(old.read("large").expect("read") == content);
    drop(old);
    let before = volume.statfs().blocks_free;
    volume.reclaim().expect("reclaim");
    let after = volume.statfs().blocks_free;
    assert!(after >= before + 700, "now its space is free: {before} to {after}");
}

// Shows: C7a, C11.
#[test]
fn a_snapshot_that_was_read_ends_nothing_of_the_volume_when_it_is_closed() {
    let ends: [fn(Volume); 3] = [
        drop,
        |view| view.close().expect("close"),
        |view| (view.shut_down(), view.close().expect("close")).0,
    ];
    for end in ends {
        let (_device, volume) = fresh();
        volume.write("large", vec![1; 20 << 20]).expect("write");
        volume.snapshot("s").expect("snapshot");
        volume.remove_file("large").expect("remove");
        let before = volume.statfs().blocks_free;
        end(volume.at("s").expect("at"));
        volume.write("small", "x").expect("write");
        volume.sync_all().expect("the volume goes on");
        volume.delete_snapshot("s").expect("delete");
        volume.reclaim().expect("reclaim");
        let after = volume.statfs().blocks_free;
        assert!(after >= before + 5000, "the space of the snapshot is free: {before} to {after}");
        assert!(volume.trim(0..u64::MAX, 0).expect("trim") >= 20 << 20, "free space is still discarded");
        volume.close().expect("close");
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_right_error() {
    let (_device, volume) = fresh();
    volume.snapshot("s").expect("snapshot");
    let kind = |result: std::io::Result<_>| result.map(drop).expect_err("refused").kind();
    assert_eq!(kind(volume.snapshot("s").map(drop)), ErrorKind::AlreadyExists);
    for name in ["", ".", "..", "a/b", "a\0b"] {
        assert_eq!(kind(volume.snapshot(name).map(drop)), ErrorKind::InvalidInput, "{name:?}");
        assert_eq!(kind(volume.rename_snapshot("s", name)), ErrorKind::InvalidInput, "{name:?}");
    }
    let long = "n".repeat(256);
    assert_eq!(kind(volume.snapshot(&long).map(drop)), ErrorKind::InvalidFilename);
    assert_eq!(kind(volume.rename_snapshot("s", &long)), ErrorKind::InvalidFilename);
    assert_eq!(kind(volume.delete_snapshot("t")), ErrorKind::NotFound);
    assert_eq!(kind(volume.delete_snapshot("main")), ErrorKind::NotFound, "the head is none");
    assert_eq!(kind(volume.at("t").map(drop)), ErrorKind::NotFound);
    volume.rename_snapshot("s", "t").expect("rename");
    let old = volume.at("t").expect("at");
    assert_eq!(kind(old.write("f", "x")), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(kind(old.snapshot("u").map(drop)), ErrorKind::ReadOnlyFilesystem);
    let options = MkfsOptions::default().format(1);
    let version1 = VolumeOptions::new().create_in_memory(BYTES, &options).expect("create");
    assert_eq!(kind(version1.snapshot("s").map(drop)), ErrorKind::Unsupported);
    assert!(version1.snapshots().expect("list").is_empty());
}

/// Everything that changes snapshots, with what it says.
fn refusals(volume: &Volume) -> Vec<std::io::Error> {
    vec![
        volume.snapshot("u").map(drop).expect_err("make"),
        volume.snapshot_committed("u").map(drop).expect_err("make"),
        volume.rename_snapshot("s", "u").expect_err("rename"),
        volume.hold_snapshot("s").expect_err("hold"),
        volume.release_snapshot("s").expect_err("release"),
        volume.delete_snapshot("s").expect_err("delete"),
        volume.clone_snapshot("s", "u").map(drop).expect_err("clone"),
        volume.set_schedule(Some(&Schedule::default())).expect_err("schedule"),
        volume.set_schedule(None).expect_err("schedule"),
        volume.reclaim().expect_err("reclaim"),
    ]
}

#[test]
fn a_volume_that_is_read_only_or_has_stopped_refuses_all_changes_of_snapshots_and_loses_none() {
    let (device, volume) = fresh();
    volume.write("f", "there").expect("write");
    volume.snapshot("s").expect("snapshot");
    volume.close().expect("close");
    let read_only = VolumeOptions::new().read_only(true);
    let volume = Volume::on_device(device.clone(), &read_only).expect("open");
    for error in refusals(&volume) {
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{error}");
    }
    assert_eq!(volume.at("s").expect("at").read("f").expect("read"), b"there");
    drop(volume);
    let volume = open(&device, false);
    volume.shut_down();
    for error in refusals(&volume) {
        assert!(matches!(syncline::errno(&error), 5 | 30), "{error}");
        assert_eq!(error.to_string().lines().count(), 1);
    }
    drop(volume);
    let volume = open(&device, false);
    let names: Vec<String> = volume.snapshots().expect("list").into_iter().map(|made| made.name).collect();
    assert_eq!(names, ["s"]);
    assert_eq!(volume.schedule().expect("schedule"), None);
    assert_eq!(volume.at("s").expect("at").read("f").expect("read"), b"there");
}

#[test]
fn a_volume_with_threads_follows_its_schedule() {
    let device = Arc::new(MemoryDevice::new(BYTES / 4096));
    format(&device, &MkfsOptions::default());
    let volume = open(&device, true);
    volume.write("f", "there").expect("write");
    volume.sync_all().expect("sync");
    volume.set_schedule(Some(&Schedule { hourly: 3, ..Schedule::default() })).expect("schedule");
    let began = std::time::Instant::now();
    while volume.snapshots().expect("list").is_empty() {
        assert!(began.elapsed().as_secs() < 60, "no snapshot is made");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let made = volume.snapshots().expect("list").remove(0);
    assert!(made.scheduled && !made.held && made.expires.is_none(), "{made:?}");
    assert_eq!(volume.at(&made.name).expect("at").read("f").expect("read"), b"there");
    assert!(!volume.is_schedule_paused().expect("schedule"));
    // What is renamed is not the schedule's any more.
    volume.rename_snapshot(&made.name, "mine").expect("rename");
    assert!(!volume.snapshots().expect("list")[0].scheduled);
    volume.close().expect("close");
    judge(&device, 0);
}

#[test]
fn a_snapshot_is_not_readable_beyond_the_end_of_the_session() {
    let (_device, volume) = fresh();
    volume.write("f", "there").expect("write");
    volume.snapshot("s").expect("snapshot");
    let old = volume.at("s").expect("at");
    volume.close().expect("close");
    assert!(old.read("f").is_err(), "the device may be somebody else's");
}

// Shows: C10, R28.
#[test]
fn ranges_are_taken_out_and_put_in_behind_snapshots_which_stay_as_they_are() {
    const PAGE: usize = 4096;
    for seed in 1..=6 {
        let mut random = Random(seed);
        let (device, mut volume) = fresh();
        let pages = 300;
        let mut content: Vec<u8> = (0..pages * PAGE).map(|at| (at / PAGE % 251) as u8 + 1).collect();
        volume.write("f", &content).expect("write");
        let file = OpenOptions::new().write(true).open(&volume, "f").expect("open");
        // A hole, and what is set aside and not written: both read as zeros.
        file.fallocate(FallocateMode::PunchHole, 20 * PAGE as u64, 30 * PAGE as u64).expect("punch");
        file.fallocate(FallocateMode::Allocate { keep_size: true }, 25 * PAGE as u64, 9 * PAGE as u64)
            .expect("allocate");
        content[20 * PAGE..50 * PAGE].fill(0);
        drop(file);
        let mut kept: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for round in 0..24 {
            let file = OpenOptions::new().write(true).open(&volume, "f").expect("open");
            let at = random.below((content.len() / PAGE - 20) as u64) as usize * PAGE;
            let len = (1 + random.below(16) as usize) * PAGE;
            match random.below(5) {
                0 => {
                    let name = format!("s{round}");
                    volume.snapshot(&name).expect("snapshot");
                    kept.insert(name, content.clone());
                }
                1 if !kept.is_empty() => {
                    let name =
                        kept.keys().nth(random.below(kept.len() as u64) as usize).cloned().expect("one");
                    volume.delete_snapshot(&name).expect("delete");
                    kept.remove(&name);
                    if random.below(2) == 0 {
                        volume.reclaim().expect("reclaim");
                    }
                }
                2 => {
                    file.fallocate(FallocateMode::CollapseRange, at as u64, len as u64).expect("collapse");
                    content.drain(at..at + len);
                }
                3 => {
                    file.fallocate(FallocateMode::InsertRange, at as u64, len as u64).expect("insert");
                    content.splice(at..at, vec![0; len]);
                }
                _ => {
                    file.write_all_at(&vec![round as u8 + 1; len / 2], at as u64 + 100).expect("write");
                    content[at + 100..at + 100 + len / 2].fill(round as u8 + 1);
                }
            }
            drop(file);
            assert!(volume.read("f").expect("read") == content, "seed {seed}, round {round}");
            if round % 8 == 7 {
                volume.sync_all().expect("sync");
                match random.below(2) {
                    0 => volume.shut_down(),
                    _ => volume.close().expect("close"),
                }
                judge(&device, seed);
                volume = open(&device, false);
                for (name, kept) in &kept {
                    assert!(
                        volume.at(name).expect("at").read("f").expect("read") == *kept,
                        "seed {seed}: {name}"
                    );
                }
            }
        }
        for name in kept.keys() {
            volume.delete_snapshot(name).expect("delete");
        }
        volume.remove_file("f").expect("remove");
        volume.reclaim().expect("reclaim");
        volume.close().expect("close");
        judge(&device, seed);
    }
}

#[test]
fn a_range_that_cannot_be_moved_for_lack_of_space_leaves_the_file_as_it_was() {
    let (device, volume) = fresh();
    let content: Vec<u8> = (0..9_u8).flat_map(|part| vec![part + 1; 4 << 20]).collect();
    volume.write("f", &content).expect("write");
    volume.snapshot("s").expect("snapshot");
    let file = OpenOptions::new().write(true).open(&volume, "f").expect("open");
    for mode in [FallocateMode::CollapseRange, FallocateMode::InsertRange] {
        let refused = file.fallocate(mode, 0, 8192).expect_err("the rest has no room for it once more");
        assert_eq!(refused.kind(), ErrorKind::StorageFull);
        assert!(volume.read("f").expect("read") == content);
    }
    volume.delete_snapshot("s").expect("delete");
    file.fallocate(FallocateMode::CollapseRange, 0, 8192).expect("nobody else has the blocks");
    assert!(volume.read("f").expect("read") == content[8192..]);
    drop(file);
    volume.close().expect("close");
    judge(&device, 0);
}

// Shows: C11.
#[test]
fn a_usage_is_what_a_deletion_gives_back_to_the_block() {
    let mut shared = 0;
    for seed in 1..=6 {
        let (_device, volume) = fresh();
        let (mut random, mut files) = (Random(seed), View::new());
        let count = if seed == 6 { 40 } else { 3 + seed * 3 };
        let mut names: Vec<String> = (0..count).map(|number| format!("s{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            (0..12).for_each(|_| step(&volume, &mut files, &mut random));
            match random.below(2) {
                0 => volume.snapshot(name).expect("snapshot"),
                _ => volume.snapshot_committed(name).expect("snapshot"),
            };
            if number % 3 == 1 && seed != 6 {
                volume.clone_snapshot(name, &format!("h{number}")).expect("clone");
                let head = volume.head(&format!("h{number}")).expect("head");
                (0..6).for_each(|_| drop(head.write(format!("own{number}"), vec![number as u8; 30_000])));
                head.close().expect("close");
            }
        }
        let free = || {
            volume.reclaim().expect("reclaim");
            // The volume's own changes wait for one, and are no part of the difference.
            volume.checkpoint().expect("checkpoint");
            volume.statfs().blocks_free * 4096
        };
        while !names.is_empty() {
            let chosen: Vec<String> = match seed == 6 {
                true => std::mem::take(&mut names),
                // Neighbours, which have the same.
                false => {
                    let count = (1 + random.below(4) as usize).min(names.len());
                    let first = random.below((names.len() - count + 1) as u64) as usize;
                    names.drain(first..first + count).collect()
                }
            };
            volume.reclaim().expect("reclaim");
            let told = volume.snapshot_usage(&chosen).expect("usage");
            let alone = chosen.iter().map(|name| volume.snapshot_usage(&[name]).expect("usage")).sum::<u64>();
            assert!(alone <= told, "seed {seed}");
            shared += u64::from(alone < told);
            let before = free();
            chosen.iter().for_each(|name| volume.delete_snapshot(name).expect("delete"));
            let gained = free() - before;
            // Pages beside a tree are named in the tables, which get shorter with them.
            assert!((told..=told + 4 * 16384).contains(&gained), "seed {seed}: {told} told, {gained} gained");
        }
        volume.close().expect("close");
    }
    assert!(shared > 3, "several snapshots have the same {shared} times");
}

#[test]
fn a_usage_of_a_volume_opened_read_only_or_of_what_is_not_there_is_told_or_refused() {
    let (device, volume) = fresh();
    volume.write("f", vec![1; 100_000]).expect("write");
    volume.snapshot("s").expect("snapshot");
    volume.remove_file("f").expect("remove");
    volume.sync_all().expect("sync");
    let told = volume.snapshot_usage(&["s"]).expect("usage");
    assert!(told >= 100_000, "{told}");
    assert_eq!(volume.snapshot_usage::<&str>(&[]).expect("of none"), 0);
    assert_eq!(volume.snapshot_usage(&["s", "s"]).expect("twice"), told);
    for name in ["t", "main"] {
        let refused = volume.snapshot_usage(&["s", name]).expect_err("there is no such snapshot");
        assert_eq!(refused.kind(), ErrorKind::NotFound);
    }
    volume.write("g", "g").expect("write");
    volume.snapshot("t").expect("snapshot");
    let unclean = copy(&device);
    volume.write("g", "other").expect("write");
    volume.close().expect("close");
    let read_only = |device: Arc<MemoryDevice>| {
        let device: Arc<dyn Device> = device;
        Volume::on_device(device, &VolumeOptions::new().read_only(true)).expect("open")
    };
    let refused = read_only(unclean).snapshot_usage(&["t"]).expect_err("it is in the journal only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    let both = read_only(device.clone()).snapshot_usage(&["s", "t"]).expect("usage");
    assert!(both > told, "{both} of both, {told} of one");
}

// Shows: C11.
#[test]
fn a_held_snapshot_stays_until_it_is_released() {
    let (device, volume) = fresh();
    volume.write("f", "held").expect("write");
    for name in ["s", "t"] {
        volume.snapshot(name).expect("snapshot");
    }
    (0..2).for_each(|_| volume.hold_snapshot("s").expect("hold"));
    volume.write("f", "later").expect("write");
    let refused = volume.delete_snapshot("s").expect_err("it is held");
    assert_eq!((refused.kind(), syncline::errno(&refused)), (ErrorKind::ResourceBusy, 16));
    assert!(refused.to_string().contains("release"), "{refused}");
    volume.rename_snapshot("s", "kept").expect("rename");
    volume.delete_snapshot("t").expect("delete");
    volume.rollback("kept", Some("before")).expect("a rollback goes to it");
    let volume = open(&device, false);
    let held = |volume: &Volume| {
        let all = volume.snapshots().expect("list");
        all.into_iter().map(|snapshot| (snapshot.name, snapshot.held)).collect::<Vec<_>>()
    };
    assert_eq!(held(&volume), [("kept".to_owned(), true), ("before".to_owned(), false)]);
    let refused = volume.delete_snapshot("kept").expect_err("it is held");
    assert_eq!(refused.kind(), ErrorKind::ResourceBusy);
    let kind = |result: std::io::Result<()>| result.expect_err("refused").kind();
    assert_eq!(kind(volume.hold_snapshot("none")), ErrorKind::NotFound);
    assert_eq!(kind(volume.hold_snapshot("main")), ErrorKind::NotFound);
    assert_eq!(kind(volume.release_snapshot("none")), ErrorKind::NotFound);
    let view = volume.at("kept").expect("at");
    assert_eq!(kind(view.release_snapshot("kept")), ErrorKind::ReadOnlyFilesystem);
    drop(view);
    (0..2).for_each(|_| volume.release_snapshot("kept").expect("release"));
    volume.delete_snapshot("kept").expect("delete");
    volume.close().expect("close");
    judge(&device, 0);
}

/// A volume of 12 MiB with two snapshots and a tree of many nodes, none of which a removal gives back.
fn crowded() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(3072));
    format(&device, &MkfsOptions::default().journal_bytes(512 << 10));
    let volume = open(&device, false);
    for file in 0..FILES {
        volume.create_file(format!("{file:0200}")).expect("create");
    }
    volume.write("data", vec![1; 200_000]).expect("write");
    volume.snapshot("one").expect("snapshot");
    volume.write("data", vec![2; 200_000]).expect("write");
    volume.snapshot("two").expect("snapshot");
    volume.hold_snapshot("two").expect("hold");
    volume.close().expect("close");
    device
}

const FILES: u64 = 1500;

fn copy(device: &MemoryDevice) -> Arc<MemoryDevice> {
    let copy = MemoryDevice::new(device.blocks());
    for block in (0..device.blocks()).map(BlockNo) {
        let mut content = Buffer::zeroed(1);
        device.read(block, &mut content).expect("read");
        copy.write(block, vec![Arc::new(content)]).expect("write");
    }
    Arc::new(copy)
}

// Shows: C8, C11, R33.
#[test]
fn a_full_volume_is_emptied_by_deleting_its_snapshots_at_every_number_of_free_blocks() {
    let crowded = crowded();
    let is_full = |error: &std::io::Error| error.kind() == ErrorKind::StorageFull;
    let mut refused = 0;
    for free in 0..120_u64 {
        let device = copy(&crowded);
        let volume = open(&device, false);
        let filler = volume.create_file("filler").expect("create");
        let available = volume.statfs().blocks_available;
        filler.allocate(0, available.saturating_sub(free).max(1) * 4096).expect("allocate");
        // What is left goes for small files, and then for removals, which free nothing: the snapshots have it.
        for number in 0.. {
            let made = volume.write(format!("small{number}"), vec![3; 4096]);
            if let Err(error) = made.and_then(|()| volume.sync_all()) {
                assert!(is_full(&error), "{free} free: {error}");
                break;
            }
        }
        for file in (0..FILES).map(|file| file * 7 % FILES) {
            if let Err(error) = volume.remove_file(format!("{file:0200}")) {
                assert!(is_full(&error), "{free} free: {error}");
                refused += 1;
                break;
            }
        }
        volume.release_snapshot("two").unwrap_or_else(|error| panic!("{free} free: {error}"));
        for name in ["two", "one"] {
            volume.delete_snapshot(name).unwrap_or_else(|error| panic!("{free} free: {error}"));
        }
        volume.reclaim().unwrap_or_else(|error| panic!("{free} free: {error}"));
        assert!(volume.snapshots().expect("list").is_empty());
        volume.write("after", vec![4; 100_000]).unwrap_or_else(|error| panic!("{free} free: {error}"));
        volume.sync_all().expect("sync");
        volume.close().expect("close");
    }
    assert!(refused > 30, "removals found no space {refused} times: else this shows nothing");
}

// Shows: C11.
#[test]
fn no_call_fails_for_lack_of_space_that_deleted_snapshots_have() {
    for call in ["write", "names", "snapshot", "clone"] {
        let device = copy(&crowded());
        let volume = open(&device, false);
        // "two" and "one" hold 50 blocks of data each that the file has left, and the nodes.
        let filler = volume.create_file("filler").expect("create");
        let available = volume.statfs().blocks_available;
        filler.allocate(0, available.saturating_sub(30).max(1) * 4096).expect("allocate");
        while filler.allocate(filler.metadata().expect("metadata").len(), 4096).is_ok() {}
        let attempt = |volume: &Volume| match call {
            "write" => volume.write("after", vec![4; 100_000]),
            "names" => (0..200).try_for_each(|number| volume.write(format!("{number:0250}"), [])),
            "snapshot" => volume.snapshot("three").map(drop),
            _ => volume.clone_snapshot("two", "branch").map(drop),
        };
        let error = attempt(&volume).expect_err(call);
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{call}: {error}");
        volume.delete_snapshot("one").expect("delete");
        volume.release_snapshot("two").expect("release");
        if call != "clone" {
            volume.delete_snapshot("two").expect("delete");
        }
        attempt(&volume).unwrap_or_else(|error| panic!("{call}: {error}"));
        volume.close().expect("close");
    }
}

// Shows: C11.
#[test]
fn threads_that_make_and_delete_snapshots_never_fill_the_volume() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = MkfsOptions::default().size_bytes(BYTES);
    // On a file a checkpoint takes its time, and what it frees comes back later than others ask for it.
    let volume = Volume::create(directory.path().join("image"), &options).expect("a volume");
    std::thread::scope(|scope| {
        for number in 0..3 {
            let volume = &volume;
            scope.spawn(move || {
                for round in 0..400 {
                    let name = format!("{number}-{round}");
                    volume
                        .write(format!("f{number}"), &name)
                        .unwrap_or_else(|error| panic!("write {name}: {error}"));
                    volume.snapshot(&name).unwrap_or_else(|error| panic!("snapshot {name}: {error}"));
                    let then = volume.at(&name).expect("at");
                    assert_eq!(then.read(format!("f{number}")).expect("read"), name.as_bytes());
                    then.close().expect("close the view");
                    volume.delete_snapshot(&name).unwrap_or_else(|error| panic!("delete {name}: {error}"));
                }
            });
        }
    });
    volume.close().expect("close");
}

// Shows: C10.
#[test]
fn what_a_snapshot_has_in_the_journal_only_is_shown_by_a_volume_opened_read_only_which_writes_nothing() {
    let (device, volume) = fresh();
    volume.write("f", vec![1; 6000]).expect("write");
    volume.sync_all().expect("sync");
    let file = OpenOptions::new().write(true).open(&volume, "f").expect("open");
    file.write_all_at(&[2; 6000], 0).expect("write");
    file.sync_data().expect("sync");
    volume.snapshot_committed("s").expect("snapshot");
    file.write_all_at(&[3; 6000], 0).expect("write");
    file.sync_data().expect("sync");
    volume.shut_down();
    drop((file, volume));
    let before = device.counters();
    let options = VolumeOptions::new().background(false).read_only(true);
    let shared: Arc<dyn Device> = device.clone();
    let volume = Volume::on_device(shared, &options).expect("open");
    assert!(volume.read("f").expect("read") == vec![3; 6000]);
    assert!(volume.at("s").expect("at").read("f").expect("read") == vec![2; 6000]);
    let after = device.counters();
    assert_eq!((after.writes, after.flushes), (before.writes, before.flushes), "nothing is written");
    drop(volume);
    let volume = open(&device, false);
    assert!(volume.at("s").expect("at").read("f").expect("read") == vec![2; 6000]);
    assert!(volume.read("f").expect("read") == vec![3; 6000]);
}
