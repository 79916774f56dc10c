//! What the workloads were told is durable: the promise that is held against the volume after each power cut.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// One acknowledged change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acknowledged {
    /// Row `n` of the database is committed.
    Row(u64),
    /// File `index` has the content of `version`, synced.
    File { index: u64, version: u32 },
}

impl Acknowledged {
    /// One line of a pipe.
    pub(super) fn line(self) -> String {
        match self {
            Acknowledged::Row(row) => format!("row {row}"),
            Acknowledged::File { index, version } => format!("file {index} {version}"),
        }
    }

    pub(super) fn parse(line: &str) -> Option<Acknowledged> {
        let mut words = line.split_ascii_whitespace();
        let kind = words.next()?;
        let number = words.next()?.parse().ok()?;
        match (kind, words.next()) {
            ("row", None) => Some(Acknowledged::Row(number)),
            ("file", Some(version)) => {
                Some(Acknowledged::File { index: number, version: version.parse().ok()? })
            }
            _ => None,
        }
    }
}

/// Everything acknowledged so far.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Rows 0..rows are committed.
    pub(super) rows: u64,
    /// Version of each synced file.
    pub(super) files: BTreeMap<u64, u32>,
    /// Acknowledgements in all.
    pub(super) count: u64,
}

impl Ledger {
    pub(super) fn add(&mut self, acknowledged: Acknowledged) {
        self.count += 1;
        match acknowledged {
            Acknowledged::Row(row) => self.rows = self.rows.max(row + 1),
            Acknowledged::File { index, version } => {
                self.files.insert(index, version);
            }
        }
    }

    /// The first file index that was never acknowledged.
    pub(super) fn next_file(&self) -> u64 {
        self.files.last_key_value().map_or(0, |(index, _)| index + 1)
    }
}

/// A ledger that workloads write to until the power is cut under them.
///
/// What a program says afterwards counts for nothing: its calls fail, and it need not notice. SQLite, which syncs the
/// directory behind a commit, takes a directory that cannot be opened any more for one that needs no sync, and says
/// that the commit is done.
#[derive(Debug, Default)]
pub(super) struct UntilCut {
    ledger: Mutex<Ledger>,
    cut: AtomicBool,
}

impl UntilCut {
    pub(super) fn new(ledger: Ledger) -> UntilCut {
        UntilCut { ledger: Mutex::new(ledger), cut: AtomicBool::new(false) }
    }

    /// Takes down what was said before the cut; an error ends the workload.
    pub(super) fn add(&self, acknowledged: Acknowledged) -> io::Result<()> {
        if self.cut.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.ledger.lock().expect("no workload panics while it acknowledges").add(acknowledged);
        Ok(())
    }

    /// To be called before the power is cut.
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    pub(super) fn into_ledger(self) -> Ledger {
        self.ledger.into_inner().expect("no workload panics while it acknowledges")
    }
}

/// Bytes that only this row or file version has: whoever finds others found somebody else's.
pub(super) fn content(index: u64, version: u32) -> Vec<u8> {
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ u64::from(version).wrapping_mul(0xd1b5_4a32_d192_ed03)
        | 1;
    let mut next = || {
        // xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled".
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let bytes = 200 + (next() % 8000) as usize;
    let mut out = format!("file {index}, version {version}\n").into_bytes();
    while out.len() < bytes {
        out.extend_from_slice(format!("{:016x}\n", next()).as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_survive_a_pipe() {
        for acknowledged in [Acknowledged::Row(7), Acknowledged::File { index: 3, version: 1 }] {
            assert_eq!(Acknowledged::parse(&acknowledged.line()), Some(acknowledged));
        }
        assert_eq!(Acknowledged::parse("row"), None);
        assert_eq!(Acknowledged::parse("file 3"), None);
    }

    #[test]
    fn what_is_said_after_the_cut_is_not_acknowledged() {
        let ledger = UntilCut::default();
        ledger.add(Acknowledged::Row(0)).unwrap();
        ledger.cut();
        assert!(ledger.add(Acknowledged::Row(1)).is_err());
        let ledger = ledger.into_ledger();
        assert_eq!((ledger.rows, ledger.count), (1, 1));
    }

    #[test]
    fn every_version_has_its_own_content() {
        assert_ne!(content(1, 0), content(1, 1));
        assert_ne!(content(1, 0), content(2, 0));
        assert_eq!(content(5, 1), content(5, 1));
    }
}
