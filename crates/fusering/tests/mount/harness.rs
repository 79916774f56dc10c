//! A mounted filesystem for one test.

use crate::kernel::{UringSwitch, skipped};
use fusering::{
    BackgroundSession, Config, Filesystem, MountOptions, Session, TransportChoice, TransportKind,
};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Makes each function a test over /dev/fuse and one over io_uring.
macro_rules! over_both_transports {
    ($($name:ident),* $(,)?) => {
        mod dev {
            $(#[test] fn $name() {
                super::$name(&$crate::harness::Test::new(fusering::TransportKind::Dev, stringify!($name)));
            })*
        }
        mod uring {
            $(#[test] fn $name() {
                super::$name(&$crate::harness::Test::new(fusering::TransportKind::Uring, stringify!($name)));
            })*
        }
    };
}

pub(crate) use over_both_transports;

/// One test over one transport.
pub struct Test {
    pub transport: TransportKind,
    name: String,
}

/// A mounted filesystem; unmounted when dropped.
pub struct Mounted<F: Filesystem> {
    pub filesystem: Arc<F>,
    pub session: BackgroundSession,
    dir: tempfile::TempDir,
    /// Ends the watchdog when dropped.
    _alive: Sender<()>,
}

impl Test {
    pub fn new(transport: TransportKind, name: &str) -> Test {
        Test { transport, name: format!("{name} over {transport}") }
    }

    pub fn skip(&self, why: &str) {
        skipped(&self.name, why);
    }

    /// What `config` becomes for this transport.
    pub fn config(&self, config: Config) -> Config {
        let transport = match self.transport {
            TransportKind::Dev => TransportChoice::Dev,
            TransportKind::Uring => TransportChoice::Uring,
        };
        config.transport(transport)
    }

    /// Lets io_uring be agreed on while the result is kept; `None` if this machine cannot mount over this transport.
    pub fn leave(&self) -> Option<Option<UringSwitch>> {
        if !fusering::may_mount() {
            self.skip("mounting needs root");
            return None;
        }
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            self.skip(&format!("/dev/fuse cannot be opened: {error}"));
            return None;
        }
        if self.transport == TransportKind::Dev {
            return Some(None);
        }
        match UringSwitch::set(true) {
            Ok(switch) => Some(Some(switch)),
            Err(why) => {
                self.skip(&why);
                None
            }
        }
    }

    /// Mounts, and sees to it that it is this test's transport that brings the requests.
    pub fn mount<F: Filesystem>(&self, filesystem: F, config: Config) -> Option<Mounted<F>> {
        self.mount_with(filesystem, config, &MountOptions::default().allow_other(true))
    }

    pub fn mount_with<F: Filesystem>(
        &self,
        filesystem: F,
        config: Config,
        options: &MountOptions,
    ) -> Option<Mounted<F>> {
        let leave = self.leave()?;
        let dir = tempfile::tempdir().expect("temporary directory");
        let filesystem = Arc::new(filesystem);
        let config = self.config(config);
        let session = Session::mount(filesystem.clone(), dir.path(), options, &config)
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        drop(leave);
        assert_eq!(session.transport().kind, self.transport, "{}", session.transport());
        let session = session.spawn().expect("thread");
        let (alive, watched) = channel();
        let path = c_path(dir.path());
        std::thread::spawn(move || abort_when_stuck(&watched, &path));
        Some(Mounted { filesystem, session, dir, _alive: alive })
    }
}

/// A process that serves its own requests cannot be killed while one is unanswered: a failed test would hang for good.
fn abort_when_stuck(watched: &Receiver<()>, path: &CString) {
    if watched.recv_timeout(Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout) {
        // SAFETY: a NUL-terminated path.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
    }
}

impl<F: Filesystem> Mounted<F> {
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn unmount(&mut self) {
        // Somebody who looks at all mounts may hold this one for a moment.
        wait_until("the mount is let go", || match self.session.unmount() {
            Ok(()) => true,
            Err(fusering::Error::Unmount { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => {
                false
            }
            Err(error) => panic!("unmounting failed: {error}"),
        });
    }
}

/// Waits for what happens in another thread or the kernel; fails after half a minute.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not happen that {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL")
}

/// The result of a system call.
pub fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The errno of a failure.
#[track_caller]
pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("it should fail").raw_os_error().expect("an errno")
}
