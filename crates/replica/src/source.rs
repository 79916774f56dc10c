//! [`Source`]: where blocks come from that are not here, and [`Fetching`]: which of them are on their way.
//!
//! Devices that read from a replica are used by threads that wait. Whoever implements [`Source`] owns the network and
//! the clock; here nothing is known of either.

use crate::error::ReplicaError;
use crate::newest::{Fetch, Found, Newest};
use crate::request::{Answer, Operation, StoreError};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::ops::Range;
use syncline_device::DeviceError;

/// An object store as a device sees it that reads from there.
pub trait Source: Send + Sync + 'static {
    /// Carries out several operations at the same time, and waits. What may work later is tried again, for as long as
    /// it is worth it.
    fn get(&self, operations: &[Operation]) -> Vec<Result<Answer, StoreError>>;
}

impl<S: Source + ?Sized> Source for std::sync::Arc<S> {
    fn get(&self, operations: &[Operation]) -> Vec<Result<Answer, StoreError>> {
        (**self).get(operations)
    }
}

/// Fetches what several threads want, each frame once at a time.
pub(crate) struct Fetching {
    pub(crate) newest: Newest,
    source: Box<dyn Source>,
    /// Bytes in front of what is wanted, and behind it, that are fetched with it: what lies there is wanted next.
    pub(crate) around: u64,
    /// Layer and frame of what is on its way.
    under_way: Mutex<BTreeSet<(usize, usize)>>,
    arrived: Condvar,
}

impl Fetching {
    pub(crate) fn new(newest: Newest, source: Box<dyn Source>, around: u64) -> Fetching {
        Fetching { newest, source, around, under_way: Mutex::default(), arrived: Condvar::new() }
    }

    /// Fetches the frames that hold these blocks, and hands over what is in them. `false`: somebody else was fetching
    /// some of them, and has ended; whoever asks looks again at what is missing.
    ///
    /// # Errors
    /// The store does not answer, or its objects are damaged or gone.
    pub(crate) fn fetch(
        &self,
        runs: &[Range<u64>],
        take: impl FnOnce(Vec<Found>) -> Result<(), DeviceError>,
    ) -> Result<bool, DeviceError> {
        let (mut fetches, _) = self.newest.fetches_of(runs.iter().cloned());
        let each = |fetch: &Fetch| fetch.frames.clone().map(|frame| (fetch.layer, frame)).collect::<Vec<_>>();
        let mut frames: BTreeSet<(usize, usize)> = fetches.iter().flat_map(each).collect();
        let mut under_way = self.under_way.lock();
        if frames.iter().any(|frame| under_way.contains(frame)) {
            while frames.iter().any(|frame| under_way.contains(frame)) {
                self.arrived.wait(&mut under_way);
            }
            return Ok(false);
        }
        // Of many, each is one that somebody knew of.
        if self.around > 0 && fetches.len() == 1 {
            let is_free = |frame| !under_way.contains(&frame) && !frames.contains(&frame);
            let wider = self.newest.widened(&fetches[0], self.around, is_free);
            frames.extend(each(&wider));
            fetches = vec![wider];
        }
        under_way.extend(frames.iter().copied());
        drop(under_way);
        let _claimed = Claimed(self, frames);
        let operations: Vec<Operation> = fetches.iter().map(|fetch| self.newest.request(fetch)).collect();
        let mut found = Vec::new();
        for ((fetch, operation), answer) in fetches.iter().zip(&operations).zip(self.source.get(&operations))
        {
            let opened = match answer {
                Ok(Answer::Bytes { bytes, .. }) => self.newest.open(fetch, &bytes),
                Ok(_) => Err(crate::opening::unexpected(operation)),
                Err(StoreError::Missing) => Err(ReplicaError::Pruned { name: operation.name().to_owned() }),
                Err(error) => Err(error.into()),
            };
            found.extend(opened.map_err(|error| not_fetched(&error))?);
        }
        take(found)?;
        Ok(true)
    }
}

/// Frames that are on their way, until they are here or will not be.
struct Claimed<'a>(&'a Fetching, BTreeSet<(usize, usize)>);

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.0.under_way.lock().retain(|frame| !self.1.contains(frame));
        self.0.arrived.notify_all();
    }
}

fn not_fetched(error: &ReplicaError) -> DeviceError {
    DeviceError::Remote(format!("a part of the volume cannot be fetched from its replica: {error}").into())
}
