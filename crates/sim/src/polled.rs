//! Forces that are started and polled instead of waited for, as a transport drives them: acknowledged is durable here
//! too.
//!
//! The store alone, with items that are numbers: a volume that shows number `n` shows all before it (C2), and at
//! least as many as were acknowledged (C1).

use crate::ace::{BLOCKS, JOURNAL_BLOCKS};
use crate::crash::{Builder, Effort, Lie, states};
use crate::device::{Disk, SimDevice};
use crate::driver;
use crate::lab::{Tally, guarded};
use crate::random::{Random, derive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_device::Device;
use syncline_format::{Key, NAME_HASH_MIN, ObjectNo, TreeId};
use syncline_store::{Batch, Class, Estimate, Store, StoreError, StoreOptions};

/// Batches of a run.
const BATCHES: u64 = 20;
/// Looks at the device that one force gets; it completes a request at most looks.
const POLLS_MAX: u32 = 10_000;

fn key(number: u64) -> Key {
    Key::xattr(ObjectNo::ROOT_DIR, NAME_HASH_MIN + number)
}

fn open(device: &Arc<SimDevice>, seed: u64) -> Result<Arc<Store>, StoreError> {
    Store::open(Arc::clone(device) as Arc<dyn Device>, StoreOptions::new(derive(seed, 9)))?.finish()
}

/// How many of the numbers are there; an error if they are no prefix.
fn count(store: &Store) -> Result<u64, String> {
    let there: Result<Vec<bool>, StoreError> =
        (0..BATCHES).map(|number| Ok(store.get(TreeId::MAIN, key(number))?.is_some())).collect();
    let there = there.map_err(|error| format!("the recovered volume cannot be read: {error}"))?;
    let count = there.iter().take_while(|there| **there).count();
    match there[count..].iter().any(|there| *there) {
        true => Err(format!("number {count} is missing, and later ones are there")),
        false => Ok(count as u64),
    }
}

fn commit(store: &Store, number: u64) -> Result<syncline_format::Lsn, StoreError> {
    let permit = store.admit(Class::Normal, Estimate { bytes: 1024, items: 1, images: 0 })?;
    let mut batch = Batch::new(TreeId::MAIN);
    batch.put(key(number), &number.to_le_bytes());
    store.commit(permit, batch)
}

/// One run from a seed.
pub fn run(seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        if let Err(what) = run_store(seed, tally) {
            tally.violation(what);
        }
    })
}

fn run_store(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let told = |error: StoreError| format!("the store fails on a sound device: {error}");
    let blank = SimDevice::new(Disk::new(BLOCKS), derive(seed, 1));
    driver::format(1, &*blank, JOURNAL_BLOCKS, derive(seed, 2)).map_err(|error| error.to_string())?;
    let device = SimDevice::new(blank.settled(), derive(seed, 3));
    let store = open(&device, derive(seed, 4)).map_err(told)?;
    let opened = device.position();
    let mut random = Random::new(derive(seed, 5));
    for number in 0..BATCHES {
        let lsn = commit(&store, number).map_err(told)?;
        if random.one_in(3) {
            continue;
        }
        let done = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&done);
        store.start_force(lsn, Box::new(move |result| tell.store(result.is_ok(), Ordering::SeqCst)));
        let mut polls = 0;
        while store.drive() {
            polls += 1;
            if polls > POLLS_MAX {
                return Err("a force that is polled never ends".to_owned());
            }
        }
        if !done.load(Ordering::SeqCst) {
            return Err("a force that was started is not acknowledged".to_owned());
        }
        device.acknowledge(number as usize + 1);
    }
    let (base, trace) = device.recorded();
    let all = states(&trace, opened, Effort { subsets: 2, torn: 2 }, Lie::None, &mut random);
    let mut builder = Builder::new(base, &trace, Lie::None);
    for state in &all {
        tally.states += 1;
        let device = SimDevice::new(builder.build(state), derive(seed, 6));
        let store = open(&device, derive(seed, 7)).map_err(|error| format!("recovery fails: {error}"))?;
        let count = count(&store)?;
        if count < state.acknowledged as u64 {
            let (event, survivors) = (state.event, &state.survivors);
            return Err(format!(
                "{} batches were acknowledged, {count} are there [crash behind event {event} with survivors {survivors:?}]",
                state.acknowledged
            ));
        }
    }
    Ok(())
}
