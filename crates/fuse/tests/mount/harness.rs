//! A mounted volume for one test.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Default size of a test volume.
pub const VOLUME_BYTES: u64 = 64 << 20;

#[path = "../../../fusering/tests/support/kernel.rs"]
mod kernel;

pub use kernel::{UringSwitch, skipped};

/// Whether this machine can mount; says so if not.
pub fn can_mount() -> bool {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let thread = std::thread::current();
    let test = format!("{} over {}", thread.name().unwrap_or("a test"), crate::TRANSPORT.1);
    match (root, device) {
        (true, Ok(_)) if crate::TRANSPORT.0 == "uring" => match UringSwitch::set(true) {
            Ok(_) => true,
            Err(why) => {
                skipped(&test, &why);
                false
            }
        },
        (true, Ok(_)) => true,
        (false, _) => {
            skipped(&test, "mounting needs root");
            false
        }
        (_, Err(error)) => {
            skipped(&test, &format!("/dev/fuse cannot be opened: {error}"));
            false
        }
    }
}

/// Lets the kernel have io_uring while something is being mounted, if that is what is tested.
pub fn allow_transport() -> Option<UringSwitch> {
    let wanted = crate::TRANSPORT.0 == "uring";
    wanted.then(|| UringSwitch::set(true).expect("could be set when the test began"))
}

/// The options, with the transport of this test program before them.
pub fn with_transport(options: &str) -> String {
    let transport = format!("transport={}", crate::TRANSPORT.0);
    if options.is_empty() { transport } else { format!("{transport},{options}") }
}

/// What a mounted volume tells of itself.
pub fn statistics(root: &Path) -> serde_json::Value {
    let text = syncline_fuse::statistics(root).expect("statistics");
    serde_json::from_str(&text).expect("JSON")
}

/// How many messages of a kind the kernel has sent.
pub fn messages(root: &Path, kind: &str) -> u64 {
    statistics(root)["messages"][kind].as_u64().unwrap_or(0)
}

/// Waits until `reached`, which is asked again and again.
pub fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !reached() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Ties the calling thread to a CPU.
pub fn run_on(cpu: usize) {
    // SAFETY: a zeroed cpu_set_t is the empty set; 0 is the calling thread.
    let tied = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    assert_eq!(tied, 0, "CPU {cpu} is to be had");
}

/// The example program `serve` next to this test.
pub fn server() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its path");
    let path =
        own.parent().and_then(Path::parent).expect("tests lie in target/*/deps").join("examples/serve");
    assert!(
        path.exists(),
        "{} is missing: run `cargo build -p syncline-fuse --examples` first",
        path.display()
    );
    path
}

/// A volume in an image file, mounted or not.
pub struct Volume {
    dir: tempfile::TempDir,
    image: PathBuf,
    options: String,
    daemon: Option<Child>,
}

impl Volume {
    /// Formats an image, not mounted yet; `None` if this machine cannot mount.
    pub fn format(bytes: u64) -> Option<Volume> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let image = dir.path().join("image");
        Some(Volume::format_in(dir, bytes, image))
    }

    /// Formats and mounts a volume of version 1.
    pub fn mounted_as_version_1(options: &str) -> Option<Volume> {
        let mut volume = Volume::format(VOLUME_BYTES)?;
        fs::remove_file(volume.image()).expect("it was made");
        volume.make(&[&VOLUME_BYTES.to_string(), volume.image().to_str().expect("UTF-8"), "1"]);
        volume.mount(options).unwrap_or_else(|error| panic!("mount failed: {error}"));
        Some(volume)
    }

    /// Formats an image somewhere else.
    pub fn format_at(bytes: u64, image: &Path) -> Volume {
        let dir = tempfile::tempdir().expect("temporary directory");
        Volume::format_in(dir, bytes, image.to_owned())
    }

    fn format_in(dir: tempfile::TempDir, bytes: u64, image: PathBuf) -> Volume {
        fs::create_dir(dir.path().join("mnt")).expect("mkdir");
        let volume = Volume { dir, image, options: String::new(), daemon: None };
        volume.make(&[&bytes.to_string(), volume.image().to_str().expect("UTF-8")]);
        volume
    }

    fn make(&self, what: &[&str]) {
        let output = Command::new(server()).arg("--format").args(what).output().expect("run serve");
        assert!(output.status.success(), "formatting failed: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Formats and mounts with options.
    pub fn mounted(options: &str) -> Option<Volume> {
        let mut volume = Volume::format(VOLUME_BYTES)?;
        volume.mount(options).unwrap_or_else(|error| panic!("mount failed: {error}"));
        Some(volume)
    }

    pub fn image(&self) -> PathBuf {
        self.image.clone()
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Starts a daemon in the foreground and waits until the mount is live; the daemon's message if it is not.
    pub fn mount(&mut self, options: &str) -> Result<(), String> {
        assert!(self.daemon.is_none(), "mounted already");
        self.options = options.to_owned();
        let allowed = allow_transport();
        let mut child = self.start(options, &self.root());
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(_status) = child.try_wait().expect("wait") {
                let output = child.wait_with_output().expect("output");
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
            if is_mounted(&self.root()) && has_begun(&self.root()) {
                drop(allowed);
                self.daemon = Some(child);
                if !options.contains("transport=") {
                    assert_eq!(statistics(&self.root())["transport"], crate::TRANSPORT.1);
                }
                return Ok(());
            }
            assert!(Instant::now() < deadline, "the mount does not become live");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts a daemon on the image without waiting for anything.
    pub fn start(&self, options: &str, at: &Path) -> Child {
        let log = format!("log={}", self.dir.path().join("log").display());
        let options = with_transport(&if options.is_empty() { log } else { format!("{options},{log}") });
        Command::new(server())
            .args([self.image().as_os_str(), at.as_os_str(), options.as_ref()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start serve")
    }

    /// The daemon's process.
    pub fn daemon(&self) -> libc::pid_t {
        self.daemon.as_ref().expect("mounted").id() as libc::pid_t
    }

    /// Unmounts, and expects the daemon to end well.
    pub fn unmount(&mut self) {
        let mut daemon = self.daemon.take().expect("mounted");
        syncline_fuse::unmount(&self.root(), false).unwrap_or_else(|error| panic!("unmount failed: {error}"));
        let status = daemon.wait().expect("wait");
        assert!(status.success(), "the daemon ended with {status}: {}", self.log());
    }

    /// Unmounts and mounts again.
    pub fn remount(&mut self) {
        self.unmount();
        let options = self.options.clone();
        self.mount(&options).unwrap_or_else(|error| panic!("mount failed: {error}"));
    }

    /// Kills the daemon (with option `volatile`: a power cut), and mounts again.
    pub fn crash(&mut self) {
        let mut daemon = self.daemon.take().expect("mounted");
        daemon.kill().expect("kill");
        daemon.wait().expect("wait");
        detach(&self.root());
        let options = self.options.clone();
        self.mount(&options).unwrap_or_else(|error| panic!("mount after the crash failed: {error}"));
    }

    /// Waits for a daemon that ends by itself; its exit status.
    pub fn wait_for_daemon(&mut self) -> std::process::ExitStatus {
        let mut daemon = self.daemon.take().expect("mounted");
        daemon.wait().expect("wait")
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        detach(&self.root());
        if let Some(mut daemon) = self.daemon.take() {
            // A daemon that does not end must not keep the test from ending.
            let deadline = Instant::now() + Duration::from_secs(10);
            while daemon.try_wait().is_ok_and(|status| status.is_none()) {
                if Instant::now() > deadline {
                    let _ = daemon.kill();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

/// Whether the daemon serves; it knows its transport a moment after the first requests are answered.
pub fn has_begun(root: &Path) -> bool {
    let told = syncline_fuse::statistics(root).ok();
    let told = told.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    told.is_some_and(|told| !told["transport"].is_null())
}

pub fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let path = path.to_str().expect("UTF-8");
    table.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

/// Takes whatever is mounted there out of the tree.
pub fn detach(path: &Path) {
    let path = c_path(path);
    // SAFETY: a NUL-terminated path.
    unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
}

pub fn c_path(path: &Path) -> std::ffi::CString {
    std::ffi::CString::new(path.as_os_str().as_bytes()).expect("no NUL")
}

/// Turns a C return value into a result.
pub fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The errno of a failed result.
pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("expected an error").raw_os_error().expect("an errno")
}

/// The errno of a call on a mount whose daemon has died, once the kernel has noticed: over io_uring the connection
/// ends a moment after the process, and what is asked until then is aborted.
pub fn errno_when_dead<T: std::fmt::Debug>(mut call: impl FnMut() -> io::Result<T>) -> i32 {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let errno = errno(call());
        if !matches!(errno, libc::ECONNABORTED | libc::ECANCELED) || Instant::now() > deadline {
            return errno;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn fallocate(file: &File, mode: i32, offset: i64, len: i64) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    check(i64::from(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) })).map(drop)
}

pub fn lseek(file: &File, offset: i64, whence: i32) -> io::Result<i64> {
    // SAFETY: the descriptor is open.
    check(unsafe { libc::lseek(file.as_raw_fd(), offset, whence) })
}

pub fn renameat2(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: both paths are NUL-terminated.
    let result =
        unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
    check(i64::from(result)).map(drop)
}

pub fn setxattr(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let (path, name) = (c_path(path), std::ffi::CString::new(name).expect("no NUL"));
    // SAFETY: NUL-terminated strings; pointer and length describe `value`.
    let result =
        unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) };
    check(i64::from(result)).map(drop)
}

pub fn getxattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (c_path(path), std::ffi::CString::new(name).expect("no NUL"));
    let mut value = vec![0; 65536];
    // SAFETY: NUL-terminated strings; pointer and length describe `value`.
    let len =
        check(
            unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) }
                as i64,
        )?;
    value.truncate(len as usize);
    Ok(value)
}

pub fn listxattr(path: &Path) -> io::Result<Vec<String>> {
    let path = c_path(path);
    let mut names = vec![0_u8; 65536];
    // SAFETY: a NUL-terminated path; pointer and length describe `names`.
    let len =
        check(unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) } as i64)?;
    names.truncate(len as usize);
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<String> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.sort();
    Ok(names)
}

pub fn removexattr(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (c_path(path), std::ffi::CString::new(name).expect("no NUL"));
    // SAFETY: NUL-terminated strings.
    check(i64::from(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) })).map(drop)
}

pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Runs `action` in a child process with another user and group, and returns the errno it ended with (0: success).
pub fn as_user(uid: u32, gid: u32, action: impl FnOnce() -> io::Result<()>) -> i32 {
    as_member(uid, gid, &[], action)
}

/// The same with supplementary groups.
pub fn as_member(uid: u32, gid: u32, groups: &[u32], action: impl FnOnce() -> io::Result<()>) -> i32 {
    // SAFETY: the child only makes system calls and allocates, then ends by _exit; no lock of this process is held
    // by the calling thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: plain system calls in the child.
        let dropped = unsafe {
            libc::setgroups(groups.len(), groups.as_ptr()) == 0
                && libc::setresgid(gid, gid, gid) == 0
                && libc::setresuid(uid, uid, uid) == 0
        };
        let code = match dropped {
            false => 255,
            true => match action() {
                Ok(()) => 0,
                Err(error) => error.raw_os_error().unwrap_or(254),
            },
        };
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child was killed");
    libc::WEXITSTATUS(status)
}
