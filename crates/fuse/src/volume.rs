//! The volume behind a mount: its engine, and the thread that maintains it.

use crate::confinement::confine;
use crate::memory::AutoMemory;
#[cfg(feature = "replica")]
use crate::origin::Fetched;
#[cfg(not(feature = "replica"))]
use crate::replica;
use crate::replica::Replica;
use crate::unmount::is_dead;
use crate::unused::Unused;
use crate::{MountError, MountOptions, scheduling};
use parking_lot::{Condvar, Mutex};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use syncline_device::{Device, FileDevice, OpenError, OpenOptions};
use syncline_fs::{Clock, Error, Fs, SystemClock, SystemEntropy};
use syncline_source::{Opened, Source};

/// How long to wait for a daemon that is writing its last checkpoint.
const LEAVING_DAEMON_PATIENCE: Duration = Duration::from_secs(60);
/// How long for one that is reached by a network, which does not tell what its holder is about.
const LEAVING_DAEMON_PATIENCE_AWAY: Duration = Duration::from_secs(5);
/// How long without a word; and how long for whoever is no daemon, which may have been killed just now.
const SILENT_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two looks at who holds the device.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Longest pause between two rounds of maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(100);
/// Rounds of writing of one call before it is looked whether to stop.
const MAINTENANCE_BUDGET: usize = 64;
/// Bounds of the pause after a piece of work that gave way to syncs.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// An opened volume with its maintenance running.
pub(crate) struct OpenVolume {
    fs: Arc<Fs>,
    /// Where the bound on memory follows the machine.
    memory: Option<Arc<AutoMemory>>,
    replica: Option<Arc<Replica>>,
    stop: Arc<Stop>,
    maintenance: JoinHandle<()>,
    /// What was opened by its name.
    held: Option<Opened>,
}

#[derive(Default)]
struct Stop {
    state: Mutex<StopState>,
    changed: Condvar,
}

#[derive(Default)]
struct StopState {
    stopped: bool,
    /// Work is to be done without further delay.
    kicked: bool,
}

impl Stop {
    /// Waits; true when it is time to stop. A kick ends the wait if it may.
    fn wait(&self, pause: Duration, may_kick: bool) -> bool {
        let mut state = self.state.lock();
        let woken = |state: &mut StopState| state.stopped || may_kick && state.kicked;
        self.changed.wait_while_for(&mut state, |state| !woken(state), pause);
        state.kicked = false;
        state.stopped
    }

    fn kick(&self) {
        self.state.lock().kicked = true;
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}

impl OpenVolume {
    /// Opens the device (waiting for a daemon that is just leaving), gives up what the process needs no more,
    /// recovers, and starts maintenance.
    pub(crate) fn open(source: &Path, options: &MountOptions) -> Result<OpenVolume, MountError> {
        let replication = options.replication()?;
        #[cfg(not(feature = "replica"))]
        if let Some(how) = &replication {
            return Err(replica::missing(&how.url));
        }
        #[cfg(feature = "replica")]
        if options.local.is_some() {
            let fetched = Fetched::open(source, options)?;
            confine();
            let how = replication.expect("what is fetched from a replica is shipped there");
            let shipped = Replica::open(Arc::clone(&fetched.device), &how, Some(&fetched))?;
            return OpenVolume::over(fetched.device, Some(Arc::new(shipped)), source, options);
        }
        let held = open_device(source, options)?;
        let device = device(held.clone().into_device(), options);
        #[cfg(feature = "replica")]
        let shipped = match replication {
            Some(how) => Some(Arc::new(Replica::open(Arc::clone(&device), &how, None)?)),
            None => None,
        };
        #[cfg(not(feature = "replica"))]
        let shipped = None;
        let volume = OpenVolume::over(device, shipped, source, options)?;
        Ok(OpenVolume { held: Some(held), ..volume })
    }

    /// The same on a device that is there already, and that is shipped or not.
    pub(crate) fn over(
        device: Arc<dyn Device>,
        replica: Option<Arc<Replica>>,
        source: &Path,
        options: &MountOptions,
    ) -> Result<OpenVolume, MountError> {
        let device = replica.as_ref().and_then(|replica| replica.device()).unwrap_or(device);
        let clock = Arc::new(SystemClock);
        let memory = match options.memory_bytes_max {
            Some(_) => None,
            None => Some(Arc::new(AutoMemory::new(Instant::now()))),
        };
        let engine = match &memory {
            Some(memory) => {
                options.engine().memory_bytes_max(usize::try_from(memory.bound()).unwrap_or(usize::MAX))
            }
            None => options.engine(),
        };
        let opened = Fs::open_reporting(device, engine, clock, &SystemEntropy::default());
        let (fs, recovery) =
            opened.map_err(|error| MountError::Volume { source_path: source.to_owned(), source: error })?;
        if recovery.batches > 0 || recovery.images > 0 {
            tracing::info!(
                records = recovery.records,
                batches = recovery.batches,
                images = recovery.images,
                cut = recovery.records_cut,
                "the volume was not unmounted cleanly; recovered what was synced"
            );
        }
        let fs = match &options.snapshot {
            Some(name) => fs.at(name).map_err(|error| match error {
                Error::NotFound => {
                    MountError::NoSnapshot { source_path: source.to_owned(), name: name.clone() }
                }
                source_error => MountError::Volume { source_path: source.to_owned(), source: source_error },
            })?,
            None => fs,
        };
        let stop = Arc::new(Stop::default());
        let of_writers = stop.clone();
        fs.on_demand(Box::new(move || of_writers.kick()));
        let interval = MAINTENANCE_INTERVAL.min(options.commit_interval / 4);
        let maintenance = {
            let (fs, stop, memory) = (fs.clone(), stop.clone(), memory.clone());
            std::thread::Builder::new()
                .name("syncline-maintain".to_owned())
                .spawn(move || maintain(&fs, memory.as_deref(), &stop, interval))
        };
        let maintenance =
            maintenance.map_err(|source| MountError::System { what: "starting a thread", source })?;
        Ok(OpenVolume { fs, memory, replica, stop, maintenance, held: None })
    }

    pub(crate) fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    /// Where the bound on memory follows the machine.
    pub(crate) fn memory(&self) -> Option<&Arc<AutoMemory>> {
        self.memory.as_ref()
    }

    /// Where the volume is shipped to.
    pub(crate) fn replica(&self) -> Option<&Arc<Replica>> {
        self.replica.as_ref()
    }

    /// Writes the last checkpoint, ships it, and lets go of the device.
    pub(crate) fn close(self) -> Result<(), MountError> {
        self.stop.stop();
        if self.maintenance.join().is_err() {
            // Not reached in a daemon, where a panic ends the process.
            tracing::error!("maintenance had stopped by an internal error");
        }
        let closed = self.fs.close().map_err(MountError::Close);
        if let Some(replica) = &self.replica {
            replica.close();
        }
        // Threads that are never joined keep the device.
        if let Some(held) = &self.held {
            held.release();
        }
        closed
    }
}

/// Opens the device, and gives up what the process needs no more. That comes before the first other thread: a device
/// of Ceph has threads from the beginning, one of NBD with its first request.
fn open_device(source: &Path, options: &MountOptions) -> Result<Opened, MountError> {
    let refused = |error: OpenError| MountError::Open(Box::new(error));
    let named = Source::parse(source).map_err(refused)?;
    let how = OpenOptions::default().read_only(options.is_read_only()).take_over(options.take_over);
    Ok(match &named {
        Source::File(path) => {
            let file = open_file(path, &how)?;
            confine();
            Opened::file_device(file)
        }
        // Who may connect to the server is root, or not.
        Source::Nbd(_) => {
            let opened = named.open(&how.wait_for_lock(LEAVING_DAEMON_PATIENCE_AWAY)).map_err(refused)?;
            confine();
            opened
        }
        Source::Rbd(_) => {
            confine();
            named.open(&how.wait_for_lock(LEAVING_DAEMON_PATIENCE_AWAY)).map_err(refused)?
        }
    })
}

/// Opens an image or block device. One that another daemon still holds, though it is mounted nowhere (any more), is
/// waited for; one that another program holds is not, since that may go on for ever: it has only so long as a killed
/// process needs to be gone.
pub(crate) fn open_file(source: &Path, how: &OpenOptions) -> Result<FileDevice, MountError> {
    let refused = |error: OpenError| MountError::Open(Box::new(error));
    let options = how.clone().wait_for_lock(LOCK_RETRY_INTERVAL);
    let began = Instant::now();
    let mut told = false;
    loop {
        // What a daemon has left behind that died is in nobody's way; who has the device the lock tells.
        if let Some(on) = syncline_device::is_mounted(source).filter(|on| !is_dead(on)) {
            return Err(refused(OpenError::Mounted { path: source.to_owned(), on }));
        }
        match FileDevice::open(source, &options) {
            Err(error @ (OpenError::Locked { .. } | OpenError::ReadLocked { .. })) => {
                let waited = began.elapsed();
                let by_a_daemon = FileDevice::may_be_held_for_mount(source);
                if waited >= LEAVING_DAEMON_PATIENCE {
                    return Err(refused(error));
                }
                if waited >= SILENT_PATIENCE && !by_a_daemon {
                    if matches!(error, OpenError::ReadLocked { .. }) {
                        return Err(refused(error));
                    }
                    return Err(MountError::InUse { source_path: source.to_owned() });
                }
                if waited >= SILENT_PATIENCE && !told {
                    told = true;
                    // Whoever waits for this mount sees why; the log need not be a terminal. A mount does not fail
                    // because nobody reads it.
                    let _ = writeln!(
                        std::io::stderr(),
                        "{} is held by the daemon of another mount; waiting for it to leave",
                        source.display()
                    );
                }
            }
            opened => return opened.inspect(FileDevice::hold_for_mount).map_err(refused),
        }
    }
}

/// The device of the engine: as it is, unless a test wants a kill to be a power cut.
#[cfg_attr(not(feature = "volatile"), expect(unused_variables))]
fn device(device: Arc<dyn Device>, options: &MountOptions) -> Arc<dyn Device> {
    #[cfg(feature = "volatile")]
    if options.volatile {
        return Arc::new(syncline_device::Volatile::new(device));
    }
    device
}

fn maintain(fs: &Fs, memory: Option<&AutoMemory>, stop: &Stop, interval: Duration) {
    scheduling::ask_for_usual_slices();
    let clock = SystemClock;
    let mut failed = false;
    let mut pause = interval;
    let mut unused = Unused::new(Instant::now());
    while !stop.wait(pause, pause == interval) {
        let began = Instant::now();
        if let Some(memory) = memory {
            memory.maintain(fs, began);
        }
        unused.maintain(began);
        pause = match fs.maintain(clock.now(), MAINTENANCE_BUDGET) {
            Ok(more) => {
                failed = false;
                match more {
                    // Two thirds of the device's time are left to the syncs.
                    true if fs.gives_way() => (began.elapsed() * 2).clamp(PAUSE_MIN, PAUSE_MAX),
                    true => Duration::ZERO,
                    false => interval,
                }
            }
            Err(error) => {
                if !failed {
                    tracing::error!(%error, "background writing failed");
                }
                failed = true;
                interval
            }
        };
    }
}
