use super::*;
use crate::{Block, OpenError};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BLOCKS: u64 = 256;

struct Image {
    directory: tempfile::TempDir,
}

impl Image {
    fn new() -> Image {
        Image::in_directory(tempfile::tempdir().unwrap())
    }

    fn in_directory(directory: tempfile::TempDir) -> Image {
        let image = Image { directory };
        drop(FileDevice::create(image.path(), BLOCKS * BLOCK_BYTES as u64).unwrap());
        image
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn open(&self, options: &OpenOptions) -> Result<FileDevice, OpenError> {
        FileDevice::open(self.path(), options)
    }
}

fn every_way() -> Vec<OpenOptions> {
    let mut ways = Vec::new();
    for direct in [true, false] {
        for io_uring in [true, false] {
            ways.push(OpenOptions { direct, io_uring, ..OpenOptions::default() });
        }
    }
    ways
}

fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

fn page(byte: u8) -> Arc<Buffer> {
    Arc::new(Buffer::from_bytes(&[byte; BLOCK_BYTES]))
}

fn first_byte(device: &FileDevice, block: u64) -> u8 {
    let mut bytes = Buffer::zeroed(1);
    device.read(BlockNo(block), &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == bytes[0]), "block {block} is torn");
    bytes[0]
}

/// Whether the host has the first block in its page cache; `None` where it has nothing else.
fn is_cached(path: &Path) -> Option<bool> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let file = std::fs::File::open(path).unwrap();
    if rustix::fs::fstatfs(&file).unwrap().f_type as u64 == TMPFS_MAGIC {
        return None;
    }
    let mut resident = 0u8;
    // SAFETY: the mapping is new, nobody touches what it maps, and `resident` has room for its one page.
    let told = unsafe {
        let mapped = libc::mmap(
            std::ptr::null_mut(),
            BLOCK_BYTES,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(mapped, libc::MAP_FAILED);
        let told = libc::mincore(mapped, BLOCK_BYTES, &mut resident);
        libc::munmap(mapped, BLOCK_BYTES);
        told
    };
    (told == 0).then_some(resident & 1 == 1)
}

#[test]
fn what_the_host_has_cached_is_not_believed_without_direct_access() {
    let image = Image::new();
    drop(std::fs::read(image.path()).unwrap());
    if is_cached(&image.path()) != Some(true) {
        eprintln!("the host does not tell what it has cached here");
        return;
    }
    let options = OpenOptions { direct: false, ..OpenOptions::default() };
    let device = image.open(&options).unwrap();
    assert_eq!(is_cached(&image.path()), Some(false), "recovery reads what the device has");
    device.write(BlockNo(0), vec![page(7)]).unwrap();
    drop(device);
    assert_eq!(first_byte(&image.open(&options).unwrap(), 0), 7, "what was written is not dropped");
}

#[test]
fn written_blocks_are_read_back_in_every_way_of_opening() {
    for options in every_way() {
        let image = Image::new();
        let device = image.open(&options).unwrap();
        assert_eq!(device.engine(), if options.io_uring { "io_uring" } else { "synchronous" });
        assert_eq!(device.blocks(), BLOCKS);
        device.write(BlockNo(3), vec![page(1), page(2)]).unwrap();
        let double = Arc::new(Buffer::from_bytes(&[3; 2 * BLOCK_BYTES]));
        let ticket = device.submit_write(BlockNo(5), vec![double, page(4)]);
        device.wait(&ticket).unwrap();
        device.wait(&device.submit_flush()).unwrap();
        device.flush().unwrap();
        assert_eq!([2, 3, 4, 5, 6, 7, 8].map(|block| first_byte(&device, block)), [0, 1, 2, 3, 3, 4, 0]);
        let counters = device.counters();
        assert_eq!((counters.writes, counters.written_bytes), (2, 5 * BLOCK_BYTES as u64));
        assert_eq!((counters.reads, counters.flushes), (7, 2));
        drop(device);
        assert_eq!(std::fs::read(image.path()).unwrap()[7 * BLOCK_BYTES], 4);
    }
}

#[test]
fn read_many_fills_every_request_aligned_or_not() {
    for options in every_way() {
        let image = Image::new();
        let device = image.open(&options).unwrap();
        let content = (0..100).map(|byte| page(byte + 1)).collect();
        device.write(BlockNo(10), content).unwrap();
        for shift in [0, 8] {
            let mut memory = Buffer::zeroed(150);
            let parts = memory[shift..][..50 * BLOCK_BYTES].chunks_mut(BLOCK_BYTES);
            let requests =
                parts.zip((10..).step_by(2)).map(|(into, at)| ReadRequest { at: BlockNo(at), into });
            device.read_many(&mut requests.collect::<Vec<_>>()).unwrap();
            let read = memory[shift..][..50 * BLOCK_BYTES].chunks(BLOCK_BYTES);
            read.zip((1..).step_by(2)).for_each(|(part, byte)| assert_eq!(part, [byte; BLOCK_BYTES]));
        }
    }
}

#[test]
fn large_reads_bring_each_block_also_when_there_are_more_than_memory_in_one_piece() {
    const LONGEST: usize = 240;
    let content = |block: usize| (block as u64 + 1).to_le_bytes().repeat(BLOCK_BYTES / 8);
    for options in every_way() {
        let image = Image::new();
        let device = image.open(&options).unwrap();
        let written = (0..LONGEST).map(|block| Arc::new(Buffer::from_bytes(&content(block)))).collect();
        device.write(BlockNo(7), written).unwrap();
        let lengths = [1, 63, 64, 65, 150, LONGEST];
        let readings: Vec<_> = (0..4)
            .flat_map(|_| lengths)
            .map(|blocks| device.submit_read(BlockNo(7), blocks))
            .chain(lengths.map(|blocks| device.read_blocks(BlockNo(7), blocks)))
            .collect();
        for (reading, blocks) in readings.into_iter().zip(lengths.into_iter().cycle()) {
            device.wait(reading.ticket()).unwrap();
            let read: Vec<Block> = reading.into_blocks().unwrap().collect();
            assert_eq!(read.len(), blocks);
            assert!((0..).zip(&read).all(|(block, bytes)| bytes[..] == content(block)));
            let own = read.into_iter().map(Block::into_buffer);
            assert!((0..).zip(own).all(|(block, buffer)| buffer[..] == content(block)));
        }
    }
}

#[test]
fn requests_beyond_the_end_are_refused() {
    let image = Image::new();
    let device = image.open(&OpenOptions::default()).unwrap();
    let refused =
        |operation| Err(DeviceError::OutOfRange { operation, block: BlockNo(BLOCKS - 1), blocks: BLOCKS });
    let at = BlockNo(BLOCKS - 1);
    assert_eq!(device.write(at, vec![page(1), page(1)]), refused(Operation::Write));
    assert_eq!(device.wait(&device.submit_write(at, vec![page(1), page(1)])), refused(Operation::Write));
    assert_eq!(device.read(at, &mut [0; 2 * BLOCK_BYTES]), refused(Operation::Read));
    let (mut first, mut second) = (Buffer::zeroed(1), Buffer::zeroed(2));
    let mut requests =
        [ReadRequest { at: BlockNo(0), into: &mut first }, ReadRequest { at, into: &mut second }];
    assert_eq!(device.read_many(&mut requests), refused(Operation::Read));
    assert_eq!(device.discard(at, 2), refused(Operation::Discard));
    device.write(at, vec![page(9)]).unwrap();
    assert_eq!(first_byte(&device, BLOCKS - 1), 9);
}

#[test]
fn image_cut_under_an_open_device_is_an_error_not_zeros() {
    let image = Image::new();
    let device = image.open(&OpenOptions::default()).unwrap();
    File::options().write(true).open(image.path()).unwrap().set_len(BLOCK_BYTES as u64).unwrap();
    let error = DeviceError::Io { operation: Operation::Read, block: BlockNo(7), errno: libc::EIO };
    assert_eq!(device.read(BlockNo(7), &mut Buffer::zeroed(1)), Err(error));
}

#[test]
fn threads_write_flush_and_read_concurrently() {
    let image = Image::new();
    let device = image.open(&OpenOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let device = &device;
            scope.spawn(move || {
                let at = thread * 32;
                for round in 0..200u64 {
                    let byte = (round % 200 + thread) as u8;
                    let writes: Vec<Ticket> = (0..4)
                        .map(|n| device.submit_write(BlockNo(at + n * 2), vec![page(byte), page(byte + 1)]))
                        .collect();
                    writes.iter().for_each(|ticket| device.wait(ticket).unwrap());
                    match round % 40 {
                        0 => device.flush().unwrap(),
                        20 => device.wait(&device.submit_flush()).unwrap(),
                        _ => {}
                    }
                    let mut memory = [Buffer::zeroed(1), Buffer::zeroed(1), Buffer::zeroed(1)];
                    let [a, b, c] = &mut memory;
                    device
                        .read_many(&mut [
                            ReadRequest { at: BlockNo(at), into: a },
                            ReadRequest { at: BlockNo(at + 3), into: b },
                            ReadRequest { at: BlockNo(at + 7), into: c },
                        ])
                        .unwrap();
                    assert_eq!(memory.map(|buffer| buffer[4095]), [byte, byte + 1, byte + 1]);
                }
            });
        }
    });
}

#[test]
fn writes_in_flight_end_before_the_device_is_gone() {
    let image = Image::new();
    let device = image.open(&OpenOptions::default()).unwrap();
    let tickets: Vec<Ticket> =
        (0..BLOCKS).map(|at| device.submit_write(BlockNo(at), vec![page(5)])).collect();
    drop(device);
    assert!(tickets.iter().all(|ticket| ticket.result() == Some(Ok(()))));
    assert!(std::fs::read(image.path()).unwrap().iter().all(|&byte| byte == 5));
}

#[test]
fn second_opener_in_this_process_is_refused_until_the_first_is_gone() {
    let image = Image::new();
    let device = image.open(&OpenOptions::default()).unwrap();
    let locked = OpenError::Locked { path: image.path() };
    assert_eq!(image.open(&OpenOptions::default()).err(), Some(locked.clone()));
    assert_eq!(image.open(&read_only()).err(), Some(locked.clone()));
    let forced = OpenOptions { force: true, ..OpenOptions::default() };
    assert_eq!(image.open(&forced).err(), Some(locked.clone()));
    assert_eq!(FileDevice::create(image.path(), 0).err(), Some(locked.clone()));
    assert!(locked.to_string().ends_with("is in use by another process (a mount?); unmount it first"));
    drop(device);
    let readers = [image.open(&read_only()).unwrap(), image.open(&read_only()).unwrap()];
    let read = OpenError::ReadLocked { path: image.path(), process: Some(std::process::id() as i32) };
    assert_eq!(image.open(&OpenOptions::default()).err(), Some(read.clone()));
    assert_eq!(read.errno(), libc::EBUSY);
    drop(readers);
    assert_eq!(image.open(&OpenOptions::default()).unwrap().blocks(), BLOCKS);
}

#[test]
fn a_flock_of_somebody_who_only_reads_holds_up_nobody() {
    use rustix::fs::{FlockOperation, flock};
    let image = Image::new();
    let reader = File::open(image.path()).unwrap();
    for operation in [FlockOperation::LockShared, FlockOperation::LockExclusive] {
        flock(&reader, operation).unwrap();
        assert_eq!(image.open(&OpenOptions::default()).unwrap().blocks(), BLOCKS);
        assert_eq!(image.open(&read_only()).unwrap().blocks(), BLOCKS);
        assert!(!crate::is_held(&image.path()), "nobody waits for it either");
    }
    let device = image.open(&OpenOptions::default()).unwrap();
    assert!(crate::is_held(&image.path()));
    drop(device);
}

#[test]
fn a_lock_on_bytes_of_somebody_who_only_reads_is_told_as_what_it_is() {
    let image = Image::new();
    let reader = File::open(image.path()).unwrap();
    // SAFETY: all-zero is a valid `flock`, from the start of the file to its end.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    // SAFETY: the descriptor is open, and the structure is valid while the call runs.
    assert_eq!(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETLK, &lock) }, 0);
    let error = image.open(&OpenOptions::default()).err().unwrap();
    let process = Some(std::process::id() as i32);
    assert_eq!(error, OpenError::ReadLocked { path: image.path(), process });
    assert!(error.to_string().contains(&format!("process {} that reads it", std::process::id())), "{error}");
    assert!(!crate::is_held(&image.path()), "it holds no volume");
    assert_eq!(image.open(&read_only()).unwrap().blocks(), BLOCKS);
    drop(reader);
    assert_eq!(image.open(&OpenOptions::default()).unwrap().blocks(), BLOCKS);
}

#[test]
fn a_new_image_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new.img");
    drop(FileDevice::create(&path, 1 << 20).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    drop(FileDevice::create(&path, 2 << 20).unwrap());
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o640,
        "one that is there keeps its"
    );
}

#[test]
fn what_became_a_fifo_is_neither_waited_for_nor_held() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(!crate::is_held(&path));
    assert!(FileDevice::may_be_held_for_mount(&path));
    assert_eq!(
        FileDevice::open(&path, &read_only()).err(),
        Some(OpenError::WrongType { path: path.clone() })
    );
}

#[test]
fn opener_waits_for_a_leaving_holder() {
    let image = Image::new();
    let device = image.open(&OpenOptions::default()).unwrap();
    let patient = |patience| OpenOptions {
        wait_for_lock: Some(Duration::from_millis(patience)),
        ..OpenOptions::default()
    };
    let start = Instant::now();
    assert!(matches!(image.open(&patient(50)), Err(OpenError::Locked { .. })));
    assert!(start.elapsed() >= Duration::from_millis(50));
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| image.open(&patient(20_000)));
        std::thread::sleep(Duration::from_millis(50));
        drop(device);
        assert_eq!(opener.join().unwrap().unwrap().blocks(), BLOCKS);
    });
}

/// Runs one test of this binary in a process of its own, with `variable` naming the image.
fn another_process(test: &str, variable: &str, image: &Image) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test]).env(variable, image.path()).stdout(Stdio::null());
    command
}

/// Another process that holds `image` until its standard input ends.
fn holder(image: &Image) -> Child {
    let mut command =
        another_process("file::tests::hold_the_image_of_the_environment", "SYNCLINE_TEST_HOLD", image);
    let child = command.stdin(Stdio::piped()).spawn().unwrap();
    while !image.path().with_extension("held").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// The other process of [`holder`]; without its environment there is nothing to hold.
#[test]
fn hold_the_image_of_the_environment() {
    let Some(path) = std::env::var_os("SYNCLINE_TEST_HOLD").map(PathBuf::from) else { return };
    let device = FileDevice::open(&path, &OpenOptions::default()).unwrap();
    File::create(path.with_extension("held")).unwrap();
    while std::io::stdin().read_line(&mut String::new()).unwrap() > 0 {}
    drop(device);
}

#[test]
fn device_works_where_the_kernel_refuses_a_ring() {
    let image = Image::new();
    let test = "file::tests::write_without_a_descriptor_for_the_ring";
    assert!(another_process(test, "SYNCLINE_TEST_NO_RING", &image).status().unwrap().success());
    assert_eq!(first_byte(&image.open(&read_only()).unwrap(), 2), 2);
}

/// The other process of [`device_works_where_the_kernel_refuses_a_ring`]: leaves room for one more open file.
#[test]
fn write_without_a_descriptor_for_the_ring() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let Some(path) = std::env::var_os("SYNCLINE_TEST_NO_RING").map(PathBuf::from) else { return };
    let next = File::open(&path).unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + 1), maximum: Some(next + 1) }).unwrap();
    let device = FileDevice::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(device.engine(), "synchronous");
    device.wait(&device.submit_write(BlockNo(1), vec![page(1), page(2)])).unwrap();
    device.wait(&device.submit_flush()).unwrap();
    let (mut first, mut second) = (Buffer::zeroed(1), Buffer::zeroed(1));
    let mut requests =
        [ReadRequest { at: BlockNo(1), into: &mut first }, ReadRequest { at: BlockNo(2), into: &mut second }];
    device.read_many(&mut requests).unwrap();
    assert_eq!((first[0], second[0]), (1, 2));
}

#[test]
fn opener_in_another_process_holds_the_lock_until_it_is_killed() {
    let image = Image::new();
    let mut child = holder(&image);
    let locked = image.open(&OpenOptions::default()).err();
    child.kill().unwrap();
    let waiting = OpenOptions { wait_for_lock: Some(Duration::from_secs(20)), ..OpenOptions::default() };
    let after = image.open(&waiting);
    child.wait().unwrap();
    assert_eq!(locked, Some(OpenError::Locked { path: image.path() }));
    assert_eq!(after.unwrap().blocks(), BLOCKS);
}

#[test]
fn read_only_device_reads_and_refuses_changes() {
    let image = Image::new();
    image.open(&OpenOptions::default()).unwrap().write(BlockNo(1), vec![page(1)]).unwrap();
    let device = image.open(&read_only()).unwrap();
    assert_eq!(first_byte(&device, 1), 1);
    let refused = |operation| Err(DeviceError::Io { operation, block: BlockNo(1), errno: libc::EROFS });
    assert_eq!(device.write(BlockNo(1), vec![page(2)]), refused(Operation::Write));
    assert_eq!(device.wait(&device.submit_write(BlockNo(1), vec![page(2)])), refused(Operation::Write));
    assert_eq!(device.discard(BlockNo(1), 1), refused(Operation::Discard));
    assert_eq!(device.discard_blocks_min(), None);
    assert_eq!(first_byte(&device, 1), 1);
}

#[test]
fn unwritable_image_is_named_in_the_error() {
    let image = Image::new();
    std::fs::set_permissions(image.path(), std::fs::Permissions::from_mode(0o400)).unwrap();
    if rustix::process::geteuid().is_root() {
        // Root writes to any file, but not to one that is being executed.
        std::fs::copy("/bin/sleep", image.path()).unwrap();
        std::fs::set_permissions(image.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let mut running = Command::new(image.path()).arg("60").spawn().unwrap();
        let refused = image.open(&OpenOptions::default()).err();
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(refused, Some(OpenError::NotWritable { path: image.path(), errno: libc::ETXTBSY }));
    } else {
        let refused = image.open(&OpenOptions::default()).err();
        assert_eq!(refused, Some(OpenError::NotWritable { path: image.path(), errno: libc::EACCES }));
        image.open(&read_only()).unwrap();
    }
}

#[test]
fn what_is_no_device_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    assert_eq!(
        FileDevice::open(&path, &read_only()).err(),
        Some(OpenError::WrongType { path: path.clone() })
    );
    assert_eq!(FileDevice::create(&path, 4096).err(), Some(OpenError::WrongType { path }));
    let absent = directory.path().join("absent");
    let error = FileDevice::open(&absent, &OpenOptions::default()).err().unwrap();
    assert_eq!(error.errno(), libc::ENOENT);
    let lost = absent.join("image");
    assert_eq!(FileDevice::create(&lost, 4096).err().unwrap().errno(), libc::ENOENT);
}

#[test]
fn create_makes_a_sparse_image_and_changes_the_size_of_an_old_one() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let device = FileDevice::create(&path, 1 << 40).unwrap();
    assert_eq!(device.blocks(), (1 << 40) / BLOCK_BYTES as u64);
    assert!(path.metadata().unwrap().blocks() < 100);
    device.write(BlockNo(1), vec![page(6)]).unwrap();
    drop(device);
    let device = FileDevice::create(&path, 3 * BLOCK_BYTES as u64 + 5).unwrap();
    assert_eq!(device.blocks(), 3);
    assert_eq!(first_byte(&device, 1), 6);
    let empty = FileDevice::create(directory.path().join("empty"), 0).unwrap();
    assert_eq!(empty.blocks(), 0);
}

#[test]
fn device_works_on_tmpfs_whether_it_takes_direct_io_or_not() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { return };
    let image = Image::in_directory(directory);
    let device = image.open(&OpenOptions::default()).unwrap();
    let ticket = device.submit_write(BlockNo(1), vec![page(1), page(2)]);
    device.wait(&ticket).unwrap();
    device.write(BlockNo(3), vec![page(3)]).unwrap();
    device.flush().unwrap();
    assert_eq!([1, 2, 3].map(|block| first_byte(&device, block)), [1, 2, 3]);
}

/// A mount for one test; unmounted when dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    /// None where the tests may not mount.
    fn new(kind: &str) -> Option<Mount> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").args(["-t", kind, kind]).arg(directory.path()).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Mount(directory))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn host_without_direct_io_is_used_through_its_page_cache() {
    let Some(mount) = Mount::new("ramfs") else {
        eprintln!("not checked: mounting a ramfs is not allowed here");
        return;
    };
    let path = mount.0.path().join("image");
    let device = FileDevice::create(&path, BLOCKS * BLOCK_BYTES as u64).unwrap();
    assert!(!device.direct());
    device.wait(&device.submit_write(BlockNo(1), vec![page(8)])).unwrap();
    assert_eq!(first_byte(&device, 1), 8);
    drop(device);
}

#[test]
fn discard_gives_space_back_and_reads_as_zeros() {
    use std::os::unix::fs::MetadataExt;
    let image = Image::new();
    let device = image.open(&OpenOptions::default()).unwrap();
    device.write(BlockNo(0), (0..128).map(|_| page(1)).collect()).unwrap();
    device.flush().unwrap();
    let held = image.path().metadata().unwrap().blocks();
    device.discard(BlockNo(16), 64).unwrap();
    assert_eq!(image.path().metadata().unwrap().blocks(), held - 64 * 8);
    assert_eq!([15, 16, 79, 80].map(|block| first_byte(&device, block)), [1, 0, 0, 1]);
    assert_eq!(device.discard_blocks_min(), Some(1));
    assert_eq!(image.path().metadata().unwrap().len(), BLOCKS * BLOCK_BYTES as u64);
}

/// Says why a test cannot do its work here. Not captured by the harness, so that it can be counted.
fn skip(test: &str, why: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "skipped: {test}: {why}").unwrap();
}

/// A loop device for one test; detached when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    /// None where the tests may not set one up, which is said.
    fn new(test: &str, image: &Image) -> Option<LoopDevice> {
        LoopDevice::with(test, image, &[])
    }

    fn with(test: &str, image: &Image, options: &[&str]) -> Option<LoopDevice> {
        let output =
            Command::new("losetup").args(["--find", "--show"]).args(options).arg(image.path()).output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).unwrap();
                Some(LoopDevice(PathBuf::from(path.trim())))
            }
            _ => {
                skip(test, "no loop device can be set up; run as root where there are loop devices");
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn block_device_is_locked_but_not_claimed_and_refused_when_claimed() {
    use std::os::unix::fs::OpenOptionsExt;
    let image = Image::new();
    let Some(disk) =
        LoopDevice::new("block_device_is_locked_but_not_claimed_and_refused_when_claimed", &image)
    else {
        return;
    };
    let patient = OpenOptions { wait_for_lock: Some(Duration::from_secs(5)), ..OpenOptions::default() };
    let device = FileDevice::open(&disk.0, &patient).unwrap();
    assert!(device.is_block_device() && device.direct());
    assert_eq!(device.blocks(), BLOCKS);
    device.wait(&device.submit_write(BlockNo(1), vec![page(1), page(2)])).unwrap();
    device.flush().unwrap();
    device.discard(BlockNo(2), 1).unwrap();
    assert!(device.discard_blocks_min().is_some_and(|blocks| blocks >= 1));
    assert_eq!([1, 2].map(|block| first_byte(&device, block)), [1, 0]);
    assert!(matches!(FileDevice::open(&disk.0, &OpenOptions::default()), Err(OpenError::Locked { .. })));
    assert!(matches!(FileDevice::create(&disk.0, 4096), Err(OpenError::FixedSize { .. })));
    let claim = File::options().read(true).custom_flags(libc::O_EXCL).open(&disk.0).unwrap();
    drop(device);
    let claimed = FileDevice::open(&disk.0, &OpenOptions::default()).err();
    assert_eq!(claimed, Some(OpenError::Claimed { path: disk.0.clone() }));
    let behind = OpenError::BehindLoopDevice { path: image.path(), device: disk.0.clone() };
    assert_eq!(image.open(&OpenOptions::default()).err(), Some(behind));
    let forced = OpenOptions { force: true, ..patient.clone() };
    assert_eq!(FileDevice::open(&disk.0, &forced).unwrap().blocks(), BLOCKS);
    drop(claim);
    assert_eq!(first_byte(&FileDevice::open(&disk.0, &patient).unwrap(), 1), 1);
}

/// Flush requests that the kernel has carried out on the block device (Documentation/block/stat.rst, 16th field).
fn flushes_of(disk: &Path) -> u64 {
    let name = disk.file_name().unwrap().to_str().unwrap();
    let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    stat.split_whitespace().nth(15).unwrap().parse().unwrap()
}

#[test]
fn every_flush_reaches_the_block_device() {
    let image = Image::new();
    let Some(disk) = LoopDevice::new("every_flush_reaches_the_block_device", &image) else {
        return;
    };
    let device = FileDevice::open(&disk.0, &OpenOptions::default()).unwrap();
    for (flushes, submitted) in [false, true, false].into_iter().enumerate() {
        let before = flushes_of(&disk.0);
        device.write(BlockNo(1), vec![page(flushes as u8)]).unwrap();
        assert_eq!(flushes_of(&disk.0), before, "a write alone flushes nothing");
        if submitted {
            device.wait(&device.submit_flush()).unwrap();
        } else {
            device.flush().unwrap();
        }
        assert_eq!(flushes_of(&disk.0), before + 1);
    }
}

#[test]
fn device_mounted_by_the_kernel_is_refused_with_its_mount_point() {
    let image = Image::new();
    File::options().write(true).open(image.path()).unwrap().set_len(4 << 20).unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(image.path()).output();
    let mounted = tempfile::tempdir().unwrap();
    if !made.is_ok_and(|output| output.status.success()) {
        skip("device_mounted_by_the_kernel_is_refused_with_its_mount_point", "mkfs.ext4 is not installed");
        return;
    }
    let Some(disk) = LoopDevice::new("device_mounted_by_the_kernel_is_refused_with_its_mount_point", &image)
    else {
        return;
    };
    let mount = Command::new("mount").arg(&disk.0).arg(mounted.path()).output().unwrap();
    if !mount.status.success() {
        skip("device_mounted_by_the_kernel_is_refused_with_its_mount_point", "mounting is not allowed here");
        return;
    }
    let refused = FileDevice::open(&disk.0, &OpenOptions::default()).err();
    let image_mounted = is_mounted(&image.path());
    let other =
        LoopDevice::new("device_mounted_by_the_kernel_is_refused_with_its_mount_point", &image).unwrap();
    let other_mounted = is_mounted(&other.0);
    drop(other);
    let image_refused = image.open(&OpenOptions::default()).err();
    assert!(Command::new("umount").arg(mounted.path()).status().unwrap().success());
    let on = mounted.path().to_owned();
    assert_eq!(refused, Some(OpenError::Mounted { path: disk.0.clone(), on: on.clone() }));
    assert_eq!((image_mounted, other_mounted), (Some(on.clone()), Some(on)));
    assert_eq!(
        image_refused,
        Some(OpenError::BehindLoopDevice { path: image.path(), device: disk.0.clone() })
    );
    assert_eq!(is_mounted(&disk.0), None);
}

#[test]
fn unflushed_write_through_the_page_cache_is_seen_by_a_direct_reader() {
    let image = Image::new();
    let buffered = OpenOptions { direct: false, ..OpenOptions::default() };
    image.open(&buffered).unwrap().write(BlockNo(9), vec![page(4)]).unwrap();
    assert_eq!(first_byte(&image.open(&OpenOptions::default()).unwrap(), 9), 4);
}

#[test]
fn one_image_is_opened_once_by_its_name_or_through_any_loop_device() {
    let test = "one_image_is_opened_once_by_its_name_or_through_any_loop_device";
    let image = Image::new();
    let half = (BLOCKS / 2 * BLOCK_BYTES as u64).to_string();
    let Some(whole) = LoopDevice::new(test, &image) else { return };
    let Some(again) = LoopDevice::new(test, &image) else { return };
    let Some(front) = LoopDevice::with(test, &image, &["--sizelimit", &half]) else { return };
    let Some(back) = LoopDevice::with(test, &image, &["--offset", &half]) else { return };
    let patient = OpenOptions { wait_for_lock: Some(Duration::from_secs(5)), ..OpenOptions::default() };
    let free = |path: &Path| FileDevice::open(path, &patient).unwrap();
    let locked = |path: &Path| {
        let refused = FileDevice::open(path, &OpenOptions::default()).err();
        assert_eq!(refused, Some(OpenError::Locked { path: path.to_owned() }));
    };
    let ways = [image.path(), whole.0.clone(), again.0.clone()];
    for used in &ways {
        let device = free(used);
        ways.iter().chain([&front.0, &back.0]).for_each(|path| locked(path));
        drop(device);
    }
    let parts = [free(&front.0), free(&back.0)];
    ways.iter().for_each(|path| locked(path));
    drop(parts);
    let readers = ways.each_ref().map(|path| FileDevice::open(path, &read_only()).unwrap());
    for path in &ways {
        let refused = FileDevice::open(path, &OpenOptions::default()).err();
        assert!(
            matches!(refused, Some(OpenError::Locked { .. } | OpenError::ReadLocked { .. })),
            "{refused:?}"
        );
    }
    drop(readers);
}

#[test]
fn a_loop_device_is_refused_while_another_one_on_the_same_bytes_is_claimed() {
    use std::os::unix::fs::OpenOptionsExt;
    let test = "a_loop_device_is_refused_while_another_one_on_the_same_bytes_is_claimed";
    let image = Image::new();
    let Some(one) = LoopDevice::new(test, &image) else { return };
    let Some(other) = LoopDevice::new(test, &image) else { return };
    let claim = File::options().read(true).custom_flags(libc::O_EXCL).open(&one.0).unwrap();
    let refused = FileDevice::open(&other.0, &OpenOptions::default()).err();
    assert_eq!(refused, Some(OpenError::SameFile { path: other.0.clone(), device: one.0.clone() }));
    drop(claim);
    let patient = OpenOptions { wait_for_lock: Some(Duration::from_secs(5)), ..OpenOptions::default() };
    FileDevice::open(&other.0, &patient).unwrap();
}

#[test]
fn a_block_device_that_refuses_writes_is_said_so_before_anything_is_written() {
    let test = "a_block_device_that_refuses_writes_is_said_so_before_anything_is_written";
    let image = Image::new();
    let Some(disk) = LoopDevice::with(test, &image, &["--read-only"]) else { return };
    let refused = FileDevice::open(&disk.0, &OpenOptions::default()).err();
    assert_eq!(refused, Some(OpenError::NotWritable { path: disk.0.clone(), errno: libc::EROFS }));
    assert_eq!(FileDevice::open(&disk.0, &read_only()).unwrap().blocks(), BLOCKS);
}
