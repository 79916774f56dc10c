//! The kernel's switch for FUSE over io_uring: what it says, so that nobody has to guess why io_uring is not in use.

use std::ffi::CStr;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

/// The parameters of the kernel's FUSE, which is there as soon as FUSE is.
const PARAMETERS: &str = "/sys/module/fuse/parameters";
const NAME: &str = "enable_uring";

/// What the kernel's switch for FUSE over io_uring says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UringParameter {
    /// It is N, as by default. Root may set it.
    Off,
    /// It is Y: set after this mount was made, or refused for a reason that the kernel keeps to itself.
    On,
    /// This kernel has none. `release` is its own (`uname -r`).
    Missing { release: String },
    /// It cannot be read.
    Unreadable { errno: crate::Errno },
}

impl UringParameter {
    /// Reads it.
    pub(crate) fn read() -> UringParameter {
        UringParameter::read_in(Path::new(PARAMETERS))
    }

    fn read_in(parameters: &Path) -> UringParameter {
        match std::fs::read_to_string(parameters.join(NAME)) {
            Ok(text) if matches!(text.trim(), "Y" | "1") => UringParameter::On,
            Ok(_) => UringParameter::Off,
            Err(error) if error.kind() == ErrorKind::NotFound && parameters.is_dir() => {
                UringParameter::Missing { release: release() }
            }
            Err(error) => UringParameter::Unreadable { errno: error.into() },
        }
    }
}

impl fmt::Display for UringParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let switch = format_args!("{PARAMETERS}/{NAME}");
        match self {
            UringParameter::Off => write!(f, "{switch} is N"),
            UringParameter::On => write!(f, "{switch} is Y now, but was not when the kernel was asked"),
            UringParameter::Missing { release } => {
                write!(f, "Linux {release} has no {switch}, which came with Linux 6.14")
            }
            UringParameter::Unreadable { errno } => write!(f, "{switch} cannot be read ({errno})"),
        }
    }
}

/// The kernel's release, as `uname -r` prints it.
fn release() -> String {
    // SAFETY: all zeros are a valid utsname, whose fields are then empty strings.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid for writing.
    if unsafe { libc::uname(&raw mut names) } != 0 {
        return "of an unknown release".to_owned();
    }
    // SAFETY: the kernel ends the field with a NUL, and it was all NULs before.
    unsafe { CStr::from_ptr(names.release.as_ptr()) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_switch_says_is_read_and_not_guessed() {
        let parameters = tempfile::tempdir().expect("temporary directory");
        let read = || UringParameter::read_in(parameters.path());
        let running = release();
        assert!(running.starts_with(|first: char| first.is_ascii_digit()), "{running}");
        assert_eq!(read(), UringParameter::Missing { release: running.clone() });
        assert!(read().to_string().contains(&running));
        for (text, switch) in
            [("N\n", UringParameter::Off), ("Y\n", UringParameter::On), ("1", UringParameter::On)]
        {
            std::fs::write(parameters.path().join(NAME), text).expect("write");
            assert_eq!(read(), switch, "{text:?}");
        }
        let gone = UringParameter::read_in(&parameters.path().join("gone"));
        assert_eq!(gone, UringParameter::Unreadable { errno: crate::Errno::ENOENT });
    }
}
