//! Replays the kept inputs of every fuzz target, and mutations of them from a fixed seed, without a fuzzer.
//!
//! One test, so that what it counts of memory is its own.

use std::fs;
use std::time::{Duration, Instant};
use syncline_images::allocation::{Counting, live_bytes};
use syncline_images::hostile::{TARGETS, Target};
use syncline_images::source_root;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Mutations of each target. `SYNCLINE_MUTATIONS` asks for more.
const MUTATIONS: u64 = 400;
/// An input that takes longer is as good as a hang.
const INPUT_TIME_MAX: Duration = Duration::from_secs(60);
const INPUT_BYTES_MAX: usize = 20_000;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        ((mixed >> 16) as usize) % limit.max(1)
    }
}

/// Changes, inserts and removes bytes; now and then joins two inputs.
fn mutate(random: &mut Random, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut input = inputs[random.below(inputs.len())].clone();
    if random.below(4) == 0 {
        let other = &inputs[random.below(inputs.len())];
        input.truncate(random.below(input.len() + 1));
        input.extend_from_slice(&other[random.below(other.len() + 1)..]);
    }
    for _ in 0..1 + random.below(6) {
        let at = random.below(input.len() + 1);
        match random.below(4) {
            0 if at < input.len() => input[at] = random.below(256) as u8,
            1 if at < input.len() => input[at] ^= 1 << random.below(8),
            2 if at < input.len() => drop(input.drain(at..(at + 1 + random.below(8)).min(input.len()))),
            _ => {
                let new: Vec<u8> = (0..1 + random.below(12)).map(|_| random.below(256) as u8).collect();
                input.splice(at..at, new);
            }
        }
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

#[test]
fn no_input_panics_hangs_or_takes_unbounded_memory() {
    let held = std::hint::black_box(vec![1u8; 1 << 20]);
    assert!(live_bytes() >= held.len(), "memory is counted");
    let mutations = std::env::var("SYNCLINE_MUTATIONS").ok().and_then(|text| text.parse().ok());
    for target in TARGETS {
        let directory = source_root().join("fuzz/seeds").join(target.name);
        let mut paths: Vec<_> = fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
            .map(|entry| entry.expect("readable").path())
            .collect();
        paths.sort();
        let mut inputs: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).expect("readable")).collect();
        for (path, input) in paths.iter().zip(&inputs) {
            println!("{}", path.display());
            replay(target, input);
        }
        inputs.push(Vec::new());
        let mut random = Random(1);
        for number in 0..mutations.unwrap_or(MUTATIONS) {
            let input = mutate(&mut random, &inputs);
            println!("{} {number} {}", target.name, hex(&input));
            replay(target, &input);
        }
    }
}

fn replay(target: &Target, input: &[u8]) {
    let start = Instant::now();
    target.run(input);
    assert!(start.elapsed() < INPUT_TIME_MAX, "{}: an input took {:?}", target.name, start.elapsed());
}

/// As the shell's `xxd -r -p` takes it, cut off where it is long.
fn hex(input: &[u8]) -> String {
    input.iter().take(400).map(|byte| format!("{byte:02x}")).collect()
}
