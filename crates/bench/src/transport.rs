//! Which way a mount's requests take.

/// How a mount is asked to talk to the kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Transport {
    /// As the project means it: io_uring, /dev/fuse where the kernel has no other. Root's mount switches it on itself.
    Best,
    /// Threads that read /dev/fuse.
    Dev,
}
