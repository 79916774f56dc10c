//! Real mounts, over both transports. Needs root and /dev/fuse, and for io_uring the kernel's leave; what is missing is
//! said, and the test skipped.

mod beside;
#[path = "../../examples/memory/content.rs"]
mod content;
mod files;
#[path = "../../examples/memory/filesystem.rs"]
mod filesystem;
mod harness;
#[path = "../support/kernel.rs"]
mod kernel;
mod life;
mod load;
mod requests;
mod scripted;
mod streams;
#[path = "../../examples/memory/tree.rs"]
mod tree;
