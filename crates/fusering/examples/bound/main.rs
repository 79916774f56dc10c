//! What no filesystem over FUSE can be faster than on this machine: `bound DEVICE DIRECTORY dev|uring`, as root.
//!
//! Mounts a filesystem that keeps nothing but the page written last and answers each request at once, on the thread
//! that reads it. An `fsync` writes that page to DEVICE, whose content it destroys, and flushes. It tells the kernel
//! to ask no more than a filesystem with attributes and permissions must let it ask. Names are kept by the kernel
//! alone. Serves until it is unmounted.
//!
//! Beside a filesystem that does something, in slices of the same run, with everything on one CPU: `taskset -c 0
//! bound /dev/loop7 /mnt/bound uring &`, then `syncline bench --cpu 0 --systems syncline,dir:/mnt/bound --workloads
//! append,create`.

#[path = "../../tests/support/kernel.rs"]
mod kernel;

use fusering::abi::{AttrFlags, InitFlags, OpenFlags};
use fusering::request::{
    Create, Fsync, GetAttr, GetXattr, Lookup, Mkdir, Open, ReadDir, Remove, Rename, Write,
};
use fusering::{
    Attributes, Config, DevSettings, DeviceNumber, Entry, Errno, Filesystem, Handle, MountOptions, NodeId,
    Opened, ReplyAttributes, ReplyCreate, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, ReplyXattr, RequestContext, Session, Time, TransportChoice,
};
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const PAGE_BYTES: usize = 4096;
/// Nobody else changes anything, so the kernel may keep what it was told.
const VALID: Duration = Duration::from_secs(24 * 3600);
/// Pages that are written, in ascending order, before the first one is written again.
const PLACES: u64 = 1 << 15;
/// Set in the numbers of directories, the root's (1) among them; those of files are even.
const DIRECTORY: u64 = 1;

/// On page boundaries, as O_DIRECT wants it.
#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);

struct Last {
    page: Page,
    syncs: u64,
}

struct Bound {
    device: File,
    made: AtomicU64,
    last: Mutex<Last>,
}

impl Bound {
    fn make(&self, kind: u64) -> Entry {
        let node = NodeId((2 * self.made.fetch_add(1, Ordering::Relaxed)) | kind);
        let attributes = Bound::attributes(node);
        Entry { node, generation: 0, attributes, entry_valid: VALID, attributes_valid: VALID }
    }

    fn attributes(node: NodeId) -> Attributes {
        let directory = node.0 & DIRECTORY != 0;
        Attributes {
            ino: node.0,
            mode: if directory { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 },
            size: 0,
            links: 1 + u32::from(directory),
            blocks: 0,
            accessed: Time::default(),
            modified: Time::default(),
            changed: Time::default(),
            uid: 0,
            gid: 0,
            device: DeviceNumber::default(),
            block_bytes: PAGE_BYTES as u32,
            flags: AttrFlags::empty(),
        }
    }

    /// One write and one flush.
    fn sync(&self) -> io::Result<()> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let at = (last.syncs % PLACES) as libc::off_t * PAGE_BYTES as libc::off_t;
        last.syncs += 1;
        let device = self.device.as_raw_fd();
        // SAFETY: the page is valid for reads of its size; the descriptor is open.
        let written = unsafe { libc::pwrite(device, last.page.0.as_ptr().cast(), PAGE_BYTES, at) };
        // SAFETY: as above.
        if written == PAGE_BYTES as isize && unsafe { libc::fdatasync(device) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn opened() -> Opened {
        Opened { handle: Handle(0), flags: OpenFlags::NOFLUSH | OpenFlags::KEEP_CACHE }
    }
}

impl Filesystem for Bound {
    fn lookup(&self, _: &RequestContext<'_>, _: &Lookup<'_>, reply: ReplyEntry) {
        reply.absent(VALID);
    }

    fn getattr(&self, _: &RequestContext<'_>, request: &GetAttr, reply: ReplyAttributes) {
        reply.attributes(&Bound::attributes(request.node), VALID);
    }

    /// A filesystem with extended attributes is asked for `security.capability` before a write.
    fn getxattr(&self, _: &RequestContext<'_>, _: &GetXattr<'_>, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }

    fn mkdir(&self, _: &RequestContext<'_>, _: &Mkdir<'_>, reply: ReplyEntry) {
        reply.entry(&self.make(DIRECTORY));
    }

    fn create(&self, _: &RequestContext<'_>, _: &Create<'_>, reply: ReplyCreate) {
        reply.created(&self.make(0), &Bound::opened());
    }

    fn open(&self, _: &RequestContext<'_>, _: &Open, reply: ReplyOpen) {
        reply.opened(&Bound::opened());
    }

    fn write(&self, _: &RequestContext<'_>, request: &Write<'_>, reply: ReplyWrite) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = request.data.len().min(PAGE_BYTES);
        last.page.0[..bytes].copy_from_slice(&request.data[..bytes]);
        drop(last);
        reply.written(request.data.len() as u32);
    }

    fn fsync(&self, _: &RequestContext<'_>, _: &Fsync, reply: ReplyEmpty) {
        match self.sync() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn fsyncdir(&self, context: &RequestContext<'_>, request: &Fsync, reply: ReplyEmpty) {
        self.fsync(context, request, reply);
    }

    fn rename(&self, _: &RequestContext<'_>, _: &Rename<'_>, reply: ReplyEmpty) {
        reply.ok();
    }

    fn unlink(&self, _: &RequestContext<'_>, _: &Remove<'_>, reply: ReplyEmpty) {
        reply.ok();
    }

    fn rmdir(&self, _: &RequestContext<'_>, _: &Remove<'_>, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Empty, so that whoever clears up is done at once.
    fn readdir(&self, _: &RequestContext<'_>, _: &ReadDir, reply: ReplyDirectory) {
        reply.ok();
    }

    fn readdirplus(&self, _: &RequestContext<'_>, _: &ReadDir, reply: ReplyDirectoryPlus) {
        reply.ok();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, directory, transport] = &arguments[..] else {
        return Err("usage: bound DEVICE DIRECTORY dev|uring".into());
    };
    let (transport, switch) = match transport.as_str() {
        "uring" => match kernel::UringSwitch::set(true) {
            Ok(switch) => (TransportChoice::Uring, Some(switch)),
            Err(why) => {
                kernel::skipped("io_uring", &why);
                return Err(why.into());
            }
        },
        "dev" => (TransportChoice::Dev, None),
        other => return Err(format!("{other}: dev or uring").into()),
    };
    let options = MountOptions::default()
        .source(device)
        .subtype("bound")
        // As the mount of a block device: its caller waits for RELEASE.
        .block_device(PAGE_BYTES as u32);
    let config = Config::default();
    let wanted = config.wanted
        | InitFlags::DONT_MASK
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::NO_OPENDIR_SUPPORT
        | InitFlags::SETXATTR_EXT
        | InitFlags::POSIX_ACL;
    let config = config.wanted(wanted).transport(transport).dev(DevSettings::default().threads(1));
    let filesystem = Bound {
        device: OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(device)?,
        made: AtomicU64::new(1),
        last: Mutex::new(Last { page: Page([0; PAGE_BYTES]), syncs: 0 }),
    };
    let session = Session::mount(Arc::new(filesystem), Path::new(directory), &options, &config)?;
    drop(switch);
    println!("mounted over {}", session.transport());
    session.run()?;
    Ok(())
}
