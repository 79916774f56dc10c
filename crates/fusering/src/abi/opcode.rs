//! What a request asks for.

use super::requests as wire;
use std::fmt;

/// Operation code of a request. Codes that this crate does not know are kept as they are.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Default,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
)]
#[repr(transparent)]
pub struct Opcode(pub u32);

macro_rules! opcodes {
    ($($name:ident = $code:literal, $header:expr;)*) => {
        impl Opcode {
            $(pub const $name: Opcode = Opcode($code);)*

            /// All known codes.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// Name as in the kernel's header, without `FUSE_`.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// Bytes of the operation's fixed header; what follows it is payload. `setxattr_ext`: SETXATTR_EXT was
            /// agreed on. `None`: the code is not known.
            pub const fn header_bytes(self, setxattr_ext: bool) -> Option<usize> {
                match self.0 {
                    21 if setxattr_ext => Some(size_of::<wire::SetXattrIn>()),
                    $($code => Some($header),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    LOOKUP = 1, 0;
    FORGET = 2, size_of::<wire::ForgetIn>();
    GETATTR = 3, size_of::<wire::GetAttrIn>();
    SETATTR = 4, size_of::<wire::SetAttrIn>();
    READLINK = 5, 0;
    SYMLINK = 6, 0;
    MKNOD = 8, size_of::<wire::MknodIn>();
    MKDIR = 9, size_of::<wire::MkdirIn>();
    UNLINK = 10, 0;
    RMDIR = 11, 0;
    RENAME = 12, size_of::<wire::RenameIn>();
    LINK = 13, size_of::<wire::LinkIn>();
    OPEN = 14, size_of::<wire::OpenIn>();
    READ = 15, size_of::<wire::ReadIn>();
    WRITE = 16, size_of::<wire::WriteIn>();
    STATFS = 17, 0;
    RELEASE = 18, size_of::<wire::ReleaseIn>();
    FSYNC = 20, size_of::<wire::FsyncIn>();
    SETXATTR = 21, wire::SETXATTR_SHORT_BYTES;
    GETXATTR = 22, size_of::<wire::GetXattrIn>();
    LISTXATTR = 23, size_of::<wire::GetXattrIn>();
    REMOVEXATTR = 24, 0;
    FLUSH = 25, size_of::<wire::FlushIn>();
    INIT = 26, wire::INIT_SHORT_BYTES;
    OPENDIR = 27, size_of::<wire::OpenIn>();
    READDIR = 28, size_of::<wire::ReadIn>();
    RELEASEDIR = 29, size_of::<wire::ReleaseIn>();
    FSYNCDIR = 30, size_of::<wire::FsyncIn>();
    GETLK = 31, size_of::<wire::LkIn>();
    SETLK = 32, size_of::<wire::LkIn>();
    SETLKW = 33, size_of::<wire::LkIn>();
    ACCESS = 34, size_of::<wire::AccessIn>();
    CREATE = 35, size_of::<wire::CreateIn>();
    INTERRUPT = 36, size_of::<wire::InterruptIn>();
    BMAP = 37, size_of::<wire::BmapIn>();
    DESTROY = 38, 0;
    IOCTL = 39, size_of::<wire::IoctlIn>();
    POLL = 40, size_of::<wire::PollIn>();
    NOTIFY_REPLY = 41, size_of::<wire::NotifyRetrieveIn>();
    BATCH_FORGET = 42, size_of::<wire::BatchForgetIn>();
    FALLOCATE = 43, size_of::<wire::FallocateIn>();
    READDIRPLUS = 44, size_of::<wire::ReadIn>();
    RENAME2 = 45, size_of::<wire::Rename2In>();
    LSEEK = 46, size_of::<wire::LseekIn>();
    COPY_FILE_RANGE = 47, size_of::<wire::CopyFileRangeIn>();
    SETUPMAPPING = 48, size_of::<wire::SetupMappingIn>();
    REMOVEMAPPING = 49, size_of::<wire::RemoveMappingIn>();
    SYNCFS = 50, size_of::<wire::SyncfsIn>();
    TMPFILE = 51, size_of::<wire::CreateIn>();
    STATX = 52, size_of::<wire::StatxIn>();
    COPY_FILE_RANGE_64 = 53, size_of::<wire::CopyFileRangeIn>();
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "opcode {}", self.0),
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_fits_the_area_that_io_uring_has_for_it() {
        for opcode in Opcode::ALL {
            let bytes = opcode.header_bytes(true).expect("known");
            assert!(bytes <= super::super::uring::OP_HEADER_BYTES, "{opcode}: {bytes}");
        }
    }

    #[test]
    fn unknown_codes_have_no_header_and_show_their_number() {
        assert_eq!(Opcode(9999).header_bytes(false), None);
        assert_eq!(Opcode(9999).to_string(), "opcode 9999");
        assert_eq!(Opcode::READDIRPLUS.to_string(), "READDIRPLUS");
    }

    #[test]
    fn extended_setxattr_has_the_longer_header() {
        assert_eq!(Opcode::SETXATTR.header_bytes(false), Some(8));
        assert_eq!(Opcode::SETXATTR.header_bytes(true), Some(16));
    }
}
