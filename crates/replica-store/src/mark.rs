//! What a volume says about itself and its replica, read off its device.

use crate::error::Error;
use std::sync::Arc;
use syncline_device::{Buffer, Device};
use syncline_format::replica::{MARK_BLOCK, Mark};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, FormatError};

/// The newest superblock of the volume on a device.
pub fn superblock(device: &dyn Device) -> Result<Superblock, Error> {
    let mut newest: Result<Superblock, FormatError> = Err(FormatError::Magic { what: "superblock", got: 0 });
    for slot in SUPERBLOCK_SLOTS {
        let mut bytes = vec![0; BLOCK_BYTES];
        device.read(slot, &mut bytes)?;
        match (Superblock::decode(&bytes, slot, device.blocks()), &newest) {
            (Ok(found), Ok(known)) if found.rank() <= known.rank() => {}
            (Ok(found), _) => newest = Ok(found),
            (Err(error), Err(_)) => newest = Err(error),
            (Err(_), Ok(_)) => {}
        }
    }
    newest.map_err(Error::NoVolume)
}

/// The mark of the volume with this uuid; one that says nothing if there is none.
pub fn read(device: &dyn Device, uuid: [u8; 16]) -> Result<Mark, Error> {
    let mut bytes = vec![0; BLOCK_BYTES];
    device.read(MARK_BLOCK, &mut bytes)?;
    let mark = Mark::decode(&bytes, uuid).map_err(Error::Mark)?;
    Ok(mark.unwrap_or(Mark { uuid, claim: 0, nonce: 0, holds: 0 }))
}

/// Writes a mark, durably.
pub fn write(device: &dyn Device, mark: &Mark) -> Result<(), Error> {
    device.write(MARK_BLOCK, vec![Arc::new(Buffer::from_bytes(&mark.encode()))])?;
    Ok(device.flush()?)
}
