//! Requests of the kernel to calls of the engine, and results to answers.
//!
//! Which thread does what. Over io_uring a method runs on the thread of its CPU's queue and holds up that queue, so
//! whatever may wait long is handed to a bounded pool together with its reply; the engine says beforehand what that
//! is (`syncline`'s `*_may_wait`). Everything else is done where it arrives, because a hand-over costs more than the
//! work:
//!
//! | request | here | in the pool |
//! |---|---|---|
//! | read | what is in memory; by a deputy of io_uring everything | anything else |
//! | write | admitted at once | no room, too much is dirty, or the rest of a page has to be read |
//! | create, link, mkdir, attributes | room in the journal | no room |
//! | open with truncation, unlink, rename, release | content of at most 1 MiB | more |
//! | size | at most 1 MiB is removed, and a page that it cuts is in memory | more |
//! | fallocate | gives at most 1 MiB | more; everything else it does |
//! | copy | at most 256 KiB, in memory, whose write is admitted at once | more |
//! | fsync | at most four dirty pages: is logged; forced by a driver (for a lone caller here, over io_uring by a deputy) | up to 32 of a sync that is alone are written out and logged; more are written out first, together with others' (`writers`) |
//! | ioctls that sync | as fsync | as fsync |
//! | syncfs, fsync of the root | | always |
//!
//! Over /dev/fuse the same question decides whether another reader is let in before the work is done on the spot.
//! Lookups, attributes and directories are always read where they arrive: a cold tree costs them a few single reads.
//!
//! - *Appending.* The kernel holds the inode's lock while it writes and knows the size, so its offsets are final.
//!   Handles are opened without the append flag, because a page written back from a mapping may arrive on any of
//!   them; only append-only files need it.
//! - *Directories* have no handles: their positions are stable, and the kernel is told to leave out `opendir`.
//! - *dirsync* and *sync* mounts make every change of names and attributes durable before it is answered.
//! - *Interruptions* are declined. Nothing here waits for another program; every request ends when the device has done
//!   its part, and an fsync that fails with EINTR would say nothing about the data.
//! - *Forgetting* changes nothing: object numbers name inodes for good, whether the kernel knows them or not. For the
//!   same reason the volume can be exported by NFS.

mod atomics;
mod attributes;
mod controls;
mod durable;
mod inode_calls;
mod operations;
mod requests;

use crate::callers::Callers;
use crate::convert::Caller;
use crate::drivers::allowed_cpus;
use crate::messages::{Message, MessageCounts};
use crate::mounts::{Mounts, Share};
use crate::syncs::Owed;
use crate::writers::{Joining, Writers};
use crate::{MountError, MountOptions, metrics};
use fusering::abi::InitFlags;
use fusering::{
    ActiveTransport, Classes, Config, DevSettings, Entry, ReplyEntry, RequestContext, TransportKind,
    UringSettings, WorkPool,
};
use operations::Operations;
use parking_lot::{Mutex, RwLock};
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use syncline_fs::Lsn;

/// Largest message, and read-ahead.
pub(crate) const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// Largest WRITE. The kernel lets go of its CPU neither while it fills one from the caller's memory nor while it
/// copies it into the queue, and small syncs and reads of others need that CPU: threads that serve it, and the
/// device's interrupts. With half of this sequential writes were a sixth slower.
const WRITE_BYTES_MAX: u32 = 256 << 10;

/// Requests that one CPU's queue may have open. A sync that waits is open until its group is flushed, and a queue
/// whose entries are all taken by such takes nothing else; address space is all that more of them cost.
const QUEUE_DEPTH: u16 = 256;

/// A mounted volume.
pub(crate) struct Filesystem {
    // Constant.
    operations: Arc<Operations>,
    messages: Arc<MessageCounts>,
    callers: Callers,
    writers: Arc<Writers<Joining>>,
    /// Gone at the end.
    pool: Pool,
    /// Closed at the end.
    live: Mutex<Option<Live>>,
    outcome: Mutex<Option<Result<(), MountError>>>,
}

type Pool = Arc<RwLock<Option<WorkPool>>>;

/// What ends with the mount.
struct Live {
    share: Share,
    drivers: Vec<JoinHandle<()>>,
}

/// What to agree on with the kernel.
pub(crate) fn config(options: &MountOptions) -> Config {
    let mut wanted = InitFlags::ASYNC_READ
        | InitFlags::ATOMIC_O_TRUNC
        | InitFlags::BIG_WRITES
        | InitFlags::ASYNC_DIO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::HAS_IOCTL_DIR
        | InitFlags::CACHE_SYMLINKS
        | InitFlags::NO_OPENDIR_SUPPORT
        | InitFlags::EXPLICIT_INVAL_DATA
        | InitFlags::DIRECT_IO_ALLOW_MMAP
        | InitFlags::SETXATTR_EXT
        | InitFlags::EXPORT_SUPPORT;
    if options.writeback_cache {
        wanted |= InitFlags::WRITEBACK_CACHE;
    }
    Config::default()
        .wanted(wanted)
        // Without these the mount would be wrong.
        .required(InitFlags::DONT_MASK | InitFlags::POSIX_ACL | InitFlags::HANDLE_KILLPRIV_V2)
        // What the kernel writes back from its own cache nobody waits for, and its size tells what to hand on to the
        // device.
        .write_bytes_max(if options.writeback_cache { MESSAGE_BYTES_MAX } else { WRITE_BYTES_MAX })
        .read_bytes_max(MESSAGE_BYTES_MAX)
        .readahead_bytes_max(MESSAGE_BYTES_MAX)
        .transport(options.transport)
        .idle_class(options.idle_class)
        .dev(DevSettings::default().threads(options.threads))
        // A daemon that is to stay on one CPU stays there.
        .uring(UringSettings::default().depth(QUEUE_DEPTH).pin(options.cpu.is_none()).deputy(true))
}

impl Filesystem {
    /// Takes what is to be mounted, which [`Filesystem::close`] or the end of the connection closes.
    pub(crate) fn new(share: Share, options: &MountOptions) -> Result<Filesystem, MountError> {
        let messages = Arc::new(MessageCounts::default());
        let operations = Arc::new(Operations::new(&share, options, messages.clone()));
        let driver = start_driver(&operations, None)
            .map_err(|source| MountError::System { what: "starting a thread", source })?;
        Ok(Filesystem {
            operations,
            messages,
            callers: Callers::new(),
            writers: Arc::new(Writers::new()),
            pool: Arc::new(RwLock::new(Some(WorkPool::new(options.threads)))),
            live: Mutex::new(Some(Live { share, drivers: vec![driver] })),
            outcome: Mutex::new(None),
        })
    }

    /// All that the daemon has mounted of the volume.
    pub(crate) fn mounts(&self) -> &Arc<Mounts> {
        &self.operations.mounts
    }

    /// Tells which transport brings requests. Where each CPU has a queue, it gets a driver of syncs.
    pub(crate) fn set_transport(&self, transport: &ActiveTransport, classes: &Arc<Classes>) {
        self.operations.set_transport(transport, classes);
        if let (TransportKind::Uring, Some(live)) = (transport.kind, &mut *self.live.lock()) {
            for cpu in allowed_cpus() {
                match start_driver(&self.operations, Some(cpu)) {
                    Ok(driver) => live.drivers.push(driver),
                    Err(error) => tracing::debug!(%error, cpu, "syncs of this CPU are driven elsewhere"),
                }
            }
        }
    }

    /// The metrics, as Prometheus reads them.
    pub(crate) fn metrics(&self) -> String {
        metrics::text(&self.operations.sources())
    }

    /// Whether FS_IOC_SHUTDOWN has stopped the volume.
    pub(crate) fn was_shut_down(&self) -> bool {
        self.operations.was_shut_down()
    }

    /// Writes what is left; of the volume's last mount also the last checkpoint, and lets go of the device. Unless that
    /// was done; says how it went. What is asked afterwards fails.
    pub(crate) fn close(&self) -> Result<(), MountError> {
        self.close_once();
        self.outcome.lock().take().unwrap_or(Ok(()))
    }

    fn close_once(&self) {
        if let Some(live) = &*self.live.lock() {
            live.share.begin_to_end();
        }
        // Waits until all that was handed over is done. What does it may look for the pool meanwhile.
        let pool = self.pool.write().take();
        drop(pool);
        let Some(live) = self.live.lock().take() else { return };
        self.operations.syncs.stop();
        for driver in live.drivers {
            if driver.join().is_err() {
                // Not reached in a daemon, where a panic ends the process.
                tracing::error!("a driver of syncs had stopped by an internal error");
            }
        }
        let closed = live.share.close(self.was_shut_down());
        *self.outcome.lock() = Some(closed);
    }

    fn count(&self, context: &RequestContext<'_>, message: Message) {
        self.messages.count(message);
        self.callers.note(context.pid);
    }

    /// Does `work` here; or in the pool, if it may wait and this thread serves a queue.
    fn serve(
        &self,
        context: &RequestContext<'_>,
        may_wait: bool,
        work: impl FnOnce(&Operations, &Caller) + Send + 'static,
    ) {
        let caller = Caller::of(context);
        if may_wait && context.transport() == TransportKind::Uring {
            let pool = self.pool.read();
            if let Some(pool) = &*pool {
                let operations = self.operations.clone();
                return pool.run(move || work(&operations, &caller));
            }
        }
        let _waiting = may_wait.then(|| context.about_to_wait());
        work(&self.operations, &caller);
    }

    /// Counts a request and does `work`, which is not the volume's own, as [`Filesystem::serve`] would.
    pub(crate) fn serve_beside(
        &self,
        context: &RequestContext<'_>,
        message: Message,
        may_wait: bool,
        work: impl FnOnce(&Caller) + Send + 'static,
    ) {
        self.count(context, message);
        self.serve(context, may_wait, move |_, caller| work(caller));
    }

    /// Answers with what was made when it is durable.
    pub(crate) fn force_beside(
        &self,
        context: &RequestContext<'_>,
        message: Message,
        lsn: Lsn,
        reply: ReplyEntry,
        made: Entry,
    ) {
        self.count(context, message);
        let by = self.forced_by(context, false);
        self.operations.syncs.force_made(lsn, by, Owed::Made(reply, Box::new(made)));
    }

    /// As [`Filesystem::serve`], with a name, which is copied only for the pool: the message's memory is the queue's
    /// again when this returns.
    fn serve_named(
        &self,
        context: &RequestContext<'_>,
        may_wait: bool,
        name: &OsStr,
        work: impl FnOnce(&Operations, &Caller, &OsStr) + Send + 'static,
    ) {
        if may_wait {
            let name = name.to_owned();
            return self.serve(context, true, move |operations, caller| work(operations, caller, &name));
        }
        work(&self.operations, &Caller::of(context), name);
    }

    /// Has a sync written out together with others.
    fn join_writers(&self, pages: u64, sync: Joining) {
        if self.writers.join(pages, sync) {
            let (operations, writers, pool) =
                (self.operations.clone(), self.writers.clone(), self.pool.clone());
            in_pool(&self.pool, move || write_out_together(&operations, &writers, &pool));
        }
    }
}

/// A thread that drives syncs, tied to a CPU or not.
fn start_driver(operations: &Arc<Operations>, cpu: Option<usize>) -> io::Result<JoinHandle<()>> {
    let operations = operations.clone();
    let name = cpu.map_or("syncline-syncs".to_owned(), |cpu| format!("syncline-sync-{cpu}"));
    std::thread::Builder::new().name(name).spawn(move || operations.syncs.drive(cpu))
}

/// Has `work` done by the pool; here when the mount is ending.
fn in_pool(pool: &Pool, work: impl FnOnce() + Send + 'static) {
    // Recursive: a pool that gets no thread does the work here, and the work may come back to this line.
    let guard = pool.read_recursive();
    if let Some(pool) = &*guard {
        return pool.run(work);
    }
    drop(guard);
    work();
}

/// A writer, until nobody waits for it.
fn write_out_together(operations: &Arc<Operations>, writers: &Writers<Joining>, pool: &Pool) {
    loop {
        let syncs = writers.take();
        if syncs.is_empty() {
            return;
        }
        for alone in operations.syncs.start_together(syncs) {
            let operations = operations.clone();
            in_pool(pool, move || operations.syncs.start_alone(alone));
        }
    }
}
