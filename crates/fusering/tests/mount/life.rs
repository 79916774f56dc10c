//! Beginning and end of a session.

use crate::filesystem::{MemoryFilesystem, config};
use crate::harness::{Test, c_path, errno, over_both_transports, wait_until};
use crate::kernel::{UringSwitch, skipped};
use crate::scripted::Scripted;
use fusering::abi::InitFlags;
use fusering::{
    Config, Error, MountOptions, Session, TransportChoice, TransportKind, UringParameter, UringUnavailable,
    mounted_at,
};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

over_both_transports!(
    callers_of_a_killed_daemon_get_an_error,
    a_mount_in_use_stays,
    the_mount_is_gone_after_the_session,
    destroy_is_the_last_call_and_unmounting_a_device_waits_for_it,
    a_device_passes_syncfs_on,
    a_connection_can_be_handed_in,
    what_the_kernel_does_not_offer_is_refused,
);

const DAEMON_DIRECTORY: &str = "FUSERING_TEST_DAEMON_DIRECTORY";
const DAEMON_TRANSPORT: &str = "FUSERING_TEST_DAEMON_TRANSPORT";

/// Not a test of its own: what `callers_of_a_killed_daemon_get_an_error` starts as another process.
#[test]
fn daemon_of_other_tests() {
    let Some(directory) = std::env::var_os(DAEMON_DIRECTORY) else { return };
    let transport = match std::env::var(DAEMON_TRANSPORT).as_deref() {
        Ok("uring") => TransportChoice::Uring,
        _ => TransportChoice::Dev,
    };
    let config = Config::default().transport(transport);
    let filesystem = Arc::new(Scripted::default());
    let session = Session::mount(filesystem, Path::new(&directory), &MountOptions::default(), &config);
    let session = session.expect("mounted");
    println!("\nserving over {}", session.transport().kind);
    session.run().expect("served");
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn callers_of_a_killed_daemon_get_an_error(test: &Test) {
    let Some(leave) = test.leave() else { return };
    let dir = tempfile::tempdir().expect("temporary directory");
    let transport = if test.transport == TransportKind::Uring { "uring" } else { "dev" };
    let child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "life::daemon_of_other_tests", "--nocapture"])
        .env(DAEMON_DIRECTORY, dir.path())
        .env(DAEMON_TRANSPORT, transport)
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut daemon = Daemon(child);
    let mut lines = BufReader::new(daemon.0.stdout.take().expect("piped")).lines();
    let said = lines.find_map(|line| line.expect("text").strip_prefix("serving over ").map(str::to_owned));
    assert_eq!(said.as_deref(), Some(test.transport.name()));
    drop(leave);
    let open = |name: &str| File::open(dir.path().join(name)).expect("open");
    let blocked = open("blocked");
    let held: Vec<File> = (0..10).map(|number| open(&format!("held{number}"))).collect();
    std::thread::scope(|scope| {
        let mut waiting: Vec<_> = held.iter().map(|file| scope.spawn(|| file.sync_all())).collect();
        waiting.push(scope.spawn(|| blocked.read_at(&mut [0; 10], 0).map(drop)));
        // They are on their way, or will be answered without the daemon: both is to end with an error.
        std::thread::sleep(Duration::from_millis(50));
        daemon.0.kill().expect("kill");
        daemon.0.wait().expect("wait");
        for thread in waiting {
            let errno = errno(thread.join().expect("no panic"));
            // ECANCELED: the request was just on its way to a thread that was being killed.
            let ends = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];
            assert!(ends.contains(&errno), "errno {errno}");
        }
    });
    assert_eq!(errno(fs::metadata(dir.path().join("polled"))), libc::ENOTCONN);
    drop((held, blocked));
    let path = c_path(dir.path());
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }, 0);
}

fn a_mount_in_use_stays(test: &Test) {
    let Some(mut mount) = test.mount(Scripted::default(), Config::default()) else { return };
    let file = File::open(mount.path("cached")).expect("open");
    let refused = mount.session.unmount();
    assert!(
        matches!(&refused, Err(Error::Unmount { source, .. }) if source.raw_os_error() == Some(libc::EBUSY)),
        "{refused:?}"
    );
    file.sync_all().expect("it works as before");
    drop(file);
    mount.unmount();
    assert_eq!(mount.filesystem.state().calls.last(), Some(&"destroy"));
}

fn the_mount_is_gone_after_the_session(test: &Test) {
    let Some(mut mount) = test.mount(MemoryFilesystem::new(), config()) else { return };
    let entry = mounted_at(mount.root()).expect("table").expect("mounted");
    assert_eq!((entry.kind.as_str(), entry.source.as_path()), ("fuse.fusering", Path::new("fusering")));
    fs::write(mount.path("a"), "x").expect("write");
    mount.unmount();
    assert_eq!(mounted_at(mount.root()).expect("table"), None);
    assert!(!mount.path("a").exists());
}

/// A loop device over a file, freed when dropped.
struct LoopDevice {
    path: String,
    _file: tempfile::NamedTempFile,
}

impl LoopDevice {
    fn new() -> Result<LoopDevice, String> {
        let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        file.as_file().set_len(1 << 20).map_err(|error| error.to_string())?;
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file.path()).output();
        let output = output.map_err(|error| format!("losetup: {error}"))?;
        if !output.status.success() {
            return Err(format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(LoopDevice { path: String::from_utf8_lossy(&output.stdout).trim().to_owned(), _file: file })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.path]).status();
    }
}

/// A loop device and the options to mount it; says so if there is none.
fn device(test: &Test) -> Option<(LoopDevice, MountOptions)> {
    if !fusering::may_mount() {
        test.skip("mounting needs root");
        return None;
    }
    match LoopDevice::new() {
        Ok(device) => {
            let source = device.path.clone();
            Some((device, MountOptions::default().source(source).block_device(4096)))
        }
        Err(why) => {
            test.skip(&format!("no loop device: {why}"));
            None
        }
    }
}

fn destroy_is_the_last_call_and_unmounting_a_device_waits_for_it(test: &Test) {
    let Some((device, options)) = device(test) else { return };
    let filesystem = Scripted { destroy_takes: Duration::from_millis(300), ..Scripted::default() };
    let Some(mount) = test.mount_with(filesystem, Config::default(), &options) else { return };
    let entry = mounted_at(mount.root()).expect("table").expect("mounted");
    assert_eq!((entry.kind.as_str(), entry.source.as_path()), ("fuseblk.fusering", Path::new(&device.path)));
    drop(File::open(mount.path("cached")).expect("open"));
    let path = c_path(mount.root());
    wait_until("the mount is let go", || {
        // SAFETY: a NUL-terminated path.
        unsafe { libc::umount2(path.as_ptr(), 0) == 0 }
    });
    let calls = mount.filesystem.state().calls.clone();
    assert_eq!(calls, ["release", "destroy"], "umount returns when destroy has");
}

fn a_device_passes_syncfs_on(test: &Test) {
    let Some((_device, options)) = device(test) else { return };
    let Some(mut mount) = test.mount_with(Scripted::default(), Config::default(), &options) else { return };
    let root = File::open(mount.root()).expect("open");
    let synced = mount.filesystem.state().synced;
    // SAFETY: an open descriptor.
    assert_eq!(unsafe { libc::syncfs(root.as_raw_fd()) }, 0);
    assert!(mount.filesystem.state().synced > synced);
    drop(root);
    mount.unmount();
}

fn a_connection_can_be_handed_in(test: &Test) {
    let Some(leave) = test.leave() else { return };
    let dir = tempfile::tempdir().expect("temporary directory");
    let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse").expect("open").into();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let (path, data) = (c_path(dir.path()), c_path(Path::new(&data)));
    // SAFETY: NUL-terminated strings.
    let mounted =
        unsafe { libc::mount(c"own".as_ptr(), path.as_ptr(), c"fuse.own".as_ptr(), 0, data.as_ptr().cast()) };
    assert_eq!(mounted, 0, "mount: {}", std::io::Error::last_os_error());
    let session =
        Session::from_fd(Arc::new(MemoryFilesystem::new()), device, &test.config(config())).expect("session");
    drop(leave);
    assert_eq!(session.transport().kind, test.transport);
    assert!(session.unmounter().is_none());
    let session = session.spawn().expect("thread");
    fs::write(dir.path().join("a"), "x").expect("write");
    wait_until("the mount is let go", || {
        // SAFETY: a NUL-terminated path.
        unsafe { libc::umount2(path.as_ptr(), 0) == 0 }
    });
    session.wait().expect("served");
}

fn what_the_kernel_does_not_offer_is_refused(test: &Test) {
    let Some(leave) = test.leave() else { return };
    let dir = tempfile::tempdir().expect("temporary directory");
    let missing = InitFlags(1 << 63);
    let config = test.config(config().required(missing));
    let refused =
        Session::mount(Arc::new(MemoryFilesystem::new()), dir.path(), &MountOptions::default(), &config);
    drop(leave);
    assert!(matches!(refused, Err(Error::Missing { missing: found }) if found == missing));
    assert_eq!(mounted_at(dir.path()).expect("table"), None, "nothing is left mounted");
}

#[test]
fn without_leave_for_io_uring_dev_fuse_serves_and_says_why() {
    let name = "without_leave_for_io_uring_dev_fuse_serves_and_says_why";
    let leave = match UringSwitch::set(false) {
        Ok(leave) => leave,
        Err(why) => return skipped(name, &why),
    };
    let dir = tempfile::tempdir().expect("temporary directory");
    let mount = |transport| {
        let config = config().transport(transport);
        Session::mount(Arc::new(MemoryFilesystem::new()), dir.path(), &MountOptions::default(), &config)
    };
    let session = mount(TransportChoice::Auto).expect("mounted");
    let transport = session.transport().clone();
    drop(session);
    let refused = mount(TransportChoice::Uring);
    drop(leave);
    assert_eq!(transport.kind, TransportKind::Dev);
    assert_eq!(transport.uring_unavailable, Some(UringUnavailable::NotOffered(UringParameter::Off)));
    assert!(transport.to_string().contains("enable_uring is N"), "{transport}");
    assert!(matches!(refused, Err(Error::NoUring(UringUnavailable::NotOffered(UringParameter::Off)))));
    assert_eq!(mounted_at(dir.path()).expect("table"), None);
}
