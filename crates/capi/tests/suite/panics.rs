//! A call that panics: the program goes on, the volume does not.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use syncline::{MkfsOptions, SystemClock, SystemEntropy, VolumeOptions};
use syncline_capi::*;
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

fn said() -> String {
    // SAFETY: a string of the library's, read before the next call.
    unsafe { CStr::from_ptr(syncline_last_error()) }.to_string_lossy().into_owned()
}

fn open(volume: *mut abi::syncline_volume, name: &CStr) -> *mut abi::syncline_file {
    let mut file = std::ptr::null_mut();
    // SAFETY: a string, and room for the handle.
    let code =
        unsafe { syncline_open(volume, name.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o666, &mut file) };
    assert_eq!(code, 0, "{}", said());
    file
}

// Shows: C8.
#[test]
fn a_volume_whose_call_has_panicked_is_stopped_and_can_be_opened_again() {
    let device = Arc::new(Panicking {
        memory: MemoryDevice::new((64 << 20) / 4096),
        thread: std::thread::current().id(),
        armed: AtomicBool::new(false),
    });
    let entropy = SystemEntropy::default();
    Fs::format(&*device, &MkfsOptions::default(), &SystemClock, &entropy, &mut |_, _| {}).expect("mkfs");
    let opened =
        || adopt_volume(VolumeOptions::new().open_device(device.clone()).expect("open")).expect("adopted");
    let volume = opened();
    let (file, other) = (open(volume, c"file"), open(volume, c"other"));
    // SAFETY: five bytes each.
    assert_eq!(unsafe { syncline_file_pwrite(file, b"first".as_ptr().cast(), 5, 0) }, 5);
    assert_eq!(syncline_file_sync(file), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { syncline_file_pwrite(file, b"later".as_ptr().cast(), 5, 0) }, 5);
    device.armed.store(true, Ordering::SeqCst);
    assert_eq!(syncline_file_sync(file), -libc::EIO);
    device.armed.store(false, Ordering::SeqCst);
    assert!(said().starts_with("syncline_file_sync: the library has met a bug of its own"), "{}", said());
    // Nobody is served from an engine that may have been left half-way.
    assert_eq!(syncline_file_sync(other), -libc::EIO);
    assert_eq!(syncline_volume_sync(volume), -libc::EIO);
    let mut byte = [0_u8; 1];
    // SAFETY: one byte.
    assert_eq!(unsafe { syncline_file_pread(other, (&raw mut byte).cast(), 1, 0) }, -(libc::EIO as isize));
    assert_eq!(syncline_file_close(other), -libc::EIO);
    assert_eq!(syncline_file_close(other), -libc::EBADF);
    assert_eq!(syncline_volume_close(volume), -libc::EIO);
    assert_eq!(syncline_volume_close(volume), -libc::EBADF);
    // Another volume has not suffered, and this one is there again.
    let volume = opened();
    let file = open(volume, c"file");
    let mut read = [0_u8; 5];
    // SAFETY: five bytes.
    assert_eq!(unsafe { syncline_file_pread(file, (&raw mut read).cast(), 5, 0) }, 5);
    assert!(&read == b"first" || &read == b"later", "{read:?}");
    assert_eq!(syncline_volume_close(volume), 0);
}
