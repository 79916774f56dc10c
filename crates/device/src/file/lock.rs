//! Who else uses a device: our lock, the kernel's claim, the table of mounts.
//!
//! Four checks, because each sees what the others do not:
//! - a lock on the *bytes* in use (`F_OFD_SETLK`), of the opened file and, below a loop device, of the file it shows:
//!   the same image is kept apart by its name, through a loop device, and through two of them, while two partitions
//!   of one image are not. An exclusive one needs write permission, so that who writes is told from who merely reads
//!   ([`OpenError::ReadLocked`]). That of a file below a loop device does not outlive a dead process for its requests
//!   in flight; that of the opened file does. Who serves a mount leaves the far end of its range free: there others
//!   see whether it is worth waiting ([`FileDevice::hold_for_mount`]);
//! - `flock` on a block device, which udev and partition tools heed, and on an image whose filesystem knows no locks
//!   on bytes. Whoever may read a file may flock it, even exclusively, so other images are not flocked, and nobody's
//!   flock holds them up. A second device node of one block device (another `mknod`) has locks of its own, which
//!   leaves that case to the third check;
//! - the kernel's exclusive claim of a block device (O_EXCL), held by mounts (fuseblk ones too), swap, RAID,
//!   LVM. It is tried and given back at once, since our own fuseblk mount claims the device later. So there
//!   is a race: two openers through different nodes, both before either mounts, pass; the second one's mount
//!   then fails.
//! - `/proc/self/mountinfo` tells where a claimed device is mounted. It sees this mount namespace only.
//!
//! All descriptors that hold a lock or a claim are `Private`: a forked child closes its copies at once, since it
//! would otherwise hold the locks for as long as it lives.
//!
//! An image file that a loop device exposes is checked by that loop device's claim, and so are other loop devices on
//! the same bytes. A loop device in another mount namespace whose backing file has another name there is not found.

use super::loops::{self, Backing};
use super::{FileDevice, Kind, Opened};
use crate::process::Private;
use crate::{OpenError, OpenStep};
use rustix::fs::FlockOperation;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between two tries for a lock.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Block devices are retried at least this long: udev holds a lock while it looks at a device that was just
/// closed by a writer.
const UDEV_PATIENCE: Duration = Duration::from_secs(1);
/// The kernel's claim is tried by taking it for a moment; another opener's moment is soon over. So is that of a child
/// which is just being forked and has not closed its copy yet.
const CLAIM_PATIENCE: Duration = Duration::from_millis(200);

/// Length of a lock that reaches to the end of its file, wherever that is.
const TO_THE_END: u64 = 0;

/// From this byte on the range is free if the holder serves a mount. No device has it: it is far beyond the largest
/// volume.
const FREE_FOR_MOUNTS: u64 = 1 << 62;

/// Until when to retry.
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(patience: Duration) -> Deadline {
        Deadline(Instant::now() + patience)
    }

    /// The same, but late enough that nobody is refused who meets another opener's try for the claim.
    pub(super) fn for_claims(&self) -> Deadline {
        Deadline(self.0.max(Instant::now() + CLAIM_PATIENCE))
    }

    /// Tries until it succeeds, fails by something other than another user of the device, or the deadline
    /// passes.
    pub(super) fn retry<T>(&self, mut attempt: impl FnMut() -> Result<T, OpenError>) -> Result<T, OpenError> {
        loop {
            let result = attempt();
            let busy = matches!(&result, Err(error) if error.errno() == libc::EBUSY);
            let left = self.0.saturating_duration_since(Instant::now());
            if !busy || left.is_zero() {
                return result;
            }
            std::thread::sleep(RETRY_PAUSE.min(left));
        }
    }
}

/// Locks the open file, and whatever lies below it, against other openers until it is closed: exclusively, or among
/// readers.
pub(super) fn lock(
    file: &File,
    path: &Path,
    kind: Kind,
    shared: bool,
    deadline: &Deadline,
) -> Result<Below, OpenError> {
    if kind == Kind::BlockDevice {
        let patient = Deadline(deadline.0.max(Instant::now() + UDEV_PATIENCE));
        flock(file, path, shared, &patient)?;
    }
    let known = lock_bytes(file, path, shared, 0..TO_THE_END, deadline)?;
    if !known && kind == Kind::Image {
        flock(file, path, shared, deadline)?;
    }
    let mut below = Below(Vec::new());
    let mut next = Backing::of(path);
    while let Some(backing) = next {
        // Who may use the loop device only, and not its file, cannot lock that.
        let Ok(file) = Private::open(|| open_to_ask(&backing.file, !shared).ok_or(())) else { break };
        lock_bytes(&file, path, shared, backing.start..backing.end, deadline)?;
        below.0.push(file);
        next = backing.below();
    }
    Ok(below)
}

fn flock(file: &File, path: &Path, shared: bool, deadline: &Deadline) -> Result<(), OpenError> {
    let operation = match shared {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    deadline.retry(|| match rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation)) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Locked { path: path.to_owned() }),
        Err(error) => {
            let errno = error.raw_os_error();
            Err(OpenError::Io { step: OpenStep::Lock, path: path.to_owned(), errno })
        }
    })
}

/// Locks on bytes of the files that lie below a loop device; given back when dropped.
pub(super) struct Below(Vec<Private<File>>);

impl Drop for Below {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| unlock_bytes(file));
    }
}

/// Locks a range of bytes; false if the filesystem knows no such locks.
fn lock_bytes(
    file: &File,
    path: &Path,
    shared: bool,
    range: Range<u64>,
    deadline: &Deadline,
) -> Result<bool, OpenError> {
    let length = range.end.saturating_sub(range.start);
    let locked = deadline.retry(|| match set_bytes_lock(file, lock_type(shared), range.start, length) {
        Ok(()) => Ok(true),
        Err(libc::EAGAIN | libc::EACCES) => Err(match holder(file, range.start, length) {
            Some(Holder::Reader { process }) => OpenError::ReadLocked { path: path.to_owned(), process },
            _ => OpenError::Locked { path: path.to_owned() },
        }),
        Err(_) => Ok(false),
    });
    locked.map_err(|error| match error {
        OpenError::ReadLocked { path, process: None } => {
            OpenError::ReadLocked { path, process: process_that_reads(file) }
        }
        error => error,
    })
}

/// The process that has a shared lock on the file, where the kernel tells it of a lock only that it is one of an open
/// file. Those of other users are seen by root.
fn process_that_reads(file: &File) -> Option<i32> {
    let wanted = file.metadata().ok()?;
    let inode = format!(":{}", wanted.ino());
    // The kernel's own text is read first. To ask for the attributes of any file that somebody has open would wait for
    // the filesystems of all of them, and one may never answer.
    let tells = |line: &str| {
        line.strip_prefix("lock:").is_some_and(|lock| {
            let mut words = lock.split_ascii_whitespace();
            words.any(|word| word == "READ") && words.any(|word| word.ends_with(&inode))
        })
    };
    let locks = |process: &Path, descriptor: &OsStr| {
        let told = std::fs::read_to_string(process.join("fdinfo").join(descriptor)).ok();
        let is_told = told.is_some_and(|told| told.lines().any(tells));
        let found = is_told.then(|| std::fs::metadata(process.join("fd").join(descriptor)).ok()).flatten();
        found.is_some_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
    };
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let number = process.file_name().to_str()?.parse().ok()?;
        let mut open = std::fs::read_dir(process.path().join("fd")).ok()?.flatten();
        open.any(|entry| locks(&process.path(), &entry.file_name())).then_some(number)
    })
}

/// Whose lock on bytes is in the way of an exclusive one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// Somebody who has the file open for writing: nobody else is given such a lock.
    Writer,
    /// Somebody who needs no more than to read the file; its process, if the kernel tells.
    Reader { process: Option<i32> },
}

fn holder(file: &File, start: u64, length: u64) -> Option<Holder> {
    // Only an exclusive lock is in the way of a shared one.
    if conflicting(file, libc::F_RDLCK, start, length).is_some() {
        return Some(Holder::Writer);
    }
    let lock = conflicting(file, libc::F_WRLCK, start, length)?;
    Some(match i32::from(lock.l_type) {
        libc::F_WRLCK => Holder::Writer,
        _ => Holder::Reader { process: Some(lock.l_pid).filter(|&process| process > 0) },
    })
}

/// A lock of somebody else that is in the way of one of this kind.
fn conflicting(file: &File, kind: i32, start: u64, length: u64) -> Option<libc::flock> {
    let mut lock = bytes_lock(kind, start, length).ok()?;
    // SAFETY: the descriptor is open, and the structure is valid while the call runs, which writes a conflicting lock
    // into it.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    (asked == 0 && i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock)
}

/// Opens what may have become anything since it was looked at; never waits, as opening a FIFO does.
fn open_to_ask(path: &Path, write: bool) -> Option<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).write(write).custom_flags(flags).open(path).ok()?;
    let kind = file.metadata().ok()?.file_type();
    (kind.is_file() || kind.is_block_device()).then_some(file)
}

/// Whether somebody has the image or device open in order to write a volume. One that cannot be looked at counts as
/// free.
pub fn is_held(path: &Path) -> bool {
    let Some(file) = open_to_ask(path, false) else { return false };
    if conflicting(&file, libc::F_RDLCK, 0, TO_THE_END).is_some() {
        return true;
    }
    let knows_bytes = set_bytes_lock(&file, libc::F_RDLCK, 0, TO_THE_END).is_ok();
    let is_image = file.metadata().is_ok_and(|metadata| metadata.is_file());
    // The lock that this takes is dropped with the file.
    !(is_image && knows_bytes)
        && rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
            == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Closing is not enough (see the device's `drop`).
pub(super) fn unlock_bytes(file: &File) {
    // One that fails is left to the close.
    let _ = set_bytes_lock(file, libc::F_UNLCK, 0, TO_THE_END);
}

impl FileDevice {
    /// Tells others that a mount is served from here. What such a holder has is not for ever once it is in no table
    /// of mounts: it is being left, or on its way there. A process that dies takes this back with its locks.
    pub fn hold_for_mount(&self) {
        let Ok(Opened { file, .. }) = self.opened.get() else { return };
        // One that fails leaves others less patient.
        let _ = set_bytes_lock(file, libc::F_UNLCK, FREE_FOR_MOUNTS, TO_THE_END);
    }

    /// Whether what holds a device may be one that called [`FileDevice::hold_for_mount`]. False only if somebody
    /// holds it who did not: nobody knows when such a program ends. Who came through a loop device, or a host that
    /// cannot tell, counts as one that did.
    pub fn may_be_held_for_mount(path: &Path) -> bool {
        let below = std::iter::successors(Backing::of(path), Backing::below).map(|backing| backing.file);
        !std::iter::once(path.to_owned()).chain(below).any(|path| holds_to_the_end(&path))
    }
}

/// Whether somebody's lock covers what those leave free who serve a mount.
fn holds_to_the_end(path: &Path) -> bool {
    let file = open_to_ask(path, false);
    file.is_some_and(|file| conflicting(&file, libc::F_WRLCK, FREE_FOR_MOUNTS, TO_THE_END).is_some())
}

fn lock_type(shared: bool) -> i32 {
    if shared { libc::F_RDLCK } else { libc::F_WRLCK }
}

/// The error is an errno.
fn set_bytes_lock(file: &File, kind: i32, start: u64, length: u64) -> Result<(), i32> {
    let lock = bytes_lock(kind, start, length)?;
    // SAFETY: the descriptor is open, and the structure is valid while the call runs.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

fn bytes_lock(kind: i32, start: u64, length: u64) -> Result<libc::flock, i32> {
    let offset = |bytes: u64| libc::off_t::try_from(bytes).map_err(|_| libc::EOVERFLOW);
    // SAFETY: all-zero is a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (offset(start)?, offset(length)?);
    Ok(lock)
}

/// Refuses a device that the kernel uses: mounted, claimed by another driver, or the file behind a loop
/// device in use.
pub fn in_use_by_kernel(path: &Path) -> Result<(), OpenError> {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
        check_claim(path)?;
        let used = loops::beside(path).into_iter().find(|device| check_claim(device).is_err());
        return used.map_or(Ok(()), |device| Err(OpenError::SameFile { path: path.to_owned(), device }));
    }
    for device in loops::on_file(path) {
        if check_claim(&device).is_err() {
            return Err(OpenError::BehindLoopDevice { path: path.to_owned(), device });
        }
    }
    Ok(())
}

/// Where the block device, or the image file through a loop device or as the source of a FUSE mount, is mounted, as
/// far as this mount namespace tells. Of a loop device also where its file is the source of a FUSE mount, and where
/// another loop device on the same bytes is mounted.
pub fn is_mounted(path: &Path) -> Option<PathBuf> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let mut devices = loops::on_file(path);
    devices.push(path.to_owned());
    devices.extend(Backing::of(path).map(|backing| backing.file));
    devices.extend(loops::beside(path));
    devices.iter().find_map(|device| mount_point(&mounts, device))
}

/// Where what has this name, and is no file, is mounted: a device that is reached by a network.
pub fn is_mounted_as(name: &OsStr) -> Option<PathBuf> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let is_it = |mount: &MountLine<'_>| mount.source().as_os_str() == name && mount.kind.starts_with(b"fuse");
    mounts.split(|&byte| byte == b'\n').filter_map(MountLine::of).find(is_it).map(|mount| mount.point())
}

fn check_claim(device: &Path) -> Result<(), OpenError> {
    let flags = libc::O_EXCL | libc::O_NONBLOCK;
    let claimed = Private::open(|| File::options().read(true).custom_flags(flags).open(device));
    match claimed {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let path = device.to_owned();
            Err(match is_mounted(device) {
                Some(on) => OpenError::Mounted { path, on },
                None => OpenError::Claimed { path },
            })
        }
        // The claim is given back at once. Whatever else fails is no claim.
        _ => Ok(()),
    }
}

/// The mount point of a mount of `device` in the lines of a mountinfo file: by the filesystem's device
/// number, or by the mount's source (filesystems such as btrfs have an anonymous number).
fn mount_point(mountinfo: &[u8], device: &Path) -> Option<PathBuf> {
    let metadata = std::fs::metadata(device).ok()?;
    let number = metadata.file_type().is_block_device().then(|| {
        let number = metadata.rdev();
        format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)).into_bytes()
    });
    mountinfo.split(|&byte| byte == b'\n').filter_map(MountLine::of).find_map(|mount| {
        let source = mount.source();
        let on_device = number.as_deref() == Some(mount.number);
        let from_source = source.is_absolute() && same_file(&source, &metadata).unwrap_or(false);
        (on_device || from_source).then(|| mount.point())
    })
}

/// A line of mountinfo.
struct MountLine<'a> {
    number: &'a [u8],
    point: &'a [u8],
    kind: &'a [u8],
    source: &'a [u8],
}

impl MountLine<'_> {
    fn of(line: &[u8]) -> Option<MountLine<'_>> {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        Some(MountLine {
            number: fields.get(2)?,
            point: fields.get(4)?,
            kind: fields.get(separator + 1)?,
            source: fields.get(separator + 2)?,
        })
    }

    fn source(&self) -> PathBuf {
        unescape(self.source)
    }

    fn point(&self) -> PathBuf {
        unescape(self.point)
    }
}

fn same_file(path: &Path, metadata: &Metadata) -> io::Result<bool> {
    let other = std::fs::metadata(path)?;
    Ok(match metadata.file_type().is_block_device() {
        true => other.file_type().is_block_device() && other.rdev() == metadata.rdev(),
        false => other.dev() == metadata.dev() && other.ino() == metadata.ino(),
    })
}

/// Undoes mountinfo's octal escapes of white space and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits =
            tail.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match digits {
            Some(digits) => {
                bytes.push(
                    digits
                        .iter()
                        .fold(0, |value: u8, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
                );
                rest = &tail[3..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenOptions;

    #[test]
    fn mount_point_is_found_by_source_and_unescaped() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let source = image.path().display();
        let mountinfo = format!(
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:50 / /mnt/a\\040b rw,x shared:1 - fuse {source} rw\n"
        );
        assert_eq!(mount_point(mountinfo.as_bytes(), image.path()), Some(PathBuf::from("/mnt/a b")));
        let other = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(mount_point(mountinfo.as_bytes(), other.path()), None);
    }

    #[test]
    fn who_serves_a_mount_is_told_from_who_does_not_and_keeps_others_out_all_the_same() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        for read_only in [false, true] {
            let options = OpenOptions { read_only, ..OpenOptions::default() };
            assert!(FileDevice::may_be_held_for_mount(image.path()), "nobody holds it");
            let device = FileDevice::open(image.path(), &options).unwrap();
            assert!(!FileDevice::may_be_held_for_mount(image.path()));
            device.hold_for_mount();
            assert!(FileDevice::may_be_held_for_mount(image.path()));
            let again = FileDevice::open(image.path(), &OpenOptions::default());
            match read_only {
                true => assert!(matches!(again, Err(OpenError::ReadLocked { .. }))),
                false => assert!(matches!(again, Err(OpenError::Locked { .. }))),
            }
            drop(device);
        }
        // Where the flock is another one, through a loop device, the bytes keep them apart.
        let device = FileDevice::open(image.path(), &OpenOptions::default()).unwrap();
        device.hold_for_mount();
        let other = File::options().read(true).write(true).open(image.path()).unwrap();
        let last_block = set_bytes_lock(&other, libc::F_WRLCK, (1 << 20) - 4096, 4096);
        assert_eq!(last_block, Err(libc::EAGAIN));
    }

    #[test]
    fn plain_image_is_neither_mounted_nor_in_use() {
        let image = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(is_mounted(image.path()), None);
        assert_eq!(in_use_by_kernel(image.path()), Ok(()));
    }
}
