//! What a forked child has of a volume that its parent has opened: nothing, and it does no harm (C8b).

#[path = "../../fs/tests/gate/mod.rs"]
mod gate;

use gate::Gate;
use std::future::Future;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use syncline::{
    Error, File, MkfsOptions, OpenOptions, ReadDir, SyncScope, SyncTicket, Volume, VolumeOptions,
    VolumeTransaction,
};
use syncline_check::{CheckOptions, Severity, check};
use syncline_device::FileDevice;

/// Generous: it only has to end a test that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `act` in a forked child, which has to end by itself and well.
#[track_caller]
fn in_child(act: impl FnOnce()) {
    // SAFETY: the child does what is tested, says what was wrong, and ends without going back.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: a child that hangs is ended by the alarm, which the parent takes for a failure.
            unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
            let said = result.err().map(|said| match said.downcast::<String>() {
                Ok(text) => *text,
                Err(said) => said.downcast_ref::<&str>().unwrap_or(&"?").to_string(),
            });
            if let Some(said) = &said {
                let _ = writeln!(std::io::stderr(), "in the child: {said}");
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(said.is_some())) }
        }
        child => assert_eq!(wait_for(child), 0, "the child's status"),
    }
}

fn wait_for(child: libc::pid_t) -> i32 {
    assert!(child > 0, "no child");
    let mut status = 0;
    // SAFETY: a child of this process, waited for once.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[track_caller]
fn forked<T>(result: std::io::Result<T>) {
    let error = result.err().expect("it is refused");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    assert!(matches!(inner, Some(Error::Forked(_))), "{error:?}");
    assert_eq!(inner.map(Error::errno), Some(libc::ESTALE));
}

/// All that a program can hold of a volume.
struct Held {
    volume: Volume,
    file: File,
    listing: ReadDir,
    ticket: Option<SyncTicket>,
    transaction: Option<VolumeTransaction>,
}

impl Held {
    fn of(volume: Volume) -> Held {
        volume.write("kept", "kept").expect("write");
        volume.sync_all().expect("sync");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).open(&volume, "file").expect("open");
        let listing = volume.read_dir("/").expect("list");
        Held { volume, file, listing, ticket: None, transaction: None }
    }

    /// Every way to use it is refused, and nothing waits.
    fn is_refused(&mut self) {
        let Held { volume, file, listing, .. } = self;
        forked(volume.write("new", "x"));
        forked(volume.read("kept"));
        forked(volume.metadata("kept"));
        forked(volume.try_exists("kept"));
        forked(volume.create_dir("directory"));
        forked(volume.rename("kept", "renamed"));
        forked(volume.remove_file("kept"));
        forked(volume.read_dir("/"));
        forked(volume.sync_all());
        forked(volume.sync_many([&*file]));
        forked(volume.checkpoint());
        forked(volume.trim(0..u64::MAX, 0));
        forked(volume.transaction());
        forked(volume.clone().close());
        forked(OpenOptions::new().read(true).open(volume, "kept"));
        forked(Volume::open("/there/is/no/such/image"));
        forked(Volume::create_in_memory(32 << 20));
        assert_eq!(volume.stats().engine.device.writes, 0);
        forked(file.read_at(&mut [0; 10], 0));
        forked(file.write_at(b"child", 0));
        forked(file.read(&mut [0; 10]));
        forked(file.write(b"child"));
        forked(file.seek(SeekFrom::End(0)));
        forked(file.sync_all());
        forked(file.sync_data());
        forked(file.sync_range(.., SyncScope::Data));
        forked(file.write_back(..));
        forked(file.set_len(0));
        forked(file.allocate(0, 4096));
        forked(file.metadata());
        let started = file.sync_async(SyncScope::All);
        assert!(started.is_complete());
        forked(started.wait());
        assert!(
            listing
                .next()
                .is_none_or(|entry| entry.is_err() || entry.is_ok_and(|entry| entry.metadata().is_err()))
        );
        if let Some(ticket) = &self.ticket {
            assert!(ticket.is_complete());
            forked(ticket.wait());
            forked(ticket.wait_timeout(Duration::ZERO).expect("it has ended, as far as this process goes"));
            assert_eq!(SyncTicket::wait_any(std::slice::from_ref(ticket), None), [0]);
        }
        if let Some(ticket) = self.ticket.take() {
            let Poll::Ready(result) = pin!(ticket).poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("nobody would ever wake the child");
            };
            forked(result);
        }
        if let Some(mut transaction) = self.transaction.take() {
            forked(transaction.write("staged", "child"));
            forked(transaction.open("kept"));
            forked(transaction.join(&self.file));
            forked(transaction.commit());
        }
    }
}

struct Image {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    fn new() -> Image {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("v.img");
        let options = MkfsOptions::default().size_bytes(32 << 20);
        Volume::create(&path, &options).expect("mkfs").close().expect("close");
        Image { _directory: directory, path }
    }

    fn open(&self) -> Volume {
        VolumeOptions::new().wait_for_lock(PATIENCE).open(&self.path).expect("open")
    }

    fn is_sound(&self) {
        let device = FileDevice::open(&self.path, &syncline_device::OpenOptions::default()).expect("device");
        let report = check(&device, CheckOptions::default()).expect("check");
        let bad: Vec<_> =
            report.findings.iter().filter(|finding| finding.severity > Severity::Info).collect();
        assert!(bad.is_empty(), "{bad:?}");
    }
}

/// The state of the parent when it forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Dirty,
    InTransaction,
    TicketOutstanding,
}

// Shows: C8b.
#[test]
fn a_child_is_refused_in_every_state_of_its_parent_and_leaves_no_trace() {
    for state in [State::Idle, State::Dirty, State::InTransaction, State::TicketOutstanding] {
        let image = Image::new();
        let mut held = Held::of(image.open());
        let content = vec![7; 300_000];
        if state != State::Idle {
            held.file.write_all_at(&content, 0).expect("write");
        }
        if state == State::InTransaction {
            let mut transaction = held.volume.transaction().expect("begin");
            transaction.write("staged", vec![8; 2 << 20]).expect("stage");
            held.transaction = Some(transaction);
        }
        if state == State::TicketOutstanding {
            held.ticket = Some(held.file.sync_async(SyncScope::All));
        }
        let mut held = Some(held);
        in_child(|| {
            held.as_mut().expect("held").is_refused();
            // Whatever is dropped in the child, its parent has it still.
            held = None;
        });
        // A child that only ends runs what is registered for the end.
        // SAFETY: as in `in_child`.
        match unsafe { libc::fork() } {
            0 => {
                held = None;
                std::process::exit(if held.is_none() { 0 } else { 1 });
            }
            child => assert_eq!(wait_for(child), 0, "{state:?}"),
        }
        let Held { volume, file, ticket, transaction, .. } = held.expect("held");
        if let Some(ticket) = ticket {
            ticket.wait().expect("the parent's sync");
        }
        if let Some(transaction) = transaction {
            transaction.commit().expect("the parent's transaction");
            assert_eq!(volume.read("staged").expect("read"), vec![8; 2 << 20]);
        }
        file.write_all_at(&content, 0).expect("write");
        file.sync_all().expect("sync");
        drop(file);
        volume.close().expect("close");
        image.is_sound();
        let volume = image.open();
        assert_eq!(volume.read("file").expect("read"), content, "{state:?}");
        assert_eq!(volume.read("kept").expect("read"), b"kept");
        assert!(!volume.try_exists("new").expect("look"));
        volume.close().expect("close");
    }
}

// Shows: C8b.
#[test]
fn a_child_is_refused_at_once_while_a_thread_of_its_parent_is_in_a_sync() {
    let gate = Gate::new(32 << 20);
    let volume = VolumeOptions::new().open_device(gate.clone()).expect("open");
    let mut held = Some(Held::of(volume));
    let file = held.as_ref().expect("held").volume.create_file("syncing").expect("create");
    file.write_all_at(b"content", 0).expect("write");
    let closed = gate.close();
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| file.sync_all());
        while gate.held() == 0 {
            std::thread::yield_now();
        }
        in_child(|| {
            held.as_mut().expect("held").is_refused();
            held = None;
        });
        assert!(!syncing.is_finished(), "the child has taken nobody's completion");
        drop(closed);
        syncing.join().expect("no panic").expect("the parent's sync");
    });
    drop(file);
    let held = held.expect("held");
    drop((held.file, held.listing));
    held.volume.close().expect("close");
}

#[test]
fn children_that_come_and_go_disturb_no_thread_of_their_parent() {
    let image = Image::new();
    let volume = image.open();
    let ended = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for writer in 0..3_u8 {
            let (volume, ended) = (&volume, &ended);
            scope.spawn(move || {
                let mut options = OpenOptions::new();
                let options = options.read(true).write(true).create(true);
                let file = options.open(volume, format!("w{writer}")).expect("create");
                let mut round = 0;
                while !ended.load(relaxed) {
                    let page = vec![round ^ writer; 40_000];
                    file.write_all_at(&page, u64::from(round) * 1000).expect("write");
                    file.sync_async(SyncScope::All).wait().expect("sync");
                    let mut back = vec![0; page.len()];
                    file.read_exact_at(&mut back, u64::from(round) * 1000).expect("read");
                    assert!(back == page, "what was read is what was written");
                    round = (round + 1) % 100;
                }
            });
        }
        for _ in 0..40 {
            in_child(|| {
                forked(volume.read("w0"));
                forked(volume.write("w1", "child"));
            });
        }
        ended.store(true, relaxed);
    });
    volume.close().expect("close");
    image.is_sound();
}

/// What another run of this program is to do, and with which image: see [`act_as_another_process`].
const ROLE: &str = "SYNCLINE_TEST_FORK_ROLE";
const IMAGE: &str = "SYNCLINE_TEST_FORK_IMAGE";

/// Runs this program again with one thread, as `role`; returns what it printed. It may end in any way.
fn another_process(role: &str, image: &Path) -> String {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "act_as_another_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(IMAGE, image)
        .stderr(Stdio::inherit())
        .output()
        .expect("it runs");
    String::from_utf8(output.stdout).expect("text")
}

/// The number behind `what=` in what a role has printed.
#[track_caller]
fn told(output: &str, what: &str) -> i32 {
    let told = output.split_whitespace().find_map(|word| word.strip_prefix(what)?.strip_prefix('='));
    told.unwrap_or_else(|| panic!("{what}: {output}")).parse().expect("a number")
}

fn end(child: i32) {
    // SAFETY: a process that a role has left behind for this test.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

/// No test of its own: what the others run in a process of its own.
#[test]
fn act_as_another_process() {
    let (Ok(role), Some(image)) = (std::env::var(ROLE), std::env::var_os(IMAGE)) else { return };
    let image = PathBuf::from(image);
    let open = || VolumeOptions::new().wait_for_lock(PATIENCE).open(&image).expect("open");
    match role.as_str() {
        "leaves a child" | "leaves a program" => {
            let volume = open();
            volume.write("kept", "kept").expect("write");
            volume.sync_all().expect("sync");
            // Neither may hold up who reads the pipe.
            // SAFETY: the child closes the pipe and then sleeps, or becomes a program that does.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe {
                    libc::close(1);
                    if role == "leaves a program" {
                        libc::execl(
                            c"/bin/sleep".as_ptr(),
                            c"sleep".as_ptr(),
                            c"600".as_ptr(),
                            std::ptr::null::<u8>(),
                        );
                    }
                    libc::sleep(600);
                    libc::_exit(0);
                }
            }
            println!("child={child}");
            std::io::stdout().flush().expect("flush");
            // SAFETY: this process, which ends without a word to anybody.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "goes to the background" => {
            let volume = open();
            volume.write("kept", "kept").expect("write");
            volume.sync_all().expect("sync");
            // SAFETY: the process that was started ends here, and its child goes on behind the call.
            assert_eq!(unsafe { libc::daemon(1, 1) }, 0);
            forked(volume.read("kept"));
            forked(Volume::open(&image));
            drop(volume);
            println!("refused=1");
        }
        "opens in the background" => {
            open().close().expect("close");
            // SAFETY: as above.
            assert_eq!(unsafe { libc::daemon(1, 1) }, 0);
            let volume = open();
            volume.write("daemon", "was here").expect("write");
            volume.close().expect("close");
            println!("closed=1");
        }
        "forks a pool" => {
            open().close().expect("close");
            let workers: Vec<_> = (0..4)
                .map(|worker| {
                    // SAFETY: as in `in_child`.
                    match unsafe { libc::fork() } {
                        0 => {
                            in_child(|| {
                                for round in 0..3 {
                                    let volume = open();
                                    volume.write(format!("{worker}-{round}"), "x").expect("write");
                                    volume.close().expect("close");
                                }
                            });
                            // SAFETY: ends the child.
                            unsafe { libc::_exit(0) }
                        }
                        child => child,
                    }
                })
                .collect();
            // One of those that take turns.
            open().close().expect("close");
            workers.into_iter().for_each(|worker| assert_eq!(wait_for(worker), 0));
            println!("done=1");
        }
        "forks two sessions" => {
            // Draws numbers and leaves the generator, if there is one in memory, to the children.
            open().close().expect("close");
            in_child(|| {
                let volume = open();
                for number in 0..20 {
                    volume.write(format!("first{number}"), "1").expect("write");
                    volume.sync_all().expect("sync");
                }
                volume.close().expect("close");
            });
            in_child(|| {
                let volume = open();
                for number in 0..3 {
                    volume.write(format!("second{number}"), "2").expect("write");
                    volume.sync_all().expect("sync");
                }
                // Killed: nothing is closed.
                std::mem::forget(volume);
            });
            println!("done=1");
        }
        other => panic!("no such role: {other}"),
    }
}

// Shows: C8b.
#[test]
fn a_volume_is_free_when_its_process_was_killed_though_a_forked_child_lives() {
    for role in ["leaves a child", "leaves a program"] {
        let image = Image::new();
        let child = told(&another_process(role, &image.path), "child");
        // SAFETY: asks whether it is there.
        assert_eq!(unsafe { libc::kill(child, 0) }, 0, "{role}: it was to live");
        let opened = VolumeOptions::new().wait_for_lock(Duration::from_secs(20)).open(&image.path);
        end(child);
        let volume = opened.unwrap_or_else(|error| panic!("{role}: {error}"));
        assert_eq!(volume.read("kept").expect("read"), b"kept");
        volume.close().expect("close");
        image.is_sound();
    }
}

#[test]
fn a_daemon_opens_its_volume_behind_the_fork_that_makes_it_one_and_is_refused_one_from_before() {
    let image = Image::new();
    // The pipe ends with the daemon.
    assert_eq!(told(&another_process("goes to the background", &image.path), "refused"), 1);
    assert_eq!(image.open().read("kept").expect("read"), b"kept");
    assert_eq!(told(&another_process("opens in the background", &image.path), "closed"), 1);
    let volume = image.open();
    assert_eq!(volume.read("daemon").expect("read"), b"was here");
    volume.close().expect("close");
    image.is_sound();
}

#[test]
fn children_that_were_forked_while_no_volume_was_open_take_turns() {
    let image = Image::new();
    assert_eq!(told(&another_process("forks a pool", &image.path), "done"), 1);
    let volume = image.open();
    assert_eq!(volume.read_dir("/").expect("list").count(), 12);
    volume.close().expect("close");
    image.is_sound();
}

// Shows: C8b, R10.
#[test]
fn two_sessions_of_forked_children_leave_a_volume_that_opens() {
    let image = Image::new();
    let began = Instant::now();
    assert_eq!(told(&another_process("forks two sessions", &image.path), "done"), 1);
    assert!(began.elapsed() < PATIENCE);
    let volume = image.open();
    for (name, count) in [("first", 20), ("second", 3)] {
        for number in 0..count {
            volume.read(format!("{name}{number}")).unwrap_or_else(|error| panic!("{name}{number}: {error}"));
        }
    }
    volume.close().expect("close");
    image.is_sound();
}
