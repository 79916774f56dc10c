//! From a replica to an image.

use crate::claim::{claim, opener};
use crate::client::Client;
use crate::error::Error;
use crate::overview::Overview;
use std::time::Duration;
use syncline_device::Device;
use syncline_format::replica::Mark;
use syncline_replica::newest::Newest;
use syncline_replica::{Opened, Opener, Plan, ReplicaError, Restore, StoreError, Target};

/// How long a driver sleeps while nothing is answered.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest time without an answer until a restore ends.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The volume that an address holds: the one with this uuid, or the only one.
pub fn volume(client: &Client, uuid: Option<[u8; 16]>) -> Result<[u8; 16], Error> {
    if let Some(uuid) = uuid {
        return Ok(uuid);
    }
    let url = client.address().url.clone();
    let volumes = client.volumes().map_err(|error| Error::Unreachable { url: url.clone(), error })?;
    match &volumes[..] {
        [] => Err(Error::NoReplica { url }),
        [one] => Ok(parse_uuid(one).expect("names of volumes are 32 hexadecimal digits")),
        several => Err(Error::SeveralVolumes { url, count: several.len(), uuids: several.join(", ") }),
    }
}

/// A uuid of 32 hexadecimal digits, with or without dashes.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let number = (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok())??;
    Some(number.to_be_bytes())
}

/// Restores a volume into the device that `make` makes for one of so many blocks, which holds zeros. It is flushed.
///
/// # Errors
/// What is damaged or missing in the replica is named. The device holds a part of the volume then.
pub fn restore<D: Device + ?Sized>(
    client: &mut Client,
    uuid: [u8; 16],
    target: Target,
    make: impl FnOnce(u64) -> Result<std::sync::Arc<D>, Error>,
) -> Result<Plan, Error> {
    client.forget();
    let mut heard = client.now();
    let mut restore = Restore::new(uuid, target);
    let mut make = Some(make);
    let mut device = None;
    loop {
        let is_answered = client.step(&mut restore, PATIENCE) && restore.trouble().is_none();
        is_silent(client, is_answered, &mut heard, restore.trouble())?;
        let writes = restore.take_writes();
        if let Some(plan) = restore.plan() {
            if let Some(make) = make.take() {
                device = Some(make(plan.end.blocks)?);
            }
            if let Some(device) = &device {
                let tickets: Vec<_> =
                    writes.into_iter().map(|(at, buffer)| device.submit_write(at, vec![buffer])).collect();
                tickets.iter().try_for_each(|ticket| device.wait(ticket))?;
            }
        }
        match (restore.outcome(), restore.plan()) {
            (Some(Err(error)), _) => return Err(error.clone().into()),
            (Some(Ok(())), Some(plan)) => {
                let plan = *plan;
                if let Some(device) = &device {
                    device.flush()?;
                }
                return Ok(plan);
            }
            _ => {}
        }
    }
}

/// A manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    pub number: u64,
    /// The claim that it was made for.
    pub owner: u64,
}

/// Where everything is at a position; and the manifest that says so.
///
/// # Errors
/// As [`restore`].
pub fn plan(client: &mut Client, uuid: [u8; 16], target: Target) -> Result<(Plan, Newest, Seen), Error> {
    planned(client, Restore::planning(uuid, target))
}

/// The newest state, to be [`confirmed`] by a claim that is made meanwhile.
///
/// # Errors
/// As [`restore`].
pub fn plan_beside_claim(client: &mut Client, uuid: [u8; 16]) -> Result<(Plan, Newest, Seen), Error> {
    planned(client, Restore::planning_beside_claim(uuid))
}

fn planned(client: &mut Client, mut planning: Restore) -> Result<(Plan, Newest, Seen), Error> {
    client.forget();
    let mut heard = client.now();
    loop {
        let is_answered = client.step(&mut planning, PATIENCE) && planning.trouble().is_none();
        is_silent(client, is_answered, &mut heard, planning.trouble())?;
        match (planning.outcome(), planning.plan()) {
            (Some(Err(error)), _) => return Err(error.clone().into()),
            (Some(Ok(())), Some(plan)) => {
                let (number, owner) = (planning.manifest().unwrap_or(0), planning.owner().unwrap_or(0));
                return Ok((*plan, planning.into_newest(), Seen { number, owner }));
            }
            _ => {}
        }
    }
}

/// What was planned while a claim was made, if it ends with the last unit that counts; otherwise it is planned anew.
///
/// # Errors
/// As [`restore`].
pub fn confirmed(
    planned: Option<(Plan, Newest, Seen)>,
    client: &mut Client,
    claimed: &Claimed,
) -> Result<(Plan, Newest, Seen), Error> {
    match planned.filter(|(plan, _, _)| claimed.opened.last == Some(plan.end)) {
        Some(planned) => Ok(planned),
        None => plan(client, claimed.opened.uuid, Target::Newest),
    }
}

/// Ends what has waited too long for an answer.
fn is_silent(
    client: &Client,
    is_answered: bool,
    heard: &mut u64,
    trouble: Option<&StoreError>,
) -> Result<(), Error> {
    if is_answered {
        *heard = client.now();
    } else if client.now() - *heard > SILENCE_MAX.as_nanos() as u64 {
        let no_answer = || StoreError::Unavailable("no answer".to_owned());
        let error = trouble.cloned().unwrap_or_else(no_answer);
        return Err(Error::Unreachable { url: client.address().url.clone(), error });
    }
    Ok(())
}

/// Claims a replica without writing to it: whoever wrote to it until now is told so, and ships nothing more. The mark
/// is what a volume has to say about itself to be the one that continues.
///
/// # Errors
/// The store cannot be reached within `wait`, or holds no replica of this volume.
pub fn fence(client: &mut Client, uuid: [u8; 16], wait: Duration) -> Result<Mark, Error> {
    Ok(take_over(client, uuid, wait)?.mark())
}

/// A claim on a replica, by which nothing is shipped yet.
#[derive(Debug)]
pub struct Claimed {
    pub opened: Opened,
    pub nonce: u64,
}

impl Claimed {
    /// For a volume that is made from the replica.
    pub fn mark(&self) -> Mark {
        Mark { uuid: self.opened.uuid, claim: self.opened.claim, nonce: self.nonce, holds: 0 }
    }
}

/// As [`fence`], for whoever ships by this claim.
///
/// # Errors
/// As [`fence`].
pub fn take_over(client: &mut Client, uuid: [u8; 16], wait: Duration) -> Result<Claimed, Error> {
    let opener = Opener { take_over: true, ..opener(uuid, 0) };
    let nonce = opener.nonce;
    match claim(client, None, opener, wait) {
        Ok(opened) => Ok(Claimed { opened, nonce }),
        // There is none, or it has no manifest: the overview says which.
        Err(Error::Replica(ReplicaError::Empty)) => {
            Err(Overview::of(client, uuid).map_or_else(|why| why, |_| ReplicaError::Empty.into()))
        }
        Err(error) => Err(error),
    }
}
