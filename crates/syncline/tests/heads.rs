//! Heads through the library: branches of snapshots that are open at the same time, and rollback.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use syncline::{MkfsOptions, OpenOptions, Volume, VolumeOptions};
use syncline_check::{CheckOptions, check};
use syncline_device::{Device, MemoryDevice};

const BYTES: u64 = 64 << 20;

fn open_with(device: &Arc<MemoryDevice>, options: &VolumeOptions) -> Volume {
    let device: Arc<dyn Device> = device.clone();
    Volume::on_device(device, options).expect("open")
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    open_with(device, &VolumeOptions::new().background(false))
}

fn fresh_with(options: &MkfsOptions) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(BYTES / 4096));
    let entropy = syncline::SystemEntropy::default();
    syncline_fs::Fs::format(&*device, options, &syncline::SystemClock, &entropy, &mut |_, _| {})
        .expect("format");
    let volume = open(&device);
    (device, volume)
}

fn fresh() -> (Arc<MemoryDevice>, Volume) {
    fresh_with(&MkfsOptions::default())
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

/// The offline check finds nothing wrong with the volume, or with any snapshot or head of it.
fn judge(device: &Arc<MemoryDevice>, what: &str) {
    let options = CheckOptions::default().data(true).all(true);
    let report = check(&**device, options).expect("a volume");
    assert!(report.is_sound(), "{what}: {:#?}", report.findings);
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// One change of a head, and of what it is held against.
fn step(volume: &Volume, files: &mut View, random: &mut Random) {
    let name = format!("f{}", random.below(8));
    let byte = random.below(255) as u8 + 1;
    let content = files.get(&name).cloned();
    match (random.below(8), content) {
        (0..=1, _) => {
            let content = vec![byte; random.below(60_000) as usize];
            volume.write(&name, &content).expect("write");
            files.insert(name, content);
        }
        (2..=5, Some(mut content)) => {
            let file = OpenOptions::new().write(true).open(volume, &name).expect("open");
            let (at, len) = (random.below(content.len() as u64 + 1) as usize, random.below(6000) as usize);
            file.write_all_at(&vec![byte; len], at as u64).expect("write");
            content.resize(content.len().max(at + len), 0);
            content[at..at + len].fill(byte);
            // Synced, so that pages live in the journal.
            file.sync_data().expect("sync");
            files.insert(name, content);
        }
        (6, Some(_)) => {
            volume.remove_file(&name).expect("remove");
            files.remove(&name);
        }
        _ => {}
    }
}

/// A volume with several open heads, and what each shows.
struct Branches {
    device: Arc<MemoryDevice>,
    volume: Volume,
    heads: BTreeMap<String, (Volume, View)>,
    snapshots: BTreeMap<String, View>,
    random: Random,
    names: u64,
}

impl Branches {
    fn new(seed: u64) -> Branches {
        let (device, volume) = fresh_with(&MkfsOptions::default().journal_bytes(1 << 20));
        let heads = BTreeMap::from([("main".to_owned(), (volume.clone(), View::new()))]);
        Branches { device, volume, heads, snapshots: BTreeMap::new(), random: Random(seed), names: 0 }
    }

    fn any<T>(&mut self, of: fn(&Branches) -> Vec<T>) -> Option<T> {
        let mut all = of(self);
        let index = self.random.below(all.len().max(1) as u64) as usize;
        (index < all.len()).then(|| all.swap_remove(index))
    }

    fn head_names(&self) -> Vec<String> {
        self.heads.keys().cloned().collect()
    }

    fn next_name(&mut self) -> String {
        self.names += 1;
        format!("t{}", self.names)
    }

    fn snapshot(&mut self) {
        let (name, head) = (self.next_name(), self.any(Branches::head_names).expect("main"));
        let (volume, view) = &self.heads[&head];
        if self.random.below(2) == 0 {
            volume.snapshot(&name).expect("snapshot");
        } else {
            // Images that the snapshot inherits, and a clone of it copies.
            volume.sync_all().expect("sync");
            volume.snapshot_committed(&name).expect("snapshot");
        }
        self.snapshots.insert(name, view.clone());
    }

    fn clone(&mut self) {
        let of = self.any(|branches| branches.snapshots.keys().cloned().collect());
        let Some(of) = of.filter(|_| self.heads.len() < 5) else { return };
        let name = self.next_name();
        let made = self.volume.clone_snapshot(&of, &name).expect("clone");
        assert_eq!((made.name.as_str(), made.is_default), (name.as_str(), false));
        let head = self.volume.head(&name).expect("head");
        self.heads.insert(name, (head, self.snapshots[&of].clone()));
    }

    fn delete(&mut self) {
        match self.random.below(2) {
            0 => {
                let Some(name) = self.any(|branches| branches.snapshots.keys().cloned().collect()) else {
                    return;
                };
                self.volume.delete_snapshot(&name).expect("delete");
                self.snapshots.remove(&name);
            }
            _ => {
                let name = self.any(Branches::head_names).filter(|name| name != "main");
                let Some(name) = name else { return };
                let refused = self.volume.delete_head(&name).expect_err("it is open");
                assert_eq!(refused.kind(), ErrorKind::ResourceBusy);
                self.heads.remove(&name);
                self.volume.delete_head(&name).expect("delete");
            }
        }
    }

    /// As a power cut behind a sync of everything, or a close.
    fn restart(mut self) -> Branches {
        let closes = self.random.below(2) == 0;
        if !closes {
            self.heads.values().for_each(|(head, _)| head.sync_all().expect("sync"));
            self.volume.shut_down();
        }
        let wanted: BTreeMap<String, View> =
            self.heads.into_iter().map(|(name, (_, view))| (name, view)).collect();
        if closes {
            self.volume.close().expect("close");
        }
        judge(&self.device, "between two sessions");
        let volume = open(&self.device);
        let mut heads = BTreeMap::new();
        for (name, view) in wanted {
            let head = if name == "main" { volume.clone() } else { volume.head(&name).expect("head") };
            heads.insert(name, (head, view));
        }
        Branches { volume, heads, ..self }
    }

    fn look(&self) {
        for (name, (head, wanted)) in &self.heads {
            assert!(view(head) == *wanted, "head {name}");
        }
        for (name, wanted) in &self.snapshots {
            assert!(view(&self.volume.at(name).expect("at")) == *wanted, "snapshot {name}");
        }
        let listed: Vec<String> =
            self.volume.heads().expect("heads").into_iter().map(|head| head.name).collect();
        let mut sorted = listed.clone();
        sorted.sort();
        assert_eq!(sorted, self.head_names());
    }
}

// Shows: C12.
#[test]
fn heads_go_on_beside_each_other_and_none_shows_what_another_one_does() {
    for seed in 1..=6 {
        let mut branches = Branches::new(seed);
        for _ in 0..12 {
            for _ in 0..branches.random.below(60) {
                let name = branches.any(Branches::head_names).expect("main");
                let (head, view) = branches.heads.get_mut(&name).expect("it is there");
                step(head, view, &mut branches.random);
            }
            match branches.random.below(8) {
                0..=1 => branches.snapshot(),
                2..=3 => branches.clone(),
                4 => branches.delete(),
                5 => branches.volume.reclaim().expect("reclaim"),
                6 => drop(branches.volume.inner().maintain(syncline::Clock::now(&syncline::SystemClock), 4)),
                _ => branches = branches.restart(),
            }
            if branches.snapshots.is_empty() {
                branches.snapshot();
            }
            branches.look();
        }
        branches = branches.restart();
        branches.look();
        // In the end nothing is left of what was deleted.
        let Branches { device, volume, heads, snapshots, .. } = branches;
        let others: Vec<String> = heads.into_keys().filter(|name| name != "main").collect();
        others.iter().for_each(|name| volume.delete_head(name).expect("delete"));
        snapshots.keys().for_each(|name| volume.delete_snapshot(name).expect("delete"));
        volume.reclaim().expect("reclaim");
        volume.close().expect("close");
        judge(&device, "in the end");
    }
}

// Shows: C12, R26: whoever relieves the journal asks all heads.
#[test]
fn a_head_that_rests_keeps_no_other_one_from_the_journal() {
    let (_, volume) = fresh_with(&MkfsOptions::default().journal_bytes(512 << 10));
    volume.write("f", vec![1; 40_000]).expect("write");
    volume.snapshot("s").expect("snapshot");
    volume.clone_snapshot("s", "rests").expect("clone");
    let rests = volume.head("rests").expect("head");
    let file = OpenOptions::new().write(true).open(&rests, "f").expect("open");
    // Images of the head that rests are the oldest of the journal.
    for page in 0..10 {
        file.write_all_at(&[7; 4096], page * 4096).expect("write");
        file.sync_data().expect("sync");
    }
    let busy = OpenOptions::new().write(true).open(&volume, "f").expect("open");
    for turn in 0..2000_u64 {
        busy.write_all_at(&[turn as u8; 4096], turn % 10 * 4096).expect("write");
        busy.sync_data().expect("a sync never fails for what another head keeps");
    }
    assert_eq!(rests.read("f").expect("read")[..4096], [7; 4096]);
    // Nobody has it open any more, and its images do not stay for that.
    drop((file, rests));
    for turn in 0..500_u64 {
        busy.write_all_at(&[turn as u8; 4096], turn % 10 * 4096).expect("write");
        busy.sync_data().expect("sync");
    }
    assert_eq!(volume.head("rests").expect("head").read("f").expect("read")[..4096], [7; 4096]);
}

// Shows: C12.
#[test]
fn a_clone_and_a_sync_in_it_are_one_write_and_one_flush_each() {
    let (_, volume) = fresh();
    volume.write("f", vec![1; 100_000]).expect("write");
    volume.snapshot("s").expect("snapshot");
    volume.checkpoint().expect("checkpoint");
    let cost = |what: &mut dyn FnMut()| {
        let before = volume.stats().engine.device;
        what();
        let after = volume.stats().engine.device;
        (after.writes - before.writes, after.flushes - before.flushes)
    };
    assert_eq!(cost(&mut || drop(volume.clone_snapshot("s", "c").expect("clone"))), (1, 1));
    let head = volume.head("c").expect("head");
    let file = OpenOptions::new().write(true).open(&head, "f").expect("open");
    file.write_all_at(&[2; 100], 0).expect("write");
    assert_eq!(cost(&mut || file.sync_data().expect("sync")), (1, 1));
    // A head that was deleted takes what is un-synced with it.
    file.write_all_at(&[3; 100], 5000).expect("write");
    drop((file, head));
    volume.delete_head("c").expect("delete");
    volume.sync_all().expect("sync");
    volume.reclaim().expect("reclaim");
    assert_eq!(volume.stats().engine.pages.dirty, 0);
}

#[test]
fn what_cannot_be_done_with_heads_is_refused_with_the_right_error() {
    let (_, volume) = fresh();
    volume.write("f", "1").expect("write");
    volume.snapshot("s").expect("snapshot");
    let kind = |result: std::io::Result<()>| result.expect_err("refused").kind();
    let clone = |of: &str, name: &str| kind(volume.clone_snapshot(of, name).map(drop));
    assert_eq!(clone("nothing", "c"), ErrorKind::NotFound);
    assert_eq!(clone("main", "c"), ErrorKind::NotFound, "a head is no snapshot");
    assert_eq!(clone("s", "s"), ErrorKind::AlreadyExists);
    assert_eq!(clone("s", "a/b"), ErrorKind::InvalidInput);
    assert_eq!(kind(volume.head("nothing").map(drop)), ErrorKind::NotFound);
    assert_eq!(kind(volume.head("main").map(drop)), ErrorKind::ResourceBusy);
    assert_eq!(kind(volume.delete_head("main")), ErrorKind::ResourceBusy);
    assert_eq!(kind(volume.delete_head("s")), ErrorKind::NotFound);
    volume.clone_snapshot("s", "c").expect("clone");
    let view = volume.at("s").expect("at");
    assert_eq!(kind(view.head("c").map(drop)), ErrorKind::InvalidInput);
    assert_eq!(kind(view.clone_snapshot("s", "d").map(drop)), ErrorKind::ReadOnlyFilesystem);
    let head = volume.head("c").expect("head");
    head.clone_snapshot("s", "d").expect("a head leads to the volume");
    volume.delete_head("d").expect("delete");
    assert_eq!(kind(head.rollback("s", None)), ErrorKind::InvalidInput);
    assert_eq!(kind(volume.delete_snapshot("c")), ErrorKind::NotFound);
    assert_eq!(kind(volume.snapshot("c").map(drop)), ErrorKind::AlreadyExists);
    let (_, plain) = fresh_with(&MkfsOptions::default().format(1));
    assert!(plain.heads().expect("heads").is_empty(), "version 1");
    assert_eq!(kind(plain.clone_snapshot("s", "c").map(drop)), ErrorKind::NotFound);
}

#[test]
fn a_snapshot_may_be_deleted_while_heads_descend_from_it_and_its_space_comes_back_with_the_last_but_one() {
    let (device, volume) = fresh();
    volume.write("large", vec![5; 8 << 20]).expect("write");
    volume.snapshot("s").expect("snapshot");
    for name in ["a", "b"] {
        volume.clone_snapshot("s", name).expect("clone");
    }
    volume.remove_file("large").expect("remove");
    volume.delete_snapshot("s").expect("delete");
    volume.reclaim().expect("reclaim");
    let (a, b) = (volume.head("a").expect("head"), volume.head("b").expect("head"));
    assert_eq!(a.read("large").expect("read"), b.read("large").expect("read"));
    // Nothing is left to be written that would take blocks of its own.
    volume.checkpoint().expect("checkpoint");
    let free = || volume.statfs().blocks_free;
    let before = free();
    drop(a);
    volume.delete_head("a").expect("delete");
    b.remove_file("large").expect("remove");
    drop(b);
    volume.delete_head("b").expect("delete");
    volume.reclaim().expect("reclaim");
    // Where the deletion had come by when the file was removed, that freed the blocks (R25), and not the deletion.
    volume.checkpoint().expect("checkpoint");
    assert!(free() > before + 2048, "{} blocks free, {before} before", free());
    volume.close().expect("close");
    judge(&device, "in the end");
}

// Shows: C12; rollback is one batch.
#[test]
fn a_rollback_shows_the_snapshot_and_keeps_what_was_there() {
    let (device, volume) = fresh();
    let mut first = volume.create_file("notes").expect("create");
    first.write_all(b"first").expect("write");
    drop(first);
    volume.snapshot("before").expect("snapshot");
    volume.write("notes", "second").expect("write");
    volume.write("more", "of it").expect("write");
    let file = volume.open_file("notes").expect("open");
    drop(file);
    volume.rollback("before", Some("after")).expect("rollback");
    judge(&device, "behind a rollback");
    let volume = open(&device);
    assert_eq!(view(&volume), View::from([("notes".to_owned(), b"first".to_vec())]));
    let heads = volume.heads().expect("heads");
    let told: Vec<_> = heads.iter().map(|head| (head.name.as_str(), head.is_default)).collect();
    assert_eq!(told, [("main", true)]);
    assert_eq!(heads[0].parent.as_deref(), Some("before"));
    assert_eq!(volume.at("after").expect("at").read("notes").expect("read"), b"second");
    volume.write("notes", "third").expect("write");
    volume.reclaim().expect("reclaim");
    // Forth again, and nothing is kept.
    volume.rollback("after", None).expect("rollback");
    let volume = open(&device);
    assert_eq!(volume.read("notes").expect("read"), b"second");
    assert_eq!(volume.snapshots().expect("snapshots").len(), 2);
    for name in ["before", "after"] {
        volume.delete_snapshot(name).expect("delete");
    }
    volume.reclaim().expect("reclaim");
    volume.close().expect("close");
    judge(&device, "in the end");
}

#[test]
fn a_rollback_that_cannot_be_leaves_the_volume_as_it_was() {
    let (device, volume) = fresh();
    volume.write("notes", "first").expect("write");
    volume.snapshot("before").expect("snapshot");
    volume.write("notes", "second").expect("write");
    let file = volume.open_file("notes").expect("open");
    let kind = |result: std::io::Result<()>| result.expect_err("refused").kind();
    assert_eq!(kind(volume.clone().rollback("before", None)), ErrorKind::ResourceBusy);
    drop(file);
    for (to, keep, wanted) in [
        ("nothing", None, ErrorKind::NotFound),
        ("before", Some("before"), ErrorKind::AlreadyExists),
        ("before", Some("a/b"), ErrorKind::InvalidInput),
    ] {
        let volume = open(&device);
        assert_eq!(kind(volume.rollback(to, keep)), wanted, "{to} {keep:?}");
        let volume = open(&device);
        assert_eq!(volume.read("notes").expect("read"), b"second");
        assert_eq!((volume.snapshots().expect("some").len(), volume.heads().expect("some").len()), (1, 1));
        volume.close().expect("close");
        judge(&device, "behind a refusal");
    }
}

#[test]
fn an_unlinked_file_that_a_crash_has_left_in_a_head_goes_when_the_head_is_opened() {
    let (device, volume) = fresh();
    volume.snapshot("s").expect("snapshot");
    volume.clone_snapshot("s", "c").expect("clone");
    let head = volume.head("c").expect("head");
    head.write("large", vec![3; 8 << 20]).expect("write");
    let file = head.open_file("large").expect("open");
    head.remove_file("large").expect("remove");
    head.sync_all().expect("sync");
    volume.shut_down();
    drop((file, head, volume));
    let volume = open(&device);
    let free = || volume.statfs().blocks_free;
    let before = free();
    let head = volume.head("c").expect("head");
    assert!(free() >= before + 2048, "{} blocks free, {before} before", free());
    assert!(view(&head).is_empty());
    head.close().expect("close");
    volume.close().expect("close");
    judge(&device, "in the end");
}

// Shows: C12; threads of their own write to heads while others are made, rolled into snapshots and deleted.
#[test]
fn heads_are_made_written_to_and_deleted_on_threads_of_their_own() {
    let device = Arc::new(MemoryDevice::new(2 * BYTES / 4096));
    let entropy = syncline::SystemEntropy::default();
    let options = MkfsOptions::default().journal_bytes(1 << 20);
    syncline_fs::Fs::format(&*device, &options, &syncline::SystemClock, &entropy, &mut |_, _| {})
        .expect("format");
    let quickly = std::time::Duration::from_millis(20);
    let volume = open_with(&device, &VolumeOptions::new().commit_interval(quickly));
    volume.write("f0", vec![1; 200_000]).expect("write");
    volume.snapshot("base").expect("snapshot");
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let volume = volume.clone();
            scope.spawn(move || {
                let mut random = Random(worker + 1);
                for round in 0..8 {
                    let name = format!("w{worker}-{round}");
                    volume.clone_snapshot("base", &name).expect("clone");
                    let head = volume.head(&name).expect("head");
                    let mut files = View::from([("f0".to_owned(), vec![1; 200_000])]);
                    (0..30).for_each(|_| step(&head, &mut files, &mut random));
                    let snapshot = format!("s{worker}-{round}");
                    head.snapshot(&snapshot).expect("snapshot");
                    assert!(view(&head) == files, "{name}");
                    if round % 2 == 0 {
                        head.close().expect("close");
                    } else {
                        drop(head);
                    }
                    volume.delete_head(&name).expect("delete");
                    assert!(view(&volume.at(&snapshot).expect("at")) == files, "{snapshot}");
                    volume.delete_snapshot(&snapshot).expect("delete");
                }
            });
        }
    });
    assert!(view(&volume) == View::from([("f0".to_owned(), vec![1; 200_000])]));
    volume.reclaim().expect("reclaim");
    assert_eq!((volume.heads().expect("heads").len(), volume.snapshots().expect("some").len()), (1, 1));
    volume.close().expect("close");
    judge(&device, "in the end");
}

#[test]
fn a_head_can_be_what_a_volume_is_opened_with_to_be_written_or_read() {
    let (device, volume) = fresh();
    volume.write("notes", "first").expect("write");
    volume.snapshot("s").expect("snapshot");
    volume.clone_snapshot("s", "c").expect("clone");
    volume.close().expect("close");
    let named = VolumeOptions::new().background(false).head("c");
    let volume = open_with(&device, &named);
    volume.write("notes", "of the clone").expect("write");
    let main = volume.head("main").expect("the default one beside it");
    assert_eq!(main.read("notes").expect("read"), b"first");
    let mut file = OpenOptions::new().append(true).open(&main, "notes").expect("open");
    file.write_all(b", and more").expect("write");
    file.sync_all().expect("sync");
    volume.sync_all().expect("sync");
    // Both have pages in the journal only: they are shown read-only as well.
    volume.shut_down();
    drop((volume, main, file));
    let read_only = open_with(&device, &VolumeOptions::new().read_only(true));
    assert_eq!(read_only.read("notes").expect("read"), b"first, and more");
    assert_eq!(read_only.head("c").expect("head").read("notes").expect("read"), b"of the clone");
    assert_eq!(read_only.at("s").expect("at").read("notes").expect("read"), b"first");
    drop(read_only);
    let volume = open_with(&device, &named);
    assert_eq!(volume.read("notes").expect("read"), b"of the clone");
    assert_eq!(volume.head("main").expect("head").read("notes").expect("read"), b"first, and more");
    volume.close().expect("close");
    judge(&device, "in the end");
    let device: Arc<dyn Device> = device.clone();
    let missing = Volume::on_device(device, &VolumeOptions::new().head("nothing")).expect_err("no such head");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}
