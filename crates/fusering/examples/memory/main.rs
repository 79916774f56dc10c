//! A filesystem in memory: `memory DIRECTORY [dev|uring|auto]`, until it is unmounted.
//!
//! Complete enough to be used: everything that a program does with files works, nothing survives the process.

mod content;
mod filesystem;
mod tree;

use filesystem::MemoryFilesystem;
use fusering::{MountOptions, Session, TransportChoice};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let transport = match arguments.get(2).map_or("auto", String::as_str) {
        "auto" => TransportChoice::Auto,
        "dev" => TransportChoice::Dev,
        "uring" => TransportChoice::Uring,
        _ => return usage(),
    };
    let Some(directory) = arguments.get(1) else { return usage() };
    let options =
        MountOptions::default().source("memory").subtype("memory").allow_other(fusering::may_mount());
    let config = filesystem::config().transport(transport);
    let filesystem = Arc::new(MemoryFilesystem::new());
    let mounted = Session::mount(filesystem.clone(), Path::new(directory), &options, &config);
    let served = mounted.and_then(|session| {
        println!("mounted on {directory}, over {}", session.transport());
        session.run()
    });
    match served {
        Ok(()) => {
            println!("unmounted; {} files and directories are gone with it", filesystem.nodes() - 1);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("memory: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: memory DIRECTORY [auto|dev|uring]");
    ExitCode::from(2)
}
