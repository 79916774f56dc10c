//! Many files at one durable point, and many syncs that share their flushes.
//!
//! ```sh
//! cargo run -p syncline --example many_files
//! ```

use std::io::{self, Write};
use syncline::{SyncScope, Volume};

const LETTERS: usize = 100;

fn main() -> io::Result<()> {
    let volume = Volume::create_in_memory(64 << 20)?;

    // All or nothing: after a crash both files have their new content, or both have the old one.
    let mut transaction = volume.transaction()?;
    transaction.write("/hosts", "one two")?;
    transaction.write("/users", "ann bob")?;
    transaction.commit()?;

    // A hundred syncs are started before the first is waited for. A ticket is a Future as well.
    let mut started = Vec::new();
    for number in 0..LETTERS {
        let mut letter = volume.create_file(format!("/letter-{number}"))?;
        letter.write_all(b"Dear reader,\n")?;
        started.push(letter.sync_async(SyncScope::All));
    }
    for ticket in started {
        ticket.wait()?;
    }

    let letters = volume.read_dir("/")?.count() - 2;
    assert_eq!(letters, LETTERS);
    volume.close()?;
    writeln!(io::stdout(), "letters: {letters}")
}
