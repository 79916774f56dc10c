//! Writes the golden images that are missing from `tests/golden`: `cargo run -p syncline-images`.

use std::process::ExitCode;

fn main() -> ExitCode {
    match syncline_images::golden::generate(&mut |line| println!("{line}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("golden images: {error}");
            ExitCode::FAILURE
        }
    }
}
