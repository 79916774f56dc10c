//! Fuzzer of the target `forest`: see crates/images/src/hostile.
#![no_main]

use syncline_images::allocation::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

libfuzzer_sys::fuzz_target!(|input: &[u8]| syncline_images::hostile::run("forest", input));
