//! What was unpacked and removed leaves no memory behind in the daemon.

use crate::harness::{Volume, statistics, sync_directory, wait_until};
use std::fs;
use std::thread::sleep;
use std::time::Duration;

const FILES: usize = 400;
/// All files together are more than what is kept of free memory for the next burst.
const FILE_BYTES: usize = 48 << 10;
const ROUNDS: usize = 4;
/// Kept of free memory (4 MiB), and slabs of which a part is in use.
const LEFT_BYTES_MAX: u64 = 10 << 20;

fn resident_bytes(volume: &Volume) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", volume.daemon())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

fn round(volume: &Volume) {
    let top = volume.path("tree");
    fs::create_dir(&top).unwrap();
    for number in 0..FILES {
        fs::write(top.join(format!("f{number}")), vec![number as u8; FILE_BYTES]).unwrap();
    }
    fs::remove_dir_all(&top).unwrap();
    sync_directory(&volume.root()).unwrap();
}

fn settle(volume: &Volume) -> u64 {
    wait_until("free memory is given back", || {
        // Asking is work, too.
        sleep(Duration::from_millis(200));
        let buffers = &statistics(&volume.root())["buffers"];
        let [mapped, used] = ["mapped_bytes", "used_bytes"].map(|name| buffers[name].as_u64().unwrap());
        mapped - used <= LEFT_BYTES_MAX
    });
    resident_bytes(volume)
}

#[test]
fn a_tree_that_is_unpacked_and_removed_again_and_again_leaves_no_memory_behind() {
    let Some(volume) = Volume::mounted("memory=128M") else { return };
    round(&volume);
    let first = settle(&volume);
    (0..ROUNDS).for_each(|_| round(&volume));
    let last = settle(&volume);
    assert!(last <= first + LEFT_BYTES_MAX, "{first} bytes were resident, now {last}");
}
