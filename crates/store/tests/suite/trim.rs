//! Trims: what they tell the device, and what they keep from nobody.

use crate::support;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use syncline_device::{Buffer, Device, DeviceError, Layer, MemoryDevice, Operation};
use syncline_format::layout::{GROUP_HEAD_BLOCKS, Layout};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock, VolumeState};
use syncline_format::{BlockNo, GroupNo, Key, ObjectNo, TreeId};
use syncline_store::lock_order::elsewhere;
use syncline_store::{Batch, Class, Estimate, Pressure, Store, StoreError, StoreOptions};

/// Two groups.
const BLOCKS: u64 = 40_000;
const ALL: std::ops::Range<BlockNo> = BlockNo(0)..BlockNo(u64::MAX);

/// What happens at each discard.
type During = Box<dyn Fn() -> Result<(), DeviceError> + Send + Sync>;

struct Told {
    below: MemoryDevice,
    least: Option<u64>,
    runs: Mutex<Vec<(u64, u64)>>,
    during: OnceLock<During>,
}

impl Layer for Told {
    fn below(&self) -> &dyn Device {
        &self.below
    }

    fn on_discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.runs.lock().unwrap().push((at.0, blocks));
        self.during.get().map_or(Ok(()), elsewhere)?;
        self.below.discard(at, blocks)
    }

    fn least_discard(&self) -> Option<u64> {
        self.least
    }
}

fn volume(least: Option<u64>) -> (Arc<Told>, Arc<Store>) {
    volume_of(BLOCKS, least)
}

fn volume_of(blocks: u64, least: Option<u64>) -> (Arc<Told>, Arc<Store>) {
    let device =
        Told { below: MemoryDevice::new(blocks), least, runs: Mutex::default(), during: OnceLock::new() };
    let device = Arc::new(device);
    support::format(&*device, 64, Vec::new());
    let store = Store::open(device.clone(), StoreOptions::new(5)).expect("open").finish().expect("finish");
    (device, store)
}

#[test]
fn all_that_is_free_is_discarded_once_and_nothing_else() {
    let (device, store) = volume(Some(1));
    let space = store.space();
    assert_eq!(store.trim(ALL, 1), Ok(space.free - space.pinned));
    let mut runs = device.runs.lock().unwrap().clone();
    runs.sort();
    assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "no block twice: {runs:?}");
    let layout = Layout::new(BLOCKS, Some(64)).expect("valid");
    for (start, blocks) in runs {
        let (group, index) = layout.locate(BlockNo(start)).expect("in a group");
        assert!(u64::from(index) >= GROUP_HEAD_BLOCKS, "no bitmaps");
        assert!(u64::from(index) + blocks <= u64::from(layout.group_len(group)), "no backup superblocks");
        assert!(blocks <= 1 << 14, "64 MiB at a time at most");
    }
    assert_eq!(store.space(), space);
}

#[test]
fn what_the_device_takes_for_too_little_is_left_alone() {
    let (device, store) = volume(Some(40_000));
    assert_eq!(store.trim(ALL, 1), Ok(0));
    let (_, other) = volume(None);
    assert_eq!(other.trim(ALL, 1), Err(StoreError::NoDiscard));
    assert!(device.runs.lock().unwrap().is_empty());
}

#[test]
fn a_range_is_kept_to() {
    let (device, store) = volume(Some(1));
    let layout = Layout::new(BLOCKS, Some(64)).expect("valid");
    let second = layout.group_start(GroupNo(1)).0;
    assert_eq!(store.trim(BlockNo(second)..BlockNo(second + 10), 1), Ok(10 - GROUP_HEAD_BLOCKS));
    assert_eq!(*device.runs.lock().unwrap(), [(second + GROUP_HEAD_BLOCKS, 10 - GROUP_HEAD_BLOCKS)]);
}

#[test]
fn a_discard_that_fails_is_told_and_the_volume_goes_on() {
    let (device, store) = volume(Some(1));
    let failed = DeviceError::Io { operation: Operation::Discard, block: BlockNo(7), errno: 5 };
    let told = failed.clone();
    let _ = device.during.set(Box::new(move || Err(told.clone())));
    let space = store.space();
    assert_eq!(store.trim(ALL, 1), Err(StoreError::Device(failed)));
    assert_eq!((store.failure(), store.space()), (None, space));
    assert!(store.reserve(space.available).is_ok(), "nothing is held any more");
    store.shut_down();
    assert_eq!(store.trim(ALL, 1), Err(StoreError::ShutDown));
}

/// Who wants all the space there is gets it, though half of it is being discarded when he asks.
#[test]
fn who_lacks_what_is_being_discarded_waits_for_it() {
    let (device, store) = volume(Some(1));
    let asking: Arc<Mutex<Vec<std::thread::JoinHandle<bool>>>> = Arc::default();
    let (asked, held) = (asking.clone(), store.clone());
    let _ = device.during.set(Box::new(move || {
        let mut asked = asked.lock().unwrap();
        if asked.is_empty() {
            let store = held.clone();
            let all = store.space().available;
            asked.push(std::thread::spawn(move || store.reserve(all).is_ok()));
            // Long enough for an answer that does not wait.
            let end = Instant::now() + Duration::from_millis(100);
            while Instant::now() < end && !asked[0].is_finished() {
                std::thread::yield_now();
            }
        }
        Ok(())
    }));
    store.trim(ALL, 1).expect("trim");
    let asked: Vec<_> = asking.lock().unwrap().drain(..).collect();
    assert_eq!(asked.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>(), [true]);
}

/// The most items that are admitted when nothing is held.
fn most_items(store: &Store) -> Estimate {
    let estimate = |items| Estimate { bytes: 4096, items, images: 0 };
    let granted = (1..).take_while(|items| store.try_admit(Class::Normal, estimate(*items)).is_ok());
    estimate(granted.last().expect("there is room"))
}

/// On the thread of the discard itself, where a wait for its end would never end.
// Shows: R18.
#[test]
fn who_must_not_wait_is_told_of_the_pressure_while_the_last_blocks_are_discarded() {
    let (device, store) = volume_of(2048, Some(1));
    let most = most_items(&store);
    let (held, waiting) = (store.clone(), Arc::new(Mutex::new(None)));
    let (tries, waits) = (Arc::new(AtomicUsize::new(0)), waiting.clone());
    let refused = tries.clone();
    let _ = device.during.set(Box::new(move || {
        let mut waits = waits.lock().unwrap();
        if waits.is_some() {
            return Ok(());
        }
        let pressure = StoreError::Pressure(Pressure::Nodes);
        if held.try_admit(Class::Normal, most).is_err_and(|error| error == pressure) {
            refused.fetch_add(1, Ordering::Relaxed);
        }
        let store = held.clone();
        // Who may wait gets what was held.
        *waits = Some(std::thread::spawn(move || {
            loop {
                match store.admit(Class::Normal, most) {
                    Err(StoreError::Pressure(_)) => {}
                    granted => return granted.map(drop),
                }
            }
        }));
        Ok(())
    }));
    store.trim(ALL, 1).expect("trim");
    assert_eq!(tries.load(Ordering::Relaxed), 1, "refused at once");
    let waited = waiting.lock().unwrap().take().expect("there was a discard");
    assert_eq!(waited.join().unwrap(), Ok(()));
    assert!(store.try_admit(Class::Normal, most).is_ok(), "nothing is held any more");
}

/// Changes every tenth item or so, among them the first and the last.
fn change_items(store: &Store, round: u64) {
    for number in (0..1000).filter(|number| (number + round).is_multiple_of(10) || number.is_multiple_of(999))
    {
        let estimate = Estimate { bytes: 4096, items: 1, images: 0 };
        let permit = store.admit(Class::Normal, estimate).expect("there is room");
        let mut batch = Batch::new(TreeId::MAIN);
        batch.put(Key::inode(ObjectNo(1000 + number)), &[round as u8; 160]);
        store.commit(permit, batch).expect("commit");
    }
    store.force(store.last_lsn()).expect("force");
}

fn items(store: &Store) -> Vec<(Key, Vec<u8>)> {
    let mut items = Vec::new();
    let all = Key::inode(ObjectNo(1000))..Key::inode(ObjectNo(3000));
    let mut visit = |key, value: &[u8]| {
        items.push((key, value.to_vec()));
        ControlFlow::Continue(())
    };
    store.scan(TreeId::MAIN, all.start, all.end, &mut visit).expect("scan");
    items
}

/// What the volume shows if one slot of the superblock is lost now.
fn without(slot: BlockNo, device: &Told) -> Vec<(Key, Vec<u8>)> {
    let copy = MemoryDevice::from_bytes(device.below.to_bytes());
    copy.write(slot, vec![Arc::new(Buffer::zeroed(1))]).expect("write");
    items(Store::open(Arc::new(copy), StoreOptions::new(9)).expect("the other slot is there").store())
}

// Shows: C7a.
#[test]
fn a_superblock_lost_behind_a_trim_is_no_greater_loss_than_without() {
    for trims in [false, true] {
        let (device, store) = volume_of(2048, Some(1));
        for round in 0..4 {
            change_items(&store, round);
            store.checkpoint().expect("checkpoint");
        }
        if trims {
            assert!(store.trim(ALL, 1).expect("trim") > 0);
        }
        let all = items(&store);
        assert!(SUPERBLOCK_SLOTS.into_iter().all(|slot| without(slot, &device) == all), "trim: {trims}");
    }
}

/// What a checkpoint releases while a trim is under way is left to the next one.
// Shows: C7a.
#[test]
fn a_superblock_lost_behind_a_trim_beside_a_checkpoint_is_no_greater_loss_either() {
    let (device, store) = volume_of(2048, Some(1));
    change_items(&store, 0);
    store.checkpoint().expect("checkpoint");
    let (busy, first) = (store.clone(), AtomicBool::new(true));
    let _ = device.during.set(Box::new(move || {
        if first.swap(false, Ordering::Relaxed) {
            change_items(&busy, 1);
            busy.checkpoint().expect("checkpoint");
        }
        Ok(())
    }));
    store.trim(ALL, 1).expect("trim");
    assert!(device.runs.lock().unwrap().len() > 2, "discards behind the checkpoint");
    let all = items(&store);
    assert!(SUPERBLOCK_SLOTS.into_iter().all(|slot| without(slot, &device) == all));
}

#[test]
fn what_was_freed_before_the_last_checkpoint_is_discarded_all_the_same() {
    let (device, store) = volume_of(2048, Some(1));
    let free = store.space().free;
    change_items(&store, 1);
    store.checkpoint().expect("checkpoint");
    let space = store.space();
    assert!(space.free < free);
    assert_eq!(store.trim(ALL, 1), Ok(space.free));
    let told: u64 = device.runs.lock().unwrap().iter().map(|(_, blocks)| blocks).sum();
    assert_eq!(told, space.free);
}

#[test]
fn a_trim_ends_early_when_it_is_told_to() {
    let (device, store) = volume(Some(1));
    let ending = store.clone();
    let _ = device.during.set(Box::new(move || {
        ending.end_trims();
        Ok(())
    }));
    let discarded = store.trim(ALL, 1).expect("trim");
    assert_eq!(device.runs.lock().unwrap().len(), 1, "no run behind the one under way");
    assert!(discarded > 0 && discarded < store.space().free);
    assert!(store.reserve(store.space().available).is_ok(), "nothing is held any more");
}

/// Behind the close the device may be somebody else's.
#[test]
fn a_close_waits_for_the_discard_that_is_under_way() {
    let (device, store) = volume(Some(1));
    let closing: Arc<Mutex<Vec<std::thread::JoinHandle<()>>>> = Arc::default();
    let (closes, open) = (closing.clone(), store.clone());
    let too_early = Arc::new(AtomicBool::new(false));
    let early = too_early.clone();
    let _ = device.during.set(Box::new(move || {
        let store = open.clone();
        let close = std::thread::spawn(move || store.close().expect("close"));
        // Long enough for one that does not wait.
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end && !close.is_finished() {
            std::thread::yield_now();
        }
        early.fetch_or(close.is_finished(), Ordering::Relaxed);
        closes.lock().unwrap().push(close);
        Ok(())
    }));
    store.trim(ALL, 1).expect("trim");
    for close in closing.lock().unwrap().drain(..) {
        close.join().unwrap();
    }
    assert!(!too_early.load(Ordering::Relaxed));
    assert_eq!(device.runs.lock().unwrap().len(), 1, "none behind the close");
}

#[test]
fn a_trim_behind_the_close_leaves_the_volume_clean() {
    let (device, store) = volume(Some(1));
    change_items(&store, 1);
    store.close().expect("close");
    assert_eq!(store.trim(ALL, 1), Ok(0));
    let slots = SUPERBLOCK_SLOTS.map(|slot| {
        let mut bytes = Buffer::zeroed(1);
        device.read(slot, &mut bytes).expect("read");
        Superblock::decode(&bytes, slot, BLOCKS).expect("both were written")
    });
    let newest = slots.into_iter().max_by_key(|superblock| superblock.generation).expect("two");
    assert_eq!(newest.state, VolumeState::Clean);
}

#[test]
fn a_read_only_volume_is_not_trimmed() {
    let (device, store) = volume(Some(1));
    store.close().expect("close");
    drop(store);
    let options = StoreOptions::new(6).read_only(true);
    let store = Store::open(device.clone(), options).expect("open").finish().expect("finish");
    assert_eq!(store.trim(ALL, 1), Err(StoreError::ReadOnly));
    assert!(device.runs.lock().unwrap().is_empty());
}
