//! The volumes that this process has open: one for each image, however many connections use it.
//!
//! A volume is opened by the first file of it and closed properly when the last one is closed, which costs a
//! checkpoint: a program that opens and closes connections all the time keeps one open.
//!
//! Names. SQLite passes names, not handles, to half of a VFS's functions, and knows nothing of volumes. So the full
//! name of a database is `IMAGE:/PATH`, with the image's canonical path; names that SQLite derives from it (journals)
//! lead to the same volume.
//!
//! Parts. A snapshot or another head of a volume counts as a volume of its own, as if its image were called by the name
//! that [`Part`] makes. While it is in use, so is the volume.
//!
//! Forks. The table is the process' own: a forked child begins with an empty one. It opens volumes itself if its
//! parent had none open, and is refused otherwise. What it has inherited it neither uses nor drops.
//!
//! Panics. One that was caught at the border may have left the engine half-way: the volume is stopped and takes no
//! call any more, until its last file is closed. It is recovered by the next open, as after a crash.
//!
//! Locks: the table of volumes first, and held while one is opened or closed, so that nobody finds the image locked
//! by a volume of this process that is being closed. A use gives up its share of the volume under it as well, be it
//! the last one or not: the image is free when the last share is gone. Within a volume: the table of databases, a
//! database's state, the table of virtual files, one virtual file, what is absent.

use crate::absent::Absent;
use crate::database::Database;
use crate::error::{Result, VfsError};
use crate::journal::VirtualFiles;
use crate::part::{self, Part};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use syncline::{Volume, VolumeOptions};
use syncline_device::{InUse, PerProcess, ProcessBound};
use syncline_fs::{Fs, ObjectNo};

/// What lies between the image and the path in the full name of a file.
const SEPARATOR: &[u8] = b":/";

/// All open volumes by the canonical path of their images.
static VOLUMES: PerProcess<Mutex<Vec<Registered>>> = PerProcess::new(|| Mutex::new(Vec::new()));

/// The image of databases that name none, once the VFS is registered.
static DEFAULT_IMAGE: OnceLock<Option<PathBuf>> = OnceLock::new();

thread_local! {
    /// What [`note_used`] has noted.
    static LAST_USED: RefCell<Weak<OpenVolume>> = const { RefCell::new(Weak::new()) };
}

struct Registered {
    volume: Arc<OpenVolume>,
    users: usize,
}

/// A volume with what its connections share.
pub(crate) struct OpenVolume {
    // Constant.
    image: PathBuf,
    volume: Volume,
    /// A call on it has panicked.
    panicked: AtomicBool,
    /// Databases with connections.
    pub(crate) databases: Mutex<HashMap<ObjectNo, Weak<Database>>>,
    /// Journals that exist only here.
    pub(crate) virtual_files: VirtualFiles,
    /// Journals and logs that are not there.
    pub(crate) absent: Absent,
    /// The volume that this is a part of, as long as it is in use.
    of: Mutex<Option<VolumeRef>>,
    part: Option<Part>,
}

/// A use of an open volume. The last one to be dropped closes it.
pub(crate) struct VolumeRef {
    /// Taken when it is dropped.
    open: Option<ProcessBound<Arc<OpenVolume>>>,
}

impl std::ops::Deref for VolumeRef {
    type Target = OpenVolume;

    fn deref(&self) -> &OpenVolume {
        self.shared()
    }
}

impl VolumeRef {
    /// Of a volume whose use is counted already.
    fn counted(open: Arc<OpenVolume>) -> VolumeRef {
        VolumeRef { open: Some(ProcessBound::new(open)) }
    }

    fn shared(&self) -> &Arc<OpenVolume> {
        self.open.as_ref().expect("it is taken when it is dropped").constant()
    }

    /// For what does not keep the volume open.
    pub(crate) fn downgrade(&self) -> Weak<OpenVolume> {
        Arc::downgrade(self.shared())
    }
}

impl Clone for VolumeRef {
    fn clone(&self) -> VolumeRef {
        let mut volumes = VOLUMES.get().lock();
        let registered = volumes.iter_mut().find(|registered| Arc::ptr_eq(&registered.volume, self.shared()));
        registered.expect("a volume in use is registered").users += 1;
        VolumeRef::counted(self.shared().clone())
    }
}

impl Drop for VolumeRef {
    fn drop(&mut self) {
        // A forked child's is its parent's.
        let Some(Ok(open)) = self.open.take().map(ProcessBound::take) else { return };
        let mut volumes = VOLUMES.get().lock();
        let index = volumes.iter().position(|registered| Arc::ptr_eq(&registered.volume, &open));
        let index = index.expect("a volume in use is registered");
        volumes[index].users -= 1;
        let mut of = None;
        if volumes[index].users == 0 {
            volumes.swap_remove(index);
            of = open.of.lock().take();
            // What has panicked is only left: what was synced is in the journal. Of a snapshot nothing is written.
            if !open.has_panicked()
                && !open.is_snapshot()
                && let Err(source) = open.volume.clone().close()
            {
                crate::tell(&VfsError::Volume { image: open.image.clone(), source });
            }
        }
        // Before the table is unlocked, also by those who are not the last: the image is locked until all shares are
        // gone.
        drop(open);
        drop(volumes);
        drop(of);
    }
}

impl OpenVolume {
    pub(crate) fn fs(&self) -> &Arc<Fs> {
        self.volume.inner()
    }

    /// Letter by letter: to a path two slashes are one.
    fn is_called(&self, name: &Path) -> bool {
        self.image.as_os_str() == name.as_os_str()
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// A call on the volume has panicked: nothing of it is written any more, and nobody is served.
    pub(crate) fn note_panic(&self) {
        if !self.panicked.swap(true, Ordering::SeqCst) {
            self.fs().shut_down();
        }
    }

    fn is_snapshot(&self) -> bool {
        matches!(self.part, Some(Part::Snapshot(_)))
    }

    fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::SeqCst)
    }

    /// Errors: a call on the volume has panicked.
    pub(crate) fn check_usable(&self) -> Result<()> {
        match self.has_panicked() {
            true => Err(VfsError::Panicked { image: self.image.clone() }),
            false => Ok(()),
        }
    }

    /// Makes a snapshot of the volume, between two transactions of each of its databases.
    ///
    /// Errors: `UnderWay` if a transaction goes on that is too large to be staged: half of it would be in the snapshot.
    pub(crate) fn snapshot(&self, name: &str) -> Result<()> {
        let refused = |source| VfsError::Part {
            image: self.image.clone(),
            part: Part::Snapshot(name.to_owned()),
            source,
        };
        // Nobody opens a database, or begins to write to one directly, while these are held.
        let table = self.databases.lock();
        let databases: Vec<Arc<Database>> = table.values().filter_map(Weak::upgrade).collect();
        let held = databases.iter().map(|database| database.hold()).collect::<Result<Vec<_>>>()?;
        let made = self.volume.snapshot(name).map_err(refused);
        drop((held, table));
        made.map(drop)
    }

    /// The full name of a path within this volume.
    pub(crate) fn full_name(&self, path: &Path) -> Vec<u8> {
        full_name(&self.image, path)
    }

    /// Whether these bytes begin like the full name of a file of this volume.
    pub(crate) fn is_named_by(&self, bytes: &[u8]) -> bool {
        let image = self.image.as_os_str().as_bytes();
        bytes.strip_prefix(image).is_some_and(|rest| rest.starts_with(SEPARATOR))
    }

    /// The open database of a path, if there is one.
    pub(crate) fn database(&self, path: &Path) -> Option<Arc<Database>> {
        let databases = self.databases.lock();
        let is_at_path = |database: &Arc<Database>| database.path().as_os_str() == path.as_os_str();
        databases.values().filter_map(Weak::upgrade).find(is_at_path)
    }
}

/// The full name of a path within the volume of an image.
pub(crate) fn full_name(image: &Path, path: &Path) -> Vec<u8> {
    let mut name = image.as_os_str().as_bytes().to_vec();
    name.push(b':');
    name.extend_from_slice(path.as_os_str().as_bytes());
    name
}

/// The volume of an image, opened if it is not; for reading only if it cannot be opened for writing.
pub(crate) fn open(image: &Path) -> Result<VolumeRef> {
    // From before the table's lock on, so that nobody waits for it while nothing seems to be in use.
    let _in_use = InUse::begin()?;
    let image = canonical(image)?;
    let mut volumes = VOLUMES.get().lock();
    if let Some(registered) = volumes.iter_mut().find(|registered| registered.volume.is_called(&image)) {
        registered.users += 1;
        return Ok(VolumeRef::counted(registered.volume.clone()));
    }
    let opened = match VolumeOptions::new().open(&image) {
        Err(error) if is_write_refused(&error) => VolumeOptions::new().read_only(true).open(&image),
        result => result,
    };
    let volume = opened.map_err(|source| VfsError::of_volume(&image, source))?;
    Ok(register(&mut volumes, image, volume, Absent::new(true), None))
}

/// The one name of an image: its canonical path, or the canonical form of an address.
pub(crate) fn canonical(image: &Path) -> Result<PathBuf> {
    if syncline_source::is_address(image) {
        let open = |error| std::io::Error::from(syncline::Error::Open(error));
        let named = syncline_source::Source::parse(image);
        return Ok(named.map_err(|error| VfsError::of_volume(image, open(error)))?.name());
    }
    image.canonicalize().map_err(|source| VfsError::of_volume(image, source))
}

/// The volume of an image, or a part of it if that is what the name says.
pub(crate) fn open_named(image: &Path) -> Result<VolumeRef> {
    match part_named(image) {
        Some((image, part)) => open_part(&image, part),
        None => open(image),
    }
}

fn open_part(image: &Path, part: Part) -> Result<VolumeRef> {
    let _in_use = InUse::begin()?;
    let base = match find(&full_name(image, Path::new("/"))) {
        Some((open, _)) => open,
        None => open(image)?,
    };
    let name = part.of(&base.image);
    let mut volumes = VOLUMES.get().lock();
    if let Some(registered) = volumes.iter_mut().find(|registered| registered.volume.is_called(&name)) {
        registered.users += 1;
        let volume = VolumeRef::counted(registered.volume.clone());
        // The use of the base is given up without the lock.
        drop(volumes);
        return Ok(volume);
    }
    let opened = match &part {
        Part::Snapshot(snapshot) => base.volume.at(snapshot),
        Part::Head(head) => base.volume.head(head),
    };
    match opened {
        Ok(view) => Ok(register(&mut volumes, name, view, Absent::new(false), Some((base, part)))),
        Err(source) => {
            drop(volumes);
            Err(VfsError::Part { image: base.image.clone(), part, source })
        }
    }
}

/// The image and the part that a name is of, if it is no image itself.
pub(crate) fn part_named(name: &Path) -> Option<(PathBuf, Part)> {
    if is_image(name) {
        return None;
    }
    Part::split(name, |image| is_open(image) || is_image(image))
}

/// An address is one without being looked at. A part stands behind a mark, which an address does not hold.
fn is_image(path: &Path) -> bool {
    if syncline_source::is_address(path) {
        return !path.as_os_str().as_bytes().contains(&part::MARK);
    }
    path.metadata().is_ok_and(|metadata| !metadata.is_dir())
}

fn is_write_refused(error: &std::io::Error) -> bool {
    use syncline_device::OpenError::NotWritable;
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<syncline::Error>());
    matches!(inner, Some(syncline::Error::Open(NotWritable { .. })))
}

fn register(
    volumes: &mut Vec<Registered>,
    image: PathBuf,
    volume: Volume,
    absent: Absent,
    of: Option<(VolumeRef, Part)>,
) -> VolumeRef {
    let (of, part) = of.unzip();
    let volume = Arc::new(OpenVolume {
        image,
        volume,
        panicked: AtomicBool::new(false),
        databases: Mutex::default(),
        virtual_files: VirtualFiles::default(),
        absent,
        part,
        of: Mutex::new(of),
    });
    volumes.push(Registered { volume: volume.clone(), users: 1 });
    VolumeRef::counted(volume)
}

/// Lets a volume that the program opened itself be used under a name, as if it were an image of this path.
///
/// Errors: the volume back, if there is one of this name.
pub(crate) fn add(name: &Path, volume: Volume) -> std::result::Result<VolumeRef, Volume> {
    let mut volumes = VOLUMES.get().lock();
    if volumes.iter().any(|registered| registered.volume.is_called(name)) {
        return Err(volume);
    }
    Ok(register(&mut volumes, name.to_owned(), volume, Absent::new(false), None))
}

/// Takes a volume that was added off the table, without closing it.
///
/// Errors: its use back, if there are others.
pub(crate) fn take_back(mut only: VolumeRef) -> std::result::Result<Volume, VolumeRef> {
    // A forked child's table does not have it.
    if only.open.as_ref().is_none_or(|open| open.get().is_err()) {
        return Err(only);
    }
    let mut volumes = VOLUMES.get().lock();
    let index = volumes.iter().position(|registered| Arc::ptr_eq(&registered.volume, only.shared()));
    let index = index.expect("a volume in use is registered");
    if volumes[index].users > 1 {
        // What is given back is not dropped under the lock.
        drop(volumes);
        return Err(only);
    }
    let volume = only.volume.clone();
    volumes.swap_remove(index);
    // Nothing is left for its drop to do.
    only.open = None;
    Ok(volume)
}

/// The open volume of a full name, and the path within it.
pub(crate) fn find(name: &[u8]) -> Option<(VolumeRef, PathBuf)> {
    let mut volumes = VOLUMES.get().lock();
    let registered = volumes.iter_mut().find(|registered| {
        let image = registered.volume.image.as_os_str().as_bytes();
        name.strip_prefix(image).is_some_and(|rest| rest.starts_with(SEPARATOR))
    })?;
    registered.users += 1;
    let path = &name[registered.volume.image.as_os_str().len() + 1..];
    Some((VolumeRef::counted(registered.volume.clone()), path_of(path)))
}

/// The open volume of a full name, and the path within it, for what SQLite derives from the name of a database that
/// is open.
pub(crate) fn find_open(name: &[u8]) -> Result<(VolumeRef, PathBuf)> {
    let found = find(name).ok_or_else(VfsError::no_volume)?;
    found.0.check_usable()?;
    Ok(found)
}

/// A database of this volume is being used by this thread.
pub(crate) fn note_used(volume: &VolumeRef) {
    LAST_USED.with_borrow_mut(|last| {
        if last.as_ptr() != Arc::as_ptr(volume.shared()) {
            *last = volume.downgrade();
        }
    });
}

/// The volume for a file that has no name: the one that this thread has used last, because SQLite makes such files for
/// the statement that the thread runs; else any other one that takes writes.
pub(crate) fn for_temporary() -> Option<VolumeRef> {
    let last = LAST_USED.with_borrow(Weak::as_ptr);
    let mut volumes = VOLUMES.get().lock();
    let serves =
        |volume: &OpenVolume| !volume.has_panicked() && !volume.is_snapshot() && !volume.fs().is_read_only();
    let serving = || (0..volumes.len()).filter(|&index| serves(&volumes[index].volume));
    let used_last = |&index: &usize| Arc::as_ptr(&volumes[index].volume) == last;
    let index = serving().find(used_last).or_else(|| serving().next())?;
    volumes[index].users += 1;
    Some(VolumeRef::counted(volumes[index].volume.clone()))
}

/// The only open volume, if it is the only one: for databases that are attached without naming one.
fn only_image() -> Option<PathBuf> {
    let volumes = VOLUMES.get().lock();
    let mut whole = volumes.iter().filter(|registered| registered.volume.part.is_none());
    match (whole.next(), whole.next()) {
        (Some(only), None) => Some(only.volume.image.clone()),
        _ => None,
    }
}

/// Databases that name no volume are in this one. What was said first counts.
pub(crate) fn set_default_image(image: Option<PathBuf>) {
    let _ = DEFAULT_IMAGE.set(image);
}

/// The volume of databases that name none: the one that was said, else the only open one.
pub(crate) fn unnamed_image() -> Option<PathBuf> {
    DEFAULT_IMAGE.get().cloned().flatten().or_else(only_image)
}

/// Whether a volume is known under this name.
pub(crate) fn is_open(image: &Path) -> bool {
    VOLUMES.get().lock().iter().any(|registered| registered.volume.is_called(image))
}

/// A path within a volume without `.`, `..` and doubled slashes, from its root.
pub(crate) fn path_of(written: &[u8]) -> PathBuf {
    // Every commit comes here with names that were cleaned before.
    if is_clean(written) {
        return PathBuf::from(std::ffi::OsStr::from_bytes(written));
    }
    let mut names: Vec<&[u8]> = Vec::new();
    for name in written.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let mut path = PathBuf::from("/");
    path.extend(names.into_iter().map(std::ffi::OsStr::from_bytes));
    path
}

/// Whether a path is as [`path_of`] makes them; false for the root.
fn is_clean(path: &[u8]) -> bool {
    let Some(names) = path.strip_prefix(b"/") else { return false };
    names.split(|&byte| byte == b'/').all(|name| !matches!(name, b"" | b"." | b".."))
}

/// Splits what looks like `IMAGE:/PATH`, where the image exists.
pub(crate) fn split(name: &[u8]) -> Option<(PathBuf, PathBuf)> {
    let colons = name.windows(SEPARATOR.len()).enumerate().filter(|(_, window)| *window == SEPARATOR);
    let is_address = syncline_source::is_address(std::ffi::OsStr::from_bytes(name));
    for (at, _) in colons {
        // Of an address, the colon behind its scheme.
        if is_address && name[at..].starts_with(b"://") {
            continue;
        }
        let image = Path::new(std::ffi::OsStr::from_bytes(&name[..at]));
        if is_open(image) || is_image(image) || part_named(image).is_some() {
            return Some((image.to_owned(), path_of(&name[at + 1..])));
        }
    }
    None
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A volume in memory under a name of its own.
    pub(crate) fn in_memory(name: &str) -> VolumeRef {
        let volume = Volume::create_in_memory(64 << 20).expect("a volume");
        add(Path::new(name), volume).unwrap_or_else(|_| panic!("{name} is taken"))
    }

    #[test]
    fn paths_are_cleaned_and_stay_within_the_volume() {
        for (written, clean) in [
            ("/db", "/db"),
            ("/a/..b/.db", "/a/..b/.db"),
            ("db", "/db"),
            ("//a/./b//c/../db", "/a/b/db"),
            ("/a/../db", "/db"),
            ("/a/db/", "/a/db"),
            ("../../db", "/db"),
            ("/", "/"),
            ("", "/"),
        ] {
            assert_eq!(path_of(written.as_bytes()), Path::new(clean), "{written}");
        }
    }

    #[test]
    fn names_lead_to_the_volume_that_they_begin_with() {
        let volume = in_memory("names:/odd");
        let name = volume.full_name(Path::new("/dir/db-journal"));
        let (found, path) = find(&name).expect("found");
        assert!(Arc::ptr_eq(found.shared(), volume.shared()));
        assert_eq!(path, Path::new("/dir/db-journal"));
        assert!(find(b"names:/other").is_none());
        drop((found, volume));
        assert!(find(&name).is_none(), "the last use closes the volume");
    }

    #[test]
    fn addresses_are_images_and_their_names_are_split_behind_them() {
        for (name, image, path) in [
            ("nbd://h:1/x:/db", "nbd://h:1/x", "/db"),
            ("nbd+unix:///?socket=/s:/a/b", "nbd+unix:///?socket=/s", "/a/b"),
            ("rbd:pool/image:/db", "rbd:pool/image", "/db"),
            ("rbd:pool/image#snap:/db", "rbd:pool/image#snap", "/db"),
        ] {
            assert_eq!(split(name.as_bytes()).expect(name), (image.into(), path.into()));
        }
        let of_snapshot = part_named(Path::new("rbd:pool/image#snap"));
        let snapshot = Part::Snapshot("snap".to_owned());
        assert_eq!(of_snapshot, Some((PathBuf::from("rbd:pool/image"), snapshot)));
        assert_eq!(
            canonical(Path::new("nbd://HOST:10809/x")).expect("an address"),
            Path::new("nbd://host/x")
        );
        assert!(canonical(Path::new("rbd:x")).is_err());
    }

    #[test]
    fn a_temporary_file_is_on_the_volume_that_its_thread_has_used_last() {
        let (one, other) = (in_memory("used first"), in_memory("used last"));
        let is =
            |volume: &VolumeRef| Arc::ptr_eq(for_temporary().expect("a volume").shared(), volume.shared());
        for volume in [&one, &other, &one] {
            note_used(volume);
            assert!(is(volume));
        }
        // One that takes nothing any more is passed by.
        one.note_panic();
        assert!(!is(&one));
        note_used(&other);
        assert!(is(&other));
        other.fs().shut_down();
        let gone = other.downgrade();
        // Closing it fails, and there is no SQLite here to be told.
        std::mem::forget(other);
        assert!(
            for_temporary().is_none_or(|volume| !std::ptr::eq(Arc::as_ptr(volume.shared()), gone.as_ptr()))
        );
    }

    #[test]
    fn a_volume_is_taken_back_open_and_only_by_its_last_user() {
        let volume = in_memory("back");
        let other = find(&volume.full_name(Path::new("/db"))).expect("found");
        let Err(volume) = take_back(volume) else { panic!("somebody else uses it") };
        drop(other);
        let Ok(volume) = take_back(volume) else { panic!("nobody else uses it") };
        assert!(!is_open(Path::new("back")));
        volume.write("file", "it is open still").expect("written");
        volume.close().expect("closed once");
    }
}
