//! Opening what a path names, and finding the superblock, for commands that look at a volume without the engine.

use crate::error::Failure;
use crate::size::Size;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Device, OpenOptions};
use syncline_format::layout::BACKUP_BLOCKS;
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, BlockNo, FormatError};

/// How long a command waits for whoever has the volume: the kernel may give up what a killed process had 100 ms behind
/// its end.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_millis(250);

/// One place of a superblock and what is there.
pub(crate) struct Copy {
    pub(crate) name: &'static str,
    pub(crate) block: BlockNo,
    pub(crate) content: Result<Superblock, FormatError>,
}

/// The four copies. The two slots come first.
pub(crate) struct Superblocks {
    pub(crate) copies: Vec<Copy>,
    /// Blocks of the device or image.
    blocks: u64,
}

impl Superblocks {
    /// The one that counts: of the valid slots the one with the highest rank. A backup never does.
    pub(crate) fn current(&self) -> Option<&Superblock> {
        let slots = self.copies.iter().take(SUPERBLOCK_SLOTS.len());
        slots.filter_map(|copy| copy.content.as_ref().ok()).max_by_key(|superblock| superblock.rank())
    }

    /// Whether only the backups at the end tell that this was a volume.
    pub(crate) fn are_lost(&self) -> bool {
        self.current().is_none() && self.copies.iter().any(|copy| copy.content.is_ok())
    }

    /// The one that counts, or why there is none.
    pub(crate) fn require(&self, path: &Path) -> Result<&Superblock, Failure> {
        self.current().ok_or_else(|| {
            let path = path.to_owned();
            // The slot that comes closest to a superblock tells most.
            let closeness = |error: &&FormatError| {
                !matches!(error, FormatError::Magic { .. } | FormatError::Truncated { .. })
            };
            let errors = self.copies.iter().filter_map(|copy| copy.content.as_ref().err());
            match errors.max_by_key(closeness).cloned() {
                Some(source @ (FormatError::Version { .. } | FormatError::Features { .. })) => {
                    Failure::Version { path, source }
                }
                Some(FormatError::Magic { .. }) if self.are_lost() => Failure::SlotsLost { path },
                Some(source @ (FormatError::Magic { .. } | FormatError::Truncated { .. })) => {
                    Failure::NoVolume { path, source }
                }
                Some(FormatError::Field { what: "layout", field: "blocks", value })
                    if value > self.blocks =>
                {
                    let (has, wanted) = (Size::of_blocks(self.blocks), Size::of_blocks(value));
                    Failure::CutOff { path, has, wanted }
                }
                Some(source) => Failure::Superblock { path, source },
                None => unreachable!("without an error there is a superblock"),
            }
        })
    }
}

/// Opens a volume's device for reading only.
pub(crate) fn open_to_read(path: &Path) -> Result<Arc<dyn Device>, Failure> {
    let options = OpenOptions::default().read_only(true).force(true);
    Ok(syncline_source::open(path, &options)?.into_device())
}

/// Reads every copy of the superblock.
pub(crate) fn superblocks(device: &dyn Device, path: &Path) -> Result<Superblocks, Failure> {
    let mut copies = Vec::new();
    for (name, block) in ["slot 0", "slot 1"].into_iter().zip(SUPERBLOCK_SLOTS) {
        copies.push(copy(device, path, name, block)?);
    }
    let blocks = device.blocks();
    let superblocks = Superblocks { copies, blocks };
    let backup = match superblocks.current() {
        Some(current) => current.layout.backup_start(),
        None => BlockNo(device.blocks().saturating_sub(BACKUP_BLOCKS)),
    };
    let mut copies = superblocks.copies;
    for (name, block) in ["backup 0", "backup 1"].into_iter().zip([backup, backup.plus(1)]) {
        copies.push(copy(device, path, name, block)?);
    }
    Ok(Superblocks { copies, blocks })
}

fn copy(device: &dyn Device, path: &Path, name: &'static str, block: BlockNo) -> Result<Copy, Failure> {
    let mut bytes = [0; BLOCK_BYTES];
    let content = if block.0 < device.blocks() {
        let read = device.read(block, &mut bytes);
        read.map_err(|source| Failure::Device { path: path.to_owned(), source })?;
        Superblock::decode(&bytes, block, device.blocks())
    } else {
        Err(FormatError::Truncated { what: "device", want: BLOCK_BYTES, got: 0 })
    };
    Ok(Copy { name, block, content })
}

/// A UUID as people write it.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Reads a UUID as people write it, with or without dashes.
pub(crate) fn uuid_parse(text: &str) -> Result<[u8; 16], Failure> {
    let wrong = || Failure::Uuid { text: text.to_owned() };
    let dashes_fit = text.len() == 32
        || (text.len() == 36 && [8, 13, 18, 23].iter().all(|&at| text.as_bytes()[at] == b'-'));
    let hex: Vec<u8> = text.bytes().filter(|&byte| byte != b'-').collect();
    if !dashes_fit || hex.len() != 32 || !hex.iter().all(u8::is_ascii_hexdigit) {
        return Err(wrong());
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(hex.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_is_read_as_it_is_written() {
        let text = "2f6c1e0a-5d0b-4c43-9a53-7d3f0c1b2a99";
        let uuid = uuid_parse(text).unwrap();
        assert_eq!(uuid_text(&uuid), text);
        assert_eq!(uuid_parse(&text.replace('-', "")).unwrap(), uuid);
        for wrong in
            ["", "2f6c", "2f6c1e0a-5d0b-4c43-9a53-7d3f0c1b2a9g", "2f6c1e0a5-d0b-4c43-9a53-7d3f0c1b2a99"]
        {
            assert!(uuid_parse(wrong).is_err(), "{wrong}");
        }
    }
}
