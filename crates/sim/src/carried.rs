//! Page images that recovery carries: the leaf that names the blocks of a file cannot be read, and the journal holds
//! images of its pages. Recovery cannot bring them home, and begins the new epoch's log with them.
//!
//! A run has three sessions. The first one acknowledges everything, and ends by a cut. Leaves rot: before it, or behind
//! the cut. The second one begins with the recovery that carries. Others sync, up to several times the ring, so that
//! the log goes over what the old epoch has left, and the session ends by a cut or a close. The third one carries once
//! more, and then its leaves can be read again while it runs.
//!
//! The volume is judged at every write of both sessions, the recovery's own among them: it is cut there, and
//!
//! - with the leaves readable again it holds what the oracle allows;
//! - with the leaves still rotten, reads answer that, or that they fail; those of undamaged files never fail;
//! - what that recovery leaves holds the same when the leaves can be read again: the images were carried. The same
//!   holds when that recovery is cut at any of its own writes, with another recovery behind it that carries as well.
//!
//! A volume may be refused if the journal changes a leaf that cannot be read: one that holds an inode, or extents of
//! images that went home before the cut, because there were many.

use crate::bitmaps::superblock;
use crate::crash::{Builder, Effort, Lie, durable, states};
use crate::device::{Disk, Rot, SimDevice};
use crate::driver::{self, SimClock, Told, step};
use crate::lab::{Start, Tally, complaints, guarded, recover};
use crate::operation::Op;
use crate::oracle::{Kind, Model, PAGE, View, difference};
use crate::random::{Random, derive};
use crate::view;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::layout::JOURNAL_START;
use syncline_format::{BLOCK_BYTES, Key, Kind as KeyKind, NODE_BLOCKS, node};
use syncline_fs::{Context, Error, Fs, ObjectNo, OpenFlags};

mod shape;

pub use shape::COUNT;
use shape::{
    After, BLOCKS, Behind, EXTENTS, JOURNAL_BLOCKS, Shape, What, When, operations, shape, spread, start,
};

const EIO: i32 = 5;
/// So many stay in the journal until the cut.
const FEW_IMAGES: u64 = 3;

/// How thorough a run is.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// At most so many crash states of the recovery that carries, and of the session behind it.
    pub recovery_states_max: usize,
    pub session_states_max: usize,
    /// One of so many recoveries is cut at its own writes, at so many states.
    pub again_every: u64,
    pub again_states_max: usize,
}

impl Depth {
    pub const SAMPLED: Depth =
        Depth { recovery_states_max: 20, session_states_max: 5, again_every: 8, again_states_max: 8 };
    pub const FULL: Depth = Depth {
        recovery_states_max: usize::MAX,
        session_states_max: 60,
        again_every: 8,
        again_states_max: 40,
    };
}

/// The file of a name in the root.
fn number_of(view: &View, name: &str) -> u64 {
    match &view.names[&ObjectNo::ROOT_DIR.0].kind {
        Kind::Directory(children) => children[name],
        _ => unreachable!("the root is a directory"),
    }
}

/// The leaves that are stored, current or not: the first block of each, and its keys.
fn leaves(disk: &Disk) -> Vec<(u64, Vec<Key>)> {
    let behind_journal = 16 + JOURNAL_BLOCKS..BLOCKS - 2 - NODE_BLOCKS as u64;
    let leaf = |at: u64| {
        let mut bytes = Vec::new();
        for block in at..at + NODE_BLOCKS as u64 {
            bytes.extend_from_slice(disk.get(block).map_or(&[0; BLOCK_BYTES], |page| &page[..]));
        }
        let head = node::head(&bytes);
        let is_leaf = bytes[..4] == *b"SLND" && head.header.block.get() == at && head.level.get() == 0;
        is_leaf.then(|| (at, (0..head.count.get()).map(|slot| node::slot_key(&bytes, slot.into())).collect()))
    };
    behind_journal.filter_map(leaf).collect()
}

/// What has rotten.
struct Rotten {
    /// Bears the rot.
    device: Arc<SimDevice>,
    /// Files with something in it.
    files: BTreeSet<u64>,
    /// The journal may change it: it holds an inode, or many images, of which a full ring brings some home.
    may_be_changed: bool,
}

impl Rotten {
    /// Lets leaves of the first files rot.
    fn new(disk: Disk, shape: &Shape, kind: Rot) -> Result<Rotten, String> {
        let view = &start().view;
        let (all, device) = (leaves(&disk), SimDevice::new(disk, 3));
        let mut rotten = Rotten {
            device,
            files: BTreeSet::new(),
            may_be_changed: shape.what == What::Inode || shape.images > FEW_IMAGES,
        };
        for file in 0..shape.files {
            let number = ObjectNo(number_of(view, &spread(file)));
            let is_extent = |key: &Key| key.object == number && key.kind == KeyKind::Extent;
            let first_image = Key::extent(number, EXTENTS + 1);
            let is_chosen = |keys: &Vec<Key>| match shape.what {
                What::Inode => {
                    keys.contains(&Key::inode(number)) && !keys.iter().any(|key| key.object.0 <= 1)
                }
                What::OneLeaf => keys.iter().all(is_extent) && keys.contains(&first_image),
                What::Extents => !keys.is_empty() && keys.iter().all(is_extent),
            };
            for (block, keys) in all.iter().filter(|(_, keys)| is_chosen(keys)) {
                rotten.device.rot(*block, kind);
                rotten.files.extend(keys.iter().map(|key| key.object.0));
            }
        }
        match rotten.files.is_empty() {
            true => Err("no leaf of the volume is fit to rot".to_owned()),
            false => Ok(rotten),
        }
    }

    /// A device with the rot, and one without it.
    fn on(&self, disk: Disk, seed: u64) -> Arc<SimDevice> {
        let device = SimDevice::new(disk, seed);
        device.rot_as(&self.device);
        device
    }

    fn mended(&self, disk: Disk, seed: u64) -> Arc<SimDevice> {
        let device = self.on(disk, seed);
        device.heal();
        device
    }

    /// What the volume holds, all of it readable again.
    fn held(&self, disk: Disk, seed: u64) -> Result<View, String> {
        recover(&self.mended(disk, seed), seed).map_err(|what| format!("readable again: {what}"))
    }
}

/// One run, from a number below [`COUNT`].
pub fn run(number: u64, seed: u64, depth: Depth) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let shape = shape(number);
        let run = Run { shape, seed, depth, tally, random: Random::new(derive(seed, 1)) };
        if let Err((tally, what)) = run.all() {
            tally.violation(format!("{shape:?}: {what}"));
        }
    })
}

struct Run<'a> {
    shape: Shape,
    seed: u64,
    depth: Depth,
    tally: &'a mut Tally,
    random: Random,
}

impl<'a> Run<'a> {
    fn all(mut self) -> Result<(), (&'a mut Tally, String)> {
        let done = self.sessions();
        done.map_err(|what| (self.tally, what))
    }

    fn sessions(&mut self) -> Result<(), String> {
        let (before, kind) = match self.shape.when {
            When::UnreadableBehindTheCut => (false, Rot::Unreadable),
            When::FlippedBehindTheCut => (false, Rot::Flipped(derive(self.seed, 2))),
            When::UnreadableBefore => (true, Rot::Unreadable),
        };
        let shape = self.shape;
        let rotten = before.then(|| Rotten::new(start().disk.clone(), &shape, kind)).transpose()?;
        let (disk, model) = self.first(rotten.as_ref())?;
        let rotten = match rotten {
            Some(rotten) => rotten,
            None => Rotten::new(disk.clone(), &shape, kind)?,
        };
        // Its bits are those of the rot.
        let disk = if before { disk } else { rotten.device.settled() };
        let held = rotten.held(disk.clone(), derive(self.seed, 4))?;
        model.judge(&held, model.syncs()).map_err(|violation| format!("before anything: {violation:?}"))?;
        let Some(end) = self.second(&rotten, disk, &held)? else {
            self.tally.refused += 1;
            return Ok(());
        };
        self.third(&rotten, end)
    }

    /// Images of the files to be damaged, all acknowledged. Returns what a cut leaves.
    fn first(&mut self, rotten: Option<&Rotten>) -> Result<(Disk, Model), String> {
        let Start { disk, view, .. } = start();
        let device = match rotten {
            Some(rotten) => rotten.on(disk.clone(), derive(self.seed, 5)),
            None => SimDevice::new(disk.clone(), derive(self.seed, 5)),
        };
        let mut text = Shape::others(self.shape.turn, 0);
        if self.shape.turn > 0 {
            text += "checkpoint;";
        }
        text += &self.shape.images(0);
        text += match self.shape.after {
            After::Nothing => "",
            After::Checkpoint | After::CheckpointAndSyncs => "checkpoint;",
        };
        if self.shape.after == After::CheckpointAndSyncs {
            text += &Shape::others(4, 100);
        }
        let clock = SimClock::behind(view);
        let fs = open(&device, &clock, derive(self.seed, 6)).map_err(|error| error.to_string())?;
        let mut model = Model::new(view);
        let none = BTreeSet::new();
        let damaged = rotten.map_or(&none, |rotten| &rotten.files);
        self.work(&fs, &clock, &device, &mut model, &text, damaged)?;
        fs.shut_down();
        Ok((durable(&device), model))
    }

    /// The recovery that carries, others at work behind it, and every cut. Returns what the end of it leaves; `None` if
    /// the volume is refused.
    fn second(&mut self, rotten: &Rotten, disk: Disk, held: &View) -> Result<Option<(Disk, Model)>, String> {
        let device = rotten.on(disk.clone(), derive(self.seed, 7));
        let clock = SimClock::behind(held);
        let fs = match open(&device, &clock, derive(self.seed, 8)) {
            Ok(fs) => fs,
            Err(error) if may_refuse(rotten, &error) => {
                let left = rotten.held(device.settled(), 1)?;
                return same(held, &left, "a refused open has changed the volume").map(|()| None);
            }
            Err(error) => return Err(format!("recovery refuses the volume: {error}")),
        };
        let kept = fs.stats().set_aside.pages;
        self.tally.carried += kept;
        // A checkpoint brings home more than a few, and so does a ring that is nearly full.
        let must_carry = self.shape.what == What::Extents && self.shape.images <= FEW_IMAGES;
        if kept == 0 && must_carry {
            return Err("recovery has nothing to carry".to_owned());
        }
        shows(&fs, held, &rotten.files)?;
        let opened = device.position();
        let mut model = Model::new(held);
        let text = match self.shape.behind {
            Behind::Nothing => String::new(),
            Behind::Syncs => Shape::others(6, 200),
            Behind::Laps => Shape::others(80, 200),
            Behind::Images => {
                self.shape.images(50) + &Shape::others(3, 200) + "checkpoint;" + &Shape::others(3, 220)
            }
        };
        self.work(&fs, &clock, &device, &mut model, &text, &rotten.files)?;
        shows(&fs, &model.live(), &rotten.files)?;
        if self.shape.behind == Behind::Laps {
            told(fs.close(), rotten)?;
        } else {
            fs.shut_down();
        }
        drop(fs);
        self.cuts(rotten, &device, (opened, held), &model)?;
        Ok(Some((durable(&device), model)))
    }

    /// Cuts what the device has recorded. Up to event `opened` that was recovery: the volume is what it was before.
    fn cuts(
        &mut self,
        rotten: &Rotten,
        device: &SimDevice,
        (opened, before): (usize, &View),
        model: &Model,
    ) -> Result<(), String> {
        let (base, trace) = device.recorded();
        let effort = Effort { subsets: 1, torn: 1 };
        let all = states(&trace, 0, effort, Lie::None, &mut self.random);
        let (mut recovery, mut session): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|state| state.event <= opened);
        thin(&mut recovery, self.depth.recovery_states_max, &mut self.random);
        thin(&mut session, self.depth.session_states_max, &mut self.random);
        let mut builder = Builder::new(base, &trace, Lie::None);
        for state in recovery.iter().chain(&session) {
            let disk = builder.build(state);
            self.tally.states += 1;
            self.tally.recovery_states += u64::from(state.event <= opened);
            let judged = rotten.held(disk.clone(), derive(self.seed, 9)).and_then(|held| {
                if state.event <= opened {
                    same(before, &held, "recovery was cut")?;
                } else {
                    let judged = model.judge(&held, state.acknowledged);
                    judged.map_err(|wrong| format!("{} syncs: {wrong:?}", state.acknowledged))?;
                }
                let deep = self.random.one_in(self.depth.again_every);
                self.carries(rotten, disk, &held, deep)
            });
            judged.map_err(|what| {
                format!(
                    "{what} [crash behind event {} of {opened} with survivors {:?}]",
                    state.event, state.survivors
                )
            })?;
        }
        Ok(())
    }

    /// A recovery with the rot shows what the volume holds, or errors, and leaves it there. `deep`: wherever it is cut.
    fn carries(&mut self, rotten: &Rotten, disk: Disk, held: &View, deep: bool) -> Result<(), String> {
        let Some(device) = self.carry(rotten, disk, held)? else { return Ok(()) };
        if !deep {
            return Ok(());
        }
        self.misses_records(rotten, &device, held)?;
        let (base, trace) = device.recorded();
        let effort = Effort { subsets: 1, torn: 1 };
        let mut all = states(&trace, 0, effort, Lie::None, &mut self.random);
        thin(&mut all, self.depth.again_states_max, &mut self.random);
        let mut builder = Builder::new(base, &trace, Lie::None);
        for state in &all {
            let disk = builder.build(state);
            self.tally.states += 1;
            self.tally.recovery_states += 1;
            let done = rotten
                .held(disk.clone(), derive(self.seed, 10))
                .and_then(|again| same(held, &again, "a second recovery was cut"))
                .and_then(|()| self.carry(rotten, disk, held).map(drop));
            done.map_err(|what| {
                format!(
                    "{what} [recovery cut behind event {} with survivors {:?}]",
                    state.event, state.survivors
                )
            })?;
        }
        Ok(())
    }

    /// Records of the images that were carried rot: the volume is refused, or shows them all the same.
    fn misses_records(&mut self, rotten: &Rotten, device: &SimDevice, held: &View) -> Result<(), String> {
        let disk = durable(device);
        let tail = superblock(&disk).tail.block;
        for block in [tail, tail + 2, tail + 9].map(|block| block % JOURNAL_BLOCKS) {
            let mut lost = disk.clone();
            lost.flip(JOURNAL_START.0 + block, 20_000);
            self.tally.states += 1;
            match rotten.held(lost, derive(self.seed, 18)) {
                Ok(again) => same(held, &again, &format!("block {block} of the ring has rotten"))?,
                Err(_) => self.tally.refused += 1,
            }
        }
        Ok(())
    }

    /// One recovery with the rot. Returns its device; `None` if the volume is refused.
    fn carry(&mut self, rotten: &Rotten, disk: Disk, held: &View) -> Result<Option<Arc<SimDevice>>, String> {
        let device = rotten.on(disk, derive(self.seed, 11));
        let clock = SimClock::behind(held);
        match open(&device, &clock, derive(self.seed, 12)) {
            Ok(fs) => {
                shows(&fs, held, &rotten.files)?;
                self.tally.carried += fs.stats().set_aside.pages;
                fs.shut_down();
            }
            Err(error) if may_refuse(rotten, &error) => {
                self.tally.refused += 1;
                return Ok(None);
            }
            Err(error) => return Err(format!("the next recovery refuses the volume: {error}")),
        }
        let again = rotten.held(durable(&device), derive(self.seed, 13))?;
        same(held, &again, "the next recovery has carried")?;
        Ok(Some(device))
    }

    /// Recovery with the rot once more; then the leaves can be read again while the session runs.
    fn third(&mut self, rotten: &Rotten, (disk, model): (Disk, Model)) -> Result<(), String> {
        let held = rotten.held(disk.clone(), derive(self.seed, 14))?;
        model.judge(&held, model.syncs()).map_err(|wrong| format!("behind the session: {wrong:?}"))?;
        let device = rotten.on(disk, derive(self.seed, 15));
        let clock = SimClock::behind(&held);
        let fs = match open(&device, &clock, derive(self.seed, 16)) {
            Ok(fs) => fs,
            Err(error) if may_refuse(rotten, &error) => {
                self.tally.refused += 1;
                return Ok(());
            }
            Err(error) => return Err(format!("the third session is refused: {error}")),
        };
        shows(&fs, &held, &rotten.files)?;
        device.heal();
        // Images of an inode that could not be read are claimed by the first one who asks for it.
        shows(&fs, &held, &BTreeSet::new())?;
        fs.sync_all().map_err(|error| format!("a sync with all readable again: {error}"))?;
        if fs.stats().set_aside != Default::default() {
            return Err(format!("set aside with all readable again: {:?}", fs.stats().set_aside));
        }
        fs.close().map_err(|error| format!("a close with all readable again: {error}"))?;
        drop(fs);
        self.tally.checks += 1;
        if let Some(complaint) = complaints(&*SimDevice::new(device.settled(), 0)).first() {
            return Err(format!("check: {complaint}"));
        }
        let home = recover(&SimDevice::new(device.settled(), 1), derive(self.seed, 17))?;
        same(&held, &home, "everything went home")
    }

    /// Carries operations out. Only those on damaged files may fail, and what concerns all files.
    fn work(
        &mut self,
        fs: &Arc<Fs>,
        clock: &SimClock,
        device: &SimDevice,
        model: &mut Model,
        text: &str,
        damaged: &BTreeSet<u64>,
    ) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        for op in operations(text) {
            let concerns_damage = match &op {
                Op::Write { path, .. } | Op::Fsync(path) => damaged.contains(&number_of(&start().view, path)),
                _ => op == Op::Checkpoint && !damaged.is_empty(),
            };
            match step(fs, clock, model, &op) {
                Ok(told @ Told::Failed(EIO)) if concerns_damage => self.tally.count(&op, told),
                Ok(Told::Done) => self.tally.count(&op, Told::Done),
                other => return Err(format!("{op} answers {other:?} ({:?})", fs.failure())),
            }
            device.acknowledge(model.syncs());
        }
        Ok(())
    }
}

fn open(device: &Arc<SimDevice>, clock: &Arc<SimClock>, seed: u64) -> Result<Arc<Fs>, Error> {
    driver::open(Arc::clone(device) as Arc<dyn Device>, clock, seed)
}

/// Leaves at most so many.
fn thin<T>(all: &mut Vec<T>, most: usize, random: &mut Random) {
    while all.len() > most {
        let place = random.below(all.len() as u64) as usize;
        all.remove(place);
    }
}

/// A volume whose journal changes a leaf that cannot be read does not open for writing.
fn may_refuse(rotten: &Rotten, error: &Error) -> bool {
    let changes_it = error.to_string().contains("the journal changes a tree node that cannot be read");
    rotten.may_be_changed && changes_it && error.errno() == EIO
}

/// What concerns all files may tell of damaged ones only.
fn told(result: Result<(), Error>, rotten: &Rotten) -> Result<(), String> {
    match result {
        Err(Error::SetAside { object, .. }) if rotten.files.contains(&object.0) => Ok(()),
        Err(error) => Err(format!("a close: {error}")),
        Ok(()) => Ok(()),
    }
}

fn same(want: &View, got: &View, what: &str) -> Result<(), String> {
    match want == got {
        true => Ok(()),
        false => Err(format!("{what}, and the volume differs: {}", difference(want, got))),
    }
}

/// Each page of each file is what it should be, or, if the file is damaged, cannot be read.
fn shows(fs: &Fs, want: &View, damaged: &BTreeSet<u64>) -> Result<(), String> {
    let mut unreadable: BTreeMap<u64, u64> = BTreeMap::new();
    for (file, content) in &want.contents {
        let is_damaged = damaged.contains(file);
        if !is_damaged {
            let got = view::content(fs, ObjectNo(*file), content.size())
                .map_err(|error| format!("file {file}, which is not damaged, cannot be read: {error}"))?;
            if let Some(at) = content.difference(&got) {
                return Err(format!("file {file}, which is not damaged, is another at {at}"));
            }
            continue;
        }
        let handle = match fs.files().open_handle(&Context::root(), ObjectNo(*file), OpenFlags::READ) {
            Ok(handle) => handle,
            Err(error) if error.errno() == EIO => continue,
            Err(error) => return Err(format!("damaged file {file} cannot be opened: {error}")),
        };
        for page in 0..content.size().div_ceil(PAGE) {
            let want = content.range(page * PAGE, ((page + 1) * PAGE).min(content.size()));
            let mut got = vec![0; want.len()];
            match fs.files().read(handle, page * PAGE, &mut got) {
                Ok(count) if count == want.len() && got == want => {}
                Ok(_) => return Err(format!("page {page} of damaged file {file} shows other bytes")),
                Err(error) if error.errno() == EIO => *unreadable.entry(*file).or_default() += 1,
                Err(error) => return Err(format!("page {page} of damaged file {file}: {error}")),
            }
        }
        fs.files().release(handle).map_err(|error| error.to_string())?;
    }
    Ok(())
}
