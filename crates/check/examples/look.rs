//! A check from within a program: what is wrong with a volume that nobody has open, and where. It writes nothing.
//!
//! ```sh
//! cargo run -p syncline-check --example look -- disk.img
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use syncline_check::{CheckOptions, Severity, check};
use syncline_device::{FileDevice, OpenOptions};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: look IMAGE")?;
    let device = FileDevice::open(image, &OpenOptions::default().read_only(true))?;
    // With all data of files; `progress` would tell now and then how far it is.
    let report = check(&device, CheckOptions::default().data(true))?;
    let mut out = io::stdout().lock();
    for finding in report.findings.iter().filter(|finding| finding.severity >= Severity::Error) {
        let path = finding.path.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        writeln!(out, "{}: {path} {}", finding.code, finding.message)?;
    }
    let verdict = if report.is_sound() { "sound" } else { "damaged" };
    writeln!(out, "{verdict}: {} inodes, {} errors", report.totals.inodes, report.errors_left())?;
    // What fsck(8) understands.
    Ok(ExitCode::from(report.exit_code() as u8))
}
