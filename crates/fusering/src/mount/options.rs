//! How to mount.

use crate::error::Error;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// When reading changes a file's access time; kept by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessTimes {
    Never,
    Relative,
    Always,
}

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountOptions {
    /// What the table of mounts shows as mounted: any text, or the block device of a `fuseblk` mount.
    pub source: OsString,
    /// Shown after `fuse.`: letters, digits, `-`, `_` and dots.
    pub subtype: String,
    /// Mounts as `fuseblk` with this block size (a power of two, 512 to 65536): the kernel claims the device, sends
    /// DESTROY before `umount` returns, and passes on `syncfs`. Root only.
    pub block_device: Option<u32>,
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    pub sync: bool,
    pub dirsync: bool,
    pub access_times: AccessTimes,
    /// Others than the mounting user may use the mount.
    pub allow_other: bool,
    /// The kernel checks permissions by the nodes' modes, owners and ACLs.
    pub default_permissions: bool,
    /// Most bytes in one READ; `None`: as many as the kernel likes.
    pub read_bytes_max: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: OsString::from("fusering"),
            subtype: "fusering".to_owned(),
            block_device: None,
            read_only: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            sync: false,
            dirsync: false,
            access_times: AccessTimes::Relative,
            allow_other: false,
            default_permissions: true,
            read_bytes_max: None,
        }
    }
}

impl MountOptions {
    /// What the table of mounts shows as mounted: any text, or the block device of a `fuseblk` mount.
    #[must_use]
    pub fn source(mut self, source: impl Into<OsString>) -> MountOptions {
        self.source = source.into();
        self
    }

    /// Shown after `fuse.`: letters, digits, `-`, `_` and dots.
    #[must_use]
    pub fn subtype(mut self, subtype: impl Into<String>) -> MountOptions {
        self.subtype = subtype.into();
        self
    }

    /// Mounts as `fuseblk` with this block size (a power of two, 512 to 65536): the kernel claims the device, sends
    /// DESTROY before `umount` returns, and passes on `syncfs`. Root only.
    #[must_use]
    pub fn block_device(mut self, block_device: impl Into<Option<u32>>) -> MountOptions {
        self.block_device = block_device.into();
        self
    }

    /// Nothing can be written.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> MountOptions {
        self.read_only = read_only;
        self
    }

    /// Set-user-ID and set-group-ID bits have no effect.
    #[must_use]
    pub fn nosuid(mut self, nosuid: bool) -> MountOptions {
        self.nosuid = nosuid;
        self
    }

    /// Device nodes cannot be opened.
    #[must_use]
    pub fn nodev(mut self, nodev: bool) -> MountOptions {
        self.nodev = nodev;
        self
    }

    /// No program can be run from it.
    #[must_use]
    pub fn noexec(mut self, noexec: bool) -> MountOptions {
        self.noexec = noexec;
        self
    }

    /// Writes are synchronous.
    #[must_use]
    pub fn sync(mut self, sync: bool) -> MountOptions {
        self.sync = sync;
        self
    }

    /// Changes of directories are synchronous.
    #[must_use]
    pub fn dirsync(mut self, dirsync: bool) -> MountOptions {
        self.dirsync = dirsync;
        self
    }

    /// When reading changes an access time.
    #[must_use]
    pub fn access_times(mut self, access_times: AccessTimes) -> MountOptions {
        self.access_times = access_times;
        self
    }

    /// Others than the mounting user may use the mount.
    #[must_use]
    pub fn allow_other(mut self, allow_other: bool) -> MountOptions {
        self.allow_other = allow_other;
        self
    }

    /// The kernel checks permissions by the nodes' modes, owners and ACLs.
    #[must_use]
    pub fn default_permissions(mut self, default_permissions: bool) -> MountOptions {
        self.default_permissions = default_permissions;
        self
    }

    /// Most bytes in one READ; `None`: as many as the kernel likes.
    #[must_use]
    pub fn read_bytes_max(mut self, read_bytes_max: impl Into<Option<u32>>) -> MountOptions {
        self.read_bytes_max = read_bytes_max.into();
        self
    }
}

impl MountOptions {
    /// Errors: [`Error::BadOption`].
    pub fn validate(&self) -> Result<(), Error> {
        let bad =
            |option, value: &str, reason| Err(Error::BadOption { option, value: value.to_owned(), reason });
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !self.subtype.bytes().all(is_plain) {
            return bad("subtype", &self.subtype, "use letters, digits, '-', '_' and '.'");
        }
        let source = self.source.as_bytes();
        if source.is_empty() || source.contains(&0) {
            return bad("source", &self.source.to_string_lossy(), "use a text without NUL that is not empty");
        }
        if let Some(bytes) = self.block_device
            && !(bytes.is_power_of_two() && (512..=65536).contains(&bytes))
        {
            return bad("block_device", &bytes.to_string(), "use a power of two from 512 to 65536");
        }
        match self.read_bytes_max {
            Some(bytes) if bytes < 4096 => bad("read_bytes_max", &bytes.to_string(), "use at least 4096"),
            _ => Ok(()),
        }
    }

    /// Type of filesystem for mount(2).
    pub(super) fn kind(&self) -> String {
        let kind = if self.block_device.is_some() { "fuseblk" } else { "fuse" };
        if self.subtype.is_empty() { kind.to_owned() } else { format!("{kind}.{}", self.subtype) }
    }

    /// Options as mount(2) takes them.
    pub(super) fn kernel_data(&self, fd: i32, root_mode: u32) -> String {
        // SAFETY: neither call has preconditions.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        let mut data = format!("fd={fd},rootmode={root_mode:o},user_id={uid},group_id={gid}");
        for (wanted, word) in
            [(self.default_permissions, ",default_permissions"), (self.allow_other, ",allow_other")]
        {
            if wanted {
                data.push_str(word);
            }
        }
        for (value, word) in [(self.block_device, "blksize"), (self.read_bytes_max, "max_read")] {
            if let Some(value) = value {
                data.push_str(&format!(",{word}={value}"));
            }
        }
        data
    }

    pub(super) fn kernel_flags(&self) -> libc::c_ulong {
        let mut flags = match self.access_times {
            AccessTimes::Never => libc::MS_NOATIME,
            AccessTimes::Relative => libc::MS_RELATIME,
            AccessTimes::Always => libc::MS_STRICTATIME,
        };
        for (wanted, flag) in [
            (self.read_only, libc::MS_RDONLY),
            (self.nosuid, libc::MS_NOSUID),
            (self.nodev, libc::MS_NODEV),
            (self.noexec, libc::MS_NOEXEC),
            (self.sync, libc::MS_SYNCHRONOUS),
            (self.dirsync, libc::MS_DIRSYNC),
        ] {
            if wanted {
                flags |= flag;
            }
        }
        flags
    }

    /// The same for `fusermount3 -o`, which always mounts `nosuid,nodev`.
    pub(super) fn helper_list(&self) -> OsString {
        let mut list = OsString::from("fsname=");
        list.push(escaped(&self.source));
        if !self.subtype.is_empty() {
            list.push(format!(",subtype={}", self.subtype));
        }
        for (wanted, word) in [
            (self.default_permissions, ",default_permissions"),
            (self.allow_other, ",allow_other"),
            (self.read_only, ",ro"),
            (self.noexec, ",noexec"),
            (self.sync, ",sync"),
            (self.dirsync, ",dirsync"),
            (self.access_times == AccessTimes::Never, ",noatime"),
        ] {
            if wanted {
                list.push(word);
            }
        }
        if let Some(bytes) = self.read_bytes_max {
            list.push(format!(",max_read={bytes}"));
        }
        list
    }
}

/// Commas and backslashes with a backslash before them.
fn escaped(text: &OsString) -> OsString {
    use std::os::unix::ffi::OsStringExt;
    let mut out = Vec::with_capacity(text.len());
    for byte in text.as_bytes() {
        if b",\\".contains(byte) {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_could_smuggle_others_in_are_refused() {
        let refused = |options: MountOptions| matches!(options.validate(), Err(Error::BadOption { .. }));
        assert!(MountOptions::default().validate().is_ok());
        assert!(refused(MountOptions { subtype: "a,suid".to_owned(), ..MountOptions::default() }));
        assert!(refused(MountOptions { source: OsString::new(), ..MountOptions::default() }));
        assert!(refused(MountOptions { source: OsString::from("a\0b"), ..MountOptions::default() }));
        for bytes in [0, 256, 3000, 1 << 20] {
            assert!(refused(MountOptions { block_device: Some(bytes), ..MountOptions::default() }));
        }
        assert!(refused(MountOptions { read_bytes_max: Some(1), ..MountOptions::default() }));
    }

    #[test]
    fn the_kernel_gets_all_options() {
        let options = MountOptions { block_device: Some(4096), allow_other: true, ..MountOptions::default() };
        let data = options.kernel_data(7, 0o40000);
        assert!(data.starts_with("fd=7,rootmode=40000,user_id="), "{data}");
        assert!(data.ends_with(",default_permissions,allow_other,blksize=4096"), "{data}");
        assert_eq!(options.kind(), "fuseblk.fusering");
        assert_eq!(options.kernel_flags(), libc::MS_RELATIME | libc::MS_NOSUID | libc::MS_NODEV);
    }

    #[test]
    fn a_source_with_commas_stays_one_option_of_the_helper() {
        let options = MountOptions { source: OsString::from("a,suid\\b"), ..MountOptions::default() };
        assert_eq!(
            options.helper_list(),
            OsString::from("fsname=a\\,suid\\\\b,subtype=fusering,default_permissions")
        );
    }
}
