//! Nodes that cannot be read: each tree keeps what is elsewhere, and no tree notices what is not its own.

use super::*;
use syncline::{OpenOptions, Volume};
use syncline_format::item::DirentItem;
use syncline_format::node::{self, NodePointer};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, NODE_BYTES};

const PAGE: usize = BLOCK_BYTES;
const MIB: u64 = 1 << 20;

/// A node of a sound volume.
#[derive(Clone)]
struct Node {
    block: BlockNo,
    level: u16,
    /// The trees that have it, by their numbers.
    trees: BTreeSet<TreeId>,
    /// Objects that anything in it or below it has to do with.
    objects: BTreeSet<u64>,
}

/// What the checkpoint of a sound volume has.
struct Nodes<'a> {
    device: &'a MemoryDevice,
    found: BTreeMap<BlockNo, Node>,
    roots: BTreeMap<TreeId, NodePointer>,
}

impl Nodes<'_> {
    fn of(device: &MemoryDevice) -> Nodes<'_> {
        let superblocks = SUPERBLOCK_SLOTS.into_iter().filter_map(|at| {
            let mut bytes = Buffer::zeroed(1);
            device.read(at, &mut bytes).expect("memory");
            Superblock::decode(&bytes, at, device.blocks()).ok()
        });
        let newest = superblocks.max_by_key(|superblock| superblock.generation).expect("a volume");
        let mut nodes = Nodes { device, found: BTreeMap::new(), roots: BTreeMap::new() };
        nodes.enter(TreeId::ROOT, &newest.root);
        for (tree, root) in nodes.roots.clone() {
            nodes.enter(tree, &root);
        }
        nodes
    }

    /// Returns the objects of the node.
    fn enter(&mut self, tree: TreeId, pointer: &NodePointer) -> BTreeSet<u64> {
        if let Some(known) = self.found.get_mut(&pointer.block)
            && !known.trees.insert(tree)
        {
            return known.objects.clone();
        }
        let mut bytes = Buffer::zeroed(NODE_BYTES / BLOCK_BYTES);
        self.device.read(pointer.block, &mut bytes).expect("memory");
        let mut objects = BTreeSet::new();
        for slot in 0..usize::from(node::head(&bytes).count.get()) {
            let (key, value) = (node::slot_key(&bytes, slot), node::slot_value(&bytes, slot));
            match (tree, pointer.level) {
                (TreeId::ROOT, 0) => {
                    let root = NodePointer::decode(value).expect("sound");
                    self.roots.insert(TreeId(key.object.0 as u32), root);
                }
                (_, 0) => {
                    objects.insert(if key.kind == Kind::Orphan { key.offset } else { key.object.0 });
                    let dirent = DirentItem::decode(value).ok().filter(|_| key.kind == Kind::Dirent);
                    objects.extend(dirent.map(|dirent| dirent.inode.0));
                }
                _ => objects.extend(self.enter(tree, &NodePointer::decode(value).expect("sound"))),
            }
        }
        let (block, level) = (pointer.block, pointer.level);
        let new = || Node { block, level, trees: BTreeSet::new(), objects: BTreeSet::new() };
        let node = self.found.entry(block).or_insert_with(new);
        node.trees.insert(tree);
        node.objects.extend(&objects);
        objects
    }

    /// Those of heads and snapshots.
    fn of_filesystems(&self) -> Vec<Node> {
        let is_wanted = |node: &&Node| node.trees.iter().all(|tree| tree.is_filesystem());
        self.found.values().filter(is_wanted).cloned().collect()
    }
}

/// What a tree shows: all of it, and the content of each file by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    manifest: String,
    files: BTreeMap<u64, u64>,
}

fn show(volume: &Volume) -> std::io::Result<Shown> {
    let mut files = BTreeMap::new();
    let mut pending = vec![std::path::PathBuf::from("/")];
    while let Some(path) = pending.pop() {
        for found in volume.read_dir(&path)? {
            let path = found?.path();
            let metadata = volume.symlink_metadata(&path)?;
            if metadata.is_dir() {
                pending.push(path);
            } else if metadata.is_file() {
                let content = syncline_format::checksum(&volume.read(&path)?);
                files.insert(metadata.attr().inode.0, content);
            }
        }
    }
    Ok(Shown { manifest: manifest::of_tree(volume)?, files })
}

/// What each tree shows, by its number; `head` and `snapshot` before the names.
fn show_all(image: &SparseImage) -> BTreeMap<String, Shown> {
    let volume = session::open_volume(image.device(), false, 7).expect("opens");
    let mut shown = BTreeMap::new();
    for snapshot in volume.snapshots().expect("listed") {
        let view = volume.at(&snapshot.name).expect("opens");
        shown.insert(format!("snapshot {}", snapshot.name), show(&view).expect("readable"));
    }
    for head in volume.heads().expect("listed") {
        let tree = match head.is_default {
            true => show(&volume),
            false => volume.head(&head.name).map_err(std::io::Error::other).and_then(|head| show(&head)),
        };
        shown.insert(format!("head {}", head.name), tree.expect("readable"));
    }
    shown
}

/// The trees of the checkpoint by what people call them.
fn names(image: &SparseImage) -> BTreeMap<String, TreeId> {
    let infos = Model::of(image).forest.expect("trees").infos();
    let name = |item: &syncline_format::tree_item::TreeItem| match item.role {
        Role::Snapshot => format!("snapshot {}", item.name),
        Role::Head => format!("head {}", item.name),
    };
    infos.iter().map(|(tree, item)| (name(item), *tree)).collect()
}

fn rot(device: &MemoryDevice, block: BlockNo, random: &mut Random) {
    let at = block.plus(random.below(4));
    let mut bytes = Buffer::zeroed(1);
    device.read(at, &mut bytes).expect("memory");
    bytes[random.below(PAGE as u64) as usize] ^= 1 << random.below(8);
    device.write(at, vec![Arc::new(bytes)]).expect("memory");
}

fn check_all(device: &dyn Device) -> Report {
    check(device, CheckOptions::default().all(true).data(true)).expect("can be checked")
}

/// The volume goes on as any other, also to the end of its deletions, and gives back what nobody has.
#[track_caller]
fn assert_goes_on(what: &str, device: &Arc<MemoryDevice>) {
    let volume = session::open_volume(device.clone(), false, 9).expect("opens");
    volume.write("after the repair", vec![7; 9 * PAGE]).expect("writes");
    volume.snapshot("of the repaired").expect("is made");
    volume.write("after the repair", vec![8; 9 * PAGE]).expect("writes");
    for snapshot in volume.snapshots().expect("listed") {
        volume.delete_snapshot(&snapshot.name).expect("is deleted");
    }
    volume.reclaim().expect("comes back");
    volume.close().expect("closes");
    let after = check_all(&**device);
    assert!(after.is_sound(), "{what}: {:#?}", after.findings);
}

/// A volume of several levels: two snapshots, a head that has gone on, and another one made of the older snapshot.
fn deep() -> SparseImage {
    let device = Arc::new(MemoryDevice::new(64 * MIB / PAGE as u64));
    session::format(&*device, 256, "deep", 2).expect("mkfs");
    let volume = session::open_volume(device.clone(), false, 1).expect("opens");
    let value = |file: usize, round: usize| vec![(file * 7 + round) as u8; 60_000];
    let change = |volume: &Volume, round: usize, files: &mut dyn Iterator<Item = usize>| {
        for file in files {
            let path = format!("directory-{}/file-{file}", file % 5);
            volume.set_xattr(&path, "user.long", value(file, round)).expect("set");
            let opened = OpenOptions::new().write(true).open(volume, &path).expect("opens");
            opened.write_all_at(&vec![round as u8; 3 * PAGE], (round * 2 * PAGE) as u64).expect("writes");
        }
    };
    (0..5).for_each(|index| volume.create_dir(format!("directory-{index}")).expect("made"));
    for file in 0..64 {
        volume
            .write(format!("directory-{}/file-{file}", file % 5), vec![file as u8; 9 * PAGE])
            .expect("written");
    }
    change(&volume, 0, &mut (0..64));
    volume.checkpoint().expect("checkpoint");
    volume.snapshot("older").expect("made");
    change(&volume, 1, &mut (0..64).step_by(9));
    volume.checkpoint().expect("checkpoint");
    volume.snapshot("newer").expect("made");
    volume.clone_snapshot("older", "branch").expect("made");
    let branch = volume.head("branch").expect("opens");
    change(&branch, 2, &mut (5..64).step_by(20));
    branch.sync_all().expect("synced");
    branch.close().expect("closes");
    change(&volume, 3, &mut (3..64).step_by(13));
    volume.remove_file("directory-2/file-2").expect("removed");
    volume.close().expect("closes");
    SparseImage::of(&device)
}

/// Damages one node, and repairs. Tells what is left of the trees that had it.
fn repair_without(what: &str, image: &SparseImage, node: &Node, before: &BTreeMap<String, Shown>) -> bool {
    let names = names(image);
    let device = image.device();
    rot(&device, node.block, &mut Random(node.block.0));
    let seen = check_all(&*device);
    assert!(!seen.is_sound(), "{what}: it shows");
    let damaged = SparseImage::of(&device);
    let repaired = repair(&*device);
    if repaired.refused.is_some() {
        assert!(SparseImage::of(&device).content == damaged.content, "{what}: nothing is changed");
        return false;
    }
    assert!(repaired.is_sound(), "{what}: {:#?}", repaired.findings);
    assert_eq!((seen.repairable, seen.beyond_repair().count()), (seen.errors_left(), 0), "{what}: foretold");
    let again = check_all(&*device);
    assert!(again.is_sound(), "{what}: {:#?}", again.findings);
    let after = show_all(&SparseImage::of(&device));
    for (name, shown) in before {
        // Trees of the log are made of those of the checkpoint.
        let has_it = names.get(name).is_none_or(|tree| node.trees.contains(tree));
        match after.get(name) {
            Some(now) if !has_it => {
                assert_eq!(now.manifest, shown.manifest, "{what}: {name} did not have it")
            }
            Some(now) => {
                for (file, content) in shown.files.iter().filter(|(file, _)| !node.objects.contains(file)) {
                    assert_eq!(
                        now.files.get(file),
                        Some(content),
                        "{what}: file {file} of {name} is elsewhere"
                    );
                }
            }
            None => assert!(has_it && name.starts_with("snapshot"), "{what}: {name} is gone"),
        }
    }
    assert_goes_on(what, &device);
    true
}

// Shows: C7, C10.
#[test]
fn each_kind_of_node_can_be_lost_and_no_other_tree_notices() {
    let image = deep();
    let before = show_all(&image);
    let device = image.device();
    let nodes = Nodes::of(&device).of_filesystems();
    assert!(nodes.iter().any(|node| node.level >= 2), "the trees have three levels");
    let mut kinds: BTreeMap<(u16, BTreeSet<TreeId>), Vec<Node>> = BTreeMap::new();
    for node in nodes {
        kinds.entry((node.level, node.trees.clone())).or_default().push(node);
    }
    assert!(kinds.len() >= 10, "{} kinds of nodes", kinds.len());
    for ((level, trees), nodes) in kinds {
        let some = BTreeSet::from([0, nodes.len() / 2, nodes.len() - 1]);
        for node in some.into_iter().map(|index| &nodes[index]) {
            let what = format!("level {level} of {trees:?}, block {}", node.block);
            assert!(repair_without(&what, &image, node, &before), "{what}: is repaired");
        }
    }
}

// Shows: C7, C10.
#[test]
fn any_node_of_a_small_volume_can_be_lost() {
    let mut kept = 0;
    for name in BASES {
        let image = RECIPES
            .iter()
            .find(|recipe| recipe.name == name)
            .expect("a recipe")
            .load()
            .expect("in the tree")
            .image;
        let before = show_all(&image);
        let device = image.device();
        let found = Nodes::of(&device);
        let nodes: Vec<Node> = found.found.values().cloned().collect();
        for node in nodes.iter().step_by(if nodes.len() > 40 { 5 } else { 1 }) {
            let what = format!("{name}: level {} of {:?}, block {}", node.level, node.trees, node.block);
            let is_repaired = repair_without(&what, &image, node, &before);
            kept += u64::from(is_repaired);
            let is_of_volume = node.trees.iter().any(|tree| !tree.is_filesystem());
            assert!(!(is_of_volume && is_repaired), "{what}: it stands for all of the volume");
        }
    }
    assert!(kept > 30, "{kept}");
}

// Shows: C7.
#[test]
fn nodes_above_the_leaves_are_given_up_on_version_1_as_well() {
    let recipe = RECIPES.iter().find(|recipe| recipe.name == "v1-deep-tree").expect("a recipe");
    let image = recipe.load().expect("in the tree").image;
    let device = image.device();
    let nodes = Nodes::of(&device);
    let root = nodes.roots[&TreeId::MAIN].block;
    let files = |image: &SparseImage| {
        let volume = session::open_volume(image.device(), true, 7).expect("opens");
        show(&volume).expect("readable").files
    };
    let before = files(&image);
    let above: Vec<Node> = nodes.of_filesystems().into_iter().filter(|node| node.level > 0).collect();
    assert!(above.len() > 2);
    for node in above {
        let device = image.device();
        rot(&device, node.block, &mut Random(node.block.0));
        let report = repair(&*device);
        if node.block == root {
            assert!(report.refused.is_some() && !report.repaired);
            continue;
        }
        assert!(report.repaired && report.is_sound(), "{}: {:#?}", node.block, report.findings);
        let after = files(&SparseImage::of(&device));
        for (file, content) in before.iter().filter(|(file, _)| !node.objects.contains(file)) {
            assert_eq!(after.get(file), Some(content), "file {file} without node {}", node.block);
        }
        let again = check_all(&*device);
        assert!(again.is_sound(), "{:#?}", again.findings);
    }
}

/// Several nodes at once, with names and counts wrong and something in the log.
#[test]
fn whatever_else_is_wrong_a_repair_is_whole_or_changes_nothing() {
    let (mut whole, mut refused) = (0, 0);
    for name in BASES {
        for seed in 0..6 {
            let what = format!("{name}, seed {seed}");
            let image = if seed % 2 == 0 {
                damaged(name, seed)
            } else {
                SparseImage::of(&model(name).seal().device())
            };
            let device = image.device();
            let mut random = Random(seed * 31 + 7);
            let nodes = Nodes::of(&device).of_filesystems();
            for _ in 0..=random.below(3) {
                rot(&device, nodes[random.below(nodes.len() as u64) as usize].block, &mut random);
            }
            let before = SparseImage::of(&device);
            let report = repair(&*device);
            if report.refused.is_some() && !report.repaired {
                assert!(SparseImage::of(&device).content == before.content, "{what}: nothing is changed");
                refused += 1;
                continue;
            }
            whole += 1;
            assert!(report.is_sound(), "{what}: {:#?}", report.findings);
            let again = repair(&*device);
            assert!(again.is_sound() && !again.repaired, "{what}: {:#?}", again.findings);
            show_all(&SparseImage::of(&device));
            assert_goes_on(&what, &device);
        }
    }
    assert!(whole > refused, "{whole} were repaired, {refused} were not");
}

// Shows: C10.
#[test]
fn a_power_cut_while_nodes_are_given_up_leaves_a_volume_that_can_be_repaired() {
    let image = deep();
    let before = show_all(&image);
    let names = names(&image);
    let device = image.device();
    let nodes = Nodes::of(&device).of_filesystems();
    let shared =
        nodes.iter().find(|node| node.level == 0 && node.trees.len() == 3).expect("several trees have it");
    rot(&device, shared.block, &mut Random(5));
    let image = SparseImage::of(&device);
    let recorder = Recorder { inner: image.device(), events: Mutex::default() };
    assert!(repair(&recorder).repaired, "there is nothing to cut");
    let events = recorder.events.into_inner().expect("no panic");
    let step = (events.len() / 12).max(1);
    for cut in (0..=events.len()).filter(|cut| cut % step == 0 || cut + 6 > events.len()) {
        let device = image.device();
        let mut random = Random(cut as u64);
        let flushed = events[..cut].iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
        for (index, event) in events[..cut].iter().enumerate() {
            let Event::Write(at, data) = event else { continue };
            if index < flushed || random.below(2) == 0 {
                device.write(*at, data.clone()).expect("memory");
            }
        }
        let report = repair(&*device);
        assert!(report.is_sound(), "cut {cut}: {:#?}", report.findings);
        let after = show_all(&SparseImage::of(&device));
        for (name, shown) in before.iter().filter(|(name, _)| !shared.trees.contains(&names[*name])) {
            assert_eq!(after.get(name), Some(shown), "cut {cut}: {name}");
        }
    }
}
