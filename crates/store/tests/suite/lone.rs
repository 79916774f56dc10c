//! A lone sync hands nothing over: its record is one blocking write on the caller's own thread, not a request that is
//! submitted, waited for and reaped.

use crate::support;
use crate::support::CrashDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{Buffer, Device, DeviceError, Layer, Ticket};
use syncline_format::{BlockNo, Key, ObjectNo, TreeId};
use syncline_store::{Batch, Class, Estimate, Store, StoreOptions};

struct CountingDevice {
    inner: Arc<CrashDevice>,
    submitted: AtomicU64,
    waited: AtomicU64,
    blocking: AtomicU64,
}

impl Layer for CountingDevice {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.submitted.fetch_add(1, Ordering::Relaxed);
        self.inner.submit_write(at, data)
    }

    fn on_blocking_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Result<(), DeviceError> {
        self.blocking.fetch_add(1, Ordering::Relaxed);
        self.inner.wait(&self.inner.submit_write(at, data))
    }

    fn on_wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.waited.fetch_add(1, Ordering::Relaxed);
        self.inner.wait(ticket)
    }
}

#[test]
fn a_lone_force_writes_its_record_on_its_own_thread() {
    let device = Arc::new(CountingDevice {
        inner: CrashDevice::new(2048),
        submitted: AtomicU64::new(0),
        waited: AtomicU64::new(0),
        blocking: AtomicU64::new(0),
    });
    support::format(&*device, 64, Vec::new());
    let store = Store::open(device.clone(), StoreOptions::new(5)).expect("open").finish().expect("finish");
    let counts = || [&device.submitted, &device.blocking].map(|count| count.load(Ordering::Relaxed));
    let before = counts();
    let flushes_waited = device.waited.load(Ordering::Relaxed);
    for index in 0..10 {
        let estimate = Estimate { bytes: 4096, items: 1, images: 0 };
        let permit = store.admit(Class::Normal, estimate).expect("there is room");
        let mut batch = Batch::new(TreeId::MAIN);
        batch.put(Key::inode(ObjectNo(600)), &[index; 160]);
        let lsn = store.commit(permit, batch).expect("commit");
        store.force(lsn).expect("force");
    }
    let after = counts();
    assert_eq!((after[0] - before[0], after[1] - before[1]), (0, 10));
    // This device's flushes are submitted and waited for; the writes are not.
    assert_eq!(device.waited.load(Ordering::Relaxed) - flushes_waited, 10);
}
