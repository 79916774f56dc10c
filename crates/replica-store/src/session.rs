//! [`Session`]: a volume's device with its uploader.
//!
//! [`Session::open`] claims the replica, waits for that, and returns the device that the engine is to use. From then on
//! one thread ships. [`Session::close`] comes behind the engine's close: it waits until everything counts.

use crate::address::Address;
use crate::claim::{claim, opener, wall};
use crate::client::Client;
use crate::error::Error;
use crate::housekeeping::{Housekeeping, keep_house};
use crate::image::{self, Claimed};
use crate::mark;
use crate::probe::probe;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use syncline_device::{Device, DeviceError};
use syncline_format::replica::{Mark, UnitHeader};
use syncline_format::superblock::Superblock;
use syncline_replica::changed::{self, Changed};
use syncline_replica::newest::Newest;
use syncline_replica::replicator::Status;
use syncline_replica::runs::RunSet;
use syncline_replica::{
    Acknowledge, Opener, Phase, Pruned, ReplicaError, Replicator, Settings, TapDevice, Target,
};
use tokio::sync::Notify;

/// Looks of the uploader in each interval while nothing is to be done, and the bounds of its pause between two of them;
/// what it ships is older by that.
const LOOKS: u32 = 10;
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Lag of what was synced just now, in nanoseconds.
const LAG_LEAST: u64 = 1_000_000;
/// Intervals after which it is told that what is shipped is late.
const LATE: u32 = 10;
/// Nothing is told to be late sooner than this.
const LATE_MIN: Duration = Duration::from_secs(5);

/// Time between two compactions.
const HOUSEKEEPING: Duration = Duration::from_secs(600);
/// Compactions of which one deletes.
const PRUNINGS: u64 = 6;

/// What becomes of syncs while what is shipped is later than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLag {
    /// Nothing.
    #[default]
    Continue,
    /// Each flush is held up a little, so that less is written.
    Slow,
    /// The volume stops: what a lost machine costs is bounded.
    Stop,
}

/// How a volume is shipped.
#[derive(Debug, Clone)]
pub struct Options {
    /// When a flush of the volume ends: [`Acknowledge::Remote`] ships each at once, whatever the interval.
    pub acknowledge: Acknowledge,
    /// Oldest age of what is not shipped, and least time between two units.
    pub interval: Duration,
    /// Bytes of content that are kept for the uploader, at most. What does not fit is read from the device again.
    pub memory: usize,
    /// What becomes of syncs while the oldest change that does not count is older than `max_lag`.
    pub on_lag: OnLag,
    /// By default ten intervals, and not less than 5 s.
    pub max_lag: Option<Duration>,
    /// Longest time that opening waits for the store.
    pub open_wait: Duration,
    /// Longest time that closing waits for the store.
    pub close_wait: Duration,
    /// The store is tried out first (P9), also if it holds this volume's replica already.
    pub probe: bool,
    /// How often the replica is compacted and pruned beside the shipping; not at all.
    pub housekeeping: Option<Duration>,
    /// Claim and unit of which the volume is exactly what they have left: then cuts alone are shipped, if they are the
    /// last.
    pub exact: Option<(u64, u64)>,
    /// Called first by threads for which nobody waits. With [`Acknowledge::Remote`] somebody waits for the one that
    /// ships.
    pub behind: Option<fn()>,
    /// Only a replica that nobody has begun there is begun, whatever the volume was shipped to before.
    pub begin: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            acknowledge: Acknowledge::Local,
            interval: Duration::from_secs(1),
            memory: 32 << 20,
            on_lag: OnLag::Continue,
            max_lag: None,
            open_wait: Duration::from_secs(10),
            close_wait: Duration::from_secs(30),
            probe: false,
            housekeeping: Some(HOUSEKEEPING),
            exact: None,
            behind: None,
            begin: false,
        }
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    status: Status,
    /// When it was so.
    looked: Instant,
    closing: bool,
    /// The thread is to end, whatever counts.
    abandoned: bool,
}

/// A volume that is shipped.
pub struct Session {
    tap: Arc<TapDevice>,
    shared: Arc<Shared>,
    wake: Arc<Notify>,
    close_wait: Duration,
    thread: Option<JoinHandle<()>>,
    housekeeper: Option<Housekeeper>,
}

impl Session {
    /// Claims the replica for the volume on this device, which nobody uses yet.
    ///
    /// # Errors
    /// The store cannot be reached within the time, is unfit, or somebody else has written to the replica since.
    pub fn open(device: Arc<dyn Device>, address: &Address, options: &Options) -> Result<Session, Error> {
        Session::open_by(device, address, options, None)
    }

    /// As [`Session::open`], by a claim that was made for the volume on this device already.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_by(
        device: Arc<dyn Device>,
        address: &Address,
        options: &Options,
        claimed: Option<Claimed>,
    ) -> Result<Session, Error> {
        let superblock = mark::superblock(&*device)?;
        let blocks = superblock.layout.blocks;
        let marked = match options.begin {
            true => Mark { uuid: superblock.uuid, claim: 0, nonce: 0, holds: 0 },
            false => mark::read(&*device, superblock.uuid)?,
        };
        let mut client = Client::new(address)?;
        let generation = superblock.generation.0;
        let Claimed { opened, nonce } = match claimed {
            Some(claimed) => claimed,
            None => claim_for(&mut client, &*device, &superblock, &marked, options)?,
        };
        let last = opened.last.map(|last| (last.claim, last.number));
        let is_exact = options.exact.is_some() && options.exact == last && opened.may_stream();
        let is_known = is_exact || opened.is_closed_at(superblock.epoch, generation);
        let is_earlier = is_known || opened.is_earlier(&superblock, marked.holds);
        // Where the replica holds something else of this volume, only what differs is shipped.
        let before = match opened.last {
            Some(end) if !is_known && opened.may_stream() => resumed(&mut client, superblock.uuid, &end),
            _ => None,
        };
        let unknown = match (&before, &opened.last) {
            _ if is_known => RunSet::default(),
            (Some(before), Some(last)) if is_earlier => changed(&*device, &superblock, before, last),
            _ => RunSet::from(0..blocks),
        };
        let holds = if is_earlier { opened.tail } else { marked.holds };
        let mark = Mark { uuid: superblock.uuid, claim: opened.claim, nonce, holds };
        mark::write(&*device, &mark)?;
        let tap = TapDevice::acknowledging(device, options.memory, unknown, options.acknowledge);
        let interval = match options.acknowledge {
            Acknowledge::Local => options.interval.as_nanos() as u64,
            Acknowledge::Remote => 0,
        };
        let settings = Settings { interval, ..Settings::default() };
        let offset = wall().saturating_sub(client.now());
        let replicator = match before {
            Some(before) => Replicator::resuming(Arc::clone(&tap), &opened, settings, offset, before),
            None => Replicator::new(Arc::clone(&tap), &opened, settings, offset),
        };
        let housekeeper = match options.housekeeping {
            Some(every) => Some(Housekeeper::start(address, superblock.uuid, every, options.behind)?),
            None => None,
        };
        Session::start(tap, mark, client, replicator, options, housekeeper)
    }

    fn start(
        tap: Arc<TapDevice>,
        mark: Mark,
        mut client: Client,
        mut replicator: Replicator,
        options: &Options,
        housekeeper: Option<Housekeeper>,
    ) -> Result<Session, Error> {
        let (looked, status) = (Instant::now(), replicator.status(client.now()));
        let state = Mutex::new(State { status, looked, closing: false, abandoned: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let wake = client.waker();
        if options.acknowledge == Acknowledge::Remote {
            let wake = Arc::clone(&wake);
            tap.wake_by(move || wake.notify_one());
        }
        let (mine, its_tap) = (Arc::clone(&shared), Arc::clone(&tap));
        let pause = (options.interval / LOOKS).clamp(PAUSE_MIN, PAUSE_MAX);
        let late = options.max_lag.unwrap_or((options.interval * LATE).max(LATE_MIN));
        let mut lateness = Lateness { late, on_lag: options.on_lag, told: false };
        let behind = options.behind.filter(|_| options.acknowledge == Acknowledge::Local);
        let ship = move || {
            if let Some(work_behind) = behind {
                work_behind();
            }
            let its = Arc::clone(&its_tap);
            let _ending = Ending(its_tap, Arc::clone(&mine));
            loop {
                client.step(&mut replicator, pause);
                if *replicator.phase() == Phase::Closed {
                    hold(&**its.below(), &Mark { holds: replicator.tail(), ..mark });
                }
                let mut state = mine.state.lock();
                state.looked = Instant::now();
                state.status = replicator.status(client.now());
                // Whoever is answered and asks then finds its unit in the figures.
                replicator.acknowledge();
                if state.closing {
                    replicator.close();
                }
                lateness.tell(&state.status, &its);
                let ended = matches!(state.status.phase, Phase::Closed | Phase::Failed(_));
                if let Phase::Failed(error) = &state.status.phase {
                    tracing::error!("the volume is not shipped any more: {error}");
                }
                if ended || state.abandoned {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("syncline-replica".to_owned()).spawn(ship)?;
        let close_wait = options.close_wait;
        Ok(Session { tap, shared, wake, close_wait, thread: Some(thread), housekeeper })
    }

    /// The device for the engine.
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.tap) as Arc<dyn Device>
    }

    /// Flushes of the volume so far; each is reported by [`Status::flush`] when it counts.
    pub fn flushes(&self) -> u64 {
        self.tap.flushes()
    }

    /// What counts. While a flush does not, the lag is not 0, and not smaller than the age of that flush, also if the
    /// uploader has not looked at it yet.
    pub fn status(&self) -> Status {
        let flushes = self.tap.flushes();
        let state = self.shared.state.lock();
        let mut status = state.status.clone();
        if status.flush < flushes {
            let since = state.looked.elapsed().as_nanos() as u64;
            status.lag = status.lag.saturating_add(since).max(LAG_LEAST);
        }
        status
    }

    /// Behind the close of the volume: waits until everything counts.
    ///
    /// # Errors
    /// Somebody has taken over, or the time is up; the status says what is missing.
    pub fn close(mut self) -> Result<Status, Box<(ReplicaError, Status)>> {
        let deadline = Instant::now() + self.close_wait;
        let mut state = self.shared.state.lock();
        state.closing = true;
        self.wake.notify_one();
        while !matches!(state.status.phase, Phase::Closed | Phase::Failed(_)) {
            if self.shared.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        let status = state.status.clone();
        drop(state);
        self.end();
        match &status.phase {
            Phase::Closed => Ok(status),
            Phase::Failed(error) => Err(Box::new((error.clone(), status))),
            _ => {
                let error = ReplicaError::NotShipped { seconds: self.close_wait.as_secs() };
                Err(Box::new((error, status)))
            }
        }
    }
}

/// Claims the replica for a volume that says of itself what its superblock and its mark say.
fn claim_for(
    client: &mut Client,
    device: &dyn Device,
    superblock: &Superblock,
    marked: &Mark,
    options: &Options,
) -> Result<Claimed, Error> {
    let opener = Opener {
        continued: marked.claim,
        marked: marked.nonce,
        generation: Some(superblock.generation.0),
        ..opener(superblock.uuid, superblock.layout.blocks)
    };
    let nonce = opener.nonce;
    if options.probe || marked.claim == 0 {
        probe(client, nonce)?;
    }
    match claim(client, Some((device, marked.holds)), opener, options.open_wait) {
        Ok(opened) => Ok(Claimed { opened, nonce }),
        Err(Error::Replica(ReplicaError::Behind { by, .. })) if options.begin => {
            Err(Error::Occupied { url: client.address().url.clone(), by })
        }
        Err(error) => Err(error),
    }
}

/// What the replica holds at its last unit; nothing if that cannot be found out, and everything is shipped anew then.
fn resumed(client: &mut Client, uuid: [u8; 16], end: &UnitHeader) -> Option<Newest> {
    let planned = image::plan(client, uuid, Target::Newest);
    client.forget();
    match planned {
        Ok((plan, newest, _)) if (plan.end.claim, plan.end.number) == (end.claim, end.number) => Some(newest),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!(%error, "the volume is shipped anew");
            None
        }
    }
}

/// Behind the close of a volume: what has been shipped is what it holds. Should that not be written, the volume is read
/// whole if it is used without its replica next.
fn hold(device: &dyn Device, mark: &Mark) {
    if let Err(error) = mark::write(device, mark) {
        tracing::warn!(%error, "the volume does not say what it holds of its replica");
    }
}

/// Blocks in which a volume may differ from an earlier moment of it, which the replica holds.
fn changed(device: &dyn Device, superblock: &Superblock, before: &Newest, last: &UnitHeader) -> RunSet {
    match changed::since(device, superblock, before, last) {
        Ok(Changed { blocks, read }) => {
            tracing::info!(blocks = blocks.blocks(), read, "the volume may differ from its replica in these");
            blocks
        }
        Err(unclear) => {
            tracing::warn!("all of the volume is held against its replica: {unclear}");
            RunSet::from(0..superblock.layout.blocks)
        }
    }
}

/// The end of the uploader's thread, also by a panic: nothing has to be kept for it any more, and nobody may wait for
/// it.
struct Ending(Arc<TapDevice>, Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.turn_off(&DeviceError::ShutDown);
        self.1.changed.notify_all();
    }
}

impl Session {
    /// Ends the thread, whatever counts.
    fn end(&mut self) {
        // It is told while the other one ends.
        let housekeeper = self.housekeeper.take();
        if let Some(housekeeper) = &housekeeper {
            housekeeper.stop();
        }
        self.shared.state.lock().abandoned = true;
        self.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

/// Compacts and prunes on a thread of its own, until it is dropped.
struct Housekeeper {
    ends: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeper {
    fn start(
        address: &Address,
        uuid: [u8; 16],
        every: Duration,
        behind: Option<fn()>,
    ) -> Result<Housekeeper, Error> {
        let ends: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let mut client = Client::new(address)?;
        let mine = Arc::clone(&ends);
        let keep = move || {
            if let Some(work_behind) = behind {
                work_behind();
            }
            let (ended, changed) = &*mine;
            for round in 1.. {
                let mut state = ended.lock();
                if !*state {
                    changed.wait_for(&mut state, every);
                }
                if *state {
                    break;
                }
                drop(state);
                let how = Housekeeping { packs_only: round % PRUNINGS != 1, ..Housekeeping::default() };
                match keep_house(&mut client, uuid, &how, &|| !*ended.lock()) {
                    Ok(kept) if kept.packs > 0 || kept.deleted != Pruned::default() => {
                        let deleted = kept.deleted.units.len() + kept.deleted.packs.len();
                        tracing::info!(packs = kept.packs, deleted, "the replica was compacted");
                    }
                    Ok(_) => {}
                    Err(error) if !*ended.lock() => {
                        tracing::warn!("the replica cannot be compacted: {error}");
                    }
                    Err(_) => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("syncline-keep".to_owned()).spawn(keep)?;
        Ok(Housekeeper { ends, thread: Some(thread) })
    }

    /// Tells it to end.
    fn stop(&self) {
        *self.ends.0.lock() = true;
        self.ends.1.notify_all();
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Tells the log, once each time, that what is shipped is late, and that it no longer is. Does what is to be done then.
struct Lateness {
    late: Duration,
    on_lag: OnLag,
    told: bool,
}

impl Lateness {
    fn tell(&mut self, status: &Status, tap: &TapDevice) {
        let lag = Duration::from_nanos(status.late);
        match self.on_lag {
            OnLag::Continue => {}
            OnLag::Slow => tap.slow_down(lag > self.late),
            OnLag::Stop if lag > self.late => {
                let bound = self.late.as_secs_f64();
                let why = format!(
                    "the replica is more than {bound} s behind, and on_lag=stop ends all writing then: mount the volume \
                     again when the object store can be reached"
                );
                tap.stop(DeviceError::Fenced(why.into()));
            }
            OnLag::Stop => {}
        }
        if lag > self.late && !self.told {
            self.told = true;
            let why =
                status.trouble.as_ref().map_or_else(|| "much is written".to_owned(), |it| it.to_string());
            tracing::warn!("the replica is {} s behind: {why}", lag.as_secs());
        } else if lag < self.late / 2 && self.told {
            self.told = false;
            tracing::info!("the replica is up to date again");
        }
    }
}
