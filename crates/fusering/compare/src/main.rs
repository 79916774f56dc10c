//! The filesystem of `examples/roundtrip`, served by the crate fuser: `fuser-nothing DIRECTORY [THREADS]`, as root.
//! Prints a line when it is mounted and serves until it is unmounted; two threads unless told otherwise.

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, OpenFlags, Request,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, UNIX_EPOCH};

const ENTRIES: u64 = 10_000;
const FIRST_NEW: u64 = 1 << 32;
const LONG: Duration = Duration::from_secs(3600);

struct Nothing {
    syncs: Sender<fuser::ReplyEmpty>,
    made: AtomicU64,
}

fn attributes(node: INodeNo) -> FileAttr {
    let root = node == INodeNo::ROOT;
    FileAttr {
        ino: node,
        size: if root { 0 } else { 4096 },
        blocks: 8,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if root { FileType::Directory } else { FileType::RegularFile },
        perm: if root { 0o755 } else { 0o644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Nothing {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in [InitFlags::FUSE_HANDLE_KILLPRIV_V2, InitFlags::FUSE_PARALLEL_DIROPS] {
            if config.add_capabilities(flag).is_err() {
                eprintln!("the kernel does not offer {flag:?}");
            }
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        match name.as_bytes() {
            [digit @ b'0'..=b'7'] => {
                let node = INodeNo(u64::from(digit - b'0') + 2);
                reply.entry(&LONG, &attributes(node), Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: fuser::ReplyAttr) {
        let valid = if node == INodeNo::ROOT { LONG } else { Duration::ZERO };
        reply.attr(&valid, &attributes(node));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: fuser::ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_NOFLUSH);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: fuser::ReplyCreate) {
        let node = INodeNo(self.made.fetch_add(1, Ordering::Relaxed));
        reply.created(&LONG, &attributes(node), Generation(0), FileHandle(0), FopenFlags::FOPEN_NOFLUSH);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: fuser::WriteFlags,
        _: OpenFlags,
        _: Option<fuser::LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, datasync: bool, reply: fuser::ReplyEmpty) {
        if datasync {
            // The thread lives as long as this sender.
            let _ = self.syncs.send(reply);
        } else {
            reply.ok();
        }
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: fuser::ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: fuser::ReplyDirectory) {
        for index in offset..ENTRIES {
            let node = INodeNo(FIRST_NEW + index);
            if reply.add(node, index + 1, FileType::RegularFile, format!("entry-{index}")) {
                break;
            }
        }
        reply.ok();
    }
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, threads) = match &arguments[..] {
        [directory] => (directory, 2),
        [directory, threads] => (directory, threads.parse().map_err(io::Error::other)?),
        _ => return Err(io::Error::other("usage: fuser-nothing DIRECTORY [THREADS]")),
    };
    let (syncs, requests) = channel::<fuser::ReplyEmpty>();
    std::thread::spawn(move || requests.into_iter().for_each(fuser::ReplyEmpty::ok));
    let mut config = fuser::Config::default();
    config.n_threads = Some(threads);
    config.mount_options = vec![fuser::MountOption::FSName("fuser-nothing".into())];
    let session =
        fuser::Session::new(Nothing { syncs, made: AtomicU64::new(FIRST_NEW) }, directory, &config)?;
    let served = session.spawn()?;
    println!("fuser, {threads}");
    served.join()
}
