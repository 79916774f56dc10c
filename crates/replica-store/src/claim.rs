//! The way to an owner of a replica.

use crate::client::Client;
use crate::error::Error;
use crate::mark;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use syncline_device::Device;
use syncline_format::replica::Mark;
use syncline_replica::{Opened, Opener, Opening, StoreError};

/// How long one answer is waited for before the time is looked at.
const PATIENCE: Duration = Duration::from_millis(50);

/// Nanoseconds since 1970.
pub(crate) fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// This process as an opener of a volume that was never shipped.
pub(crate) fn opener(uuid: [u8; 16], blocks: u64) -> Opener {
    Opener {
        uuid,
        blocks,
        continued: 0,
        marked: 0,
        generation: None,
        take_over: false,
        nonce: syncline_device::random_number().max(1),
        time: wall(),
        process: std::process::id(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
    }
}

/// Claims a replica. Where there is a device, its mark says so before; what it says that the volume holds stays.
///
/// # Errors
/// The store cannot be reached within `wait`, or the claim is not for this volume.
pub(crate) fn claim(
    client: &mut Client,
    device: Option<(&dyn Device, u64)>,
    opener: Opener,
    wait: Duration,
) -> Result<Opened, Error> {
    let uuid = opener.uuid;
    let deadline = client.now() + wait.as_nanos() as u64;
    let mut opening = Opening::new(opener);
    loop {
        if let Some((claim, nonce)) = opening.to_mark() {
            if let Some((device, holds)) = device {
                mark::write(device, &Mark { uuid, claim, nonce, holds })?;
            }
            opening.marked();
        }
        client.step(&mut opening, PATIENCE);
        if let Some(outcome) = opening.outcome() {
            client.forget();
            let opened = outcome.clone()?;
            if let Some(doubt) = &opened.doubt {
                tracing::warn!("the replica is taken over, and nobody knows from whom: {doubt}");
            }
            return Ok(opened);
        }
        if client.now() > deadline {
            client.forget();
            let no_answer = || StoreError::Unavailable("no answer".to_owned());
            let error = opening.trouble().cloned().unwrap_or_else(no_answer);
            return Err(Error::Unreachable { url: client.address().url.clone(), error });
        }
    }
}
