//! What the threads do to the store: the operations of a filesystem's writeback, syncs and checkpoints, in small.
//!
//! The rules for callers hold here as in `crates/fs`: admission is asked for without any lock, whoever meets pressure
//! relieves it, and whoever changes a file's page holds the file's turn.

use crate::device::SlowDevice;
use crate::judge::{BLOCKS, History, Version, content, formatted};
use crate::tally;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use store_under_shuttle::{
    Batch, Class, DataSlot, Estimate, Permit, Pressure, Reservation, Run, Store, StoreError, StoreOptions,
};
use syncline_device::{Buffer, Device, Ticket};
use syncline_format::item::ExtentItem;
use syncline_format::{BlockNo, Key, Lsn, ObjectNo, TreeId, checksum};

/// Crash states taken for one schedule, but for the last one.
const SNAPSHOTS_MAX: u64 = 6;
/// How often relief may be needed for one batch before something is taken to be stuck.
const RELIEFS_MAX: u32 = 20;

static FORMATTED: LazyLock<crate::image::Image> = LazyLock::new(formatted);

/// Where a file's page is.
#[derive(Default)]
struct Place {
    version: u64,
    imaged: bool,
    extent: Option<BlockNo>,
}

/// One volume and everything that is known about it.
pub struct World {
    pub store: Arc<Store>,
    pub device: Arc<SlowDevice>,
    pub history: History,
    files: Vec<Mutex<Place>>,
    snapshots: AtomicU64,
    /// Started forces, and those whose callback has run.
    started: AtomicU64,
    called: AtomicU64,
    /// An error was planted: forces and commits may fail.
    pub faulty: bool,
    /// All allocations are made near this block, so that a freed one is reused as soon as it may be.
    near: BlockNo,
}

impl World {
    pub fn new(files: usize, faulty: bool) -> World {
        World::with(files, faulty, StoreOptions::new(7).stream_bytes(6000))
    }

    pub fn with(files: usize, faulty: bool, options: StoreOptions) -> World {
        let device = SlowDevice::new(BLOCKS, FORMATTED.clone());
        let store = Store::open(device.clone(), options).expect("open").finish().expect("finish");
        World {
            store,
            device,
            history: History::default(),
            files: (0..files).map(|_| Mutex::default()).collect(),
            snapshots: AtomicU64::new(0),
            started: AtomicU64::new(0),
            called: AtomicU64::new(0),
            faulty,
            near: BlockNo(200),
        }
    }

    /// A crash state, now.
    pub fn crash(&self, why: &'static str) {
        if self.snapshots.fetch_add(1, Ordering::Relaxed) < SNAPSHOTS_MAX {
            self.history.snapshot(why, || self.device.crash());
        }
    }

    /// Sometimes a crash state.
    fn may_crash(&self, why: &'static str, one_in: u32) {
        if thread_rng().gen_ratio(1, one_in) {
            self.crash(why);
        }
    }

    /// Unwraps what may fail only after an error of the device.
    fn unless_failed<T>(&self, result: Result<T, StoreError>, what: &str) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(StoreError::Failed { .. } | StoreError::ShutDown | StoreError::Device(_)) if self.faulty => {
                None
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// Admission; `None` after an error.
    fn admit(&self, class: Class, items: usize, images: usize) -> Option<Permit> {
        let estimate = Estimate { bytes: 300 + images * 4200, items, images };
        for _ in 0..RELIEFS_MAX {
            match self.store.admit(class, estimate) {
                Err(StoreError::Pressure(pressure)) => self.relieve(class, pressure)?,
                result => return self.unless_failed(result, "admit"),
            }
        }
        panic!("{class:?}: relief does not bring room: {:?}", self.store.load())
    }

    fn relieve(&self, class: Class, pressure: Pressure) -> Option<()> {
        tally::count(|tally| tally.reliefs += 1);
        assert_eq!(
            (class, pressure),
            (Class::Normal, Pressure::Journal),
            "destaging always gets through (R17)"
        );
        for file in 0..self.files.len() {
            self.destage(file)?;
        }
        self.checkpoint()
    }

    fn object(file: usize) -> ObjectNo {
        ObjectNo(100 + file as u64)
    }

    /// Commits the file's next version. `build` has put its content into the batch.
    fn commit(
        &self,
        permit: Permit,
        batch: Batch,
        file: usize,
        place: &mut MutexGuard<'_, Place>,
        full: bool,
    ) -> Option<Lsn> {
        let committed = self.log(Some(permit), batch, file, place, full);
        self.unless_failed(committed, "commit")
    }

    /// As [`World::commit`]; without a permit the commit admits the batch.
    fn log(
        &self,
        permit: Option<Permit>,
        mut batch: Batch,
        file: usize,
        place: &mut MutexGuard<'_, Place>,
        full: bool,
    ) -> Result<Lsn, StoreError> {
        let version = Version { number: place.version + 1, full };
        batch.put(Key::inode(Self::object(file)), &version.encode());
        let lsn = match permit {
            Some(permit) => self.store.commit(permit, batch)?,
            None => self.store.try_commit(Class::Normal, batch)?,
        };
        place.version += 1;
        self.history.committed(Self::object(file).0, lsn, version);
        Ok(lsn)
    }

    fn free_extent(place: &Place, object: ObjectNo, batch: &mut Batch) {
        if let Some(old) = place.extent {
            batch.free(old, 1);
            batch.delete(Key::extent(object, 0));
        }
    }

    /// A new version as a page image.
    pub fn write_image(&self, file: usize) -> Option<Lsn> {
        if thread_rng().gen_bool(0.5) {
            match self.log_image(None, file) {
                Err(StoreError::Pressure(Pressure::Journal)) => {}
                logged => return self.unless_failed(logged, "commit at once"),
            }
        }
        let permit = self.admit(Class::Normal, 3, 1)?;
        self.unless_failed(self.log_image(Some(permit), file), "commit")
    }

    fn log_image(&self, permit: Option<Permit>, file: usize) -> Result<Lsn, StoreError> {
        let object = Self::object(file);
        let mut place = self.files[file].lock().unwrap();
        let mut batch = Batch::new(TreeId::MAIN);
        batch.drop_images(object, 0, 1);
        Self::free_extent(&place, object, &mut batch);
        batch.image(object, 0, &content(object.0, place.version + 1));
        let lsn = self.log(permit, batch, file, &mut place, true)?;
        place.imaged = true;
        place.extent = None;
        Ok(lsn)
    }

    /// A new version as an extent whose data is still in flight, if the window allows it.
    pub fn write_extent(&self, file: usize) -> Option<Lsn> {
        let permit = self.admit(Class::Normal, 3, 0)?;
        let object = Self::object(file);
        let mut place = self.files[file].lock().unwrap();
        let mut batch = Batch::new(TreeId::MAIN);
        batch.drop_images(object, 0, 1);
        Self::free_extent(&place, object, &mut batch);
        let data = content(object.0, place.version + 1);
        let written = self.write_data(&data, object, &mut batch)?;
        let lsn = match self.commit(permit, batch, file, &mut place, true) {
            Some(lsn) => lsn,
            None => {
                self.abandon(written);
                return None;
            }
        };
        place.imaged = false;
        place.extent = Some(written.run.start);
        Some(lsn)
    }

    /// The file loses its content.
    pub fn empty(&self, file: usize) -> Option<Lsn> {
        let permit = self.admit(Class::Reclaim, 3, 0)?;
        let object = Self::object(file);
        let mut place = self.files[file].lock().unwrap();
        let mut batch = Batch::new(TreeId::MAIN);
        batch.drop_images(object, 0, 1);
        Self::free_extent(&place, object, &mut batch);
        let lsn = self.commit(permit, batch, file, &mut place, false)?;
        place.imaged = false;
        place.extent = None;
        Some(lsn)
    }

    /// Writes an imaged page to a block of its own; the version stays.
    pub fn destage(&self, file: usize) -> Option<()> {
        let object = Self::object(file);
        let mut place = self.files[file].lock().unwrap();
        if !place.imaged {
            return Some(());
        }
        let permit = self.admit(Class::Destage, 1, 0)?;
        let mut batch = Batch::new(TreeId::MAIN);
        let data = content(object.0, place.version);
        let written = self.write_data(&data, object, &mut batch)?;
        batch.drop_images(object, 0, 1);
        if self.unless_failed(self.store.commit(permit, batch), "destage").is_none() {
            self.abandon(written);
            return None;
        }
        place.imaged = false;
        place.extent = Some(written.run.start);
        Some(())
    }

    /// Writes a page to a new block; the batch puts the extent and depends on the write.
    fn write_data(&self, data: &[u8], object: ObjectNo, batch: &mut Batch) -> Option<Written> {
        let mut reservation = self.store.reserve(1).expect("there is space");
        let run = self.store.allocate(&mut reservation, 1, Some(self.near));
        let ticket = self.device.submit_write(run.start, vec![Arc::new(Buffer::from_bytes(data))]);
        self.may_crash("while data is written", 8);
        batch.allocate(run.start, 1);
        batch.put_fresh_extent(Key::extent(object, 0), &ExtentItem::written(run.start, vec![checksum(data)]));
        let written = Written { reservation, run, ticket };
        let slot: Option<DataSlot> = self.store.data_slot(4096).filter(|_| thread_rng().gen_bool(0.7));
        match slot {
            Some(slot) => batch.depends_on(written.ticket.clone(), slot),
            None => {
                let result = self.device.wait(&written.ticket);
                if let Err(cause) = result {
                    self.store.fail(cause);
                    self.abandon(written);
                    return None;
                }
            }
        }
        Some(written)
    }

    fn abandon(&self, mut written: Written) {
        let _ = self.device.wait(&written.ticket);
        self.store.abandon(written.run, &mut written.reservation);
    }

    pub fn force(&self, lsn: Lsn) -> Option<()> {
        let result = self.store.force(lsn);
        self.unless_failed(result, "force")?;
        self.history.acknowledged(lsn);
        self.may_crash("after a force", 2);
        Some(())
    }

    /// Starts a force; [`World::drive`] completes it.
    pub fn start_force(self: &Arc<Self>, lsn: Lsn) {
        let world = Arc::clone(self);
        self.started.fetch_add(1, Ordering::Relaxed);
        let done = move |result: Result<(), StoreError>| {
            world.called.fetch_add(1, Ordering::Relaxed);
            if world.unless_failed(result, "started force").is_some() {
                world.history.acknowledged(lsn);
                world.may_crash("after a started force", 2);
            }
        };
        self.store.start_force(lsn, Box::new(done));
    }

    /// A version of the last file, which the others leave alone; called by whoever leads a group, so it waits for
    /// nothing.
    pub fn write_piggyback(&self) {
        let file = self.files.len() - 1;
        let Ok(permit) = self.store.admit(Class::Normal, Estimate { bytes: 300, items: 3, images: 0 }) else {
            return;
        };
        let Ok(mut place) = self.files[file].try_lock() else { return };
        self.commit(permit, Batch::new(TreeId::MAIN), file, &mut place, false);
    }

    /// Polls until no started force is pending.
    pub fn drive(&self) {
        while self.store.drive() {
            shuttle::thread::yield_now();
        }
    }

    pub fn checkpoint(&self) -> Option<()> {
        let lsn = self.store.last_lsn();
        self.unless_failed(self.store.checkpoint(), "checkpoint")?;
        self.history.acknowledged(lsn);
        self.may_crash("after a checkpoint", 2);
        Some(())
    }

    pub fn close(&self) -> Option<()> {
        let lsn = self.store.last_lsn();
        self.unless_failed(self.store.close(), "close")?;
        self.history.acknowledged(lsn);
        self.crash("after a close");
        Some(())
    }

    /// Versions never go backwards for a reader.
    pub fn read(&self, file: usize, times: u32) {
        let mut newest = 0;
        for _ in 0..times {
            let durable = self.store.durable_lsn();
            self.history.acknowledged(durable);
            let found = self.store.get(TreeId::MAIN, Key::inode(Self::object(file))).expect("reads go on");
            let version = found.map_or(0, |value| Version::decode(&value).number);
            assert!(version >= newest, "file {file}: version {version} after {newest}");
            newest = version;
        }
    }

    /// One of the operations on one of the files; its LSN.
    pub fn change(&self, file: usize) -> Option<Lsn> {
        match thread_rng().gen_range(0..8) {
            0..=2 => self.write_image(file),
            3..=5 => self.write_extent(file),
            6 => self.empty(file),
            _ => {
                self.destage(file)?;
                Some(self.store.last_lsn())
            }
        }
    }

    /// Ends the run: nothing is pending, and every crash state is judged.
    pub fn finish(self: Arc<Self>) {
        self.drive();
        let (started, called) = (self.started.load(Ordering::Relaxed), self.called.load(Ordering::Relaxed));
        assert_eq!(called, started, "every started force is answered once");
        if self.store.failure().is_some() {
            let lsn = self.store.last_lsn();
            let forced = self.store.force(lsn);
            assert!(forced.is_err() || self.store.durable_lsn() >= lsn, "C8: an error stays");
        }
        self.history.acknowledged(self.store.durable_lsn());
        self.history.snapshot("at the end", || self.device.crash());
        self.device.stop();
        let crash_states = self.history.judge();
        let counters = self.store.counters();
        tally::count(|tally| {
            tally.schedules += 1;
            tally.crash_states += crash_states;
            tally.groups += counters.groups;
            tally.checkpoints += counters.checkpoints;
            tally.failures += u64::from(self.store.failure().is_some());
        });
    }
}

struct Written {
    reservation: Reservation,
    run: Run,
    ticket: Ticket,
}
