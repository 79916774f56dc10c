//! Random walks over trees with snapshots, on a device that loses power.
//!
//! After each crash the volume is the state behind some batch that no force had promised more than, all snapshots
//! included, and each snapshot shows what it showed when it was made. Now and then all trees are read off the device
//! and held against the bitmaps: what is reachable is in use, and nothing else. The offline check judges each of these
//! states, and what a crash leaves before anybody opens it. There are several heads: clones of snapshots, and those
//! that took another one's place. What the store cannot do yet, the walks do not do: blocks are neither moved nor
//! shared between files.

use crate::support;
use crate::support::checked;
use crate::support::compare::compare;
use crate::support::reach::Volume;
use crate::support::view::{OBJECTS, View, extents, object, shape, view};
use crate::support::{CrashDevice, Random};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_device::{Buffer, Device};
use syncline_format::item::{ExtentContent, ExtentItem, Timestamp};
use syncline_format::schedule::Schedule;
use syncline_format::tree_item::{Role, Stay, TreeItem};
use syncline_format::{BLOCK_BYTES, BlockNo, Era, Key, Lsn, TreeId, checksum};
use syncline_store::{
    Batch, Birth, Class, Estimate, Permit, Pressure, Run, SnapshotLabel, Store, StoreError, StoreOptions,
    TreeReader,
};

const BLOCKS: u64 = 8192;
const JOURNAL_BLOCKS: u64 = 256;
const PAGES: u64 = 12;
const SNAPSHOTS_MAX: usize = 9;
const HEADS_MAX: usize = 4;

const MAIN: TreeId = TreeId::MAIN;

/// What the volume shows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    heads: BTreeMap<TreeId, View>,
    snapshots: BTreeMap<TreeId, View>,
    /// Of those that do not stay until somebody deletes them.
    stays: BTreeMap<TreeId, Stay>,
    schedule: Option<Schedule>,
}

impl Default for State {
    fn default() -> State {
        State {
            heads: BTreeMap::from([(MAIN, View::default())]),
            snapshots: BTreeMap::new(),
            stays: BTreeMap::new(),
            schedule: None,
        }
    }
}

/// How often things happened: a walk that does not get somewhere shows nothing there.
#[derive(Debug, Default)]
struct Tally {
    snapshots: u64,
    inherited: u64,
    settled: u64,
    settled_by_recovery: u64,
    in_place: u64,
    left: u64,
    recoveries: u64,
    made_by_replay: u64,
    images_only: u64,
    judged: u64,
    deleted: u64,
    reaped: u64,
    gone: u64,
    clones: u64,
    copied: u64,
    in_clones: u64,
    heads_deleted: u64,
    rolled_back: u64,
    kept: u64,
    compared: u64,
    usages: u64,
    shared_usages: u64,
    usages_beside_deletions: u64,
    schedules: u64,
    expired: u64,
    spared: u64,
}

struct Walk {
    device: Arc<CrashDevice>,
    store: Arc<Store>,
    state: State,
    /// The state behind each batch of the session, the one it began with included.
    history: BTreeMap<Lsn, State>,
    durable: Lsn,
    images: BTreeSet<(TreeId, u64, u64)>,
    /// The head that changes.
    head: TreeId,
    /// A clone that is being made: nobody sees it so far.
    hidden: Option<TreeId>,
    random: Random,
    clock: u8,
    names: u64,
}

fn options(epoch: u64) -> StoreOptions {
    StoreOptions::new(epoch).node_cache_bytes(40 * 16384).trees()
}

/// A change of a file's extents, as a filesystem would make it.
#[derive(Default)]
struct Change {
    deletes: Vec<u64>,
    puts: Vec<(u64, ExtentItem, Birth, bool)>,
    releases: Vec<(u64, BlockNo, u32, Era)>,
}

impl Change {
    fn cost(&self) -> Estimate {
        let items = self.deletes.len() + self.puts.len();
        Estimate { bytes: 600 + items * 180 + self.releases.len() * 20, items, images: 0 }
    }

    fn emit(&self, file: u64, batch: &mut Batch) {
        for page in &self.deletes {
            batch.delete(Key::extent(object(file), *page));
        }
        for (page, extent, birth, fresh) in &self.puts {
            batch.put_extent(Key::extent(object(file), *page), extent, *birth, *fresh);
        }
        for (page, start, len, birth) in &self.releases {
            batch.release(Key::extent(object(file), *page), *start, *len, *birth);
        }
    }
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let device = CrashDevice::new(BLOCKS);
        support::format_with_trees(&*device, JOURNAL_BLOCKS, Vec::new());
        let store = Store::open(device.clone(), options(seed)).expect("open").finish().expect("finish");
        let history = BTreeMap::from([(store.last_lsn(), State::default())]);
        let durable = store.last_lsn();
        Walk {
            device,
            store,
            state: State::default(),
            history,
            durable,
            images: BTreeSet::new(),
            head: MAIN,
            hidden: None,
            random: Random(seed),
            clock: 0,
            names: 0,
        }
    }

    fn admit(&mut self, class: Class, estimate: Estimate) -> Option<Permit> {
        for _ in 0..20 {
            match self.store.admit(class, estimate) {
                Ok(permit) => return Some(permit),
                Err(StoreError::Pressure(pressure)) => {
                    if pressure == Pressure::Journal && class != Class::Destage {
                        self.relieve();
                    }
                    self.store.checkpoint().expect("checkpoint");
                }
                Err(StoreError::NoSpace) => return None,
                Err(other) => panic!("{other}"),
            }
        }
        panic!("pressure that nothing relieves")
    }

    fn relieve(&mut self) {
        while self.settle_some() {}
        let head = self.head;
        for (tree, file, page) in self.images.clone() {
            self.head = tree;
            self.destage(file, page, &mut Tally::default());
        }
        self.head = head;
    }

    /// What the head shows.
    fn view(&mut self) -> &mut View {
        self.state.heads.get_mut(&self.head).expect("the head is there")
    }

    fn settle_some(&mut self) -> bool {
        let before = self.store.last_lsn();
        match self.store.settle() {
            Ok(settled) => {
                let now = self.store.last_lsn();
                if now > before {
                    self.note(now);
                }
                settled
            }
            Err(StoreError::Pressure(_)) => {
                self.store.checkpoint().expect("checkpoint");
                true
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn note(&mut self, lsn: Lsn) {
        assert_eq!(self.history.keys().next_back().map(|last| last.next()), Some(lsn), "each batch is noted");
        let mut state = self.state.clone();
        state.heads.retain(|tree, _| Some(*tree) != self.hidden);
        self.history.insert(lsn, state);
    }

    fn commit(&mut self, permit: Permit, batch: Batch) {
        let lsn = self.store.commit(permit, batch).expect("commit");
        self.note(lsn);
    }

    fn extents(&self, tree: TreeId, file: u64) -> BTreeMap<u64, ExtentItem> {
        extents(&self.store, tree, file)
    }

    /// Takes pages out of a file's extents.
    fn cut(&self, file: u64, pages: std::ops::Range<u64>) -> Change {
        let mut change = Change::default();
        for (first, item) in self.extents(self.head, file) {
            let end = first + u64::from(item.pages());
            let (from, to) = (first.max(pages.start), end.min(pages.end));
            if from >= to {
                continue;
            }
            change.deletes.push(first);
            if first < from {
                change.puts.push((first, item.slice(0, (from - first) as u32), Birth::Kept, false));
            }
            if to < end {
                let right = item.slice((to - first) as u32, (end - to) as u32);
                change.puts.push((to, right, Birth::Kept, false));
            }
            change.releases.push((from, item.block_of(from - first), (to - from) as u32, item.birth));
        }
        change.deletes.retain(|page| !change.puts.iter().any(|(put, ..)| put == page));
        change
    }

    /// Blocks with the content on them, or `None` on a full volume.
    fn write_data(&mut self, pages: u32, content: Option<u8>) -> Option<Run> {
        let mut blocks = self.store.reserve(u64::from(pages)).ok()?;
        let run = self.store.allocate(&mut blocks, pages, None);
        if let Some(content) = content {
            self.write_at(run, content);
        }
        Some(run)
    }

    fn write_at(&self, run: Run, content: u8) {
        let bytes = vec![content; run.len as usize * BLOCK_BYTES];
        self.device.write(run.start, vec![Arc::new(Buffer::from_bytes(&bytes))]).expect("write");
    }

    fn next_content(&mut self) -> u8 {
        self.clock = self.clock % 250 + 1;
        self.clock
    }

    /// New content for a run of pages, in other blocks.
    fn write(&mut self, file: u64, first: u64, pages: u64, class: Class, content: u8, tally: &mut Tally) {
        let Some(run) = self.write_data(pages as u32, Some(content)) else { return };
        let end = first + u64::from(run.len);
        // A reservation that admission would have to wait for is another matter than what is looked at here.
        let cost = Estimate { bytes: 4000, items: 2 * PAGES as usize, images: 0 };
        let Some(permit) = self.admit(class, cost) else { return };
        let mut change = self.cut(file, first..end);
        let sums = vec![checksum(&[content; BLOCK_BYTES]); run.len as usize];
        change.deletes.retain(|page| *page != first);
        change.puts.push((first, ExtentItem::written(run.start, sums), Birth::Now, true));
        self.count_left(&change, tally);
        let mut batch = self.store.batch(self.head);
        batch.allocate(run.start, run.len);
        change.emit(file, &mut batch);
        batch.drop_images(object(file), first, end);
        for page in first..end {
            self.images.remove(&(self.head, file, page));
            self.view().pages.insert((file, page), content);
        }
        self.commit(permit, batch);
    }

    fn count_left(&self, change: &Change, tally: &mut Tally) {
        let owned = |birth: &Era| self.store.owns(self.head, *birth).expect("the head is there");
        tally.left += change.releases.iter().filter(|(.., birth)| !owned(birth)).count() as u64;
    }

    fn punch(&mut self, file: u64, first: u64, end: u64, tally: &mut Tally) {
        let change = self.cut(file, first..end);
        self.count_left(&change, tally);
        let Some(permit) = self.admit(Class::Reclaim, change.cost()) else { return };
        let change = self.cut(file, first..end);
        let mut batch = self.store.batch(self.head);
        change.emit(file, &mut batch);
        batch.drop_images(object(file), first, end);
        for page in first..end {
            self.images.remove(&(self.head, file, page));
            self.view().pages.remove(&(file, page));
        }
        self.commit(permit, batch);
    }

    /// Blocks for pages that have none.
    fn allocate(&mut self, file: u64, page: u64) {
        if self
            .extents(self.head, file)
            .iter()
            .any(|(first, item)| (*first..first + u64::from(item.pages())).contains(&page))
        {
            return;
        }
        let Some(run) = self.write_data(1, None) else { return };
        let Some(permit) = self.admit(Class::Normal, Estimate { bytes: 400, items: 1, images: 0 }) else {
            return;
        };
        let mut batch = self.store.batch(self.head);
        batch.allocate(run.start, run.len);
        let extent = ExtentItem::unwritten(run.start, run.len);
        batch.put_extent(Key::extent(object(file), page), &extent, Birth::Now, false);
        self.commit(permit, batch);
    }

    /// The first content for an unwritten page: in its own blocks if they are the head's alone (R25).
    fn write_unwritten(&mut self, file: u64, tally: &mut Tally) {
        let is_unwritten = |item: &ExtentItem| matches!(item.content, ExtentContent::Unwritten { .. });
        let unwritten = self.extents(self.head, file).into_iter().find(|(_, item)| is_unwritten(item));
        let Some((page, item)) = unwritten else { return };
        let content = self.next_content();
        if !self.store.owns(self.head, item.birth).expect("the head is there") {
            return self.write(file, page, 1, Class::Normal, content, tally);
        }
        let Some(permit) = self.admit(Class::Normal, Estimate { bytes: 600, items: 1, images: 0 }) else {
            return;
        };
        self.write_at(Run { start: item.start, len: 1 }, content);
        let written =
            ExtentItem::written(item.start, vec![checksum(&[content; BLOCK_BYTES])]).born(item.birth);
        let mut batch = self.store.batch(self.head);
        batch.put_extent(Key::extent(object(file), page), &written, Birth::Kept, true);
        batch.drop_images(object(file), page, page + 1);
        self.images.remove(&(self.head, file, page));
        self.view().pages.insert((file, page), content);
        self.commit(permit, batch);
        tally.in_place += 1;
        tally.in_clones += u64::from(self.head != MAIN);
    }

    fn image(&mut self, file: u64, page: u64) {
        let Some(permit) = self.admit(Class::Normal, Estimate { bytes: 4300, items: 0, images: 1 }) else {
            return;
        };
        let content = self.next_content();
        let mut batch = self.store.batch(self.head);
        batch.image(object(file), page, &[content; BLOCK_BYTES]);
        self.images.insert((self.head, file, page));
        self.view().pages.insert((file, page), content);
        self.commit(permit, batch);
    }

    fn destage(&mut self, file: u64, page: u64, tally: &mut Tally) {
        if self.images.contains(&(self.head, file, page)) {
            let content = self.view().pages[&(file, page)];
            self.write(file, page, 1, Class::Destage, content, tally);
        }
    }

    /// Items that only give the tree a shape: leaves split, are emptied and merged.
    fn shape(&mut self) {
        let Some(permit) = self.admit(Class::Normal, Estimate { bytes: 12_000, items: 3, images: 0 }) else {
            return;
        };
        let mut batch = self.store.batch(self.head);
        for _ in 0..3 {
            let number = self.random.below(OBJECTS);
            if self.random.one_in(3) {
                batch.delete(shape(number));
                self.view().items.remove(&number);
            } else {
                let value = vec![self.next_content(); 200 + self.random.below(3600) as usize];
                batch.put(shape(number), &value);
                self.view().items.insert(number, value);
            }
        }
        self.commit(permit, batch);
    }

    fn snapshot(&mut self, tally: &mut Tally) {
        if self.state.snapshots.len() >= SNAPSHOTS_MAX {
            return;
        }
        let (is_scheduled, expires) = (self.random.one_in(3), self.random.below(4));
        let stay = Stay { is_scheduled, expires, is_held: false };
        let label = SnapshotLabel { stay, ..self.next_label() };
        for _ in 0..4 {
            match self.store.snapshot(self.head, &label) {
                Ok((tree, lsn)) => {
                    if stay != Stay::default() {
                        self.state.stays.insert(tree, stay);
                    }
                    let view = self.view().clone();
                    self.state.snapshots.insert(tree, view);
                    self.note(lsn);
                    tally.snapshots += 1;
                    tally.inherited += self.images.iter().filter(|(of, ..)| *of == self.head).count() as u64;
                    return;
                }
                Err(StoreError::Pressure(_)) => {
                    self.relieve();
                    self.store.checkpoint().expect("checkpoint");
                }
                Err(StoreError::NoSpace) => return,
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn next_label(&mut self) -> SnapshotLabel {
        self.names += 1;
        let made = Timestamp::default();
        SnapshotLabel {
            name: format!("{}", self.names),
            uuid: [self.names as u8; 16],
            made,
            stay: Default::default(),
        }
    }

    /// Tries what may have to wait for a relief; `None` on a full volume.
    fn relieved<T>(&mut self, mut call: impl FnMut(&Store) -> Result<T, StoreError>) -> Option<T> {
        for _ in 0..6 {
            match call(&self.store) {
                Ok(done) => return Some(done),
                Err(StoreError::Pressure(_)) => {
                    self.relieve();
                    self.store.checkpoint().expect("checkpoint");
                }
                Err(StoreError::NoSpace) => return None,
                Err(other) => panic!("{other}"),
            }
        }
        panic!("pressure that nothing relieves")
    }

    /// A clone of some snapshot that nobody sees yet, with the pages of the snapshot's overlay.
    fn clone_hidden(&mut self, tally: &mut Tally) -> Option<TreeReader> {
        let index = self.random.below(self.state.snapshots.len().max(1) as u64) as usize;
        let (of, view) = self.state.snapshots.iter().nth(index).map(|(of, view)| (*of, view.clone()))?;
        while self.settle_some() {}
        let label = self.next_label();
        let (reader, lsn) = self.relieved(|store| store.clone_tree(of, &label, true))?;
        self.note(lsn);
        let tree = reader.tree();
        self.hidden = Some(tree);
        let head = std::mem::replace(&mut self.head, tree);
        self.state.heads.insert(tree, view.clone());
        for item in self.store.overlay(of).expect("overlay") {
            let file = item.object.0 - 100;
            let content = view.pages[&(file, item.page)];
            let before = self.store.last_lsn();
            self.write(file, item.page, 1, Class::Normal, content, tally);
            tally.copied += 1;
            if self.store.last_lsn() == before {
                // A full volume: the clone is given up.
                (self.head, self.hidden) = (head, None);
                self.state.heads.remove(&tree);
                return None;
            }
        }
        self.head = head;
        Some(reader)
    }

    fn clone(&mut self, tally: &mut Tally) {
        if self.state.heads.len() >= HEADS_MAX {
            return;
        }
        let Some(reader) = self.clone_hidden(tally) else { return };
        let label = self.next_label();
        let shown = self.relieved(|store| store.show_head(&reader, &label.name));
        self.hidden = None;
        match shown {
            Some(lsn) => {
                self.note(lsn);
                tally.clones += 1;
            }
            None => drop(self.state.heads.remove(&reader.tree())),
        }
    }

    /// A snapshot takes the place of the head, whose state is kept or not.
    fn roll_back(&mut self, tally: &mut Tally) {
        let keeps = self.random.one_in(2) && self.state.snapshots.len() < SNAPSHOTS_MAX;
        let old = self.head;
        let Some(reader) = self.clone_hidden(tally) else { return };
        let keep = keeps.then(|| self.next_label());
        if keeps {
            self.relieve();
        }
        let rolled = self.relieved(|store| store.replace_head(old, &reader, keep.as_ref()));
        self.hidden = None;
        let Some(lsn) = rolled else {
            self.state.heads.remove(&reader.tree());
            return;
        };
        let view = self.state.heads.remove(&old).expect("it was there");
        self.images.retain(|(of, ..)| *of != old);
        if let Some(label) = keep {
            let trees = self.store.trees();
            let kept = trees.iter().find(|(_, item)| item.name == label.name).expect("it is kept").0;
            self.state.snapshots.insert(*kept, view);
            tally.kept += 1;
        }
        self.head = reader.tree();
        self.note(lsn);
        tally.rolled_back += 1;
    }

    fn delete_head(&mut self, tally: &mut Tally) {
        let default = self.store.default_head();
        let others: Vec<TreeId> = self.state.heads.keys().copied().filter(|tree| *tree != default).collect();
        if others.is_empty() {
            return;
        }
        let tree = others[self.random.below(others.len() as u64) as usize];
        let Some(lsn) = self.relieved(|store| store.delete_tree(tree)) else { return };
        self.state.heads.remove(&tree);
        self.images.retain(|(of, ..)| *of != tree);
        self.head = default;
        self.note(lsn);
        tally.heads_deleted += 1;
    }

    fn delete(&mut self, tally: &mut Tally) {
        let index = self.random.below(self.state.snapshots.len().max(1) as u64) as usize;
        // The head goes on changing beside the deletion of the newest.
        let newest = self.random.one_in(2).then(|| self.state.snapshots.keys().next_back()).flatten();
        let Some(tree) = newest.or_else(|| self.state.snapshots.keys().nth(index)).copied() else { return };
        for _ in 0..4 {
            match self.store.delete_tree(tree) {
                Ok(lsn) => {
                    self.state.snapshots.remove(&tree);
                    self.state.stays.remove(&tree);
                    self.note(lsn);
                    tally.deleted += 1;
                    return;
                }
                Err(StoreError::Pressure(_)) => {
                    self.relieve();
                    self.store.checkpoint().expect("checkpoint");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// The schedule is changed, or deletes something: only what is its, or has expired, and nothing that several trees
    /// descend from.
    fn follow_schedule(&mut self, tally: &mut Tally) {
        if self.random.one_in(3) {
            let hourly = self.random.below(3) as u16;
            let schedule = (hourly > 0).then(|| Schedule { hourly, ..Schedule::default() });
            let Some(lsn) = self.relieved(|store| store.set_schedule(schedule.as_ref())) else { return };
            if self.state.schedule != schedule {
                tally.schedules += 1;
                self.state.schedule = schedule;
                self.note(lsn);
            }
            return;
        }
        let index = self.random.below(self.state.snapshots.len().max(1) as u64) as usize;
        let Some(tree) = self.state.snapshots.keys().nth(index).copied() else { return };
        let (is_scheduled, now) = (self.random.one_in(2), self.random.below(4));
        let trees = self.store.trees();
        let children = trees.values().filter(|item| item.parent == Some(tree)).count();
        let Some(lsn) = self.relieved(|store| store.delete_due(tree, is_scheduled, now)) else { return };
        let stay = self.state.stays.get(&tree).copied().unwrap_or_default();
        let is_due = is_scheduled && stay.is_scheduled || (1..=now).contains(&stay.expires);
        let is_gone = !snapshots(&self.store.trees()).any(|there| there == tree);
        assert_eq!(is_gone, is_due && children < 2, "{tree}: {stay:?}, at {now}, {children} descend from it");
        tally.spared += u64::from(is_due && children > 1);
        if is_gone {
            self.state.snapshots.remove(&tree);
            self.state.stays.remove(&tree);
            self.note(lsn);
            tally.expired += 1;
        }
    }

    /// One step of a deletion; returns whether there was any.
    fn reap(&mut self, tally: &mut Tally) -> bool {
        let before = self.store.last_lsn();
        let was = self.store.trees().len();
        match self.store.reap(1) {
            Ok(reaped) => {
                let now = self.store.last_lsn();
                if now > before {
                    self.note(now);
                }
                tally.reaped += u64::from(reaped);
                tally.gone += (was - self.store.trees().len()) as u64;
                reaped
            }
            Err(StoreError::Pressure(_)) => {
                self.store.checkpoint().expect("checkpoint");
                true
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn step(&mut self, tally: &mut Tally) {
        let (file, page) = (self.random.below(OBJECTS), self.random.below(PAGES));
        let pages = 1 + self.random.below(4.min(PAGES - page));
        let heads: Vec<TreeId> = self.state.heads.keys().copied().collect();
        if self.random.one_in(4) {
            self.head = heads[self.random.below(heads.len() as u64) as usize];
        }
        match self.random.below(114) {
            110..114 => self.follow_schedule(tally),
            107..110 => self.compare(tally),
            106 => self.usage(tally),
            100..103 => self.clone(tally),
            103 => self.roll_back(tally),
            104..106 => self.delete_head(tally),
            0..18 => {
                let content = self.next_content();
                self.write(file, page, pages, Class::Normal, content, tally);
            }
            18..25 => self.punch(file, page, page + pages, tally),
            25..31 => self.allocate(file, page),
            31..38 => self.write_unwritten(file, tally),
            38..52 => self.image(file % 4, page),
            52..58 => self.destage(file % 4, page, tally),
            58..68 => self.shape(),
            68..71 => self.snapshot(tally),
            71..74 => self.delete(tally),
            74..79 => tally.settled += u64::from(self.settle_some()),
            79..82 => self.store.checkpoint().expect("checkpoint"),
            82..84 => self.judge(tally),
            84..94 => drop(self.reap(tally)),
            _ => {
                let lsn = self.store.last_lsn();
                self.store.force(lsn).expect("force");
                self.durable = lsn;
            }
        }
    }

    /// What differs between two trees, whichever they are, is told as reading both tells it.
    fn compare(&mut self, tally: &mut Tally) {
        let trees = self.store.trees();
        let shown: Vec<TreeId> = snapshots(&trees).chain(heads(&trees)).collect();
        let [one, other] = [(); 2].map(|()| shown[self.random.below(shown.len() as u64) as usize]);
        tally.compared += u64::from(compare(&self.store, one, other) > 0);
    }

    /// What snapshots have alone together is what their deletion gives back, on a copy of the device; deletions that
    /// are under way end there before.
    fn usage(&mut self, tally: &mut Tally) {
        let mut chosen: BTreeSet<TreeId> = self.state.snapshots.keys().copied().collect();
        let most = self.random.below(4);
        chosen.retain(|_| most == 3 || self.random.below(3) <= most);
        self.relieve();
        self.store.checkpoint().expect("checkpoint");
        let told = self.relieved(|store| store.usage(&chosen)).expect("nothing is written");
        let each: Vec<u64> = chosen
            .iter()
            .map(|tree| self.store.usage(&BTreeSet::from([*tree])).expect("it is on the device"))
            .collect();
        let alone = each.iter().sum::<u64>();
        assert!(alone <= told, "together {told}, alone {each:?}");
        tally.usages += u64::from(told > 0);
        tally.shared_usages += u64::from(alone < told);
        tally.usages_beside_deletions += u64::from(told > 0 && self.store.is_reaping());
        let device = self.device.crash(&mut self.random);
        let store = recover(&device, self.random.next(), &mut Tally::default());
        let held = || {
            while relieve(&store, |store| store.reap(32)) {}
            (0..2).for_each(|_| store.checkpoint().expect("checkpoint"));
            Volume::read(&*device).held()
        };
        let before = held();
        for tree in &chosen {
            relieve(&store, |store| store.delete_tree(*tree));
        }
        assert_eq!(before - held(), told, "of {chosen:?}, alone {each:?}");
    }

    /// Everything is on the device, and all that is free can be used again.
    fn judge(&mut self, tally: &mut Tally) {
        self.store.checkpoint().expect("checkpoint");
        // What the first one froze is released; what it replaced of the trees' own is in the second one's bitmaps.
        let volume = Volume::read(&*self.device);
        volume.judge(&*self.device, "at work");
        checked(&*self.device, "at work");
        assert_eq!(snapshots(&volume.infos).count(), self.state.snapshots.len());
        tally.judged += 1;
    }

    /// What the store shows of all trees.
    fn shown(&mut self) -> State {
        while self.settle_some() {}
        let snapshots: Vec<TreeId> = snapshots(&self.store.trees()).collect();
        let shown = heads(&self.store.trees()).collect::<Vec<TreeId>>();
        let mut heads: BTreeMap<_, _> = shown.iter().map(|tree| (*tree, view(&self.store, *tree))).collect();
        for (tree, file, page) in &self.images {
            let content = self.state.heads[tree].pages[&(*file, *page)];
            heads.get_mut(tree).expect("a head").pages.insert((*file, *page), content);
        }
        let trees = self.store.trees();
        let stays = snapshots.iter().map(|tree| (*tree, trees[tree].stay));
        State {
            heads,
            stays: stays.filter(|(_, stay)| *stay != Stay::default()).collect(),
            schedule: self.store.schedule().map(|schedule| Schedule::clone(&schedule)),
            snapshots: snapshots.iter().copied().map(|tree| (tree, view(&self.store, tree))).collect(),
        }
    }

    /// The power goes off. Returns the walk on what is left, after it was held against what may be left.
    fn crash(mut self, tally: &mut Tally) -> Walk {
        let durable = self.durable;
        let mut device = self.device.crash(&mut self.random);
        checked(&*device, "behind a crash");
        if self.random.one_in(3) {
            device.power_off_after(self.random.below(20));
            drop(recover(&device, self.random.next(), &mut Tally::default()));
            device = device.crash(&mut self.random);
            checked(&*device, "behind a crash of recovery");
        }
        let checkpoint = Volume::read(&*device).superblock;
        let store = recover(&device, self.random.next(), tally);
        tally.recoveries += 1;
        let known = |state: &State| state.snapshots.len();
        let history = std::mem::take(&mut self.history);
        let mut walk = Walk {
            history: BTreeMap::new(),
            durable: store.last_lsn(),
            images: BTreeSet::new(),
            state: State::default(),
            head: store.default_head(),
            hidden: None,
            device,
            store,
            ..self
        };
        let shown = walk.shown();
        let found = history.iter().find(|(lsn, state)| **lsn >= durable && **state == shown);
        let Some((lsn, _)) = found else {
            let last = history.values().next_back().expect("a state");
            panic!(
                "after the crash the volume is no state from batch {durable} on: {}",
                difference(last, &shown)
            )
        };
        let at_checkpoint = history.get(&checkpoint.checkpoint_lsn);
        if at_checkpoint.is_some_and(|state| known(state) < known(&shown)) {
            tally.made_by_replay += 1;
        }
        if at_checkpoint.is_some_and(|state| known(state) > 0) && *lsn > checkpoint.checkpoint_lsn {
            tally.images_only += 1;
        }
        Volume::read(&*walk.device).judge(&*walk.device, "after recovery");
        checked(&*walk.device, "after recovery");
        walk.state = shown;
        walk.history.insert(walk.store.last_lsn(), walk.state.clone());
        walk
    }
}

fn relieve<T>(store: &Store, call: impl Fn(&Store) -> Result<T, StoreError>) -> T {
    loop {
        match call(store) {
            Err(StoreError::Pressure(_)) => store.checkpoint().expect("checkpoint"),
            done => return done.expect("the store does it"),
        }
    }
}

/// Those that people see.
fn snapshots(trees: &BTreeMap<TreeId, TreeItem>) -> impl Iterator<Item = TreeId> {
    let is_seen = |item: &TreeItem| item.role == Role::Snapshot && !item.name.is_empty();
    trees.iter().filter(move |(_, item)| is_seen(item)).map(|(tree, _)| *tree)
}

fn heads(trees: &BTreeMap<TreeId, TreeItem>) -> impl Iterator<Item = TreeId> {
    let is_seen = |item: &TreeItem| item.role == Role::Head && !item.name.is_empty();
    trees.iter().filter(move |(_, item)| is_seen(item)).map(|(tree, _)| *tree)
}

fn difference(wanted: &State, shown: &State) -> String {
    let view = |wanted: &View, shown: &View| {
        let pages: Vec<_> =
            wanted.pages.iter().filter(|(at, byte)| shown.pages.get(at) != Some(byte)).collect();
        let more: Vec<_> = shown.pages.iter().filter(|(at, _)| !wanted.pages.contains_key(at)).collect();
        format!("missing pages {pages:?}, others {more:?}, items alike: {}", wanted.items == shown.items)
    };
    let mut told = String::new();
    let empty = View::default();
    for (tree, wanted) in &wanted.heads {
        told += &format!("head {tree}: {}\n", view(wanted, shown.heads.get(tree).unwrap_or(&empty)));
    }
    for (tree, wanted) in &wanted.snapshots {
        told += &format!("tree {tree}: {}\n", view(wanted, shown.snapshots.get(tree).unwrap_or(&empty)));
    }
    told
}

/// Opens the volume as a filesystem would: the head's images become extents.
fn recover(device: &Arc<CrashDevice>, epoch: u64, tally: &mut Tally) -> Arc<Store> {
    let mut recovery = Store::open(device.clone(), options(epoch)).expect("recovery");
    let all = recovery.summary().images;
    let images = recovery.take_images();
    tally.settled_by_recovery += all - images.len() as u64;
    let store = Arc::clone(recovery.store());
    let pages = recovery.read_images(&images).expect("images are in the ring");
    for (image, page) in images.iter().zip(pages) {
        assert!(store.is_head(image.tree), "those of snapshots are the store's");
        let mut blocks = store.reserve(1).expect("space for images");
        let run = store.allocate(&mut blocks, 1, None);
        let extent = ExtentItem::written(run.start, vec![checksum(&page)]);
        store.device().write(run.start, vec![Arc::new(page)]).expect("write");
        let mut batch = store.batch(image.tree);
        let mut puts = Vec::new();
        for (first, item) in extents(&store, image.tree, image.object.0 - 100) {
            let end = first + u64::from(item.pages());
            if !(first..end).contains(&image.page) {
                continue;
            }
            let (left, right) = ((image.page - first) as u32, (end - image.page - 1) as u32);
            if left == 0 {
                batch.delete(Key::extent(image.object, first));
            } else {
                puts.push((first, item.slice(0, left)));
            }
            if right > 0 {
                puts.push((image.page + 1, item.slice(left + 1, right)));
            }
            batch.release(
                Key::extent(image.object, image.page),
                item.block_of(u64::from(left)),
                1,
                item.birth,
            );
        }
        for (page, item) in puts {
            batch.put_extent(Key::extent(image.object, page), &item, Birth::Kept, false);
        }
        batch.put_fresh_extent(Key::extent(image.object, image.page), &extent);
        batch.allocate(run.start, 1);
        batch.drop_images(image.object, image.page, image.page + 1);
        let estimate = Estimate { bytes: batch.bytes(), items: 4, images: 0 };
        let permit = store.admit(Class::Destage, estimate).expect("recovery admits everything");
        store.commit(permit, batch).expect("commit");
    }
    recovery.finish().expect("finish")
}

fn walk(seed: u64, tally: &mut Tally) {
    let mut walk = Walk::new(seed);
    for _ in 0..5 {
        for _ in 0..40 + walk.random.below(160) {
            walk.step(tally);
        }
        if walk.random.one_in(2) {
            let shown = walk.shown();
            assert_eq!(shown, walk.state, "{}", difference(&walk.state, &shown));
        } else {
            // A snapshot of the last moment, which only the log has.
            walk.snapshot(tally);
            (0..2).for_each(|file| walk.image(file, 1));
            if walk.random.one_in(2) {
                walk.clone(tally);
            }
            walk.store.force(walk.store.last_lsn()).expect("force");
            walk.durable = walk.store.last_lsn();
        }
        walk = walk.crash(tally);
    }
    // In the end all snapshots can be deleted, and nothing is left of them.
    while !walk.state.snapshots.is_empty() {
        walk.delete(tally);
    }
    while walk.state.heads.len() > 1 {
        walk.delete_head(tally);
    }
    while walk.reap(tally) {}
    assert_eq!(walk.store.trees().len(), 1);
    walk.judge(tally);
}

// Shows: R22, R23, R24, R25, R26, R28.
#[test]
fn every_crash_leaves_each_snapshot_as_it_was_made_and_what_is_reachable_in_use() {
    let seeds = std::env::var("SYNCLINE_CRASH_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    let mut tally = Tally::default();
    for seed in 1..=seeds {
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| walk(seed, &mut tally)));
        assert!(told.is_ok(), "seed {seed}");
    }
    println!("{tally:?}");
    let Tally { snapshots, inherited, settled, settled_by_recovery, in_place, left, .. } = tally;
    for (what, count) in [
        ("snapshots made", snapshots),
        ("images inherited", inherited),
        ("images settled", settled),
        ("images settled by recovery", settled_by_recovery),
        ("pages written in place", in_place),
        ("releases left to a snapshot", left),
        ("snapshots made by replay", tally.made_by_replay),
        ("recoveries behind a checkpoint with snapshots", tally.images_only),
        ("looks at what is reachable", tally.judged),
        ("recoveries", tally.recoveries),
        ("snapshots deleted", tally.deleted),
        ("steps of deletions", tally.reaped),
        ("snapshots of which nothing is left", tally.gone),
        ("clones made", tally.clones),
        ("pages of overlays copied", tally.copied),
        ("pages of clones written in place", tally.in_clones),
        ("clones deleted", tally.heads_deleted),
        ("heads rolled back", tally.rolled_back),
        ("states kept by that", tally.kept),
        ("trees compared that differ", tally.compared),
        ("usages of snapshots", tally.usages),
        ("usages of what several have", tally.shared_usages),
        ("usages beside deletions", tally.usages_beside_deletions),
        ("schedules that were set and ended", tally.schedules),
        ("snapshots whose time had come", tally.expired),
        ("snapshots that others descend from", tally.spared),
    ] {
        assert!(count > seeds / 4, "{what}: {count}");
    }
}
