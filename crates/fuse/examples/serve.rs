//! Formats or mounts a volume: what the tests of the mount run as a daemon.
//!
//! `serve --format BYTES IMAGE [VERSION]` makes an empty volume in a new image file;
//! `serve [--background] IMAGE DIRECTORY [OPTIONS]` mounts it, with options as after `mount -o`.

use std::error::Error;
use std::process::ExitCode;
use syncline_device::FileDevice;
use syncline_fs::{Fs, MkfsOptions, SystemClock, SystemEntropy};
use syncline_fuse::{Mount, MountOptions};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    match arguments {
        [word, bytes, image] if word == "--format" => {
            format(image, bytes.parse()?, MkfsOptions::default().format)
        }
        [word, bytes, image, version] if word == "--format" => {
            format(image, bytes.parse()?, version.parse()?)
        }
        [word, image, directory, options @ ..] if word == "--background" => {
            Ok(mount(image, directory, options)?.serve_in_background()?)
        }
        [image, directory, options @ ..] => Ok(mount(image, directory, options)?.serve(|| {})?),
        _ => Err(
            "usage: serve --format BYTES IMAGE [VERSION] | serve [--background] IMAGE DIRECTORY [OPTIONS]"
                .into(),
        ),
    }
}

fn mount(image: &str, directory: &str, options: &[String]) -> Result<Mount, Box<dyn Error>> {
    let options = MountOptions::parse(options.first().map_or("", String::as_str))?;
    Ok(Mount { source: image.into(), directory: directory.into(), options })
}

fn format(image: &str, bytes: u64, version: u32) -> Result<(), Box<dyn Error>> {
    let device = if std::fs::metadata(image).is_ok_and(|found| !found.is_file()) {
        FileDevice::open(image, &Default::default())?
    } else {
        FileDevice::create(image, bytes)?
    };
    let entropy = SystemEntropy::default();
    // SAFETY: neither has preconditions.
    let (root_uid, root_gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let options = MkfsOptions::default().root_uid(root_uid).root_gid(root_gid).format(version);
    Fs::format(&device, &options, &SystemClock, &entropy, &mut |_, _| {})?;
    Ok(())
}
