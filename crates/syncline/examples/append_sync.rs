//! Appends 4 KiB and syncs, as often as told, on a volume in memory: what to count instructions of.
//!
//! ```sh
//! cargo build --release -p syncline --example append_sync
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/append_sync 1000
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/append_sync 3000
//! ```
//!
//! A two-thousandth of the difference is the cost of one append and sync, background included. A second number is the
//! version of the volume's format.

use std::io::Write;
use syncline::{MkfsOptions, VolumeOptions};

fn main() -> std::io::Result<()> {
    let count: usize = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1000);
    let default = MkfsOptions::default();
    let format = std::env::args().nth(2).and_then(|format| format.parse().ok()).unwrap_or(default.format);
    let volume = VolumeOptions::new().create_in_memory(256 << 20, &default.format(format))?;
    let mut file = volume.create_file("log")?;
    let page = [7; 4096];
    for _ in 0..count {
        file.write_all(&page)?;
        file.sync_all()?;
    }
    drop(file);
    Ok(())
}
