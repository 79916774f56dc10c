//! What a sync that waits for the device holds up: nothing.

use crate::gate::Gate;
use crate::harness::{Volume, check, messages, run_on, statistics, wait_until};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Syncs that wait at once.
const WAITING: usize = 64;
/// Longer than anything takes that does not wait for the device.
const PATIENCE: Duration = Duration::from_secs(30);

/// The daemon's own threads, and the kernel's workers (iou-wrk) for what its rings were given.
fn threads_of(daemon: libc::pid_t) -> (usize, usize) {
    let threads = fs::read_dir(format!("/proc/{daemon}/task")).expect("the daemon runs");
    // A thread may end meanwhile.
    let names = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    let (workers, own): (Vec<String>, Vec<String>) = names.partition(|name| name.starts_with("iou-wrk"));
    (own.len(), workers.len())
}

/// Looks names up that are not known, on CPU 0, in time.
pub(crate) fn lookups_are_answered(root: &Path) {
    let (tell, told) = mpsc::channel();
    let root = root.to_owned();
    std::thread::spawn(move || {
        run_on(0);
        for number in 0..20 {
            let name = root.join(format!("none-{:?}-{number}", std::time::SystemTime::now()));
            assert!(fs::metadata(name).is_err());
        }
        // The one who waits may have given up.
        let _ = tell.send(());
    });
    told.recv_timeout(PATIENCE).expect("a lookup waits for somebody else's sync");
}

fn write(file: &File) -> io::Result<()> {
    file.write_all_at(b"more", 0)
}

/// A write between f2fs's START and COMMIT.
fn change_atomically(file: &File) -> io::Result<()> {
    let request = |number: libc::c_ulong| {
        // SAFETY: the descriptor is open; the calls take no argument.
        check(i64::from(unsafe { libc::ioctl(file.as_raw_fd(), number, 0) })).map(drop)
    };
    request(0xf501).and_then(|()| write(file)).and_then(|()| request(0xf502))
}

type SyncCall = fn(&Path, &File) -> io::Result<()>;

#[test]
fn a_caller_that_waits_alone_keeps_nobody_on_its_cpu_waiting() {
    let calls: [(&str, SyncCall); 5] = [
        ("COMMIT", |dir, _| {
            let file = File::options().read(true).write(true).open(dir.join("file"))?;
            change_atomically(&file)
        }),
        ("fsync", |_, file| write(file).and_then(|()| file.sync_all())),
        ("fsync of eight pages", |_, file| {
            file.write_all_at(&[1; 32 << 10], 0).and_then(|()| file.sync_all())
        }),
        ("fsync of a directory", |dir, _| {
            File::create(dir.join("new"))?;
            File::open(dir)?.sync_all()
        }),
        ("O_DSYNC", |dir, _| {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(libc::O_DSYNC | libc::O_DIRECT);
            options.open(dir.join("file"))?.write_all_at(b"more", 0)
        }),
    ];
    let Some(gate) = Gate::new("a_caller_that_waits_alone_keeps_nobody_on_its_cpu_waiting") else { return };
    let volume = gate.mounted("commit=1000");
    for (name, call) in calls {
        let dir = volume.path(name);
        fs::create_dir(&dir).unwrap();
        let (close, (tell, told)) = (gate.closing(), mpsc::channel());
        let caller = std::thread::spawn(move || {
            run_on(0);
            let file = File::create(dir.join("file")).unwrap();
            // From the third one on it is known to be alone.
            (0..3).try_for_each(|_| call(&dir, &file)).unwrap();
            tell.send(close()).unwrap();
            call(&dir, &file)
        });
        let closed = told.recv().unwrap();
        // Long enough for the call to reach the daemon, which must be the first to hear of anything.
        std::thread::sleep(Duration::from_millis(200));
        lookups_are_answered(&volume.root());
        assert!(!caller.is_finished(), "{name} did not wait for the device");
        drop(closed);
        caller.join().unwrap().unwrap();
    }
}

/// Without a driver that is woken for it, but for the first ones.
#[test]
fn syncs_of_a_lone_caller_are_forced_by_the_thread_that_they_come_to() {
    const SYNCS: u64 = 40;
    const ROUNDS: usize = 12;
    type Call = fn(&File) -> io::Result<()>;
    let calls: [(&str, Call); 2] =
        [("fsync", |file| write(file).and_then(|()| file.sync_all())), ("COMMIT", change_atomically)];
    // In SCHED_IDLE the caller may take the CPU before the thread has its entry back: the next request then comes to
    // another one.
    let Some(volume) = Volume::mounted("commit=1000,scheduling=usual") else { return };
    let count = |of: &str, kind: &str| statistics(&volume.root())[of][kind].as_u64().unwrap();
    for (name, call) in calls {
        let driven_of_a_round = || {
            let before = (count("driven_syncs", "answered"), count("device", "flushes"));
            let path = volume.path(name);
            let caller = std::thread::spawn(move || {
                run_on(0);
                let file = File::create(path).unwrap();
                (0..SYNCS).try_for_each(|_| call(&file)).unwrap();
            });
            caller.join().unwrap();
            assert!(count("device", "flushes") - before.1 >= SYNCS, "{name}: each has its flush");
            count("driven_syncs", "answered") - before.0
        };
        // So may it where others want the CPU. The deputy's entry then lies below the first thread's, until requests
        // overlap.
        let mut rounds = Vec::new();
        while rounds.len() < ROUNDS && rounds.last().is_none_or(|&driven| driven >= SYNCS / 2) {
            let lookup = |number: usize| fs::metadata(volume.path(&format!("none-{number}"))).is_err();
            std::thread::scope(|scope| {
                for caller in 0..8 {
                    let lookup = &lookup;
                    scope.spawn(move || {
                        run_on(0);
                        assert!((0..50).all(|number| lookup(50 * caller + number)));
                    });
                }
            });
            rounds.push(driven_of_a_round());
        }
        assert!(rounds.iter().any(|&driven| driven < SYNCS / 2), "{name}: {rounds:?} of {SYNCS} were driven");
    }
}

/// Files with something to sync.
fn dirty_files(root: &Path, round: &str) -> Vec<File> {
    let file = |number: usize| {
        let file = File::create(root.join(format!("{round}-{number}"))).unwrap();
        file.write_all_at(&[number as u8; 100], 0).unwrap();
        file
    };
    (0..WAITING).map(file).collect()
}

/// Begins to sync all files; what is returned waits for the ends.
type StartAll = fn(Vec<File>) -> Box<dyn FnOnce() -> Vec<i64>>;

fn by_threads(files: Vec<File>, sync: fn(&File) -> io::Result<()>) -> Box<dyn FnOnce() -> Vec<i64>> {
    let result =
        move |file: File| sync(&file).map_or_else(|error| -i64::from(error.raw_os_error().unwrap()), |()| 0);
    let threads: Vec<_> = files.into_iter().map(|file| std::thread::spawn(move || result(file))).collect();
    Box::new(|| threads.into_iter().map(|thread| thread.join().unwrap()).collect())
}

/// `struct iocb` and `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

#[repr(C)]
#[derive(Clone, Default)]
struct IoEvent {
    data: u64,
    obj: u64,
    res: i64,
    res2: i64,
}

fn by_libaio(files: Vec<File>) -> Box<dyn FnOnce() -> Vec<i64>> {
    const FDSYNC: u16 = 3;
    let mut context: libc::c_ulong = 0;
    // SAFETY: `context` is zero and valid for writing.
    check(unsafe { libc::syscall(libc::SYS_io_setup, WAITING, &raw mut context) }).expect("io_setup");
    let mut requests: Vec<Iocb> = files
        .iter()
        .map(|file| Iocb { opcode: FDSYNC, fd: file.as_raw_fd() as u32, ..Iocb::default() })
        .collect();
    let mut pointers: Vec<*mut Iocb> = requests.iter_mut().map(|request| &raw mut *request).collect();
    // SAFETY: as many pointers to valid requests as are named.
    let submitted = unsafe { libc::syscall(libc::SYS_io_submit, context, WAITING, pointers.as_mut_ptr()) };
    assert_eq!(check(submitted).expect("io_submit"), WAITING as i64);
    Box::new(move || {
        let mut events = vec![IoEvent::default(); WAITING];
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: room for as many events as are named.
        let ended = unsafe {
            libc::syscall(libc::SYS_io_getevents, context, WAITING, WAITING, events.as_mut_ptr(), none)
        };
        assert_eq!(check(ended).expect("io_getevents"), WAITING as i64);
        // SAFETY: the context was made above and is not used any more.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        drop((files, requests));
        events.iter().map(|event| event.res).collect()
    })
}

fn by_io_uring(files: Vec<File>) -> Box<dyn FnOnce() -> Vec<i64>> {
    let mut ring = io_uring::IoUring::new(WAITING as u32).expect("a ring");
    // By default the kernel has four workers for each CPU do such calls, and the others wait for them.
    ring.submitter().register_iowq_max_workers(&mut [WAITING as u32, 0]).expect("workers");
    for file in &files {
        let fsync = io_uring::opcode::Fsync::new(io_uring::types::Fd(file.as_raw_fd())).build();
        // SAFETY: the descriptor stays open until the request has ended.
        unsafe { ring.submission().push(&fsync) }.expect("room for all");
    }
    ring.submit().expect("submit");
    Box::new(move || {
        ring.submit_and_wait(WAITING).expect("wait");
        let ended = ring.completion().map(|ended| i64::from(ended.result())).collect();
        drop(files);
        ended
    })
}

#[test]
fn syncs_that_wait_hold_no_thread_and_are_answered_by_the_group() {
    let ways: [(&str, StartAll); 4] = [
        ("fsync", |files| by_threads(files, File::sync_all)),
        ("fdatasync", |files| by_threads(files, File::sync_data)),
        ("libaio", by_libaio),
        ("io_uring", by_io_uring),
    ];
    let Some(gate) = Gate::new("syncs_that_wait_hold_no_thread_and_are_answered_by_the_group") else {
        return;
    };
    let volume = gate.mounted("commit=1000");
    let driven = |kind: &str| statistics(&volume.root())["driven_syncs"][kind].as_u64().unwrap();
    for (name, start) in ways {
        let files = dirty_files(&volume.root(), name);
        let before = (messages(&volume.root(), "fsync"), driven("answered"), driven("batches"));
        let threads = threads_of(volume.daemon());
        let closed = gate.close();
        let wait = start(files);
        wait_until(name, || messages(&volume.root(), "fsync") == before.0 + WAITING as u64);
        let (own, workers) = threads_of(volume.daemon());
        // A stand-in for a queue's thread may start meanwhile; a sync has no thread.
        assert!(own <= threads.0 + 2, "{name}: {own} threads, {} before", threads.0);
        // The device's own write and flush may need a worker each; a sync has none.
        assert!(workers <= threads.1 + 2, "{name}: {workers} workers of the kernel, {} before", threads.1);
        lookups_are_answered(&volume.root());
        drop(closed);
        assert_eq!(wait(), [0; WAITING], "{name}");
        assert_eq!(driven("answered"), before.1 + WAITING as u64, "{name}");
        // Those that came before the gate held the first record, and those that came behind it.
        assert!(driven("batches") - before.2 <= 3, "{name}: {} batches", driven("batches") - before.2);
    }
}
