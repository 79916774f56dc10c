//! Commits over several databases: what was set aside under the name of a super-journal becomes one record.
//!
//! Where that record would be too large, or a database was too large on its own and has been written directly, the
//! databases that do not fit are written directly, each protected by its kept journal ([`crate::journal`]). The
//! record then has the others' changes, and *the removal of those journals*: before it, all databases are as they
//! were once the journals are played back; behind it, none is. So kept journals need not name a super-journal, by a
//! path that may be another one when they are played back, or that somebody else knows the volume by.

use crate::database::{Database, Part};
use crate::error::{Result, VfsError};
use crate::staged::Staged;
use crate::volumes::VolumeRef;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Weak};

/// Bytes of the record kept for the inode and the journal's name of each database.
const BYTES_PER_DATABASE: usize = 3 << 10;

/// Commits every database that was synced under a super-journal's name, all or none.
///
/// Errors: of the commit; then nothing was committed and nothing is staged any more, but databases that were written
/// directly have journals to be rolled back from.
pub(crate) fn commit(volume: &VolumeRef, super_journal: &Path) -> Result<()> {
    let databases: Vec<Arc<Database>> = volume.databases.lock().values().filter_map(Weak::upgrade).collect();
    let mut parts: Vec<Part> =
        databases.iter().filter_map(|database| database.take_part(super_journal)).collect();
    make_fit(volume, &mut parts)?;
    let staged: Vec<Staged> = parts.iter_mut().filter_map(|part| part.staged.take()).collect();
    let direct: Vec<&Part> = parts.iter().filter(|part| part.is_direct()).collect();
    let mut staged = staged.into_iter();
    let mut whole = match (staged.next(), direct.first()) {
        (Some(first), _) => first,
        (None, Some(part)) => part.begin(volume)?,
        (None, None) => return Ok(()),
    };
    staged.try_for_each(|other| whole.absorb(other))?;
    for part in &direct {
        unlink_journal(volume, &part.database, &mut whole)?;
    }
    whole.commit()?;
    for part in &direct {
        volume.virtual_files.kept_ended(volume, &part.database.journal());
        part.database.end_direct();
    }
    Ok(())
}

/// Has the journal go when the transaction is committed.
fn unlink_journal(volume: &VolumeRef, database: &Database, whole: &mut Staged) -> Result<()> {
    let journal = database.journal();
    let error = VfsError::io(journal.as_os_str().as_bytes());
    let (Some(directory), Some(name)) = (journal.parent(), journal.file_name()) else {
        return Err(VfsError::Missing(journal.display().to_string()));
    };
    let directory = volume.volume().metadata(directory).map_err(error)?.attr().inode;
    whole.unlink(directory, name.as_bytes())
}

/// Has databases written directly until the others fit one record.
fn make_fit(volume: &VolumeRef, parts: &mut [Part]) -> Result<()> {
    let reserved = BYTES_PER_DATABASE * parts.len();
    let (mut bytes, mut bytes_max) = (reserved, usize::MAX);
    for staged in parts.iter_mut().filter_map(|part| part.staged.as_mut()) {
        let (more, max) = staged.record_bytes(false)?;
        (bytes, bytes_max) = (bytes + more, max);
    }
    if bytes <= bytes_max {
        return Ok(());
    }
    let mut sizes = Vec::new();
    for (index, part) in parts.iter_mut().enumerate() {
        let Some(staged) = &mut part.staged else { continue };
        let (bytes, _) = staged.record_bytes(true)?;
        // Small ones stay, and those that have nothing to fall back to.
        sizes.push((part.database.armed_journal(volume)?.is_some(), bytes, index));
    }
    sizes.sort_unstable();
    bytes = reserved;
    for (_, more, index) in sizes {
        if bytes + more <= bytes_max {
            bytes += more;
        } else {
            parts[index].write_directly(volume)?;
        }
    }
    Ok(())
}
