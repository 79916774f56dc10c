//! Real servers: nbdkit with its filters that fail, delay and stop, and qemu-nbd. Each runs on a socket of its own and
//! is ended by its process id. What is not installed is skipped by name.

mod volume;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use syncline_device::suite::{BLOCKS_MIN, run};
use syncline_device::{Buffer, Device, DeviceError, OpenOptions, Operation};
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_nbd::{Address, NbdDevice, NbdError, Place};

/// A server, until it is dropped.
pub struct Server {
    child: Child,
    pub directory: tempfile::TempDir,
    tcp: Option<u16>,
}

/// One line, past the harness, which is counted.
pub fn skipped(test: &str, why: &str) {
    // A test that cannot tell is skipped all the same.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

impl Server {
    /// `None`: the program is not installed.
    pub fn start(test: &str, program: &str, arguments: &dyn Fn(&Path) -> Vec<String>) -> Option<Server> {
        let directory = tempfile::tempdir().expect("a directory");
        let child = Command::new(program)
            .args(arguments(directory.path()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                skipped(test, &format!("{program} is not installed"));
                return None;
            }
            Err(error) => panic!("{program}: {error}"),
        };
        let mut server = Server { child, directory, tcp: None };
        server.wait_for(&server.socket());
        Some(server)
    }

    /// nbdkit on a socket, with these filters and parameters.
    pub fn nbdkit(test: &str, words: &[&str]) -> Option<Server> {
        Server::start(test, "nbdkit", &|directory| {
            let socket = directory.join("sock").display().to_string();
            let own = ["-f".to_owned(), "--unix".to_owned(), socket];
            let given = words.iter().map(|word| word.replace("DIR", &directory.display().to_string()));
            own.into_iter().chain(given).collect()
        })
    }

    fn wait_for(&mut self, socket: &Path) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none() && Instant::now() < deadline, "the server listens: {ended:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("sock")
    }

    pub fn address(&self) -> Address {
        match self.tcp {
            Some(port) => {
                Address { place: Place::Tcp { host: "127.0.0.1".to_owned(), port }, export: String::new() }
            }
            None => Address { place: Place::Unix(self.socket()), export: String::new() },
        }
    }

    pub fn open(&self) -> Result<NbdDevice, NbdError> {
        let patience = Duration::from_secs(5);
        NbdDevice::open(&self.address(), &OpenOptions::default().wait_for_lock(patience))
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already cannot be ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn page(byte: u8) -> Arc<Buffer> {
    Arc::new(Buffer::from_bytes(&[byte; BLOCK_BYTES]))
}

fn suite_on(server: &Server) {
    run(&|| Arc::new(server.open().expect("the export")) as Arc<dyn Device>);
}

#[test]
fn memory_of_nbdkit_keeps_the_contract_of_devices() {
    let Some(server) = Server::nbdkit("memory_of_nbdkit", &["memory", "1G"]) else { return };
    suite_on(&server);
    let device = server.open().expect("the export");
    assert_eq!(device.blocks(), (1 << 30) / BLOCK_BYTES as u64);
    assert_eq!(device.discard_blocks_min(), Some(1));
}

#[test]
fn a_file_of_nbdkit_keeps_the_contract_of_devices_also_when_it_answers_late_and_in_any_order() {
    let test = "a_file_of_nbdkit";
    let create = |directory: &Path| {
        let image = std::fs::File::create(directory.join("image")).expect("an image");
        image.set_len(BLOCKS_MIN * BLOCK_BYTES as u64).expect("its size");
    };
    let words = |directory: &Path| {
        create(directory);
        let [socket, image] = ["sock", "image"].map(|name| directory.join(name).display().to_string());
        let words =
            ["-f", "--unix", &socket, "--filter=delay", "file", &image, "delay-read=1ms", "delay-write=1ms"];
        words.map(str::to_owned).to_vec()
    };
    let Some(server) = Server::start(test, "nbdkit", &words) else { return };
    suite_on(&server);
}

#[test]
fn qemu_keeps_the_contract_of_devices() {
    let words = |directory: &Path| {
        let [socket, image] = ["sock", "image"].map(|name| directory.join(name).display().to_string());
        std::fs::File::create(&image)
            .and_then(|file| file.set_len(BLOCKS_MIN * BLOCK_BYTES as u64))
            .expect("an image");
        let words = [
            "--socket",
            &socket,
            "--format=raw",
            "--cache=writeback",
            "--persistent",
            "--shared=4",
            "--discard=unmap",
        ];
        words.map(str::to_owned).into_iter().chain([image]).collect()
    };
    let Some(server) = Server::start("qemu_keeps_the_contract", "qemu-nbd", &words) else { return };
    suite_on(&server);
}

#[test]
fn a_server_is_reached_by_tcp_and_exports_are_told_apart() {
    let test = "a_server_is_reached_by_tcp";
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let words = |directory: &Path| {
        // The socket tells when it listens; the port is that of a second server.
        vec![
            "-f".to_owned(),
            "--unix".to_owned(),
            directory.join("sock").display().to_string(),
            "memory".to_owned(),
            "1M".to_owned(),
        ]
    };
    let Some(_first) = Server::start(test, "nbdkit", &words) else { return };
    let number = port.to_string();
    let child = Command::new("nbdkit")
        .args(["-f", "--ipaddr", "127.0.0.1", "--port", &number, "memory", "64M"])
        .stdin(Stdio::null())
        .spawn()
        .expect("nbdkit");
    let server = Server { child, directory: tempfile::tempdir().expect("a directory"), tcp: Some(port) };
    let deadline = Instant::now() + Duration::from_secs(30);
    let device = loop {
        match server.open() {
            Ok(device) => break device,
            Err(NbdError::Connect { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    };
    device.write(BlockNo(7), vec![page(7)]).expect("a write");
    device.flush().expect("a flush");
    // The same server by another name is the same device.
    let by_name = Address::parse(&format!("nbd://localhost:{port}/")).expect("an address");
    if let Err(error) = NbdDevice::open(&by_name, &OpenOptions::default()) {
        assert!(matches!(error, NbdError::InUse { .. } | NbdError::Connect { .. }), "{error}");
    } else {
        panic!("two writers");
    }
    drop(device);
    suite_on(&server);
}

#[test]
fn what_cannot_be_served_is_told() {
    let told = |words: &[&str], options: &OpenOptions| {
        let server = Server::nbdkit("what_cannot_be_served", words)?;
        Some(
            NbdDevice::open(&server.address(), options)
                .map(|device| device.blocks())
                .map_err(|e| e.to_string()),
        )
    };
    let write = OpenOptions::default();
    let cases: [(&[&str], &str); 4] = [
        (&["memory", "1025k"], "whole number of 4 KiB"),
        (&["-r", "memory", "1M"], "read-only"),
        (
            &["--filter=exportname", "memory", "1M", "exportname-strict=true", "exportname=x"],
            "no such export",
        ),
        (
            &[
                "--filter=blocksize-policy",
                "memory",
                "1M",
                "blocksize-minimum=64k",
                "blocksize-preferred=64k",
            ],
            "4 KiB",
        ),
    ];
    for (words, sentence) in cases {
        let Some(result) = told(words, &write) else { return };
        let error = result.expect_err(sentence);
        assert!(error.contains(sentence), "{sentence}: {error}");
    }
    let read = OpenOptions::default().read_only(true);
    assert_eq!(told(&["-r", "memory", "1M"], &read), Some(Ok(256)));
}

#[test]
fn an_error_of_the_server_is_told_to_whoever_waits_and_only_to_them() {
    let words = [
        "--filter=error",
        "memory",
        "64M",
        "error-pwrite=EIO",
        "error-pwrite-rate=100%",
        "error-pwrite-file=DIR/fail",
    ];
    let Some(server) = Server::nbdkit("an_error_of_the_server", &words) else { return };
    let device = server.open().expect("the export");
    device.write(BlockNo(1), vec![page(1)]).expect("a write");
    std::fs::write(server.directory.path().join("fail"), "").expect("the switch");
    let failed =
        |block| DeviceError::Io { operation: Operation::Write, block: BlockNo(block), errno: libc::EIO };
    let tickets: Vec<_> = (0..100).map(|block| device.submit_write(BlockNo(block), vec![page(2)])).collect();
    for (ticket, block) in tickets.iter().zip(0..) {
        assert_eq!(device.wait(ticket), Err(failed(block)));
    }
    std::fs::remove_file(server.directory.path().join("fail")).expect("the switch");
    device.write(BlockNo(2), vec![page(3)]).expect("a write");
    device.flush().expect("a flush");
    let mut block = [0; BLOCK_BYTES];
    device.read(BlockNo(1), &mut block).expect("a read");
    assert_eq!(block, [1; BLOCK_BYTES]);
}

#[test]
fn a_server_that_is_killed_fails_the_device_for_good() {
    let Some(mut server) = Server::nbdkit("a_server_that_is_killed", &["memory", "64M"]) else { return };
    let device = Arc::new(server.open().expect("the export"));
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..8)
        .map(|thread| {
            let (device, stop) = (device.clone(), stop.clone());
            std::thread::spawn(move || {
                loop {
                    let written = device.write(BlockNo(thread), vec![page(1)]).and_then(|()| device.flush());
                    if written.is_err() || stop.load(Ordering::SeqCst) {
                        break written;
                    }
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    server.kill();
    for writer in writers {
        // Whichever of the two was on its way.
        let error = writer.join().expect("a writer").expect_err("the server is gone");
        assert!(matches!(error, DeviceError::Io { errno: libc::ECONNRESET | libc::EPIPE, .. }), "{error:?}");
    }
    stop.store(true, Ordering::SeqCst);
    assert!(
        device.is_broken()
            && device.flush().is_err()
            && device.read(BlockNo(0), &mut [0; BLOCK_BYTES]).is_err()
    );
}

#[test]
fn a_forked_child_is_refused_and_leaves_the_connection_alone() {
    let Some(server) = Server::nbdkit("a_forked_child", &["memory", "64M"]) else { return };
    let device = server.open().expect("the export");
    device.write(BlockNo(0), vec![page(1)]).expect("a write");
    // SAFETY: the child calls what is refused before it takes a lock, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(device.flush(), Err(DeviceError::Forked(_)))
            && matches!(device.write(BlockNo(0), Vec::new()), Err(DeviceError::Forked(_)));
        drop(device);
        // SAFETY: it ends the child, without what is the parent's to do.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: the child is ours, and the number is written to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    device.write(BlockNo(0), vec![page(2)]).and_then(|()| device.flush()).expect("the parent goes on");
}
