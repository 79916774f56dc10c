//! Who else uses a device: our lock, the kernel's claim, the table of mounts.
//!
//! Four checks, because each sees what the others do not:
//! - `flock` on the opened file keeps out other users of this crate, as long as they come through the same
//!   inode: a second device node of one block device (another `mknod`) has locks of its own, which leaves
//!   that case to the third check;
//! - a lock on the *bytes* in use (`F_OFD_SETLK`), of the opened file and, below a loop device, of the file it shows: the same
//!   image is kept apart by its name, through a loop device, and through two of them, while two partitions of one image are not.
//!   Unlike the flock, that of a file below a loop device does not outlive a dead process for its requests in flight;
//!   Who serves a mount leaves the far end of its range free: there others see whether it is worth waiting ([`FileDevice::hold_for_mount`]);
//! - the kernel's exclusive claim of a block device (O_EXCL), held by mounts (fuseblk ones too), swap, RAID,
//!   LVM. It is tried and given back at once, since our own fuseblk mount claims the device later. So there
//!   is a race: two openers through different nodes, both before either mounts, pass; the second one's mount
//!   then fails.
//! - `/proc/self/mountinfo` tells where a claimed device is mounted. It sees this mount namespace only.
//!
//! An image file that a loop device exposes is checked by that loop device's claim, and so are other loop devices on the same
//! bytes. A loop device in another mount namespace whose backing file has another name there is not found.

use super::loops::{self, Backing};
use super::{FileDevice, Kind};
use crate::{OpenError, OpenStep};
use rustix::fs::FlockOperation;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
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

/// Length of a lock that reaches to the end of its file, wherever that is.
const TO_THE_END: u64 = 0;

/// From this byte on the range is free if the holder serves a mount. No device has it: it is far beyond the largest volume.
const FREE_FOR_MOUNTS: u64 = 1 << 62;

/// Until when to retry.
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(patience: Duration) -> Deadline {
        Deadline(Instant::now() + patience)
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

/// Locks the open file against other openers until it is closed: exclusively, or among readers.
pub(super) fn lock(
    file: &File,
    path: &Path,
    kind: Kind,
    shared: bool,
    deadline: &Deadline,
) -> Result<(), OpenError> {
    let operation = match shared {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    let patient = Deadline(deadline.0.max(Instant::now() + UDEV_PATIENCE));
    let deadline = if kind == Kind::BlockDevice { &patient } else { deadline };
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
pub(super) struct Below(Vec<File>);

impl Drop for Below {
    fn drop(&mut self) {
        self.0.iter().for_each(unlock_bytes);
    }
}

/// Locks the bytes that the device uses against other openers, of the opened file and of whatever lies below it.
pub(super) fn lock_bytes(
    file: &File,
    path: &Path,
    shared: bool,
    deadline: &Deadline,
) -> Result<Below, OpenError> {
    let locked = |file: &File, start: u64, length: u64| {
        deadline.retry(|| match set_bytes_lock(file, lock_type(shared), start, length) {
            Err(libc::EAGAIN | libc::EACCES) => Err(OpenError::Locked { path: path.to_owned() }),
            // A filesystem that knows no such locks has the flock.
            _ => Ok(()),
        })
    };
    locked(file, 0, TO_THE_END)?;
    let mut below = Below(Vec::new());
    let mut next = Backing::of(path);
    while let Some(backing) = next {
        // Who may use the loop device only, and not its file, cannot lock that.
        let Ok(file) = File::options().read(true).write(!shared).open(&backing.file) else { break };
        locked(&file, backing.start, backing.end - backing.start)?;
        below.0.push(file);
        next = backing.below();
    }
    Ok(below)
}

/// Closing is not enough (see the device's `drop`).
pub(super) fn unlock_bytes(file: &File) {
    // One that fails is left to the close.
    let _ = set_bytes_lock(file, libc::F_UNLCK, 0, TO_THE_END);
}

impl FileDevice {
    /// Tells others that a mount is served from here. What such a holder has is not for ever once it is in no table of mounts:
    /// it is being left, or on its way there. A process that dies takes this back with its locks.
    pub fn hold_for_mount(&self) {
        // One that fails leaves others less patient.
        let _ = set_bytes_lock(&self.file, libc::F_UNLCK, FREE_FOR_MOUNTS, TO_THE_END);
    }

    /// Whether what holds a device may be one that called [`FileDevice::hold_for_mount`]. False only if somebody holds it who did not:
    /// nobody knows when such a program ends. Who came through a loop device, or a host that cannot tell, counts as one that did.
    pub fn may_be_held_for_mount(path: &Path) -> bool {
        let below = std::iter::successors(Backing::of(path), Backing::below).map(|backing| backing.file);
        !std::iter::once(path.to_owned()).chain(below).any(|path| holds_to_the_end(&path))
    }
}

/// Whether somebody's lock covers what those leave free who serve a mount.
fn holds_to_the_end(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let lock = bytes_lock(libc::F_WRLCK, FREE_FOR_MOUNTS, TO_THE_END);
    let Ok(mut lock) = lock else { return false };
    // SAFETY: the descriptor is open, and the structure is valid while the call runs, which writes a conflicting lock into it.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    asked == 0 && i32::from(lock.l_type) != libc::F_UNLCK
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

/// Where the block device, or the image file through a loop device or as the source of a FUSE mount, is
/// mounted, as far as this mount namespace tells. Of a loop device also where its file is the source of a FUSE mount, and where
/// another loop device on the same bytes is mounted.
pub fn is_mounted(path: &Path) -> Option<PathBuf> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let mut devices = loops::on_file(path);
    devices.push(path.to_owned());
    devices.extend(Backing::of(path).map(|backing| backing.file));
    devices.extend(loops::beside(path));
    devices.iter().find_map(|device| mount_point(&mounts, device))
}

fn check_claim(device: &Path) -> Result<(), OpenError> {
    let claimed = File::options().read(true).custom_flags(libc::O_EXCL).open(device);
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
    mountinfo.split(|&byte| byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        let source = unescape(fields.get(separator + 2)?);
        let on_device = number.as_deref() == fields.get(2).copied();
        let from_source = source.is_absolute() && same_file(&source, &metadata).unwrap_or(false);
        (on_device || from_source).then(|| fields.get(4).map(|point| unescape(point)))?
    })
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
            assert!(matches!(again, Err(OpenError::Locked { .. })));
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
