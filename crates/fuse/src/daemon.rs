//! Life of the daemon: open, mount, serve, close.
//!
//! Order of things: the volume is opened (locked, recovered) before anything is mounted, so that a failure leaves no
//! trace; the mount is live when the kernel's handshake is answered; and when the kernel says DESTROY, or the
//! connection ends for whatever reason, the volume is closed with a last checkpoint before its lock is released. So
//! whoever gets the lock finds a clean volume; and `umount` of a block device returns after that checkpoint, because
//! the kernel waits for the answer.
//!
//! In the background the process forks before it has any thread, and the parent waits until the child says that the
//! mount is live, or why not.
//!
//! SIGTERM, SIGINT and SIGHUP unmount: at once if nobody uses the mount, else lazily; then everything is committed,
//! and the daemon ends with the last user. A second signal does not wait for users: the volume is closed and the
//! process ends; whoever still uses the mount gets ENOTCONN.

use crate::beginning::{Beginning, begun_by};
use crate::browse::Browsed;
use crate::filesystem::{Filesystem, MESSAGE_BYTES_MAX, config};
use crate::join;
use crate::leave::Leave;
use crate::metrics::{Endpoint, Served};
use crate::mount_point::{Detach, detach, is_ours, mounted_at, options_for, widen_read_ahead};
use crate::mounts::Mounts;
use crate::remount::remount;
use crate::unmount::clear_dead_mount;
use crate::volume::OpenVolume;
use crate::{MountError, MountOptions, log, scheduling};
use fusering::{Session, TransportChoice, TransportKind};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use syncline_fs::Fs;
use syncline_source::Source;

/// Said by the child when the mount is live; anything else is the reason why not.
const LIVE: &[u8] = b"\0live";

/// What to mount where.
#[derive(Debug, Clone)]
pub struct Mount {
    /// Image file, block device, or an address that `syncline_source` knows.
    pub source: PathBuf,
    pub directory: PathBuf,
    pub options: MountOptions,
}

impl Mount {
    /// Mounts, and serves until the volume is unmounted and closed. `live` is called once the mount can be used.
    ///
    /// For a process of its own: signals, the panic hook and the log are set up for all of it.
    pub fn serve(&self, live: impl FnOnce()) -> Result<(), MountError> {
        if self.options.remount {
            return remount(&self.directory, &self.options);
        }
        self.take_place()?;
        self.install_log(log::Destination::StandardError)?;
        match self.join()? {
            Some(joined) => {
                live();
                joined.wait();
                Ok(())
            }
            None => self.serve_logged(live),
        }
    }

    /// Mounts by the daemon that has the volume, if one has.
    fn join(&self) -> Result<Option<join::Joined>, MountError> {
        if self.options.remote {
            return Ok(None);
        }
        let source = self.source()?;
        if syncline_source::is_mounted(&source).is_none() {
            return Ok(None);
        }
        join::join(&source, &self.directory, || self.mount_point(), &self.options)
    }

    /// The file or device, wherever the path leads, or the address.
    fn source(&self) -> Result<PathBuf, MountError> {
        if self.options.local.is_some() && self.source.symlink_metadata().is_err() {
            // It is made when the volume is opened.
            return std::path::absolute(&self.source)
                .map_err(|source| MountError::System { what: "finding the image's folder", source });
        }
        let refused = |error| MountError::Open(Box::new(error));
        let named = Source::parse(&self.source).map_err(refused)?;
        if named.is_address() {
            return Ok(named.name());
        }
        let source = syncline_device::follow_own_links(&self.source).map_err(refused)?;
        Ok(source.canonicalize().unwrap_or(source))
    }

    /// Forks a daemon that mounts and serves; returns when the mount can be used, or why it cannot. Must be called
    /// while the process has a single thread.
    pub fn serve_in_background(&self) -> Result<(), MountError> {
        if self.options.remount {
            return remount(&self.directory, &self.options);
        }
        // Here, where a CPU that does not exist is still told as the wrong option that it is. The child inherits the
        // place.
        self.take_place()?;
        if self.join()?.is_some() {
            return Ok(());
        }
        let (mut from_child, to_parent) = pipe()?;
        // SAFETY: the caller guarantees a single thread, so the child may do anything.
        match unsafe { libc::fork() } {
            -1 => Err(MountError::last_os("starting the daemon")),
            0 => {
                drop(from_child);
                let code = match self.run_child(to_parent) {
                    Ok(()) => 0,
                    Err(()) => 1,
                };
                std::process::exit(code);
            }
            _ => {
                drop(to_parent);
                let mut said = Vec::new();
                let read = from_child.read_to_end(&mut said);
                read.map_err(|source| MountError::System { what: "waiting for the daemon", source })?;
                match said.strip_suffix(LIVE) {
                    Some(_) => Ok(()),
                    None if said.is_empty() => Err(MountError::Daemon(
                        "the daemon died before the mount was live; see its log".to_owned(),
                    )),
                    None => Err(MountError::Daemon(String::from_utf8_lossy(&said).into_owned())),
                }
            }
        }
    }

    /// On the CPU of the options, if they name one.
    fn take_place(&self) -> Result<(), MountError> {
        self.options.cpu.map_or(Ok(()), pin_to)
    }

    /// The child: tells `to_parent` how mounting went, then serves.
    fn run_child(&self, to_parent: File) -> Result<(), ()> {
        close_inherited(&to_parent);
        // It has to be given back before the mount is told to be live: who reads a replica never looks.
        if self.options.replica.is_some() && !self.options.remote {
            begun_by(&to_parent);
        }
        let mut to_parent = Some(to_parent);
        // Tells it once; false if it was told before.
        let mut tell = |message: &[u8]| match to_parent.take() {
            Some(mut pipe) => {
                // A parent that was killed does not stop the daemon.
                let _ = pipe.write_all(message);
                true
            }
            None => false,
        };
        let result = self.install_log(log::Destination::System).and_then(|()| {
            self.serve_logged(|| {
                // Not before it is mounted: an automount lets pass those of systemd's group alone, and holds up all
                // others who look at its directory, until it is mounted.
                // SAFETY: setsid has no preconditions; the child is no process group leader.
                unsafe { libc::setsid() };
                if let Err(error) = log::leave_terminal() {
                    tracing::warn!(%error, "the daemon keeps its terminal");
                }
                // All paths are absolute by now, and a daemon keeps nobody's directory busy.
                if let Err(error) = std::env::set_current_dir("/") {
                    tracing::warn!(%error, "the daemon keeps the directory it was started in");
                }
                tell(LIVE);
            })
        });
        result.map_err(|error| {
            // Who waits for the mount prints it; printed here as well it would appear twice on the terminal.
            if !tell(error.to_string().as_bytes()) {
                tracing::error!(%error, "the daemon ends");
            }
        })
    }

    /// The log goes where the options say, or else to `usual`.
    fn install_log<'a>(&'a self, usual: log::Destination<'a>) -> Result<(), MountError> {
        match &self.options.log {
            None => log::install(usual),
            Some(path) => log::install(log::Destination::File(path)).map_err(|error| match error {
                MountError::System { source, .. } => MountError::Log { path: path.clone(), source },
                error => error,
            }),
        }
    }

    fn serve_logged(&self, live: impl FnOnce()) -> Result<(), MountError> {
        share_one_heap();
        scheduling::ask_for_short_slices();
        if self.options.remote {
            #[cfg(feature = "replica")]
            return crate::follow::serve(self, live);
            #[cfg(not(feature = "replica"))]
            return Err(crate::replica::missing(&self.source.to_string_lossy()));
        }
        let signals = block_signals()?;
        let source = self.source()?;
        let directory = self.mount_point()?;
        // Before rights are given up, and before anything is mounted.
        let endpoint = self.options.metrics.as_ref().map(Endpoint::bind).transpose()?;
        let volume = {
            let beginning = self.options.replica.as_ref().map(|_| Beginning::watch(signals)).transpose();
            let _beginning =
                beginning.map_err(|source| MountError::System { what: "starting a thread", source })?;
            OpenVolume::open(&source, &self.options)?
        };
        let mounted = volume.fs().clone();
        let fs = Arc::downgrade(&mounted);
        let mounts = Mounts::new(&source, volume, &self.options);
        let filesystem = Arc::new(Filesystem::new(mounts.first(&directory)?, &self.options)?);
        let browsed = Browsed::new(filesystem.clone(), &mounted, self.options.snapshot.is_none());
        drop(mounted);
        let session = match self.open_session(browsed, &source, &directory) {
            Ok(session) => session,
            Err(error) => {
                // What went wrong first is what the user needs to know.
                let _ = filesystem.close();
                return Err(error);
            }
        };
        filesystem.set_transport(session.transport(), session.classes());
        widen_read_ahead(&directory, MESSAGE_BYTES_MAX);
        let transport = session.transport().to_string();
        // Until this function returns.
        let _endpoint = serve_metrics(endpoint, &filesystem);
        join::listen(&source, &mounts);
        let served = spawn_signal_thread(signals, mounts.clone(), fs).and_then(|()| {
            // By now a daemon without a system log has left the terminal: success says nothing there.
            live();
            tracing::info!(source = %source.display(), directory = %directory.display(), transport, "mounted");
            session.run().map_err(MountError::Session)
        });
        let closed = filesystem.close();
        // Those that have joined go on.
        mounts.wait_for_all();
        mounts.wait_for_answers();
        served?;
        match closed {
            Err(error) if filesystem.was_shut_down() => {
                tracing::warn!(%error, "unmounted after a shutdown; the next mount recovers what was synced");
                return Ok(());
            }
            closed => closed?,
        }
        tracing::info!(source = %source.display(), "unmounted, the volume is clean");
        Ok(())
    }

    /// The directory to mount on, with what a dead daemon left there removed.
    pub(crate) fn mount_point(&self) -> Result<PathBuf, MountError> {
        let failed = |source| MountError::MountPoint { path: self.directory.clone(), source };
        clear_dead_mount(&self.directory).map_err(failed)?;
        let directory = self.directory.canonicalize().map_err(failed)?;
        if directory.is_dir() {
            Ok(directory)
        } else {
            Err(failed(io::Error::from_raw_os_error(libc::ENOTDIR)))
        }
    }

    pub(crate) fn open_session(
        &self,
        filesystem: Browsed,
        source: &Path,
        directory: &Path,
    ) -> Result<Session<Browsed>, MountError> {
        let options = options_for(source, &self.options);
        let wanted = self.options.switch_uring && self.options.transport != TransportChoice::Dev;
        let leave = if wanted { Leave::take() } else { None };
        let mounted = Session::mount(Arc::new(filesystem), directory, &options, &config(&self.options));
        let is_over_uring = mounted.as_ref().is_ok_and(|it| it.transport().kind == TransportKind::Uring);
        if is_over_uring && leave.is_some_and(|leave| leave.has_switched()) {
            tracing::info!(
                "enable_uring was switched on for the moment of this mount; uring=keep forbids it"
            );
        }
        mounted.map_err(|error| match error {
            fusering::Error::NoDevice(source) => MountError::NoFuseDevice(source),
            fusering::Error::NoUring(reason) => MountError::NoUring(reason),
            fusering::Error::Refused { source: error, .. }
                if options.block_device.is_some() && error.raw_os_error() == Some(libc::EBUSY) =>
            {
                MountError::DeviceBusy { source_path: source.to_owned() }
            }
            fusering::Error::Refused { path, source: error } => {
                MountError::Refused { source_path: source.to_owned(), path, source: error }
            }
            error => MountError::Session(error),
        })
    }
}

/// Has metrics told for as long as what it returns lives. A mount without them is of more use than none.
fn serve_metrics(endpoint: Option<Endpoint>, filesystem: &Arc<Filesystem>) -> Option<Served> {
    let endpoint = endpoint?;
    let filesystem = Arc::downgrade(filesystem);
    let address = endpoint.to_string();
    match endpoint.serve(move || filesystem.upgrade().map(|filesystem| filesystem.metrics())) {
        Ok(served) => {
            tracing::info!(address, "metrics are told");
            Some(served)
        }
        Err(error) => {
            tracing::error!(%error, address, "metrics are not told");
            None
        }
    }
}

/// Closes what the caller had open, but for the standard streams and `kept`: a daemon that inherits a lock, a pipe or
/// a file of another mount would hold it for as long as the volume is mounted. To be called before anything else is
/// opened.
fn close_inherited(kept: &File) {
    let kept = kept.as_raw_fd().cast_unsigned();
    let streams = libc::STDERR_FILENO.cast_unsigned();
    for (first, last) in [(streams + 1, kept.saturating_sub(1)), (kept + 1, libc::c_uint::MAX)] {
        if first <= last {
            // SAFETY: nobody in this process owns these descriptors: it is a new child of a single-threaded command.
            // A kernel without the call leaves them open, as they were.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

fn pipe() -> Result<(File, File), MountError> {
    let mut ends = [0; 2];
    // SAFETY: pipe2 fills the array of two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(MountError::last_os("making a pipe"));
    }
    // SAFETY: both descriptors are new and owned by nobody else.
    let [read, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok((File::from(read), File::from(write)))
}

/// Keeps freed memory usable for all threads. With a heap per thread the C library held a third more than the bound on
/// memory asks for, because a buffer is mostly freed on another thread than the one that allocated it.
fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two integers and is called before the daemon starts its threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

fn pin_to(cpu: usize) -> Result<(), MountError> {
    let unknown = || MountError::BadOption {
        option: format!("cpu={cpu}"),
        expected: "the number of a CPU that the daemon may use",
    };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(unknown());
    }
    // SAFETY: a zeroed cpu_set_t is the empty set; the number is within its size.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    match result {
        0 => Ok(()),
        _ if io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) => Err(unknown()),
        _ => Err(MountError::last_os("pinning the daemon to the CPU of option cpu=")),
    }
}

/// Blocks the signals that end the daemon in all threads (they inherit the mask), so that one thread can wait for them.
pub(crate) fn block_signals() -> Result<libc::sigset_t, MountError> {
    // SAFETY: sigemptyset initialises the set before it is used; the pointers are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 => Ok(set),
            errno => Err(MountError::System {
                what: "blocking signals",
                source: io::Error::from_raw_os_error(errno),
            }),
        }
    }
}

pub(crate) fn wait_for_signal(signals: &libc::sigset_t) -> i32 {
    let mut signal = 0;
    // SAFETY: the set is initialised, and `signal` is valid for writing.
    while unsafe { libc::sigwait(signals, &mut signal) } != 0 {}
    signal
}

/// The thread that waits for signals is never joined: it ends with the process.
fn spawn_signal_thread(signals: libc::sigset_t, mounts: Arc<Mounts>, fs: Weak<Fs>) -> Result<(), MountError> {
    let body = move || {
        let signal = wait_for_signal(&signals);
        tracing::info!(signal, "asked to end, unmounting");
        let left = mounts.directories().into_iter().rev().filter(|on| !unmount_own(on)).count();
        let unmounted = left == 0;
        if let Some(fs) = fs.upgrade() {
            if unmounted {
                // Whoever trims has a file open, and so keeps the mount.
                fs.end_trims();
            }
            // The last users of a lazy unmount may stay for long; what they have so far is safe from here on.
            if let Err(error) = fs.sync_all() {
                tracing::error!(%error, "committing failed");
            }
        }
        let signal = wait_for_signal(&signals);
        tracing::warn!(signal, "asked again, not waiting for the last users of the mount");
        let closed = fs.upgrade().map_or(Ok(()), |fs| fs.close());
        if let Err(error) = &closed {
            tracing::error!(%error, "closing the volume failed; the next mount recovers what was synced");
        }
        std::process::exit(if closed.is_ok() { 0 } else { 1 });
    };
    std::thread::Builder::new()
        .name("syncline-signals".to_owned())
        .spawn(body)
        .map(drop)
        .map_err(|source| MountError::System { what: "starting a thread", source })
}

/// Unmounts what this daemon mounted, lazily if it is in use; false if it is mounted still, or elsewhere.
fn unmount_own(directory: &Path) -> bool {
    let ours = mounted_at(directory).ok().flatten().is_some_and(|entry| is_ours(&entry));
    if !ours {
        return false;
    }
    if detach(directory, Detach::IfIdle).is_ok() {
        return true;
    }
    tracing::info!("the mount is in use; it disappears now and ends with its last user");
    let detached = detach(directory, Detach::Lazily);
    if let Err(error) = &detached {
        tracing::error!(%error, "unmounting failed");
    }
    detached.is_ok()
}
