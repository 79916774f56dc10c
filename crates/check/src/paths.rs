//! Says where in the directory tree an inode is that a finding is about.
//!
//! Names are not kept while the items pass by. They are read once more, and only those that are needed: of the inodes
//! that findings name, and of the directories above them.

use crate::facts::Facts;
use crate::forest::Branch;
use crate::report::Findings;
use crate::walk::{Place, Source, Trees, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use syncline_format::item::DirentItem;
use syncline_format::node::NodePointer;
use syncline_format::{Key, Kind, ObjectNo, TreeId};

const ROOT: u64 = ObjectNo::ROOT_DIR.0;
/// Directories above an inode, and bytes of a path: what is deeper is told by its number alone.
const DEPTH_MAX: usize = 1024;
const PATH_BYTES_MAX: usize = 4096;
/// Nodes that are read for names; a damaged tree may lead to the same one again and again.
const NODES_MAX: u64 = 1 << 20;

/// Adds paths to the findings that name inodes of a tree.
pub(crate) fn add(
    trees: &Trees<'_>,
    (name, tree): (Option<TreeId>, TreeId),
    branch: &Branch,
    facts: &Facts,
    findings: &mut Findings,
) {
    let mut names = Names { wanted: BTreeMap::new(), found: BTreeMap::new(), nodes: 0 };
    for object in findings.objects(name) {
        for (directory, below) in way_up(facts, object.0) {
            names.wanted.entry(directory).or_default().insert(below);
        }
    }
    let directories: Vec<u64> = names.wanted.keys().copied().collect();
    for directory in directories {
        let object = ObjectNo(directory);
        let range = (Key::dirent(object, 0), Key::dirent(object, u64::MAX));
        let visitor = &mut names as &mut dyn Visitor;
        trees.walk_range(tree, &branch.root, &branch.overlay, range, visitor);
    }
    findings.set_paths(name, |object| path(facts, &names.found, object.0));
}

/// The directories from an inode up to the root, each with what it names on the way. Empty if they do not lead there.
fn way_up(facts: &Facts, object: u64) -> Vec<(u64, u64)> {
    let mut way = Vec::new();
    let mut at = object;
    while at != ROOT {
        let above = facts.inodes.get(&at).filter(|inode| inode.names > 0);
        let Some(above) = above.filter(|_| way.len() < DEPTH_MAX) else { return Vec::new() };
        way.push((above.named_in, at));
        at = above.named_in;
    }
    way
}

fn path(facts: &Facts, names: &BTreeMap<(u64, u64), Vec<u8>>, object: u64) -> Option<Vec<u8>> {
    if object == ROOT {
        return Some(b"/".to_vec());
    }
    let way = way_up(facts, object);
    let mut path = Vec::new();
    for step in way.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(names.get(step)?);
    }
    (!path.is_empty() && path.len() <= PATH_BYTES_MAX).then_some(path)
}

/// Collects names of what is wanted, by directory.
struct Names {
    wanted: BTreeMap<u64, BTreeSet<u64>>,
    found: BTreeMap<(u64, u64), Vec<u8>>,
    nodes: u64,
}

impl Visitor for Names {
    fn node(&mut self, _pointer: &NodePointer, _place: &Place) -> bool {
        self.nodes += 1;
        self.nodes <= NODES_MAX
    }

    fn item(&mut self, key: Key, value: &[u8], _source: Source) {
        if key.kind != Kind::Dirent {
            return;
        }
        let Ok(dirent) = DirentItem::decode(value) else { return };
        let step = (key.object.0, dirent.inode.0);
        if self.wanted.get(&step.0).is_some_and(|wanted| wanted.contains(&step.1)) {
            self.found.entry(step).or_insert(dirent.name);
        }
    }
}
