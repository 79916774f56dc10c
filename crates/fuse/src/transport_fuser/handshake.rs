//! What is agreed with the kernel when the connection is made.

use fuser::{InitFlags, KernelConfig};
use std::io;

/// Largest write message, and read-ahead.
pub(crate) const MESSAGE_BYTES_MAX: u32 = 1 << 20;
/// Asynchronous requests (read-ahead, writeback, direct I/O) the kernel may have open at once.
const BACKGROUND_MAX: u16 = 64;

/// Capabilities without which the mount would be wrong.
const REQUIRED: InitFlags =
    InitFlags::FUSE_DONT_MASK.union(InitFlags::FUSE_POSIX_ACL).union(InitFlags::FUSE_HANDLE_KILLPRIV_V2);

/// Capabilities that make it faster.
const WANTED: [InitFlags; 10] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_MAX_PAGES,
];

/// Asks for what the mount needs and wants. Errors: the kernel lacks something that it needs.
pub(super) fn agree(config: &mut KernelConfig, writeback_cache: bool) -> io::Result<()> {
    config.add_capabilities(REQUIRED).map_err(|missing| {
        tracing::error!(
            ?missing,
            "this kernel's FUSE lacks what the mount needs; Linux 5.12 or newer has it"
        );
        io::Error::from_raw_os_error(libc::EPROTONOSUPPORT)
    })?;
    for flag in WANTED {
        if config.add_capabilities(flag).is_err() {
            tracing::info!(?flag, "not offered by this kernel; the mount works without it");
        }
    }
    if writeback_cache && config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).is_err() {
        tracing::warn!("this kernel has no writeback cache for FUSE; mounted without it");
    }
    let settings = [
        config.set_max_write(MESSAGE_BYTES_MAX).err(),
        config.set_max_background(BACKGROUND_MAX).err().map(u32::from),
    ];
    for nearest in settings.into_iter().flatten() {
        tracing::warn!(nearest, "the kernel's limit on message sizes or counts is lower than wanted");
    }
    // Reading ahead is the kernel's business up to the largest message.
    let _ = config.set_max_readahead(MESSAGE_BYTES_MAX);
    Ok(())
}
