//! A volume on a block device: what the kernel does for a `fuseblk` mount only.

use crate::harness::{
    Volume, allow_transport, c_path, detach, is_mounted, server, skipped, statistics, wait_until,
    with_transport,
};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use syncline_device::{FileDevice, OpenOptions};
use syncline_fs::{Fs, FsOptions, SystemClock, SystemEntropy};

/// Held by tests that call sync(2), which reaches all devices, and by those whose device it must not reach.
static SYNC: Mutex<()> = Mutex::new(());

fn alone_with_sync() -> MutexGuard<'static, ()> {
    SYNC.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held by the test that makes a mount namespace, and by those that expect umount(2) to end their mount: a copy of the
/// mount in another namespace keeps the superblock, so the kernel lets go of the device only behind that namespace.
static NAMESPACES: Mutex<()> = Mutex::new(());

fn alone_with_namespaces() -> MutexGuard<'static, ()> {
    NAMESPACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A loop device over a volume's image.
struct Loop<'a> {
    volume: &'a Volume,
    device: String,
}

impl<'a> Loop<'a> {
    fn over(volume: &'a Volume, test: &str) -> Option<Loop<'a>> {
        let losetup = Command::new("losetup").args(["--find", "--show"]).arg(volume.image()).output();
        match losetup {
            Ok(output) if output.status.success() => {
                let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                Some(Loop { volume, device })
            }
            _ => {
                skipped(test, "no loop device to be had");
                None
            }
        }
    }

    fn mount(&self, options: &str) -> Output {
        let _allowed = allow_transport();
        let mut command = Command::new(server());
        command.args(["--background", &self.device]).arg(self.volume.root()).arg(with_transport(options));
        command.output().expect("run serve")
    }
}

impl Drop for Loop<'_> {
    fn drop(&mut self) {
        detach(&self.volume.root());
        let freed = Command::new("losetup").args(["--detach", &self.device]).status();
        assert!(std::thread::panicking() || freed.is_ok_and(|status| status.success()));
    }
}

/// Ends the daemon that serves `device`, as kill(1) does.
fn kill_daemon_of(device: &str) {
    let pid = fs::read_dir("/proc").unwrap().filter_map(Result::ok).find_map(|process| {
        let line = fs::read(process.path().join("cmdline")).ok()?;
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        let ours = words.first()?.ends_with(b"serve") && words.contains(&device.as_bytes());
        if ours { process.file_name().to_str()?.parse::<libc::pid_t>().ok() } else { None }
    });
    // SAFETY: a signal to the daemon that this test has started.
    assert_eq!(unsafe { libc::kill(pid.expect("the daemon runs"), libc::SIGKILL) }, 0);
}

#[test]
fn a_block_device_is_mounted_as_such() {
    let Some(volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    let Some(device) = Loop::over(&volume, "a_block_device_is_mounted_as_such") else { return };
    for round in 0..2_u8 {
        let output = device.mount("");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(statistics(&volume.root())["transport"], crate::TRANSPORT.1);
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(table.lines().any(|line| line.contains("fuseblk.syncline") && line.contains(&device.device)));
        if round > 0 {
            assert_eq!(fs::read(volume.path("f")).unwrap(), b"on a device");
        }
        fs::write(volume.path("f"), b"on a device").unwrap();
        let again = device.mount("");
        assert!(!again.status.success(), "a second mount of the device");
        syncline_fuse::unmount(&volume.root(), false).unwrap();
    }
}

#[test]
fn syncfs_makes_everything_durable() {
    let Some(volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    let Some(device) = Loop::over(&volume, "syncfs_makes_everything_durable") else { return };
    let _alone = alone_with_sync();
    assert!(device.mount("volatile,commit=1000").status.success());
    fs::create_dir(volume.path("d")).unwrap();
    fs::write(volume.path("d/large"), vec![5; 300_000]).unwrap();
    fs::write(volume.path("small"), b"small").unwrap();
    let root = File::open(volume.root()).unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::syncfs(root.as_raw_fd()) }, 0);
    drop(root);
    assert!(statistics(&volume.root())["messages"]["syncfs"].as_u64().is_some_and(|count| count >= 1));
    fs::write(volume.path("later"), b"not synced").unwrap();
    kill_daemon_of(&device.device);
    detach(&volume.root());
    assert!(device.mount("").status.success());
    assert!(fs::read(volume.path("d/large")).unwrap() == vec![5; 300_000]);
    assert_eq!(fs::read(volume.path("small")).unwrap(), b"small");
    assert!(!volume.path("later").exists());
    syncline_fuse::unmount(&volume.root(), false).unwrap();
}

#[test]
fn sync_commits_every_mounted_device() {
    let Some(volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    let Some(device) = Loop::over(&volume, "sync_commits_every_mounted_device") else { return };
    let _alone = alone_with_sync();
    assert!(device.mount("volatile,commit=1000").status.success());
    fs::write(volume.path("large"), vec![5; 300_000]).unwrap();
    fs::rename(volume.path("large"), volume.path("renamed")).unwrap();
    // SAFETY: no preconditions.
    unsafe { libc::sync() };
    assert!(statistics(&volume.root())["messages"]["syncfs"].as_u64().is_some_and(|count| count >= 1));
    kill_daemon_of(&device.device);
    detach(&volume.root());
    assert!(device.mount("").status.success());
    assert!(fs::read(volume.path("renamed")).unwrap() == vec![5; 300_000]);
    syncline_fuse::unmount(&volume.root(), false).unwrap();
}

/// Batches that recovery finds in a copy of the image as it is now.
fn batches_left(image: &Path) -> u64 {
    let copy = image.with_extension("copy");
    fs::copy(image, &copy).unwrap();
    let device = Arc::new(FileDevice::open(&copy, &OpenOptions::default()).unwrap());
    let options = FsOptions::default().read_only(true);
    let opened = Fs::open_reporting(device, options, Arc::new(SystemClock), &SystemEntropy::default());
    opened.unwrap().1.batches
}

#[test]
fn umount_returns_when_the_last_checkpoint_is_written() {
    let Some(volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    let Some(device) = Loop::over(&volume, "umount_returns_when_the_last_checkpoint") else { return };
    let _alone = alone_with_namespaces();
    assert!(device.mount("commit=1000").status.success());
    for number in 0..300 {
        fs::write(volume.path(&format!("f{number}")), vec![7; 20_000]).unwrap();
    }
    File::open(volume.path("f0")).unwrap().sync_all().unwrap();
    assert!(batches_left(&volume.image()) > 0, "so far it is in the journal");
    let root = c_path(&volume.root());
    // What umount(8) does, and nothing else.
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::umount2(root.as_ptr(), 0) }, 0);
    assert_eq!(batches_left(&volume.image()), 0);
    assert!(!is_mounted(&volume.root()));
}

#[test]
fn unmounting_returns_when_the_kernel_has_let_go_of_the_device_as_well() {
    let Some(volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    let test = "unmounting_returns_when_the_kernel_has_let_go_of_the_device_as_well";
    let Some(device) = Loop::over(&volume, test) else { return };
    let _alone = alone_with_namespaces();
    assert!(device.mount("").status.success());
    // In a namespace of its own the mount outlives umount(2), up to the end of the last process there.
    let holder = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo there; read -r end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut holder) = holder else { return skipped(test, "no unshare(1)") };
    let mut told = [0; 5];
    if holder.stdout.take().unwrap().read_exact(&mut told).is_err() {
        holder.wait().unwrap();
        return skipped(test, "no mount namespace to be had");
    }
    let root = volume.root();
    let unmounting = std::thread::spawn(move || syncline_fuse::unmount(&root, false));
    wait_until("the mount is gone here", || !is_mounted(&volume.root()));
    assert!(!unmounting.is_finished(), "the volume is in use");
    drop(holder.stdin.take());
    unmounting.join().unwrap().unwrap();
    File::options()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(&device.device)
        .expect("nobody has claimed it");
    holder.wait().unwrap();
}

#[test]
fn a_trim_reaches_what_is_below_the_device() {
    use std::os::unix::fs::MetadataExt;
    let test = "a_trim_reaches_what_is_below_the_device";
    let Some(volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    let Some(device) = Loop::over(&volume, test) else { return };
    assert!(device.mount("").status.success());
    fs::write(volume.path("goes"), vec![2; 24 << 20]).unwrap();
    fs::write(volume.path("stays"), vec![1; 8 << 20]).unwrap();
    File::open(volume.root()).unwrap().sync_all().unwrap();
    fs::remove_file(volume.path("goes")).unwrap();
    let held = || fs::metadata(volume.image()).unwrap().blocks() * 512;
    let before = held();
    match Command::new("fstrim").arg("-v").arg(volume.root()).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => return skipped(test, "there is no fstrim"),
    }
    assert!(held() + (23 << 20) <= before, "{} of {before} bytes are left", held());
    syncline_fuse::unmount(&volume.root(), false).unwrap();
    assert!(device.mount("").status.success());
    assert!(fs::read(volume.path("stays")).unwrap() == vec![1; 8 << 20]);
    syncline_fuse::unmount(&volume.root(), false).unwrap();
}
