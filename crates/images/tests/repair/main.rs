//! Repair of volumes of version 2: heads are corrected, nothing is lost that could be kept, and snapshots show to the
//! byte what they did.

mod lost;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use syncline_check::{CheckOptions, Report, check};
use syncline_device::{Buffer, Device, DeviceError, Layer, MemoryDevice, Ticket};
use syncline_format::item::{DirentItem, InodeItem, OrphanReason};
use syncline_format::tree_item::{Role, TreeState};
use syncline_format::{BlockNo, Key, Kind, ObjectNo, TreeId};
use syncline_images::golden::RECIPES;
use syncline_images::hostile::semantics::model::{Items, Model};
use syncline_images::packed::SparseImage;
use syncline_images::{manifest, session};

/// Volumes with something in the log and without, several heads, a deletion under way.
const BASES: [&str; 8] = [
    "v2-clean",
    "v2-snapshots",
    "v2-journal-snapshot",
    "v2-inherited-images",
    "v2-overlay",
    "v2-deleting",
    "v2-heads",
    "v2-upgraded",
];
const SEEDS: u64 = 3;
/// Damages of one volume.
const DAMAGES: u64 = 5;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit.max(1)
    }
}

fn model(name: &str) -> Model {
    let recipe = RECIPES.iter().find(|recipe| recipe.name == name).expect("a recipe of this name");
    Model::of(&recipe.load().expect("in the tree").image)
}

fn heads(model: &Model) -> Vec<TreeId> {
    let infos = model.forest.as_ref().expect("trees").infos();
    let is_head = |tree: &TreeId| {
        infos.get(tree).is_some_and(|item| item.role == Role::Head && item.state == TreeState::Live)
    };
    let others = model.forest.iter().flat_map(|forest| forest.others.keys().copied());
    others.filter(is_head).chain([model.head]).collect()
}

fn items(model: &mut Model, tree: TreeId) -> &mut Items {
    match &mut model.forest {
        Some(forest) if tree != model.head => forest.others.get_mut(&tree).expect("a tree of the volume"),
        _ => &mut model.items,
    }
}

fn pick(items: &Items, kind: Kind, random: &mut Random) -> Option<(Key, Vec<u8>)> {
    let all: Vec<_> = items.iter().filter(|(key, _)| key.kind == kind).collect();
    let (key, value) = all.get(random.below(all.len() as u64) as usize)?;
    Some((**key, (*value).clone()))
}

/// Makes one thing wrong in a head.
fn damage(items: &mut Items, random: &mut Random) {
    let gone = ObjectNo(1 << 40);
    let inode = |items: &mut Items, random: &mut Random, change: &dyn Fn(&mut InodeItem)| {
        let Some((key, value)) = pick(items, Kind::Inode, random) else { return };
        let mut inode = InodeItem::decode(&value).expect("sound");
        change(&mut inode);
        items.insert(key, inode.encode().to_vec());
    };
    match random.below(9) {
        0 => drop(pick(items, Kind::Dirent, random).map(|(key, _)| items.remove(&key))),
        1 => inode(items, random, &|inode| inode.nlink += 3),
        2 => inode(items, random, &|inode| inode.entries += u64::from(inode.is_directory())),
        3 => inode(items, random, &|inode| inode.blocks += u64::from(inode.is_regular())),
        4 => inode(items, random, &|inode| {
            inode.parent = if inode.is_directory() { ObjectNo(3) } else { inode.parent };
        }),
        kind @ 5..=6 => {
            let Some((key, value)) = pick(items, Kind::Dirent, random) else { return };
            let mut dirent = DirentItem::decode(&value).expect("sound");
            match kind {
                5 => dirent.file_type = if dirent.file_type == 8 { 10 } else { 8 },
                _ => dirent.inode = gone,
            }
            items.insert(key, dirent.encode());
        }
        7 => drop(items.insert(Key::orphan(gone), OrphanReason::Unlinked.encode())),
        _ => {
            let Some((key, _)) = pick(items, Kind::Inode, random) else { return };
            items.insert(Key::new(key.object, Kind::XattrPiece, 32), vec![b'p'; 100]);
        }
    }
}

/// What each snapshot shows that can be read. One that the log makes of a damaged head is damaged as well.
fn snapshots(image: &SparseImage) -> BTreeMap<String, String> {
    let volume = session::open_volume(image.device(), false, 7).expect("opens");
    let mut shown = BTreeMap::new();
    for snapshot in volume.snapshots().expect("listed") {
        let view = volume.at(&snapshot.name).expect("opens");
        shown.extend(manifest::of_tree(&view).ok().map(|tree| (snapshot.name, tree)));
    }
    shown
}

type Contents = BTreeMap<String, BTreeSet<String>>;

/// The contents of each head's files.
fn contents(image: &SparseImage) -> Contents {
    let volume = session::open_volume(image.device(), false, 7).expect("opens");
    let of_tree = |tree: String| {
        let files = tree.lines().filter(|line| line.starts_with("f "));
        files.filter_map(|line| Some(line.split("hash=").nth(1)?.split(' ').next()?.to_owned())).collect()
    };
    let mut heads = BTreeMap::new();
    for head in volume.heads().expect("listed") {
        let tree = match head.is_default {
            true => manifest::of_tree(&volume),
            false => volume.head(&head.name).and_then(|head| manifest::of_tree(&head)),
        };
        heads.insert(head.name, of_tree(tree.expect("readable")));
    }
    heads
}

#[track_caller]
fn assert_kept(what: &str, sound: &Contents, damaged: &SparseImage, repaired: &SparseImage) {
    let (before, after) = (snapshots(damaged), snapshots(repaired));
    for (name, tree) in &before {
        assert_eq!(Some(tree), after.get(name), "{what}: snapshot {name} shows something else");
    }
    let after = contents(repaired);
    for (name, files) in sound {
        let lost: Vec<_> = files.difference(&after[name]).collect();
        assert!(lost.is_empty(), "{what}: contents of head {name} are lost: {lost:?}");
    }
}

fn repair(device: &dyn Device) -> Report {
    let options = CheckOptions::default().repair(true).data(true);
    check(device, options).expect("can be checked")
}

fn damaged(name: &str, seed: u64) -> SparseImage {
    let mut model = model(name);
    let mut random = Random(seed * 77 + 5);
    for _ in 0..=random.below(DAMAGES) {
        let all = heads(&model);
        let head = all[random.below(all.len() as u64) as usize];
        damage(items(&mut model, head), &mut random);
    }
    SparseImage::of(&model.seal().device())
}

// Shows: C10.
#[test]
fn whatever_is_wrong_with_names_and_counts_of_heads_is_repaired_and_nothing_is_lost() {
    let mut repaired = 0;
    for name in BASES {
        let sound = contents(&SparseImage::of(&model(name).seal().device()));
        for seed in 0..SEEDS {
            let what = format!("{name}, seed {seed}");
            let image = damaged(name, seed);
            let device = image.device();
            let report = repair(&*device);
            assert!(report.is_sound(), "{what}: {:#?} {:?}", report.findings, report.refused);
            repaired += u64::from(report.repaired);
            let again = repair(&*device);
            assert!(again.is_sound() && !again.repaired, "{what}: {:#?}", again.findings);
            assert_kept(&what, &sound, &image, &SparseImage::of(&device));
            // It goes on as any other, also to the end of its deletions.
            let volume = session::open_volume(device.clone(), false, 9).expect("opens");
            volume.write("after the repair", "goes on").expect("writes");
            volume.snapshot("of the repaired").expect("is made");
            for snapshot in volume.snapshots().expect("listed") {
                volume.delete_snapshot(&snapshot.name).expect("is deleted");
            }
            volume.reclaim().expect("comes back");
            volume.close().expect("closes");
            let after = check(&*device, CheckOptions::default().data(true)).expect("can be checked");
            assert!(after.is_sound(), "{what}: {:#?}", after.findings);
        }
    }
    assert!(repaired > BASES.len() as u64 * SEEDS / 2, "{repaired} volumes were repaired");
}

enum Event {
    Write(BlockNo, Vec<Arc<Buffer>>),
    Flush,
}

/// Keeps what is written.
struct Recorder {
    inner: Arc<MemoryDevice>,
    events: Mutex<Vec<Event>>,
}

impl Layer for Recorder {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.events.lock().expect("no panic").push(Event::Write(at, data.clone()));
        self.inner.submit_write(at, data)
    }

    fn on_flush(&self) -> Ticket {
        self.events.lock().expect("no panic").push(Event::Flush);
        self.inner.submit_flush()
    }

    fn on_read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(at, into)
    }
}

// Shows: C10.
#[test]
fn a_power_cut_during_repair_leaves_a_volume_that_can_be_repaired() {
    for (name, seed) in [("v2-heads", 3)] {
        let image = damaged(name, seed);
        let sound = contents(&SparseImage::of(&model(name).seal().device()));
        let recorder = Recorder { inner: image.device(), events: Mutex::default() };
        assert!(repair(&recorder).repaired, "{name}: there is nothing to cut");
        let events = recorder.events.into_inner().expect("no panic");
        let mut random = Random(seed);
        for cut in 0..=events.len() {
            for mode in 0..2 + u64::from(cut % 2 == 0) {
                let device = image.device();
                let done = &events[..cut];
                let flushed = done.iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
                for (index, event) in done.iter().enumerate() {
                    let Event::Write(at, data) = event else { continue };
                    let arrives = mode == 1 || mode == 2 && random.below(2) == 0;
                    if index < flushed || arrives {
                        device.write(*at, data.clone()).expect("memory");
                    }
                }
                let report = repair(&*device);
                assert!(report.is_sound(), "{name}, cut {cut}, mode {mode}: {:#?}", report.findings);
                if cut % 9 == 0 {
                    let what = format!("{name}, cut {cut}, mode {mode}");
                    assert_kept(&what, &sound, &image, &SparseImage::of(&device));
                }
            }
        }
    }
}
