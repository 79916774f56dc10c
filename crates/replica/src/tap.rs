//! [`TapDevice`]: the layer between engine and device that sees cuts.
//!
//! A write is noted with its ticket; its buffers are shared, nothing is copied. A flush, when it is issued, marks what
//! has completed by then. When it has ended well, everything that it or an earlier one has marked is a cut. Nobody is
//! called when a flush ends: whoever comes next looks at its ticket. So the tap adds to a sync the time of a push.
//!
//! Invariants:
//! - writes that overlap are never in flight together (the device's contract), so a later one is noted behind the
//!   earlier one's completion, and marked by the same flush or a later one: the order of groups is that of content;
//! - what is not in a cut, and not on its way into one, is in `dirty` or in `draining`;
//! - a write or a flush that failed ends it: what the volume may have lost must not appear (C8).
//!
//! `held` bounds the memory: above it the buffers are dropped and only the blocks' numbers are kept (`Mode::Numbers`).
//! Those are read from the device later, and laid under cuts that ended after the reading.
//!
//! Who has asked for it is answered later: a flush then ends when it counts in the replica (C14). A tap that was told
//! that another machine has taken over refuses writes and flushes from then on, and with them the volume's syncs (C8).
//!
//! A replica that is late may hold up flushes for a moment each, or stop the volume, if that was asked for.
//!
//! Lock: one mutex, innermost; the device below is never called under it.

mod device;

use crate::answers::Answers;
use crate::runs::RunSet;
use parking_lot::{Condvar, Mutex};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use syncline_device::{Buffer, Device, DeviceError, Ticket};
use syncline_format::BlockNo;

/// What happened to blocks.
#[derive(Clone)]
pub enum Change {
    Written(Vec<Arc<Buffer>>),
    /// So many blocks.
    Discarded(u64),
}

impl Change {
    fn blocks(&self) -> u64 {
        match self {
            Change::Written(buffers) => buffers.iter().map(|buffer| buffer.blocks()).sum(),
            Change::Discarded(blocks) => *blocks,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Change::Written(buffers) => buffers.iter().map(|buffer| buffer.len()).sum(),
            Change::Discarded(_) => 0,
        }
    }
}

/// Changes between two flushes, in their order.
pub struct Cut {
    /// Number of the flush that ended it, from 1 on.
    pub flush: u64,
    pub changes: Vec<(BlockNo, Change)>,
}

impl Cut {
    fn bytes(&self) -> usize {
        self.changes.iter().map(|(_, change)| change.bytes()).sum()
    }
}

struct Entry {
    at: BlockNo,
    change: Change,
    ticket: Ticket,
}

impl Entry {
    fn run(&self) -> Range<u64> {
        self.at.0..self.at.0 + self.change.blocks()
    }
}

/// What becomes of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// They are kept.
    Content,
    /// Only their places are.
    Numbers,
    /// Nothing is.
    Off,
}

struct State {
    mode: Mode,
    /// Noted and not marked, in order of submission.
    open: Vec<Entry>,
    /// Marked by a flush that has not been seen to end, by number.
    marked: Vec<(u64, Vec<Entry>)>,
    /// Flushes that have not been seen to end.
    flushing: Vec<(u64, Ticket)>,
    /// Flushes issued.
    flushes: u64,
    /// For the uploader.
    queue: Vec<Cut>,
    /// Bytes of contents in it.
    queued: usize,
    /// Bytes that `open`, `marked` and `queue` keep alive.
    held: usize,
    /// Blocks to be read from the device.
    dirty: RunSet,
    /// Writes without content that were in flight when it was last looked at.
    draining: Vec<(Range<u64>, Ticket)>,
    failed: bool,
    answers: Answers,
    /// What writes and flushes are told instead of being carried out.
    refusal: Option<DeviceError>,
    /// What was written before that is shipped all the same.
    ships_on: bool,
}

/// Longest time that a flush is held up.
pub const SLOW_WAIT: Duration = Duration::from_millis(20);

/// When a flush is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acknowledge {
    /// When it has ended on the device.
    #[default]
    Local,
    /// When everything that it covers counts in the replica as well.
    Remote,
}

type Waker = Box<dyn Fn() + Send + Sync>;

/// How the tap stands, for the uploader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapState {
    /// Bytes of the cuts that wait.
    pub queued: usize,
    pub cuts: usize,
    /// Flush of the newest of them; 0 for none.
    pub newest: u64,
    /// Contents are kept, not only places.
    pub keeps: bool,
    /// Blocks to be read from the device.
    pub dirty: u64,
    /// Noted, and covered by no flush that has ended.
    pub unflushed: bool,
    /// A write or a flush of the volume has failed.
    pub failed: bool,
}

/// A device that passes everything on, and notes what is written.
pub struct TapDevice {
    below: Arc<dyn Device>,
    held_max: usize,
    acknowledge: Acknowledge,
    state: Mutex<State>,
    /// There is a refusal.
    refuses: AtomicBool,
    /// Flushes are held up for a while.
    slow: AtomicBool,
    /// Somebody who waits has been answered.
    answered: Condvar,
    /// Called when a flush has ended that somebody is answered later for.
    waker: OnceLock<Waker>,
}

impl TapDevice {
    /// A tap that keeps at most `held_max` bytes of content. The blocks in `unknown` may not be in the replica as they
    /// are.
    pub fn new(below: Arc<dyn Device>, held_max: usize, unknown: RunSet) -> Arc<TapDevice> {
        TapDevice::acknowledging(below, held_max, unknown, Acknowledge::Local)
    }

    /// The same, with flushes that are answered when `acknowledge` says.
    pub fn acknowledging(
        below: Arc<dyn Device>,
        held_max: usize,
        unknown: RunSet,
        acknowledge: Acknowledge,
    ) -> Arc<TapDevice> {
        let state = State {
            mode: if unknown.is_empty() { Mode::Content } else { Mode::Numbers },
            open: Vec::new(),
            marked: Vec::new(),
            flushing: Vec::new(),
            flushes: 0,
            queue: Vec::new(),
            queued: 0,
            held: 0,
            dirty: unknown,
            draining: Vec::new(),
            failed: false,
            answers: Answers::default(),
            refusal: None,
            ships_on: false,
        };
        Arc::new(TapDevice {
            below,
            held_max,
            acknowledge,
            state: Mutex::new(state),
            refuses: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            answered: Condvar::new(),
            waker: OnceLock::new(),
        })
    }

    /// Whom to call, from any thread, when there is something to ship without waiting. Once.
    pub fn wake_by(&self, waker: impl Fn() + Send + Sync + 'static) {
        let _ = self.waker.set(Box::new(waker));
    }

    /// The device below.
    pub fn below(&self) -> &Arc<dyn Device> {
        &self.below
    }

    pub fn state(&self) -> TapState {
        let mut state = self.state.lock();
        state.harvest();
        TapState {
            queued: state.queued,
            cuts: state.queue.len(),
            newest: state.queue.last().map_or(0, |cut| cut.flush),
            keeps: state.mode == Mode::Content,
            dirty: state.dirty.blocks()
                + state.draining.iter().map(|(run, _)| run.end - run.start).sum::<u64>(),
            unflushed: !state.open.is_empty() || !state.marked.is_empty(),
            failed: state.failed,
        }
    }

    /// Takes cuts from the oldest on, until they hold `bytes`; at least one, if there is one.
    pub fn take_cuts(&self, bytes: usize) -> Vec<Cut> {
        let mut state = self.state.lock();
        state.harvest();
        let (mut taken, mut count) = (0, 0);
        for cut in &state.queue {
            if count > 0 && taken >= bytes {
                break;
            }
            taken += cut.bytes();
            count += 1;
        }
        let rest = state.queue.split_off(count);
        let cuts = std::mem::replace(&mut state.queue, rest);
        state.held -= taken;
        state.queued -= taken;
        cuts
    }

    /// Takes up to `blocks` blocks that have to be read from the device.
    pub fn take_dirty(&self, blocks: u64) -> Vec<Range<u64>> {
        let mut state = self.state.lock();
        state.harvest();
        state.dirty.take(blocks)
    }

    /// Keeps contents from now on. What was written before is dirty, once it has completed.
    pub fn keep(&self) {
        let mut state = self.state.lock();
        if state.mode == Mode::Numbers {
            state.mode = Mode::Content;
        }
    }

    /// Whether every write that was noted without its content has completed, so that reading finds it.
    pub fn is_drained(&self) -> bool {
        let mut state = self.state.lock();
        state.harvest();
        state.draining.is_empty()
    }

    /// Flushes issued so far.
    pub fn flushes(&self) -> u64 {
        self.state.lock().flushes
    }

    /// Notes nothing more. Whoever is answered later is told `why`, and is refused from now on.
    pub fn turn_off(&self, why: &DeviceError) {
        match self.acknowledge {
            Acknowledge::Local => self.state.lock().end(),
            Acknowledge::Remote => self.refuse(why.clone()),
        }
    }

    /// Refuses writes and flushes from now on.
    pub fn refuse(&self, why: DeviceError) {
        let mut state = self.state.lock();
        state.end();
        state.answers.fail(&why);
        state.refusal.get_or_insert(why);
        self.refuses.store(true, Ordering::Release);
        self.answered.notify_all();
    }

    /// Refuses writes and flushes from now on; what flushes have covered by now is shipped all the same.
    pub fn stop(&self, why: DeviceError) {
        let mut state = self.state.lock();
        let dropped: usize = state.open.drain(..).map(|entry| entry.change.bytes()).sum();
        state.held -= dropped;
        state.refusal.get_or_insert(why);
        state.ships_on = true;
        self.refuses.store(true, Ordering::Release);
    }

    /// Whether each flush is held up from now on, for [`SLOW_WAIT`] at most, so that less is written.
    pub fn slow_down(&self, slow: bool) {
        if self.slow.swap(slow, Ordering::Relaxed) && !slow {
            self.answered.notify_all();
        }
    }

    fn hold_up(&self) {
        if self.slow.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
            let is_slow = |_: &mut State| self.slow.load(Ordering::Relaxed);
            self.answered.wait_while_for(&mut state, is_slow, SLOW_WAIT);
        }
    }

    /// Everything up to this flush counts.
    pub fn count(&self, flush: u64) {
        if self.acknowledge == Acknowledge::Remote {
            self.state.lock().answers.count(flush);
            self.answered.notify_all();
        }
    }

    /// Flushes for the uploader, who waits for the device alone.
    ///
    /// # Errors
    /// The flush failed, or the tap refuses it.
    pub fn flush_below(&self) -> Result<(), DeviceError> {
        if !self.state.lock().ships_on {
            self.refusal()?;
        }
        let flush = self.mark();
        let result = self.below.flush();
        self.issued(flush, &Ticket::completed(result.clone()));
        result
    }

    /// # Errors
    /// What everybody is told since [`TapDevice::refuse`].
    fn refusal(&self) -> Result<(), DeviceError> {
        if !self.refuses.load(Ordering::Acquire) {
            return Ok(());
        }
        self.state.lock().refusal.clone().map_or(Ok(()), Err)
    }

    /// Flushes have ended, maybe: whoever is waited for is told, and the uploader.
    fn tell(&self) {
        let mut state = self.state.lock();
        state.harvest();
        state.answers.tell();
        drop(state);
        self.answered.notify_all();
        if let Some(waker) = self.waker.get() {
            waker();
        }
    }

    fn note(&self, at: BlockNo, change: Change, ticket: Ticket) {
        let mut state = self.state.lock();
        let entry = Entry { at, change, ticket };
        match state.mode {
            Mode::Content => {
                state.held += entry.change.bytes();
                state.open.push(entry);
                if state.held > self.held_max {
                    state.drop_contents();
                }
            }
            Mode::Numbers => state.draining.push((entry.run(), entry.ticket)),
            Mode::Off => {}
        }
    }

    /// Marks what has completed; the number of the flush.
    fn mark(&self) -> u64 {
        let mut state = self.state.lock();
        state.harvest();
        state.flushes += 1;
        let flush = state.flushes;
        if state.mode == Mode::Content {
            let open = std::mem::take(&mut state.open);
            let (done, rest): (Vec<Entry>, Vec<Entry>) =
                open.into_iter().partition(|entry| entry.ticket.is_complete());
            state.open = rest;
            if !done.is_empty() {
                state.marked.push((flush, done));
            }
        }
        flush
    }

    /// The ticket that ends when this flush counts.
    fn answer_later(&self, flush: u64, below: &Ticket) -> Ticket {
        let mut state = self.state.lock();
        if state.mode == Mode::Off {
            let why = || DeviceError::Fenced("a write or a flush of the volume failed earlier".into());
            return Ticket::completed(Err(state.refusal.clone().unwrap_or_else(why)));
        }
        state.answers.wait_for(flush, below)
    }

    fn issued(&self, flush: u64, ticket: &Ticket) {
        let mut state = self.state.lock();
        if state.mode != Mode::Off {
            state.flushing.push((flush, ticket.clone()));
            state.harvest();
        }
    }
}

impl State {
    /// Looks at what has ended since the last look.
    fn harvest(&mut self) {
        if self.mode == Mode::Off {
            return;
        }
        self.drain();
        let mut upto = None;
        let mut failed = false;
        self.flushing.retain(|(flush, ticket)| match ticket.result() {
            None => true,
            Some(Ok(())) => {
                upto = upto.max(Some(*flush));
                false
            }
            Some(Err(_)) => {
                failed = true;
                false
            }
        });
        if let Some(upto) = upto {
            self.cut(upto);
        }
        if failed || self.failed {
            self.failed = true;
            self.end();
        }
    }

    /// What flushes up to this one have marked is a cut: what had completed when an earlier one was issued had before
    /// the later one's.
    fn cut(&mut self, upto: u64) {
        let count = self.marked.iter().take_while(|(flush, _)| *flush <= upto).count();
        let entries = self.marked.drain(..count).flat_map(|(_, entries)| entries);
        let entries: Vec<Entry> = entries.collect();
        if entries.iter().any(|entry| !matches!(entry.ticket.result(), Some(Ok(())))) {
            self.failed = true;
            return;
        }
        // One that covers nothing is a cut as well: whoever has read blocks waits for a flush behind the reading.
        if self.mode == Mode::Content {
            let changes = entries.into_iter().map(|entry| (entry.at, entry.change)).collect();
            let cut = Cut { flush: upto, changes };
            self.queued += cut.bytes();
            self.queue.push(cut);
        }
    }

    /// Writes without content that have completed are dirty.
    fn drain(&mut self) {
        let State { draining, dirty, failed, .. } = self;
        draining.retain(|(run, ticket)| match ticket.result() {
            None => true,
            Some(result) => {
                *failed |= result.is_err();
                dirty.insert(run.clone());
                false
            }
        });
    }

    /// The memory is full: only numbers are kept.
    fn drop_contents(&mut self) {
        self.mode = Mode::Numbers;
        for cut in std::mem::take(&mut self.queue) {
            for (at, change) in cut.changes {
                self.dirty.insert(at.0..at.0 + change.blocks());
            }
        }
        let marked = std::mem::take(&mut self.marked).into_iter().flat_map(|(_, entries)| entries);
        let open = std::mem::take(&mut self.open);
        self.draining.extend(marked.chain(open).map(|entry| (entry.run(), entry.ticket)));
        self.held = 0;
        self.queued = 0;
        self.drain();
    }

    /// What ended well stays in the queue; everything else is dropped.
    fn end(&mut self) {
        self.mode = Mode::Off;
        self.open.clear();
        self.marked.clear();
        self.flushing.clear();
        self.draining.clear();
        self.dirty = RunSet::default();
    }
}
