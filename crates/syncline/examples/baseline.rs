//! What bindings to other languages are measured against: the same steps in Rust, one command per line of the standard
//! input, answered by the nanoseconds that it took.
//!
//! usage: baseline IMAGE, then `sync COUNT` (write 4 KiB, sync) or `read MIB` (a file of so many MiB into memory that
//! is there already)

use std::io::{BufRead, Write};
use std::time::Instant;
use syncline::{File, MkfsOptions, OpenOptions, Volume};

const PAGE_BYTES: usize = 4096;
/// Pages that are written in turn.
const PAGES: u64 = 1024;
const VOLUME_BYTES: u64 = 4 << 30;

fn main() -> std::io::Result<()> {
    let image = std::env::args().nth(1).expect("usage: baseline IMAGE");
    let volume = Volume::create(image, &MkfsOptions::default().size_bytes(VOLUME_BYTES))?;
    let pages = OpenOptions::new().read(true).write(true).create(true).open(&volume, "/pages")?;
    let mut large: Option<(File, Vec<u8>)> = None;
    let mut page = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (command, number) = line.split_once(' ').expect("a command and a number");
        let number: usize = number.parse().expect("a number");
        let nanoseconds = match command {
            "sync" => {
                let data = [7; PAGE_BYTES];
                let began = Instant::now();
                for _ in 0..number {
                    pages.write_all_at(&data, page % PAGES * PAGE_BYTES as u64)?;
                    pages.sync_all()?;
                    page += 1;
                }
                began.elapsed()
            }
            "read" => {
                if large.is_none() {
                    large = Some(prepare(&volume, number << 20)?);
                }
                let (file, into) = large.as_mut().expect("it was prepared");
                let began = Instant::now();
                file.read_exact_at(into, 0)?;
                began.elapsed()
            }
            other => panic!("no such command: {other}"),
        };
        println!("{}", nanoseconds.as_nanos());
        std::io::stdout().flush()?;
    }
    volume.close()
}

/// A file, durable, and memory of its size that has been written to.
fn prepare(volume: &Volume, bytes: usize) -> std::io::Result<(File, Vec<u8>)> {
    let into = vec![1; bytes];
    let file = OpenOptions::new().read(true).write(true).create(true).open(volume, "/large")?;
    file.write_all_at(&into, 0)?;
    file.sync_all()?;
    volume.checkpoint()?;
    Ok((file, into))
}
