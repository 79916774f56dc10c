//! A replica that is read, and followed: the mount moves on to newer states of it.
//!
//! Each state is a mount of its own: an engine over what the replica holds there, and a connection to the kernel. A
//! newer one is put beneath the one that is seen, and that one is taken away lazily. So paths lead to the newer state
//! from one moment to the next. What was open, and who has its working directory there, keeps the older one to the
//! end: nothing changes under a reader, and the kernel's caches of two states never mix. An older state ends with its
//! last user.
//!
//! Nothing is written here, so nothing has to be waited for in the end.

use crate::browse::Browsed;
use crate::daemon::{block_signals, wait_for_signal};
use crate::filesystem::{Filesystem, MESSAGE_BYTES_MAX};
use crate::metrics::Endpoint;
use crate::mount_point::{Detach, c_string, detach, widen_read_ahead};
use crate::mounts::Mounts;
use crate::volume::OpenVolume;
use crate::{Mount, MountError, origin};
use fusering::Session;
use parking_lot::{Condvar, Mutex};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use syncline_replica_store::{Address, Reading, Seen, Watch};

/// `OPEN_TREE_CLONE`, `MOVE_MOUNT_F_EMPTY_PATH` and `MOVE_MOUNT_BENEATH` of linux/mount.h.
const OPEN_TREE_CLONE: libc::c_uint = 1;
const EMPTY_PATH: libc::c_uint = 4;
const BENEATH: libc::c_uint = 0x200;

/// Longest time between two looks, while the store does not answer.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A state of the replica that is mounted.
struct State {
    filesystem: Arc<Filesystem>,
    mounts: Arc<Mounts>,
    session: Session<Browsed>,
    position: (u64, u64),
    seen: Seen,
    uuid: [u8; 16],
}

#[derive(Default)]
struct Serving {
    /// Number of the state that paths lead to.
    current: u64,
    filesystem: Weak<Filesystem>,
    /// States that somebody uses.
    served: u64,
    /// How the one that paths led to has ended.
    ended: Option<Result<(), MountError>>,
}

#[derive(Default)]
struct Follower {
    serving: Mutex<Serving>,
    changed: Condvar,
}

/// Mounts what a replica holds, and serves it until it is unmounted.
pub(crate) fn serve(mount: &Mount, live: impl FnOnce()) -> Result<(), MountError> {
    let signals = block_signals()?;
    let directory = mount.mount_point()?;
    let url = mount.source.to_string_lossy().into_owned();
    let endpoint = mount.options.metrics.as_ref().map(Endpoint::bind).transpose()?;
    crate::confinement::confine();
    let first = State::open(mount, &url, &directory, origin::read(&url, &mount.options)?)?;
    widen_read_ahead(&directory, MESSAGE_BYTES_MAX);
    let (mut position, mut seen, uuid) = (first.position, first.seen, first.uuid);
    let follower = Arc::new(Follower::default());
    let of_metrics = Arc::clone(&follower);
    let told = move || of_metrics.serving.lock().filesystem.upgrade().map(|filesystem| filesystem.metrics());
    let _endpoint = endpoint.and_then(|endpoint| {
        let served = endpoint.serve(told);
        served.inspect_err(|error| tracing::error!(%error, "metrics are not told")).ok()
    });
    let on = directory.clone();
    let thread = std::thread::Builder::new().name("syncline-signals".to_owned());
    let body = move || {
        let signal = wait_for_signal(&signals);
        tracing::info!(signal, "asked to end, unmounting");
        if detach(&on, Detach::IfIdle).is_err() {
            let _ = detach(&on, Detach::Lazily);
        }
        wait_for_signal(&signals);
        std::process::exit(0);
    };
    let failed = |what| move |source| MountError::System { what, source };
    thread.spawn(body).map_err(failed("starting a thread"))?;
    follower.serve(0, first).map_err(failed("starting a thread"))?;
    live();
    tracing::info!(source = url, directory = %directory.display(), ?position, "mounted");
    let Some(every) = mount.options.follow else { return follower.until_ended() };
    let address = Address::parse(&url).map_err(|error| MountError::Replica(error.to_string()))?;
    let watch = Watch::new(&address, uuid).map_err(|error| MountError::Replica(error.to_string()))?;
    let mut pause = every;
    for number in 1.. {
        if follower.has_ended(pause) {
            break;
        }
        match newer(mount, &url, &watch, position, seen) {
            Ok(Next::Same(same)) => (seen, pause) = (same, every),
            Ok(Next::Newer(reading)) => {
                let at = reading.position();
                match follower.move_on(mount, &url, &directory, number, *reading) {
                    Ok(found) => {
                        (position, seen, pause) = (at, found, every);
                        tracing::info!(?position, "the mount shows a newer state of the replica");
                    }
                    Err(error) => {
                        tracing::error!(%error, "the mount stays where it is");
                        pause = (pause * 2).min(PAUSE_MAX.max(every));
                    }
                }
            }
            Err(error) => {
                if pause == every {
                    tracing::warn!(%error, "the replica cannot be followed; it is tried again");
                }
                pause = (pause * 2).min(PAUSE_MAX.max(every));
            }
        }
    }
    follower.until_ended()
}

enum Next {
    Newer(Box<Reading>),
    /// Nothing that counts is behind what is shown.
    Same(Seen),
}

fn newer(
    mount: &Mount,
    url: &str,
    watch: &Watch,
    position: (u64, u64),
    seen: Seen,
) -> Result<Next, MountError> {
    let refused = |error: syncline_replica_store::Error| MountError::Replica(error.to_string());
    if !watch.has_more(position, seen).map_err(refused)? {
        return Ok(Next::Same(seen));
    }
    let reading = origin::read(url, &mount.options)?;
    // Somebody has claimed the replica meanwhile: what counts the next manifest says.
    if reading.position() <= position || watch.is_claimed(reading.seen).map_err(refused)? {
        return Ok(Next::Same(Seen { number: reading.seen.number, ..seen }));
    }
    Ok(Next::Newer(Box::new(reading)))
}

impl State {
    /// Mounts it on a directory, over what is there.
    fn open(mount: &Mount, url: &str, on: &Path, reading: Reading) -> Result<State, MountError> {
        let source = Path::new(url);
        let (position, seen, uuid) = (reading.position(), reading.seen, reading.uuid);
        let volume = OpenVolume::over(reading.device, None, source, &mount.options)?;
        let fs = volume.fs().clone();
        let mounts = Mounts::new(source, volume, &mount.options);
        let filesystem = Arc::new(Filesystem::new(mounts.first(on)?, &mount.options)?);
        let browsed = Browsed::new(Arc::clone(&filesystem), &fs, mount.options.snapshot.is_none());
        drop(fs);
        let session = mount.open_session(browsed, source, on).inspect_err(|_| drop(filesystem.close()))?;
        filesystem.set_transport(session.transport(), session.classes());
        Ok(State { filesystem, mounts, session, position, seen, uuid })
    }
}

impl Follower {
    /// Serves a state on a thread of its own, until its last user is gone.
    fn serve(self: &Arc<Self>, number: u64, state: State) -> io::Result<()> {
        {
            let mut serving = self.serving.lock();
            serving.current = number;
            serving.filesystem = Arc::downgrade(&state.filesystem);
            serving.served += 1;
        }
        let follower = Arc::clone(self);
        let body = move || {
            let State { filesystem, mounts, session, .. } = state;
            let served = session.run().map_err(MountError::Session);
            let closed = filesystem.close();
            mounts.wait_for_all();
            let mut serving = follower.serving.lock();
            serving.served -= 1;
            if serving.current == number {
                serving.ended = Some(served.and(closed));
            }
            follower.changed.notify_all();
        };
        std::thread::Builder::new().name("syncline-serve".to_owned()).spawn(body).map(drop)
    }

    /// Whether the mount has ended, at the latest after so long.
    fn has_ended(&self, patience: Duration) -> bool {
        let mut serving = self.serving.lock();
        self.changed.wait_while_for(&mut serving, |serving| serving.ended.is_none(), patience);
        serving.ended.is_some()
    }

    /// Waits until nobody uses any state any more.
    fn until_ended(&self) -> Result<(), MountError> {
        let mut serving = self.serving.lock();
        while serving.ended.is_none() || serving.served > 0 {
            self.changed.wait(&mut serving);
        }
        serving.ended.take().unwrap_or(Ok(()))
    }

    /// Shows another state from now on.
    fn move_on(
        self: &Arc<Self>,
        mount: &Mount,
        url: &str,
        directory: &Path,
        number: u64,
        reading: Reading,
    ) -> Result<Seen, MountError> {
        let failed = |what| move |source| MountError::System { what, source };
        let aside = Aside::make().map_err(failed("making a directory for the next state"))?;
        let state = State::open(mount, url, &aside.path, reading)?;
        let seen = state.seen;
        widen_read_ahead(&aside.path, MESSAGE_BYTES_MAX);
        self.serve(number, state).map_err(failed("starting a thread"))?;
        aside.put_on(directory).map_err(failed("showing the next state"))?;
        Ok(seen)
    }
}

/// A directory of this daemon's own, on which the next state is mounted first.
struct Aside {
    path: PathBuf,
}

impl Aside {
    fn make() -> io::Result<Aside> {
        let mut template = b"/tmp/syncline-next.XXXXXX\0".to_vec();
        // SAFETY: the template is a string that ends with six X and a NUL, and is written in place.
        if unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) }.is_null() {
            return Err(io::Error::last_os_error());
        }
        template.pop();
        Ok(Aside { path: PathBuf::from(std::ffi::OsStr::from_bytes(&template)) })
    }

    /// Puts what is mounted here in the place of what is mounted there, which is seen no more.
    fn put_on(&self, directory: &Path) -> io::Result<()> {
        let tree = clone_of(&c_string(&self.path)?)?;
        let on = c_string(directory)?;
        match move_mount(&tree, &on, EMPTY_PATH | BENEATH) {
            Ok(()) => detach(directory, Detach::Lazily),
            // Before Linux 6.5: for a moment the directory below is seen.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                detach(directory, Detach::Lazily)?;
                move_mount(&tree, &on, EMPTY_PATH)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // Its mount is a second sight of what is at its place by now, or of nothing that is used.
        let _ = detach(&self.path, Detach::Lazily);
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// A mount that is nowhere yet, of what is mounted on a directory.
fn clone_of(path: &CString) -> io::Result<OwnedFd> {
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as libc::c_uint;
    // SAFETY: the path is a string that outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

fn move_mount(tree: &OwnedFd, on: &CString, flags: libc::c_uint) -> io::Result<()> {
    let nothing = c"";
    // SAFETY: both paths are strings that outlive the call.
    let moved = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            nothing.as_ptr(),
            libc::AT_FDCWD,
            on.as_ptr(),
            flags,
        )
    };
    if moved == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
