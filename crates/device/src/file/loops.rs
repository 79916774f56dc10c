//! What a loop device lies on: which bytes of which file.
//!
//! An image can be reached by its own name and through any number of loop devices, each with locks and a claim of its
//! own. So whoever locks a loop device locks the bytes below it, too (`lock.rs`). Partitions of a loop device count
//! as loop devices with a narrower range. What sysfs names may not exist in this mount namespace; then nothing is
//! known.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Unit of sizes in sysfs.
const SECTOR_BYTES: u64 = 512;

/// Bytes of a file that a loop device shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Backing {
    pub(super) file: PathBuf,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Backing {
    /// Of a block device; `None` if it is no loop device.
    pub(super) fn of(device: &Path) -> Option<Backing> {
        Backing::of_directory(&directory_of(device)?)
    }

    /// Of a block device's directory in sysfs.
    fn of_directory(directory: &Path) -> Option<Backing> {
        let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let disk = disk_of(directory);
        let within = if disk == directory { 0 } else { number(directory.join("start"))? * SECTOR_BYTES };
        let name = fs::read(disk.join("loop/backing_file")).ok()?;
        let start = number(disk.join("loop/offset"))? + within;
        let end = start + number(directory.join("size"))? * SECTOR_BYTES;
        Some(Backing { file: PathBuf::from(OsStr::from_bytes(name.trim_ascii_end())), start, end })
    }

    /// The same bytes in the file below, where this one's file is a loop device itself.
    pub(super) fn below(&self) -> Option<Backing> {
        let below = Backing::of(&self.file)?;
        Some(Backing { file: below.file, start: below.start + self.start, end: below.start + self.end })
    }

    fn overlaps(&self, other: &Backing) -> bool {
        self.file == other.file && self.start < other.end && other.start < self.end
    }
}

/// Loop devices, partitions left out, and what they lie on.
fn all() -> impl Iterator<Item = (PathBuf, Backing)> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices.filter_map(|device| {
        let backing = Backing::of_directory(&device.path())?;
        Some((Path::new("/dev").join(device.file_name()), backing))
    })
}

/// Loop devices that show bytes of this image file.
pub(super) fn on_file(image: &Path) -> Vec<PathBuf> {
    let Ok(image) = image.canonicalize() else { return Vec::new() };
    all().filter(|(_, backing)| backing.file == image).map(|(device, _)| device).collect()
}

/// Other loop devices that show bytes which this one shows as well. The disk of a partition is none: the kernel keeps
/// the claims of a disk and of its partitions apart by itself.
pub(super) fn beside(device: &Path) -> Vec<PathBuf> {
    let Some(directory) = directory_of(device) else { return Vec::new() };
    let Some(own) = Backing::of_directory(&directory) else { return Vec::new() };
    let disk = disk_of(&directory).file_name().map(OsStr::to_owned);
    all()
        .filter(|(other, backing)| backing.overlaps(&own) && other.file_name() != disk.as_deref())
        .map(|(other, _)| other)
        .collect()
}

/// A block device's directory in sysfs.
fn directory_of(device: &Path) -> Option<PathBuf> {
    let metadata = fs::metadata(device).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let number = metadata.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

/// The directory of the disk that a partition is of; of a disk its own.
fn disk_of(directory: &Path) -> &Path {
    match directory.parent() {
        Some(parent) if directory.join("partition").exists() => parent,
        _ => directory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plant(directory: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(directory.join("loop")).unwrap();
        files.iter().for_each(|(name, content)| fs::write(directory.join(name), content).unwrap());
    }

    #[test]
    fn the_bytes_below_a_partition_begin_behind_the_offset_of_its_disk() {
        let sysfs = tempfile::tempdir().unwrap();
        let disk = sysfs.path().join("loop7");
        plant(&disk, &[("size", "100\n"), ("loop/offset", "4096\n"), ("loop/backing_file", "/a b\n")]);
        let whole = Backing { file: "/a b".into(), start: 4096, end: 4096 + 51_200 };
        assert_eq!(Backing::of_directory(&disk), Some(whole.clone()));
        let part = disk.join("loop7p1");
        fs::create_dir(&part).unwrap();
        [("partition", "1\n"), ("start", "8\n"), ("size", "16\n")]
            .iter()
            .for_each(|(name, content)| fs::write(part.join(name), content).unwrap());
        let of_part = Backing::of_directory(&part).unwrap();
        assert_eq!(of_part, Backing { file: "/a b".into(), start: 8192, end: 16_384 });
        assert!(of_part.overlaps(&whole) && disk_of(&part) == disk && disk_of(&disk) == disk);
        let behind = Backing { start: 16_384, end: 20_480, ..whole };
        assert!(!of_part.overlaps(&behind), "parts that only touch do not overlap");
    }

    #[test]
    fn what_is_no_loop_device_lies_on_nothing() {
        let image = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(Backing::of(image.path()), None);
        assert!(beside(image.path()).is_empty() && on_file(image.path()).is_empty());
    }
}
