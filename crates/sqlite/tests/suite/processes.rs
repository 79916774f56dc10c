//! More than one process, and one that is forked: who has the volume, who waits for it, and what a child has of it.

use crate::common::{Place, open, register, run, set_modes, value};
use rusqlite::{Connection, ErrorCode};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use syncline::{MkfsOptions, Volume};

/// Generous: it only has to end a test that hangs.
const PATIENCE_MS: u32 = 120_000;

fn image(directory: &Path) -> PathBuf {
    let image = directory.join("v.img");
    let options = MkfsOptions::default().size_bytes(64 << 20);
    Volume::create(&image, &options).expect("mkfs").close().expect("close");
    image
}

fn uri(image: &Path) -> String {
    format!("file:/db?vfs=syncline&volume={}", image.display())
}

/// A connection that waits for nobody.
fn impatient(uri: &str) -> Connection {
    let connection = open(uri).unwrap_or_else(|error| panic!("{uri}: {error}"));
    connection.busy_timeout(Duration::ZERO).expect("timeout");
    connection
}

#[track_caller]
fn is_busy(connection: &Connection, sql: &str) {
    let busy = connection.execute_batch(sql).expect_err("the volume is in use");
    assert_eq!(busy.sqlite_error_code(), Some(ErrorCode::DatabaseBusy), "{busy}");
}

#[test]
fn threads_that_open_and_close_the_last_connection_are_in_nobodys_way() {
    let directory = tempfile::tempdir().expect("a directory");
    let uri = uri(&image(directory.path()));
    run(&impatient(&uri), "CREATE TABLE t(a)");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let uri = &uri;
            scope.spawn(move || {
                for round in 0..60 {
                    // Now and then another file of the volume than a database is the last to be closed.
                    let connection = impatient(uri);
                    let sql = match (thread + round) % 3 {
                        0 => "SELECT count(*) FROM t",
                        1 => "CREATE TEMP TABLE u AS SELECT zeroblob(2000000) AS x",
                        _ => "SELECT count(*) FROM t, (SELECT 1 UNION SELECT 2)",
                    };
                    connection
                        .prepare(sql)
                        .and_then(|mut s| s.query([]).and_then(|mut rows| rows.next().map(drop)))
                        .unwrap_or_else(|error| panic!("thread {thread}, round {round}: {error}"));
                }
            });
        }
    });
}

/// Another process that has the database of an image open until it is told to go.
struct Holder {
    process: Child,
    input: Option<ChildStdin>,
    /// Open until the process has ended.
    output: Lines<BufReader<ChildStdout>>,
}

const HELD: &str = "SYNCLINE_TEST_HELD_IMAGE";

impl Holder {
    /// Has set up the database by `sql`.
    fn new(image: &Path, sql: &str) -> Holder {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "processes::hold_the_image_of_the_environment", "--nocapture"])
            .env(HELD, image)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut input = process.stdin.take().expect("a pipe");
        writeln!(input, "{sql}").expect("it reads");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("text").contains("it is held")), "it holds the volume");
        Holder { process, input: Some(input), output: lines }
    }

    fn go(mut self) {
        drop(self.input.take());
        self.output.by_ref().for_each(drop);
        assert!(self.process.wait().expect("it ends").success());
    }
}

/// No test of its own: what a [`Holder`] does.
#[test]
fn hold_the_image_of_the_environment() {
    let Some(image) = std::env::var_os(HELD).map(PathBuf::from) else { return };
    let connection = impatient(&uri(&image));
    let mut lines = std::io::stdin().lines();
    run(&connection, &lines.next().expect("a line").expect("text"));
    println!("it is held");
    assert!(lines.next().is_none(), "it goes when the other end is closed");
}

#[test]
fn a_second_process_waits_for_as_long_as_its_uri_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let holder = Holder::new(&image, "CREATE TABLE t(a); INSERT INTO t VALUES(5)");
    // The time is over before the holder goes.
    is_busy(&impatient(&format!("{}&timeout=20", uri(&image))), "SELECT * FROM t");
    let refused = open(&format!("{}&timeout=soon", uri(&image))).expect_err("no number");
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::CannotOpen));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let connection = impatient(&format!("{}&timeout={PATIENCE_MS}", uri(&image)));
            // What is open needs no patience any more.
            value::<i64>(&connection, "SELECT a FROM t")
        });
        holder.go();
        assert_eq!(waiting.join().expect("no panic"), 5);
    });
}

static HOLDER: Mutex<Option<Holder>> = Mutex::new(None);
static CALLS: AtomicU32 = AtomicU32::new(0);

/// A busy handler during which the holder goes.
fn send_it_away(calls: i32) -> bool {
    CALLS.fetch_add(1, Ordering::SeqCst);
    if calls >= 2
        && let Some(holder) = HOLDER.lock().expect("no panic").take()
    {
        holder.go();
    }
    true
}

#[test]
fn a_second_process_waits_for_as_long_as_its_busy_handler_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    // As unlike as can be to the empty database that is there as long as nobody may look.
    let odd = "PRAGMA page_size=16384; PRAGMA auto_vacuum=FULL; PRAGMA journal_mode=WAL; CREATE TABLE t(a, b); INSERT INTO t VALUES(5, zeroblob(100000))";
    let holder = Holder::new(&image, odd);
    let mut connection = impatient(&uri(&image));
    is_busy(&connection, "SELECT * FROM t");
    is_busy(&connection, "BEGIN IMMEDIATE");
    is_busy(&connection, "PRAGMA journal_mode=DELETE");
    connection.busy_handler(Some(|_| false)).expect("handler");
    is_busy(&connection, "SELECT * FROM t");
    *HOLDER.lock().expect("no panic") = Some(holder);
    connection.busy_handler(Some(send_it_away)).expect("handler");
    assert_eq!(value::<i64>(&connection, "SELECT a FROM t"), 5);
    assert_eq!(CALLS.load(Ordering::SeqCst), 3, "asked until the volume was free, and then no more");
    assert_eq!(value::<i64>(&connection, "PRAGMA page_size"), 16384);
    assert_eq!(value::<i64>(&connection, "PRAGMA auto_vacuum"), 1);
    assert_eq!(value::<String>(&connection, "PRAGMA journal_mode"), "wal");
    run(&connection, "INSERT INTO t VALUES(6, zeroblob(50000)); DELETE FROM t WHERE a=5");
    assert_eq!(value::<String>(&connection, "PRAGMA integrity_check"), "ok");
    drop(connection);
    closes(&image);
}

/// The image is free, if not at once: seen held once for a moment beside tests that start processes.
fn closes(image: &Path) {
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.into());
    let volume = loop {
        match Volume::open(image) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => break opened.expect("it is closed"),
        }
    };
    volume.close().expect("close");
}

/// Set in the process that runs a single test.
const ALONE: &str = "SYNCLINE_TEST_ALONE";

/// Runs a test of this file in a process in which no other test has a thread: a child that was forked while another
/// thread held one of SQLite's own mutexes would wait for that mutex for ever.
fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let program = std::env::current_exe().expect("this program");
    let status = Command::new(program)
        .args(["--exact", &format!("processes::{name}")])
        .env(ALONE, "1")
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("it runs").success(), "{name}");
}

/// Runs `act` in a forked child, which has to end by itself and well.
#[track_caller]
fn in_child(act: impl FnOnce()) {
    // SAFETY: the child does what is tested, says what was wrong, and ends without going back.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: a child that hangs is ended by the alarm, which the parent takes for a failure.
            unsafe { libc::alarm(PATIENCE_MS / 1000) };
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
        child => wait_for(child),
    }
}

#[track_caller]
fn wait_for(child: libc::pid_t) {
    assert!(child > 0, "no child");
    let mut status = 0;
    // SAFETY: a child of this process, waited for once.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child's status");
}

/// What a child does with a connection that it has inherited.
#[track_caller]
fn refused_in_child(connection: &mut Option<Connection>) {
    {
        let connection = connection.as_ref().expect("a connection");
        for sql in [
            "SELECT count(*) FROM t",
            "INSERT INTO t VALUES(9)",
            "BEGIN IMMEDIATE",
            "PRAGMA wal_checkpoint",
            "VACUUM",
        ] {
            let result = connection.execute_batch(sql);
            let in_transaction = !connection.is_autocommit();
            assert!(result.is_err() || in_transaction, "{sql}");
        }
        // Whatever SQLite has done in its own memory, it cannot be committed.
        if !connection.is_autocommit() {
            assert!(connection.execute_batch("INSERT INTO t VALUES(9); COMMIT").is_err());
        }
    }
    drop(connection.take());
}

#[test]
fn a_child_is_refused_what_it_has_inherited_in_every_state() {
    alone("a_child_is_refused_what_it_has_inherited_in_every_state", children_in_every_state);
}

fn children_in_every_state() {
    for journal in ["delete", "persist", "wal"] {
        for state in ["idle", "reading", "writing", "spilled"] {
            let directory = tempfile::tempdir().expect("a directory");
            let uri = uri(&image(directory.path()));
            let mut connection = Some(impatient(&uri));
            let parents = connection.as_ref().expect("a connection");
            set_modes(parents, journal, "FULL");
            run(parents, "CREATE TABLE t(a); INSERT INTO t VALUES(1)");
            match state {
                "idle" => {}
                "reading" => run(parents, "BEGIN; SELECT * FROM t"),
                "writing" => run(parents, "BEGIN IMMEDIATE; INSERT INTO t VALUES(2)"),
                _ => run(
                    parents,
                    "PRAGMA cache_size=5; BEGIN; CREATE TABLE u(x); INSERT INTO t VALUES(2);
                     INSERT INTO u SELECT randomblob(3000) FROM (VALUES(1),(2),(3),(4),(5),(6),(7),(8)), (VALUES(1),(2),(3))",
                ),
            }
            in_child(|| refused_in_child(&mut connection));
            in_child(|| {
                // It is not served by a copy of its parent's.
                let own = open(&uri).expect_err("its parent has a volume open");
                assert_eq!(own.sqlite_error_code(), Some(ErrorCode::CannotOpen));
                drop(connection.take());
            });
            let parents = connection.as_ref().expect("a connection");
            if state != "idle" {
                run(parents, "COMMIT");
            }
            let rows = if ["writing", "spilled"].contains(&state) { 2 } else { 1 };
            assert_eq!(value::<i64>(parents, "SELECT count(*) FROM t"), rows, "{journal}, {state}");
            drop(connection);
            let again = impatient(&uri);
            assert_eq!(value::<i64>(&again, "SELECT count(*) FROM t"), rows, "{journal}, {state}");
            assert_eq!(value::<String>(&again, "PRAGMA integrity_check"), "ok");
        }
    }
}

const FORKS: &str = "SYNCLINE_TEST_FORKS_IMAGE";

#[test]
fn a_child_that_was_forked_while_nothing_was_open_waits_for_its_parent() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    // In a process in which no other test has anything open.
    let status = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "processes::fork_with_the_image_of_the_environment"])
        .env(FORKS, &image)
        .status();
    assert!(status.expect("it runs").success());
    assert_eq!(value::<i64>(&impatient(&uri(&image)), "SELECT sum(a) FROM t"), 6);
}

/// No test of its own: what the one above runs.
#[test]
fn fork_with_the_image_of_the_environment() {
    let Some(image) = std::env::var_os(FORKS).map(PathBuf::from) else { return };
    let uri = uri(&image);
    let patient = || {
        let connection = open(&uri).expect("open");
        connection.busy_timeout(Duration::from_millis(PATIENCE_MS.into())).expect("timeout");
        connection
    };
    run(&patient(), "CREATE TABLE t(a); INSERT INTO t VALUES(1)");
    // SAFETY: as in `in_child`.
    match unsafe { libc::fork() } {
        0 => {
            in_child(|| run(&patient(), "INSERT INTO t VALUES(2)"));
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        child => {
            run(&patient(), "INSERT INTO t VALUES(3)");
            wait_for(child);
        }
    }
}

#[test]
fn a_child_has_no_part_in_a_volume_that_was_lent() {
    alone("a_child_has_no_part_in_a_volume_that_was_lent", child_beside_a_loan);
}

fn child_beside_a_loan() {
    register();
    let mut place = Some(Place::new());
    let mut connection = Some(place.as_ref().expect("a place").open("db"));
    run(connection.as_ref().expect("a connection"), "CREATE TABLE t(a)");
    in_child(|| {
        let here = place.as_ref().expect("a place");
        assert!(here.volume().read("db").is_err());
        assert!(open(&here.uri("db")).is_err());
        refused_in_child(&mut connection);
        drop(place.take());
    });
    let connection = connection.expect("a connection");
    run(&connection, "INSERT INTO t VALUES(1)");
    assert_eq!(value::<i64>(&connection, "SELECT count(*) FROM t"), 1);
}

#[test]
fn the_example_of_static_linking_does_what_it_says() {
    let test = std::env::current_exe().expect("this program has a path");
    let example = test.ancestors().nth(2).expect("in a target directory").join("examples/static_rusqlite");
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let output = Command::new(&example).arg(&image).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (b"42 coins\n".as_slice(), b"".as_slice())
    );
}
