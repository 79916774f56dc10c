//! A call that panics: the program goes on, the volume does not.

use crate::common::{Place, run, value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use syncline::{MkfsOptions, SystemClock, SystemEntropy, VolumeOptions};
use syncline_device::{Buffer, Device, DeviceError, Layer, MemoryDevice, Ticket};
use syncline_format::BlockNo;
use syncline_fs::Fs;

/// Panics in the writes of the thread that made it.
struct Panicking {
    memory: MemoryDevice,
    thread: ThreadId,
    armed: AtomicBool,
}

impl Panicking {
    fn look(&self) {
        let mine = std::thread::current().id() == self.thread;
        assert!(!mine || !self.armed.load(Ordering::SeqCst), "this is the panic of the test");
    }
}

impl Layer for Panicking {
    fn below(&self) -> &dyn Device {
        &self.memory
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.look();
        self.memory.submit_write(at, data)
    }

    fn on_blocking_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Result<(), DeviceError> {
        self.look();
        self.memory.write(at, data)
    }
}

#[test]
fn a_volume_whose_call_has_panicked_is_stopped_and_can_be_opened_again() {
    let device = Arc::new(Panicking {
        memory: MemoryDevice::new((64 << 20) / 4096),
        thread: std::thread::current().id(),
        armed: AtomicBool::new(false),
    });
    let entropy = SystemEntropy::default();
    Fs::format(&*device, &MkfsOptions::default(), &SystemClock, &entropy, &mut |_, _| {}).expect("mkfs");
    let volume = || VolumeOptions::new().open_device(device.clone()).expect("open");
    let place = Place::of(volume());
    let (one, other) = (place.open("db"), place.open("other"));
    run(&one, "CREATE TABLE t(a); INSERT INTO t VALUES(1)");
    run(&other, "CREATE TABLE t(a)");
    device.armed.store(true, Ordering::SeqCst);
    assert!(one.execute_batch("INSERT INTO t VALUES(2)").is_err());
    device.armed.store(false, Ordering::SeqCst);
    // Nobody is served from an engine that may have been left half-way.
    assert!(one.execute_batch("INSERT INTO t VALUES(3)").is_err());
    assert!(other.execute_batch("INSERT INTO t VALUES(3)").is_err());
    assert!(other.query_row("SELECT count(*) FROM t", [], |_| Ok(())).is_err());
    assert!(crate::common::open(&place.uri("db")).is_err());
    drop((one, other, place));
    let place = Place::of(volume());
    let again = place.open("db");
    assert_eq!(value::<i64>(&again, "SELECT min(a) FROM t"), 1);
    assert!(
        value::<i64>(&again, "SELECT max(a) FROM t") <= 2,
        "what was not acknowledged may be there, or not"
    );
    assert_eq!(value::<String>(&again, "PRAGMA integrity_check"), "ok");
}
