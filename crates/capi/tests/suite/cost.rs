//! What C costs beyond Rust: nothing that the device sees.

use std::ffi::{CStr, c_char};
use syncline::{MkfsOptions, OpenOptions, SyncScope, Volume, VolumeOptions};
use syncline_capi::*;

fn device(volume: &Volume) -> (u64, u64) {
    let device = volume.stats().engine.device;
    (device.writes, device.flushes)
}

fn quiet() -> Volume {
    VolumeOptions::new()
        .background(false)
        .create_in_memory(64 << 20, &MkfsOptions::default())
        .expect("a volume")
}

#[test]
fn an_append_and_sync_is_one_write_and_one_flush_as_in_rust() {
    let (rust, lent) = (quiet(), quiet());
    let counted = lent.clone();
    let page = [7_u8; 4096];
    let log = OpenOptions::new().append(true).create(true).open(&rust, "log").expect("open");
    let volume = adopt_volume(lent).expect("adopted");
    let name: &CStr = c"log";
    let mut file = std::ptr::null_mut();
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
    // SAFETY: a string, and room for the handle.
    assert_eq!(unsafe { syncline_open(volume, name.as_ptr().cast::<c_char>(), flags, 0o666, &mut file) }, 0);
    let mut before = (device(&rust), device(&counted));
    for round in 0..100 {
        log.append(&page).expect("append");
        log.sync_range(.., SyncScope::All).expect("sync");
        assert_eq!(
            // SAFETY: a page.
            unsafe { syncline_file_append(file, page.as_ptr().cast(), 4096, std::ptr::null_mut()) },
            4096
        );
        assert_eq!(syncline_file_sync(file), 0);
        let after = (device(&rust), device(&counted));
        let cost = |before: (u64, u64), after: (u64, u64)| (after.0 - before.0, after.1 - before.1);
        assert_eq!(cost(before.1, after.1), (1, 1), "round {round}");
        assert_eq!(cost(before.0, after.0), (1, 1), "round {round}");
        before = after;
    }
    assert_eq!(syncline_volume_close(volume), 0);
}
