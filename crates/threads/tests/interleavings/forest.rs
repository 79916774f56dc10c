//! A volume of version 2 under many threads: heads that are written to and synced, snapshots that are made, read and
//! deleted, clones, and steps of deletions in between.
//!
//! The rules for callers are those of `workload.rs`. What a snapshot has to show follows from the order of the LSNs: of
//! each file what was committed last before the snapshot. So all of it is judged when the run has ended, and no thread
//! has to wait for another one's notes: what readers saw, and what crashes have left.

use crate::device::SlowDevice;
use crate::image::{Image, ImageDevice};
use crate::judge::{BLOCKS, Version, content, format_options};
use crate::tally;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use store_under_shuttle::{
    Batch, Birth, Class, Estimate, Permit, Pressure, Reservation, SnapshotLabel, Store, StoreError,
    StoreOptions,
};
use syncline_device::{Buffer, Device};
use syncline_format::item::{ExtentContent, ExtentItem, Timestamp};
use syncline_format::tree_item::{Role, Stay, TreeState};
use syncline_format::{BLOCK_BYTES, BlockNo, Key, Lsn, ObjectNo, TreeId, checksum};

/// Crash states taken for one schedule, but for the last one.
const CRASHES_MAX: u64 = 5;
/// How often relief may be needed before something is taken to be stuck.
const RELIEFS_MAX: u32 = 40;

static FORMATTED: LazyLock<Image> = LazyLock::new(|| {
    let device = ImageDevice::new(BLOCKS, Image::default());
    syncline_store::Store::format_with_trees(&device, &format_options(), &mut |_, _| {}).expect("format");
    device.into_image()
});

/// What somebody found in a tree: of each file its version, if it has an inode, and its page.
type Seen = Vec<(Option<Version>, Option<Vec<u8>>)>;

/// Whoever has it may change a file of a head.
type Turn = Arc<Mutex<()>>;

#[derive(Default)]
struct Past {
    /// Per tree and file: the versions in order, with their LSNs.
    commits: BTreeMap<(TreeId, usize), Vec<(Lsn, Version)>>,
    /// Trees that were made: of which one, and by which batch.
    made: BTreeMap<TreeId, (TreeId, Lsn)>,
    deleted: BTreeMap<TreeId, Lsn>,
    seen: Vec<(TreeId, Seen)>,
    acknowledged: Lsn,
    crashes: Vec<(Image, Lsn)>,
}

/// Its locks are never held while the scheduler may switch: a standard mutex is enough for what is noted.
pub struct Forest {
    pub store: Arc<Store>,
    pub device: Arc<SlowDevice>,
    files: usize,
    /// Whoever changes a file of a head holds its turn.
    turns: Mutex<BTreeMap<(TreeId, usize), Turn>>,
    past: std::sync::Mutex<Past>,
    versions: AtomicU64,
    crashes: AtomicU64,
    names: AtomicU64,
    /// Blocks that nobody else gets.
    held: std::sync::Mutex<Option<Reservation>>,
    /// What was free before anything was done.
    free: u64,
}

impl Forest {
    pub fn new(files: usize) -> Forest {
        let device = SlowDevice::new(BLOCKS, FORMATTED.clone());
        let options = StoreOptions::new(7).trees().stream_bytes(6000);
        let store = Store::open(device.clone(), options).expect("open").finish().expect("finish");
        let free = store.space().free;
        Forest {
            store,
            device,
            files,
            turns: Mutex::default(),
            past: std::sync::Mutex::default(),
            versions: AtomicU64::new(1),
            crashes: AtomicU64::new(0),
            names: AtomicU64::new(1),
            held: std::sync::Mutex::default(),
            free,
        }
    }

    pub fn files(&self) -> usize {
        self.files
    }

    fn note<T>(&self, note: impl FnOnce(&mut Past) -> T) -> T {
        note(&mut self.past.lock().expect("nobody panics with it"))
    }

    fn object(file: usize) -> ObjectNo {
        ObjectNo(100 + file as u64)
    }

    fn turn(&self, head: TreeId, file: usize) -> Turn {
        self.turns.lock().expect("no panic").entry((head, file)).or_default().clone()
    }

    /// A crash state, now.
    fn may_crash(&self, one_in: u32) {
        if thread_rng().gen_ratio(1, one_in) && self.crashes.fetch_add(1, Ordering::Relaxed) < CRASHES_MAX {
            let acknowledged = self.note(|past| past.acknowledged);
            let image = self.device.crash();
            self.note(|past| past.crashes.push((image, acknowledged)));
        }
    }

    /// Calls again after relief, and gives up where there is no space.
    fn relieved<T>(&self, call: impl Fn() -> Result<T, StoreError>) -> Option<T> {
        for _ in 0..RELIEFS_MAX {
            match call() {
                Err(StoreError::Pressure(pressure)) => self.relieve(pressure),
                Err(StoreError::NoSpace) => return None,
                result => return Some(result.unwrap_or_else(|error| panic!("a call fails: {error}"))),
            }
        }
        panic!("relief does not help: {:?}", self.store.load())
    }

    fn relieve(&self, pressure: Pressure) {
        tally::count(|tally| tally.reliefs += 1);
        if pressure == Pressure::Journal {
            while self.store.settle().unwrap_or_else(|error| panic!("settle: {error}")) {}
            let heads: Vec<TreeId> = self.heads();
            for head in heads {
                (0..self.files).for_each(|file| self.destage(head, file));
            }
        }
        self.checkpoint();
    }

    fn heads(&self) -> Vec<TreeId> {
        let is_head = |tree: &TreeId| self.store.is_head(*tree);
        self.store.trees().into_keys().filter(is_head).collect()
    }

    fn admit(&self, class: Class, items: usize, images: usize) -> Option<Permit> {
        let estimate = Estimate { bytes: 300 + images * 4200, items, images };
        self.relieved(|| self.store.admit(class, estimate))
    }

    /// The file's page in blocks of a tree, if it is there.
    fn extent(&self, tree: TreeId, file: usize) -> Option<ExtentItem> {
        let key = Key::extent(Self::object(file), 0);
        let value = self.store.get(tree, key).unwrap_or_else(|error| panic!("tree {tree:?}: {error}"));
        value.map(|value| ExtentItem::decode(&value).expect("an extent"))
    }

    fn version(&self, tree: TreeId, file: usize) -> Option<Version> {
        let value = self.store.get(tree, Key::inode(Self::object(file)));
        value.unwrap_or_else(|error| panic!("tree {tree:?}: {error}")).map(|value| Version::decode(&value))
    }

    /// What the file had goes, in the same batch.
    fn release(&self, head: TreeId, file: usize, batch: &mut Batch) {
        batch.drop_images(Self::object(file), 0, 1);
        if let Some(ExtentItem { start, birth, .. }) = self.extent(head, file) {
            let key = Key::extent(Self::object(file), 0);
            batch.delete(key);
            batch.release(key, start, 1, birth);
        }
    }

    fn log(
        &self,
        permit: Permit,
        mut batch: Batch,
        head: TreeId,
        file: usize,
        number: u64,
        full: bool,
    ) -> Lsn {
        let version = Version { number, full };
        batch.put(Key::inode(Self::object(file)), &version.encode());
        let lsn = self.store.commit(permit, batch).unwrap_or_else(|error| panic!("commit: {error}"));
        self.note(|past| past.commits.entry((head, file)).or_default().push((lsn, version)));
        lsn
    }

    fn next_version(&self) -> u64 {
        self.versions.fetch_add(1, Ordering::Relaxed)
    }

    /// A new version of a file as a page image; `None`: no space.
    pub fn write_image(&self, head: TreeId, file: usize) -> Option<Lsn> {
        let permit = self.admit(Class::Normal, 3, 1)?;
        let turn = self.turn(head, file);
        let _turn = turn.lock().expect("no panic");
        let mut batch = self.store.batch(head);
        self.release(head, file, &mut batch);
        let number = self.next_version();
        batch.image(Self::object(file), 0, &content(Self::object(file).0, number));
        Some(self.log(permit, batch, head, file, number, true))
    }

    /// A new version of a file in a block of its own; `None`: no space.
    pub fn write_extent(&self, head: TreeId, file: usize) -> Option<Lsn> {
        let blocks = self.relieved(|| self.store.reserve(1))?;
        let permit = self.admit(Class::Normal, 3, 0)?;
        let turn = self.turn(head, file);
        let _turn = turn.lock().expect("no panic");
        let mut batch = self.store.batch(head);
        let number = self.next_version();
        self.release(head, file, &mut batch);
        self.write_data(file, number, blocks, &mut batch);
        Some(self.log(permit, batch, head, file, number, true))
    }

    fn write_data(&self, file: usize, number: u64, mut blocks: Reservation, batch: &mut Batch) {
        let object = Self::object(file);
        let data = content(object.0, number);
        // Where one was freed just before, if it may be had.
        let run = self.store.allocate(&mut blocks, 1, Some(BlockNo(200)));
        let ticket = self.device.submit_write(run.start, vec![Arc::new(Buffer::from_bytes(&data))]);
        batch.allocate(run.start, 1);
        let extent = ExtentItem::written(run.start, vec![checksum(&data)]);
        batch.put_extent(Key::extent(object, 0), &extent, Birth::Now, true);
        match self.store.data_slot(BLOCK_BYTES as u64) {
            Some(slot) => batch.depends_on(ticket, slot),
            None => self.device.wait(&ticket).expect("nothing fails"),
        }
    }

    /// The file loses its content.
    pub fn empty(&self, head: TreeId, file: usize) -> Option<Lsn> {
        let permit = self.admit(Class::Reclaim, 3, 0)?;
        let turn = self.turn(head, file);
        let _turn = turn.lock().expect("no panic");
        let mut batch = self.store.batch(head);
        self.release(head, file, &mut batch);
        let number = self.next_version();
        Some(self.log(permit, batch, head, file, number, false))
    }

    /// Writes an imaged page to a block of its own; the version stays.
    pub fn destage(&self, head: TreeId, file: usize) {
        let turn = self.turn(head, file);
        let _turn = turn.lock().expect("no panic");
        // An image leaves no extent below it.
        let version = self.version(head, file).filter(|version| version.full);
        let Some(version) = version.filter(|_| self.extent(head, file).is_none()) else { return };
        // Recovery promises its images their places; here nobody has reserved one.
        let Ok(blocks) = self.store.reserve_for_freeing(1) else { return };
        let estimate = Estimate { bytes: 300, items: 1, images: 0 };
        let Ok(permit) = self.store.admit(Class::Destage, estimate) else { return };
        let mut batch = self.store.batch(head);
        self.write_data(file, version.number, blocks, &mut batch);
        batch.drop_images(Self::object(file), 0, 1);
        self.store.commit(permit, batch).unwrap_or_else(|error| panic!("destage: {error}"));
    }

    /// One of the changes of a file.
    pub fn change(&self, head: TreeId) -> Option<Lsn> {
        let file = thread_rng().gen_range(0..self.files);
        match thread_rng().gen_range(0..8) {
            0..=2 => self.write_image(head, file),
            3..=5 => self.write_extent(head, file),
            6 => self.empty(head, file),
            _ => {
                self.destage(head, file);
                Some(self.store.last_lsn())
            }
        }
    }

    pub fn force(&self, lsn: Lsn) {
        self.store.force(lsn).unwrap_or_else(|error| panic!("force: {error}"));
        self.note(|past| past.acknowledged = past.acknowledged.max(lsn));
        self.may_crash(2);
    }

    pub fn checkpoint(&self) {
        let lsn = self.store.last_lsn();
        self.store.checkpoint().unwrap_or_else(|error| panic!("checkpoint: {error}"));
        self.note(|past| past.acknowledged = past.acknowledged.max(lsn));
        self.may_crash(2);
    }

    fn label(&self) -> SnapshotLabel {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        SnapshotLabel {
            name: format!("t{number}"),
            uuid: [number as u8; 16],
            made: Timestamp::default(),
            stay: Stay::default(),
        }
    }

    /// A snapshot of a head; `None`: no space.
    pub fn snapshot(&self, of: TreeId) -> Option<TreeId> {
        let label = self.label();
        let (tree, lsn) = self.relieved(|| self.store.snapshot(of, &label))?;
        self.note(|past| past.made.insert(tree, (of, lsn)));
        self.force(lsn);
        Some(tree)
    }

    /// A head that begins as a snapshot is; `None`: the snapshot has gone, or there is no space.
    pub fn clone_of(&self, of: TreeId) -> Option<TreeId> {
        let label = self.label();
        // While it is made the snapshot is read, so it does not go.
        let reading = match self.store.reader(of) {
            Ok(reader) => reader,
            Err(StoreError::NoTree { .. }) => return None,
            Err(error) => panic!("reader: {error}"),
        };
        while self.store.is_settling(of) {
            self.relieved(|| self.store.settle());
        }
        let overlay = self.store.overlay(of).unwrap_or_else(|error| panic!("overlay: {error}"));
        let hide = !overlay.is_empty();
        let cloned = self.relieved(|| match self.store.clone_tree(of, &label, hide) {
            // It was deleted meanwhile: what is only read nobody clones.
            Err(StoreError::NoTree { .. } | StoreError::NotASnapshot { .. }) => Ok(None),
            cloned => cloned.map(Some),
        })?;
        let (head, mut lsn) = cloned?;
        self.note(|past| past.made.insert(head.tree(), (of, lsn)));
        for item in overlay {
            let file = (item.object.0 - 100) as usize;
            let mut page = Buffer::zeroed(1);
            self.device.read(item.extent.start, &mut page).expect("read");
            let permit = self.admit(Class::Normal, 2, 1)?;
            let mut batch = self.store.batch(head.tree());
            self.release(head.tree(), file, &mut batch);
            batch.image(item.object, item.page, &page);
            self.store.commit(permit, batch).unwrap_or_else(|error| panic!("commit: {error}"));
        }
        if hide {
            lsn = self.relieved(|| self.store.show_head(&head, &label.name))?;
            self.note(|past| past.made.insert(head.tree(), (of, lsn)));
        }
        self.force(lsn);
        drop(reading);
        Some(head.tree())
    }

    /// Deletes a tree; others may have been faster.
    pub fn delete(&self, tree: TreeId) {
        let deleted = self.relieved(|| match self.store.delete_tree(tree) {
            Err(StoreError::NoTree { .. }) => Ok(None),
            deleted => deleted.map(Some),
        });
        // R33: it never lacks space.
        if let Some(lsn) = deleted.expect("a deletion needs no space that others may take") {
            self.note(|past| past.deleted.insert(tree, lsn));
            self.force(lsn);
        }
    }

    /// Steps of what snapshots have left to be done; false: there is nothing now.
    pub fn reap(&self) -> bool {
        let more = self.relieved(|| self.store.reap(usize::MAX));
        self.may_crash(3);
        more.unwrap_or(false)
    }

    /// Reads a snapshot, if it is still there. What it shows is judged later.
    pub fn read(&self, tree: TreeId) {
        let Ok(_reader) = self.store.reader(tree) else { return };
        while self.store.is_settling(tree) {
            self.relieved(|| self.store.settle());
        }
        let overlay = self.store.overlay(tree).unwrap_or_else(|error| panic!("overlay: {error}"));
        let mut seen = Seen::new();
        for file in 0..self.files {
            let item = overlay.iter().find(|item| item.object == Self::object(file));
            let extent = item.map(|item| item.extent.clone()).or_else(|| self.extent(tree, file));
            let page = extent.map(|extent| page_of(&*self.device, &extent));
            seen.push((self.version(tree, file), page));
        }
        self.note(|past| past.seen.push((tree, seen)));
    }

    /// The volume is filled but for so many blocks.
    pub fn fill(&self, but: u64) {
        let most = self.store.space().available.saturating_sub(but);
        *self.held.lock().expect("no panic") = self.store.reserve(most).ok();
    }

    /// Ends the run: what was seen and what crashes have left is judged; and when all trees but the first have gone,
    /// and its files are empty, everything is free again.
    pub fn finish(&self) {
        let image = self.device.crash();
        self.note(|past| past.crashes.push((image, past.acknowledged)));
        self.past.lock().expect("no panic").judge(self.files);
        drop(self.held.lock().expect("no panic").take());
        for tree in self.store.trees().into_keys().filter(|tree| *tree != TreeId::MAIN) {
            self.delete(tree);
        }
        for file in 0..self.files {
            self.empty(TreeId::MAIN, file).expect("there is space");
        }
        while self.reap() {}
        assert!(!self.store.is_reaping(), "what was deleted is taken apart");
        self.checkpoint();
        let space = self.store.space();
        assert_eq!(space.free - space.pinned, self.free, "blocks are lost, or free and in use");
        self.device.stop();
        let crash_states = self.note(|past| past.crashes.len()) as u64;
        let counters = self.store.counters();
        tally::count(|tally| {
            tally.schedules += 1;
            tally.crash_states += crash_states;
            tally.groups += counters.groups;
            tally.checkpoints += counters.checkpoints;
        });
    }
}

/// The page of an extent.
fn page_of(device: &dyn Device, extent: &ExtentItem) -> Vec<u8> {
    let ExtentContent::Written(sums) = &extent.content else { panic!("written extents only") };
    let mut page = Buffer::zeroed(1);
    device.read(extent.start, &mut page).expect("read");
    assert_eq!(*sums, [checksum(&page)], "block {} has foreign content", extent.start);
    page.to_vec()
}

impl Past {
    /// What a tree shows of a file when all batches before `end` count.
    fn expected(&self, tree: TreeId, file: usize, end: Lsn) -> Option<Version> {
        let commits = self.commits.get(&(tree, file)).into_iter().flatten();
        let last = commits.take_while(|(lsn, _)| *lsn < end).last();
        match (last, self.made.get(&tree)) {
            (Some((_, version)), _) => Some(*version),
            (None, Some((of, lsn))) => self.expected(*of, file, *lsn),
            (None, None) => None,
        }
    }

    fn judge(&mut self, files: usize) {
        // Two writers of one file note their commits in the order of their turns.
        self.commits.values().for_each(|commits| assert!(commits.is_sorted_by_key(|(lsn, _)| *lsn)));
        for (tree, seen) in &self.seen {
            for (file, (version, page)) in seen.iter().enumerate() {
                self.check(*tree, file, Lsn(u64::MAX), *version, page.as_deref(), "a reader");
            }
        }
        for (image, acknowledged) in &self.crashes {
            self.judge_crash(image, *acknowledged, files);
        }
    }

    fn check(
        &self,
        tree: TreeId,
        file: usize,
        end: Lsn,
        version: Option<Version>,
        page: Option<&[u8]>,
        who: &str,
    ) {
        let wanted = self.expected(tree, file, end);
        assert_eq!(version, wanted, "{who}: file {file} of tree {tree:?}");
        check_page(tree, file, version, page, who);
    }

    fn judge_crash(&self, image: &Image, acknowledged: Lsn, files: usize) {
        let device: Arc<dyn Device> = Arc::new(ImageDevice::new(BLOCKS, image.clone()));
        let options = syncline_store::StoreOptions::new(99).trees().read_only(true);
        let mut recovery = syncline_store::Store::open(Arc::clone(&device), options)
            .unwrap_or_else(|error| panic!("crash: the volume does not open: {error}"));
        let images = recovery.take_images();
        let pages = recovery.read_images(&images).expect("images that were verified");
        let images: BTreeMap<(TreeId, ObjectNo), Buffer> =
            images.iter().map(|image| (image.tree, image.object)).zip(pages).collect();
        let store = recovery.finish().expect("nothing is written");
        // The LSNs at which the volume was like this: `from..end`.
        let (mut from, mut end) = (Lsn(0), Lsn(u64::MAX));
        let trees = store.trees();
        for (tree, (_, lsn)) in &self.made {
            let item = trees.get(tree);
            let is_live = item.is_some_and(|item| item.state == TreeState::Live && !item.is_hidden);
            match (is_live, self.deleted.get(tree)) {
                (true, deleted) => {
                    from = from.max(*lsn);
                    end = end.min(deleted.copied().unwrap_or(Lsn(u64::MAX)));
                }
                // Not made so far, or hidden until it is whole.
                (false, None) => end = end.min(*lsn),
                (false, Some(_)) => {}
            }
        }
        for (tree, item) in trees.iter().filter(|(_, item)| item.state == TreeState::Live && !item.is_hidden)
        {
            let overlay = store.overlay(*tree).expect("an overlay");
            for file in 0..files {
                let object = Forest::object(file);
                let get = |key| store.get(*tree, key).unwrap_or_else(|error| panic!("crash: {error}"));
                let version = get(Key::inode(object)).map(|value| Version::decode(&value));
                let unsettled = store.unsettled(*tree).find(|(of, ..)| *of == object);
                let imaged = unsettled.map(|(.., page)| page).or_else(|| images.get(&(*tree, object)));
                let laid = overlay.iter().find(|item| item.object == object).map(|item| item.extent.clone());
                let stored = || {
                    get(Key::extent(object, 0)).map(|value| ExtentItem::decode(&value).expect("an extent"))
                };
                let page = match imaged {
                    Some(page) => Some(page.to_vec()),
                    None => laid.or_else(stored).map(|extent| page_of(&*device, &extent)),
                };
                if item.role == Role::Snapshot {
                    self.check(*tree, file, Lsn(u64::MAX), version, page.as_deref(), "crash");
                    continue;
                }
                check_page(*tree, file, version, page.as_deref(), "crash");
                let commits = self.commits.get(&(*tree, file)).map_or(&[][..], |commits| &commits[..]);
                let found = commits.iter().rposition(|(_, committed)| Some(*committed) == version);
                let next = match found {
                    Some(index) => {
                        from = from.max(commits[index].0);
                        commits.get(index + 1)
                    }
                    None => {
                        let begin = self.made.get(tree).and_then(|(of, lsn)| self.expected(*of, file, *lsn));
                        assert_eq!(
                            version, begin,
                            "crash: a version of file {file} that was never committed"
                        );
                        commits.first()
                    }
                };
                end = end.min(next.map_or(Lsn(u64::MAX), |(lsn, _)| *lsn));
            }
        }
        assert!(from < end, "crash: no prefix of the log: one of LSN {from} is there, one of {end} is not");
        assert!(acknowledged < end, "crash: {acknowledged} was acknowledged, LSN {end} is lost");
    }
}

fn check_page(tree: TreeId, file: usize, version: Option<Version>, page: Option<&[u8]>, who: &str) {
    match version {
        Some(Version { number, full: true }) => assert!(
            page.is_some_and(|page| page == content(Forest::object(file).0, number)),
            "{who}: file {file} of tree {tree:?} does not hold version {number}"
        ),
        _ => assert!(page.is_none(), "{who}: file {file} of tree {tree:?} is empty, its content is not"),
    }
}
