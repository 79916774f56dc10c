//! Volumes of version 2 whose checksums are right and whose trees contradict each other, one by one: each is told as
//! damage by the check, and by the engine before it shows or changes anything that is not sound.

use std::sync::Arc;
use syncline::Error;
use syncline_check::Code;
use syncline_format::item::{EXTENT_BIRTH_AT, ExtentItem};
use syncline_format::range::{ERA_MAX, TREES_MAX};
use syncline_format::superblock::TreesState;
use syncline_format::tree_item::{OverlayItem, Role, TreeItem, TreeState};
use syncline_format::{BLOCK_BYTES, Era, Key, Kind, ObjectNo, TreeId, checksum};
use syncline_fs::Fs;
use syncline_images::golden::{RECIPES, look};
use syncline_images::hostile::semantics::TreeChange;
use syncline_images::hostile::semantics::model::Model;
use syncline_images::packed::SparseImage;
use syncline_images::{manifest, session};
use syncline_store::StoreError;

fn model(name: &str) -> Model {
    let recipe = RECIPES.iter().find(|recipe| recipe.name == name).expect("a recipe of this name");
    Model::of(&recipe.load().expect("in the tree").image)
}

/// The snapshots in the order in which they were made, and the head.
fn snapshots() -> (Model, [TreeId; 3], TreeId) {
    let model = model("v2-snapshots");
    let infos = model.forest.as_ref().expect("trees").infos();
    let made: Vec<TreeId> =
        infos.iter().filter(|(_, item)| item.role == Role::Snapshot).map(|(tree, _)| *tree).collect();
    let head = model.head;
    (model, made.try_into().expect("three snapshots"), head)
}

fn item(model: &mut Model, tree: TreeId, change: impl FnOnce(&mut TreeItem)) {
    let volume = &mut model.forest.as_mut().expect("trees").volume;
    let value = volume.get_mut(&Key::tree_info(tree)).expect("a tree of the volume");
    let mut item = TreeItem::decode(value).expect("a sound volume");
    change(&mut item);
    *value = item.encode();
}

fn open(image: &SparseImage, read_only: bool) -> Result<Arc<Fs>, Error> {
    session::open(image.device(), read_only, 5)
}

/// The check finds it, nobody opens the volume, and neither changes anything.
#[track_caller]
fn assert_refused(model: Model, code: Code) {
    let image = model.seal();
    let report = look(&image).expect("can be checked");
    assert!(report.has(code), "{code:?} is missing: {:#?}", report.findings);
    let before = SparseImage::of(&image.device());
    for read_only in [true, false] {
        let device = image.device();
        match session::open(device.clone(), read_only, 5) {
            Err(Error::Store(StoreError::Inconsistent { .. } | StoreError::Corrupt { .. })) => {}
            Err(error) => panic!("not told as damage: {error:?}"),
            Ok(_) => panic!("opened"),
        }
        assert!(SparseImage::of(&device) == before, "something was written");
    }
}

#[test]
fn parents_in_a_circle_are_refused() {
    let (model, [first, second, third], head) = snapshots();
    for circle in [vec![first], vec![first, second], vec![first, second, third]] {
        // The trees of a circle may have roots, or stand for their parents because they have none.
        for has_roots in [true, false] {
            let mut model = model.clone();
            for (index, tree) in circle.iter().enumerate() {
                let next = circle[(index + 1) % circle.len()];
                item(&mut model, *tree, |item| item.parent = Some(next));
                if !has_roots {
                    item(&mut model, *tree, |item| {
                        item.state = TreeState::Deleting { cursor: Key::MAX };
                        item.name.clear();
                    });
                    model.forest.as_mut().expect("trees").others.remove(tree);
                }
            }
            item(&mut model, head, |item| item.parent = Some(circle[0]));
            assert_refused(model, Code::TreeParent);
        }
    }
}

#[test]
fn a_parent_that_cannot_be_one_is_refused() {
    let (model, [first, second, third], head) = snapshots();
    for (tree, parent) in
        [(second, TreeId(9999)), (second, head), (first, third), (head, TreeId::VOLUME), (third, third)]
    {
        let mut model = model.clone();
        item(&mut model, tree, |item| item.parent = Some(parent));
        assert_refused(model, Code::TreeParent);
    }
    // A head that does not know of the era of its parent.
    let mut model = model.clone();
    item(&mut model, head, |item| item.known = Era(1));
    assert_refused(model, Code::TreeParent);
}

#[test]
fn trees_and_eras_of_the_future_are_refused() {
    let (model, [first, _, third], _) = snapshots();
    let era = model.superblock.trees.expect("trees").era;
    for beyond in [era, Era(era.0 + 1), Era(u32::MAX - 1)] {
        let mut model = model.clone();
        item(&mut model, third, |item| item.era = beyond);
        assert_refused(model, Code::TreeNewer);
    }
    // Eras that fall from parent to child.
    let mut falling = model.clone();
    item(&mut falling, first, |item| item.era = Era(era.0 - 1));
    assert_refused(falling, Code::TreeParent);
    let mut early = model.clone();
    early.superblock.trees.as_mut().expect("trees").era = Era(1);
    assert_refused(early, Code::TreeNewer);
    let mut taken = model;
    taken.superblock.trees.as_mut().expect("trees").next_tree = third;
    assert_refused(taken, Code::TreeNewer);
}

#[test]
fn two_trees_with_one_name_are_refused() {
    let (mut model, [first, second, _], _) = snapshots();
    item(&mut model, second, |item| item.name = "first".to_owned());
    assert_refused(model.clone(), Code::TreeName);
    // Also where the log says it.
    item(&mut model, second, |item| item.name = "second".to_owned());
    let forest = model.forest.as_ref().expect("trees");
    let mut again = TreeItem::decode(&forest.volume[&Key::tree_info(first)]).expect("sound");
    again.name = "second".to_owned();
    model.into_log = true;
    model.edit_volume(Key::tree_info(first), Some(again.encode()));
    assert_refused(model, Code::TreeName);
}

#[test]
fn a_volume_that_shows_no_head_is_refused() {
    let (model, _, head) = snapshots();
    let changes: [fn(&mut TreeItem); 3] = [
        |item| item.is_default = false,
        |item| item.is_hidden = true,
        |item| {
            item.state = TreeState::Deleting { cursor: Key::MIN };
            item.name.clear();
        },
    ];
    for change in changes {
        let mut model = model.clone();
        item(&mut model, head, change);
        assert_refused(model, Code::DefaultHead);
    }
}

#[test]
fn root_tree_and_volume_tree_that_name_other_trees_are_refused() {
    let (model, [first, second, _], _) = snapshots();
    let mut without_root = model.clone();
    without_root.forest.as_mut().expect("trees").others.remove(&first);
    assert_refused(without_root, Code::TreesDiffer);
    let mut without_item = model.clone();
    without_item.edit_volume(Key::tree_info(second), None);
    assert_refused(without_item, Code::TreesDiffer);
    let mut unknown = model.clone();
    unknown.forest.as_mut().expect("trees").roots.push((second, TreeId(5000)));
    assert_refused(unknown, Code::TreesDiffer);
    let mut no_pointer = model;
    no_pointer.tree_changes.push(TreeChange::RootItem { key: Key::tree(second), value: vec![1; 20] });
    assert_refused(no_pointer, Code::RootTreeItem);
}

#[test]
fn a_branch_point_that_goes_away_is_refused() {
    let (mut model, [first, second, third], _) = snapshots();
    item(&mut model, third, |item| item.parent = Some(first));
    item(&mut model, first, |item| {
        item.state = TreeState::Deleting { cursor: Key::MIN };
        item.name.clear();
    });
    let _ = second;
    assert_refused(model, Code::TreeBranch);
}

/// Nodes that tell of births in the future are refused when they are read; what does not lead there is shown.
#[test]
fn births_of_the_future_are_damage_of_their_leaf() {
    for beyond in [Era(100), Era(u32::MAX)] {
        let (mut model, _, _) = snapshots();
        let mut files = Vec::new();
        for (key, value) in model.items.iter_mut().filter(|(key, _)| key.kind == Kind::Extent) {
            value[EXTENT_BIRTH_AT..EXTENT_BIRTH_AT + 4].copy_from_slice(&beyond.0.to_le_bytes());
            files.push(key.object);
        }
        let image = model.seal();
        assert!(look(&image).expect("checks").has(Code::BirthBeyond));
        for read_only in [true, false] {
            let fs = match open(&image, read_only) {
                Ok(fs) => fs,
                // The root directory lies in such a leaf.
                Err(Error::Store(StoreError::Corrupt { .. })) => continue,
                Err(error) => panic!("not told as damage: {error:?}"),
            };
            for object in &files {
                let found = fs.attributes().getattr(*object);
                assert!(matches!(found, Err(Error::Store(StoreError::Corrupt { .. }))), "{found:?}");
            }
        }
    }
}

#[test]
fn a_cursor_beyond_all_that_there_is_shows_nothing_wrong() {
    let whole = model("v2-deleting");
    let infos = whole.forest.as_ref().expect("trees").infos();
    let going = infos.iter().find(|(_, item)| item.state != TreeState::Live).map(|(tree, _)| *tree);
    let going = going.expect("one goes away");
    for cursor in [
        Key::extent(ObjectNo(u64::MAX >> 3), 0),
        Key::extent(ObjectNo(9), u64::MAX),
        Key { object: ObjectNo(u64::MAX), ..Key::MAX },
        Key::MIN,
    ] {
        let mut model = whole.clone();
        model.log.clear();
        item(&mut model, going, |item| item.state = TreeState::Deleting { cursor });
        let image = model.seal();
        let report = look(&image).expect("checks");
        // Blocks that the deletion says it has given back, and that are in use, or the other way round.
        let device = image.device();
        let Ok(volume) = session::open_volume(device.clone(), false, 5) else {
            assert!(!report.is_sound());
            continue;
        };
        let stays = |volume: &syncline::Volume| {
            volume.at("stays").and_then(|stays| manifest::of_tree(&stays)).map_err(|error| error.kind())
        };
        let before = stays(&volume);
        let reclaimed = volume.reclaim();
        volume.write("more", vec![b'm'; 2 << 20]).expect("there is room");
        let _ = volume.sync_all();
        let after = stays(&volume);
        assert!(after.is_err() || after == before, "the snapshot before it shows something else");
        assert!(reclaimed.is_ok() || !report.is_sound(), "{reclaimed:?}");
    }
}

#[test]
fn pages_kept_for_nobody_or_twice_are_told() {
    let (model, [first, ..], head) = snapshots();
    let extent = |model: &Model| {
        let layout = model.superblock.layout;
        let start = layout.group_start(syncline_format::GroupNo(0)).plus(3000);
        ExtentItem::written(start, vec![checksum(&[0; BLOCK_BYTES])]).born(Era(1))
    };
    for (tree, twice) in [(head, false), (TreeId(4000), false), (first, true)] {
        let mut model = model.clone();
        let file = *model.objects().last().expect("files");
        for number in 0..=u64::from(twice) {
            let overlay = OverlayItem { object: file, page: 0, extent: extent(&model) };
            model.edit_volume(Key::overlay(tree, number), Some(overlay.encode()));
        }
        let image = model.seal();
        let report = look(&image).expect("checks");
        assert!(report.has(Code::OverlayItem), "{:#?}", report.findings);
        if let Ok(volume) = session::open_volume(image.device(), false, 5) {
            let _ = manifest::of(&volume);
            let _ = volume.delete_snapshot("first").and_then(|()| volume.reclaim());
            let _ = volume.close();
        }
    }
}

#[test]
fn two_trees_with_each_others_roots_show_no_foreign_content() {
    let (model, [first, second, third], head) = snapshots();
    for (one, other) in [(first, second), (first, head), (third, head), (first, TreeId::VOLUME)] {
        let mut model = model.clone();
        model.forest.as_mut().expect("trees").roots.push((one, other));
        let image = model.seal();
        assert!(!look(&image).expect("checks").is_sound(), "{one} and {other}");
        let Ok(volume) = session::open_volume(image.device(), false, 5) else { continue };
        let _ = manifest::of(&volume);
        for snapshot in volume.snapshots().expect("listed") {
            let _ = volume.delete_snapshot(&snapshot.name);
        }
        let _ = volume.reclaim();
        let _ = volume.write("more", vec![b'm'; 1 << 20]);
        let _ = volume.close();
    }
}

#[test]
fn when_the_numbers_of_trees_or_eras_have_come_to_their_end_nothing_more_is_made() {
    let (model, ..) = snapshots();
    let ends: [fn(&mut TreesState); 2] =
        [|state| state.next_tree = TreeId(TREES_MAX as u32), |state| state.era = Era(ERA_MAX as u32)];
    for end in ends {
        let mut model = model.clone();
        end(model.superblock.trees.as_mut().expect("trees"));
        let image = model.seal();
        assert!(look(&image).expect("checks").is_sound());
        let volume = session::open_volume(image.device(), false, 5).expect("opens");
        assert!(volume.snapshot("one more").is_err());
        assert!(volume.clone_snapshot("first", "a head").is_err());
        volume.delete_snapshot("third").expect("is deleted");
        volume.write("more", "goes on").expect("writes");
        volume.reclaim().expect("comes back");
        assert!(volume.rollback("first", Some("kept")).is_err());
        let volume = session::open_volume(image.device(), false, 6).expect("opens again");
        volume.close().expect("closes");
    }
}
