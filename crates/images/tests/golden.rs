//! Every golden image is opened, verified, checked, changed and checked again.

use std::collections::BTreeSet;
use std::io;
use syncline::{OpenOptions, Volume};
use syncline_check::{CheckOptions, Code, Report, Severity, check};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::tree_item::{Role, TreeState};
use syncline_format::{BLOCK_BYTES, BlockNo, Key};
use syncline_images::golden::{PACKED_BYTES_MAX, RECIPES, Recipe, directory, look};
use syncline_images::packed::SparseImage;
use syncline_images::{manifest, session};

fn for_each(test: impl Fn(&Recipe, SparseImage, &str)) {
    for recipe in RECIPES {
        println!("{}", recipe.name);
        let golden = recipe.load().expect("the image and its manifest are in tests/golden");
        test(recipe, golden.image, &golden.manifest);
    }
}

fn codes(report: &Report) -> Vec<Code> {
    report.counts.keys().copied().collect()
}

#[track_caller]
fn same(name: &str, found: &str, expected: &str) {
    let (mut found, mut expected) = (found.lines(), expected.lines());
    loop {
        match (found.next(), expected.next()) {
            (None, None) => return,
            (found, expected) => assert_eq!(found, expected, "{name}"),
        }
    }
}

#[test]
fn every_image_in_the_directory_is_small_and_has_a_recipe() {
    let known: BTreeSet<_> = RECIPES.iter().flat_map(|r| [r.image_path(), r.manifest_path()]).collect();
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(directory()).expect("tests/golden is there") {
        let entry = entry.expect("readable");
        let path = directory().join(entry.file_name());
        if path.extension().is_some_and(|extension| extension != "md") {
            assert!(entry.metadata().expect("readable").len() <= PACKED_BYTES_MAX, "{}", path.display());
            found.insert(path);
        }
    }
    assert_eq!(found, known);
}

#[test]
fn the_check_finds_what_each_image_is_made_for_and_no_more() {
    for_each(|recipe, image, _| {
        let report = look(&image).expect("the check can be carried out");
        assert_eq!(codes(&report), recipe.findings, "{}: {:#?}", recipe.name, report.findings);
    });
}

#[test]
fn read_only_open_shows_the_manifest_and_writes_nothing() {
    for_each(|recipe, image, expected| {
        let device = image.device();
        let volume = session::open_volume(device.clone(), true, 7).expect("opens read-only");
        same(recipe.name, &manifest::of(&volume).expect("readable"), expected);
        assert!(volume.write("new", "refused").is_err());
        volume.close().expect("closes");
        assert!(SparseImage::of(&device) == image, "{}: something was written", recipe.name);
    });
}

#[test]
fn recovery_shows_the_manifest_and_leaves_a_clean_volume() {
    for_each(|recipe, image, expected| {
        let device = image.device();
        let volume = session::open_volume(device.clone(), false, 7).expect("opens");
        same(recipe.name, &manifest::of(&volume).expect("readable"), expected);
        volume.close().expect("closes");
        let report = look(&SparseImage::of(&device)).expect("checks");
        assert_eq!(codes(&report), [], "{}: {:#?}", recipe.name, report.findings);
        let volume = session::open_volume(device, true, 8).expect("opens again");
        same(recipe.name, &manifest::of(&volume).expect("readable"), expected);
    });
}

#[test]
fn recovery_cut_off_before_its_end_can_begin_again() {
    for_each(|recipe, image, expected| {
        let device = image.device();
        drop(session::open_volume(device.clone(), false, 7).expect("opens"));
        let report = look(&SparseImage::of(&device)).expect("checks");
        assert!(report.is_sound(), "{}: {:#?}", recipe.name, report.findings);
        let volume = session::open_volume(device, false, 8).expect("opens again");
        same(recipe.name, &manifest::of(&volume).expect("readable"), expected);
    });
}

/// Changes a volume in the ways that touch every kind of item.
fn change(volume: &Volume) -> io::Result<()> {
    let names: Vec<_> = volume.read_dir("/")?.collect::<io::Result<_>>()?;
    if let Some(file) = names.iter().find(|entry| entry.is_file()) {
        let file = OpenOptions::new().write(true).open(volume, file.path())?;
        file.set_len(10)?;
        file.write_all_at(b"over", 3)?;
        file.sync_all()?;
    }
    volume.create_dir("new-directory")?;
    volume.write("new-directory/new-file", vec![b'n'; 20_000])?;
    volume.hard_link("new-directory/new-file", "new-link")?;
    volume.symlink("new-directory/new-file", "new-symlink")?;
    volume.set_xattr("new-link", "user.new", "value")?;
    volume.sync_all()?;
    volume.rename("new-link", "new-directory/renamed")?;
    for entry in &names {
        if entry.is_dir() {
            volume.remove_dir_all(entry.path())?;
        } else {
            volume.remove_file(entry.path())?;
        }
    }
    volume.sync_all()
}

#[test]
fn every_image_can_be_written_to_and_emptied() {
    for_each(|recipe, image, _| {
        let device = image.device();
        let volume = session::open_volume(device.clone(), false, 7).expect("opens");
        let others = |whole: &str, tree: String| whole.strip_prefix(&tree).map(str::to_owned);
        let tree = manifest::of_tree(&volume).expect("readable");
        let before = others(&manifest::of(&volume).expect("readable"), tree).expect("begins with the tree");
        change(&volume).unwrap_or_else(|error| panic!("{}: {error}", recipe.name));
        let tree = manifest::of_tree(&volume).expect("readable");
        assert_eq!(tree.lines().filter(|line| !line.starts_with(' ')).count(), 5, "{tree}");
        let after = manifest::of(&volume).expect("readable");
        same(recipe.name, &others(&after, tree).expect("begins with the tree"), &before);
        volume.close().expect("closes");
        let report = look(&SparseImage::of(&device)).expect("checks");
        assert_eq!(codes(&report), [], "{}: {:#?}", recipe.name, report.findings);
        let volume = session::open_volume(device, true, 8).expect("opens again");
        same(recipe.name, &manifest::of(&volume).expect("readable"), &after);
    });
}

/// What is under way goes on, and what snapshots and other heads have comes back.
#[test]
fn snapshots_and_other_heads_can_be_deleted() {
    for_each(|recipe, image, _| {
        let device = image.device();
        let volume = session::open_volume(device.clone(), false, 7).expect("opens");
        let tree = manifest::of_tree(&volume).expect("readable");
        let heads: Vec<_> =
            volume.heads().expect("listed").into_iter().filter(|head| !head.is_default).collect();
        for snapshot in volume.snapshots().expect("listed").into_iter().step_by(2) {
            volume.delete_snapshot(&snapshot.name).expect("is deleted");
        }
        heads.iter().for_each(|head| volume.delete_head(&head.name).expect("is deleted"));
        for snapshot in volume.snapshots().expect("listed") {
            volume.delete_snapshot(&snapshot.name).expect("is deleted");
        }
        volume.reclaim().expect("all is taken apart");
        same(recipe.name, &manifest::of(&volume).expect("readable"), &tree);
        volume.close().expect("closes");
        let report = look(&SparseImage::of(&device)).expect("checks");
        assert_eq!(codes(&report), [], "{}: {:#?}", recipe.name, report.findings);
        assert!(report.totals.trees <= 1, "{}: {} trees are left", recipe.name, report.totals.trees);
    });
}

/// Volumes of version 1 stay what they are until somebody asks for more.
#[test]
fn every_image_of_version_1_can_be_upgraded() {
    for_each(|recipe, image, expected| {
        let device = image.device();
        if !recipe.name.starts_with("v1-") || recipe.name == "v1-nearly-full" {
            return;
        }
        session::open_volume(device.clone(), false, 7).expect("opens").close().expect("closes");
        match syncline_store::Store::upgrade(&*device) {
            Ok(true) => {}
            // The smallest have no room for it.
            Err(syncline_store::StoreError::NoSpace) => {
                return assert_eq!(image.blocks, 1024, "{}", recipe.name);
            }
            other => panic!("{}: {other:?}", recipe.name),
        }
        let volume = session::open_volume(device.clone(), false, 8).expect("opens");
        same(recipe.name, &manifest::of(&volume).expect("readable"), expected);
        volume.snapshot("of version 2").expect("is made");
        change(&volume).unwrap_or_else(|error| panic!("{}: {error}", recipe.name));
        let shown = manifest::of_tree(&volume.at("of version 2").expect("is there")).expect("readable");
        same(recipe.name, &shown, expected);
        volume.close().expect("closes");
        let report = look(&SparseImage::of(&device)).expect("checks");
        assert_eq!(codes(&report), [], "{}: {:#?}", recipe.name, report.findings);
    });
}

#[test]
fn repair_finds_nothing_to_do_but_pending_work() {
    for_each(|recipe, image, expected| {
        let device = image.device();
        let options = CheckOptions::default().repair(true).data(true);
        let report = check(&*device, options).expect("the check can be carried out");
        assert!(report.is_sound(), "{}: {:#?}", recipe.name, report.findings);
        let found = recipe.findings.iter().map(|code| code.severity()).max();
        assert!(found.is_none_or(|severity| severity == Severity::Info));
        let volume = session::open_volume(device, false, 7).expect("opens");
        same(recipe.name, &manifest::of(&volume).expect("readable"), expected);
    });
}

#[test]
fn images_are_what_their_names_say() {
    let image = |name: &str| {
        let recipe = RECIPES.iter().find(|recipe| recipe.name == name).expect("a recipe of this name");
        recipe.load().expect("in the tree").image
    };
    let superblocks = |image: &SparseImage| {
        SUPERBLOCK_SLOTS.map(|at: BlockNo| {
            Superblock::decode(&image.bytes(at.byte_offset(), BLOCK_BYTES), at, image.blocks).ok()
        })
    };
    let newest = |image: &SparseImage| {
        superblocks(image).into_iter().flatten().max_by_key(|s| s.generation).expect("one is valid")
    };
    let deep = image("v1-deep-tree");
    let root =
        syncline_format::node::head(&deep.bytes(newest(&deep).root.block.byte_offset(), 16384)).level.get();
    assert_eq!(root, 0, "the root tree is one leaf");
    assert!(syncline_images::hostile::seal::levels(&deep) >= 3, "the main tree has three levels");
    assert_eq!(newest(&image("v1-smallest")).layout.blocks, 1024);
    assert_eq!(newest(&image("v1-smallest")).layout.journal_blocks, 64);
    assert_eq!(newest(&image("v1-two-groups")).layout.group_count(), 2);
    assert!(newest(&image("v1-recovery-cut")).cut.is_some());
    let both = image("v1-both-bitmap-slots");
    assert!(superblocks(&both).iter().all(Option::is_some));
    let layout = newest(&both).layout;
    for slot in 0..2 {
        let at = layout.bitmap_slot(syncline_format::GroupNo(0), slot);
        assert!(both.content.contains_key(&at.0), "slot {slot} was written");
    }
    let full = image("v1-nearly-full");
    let volume = session::open_volume(full.device(), false, 7).expect("opens");
    assert!(volume.statfs().blocks_available < 32, "{:?}", volume.statfs());
    let trees = |name: &str| {
        let volume = session::open_volume(image(name).device(), true, 7).expect("opens");
        (volume.snapshots().expect("listed").len(), volume.heads().expect("listed").len())
    };
    assert_eq!(trees("v2-snapshots"), (3, 1));
    assert_eq!(trees("v2-many-trees"), (320, 1));
    assert_eq!(trees("v2-heads"), (4, 3));
    assert_eq!(trees("v2-hidden-branch"), (0, 2), "the branch point is shown to nobody");
    assert_eq!(trees("v2-recovery-cut-snapshot"), (1, 1));
    assert!(newest(&image("v2-recovery-cut-snapshot")).cut.is_some());
    let many = image("v2-many-trees");
    let level =
        syncline_format::node::head(&many.bytes(newest(&many).root.block.byte_offset(), 16384)).level.get();
    assert!(level > 0, "the root tree has several levels");
    let items = |name: &str| {
        let options = syncline_store::StoreOptions::new(1).read_only(true).trees();
        let recovery = syncline_store::Store::open(image(name).device(), options).expect("opens");
        (recovery.store().trees(), recovery.summary())
    };
    let is_in_the_middle = |state: TreeState| match state {
        TreeState::Deleting { cursor } => cursor != Key::MIN && cursor != Key::MAX,
        TreeState::Live => false,
    };
    assert!(items("v2-deleting").0.values().any(|item| is_in_the_middle(item.state)));
    assert!(items("v2-hidden-branch").0.values().any(|item| item.is_hidden && item.role == Role::Snapshot));
    assert!(items("v2-inherited-images").1.images > 0);
    assert_eq!(items("v2-overlay").1.images, 0);
    assert!(items("v2-journal-snapshot").1.batches > 0);
    for (name, images) in [("v1-page-images", 5), ("v1-journal", 0)] {
        let options = syncline_store::StoreOptions::new(1).read_only(true);
        let recovery = syncline_store::Store::open(image(name).device(), options).expect("opens");
        assert!(recovery.summary().batches > 0 && recovery.summary().images >= images, "{name}");
    }
}
