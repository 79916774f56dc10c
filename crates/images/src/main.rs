//! `cargo run -p syncline-images` writes the golden images that are missing from `tests/golden`.
//!
//! `cargo run --release -p syncline-images -- hostile [--target semantics] [--seed 1] [--images 100000] [--from 0]`
//! runs that many inputs of a seed through a target, and fails if one panics, takes too much memory, or does not end.

use std::process::ExitCode;
use syncline_images::allocation::Counting;
use syncline_images::{golden, hostile};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        None => golden::generate(&mut |line| println!("{line}")).map_err(|error| error.to_string()),
        Some("hostile") => run_hostile(&arguments[1..]),
        Some(other) => Err(format!("unknown command {other}; there is \"hostile\"")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("images: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_hostile(arguments: &[String]) -> Result<(), String> {
    let (mut target, mut seed, mut images, mut from) = ("semantics".to_owned(), 1, 100_000, 0);
    for pair in arguments.chunks(2) {
        let [option, value] = pair else { return Err(format!("{} needs a value", pair[0])) };
        let number = || value.parse::<u64>().map_err(|error| format!("{option} {value}: {error}"));
        match option.as_str() {
            "--target" => target.clone_from(value),
            "--seed" => seed = number()?,
            "--images" => images = number()?,
            "--from" => from = number()?,
            _ => return Err(format!("unknown option {option}")),
        }
    }
    if !hostile::TARGETS.iter().any(|known| known.name == target) {
        return Err(format!("there is no target {target}"));
    }
    let failures = hostile::seeded::run(&target, seed, from..from + images, &mut |line| println!("{line}"));
    for (kind, (numbers, times)) in &failures {
        println!("{times} times, first by inputs {numbers:?}: {kind}");
    }
    println!("{images} images of seed {seed} from {from}: {} kinds of failure", failures.len());
    if failures.is_empty() { Ok(()) } else { Err("some inputs failed".to_owned()) }
}
