//! How much a copy has to copy, so that its progress can tell the time left.
//!
//! A walk over names and sizes before the copy, for people at a terminal only. What it cannot look at is left out: the
//! copy itself tells.

use super::copier::Start;
use super::side::{Identity, Kind, Node, Side};
use std::collections::HashSet;
use std::ffi::OsStr;
use syncline_fuse::signals;

struct Walk<'a, F: Side> {
    from: &'a F,
    bytes: u64,
    /// Hard links are copied once; a damaged tree may lead into itself.
    seen: HashSet<Identity>,
}

/// Bytes of all files below.
pub(super) fn bytes_to_copy<F: Side>(from: &F, start: &Start) -> u64 {
    let mut walk = Walk { from, bytes: 0, seen: HashSet::new() };
    if let Ok(base) = from.open(&start.base) {
        match &start.name {
            Some(name) => walk.entry(&base, name),
            None => walk.directory(&base),
        }
    }
    walk.bytes
}

impl<F: Side> Walk<'_, F> {
    fn directory(&mut self, directory: &F::Directory) {
        let Ok(names) = self.from.names(directory) else { return };
        for name in names.names {
            if signals::received().is_some() {
                return;
            }
            self.entry(directory, &name);
        }
    }

    fn entry(&mut self, at: &F::Directory, name: &OsStr) {
        let Ok(Some(node)) = self.from.node(at, name) else { return };
        match node.kind() {
            Kind::File if self.is_new(&node) && !self.from.is_the_volume(&node) => self.bytes += node.size,
            Kind::Directory if self.is_new(&node) => {
                if let Ok(directory) = self.from.enter(at, name) {
                    self.directory(&directory);
                }
            }
            _ => {}
        }
    }

    /// Only what can be met twice is kept in mind.
    fn is_new(&mut self, node: &Node) -> bool {
        (node.kind() == Kind::File && node.links < 2) || self.seen.insert(node.identity)
    }
}
