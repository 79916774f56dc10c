//! The transport over /dev/fuse.
