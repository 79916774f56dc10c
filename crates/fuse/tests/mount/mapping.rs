//! Shared mappings.

use crate::harness::Volume;
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

const LEN: usize = 5 * 4096;

#[test]
fn mappings_and_calls_see_each_others_writes() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(LEN as u64).unwrap();
    // SAFETY: a fresh shared mapping of LEN bytes of a file of that length; unmapped below, not used after it.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(std::ptr::null_mut(), LEN, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        let bytes = map.cast::<u8>();
        file.write_all_at(b"by write", 4096).unwrap();
        assert_eq!(std::slice::from_raw_parts(bytes.add(4096), 8), b"by write");
        std::ptr::copy_nonoverlapping(b"by map".as_ptr(), bytes.add(2 * 4096 + 10), 6);
        let mut read = [0; 6];
        file.read_exact_at(&mut read, 2 * 4096 + 10).unwrap();
        assert_eq!(&read, b"by map");
        assert_eq!(libc::msync(map, LEN, libc::MS_SYNC), 0);
        *bytes.add(3 * 4096) = 77;
        libc::munmap(map, LEN);
    }
    drop(file);
    volume.remount();
    let content = fs::read(&path).unwrap();
    assert_eq!(&content[4096..4104], b"by write");
    assert_eq!(&content[8202..8208], b"by map");
    assert_eq!(content[3 * 4096], 77, "written back at munmap or unmount");
}

#[test]
fn msync_makes_a_mapping_durable() {
    let Some(mut volume) = Volume::mounted("volatile") else { return };
    let path = volume.path("f");
    fs::write(&path, vec![0; LEN]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // SAFETY: as above.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(std::ptr::null_mut(), LEN, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        *map.cast::<u8>().add(4097) = 5;
        assert_eq!(libc::msync(map, LEN, libc::MS_SYNC), 0);
        libc::munmap(map, LEN);
    }
    drop(file);
    volume.crash();
    assert_eq!(fs::read(&path).unwrap()[4097], 5);
}
