//! `libsyncline` as C programs meet it: linked by `scripts/libsyncline.sh` of what cargo has built, and compiled
//! against the header.

mod built;
mod cost;
mod examples;
mod header;
mod linked;
mod panics;
mod programs;
