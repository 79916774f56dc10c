//! `mount -o remount,ro` and `remount,rw`.
//!
//! The kernel refuses changes by itself once the mount is read-only, and refuses that while files are open for
//! writing. The daemon is not told. So the mount is made read-only first, and then everything is committed by an
//! fsync of its root: nothing can come in between. The other way round there is nothing to do, if the daemon has
//! opened the volume for writing; the kernel does not know whether it has.

use crate::mount_point::{c_string, is_ours, mounted_at};
use crate::unmount::{none_if_missing, not_mounted};
use crate::{MountError, MountOptions, statistics};
use std::fs::File;
use std::io;
use std::path::Path;

/// Flags of `statvfs` whose numbers `mount(2)` uses as well.
const SAME_FLAGS: libc::c_ulong = libc::ST_NOSUID
    | libc::ST_NODEV
    | libc::ST_NOEXEC
    | libc::ST_SYNCHRONOUS
    | libc::ST_NOATIME
    | libc::ST_NODIRATIME;
/// `ST_NOSYMFOLLOW` of linux/statfs.h.
const ST_NOSYMFOLLOW: libc::c_ulong = 0x2000;

/// Makes a mount read-only or not, whichever the options say; nothing else of it changes. Read-only, everything is
/// durable on return.
pub(crate) fn remount(directory: &Path, options: &MountOptions) -> Result<(), MountError> {
    let failed = |what| move |source| MountError::System { what, source };
    let entry = mounted_at(directory).or_else(none_if_missing).map_err(failed("reading mountinfo"))?;
    let directory = entry.filter(is_ours).ok_or_else(|| not_mounted(directory))?.path;
    let told: serde_json::Value =
        serde_json::from_str(&statistics(&directory)?).map_err(|_| not_mounted(&directory))?;
    let flags = flags_of(&directory).map_err(failed("looking at the mount"))?;
    let changes = options.read_only != (flags & libc::ST_RDONLY != 0);
    if let Some(word) = options.words.iter().find(|word| !may_be_said(word, flags, changes)) {
        return Err(MountError::Remount(word.clone()));
    }
    if !changes {
        return Ok(());
    }
    if !options.read_only && told["read_only"] == true {
        return Err(MountError::OpenedReadOnly(directory));
    }
    match set(&directory, flags, options.read_only) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(MountError::Writers(directory));
        }
        result => result.map_err(failed("remounting"))?,
    }
    if options.read_only {
        let root = File::open(&directory).and_then(|root| root.sync_all());
        root.map_err(failed("the mount is read-only, but committing everything"))?;
    }
    Ok(())
}

/// Whether an option asks for nothing but ro and rw. mount(8) repeats those of the mount; where it finds the mount in
/// /etc/fstab, also those of the daemon, about which nothing more is known here. They are no reason to refuse what
/// can be done.
fn may_be_said(word: &str, flags: libc::c_ulong, changes: bool) -> bool {
    let is_set = |flag| flags & flag != 0;
    match word {
        "nosuid" => is_set(libc::ST_NOSUID),
        "nodev" => is_set(libc::ST_NODEV),
        "noexec" => is_set(libc::ST_NOEXEC),
        "suid" => !is_set(libc::ST_NOSUID),
        "dev" => !is_set(libc::ST_NODEV),
        "exec" => !is_set(libc::ST_NOEXEC),
        "sync" => is_set(libc::ST_SYNCHRONOUS),
        "noatime" => is_set(libc::ST_NOATIME),
        "relatime" | "atime" => is_set(libc::ST_RELATIME),
        "strictatime" => !is_set(libc::ST_NOATIME | libc::ST_RELATIME),
        _ if changes => true,
        "dirsync" | "writeback_cache" | "direct_writes" | "volatile" => false,
        _ => !["commit=", "memory=", "cpu=", "threads=", "transport=", "log=", "metrics="]
            .iter()
            .any(|name| word.starts_with(name)),
    }
}

fn flags_of(directory: &Path) -> io::Result<libc::c_ulong> {
    let path = c_string(directory)?;
    // SAFETY: a zeroed statvfs is a valid one, and the path is a NUL-terminated string.
    unsafe {
        let mut told: libc::statvfs = std::mem::zeroed();
        match libc::statvfs(path.as_ptr(), &raw mut told) {
            0 => Ok(told.f_flag),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Sets or takes away the one flag; mount(2) wants to be told all the others again.
fn set(directory: &Path, flags: libc::c_ulong, read_only: bool) -> io::Result<()> {
    let path = c_string(directory)?;
    let mut wanted = libc::MS_REMOUNT | flags & SAME_FLAGS;
    for (told, flag) in [(libc::ST_RELATIME, libc::MS_RELATIME), (ST_NOSYMFOLLOW, libc::MS_NOSYMFOLLOW)] {
        if flags & told != 0 {
            wanted |= flag;
        }
    }
    if flags & (libc::ST_RELATIME | libc::ST_NOATIME) == 0 {
        wanted |= libc::MS_STRICTATIME;
    }
    if read_only {
        wanted |= libc::MS_RDONLY;
    }
    let none = std::ptr::null();
    // SAFETY: the path is a NUL-terminated string, the others are not looked at.
    match unsafe { libc::mount(none, path.as_ptr(), none, wanted, none.cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mount_repeats_of_the_mount_is_no_change_and_anything_else_is() {
        let flags = libc::ST_NOSUID | libc::ST_RELATIME;
        for changes in [false, true] {
            let said = |word| may_be_said(word, flags, changes);
            assert!(["ro", "rw", "remount", "nosuid", "dev", "relatime", "user_id=0"].into_iter().all(said));
            assert!(!["suid", "nodev", "noatime", "strictatime", "sync"].into_iter().any(said));
            // From /etc/fstab, or from somebody who wants it changed.
            assert!(["commit=5", "dirsync", "memory=64M"].into_iter().all(|word| said(word) == changes));
        }
    }
}
