//! Inputs from a seed, and runs over many of them.

use super::TARGETS;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Lengths of inputs: three changes fit into the shortest, the longest feed every change that takes much.
const INPUT_BYTES: std::ops::Range<u64> = 24..400;
/// An input that takes longer is as good as a hang.
const INPUT_TIME_MAX: Duration = Duration::from_secs(120);
/// Numbers kept of each kind of failure.
const NUMBERS_MAX: usize = 5;

/// A generator whose numbers follow from the seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// Input `number` of a seed.
pub fn input(seed: u64, number: u64) -> Vec<u8> {
    let mut random = Random(seed.rotate_left(32) ^ number.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let len = INPUT_BYTES.start + random.next() % (INPUT_BYTES.end - INPUT_BYTES.start);
    (0..len).map(|_| random.next() as u8).collect()
}

/// What a run found: each kind of failure with the first numbers of the inputs that showed it, and how many did.
pub type Failures = BTreeMap<String, (Vec<u64>, u64)>;

/// Runs inputs of a seed through a target; goes on behind a panic. An input that does not end aborts the process.
pub fn run(name: &str, seed: u64, numbers: std::ops::Range<u64>, tell: &mut dyn FnMut(&str)) -> Failures {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    let place = Arc::new(Mutex::new(String::new()));
    let noted = place.clone();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        *noted.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
    }));
    let current = watch();
    let mut failures = Failures::new();
    let count = numbers.end - numbers.start;
    for (done, number) in numbers.enumerate() {
        current.store(number, Ordering::Relaxed);
        let bytes = input(seed, number);
        if catch_unwind(AssertUnwindSafe(|| target.run(&bytes))).is_err() {
            let what = place.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let kind = kind_of(&what);
            let (numbers, times) = failures.entry(kind).or_default();
            *times += 1;
            if numbers.len() < NUMBERS_MAX {
                numbers.push(number);
                tell(&format!("input {number}: {what}"));
            }
        }
        if (done + 1) % 5000 == 0 {
            tell(&format!("{} of {count} images, {} kinds of failure", done + 1, failures.len()));
        }
    }
    current.store(u64::MAX, Ordering::Relaxed);
    std::panic::set_hook(before);
    failures
}

/// A panic's place, and its words without the numbers.
fn kind_of(what: &str) -> String {
    let short: String = what.lines().take(3).collect::<Vec<_>>().join(" ").chars().take(300).collect();
    let place = short.split_whitespace().find(|word| word.contains(".rs:")).unwrap_or_default().to_owned();
    let words: String = short.chars().filter(|c| !c.is_ascii_digit()).take(200).collect();
    format!("{place} {words}")
}

/// A thread that ends the process when one input takes too long.
fn watch() -> Arc<AtomicU64> {
    let current = Arc::new(AtomicU64::new(0));
    let watched = current.clone();
    std::thread::spawn(move || {
        let mut last = (0, Duration::ZERO);
        let step = Duration::from_secs(1);
        loop {
            std::thread::sleep(step);
            let now = watched.load(Ordering::Relaxed);
            if now == u64::MAX {
                return;
            }
            last = if now == last.0 { (now, last.1 + step) } else { (now, Duration::ZERO) };
            if last.1 > INPUT_TIME_MAX {
                eprintln!("hostile: input {now} does not end");
                std::process::abort();
            }
        }
    });
    current
}
