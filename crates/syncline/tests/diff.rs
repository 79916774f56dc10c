//! What differs between snapshots, held against a look at all that is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline::{Change, ChangeKind, MkfsOptions, OpenOptions, Volume, VolumeOptions};
use syncline_device::{Device, MemoryDevice, Volatile};

fn fresh() -> Volume {
    let options = MkfsOptions::default();
    VolumeOptions::new().create_in_memory(256 << 20, &options).expect("a volume")
}

fn told(changes: &[Change]) -> Vec<String> {
    let shown = |change: &Change| {
        let path = change.path.display();
        match &change.kind {
            ChangeKind::Added => format!("+ {path}"),
            ChangeKind::Removed => format!("- {path}"),
            ChangeKind::Renamed { from } => format!("R {} {path}", from.display()),
            ChangeKind::Modified { content, attributes } => {
                let mark = |is: bool, mark: &'static str| if is { mark } else { "" };
                format!("M{}{} {path}", mark(*content, "c"), mark(*attributes, "a"))
            }
            other => panic!("{other:?}"),
        }
    };
    changes.iter().map(shown).collect()
}

// Shows: C10.
#[test]
fn each_kind_of_change_is_told_with_its_path() {
    let volume = fresh();
    volume.create_dir_all("d/e").expect("directories");
    for name in ["kept", "gone", "moved", "d/changed", "d/touched", "d/e/deep", "replaced", "same", "linked"]
    {
        volume.write(name, name).expect("write");
    }
    volume.create_dir("empty").expect("directory");
    volume.symlink("kept", "symlink").expect("link");
    volume.snapshot("before").expect("snapshot");
    assert_eq!(told(&volume.diff("before", None, false).expect("diff")), [""; 0]);
    volume.remove_file("gone").expect("remove");
    volume.rename("moved", "d/e/there").expect("rename");
    volume.write("d/changed", "other").expect("write");
    volume.set_permissions("d/touched", 0o600).expect("mode");
    volume.write("new", "new").expect("write");
    volume.write("temporary", "newer").expect("write");
    volume.rename("temporary", "replaced").expect("replace");
    let same = OpenOptions::new().write(true).open(&volume, "same").expect("open");
    same.write_all_at(b"same", 0).expect("write");
    same.sync_all().expect("sync");
    volume.hard_link("linked", "d/link").expect("link");
    volume.rename("d/e", "f").expect("rename");
    volume.remove_dir("empty").expect("remove");
    volume.remove_file("symlink").expect("remove");
    volume.symlink("new", "symlink").expect("link");
    volume.snapshot("after").expect("snapshot");
    let wanted = [
        "+ d/link",
        "- empty",
        "R d/e f",
        "R moved f/there",
        "- gone",
        "+ new",
        "Mca replaced",
        "Mc same",
        "Mca symlink",
        "Mc d/changed",
        "Ma d/touched",
    ];
    let sorted = |lines: Vec<String>| lines.into_iter().collect::<BTreeSet<_>>();
    let wanted = wanted.map(str::to_owned).to_vec();
    assert_eq!(
        sorted(told(&volume.diff("before", Some("after"), false).expect("diff"))),
        sorted(wanted.clone())
    );
    assert_eq!(sorted(told(&volume.diff("before", None, false).expect("diff"))), sorted(wanted.clone()));
    // What was written with the content that it had has another time only.
    let by_sums = sorted(told(&volume.diff("before", Some("after"), true).expect("diff")));
    let by_look = wanted.iter().filter(|line| *line != "Mc same").cloned();
    assert!(by_sums.is_superset(&by_look.collect()), "{by_sums:?}");
    assert!(!by_sums.contains("Mc same"), "{by_sums:?}");
    // The other way round.
    let back = told(&volume.diff("after", Some("before"), false).expect("diff"));
    for line in ["+ gone", "- new", "R f d/e", "R f/there moved", "- d/link", "+ empty"] {
        assert!(back.iter().any(|told| told == line), "{line} in {back:?}");
    }
    assert_eq!(volume.snapshots().expect("list").len(), 2, "what was made to be compared is gone");
    assert!(volume.diff("missing", None, false).is_err());
}

#[test]
fn a_snapshot_of_what_is_committed_differs_by_pages_that_are_in_the_journal_only() {
    let options = VolumeOptions::new().background(false);
    let volume = options.create_in_memory(64 << 20, &MkfsOptions::default()).expect("a volume");
    volume.write("f", vec![1; 40_000]).expect("write");
    volume.snapshot("before").expect("snapshot");
    let file = OpenOptions::new().write(true).open(&volume, "f").expect("open");
    file.write_all_at(&[2; 100], 5000).expect("write");
    file.sync_data().expect("sync");
    volume.snapshot_committed("after").expect("snapshot");
    for content in [false, true] {
        let changes = volume.diff("before", Some("after"), content).expect("diff");
        assert!(told(&changes)[0].starts_with("Mc"), "{changes:?}");
    }
    // The other way round, and with itself.
    assert_eq!(volume.diff("after", Some("before"), true).expect("diff").len(), 1);
    assert_eq!(told(&volume.diff("after", None, true).expect("diff")), [""; 0]);
}

// Shows: C10, C11.
#[test]
fn nothing_stays_of_a_comparison_with_the_volume_as_it_is_whenever_the_power_goes() {
    let device = Arc::new(MemoryDevice::new(16_384));
    let options = MkfsOptions::default();
    let entropy = syncline::SystemEntropy::default();
    syncline_fs::Fs::format(&*device, &options, &syncline::SystemClock, &entropy, &mut |_, _| {})
        .expect("format");
    let open = |device: &Arc<dyn Device>| {
        Volume::on_device(device.clone(), &VolumeOptions::new().background(false)).expect("open")
    };
    let cut = Arc::new(Volatile::new(device.clone() as Arc<dyn Device>));
    let volume = open(&(cut.clone() as Arc<dyn Device>));
    volume.write("f", vec![1; 40_000]).expect("write");
    volume.snapshot("before").expect("snapshot");
    volume.write("f", vec![2; 40_000]).expect("write");
    assert_eq!(told(&volume.diff("before", None, false).expect("diff")).len(), 1);
    // The log has what was compared, and nobody has taken it apart.
    volume.write("g", "g").expect("write");
    volume.sync_all().expect("sync");
    std::mem::forget(volume);
    let after = open(&(device.clone() as Arc<dyn Device>));
    let names = |volume: &Volume| {
        volume.snapshots().expect("list").into_iter().map(|one| one.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&after), ["before"]);
    after.reclaim().expect("reclaim");
    after.close().expect("close");
    let report = syncline_check::check(&*device, syncline_check::CheckOptions::default()).expect("a volume");
    assert!(report.is_sound(), "{:#?}", report.findings);
    assert_eq!(report.totals.trees, 2);
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// What a snapshot holds: content and mode by path; `None` of directories.
fn look(volume: &Volume) -> BTreeMap<PathBuf, (u64, Option<Vec<u8>>, u32)> {
    let mut found = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(directory) = left.pop() {
        for entry in volume.read_dir(Path::new("/").join(&directory)).expect("read_dir") {
            let path = directory.join(entry.expect("entry").file_name());
            let at = Path::new("/").join(&path);
            let metadata = volume.symlink_metadata(&at).expect("metadata");
            let attr = metadata.attr();
            let content = metadata.is_file().then(|| volume.read(&at).expect("read"));
            if metadata.is_dir() {
                left.push(path.clone());
            }
            found.insert(path, (attr.inode.0, content, attr.mode));
        }
    }
    found
}

/// Applied to what the older one holds, the changes give what the newer one holds.
fn judge(older: &Volume, newer: &Volume, changes: &[Change], seed: u64) {
    let (old, new) = (look(older), look(newer));
    let gone = |path: &PathBuf| {
        changes.iter().any(|change| match &change.kind {
            ChangeKind::Removed => change.path == *path,
            ChangeKind::Renamed { from } => from == path,
            _ => false,
        })
    };
    let come = |path: &PathBuf| {
        let comes = |kind: &ChangeKind| matches!(kind, ChangeKind::Added | ChangeKind::Renamed { .. });
        changes.iter().any(|change| change.path == *path && comes(&change.kind))
    };
    let modified = |path: &PathBuf| {
        changes
            .iter()
            .any(|change| change.path == *path && matches!(change.kind, ChangeKind::Modified { .. }))
    };
    // A renamed directory takes along what is in it, which is not listed.
    let moved = |path: &Path| -> PathBuf {
        let above = path.ancestors().find_map(|above| {
            let renamed = changes
                .iter()
                .find(|change| matches!(&change.kind, ChangeKind::Renamed { from } if from == above));
            renamed.map(|change| change.path.join(path.strip_prefix(above).expect("below")))
        });
        above.unwrap_or_else(|| path.to_owned())
    };
    for (path, (inode, content, mode)) in &old {
        let now = moved(path);
        match new.get(&now) {
            Some((same, other, other_mode)) if same == inode => {
                let differs = content != other || mode != other_mode;
                assert!(
                    !differs || modified(&now),
                    "seed {seed}: {} is not the same: {changes:?}",
                    now.display()
                );
            }
            Some(_) => {
                assert!(
                    modified(&now) || gone(path) || come(&now),
                    "seed {seed}: {} is another: {changes:?}",
                    now.display()
                );
            }
            None => assert!(gone(path), "seed {seed}: {} is gone: {changes:?}", path.display()),
        }
    }
    for (path, (inode, ..)) in &new {
        let was = old.iter().any(|(old, (of, ..))| of == inode && moved(old) == *path);
        assert!(was || come(path) || modified(path), "seed {seed}: {} has come: {changes:?}", path.display());
    }
    for change in changes {
        match &change.kind {
            ChangeKind::Removed => assert!(old.contains_key(&change.path), "seed {seed}: {change:?}"),
            ChangeKind::Renamed { from } => {
                assert_eq!(old[from].0, new[&change.path].0, "seed {seed}: {change:?}");
            }
            _ => assert!(new.contains_key(&change.path), "seed {seed}: {change:?}"),
        }
    }
}

// Shows: C10.
#[test]
fn what_is_told_is_what_a_look_at_both_tells() {
    for seed in 0..12 {
        let volume = fresh();
        let mut random = Random(seed);
        let name = |random: &mut Random| {
            let name = format!("n{}", random.below(8));
            match random.below(3) {
                0 => name,
                _ => format!("d{}/{name}", random.below(4)),
            }
        };
        for directory in 0..4 {
            volume.create_dir(format!("d{directory}")).expect("directory");
        }
        for snapshot in 0..6 {
            for _ in 0..random.below(25) {
                let (one, other) = (name(&mut random), name(&mut random));
                // What does not fit is refused, and changes nothing.
                match random.below(8) {
                    0..3 => drop(volume.write(&one, vec![seed as u8; random.below(9000) as usize])),
                    3 => drop(volume.remove_file(&one)),
                    4 => drop(volume.rename(&one, &other)),
                    5 => drop(volume.hard_link(&one, &other)),
                    6 => drop(volume.set_permissions(&one, 0o600 + random.below(8) as u32)),
                    _ => {
                        drop(volume.rename(format!("d{}", random.below(4)), format!("d{}", random.below(4))))
                    }
                }
            }
            match random.below(2) {
                0 => volume.snapshot(&format!("s{snapshot}")).expect("snapshot"),
                _ => {
                    volume.sync_all().expect("sync");
                    volume.snapshot_committed(&format!("s{snapshot}")).expect("snapshot")
                }
            };
        }
        for older in 0..6 {
            for newer in older..6 {
                let (older, newer) = (format!("s{older}"), format!("s{newer}"));
                let changes = volume.diff(&older, Some(&newer), false).expect("diff");
                assert!(older != newer || changes.is_empty());
                judge(&volume.at(&older).expect("at"), &volume.at(&newer).expect("at"), &changes, seed);
            }
        }
    }
}

#[test]
fn what_is_shared_is_not_read() {
    let volume = fresh();
    for directory in 0..20 {
        volume.create_dir(format!("{directory}")).expect("directory");
        for file in 0..500 {
            volume.create_file(format!("{directory}/{file}")).expect("create");
        }
    }
    volume.snapshot("before").expect("snapshot");
    for file in 0..10 {
        volume.remove_file(format!("7/{file}")).expect("remove");
    }
    volume.snapshot("after").expect("snapshot");
    // Else the nodes are held in memory, where nobody counts.
    volume.checkpoint().expect("checkpoint");
    let looked_at = || {
        let store = volume.stats().engine.store;
        store.node_cache_hits + store.node_cache_misses
    };
    let before = looked_at();
    let changes = volume.diff("before", Some("after"), false).expect("diff");
    let nodes = looked_at() - before;
    assert_eq!(changes.len(), 10);
    // 10,000 files take some 300 leaves in each of the trees.
    assert!(nodes < 100, "{nodes} looks at nodes");
}
