//! The contract of devices, on those of this crate.

use std::sync::Arc;
use syncline_device::suite::{BLOCKS_MIN, run};
use syncline_device::{Device, FileDevice, MemoryDevice, OpenOptions, Volatile};
use syncline_format::BLOCK_BYTES;

#[test]
fn memory_keeps_the_contract_of_devices() {
    let device = Arc::new(MemoryDevice::new(BLOCKS_MIN));
    run(&|| device.clone());
}

#[test]
fn a_device_that_forgets_keeps_the_contract_of_devices() {
    let device = Arc::new(Volatile::new(Arc::new(MemoryDevice::new(BLOCKS_MIN))));
    run(&|| device.clone());
}

#[test]
fn files_keep_the_contract_of_devices_in_every_way_of_opening() {
    let directory = tempfile::tempdir().expect("a directory");
    for (direct, io_uring) in [(true, true), (true, false), (false, true), (false, false)] {
        let path = directory.path().join("image");
        drop(FileDevice::create(&path, BLOCKS_MIN * BLOCK_BYTES as u64).expect("an image"));
        let options = OpenOptions::default().direct(direct).io_uring(io_uring);
        let open = || Arc::new(FileDevice::open(&path, &options).expect("the image")) as Arc<dyn Device>;
        run(&open);
    }
}
