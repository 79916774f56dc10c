//! Snapshots of what is mounted on a directory: of Syncline by its `.snapshots`, of btrfs by its ioctls. No process is
//! started but to wait for what a deletion gives back.

use crate::system::command;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::OnceLock;

/// `statfs` tells these of btrfs and of FUSE.
const BTRFS: u64 = 0x9123_683E;
const FUSE: u64 = 0x6573_5546;

/// `_IOW(0x94, 23, struct btrfs_ioctl_vol_args_v2)` and `_IOW(0x94, 15, struct btrfs_ioctl_vol_args)` of linux/btrfs.h.
const SNAP_CREATE: libc::Ioctl = 0x5000_9417;
const SNAP_DESTROY: libc::Ioctl = 0x5000_940f;
const READ_ONLY: u64 = 1 << 1;

/// `struct btrfs_ioctl_vol_args_v2`.
#[repr(C)]
struct Creation {
    of: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct Deletion {
    of: i64,
    name: [u8; 4088],
}

const _: () = assert!(size_of::<Creation>() == 4096 && size_of::<Deletion>() == 4096);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Syncline,
    Btrfs,
}

/// Snapshots of what is mounted on a directory. Their kind is looked up once: on a mount of Syncline that takes two
/// messages, which are not part of what is measured.
pub(super) struct Snapshots {
    directory: PathBuf,
    kind: OnceLock<Kind>,
}

fn name_of<const BYTES: usize>(name: &str) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

impl Snapshots {
    pub(super) fn of(directory: PathBuf) -> Snapshots {
        Snapshots { directory, kind: OnceLock::new() }
    }

    /// Errors: `Unsupported` where there are no snapshots.
    fn kind(&self) -> io::Result<Kind> {
        if let Some(kind) = self.kind.get() {
            return Ok(*kind);
        }
        let kind = match rustix::fs::statfs(&self.directory)?.f_type as u64 {
            BTRFS => Kind::Btrfs,
            FUSE if self.directory.join(".snapshots").is_dir() => Kind::Syncline,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(*self.kind.get_or_init(|| kind))
    }

    /// Makes a snapshot; it is durable when this has returned.
    pub(super) fn make(&self, name: &str) -> io::Result<()> {
        match self.kind()? {
            Kind::Syncline => fs::create_dir(self.directory.join(".snapshots").join(name)),
            Kind::Btrfs => {
                let root = File::open(&self.directory)?;
                let of = i64::from(root.as_raw_fd());
                let asked =
                    Creation { of, transaction: 0, flags: READ_ONLY, unused: [0; 4], name: name_of(name) };
                request(&root, SNAP_CREATE, &asked)
            }
        }
    }

    pub(super) fn delete(&self, name: &str) -> io::Result<()> {
        match self.kind()? {
            Kind::Syncline => fs::remove_dir(self.directory.join(".snapshots").join(name)),
            Kind::Btrfs => {
                request(&File::open(&self.directory)?, SNAP_DESTROY, &Deletion { of: 0, name: name_of(name) })
            }
        }
    }

    /// What `btrfs send` finds without the data, which is not counted.
    pub(super) fn diff(&self, older: &str, newer: &str) -> io::Result<Option<u64>> {
        match self.kind()? {
            Kind::Syncline => Err(io::ErrorKind::Unsupported.into()),
            Kind::Btrfs => {
                let path = |name: &str| self.directory.join(name).display().to_string();
                let words =
                    ["btrfs", "send", "--no-data", "-q", "-f", "/dev/null", "-p", &path(older), &path(newer)];
                command(&words.map(str::to_owned)).map(|_| None)
            }
        }
    }

    /// Waits until all is free that deleted snapshots had; of btrfs to a second. Errors: `Unsupported` of a mount of
    /// Syncline, which has no such call.
    pub(super) fn reclaim(&self) -> io::Result<()> {
        match self.kind()? {
            Kind::Syncline => Err(io::ErrorKind::Unsupported.into()),
            Kind::Btrfs => {
                // Its cleaner looks when a transaction is committed, which is every 30 s.
                let at = self.directory.display().to_string();
                command(&["mount", "-o", "remount,commit=1", &at].map(str::to_owned))?;
                rustix::fs::syncfs(File::open(&self.directory)?)?;
                let words = ["btrfs", "subvolume", "sync", "-s", "1", &self.directory.display().to_string()];
                command(&words.map(str::to_owned)).map(drop)
            }
        }
    }
}

/// `T` is what the request takes.
fn request<T>(directory: &File, which: libc::Ioctl, asked: &T) -> io::Result<()> {
    // SAFETY: both requests read their argument, whose size is in their number, and keep nothing of it.
    match unsafe { libc::ioctl(directory.as_raw_fd(), which, std::ptr::from_ref(asked)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
