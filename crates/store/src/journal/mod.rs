//! The journal: a ring of records, group commit, and what is known to be durable.
//!
//! Batches wait in `pending` in LSN order. A *group* is begun by sealing all of them into records and submitting these;
//! when the writes of every record not yet flushed, and the data of all their batches, have completed, one flush makes
//! the whole group durable (R7). One group is on its way at a time; whoever arrives meanwhile is in the next one.
//!
//! The group is a state machine ([`Phase`]): a lone blocking caller drives it on its own thread without a hand-over;
//! a caller that must not block starts it and polls. Exactly one thread drives at a time (`driven`). A driver that
//! blocks writes the group's last record itself, by one system call, while everything else of the group is in flight.
//!
//! Positions in the ring are *virtual*: they grow for ever, the place is the remainder by the ring's length. A record
//! is contiguous; if the rest of the lap is too short for it, the record starts the next lap and the rest counts as
//! used until the tail has passed it.
//!
//! Under the lock a record is only *cut*: its batches leave `pending`, it has its place in the ring, and is in flight
//! as far as others can see. It is copied together, summed and written without it, by one thread at a time
//! (`sealing`), because each record bears the sum of the one before. Nobody who commits waits for that. A driver that
//! blocks takes the lock twice for a group of one record: to cut it, and when the flush has ended.
//!
//! Locks: the journal's mutex is the innermost of the store (after the trees' and the space's), but for that of each
//! waiter.

mod credit;
mod encoded;
mod force;
mod ring;
mod seal;
mod sealing;
mod waiters;

use crate::limits::{
    DESTAGE_SLACK_BLOCKS, IMAGE_SIXTEENTHS, IMAGES_PER_SLACK_BLOCK, RECLAIM_IMAGE_SIXTEENTHS,
    RECORD_RING_SHARE, SEAL_SLACK_BLOCKS,
};
use credit::RingCredit;
pub(crate) use encoded::Encoded;
use encoded::Laid;
pub(crate) use force::Filling;
pub(crate) use ring::{RecordMeta, Ring};
use seal::Spare;
use sealing::Sealing;
use waiters::Waiters;

use crate::ablation::Ablation;
use crate::batch::DataSlot;
use crate::carry::Carried;
use crate::locks::{Condvar, Lock, Mutex};
use crate::primitives::{AtomicBool, AtomicU64, Ordering};
use crate::{Class, Pressure, StoreError};
use std::collections::VecDeque;
use std::sync::Arc;
use syncline_device::{Device, DeviceError, Ticket};
use syncline_format::batch::BatchBuf;
use syncline_format::record::{self, RECORD_HEADER_BYTES, record_blocks};
use syncline_format::superblock::JournalTail;
use syncline_format::{BLOCK_BYTES, BlockNo, Generation, Lsn, Sequence, VolumeId};

/// Called when a started force has ended.
pub(crate) type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Room in the ring for a batch to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Promise {
    pub(crate) blocks: u64,
    /// Images that the batch adds.
    pub(crate) images: u64,
}

/// A batch that is applied but in no record yet.
struct Pending {
    bytes: Encoded,
    data: Vec<Ticket>,
    slots: Vec<DataSlot>,
}

/// A submitted record that no flush covers yet.
struct InFlight {
    sequence: Sequence,
    last_lsn: Lsn,
    write: Ticket,
    data: Vec<Ticket>,
    /// Held until the record is durable; dropping them widens the data window again.
    _slots: Vec<DataSlot>,
}

/// Where the current group stands.
enum Phase {
    Idle,
    /// Waiting for the writes of all records up to `upto`.
    Writing {
        upto: Sequence,
        lsn: Lsn,
    },
    /// All written; the flush is next or under way.
    Flushing {
        upto: Sequence,
        lsn: Lsn,
        flush: Option<Ticket>,
    },
    /// Whoever drives puts the last record together, writes it, waits for all others and flushes, without coming back
    /// in between: for others the flush may be under way all the time.
    Alone {
        upto: Sequence,
        lsn: Lsn,
    },
}

/// What the journal's mutex guards.
pub(crate) struct State {
    ring: Ring,
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    /// Constant: a record may end anywhere between two batches, and each of them has to count as a record of its own.
    apart: bool,
    /// Batches behind this are not sealed; always the largest, but for a force without group commit.
    seal_upto: Lsn,
    /// What is promised to permits.
    promised: Promise,
    /// Live images, each with one block reserved for the batch that destages it.
    images: u64,
    /// LSN of the first pending batch.
    next_lsn: Lsn,
    in_flight: VecDeque<InFlight>,
    known_flushed: Sequence,
    durable: Lsn,
    phase: Phase,
    driven: bool,
    waiters: Waiters,
    generation: Generation,
    failed: Option<StoreError>,
    /// Memory of the record before, for the next one of its length.
    spare: Option<Spare>,
    /// Groups that were made durable, and the batches in them (for statistics).
    pub(crate) groups: u64,
    pub(crate) grouped_batches: u64,
}

impl State {
    fn promise(&mut self, promise: Promise) {
        self.promised.blocks += promise.blocks;
        self.promised.images += promise.images;
    }

    fn take_back(&mut self, promise: Promise) {
        self.promised.blocks -= promise.blocks;
        self.promised.images -= promise.images;
    }

    /// Ring blocks that the pending batches take, but for what sealing adds.
    fn pending_blocks(&self) -> u64 {
        if self.apart {
            return self.pending.iter().map(|pending| record_blocks(pending.bytes.len())).sum();
        }
        self.pending_bytes.div_ceil(BLOCK_BYTES) as u64
    }
}

pub(crate) struct Journal {
    // Constant.
    device: Arc<dyn Device>,
    volume: VolumeId,
    start: BlockNo,
    ring_blocks: u64,
    epoch: u64,
    stream_bytes: usize,
    ablation: Ablation,
    state: Mutex<State>,
    /// A record is cut whose sum is not known yet, or that is not submitted yet. Begins under `state`.
    sealing: Sealing,
    /// Of `State::promised`, what nobody has yet.
    credit: RingCredit,
    /// Signalled when a group ends or the journal fails; for whoever waits for something else than an LSN.
    progress: Condvar,
    /// Signalled when `sealing` ends.
    sealed: Condvar,
    /// Copies of what `state` holds, for a look without the lock. Written under it.
    durable: AtomicU64,
    last: AtomicU64,
    has_failed: AtomicBool,
}

/// What a journal is created with.
pub(crate) struct JournalStart {
    pub(crate) volume: VolumeId,
    pub(crate) start: BlockNo,
    pub(crate) ring_blocks: u64,
    /// Of them the beginning that was written once; the rest is a hole of the device.
    pub(crate) written_blocks: u64,
    pub(crate) epoch: u64,
    /// LSN that the last checkpoint holds.
    pub(crate) lsn: Lsn,
    pub(crate) tail: JournalTail,
    /// Records that are in the ring already, from the tail on, and live images.
    pub(crate) carried: Vec<Carried>,
    pub(crate) images: u64,
    pub(crate) generation: Generation,
    pub(crate) stream_bytes: usize,
    pub(crate) ablation: Ablation,
}

/// The tail of an epoch without records.
pub(crate) fn first_tail(epoch: u64) -> JournalTail {
    JournalTail { block: 0, sequence: Sequence(1), predecessor: epoch }
}

/// Largest record of a ring, in blocks.
pub(crate) fn record_blocks_max(ring_blocks: u64) -> u64 {
    (ring_blocks / RECORD_RING_SHARE).min((record::RECORD_BYTES_MAX / BLOCK_BYTES) as u64)
}

impl Journal {
    /// The journal of a new epoch; its superblock is (or is about to be) durable.
    pub(crate) fn new(device: Arc<dyn Device>, start: JournalStart) -> Journal {
        let mut ring = Ring::new(start.ring_blocks, start.written_blocks, start.tail);
        start.carried.iter().for_each(|record| ring.resume(record));
        Journal {
            device,
            volume: start.volume,
            start: start.start,
            ring_blocks: start.ring_blocks,
            epoch: start.epoch,
            stream_bytes: start
                .stream_bytes
                .min(record_blocks_max(start.ring_blocks) as usize * BLOCK_BYTES / 2),
            ablation: start.ablation,
            sealing: Sealing::new(ring.predecessor()),
            credit: RingCredit::new(),
            state: Mutex::new(
                Lock::Journal,
                State {
                    ring,
                    pending: VecDeque::new(),
                    pending_bytes: 0,
                    apart: start.ablation.ordered_records() || start.ablation.no_group_commit(),
                    seal_upto: Lsn(u64::MAX),
                    promised: Promise::default(),
                    images: start.images,
                    next_lsn: start.lsn.next(),
                    in_flight: VecDeque::new(),
                    known_flushed: Sequence(start.tail.sequence.0 - 1 + start.carried.len() as u64),
                    durable: start.lsn,
                    phase: Phase::Idle,
                    driven: false,
                    waiters: Waiters::default(),
                    generation: start.generation,
                    failed: None,
                    spare: None,
                    groups: 0,
                    grouped_batches: 0,
                },
            ),
            progress: Condvar::new(),
            sealed: Condvar::new(),
            durable: AtomicU64::new(start.lsn.0),
            last: AtomicU64::new(start.lsn.0),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Largest encoded batch.
    pub(crate) fn batch_bytes_max(&self) -> usize {
        record_blocks_max(self.ring_blocks) as usize * BLOCK_BYTES - RECORD_HEADER_BYTES
    }

    /// What to promise for a batch: its own record in the worst case, and one block per image for the batch that
    /// destages it.
    pub(crate) fn promise(&self, bytes: usize, images: usize) -> Promise {
        Promise { blocks: record_blocks(bytes) + images as u64, images: images as u64 }
    }

    /// Promises room for a batch (R17). Destaging may use what is reserved for it.
    pub(crate) fn admit(&self, promise: Promise, class: Class) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        self.check_room(&mut state, promise, class)?;
        state.promise(promise);
        Ok(())
    }

    /// Whether room for a batch of class [`Class::Normal`] would be promised now.
    pub(crate) fn has_room(&self, promise: Promise) -> bool {
        self.check_room(&mut self.state.lock(), promise, Class::Normal).is_ok()
    }

    fn check_room(&self, state: &mut State, promise: Promise, class: Class) -> Result<(), StoreError> {
        match self.fits(state, promise, class) {
            Err(StoreError::Pressure(_)) if self.recall(state) => self.fits(state, promise, class),
            fits => fits,
        }
    }

    fn fits(&self, state: &State, promise: Promise, class: Class) -> Result<(), StoreError> {
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        let share = if class == Class::Normal { IMAGE_SIXTEENTHS } else { RECLAIM_IMAGE_SIXTEENTHS };
        let images = state.images + state.promised.images + promise.images;
        if promise.images > 0 && images > self.ring_blocks * share / 16 {
            return Err(StoreError::Pressure(Pressure::Journal));
        }
        let reserve = match class {
            Class::Destage => 0,
            _ => state.images + images / IMAGES_PER_SLACK_BLOCK + DESTAGE_SLACK_BLOCKS,
        };
        let wrap = record_blocks_max(self.ring_blocks);
        let promised = state.promised.blocks;
        let taken = state.ring.used() + state.pending_blocks() + promised;
        let slack = self.seal_slack(state.pending_blocks() + promised + promise.blocks + reserve);
        if taken + promise.blocks + reserve + wrap + slack > self.ring_blocks {
            return Err(StoreError::Pressure(Pressure::Journal));
        }
        Ok(())
    }

    /// What sealing so many blocks adds at most: two records that follow one another hold more than the most that one
    /// may hold, so this many blocks make no more than twice as many records, and one.
    fn seal_slack(&self, blocks: u64) -> u64 {
        let records = 2 * blocks * BLOCK_BYTES as u64 / self.record_bytes_target() as u64 + 1;
        records.max(SEAL_SLACK_BLOCKS)
    }

    /// Takes back what `admit` promised.
    pub(crate) fn release(&self, promise: Promise) {
        self.state.lock().take_back(promise);
    }

    /// Lays a batch out as a record, if it is one by itself. To be called without locks.
    pub(crate) fn lay_out(&self, batch: &BatchBuf) -> Option<Encoded> {
        (batch.len() > self.record_bytes_target()).then(|| Encoded::Laid(Laid::new(batch)))
    }

    /// Appends an applied batch. Called under the trees' lock, so batches arrive in the order in which they were
    /// applied. The second result says that the buffer has become long: then [`Journal::stream`] is to be called,
    /// without locks. `promised` is the batch's part of what `admit` promised: it turns into the batch's own blocks
    /// in one step, or somebody else would be admitted to the same room in between.
    pub(crate) fn append(
        &self,
        bytes: Encoded,
        data: Vec<Ticket>,
        slots: Vec<DataSlot>,
        images: u64,
        promised: Promise,
    ) -> (Lsn, bool) {
        let mut state = self.state.lock();
        state.take_back(promised);
        state.images = images;
        state.pending_bytes += bytes.len();
        state.pending.push_back(Pending { bytes, data, slots });
        let lsn = state.last_pending();
        self.last.store(lsn.0, Ordering::Release);
        self.renew(&mut state, promised);
        (lsn, state.pending_bytes > self.stream_bytes)
    }

    /// Writes a long buffer out without a flush. Does nothing while somebody else seals.
    pub(crate) fn stream(&self) {
        let mut state = self.state.lock();
        if state.pending_bytes > self.stream_bytes && state.failed.is_none() && !self.sealing.is_under_way() {
            self.seal_pending(&mut state);
        }
    }

    /// Waits for the end of the group that somebody drives right now, if any: what is submitted next to the device
    /// would be in its way. Not for the one after it, so that everybody gets on. Whether there was one.
    pub(crate) fn give_way(&self) -> bool {
        let mut state = self.state.lock();
        let (groups, is_driven) = (state.groups, state.driven);
        while state.driven && state.groups == groups && state.failed.is_none() {
            self.progress.wait(&mut state);
        }
        is_driven
    }

    /// First block of the record that holds a batch which is durable and whose record the ring keeps.
    pub(crate) fn block_of(&self, lsn: Lsn) -> BlockNo {
        self.start.plus(self.tail_for(lsn).0.block)
    }

    /// LSN of the newest batch.
    pub(crate) fn last_lsn(&self) -> Lsn {
        Lsn(self.last.load(Ordering::Acquire))
    }

    pub(crate) fn durable_lsn(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        let state = self.state.lock();
        (state.ring.used() + state.pending_blocks()) * BLOCK_BYTES as u64
    }

    /// Of these bytes, those from the record that holds `lsn` on.
    pub(crate) fn used_bytes_from(&self, lsn: Lsn) -> u64 {
        let state = self.state.lock();
        (state.ring.used_from(lsn) + state.pending_blocks()) * BLOCK_BYTES as u64
    }

    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring_blocks * BLOCK_BYTES as u64
    }

    pub(crate) fn group_counters(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.groups, state.grouped_batches)
    }

    /// The tail to store for a checkpoint whose oldest needed LSN is `lsn` and whose force has succeeded: the record
    /// that holds it, or the place of the next record if none does.
    pub(crate) fn tail_for(&self, lsn: Lsn) -> (JournalTail, RecordMeta) {
        let mut state = self.state.lock();
        self.wait_for_sealing(&mut state);
        state.ring.tail_for(lsn)
    }

    /// A superblock with this tail is durable: the ring below it may be reused (R3).
    pub(crate) fn checkpointed(&self, tail: &RecordMeta, generation: Generation) {
        let mut state = self.state.lock();
        state.ring.release_to(tail);
        state.generation = generation;
    }

    /// Latches the journal (C8): every waiter, now and later, is told.
    pub(crate) fn fail(&self, error: StoreError) {
        let told = {
            let mut state = self.state.lock();
            self.latch(&mut state, error);
            let state = &mut *state;
            state.waiters.take_answered(state.durable, state.failed.as_ref())
        };
        self.progress.notify_all();
        told.tell();
    }

    /// The first error stays.
    fn latch(&self, state: &mut State, error: StoreError) {
        state.failed.get_or_insert(error);
        self.has_failed.store(true, Ordering::Release);
    }

    pub(crate) fn failure(&self) -> Option<StoreError> {
        match self.has_failed.load(Ordering::Acquire) {
            true => self.state.lock().failed.clone(),
            false => None,
        }
    }
}

/// The latched form of a device's error.
pub(crate) fn latched(cause: DeviceError) -> StoreError {
    match cause {
        DeviceError::ShutDown => StoreError::ShutDown,
        cause => StoreError::Failed { cause },
    }
}
