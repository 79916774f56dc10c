//! How many messages of each kind the kernel sent: what an operation through the mount costs. `forget` counts nodes:
//! the kernel tells of many in one message.
//!
//! Relaxed atomics: they are statistics and order nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! messages {
    ($($kind:ident $name:literal,)*) => {
        /// A kind of message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Message { $($kind,)* }

        #[cfg(test)]
        impl Message {
            pub(crate) const ALL: &[Message] = &[$(Message::$kind,)*];
        }

        const NAMES: &[&str] = &[$($name,)*];
    };
}

messages! {
    Lookup "lookup", Forget "forget", Getattr "getattr", Setattr "setattr", Readlink "readlink", Mknod "mknod",
    Mkdir "mkdir", Symlink "symlink", Link "link", Unlink "unlink", Rmdir "rmdir", Rename "rename", Open "open",
    Create "create", Tmpfile "tmpfile", Statx "statx", Read "read", Write "write", Flush "flush", Release "release", Fsync "fsync", Syncfs "syncfs",
    Opendir "opendir", Readdir "readdir", Readdirplus "readdirplus", Fsyncdir "fsyncdir", Statfs "statfs",
    Setxattr "setxattr", Getxattr "getxattr", Listxattr "listxattr", Removexattr "removexattr",
    Fallocate "fallocate", Lseek "lseek", CopyFileRange "copy_file_range", Ioctl "ioctl", Interrupt "interrupt",
}

const KINDS: usize = NAMES.len();

#[derive(Debug)]
pub(crate) struct MessageCounts([AtomicU64; KINDS]);

impl Default for MessageCounts {
    fn default() -> MessageCounts {
        MessageCounts(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl MessageCounts {
    pub(crate) fn count(&self, message: Message) {
        self.0[message as usize].fetch_add(1, Relaxed);
    }

    /// Names and counts of the kinds seen so far.
    pub(crate) fn seen(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES
            .iter()
            .copied()
            .zip(self.0.iter().map(|count| count.load(Relaxed)))
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_carry_the_names_of_their_messages() {
        let counts = MessageCounts::default();
        counts.count(Message::Lookup);
        counts.count(Message::Ioctl);
        counts.count(Message::Ioctl);
        assert_eq!(counts.seen().collect::<Vec<_>>(), [("lookup", 1), ("ioctl", 2)]);
    }
}
