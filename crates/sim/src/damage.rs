//! Rot that is met while others work: each tree node, and data blocks, in turn become unreadable (`EIO`) or change a
//! bit, and nobody may notice it but who touches what is in them.
//!
//! A volume with a small journal has files with many extents and directories of many names, so that its tree has many
//! leaves. Who is damaged is found out by looking: what a volume opened read-only cannot show in full. All files are
//! written and synced, names come and go, time passes, the journal goes round, checkpoints are written, the session
//! ends by a cut or a close, recovery meets the rot as well, and goes on. Of the others
//!
//! - no operation fails, no background work does, and a close or a sync of everything says that it has left out
//!   damaged files only;
//! - everything written is there after the cut: it was synced, or was older than the commit interval (C1, C9).
//!
//! Of the damaged ones each operation may fail, and what was acknowledged is there once the blocks can be read again:
//! its images were in the journal all the time.
//!
//! The volume's own structures rot as well: superblock slots and backups, bitmap slots, blocks of the journal ring.
//! Nobody works with what is stored of these but recovery. It shows everything that was acknowledged, or refuses the
//! volume; it never shows less. A volume that was refused for a bitmap is whole again after a repair. The last record
//! of the log is one that nobody misses, because its loss looks like that of one that was never written (C9).

use crate::crash::durable;
use crate::device::{Disk, Rot, SimDevice};
use crate::driver::{self, SimClock};
use crate::lab::{Tally, guarded};
use crate::operation::pattern;
use crate::oracle::PAGE;
use crate::random::{Random, derive};
use crate::view;
use crate::watchdog;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use syncline_check::{CheckOptions, check};
use syncline_device::Device;
use syncline_format::superblock::SUPERBLOCK_SLOTS;
use syncline_fs::{Clock, Context, Error, Fs, FsOptions, ObjectNo, OpenFlags, SyncScope};

const BLOCKS: u64 = 6144;
const JOURNAL_BLOCKS: u64 = 64;
/// Files of many extents; every other page has one.
const SPREAD_FILES: u64 = 4;
const SPREAD_PAGES: u64 = 420;
/// Small files, in between of these.
const SMALL_FILES: u64 = 40;
/// Of the blocks that are no nodes, one of so many.
const DATA_EVERY: usize = 61;
/// Syncs of one file: several times what the journal holds.
const ROUNDS: u64 = 120;
const EIO: i32 = 5;

/// When the rot comes, and what kind it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// While the session runs: blocks cannot be read.
    Unreadable,
    /// While the session runs: blocks have changed.
    Flipped,
    /// Between a cut and the recovery from it.
    BehindTheCut,
}

const WHENS: [When; 3] = [When::Unreadable, When::Flipped, When::BehindTheCut];

/// The volume that rots, its files, and the blocks that do.
struct Prepared {
    disk: Disk,
    /// What they hold.
    files: BTreeMap<u64, Vec<u8>>,
    /// The directory of the small ones.
    directory: u64,
    /// The one with the highest number.
    last: u64,
    blocks: Vec<u64>,
}

/// What lies at the same place on every volume of this geometry: it rots behind the others.
fn structures() -> Vec<u64> {
    let groups = 16 + JOURNAL_BLOCKS;
    let bitmaps = bitmaps();
    SUPERBLOCK_SLOTS
        .map(|at| at.0)
        .into_iter()
        .chain(16..groups)
        .chain(bitmaps)
        .chain(BLOCKS - 2..BLOCKS)
        .collect()
}

/// Both slots of the only group.
fn bitmaps() -> std::ops::Range<u64> {
    16 + JOURNAL_BLOCKS..18 + JOURNAL_BLOCKS
}

/// How many workloads there are.
pub fn count() -> u64 {
    ((prepared().blocks.len() + structures().len()) * WHENS.len()) as u64
}

fn open(device: &Arc<SimDevice>, clock: &Arc<SimClock>, seed: u64) -> Result<Arc<Fs>, Error> {
    driver::open(Arc::clone(device) as Arc<dyn Device>, clock, seed)
}

fn prepared() -> &'static Prepared {
    static PREPARED: OnceLock<Prepared> = OnceLock::new();
    PREPARED.get_or_init(|| prepare().expect("a sound volume is prepared"))
}

fn prepare() -> Result<Prepared, Error> {
    let device = SimDevice::new(Disk::new(BLOCKS), 31);
    driver::format(2, &*device, JOURNAL_BLOCKS, 31)?;
    let fs = open(&device, &SimClock::new(), 32)?;
    let mut files = BTreeMap::new();
    let directory = fs.names().mkdir(&Context::root(), ObjectNo::ROOT_DIR, b"d", 0o755)?.attr.inode;
    for number in 0..SPREAD_FILES {
        for small in 0..SMALL_FILES {
            let content = pattern((number * SMALL_FILES + small) as u8, 0, 3 * PAGE);
            let name = format!("small-{number}-{small}-with-a-name-of-some-length");
            files.insert(make(&fs, directory, &name, &content, PAGE)?, content);
        }
        // Every other page is a hole, so that each extent has one page.
        let mut content = vec![0; (2 * SPREAD_PAGES * PAGE) as usize];
        let data = pattern(200 + number as u8, 0, 2 * SPREAD_PAGES * PAGE);
        for page in (0..2 * SPREAD_PAGES).filter(|page| page % 2 == 1) {
            let bytes = (page * PAGE) as usize..((page + 1) * PAGE) as usize;
            content[bytes.clone()].copy_from_slice(&data[bytes]);
        }
        let made = make(&fs, ObjectNo::ROOT_DIR, &format!("spread-{number}"), &content, 2 * PAGE)?;
        files.insert(made, content);
    }
    fs.close()?;
    let disk = device.settled();
    let last = *files.keys().next_back().expect("files were made");
    let blocks = rotting(&disk);
    Ok(Prepared { disk, files, directory: directory.0, last, blocks })
}

/// All tree nodes that are stored, and some blocks of data.
fn rotting(disk: &Disk) -> Vec<u64> {
    let is_node = |block: &u64| disk.get(*block).is_some_and(|page| page[..4] == *b"SLND");
    let behind_journal = 16 + JOURNAL_BLOCKS..BLOCKS - 2;
    let mut blocks: Vec<u64> = behind_journal.clone().filter(is_node).collect();
    let data = behind_journal.filter(|block| {
        let in_node = (0..4).any(|back| is_node(&(block - back)));
        !in_node && disk.get(*block).is_some_and(|page| page[..4] != *b"SLBM")
    });
    blocks.extend(data.step_by(DATA_EVERY));
    blocks
}

/// Makes a file; of its content every `step` bytes a page is written, the last of them.
fn make(fs: &Fs, directory: ObjectNo, name: &str, content: &[u8], step: u64) -> Result<u64, Error> {
    let root = Context::root();
    let (entry, handle) =
        fs.names().create(&root, directory, name.as_bytes(), 0o644, OpenFlags::READ_WRITE)?;
    for (index, bytes) in content.chunks(step as usize).enumerate() {
        let from = bytes.len() - PAGE as usize;
        fs.files().write(&root, handle, index as u64 * step + from as u64, &bytes[from..])?;
    }
    fs.files().sync_handle(handle, SyncScope::All)?;
    fs.files().release(handle)?;
    Ok(entry.attr.inode.0)
}

/// What is known of one file.
struct Subject {
    /// As it is in memory.
    now: Vec<u8>,
    /// Pages by what they may hold after a crash: what was acknowledged last, and what was written since.
    versions: BTreeMap<u64, Vec<Vec<u8>>>,
    /// The same of what was not acknowledged before the last crash.
    lost: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl Subject {
    fn new(content: &[u8]) -> Subject {
        Subject { now: content.to_vec(), versions: BTreeMap::new(), lost: BTreeMap::new() }
    }

    fn page(&self, page: u64) -> &[u8] {
        &self.now[(page * PAGE) as usize..((page + 1) * PAGE) as usize]
    }

    fn wrote(&mut self, page: u64, bytes: &[u8]) {
        let before = self.page(page).to_vec();
        self.versions.entry(page).or_insert_with(|| vec![before]).push(bytes.to_vec());
        self.now[(page * PAGE) as usize..((page + 1) * PAGE) as usize].copy_from_slice(bytes);
    }

    fn synced(&mut self) {
        for page in std::mem::take(&mut self.versions).into_keys() {
            self.lost.remove(&page);
        }
    }

    fn cut(&mut self) {
        for (page, versions) in std::mem::take(&mut self.versions) {
            self.lost.entry(page).or_default().extend(versions);
        }
    }

    /// What of this no crash may have left.
    fn refuses(&self, got: &[u8]) -> Option<String> {
        if got.len() != self.now.len() {
            return Some(format!("{} bytes", got.len()));
        }
        let wrong = (0u64..).zip(got.chunks(PAGE as usize)).find(|(page, got)| {
            let may = [&self.versions, &self.lost].into_iter().filter_map(|all| all.get(page));
            *got != self.page(*page) && !may.flatten().any(|version| version == got)
        });
        wrong.map(|(page, got)| {
            format!("page {page} begins with {:?}, not {:?}", &got[..2], &self.page(page)[..2])
        })
    }
}

/// Whether a volume may be lost with this structure: never with a backup.
fn may_be_missed(block: u64) -> bool {
    block < BLOCKS - 2
}

struct Run<'a> {
    prepared: &'static Prepared,
    tally: &'a mut Tally,
    random: Random,
    clock: Arc<SimClock>,
    subjects: BTreeMap<u64, Subject>,
    /// Files that the rot has hit, and whether new ones can be made.
    damaged: Vec<u64>,
    can_make: bool,
    made: u64,
    /// The block that rots, if it is one of the volume's structures.
    structure: Option<u64>,
    /// Sessions that have ended.
    ended: u64,
}

/// One block that rots at one moment.
pub fn run(number: u64, seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let prepared = prepared();
        let index = number as usize / WHENS.len() % (prepared.blocks.len() + structures().len());
        let structure = index.checked_sub(prepared.blocks.len()).map(|index| structures()[index]);
        let block = structure.unwrap_or_else(|| prepared.blocks[index]);
        let when = WHENS[number as usize % WHENS.len()];
        let kind = if when == When::Unreadable { Rot::Unreadable } else { Rot::Flipped(derive(seed, 9)) };
        let hits_files = when != When::BehindTheCut && structure.is_none();
        let found = if hits_files { look(&prepared.disk, block, kind) } else { Some((Vec::new(), true)) };
        let Some((damaged, can_make)) = found else {
            // The volume is lost.
            tally.refused += 1;
            return;
        };
        let subjects = prepared.files.iter().map(|(ino, content)| (*ino, Subject::new(content))).collect();
        let random = Random::new(derive(seed, 1));
        let clock = SimClock::new();
        let (made, ended) = (0, 0);
        let mut run =
            Run { prepared, tally, random, clock, subjects, damaged, can_make, made, structure, ended };
        if let Err(what) = run.all(index, block, kind, when, seed) {
            tally.violation(format!("rot of block {block} ({when:?}): {what}"));
        }
    })
}

/// The files that cannot be read in full, and whether others can be made; `None` if the volume or its root is lost.
fn look(disk: &Disk, block: u64, kind: Rot) -> Option<(Vec<u64>, bool)> {
    let prepared = prepared();
    let device = SimDevice::new(disk.clone(), 5);
    device.rot(block, kind);
    let options = FsOptions::default().read_only(true).memory_bytes_max(8 << 20);
    let clock = SimClock::new();
    let fs = Fs::open(device, options, clock as Arc<dyn Clock>, &driver::SimEntropy::new(1)).ok()?;
    let lists = |number: u64| {
        let handle = fs.files().opendir(ObjectNo(number)).ok()?;
        let mut names = Vec::new();
        fs.names()
            .readdir(handle, 2, &mut |entry| {
                names.push(entry.name.to_vec());
                std::ops::ControlFlow::Continue(())
            })
            .ok()?;
        names.iter().try_for_each(|name| fs.names().lookup(ObjectNo(number), name).map(drop)).ok()
    };
    lists(ObjectNo::ROOT_DIR.0)?;
    let reads = |number: u64, size: u64| {
        fs.attributes()
            .list_xattrs(&Context::root(), ObjectNo(number))
            .and_then(|_| view::content(&fs, ObjectNo(number), size))
    };
    let is_damaged =
        |(ino, content): (&u64, &Vec<u8>)| reads(*ino, content.len() as u64).is_err().then_some(*ino);
    let damaged: Vec<u64> = prepared.files.iter().filter_map(is_damaged).collect();
    // New inodes go to the last leaf, new names among the others of their directory.
    let can_make = !damaged.contains(&prepared.last) && lists(prepared.directory).is_some();
    Some((damaged, can_make))
}

impl Run<'_> {
    fn all(&mut self, index: usize, block: u64, kind: Rot, when: When, seed: u64) -> Result<(), String> {
        let device = SimDevice::new(self.prepared.disk.clone(), derive(seed, 2));
        let fs = open(&device, &self.clock, derive(seed, 3)).map_err(|error| error.to_string())?;
        if when != When::BehindTheCut {
            device.rot(block, kind);
        }
        self.session(&fs, false)?;
        // Images that are older than the last checkpoint, and that recovery has to bring home.
        let files: Vec<u64> = self.subjects.keys().copied().collect();
        for ino in files {
            self.write_page(&fs, ino, true)?;
        }
        self.told("a checkpoint", fs.checkpoint())?;
        self.end(&fs)?;
        fs.shut_down();
        drop(fs);
        self.subjects.values_mut().for_each(Subject::cut);
        let next = SimDevice::new(durable(&device), derive(seed, 4));
        if when != When::BehindTheCut {
            next.rot_as(&device);
            return self.again(next, seed);
        }
        if self.structure.is_some() {
            next.rot(block, kind);
            return self.again(next, seed);
        }
        // The tree lies elsewhere by now.
        let disk = durable(&device);
        let blocks = rotting(&disk);
        let block = blocks[index % blocks.len()];
        let Some((damaged, can_make)) = look(&disk, block, kind) else {
            self.tally.refused += 1;
            return Ok(());
        };
        (self.damaged, self.can_make) = (damaged, can_make);
        next.rot(block, kind);
        self.again(next, seed).map_err(|what| format!("(block {block}) {what}"))
    }

    /// Recovers what a cut has left, twice, ends the session, and looks at what is there when all can be read again.
    fn again(&mut self, device: Arc<SimDevice>, seed: u64) -> Result<(), String> {
        let mut device = device;
        for session in 0..2u64 {
            self.tally.states += 1;
            let fs = match (open(&device, &self.clock, derive(seed, 5 + session)), self.structure) {
                (Ok(fs), _) => fs,
                (Err(error), Some(block)) => return self.refused(&device, block, &error),
                (Err(error), None) => {
                    return Err(format!("recovery refuses the volume in session {session}: {error}"));
                }
            };
            self.show(&fs, false)?;
            self.session(&fs, session == 1)?;
            if session == 0 {
                self.end(&fs)?;
                fs.shut_down();
            } else {
                self.told("a close", fs.close())?;
            }
            drop(fs);
            self.subjects.values_mut().for_each(Subject::cut);
            let next = SimDevice::new(durable(&device), derive(seed, 8 + session));
            next.rot_as(&device);
            device = next;
        }
        device.heal();
        let fs = open(&device, &self.clock, derive(seed, 7)).map_err(|error| format!("healed: {error}"))?;
        self.show(&fs, true)
    }

    /// The last records of a log whose ring rots tell of a file that nobody looks at.
    fn end(&mut self, fs: &Fs) -> Result<(), String> {
        if self.structure.is_some() {
            let name = format!("end-{}", self.ended);
            make(fs, ObjectNo::ROOT_DIR, &name, &pattern(9, 0, PAGE), PAGE)
                .map_err(|error| error.to_string())?;
        }
        self.ended += 1;
        Ok(())
    }

    /// A volume whose structures have rotten may be refused, but not for another reason; a bitmap can be repaired.
    fn refused(&mut self, device: &Arc<SimDevice>, block: u64, error: &Error) -> Result<(), String> {
        if error.errno() != EIO || !may_be_missed(block) {
            return Err(format!("recovery refuses the volume because of block {block}: {error}"));
        }
        self.tally.refused += 1;
        if !bitmaps().contains(&block) {
            return Ok(());
        }
        let options = CheckOptions::default().repair(true);
        let report = check(&**device, options).map_err(|error| error.to_string())?;
        if !report.repaired || !report.is_sound() {
            return Err(format!("a lost bitmap is not repaired: {:?}", report.findings));
        }
        let fs = open(device, &self.clock, 12).map_err(|error| format!("repaired: {error}"))?;
        self.show(&fs, true)
    }

    /// All kinds of work, at the end of which nothing of undamaged files is in memory only.
    fn session(&mut self, fs: &Arc<Fs>, syncs: bool) -> Result<(), String> {
        let files: Vec<u64> = self.subjects.keys().copied().collect();
        for (index, ino) in files.iter().enumerate() {
            self.write_page(fs, *ino, index % 2 == 0)?;
        }
        self.pass(fs, 1500)?;
        let whole: Vec<u64> = files.iter().copied().filter(|ino| !self.damaged.contains(ino)).collect();
        for round in 0..if whole.is_empty() { 0 } else { ROUNDS } {
            self.write_page(fs, whole[whole.len() / 2], true)?;
            if round % 20 == 0 {
                self.make_and_remove(fs)?;
                self.pass(fs, 300)?;
            }
        }
        self.pass(fs, 6000)?;
        for ino in &files {
            self.write_page(fs, *ino, false)?;
        }
        let before = fs.stats().store.checkpoints;
        self.pass(fs, 31_000)?;
        if fs.stats().store.checkpoints == before {
            return Err("no checkpoint is written in the background".to_owned());
        }
        for ino in &whole {
            self.write_page(fs, *ino, false)?;
        }
        match syncs {
            true => self.told("a sync of everything", fs.sync_all())?,
            false => self.pass(fs, 1500)?,
        }
        whole.iter().for_each(|ino| self.subjects.get_mut(ino).expect("a subject").synced());
        Ok(())
    }

    fn is_damaged(&self, ino: u64) -> bool {
        self.damaged.contains(&ino)
    }

    /// Writes a page of a file somewhere.
    fn write_page(&mut self, fs: &Fs, ino: u64, sync: bool) -> Result<(), String> {
        watchdog::progress();
        let page = self.random.below(self.subjects[&ino].now.len() as u64 / PAGE);
        let bytes = pattern(self.random.below(255) as u8 + 1, self.random.below(1000), PAGE);
        let root = Context::root();
        let result = fs.files().open_handle(&root, ObjectNo(ino), OpenFlags::READ_WRITE).and_then(|handle| {
            let written = fs.files().write(&root, handle, page * PAGE, &bytes).map(drop);
            if written.is_ok() {
                self.subjects.get_mut(&ino).expect("a subject").wrote(page, &bytes);
            }
            let synced = match sync {
                true => written.and_then(|()| fs.files().sync_handle(handle, SyncScope::All)),
                false => written,
            };
            if sync && synced.is_ok() {
                self.subjects.get_mut(&ino).expect("a subject").synced();
            }
            synced.and(fs.files().release(handle))
        });
        self.tally.operations += 1;
        match result {
            Err(error) if !self.is_damaged(ino) => {
                Err(format!("writing to file {ino}, which is not damaged: {error}"))
            }
            Err(error) if error.errno() != EIO => Err(format!("writing to damaged file {ino}: {error}")),
            _ => Ok(()),
        }
    }

    /// Makes a file, and removes the one before it.
    fn make_and_remove(&mut self, fs: &Fs) -> Result<(), String> {
        let directory = ObjectNo(self.prepared.directory);
        let name = |number: u64| format!("made-{number}");
        let content = pattern(7, self.made, 2 * PAGE);
        let made = make(fs, directory, &name(self.made), &content, PAGE);
        let removed = match self.made.checked_sub(1).filter(|_| made.is_ok()) {
            Some(before) => fs.names().unlink(directory, name(before).as_bytes()),
            None => Ok(()),
        };
        match made.and(removed) {
            Err(error) if self.can_make => Err(format!("making and removing a file: {error}")),
            Err(error) if error.errno() != EIO && error != Error::NotFound && error != Error::Exists => {
                Err(format!("making a file where that is damaged: {error}"))
            }
            Err(_) => Ok(()),
            Ok(()) => {
                self.made += 1;
                Ok(())
            }
        }
    }

    /// Time passes, with the background at work.
    fn pass(&mut self, fs: &Fs, milliseconds: u64) -> Result<(), String> {
        watchdog::progress();
        for _ in 0..4 {
            self.clock.advance(milliseconds / 4);
            for _ in 0..16 {
                match fs.maintain(self.clock.now(), 4) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => return Err(format!("the background: {error}")),
                }
            }
        }
        Ok(())
    }

    /// What concerns all files may only tell of damaged ones.
    fn told(&self, what: &str, result: Result<(), Error>) -> Result<(), String> {
        match result {
            Err(Error::SetAside { object, .. })
                if self.is_damaged(object.0) || object.0 == self.prepared.directory =>
            {
                Ok(())
            }
            Err(error) => Err(format!("{what}: {error}")),
            Ok(()) => Ok(()),
        }
    }

    /// What the files hold. What a crash may have left counts from here on.
    fn show(&mut self, fs: &Fs, healed: bool) -> Result<(), String> {
        for (ino, subject) in &mut self.subjects {
            let damaged = self.damaged.contains(ino);
            if damaged && !healed {
                continue;
            }
            let size = subject.now.len() as u64;
            let got = view::content(fs, ObjectNo(*ino), size)
                .map_err(|error| format!("file {ino} (damaged: {damaged}) cannot be read: {error}"))?
                .to_vec();
            if let Some(wrong) = subject.refuses(&got) {
                return Err(format!(
                    "file {ino} (damaged: {damaged}) does not hold what was made durable: {wrong}"
                ));
            }
            if !damaged && got != subject.now {
                return Err(format!("file {ino} has lost what was older than the commit interval"));
            }
        }
        Ok(())
    }
}
