//! Trims: what they tell the device, and what they keep from nobody.

mod support;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use syncline_device::{Device, DeviceError, Layer, MemoryDevice, Operation};
use syncline_format::layout::{GROUP_HEAD_BLOCKS, Layout};
use syncline_format::{BlockNo, GroupNo};
use syncline_store::{Store, StoreError, StoreOptions};

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
        self.during.get().map_or(Ok(()), |during| during())
    }

    fn least_discard(&self) -> Option<u64> {
        self.least
    }
}

fn volume(least: Option<u64>) -> (Arc<Told>, Arc<Store>) {
    let device =
        Told { below: MemoryDevice::new(BLOCKS), least, runs: Mutex::default(), during: OnceLock::new() };
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

#[test]
fn a_read_only_volume_is_not_trimmed() {
    let (device, store) = volume(Some(1));
    store.close().expect("close");
    drop(store);
    let options = StoreOptions { read_only: true, ..StoreOptions::new(6) };
    let store = Store::open(device.clone(), options).expect("open").finish().expect("finish");
    assert_eq!(store.trim(ALL, 1), Err(StoreError::ReadOnly));
    assert!(device.runs.lock().unwrap().is_empty());
}
