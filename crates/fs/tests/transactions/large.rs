//! Transactions beyond memory: what they keep in memory and in flight, what others notice, when they are refused.

use crate::common::*;
use crate::data::{PAGE, pattern};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, MemoryDevice, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_fs::{
    Error, Fs, FsOptions, MkfsOptions, ObjectNo, OpenFlags, SyncScope, SystemClock, SystemEntropy,
};

/// A write that was submitted.
type Submitted = (Ticket, BlockNo, Vec<Arc<Buffer>>);

/// A device that completes a write when somebody waits for it, and no sooner; the one submitted last is the first.
struct Lazy {
    inner: MemoryDevice,
    pending: std::sync::Mutex<Vec<Submitted>>,
    /// The most bytes that were pending at once.
    most: AtomicU64,
}

impl Lazy {
    fn new(bytes: u64) -> Arc<Lazy> {
        let inner = MemoryDevice::new(bytes / 4096);
        Arc::new(Lazy { inner, pending: Default::default(), most: AtomicU64::new(0) })
    }

    fn pending_bytes(&self) -> u64 {
        let pending = self.pending.lock().expect("no panic");
        pending.iter().map(|(_, _, data)| (data.len() * BLOCK_BYTES) as u64).sum()
    }
}

impl Device for Lazy {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(at, into)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let ticket = Ticket::pending();
        self.pending.lock().expect("no panic").push((ticket.clone(), at, data));
        self.most.fetch_max(self.pending_bytes(), Ordering::Relaxed);
        ticket
    }

    fn submit_flush(&self) -> Ticket {
        self.inner.submit_flush()
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        while !ticket.is_complete() {
            // What is waited for was mostly submitted last.
            let (last, at, data) = self.pending.lock().expect("no panic").pop().expect("it is pending");
            last.complete(self.inner.wait(&self.inner.submit_write(at, data)));
        }
        ticket.result().expect("complete")
    }

    fn poll(&self) {
        let first = self.pending.lock().expect("no panic").first().map(|(ticket, _, _)| ticket.clone());
        if let Some(ticket) = first {
            self.wait(&ticket).expect("a write in memory");
        }
    }

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.inner.discard(at, blocks)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

fn open(device: Arc<dyn Device>, memory_bytes_max: usize, journal_bytes: u64) -> Arc<Fs> {
    let mkfs = MkfsOptions::default().journal_bytes(journal_bytes);
    let entropy = SystemEntropy::default();
    Fs::format(&*device, &mkfs, &SystemClock, &entropy, &mut |_, _| {}).expect("mkfs");
    let options = FsOptions::default().memory_bytes_max(memory_bytes_max);
    Fs::open(device, options, Arc::new(SystemClock), &entropy).expect("open")
}

#[test]
fn sixty_four_mebibytes_take_little_memory_and_no_sync_waits_for_them() {
    let device = Lazy::new(256 * MIB);
    let fs = open(device.clone(), 16 << 20, 16 * MIB);
    let file = put(&fs, ROOT, "file", &pattern(1, 100_000));
    let other = put(&fs, ROOT, "other", b"other");
    fs.sync_all().expect("sync");
    let handle = fs.files().open_handle(&root(), other, OpenFlags::READ_WRITE).expect("open");
    device.most.store(0, Ordering::Relaxed);
    let data = pattern(2, MIB as usize);
    let mut transaction = fs.begin().expect("begin");
    for piece in 0..64 {
        transaction.write(file, piece * MIB, &data).expect("write");
        let pending = device.pending_bytes();
        let before = device.counters();
        write(&fs, handle, piece, b"x");
        fs.files().sync_handle(handle, SyncScope::Data).expect("sync");
        let after = device.counters();
        assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1), "piece {piece}");
        assert_eq!(device.pending_bytes(), pending, "the sync has waited for what is staged");
    }
    // A sixteenth of the volume's memory, and a record.
    assert!(
        device.most.load(Ordering::Relaxed) <= MIB,
        "{} bytes in flight",
        device.most.load(Ordering::Relaxed)
    );
    assert!(device.counters().written_bytes >= 63 * MIB, "it is on the device");
    let cached = fs.stats().pages;
    assert!(cached.cached <= cached.cached_max);
    let flushes = device.counters().flushes;
    transaction.commit().expect("commit");
    assert_eq!(device.counters().flushes - flushes, 1);
    for piece in 0..64 {
        let mut found = vec![0; MIB as usize];
        let handle = fs.files().open_handle(&root(), file, OpenFlags::READ).expect("open");
        assert_eq!(fs.files().read(handle, piece * MIB, &mut found), Ok(MIB as usize));
        fs.files().release(handle).expect("release");
        assert!(found == data, "piece {piece}");
    }
}

#[test]
fn too_much_for_a_record_is_refused_while_it_is_staged_and_the_rest_can_be_committed() {
    let fs = open(Arc::new(MemoryDevice::new(128 * MIB / 4096)), 64 << 20, MIB);
    let file = put(&fs, ROOT, "file", &vec![1; 40 << 20]);
    fs.sync_all().expect("sync");
    let mut transaction = fs.begin().expect("begin");
    let mut staged = Vec::new();
    let refused = loop {
        let page = (staged.len() as u64 * 7) % (10 << 10);
        match transaction.write(file, page * 4096, &[staged.len() as u8; 4096]) {
            Ok(()) => staged.push(page),
            Err(error) => break error,
        }
    };
    let Error::TransactionTooLarge { bytes, bytes_max } = refused else { panic!("{refused}") };
    assert!(bytes > bytes_max);
    assert!(staged.len() > 200, "{} pages fit", staged.len());
    assert_eq!(refused.errno(), 7);
    let mut byte = [0];
    transaction.read(file, staged[3] * 4096, &mut byte).expect("read");
    assert_eq!(byte, [3]);
    transaction.commit().expect("commit");
    let found = content(&fs, file);
    for (n, page) in staged.iter().enumerate() {
        assert_eq!(found[*page as usize * 4096..][..4096], [n as u8; 4096], "page {page}");
    }
}

#[test]
fn a_record_holds_as_much_as_the_contract_says() {
    // A sixteenth of the journal that C4 gives its figures for: 900 MiB and 6 MiB.
    let consecutive = 900 * MIB / 16;
    let strewn = 6 * MIB / 16 / PAGE;
    let fs = open(Arc::new(MemoryDevice::new(256 * MIB / 4096)), 64 << 20, MIB);
    let file = put(&fs, ROOT, "file", b"");
    let data = vec![1; 64 << 10];
    let mut transaction = fs.begin().expect("begin");
    let mut at = 0;
    while at < consecutive {
        transaction.write(file, at, &data).expect("write");
        at += data.len() as u64;
    }
    transaction.commit().expect("commit");
    let extent = 128 * PAGE;
    assert!(strewn * extent <= consecutive);
    let mut transaction = fs.begin().expect("begin");
    for n in 0..strewn {
        transaction.write(file, n * extent + 60 * PAGE, &[2; 4096]).expect("write");
    }
    transaction.commit().expect("commit");
    let mut bytes = [0; 2];
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ).expect("open");
    fs.files().read(handle, 60 * PAGE - 1, &mut bytes).expect("read");
    assert_eq!(bytes, [1, 2]);
}

#[test]
fn what_a_transaction_takes_of_a_record_tells_whether_two_can_be_one() {
    let fs = open(Arc::new(MemoryDevice::new(256 * MIB / 4096)), 64 << 20, MIB);
    let files = [b"one", b"two"].map(|name| put(&fs, ROOT, std::str::from_utf8(name).expect("ASCII"), b""));
    let stage = |file: ObjectNo, pages: u64| {
        let mut transaction = fs.begin().expect("begin");
        for n in 0..pages {
            transaction.write(file, n * 3 * PAGE, &[1; 4096]).expect("write");
        }
        transaction
    };
    let (mut fits, mut refused) = (0, 0);
    for pages in (50..1000).step_by(50) {
        let [mut one, mut two] = files.map(|file| stage(file, pages));
        let (cheap, bytes_max) = one.record_bytes(false).expect("a bound");
        let (bytes, _) = one.record_bytes(true).expect("a bound");
        assert!(bytes <= cheap && cheap <= bytes_max, "{pages}: {bytes}, {cheap}, {bytes_max}");
        let sum = bytes + two.record_bytes(true).expect("a bound").0;
        one.absorb(two).expect("absorb");
        match one.commit() {
            Ok(()) => fits += 1,
            Err(Error::TransactionTooLarge { .. }) => {
                refused += 1;
                assert!(sum + 1024 > bytes_max, "{pages}: {sum} of {bytes_max} were refused");
            }
            Err(error) => panic!("{pages}: {error}"),
        }
    }
    assert!(fits > 0 && refused > 0, "{fits} fit, {refused} were refused");
}

#[test]
fn too_many_names_for_a_record_leave_nothing() {
    let fs = open(Arc::new(MemoryDevice::new(64 * MIB / 4096)), 64 << 20, MIB);
    let mut transaction = fs.begin().expect("begin");
    for n in 0..2000 {
        transaction
            .create(&root(), ROOT, format!("a name of some length: {n}").as_bytes(), 0o644)
            .expect("create");
    }
    assert!(matches!(transaction.commit(), Err(Error::TransactionTooLarge { .. })));
    assert!(names(&fs, ROOT).is_empty());
}

fn fill(fs: &Fs) -> ObjectNo {
    let (entry, handle) =
        fs.names().create(&root(), ROOT, b"ballast", 0o644, OpenFlags::READ_WRITE).expect("create");
    let mut at = 0;
    let data = vec![3; 1 << 20];
    loop {
        match fs.files().write(&root(), handle, at, &data) {
            Ok((_, count)) => at += count as u64,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    fs.files().release(handle).expect("release");
    entry.attr.inode
}

#[test]
fn on_a_full_volume_writes_are_refused_and_removals_get_through() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", &pattern(1, 1 << 20));
    fs.sync_all().expect("sync");
    fill(fs);
    let mut transaction = fs.begin().expect("begin");
    let refused = (0..200).find_map(|page| transaction.write(file, page * 4096, &[9; 4096]).err());
    assert_eq!(refused, Some(Error::NoSpace));
    drop(transaction);
    assert!(content(fs, file) == pattern(1, 1 << 20));
    let mut transaction = fs.begin().expect("begin");
    transaction.unlink(ROOT, b"ballast").expect("unlink");
    transaction.truncate(file, 0).expect("truncate");
    transaction.commit().expect("commit");
    fs.checkpoint().expect("checkpoint");
    let mut transaction = fs.begin().expect("begin");
    transaction.write(file, 0, &pattern(2, 20 << 20)).expect("there is space again");
    transaction.commit().expect("commit");
    assert!(content(fs, file) == pattern(2, 20 << 20));
    check_tree(fs);
}

#[test]
fn a_truncation_of_many_extents_is_one_commit_and_frees_them_all() {
    let mut rig = Rig::with_size(128 * MIB);
    let fs = rig.fs.clone();
    let file = touch(&fs, ROOT, "file");
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    for page in 0..4000u64 {
        write(&fs, handle, page * 8192, &[page as u8; 4096]);
    }
    fs.files().release(handle).expect("release");
    fs.sync_all().expect("sync");
    let blocks = fs.attributes().getattr(file).expect("attributes").blocks;
    let mut transaction = fs.begin().expect("begin");
    transaction.truncate(file, 100).expect("truncate");
    transaction.write(file, 50, b"rest").expect("write");
    transaction.commit().expect("commit");
    assert!(fs.attributes().getattr(file).expect("attributes").blocks <= 16, "of {blocks}");
    let mut want = vec![0; 100];
    want[50..54].copy_from_slice(b"rest");
    drop(fs);
    rig.crash();
    assert_eq!(content(&rig.fs, file), want);
    // With content behind the cut everything has to go at once.
    let mut transaction = rig.fs.begin().expect("begin");
    transaction.truncate(file, 0).expect("truncate");
    transaction.write(file, 1 << 20, b"end").expect("write");
    transaction.commit().expect("commit");
    let found = content(&rig.fs, file);
    assert!(found[..1 << 20].iter().all(|byte| *byte == 0) && found.ends_with(b"end"));
}
