//! Exhaustive workloads in the manner of ACE (Mohan et al., "Finding Crash-Consistency Bugs with Bounded Black-Box
//! Crash Testing", OSDI 2018): every sequence of one or two operations on a small namespace of nested directories,
//! each followed by fsync, fdatasync, sync or nothing, and at the end by background work, so that what was not synced
//! reaches the device too.
//!
//! All of that on a volume of version 1, and once more on one of version 2: with a snapshot before the operation and
//! its deletion behind, in a clone whose snapshots are deleted, and amid each step of a deletion ([`around_trees`]);
//! and each pair of an operation on trees and another one ([`tree_steps`]).

use crate::lab::{Start, prepare};
use crate::operation::{Op, from_text};
use crate::oracle::PAGE;
use crate::snapshots;

/// Size of the volume: 4 MiB, the smallest.
pub const BLOCKS: u64 = 1024;
/// Size of its journal: 256 KiB, the smallest.
pub const JOURNAL_BLOCKS: u64 = 64;

/// What is there at the start, closed and thus durable.
const SETUP: &str = "mkdir:A;mkdir:B;mkdir:A/C;mkdir:E;creat:A/foo;write:A/foo:0:9000:11;setxattr:A/foo:user.old:20:3;creat:B/foo;\
     write:B/foo:0:700:12;creat:A/C/foo;symlink:A/foo:B/sym;sync";

/// The operations. Those that need something missing make it first.
const OPERATIONS: &[&str] = &[
    "creat:A/bar",
    "creat:A/C/bar",
    "mkdir:A/D",
    "mkdir:A/C/D",
    "falloc:A/foo:9000:8000",
    "fallockeep:A/foo:12288:8192",
    "falloc:B/foo:0:20000",
    "punch:A/foo:4096:4096",
    "zero:A/foo:1000:5000",
    "write:A/foo:0:5000:21",
    "write:A/foo:9000:4000:22",
    "write:A/foo:30000:100:23",
    "write:B/foo:100:200:24",
    "write:A/C/foo:0:40000:25",
    "dwrite:A/foo:4096:4096:26",
    "dwrite:B/foo:0:8192:27",
    "mwrite:A/foo:4000:300:28",
    "mwrite:B/foo:0:700:29",
    "dsyncwrite:A/foo:8000:3000:30",
    "rewrite:A/foo:6000:31",
    "rewrite:B/foo:20000:32",
    "link:A/foo:A/bar",
    "link:A/foo:B/bar",
    "link:B/foo:A/C/bar",
    "unlink:A/foo",
    "unlink:B/foo",
    "unlink:B/sym",
    "rmdir:E",
    "remove:A/C/foo",
    "rename:A/foo:A/bar",
    "rename:A/foo:B/foo",
    "rename:B/foo:A/foo",
    "rename:A/foo:A/C/bar",
    "rename:A/C:B/C",
    "rename:A:B/A",
    "rename:A/C:E",
    "exchange:A/foo:B/foo",
    "exchange:A/C:B",
    "symlink:B/foo:A/bar",
    "setxattr:A/foo:user.new:100:33",
    "setxattr:A/foo:user.old:3000:34",
    "setxattr:A:user.dir:10:35",
    "removexattr:A/foo:user.old",
    "truncate:A/foo:0",
    "truncate:A/foo:2500",
    "truncate:A/foo:15000",
    "truncate:B/foo:8192",
    "chmod:A/foo:384",
    "chown:A/foo:1000:100",
    "utimes:A/foo:777",
    "setacl:A/foo:480",
    "setdefaultacl:A:504",
    "setflags:A/foo:192",
    "tmplink:A/bar:5000:36",
    "tmpsynclink:A/C/bar:3000:37",
    "unlinkopen:A/foo:12000:38",
    "collapse:A/foo:4096:4096",
    "insert:A/foo:4096:8192",
    "copyrange:A/foo:B/foo:100:4096:6000",
    "whiteout:A/foo:B/foo",
    "syncrange:A/foo:4096:5000",
    "writeback:A/foo:4096:5000",
    "txn:write,A/foo,0,5000,41+write,B/foo,300,9000,42",
    "txn:creat,A/bar+write,A/bar,0,7000,43+unlink,B/foo+setxattr,A/foo,user.new,30,44",
    "txn:write,B/foo,0,150000,45+rename,B/foo,A/foo",
    "txn:truncate,A/foo,2500+write,A/C/foo,8192,70000,46+link,A/C/foo,B/bar",
    "txn:write,A/foo,4000,300,47!write,A/foo,100,50,48",
    "txn:write,A/C/foo,0,100,49+creat,B/bar!write,A/foo,100,50,48+fsync,A/foo",
    "txnabort:write,A/foo,0,140000,50+unlink,B/foo",
    "txn:truncate,B/foo,700+creat,B/bar!chmod,B/foo,384+setdefaultacl,B,414",
    "txnstart:write,A/foo,0,5000,51+creat,B/bar+write,B/bar,0,150000,52",
    "txn:write,A/foo,0,140000,53+absorb+write,B/foo,0,150000,54+creat,A/bar",
    "txn:write,A/foo,0,100000,59+absorb+write,B/foo,0,131072,61+write,B/foo,0,40960,63",
    // The last part says what is there already, and is refused: the first has said something else.
    "txnstart:write,A/foo,0,300,65+setxattr,A/foo,user.old,30,66+absorb+write,A/C/foo,0,150000,67+unlink,B/sym+\
     absorb+setxattr,A/foo,user.old,20,3",
    "txn:write,A/foo,0,300,55+absorb+write,A/foo,8192,100,56!write,A/foo,8700,50,57",
];

/// What comes after each operation, besides nothing.
const BACKGROUND: &str = "maintain:2000;maintain:6000;checkpoint";

/// What is there at the start of those of version 2, closed and thus durable. The names and files are the same. Two
/// snapshots show what some of them were before, and attributes in between keep them in several leaves.
const SETUP_OF_TREES: &str = "mkdir:A;mkdir:B;mkdir:A/C;mkdir:E;creat:A/foo;write:A/foo:0:9000:1;\
     setxattr:A/foo:user.old:20:2;mkdir:P;setxattr:P:user.1:3000:3;setxattr:P:user.2:3000:4;setxattr:P:user.3:3000:5;\
     setxattr:P:user.4:3000:6;setxattr:P:user.5:3000:7;setxattr:P:user.6:3000:8;creat:B/foo;write:B/foo:0:9000:9;\
     creat:A/C/foo;write:A/C/foo:0:20000:10;symlink:B/foo:B/sym;snap:one;\
     write:A/foo:4096:4904:11;setxattr:A/foo:user.old:20:3;setxattr:P:user.4:3000:12;rewrite:B/foo:700:12;snap:two;\
     write:A/foo:0:4096:11;truncate:A/C/foo:0;setxattr:P:user.1:3000:13;sync";
/// Files of so many pieces are among those of three levels.
const LONG_PIECES: [u64; 4] = [5, 6, 7, 8];
/// All that was written goes to its blocks.
const HOME: &str = "sync;maintain:6000;checkpoint";
/// Blocks of that volume: space for what two snapshots and a clone keep.
const BLOCKS_OF_TREES: u64 = 2048;
/// Of the one with nodes of few items, which are many; and these items.
const BLOCKS_OF_NARROW_TREES: u64 = 4096;
const ITEMS_OF_NARROW_TREES: usize = 3;

/// Operations on the trees of a volume, some with others before them.
const TREE_OPERATIONS: &[&str] = &[
    "snap:x",
    "snap-now:x",
    // What is synced is in the journal, and the snapshot inherits it; what is only written is not in it.
    "write:A/foo:100:50:70;fsync:A/foo;write:B/foo:10:50:71;snap-now:x",
    "snapdel:one",
    "snapdel:two",
    "snapdel:one;reap;reap",
    "snapdel:two;reap;reap;reap",
    "snapdel:two;snapdel:one",
    "clone:two:h",
    "clone:one:h;head:h",
    "write:A/foo:100:50:70;fsync:A/foo;snap-now:x;clone:x:h;head:h",
    "clone:two:h;snapdel:two;head:h",
    "rollback:two",
    "rollback:one:kept",
    "reap",
];

/// So many images that there is no room for those of the snapshot beside those of the head: they go home before.
const FULL_RING: &str = "creat:f1;write:f1:0:16384:1;fsync:f1;creat:f2;write:f2:0:16384:2;fsync:f2;creat:f3;\
     write:f3:0:16384:3;fsync:f3;creat:f4;write:f4:0:16384:4;fsync:f4;snap-now:x;write:A/foo:0:16000:77;fsync:A/foo;\
     write:f1:0:16384:88;fsync:f1;write:f2:0:16384:89;fsync:f2;write:f3:0:16384:89;fsync:f3;setxattr:A:user.a:3000:2;\
     setxattr:A:user.b:3000:2;setxattr:A:user.c:3000:2;setxattr:A:user.d:3000:2;sync;snap-now:y;maintain:6000";

/// The same with so many that the next snapshot's would be too many, though there are few of them yet.
const NEARLY_FULL_RING: &str = "creat:f1;write:f1:0:16384:1;fsync:f1;creat:f2;write:f2:0:16384:2;fsync:f2;creat:f3;\
     write:f3:0:16384:3;fsync:f3;snap-now:x;write:A/foo:0:16000:77;fsync:A/foo;write:f1:0:16384:88;fsync:f1;sync;\
     snap-now:y;maintain:6000";

/// What is put between so many steps of a deletion and the steps behind it: another tree that descends from where the
/// deleted one's neighbour does, and changes in it and beside it.
const AMID: &[&str] = &[
    "clone:two:h;head:h;write:A/foo:0:5000:21;setxattr:A/foo:user.old:30:66;creat:A/C/bar;unlink:B/foo;sync",
    "write:A/foo:0:5000:21;unlink:B/foo;snap:x;truncate:A/foo:2500;setxattr:P:user.3:3000:34;sync",
    "rewrite:A/foo:6000:31;falloc:B/foo:0:20000;write:A/C/foo:0:40000:25;sync;truncate:A/C/foo:5000;sync",
    "truncate:P/long6:30000;truncate:P/long7:30000;write:P/long8:16384:4096:5;sync;maintain:6000",
];
/// One of so many workloads with trees around one operation is run on trees of three levels as well.
const AROUND_NARROW_EVERY: usize = 23;
/// Steps before and behind.
const STEPS_BEFORE: usize = 12;
const STEPS_BEHIND: usize = 16;

/// What an operation is put between, with the operation in the place of `*`.
const AROUND: &[&str] = &[
    "snap:x;*;snapdel:x",
    "write:A/foo:100:50:70;fsync:A/foo;write:B/foo:10:50:71;snap-now:x;*;snapdel:x;reap;reap",
    "*;snap:x",
    "clone:two:h;head:h;*;snapdel:two;snapdel:one",
    "snapdel:two;reap;*",
    "snapdel:two;reap;reap;*",
    "snapdel:two;reap;reap;reap;*",
    "snapdel:two;reap;reap;reap;reap;*",
    "snapdel:one;reap;reap;*;snapdel:two",
];

/// The path that a sync behind the operation names.
fn target(op: &Op) -> String {
    match op {
        Op::Creat(path) | Op::Mkdir(path) => path.clone(),
        Op::Falloc { path, .. } | Op::Write { path, .. } | Op::Rewrite { path, .. } => path.clone(),
        Op::SetXattr { path, .. } | Op::RemoveXattr { path, .. } => path.clone(),
        Op::Truncate { path, .. } | Op::Chmod { path, .. } | Op::Chown { path, .. } => path.clone(),
        Op::Utimes { path, .. } | Op::SetAcl { path, .. } | Op::TmpLink { path, .. } => path.clone(),
        Op::SetDefaultAcl { path, .. } | Op::SetFlags { path, .. } => path.clone(),
        Op::Link(_, path) | Op::Rename(_, path) | Op::Exchange(_, path) => path.clone(),
        Op::Whiteout(_, path) | Op::Symlink(_, path) => path.clone(),
        Op::CopyRange { to, .. } => to.clone(),
        Op::UnlinkOpen { path, .. } | Op::Unlink(path) | Op::Rmdir(path) | Op::Remove(path) => {
            path.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned()
        }
        Op::Fsync(path) | Op::Fdatasync(path) => path.clone(),
        Op::SyncRange { path, .. } | Op::WriteBack { path, .. } => path.clone(),
        Op::Transaction { ops, .. } => ops.last().map(target).unwrap_or_default(),
        Op::Absorb | Op::Sync | Op::Maintain { .. } | Op::Checkpoint | Op::Trim => String::new(),
        Op::Snap { .. } | Op::SnapDelete(_) | Op::Clone { .. } | Op::Head(_) => String::new(),
        Op::Rollback { .. } | Op::Reap => String::new(),
    }
}

/// One operation with one of its four endings.
pub fn steps() -> Vec<Vec<Op>> {
    steps_of(OPERATIONS)
}

/// The same of other operations.
pub fn steps_of(operations: &[&str]) -> Vec<Vec<Op>> {
    let mut steps = Vec::new();
    for text in operations {
        let op: Op = text.parse().expect("the list holds operations");
        let path = target(&op);
        steps.push(vec![op.clone()]);
        steps.push(vec![op.clone(), Op::Fsync(path.clone())]);
        steps.push(vec![op.clone(), Op::Fdatasync(path)]);
        steps.push(vec![op, Op::Sync]);
    }
    steps
}

/// A workload of the given steps, with background work behind it.
pub fn workload(steps: &[&Vec<Op>]) -> Vec<Op> {
    let mut ops: Vec<Op> = steps.iter().flat_map(|step| step.iter().cloned()).collect();
    ops.extend(from_text(BACKGROUND).expect("the list holds operations"));
    ops
}

/// The operations on trees, each followed by sync or nothing.
pub fn tree_steps() -> Vec<Vec<Op>> {
    let each = TREE_OPERATIONS.iter().map(|text| from_text(text).expect("the list holds operations"));
    each.flat_map(|step| [step.clone(), [step, vec![Op::Sync]].concat()]).collect()
}

/// Everything of trees alone: their steps, and snapshots where the ring is full of images.
pub fn of_trees_alone() -> Vec<Vec<Op>> {
    let full_rings =
        [FULL_RING, NEARLY_FULL_RING].map(|text| from_text(text).expect("the list holds operations"));
    tree_steps().into_iter().chain(full_rings).collect()
}

/// What comes amid the deletion of the oldest snapshot, and of the newest one, behind each number of its steps.
pub fn amid_deletions() -> Vec<Vec<Op>> {
    let parsed = |text: &str| from_text(text).expect("the list holds operations");
    let reaps = |count: usize| vec![Op::Reap; count];
    let amid = |deleted: &str, steps: usize, text: &str| {
        [parsed(deleted), reaps(steps), parsed(text), reaps(STEPS_BEHIND)].concat()
    };
    let of_one = |steps: usize| AMID.iter().map(move |text| amid("snapdel:one", steps, text));
    let of_three = |steps: usize| AMID[1..].iter().map(move |text| amid("snapdel:three", steps, text));
    (0..STEPS_BEFORE).flat_map(|steps| of_one(steps).chain(of_three(steps)).collect::<Vec<_>>()).collect()
}

/// Everything on trees of three levels: what comes amid deletions, and a sample of what [`around_trees`] makes.
pub fn of_narrow_trees() -> Vec<Vec<Op>> {
    let around = steps().into_iter().flat_map(|step| around_trees(&step));
    amid_deletions().into_iter().chain(around.step_by(AROUND_NARROW_EVERY)).collect()
}

/// A step with trees around it, in each way that there is.
pub fn around_trees(step: &[Op]) -> Vec<Vec<Op>> {
    let parsed = |text: &str| from_text(text).expect("the list holds operations");
    let parts = AROUND.iter().map(|around| around.split_once('*').expect("a place for the operation"));
    parts.map(|(before, behind)| [parsed(before), step.to_vec(), parsed(behind)].concat()).collect()
}

/// The volume of version 2 on which those with trees start.
pub fn start_of_trees() -> Start {
    let setup = from_text(SETUP_OF_TREES).expect("the list holds operations");
    snapshots::prepare(BLOCKS_OF_TREES, JOURNAL_BLOCKS, &setup, 1)
}

/// The same with trees of three levels: nodes of few items. Besides, there are files whose pieces were in several
/// leaves and were all written anew; a third snapshot shows them, and their first pages have changed behind it.
pub fn start_of_narrow_trees() -> Start {
    let parsed = |text: &str| from_text(text).expect("the list holds operations");
    let mut setup = parsed(SETUP_OF_TREES);
    for pieces in LONG_PIECES {
        setup.extend(parsed(&format!("creat:P/long{pieces}")));
        let offsets = (0..pieces).map(|piece| piece * 2 * PAGE);
        setup.extend(offsets.flat_map(|at| parsed(&format!("write:P/long{pieces}:{at}:{PAGE}:3"))));
    }
    setup.extend(parsed(HOME));
    let each =
        |text: fn(u64) -> String| LONG_PIECES.into_iter().flat_map(move |pieces| parsed(&text(pieces)));
    setup.extend(each(|pieces| format!("write:P/long{pieces}:0:{}:4", pieces * 2 * PAGE)));
    setup.extend(parsed(HOME));
    setup.extend(parsed("snap:three"));
    setup.extend(each(|pieces| format!("write:P/long{pieces}:0:{PAGE}:6")));
    setup.extend(parsed(HOME));
    snapshots::prepare_narrow(BLOCKS_OF_NARROW_TREES, JOURNAL_BLOCKS, &setup, 1, ITEMS_OF_NARROW_TREES)
}

/// The volume on which all others start.
pub fn start() -> Start {
    prepare(BLOCKS, JOURNAL_BLOCKS, &from_text(SETUP).expect("the list holds operations"), 1)
}
