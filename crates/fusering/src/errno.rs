//! Error numbers, as requests are answered with them.

use std::fmt;
use std::io;

/// A Linux error number, positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(pub const $name: Errno = Errno(libc::$name);)*
        }

        fn name(number: i32) -> Option<&'static str> {
            match number {
                $(libc::$name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

errnos!(
    EPERM,
    ENOENT,
    ESRCH,
    EINTR,
    EIO,
    ENXIO,
    E2BIG,
    EBADF,
    EAGAIN,
    ENOMEM,
    EACCES,
    EFAULT,
    EBUSY,
    EEXIST,
    EXDEV,
    ENODEV,
    ENOTDIR,
    EISDIR,
    EINVAL,
    ENFILE,
    EMFILE,
    ENOTTY,
    ETXTBSY,
    EFBIG,
    ENOSPC,
    ESPIPE,
    EROFS,
    EMLINK,
    ERANGE,
    EDEADLK,
    ENAMETOOLONG,
    ENOLCK,
    ENOSYS,
    ENOTEMPTY,
    ELOOP,
    ENODATA,
    EPROTO,
    EOVERFLOW,
    EOPNOTSUPP,
    ENOTCONN,
    ETIMEDOUT,
    ESTALE,
    EDQUOT,
    ECANCELED
);

impl Errno {
    /// The kernel takes 1 to 511 only (others would be mistaken for something else); anything else becomes EIO.
    pub const fn from_number(number: i32) -> Errno {
        if number > 0 && number < 512 { Errno(number) } else { Errno(libc::EIO) }
    }

    pub const fn number(self) -> i32 {
        self.0
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        Errno::from_number(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", io::Error::from_raw_os_error(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_the_kernel_would_refuse_become_eio() {
        for number in [0, -5, 512, 4096, i32::MIN, i32::MAX] {
            assert_eq!(Errno::from_number(number), Errno::EIO);
        }
        assert_eq!(Errno::from_number(libc::ESTALE), Errno::ESTALE);
    }

    #[test]
    fn names_are_shown() {
        assert_eq!(format!("{:?}", Errno::ENOSPC), "ENOSPC");
        assert_eq!(format!("{:?}", Errno::from_number(500)), "errno 500");
    }
}
