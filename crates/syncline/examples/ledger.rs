//! A ledger inside of a volume: each entry is durable when the program says so. It makes the volume if there is none.
//!
//! ```sh
//! cargo run -p syncline --example ledger -- disk.img "42 coins"
//! ```

use std::io::{self, ErrorKind, Write};
use syncline::{MkfsOptions, OpenOptions, Volume};

const VOLUME_BYTES: u64 = 64 << 20;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(image), Some(entry)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "usage: ledger IMAGE ENTRY"));
    };
    let volume = match Volume::open(&image) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Volume::create(&image, &MkfsOptions::default().size_bytes(VOLUME_BYTES))?
        }
        opened => opened?,
    };

    let mut ledger = OpenOptions::new().append(true).create(true).open(&volume, "/ledger")?;
    writeln!(ledger, "{entry}")?;
    // One write and one flush. Whatever happens from here on, the entry is there.
    ledger.sync_all()?;
    drop(ledger);

    let entries = volume.read_to_string("/ledger")?.lines().count();
    volume.close()?;
    writeln!(io::stdout(), "entries: {entries}")
}
