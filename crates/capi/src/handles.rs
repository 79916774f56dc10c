//! What a caller's pointers stand for.
//!
//! A handle is a number in the shape of a pointer: kind, epoch of the process, generation, and the index of a slot. It
//! is never followed. A slot lives for ever and is used again under another generation, so that a handle that was
//! closed, one of another kind, and any other number are told from a good one and refused (EBADF).
//!
//! A call holds its slot for reading, one that changes the object for writing. Closing takes the slot for writing: it
//! waits for the calls that are under way, and those that come later find another generation. Locks are the system's
//! own (futexes without a table), since a forked child may have to take one.
//!
//! A forked child has a table of its own, of another epoch. What it has inherited is refused before any lock is taken,
//! because another thread of the parent may have held that at the fork.

use crate::error::{Failure, Result};
use crate::opened::OpenVolume;
use crate::ticket::Started;
use crate::transaction::Staged;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use syncline::{File, PerProcess, ReadDir};

const _: () = assert!(size_of::<usize>() == 8, "a handle has 64 bits");

const INDEX_BITS: u32 = 26;
const GENERATION_BITS: u32 = 26;
const EPOCH_BITS: u32 = 8;
/// Of a process: as many handles at once.
const SLOTS_MAX: u32 = 1 << INDEX_BITS;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;
/// Slots of the first chunk; each further one has twice as many as the one before.
const FIRST_CHUNK: u32 = 64;
const CHUNKS: usize = (INDEX_BITS - FIRST_CHUNK.ilog2() + 1) as usize;

/// What a slot holds.
pub(crate) enum Object {
    Volume,
    File(File),
    Directory(ReadDir),
    Transaction(Box<Staged>),
    Ticket(Started),
}

/// A kind of object that callers have handles of.
pub(crate) trait Kind: Sized {
    /// Nonzero, four bits.
    const NUMBER: u64;
    const NAME: &'static str;
    fn of(object: &Object) -> Option<&Self>;
    fn of_mut(object: &mut Object) -> Option<&mut Self>;
    fn from_object(object: Object) -> Option<Self>;
}

/// The kind of a volume, of which its entry knows everything.
pub(crate) struct WholeVolume;

impl Kind for WholeVolume {
    const NUMBER: u64 = 1;
    const NAME: &'static str = "volume";

    fn of(object: &Object) -> Option<&WholeVolume> {
        matches!(object, Object::Volume).then_some(&WholeVolume)
    }

    fn of_mut(_: &mut Object) -> Option<&mut WholeVolume> {
        None
    }

    fn from_object(object: Object) -> Option<WholeVolume> {
        matches!(object, Object::Volume).then_some(WholeVolume)
    }
}

macro_rules! kind {
    ($type:ty, $variant:ident, $number:literal, $name:literal) => {
        impl Kind for $type {
            const NUMBER: u64 = $number;
            const NAME: &'static str = $name;

            fn of(object: &Object) -> Option<&$type> {
                if let Object::$variant(it) = object { Some(it) } else { None }
            }

            fn of_mut(object: &mut Object) -> Option<&mut $type> {
                if let Object::$variant(it) = object { Some(it) } else { None }
            }

            fn from_object(object: Object) -> Option<$type> {
                if let Object::$variant(it) = object { Some(it) } else { None }
            }
        }
    };
}

kind!(File, File, 2, "file");
kind!(ReadDir, Directory, 3, "directory");
kind!(Box<Staged>, Transaction, 4, "transaction");
kind!(Started, Ticket, 5, "ticket");

struct Entry {
    volume: Arc<OpenVolume>,
    object: Object,
}

struct Content {
    generation: u32,
    entry: Option<Entry>,
}

/// Of a cache line of its own, so that threads with a file each do not meet.
#[repr(align(64))]
struct Slot {
    /// The volume's number, to find what is to be closed with it without waiting for others; 0 for none.
    owner: AtomicU64,
    content: RwLock<Content>,
}

impl Default for Slot {
    fn default() -> Slot {
        let content = RwLock::new(Content { generation: 0, entry: None });
        Slot { owner: AtomicU64::new(0), content }
    }
}

#[derive(Default)]
struct Vacant {
    /// Given back; the last one first, since it is in the processor's cache.
    indices: Vec<u32>,
    /// So many were ever used.
    used: u32,
}

struct Table {
    epoch: u64,
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    vacant: Mutex<Vacant>,
}

static EPOCHS: AtomicU32 = AtomicU32::new(0);
static TABLE: PerProcess<Table> = PerProcess::new(Table::new);

/// A handle, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Token {
    index: u32,
    generation: u32,
    epoch: u64,
    kind: u64,
}

impl Token {
    fn to_bits(self) -> u64 {
        let kind = self.kind << EPOCH_BITS | self.epoch;
        (kind << GENERATION_BITS | u64::from(self.generation)) << INDEX_BITS | u64::from(self.index)
    }

    fn from_bits(bits: u64) -> Token {
        let above = bits >> INDEX_BITS;
        Token {
            index: bits as u32 & (SLOTS_MAX - 1),
            generation: above as u32 & GENERATION_MASK,
            epoch: above >> GENERATION_BITS & ((1 << EPOCH_BITS) - 1),
            kind: above >> (GENERATION_BITS + EPOCH_BITS),
        }
    }
}

/// Chunk, and index within it.
fn place(index: u32) -> (usize, usize) {
    let shifted = index + FIRST_CHUNK;
    let chunk = shifted.ilog2() - FIRST_CHUNK.ilog2();
    (chunk as usize, (shifted - (FIRST_CHUNK << chunk)) as usize)
}

impl Table {
    fn new() -> Table {
        let epoch = u64::from(EPOCHS.fetch_add(1, Ordering::Relaxed)) & ((1 << EPOCH_BITS) - 1);
        Table { epoch, chunks: [const { OnceLock::new() }; CHUNKS], vacant: Mutex::default() }
    }

    /// The slot of an index that was used.
    fn slot(&self, index: u32) -> Option<&Slot> {
        let (chunk, within) = place(index);
        self.chunks.get(chunk)?.get()?.get(within)
    }

    fn take_index(&self) -> Result<u32> {
        let mut vacant = self.vacant.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = vacant.indices.pop() {
            return Ok(index);
        }
        let index = vacant.used;
        if index == SLOTS_MAX {
            return Err(Failure::new(libc::EMFILE, "too many handles are open"));
        }
        let (chunk, _) = place(index);
        self.chunks[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| Slot::default()).collect());
        vacant.used += 1;
        Ok(index)
    }

    fn used(&self) -> u32 {
        self.vacant.lock().unwrap_or_else(PoisonError::into_inner).used
    }

    /// Empties a slot that was locked for writing.
    fn vacate(&self, index: u32, mut content: std::sync::RwLockWriteGuard<'_, Content>) -> Option<Entry> {
        let entry = content.entry.take();
        content.generation = (content.generation + 1) & GENERATION_MASK;
        if let Some(slot) = self.slot(index) {
            slot.owner.store(0, Ordering::Release);
        }
        drop(content);
        self.vacant.lock().unwrap_or_else(PoisonError::into_inner).indices.push(index);
        entry
    }
}

/// The slot that a handle of this kind names, whatever it holds by now.
fn find<K: Kind, P>(pointer: *const P) -> Result<(&'static Table, &'static Slot, Token)> {
    let token = Token::from_bits(pointer.addr() as u64);
    if pointer.is_null() {
        return Err(Failure::fault(K::NAME));
    }
    if token.kind != K::NUMBER {
        return Err(not_open::<K>());
    }
    let table = TABLE.get();
    if token.epoch != table.epoch {
        // The facade's words, and its errno.
        return Err(std::io::Error::from(syncline::Error::Forked(syncline::Forked)).into());
    }
    let slot = table.slot(token.index).ok_or_else(not_open::<K>)?;
    Ok((table, slot, token))
}

#[cold]
fn not_open<K: Kind>() -> Failure {
    Failure::new(libc::EBADF, format!("this is no open {}: it was closed, or never was one", K::NAME))
}

impl Content {
    fn entry(&self, token: Token) -> Option<&Entry> {
        self.entry.as_ref().filter(|_| self.generation == token.generation)
    }
}

fn read<K: Kind>(slot: &'static Slot, token: Token) -> Result<RwLockReadGuard<'static, Content>> {
    let content = slot.content.read().unwrap_or_else(PoisonError::into_inner);
    match content.entry(token) {
        Some(_) => Ok(content),
        None => Err(not_open::<K>()),
    }
}

/// Makes a handle of an object of a volume.
pub(crate) fn insert<K: Kind, P>(volume: &Arc<OpenVolume>, object: Object) -> Result<*mut P> {
    let table = TABLE.get();
    let index = table.take_index()?;
    let slot = table.slot(index).expect("an index that was taken has a slot");
    slot.owner.store(volume.number(), Ordering::Release);
    let mut content = slot.content.write().unwrap_or_else(PoisonError::into_inner);
    content.entry = Some(Entry { volume: volume.clone(), object });
    let token = Token { index, generation: content.generation, epoch: table.epoch, kind: K::NUMBER };
    Ok(std::ptr::without_provenance_mut(token.to_bits() as usize))
}

/// Does something with an object, at the same time as other threads. A panic stops its volume.
pub(crate) fn with<K: Kind, P, T>(
    pointer: *const P,
    act: impl FnOnce(&Arc<OpenVolume>, &K) -> Result<T>,
) -> Result<T> {
    let (_, slot, token) = find::<K, P>(pointer)?;
    let content = read::<K>(slot, token)?;
    let entry = content.entry(token).ok_or_else(not_open::<K>)?;
    let object = K::of(&entry.object).ok_or_else(not_open::<K>)?;
    entry.volume.guard(|| act(&entry.volume, object))
}

/// Does something with an object, alone.
pub(crate) fn with_mut<K: Kind, P, T>(
    pointer: *const P,
    act: impl FnOnce(&Arc<OpenVolume>, &mut K) -> Result<T>,
) -> Result<T> {
    let (_, slot, token) = find::<K, P>(pointer)?;
    let mut content = slot.content.write().unwrap_or_else(PoisonError::into_inner);
    if content.entry(token).is_none() {
        return Err(not_open::<K>());
    }
    let Entry { volume, object } = content.entry.as_mut().ok_or_else(not_open::<K>)?;
    let object = K::of_mut(object).ok_or_else(not_open::<K>)?;
    volume.guard(|| act(volume, object))
}

/// Ends a volume's handle, when the calls on it that are under way have ended. The rest is done without its slot, so
/// that a callback that uses the handle meanwhile is refused and does not wait.
pub(crate) fn take_volume<P>(
    pointer: *const P,
    check: impl FnOnce(&OpenVolume) -> Result<()>,
) -> Result<Arc<OpenVolume>> {
    let (table, slot, token) = find::<WholeVolume, P>(pointer)?;
    let content = slot.content.write().unwrap_or_else(PoisonError::into_inner);
    let entry = content.entry(token).ok_or_else(not_open::<WholeVolume>)?;
    check(&entry.volume)?;
    let entry = table.vacate(token.index, content).ok_or_else(not_open::<WholeVolume>)?;
    Ok(entry.volume)
}

/// Ends any other handle, when the calls on it that are under way have ended, and does with the object what is left to
/// do. A volume that is being closed waits for that.
pub(crate) fn end<K: Kind, P, T>(
    pointer: *const P,
    act: impl FnOnce(&Arc<OpenVolume>, K) -> Result<T>,
) -> Result<T> {
    let (table, slot, token) = find::<K, P>(pointer)?;
    let mut content = slot.content.write().unwrap_or_else(PoisonError::into_inner);
    if content.entry(token).is_none() {
        return Err(not_open::<K>());
    }
    let Entry { volume, object } = content.entry.take().ok_or_else(not_open::<K>)?;
    let result = K::from_object(object).ok_or_else(not_open::<K>);
    let result = result.and_then(|object| volume.guard(|| act(&volume, object)));
    table.vacate(token.index, content);
    result
}

/// Ends all handles of a volume, each when the calls on it have ended.
pub(crate) fn take_all_of(volume: &OpenVolume) {
    let table = TABLE.get();
    loop {
        let mut found = false;
        for index in 0..table.used() {
            let Some(slot) = table.slot(index) else { continue };
            if slot.owner.load(Ordering::Acquire) != volume.number() {
                continue;
            }
            // Also if it is being ended or made right now: that call may make another one.
            found = true;
            let content = slot.content.write().unwrap_or_else(PoisonError::into_inner);
            if content.entry.as_ref().is_some_and(|entry| entry.volume.number() == volume.number()) {
                let entry = table.vacate(index, content);
                // An object's end may panic like any other call; the others are ended all the same.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(entry)));
            }
        }
        // One that was made meanwhile may be in a slot that was passed already.
        if !found {
            return;
        }
    }
}

/// An object that stays open as long as this lives.
pub(crate) struct Guard<K> {
    content: RwLockReadGuard<'static, Content>,
    _kind: std::marker::PhantomData<fn() -> K>,
}

impl<K: Kind> Guard<K> {
    pub(crate) fn object(&self) -> &K {
        let entry = self.content.entry.as_ref().expect("looked at before");
        K::of(&entry.object).expect("looked at before")
    }

    pub(crate) fn volume(&self) -> &Arc<OpenVolume> {
        &self.content.entry.as_ref().expect("looked at before").volume
    }
}

/// Several objects, each of them once however often it is named; with the place of each in `pointers`.
///
/// A handle that is named twice must not be locked twice: who wants to close it would wait in between, and both for
/// ever.
pub(crate) fn hold<K: Kind, P>(pointers: &[*mut P]) -> Result<Vec<(usize, Guard<K>)>> {
    let mut tokens = Vec::with_capacity(pointers.len());
    for (at, pointer) in pointers.iter().enumerate() {
        let (_, slot, token) = find::<K, P>(pointer.cast_const())?;
        tokens.push((token, at, slot));
    }
    tokens.sort_unstable_by_key(|(token, at, _)| (*token, *at));
    tokens.dedup_by_key(|(token, _, _)| *token);
    let mut held = Vec::with_capacity(tokens.len());
    for (token, at, slot) in tokens {
        let content = read::<K>(slot, token)?;
        if content.entry(token).and_then(|entry| K::of(&entry.object)).is_none() {
            return Err(not_open::<K>());
        }
        held.push((at, Guard { content, _kind: std::marker::PhantomData }));
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_comes_apart_as_it_was_put_together() {
        for index in [0, 1, 63, 64, 4095, SLOTS_MAX - 1] {
            for (generation, epoch, kind) in [(0, 0, 1), (GENERATION_MASK, 255, 5), (77, 3, 15)] {
                let token = Token { index, generation, epoch, kind };
                assert!(Token::from_bits(token.to_bits()) == token);
            }
        }
    }

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let mut last = None;
        for index in 0..5000 {
            let (chunk, within) = place(index);
            assert!(within < (FIRST_CHUNK as usize) << chunk);
            assert!(Some((chunk, within)) > last);
            last = Some((chunk, within));
        }
        assert!(place(SLOTS_MAX - 1).0 < CHUNKS);
    }
}
