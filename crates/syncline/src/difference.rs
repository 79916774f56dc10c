//! What differs between snapshots.

use crate::{Change, Volume};
use std::io;

impl Volume {
    /// What differs between a snapshot and a later one, or, without a later one, the volume as it is now; sorted by
    /// path. What both share is not read: it takes as long as the changes are many. Only files that were modified where
    /// they are cost one pass over the volume's names. The parts of a removed directory are listed, too.
    ///
    /// A page that was written counts as changed, whatever is in it; with `content` the checksums are compared.
    ///
    /// Errors: `NotFound`; without a later one those of [`Volume::snapshot`].
    ///
    /// ```
    /// use syncline::{ChangeKind, MkfsOptions, VolumeOptions};
    ///
    /// let options = MkfsOptions::default();
    /// let volume = VolumeOptions::new().create_in_memory(64 << 20, &options)?;
    /// volume.write("notes", "first")?;
    /// volume.snapshot("before")?;
    /// volume.rename("notes", "diary")?;
    /// let changes = volume.diff("before", None, false)?;
    /// assert_eq!(changes[0].path.to_str(), Some("diary"));
    /// assert_eq!(changes[0].kind, ChangeKind::Renamed { from: "notes".into() });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn diff(&self, older: &str, newer: Option<&str>, content: bool) -> io::Result<Vec<Change>> {
        let shared = self.shared();
        Ok(shared.fs()?.difference(older, newer, content, &*shared.entropy)?)
    }
}
