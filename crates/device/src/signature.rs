//! What a device already holds, told from the magic numbers of other formats, so that nobody formats over
//! data by mistake.
//!
//! Only magic is looked at, not whether the format is intact: a damaged filesystem is still somebody's data.
//! The magics are those published by each format's own documentation or kernel header.

use crate::{Buffer, Device, DeviceError, OpenError, OpenStep, Operation};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use syncline_format::superblock::{SUPERBLOCK_MAGIC, SUPERBLOCK_SLOTS};
use syncline_format::{BLOCK_BYTES, BlockNo};

/// A plain file that holds something within its first bytes is taken for somebody's data.
const LOOK_BYTES: u64 = 128 << 10;

/// A format recognised on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Its name, as a person knows it.
    pub name: &'static str,
    /// Byte offset of the magic on the device.
    pub offset: u64,
}

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (at byte {})", self.name, self.offset)
    }
}

/// Where a magic is.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Bytes from the start.
    Start(u64),
    /// Bytes before the end.
    End(u64),
    /// Bytes before the end, after the end was rounded down to the alignment.
    AlignedEnd { before: u64, alignment: u64 },
}

impl Place {
    fn offset(self, device_bytes: u64) -> Option<u64> {
        match self {
            Place::Start(offset) => Some(offset),
            Place::End(before) => device_bytes.checked_sub(before),
            Place::AlignedEnd { before, alignment } => {
                (device_bytes - device_bytes % alignment).checked_sub(before)
            }
        }
    }
}

struct Magic {
    name: &'static str,
    place: Place,
    bytes: &'static [u8],
}

const fn start(name: &'static str, offset: u64, bytes: &'static [u8]) -> Magic {
    Magic { name, place: Place::Start(offset), bytes }
}

const MD_MAGIC: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
const ZFS_MAGIC_LITTLE: &[u8] = &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0];
const ZFS_MAGIC_BIG: &[u8] = &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c];

/// Looked through in this order; filesystems before the partition tables that some of them imitate.
const MAGICS: &[Magic] = &[
    start("Syncline", SUPERBLOCK_SLOTS[0].0 * 4096, &SUPERBLOCK_MAGIC),
    start("Syncline", SUPERBLOCK_SLOTS[1].0 * 4096, &SUPERBLOCK_MAGIC),
    start("LUKS", 0, b"LUKS\xba\xbe"),
    start("LVM2", 24, b"LVM2 001"),
    start("LVM2", 512 + 24, b"LVM2 001"),
    start("LVM2", 1024 + 24, b"LVM2 001"),
    start("LVM2", 1536 + 24, b"LVM2 001"),
    start("Linux RAID", 0, MD_MAGIC),
    start("Linux RAID", 4096, MD_MAGIC),
    // Version 1.0: 8 KiB before the end, rounded down to 4 KiB. Version 0.90: the last whole 64 KiB but one.
    Magic { name: "Linux RAID", place: Place::AlignedEnd { before: 8192, alignment: 4096 }, bytes: MD_MAGIC },
    Magic {
        name: "Linux RAID",
        place: Place::AlignedEnd { before: 65536, alignment: 65536 },
        bytes: MD_MAGIC,
    },
    start("XFS", 0, b"XFSB"),
    start("btrfs", 65536 + 64, b"_BHRfS_M"),
    start("f2fs", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    start("bcachefs", 4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    start(
        "bcachefs or bcache",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    start("JFS", 32768, b"JFS1"),
    start("ReiserFS", 65536 + 52, b"ReIsEr"),
    start("EROFS", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    start("SquashFS", 0, b"hsqs"),
    start("NTFS", 3, b"NTFS    "),
    start("exFAT", 3, b"EXFAT   "),
    start("BitLocker", 3, b"-FVE-FS-"),
    start("FAT", 82, b"FAT32   "),
    start("FAT", 54, b"FAT16   "),
    start("FAT", 54, b"FAT12   "),
    start("ISO 9660", 32769, b"CD001"),
    start("swap space", 4096 - 10, b"SWAPSPACE2"),
    start("swap space", 16384 - 10, b"SWAPSPACE2"),
    start("swap space", 65536 - 10, b"SWAPSPACE2"),
    start("swap space", 4096 - 10, b"SWAP-SPACE"),
    start("suspended system", 4096 - 10, b"S1SUSPEND"),
];

/// Recognises what the device or image file holds; `None` means that nothing known was found.
pub fn probe(path: impl AsRef<Path>) -> Result<Option<Signature>, OpenError> {
    let path = path.as_ref();
    let mut file = open_to_look(path)?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(|error| failed(OpenStep::Inspect, path, &error))?;
    recognise(&Source { content: Content::File(file), bytes })
        .map_err(|error| failed(OpenStep::Read, path, &error))
}

/// The same of a device that is open.
pub fn probe_device(device: &dyn Device) -> Result<Option<Signature>, DeviceError> {
    let bytes = device.blocks() * BLOCK_BYTES as u64;
    recognise(&Source { content: Content::Device(device), bytes }).map_err(|error| device_error(&error))
}

/// Whether a device begins with something that is not zero.
pub fn device_holds_unknown_data(device: &dyn Device) -> Result<bool, DeviceError> {
    let bytes = LOOK_BYTES.min(device.blocks() * BLOCK_BYTES as u64);
    let mut start = vec![0; bytes as usize];
    device.read(BlockNo(0), &mut start)?;
    Ok(start.iter().any(|&byte| byte != 0))
}

/// What a device has said is in the error, unchanged.
fn device_error(error: &io::Error) -> DeviceError {
    let told = error.get_ref().and_then(|inner| inner.downcast_ref::<DeviceError>()).cloned();
    told.unwrap_or(DeviceError::Io { operation: Operation::Read, block: BlockNo(0), errno: libc::EIO })
}

/// Whether a plain file begins with something that is not zero: it may be anybody's data, though no known format.
/// Always false for a device. A used disk is never zero, and partition tools do not clear it.
pub fn holds_unknown_data(path: impl AsRef<Path>) -> Result<bool, OpenError> {
    let path = path.as_ref();
    let file = open_to_look(path)?;
    if !file.metadata().map_err(|error| failed(OpenStep::Inspect, path, &error))?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    let read = file.take(LOOK_BYTES).read_to_end(&mut start);
    read.map_err(|error| failed(OpenStep::Read, path, &error))?;
    Ok(start.iter().any(|&byte| byte != 0))
}

/// Opens what may be anything by now: a FIFO is not waited for.
fn open_to_look(path: &Path) -> Result<File, OpenError> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = File::options().read(true).custom_flags(flags).open(path);
    opened.map_err(|error| failed(OpenStep::Open, path, &error))
}

fn failed(step: OpenStep, path: &Path, error: &io::Error) -> OpenError {
    OpenError::Io { step, path: path.to_owned(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

fn recognise(source: &Source<'_>) -> io::Result<Option<Signature>> {
    for magic in MAGICS {
        if let Some(offset) = magic.place.offset(source.bytes)
            && source.holds(offset, magic.bytes)?
        {
            return Ok(Some(Signature { name: magic.name, offset }));
        }
    }
    for special in [ext, zfs, gpt, mbr] {
        if let Some(signature) = special(source)? {
            return Ok(Some(signature));
        }
    }
    Ok(None)
}

enum Content<'a> {
    File(File),
    Device(&'a dyn Device),
}

struct Source<'a> {
    content: Content<'a>,
    bytes: u64,
}

impl Source<'_> {
    fn holds(&self, offset: u64, magic: &[u8]) -> io::Result<bool> {
        let mut found = [0; 16];
        let found = &mut found[..magic.len()];
        Ok(self.read(offset, found)? && found == magic)
    }

    /// False if the device ends before.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<bool> {
        let file = match &self.content {
            Content::File(file) => file,
            Content::Device(device) => return self.read_blocks(*device, offset, into),
        };
        match file.read_exact_at(into, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read_blocks(&self, device: &dyn Device, offset: u64, into: &mut [u8]) -> io::Result<bool> {
        let Some(end) = offset.checked_add(into.len() as u64).filter(|end| *end <= self.bytes) else {
            return Ok(false);
        };
        let first = offset / BLOCK_BYTES as u64;
        let blocks = end.div_ceil(BLOCK_BYTES as u64) - first;
        let mut whole = Buffer::for_overwrite(blocks as usize);
        device.read(BlockNo(first), &mut whole).map_err(io::Error::other)?;
        let start = (offset - first * BLOCK_BYTES as u64) as usize;
        into.copy_from_slice(&whole[start..start + into.len()]);
        Ok(true)
    }
}

/// ext2, ext3 and ext4 share a magic of two bytes; their feature flags tell them apart.
fn ext(source: &Source<'_>) -> io::Result<Option<Signature>> {
    const SUPERBLOCK: u64 = 1024;
    const COMPAT_JOURNAL: u32 = 0x4;
    /// Extents, 64-bit, flexible groups: what ext3 does not have.
    const INCOMPAT_EXT4: u32 = 0x40 | 0x80 | 0x200;
    let mut superblock = [0; 128];
    if !source.read(SUPERBLOCK, &mut superblock)? || superblock[56..58] != [0x53, 0xef] {
        return Ok(None);
    }
    let flags = |at: usize| {
        u32::from_le_bytes([superblock[at], superblock[at + 1], superblock[at + 2], superblock[at + 3]])
    };
    let name = match (flags(92) & COMPAT_JOURNAL != 0, flags(96) & INCOMPAT_EXT4 != 0) {
        (_, true) => "ext4",
        (true, false) => "ext3",
        (false, false) => "ext2",
    };
    Ok(Some(Signature { name, offset: SUPERBLOCK + 56 }))
}

/// A ZFS label holds a ring of uberblocks from 128 KiB on; any of them tells.
fn zfs(source: &Source<'_>) -> io::Result<Option<Signature>> {
    const RING: std::ops::Range<u64> = 128 << 10..256 << 10;
    for offset in RING.step_by(1024) {
        if source.holds(offset, ZFS_MAGIC_LITTLE)? || source.holds(offset, ZFS_MAGIC_BIG)? {
            return Ok(Some(Signature { name: "ZFS", offset }));
        }
    }
    Ok(None)
}

/// The primary header lies in the second sector, the backup in the last one.
fn gpt(source: &Source<'_>) -> io::Result<Option<Signature>> {
    for sector in [512, 4096] {
        for place in [Place::Start(sector), Place::End(sector)] {
            if let Some(offset) = place.offset(source.bytes)
                && source.holds(offset, b"EFI PART")?
            {
                return Ok(Some(Signature { name: "GPT partition table", offset }));
            }
        }
    }
    Ok(None)
}

/// The boot signature alone is shared by every boot sector; a partition table has an entry as well, and all
/// its entries have a valid activity flag.
fn mbr(source: &Source<'_>) -> io::Result<Option<Signature>> {
    let mut sector = [0; 512];
    if !source.read(0, &mut sector)? || sector[510..] != [0x55, 0xaa] {
        return Ok(None);
    }
    let mut entries = sector[446..510].chunks(16);
    let valid = entries.clone().all(|entry| entry[0] & 0x7f == 0);
    let used = entries.any(|entry| entry[4] != 0 && entry[12..16] != [0; 4]);
    let name = if valid && used { "MBR partition table" } else { "boot sector" };
    Ok(Some(Signature { name, offset: 510 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const IMAGE_BYTES: u64 = 8 << 20;

    fn image() -> tempfile::NamedTempFile {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(IMAGE_BYTES).unwrap();
        image
    }

    fn name(image: &tempfile::NamedTempFile) -> Option<&'static str> {
        probe(image.path()).unwrap().map(|signature| signature.name)
    }

    #[test]
    fn every_magic_of_the_table_is_recognised_where_it_belongs() {
        for magic in MAGICS {
            let image = image();
            let offset = magic.place.offset(IMAGE_BYTES).unwrap();
            image.as_file().write_all_at(magic.bytes, offset).unwrap();
            assert_eq!(probe(image.path()).unwrap(), Some(Signature { name: magic.name, offset }));
            image.as_file().write_all_at(&[!magic.bytes[0]], offset).unwrap();
            assert_eq!(probe(image.path()).unwrap(), None);
        }
    }

    #[test]
    fn a_device_that_is_open_tells_the_same_as_its_file() {
        for magic in MAGICS {
            let image = image();
            let offset = magic.place.offset(IMAGE_BYTES).unwrap();
            image.as_file().write_all_at(magic.bytes, offset).unwrap();
            let device = crate::FileDevice::open(image.path(), &crate::OpenOptions::default()).unwrap();
            assert_eq!(probe_device(&device).unwrap(), Some(Signature { name: magic.name, offset }));
            assert_eq!(device_holds_unknown_data(&device).unwrap(), offset < LOOK_BYTES);
        }
        let tiny = crate::MemoryDevice::new(1);
        assert_eq!(probe_device(&tiny).unwrap(), None);
        assert!(!device_holds_unknown_data(&tiny).unwrap());
    }

    #[test]
    fn formats_without_a_single_magic_are_recognised() {
        type Patches<'a> = &'a [(u64, &'a [u8])];
        let cases: &[(&str, Patches<'_>)] = &[
            ("ext2", &[(1024 + 56, &[0x53, 0xef])]),
            ("ext3", &[(1024 + 56, &[0x53, 0xef]), (1024 + 92, &[4])]),
            ("ext4", &[(1024 + 56, &[0x53, 0xef]), (1024 + 92, &[4]), (1024 + 96, &[0x40])]),
            ("ZFS", &[(200 << 10, ZFS_MAGIC_LITTLE)]),
            ("GPT partition table", &[(512, b"EFI PART"), (510, &[0x55, 0xaa])]),
            ("GPT partition table", &[(IMAGE_BYTES - 512, b"EFI PART")]),
            ("MBR partition table", &[(450, &[0x83]), (458, &[1]), (510, &[0x55, 0xaa])]),
            ("boot sector", &[(510, &[0x55, 0xaa])]),
        ];
        for (expected, patches) in cases {
            let image = image();
            patches.iter().for_each(|(at, bytes)| image.as_file().write_all_at(bytes, *at).unwrap());
            assert_eq!(name(&image), Some(*expected));
        }
    }

    #[test]
    fn empty_short_and_random_images_hold_nothing_known() {
        let noise = tempfile::NamedTempFile::new().unwrap();
        let mut state = 1u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(1 << 20)
        .collect();
        noise.as_file().write_all_at(&bytes, 0).unwrap();
        assert_eq!(name(&noise), None);
        for len in [0, 1, 511, 4096, 70_000, IMAGE_BYTES] {
            let image = tempfile::NamedTempFile::new().unwrap();
            image.as_file().set_len(len).unwrap();
            assert_eq!(name(&image), None, "{len} bytes");
        }
    }

    #[test]
    fn filesystems_made_by_their_own_tools_are_recognised() {
        let tools: &[(&str, &[&str], &str)] = &[
            ("mkfs.ext2", &["-q"], "ext2"),
            ("mkfs.ext3", &["-q"], "ext3"),
            ("mkfs.ext4", &["-q"], "ext4"),
            ("mkfs.vfat", &[], "FAT"),
            ("mkswap", &[], "swap space"),
            ("mkfs.btrfs", &["-q", "-f"], "btrfs"),
            ("mkfs.xfs", &["-q", "-f"], "XFS"),
            ("mkfs.f2fs", &["-q", "-f"], "f2fs"),
        ];
        for (tool, options, expected) in tools {
            let image = image();
            image.as_file().set_len(512 << 20).unwrap();
            match Command::new(tool).args(*options).arg(image.path()).output() {
                Ok(output) if output.status.success() => assert_eq!(name(&image), Some(*expected)),
                _ => eprintln!("not checked: {tool} is not to be had here"),
            }
        }
    }

    #[test]
    fn device_that_cannot_be_read_is_an_error() {
        let error = probe("/nonexistent/image").unwrap_err();
        assert_eq!(error.errno(), libc::ENOENT);
    }
}
