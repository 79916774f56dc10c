//! Ends under load, and work that waits.

use crate::filesystem::{MemoryFilesystem, config};
use crate::harness::{Mounted, Test, c_path, over_both_transports, wait_until};
use fusering::abi::{AttrFlags, OpenFlags};
use fusering::request::{GetAttr, Lookup, Open, Read};
use fusering::{
    Attributes, Config, DeviceNumber, Entry, Errno, Filesystem, Handle, NodeId, Opened, ReplyAttributes,
    ReplyData, ReplyEntry, ReplyOpen, RequestContext, Time, WorkPool,
};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

over_both_transports!(
    a_forced_unmount_under_load_ends_callers_and_session,
    a_mount_unmounted_under_load_goes_when_its_last_file_is_closed,
    reads_that_wait_in_a_pool_hold_nobody_up,
);

/// More than this machine has CPUs.
const CLIENTS: u64 = 16;

/// How clients that are at work are to end.
struct Load {
    rounds: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    /// Makes, writes, syncs, reads and removes files until something fails or it is to stop.
    fn work(&self, root: &Path, client: u64) -> Option<io::Error> {
        while !self.stop.load(Ordering::Relaxed) {
            if let Err(error) = self.round(root, client) {
                return Some(error);
            }
        }
        None
    }

    fn round(&self, root: &Path, client: u64) -> io::Result<()> {
        let path = root.join(format!("{client}-{}", self.rounds.fetch_add(1, Ordering::Relaxed)));
        let data = vec![client as u8; 70_000];
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.write_all_at(&data, 3)?;
        file.sync_all()?;
        let mut read = vec![0; data.len()];
        file.read_exact_at(&mut read, 3)?;
        assert!(read == data, "what was read is what was written");
        let renamed = path.with_extension("renamed");
        fs::rename(&path, &renamed)?;
        fs::read_dir(root)?.try_for_each(|entry| entry.map(drop))?;
        fs::remove_file(&renamed)
    }
}

/// Unmounts by `how` while clients are at work; what they failed with.
fn end_under_load(root: &Path, how: libc::c_int) -> Vec<Option<i32>> {
    let load = Load { rounds: AtomicU64::new(0), stop: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let load = &load;
        let clients: Vec<_> =
            (0..CLIENTS).map(|client| scope.spawn(move || load.work(root, client))).collect();
        wait_until("all clients work", || load.rounds.load(Ordering::Relaxed) > 20 * CLIENTS);
        umount(root, how);
        if how == libc::MNT_DETACH {
            // By path they go on, in the directory below.
            load.stop.store(true, Ordering::Relaxed);
        }
        let ended =
            clients.into_iter().map(|client| client.join().expect("what was read is what was written"));
        ended.map(|error| error.map(|error| error.raw_os_error().expect("a system call failed"))).collect()
    })
}

fn umount(at: &Path, how: libc::c_int) {
    let path = c_path(at);
    // A forced unmount says that the mount is in use, but has ended its connection.
    // SAFETY: a NUL-terminated path.
    unsafe { libc::umount2(path.as_ptr(), how) };
}

fn mounted(test: &Test) -> Option<Mounted<MemoryFilesystem>> {
    test.mount(MemoryFilesystem::new(), config())
}

fn a_forced_unmount_under_load_ends_callers_and_session(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let root = mount.root().to_owned();
    let errors = end_under_load(&root, libc::MNT_FORCE);
    let gone = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)];
    assert!(errors.iter().all(|errno| gone.contains(errno)), "{errors:?}");
    umount(&root, libc::MNT_DETACH);
    mount.session.wait().expect("the end of a connection is no error");
}

fn a_mount_unmounted_under_load_goes_when_its_last_file_is_closed(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let file = File::create_new(mount.path("kept")).expect("create");
    end_under_load(mount.root(), libc::MNT_DETACH);
    file.write_all_at(b"still served", 0).expect("write");
    file.sync_all().expect("sync");
    drop(file);
    mount.session.wait().expect("an unmount is no error");
}

/// One file whose content comes slowly.
struct Slow {
    pool: WorkPool,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicU64,
}

impl Gate {
    fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let open = self.open.lock().expect("no panics");
        drop(self.changed.wait_while(open, |open| !*open).expect("no panics"));
    }

    fn open(&self) {
        *self.open.lock().expect("no panics") = true;
        self.changed.notify_all();
    }
}

const FILE: NodeId = NodeId(2);
const FILE_BYTES: u64 = 1 << 20;

fn attributes(node: NodeId) -> Attributes {
    let (mode, size) =
        if node == FILE { (libc::S_IFREG | 0o644, FILE_BYTES) } else { (libc::S_IFDIR | 0o755, 0) };
    Attributes {
        ino: node.0,
        size,
        blocks: 0,
        accessed: Time::default(),
        modified: Time::default(),
        changed: Time::default(),
        mode,
        links: 1,
        uid: 0,
        gid: 0,
        device: DeviceNumber::default(),
        block_bytes: 4096,
        flags: AttrFlags::empty(),
    }
}

impl Filesystem for Slow {
    fn lookup(&self, _: &RequestContext<'_>, request: &Lookup<'_>, reply: ReplyEntry) {
        if request.name != "f" {
            return reply.error(Errno::ENOENT);
        }
        let none = Duration::ZERO;
        let attributes = attributes(FILE);
        let entry =
            Entry { node: FILE, generation: 0, attributes, entry_valid: none, attributes_valid: none };
        reply.entry(&entry);
    }

    fn getattr(&self, _: &RequestContext<'_>, request: &GetAttr, reply: ReplyAttributes) {
        reply.attributes(&attributes(request.node), Duration::ZERO);
    }

    fn open(&self, _: &RequestContext<'_>, _: &Open, reply: ReplyOpen) {
        reply.opened(&Opened { handle: Handle(0), flags: OpenFlags::DIRECT_IO });
    }

    fn read(&self, _: &RequestContext<'_>, request: &Read, reply: ReplyData) {
        let (gate, request) = (Arc::clone(&self.gate), *request);
        self.pool.run(move || {
            gate.wait();
            reply.fill(request.size as usize, |into| {
                into.fill((request.offset >> 12) as u8);
                Ok(into.len())
            });
        });
    }
}

fn reads_that_wait_in_a_pool_hold_nobody_up(test: &Test) {
    let gate = Arc::new(Gate::default());
    let slow = Slow { pool: WorkPool::new(CLIENTS as usize), gate: Arc::clone(&gate) };
    let Some(mut mount) = test.mount(slow, Config::default()) else { return };
    let path = mount.path("f");
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let path = &path;
                scope.spawn(move || {
                    let mut page = [0; 4096];
                    File::open(path)?.read_exact_at(&mut page, client << 12)?;
                    Ok::<_, io::Error>(page)
                })
            })
            .collect();
        wait_until("all reads wait", || gate.waiting.load(Ordering::SeqCst) == CLIENTS);
        for _ in 0..100 {
            assert_eq!(fs::metadata(&path).expect("others are served").len(), FILE_BYTES);
        }
        gate.open();
        for (client, reader) in (0u8..).zip(readers) {
            assert_eq!(reader.join().expect("no panic").expect("read"), [client; 4096]);
        }
    });
    mount.unmount();
}
