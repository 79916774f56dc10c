//! On a cluster, named by `SYNCLINE_TEST_CEPH`: its configuration. The images are `rbd/suite` and `rbd/volume`, of 256
//! MiB, which are overwritten. `tests/replica/servers.sh rbd` starts one and runs this.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use syncline::{MkfsOptions, OpenOptions as Files, Volume, VolumeOptions};
use syncline_check::{CheckOptions, check};
use syncline_device::{Buffer, Device, DeviceError, OpenError, OpenOptions, suite};
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_rbd::{Address, RbdDevice, RbdError};

/// An image of the cluster under test. `None`: there is none, which is told.
fn image(test: &str, image: &str) -> Option<Address> {
    match std::env::var("SYNCLINE_TEST_CEPH") {
        Ok(conf) => Some(Address::parse(&format!("rbd:rbd/{image}?conf={conf}")).expect("an address")),
        Err(_) => {
            // A test that cannot tell is skipped all the same.
            let _ = writeln!(std::io::stderr(), "skipped: {test}: SYNCLINE_TEST_CEPH names no cluster");
            None
        }
    }
}

fn open(address: &Address, options: &OpenOptions) -> RbdDevice {
    RbdDevice::open(address, options).expect("the image")
}

fn page(byte: u8) -> Arc<Buffer> {
    Arc::new(Buffer::from_bytes(&[byte; BLOCK_BYTES]))
}

#[test]
fn an_image_keeps_the_contract_of_devices() {
    let Some(address) = image("an_image_keeps_the_contract_of_devices", "suite") else { return };
    let patient = OpenOptions::default().wait_for_lock(Duration::from_secs(60));
    suite::run(&|| Arc::new(open(&address, &patient)) as Arc<dyn Device>);
    let device = open(&address, &patient);
    assert_eq!(device.discard_blocks_min(), Some(1024), "objects of 4 MiB");
    // In this process or another, for writing or reading: one is told who has it.
    for read_only in [false, true] {
        let second = RbdDevice::open(&address, &OpenOptions::default().read_only(read_only));
        let Err(RbdError::InUse { owners, .. }) = second else { panic!("{:?}", second.map(drop)) };
        assert!(owners.contains("127.0.0.1"), "{owners}");
        let told = OpenError::from(RbdError::InUse { url: String::new(), owners });
        assert_eq!(told.errno(), libc::EBUSY);
    }
    drop(device);
    let first = open(&address, &OpenOptions::default().read_only(true));
    let second = open(&address, &OpenOptions::default().read_only(true));
    first.read(BlockNo(3), &mut [0; BLOCK_BYTES]).expect("a read");
    second.read(BlockNo(3), &mut [0; BLOCK_BYTES]).expect("a read");
    assert!(second.write(BlockNo(3), vec![page(1)]).is_err());
}

#[test]
fn what_is_not_there_is_told() {
    let Some(address) = image("what_is_not_there_is_told", "nothing") else { return };
    let told =
        |address: &Address| RbdDevice::open(address, &OpenOptions::default()).map(drop).expect_err("refused");
    assert!(matches!(told(&address), RbdError::NoImage { .. }));
    assert!(matches!(
        told(&Address { pool: "nopool".to_owned(), ..address.clone() }),
        RbdError::NoPool { .. }
    ));
    let nobody = Address { id: Some("nobody".to_owned()), ..address.clone() };
    assert!(matches!(told(&nobody), RbdError::Connect { .. }));
    assert!(matches!(
        told(&Address { conf: Some("/nonexistent".to_owned()), ..address }),
        RbdError::NoConf { .. }
    ));
}

#[test]
fn a_forked_child_is_refused_and_leaves_the_image_alone() {
    let Some(address) = image("a_forked_child_is_refused", "fork") else { return };
    let device = open(&address, &OpenOptions::default());
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

/// Opens the volume. What the library does not know of is the device's.
fn volume(address: &Address, options: &OpenOptions) -> (Arc<RbdDevice>, Volume) {
    let device = Arc::new(open(address, options));
    let volume = VolumeOptions::new().open_device(device.clone()).expect("the volume");
    (device, volume)
}

#[test]
fn a_sync_is_one_write_and_one_flush() {
    let Some(address) = image("a_sync_is_one_write_and_one_flush", "volume-syncs") else { return };
    let device = Arc::new(open(&address, &OpenOptions::default()));
    let options = VolumeOptions::new().background(false);
    let volume = options.create_device(device.clone(), &MkfsOptions::default()).expect("a volume");
    let mut file = Files::new().write(true).create(true).open(&volume, "/log").expect("a file");
    let before = device.counters();
    for _ in 0..100 {
        file.write_all(&[1; 4096]).and_then(|()| file.sync_all()).expect("a sync");
    }
    let after = device.counters();
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (100, 100));
    drop(file);
    volume.close().expect("closed");
    let report = check(&*device, CheckOptions::default()).expect("a check");
    assert!(report.is_sound(), "{:?}", report.findings);
}

/// Two machines take the volume from each other while both write: what either was told is durable is there, and what
/// the one that was taken over from writes afterwards is not.
// Shows: C14, C15.
#[test]
fn nothing_that_was_acknowledged_is_lost_when_the_volume_is_taken_over_under_load() {
    let test = "nothing_that_was_acknowledged_is_lost_when_the_volume_is_taken_over";
    let Some(address) = image(test, "volume") else { return };
    let rounds = std::env::var("SYNCLINE_TEST_TAKE_OVERS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let take_over = OpenOptions::default().take_over(true);
    let device: Arc<dyn Device> = Arc::new(open(&address, &take_over));
    let made = VolumeOptions::new().create_device(device.clone(), &MkfsOptions::default()).expect("a volume");
    made.close().expect("closed");
    drop(device);
    let acknowledged: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    let mut longest = Duration::ZERO;
    let mut old = None;
    for round in 0..rounds {
        let began = Instant::now();
        let (device, taken) = volume(&address, &take_over);
        longest = longest.max(began.elapsed());
        for (thread, known) in acknowledged.iter().enumerate() {
            let content = taken.read(format!("/log{thread}")).unwrap_or_default();
            let words =
                content.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
            assert!(words.eq(0..content.len() as u64 / 8), "log {thread} of round {round} is torn");
            let found = content.len() as u64 / 8;
            assert!(found >= known.load(Ordering::SeqCst), "log {thread} of round {round}: {found} records");
            known.store(found, Ordering::SeqCst);
        }
        drop(old.take());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = acknowledged
                .iter()
                .enumerate()
                .map(|(thread, known)| {
                    let (taken, stop) = (&taken, &stop);
                    scope.spawn(move || {
                        let name = format!("/log{thread}");
                        let mut next = known.load(Ordering::SeqCst);
                        let mut file =
                            Files::new().append(true).create(true).open(taken, &name).expect("a file");
                        let mut append = || {
                            file.write_all(&next.to_le_bytes()).and_then(|()| file.sync_all())?;
                            next += 1;
                            known.store(next, Ordering::SeqCst);
                            std::io::Result::Ok(())
                        };
                        loop {
                            let is_over = stop.load(Ordering::SeqCst);
                            if append().is_err() {
                                break;
                            }
                            assert!(!is_over, "it writes though it was taken over from");
                        }
                        append().expect_err("it stays so");
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(300));
            // What is acknowledged until the lock is broken is acknowledged.
            let next = open(&address, &take_over);
            stop.store(true, Ordering::SeqCst);
            writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
            let Err(DeviceError::Fenced(told)) = device.write(BlockNo(0), vec![page(0)]) else {
                panic!("the device does not know that it was taken over from")
            };
            assert!(told.contains("another machine has taken over rbd:rbd/volume"), "{told}");
            assert!(matches!(device.flush(), Err(DeviceError::Fenced(_))));
            drop(next);
        });
        old = Some((device, taken));
    }
    drop(old);
    let records: u64 = acknowledged.iter().map(|known| known.load(Ordering::SeqCst)).sum();
    assert!(records > rounds, "{records} syncs in {rounds} rounds are too few to tell");
    println!("{rounds} take-overs, {records} records, the longest opening {longest:?}");
    let report = check(&open(&address, &take_over), CheckOptions::default()).expect("a check");
    assert!(report.errors_left() == 0, "{:?}", report.findings);
}
