//! Volumes that are read from their replica, and volumes that are begun from there.

use crate::address::Address;
use crate::client::Client;
use crate::error::Error;
use crate::fetcher::Fetcher;
use crate::image::{self, Claimed, Seen};
use crate::mark;
use crate::unfinished::Unfinished;
use parking_lot::Mutex;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use syncline_device::{Device, FileDevice};
use syncline_format::BLOCK_BYTES;
use syncline_format::replica::{FOOTER_BYTES, Partial};
use syncline_format::superblock::SUPERBLOCK_SLOTS;
use syncline_replica::{Answer, LazyDevice, Names, Operation, Part, Plan, RemoteDevice, StoreError, Target};

/// How long a claim waits for the store.
const CLAIM_WAIT: Duration = Duration::from_secs(30);
/// Content that is kept of a volume that is read from its replica.
const MEMORY: usize = 64 << 20;
/// What is fetched on each side of a few bytes that somebody reads.
const AROUND_BYTES: u64 = 128 << 10;
/// Of a journal so much is fetched before somebody asks: opening a volume reads it all.
const JOURNAL_AHEAD_BLOCKS: u64 = (32 << 20) / BLOCK_BYTES as u64;

/// A volume that is read from its replica.
pub struct Reading {
    pub device: Arc<RemoteDevice>,
    pub uuid: [u8; 16],
    /// What it shows.
    pub plan: Plan,
    /// The manifest that it was found by.
    pub seen: Seen,
    /// Ends repetitions of what does not succeed.
    pub ender: Arc<AtomicBool>,
}

impl Reading {
    /// The newest state of a volume, or an earlier one. Nothing is claimed and nothing written.
    ///
    /// # Errors
    /// The store does not answer, or holds no such volume or state.
    pub fn open(address: &Address, uuid: Option<[u8; 16]>, target: Target) -> Result<Reading, Error> {
        let mut client = Client::new(address)?;
        let uuid = image::volume(&client, uuid)?;
        let (plan, newest, seen) = image::plan(&mut client, uuid, target)?;
        let fetcher = Fetcher::new(address)?;
        let ender = fetcher.ender();
        let device = Arc::new(RemoteDevice::new(plan.end.blocks, newest, fetcher, MEMORY));
        ahead(&*device, |runs| device.want(runs))?;
        Ok(Reading { device, uuid, plan, seen, ender })
    }

    /// Claim and unit that it shows.
    pub fn position(&self) -> (u64, u64) {
        (self.plan.end.claim, self.plan.end.number)
    }
}

/// Fetches at once what opening a volume reads one after another.
fn ahead<E>(device: &dyn Device, want: impl Fn(&[Range<u64>]) -> Result<(), E>) -> Result<(), Error>
where
    Error: From<E>,
{
    let [first, second] = SUPERBLOCK_SLOTS;
    want(std::slice::from_ref(&(first.0..second.0 + 1)))?;
    let layout = mark::superblock(device)?.layout;
    let start = layout.journal_start.0;
    let journal = start..start + layout.journal_blocks.min(JOURNAL_AHEAD_BLOCKS);
    let group = layout.groups_start.0..layout.groups_start.0 + 2;
    Ok(want(&[journal, group])?)
}

/// Looks whether a replica has gone on, as cheaply as can be.
pub struct Watch {
    client: Client,
    uuid: [u8; 16],
}

impl Watch {
    /// # Errors
    /// The runtime cannot be made.
    pub fn new(address: &Address, uuid: [u8; 16]) -> Result<Watch, Error> {
        Ok(Watch { client: Client::new(address)?, uuid })
    }

    /// Whether there may be something behind a position that was found by a manifest.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn has_more(&self, position: (u64, u64), seen: Seen) -> Result<bool, Error> {
        let names = Names::new(self.uuid);
        let next = if position.0 == seen.owner { position.1 + 1 } else { 0 };
        let part = Part::Last(FOOTER_BYTES as u64);
        let unit = Operation::Get { name: names.unit(seen.owner, next), part };
        let manifest = Operation::Get { name: names.manifest(seen.number + 1), part: Part::All };
        Ok(self.is_there(&unit)? || self.is_there(&manifest)? || self.is_claimed(seen)?)
    }

    /// Whether somebody has claimed the replica behind a manifest. If not, all units that were found by then count
    /// (P3): whoever claims it later finds them, too.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn is_claimed(&self, seen: Seen) -> Result<bool, Error> {
        let name = Names::new(self.uuid).claim(seen.owner + 1);
        self.is_there(&Operation::Get { name, part: Part::All })
    }

    fn is_there(&self, operation: &Operation) -> Result<bool, Error> {
        match self.client.ask(operation) {
            Ok(Answer::Bytes { .. }) => Ok(true),
            Ok(_) | Err(StoreError::Missing) => Ok(false),
            Err(error) => Err(Error::Unreachable { url: self.client.address().url.clone(), error }),
        }
    }
}

/// A volume that is used while it is fetched.
pub struct Lazy {
    pub device: Arc<LazyDevice>,
    pub file: Arc<FileDevice>,
    /// Nobody has written to it: it is what this unit of this claim has left.
    pub exact: Option<(u64, u64)>,
    /// The claim that it was begun with, until somebody ships by it.
    pub claimed: Mutex<Option<Box<Claimed>>>,
    /// Ends repetitions of what does not succeed.
    pub ender: Arc<AtomicBool>,
}

/// An image on this machine of a volume in a replica.
pub enum Local {
    /// A part of it is in the replica still.
    Lazy(Lazy),
    /// All of it is here.
    Whole(Arc<FileDevice>),
}

/// Begins an image: claims the replica, so that whoever wrote to it is told, and makes an image that holds next to
/// nothing.
///
/// # Errors
/// The store does not answer or holds no such volume, or the image cannot be made.
pub fn begin(address: &Address, uuid: Option<[u8; 16]>, path: &Path) -> Result<Lazy, Error> {
    let mut client = Client::new(address)?;
    let uuid = image::volume(&client, uuid)?;
    // Nobody is told to stop for an image that cannot be made.
    let unfinished = Unfinished::of(path);
    drop(FileDevice::create(unfinished.path(), BLOCK_BYTES as u64)?);
    // Both take many answers of the store, one after the other.
    let (claimed, planned) = std::thread::scope(|scope| {
        let planning = scope.spawn(|| image::plan_beside_claim(&mut Client::new(address)?, uuid));
        let claimed = image::take_over(&mut client, uuid, CLAIM_WAIT);
        (claimed, planning.join())
    });
    let claimed = claimed?;
    let planned = planned.ok().and_then(Result::ok);
    let (plan, newest, _) = image::confirmed(planned, &mut client, &claimed)?;
    let end = plan.end;
    let partial = Partial { uuid, blocks: end.blocks, claim: end.claim, unit: end.number };
    let bytes = LazyDevice::local_blocks(end.blocks) * BLOCK_BYTES as u64;
    let file = Arc::new(FileDevice::create(unfinished.path(), bytes)?);
    let fetcher = Fetcher::new(address)?;
    let ender = fetcher.ender();
    let local = Arc::clone(&file) as Arc<dyn Device>;
    let device = Arc::new(LazyDevice::begin(local, partial, newest, fetcher)?.reading_around(AROUND_BYTES));
    mark::write(&*device, &claimed.mark())?;
    ahead(&*device, |runs| device.want(runs))?;
    unfinished.finish(path).map_err(|error| Error::Image { path: path.to_owned(), error })?;
    let exact = Some((end.claim, end.number));
    Ok(Lazy { device, file, exact, claimed: Mutex::new(Some(Box::new(claimed))), ender })
}

/// Goes on with an image that was begun, or takes one that is all here.
///
/// # Errors
/// It is one of another volume; or what it was begun from is not kept any more.
pub fn go_on(address: &Address, uuid: Option<[u8; 16]>, file: Arc<FileDevice>) -> Result<Local, Error> {
    let mut client = Client::new(address)?;
    let partial = LazyDevice::is_partial(&*file)?;
    let own = match &partial {
        Some(partial) => partial.uuid,
        None => mark::superblock(&*file)?.uuid,
    };
    let is_there =
        client.volumes().map_err(|error| Error::Unreachable { url: address.url.clone(), error })?;
    let is_there = is_there.iter().any(|name| image::parse_uuid(name) == Some(own));
    if !is_there || uuid.is_some_and(|uuid| uuid != own) {
        return Err(Error::OtherVolume { path: file.path().to_owned(), url: address.url.clone() });
    }
    let Some(partial) = partial else { return Ok(Local::Whole(file)) };
    let (claim, unit) = (partial.claim, partial.unit);
    let (plan, newest, _) = image::plan(&mut client, own, Target::Position(claim, unit))?;
    if (plan.end.claim, plan.end.number, plan.end.blocks) != (claim, unit, partial.blocks) {
        return Err(Error::Outrun { path: file.path().to_owned(), position: format!("{claim}/{unit}") });
    }
    let fetcher = Fetcher::new(address)?;
    let ender = fetcher.ender();
    let local = Arc::clone(&file) as Arc<dyn Device>;
    let device = Arc::new(LazyDevice::go_on(local, partial, newest, fetcher)?.reading_around(AROUND_BYTES));
    Ok(Local::Lazy(Lazy { device, file, exact: None, claimed: Mutex::new(None), ender }))
}
