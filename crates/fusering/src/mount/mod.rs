//! Attaching to and detaching from the tree of mounts.
//!
//! Root mounts by itself, which `fuseblk` needs; everyone else goes through fusermount3. Unmounting goes the same way.

mod helper;
mod options;
mod table;

pub use options::{AccessTimes, MountOptions};
pub use table::{MountEntry, mounted_as, mounted_at};

use crate::error::Error;
use crate::transport::connection::open_device;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A mount that this process made; detached when dropped.
pub(crate) struct Mount {
    unmounter: Unmounter,
    /// To be left alone: the connection has ended, or the caller takes care.
    forgotten: bool,
}

/// A mount that is served elsewhere: by whoever gets the descriptor that [`attach`] has returned. Detached when this is
/// dropped, unless it is to stay.
pub struct Attachment {
    mount: Mount,
}

impl Attachment {
    /// Leaves the mount to those who serve it.
    pub fn keep(self) {
        self.mount.forget();
    }
}

/// Mounts on `at`, and returns the connection on which the kernel's requests arrive, for
/// [`Session::from_fd`](crate::Session::from_fd) in this process or in another.
pub fn attach(at: &Path, options: &MountOptions) -> Result<(Attachment, OwnedFd), Error> {
    let (mount, fd) = Mount::attach(at, options)?;
    Ok((Attachment { mount }, fd))
}

/// Takes a mount away, from any thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    path: PathBuf,
    /// `major:minor`, so that nothing else that was mounted there meanwhile is touched.
    device: Option<String>,
}

/// Whether this process may mount without a helper.
pub fn may_mount() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

impl Mount {
    /// Mounts, and returns the connection on which the kernel's requests arrive.
    pub(crate) fn attach(at: &Path, options: &MountOptions) -> Result<(Mount, OwnedFd), Error> {
        options.validate()?;
        let refused = |source| Error::Refused { path: at.to_owned(), source };
        let at = at.canonicalize().map_err(refused)?;
        let fd = if may_mount() { attach_directly(&at, options)? } else { helper::attach(&at, options)? };
        let device = mounted_at(&at).ok().flatten().map(|entry| entry.device);
        Ok((Mount { unmounter: Unmounter { path: at, device }, forgotten: false }, fd))
    }

    pub(crate) fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// The mount is not there any more, or somebody else's business.
    pub(crate) fn forget(mut self) {
        self.forgotten = true;
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.forgotten {
            return;
        }
        if self.unmounter.unmount().is_err()
            && self.unmounter.is_there()
            && let Err(error) = self.unmounter.unmount_lazily()
        {
            tracing::warn!(%error, "the mount stays");
        }
    }
}

impl Unmounter {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the mount is (still) the topmost one on its directory.
    pub fn is_there(&self) -> bool {
        match mounted_at(&self.path) {
            Ok(entry) => entry.is_some_and(|entry| Some(&entry.device) == self.device.as_ref()),
            // It cannot be known; trying does no harm.
            Err(_) => true,
        }
    }

    /// Unmounts; success if it is not mounted any more. Errors: EBUSY while the mount is in use.
    pub fn unmount(&self) -> Result<(), Error> {
        self.detach(false)
    }

    /// Takes the mount out of the tree at once; the session ends with the mount's last user.
    pub fn unmount_lazily(&self) -> Result<(), Error> {
        self.detach(true)
    }

    fn detach(&self, lazily: bool) -> Result<(), Error> {
        if !self.is_there() {
            return Ok(());
        }
        let detached = if may_mount() {
            detach_directly(&self.path, lazily)
        } else {
            helper::detach(&self.path, lazily)
        };
        detached.map_err(|source| Error::Unmount { path: self.path.clone(), source })
    }
}

fn attach_directly(at: &Path, options: &MountOptions) -> Result<OwnedFd, Error> {
    let refused = |source| Error::Refused { path: at.to_owned(), source };
    let fd = open_device().map_err(Error::NoDevice)?;
    let root_mode = std::fs::metadata(at).map_err(refused)?.mode() & libc::S_IFMT;
    let data = options.kernel_data(fd.as_raw_fd(), root_mode);
    let string =
        |bytes: &[u8]| CString::new(bytes).map_err(|_| refused(io::Error::from_raw_os_error(libc::EINVAL)));
    let source = string(options.source.as_bytes())?;
    let kind = string(options.kind().as_bytes())?;
    let data = string(data.as_bytes())?;
    let target = string(at.as_os_str().as_bytes())?;
    // SAFETY: all five pointers are NUL-terminated strings that outlive the call.
    let result = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            options.kernel_flags(),
            data.as_ptr().cast(),
        )
    };
    if result == 0 { Ok(fd) } else { Err(refused(io::Error::last_os_error())) }
}

fn detach_directly(at: &Path, lazily: bool) -> io::Result<()> {
    let at =
        CString::new(at.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazily { libc::MNT_DETACH } else { 0 };
    // SAFETY: the path is a NUL-terminated string that outlives the call.
    if unsafe { libc::umount2(at.as_ptr(), flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
