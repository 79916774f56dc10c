//! [`Handle`]: what is behind a `sqlite3_file`, and what each of SQLite's calls means for it.

use crate::abi;
use crate::database::{Connection, Database};
use crate::error::{Result, VfsError};
use crate::journal::{Purpose, VirtualFile};
use crate::locks::Level;
use crate::part::Part;
use crate::scratch::Scratch;
use crate::volumes::{self, VolumeRef};
use crate::waiting::{Patience, Waiting};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline::File;

/// Bytes of a journal's first header. Who plays a journal back reads numbers there; a look at the first byte does not
/// count.
const JOURNAL_HEADER_BYTES: u64 = 28;
/// And then pages, which have at least these many bytes. Every commit reads less than that, where the next header
/// would be.
const PAGE_BYTES_MIN: usize = 512;

/// An open file of SQLite's.
pub(crate) enum Handle {
    Database(Connection),
    Waiting(Waiting),
    Journal(Journal),
    Wal(Wal),
    Temporary(Temporary),
}

/// A rollback journal or super-journal.
pub(crate) struct Journal {
    file: Arc<VirtualFile>,
    database: Option<Arc<Database>>,
    volume: VolumeRef,
}

/// A write-ahead log: a file of the volume like any other.
pub(crate) struct Wal {
    file: File,
    writable: bool,
    name: Vec<u8>,
    database: Option<Arc<Database>>,
    volume: VolumeRef,
}

/// A file without a name that goes when it is closed.
pub(crate) struct Temporary {
    scratch: Scratch,
    volume: Option<VolumeRef>,
}

impl Journal {
    pub(crate) fn open(
        volume: VolumeRef,
        path: &Path,
        purpose: Purpose,
        create: bool,
        exclusive: bool,
    ) -> Result<Journal> {
        let database = match purpose {
            Purpose::Journal => crate::database::of_companion(&volume, path, b"-journal"),
            Purpose::SuperJournal => None,
        };
        let file = volume.virtual_files.open(&volume, path, purpose, create, exclusive)?;
        Ok(Journal { file, database, volume })
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let of_header = offset < JOURNAL_HEADER_BYTES && into.len() > 1;
        if let Some(database) = &self.database
            && (of_header || into.len() >= PAGE_BYTES_MIN)
        {
            database.note_playback();
        }
        self.file.read(offset, into)
    }

    /// A super-journal's content are the names of the journals of the databases that take part. All must be databases
    /// whose commit deleting it will be; one elsewhere would find its journal without this one after a crash.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.file.purpose() == Purpose::SuperJournal {
            let name = data.strip_suffix(b"\0").unwrap_or(data);
            if !name.starts_with(&self.volume.full_name(Path::new("/"))) {
                return Err(VfsError::Foreign(String::from_utf8_lossy(name).into_owned()));
            }
        }
        self.file.write(&self.volume, offset, data)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.volume.virtual_files.closed(&self.file);
    }
}

impl Wal {
    pub(crate) fn open(volume: VolumeRef, path: &Path, writable: bool, create: bool) -> Result<Wal> {
        let name = path.as_os_str().as_bytes().to_vec();
        let mut options = syncline::OpenOptions::new();
        options.read(true).write(writable).create(create && writable).mode(0o644);
        let file = options.open(volume.volume(), path);
        if create {
            volume.absent.note_made();
        }
        let file = file.map_err(VfsError::io(&name))?;
        let database = crate::database::of_companion(&volume, path, b"-wal");
        if let Some(database) = &database {
            database.add_wal();
        }
        Ok(Wal { file, writable, name, database, volume })
    }

    fn io<T>(&self, result: std::io::Result<T>) -> Result<T> {
        result.map_err(VfsError::io(&self.name))
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        if let Some(database) = &self.database {
            database.remove_wal();
        }
    }
}

impl Temporary {
    /// Spills to a volume that is open, if there is one.
    pub(crate) fn new() -> Temporary {
        let volume = volumes::for_temporary();
        Temporary { scratch: Scratch::anywhere(volume.as_ref().map(VolumeRef::downgrade)), volume }
    }

    /// The statement may be one of another volume's database. It goes on in memory if the panic has taken nothing.
    ///
    /// Errors: a call on the volume has panicked that has its content.
    fn check_usable(&mut self) -> Result<()> {
        let Some(volume) = &self.volume else { return Ok(()) };
        match volume.check_usable() {
            Err(_) if self.scratch.stays_in_memory() => {
                self.volume = None;
                Ok(())
            }
            checked => checked,
        }
    }
}

impl Handle {
    /// Reads; fewer bytes than asked for only at the end.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        match self {
            Handle::Database(connection) => connection.read(offset, into),
            Handle::Waiting(waiting) => waiting.read(offset, into),
            Handle::Journal(journal) => journal.read(offset, into),
            Handle::Wal(wal) => wal.io(wal.file.read_at(into, offset)),
            Handle::Temporary(temporary) => temporary.scratch.read(offset, into),
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        match self {
            Handle::Database(connection) => connection.write(offset, data),
            Handle::Waiting(waiting) => Err(waiting.in_use()),
            Handle::Journal(journal) => journal.write(offset, data),
            Handle::Wal(wal) => wal.io(wal.file.write_all_at(data, offset)),
            Handle::Temporary(temporary) => temporary.scratch.write(offset, data),
        }
    }

    pub(crate) fn truncate(&mut self, size: u64) -> Result<()> {
        match self {
            Handle::Database(connection) => connection.truncate(size),
            Handle::Waiting(waiting) => Err(waiting.in_use()),
            Handle::Journal(journal) => journal.file.truncate(&journal.volume, size),
            Handle::Wal(wal) => wal.io(wal.file.set_len(size)),
            Handle::Temporary(temporary) => temporary.scratch.truncate(size),
        }
    }

    pub(crate) fn sync(&mut self) -> Result<()> {
        match self {
            Handle::Database(connection) => connection.sync(),
            Handle::Waiting(waiting) => Err(waiting.in_use()),
            Handle::Wal(wal) => wal.io(wal.file.sync_data()),
            Handle::Journal(journal) => journal.file.sync(),
            // Gone after a crash, so there is nothing to keep.
            Handle::Temporary(_) => Ok(()),
        }
    }

    pub(crate) fn size(&self) -> Result<u64> {
        match self {
            Handle::Database(connection) => connection.size(),
            Handle::Waiting(waiting) => Err(waiting.in_use()),
            Handle::Journal(journal) => journal.file.size(),
            Handle::Wal(wal) => Ok(wal.io(wal.file.metadata())?.len()),
            Handle::Temporary(temporary) => Ok(temporary.scratch.size()),
        }
    }

    /// Whether it was opened for reading only.
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            Handle::Database(connection) => !connection.is_writable(),
            Handle::Waiting(waiting) => !waiting.wants_to_write(),
            Handle::Wal(wal) => !wal.writable,
            Handle::Journal(_) | Handle::Temporary(_) => false,
        }
    }

    /// Errors: a call on its volume has panicked.
    pub(crate) fn check_usable(&mut self) -> Result<()> {
        match self {
            Handle::Temporary(temporary) => temporary.check_usable(),
            _ => self.volume().map_or(Ok(()), |volume| volume.check_usable()),
        }
    }

    /// The volume that it is on.
    pub(crate) fn volume(&self) -> Option<&VolumeRef> {
        match self {
            Handle::Database(connection) => Some(connection.volume()),
            Handle::Journal(journal) => Some(&journal.volume),
            Handle::Wal(wal) => Some(&wal.volume),
            Handle::Temporary(temporary) => temporary.volume.as_ref(),
            Handle::Waiting(_) => None,
        }
    }

    /// Opens the volume of a database whose volume was in use when it was opened; false if it still is.
    pub(crate) fn ready(&mut self) -> Result<bool> {
        if let Handle::Waiting(waiting) = self {
            let Some(connection) = waiting.wait()? else { return Ok(false) };
            *self = Handle::Database(connection);
        }
        Ok(true)
    }

    /// The connection, if this is a database.
    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        match self {
            Handle::Database(connection) => Some(connection),
            _ => None,
        }
    }
}

/// A database as SQLite opens it: `name` is the full name, `flags` are SQLite's. One whose volume is in use waits for
/// it.
pub(crate) fn open_database(name: &[u8], flags: i32, patience: Patience) -> Result<Handle> {
    let mut waiting = Waiting::new(name, flags, patience.begins());
    loop {
        match waiting.try_open() {
            Err(VfsError::InUse { .. }) if waiting.pauses() => {}
            Err(VfsError::InUse { .. }) if patience.until_locked => return Ok(Handle::Waiting(waiting)),
            opened => return Ok(Handle::Database(opened?)),
        }
    }
}

/// The same, without waiting.
pub(crate) fn try_open_database(name: &[u8], flags: i32) -> Result<Connection> {
    let (volume, path) = match volumes::find(name) {
        Some(found) => found,
        None => {
            let (image, path) = volumes::split(name).ok_or_else(VfsError::no_volume)?;
            (volumes::open_named(&image)?, path)
        }
    };
    volume.check_usable()?;
    if path == Path::new("/") {
        return Err(VfsError::Name(String::from_utf8_lossy(name).into_owned()));
    }
    let has = |flag: i32| flags & flag != 0;
    // As on SQLite's own VFS, what cannot be opened for writing is opened for reading.
    let writable = has(abi::OPEN_READWRITE) && !volume.fs().is_read_only();
    Connection::open(volume, path, writable, has(abi::OPEN_CREATE), has(abi::OPEN_EXCLUSIVE))
}

/// What SQLite derives from a database's name and opens: journals, super-journals, logs.
pub(crate) fn open_companion(name: &[u8], flags: i32) -> Result<Handle> {
    let (volume, path) = volumes::find_open(name)?;
    let has = |flag: i32| flags & flag != 0;
    if has(abi::OPEN_WAL) {
        return open_wal(volume, &path, has(abi::OPEN_READWRITE), has(abi::OPEN_CREATE));
    }
    let purpose = match has(abi::OPEN_SUPER_JOURNAL) {
        true => Purpose::SuperJournal,
        false => Purpose::Journal,
    };
    let (create, exclusive) = (has(abi::OPEN_CREATE), has(abi::OPEN_EXCLUSIVE));
    Ok(Handle::Journal(Journal::open(volume, &path, purpose, create, exclusive)?))
}

/// A log. SQLite makes one even to read a database in WAL mode that was closed properly; where none can be made an
/// empty one does.
fn open_wal(volume: VolumeRef, path: &Path, writable: bool, create: bool) -> Result<Handle> {
    if !volume.fs().is_read_only() {
        return Ok(Handle::Wal(Wal::open(volume, path, writable, create)?));
    }
    match Wal::open(volume, path, false, false) {
        Err(VfsError::Missing(_)) if create => Ok(Handle::Temporary(Temporary::new())),
        opened => Ok(Handle::Wal(opened?)),
    }
}

/// Removes a file by its full name; false if there is none. Removing a super-journal is the commit of the databases
/// synced under its name.
pub(crate) fn delete(name: &[u8]) -> Result<bool> {
    let (volume, path) = volumes::find_open(name)?;
    // Only the table refers to it when it is removed, so that its memory is there for the next one.
    let purpose = volume.virtual_files.get(&path).map(|file| file.purpose());
    match purpose {
        Some(Purpose::SuperJournal) => {
            crate::together::commit(&volume, &path)?;
            volume.virtual_files.remove(&volume, &path)?;
        }
        Some(Purpose::Journal) => volume.virtual_files.remove(&volume, &path)?,
        // What is not there need not be removed, which could not be done there.
        None if volume.fs().is_read_only() && !exists(name, true)? => return Ok(false),
        None => match volume.volume().remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            result => result.map_err(VfsError::io(path.as_os_str().as_bytes()))?,
        },
    }
    Ok(true)
}

/// Whether there is a file of this full name; for a plain look at its existence an empty one counts as none, because to
/// SQLite an empty journal or log is none.
pub(crate) fn exists(name: &[u8], or_empty: bool) -> Result<bool> {
    let Some((volume, path)) = volumes::find(name) else { return Ok(false) };
    volume.check_usable()?;
    if let Some(file) = volume.virtual_files.get(&path) {
        return Ok(or_empty || file.size()? > 0);
    }
    let found = volume.absent.look(&path, || volume.volume().metadata(&path));
    let found = found.map_err(VfsError::io(path.as_os_str().as_bytes()))?;
    Ok(found.is_some_and(|found| or_empty || !found.is_file() || found.len() > 0))
}

/// The full name of a database: the image as the URI names it, or as the name itself does, or the only volume that is
/// open; or a part of that.
pub(crate) fn full_name(name: &[u8], image: Option<&[u8]>, part: Option<Part>) -> Result<Vec<u8>> {
    if part.is_none() && volumes::find(name).is_some() {
        return Ok(name.to_vec());
    }
    let (image, path) = match image {
        Some(image) => (PathBuf::from(std::ffi::OsStr::from_bytes(image)), volumes::path_of(name)),
        None => match volumes::split(name) {
            Some(named) => named,
            None => (volumes::unnamed_image().ok_or_else(VfsError::no_volume)?, volumes::path_of(name)),
        },
    };
    let (image, part) = match (part, volumes::part_named(&image)) {
        (None, Some((image, part))) => (image, Some(part)),
        (part, _) => (image, part),
    };
    let image = canonical(image)?;
    // No snapshot is called so, and the full name would be a head's.
    if let Some(part @ Part::Snapshot(name)) = &part
        && name.contains('/')
    {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(VfsError::Part { image, part: part.clone(), source });
    }
    let image = part.map_or(image.clone(), |part| part.of(&image));
    Ok(volumes::full_name(&image, &path))
}

fn canonical(image: PathBuf) -> Result<PathBuf> {
    if volumes::is_open(&image) {
        return Ok(image);
    }
    let image = volumes::canonical(&image)?;
    match image.is_dir() {
        true => Err(VfsError::Directory { image }),
        false => Ok(image),
    }
}

/// SQLite's number of a level.
pub(crate) fn level_number(level: Level) -> i32 {
    match level {
        Level::None => abi::LOCK_NONE,
        Level::Shared => abi::LOCK_SHARED,
        Level::Reserved => abi::LOCK_RESERVED,
        Level::Pending => abi::LOCK_PENDING,
        Level::Exclusive => abi::LOCK_EXCLUSIVE,
    }
}

/// The level of SQLite's number.
pub(crate) fn level_of(number: i32) -> Level {
    match number {
        abi::LOCK_NONE => Level::None,
        abi::LOCK_SHARED => Level::Shared,
        abi::LOCK_RESERVED => Level::Reserved,
        abi::LOCK_PENDING => Level::Pending,
        _ => Level::Exclusive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_file_goes_on_when_a_call_on_the_volume_that_it_could_spill_to_has_panicked() {
        let volume = volumes::tests::in_memory("panicked beside");
        volumes::note_used(&volume);
        let mut before = Handle::Temporary(Temporary::new());
        let mut spilled = Handle::Temporary(Temporary::new());
        before.write(0, b"content").expect("write");
        spilled.write(0, &vec![7; 2 << 20]).expect("write");
        volume.note_panic();
        before.check_usable().expect("nothing of it is on the volume");
        before.write(1 << 20, &vec![7; 1 << 20]).expect("write");
        let mut read = [0; 7];
        before.read(0, &mut read).expect("read");
        assert_eq!(&read, b"content");
        assert!(before.volume().is_none());
        assert!(
            matches!(spilled.check_usable(), Err(VfsError::Panicked { .. })),
            "what it held may be wrong"
        );
    }

    #[test]
    fn only_who_reads_a_header_or_pages_plays_a_journal_back() {
        let volume = volumes::tests::in_memory("playback");
        let connection =
            Connection::open(volume.clone(), "/db".into(), true, true, false).expect("a database");
        let journal = Journal::open(volume.clone(), Path::new("/db-journal"), Purpose::Journal, true, false)
            .expect("a journal");
        let database = journal.database.clone().expect("the journal of an open database");
        journal.write(0, &[1; 8192]).expect("write");
        // A look whether it is hot, and what every commit reads: is there an old header behind what was written?
        journal.read(0, &mut [0; 1]).expect("read");
        journal.read(4096, &mut [0; 8]).expect("read");
        journal.read(8192, &mut [0; 8]).expect("read");
        assert!(!database.is_playing_back());
        journal.read(8, &mut [0; 4]).expect("read");
        assert!(database.is_playing_back());
        connection.discard();
        assert!(!database.is_playing_back());
        journal.read(516, &mut [0; 512]).expect("read");
        assert!(database.is_playing_back());
    }
}
