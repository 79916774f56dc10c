//! Damage that repair can mend, from the sentence that tells of it to the sound volume behind it.

use super::common::{Bench, assert_populated, flip, open, syncline};
use std::fs;
use std::path::Path;
use syncline::{OpenOptions, Volume, VolumeOptions};

const PAGE: u64 = 4096;
const PAGES: u64 = 900;
const NODE: usize = 16_384;

/// Ends the session as a power cut would.
fn cut(volume: Volume) {
    volume.inner().shut_down();
    drop(volume);
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Flips a bit in each leaf, stored at any time, all of whose items belong to inodes that are `wanted`.
fn rot_leaves(image: &Path, wanted: impl Fn(u64) -> bool) {
    let content = fs::read(image).expect("read");
    let mut rotten = 0;
    for at in (0..content.len() - NODE).step_by(PAGE as usize) {
        let node = &content[at..at + NODE];
        let number = |from: usize| u64::from_le_bytes(node[from..from + 8].try_into().expect("eight bytes"));
        let small = |from: usize| usize::from(u16::from_le_bytes([node[from], node[from + 1]]));
        let is_leaf =
            node[..4] == *b"SLND" && number(16) == at as u64 / PAGE && small(40) == 0 && node[48] == 1;
        if is_leaf && small(42) > 0 && (0..small(42)).all(|slot| wanted(number(64 + 24 * slot))) {
            flip(image, (at + NODE - 1) as u64);
            rotten += 1;
        }
    }
    assert!(rotten > 0, "there are such leaves");
}

fn number(volume: &Volume, path: &str) -> u64 {
    volume.metadata(path).expect("it exists").attr().inode.0
}

/// A session that does nothing in the background.
fn quiet(image: &Path) -> Volume {
    Volume::open_with(image, &VolumeOptions::new().background(false)).expect("open")
}

/// A populated volume with `/large`, whose extents cannot be read, and of which synced pages are in the journal only.
fn with_damaged_file(bench: &Bench) -> std::path::PathBuf {
    let image = bench.populated();
    let volume = open(&image);
    for name in ["/large", "/behind"] {
        let file = volume.create_file(name).expect("create");
        for page in 0..PAGES {
            file.write_all_at(&[page as u8; PAGE as usize], 2 * page * PAGE).expect("write");
        }
        file.sync_all().expect("sync");
    }
    let large = number(&volume, "/large");
    volume.close().expect("close");
    let volume = quiet(&image);
    let file = OpenOptions::new().write(true).open(&volume, "/large").expect("open");
    file.write_all_at(&[0xee; 2 * PAGE as usize], PAGES * PAGE).expect("write");
    file.sync_all().expect("sync");
    drop(file);
    cut(volume);
    rot_leaves(&image, |object| object == large);
    image
}

// Shows: C7.
#[test]
fn a_file_that_is_set_aside_is_repaired_and_all_others_are_untouched() {
    let bench = Bench::new();
    let image = with_damaged_file(&bench);
    let volume = open(&image);
    assert_eq!(volume.stats().engine.set_aside.files, 1);
    volume.close().expect("nothing is in memory only");
    let before = fs::read(&image).expect("read");
    let told = syncline(&["check", text(&image)]);
    assert_eq!(told.code, 4, "{}", told.out);
    for words in ["error SL-T008", "/large (inode ", "stored pages are lost", "syncline check --repair"] {
        assert!(told.out.contains(words), "{words}: {}", told.out);
    }
    assert!(!told.out.contains("cannot be repaired"), "{}", told.out);
    assert!(fs::read(&image).expect("read") == before, "looking changes nothing");
    let repaired = syncline(&["check", "--repair", text(&image)]);
    assert_eq!(repaired.code, 1, "{}", repaired.out);
    assert!(repaired.out.contains("repaired; sound now") && repaired.out.contains("/large (inode "));
    syncline(&["check", text(&image)]).ok();
    let volume = open(&image);
    assert_eq!(volume.stats().engine.set_aside.files, 0);
    let large = volume.read("/large").expect("it can be read");
    assert_eq!(large[(PAGES * PAGE) as usize..][..2 * PAGE as usize], [0xee; 2 * PAGE as usize]);
    let behind = volume.read("/behind").expect("it can be read");
    for page in 0..PAGES {
        let at = (2 * page * PAGE) as usize;
        assert_eq!(behind[at..][..PAGE as usize], [page as u8; PAGE as usize]);
    }
    volume.close().expect("close");
    assert_populated(&image);
}

// Shows: C7.
#[test]
fn a_journal_that_cannot_be_replayed_is_told_with_what_helps() {
    let bench = Bench::new();
    let image = bench.populated();
    let volume = open(&image);
    (0..400).for_each(|n| volume.write(format!("/small{n}"), [b'a' + n as u8 % 26; 100]).expect("write"));
    let middle = number(&volume, "/small200");
    volume.close().expect("close");
    let volume = quiet(&image);
    volume.set_permissions("/small200", 0o600).expect("chmod");
    volume.sync_all().expect("sync");
    cut(volume);
    rot_leaves(&image, |object| object.abs_diff(middle) < 100);
    let source = bench.path("source");
    fs::write(&source, b"new").expect("write");
    let import = ["import", text(&image), text(&source), "/new"];
    let refused = syncline(&import);
    assert_eq!(refused.code, 1);
    for words in ["read-only", "syncline check --repair"] {
        assert!(refused.err.contains(words) && refused.err.lines().count() == 1, "{}", refused.err);
    }
    // Read-only, everything else is there.
    assert_eq!(syncline(&["cat", text(&image), "/small0"]).ok().out, "a".repeat(100));
    let read_only = VolumeOptions::new().read_only(true);
    let volume = Volume::open_with(&image, &read_only).expect("read-only it opens");
    assert_eq!(volume.read("/small0").expect("it can be read"), [b'a'; 100]);
    assert!(volume.read("/small200").is_err());
    drop(volume);
    assert_eq!(syncline(&["check", "--repair", text(&image)]).code, 1);
    syncline(&["check", text(&image)]).ok();
    syncline(&import).ok();
    let volume = open(&image);
    assert_eq!(volume.metadata("/small200").expect("the journal has it").mode() & 0o7777, 0o600);
    volume.close().expect("close");
    assert_populated(&image);
}

/// Where journal records lie in an image.
fn records(image: &Path) -> Vec<u64> {
    let content = fs::read(image).expect("read");
    let blocks = content.chunks_exact(PAGE as usize).zip(0u64..);
    blocks.filter(|(block, _)| block[..4] == *b"SLJR").map(|(_, at)| at * PAGE).collect()
}

// Shows: C7.
#[test]
fn of_a_volume_whose_journal_has_rotted_export_brings_out_what_is_older() {
    let bench = Bench::new();
    let image = bench.populated();
    let volume = quiet(&image);
    for n in 0..6u8 {
        volume.write(format!("/later{n}"), [b'a' + n; 3000]).expect("write");
        volume.sync_all().expect("sync");
    }
    cut(volume);
    // A session's log begins at the ring's beginning; behind it lies that of the session before.
    flip(&image, records(&image)[3] + 100);
    let before = fs::read(&image).expect("read");
    let out = bench.path("out");
    let refused = syncline(&["export", text(&image), "/", text(&out)]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("syncline export --partial") && refused.err.lines().count() == 1);
    let partial = syncline(&["export", "--partial", text(&image), "/", text(&out)]);
    assert_eq!(partial.code, 1, "{}", partial.err);
    assert!(partial.err.contains("a part of the journal is lost"), "{}", partial.err);
    assert!(fs::read(&image).expect("read") == before, "looking changes nothing");
    let later: Vec<bool> = (0..6).map(|n| out.join(format!("later{n}")).exists()).collect();
    assert!(later[0] && !later[5] && later.is_sorted_by_key(|there| !there), "a prefix: {later:?}");
    for n in (0..6u8).filter(|n| later[usize::from(*n)]) {
        assert_eq!(fs::read(out.join(format!("later{n}"))).expect("read"), [b'a' + n; 3000]);
    }
    // Nothing of this writes: a volume that is opened to be changed is refused as before.
    assert!(Volume::open(&image).is_err());
    assert!(Volume::open_with(&image, &VolumeOptions::new().salvage(true)).is_err());
}

// Shows: C7.
#[test]
fn a_check_of_named_files_reads_their_data_and_no_others() {
    let bench = Bench::new();
    let image = bench.populated();
    let block_of = |path: &str| -> u64 {
        let run = syncline(&["inspect", "extents", "--json", text(&image), path]).ok();
        run.json()[0]["block"].as_u64().expect("a block")
    };
    let (damaged, beside) = ("/dir/file7", "/dir/file9");
    flip(&image, block_of(damaged) * PAGE);
    let check = |paths: &[&str]| {
        let run = syncline(&[&["check", "--json", text(&image)], paths].concat());
        let told = run.json();
        let found: Vec<String> = told["findings"]
            .as_array()
            .expect("findings")
            .iter()
            .map(|finding| finding["path"].as_str().expect("a path").to_owned())
            .collect();
        let blocks = |key: &str| told["totals"][key].as_u64().expect("a count");
        (run.code, found, blocks("data_blocks_verified") + blocks("data_blocks_damaged"))
    };
    let all = check(&[]);
    assert_eq!((all.0, all.1.clone()), (4, vec![damaged.to_owned()]));
    // File 9 has 45,010 bytes, file 7 has 35,010.
    assert_eq!(check(&[beside]), (0, Vec::new(), 11));
    assert_eq!(check(&[damaged, beside]), (4, vec![damaged.to_owned()], 9 + 11));
    assert_eq!(check(&["/dir"]), all);
    assert_eq!(check(&["/dir/link"]), (0, Vec::new(), 0), "a link is not followed");
    syncline(&["check", text(&image), "/dir/nothing"]).fails(8, &image, "/dir/nothing");
    let both = syncline(&["check", "--repair", text(&image), "/dir"]);
    assert_eq!(both.code, 16, "{}{}", both.out, both.err);
}
