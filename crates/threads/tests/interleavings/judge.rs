//! What was committed and acknowledged, and whether what a crash left agrees with it.
//!
//! Each file is one object with one page. Its inode item holds a version, its page is made from the version, so a
//! recovered file proves which commit it is of. A recovered volume is right if all files together are as after some
//! prefix of the commits, in the order of their LSNs (C2), and that prefix reaches what was acknowledged before the
//! crash (C1). Recovery runs by the store as it ships.

use crate::image::{Image, ImageDevice};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use syncline_device::{Buffer, Device};
use syncline_format::item::{ExtentContent, ExtentItem};
use syncline_format::{BLOCK_BYTES, Key, Lsn, ObjectNo, TreeId, checksum};
use syncline_store::{FormatOptions, Store, StoreOptions};

pub const BLOCKS: u64 = 1024;
pub const JOURNAL_BLOCKS: u64 = 64;

/// A fresh volume.
pub fn formatted() -> Image {
    let device = ImageDevice::new(BLOCKS, Image::default());
    Store::format(&device, &format_options(), &mut |_, _| {}).expect("format");
    device.into_image()
}

/// How volumes are made.
pub fn format_options() -> FormatOptions {
    FormatOptions {
        uuid: [3; 16],
        label: String::new(),
        journal_blocks: Some(JOURNAL_BLOCKS),
        blocks: None,
        hash_seed: 1,
        name_key: None,
        epoch: 1,
        created_seconds: 0,
        created_nanoseconds: 0,
        items: Vec::new(),
    }
}

/// The page of a version of a file.
pub fn content(file: u64, version: u64) -> Vec<u8> {
    let mut page = vec![0; BLOCK_BYTES];
    for (index, word) in page.chunks_exact_mut(16).enumerate() {
        word[..8].copy_from_slice(&(file << 32 | version).to_le_bytes());
        word[8..].copy_from_slice(&(index as u64).to_le_bytes());
    }
    page
}

/// What a file is: a version that is never used twice, and whether it has a page. Without one it has been emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    pub number: u64,
    pub full: bool,
}

impl Version {
    pub fn encode(self) -> [u8; 9] {
        let mut value = [0; 9];
        value[..8].copy_from_slice(&self.number.to_le_bytes());
        value[8] = u8::from(self.full);
        value
    }

    pub fn decode(value: &[u8]) -> Version {
        Version { number: u64::from_le_bytes(value[..8].try_into().unwrap()), full: value[8] == 1 }
    }
}

/// A state that a crash could have left, with what had been acknowledged before.
struct Snapshot {
    image: Image,
    acknowledged: Lsn,
    why: &'static str,
}

#[derive(Default)]
struct Past {
    /// Per file: the versions in order, with their LSNs.
    commits: BTreeMap<u64, Vec<(Lsn, Version)>>,
    acknowledged: Lsn,
    snapshots: Vec<Snapshot>,
}

/// Holds no lock while the scheduler may switch: a standard mutex is enough.
#[derive(Default)]
pub struct History(Mutex<Past>);

impl History {
    pub fn committed(&self, file: u64, lsn: Lsn, version: Version) {
        self.0.lock().unwrap().commits.entry(file).or_default().push((lsn, version));
    }

    /// A sync of everything up to `lsn` has returned.
    pub fn acknowledged(&self, lsn: Lsn) {
        let mut past = self.0.lock().unwrap();
        past.acknowledged = past.acknowledged.max(lsn);
    }

    /// Takes a crash state to be judged at the end.
    pub fn snapshot(&self, why: &'static str, image: impl FnOnce() -> Image) {
        let acknowledged = self.0.lock().unwrap().acknowledged;
        let image = image();
        self.0.lock().unwrap().snapshots.push(Snapshot { image, acknowledged, why });
    }

    /// Judges every crash state, when all commits have returned; how many there were.
    pub fn judge(&self) -> u64 {
        let past = self.0.lock().unwrap();
        for snapshot in &past.snapshots {
            past.judge(snapshot);
        }
        past.snapshots.len() as u64
    }
}

impl Past {
    fn judge(&self, snapshot: &Snapshot) {
        let Snapshot { image, acknowledged, why } = snapshot;
        let device: Arc<dyn Device> = Arc::new(ImageDevice::new(BLOCKS, image.clone()));
        let options = StoreOptions::new(99).read_only(true);
        let mut recovery = Store::open(Arc::clone(&device), options)
            .unwrap_or_else(|error| panic!("crash {why}: the volume does not open: {error}"));
        let images = recovery.take_images();
        let pages = recovery.read_images(&images).expect("images that were verified");
        let images: HashMap<u64, Buffer> = images.iter().map(|image| image.object.0).zip(pages).collect();
        let store = recovery.finish().expect("nothing is written");
        // The LSNs at which the volume was like this: `from..end`.
        let (mut from, mut end) = (Lsn(0), Lsn(u64::MAX));
        for (file, commits) in &self.commits {
            let found = store.get(TreeId::MAIN, Key::inode(ObjectNo(*file)));
            let found = found.unwrap_or_else(|error| panic!("crash {why}: file {file}: {error}"));
            let version = found.map(|value| Version::decode(&value));
            check_content(&store, &*device, images.get(file), *file, version, why);
            let next = match version {
                None => commits.first(),
                Some(version) => {
                    let index = commits.iter().position(|(_, committed)| *committed == version);
                    let index =
                        index.unwrap_or_else(|| panic!("crash {why}: {version:?} was never committed"));
                    from = from.max(commits[index].0);
                    commits.get(index + 1)
                }
            };
            end = end.min(next.map_or(Lsn(u64::MAX), |(lsn, _)| *lsn));
        }
        assert!(
            from < end,
            "crash {why}: no prefix of the commits: one of LSN {from} is there, one of {end} is not"
        );
        assert!(*acknowledged < end, "crash {why}: {acknowledged} was acknowledged, LSN {end} is lost");
    }
}

fn check_content(
    store: &Store,
    device: &dyn Device,
    image: Option<&Buffer>,
    file: u64,
    version: Option<Version>,
    why: &str,
) {
    let extent = store.get(TreeId::MAIN, Key::extent(ObjectNo(file), 0)).expect("the inode was readable");
    let stored = extent.map(|value| {
        let extent = ExtentItem::decode(&value).expect("an extent");
        let mut page = vec![0; BLOCK_BYTES];
        device.read(extent.start, &mut page).expect("read");
        let ExtentContent::Written(sums) = extent.content else { panic!("written extents only") };
        let block = extent.start;
        assert_eq!(sums, [checksum(&page)], "crash {why}: block {block} of file {file} has foreign content");
        page
    });
    let found = image.map(|page| page.to_vec()).or(stored);
    match version {
        Some(Version { number, full: true }) => assert!(
            found.is_some_and(|page| page == content(file, number)),
            "crash {why}: the content of file {file} is not that of version {number}"
        ),
        _ => assert!(found.is_none(), "crash {why}: file {file} is empty, its content is not"),
    }
}
